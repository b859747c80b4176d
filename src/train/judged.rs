//! Steps of several ranks whose gradients are judged before they count: seen by others, or, where the engine
//! adds unseen, as each rank announces them.
//!
//! Enters: what this process computed, and the trained tokens of every rank's share, which all ranks know
//! from the data. Leaves: the gradient of the step without what was dropped, its loss without those
//! micro-batches, both divided by the tokens that count, and sentences about whom was doubted. The judge's
//! state is part of a checkpoint, and changes only with a step that is finished.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use sparktune_base::units::counted;
use sparktune_cluster::SummedBy;
use sparktune_cluster::announced::{AnnouncedSum, NotTheSum};
use sparktune_cluster::judged::{JudgedSum, Judgement};
use sparktune_cluster::sentry::{Combine, Decision, Judge, Reason, Verdict, combine};
use sparktune_model::Gradients;
use sparktune_plan::{CombineRanks, Plan, RanksPlan, Sentry};

use crate::error::TrainError;
use crate::exchange::{Share, agreed};
use crate::ranks::{Ranks, Summed};
use crate::state::State;
use crate::trained::Trained;

/// How often a rank is named in full; then only when the number has doubled.
const NAMED: u64 = 5;

/// The least numbers of a bucket, if there are so many.
const BUCKET: usize = sparktune_cluster::tcp::BUCKET;

/// The gradients of a step, what was judged, and the verdicts that count.
type Judged = (Gradients, Judgement, Vec<Verdict>);

/// What this process has computed of a step.
pub(crate) struct Shares {
    /// What it says of it to the others.
    pub(crate) of: Share,
    /// The losses of its micro-batches, by their places in the step.
    pub(crate) losses: Vec<(usize, f64)>,
    /// The gradients of each rank whose part it computes.
    pub(crate) gradients: Vec<Gradients>,
    /// The trained tokens of every rank's share.
    pub(crate) terms: Vec<u64>,
}

/// How the ranks of a run are judged.
pub(crate) struct JudgedRanks {
    plan: RanksPlan,
    seed: u64,
    /// Whether a sum was not that of what was announced, so that each contribution is seen from then on.
    is_distrusted: bool,
    /// The ranks that were reported as muted in this attempt.
    lied: BTreeSet<usize>,
    /// What is to be said of the last step.
    told: Vec<String>,
    /// The time of judging and of the steps since the attempt began.
    judging: Duration,
    began: Instant,
    steps: u64,
}

impl JudgedRanks {
    /// Returns how this plan's ranks are judged; `None` if their gradients are only added. If `are_seen`, no
    /// engine adds them unseen.
    pub(crate) fn of(plan: &Plan, are_seen: bool) -> Option<Self> {
        let RanksPlan { sentry, combine, .. } = plan.ranks;
        let is_judged = sentry != Sentry::Off || combine != CombineRanks::Sum;
        is_judged.then(|| Self {
            plan: plan.ranks,
            seed: plan.seed,
            is_distrusted: are_seen,
            lied: BTreeSet::new(),
            told: Vec::new(),
            judging: Duration::ZERO,
            began: Instant::now(),
            steps: 0,
        })
    }

    /// Returns what is to be said of the last step.
    pub(crate) fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }

    /// Returns whether the ranks' engine adds the next step, which only sees what they announce.
    pub(crate) fn adds_unseen(&self, ranks: &Ranks) -> bool {
        let is_unseen = matches!(ranks.summed_by(false), Some(SummedBy::Nccl(_) | SummedBy::Xdp));
        is_unseen && !self.is_distrusted && self.how() == Combine::Sum
    }

    /// Mutes the ranks again that were muted when the checkpoint was written. They are known by their
    /// numbers, like those of the judge, so this holds only as long as the number of ranks is the same.
    ///
    /// # Errors
    /// A rank is gone.
    pub(crate) fn mute_again(&self, ranks: &mut Ranks, state: &State) -> Result<(), TrainError> {
        let known = state.judge.as_ref().map_or(0, |judge| judge.counts().len());
        let are_the_same = known == ranks.count() && self.adds_unseen(ranks);
        let muted: Vec<usize> = state.muted.iter().copied().filter(|rank| *rank < known).collect();
        if let Some(collective) = ranks.collective().filter(|_| are_the_same && !muted.is_empty()) {
            collective.mute(&muted)?;
        }
        Ok(())
    }

    fn drops(&self) -> bool {
        self.plan.sentry == Sentry::Drop
    }

    fn how(&self) -> Combine {
        match self.plan.combine {
            CombineRanks::Sum => Combine::Sum,
            CombineRanks::TrimmedMean => Combine::TrimmedMean,
            CombineRanks::Median => Combine::Median,
        }
    }

    /// Adds a step over all ranks, and judges each rank's gradient first.
    ///
    /// # Errors
    /// A rank is gone, or computed something else in the step before.
    pub(crate) fn sum(
        &mut self,
        ranks: &mut Ranks,
        judge: &mut Option<Judge>,
        shares: Shares,
        trained: &[Trained],
        device: &Device,
    ) -> Result<Summed, TrainError> {
        let Shares { of, losses, gradients: own, terms } = shares;
        let done = of.step;
        if !ranks.has_others()
            && let Some(why) = of.gives_up
        {
            return Ok(Summed::GivenUp(why));
        }
        if let Some(why) = agreed(&ranks.gather(of)?)? {
            return Ok(Summed::GivenUp(why));
        }
        let losses: Vec<(usize, u64)> = losses.iter().map(|(place, loss)| (*place, loss.to_bits())).collect();
        let mut losses: Vec<(usize, u64)> = ranks.gather(losses)?.into_iter().flatten().collect();
        losses.sort_unstable();
        let losses: Vec<(usize, f64)> =
            losses.into_iter().map(|(place, bits)| (place, f64::from_bits(bits))).collect();
        let count = ranks.count();
        // A step whose loss is not finite is skipped, so such a loss is as bad as such a gradient.
        let not_finite =
            |rank: &usize| losses.iter().any(|(at, loss)| at % count == *rank && !loss.is_finite());
        let not_finite: Vec<usize> = (0..count).filter(not_finite).collect();
        // It stays as it was if the step cannot be finished.
        let mut next = judge.clone().unwrap_or_default();
        let step = Step {
            seed: self.seed.wrapping_add(done),
            terms: &terms,
            not_finite: &not_finite,
            trained,
            device,
        };
        let (gradients, judgement, counted) = match ranks.collective() {
            Some(_) => self.over_ranks(ranks, &mut next, own.into_iter().next(), &step)?,
            None => self.alone(&mut next, own, &step),
        };
        self.judging += judgement.took;
        self.steps += 1;
        self.say(&judgement.verdicts, &next, done + 1);
        if self.plan.sentry != Sentry::Off {
            *judge = Some(next);
        }
        let loss = loss(&losses, &terms, &counted);
        Ok(Summed::Step(loss, gradients))
    }

    /// Judges and sums with the other ranks. Also returns the verdicts that count.
    fn over_ranks(
        &mut self,
        ranks: &mut Ranks,
        judge: &mut Judge,
        own: Option<Gradients>,
        step: &Step,
    ) -> Result<Judged, TrainError> {
        let mut own = own.unwrap_or_default();
        if self.adds_unseen(ranks) {
            match self.announced(ranks, judge, &mut own, step)? {
                Ok(done) => return Ok(done),
                Err(numbers) => put(step.trained, &mut own, &numbers, step.device),
            }
        }
        let collective = ranks.collective().expect("the caller has seen it");
        let is_strict = self.drops() || self.how() != Combine::Sum;
        let mut sum = JudgedSum::begin(step.terms.to_vec(), step.seed, is_strict);
        let mut sums = Gradients::default();
        let buckets = buckets(step.trained);
        for bucket in &buckets {
            let mut values = numbers(&step.trained[bucket.clone()], &mut own, step.device);
            sum.add(collective, &mut values)?;
            if !is_strict {
                put(&step.trained[bucket.clone()], &mut sums, &values, step.device);
            }
        }
        let judgement = if self.plan.sentry == Sentry::Off {
            nobody_doubted(step.terms.len())
        } else {
            sum.judge(collective, judge, self.plan.sentry_sigma, step.not_finite)?
        };
        let counted = self.counted(&judgement);
        if is_strict {
            for bucket in &buckets {
                let trained = &step.trained[bucket.clone()];
                let mut values = vec![0.0; trained.iter().map(Trained::count).sum()];
                sum.sum(collective, &counted, self.how(), &mut values)?;
                put(trained, &mut sums, &values, step.device);
            }
        }
        Ok((sums, judgement, counted))
    }

    /// Judges what the ranks announce, and lets their engine add what is accepted. The inner error is what
    /// this rank has computed, if the sum is not that of what was announced.
    fn announced(
        &mut self,
        ranks: &mut Ranks,
        judge: &mut Judge,
        own: &mut Gradients,
        step: &Step,
    ) -> Result<Result<Judged, Vec<f32>>, TrainError> {
        let collective = ranks.collective().expect("the caller has seen it");
        let mut sum = AnnouncedSum::begin(step.terms.to_vec(), step.seed);
        for bucket in buckets(step.trained) {
            sum.add(&numbers(&step.trained[bucket], own, step.device));
        }
        let (next, judgement, counted, summed) = loop {
            let mut next = judge.clone();
            let mut judgement = sum.judge(collective, &mut next, self.plan.sentry_sigma, step.not_finite)?;
            let counted = self.counted(&judgement);
            let liars = match sum.sum(collective, &counted)? {
                Ok((summed, took)) => {
                    judgement.took += took;
                    break (next, judgement, counted, summed);
                }
                Err(NotTheSum { liars }) => liars,
            };
            let before = collective.engine();
            let are_muted = self.drops() && !liars.is_empty() && collective.mute(&liars)?;
            let now = collective.engine().filter(|now| before.as_ref() != Some(now));
            self.told.extend(now.map(|now| format!("from now on, {now}")));
            // Each time, there are more that are muted.
            if are_muted {
                continue;
            }
            self.is_distrusted = true;
            let who = match liars.as_slice() {
                [] => {
                    "so one of them has sent something else, or it was added wrongly, and it cannot be known which"
                        .to_owned()
                }
                liars => {
                    let liars: Vec<String> = liars.iter().map(|rank| format!("rank {rank}")).collect();
                    format!("because something else has come from {}", liars.join(" and "))
                }
            };
            self.told.push(format!(
                "the sum of the ranks' gradients is not that of what they had announced, {who}. That sum is not used: this step, and all after it, are summed over TCP, where each rank's gradient is seen"
            ));
            return Ok(Err(sum.into_own()));
        };
        *judge = next;
        let mut gradients = Gradients::default();
        put(step.trained, &mut gradients, &summed, step.device);
        Ok(Ok((gradients, judgement, counted)))
    }

    /// The same in one process that stands for all ranks.
    fn alone(&self, judge: &mut Judge, own: Vec<Gradients>, step: &Step) -> Judged {
        let parts: Vec<Vec<f32>> =
            own.into_iter().map(|mut one| numbers(step.trained, &mut one, step.device)).collect();
        let sum = JudgedSum::begin(step.terms.to_vec(), step.seed, true);
        let judgement = if self.plan.sentry == Sentry::Off {
            nobody_doubted(step.terms.len())
        } else {
            let mut from = 0;
            let ranges = buckets(step.trained).into_iter().map(|bucket| {
                let count: usize = step.trained[bucket].iter().map(Trained::count).sum();
                from += count;
                from - count..from
            });
            let ranges: Vec<Range<usize>> = ranges.collect();
            sum.judge_alone(&parts, &ranges, judge, self.plan.sentry_sigma, step.not_finite)
        };
        let counted = self.counted(&judgement);
        let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        let mut sums = Gradients::default();
        put(step.trained, &mut sums, &combine(&parts, step.terms, &counted, self.how()), step.device);
        (sums, judgement, counted)
    }

    /// Returns the verdicts that have an effect.
    fn counted(&self, judgement: &Judgement) -> Vec<Verdict> {
        if self.drops() {
            judgement.verdicts.clone()
        } else {
            vec![Verdict::ACCEPTED; judgement.verdicts.len()]
        }
    }

    fn say(&mut self, verdicts: &[Verdict], judge: &Judge, step: u64) {
        for (rank, (verdict, (clipped, dropped))) in verdicts.iter().zip(judge.counts()).enumerate() {
            let Some(reason) = verdict.reason else { continue };
            let (what, so_far) = match verdict.decision {
                Decision::Drop => ("left out", dropped),
                _ => ("clipped", clipped),
            };
            // That a rank is muted is reported, however often it was left out before.
            let is_muted_now = verdict.reason == Some(Reason::Lied) && self.lied.insert(rank);
            if so_far > NAMED && !so_far.is_power_of_two() && !is_muted_now {
                continue;
            }
            let would = if self.drops() { "was" } else { "would be" };
            let kept = if self.drops() { "" } else { ", but it counts, because --sentry is warn" };
            let message = format!(
                "rank {rank}: its gradient of step {step} {would} {what}{kept}: {reason}. This is the {} of this rank{}",
                nth(so_far),
                if so_far >= NAMED { "; later ones are named when their number has doubled" } else { "" },
            );
            self.told.push(message);
        }
    }

    /// Says how often each rank was doubted, and what judging took.
    pub(crate) fn in_words(&self, judge: &Judge) -> Option<String> {
        if self.steps == 0 || self.plan.sentry == Sentry::Off {
            return None;
        }
        let doubted = judge.counts().into_iter().enumerate().filter(|(_, counts)| *counts != (0, 0));
        let doubted: Vec<String> = doubted
            .map(|(rank, (clipped, dropped))| format!("rank {rank}: {dropped} dropped, {clipped} clipped"))
            .collect();
        let doubted =
            if doubted.is_empty() { "no gradient was doubted".to_owned() } else { doubted.join("; ") };
        let would = if self.drops() { "" } else { " (all were counted, because --sentry is warn)" };
        let share = self.judging.as_secs_f64() / self.began.elapsed().as_secs_f64().max(1e-9);
        Some(format!(
            "{doubted}{would}; judging took {:.2} ms of each of {}, {:.2} % of the time. That is summarising and deciding alone: what it costs to keep gradients, and to exchange them only after the backward pass, is not in it",
            self.judging.as_secs_f64() * 1e3 / self.steps as f64,
            counted(self.steps, "step"),
            100.0 * share,
        ))
    }
}

/// What both ways of judging need of a step.
struct Step<'a> {
    seed: u64,
    terms: &'a [u64],
    not_finite: &'a [usize],
    trained: &'a [Trained],
    device: &'a Device,
}

/// Returns the loss over the tokens that count. `losses` are already divided by all tokens of the step.
fn loss(losses: &[(usize, f64)], terms: &[u64], counted: &[Verdict]) -> f64 {
    let count = terms.len();
    let counts = |rank: usize| counted[rank].decision != Decision::Drop;
    let sum: f64 = losses.iter().filter(|(place, _)| counts(place % count)).map(|(_, loss)| loss).sum();
    let all: u64 = terms.iter().sum();
    let left: u64 = (0..count).filter(|rank| counts(*rank)).map(|rank| terms[rank]).sum();
    if left == all || left == 0 { sum } else { sum * (all as f64 / left as f64) }
}

fn nobody_doubted(ranks: usize) -> Judgement {
    Judgement { verdicts: vec![Verdict::ACCEPTED; ranks], norms: Vec::new(), took: Duration::ZERO }
}

/// Returns the parameters of each bucket, in the order of names.
fn buckets(trained: &[Trained]) -> Vec<Range<usize>> {
    let (mut buckets, mut from, mut size) = (Vec::new(), 0, 0);
    for (place, param) in trained.iter().enumerate() {
        size += param.count();
        if size >= BUCKET || place + 1 == trained.len() {
            buckets.push(from..place + 1);
            (from, size) = (place + 1, 0);
        }
    }
    buckets
}

fn numbers(trained: &[Trained], gradients: &mut Gradients, device: &Device) -> Vec<f32> {
    let of = |param: &Trained| {
        param.take(gradients, device).into_data().try_to_vec::<f32>().expect("gradients are f32")
    };
    trained.iter().flat_map(of).collect()
}

fn put(trained: &[Trained], sums: &mut Gradients, numbers: &[f32], device: &Device) {
    let mut rest = numbers;
    for param in trained {
        let (own, others) = rest.split_at(param.count());
        param.put(sums, own, device);
        rest = others;
    }
}

/// `1st`, `2nd`, …
fn nth(number: u64) -> String {
    let end = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

#[cfg(test)]
mod tests {
    use sparktune_cluster::sentry::{Contribution, SIGMA, Summary};

    use super::*;
    use crate::testing::plan;

    #[test]
    fn that_a_rank_is_muted_is_said_however_often_it_was_left_out_before() {
        let mut plan = plan("Qwen/Qwen3.5-0.8B");
        plan.ranks.sentry = Sentry::Drop;
        let mut ranks = JudgedRanks::of(&plan, false).unwrap();
        let mut judge = Judge::default();
        let contribution = |numbers: [f32; 2]| {
            let mut summary = Summary::default();
            summary.add(3, 0, &numbers);
            Contribution { terms: 5, summary }
        };
        let mut said_of = |reason: Option<Reason>| {
            let mut verdicts = judge.judge(&[[1.0, 2.0], [0.0, 0.0]].map(contribution), SIGMA);
            if let Some(reason) = reason {
                verdicts[1] = Verdict::dropped(reason);
            }
            ranks.say(&verdicts, &judge, 9);
            ranks.told()
        };
        let zeros: Vec<usize> = (0..9).map(|_| said_of(None).len()).collect();
        assert_eq!(zeros, [1, 1, 1, 1, 1, 0, 0, 1, 0]);
        let said = said_of(Some(Reason::Lied));
        assert!(said.len() == 1 && said[0].contains("nothing that it sends is added any more"), "{said:?}");
        assert!(said_of(Some(Reason::Lied)).is_empty(), "once");
    }

    #[test]
    fn the_loss_is_that_of_the_tokens_that_count() {
        // Micro-batches 0 and 2 belong to rank 0, 1 to rank 1.
        let losses = [(0, 0.5), (1, f64::NAN), (2, 0.25)];
        let dropped = Verdict::dropped(Reason::NotFinite);
        assert_eq!(loss(&losses, &[30, 10], &[Verdict::ACCEPTED, dropped]), 0.75 * (40.0 / 30.0));
        assert!(loss(&losses, &[30, 10], &[Verdict::ACCEPTED; 2]).is_nan());
        assert_eq!(
            ["1st", "2nd", "3rd", "4th", "11th", "112th", "121st"],
            [1, 2, 3, 4, 11, 112, 121].map(nth).map(|n| n.leak() as &str)
        );
    }
}
