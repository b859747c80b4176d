//! How packets get from a rank to the switch and back: by UDP, or past the network straight into the program
//! in the kernel of the rank's own machine.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};

use sparktune_base::random::SplitMix64;

use crate::xdp::frame::{Action, Ends, FRAME, FRAME_HEAD, write_head};
use crate::xdp::kernel::Kernel;
use crate::xdp::slots::Counts;
use crate::xdp::wire::PACKET;

/// A way to the switch. What cannot be sent now is lost, as it could be in the network.
pub(crate) trait Transport: Send {
    /// Sends a packet.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn send(&mut self, packet: &[u8; PACKET]) -> io::Result<()>;

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

/// A socket that never waits.
pub(crate) struct Udp {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Udp {
    /// Sends to this address.
    pub(crate) fn new(socket: UdpSocket, to: SocketAddr) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, to })
    }
}

impl Transport for Udp {
    fn send(&mut self, packet: &[u8; PACKET]) -> io::Result<()> {
        lossy(self.socket.send_to(packet, self.to).map(drop))
    }

    fn receive(&mut self, packet: &mut [u8; PACKET]) -> io::Result<bool> {
        // One byte more, so that a longer packet is noticed.
        let mut bytes = [0; PACKET + 1];
        match self.socket.recv_from(&mut bytes) {
            Ok((length, _)) => {
                packet.fill(0);
                if length == PACKET {
                    packet.copy_from_slice(&bytes[..PACKET]);
                }
                Ok(true)
            }
            Err(error) if is_empty(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Rank 0's way into the program of its own kernel, whose packets to itself would never pass the interface.
pub(crate) struct Inside {
    kernel: Kernel,
    /// Sends the results that this rank completes.
    socket: UdpSocket,
    ends: Ends,
    others: Vec<SocketAddrV4>,
    results: VecDeque<[u8; PACKET]>,
    frame: Vec<u8>,
}

impl Inside {
    /// Uses a program that is attached. `others` are the addresses of all other ranks.
    pub(crate) fn new(kernel: Kernel, socket: UdpSocket, ends: Ends, others: Vec<SocketAddrV4>) -> Self {
        Self { kernel, socket, ends, others, results: VecDeque::new(), frame: Vec::with_capacity(FRAME) }
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
        if let (Action::Back | Action::ToAll, Some(result)) = (action, result) {
            if action == Action::ToAll {
                self.others.iter().try_for_each(|to| lossy(self.socket.send_to(&result, to).map(drop)))?;
            }
            self.results.push_back(result);
        }
        Ok(())
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

/// Takes what the network may lose for lost.
pub(crate) fn lossy(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if is_empty(&error) => Ok(()),
        // ENOBUFS: the queue of an interface is full.
        Err(error) if error.raw_os_error() == Some(105) => Ok(()),
        other => other,
    }
}

/// A refused connection says that nobody listened for an earlier packet.
fn is_empty(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused | ErrorKind::Interrupted)
}
