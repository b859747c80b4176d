//! Many packets by one system call: packets for one place leave together, and the kernel or the network card
//! splits them (`UDP_SEGMENT`); what has come is taken together (`recvmmsg`, `UDP_GRO`). The crate
//! `quinn-udp` makes these calls, and others where a kernel does not have them.

use std::array;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use crate::xdp::wire::PACKET;

/// The number of packets that leave or come together: as many as fit into the longest datagram.
const TOGETHER: usize = 65_507 / PACKET;
const LONGEST: usize = TOGETHER * PACKET;
/// The size of a socket's buffer that the system is asked for, each way.
pub(crate) const KEPT: usize = 4 << 20;
/// How long packets wait for room in the socket's buffer, because the link may be slower than this machine.
const ROOM: Duration = Duration::from_millis(200);

/// A socket that waits for nothing but room for what it sends.
pub(crate) struct Packets {
    out: Out,
    /// What waits to be sent, and where to.
    outgoing: Vec<(SocketAddr, Vec<u8>)>,
    /// What came, in pieces of [`LONGEST`] bytes, and what is known of each piece.
    incoming: Vec<u8>,
    came: [RecvMeta; BATCH_SIZE],
    pieces: usize,
    /// The piece that is read, and how much of it has been read.
    piece: usize,
    read: usize,
}

struct Out {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Packets {
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // The system may give less; then packets wait for room more often.
        let _ = SockRef::from(&socket).set_send_buffer_size(KEPT);
        Ok(Self {
            out: Out { socket, state },
            outgoing: Vec::new(),
            incoming: vec![0; BATCH_SIZE * LONGEST],
            came: [RecvMeta::default(); BATCH_SIZE],
            pieces: 0,
            piece: 0,
            read: 0,
        })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.out.socket
    }

    /// Sends a packet, at the latest with the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// This packet or earlier ones could not be sent, and are lost.
    pub(crate) fn send(&mut self, to: SocketAddr, packet: &[u8; PACKET]) -> io::Result<()> {
        let at = self.outgoing.iter().position(|(place, _)| *place == to).unwrap_or_else(|| {
            self.outgoing.push((to, Vec::new()));
            self.outgoing.len() - 1
        });
        let waiting = &mut self.outgoing[at].1;
        waiting.extend_from_slice(packet);
        if waiting.len() < LONGEST {
            return Ok(());
        }
        let sent = self.out.send(to, waiting);
        waiting.clear();
        sent
    }

    /// Sends all that waits.
    ///
    /// # Errors
    /// Some of it could not be sent, and is lost.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        // A place to which nothing goes any more is forgotten: a stranger can make up many.
        self.outgoing.retain(|(_, waiting)| !waiting.is_empty());
        let mut sent = Ok(());
        for (to, waiting) in &mut self.outgoing {
            sent = sent.and(self.out.send(*to, waiting));
            waiting.clear();
        }
        sent
    }

    /// Takes from the system what has come. What was taken before must have been read. Returns whether there
    /// was anything.
    pub(crate) fn refill(&mut self) -> io::Result<bool> {
        let mut places = self.incoming.chunks_exact_mut(LONGEST);
        let mut places: [IoSliceMut<'_>; BATCH_SIZE] =
            array::from_fn(|_| IoSliceMut::new(places.next().expect("a place for each piece")));
        let taken = self.out.state.recv(UdpSockRef::from(&self.out.socket), &mut places, &mut self.came);
        (self.piece, self.read) = (0, 0);
        self.pieces = match taken {
            Ok(pieces) => pieces,
            // A refused connection says that nobody listened for an earlier packet.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => 0,
            Err(error) => {
                self.pieces = 0;
                return Err(error);
            }
        };
        Ok(self.pieces > 0)
    }

    /// Returns the next datagram that was taken from the system, and who sent it. Its length may be any.
    pub(crate) fn next(&mut self) -> Option<(&mut [u8], SocketAddr)> {
        let (datagram, from) = self.step()?;
        Some((&mut self.incoming[datagram], from))
    }

    /// Returns the same, as its place among the [bytes](Self::bytes).
    pub(crate) fn step(&mut self) -> Option<(Range<usize>, SocketAddr)> {
        // An empty datagram counts too: a reader that skipped them would not return while somebody keeps
        // sending them.
        let RecvMeta { addr, len, stride, .. } = *self.came[..self.pieces].get(self.piece)?;
        let start = self.piece * LONGEST;
        let (from, to) = (self.read, len.min(self.read + stride.max(1)));
        (self.piece, self.read) = if to < len { (self.piece, to) } else { (self.piece + 1, 0) };
        Some((start + from..start + to, addr))
    }

    /// Returns the bytes that were taken from the system.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.incoming
    }
}

impl Out {
    fn send(&self, to: SocketAddr, packets: &[u8]) -> io::Result<()> {
        let mut sent = Ok(());
        let mut left = packets;
        while !left.is_empty() {
            // Only one once the system has refused several together on this way out.
            let together = self.state.max_gso_segments().clamp(1, TOGETHER) * PACKET;
            let (contents, rest) = left.split_at(together.min(left.len()));
            let segment_size = (contents.len() > PACKET).then_some(PACKET);
            let piece = Transmit { destination: to, ecn: None, contents, segment_size, src_ip: None };
            sent = sent.and(self.send_piece(&piece));
            left = rest;
        }
        sent
    }

    fn send_piece(&self, piece: &Transmit<'_>) -> io::Result<()> {
        let began = Instant::now();
        loop {
            match self.state.try_send(UdpSockRef::from(&self.socket), piece) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < ROOM => {
                    let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&moment));
                }
                sent => return sent,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn packets_come_as_they_were_sent_whatever_leaves_together() {
        let [mut here, mut there] =
            [(); 2].map(|()| Packets::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap());
        let to = there.socket().local_addr().unwrap();
        let from = here.socket().local_addr().unwrap();
        assert!(!there.refill().unwrap() && there.next().is_none());
        for count in [1, 2, TOGETHER, TOGETHER + 1] {
            for number in 0..count {
                here.send(to, &[number as u8; PACKET]).unwrap();
            }
            here.flush().unwrap();
            // What others send has any length.
            for length in [0, 1, PACKET - 1, PACKET + 1, 60_000] {
                here.socket().send_to(&vec![7; length], to).unwrap();
            }
            let mut expected: Vec<_> = (0..count).map(|number| (PACKET, number as u8)).collect();
            expected.extend([0, 1, PACKET - 1, PACKET + 1, 60_000].map(|length| (length, 7)));
            let (mut came, began) = (Vec::new(), Instant::now());
            while came.len() < expected.len() && began.elapsed() < Duration::from_secs(20) {
                there.refill().unwrap();
                while let Some((datagram, sender)) = there.next() {
                    assert_eq!(sender, from);
                    came.push((datagram.len(), datagram.first().copied().unwrap_or(7)));
                }
            }
            assert_eq!(came, expected, "{count}");
        }
    }

    #[test]
    fn places_to_which_nothing_goes_any_more_are_forgotten() {
        let mut here = Packets::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap();
        for port in 1..1000 {
            here.send((Ipv4Addr::LOCALHOST, port).into(), &[1; PACKET]).unwrap();
        }
        assert_eq!(here.outgoing.len(), 999);
        // Whether somebody listens there is not asked.
        let _ = here.flush();
        here.flush().unwrap();
        assert!(here.outgoing.is_empty());
    }
}
