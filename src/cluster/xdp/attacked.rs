//! An attack on sums over UDP by a stranger on the path between three ranks and the thread that adds, all on
//! loopback. It does not know the key. It sees every packet, those of an earlier meeting too, and with each
//! one it sends others to the switch and to the ranks, as itself and in the name of that packet's sender.
//!
//! Nothing here is flooded: what a stranger sends follows from what it has seen, so that it is always there
//! and never more than the sockets hold for long.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use socket2::SockRef;
use sparktune_base::random::SplitMix64;

use crate::xdp::packets::KEPT;
use crate::xdp::slots::{Counts, Job, Verdict};
use crate::xdp::soft::Soft;
use crate::xdp::transport::{Arrival, Udp};
use crate::xdp::wire::{HEAD, Key, PACKET, SLOTS, sign, values};
use crate::xdp::worker::{Report, Worker};

const RANKS: u8 = 3;
/// So many that each version of a slot is used again, and recorded packets are old.
const CHUNKS: u64 = 4 * SLOTS as u64 + 7;
/// The chunks that a rank has in flight. Few, so that packets of strangers find room beside them.
const WINDOW: usize = 4;
/// The packets that are sent beside each one.
const BESIDE: usize = 3;

/// The way of a rank to the switch and back.
struct Way {
    rank: SocketAddr,
    /// Receives the rank's packets, and sends it those of the switch.
    near: UdpSocket,
    /// Sends the rank's packets to the switch, and receives those of the switch.
    far: UdpSocket,
}

/// The stranger on the path.
struct Stranger {
    random: SplitMix64,
    own: UdpSocket,
    /// All packets that it has seen.
    seen: Vec<Vec<u8>>,
}

impl Stranger {
    fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(seed), own: socket(), seen: Vec::new() }
    }

    /// Hands on what comes, and sends others after it.
    fn stand_between(&mut self, ways: &[Way], switch: SocketAddr, is_over: &AtomicBool) {
        let mut bytes = vec![0; 1 << 16];
        while !is_over.load(Ordering::SeqCst) {
            let mut came = false;
            for way in ways {
                let back = (&way.far, &way.near, way.rank);
                for (from, to, receiver) in [(&way.near, &way.far, switch), back] {
                    while let Ok(length) = from.recv(&mut bytes) {
                        came = true;
                        self.hand_on(&bytes[..length], to, receiver);
                    }
                }
            }
            if !came {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn hand_on(&mut self, packet: &[u8], to: &UdpSocket, receiver: SocketAddr) {
        // One that cannot be sent is lost, and its rank sends it again.
        let _ = to.send(packet);
        for _ in 0..BESIDE {
            let other = self.other_than(packet);
            let is_as_itself = self.random.below(2) == 0;
            let _ = if is_as_itself { self.own.send_to(&other, receiver) } else { to.send(&other) };
        }
        self.seen.push(packet.to_vec());
    }

    /// Returns what somebody without the key can make of a packet, or an earlier one.
    fn other_than(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut other = packet.to_vec();
        match self.random.below(6) {
            // A bit is changed.
            0 => {
                let bit = self.random.below(8 * other.len() as u32) as usize;
                other[bit / 8] ^= 1 << (bit % 8);
            }
            // It is cut or longer.
            1 => other.resize([0, 1, PACKET - 1, PACKET + 1, 3000][self.random.below(5) as usize], 7),
            // It has other values, under another key.
            2 => {
                let other: &mut [u8; PACKET] = other.as_mut_slice().try_into().unwrap();
                other[HEAD..].fill(1);
                sign(Key([5, 6]), other);
            }
            // It is of another program.
            3 => other.fill(7),
            // It was recorded, on any way and in any direction, now or when these ranks met before.
            _ if !self.seen.is_empty() => {
                let at = self.random.below(self.seen.len() as u32) as usize;
                other.clone_from(&self.seen[at]);
            }
            _ => {}
        }
        other
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let _ = SockRef::from(&socket).set_recv_buffer_size(KEPT);
    socket.set_nonblocking(true).unwrap();
    socket
}

/// A rank's sums, one for each chunk, whose numbers are all the same.
fn sums_of(job: Job, rank: u8, transport: Udp) -> (Vec<i16>, Report) {
    let silence = Duration::from_secs(60);
    let mut worker = Worker::new(job, rank, Box::new(transport), None, silence, WINDOW);
    let mut sums = vec![0; CHUNKS as usize];
    let fill = |chunk: u64, bytes: &mut [u8]| {
        let value = (chunk * 3 + u64::from(rank) * 1000) as i16;
        bytes.chunks_exact_mut(2).for_each(|two| two.copy_from_slice(&value.to_le_bytes()));
    };
    let take = |chunk: u64, arrival: Arrival<'_>| {
        let sum = values(arrival.packet).next().unwrap();
        assert!(values(arrival.packet).all(|other| other == sum), "chunk {chunk}");
        sums[chunk as usize] = sum;
        false
    };
    worker.sum(CHUNKS, fill, take).unwrap();
    (sums, worker.report())
}

/// Lets all ranks sum with a stranger on their ways to the switch. Returns what they got, and what the switch
/// has made of all packets.
fn summed(job: Job, stranger: &mut Stranger) -> (Vec<(Vec<i16>, Report)>, Counts) {
    let of_switch = socket();
    let switch = of_switch.local_addr().unwrap();
    let mut soft = Soft::start(of_switch, job).unwrap();
    let (mut ways, mut transports) = (Vec::new(), Vec::new());
    for _ in 0..RANKS {
        let (own, near, far) = (socket(), socket(), socket());
        let rank = own.local_addr().unwrap();
        near.connect(rank).unwrap();
        far.connect(switch).unwrap();
        transports.push(Udp::new(own, near.local_addr().unwrap()).unwrap());
        ways.push(Way { rank, near, far });
    }
    let is_over = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        scope.spawn(|| stranger.stand_between(&ways, switch, &is_over));
        let ranks = (0..).zip(transports);
        let ranks: Vec<_> =
            ranks.map(|(rank, transport)| scope.spawn(move || sums_of(job, rank, transport))).collect();
        let found: Vec<_> = ranks.into_iter().map(ScopedJoinHandle::join).collect();
        // Set even when a rank has failed: otherwise the stranger would never end.
        is_over.store(true, Ordering::SeqCst);
        found.into_iter().map(Result::unwrap).collect()
    });
    (found, soft.end())
}

#[test]
fn a_stranger_on_the_path_of_sums_who_changes_repeats_and_forges_packets_changes_no_sum() {
    let mut stranger = Stranger::new(3);
    let expected: Vec<i16> = (0..CHUNKS).map(|chunk| (chunk * 9 + 3000) as i16).collect();
    // When the ranks meet again, it has all packets of the first meeting, with tags under the first key.
    for meeting in [1, 2] {
        let job = Job { number: 9, workers: RANKS, muted: 0, key: Key([meeting, 4]) };
        let (found, counts) = summed(job, &mut stranger);
        for (sums, report) in &found {
            assert!(*sums == expected);
            // Each chunk is begun once and ends once, whatever came beside it.
            assert_eq!((report.sent, report.results), (CHUNKS, CHUNKS), "{report:?}");
            assert!(report.useless > CHUNKS, "what was sent to the ranks came: {report:?}");
        }
        let others = u64::from(RANKS) - 1;
        assert_eq!((counts[Verdict::Completed], counts[Verdict::Added]), (CHUNKS, others * CHUNKS));
        let refused = [Verdict::WrongSize, Verdict::Alien, Verdict::Unfit, Verdict::Unsigned, Verdict::Stale];
        assert!(refused.iter().all(|verdict| counts[*verdict] > 0), "{counts:?}");
    }
}
