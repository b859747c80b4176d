//! One rank's side of the sums: which chunks are on their way, and which are sent again.
//!
//! A chunk is sent again when its result takes longer than results usually do: smoothed mean and deviation of
//! the time from sending to the result, as TCP has them (RFC 6298), of chunks that were sent once; doubled
//! whenever something had to be sent again, until a chunk that was sent once has its result. That time
//! includes the wait for the slowest rank, so ranks that wait send little.
//!
//! A rank that has nothing to do looks again after a pause, in which many packets come in, and is not woken
//! by each of them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sparktune_base::escape::escape;

use crate::doctor::{Link, link_towards};
use crate::xdp::slots::{Counts, Job};
use crate::xdp::transport::{Arrival, Loss, Transport};
use crate::xdp::wire::{HEAD, Header, PACKET, RESULT, SLOTS, is_signed, place_of, sign};

/// The bounds of the time after which a chunk is sent again.
const SHORTEST: Duration = Duration::from_millis(3);
const LONGEST: Duration = Duration::from_millis(400);
/// That time before anything is known.
const FIRST: Duration = Duration::from_millis(50);
/// The bounds of the pause of a rank that has nothing to do.
const PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// After so many chunks without a result, a rank that asks for them does not ask for later ones. More than
/// one, because the network loses some.
const MISSING: u32 = 6;

/// The length of a packet with the headers of IPv4 and UDP. All interfaces on the way have to take it,
/// because packets are not fragmented.
const MTU: usize = PACKET + 28;

/// The number of packets that are taken before the next ones are sent.
const TOGETHER: usize = 32;

/// What the sums took so far, on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Packets that were sent, without those that were sent again.
    pub sent: u64,
    /// Packets that were sent again, because no result came.
    pub resent: u64,
    /// How often rank 0 asked the program in its kernel for a result, which is sent only to the others.
    pub asked: u64,
    /// Results that were needed.
    pub results: u64,
    /// Packets that came and were of no use: twice, too late, or not of this job.
    pub useless: u64,
    /// How often this rank slept and was woken.
    pub wakes: u64,
    /// Packets that came by AF_XDP, of whatever use they were.
    pub delivered: u64,
    /// The mean time from sending a chunk to its result, in microseconds.
    pub mean_us: u64,
}

/// The reason why a sum was not finished.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(
        "no result has come for {for_s} s{}",
        unsent.as_ref().map_or_else(String::new, |error| format!(", and the last packet could not be sent: {error}"))
    )]
    Silence { for_s: u64, unsent: Option<io::Error> },
    #[error("packets of {PACKET} bytes do not fit through {interface}. Set its MTU to {MTU} or more")]
    Narrow { interface: String },
    #[error("{0}")]
    Medium(#[from] io::Error),
    #[error("this job has used up its {} chunks", super::wire::MOST_CHUNKS)]
    UsedUp,
}

/// A chunk that was sent and has no result.
#[derive(Debug, Clone, Copy)]
struct Flight {
    /// Its number in the job.
    chunk: u64,
    sent: Instant,
    /// How often it was sent again.
    tries: u32,
}

/// The chunks that have no result, by their slots.
struct Open {
    flights: Vec<Option<Flight>>,
    count: u64,
    times: Times,
}

/// A rank that contributes.
pub(crate) struct Worker {
    job: Job,
    rank: u8,
    transport: Box<dyn Transport>,
    loss: Option<Loss>,
    silence: Duration,
    window: u64,
    /// The number of the next chunk.
    next: u64,
    open: Open,
    /// The packets of the open chunks.
    packets: Vec<[u8; PACKET]>,
    /// Why the last packet could not be sent, if it could not.
    unsent: Option<io::Error>,
    report: Report,
}

impl Worker {
    /// A rank that gives up after `silence` without any result, and has at most `window` chunks on their way.
    pub(crate) fn new(
        job: Job,
        rank: u8,
        transport: Box<dyn Transport>,
        loss: Option<Loss>,
        silence: Duration,
        window: usize,
    ) -> Self {
        let slots = SLOTS as usize;
        let window = window.clamp(1, slots) as u64;
        Self {
            job,
            rank,
            transport,
            loss,
            silence,
            window,
            next: 0,
            open: Open { flights: vec![None; slots], count: 0, times: Times::default() },
            packets: vec![[0; PACKET]; slots],
            unsent: None,
            report: Report::default(),
        }
    }

    /// Returns what the switch counts, if this rank's way to it can say so.
    pub(crate) fn counts(&self) -> Option<Counts> {
        self.transport.counts()
    }

    /// Begins the sums of the job, after the first one that is only tried: gives up after this time without
    /// any result from now on.
    pub(crate) fn begin(&mut self, silence: Duration) {
        self.silence = silence;
        self.transport.begin();
    }

    pub(crate) fn report(&self) -> Report {
        let mean = self.open.times.mean.unwrap_or_default();
        let mean_us = u64::try_from(mean.as_micros()).unwrap_or(u64::MAX);
        Report { mean_us, delivered: self.transport.delivered(), ..self.report }
    }

    /// Sums chunks over all ranks. `fill` writes the values of a chunk, counted from 0, into a packet; `take`
    /// reads the sums, in any order of chunks, and returns whether their packet is to stay where it is, in
    /// the arena, until the next sum begins.
    pub(crate) fn sum(
        &mut self,
        chunks: u64,
        mut fill: impl FnMut(u64, &mut [u8]),
        mut take: impl FnMut(u64, Arrival<'_>) -> bool,
    ) -> Result<(), Fault> {
        self.transport.release();
        let first = self.next;
        let last = first + chunks;
        place_of(last).ok_or(Fault::UsedUp)?;
        self.next = last;
        let mut ready: VecDeque<u64> = (first..last.min(first + u64::from(SLOTS))).collect();
        let (mut left, mut progress, mut pause) = (chunks, Instant::now(), PAUSE);
        while left > 0 {
            self.launch(first, &mut ready, &mut fill)?;
            let (mut came, mut landed) = (0, 0);
            while came < TOGETHER {
                let Some(arrival) = self.transport.receive()? else { break };
                if self.loss.as_mut().is_some_and(Loss::loses) {
                    continue;
                }
                came += 1;
                let Some(chunk) = self.open.land(self.job, arrival.packet) else {
                    self.report.useless += 1;
                    continue;
                };
                if take(chunk - first, arrival) {
                    self.transport.keep();
                }
                self.report.results += 1;
                landed += 1;
                // A slot is used again as soon as it is free, whatever the other slots wait for.
                let next = chunk + u64::from(SLOTS);
                ready.extend((next < last).then_some(next));
            }
            left -= landed;
            if landed > 0 {
                (progress, pause) = (Instant::now(), PAUSE);
                self.unsent = None;
                continue;
            }
            let is_answered = if self.transport.must_ask() { self.ask()? } else { self.send_again()? };
            // Checked only now, because this thread may have waited for a processor since it sent.
            if progress.elapsed() > self.silence {
                return Err(Fault::Silence { for_s: self.silence.as_secs(), unsent: self.unsent.take() });
            }
            if !is_answered && came == 0 {
                self.report.wakes += 1;
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Ok(())
    }

    /// Sends chunks whose slots are free.
    fn launch(
        &mut self,
        first: u64,
        ready: &mut VecDeque<u64>,
        fill: &mut impl FnMut(u64, &mut [u8]),
    ) -> Result<(), Fault> {
        while self.open.count < self.window
            && let Some(chunk) = ready.pop_front()
        {
            let slot = slot_of(chunk);
            let packet = &mut self.packets[slot];
            let header = Header::contribution(self.job.number, self.rank, self.job.workers, chunk);
            header.ok_or(Fault::UsedUp)?.write(packet);
            fill(chunk - first, &mut packet[HEAD..]);
            sign(self.job.key, packet);
            self.open.flights[slot] = Some(Flight { chunk, sent: Instant::now(), tries: 0 });
            self.open.count += 1;
            self.report.sent += 1;
            self.send(slot);
        }
        self.flush()
    }

    /// Sends a packet with the next ones. One that cannot be sent is lost, as it could be in the network.
    fn send(&mut self, slot: usize) {
        if !self.loss.as_mut().is_some_and(Loss::loses)
            && let Err(error) = self.transport.send(&self.packets[slot])
        {
            self.unsent = Some(error);
        }
    }

    /// Sends all that waits.
    fn flush(&mut self) -> Result<(), Fault> {
        if let Err(error) = self.transport.flush() {
            self.unsent = Some(error);
        }
        let is_too_long = |error: &io::Error| error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
        if self.unsent.as_ref().is_some_and(is_too_long) {
            return Err(Fault::Narrow {
                interface: narrow_interface(Path::new("/"), &self.transport.receivers()),
            });
        }
        Ok(())
    }

    /// Sends again what is due. Returns whether there can be an answer already.
    fn send_again(&mut self) -> Result<bool, Fault> {
        let (now, limit) = (Instant::now(), self.open.times.limit());
        let mut is_late = false;
        for slot in 0..self.open.flights.len() {
            let Some(flight) = &mut self.open.flights[slot] else { continue };
            if now - flight.sent < (limit * (1 << flight.tries)).min(LONGEST) {
                continue;
            }
            (flight.sent, flight.tries) = (now, (flight.tries + 1).min(8));
            self.report.resent += 1;
            is_late = true;
            self.send(slot);
        }
        if is_late {
            self.flush()?;
            self.open.times.back_off(now);
        }
        Ok(false)
    }

    /// Asks for results in the order of chunks, until some are not there. Returns whether any was.
    fn ask(&mut self) -> Result<bool, Fault> {
        let open = self.open.flights.iter().enumerate();
        let mut order: Vec<(u64, usize)> =
            open.filter_map(|(slot, flight)| Some((flight.as_ref()?.chunk, slot))).collect();
        order.sort_unstable();
        let (mut answers, mut missing) = (0, 0);
        for (_, slot) in order {
            let before = self.transport.waiting();
            self.report.asked += 1;
            self.send(slot);
            let is_answered = self.transport.waiting() > before;
            answers += u32::from(is_answered);
            missing += u32::from(!is_answered);
            if missing == MISSING {
                break;
            }
        }
        // What this rank has completed goes to the others.
        self.flush()?;
        Ok(answers > 0)
    }
}

impl Open {
    /// Returns the chunk whose result a packet is, if it is one that this rank waits for.
    fn land(&mut self, job: Job, packet: &[u8; PACKET]) -> Option<u64> {
        let header = Header::parse(packet).ok()?;
        let Job { number, workers, key, .. } = job;
        let is_result = header.worker == RESULT && header.job == number && header.workers == workers;
        let slot = header.slot as usize;
        let flight = self.flights[slot].filter(|flight| flight.chunk == header.chunk())?;
        if !is_result || header.contributors != (1 << workers) - 1 || !is_signed(key, packet) {
            return None;
        }
        if flight.tries == 0 {
            self.times.add(flight.sent.elapsed());
        }
        self.flights[slot] = None;
        self.count -= 1;
        Some(flight.chunk)
    }
}

/// Names the first interface on the way to one of these places whose MTU is too small for a packet. The files
/// of the machine are below `root`.
fn narrow_interface(root: &Path, places: &[SocketAddr]) -> String {
    let interface = places.iter().find_map(|place| {
        let Link { interface, mtu, .. } = link_towards(root, place.ip())?;
        let mtu = mtu.filter(|mtu| (*mtu as usize) < MTU)?;
        Some(format!("the network interface {} (MTU {mtu})", escape(&interface)))
    });
    interface.unwrap_or_else(|| "a network interface".into())
}

fn slot_of(chunk: u64) -> usize {
    (chunk % u64::from(SLOTS)) as usize
}

/// How long results take.
#[derive(Debug, Default)]
struct Times {
    mean: Option<Duration>,
    deviation: Duration,
    /// How often the limit was doubled since the last result in time, and when it was.
    doubled: u32,
    since: Option<Instant>,
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.doubled = 0;
        let Some(mean) = self.mean else {
            (self.mean, self.deviation) = (Some(time), time / 2);
            return;
        };
        self.deviation = (self.deviation * 3 + mean.abs_diff(time)) / 4;
        self.mean = Some((mean * 7 + time) / 8);
    }

    /// Results take longer than they did. What is late at the same time counts once.
    fn back_off(&mut self, now: Instant) {
        if self.since.is_none_or(|since| now - since >= self.limit()) {
            (self.doubled, self.since) = ((self.doubled + 1).min(8), Some(now));
        }
    }

    /// Returns the time after which a chunk is sent again.
    fn limit(&self) -> Duration {
        let usual = self.mean.map_or(FIRST, |mean| (mean + self.deviation * 4).clamp(SHORTEST, LONGEST));
        (usual * (1 << self.doubled)).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::{Arc, Mutex};

    use sparktune_base::random::SplitMix64;

    use super::*;
    use crate::xdp::slots::{Slots, Verdict};
    use crate::xdp::wire::{Key, values};

    /// A switch in memory, whose results go to all.
    struct Shared {
        slots: Slots,
        inboxes: Vec<VecDeque<[u8; PACKET]>>,
    }

    struct Wire {
        rank: usize,
        shared: Arc<Mutex<Shared>>,
        /// For how many packets there is no route.
        away: u32,
        came: [u8; PACKET],
    }

    fn no_route() -> io::Error {
        io::ErrorKind::NetworkUnreachable.into()
    }

    impl Transport for Wire {
        fn send(&mut self, packet: &[u8; PACKET]) -> io::Result<()> {
            if self.away > 0 {
                self.away -= 1;
                return Err(no_route());
            }
            let Shared { slots, inboxes } = &mut *self.shared.lock().unwrap();
            let mut packet = *packet;
            match slots.receive(&mut packet) {
                Verdict::Completed => inboxes.iter_mut().for_each(|inbox| inbox.push_back(packet)),
                Verdict::Resent => inboxes[self.rank].push_back(packet),
                _ => {}
            }
            Ok(())
        }

        fn receive(&mut self) -> io::Result<Option<Arrival<'_>>> {
            let came = self.shared.lock().unwrap().inboxes[self.rank].pop_front();
            let Some(came) = came else { return Ok(None) };
            self.came = came;
            Ok(Some(Arrival { packet: &self.came, at: None }))
        }
    }

    /// Lets ranks sum twice, and returns the sums and what became of the packets.
    fn summed(workers: u8, loss: u32, away: u32) -> (Vec<Vec<i16>>, Counts) {
        let job = Job { number: 1, workers, muted: 0, key: Key([3, 4]) };
        let inboxes = vec![VecDeque::new(); workers.into()];
        let shared = Arc::new(Mutex::new(Shared { slots: Slots::new(job), inboxes }));
        let work = |rank: u8| {
            let shared = Arc::clone(&shared);
            let transport = Box::new(Wire { rank: rank.into(), shared, away, came: [0; PACKET] });
            let loss = (loss > 0).then(|| Loss::new(loss, rank.into()));
            let mut worker = Worker::new(job, rank, transport, loss, Duration::from_secs(30), 100);
            let mut sums = Vec::new();
            for chunks in [5, 3 * u64::from(SLOTS) + 7] {
                let mut found = vec![0; chunks as usize];
                let fill = |chunk: u64, bytes: &mut [u8]| {
                    let value = (chunk * 3 + u64::from(rank) * 1000) as i16;
                    bytes.chunks_exact_mut(2).for_each(|two| two.copy_from_slice(&value.to_le_bytes()));
                };
                let take = |chunk: u64, arrival: Arrival<'_>| {
                    found[chunk as usize] = values(arrival.packet).last().unwrap();
                    false
                };
                worker.sum(chunks, fill, take).unwrap();
                sums.extend(found);
            }
            assert_eq!(worker.report().results, sums.len() as u64);
            sums
        };
        let sums = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..workers).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let counts = shared.lock().unwrap().slots.counts();
        (sums, counts)
    }

    #[test]
    fn sums_are_the_same_whatever_is_lost_on_the_way() {
        let (whole, quiet) = summed(3, 0, 0);
        let expected: Vec<i16> = (0..5).chain(0..3 * 128 + 7).map(|chunk| chunk * 9 + 3000).collect();
        assert!(whole.iter().all(|sums| *sums == expected));
        assert_eq!(quiet[Verdict::Completed], expected.len() as u64);
        let (lossy, counts) = summed(3, 100_000, 0);
        assert_eq!(lossy, whole);
        assert!(counts[Verdict::Resent] > 20, "{counts:?}");
        assert_eq!(counts[Verdict::Completed], expected.len() as u64);
        assert_eq!(summed(3, 0, 9).0, whole, "a moment without a route does not end the sum");
    }

    #[test]
    fn a_rank_that_hears_nothing_gives_up_and_says_why_it_sends_nothing() {
        struct Hole;
        impl Transport for Hole {
            fn send(&mut self, _: &[u8; PACKET]) -> io::Result<()> {
                Err(no_route())
            }
            fn receive(&mut self) -> io::Result<Option<Arrival<'_>>> {
                Ok(None)
            }
        }
        let job = Job { number: 1, workers: 2, muted: 0, key: Key([3, 4]) };
        let mut worker = Worker::new(job, 0, Box::new(Hole), None, Duration::from_millis(200), 100);
        let fault = worker.sum(1, |_, _| {}, |_, _| panic!("a result of nobody")).unwrap_err();
        assert!(matches!(fault, Fault::Silence { .. }), "{fault}");
        let said = fault.to_string();
        assert!(said.starts_with("no result has come") && said.contains(&no_route().to_string()), "{said}");
        assert!(worker.report().resent > 0, "it was sent again before");
    }

    #[test]
    fn a_rank_that_cannot_send_whole_packets_gives_up_at_once() {
        struct Narrow;
        impl Transport for Narrow {
            fn send(&mut self, _: &[u8; PACKET]) -> io::Result<()> {
                Ok(())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(Errno::MSGSIZE.into())
            }
            fn receive(&mut self) -> io::Result<Option<Arrival<'_>>> {
                Ok(None)
            }
        }
        let job = Job { number: 1, workers: 2, muted: 0, key: Key([3, 4]) };
        let mut worker = Worker::new(job, 0, Box::new(Narrow), None, Duration::from_secs(3600), 100);
        let fault = worker.sum(1, |_, _| {}, |_, _| panic!("a result of nobody")).unwrap_err();
        let what_to_do = "through a network interface. Set its MTU to 1476 or more";
        assert!(fault.to_string().ends_with(what_to_do), "{fault}");
    }

    #[test]
    fn the_interface_is_named_that_does_not_take_whole_packets() {
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        // 10.0.0.0/8 and 11.0.0.0/8.
        let route = |name: &str, net: u8| {
            let net = u32::from_ne_bytes([net, 0, 0, 0]);
            format!("{name}\t{net:08X}\t0\t1\t0\t0\t0\t000000FF\t0\t0\t0\n")
        };
        file("proc/net/route", &["Iface\n", &route("wide", 10), &route("narrow", 11)].concat());
        file("sys/class/net/wide/mtu", "1476\n");
        file("sys/class/net/narrow/mtu", "1475\n");
        let places = [[10, 0, 0, 1], [11, 0, 0, 1]].map(|ip| SocketAddr::from((ip, 1)));
        assert_eq!(narrow_interface(root.path(), &places), "the network interface narrow (MTU 1475)");
        assert_eq!(narrow_interface(root.path(), &places[..1]), "a network interface");
    }

    #[test]
    fn only_the_signed_result_of_a_chunk_in_flight_lands_and_nothing_else_changes_a_timeout() {
        let job = Job { number: 9, workers: 3, muted: 0, key: Key([3, 4]) };
        let (chunk, slots) = (5 + u64::from(SLOTS), u64::from(SLOTS));
        let packet = |job: Job, chunk: u64, worker: u8, contributors: u64| {
            let mut packet = [1; PACKET];
            let header = Header::contribution(job.number, 0, job.workers, chunk).unwrap();
            Header { worker, contributors, ..header }.write(&mut packet);
            sign(job.key, &mut packet);
            packet
        };
        let result = packet(job, chunk, RESULT, 0b111);
        let mut others = vec![
            [0; PACKET],
            // Under another key, of another job, and of more ranks.
            packet(Job { key: Key([3, 5]), ..job }, chunk, RESULT, 0b111),
            packet(Job { number: 8, ..job }, chunk, RESULT, 0b111),
            packet(Job { workers: 4, ..job }, chunk, RESULT, 0b1111),
            // Contributions, a sum that lacks one, and one that has too many.
            packet(job, chunk, 0, 0b001),
            packet(job, chunk, 1, 0b111),
            packet(job, chunk, RESULT, 0b101),
            packet(job, chunk, RESULT, 0b1111),
            // An earlier round of its slot, a later one, and a chunk that was not begun.
            packet(job, chunk - slots, RESULT, 0b111),
            packet(job, chunk + slots, RESULT, 0b111),
            packet(job, chunk + 1, RESULT, 0b111),
        ];
        for bit in 0..8 * PACKET {
            let mut changed = result;
            changed[bit / 8] ^= 1 << (bit % 8);
            others.push(changed);
        }
        let mut random = SplitMix64::new(7);
        for _ in 0..5000 {
            let mut changed = result;
            for _ in 0..1 + random.below(6) {
                // Mostly in the header.
                let bound = if random.below(4) > 0 { HEAD } else { PACKET };
                changed[random.below(bound as u32) as usize] = random.below(256) as u8;
            }
            if changed != result {
                others.push(changed);
            }
        }
        let flight = Flight { chunk, sent: Instant::now(), tries: 0 };
        let mut open = Open { flights: vec![None; SLOTS as usize], count: 1, times: Times::default() };
        open.flights[slot_of(chunk)] = Some(flight);
        open.times.add(Duration::from_millis(20));
        open.times.back_off(Instant::now());
        let state = |Open { flights, count, times }: &Open| {
            let on_their_way: Vec<u64> = flights.iter().flatten().map(|flight| flight.chunk).collect();
            (on_their_way, *count, times.mean, times.deviation, times.doubled, times.since)
        };
        let before = state(&open);
        for (number, other) in others.iter().enumerate() {
            assert_eq!(open.land(job, other), None, "packet {number}");
        }
        assert_eq!(state(&open), before);
        assert_eq!(open.land(job, &result), Some(chunk));
        assert_eq!((open.count, open.times.doubled), (0, 0));
        let landed = state(&open);
        assert_eq!(open.land(job, &result), None, "it comes twice");
        assert_eq!(state(&open), landed);
    }

    #[test]
    fn the_time_after_which_a_chunk_is_sent_again_follows_the_results() {
        let mut times = Times::default();
        assert_eq!(times.limit(), FIRST);
        (0..100).for_each(|_| times.add(Duration::from_millis(20)));
        let steady = times.limit();
        assert!(steady >= Duration::from_millis(20) && steady < Duration::from_millis(22), "{steady:?}");
        (0..10).for_each(|_| times.add(Duration::from_millis(60)));
        assert!(times.limit() > Duration::from_millis(60));
        (0..200).for_each(|_| times.add(Duration::from_micros(20)));
        assert_eq!(times.limit(), SHORTEST);
        let now = Instant::now();
        (0..3).for_each(|_| times.back_off(now));
        assert_eq!(times.limit(), SHORTEST * 2, "late at the same time");
        (1..30).for_each(|second| times.back_off(now + Duration::from_secs(second)));
        assert_eq!(times.limit(), LONGEST);
        times.add(Duration::from_micros(20));
        assert_eq!(times.limit(), SHORTEST);
    }
}
