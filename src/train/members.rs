//! How the ranks of a run do, as rank 0 sees it: recorded in events, and what shares are decided from.
//!
//! Enters: what the loop learns of the ranks at each step, and the signs of life of the others. Leaves:
//! `member_samples` events, and shares. A thread looks every half second, because a rank that is silent is
//! seen while the loop waits for it. What is kept is bounded by the number of ranks.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparktune_cluster::swarm::shares::SETTLING;
use sparktune_cluster::{Collective, Pace, Pulse, Shares};
use sparktune_runlog::{EventWriter, Kind, MemberSample, MemberSamples, MemberState};

/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// A look that is later than this means that this process was stopped itself.
const STOPPED: Duration = Duration::from_millis(1500);
/// The longest time without a sample.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// The silence after which a rank is called silent: four heartbeats.
const SILENT: Duration = Duration::from_secs(2);
/// After each change of the shares, twice as many steps have to pass before the next one, up to 80.
const MOST_DOUBLINGS: u32 = 4;
/// The most ranks that are gone and still told about.
const MOST_GONE: usize = 16;

/// What a rank has computed of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Computed {
    pub(crate) micro_batches: u32,
    pub(crate) took_us: u64,
}

impl Computed {
    pub(crate) fn new(micro_batches: usize, took: Duration) -> Self {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Self { micro_batches: u32::try_from(micro_batches).unwrap_or(u32::MAX), took_us }
    }
}

/// A rank that trains.
#[derive(Debug, Clone, Default)]
struct Row {
    /// Its number when the ranks met.
    number: usize,
    launched_as: usize,
    place: String,
    pace: Pace,
    is_healing: bool,
}

/// What is known of the ranks.
struct Record {
    rows: Vec<Row>,
    /// The ranks that are gone, by the numbers that their launcher gave them, with their places.
    gone: Vec<(usize, String)>,
    drops: BTreeMap<usize, u32>,
    shares: Shares,
    /// The micro-batches of a step.
    micro_batches: usize,
    /// The steps since the members or their shares have changed.
    since_change: u32,
    /// How often the shares have changed since the members have.
    changes: u32,
    step: u64,
    pulse: Option<Pulse>,
}

impl Record {
    fn new(collective: &dyn Collective, micro_batches: usize, step: u64) -> Self {
        let (gone, drops) = (Vec::new(), BTreeMap::new());
        let shares = collective.world_size().into();
        let (rows, pulse) = (Vec::new(), None);
        let mut record =
            Self { rows, gone, drops, shares, micro_batches, since_change: 0, changes: 0, step, pulse };
        record.meet(collective, collective.world_size());
        record
    }

    /// Takes the ranks that have met. Those after the first `known` have just come.
    fn meet(&mut self, collective: &dyn Collective, known: usize) {
        self.pulse = collective.pulse();
        let launched_as = collective.launched_as();
        let row = |(place, number): (usize, usize)| Row {
            number,
            launched_as: launched_as.get(place).copied().unwrap_or(number),
            place: self.pulse.as_ref().map_or_else(String::new, |pulse| pulse.place(number).to_owned()),
            pace: Pace::default(),
            is_healing: place >= known,
        };
        self.rows = collective.members().into_iter().enumerate().map(row).collect();
        self.gone.retain(|(gone, _)| !launched_as.contains(gone));
        self.shares = self.rows.len().into();
        (self.since_change, self.changes) = (0, 0);
    }

    fn lose(&mut self, lost: impl Iterator<Item = usize>) {
        for lost in lost {
            let Some(place) = self.rows.iter().position(|row| row.launched_as == lost) else { continue };
            let row = self.rows.remove(place);
            *self.drops.entry(row.launched_as).or_default() += 1;
            self.gone.retain(|(gone, _)| *gone != row.launched_as);
            self.gone.push((row.launched_as, row.place));
        }
        self.gone.drain(..self.gone.len().saturating_sub(MOST_GONE));
        self.shares = self.rows.len().into();
        (self.since_change, self.changes) = (0, 0);
    }

    fn shared(&mut self, shares: Shares) {
        self.shares = shares;
        self.since_change = 0;
        self.changes += 1;
    }

    fn computed(&mut self, step: u64, computed: &[Computed]) {
        self.step = step;
        // What was said by members that have changed meanwhile says nothing of those that are left.
        if computed.len() != self.rows.len() {
            return;
        }
        let pulse = self.pulse.as_ref();
        for (row, Computed { micro_batches, took_us }) in self.rows.iter_mut().zip(computed) {
            row.is_healing = false;
            row.pace.computed(*micro_batches, Duration::from_micros(*took_us));
            if let Some(latency) = pulse.and_then(|pulse| pulse.latency(row.number)) {
                row.pace.latency(latency);
            }
        }
        self.since_change = self.since_change.saturating_add(1);
    }

    fn better_shares(&self) -> Option<Shares> {
        let paces: Vec<&Pace> = self.rows.iter().map(|row| &row.pace).collect();
        // Ranks whose speed goes up and down, because others use their machines too, change less and less
        // often.
        let settled = self.since_change >= SETTLING << self.changes.min(MOST_DOUBLINGS);
        self.shares.better(&paces, self.micro_batches).filter(|_| settled)
    }

    fn samples(&self) -> MemberSamples {
        let milliseconds = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        let counts = self.shares.counts(self.micro_batches);
        let pulse = self.pulse.as_ref();
        let drops = |launched_as: &usize| self.drops.get(launched_as).copied().unwrap_or(0);
        let of_row = |(row, micro_batches): (&Row, u32)| {
            let silent_for = pulse.and_then(|pulse| pulse.silent_for(row.number));
            let state = match (row.is_healing, silent_for.is_some_and(|silence| silence >= SILENT)) {
                (_, true) => MemberState::Silent,
                (true, false) => MemberState::Healing,
                (false, false) => MemberState::Training,
            };
            MemberSample {
                rank: row.launched_as,
                place: row.place.clone(),
                state,
                micro_batches,
                micro_batch_ms: row.pace.of_micro_batch().map(milliseconds),
                latency_ms: pulse.and_then(|pulse| pulse.latency(row.number)).map(milliseconds),
                drops: drops(&row.launched_as),
            }
        };
        let of_gone = |(rank, place): &(usize, String)| MemberSample {
            rank: *rank,
            place: place.clone(),
            state: MemberState::Gone,
            drops: drops(rank),
            ..MemberSample::default()
        };
        let ranks = self.rows.iter().zip(counts).map(of_row).chain(self.gone.iter().map(of_gone));
        MemberSamples { step: self.step, ranks: ranks.collect() }
    }
}

/// Watches the ranks of a run, at rank 0.
pub(crate) struct MemberWatch {
    record: Arc<Mutex<Record>>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MemberWatch {
    /// Starts to watch ranks that share so many micro-batches in each step. Without a thread, which the
    /// system may refuse, nothing is recorded.
    pub(crate) fn start(
        collective: &dyn Collective,
        micro_batches: usize,
        step: u64,
        events: Arc<EventWriter>,
    ) -> Self {
        let record = Arc::new(Mutex::new(Record::new(collective, micro_batches, step)));
        let (end, ended) = channel();
        let seen = Arc::clone(&record);
        let watch = move || {
            let (mut told, mut told_at) = (Vec::new(), None::<Instant>);
            loop {
                let before = Instant::now();
                match ended.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
                if before.elapsed() > STOPPED {
                    continue;
                }
                let samples = lock(&seen).samples();
                let facts = |of: &MemberSample| (of.rank, of.state, of.micro_batches, of.drops);
                let now: Vec<_> = samples.ranks.iter().map(facts).collect();
                if now != told || told_at.is_none_or(|at| at.elapsed() >= SAMPLE_EVERY) {
                    (told, told_at) = (now, Some(Instant::now()));
                    events.emit(Kind::MemberSamples(samples));
                }
            }
        };
        let thread = Builder::new().name("members".into()).spawn(watch).ok();
        Self { record, end: Some(end), thread }
    }

    /// Takes the ranks that have met, of which all after the first `known` have just come.
    pub(crate) fn meet(&self, collective: &dyn Collective, known: usize) {
        lock(&self.record).meet(collective, known);
    }

    /// Records that these are gone, by the numbers that their launcher gave them.
    pub(crate) fn lose(&self, lost: impl Iterator<Item = usize>) {
        lock(&self.record).lose(lost);
    }

    /// Records what each rank has computed of this step, counted from 1.
    pub(crate) fn computed(&self, step: u64, computed: &[Computed]) {
        lock(&self.record).computed(step, computed);
    }

    /// Returns other shares for the next step, if they are clearly better than those now.
    pub(crate) fn better_shares(&self) -> Option<Shares> {
        lock(&self.record).better_shares()
    }

    /// Records that the ranks have these shares now.
    pub(crate) fn shared(&self, shares: Shares) {
        lock(&self.record).shared(shares);
    }
}

impl Drop for MemberWatch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks that have met, without a network.
    struct Ranks(Vec<usize>);

    impl Collective for Ranks {
        fn rank(&self) -> usize {
            0
        }
        fn world_size(&self) -> usize {
            self.0.len()
        }
        fn all_reduce(&mut self, _: &mut [f32]) -> Result<(), sparktune_cluster::Error> {
            Ok(())
        }
        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, sparktune_cluster::Error> {
            Ok(vec![own.to_vec(); self.0.len()])
        }
        fn leave(&mut self, _: Option<&str>) {}
        fn traffic(&self) -> sparktune_cluster::Traffic {
            sparktune_cluster::Traffic::default()
        }
        fn launched_as(&self) -> Vec<usize> {
            self.0.clone()
        }
    }

    fn states(record: &Record) -> Vec<(usize, MemberState, u32, u32)> {
        let of = |sample: &MemberSample| (sample.rank, sample.state, sample.micro_batches, sample.drops);
        record.samples().ranks.iter().map(of).collect()
    }

    fn steps(record: &mut Record, ms: &[u64]) {
        for step in 1..=u64::from(SETTLING) {
            let of = |ms: &u64| Computed::new(1, Duration::from_millis(*ms));
            record.computed(step, &ms.iter().map(of).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_rank_that_is_lost_and_comes_back_is_the_same_one_with_its_drops() {
        use MemberState::{Gone, Healing, Training};
        let mut record = Record::new(&Ranks(vec![0, 1, 2]), 6, 0);
        assert_eq!(states(&record), [(0, Training, 2, 0), (1, Training, 2, 0), (2, Training, 2, 0)]);
        record.lose([1].into_iter());
        assert_eq!(states(&record), [(0, Training, 3, 0), (2, Training, 3, 0), (1, Gone, 0, 1)]);
        // It has the last number when the ranks meet again.
        record.meet(&Ranks(vec![0, 2, 1]), 2);
        assert_eq!(states(&record), [(0, Training, 2, 0), (2, Training, 2, 0), (1, Healing, 2, 1)]);
        steps(&mut record, &[10, 10, 10]);
        assert_eq!(states(&record)[2], (1, Training, 2, 1));
        assert_eq!(record.samples().ranks[1].micro_batch_ms, Some(10.0));
        record.lose([1].into_iter());
        assert_eq!(states(&record)[2], (1, Gone, 0, 2));
    }

    #[test]
    fn shares_are_decided_when_enough_steps_were_seen_since_the_last_change() {
        let mut record = Record::new(&Ranks(vec![0, 1]), 6, 0);
        assert_eq!(record.better_shares(), None);
        steps(&mut record, &[10, 60]);
        let better = record.better_shares().unwrap();
        assert_eq!(better.to_string(), "5+1");
        record.shared(better);
        // A change of what is said settles before it counts.
        record.computed(9, &[Computed::new(5, Duration::from_millis(50)); 2]);
        assert_eq!(record.better_shares(), None);
        // After the first change, twice as many have to pass.
        steps(&mut record, &[60, 10]);
        assert_eq!(record.better_shares(), None);
        steps(&mut record, &[60, 10]);
        assert_eq!(record.better_shares().unwrap().to_string(), "1+5");
        // What ranks have said that are fewer now counts for nothing.
        record.lose([1].into_iter());
        steps(&mut record, &[10, 60]);
        assert_eq!((record.since_change, record.better_shares()), (0, None));
    }

    #[test]
    fn ranks_that_are_gone_are_forgotten_when_there_are_many() {
        let all: Vec<usize> = (0..40).collect();
        let mut record = Record::new(&Ranks(all), 80, 0);
        record.lose(1..40);
        assert_eq!(record.samples().ranks.len(), 1 + MOST_GONE);
    }
}
