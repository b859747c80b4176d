//! Attacks by somebody who does not know the token, on ranks and agents that listen on loopback: nobody can
//! read weights or gradients, join, slow down or poison a run. Those by somebody who sees the packets of sums
//! in the network, and knows where they go, are in `xdp/attacked.rs`, and what a rank takes for a result is
//! tried in `xdp/worker.rs`.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sparktune_cluster::membership::members;
use sparktune_cluster::xdp::slots::Verdict;
use sparktune_cluster::xdp::wire::{Header, Key, PACKET, VALUES, sign};
use sparktune_cluster::xdp::{Choice, Path};
use sparktune_cluster::{ClusterToken, Collective, Error};

use crate::membership::{End, Machine, model, never, sent_for, until, with_agents};
use crate::xdp::{expected, opened};
use crate::{Rank, bits, free_port, numbers};

/// What is done to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// A bit is changed.
    Flip,
    /// Bytes are sent twice.
    Repeat,
    /// Other bytes come between.
    Insert,
    /// Bytes are left out.
    LeaveOut,
}

/// Somebody between two sides, who sees all bytes, and may change those towards the side that listens.
struct Wire {
    port: u16,
    /// The bytes in both directions, of each connection.
    seen: Arc<Mutex<Vec<[Vec<u8>; 2]>>>,
    attacks: Arc<AtomicBool>,
}

impl Wire {
    /// Stands between whoever connects to its port and the one who listens at `to`.
    fn before(to: u16, attack: Option<Attack>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, attacks) = (Arc::<Mutex<Vec<[Vec<u8>; 2]>>>::default(), Arc::<AtomicBool>::default());
        let wire = Self { port, seen: Arc::clone(&seen), attacks: Arc::clone(&attacks) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Who comes before anybody listens is sent away, and comes again.
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let number = seen.lock().unwrap().len();
                seen.lock().unwrap().push(Default::default());
                let back = [server.try_clone().unwrap(), client.try_clone().unwrap()];
                for (way, [mut from, mut to]) in [[client, server], back].into_iter().enumerate() {
                    let (seen, attacks) = (Arc::clone(&seen), Arc::clone(&attacks));
                    thread::spawn(move || {
                        let (mut piece, mut is_done) = (vec![0; 1 << 16], way == 1);
                        while let Ok(count @ 1..) = from.read(&mut piece) {
                            seen.lock().unwrap()[number][way].extend_from_slice(&piece[..count]);
                            let mut bytes = piece[..count].to_vec();
                            if attacks.load(Ordering::SeqCst) && !std::mem::replace(&mut is_done, true) {
                                match attack {
                                    Some(Attack::Flip) => bytes[count / 2] ^= 4,
                                    Some(Attack::Repeat) => bytes.extend_from_within(..),
                                    Some(Attack::Insert) => {
                                        bytes.extend_from_slice(&[23, 3, 3, 0, 40, 1, 2, 3])
                                    }
                                    Some(Attack::LeaveOut) => bytes.clear(),
                                    None => {}
                                }
                            }
                            if to.write_all(&bytes).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        wire
    }

    /// Whether these bytes went over the wire, in any direction of any connection.
    fn has_seen(&self, bytes: &[u8]) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.iter().flatten().any(|of_way| of_way.windows(bytes.len()).any(|window| window == bytes))
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().iter().flatten().map(Vec::len).sum()
    }
}

#[test]
fn who_sees_all_bytes_of_the_link_reads_neither_weights_nor_gradients_nor_names_nor_the_token() {
    let (token, model) = (ClusterToken::generate(), model());
    let weights = std::fs::read(model.path().join("model.safetensors")).unwrap();
    with_agents(&token, &[&Machine::with(&[]), &Machine::with(&[])], |ports| {
        let wire = Wire::before(ports[1], None);
        assert_eq!(sent_for(&token, wire.port, model.path()).unwrap(), 5_000_002);
        assert!(wire.count() > weights.len(), "the weights went over it");
        for at in [0, 1_000_000, 3_333_333, weights.len() - 32] {
            assert!(!wire.has_seen(&weights[at..at + 32]), "{at}");
        }
        for words in [&b"model.safetensors"[..], b"spark1", token.reveal().as_bytes()] {
            assert!(!wire.has_seen(words));
        }
    });
    let port = free_port();
    let wire = Wire::before(port, None);
    let length = 20_000;
    thread::scope(|scope| {
        for rank in 0..2 {
            let port = if rank == 0 { port } else { wire.port };
            scope.spawn(move || {
                let mut tcp = Rank::of(rank, 2).join(port).unwrap();
                tcp.all_reduce(&mut numbers(rank, length)).unwrap();
                tcp.leave(None);
            });
        }
    });
    let own = numbers(1, length);
    assert!(wire.count() > 2 * length, "half of the gradients went over it");
    for numbers in [&own[..4], &own[length / 2 - 4..length / 2]] {
        assert!(!wire.has_seen(bytemuck::cast_slice(numbers)));
    }
}

#[test]
fn bytes_that_somebody_changes_repeats_inserts_or_leaves_out_never_become_part_of_a_sum() {
    thread::scope(|scope| {
        for attack in [Attack::Flip, Attack::Repeat, Attack::Insert, Attack::LeaveOut] {
            scope.spawn(move || {
                let port = free_port();
                let wire = Wire::before(port, Some(attack));
                let (wire, length) = (&wire, 5_000);
                let mut expected = numbers(0, length);
                expected.iter_mut().zip(numbers(1, length)).for_each(|(sum, value)| *sum += value);
                let expected = &expected;
                thread::scope(|scope| {
                    let work = move |rank: usize| {
                        let port = if rank == 0 { port } else { wire.port };
                        let mut tcp = Rank::of(rank, 2).join(port).unwrap();
                        // What has arrived whole before the attack still counts.
                        for sum in 0..1000 {
                            let mut values = numbers(rank, length);
                            match tcp.all_reduce(&mut values) {
                                Ok(()) => assert_eq!(bits(&values), bits(expected), "{attack:?}"),
                                Err(error) => return (sum, error),
                            }
                            // Rank 0 is attacked. The other one may be done earlier.
                            wire.attacks.fetch_or(rank == 0, Ordering::SeqCst);
                        }
                        panic!("{attack:?} is not noticed")
                    };
                    let second = scope.spawn(move || work(1));
                    let (sums, error) = work(0);
                    assert!(sums > 0 && error.is_of_a_rank(), "{attack:?}: {error}");
                    assert!(error.to_string().contains("rank 1"), "{attack:?}: {error}");
                    let (_, error) = second.join().unwrap();
                    assert!(error.is_of_a_rank(), "{attack:?}: {error}");
                });
            });
        }
    });
}

/// What rank 0 tells of ranks at work.
struct AtWork {
    /// How many wait to be let in.
    waiting: AtomicUsize,
    /// How many sums are done.
    sums: AtomicUsize,
}

impl AtWork {
    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn sums(&self) -> usize {
        self.sums.load(Ordering::SeqCst)
    }
}

/// Lets two ranks of a swarm work while `beside` goes on.
fn at_work<T>(port: u16, beside: impl FnOnce(&AtWork) -> T) -> T {
    let work = AtWork { waiting: AtomicUsize::new(usize::MAX), sums: AtomicUsize::new(0) };
    let is_over = AtomicBool::new(false);
    let (work, is_over) = (&work, &is_over);
    thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let mut tcp = Rank::of(rank, 2).join(port).unwrap();
                assert!(tcp.outlive(Duration::from_secs(20)));
                let mut expected = numbers(0, 500);
                expected.iter_mut().zip(numbers(1, 500)).for_each(|(sum, value)| *sum += value);
                loop {
                    let mut values = numbers(rank, 500);
                    tcp.all_reduce(&mut values).unwrap();
                    assert_eq!(bits(&values), bits(&expected));
                    if rank == 0 {
                        work.waiting.store(tcp.newcomers(), Ordering::SeqCst);
                        work.sums.fetch_add(1, Ordering::SeqCst);
                    }
                    let is_last = [u8::from(is_over.load(Ordering::SeqCst))];
                    if tcp.broadcast(&is_last).unwrap() == [1] {
                        break;
                    }
                }
                assert_eq!(tcp.world_size(), 2, "nobody was left out");
                tcp.leave(None);
            });
        }
        let _end = End(is_over);
        until(|| work.waiting() == 0);
        beside(work)
    })
}

/// One who has the token waits to be let in, until the ranks end.
fn wait_at(port: u16) -> thread::JoinHandle<Result<(), Error>> {
    thread::spawn(move || Rank::of(2, 3).join(port).map(drop))
}

/// Sends these bytes, and waits until the other side has had enough.
fn send(port: u16, bytes: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn nobody_without_the_token_joins_ranks_at_work_nor_with_the_bytes_of_one_who_has_it() {
    let port = free_port();
    let wire = Wire::before(port, None);
    let known = at_work(port, |work| {
        let stranger = Rank { token: Some("another token of 32 characters..."), ..Rank::of(2, 3) };
        assert!(matches!(stranger.join(port), Err(Error::OtherToken { .. })));
        assert_eq!(work.waiting(), 0);
        // Over the wire of somebody who sends its bytes again.
        let known = wait_at(wire.port);
        until(|| work.waiting() == 1);
        let bytes = wire.seen.lock().unwrap()[0][0].clone();
        assert!(bytes.len() > 200, "it has said who it is");
        send(port, &bytes);
        send(port, &bytes[..bytes.len() / 2]);
        send(port, b"{\"version\":3,\"rank\":2}");
        assert_eq!(work.waiting(), 1, "there is still one alone");
        known
    });
    assert!(matches!(known.join().unwrap(), Err(Error::Refused { .. })), "the run has ended");
}

/// Strangers who hold all places of a listener: half of them are silent, the others begin a record of TLS and
/// do not end it.
fn strangers_that_hold(places: usize, port: u16) -> Vec<TcpStream> {
    let connect = |number: usize| {
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // One that was sent away already cannot say anything.
        let _ = stranger.write_all(&[22, 3, 1, 2, 0, 1][..number % 2 * 6]);
        stranger.set_nonblocking(true).unwrap();
        stranger
    };
    let mut strangers = Vec::new();
    until(|| {
        strangers.retain(waits);
        if strangers.len() < places {
            // More than there is room for. Who finds none is sent away.
            strangers.extend((strangers.len()..places + 16).map(connect));
        }
        strangers.len() == places
    });
    strangers
}

/// Whether a stranger has not been sent away.
fn waits(stranger: &TcpStream) -> bool {
    stranger.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Does something while strangers hold all places of a listener, for which so many of them may be sent away.
/// Had it waited for strangers, their time to say who they are would be over, and all would have been sent
/// away. A machine may be so busy that it is over anyway, but not each time.
fn beside_strangers(places: usize, port: u16, most_sent_away: usize, mut act: impl FnMut()) {
    let is_in_time = (0..5).any(|_| {
        let strangers = strangers_that_hold(places, port);
        act();
        let waiting = strangers.iter().filter(|stranger| waits(stranger)).count();
        waiting + most_sent_away >= places
    });
    assert!(is_in_time, "it waits until strangers are sent away");
}

#[test]
fn strangers_that_hold_every_place_slow_neither_ranks_at_work_nor_agents_nor_keep_others_out() {
    let port = free_port();
    let late = at_work(port, |work| {
        beside_strangers(64, port, 0, || {
            let before = work.sums();
            until(|| work.sums() > before + 5);
        });
        let mut late = Vec::new();
        beside_strangers(64, port, 32, || {
            late.push(wait_at(port));
            until(|| work.waiting() == late.len());
        });
        late
    });
    for late in late {
        assert!(matches!(late.join().unwrap(), Err(Error::Refused { .. })), "the run has ended");
    }
    let token = ClusterToken::generate();
    with_agents(&token, &[&Machine::with(&[]), &Machine::with(&[])], |ports| {
        for port in ports {
            // Strangers have a second to speak, which may be the one in which somebody else asks.
            beside_strangers(32, *port, 16, || {
                until(|| members("127.0.0.1", *port, &token, never()).is_ok_and(|all| all.len() == 2));
            });
        }
    });
}

/// Sends what a stranger can send to the ranks' switch until the test is over if it does not see the number
/// of their job: packets of other jobs, and other bytes that have their length or another one. One that sees
/// the number is in `xdp/attacked.rs`.
fn forge(port: u16, sent: &AtomicUsize, is_over: &AtomicBool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut job = 0_u16;
    while !is_over.load(Ordering::SeqCst) {
        let mut packet = [1; PACKET];
        let header = Header::contribution(job, (job % 3) as u8, 3, u64::from(job % 64)).unwrap();
        header.write(&mut packet);
        sign(Key([u64::from(job), 7]), &mut packet);
        for bytes in [&packet[..], &packet[1..], &[0; PACKET], &[7; PACKET + 100], &[]] {
            // A packet for which the socket has no room is lost.
            let _ = socket.send_to(bytes, ("127.0.0.1", port));
            sent.fetch_add(1, Ordering::SeqCst);
        }
        job = job.wrapping_add(1);
        // The link itself is not flooded.
        thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn strangers_at_the_switch_of_sums_in_the_network_are_refused_and_change_no_bit_or_packet_of_a_sum() {
    let (port, of_switch, length) = (free_port(), free_port(), 20_003);
    let expected = bits(&expected(3, length, 0));
    let (sent, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sent, is_over, expected) = (&sent, &is_over, &expected);
    let work = move |rank: usize| {
        let choice = Choice { port: of_switch, ..Choice::default() };
        let mut engine = opened(rank, 3, "127.0.0.1", port, choice);
        assert_eq!(*engine.path(), Path::User(None));
        let before = sent.load(Ordering::SeqCst);
        for sums in 1_u64.. {
            let mut values = numbers(rank, length);
            engine.all_reduce(&mut values).unwrap();
            assert!(bits(&values) == *expected);
            let is_last = [u8::from(sent.load(Ordering::SeqCst) > before + 2000)];
            if engine.broadcast(&is_last).unwrap() == [1] {
                engine.leave(None);
                return (sums, engine.report(), engine.counts());
            }
        }
        unreachable!("the stranger sends enough sooner or later")
    };
    let found: Vec<_> = thread::scope(|scope| {
        let _end = End(is_over);
        scope.spawn(move || forge(of_switch, sent, is_over));
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || work(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    // Two blocks are tried first.
    let chunks = 2 + found[0].0 * length.div_ceil(VALUES) as u64;
    for (_, report, _) in &found {
        assert_eq!((report.sent, report.results), (chunks, chunks), "{report:?}");
    }
    let counts = found[0].2.unwrap();
    assert_eq!((counts[Verdict::Completed], counts[Verdict::Added]), (chunks, 2 * chunks));
    for refused in [Verdict::WrongSize, Verdict::Alien, Verdict::Unfit] {
        assert!(counts[refused] > 0, "{counts:?}");
    }
}
