//! Sums of which each contribution is judged before it counts, over any [`Collective`].
//!
//! A step's numbers come in buckets. Of each bucket, the owner of a chunk gets the contributions of all
//! ranks to it ([`Collective::scatter`]) and summarises them. After the last bucket, the owners exchange
//! their summaries, add those of a rank in the order of owners, and judge: all ranks have the same numbers,
//! so they decide alike. A rank that judges strictly keeps the contributions until then and sums what is
//! accepted; one that only warns adds at once, with the bits of [`Collective::all_reduce`].
//!
//! An owner is trusted with its chunk: it could say something else of what it received than is true, or
//! spread another sum. That holds for the chunk of its own contribution too: it cannot make the norm smaller
//! than what the other owners have measured, but its projections of that chunk are believed.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::collective::{BUCKET, Collective, chunk};
use crate::error::Error;
use crate::sentry::{Combine, Contribution, Judge, Summary, Verdict, combine};

/// A step whose contributions are being judged.
pub struct JudgedSum {
    terms: Vec<u64>,
    seed: u64,
    /// The contributions to this rank's chunks, by rank, in the order of buckets; `None` if they are added at
    /// once.
    kept: Option<VecDeque<Vec<Vec<f32>>>>,
    /// What this rank has received of each rank.
    summaries: Vec<Summary>,
    /// The numbers of the buckets so far.
    at: u64,
    summarising: Duration,
}

/// What all ranks know of a step after it was judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// One for each rank.
    pub verdicts: Vec<Verdict>,
    /// The norm of each rank's gradient.
    pub norms: Vec<f64>,
    /// The time that this rank has summarised and judged.
    pub took: Duration,
}

impl JudgedSum {
    /// Begins a step in which each rank's share has so many trained tokens. With `strict`, nothing is added
    /// before all is judged. The projections depend on `seed`, which is the same on all ranks.
    pub fn begin(terms: Vec<u64>, seed: u64, strict: bool) -> Self {
        let summaries = vec![Summary::default(); terms.len()];
        let kept = strict.then(VecDeque::new);
        Self { terms, seed, kept, summaries, at: 0, summarising: Duration::ZERO }
    }

    /// Exchanges the next bucket. Unless this step is strict, `values` are replaced by their sums.
    ///
    /// # Errors
    /// A rank is gone or does something else.
    pub fn add(&mut self, collective: &mut dyn Collective, values: &mut [f32]) -> Result<(), Error> {
        values.chunks_mut(BUCKET).try_for_each(|piece| self.add_piece(collective, piece))
    }

    fn add_piece(&mut self, collective: &mut dyn Collective, values: &mut [f32]) -> Result<(), Error> {
        let own = chunk(values.len(), collective.rank(), collective.world_size());
        let parts = collective.scatter(values)?;
        let started = Instant::now();
        let at = self.at + own.start as u64;
        self.summaries
            .par_iter_mut()
            .zip(&parts)
            .for_each(|(summary, part)| summary.add(self.seed, at, part));
        self.at += values.len() as u64;
        self.summarising += started.elapsed();
        match &mut self.kept {
            Some(kept) => kept.push_back(parts),
            None => collective.spread(&in_order(&parts), values)?,
        }
        Ok(())
    }

    /// Judges the step, after the last bucket. `not_finite` are ranks whose contributions cannot be used for
    /// another reason.
    ///
    /// # Errors
    /// A rank is gone or does something else.
    pub fn judge(
        &mut self,
        collective: &mut dyn Collective,
        judge: &mut Judge,
        sigma: f64,
        not_finite: &[usize],
    ) -> Result<Judgement, Error> {
        let own: Vec<u8> = self.summaries.iter().flat_map(Summary::to_bytes).collect();
        let mut owners = Vec::with_capacity(self.terms.len());
        for (rank, bytes) in collective.all_gather(&own)?.iter().enumerate() {
            let summaries = bytes.chunks(Summary::BYTES).map(Summary::parse).collect::<Option<Vec<_>>>();
            let summaries = summaries.filter(|all| all.len() == self.terms.len()).ok_or_else(|| {
                let what = "it summarises the gradients of another number of ranks".to_owned();
                Error::OutOfStep { rank, at: "of the same job".into(), what }
            })?;
            owners.push(summaries);
        }
        let started = Instant::now();
        let contributions = merged(&owners, &self.terms, not_finite);
        let verdicts = judge.judge(&contributions, sigma);
        let norms = contributions.iter().map(|one| one.summary.norm()).collect();
        Ok(Judgement { verdicts, norms, took: self.summarising + started.elapsed() })
    }

    /// Replaces the values of a strict step by the sums of what is accepted. The buckets come in the order in
    /// which they were added, with as many values.
    ///
    /// # Errors
    /// A rank is gone or does something else.
    ///
    /// # Panics
    /// When more is asked for than was added.
    pub fn sum(
        &mut self,
        collective: &mut dyn Collective,
        verdicts: &[Verdict],
        how: Combine,
        values: &mut [f32],
    ) -> Result<(), Error> {
        for piece in values.chunks_mut(BUCKET) {
            let parts = self.kept.as_mut().and_then(VecDeque::pop_front);
            let parts = parts.expect("the step is strict, and every bucket was added before");
            let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
            collective.spread(&combine(&parts, &self.terms, verdicts, how), piece)?;
        }
        Ok(())
    }

    /// Judges the contributions of all ranks in one process, with the bits of ranks that exchange these
    /// buckets, which are ranges of the ranks' numbers.
    pub fn judge_alone(
        &self,
        parts: &[Vec<f32>],
        buckets: &[Range<usize>],
        judge: &mut Judge,
        sigma: f64,
        not_finite: &[usize],
    ) -> Judgement {
        let started = Instant::now();
        let count = parts.len();
        let mut owners = vec![vec![Summary::default(); count]; count];
        let pieces = buckets.iter().flat_map(|bucket| {
            bucket.clone().step_by(BUCKET).map(|from| from..bucket.end.min(from + BUCKET))
        });
        for piece in pieces {
            for (owner, summaries) in owners.iter_mut().enumerate() {
                let own = chunk(piece.len(), owner, count);
                let own = piece.start + own.start..piece.start + own.end;
                summaries.par_iter_mut().zip(parts).for_each(|(summary, part)| {
                    summary.add(self.seed, own.start as u64, &part[own.clone()]);
                });
            }
        }
        let contributions = merged(&owners, &self.terms, not_finite);
        let verdicts = judge.judge(&contributions, sigma);
        let norms = contributions.iter().map(|one| one.summary.norm()).collect();
        Judgement { verdicts, norms, took: started.elapsed() }
    }
}

/// Adds what the owners of chunks have received of each rank, in the order of owners.
fn merged(owners: &[Vec<Summary>], terms: &[u64], not_finite: &[usize]) -> Vec<Contribution> {
    let of = |(rank, terms): (usize, &u64)| {
        let mut summary = Summary::default();
        owners.iter().for_each(|summaries| summary.merge(&summaries[rank]));
        // A rank could take off its norm what the other owners have measured.
        let is_below_zero = owners.iter().any(|summaries| summaries[rank].norm().is_nan());
        if is_below_zero || not_finite.contains(&rank) {
            summary = summary.scaled(f64::NAN);
        }
        Contribution { terms: *terms, summary }
    };
    terms.iter().enumerate().map(of).collect()
}

/// Adds the contributions of all ranks to a chunk, in their order.
fn in_order(parts: &[Vec<f32>]) -> Vec<f32> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let mut sums = first.clone();
    for part in others {
        sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
    sums
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, Mutex};
    use std::thread;

    use sparktune_base::random::SplitMix64;

    use super::*;
    use crate::collective::Traffic;
    use crate::sentry::{Decision, SIGMA};

    /// Ranks in threads, which see each other's words.
    struct Together {
        rank: usize,
        words: Arc<Mutex<Vec<Vec<u8>>>>,
        barrier: Arc<Barrier>,
    }

    impl Collective for Together {
        fn rank(&self) -> usize {
            self.rank
        }

        fn world_size(&self) -> usize {
            self.words.lock().unwrap().len()
        }

        fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
            let parts = self.scatter(values)?;
            self.spread(&in_order(&parts), values)
        }

        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
            self.words.lock().unwrap()[self.rank] = own.to_vec();
            self.barrier.wait();
            let all = self.words.lock().unwrap().clone();
            self.barrier.wait();
            Ok(all)
        }

        fn leave(&mut self, _reason: Option<&str>) {}

        fn traffic(&self) -> Traffic {
            Traffic::default()
        }
    }

    fn gradient(rank: usize, step: u64) -> Vec<f32> {
        let [mut common, mut own] = [step, 1000 * rank as u64 + step + 77].map(SplitMix64::new);
        (0..1000).map(|_| (common.next_f64() + own.next_f64() - 1.0) as f32).collect()
    }

    /// Lets so many ranks sum steps in two buckets; the last one sends ×10⁶ in the third.
    fn steps(world_size: usize, strict: bool, how: Combine) -> Vec<Vec<(Judgement, Vec<f32>)>> {
        let words = Arc::new(Mutex::new(vec![Vec::new(); world_size]));
        let barrier = Arc::new(Barrier::new(world_size));
        let work = |rank: usize| {
            let mut ranks = Together { rank, words: words.clone(), barrier: barrier.clone() };
            let mut judge = Judge::default();
            let one = |step: u64| {
                let mut values = gradient(rank, step);
                if step == 2 && rank + 1 == world_size {
                    values.iter_mut().for_each(|value| *value *= 1e6);
                }
                let mut sum = JudgedSum::begin(vec![5; world_size], 1, strict);
                let (first, second) = values.split_at_mut(333);
                sum.add(&mut ranks, first).unwrap();
                sum.add(&mut ranks, second).unwrap();
                let judged = sum.judge(&mut ranks, &mut judge, SIGMA, &[]).unwrap();
                if strict {
                    sum.sum(&mut ranks, &judged.verdicts, how, first).unwrap();
                    sum.sum(&mut ranks, &judged.verdicts, how, second).unwrap();
                }
                (judged, values)
            };
            (0..4).map(one).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_leave_the_same_lie_out_and_have_the_sum_of_the_others() {
        for world_size in [3, 4] {
            let all = steps(world_size, true, Combine::Sum);
            for (step, (judged, sums)) in all[0].iter().enumerate() {
                let liar = world_size - 1;
                let is_lie = step == 2;
                for ranks in &all {
                    assert_eq!(ranks[step].0.verdicts, judged.verdicts);
                    assert_eq!(&ranks[step].1, sums);
                }
                assert_eq!(judged.verdicts[liar].decision == Decision::Drop, is_lie);
                let mut expected = gradient(0, step as u64);
                for rank in 1..world_size - usize::from(is_lie) {
                    let next = gradient(rank, step as u64);
                    expected.iter_mut().zip(next).for_each(|(sum, value)| *sum += value);
                }
                if is_lie {
                    let made_up = (world_size as f64 / liar as f64) as f32;
                    expected.iter_mut().for_each(|sum| *sum *= made_up);
                }
                assert_eq!(sums, &expected);
            }
        }
    }

    #[test]
    fn one_that_only_warns_says_the_same_and_adds_everything() {
        let strict = steps(3, true, Combine::Sum);
        for (lenient, strict) in steps(3, false, Combine::Sum).iter().zip(&strict) {
            for (step, (lenient, strict)) in lenient.iter().zip(strict).enumerate() {
                assert_eq!(lenient.0.verdicts, strict.0.verdicts);
                assert_eq!(lenient.1 == strict.1, step != 2);
            }
        }
    }

    #[test]
    fn one_process_judges_as_the_ranks_do() {
        let ranks = steps(3, true, Combine::Median);
        let mut judge = Judge::default();
        for (step, (judged, sums)) in ranks[0].iter().enumerate() {
            let mut parts: Vec<Vec<f32>> = (0..3).map(|rank| gradient(rank, step as u64)).collect();
            if step == 2 {
                parts[2].iter_mut().for_each(|value| *value *= 1e6);
            }
            let sum = JudgedSum::begin(vec![5; 3], 1, true);
            let alone = sum.judge_alone(&parts, &[0..333, 333..1000], &mut judge, SIGMA, &[]);
            assert_eq!((&alone.verdicts, &alone.norms), (&judged.verdicts, &judged.norms));
            let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
            assert_eq!(&combine(&parts, &[5; 3], &alone.verdicts, Combine::Median), sums);
        }
    }
}
