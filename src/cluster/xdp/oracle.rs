//! The program in the kernel against the same in Rust: for random packets, each verdict, each frame that
//! leaves, and at the end all slots and counters must be the same.
//!
//! `SPARKTUNE_XDP_PACKETS=1000000 cargo test … oracle` gives it more of them, `SPARKTUNE_XDP_SEED=7` others.

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::thread;

use sparktune_base::random::SplitMix64;

use crate::lab::skipped;
use crate::xdp::frame::{Action, Ends, FRAME, FRAME_HEAD, Route, receive, write_head};
use crate::xdp::kernel::{Kernel, Refusal};
use crate::xdp::slots::{Counts, Job, Slots, Verdict};
use crate::xdp::wire::{HEAD, Header, Key, PACKET, SLOTS, sign};

const ROUTE: Route = Route { port: 13_371, reply_port: 13_372, group: Ipv4Addr::new(239, 195, 1, 2) };

fn number_of(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}

fn loaded(job: Job) -> Option<Kernel> {
    match Kernel::load(job, ROUTE) {
        Ok(kernel) => Some(kernel),
        Err(refusal @ Refusal::NoRights) => {
            skipped(refusal);
            None
        }
        Err(refusal) => panic!("{refusal}"),
    }
}

/// A rank's frame with a chunk, with values that follow from both.
fn frame(job: Job, worker: u8, chunk: u64, random: &mut SplitMix64) -> Vec<u8> {
    let mut packet = [0; PACKET];
    // The rank's values are the same each time that it sends the chunk, over the whole range of 16 bits.
    let mut values = SplitMix64::new(chunk * 16 + u64::from(worker));
    packet[HEAD..]
        .chunks_exact_mut(8)
        .for_each(|eight| eight.copy_from_slice(&values.next_u64().to_le_bytes()));
    Header::contribution(job.number, worker, job.workers, chunk).unwrap().write(&mut packet);
    sign(job.key, &mut packet);
    let mut frame = [0; FRAME];
    frame[..12].iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
    let address = |last: u8| Ipv4Addr::new(10, 9, 0, last);
    let from = (address(worker + 2), 40_000 + u16::from(worker));
    write_head(&mut frame, Ends { from, to: (address(1), ROUTE.port) });
    frame[FRAME_HEAD..].copy_from_slice(&packet);
    frame.to_vec()
}

/// What is sent next: contributions in a random order within a window, most of them in time, some twice, late
/// or from the past, and some damaged in one of many ways.
struct Senders {
    job: Job,
    random: SplitMix64,
    /// The chunks that each rank may send next.
    next: Vec<u64>,
}

impl Senders {
    fn next(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let worker = random.below(u32::from(self.job.workers)) as u8;
        let slowest = *self.next.iter().min().unwrap();
        let is_damaged = random.below(8) == 0;
        let own = &mut self.next[usize::from(worker)];
        let chunk = match random.below(20) {
            // Again, out of order, or from rounds that are over.
            0..4 => own.saturating_sub(1 + u64::from(random.below(40))),
            4 => own.saturating_sub(u64::from(random.below(6 * SLOTS))),
            // Before its time.
            5 => *own + u64::from(random.below(3 * SLOTS)),
            _ if *own < slowest + u64::from(SLOTS) => {
                // What was damaged is not done: it is sent again later.
                *own += u64::from(!is_damaged);
                *own - u64::from(!is_damaged)
            }
            _ => own.saturating_sub(1),
        };
        let mut frame = frame(self.job, worker, chunk, random);
        if is_damaged {
            self.damage(&mut frame);
        }
        frame
    }

    fn damage(&mut self, frame: &mut Vec<u8>) {
        let Self { job, random, .. } = self;
        let resign = |frame: &mut [u8], key: Key| {
            let packet: &mut [u8; PACKET] = (&mut frame[FRAME_HEAD..FRAME]).try_into().unwrap();
            sign(key, packet);
        };
        match random.below(10) {
            // Any bit of the heads or of the packet.
            0 | 1 => {
                let bit = random.below(FRAME as u32 * 8) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            2 => {
                let at = random.below(FRAME_HEAD as u32 + 40) as usize;
                frame[at] = random.next_u64() as u8;
            }
            3 => frame.truncate(14 + random.below(FRAME as u32 - 14) as usize),
            // Longer than it says, as when the network pads frames, and longer than it may be.
            4 => frame.resize(FRAME + random.below(64) as usize, 0xaa),
            5 => {
                let longer = 1 + random.below(64) as u16;
                frame.resize(FRAME + usize::from(longer), 0x55);
                frame[38..40].copy_from_slice(&(8 + PACKET as u16 + longer).to_be_bytes());
                if random.below(2) == 0 {
                    frame[16..18].copy_from_slice(&(28 + PACKET as u16 + longer).to_be_bytes());
                }
            }
            6 => resign(frame, Key([job.key.0[0], random.next_u64()])),
            // Fields that are wrong, but signed.
            7 => {
                let at = FRAME_HEAD + random.below(24) as usize;
                frame[at] ^= 1 << random.below(8);
                resign(frame, job.key);
            }
            8 => {
                let at = FRAME_HEAD + 32 + random.below(8) as usize;
                frame[at] ^= 1 << random.below(8);
                resign(frame, job.key);
            }
            _ => frame.iter_mut().for_each(|byte| *byte = random.next_u64() as u8),
        }
    }
}

/// Gives both the same packets.
fn compare(workers: u8, muted: u16, packets: u64, seed: u64) -> Option<Counts> {
    let mut random = SplitMix64::new(seed);
    let job = Job { number: 7, workers, muted, key: Key([random.next_u64(), random.next_u64()]) };
    let kernel = loaded(job)?;
    let mut slots = Slots::new(job);
    let mut senders = Senders { job, random, next: vec![0; usize::from(workers)] };
    for count in 0..packets {
        let frame = senders.next();
        let [mut expected, mut found] = [frame.clone(), frame];
        let (action, verdict) = receive(&mut slots, ROUTE, &mut expected);
        let did = kernel.run(&mut found).unwrap();
        assert_eq!(did, action, "packet {count}, {verdict:?}");
        assert!(found == expected, "packet {count}, {verdict:?}: another frame leaves");
        let is_result = matches!(verdict, Verdict::Completed | Verdict::Resent);
        assert_eq!(is_result, matches!(action, Action::ToAll | Action::Back));
    }
    for (place, version) in slots.versions().iter().enumerate() {
        assert!(kernel.version(place as u32).unwrap() == *version, "version {place}");
    }
    assert_eq!(kernel.counts().unwrap(), slots.counts());
    Some(slots.counts())
}

#[test]
fn the_kernel_adds_as_the_specification_does_for_random_packets() {
    let packets = number_of("SPARKTUNE_XDP_PACKETS", 30_000);
    let seed = number_of("SPARKTUNE_XDP_SEED", 1);
    let mut seen = Counts::default();
    // Of the 16 ranks, two are muted.
    for (at, (workers, muted)) in [(2, 0), (3, 0), (16, 0x8004)].into_iter().enumerate() {
        let Some(counts) = compare(workers, muted, packets / 3 + 1, seed + at as u64) else { return };
        counts.0.iter().zip(&mut seen.0).for_each(|(count, seen)| *seen += count);
    }
    for verdict in Verdict::ALL {
        println!("{verdict:?}: {}", seen[verdict]);
        assert!(seen[verdict] > 0, "no packet was {verdict:?}");
    }
}

#[test]
fn contributions_that_come_on_several_processors_at_once_are_all_added() {
    let job = Job { number: 7, workers: 4, muted: 0, key: Key([8, 9]) };
    let Some(kernel) = loaded(job) else { return };
    let mut slots = Slots::new(job);
    let barrier = Barrier::new(job.workers.into());
    let send = |worker: u8| {
        let mut random = SplitMix64::new(worker.into());
        for round in 0..12 {
            barrier.wait();
            for place in 0..u64::from(SLOTS) {
                let mut sent = frame(job, worker, round * u64::from(SLOTS) + place, &mut random);
                kernel.run(&mut sent).unwrap();
            }
        }
    };
    thread::scope(|scope| {
        let send = &send;
        (0..job.workers).for_each(|worker| drop(scope.spawn(move || send(worker))));
    });
    let mut random = SplitMix64::new(0);
    for chunk in 0..12 * u64::from(SLOTS) {
        for worker in 0..job.workers {
            receive(&mut slots, ROUTE, &mut frame(job, worker, chunk, &mut random));
        }
    }
    for (place, version) in slots.versions().iter().enumerate() {
        assert!(kernel.version(place as u32).unwrap() == *version, "version {place}");
    }
    assert_eq!(kernel.counts().unwrap(), slots.counts());
}
