//! How packets get from a rank to the switch and back: by UDP, back by AF_XDP, or past the network straight
//! into the program in the kernel of the rank's own machine.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use sparktune_base::random::SplitMix64;

use crate::xdp::af_xdp::AfXdp;
use crate::xdp::frame::{Action, Ends, FRAME, FRAME_HEAD, write_head};
use crate::xdp::kernel::Kernel;
use crate::xdp::packets::Packets;
use crate::xdp::slots::Counts;
use crate::xdp::wire::PACKET;

/// What a datagram of another length is read as: zeros, which are no valid packet.
static NOTHING: [u8; PACKET] = [0; PACKET];
/// With AF_XDP, how often a rank also looks at its ordinary socket.
const LOOK: Duration = Duration::from_millis(1);
/// For how long it looks there all the time once something has come by it.
const BUSY: Duration = Duration::from_millis(100);

/// What has come: a packet, or something else of its length.
pub(crate) struct Arrival<'a> {
    pub(crate) packet: &'a [u8; PACKET],
    /// The position of the packet in the pages of the arena, if it can stay there.
    pub(crate) at: Option<usize>,
}

/// A way to the switch.
pub(crate) trait Transport: Send {
    /// Sends a packet, at the latest with the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// Packets are lost on the way to all or some of those that they are for, for this reason. It may pass,
    /// as a moment without a route or a full queue does.
    fn send(&mut self, packet: &[u8; PACKET]) -> io::Result<()>;

    /// Sends all that waits.
    ///
    /// # Errors
    /// As those of [`send`](Self::send).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Takes the next packet that has come, if there is one; it may be anything.
    ///
    /// # Errors
    /// Nothing can be received any more.
    fn receive(&mut self) -> io::Result<Option<Arrival<'_>>>;

    /// Lets the last packet stay where it is until [`release`](Self::release), if it can stay there.
    fn keep(&mut self) {}

    /// Gives up all packets that were kept.
    fn release(&mut self) {}

    /// Begins the sums of a job, after the first one that is only tried.
    fn begin(&mut self) {}

    /// Returns where packets go by the network.
    fn receivers(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Returns how many packets came by AF_XDP.
    fn delivered(&self) -> u64 {
        0
    }

    /// Returns whether results come only to who asks, by sending its contribution again.
    fn must_ask(&self) -> bool {
        false
    }

    /// Returns how many results have come and were not taken, on a way on which one must ask.
    fn waiting(&self) -> usize {
        0
    }

    /// Returns what the switch counts, if it is at the end of this way and says so.
    fn counts(&self) -> Option<Counts> {
        None
    }
}

/// A way through the network.
pub(crate) struct Udp {
    packets: Packets,
    to: SocketAddr,
}

impl Udp {
    /// Sends to this address.
    pub(crate) fn new(socket: UdpSocket, to: SocketAddr) -> io::Result<Self> {
        Ok(Self { packets: Packets::new(socket)?, to })
    }
}

impl Transport for Udp {
    fn send(&mut self, packet: &[u8; PACKET]) -> io::Result<()> {
        self.packets.send(self.to, packet)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.packets.flush()
    }

    fn receivers(&self) -> Vec<SocketAddr> {
        vec![self.to]
    }

    fn receive(&mut self) -> io::Result<Option<Arrival<'_>>> {
        loop {
            if let Some((datagram, _)) = self.packets.step() {
                let packet = self.packets.bytes()[datagram].try_into().unwrap_or(&NOTHING);
                return Ok(Some(Arrival { packet, at: None }));
            }
            if !self.packets.refill()? {
                return Ok(None);
            }
        }
    }
}

/// A way through the network, and back by AF_XDP, or by the ordinary socket for what AF_XDP does not take.
pub(crate) struct BackByAfXdp {
    udp: Udp,
    af_xdp: AfXdp,
    /// When this rank last found nothing at the socket, and until when it looks there all the time.
    looked: Instant,
    busy_until: Instant,
}

impl BackByAfXdp {
    pub(crate) fn new(udp: Udp, af_xdp: AfXdp) -> Self {
        let now = Instant::now();
        Self { udp, af_xdp, looked: now, busy_until: now }
    }
}

impl Transport for BackByAfXdp {
    fn send(&mut self, packet: &[u8; PACKET]) -> io::Result<()> {
        self.udp.send(packet)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.udp.flush()
    }

    fn receivers(&self) -> Vec<SocketAddr> {
        self.udp.receivers()
    }

    fn receive(&mut self) -> io::Result<Option<Arrival<'_>>> {
        if let Some(at) = self.af_xdp.take() {
            let of_pages = self.af_xdp.has_spare().then(|| self.af_xdp.start() + at);
            return Ok(Some(Arrival { packet: self.af_xdp.packet(at), at: of_pages }));
        }
        let now = Instant::now();
        if now >= self.busy_until && now - self.looked < LOOK {
            return Ok(None);
        }
        let came = self.udp.receive()?;
        if came.is_some() {
            self.busy_until = now + BUSY;
        } else {
            self.looked = now;
        }
        Ok(came)
    }

    fn keep(&mut self) {
        self.af_xdp.keep();
    }

    fn release(&mut self) {
        self.af_xdp.release();
    }

    fn delivered(&self) -> u64 {
        self.af_xdp.delivered()
    }
}

/// Rank 0's way into the program of its own kernel, whose packets to itself would never pass the interface.
pub(crate) struct Inside {
    kernel: Kernel,
    /// Sends the results that this rank completes, once the sums of the job have begun. Before that, others
    /// have to ask the program for them, so that the first sum shows whether its results reach them.
    packets: Packets,
    has_begun: bool,
    ends: Ends,
    others: Vec<SocketAddrV4>,
    results: VecDeque<[u8; PACKET]>,
    /// The result that was taken last.
    result: [u8; PACKET],
    frame: Vec<u8>,
}

impl Inside {
    /// Uses a program that is attached. `others` are the addresses of all other ranks.
    pub(crate) fn new(
        kernel: Kernel,
        socket: UdpSocket,
        ends: Ends,
        others: Vec<SocketAddrV4>,
    ) -> io::Result<Self> {
        let packets = Packets::new(socket)?;
        let (results, frame) = (VecDeque::new(), Vec::with_capacity(FRAME));
        Ok(Self { kernel, packets, has_begun: false, ends, others, results, result: NOTHING, frame })
    }
}

impl Transport for Inside {
    fn send(&mut self, packet: &[u8; PACKET]) -> io::Result<()> {
        let mut frame = [0; FRAME];
        write_head(&mut frame, self.ends);
        frame[FRAME_HEAD..].copy_from_slice(packet);
        self.frame.clear();
        self.frame.extend_from_slice(&frame);
        let action = self.kernel.run(&mut self.frame).map_err(io::Error::other)?;
        let result: Option<[u8; PACKET]> =
            self.frame.get(FRAME_HEAD..FRAME).and_then(|result| result.try_into().ok());
        let mut sent = Ok(());
        if let (Action::Back | Action::ToAll, Some(result)) = (action, result) {
            if action == Action::ToAll && self.has_begun {
                for to in &self.others {
                    sent = sent.and(self.packets.send((*to).into(), &result));
                }
            }
            self.results.push_back(result);
        }
        sent
    }

    fn flush(&mut self) -> io::Result<()> {
        self.packets.flush()
    }

    fn receivers(&self) -> Vec<SocketAddr> {
        self.others.iter().copied().map(Into::into).collect()
    }

    fn receive(&mut self) -> io::Result<Option<Arrival<'_>>> {
        let Some(result) = self.results.pop_front() else { return Ok(None) };
        self.result = result;
        Ok(Some(Arrival { packet: &self.result, at: None }))
    }

    fn begin(&mut self) {
        self.has_begun = true;
    }

    fn must_ask(&self) -> bool {
        true
    }

    fn waiting(&self) -> usize {
        self.results.len()
    }

    fn counts(&self) -> Option<Counts> {
        self.kernel.counts().ok()
    }
}

/// Loses packets on purpose, both ways, as a bad network would.
#[derive(Debug, Clone)]
pub struct Loss {
    random: SplitMix64,
    /// The share of packets that are lost, in millionths.
    per_million: u32,
}

impl Loss {
    /// Loses this share of packets, in millionths. The seed says which.
    pub fn new(per_million: u32, seed: u64) -> Self {
        Self { random: SplitMix64::new(seed), per_million }
    }

    pub(crate) fn loses(&mut self) -> bool {
        self.random.below(1_000_000) < self.per_million
    }
}
