//! Sums by an engine that adds unseen, of which each rank announces its contribution first.
//!
//! A rank summarises what it is going to contribute, and all ranks judge what was announced, before anything
//! is added. Then each contributes what was decided: as it is, clipped, or nothing. All ranks summarise the
//! sum, and compare it with what was announced: the projection of a sum is the sum of the projections. If it
//! is something else, the sum is thrown away, and the step can be summed where each contribution is seen
//! ([`crate::judged`]).
//!
//! **When a projection says too little.** Where a few numbers make up a vector's whole length, two of them
//! may fall on one sum of the projection and add up or cancel, so that an honest norm does not fit it. Then
//! more projections are announced, which are independent of the first one, and the median of their lengths
//! counts. A sum whose length alone is in doubt is made once more after that, so that what it is compared
//! with was always announced before it was made.
//!
//! **Who lies, where contributions are measured.** Some engines measure each contribution where it is added
//! ([`Collective::measured`]). One that is not as long as it was announced, up to what rounding can do, is a
//! lie, and whose it is, is known. All ranks say whom they have found, so that what most of them say counts,
//! and the step can be summed again without the liars ([`Collective::mute`]).
//!
//! **What a liar can still do.** One that announces what it contributes is judged by it. One that announces
//! something else of the same length is found, though not who it is, and its step is not used: it costs the
//! time of a step. It can add what the projection does not show, which it can compute, because it knows the
//! seed: numbers whose projection is zero, as long as the sum is not longer than 1.4 times its projection.
//! So a false part of about the length of the sum, at right angles to what shows, is not found, unless
//! contributions are measured: then what it adds has the length that it has announced, for which it is
//! judged. If it makes a sum doubtful on purpose, it has to hide from all projections, with at most two
//! thirds of the length of the sum, or of the norm that it has announced itself; and it can cost every step
//! a second sum.

use std::time::{Duration, Instant};

use rayon::prelude::*;
use sparktune_base::random::{GAMMA, mix};

use crate::collective::{BUCKET, Collective, Measured};
use crate::error::Error;
use crate::judged::Judgement;
use crate::sentry::{Contribution, Decision, Judge, Reason, Summary, Verdict, made_up};
use crate::summed_by::SummedBy;

/// How much longer than its projection a vector may be, or shorter. Where many numbers make up its length, an
/// honest one is by a factor of more than this once in 10¹⁰ steps: the squared length of its projection has a
/// deviation of 0.09. Where two numbers do, they fall on the same sum with one of 256 seeds.
const LONGER: f64 = 1.4;
/// The projections that are announced beside the first one where that leaves a doubt.
const MORE: usize = 8;
/// How much longer than the median of all these projections a vector may be, or shorter. The median's square
/// has a deviation of 0.04; two numbers would have to fall on the same sum in five of nine projections.
const LONGER_BY_MORE: f64 = 1.2;
/// The part of the lengths of all contributions by which rounding may change a projection.
const ROUNDING: f64 = 1e-4;
/// The same where sums are rounded to 16 bits. For normally distributed numbers, 16 ranks of which one has
/// nearly the whole length are off by 0.004 of it, and fewer ranks by less.
pub(crate) const ROUNDING_TO_16_BITS: f64 = 0.02;

/// Why a sum is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTheSum {
    /// The ranks that have contributed something else than they had announced, as most ranks have found;
    /// none if it is not known who.
    pub liars: Vec<usize>,
}

/// A step whose contributions are announced.
pub struct AnnouncedSum {
    terms: Vec<u64>,
    seed: u64,
    /// What this rank contributes, in pieces.
    own: Vec<Vec<f32>>,
    announced: Summary,
    /// Of the same, with the other projections, once they are asked for.
    more: Vec<Summary>,
    /// What each rank has announced: the first summary, and then those with the other projections, if there
    /// are any.
    all: Vec<Vec<Summary>>,
    at: u64,
    took: Duration,
}

/// Whether a sum is that of what was announced. The worst that a rank says counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Finding {
    Wrong,
    /// Its projection is, and does not fit its length.
    Doubtful,
    Right,
}

impl AnnouncedSum {
    /// Begins a step in which each rank's share has so many trained tokens. The projections depend on `seed`,
    /// which is the same on all ranks.
    pub fn begin(terms: Vec<u64>, seed: u64) -> Self {
        let (own, announced, more, all) = (Vec::new(), Summary::default(), Vec::new(), Vec::new());
        Self { terms, seed, own, announced, more, all, at: 0, took: Duration::ZERO }
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
    /// contributions cannot be used for another reason. Those that are muted are left out.
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
        self.all = heard(&collective.all_gather(&self.announced.to_bytes())?, |_| 1)?;
        let doubted: Vec<bool> = self.all.iter().map(|summaries| !fits(summaries)).collect();
        if doubted.contains(&true) {
            self.announce_more(collective, |rank| doubted[rank])?;
        }
        let started = Instant::now();
        let untrue: Vec<bool> = self.all.iter().map(|summaries| !fits(summaries)).collect();
        let muted = collective.muted();
        let contribution = |(rank, summaries): (usize, &Vec<Summary>)| {
            let cannot_be = untrue[rank] || not_finite.contains(&rank) || muted.contains(&rank);
            let summary = if cannot_be { summaries[0].scaled(f64::NAN) } else { summaries[0].clone() };
            Contribution { terms: self.terms[rank], summary }
        };
        let contributions: Vec<Contribution> = self.all.iter().enumerate().map(contribution).collect();
        let mut verdicts = judge.judge(&contributions, sigma);
        for (verdict, untrue) in verdicts.iter_mut().zip(untrue) {
            if untrue && verdict.decision == Decision::Drop {
                *verdict = Verdict::dropped(Reason::Untrue);
            }
        }
        muted.into_iter().for_each(|rank| verdicts[rank] = Verdict::dropped(Reason::Lied));
        let norms = contributions.iter().map(|one| one.summary.norm()).collect();
        Ok(Judgement { verdicts, norms, took: self.took + started.elapsed() })
    }

    /// Announces the other projections of what these ranks contribute.
    fn announce_more(
        &mut self,
        collective: &mut dyn Collective,
        of: impl Fn(usize) -> bool,
    ) -> Result<(), Error> {
        let started = Instant::now();
        let is_asked = of(collective.rank());
        if is_asked && self.more.is_empty() {
            self.more = vec![Summary::default(); MORE];
            let mut at = 0;
            for piece in &self.own {
                summarise(&mut self.more, self.seed, 1, at, piece);
                at += piece.len() as u64;
            }
        }
        self.took += started.elapsed();
        let own: Vec<u8> = self.more.iter().filter(|_| is_asked).flat_map(Summary::to_bytes).collect();
        let more = heard(&collective.all_gather(&own)?, |rank| if of(rank) { MORE } else { 0 })?;
        for (summaries, more) in self.all.iter_mut().zip(more).filter(|(_, more)| !more.is_empty()) {
            summaries.truncate(1);
            summaries.extend(more);
        }
        Ok(())
    }

    /// Adds what is accepted, and returns the sums, and the time that summarising has taken since the step
    /// was judged. The inner error says that they are not the sums of what was announced, on all ranks alike.
    ///
    /// # Errors
    /// A rank is gone or does something else.
    pub fn sum(
        &mut self,
        collective: &mut dyn Collective,
        verdicts: &[Verdict],
    ) -> Result<Result<(Vec<f32>, Duration), NotTheSum>, Error> {
        self.took = Duration::ZERO;
        let (mut found, mut liars, mut sums) = self.summed(collective, verdicts, 1)?;
        if found == Finding::Doubtful && liars.is_empty() {
            let counts = |rank: usize| factor(verdicts, rank) != 0.0;
            self.announce_more(collective, counts)?;
            if (0..self.all.len()).any(|rank| counts(rank) && !fits(&self.all[rank])) {
                return Ok(Err(NotTheSum { liars }));
            }
            (found, liars, sums) = self.summed(collective, verdicts, 1 + MORE)?;
        }
        if found != Finding::Right || !liars.is_empty() {
            return Ok(Err(NotTheSum { liars }));
        }
        let made_up = made_up(&self.terms, verdicts);
        if made_up != 1.0 {
            sums.iter_mut().for_each(|sum| *sum *= made_up);
        }
        Ok(Ok((sums, self.took)))
    }

    /// Adds what is accepted, and compares so many projections of it with what was announced. All ranks find
    /// the same. Also returns who has contributed something else, where that was measured.
    fn summed(
        &mut self,
        collective: &mut dyn Collective,
        verdicts: &[Verdict],
        projections: usize,
    ) -> Result<(Finding, Vec<usize>, Vec<f32>), Error> {
        let own = factor(verdicts, collective.rank());
        // What was measured before is not of this step.
        collective.measured();
        let (mut seen, mut at) = (vec![Summary::default(); projections], 0);
        let mut sums = Vec::with_capacity(self.own.iter().map(Vec::len).sum());
        for piece in &self.own {
            // Nothing is not a number times zero, which may be none.
            let mut values: Vec<f32> =
                piece.iter().map(|value| if own == 0.0 { 0.0 } else { value * own }).collect();
            collective.all_reduce(&mut values)?;
            let started = Instant::now();
            summarise(&mut seen, self.seed, 0, at, &values);
            at += values.len() as u64;
            self.took += started.elapsed();
            sums.extend_from_slice(&values);
        }
        let liars = collective.measured().map_or_else(Vec::new, |measured| self.liars(verdicts, &measured));
        let mut expected = vec![Summary::default(); projections];
        let mut lengths = 0.0;
        for (rank, summaries) in self.all.iter().enumerate() {
            let factor = factor(verdicts, rank);
            if factor == 0.0 {
                continue;
            }
            lengths += summaries[0].scaled(factor.into()).norm();
            for (sum, summary) in expected.iter_mut().zip(summaries) {
                sum.merge(&summary.scaled(factor.into()));
            }
        }
        // Whatever one of them sees, all do the same.
        let rounds = collective.summed_by() == SummedBy::Xdp;
        let rounding = lengths * if rounds { ROUNDING_TO_16_BITS } else { ROUNDING };
        let mut own = vec![is_sum(&seen, &expected, rounding) as u8];
        own.extend(liars.into_iter().map(|rank| rank as u8));
        let (all, muted) = (collective.all_gather(&own)?, collective.muted());
        // What a muted rank says about sums is ignored too.
        let heard = all.iter().enumerate().filter(|(rank, _)| !muted.contains(rank));
        let said: Vec<&Vec<u8>> = heard.map(|(_, said)| said).collect();
        let found = said.iter().map(|said| match said.first() {
            Some(2) => Finding::Right,
            Some(1) => Finding::Doubtful,
            _ => Finding::Wrong,
        });
        // A liar may accuse others, or deny it.
        let accused = |rank: &usize| {
            said.iter().filter(|said| said.iter().skip(1).any(|of| usize::from(*of) == *rank)).count()
        };
        let liars = (0..all.len()).filter(|rank| 2 * accused(rank) > said.len()).collect();
        Ok((found.min().unwrap_or(Finding::Wrong), liars, sums))
    }

    /// Returns the ranks whose contributions were not as long as they have announced, or which have said that
    /// they have larger numbers than that.
    fn liars(&self, verdicts: &[Verdict], measured: &Measured) -> Vec<usize> {
        let lies = |rank: &usize| {
            let factor = factor(verdicts, *rank);
            let norm = if factor == 0.0 { 0.0 } else { self.all[*rank][0].scaled(factor.into()).norm() };
            // Of what is no number and counts nevertheless, any length can be measured.
            if !norm.is_finite() {
                return false;
            }
            let (rounding, peak) = (norm * ROUNDING, measured.peaks[*rank].sqrt());
            let off = (measured.squares[*rank].sqrt() - norm).abs();
            let is_measured = measured.rounding.is_finite();
            peak.is_nan() || peak > norm + rounding || (is_measured && off > measured.rounding + rounding)
        };
        (0..self.all.len()).filter(lies).collect()
    }

    /// Returns what this rank would have contributed.
    pub fn into_own(self) -> Vec<f32> {
        self.own.concat()
    }
}

/// Returns what a rank's contribution is multiplied by.
fn factor(verdicts: &[Verdict], rank: usize) -> f32 {
    match verdicts[rank].decision {
        Decision::Accept => 1.0,
        Decision::Clip(factor) => factor,
        Decision::Drop => 0.0,
    }
}

/// Reads what each rank announces: so many summaries.
///
/// # Errors
/// A rank announces something else.
fn heard(words: &[Vec<u8>], due: impl Fn(usize) -> usize) -> Result<Vec<Vec<Summary>>, Error> {
    let read = |(rank, word): (usize, &Vec<u8>)| {
        let summaries = word.chunks(Summary::BYTES).map(Summary::parse).collect::<Option<Vec<_>>>();
        summaries.filter(|summaries| summaries.len() == due(rank)).ok_or_else(|| {
            let what = "it announces something else than a gradient".to_owned();
            Error::OutOfStep { rank, at: "of the same job".into(), what }
        })
    };
    words.iter().enumerate().map(read).collect()
}

/// Adds a part of a vector, which begins at this place, to summaries with different projections, of which the
/// first one has this number.
fn summarise(summaries: &mut [Summary], seed: u64, first: u64, at: u64, values: &[f32]) {
    summaries.par_iter_mut().enumerate().for_each(|(number, summary)| {
        summary.add(seed_of(seed, first + number as u64), at, values);
    });
}

/// Returns the seed of a step's projection with this number. Those of neighbouring steps are neighbours, so
/// the others have to be far from it.
fn seed_of(seed: u64, number: u64) -> u64 {
    if number == 0 { seed } else { mix(seed ^ mix(number.wrapping_mul(GAMMA))) }
}

fn length(sums: &[f64]) -> f64 {
    sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt()
}

/// Returns the length that the projections of a vector show: the median of an odd number of lengths.
fn seen_length(summaries: &[Summary]) -> f64 {
    let mut lengths: Vec<f64> = summaries.iter().map(|summary| length(summary.sums())).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    lengths[lengths.len() / 2]
}

/// Returns how much longer or shorter than so many projections show an honest vector may be.
fn longer(projections: usize) -> f64 {
    if projections > 1 { LONGER_BY_MORE } else { LONGER }
}

/// Returns whether summaries can be those of a vector with the norm of the first one. One that is not finite
/// is judged as such.
fn fits(summaries: &[Summary]) -> bool {
    let (norm, seen) = (summaries[0].norm(), seen_length(summaries));
    let longer = longer(summaries.len());
    !summaries[0].is_finite() || (norm <= longer * seen && seen <= longer * norm)
}

/// Returns whether what was summed is what was expected, up to this length. Of one that was announced as not
/// finite, and counts nevertheless, the sum is not finite either.
fn is_sum(seen: &[Summary], expected: &[Summary], rounding: f64) -> Finding {
    if !expected[0].is_finite() {
        return if seen[0].is_finite() { Finding::Wrong } else { Finding::Right };
    }
    let are_near = seen.iter().zip(expected).all(|(seen, expected)| {
        let apart: Vec<f64> =
            seen.sums().iter().zip(expected.sums()).map(|(one, other)| one - other).collect();
        seen.is_finite() && length(&apart) <= rounding
    });
    let is_short = seen[0].norm() <= longer(seen.len()) * seen_length(expected) + rounding;
    match (are_near, is_short) {
        (true, true) => Finding::Right,
        (true, false) if seen.len() == 1 => Finding::Doubtful,
        _ => Finding::Wrong,
    }
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

    /// The places at which a rank has the two numbers.
    type Places<'a> = &'a dyn Fn(usize) -> Vec<usize>;

    /// What the last rank adds to its numbers each time that all are summed, whatever it has announced.
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
                let at = self.at % NUMBERS;
                let adds = &adds[at..at + values.len()];
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
        let mut own: Vec<Vec<f32>> = (0..RANKS).map(gradient).collect();
        own[RANKS - 1] = announced.to_vec();
        step_of(&own, adds)
    }

    fn step_of(own: &[Vec<f32>], adds: Adds) -> Vec<(Vec<Verdict>, Option<Vec<f32>>)> {
        let words = Arc::new(Mutex::new(vec![Vec::new(); RANKS]));
        let barrier = Arc::new(Barrier::new(RANKS));
        let work = |rank: usize| {
            let (words, barrier, adds) = (words.clone(), barrier.clone(), adds.clone());
            let mut ranks = Unseen { rank, words, barrier, adds, at: 0 };
            let own = &own[rank];
            let mut sum = AnnouncedSum::begin(vec![5; RANKS], SEED);
            sum.add(&own[..12_345]);
            sum.add(&own[12_345..]);
            let judged = sum.judge(&mut ranks, &mut Judge::default(), SIGMA, &[]).unwrap();
            let sums = sum.sum(&mut ranks, &judged.verdicts).unwrap().ok();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&sum.into_own()), bits(own));
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

    /// Returns the place of a number in the first projection, and its sign there.
    fn shown(place: usize) -> (usize, f64) {
        let mut summary = Summary::default();
        summary.add(SEED, place as u64, &[1.0]);
        let sum = summary.sums().iter().position(|sum| *sum != 0.0).unwrap();
        (sum, summary.sums()[sum])
    }

    /// Returns the places of two numbers that fall on the same sum, and whether they cancel if they are
    /// equal.
    fn colliding() -> [(usize, usize, bool); 2] {
        let (sum, sign) = shown(5);
        let other = |cancels: bool| {
            let falls_on_it = |place: &usize| {
                let (of, other) = shown(*place);
                of == sum && (sign * other < 0.0) == cancels
            };
            (1000..NUMBERS).find(falls_on_it).unwrap()
        };
        [true, false].map(|cancels| (5, other(cancels), cancels))
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
            let (sum, sign) = shown(place);
            *value = (-rest[sum] / sign) as f32;
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
    fn two_numbers_that_make_up_a_gradient_and_fall_on_one_sum_cost_nobody_its_trust_and_hide_no_lie() {
        for (one, other, cancels) in colliding() {
            let with = |rank: usize, places: &[usize]| {
                let mut values = times(&gradient(rank), 1e-3);
                places.iter().for_each(|place| values[*place] += 100.0);
                values
            };
            let summary = |values: &[f32]| {
                let mut summary = Summary::default();
                summary.add(SEED, 0, values);
                summary
            };
            assert!(
                !fits(&[summary(&with(0, &[one, other]))]),
                "the first projection alone doubts it: {cancels}"
            );
            // All have the two; one has them alone; each of two has one of them, so that only the sum is
            // doubtful.
            let all = |_: usize| vec![one, other];
            let last = |rank: usize| if rank + 1 == RANKS { vec![one, other] } else { Vec::new() };
            let shared = |rank: usize| if rank.is_multiple_of(2) { vec![one] } else { vec![other] };
            let ways: [(&str, Places<'_>); 3] = [("all", &all), ("last", &last), ("shared", &shared)];
            for (name, places) in ways {
                let own: Vec<Vec<f32>> = (0..RANKS).map(|rank| with(rank, &places(rank))).collect();
                let (verdicts, sums) = &step_of(&own, None)[0];
                let untrue = |verdict: &Verdict| verdict.reason == Some(Reason::Untrue);
                assert!(!verdicts.iter().any(untrue), "{name}, {cancels}: {verdicts:?}");
                let sums =
                    sums.as_ref().unwrap_or_else(|| panic!("{name}, {cancels}: the sum is distrusted"));
                if name == "last" {
                    // Its norm is that of nobody else.
                    continue;
                }
                let mut expected = vec![0.0; NUMBERS];
                own.iter().for_each(|own| expected.iter_mut().zip(own).for_each(|(sum, own)| *sum += own));
                let near = sums.iter().zip(&expected).all(|(sum, expected)| (sum - expected).abs() < 1e-3);
                assert!(near, "{name}, {cancels}");
                // What the first projection does not show, the others do.
                for part in [0.6, 2.0] {
                    let adds = Some(Arc::new(hidden(part * norm(&expected))));
                    let is_doubted = cancels || part > 1.0;
                    assert_eq!(step_of(&own, adds)[0].1.is_none(), is_doubted, "{name}, {cancels}, {part}");
                }
            }
        }
    }

    #[test]
    fn who_announces_more_than_its_norm_when_it_is_asked_again_is_found() {
        let honest = gradient(0);
        let lie: Vec<f32> =
            honest.iter().zip(hidden(1.5 * norm(&honest))).map(|(value, hidden)| value + hidden).collect();
        let of = |values: &[f32], first: u64, count: usize| {
            let mut summaries = vec![Summary::default(); count];
            summarise(&mut summaries, SEED, first, 0, values);
            summaries
        };
        let squares = f64::from(norm(&honest)).powi(2);
        // The first projection shows nothing of the lie.
        assert!(fits(&[of(&lie, 0, 1).swap_remove(0).with_squares(squares)]));
        let announced = |more: &[f32]| [of(&honest, 0, 1), of(more, 1, MORE)].concat();
        assert!(fits(&announced(&honest)) && !fits(&announced(&lie)));
    }

    #[test]
    fn a_norm_that_does_not_fit_its_sketch_is_no_gradient() {
        let mut summary = Summary::default();
        summary.add(SEED, 0, &gradient(0));
        assert!(fits(&[summary.clone()]) && fits(&[Summary::default()]));
        let squares = summary.norm() * summary.norm();
        for factor in [0.3, 3.0] {
            assert!(!fits(&[summary.clone().with_squares(squares * factor)]), "{factor}");
        }
        let lie = summary.with_squares(squares * 3.0);
        assert!(!fits(&vec![lie; 1 + MORE]), "more of the same does not help");
    }

    #[test]
    fn the_sum_of_what_was_announced_as_no_number_is_none() {
        let summary = |value: f32| {
            let mut summary = Summary::default();
            summary.add(SEED, 0, &[1.0, value]);
            [summary]
        };
        let (finite, none) = (summary(2.0), summary(f32::NAN));
        assert_eq!(is_sum(&finite, &finite, 1.0), Finding::Right);
        assert_eq!(is_sum(&none, &none, f64::NAN), Finding::Right);
        assert_eq!(is_sum(&finite, &none, f64::NAN), Finding::Wrong);
        assert_eq!(is_sum(&none, &finite, 1.0), Finding::Wrong);
    }
}
