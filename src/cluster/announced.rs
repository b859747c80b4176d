//! Sums by an engine that adds unseen, of which each rank announces its contribution first.
//!
//! A rank summarises what it is going to contribute, and all ranks judge what was announced, before anything
//! is added. Then each contributes what was decided: as it is, clipped, or nothing. All ranks summarise the
//! sum, and compare it with what was announced: the projection of a sum is the sum of the projections. If it
//! is something else, the sum is thrown away, and the step can be summed where each contribution is seen
//! ([`crate::judged`]).
//!
//! **What a liar can still do.** One that announces what it contributes is judged by it. One that announces
//! something else is found, though not who it is, and its step is not used: it costs the time of a step. It
//! can add what the projection does not show, which it can compute, because it knows the seed: numbers whose
//! projection is zero, as long as the sum is not longer than 1.4 times its projection. So a false part of
//! about the length of the sum, at right angles to what shows, is not found.

use std::time::{Duration, Instant};

use crate::collective::{BUCKET, Collective};
use crate::error::Error;
use crate::judged::Judgement;
use crate::sentry::{Contribution, Decision, Judge, Reason, Summary, Verdict, made_up};

/// How much longer than its projection a vector may be, or shorter. Where many numbers make up its length, an
/// honest one is by a factor of more than this once in 10¹⁰ steps: the squared length of its projection has a
/// deviation of 0.09. Where two numbers do, they may fall on the same sum, as one of 256 seeds lets them.
const LONGER: f64 = 1.4;
/// The part of the lengths of all contributions by which rounding may change a projection.
const ROUNDING: f64 = 1e-4;

/// A step whose contributions are announced.
pub struct AnnouncedSum {
    terms: Vec<u64>,
    seed: u64,
    /// What this rank contributes, in pieces.
    own: Vec<Vec<f32>>,
    announced: Summary,
    /// What all have announced.
    all: Vec<Summary>,
    at: u64,
    took: Duration,
}

impl AnnouncedSum {
    /// Begins a step in which each rank's share has so many trained tokens. The projections depend on `seed`,
    /// which is the same on all ranks.
    pub fn begin(terms: Vec<u64>, seed: u64) -> Self {
        let (own, announced, all) = (Vec::new(), Summary::default(), Vec::new());
        Self { terms, seed, own, announced, all, at: 0, took: Duration::ZERO }
    }

    /// Takes this rank's next numbers.
    pub fn add(&mut self, values: &[f32]) {
        let started = Instant::now();
        for piece in values.chunks(BUCKET) {
            self.announced.add(self.seed, self.at, piece);
            self.at += piece.len() as u64;
            self.own.push(piece.to_vec());
        }
        self.took += started.elapsed();
    }

    /// Announces what this rank contributes, and judges what all have announced. `not_finite` are ranks whose
    /// contributions cannot be used for another reason.
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
        for (rank, bytes) in collective.all_gather(&self.announced.to_bytes())?.iter().enumerate() {
            let summary = Summary::parse(bytes).ok_or_else(|| {
                let what = "it announces something else than a gradient".to_owned();
                Error::OutOfStep { rank, at: "of the same job".into(), what }
            })?;
            self.all.push(summary);
        }
        let started = Instant::now();
        let untrue: Vec<bool> = self.all.iter().map(|summary| !fits(summary)).collect();
        let contribution = |(rank, summary): (usize, &Summary)| {
            let cannot_be = untrue[rank] || not_finite.contains(&rank);
            let summary = if cannot_be { summary.scaled(f64::NAN) } else { summary.clone() };
            Contribution { terms: self.terms[rank], summary }
        };
        let contributions: Vec<Contribution> = self.all.iter().enumerate().map(contribution).collect();
        let mut verdicts = judge.judge(&contributions, sigma);
        for (verdict, untrue) in verdicts.iter_mut().zip(untrue) {
            if untrue && verdict.decision == Decision::Drop {
                *verdict = Verdict::dropped(Reason::Untrue);
            }
        }
        let norms = contributions.iter().map(|one| one.summary.norm()).collect();
        Ok(Judgement { verdicts, norms, took: self.took + started.elapsed() })
    }

    /// Adds what is accepted, and returns the sums, and the time that summarising them has taken; `None` if
    /// they are not the sums of what was announced, on all ranks alike.
    ///
    /// # Errors
    /// A rank is gone or does something else.
    pub fn sum(
        &self,
        collective: &mut dyn Collective,
        verdicts: &[Verdict],
    ) -> Result<Option<(Vec<f32>, Duration)>, Error> {
        let factor = |rank: usize| match verdicts[rank].decision {
            Decision::Accept => 1.0,
            Decision::Clip(factor) => factor,
            Decision::Drop => 0.0,
        };
        let own = factor(collective.rank());
        let (mut seen, mut at, mut took) = (Summary::default(), 0, Duration::ZERO);
        let mut sums = Vec::with_capacity(self.own.iter().map(Vec::len).sum());
        for piece in &self.own {
            // Nothing is not a number times zero, which may be none.
            let mut values: Vec<f32> =
                piece.iter().map(|value| if own == 0.0 { 0.0 } else { value * own }).collect();
            collective.all_reduce(&mut values)?;
            let started = Instant::now();
            seen.add(self.seed, at, &values);
            at += values.len() as u64;
            took += started.elapsed();
            sums.extend_from_slice(&values);
        }
        let mut expected = Summary::default();
        let mut lengths = 0.0;
        for (rank, summary) in self.all.iter().enumerate().filter(|(rank, _)| factor(*rank) != 0.0) {
            let part = summary.scaled(f64::from(factor(rank)));
            lengths += part.norm();
            expected.merge(&part);
        }
        // Whatever one of them sees, all do the same.
        let is_right = is_sum(&seen, &expected, lengths);
        let all_right = collective.all_gather(&[u8::from(is_right)])?.iter().all(|said| said == &[1]);
        let made_up = made_up(&self.terms, verdicts);
        if made_up != 1.0 {
            sums.iter_mut().for_each(|sum| *sum *= made_up);
        }
        Ok(all_right.then_some((sums, took)))
    }

    /// Returns what this rank would have contributed.
    pub fn into_own(self) -> Vec<f32> {
        self.own.concat()
    }
}

fn length(sums: &[f64]) -> f64 {
    sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt()
}

/// Returns whether a summary can be that of a vector. One that is not finite is judged as such.
fn fits(summary: &Summary) -> bool {
    let (norm, seen) = (summary.norm(), length(summary.sums()));
    !summary.is_finite() || (norm <= LONGER * seen && seen <= LONGER * norm)
}

/// Returns whether what was summed is what was expected, up to rounding, of contributions that are so long
/// together. Of one that was announced as not finite, and counts nevertheless, the sum is not finite either.
fn is_sum(seen: &Summary, expected: &Summary, lengths: f64) -> bool {
    if !expected.is_finite() {
        return !seen.is_finite();
    }
    let apart: Vec<f64> = seen.sums().iter().zip(expected.sums()).map(|(one, other)| one - other).collect();
    let rounding = ROUNDING * lengths;
    seen.is_finite()
        && length(&apart) <= rounding
        && seen.norm() <= LONGER * length(expected.sums()) + rounding
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, Mutex};
    use std::thread;

    use sparktune_base::random::SplitMix64;

    use super::*;
    use crate::collective::Traffic;
    use crate::sentry::{SIGMA, WIDTH};

    const NUMBERS: usize = 40_000;
    const RANKS: usize = 4;
    const SEED: u64 = 3;

    /// What the last rank adds to its numbers when all are summed unseen, whatever it has announced.
    type Adds = Option<Arc<Vec<f32>>>;

    /// Ranks in threads, whose sums nobody sees, added from the last rank to the first.
    struct Unseen {
        rank: usize,
        words: Arc<Mutex<Vec<Vec<u8>>>>,
        barrier: Arc<Barrier>,
        adds: Adds,
        at: usize,
    }

    impl Collective for Unseen {
        fn rank(&self) -> usize {
            self.rank
        }

        fn world_size(&self) -> usize {
            RANKS
        }

        fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
            if let Some(adds) = self.adds.as_ref().filter(|_| self.rank + 1 == RANKS) {
                let adds = &adds[self.at..self.at + values.len()];
                values.iter_mut().zip(adds).for_each(|(value, added)| *value += added);
            }
            self.at += values.len();
            let all = self.all_gather(bytemuck::cast_slice(values))?;
            values.fill(0.0);
            for bytes in all.iter().rev() {
                let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
                values.iter_mut().zip(numbers).for_each(|(sum, value)| *sum += value);
            }
            Ok(())
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

    fn gradient(rank: usize) -> Vec<f32> {
        let [mut common, mut own] = [1, 100 + rank as u64].map(SplitMix64::new);
        (0..NUMBERS).map(|_| (common.next_f64() + own.next_f64() - 1.0) as f32).collect()
    }

    /// Lets all ranks take a step, of which the last one announces these numbers.
    fn step(announced: &[f32], adds: Adds) -> Vec<(Vec<Verdict>, Option<Vec<f32>>)> {
        let words = Arc::new(Mutex::new(vec![Vec::new(); RANKS]));
        let barrier = Arc::new(Barrier::new(RANKS));
        let work = |rank: usize| {
            let (words, barrier, adds) = (words.clone(), barrier.clone(), adds.clone());
            let mut ranks = Unseen { rank, words, barrier, adds, at: 0 };
            let own = if rank + 1 == RANKS { announced.to_vec() } else { gradient(rank) };
            let mut sum = AnnouncedSum::begin(vec![5; RANKS], SEED);
            sum.add(&own[..12_345]);
            sum.add(&own[12_345..]);
            let judged = sum.judge(&mut ranks, &mut Judge::default(), SIGMA, &[]).unwrap();
            let sums = sum.sum(&mut ranks, &judged.verdicts).unwrap();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&sum.into_own()), bits(&own));
            (judged.verdicts, sums.map(|(sums, _)| sums))
        };
        let all: Vec<_> = thread::scope(|scope| {
            let ranks: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(all.iter().all(|one| *one == all[0]), "all decide alike");
        all
    }

    fn times(values: &[f32], factor: f32) -> Vec<f32> {
        values.iter().map(|value| value * factor).collect()
    }

    fn norm(values: &[f32]) -> f32 {
        values.iter().map(|value| value * value).sum::<f32>().sqrt()
    }

    /// Numbers whose projection is zero, with this norm.
    fn hidden(length: f32) -> Vec<f32> {
        let sketch = |values: &[f32], at: u64| {
            let mut summary = Summary::default();
            summary.add(SEED, at, values);
            summary.sums().to_vec()
        };
        let mut random = SplitMix64::new(9);
        let mut values: Vec<f32> = (0..NUMBERS).map(|_| random.next_f64() as f32 - 0.5).collect();
        // The numbers of the first block go to sums of their own, and undo those of all others.
        values[..WIDTH].fill(0.0);
        let rest = sketch(&values, 0);
        for (place, value) in values[..WIDTH].iter_mut().enumerate() {
            let one = sketch(&[1.0], place as u64);
            let sum = one.iter().position(|sum| *sum != 0.0).unwrap();
            *value = (-rest[sum] / one[sum]) as f32;
        }
        times(&values, length / norm(&values))
    }

    #[test]
    fn honest_ranks_have_the_sum_and_a_liar_whose_sketch_is_that_of_its_lie_is_dropped() {
        let honest = gradient(RANKS - 1);
        let near = |sums: &[f32], expected: &[f32]| {
            sums.iter().zip(expected).all(|(sum, expected)| (sum - expected).abs() < 1e-5)
        };
        let mut expected = vec![0.0; NUMBERS];
        for rank in 0..RANKS - 1 {
            expected.iter_mut().zip(gradient(rank)).for_each(|(sum, value)| *sum += value);
        }
        let others = times(&expected, RANKS as f32 / (RANKS - 1) as f32);
        expected.iter_mut().zip(&honest).for_each(|(sum, value)| *sum += value);
        let (verdicts, sums) = &step(&honest, None)[0];
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::ACCEPTED), "{verdicts:?}");
        assert!(near(sums.as_ref().unwrap(), &expected));
        let mut not_finite = honest.clone();
        not_finite[77] = f32::NAN;
        for lie in [times(&honest, -1.0), times(&honest, 1e6), times(&honest, 0.0), not_finite] {
            let (verdicts, sums) = &step(&lie, None)[0];
            assert_eq!(verdicts[RANKS - 1].decision, Decision::Drop);
            assert!(verdicts[..RANKS - 1].iter().all(|verdict| *verdict == Verdict::ACCEPTED));
            assert!(near(sums.as_ref().unwrap(), &others));
        }
    }

    #[test]
    fn who_contributes_something_else_than_it_announces_is_found_up_to_what_a_sketch_does_not_show() {
        let honest = gradient(RANKS - 1);
        let length = norm(&step(&honest, None)[0].1.clone().unwrap());
        for factor in [-2.0, 1e-3, 1e6, f32::NAN] {
            let adds = Some(Arc::new(times(&honest, factor)));
            assert_eq!(step(&honest, adds)[0].1, None, "{factor}");
        }
        // One that is dropped, and contributes all the same.
        let lie = times(&honest, -1.0);
        assert_eq!(step(&lie, Some(Arc::new(lie.clone())))[0].1, None);
        // This is the limit.
        let with = |part: f32| step(&honest, Some(Arc::new(hidden(part * length))))[0].1.is_some();
        assert!(with(0.6), "it is not seen");
        assert!(!with(1.6) && !with(100.0), "it is");
    }

    #[test]
    fn a_norm_that_does_not_fit_its_sketch_is_no_gradient() {
        let mut summary = Summary::default();
        summary.add(SEED, 0, &gradient(0));
        assert!(fits(&summary) && fits(&Summary::default()));
        let squares = summary.norm() * summary.norm();
        for factor in [0.3, 3.0] {
            assert!(!fits(&summary.clone().with_squares(squares * factor)), "{factor}");
        }
    }

    #[test]
    fn the_sum_of_what_was_announced_as_no_number_is_none() {
        let summary = |value: f32| {
            let mut summary = Summary::default();
            summary.add(SEED, 0, &[1.0, value]);
            summary
        };
        let (finite, none) = (summary(2.0), summary(f32::NAN));
        assert!(is_sum(&finite, &finite, 1.0) && is_sum(&none, &none, f64::NAN));
        assert!(!is_sum(&finite, &none, f64::NAN) && !is_sum(&none, &finite, 1.0));
    }
}
