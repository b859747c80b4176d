//! Judged runs through recorded steps, and what is counted of them.

use sparktune_base::random::SplitMix64;
use sparktune_cluster::sentry::{Contribution, Decision, Judge, Reason, SIGMA, Verdict};

use super::lies::{Liar, Lie};
use super::recording::{Recording, Step};

/// Deals the micro-batches of a step to so many ranks, in turn after a shuffle: any dealing is an honest
/// step.
fn dealt(step: &Step, honest: usize, ranks: usize, random: &mut SplitMix64) -> Vec<Contribution> {
    let order = random.permutation(honest as u32);
    let share = |rank: usize| {
        let of: Vec<usize> = order.iter().skip(rank).step_by(ranks).map(|place| *place as usize).collect();
        step.share(&of)
    };
    (0..ranks).map(share).collect()
}

/// What became of honest steps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Honest {
    pub(crate) steps: u64,
    pub(crate) contributions: u64,
    /// The steps in which somebody was clipped or dropped.
    pub(crate) touched: u64,
    pub(crate) clipped: u64,
    /// Dropped for their norm, direction, record.
    pub(crate) dropped: [u64; 3],
}

impl Honest {
    /// The steps, from the first one, of recorded trainings in turn, at least so many in all.
    pub(crate) fn count(recordings: &[Recording], ranks: usize, steps: u64) -> Self {
        let mut counted = Self::default();
        let mut random = SplitMix64::new(ranks as u64);
        while counted.steps < steps {
            for recording in recordings {
                let mut judge = Judge::default();
                for step in &recording.steps {
                    let verdicts = judge.judge(&dealt(step, recording.honest, ranks, &mut random), SIGMA);
                    counted.add(&verdicts);
                }
            }
        }
        counted
    }

    fn add(&mut self, verdicts: &[Verdict]) {
        self.steps += 1;
        self.contributions += verdicts.len() as u64;
        self.touched += u64::from(verdicts.iter().any(|verdict| verdict.reason.is_some()));
        for verdict in verdicts {
            match (verdict.decision, verdict.reason) {
                (Decision::Clip(_), _) => self.clipped += 1,
                (Decision::Drop, Some(Reason::Direction { .. })) => self.dropped[1] += 1,
                (Decision::Drop, Some(Reason::Record { .. } | Reason::Held { .. })) => self.dropped[2] += 1,
                (Decision::Drop, _) => self.dropped[0] += 1,
                (Decision::Accept, _) => {}
            }
        }
    }
}

/// What became of a rank that lies, and of the steps in which it lied.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lied {
    pub(crate) steps: u64,
    pub(crate) clipped: u64,
    pub(crate) dropped: u64,
    /// Honest contributions that were dropped in these steps.
    pub(crate) others: u64,
    /// The steps until it was dropped for the first time, of the runs in which it was.
    pub(crate) until: u64,
    pub(crate) found: u64,
    pub(crate) runs: u64,
    /// The part of the honest ranks' step that is left, and the error relative to it: without a judge, and
    /// with one. Sums over the steps in which the sum is finite.
    pub(crate) without: Damage,
    pub(crate) with: Damage,
}

/// What lies do to a step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Damage {
    progress: f64,
    error: f64,
    steps: u64,
    pub(crate) not_finite: u64,
}

impl Damage {
    fn add(&mut self, sum: &[f64], honest: &[f64]) {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        if !sum.iter().all(|value| value.is_finite()) {
            self.not_finite += 1;
            return;
        }
        let length = dot(honest, honest);
        let off: Vec<f64> = sum.iter().zip(honest).map(|(sum, honest)| sum - honest).collect();
        self.progress += dot(sum, honest) / length;
        self.error += (dot(&off, &off) / length).sqrt();
        self.steps += 1;
    }

    /// Mean progress along the step of the honest ranks (1 is all of it), and mean error; `None` if no step
    /// was finite.
    pub(crate) fn means(&self) -> Option<(f64, f64)> {
        let steps = self.steps as f64;
        (self.steps > 0).then(|| (self.progress / steps, self.error / steps))
    }
}

/// The steps from which a rank lies, counted from 0: early, when gradients agree and little is known of what
/// is usual, and later.
pub(crate) const FROM: [usize; 2] = [5, 40];

impl Lied {
    /// The last of so many ranks lies from a step on, in so many runs through each recording.
    pub(crate) fn count(recordings: &[Recording], ranks: usize, lie: Lie, from: usize, runs: u64) -> Self {
        let mut counted = Self::default();
        let mut random = SplitMix64::new(1000 + ranks as u64);
        for _ in 0..runs {
            for recording in recordings {
                counted.run(recording, ranks, lie, from, &mut random);
            }
        }
        counted
    }

    fn run(&mut self, recording: &Recording, ranks: usize, lie: Lie, from: usize, random: &mut SplitMix64) {
        if recording.steps.len() <= from {
            return;
        }
        let own = ranks - 1;
        let (mut judge, mut liar, mut found) = (Judge::default(), Liar::new(lie), None);
        self.runs += 1;
        for (number, step) in recording.steps.iter().enumerate() {
            let mut all = dealt(step, recording.honest, ranks, random);
            liar.remember(&all[own]);
            if number < from {
                judge.judge(&all, SIGMA);
                continue;
            }
            let honest = summed(&all[..own], &vec![Verdict::ACCEPTED; own]);
            all[own] = liar.sent(recording, step, own, &all, &judge);
            let verdicts = judge.judge(&all, SIGMA);
            self.steps += 1;
            match verdicts[own].decision {
                Decision::Accept => {}
                Decision::Clip(_) => self.clipped += 1,
                Decision::Drop => {
                    self.dropped += 1;
                    found.get_or_insert(number - from);
                }
            }
            let dropped = |verdict: &&Verdict| verdict.decision == Decision::Drop;
            self.others += verdicts[..own].iter().filter(dropped).count() as u64;
            self.without.add(&summed(&all, &vec![Verdict::ACCEPTED; ranks]), &honest);
            self.with.add(&summed(&all, &verdicts), &honest);
        }
        if let Some(step) = found {
            self.found += 1;
            self.until += step as u64;
        }
    }
}

/// Returns the projection of the step's gradient per trained token.
fn summed(all: &[Contribution], verdicts: &[Verdict]) -> Vec<f64> {
    let mut sum = vec![0.0; all[0].summary.sums().len()];
    let mut terms = 0;
    for (one, verdict) in all.iter().zip(verdicts) {
        let factor = match verdict.decision {
            Decision::Accept => 1.0,
            Decision::Clip(factor) => f64::from(factor),
            Decision::Drop => continue,
        };
        terms += one.terms;
        sum.iter_mut().zip(one.summary.sums()).for_each(|(sum, value)| *sum += factor * value);
    }
    sum.iter_mut().for_each(|sum| *sum /= terms.max(1) as f64);
    sum
}
