//! How packets get from a rank to the switch and back: by UDP, or past the network straight into the program
//! in the kernel of the rank's own machine.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};

use sparktune_base::random::SplitMix64;

use crate::xdp::frame::{Action, Ends, FRAME, FRAME_HEAD, write_head};
use crate::xdp::kernel::Kernel;
use crate::xdp::packets::Packets;
use crate::xdp::slots::Counts;
use crate::xdp::wire::PACKET;

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

    /// Takes the next packet that has come. Returns whether there was one; it may be anything.
    ///
    /// # Errors
    /// Nothing can be received any more.
    fn receive(&mut self, packet: &mut [u8; PACKET]) -> io::Result<bool>;

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

    fn receive(&mut self, packet: &mut [u8; PACKET]) -> io::Result<bool> {
        loop {
            if let Some((datagram, _)) = self.packets.next() {
                match <&[u8; PACKET]>::try_from(&*datagram) {
                    Ok(whole) => *packet = *whole,
                    Err(_) => packet.fill(0),
                }
                return Ok(true);
            }
            if !self.packets.refill()? {
                return Ok(false);
            }
        }
    }
}

/// Rank 0's way into the program of its own kernel, whose packets to itself would never pass the interface.
pub(crate) struct Inside {
    kernel: Kernel,
    /// Sends the results that this rank completes.
    packets: Packets,
    ends: Ends,
    others: Vec<SocketAddrV4>,
    results: VecDeque<[u8; PACKET]>,
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
        Ok(Self { kernel, packets, ends, others, results: VecDeque::new(), frame: Vec::with_capacity(FRAME) })
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
            if action == Action::ToAll {
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

    fn receive(&mut self, packet: &mut [u8; PACKET]) -> io::Result<bool> {
        let result = self.results.pop_front();
        if let Some(result) = result {
            *packet = result;
        }
        Ok(result.is_some())
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
