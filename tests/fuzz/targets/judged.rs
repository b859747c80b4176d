//! What a rank says where gradients are judged before they count: what it announces of its own gradient, what
//! it has received from the others, and what it finds out about a sum.

use std::collections::VecDeque;

use sparktune_base::random::SplitMix64;
use sparktune_cluster::announced::{AnnouncedSum, NotTheSum};
use sparktune_cluster::judged::JudgedSum;
use sparktune_cluster::sentry::{Combine, Contribution, Decision, Judge, SIGMA, Summary, Verdict};
use sparktune_cluster::{Collective, Error, Measured, Traffic};

use super::is_a_sentence;

const RANKS: usize = 3;
/// The count of numbers in a gradient, which is the same on all ranks. Each rank adds equally many of them.
const LENGTH: usize = 300;
/// The bytes of the word of a rank that is asked for eight more projections.
const MOST: usize = 8 * Summary::BYTES;

/// What was heard in a step, in its order.
#[derive(Clone, Default)]
struct Heard {
    words: VecDeque<Vec<Vec<u8>>>,
    numbers: VecDeque<Vec<f32>>,
    measured: VecDeque<Option<Measured>>,
}

/// One of three ranks. Rank 1 says what rank 0 does, rank 2 says what the input makes of it, and all hear the
/// same.
struct Among<'a> {
    rank: usize,
    /// What is left of the input.
    input: &'a [u8],
    is_muted: bool,
    heard: Heard,
}

impl<'a> Among<'a> {
    /// Takes so many bytes from the input, or what is left of them.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.input.split_at(count.min(self.input.len()));
        self.input = rest;
        taken
    }

    /// Takes a number from the input.
    fn number(&mut self, otherwise: f64) -> f64 {
        self.take(8).try_into().map_or(otherwise, f64::from_le_bytes)
    }

    /// Returns numbers of a sum, to which rank 2 contributes what the others do, times a factor.
    fn numbers(&mut self, of: impl Fn(f32) -> Vec<f32>) -> Vec<f32> {
        if self.rank > 0 {
            return self.heard.numbers.pop_front().expect("all ranks sum equally often");
        }
        let numbers = of(self.take(4).try_into().map_or(1.0, f32::from_le_bytes));
        self.heard.numbers.push_back(numbers.clone());
        numbers
    }

    /// Returns what rank 2 says where the others say this: the same when the input has ended.
    fn said(&mut self, own: &[u8]) -> Vec<u8> {
        let [how, count] = *self.take(2) else { return own.to_vec() };
        match how % 4 {
            0 => self.take(count.into()).to_vec(),
            // The same, but for a part.
            1 => {
                let (mut word, place) = (own.to_vec(), usize::from(how / 4) * 64);
                let bytes = self.take(count.into());
                word.iter_mut().skip(place).zip(bytes).for_each(|(byte, other)| *byte = *other);
                word
            }
            // Something else that is as long.
            2 => {
                let length = if own.is_empty() { MOST } else { own.len() };
                self.take(count.into()).iter().copied().cycle().take(length).collect()
            }
            // What would be true of a gradient with a larger norm.
            _ => {
                let factor = self.number(-1.0);
                let longer = |bytes: &[u8]| {
                    let summary = Summary::parse(bytes);
                    summary.map_or_else(|| bytes.to_vec(), |summary| summary.scaled(factor).to_bytes())
                };
                own.chunks(Summary::BYTES).flat_map(longer).collect()
            }
        }
    }
}

impl Collective for Among<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        RANKS
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let own = values.to_vec();
        let sum = |factor: f32| own.iter().map(|value| value + value + value * factor).collect();
        values.copy_from_slice(&self.numbers(sum));
        Ok(())
    }

    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let others = self.numbers(|factor| values.iter().map(|value| value * factor).collect());
        let own = values.len() * self.rank / RANKS..values.len() * (self.rank + 1) / RANKS;
        Ok([values, values, &others[..]].map(|numbers| numbers[own.clone()].to_vec()).into())
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if self.rank > 0 {
            return Ok(self.heard.words.pop_front().expect("all ranks ask equally often"));
        }
        let words = vec![own.to_vec(), own.to_vec(), self.said(own)];
        self.heard.words.push_back(words.clone());
        Ok(words)
    }

    fn measured(&mut self) -> Option<Measured> {
        if self.rank > 0 {
            return self.heard.measured.pop_front().expect("all ranks measure equally often");
        }
        let measured = (self.take(1) == b"m").then(|| {
            let squares = f64::from(gradient().iter().map(|value| value * value).sum::<f32>());
            let [own, peak, rounding] = [squares, 0.0, 1.0].map(|otherwise| self.number(otherwise));
            Measured { squares: vec![squares, squares, own], peaks: vec![0.0, 0.0, peak], rounding }
        });
        self.heard.measured.push_back(measured.clone());
        measured
    }

    fn muted(&self) -> Vec<usize> {
        if self.is_muted { vec![2] } else { Vec::new() }
    }

    fn leave(&mut self, _reason: Option<&str>) {}

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// The verdicts of a step, and its sums, or who has lied.
type Step = (Vec<Verdict>, Result<Vec<f32>, NotTheSum>);

/// A byte that says how ranks judge, and then what rank 2 says in one to four steps. All ranks find the same
/// and remember the same for later steps; a sum is used only if all whose word counts have found it right;
/// and one liar of three does not keep the others from recognising a gross lie.
pub(super) fn judged(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let (is_muted, is_announced) = (how & 1 != 0, how & 2 == 0);
    let step = |ranks: &mut Among<'_>, judge: &mut Judge, seed: u64| {
        let done = if is_announced { announced(ranks, judge, seed) } else { seen(ranks, judge, seed, how) };
        done.map_err(|error| {
            is_a_sentence(&error);
            error.to_string()
        })
    };
    let mut judges: [Judge; RANKS] = Default::default();
    for seed in 0..=u64::from(how >> 2 & 3) {
        let mut first = Among { rank: 0, input: rest, is_muted, heard: Heard::default() };
        let found = step(&mut first, &mut judges[0], seed);
        rest = first.input;
        for (rank, judge) in judges.iter_mut().enumerate().skip(1) {
            let mut other = Among { rank, input: &[], is_muted, heard: first.heard.clone() };
            let same = step(&mut other, judge, seed);
            // Compared as text, because NaN does not equal itself.
            assert_eq!(format!("{same:?}"), format!("{found:?}"), "rank {rank}");
            assert!(other.heard.words.is_empty() && other.heard.numbers.is_empty());
        }
        assert!(judges.iter().all(|judge| *judge == judges[0]));
        let Ok((verdicts, summed)) = found else { continue };
        assert_eq!(verdicts.len(), RANKS);
        verdicts.iter().flat_map(|verdict| &verdict.reason).for_each(|reason| is_a_sentence(reason));
        match summed {
            Ok(sums) => {
                assert_eq!(sums.len(), LENGTH);
                let last = first.heard.words.back().expect("ranks have said what they found");
                let heard = if is_muted { &last[..2] } else { &last[..] };
                assert!(!is_announced || heard.iter().all(|word| word.first() == Some(&2)), "{heard:?}");
            }
            Err(NotTheSum { liars }) => assert!(liars.is_sorted() && liars.iter().all(|rank| *rank < RANKS)),
        }
    }
    if is_announced {
        let mut summary = Summary::default();
        summary.add(9, 0, &gradient());
        let of = |factor: f64| Contribution { terms: 5, summary: summary.scaled(factor) };
        let verdicts = judges[0].judge(&[of(1.0), of(1.0), of(1e6)], SIGMA);
        assert_eq!(verdicts[..2], [Verdict::ACCEPTED; 2]);
        assert_eq!(verdicts[2].decision, Decision::Drop);
    }
}

/// A step whose contributions are announced.
fn announced(ranks: &mut Among<'_>, judge: &mut Judge, seed: u64) -> Result<Step, Error> {
    let own = gradient();
    let mut sum = AnnouncedSum::begin(vec![5; RANKS], seed);
    sum.add(&own[..100]);
    sum.add(&own[100..]);
    let verdicts = sum.judge(ranks, judge, SIGMA, &[])?.verdicts;
    let summed = sum.sum(ranks, &verdicts)?;
    Ok((verdicts, summed.map(|(sums, _)| sums)))
}

/// A step whose contributions are seen, each by the rank that adds it.
fn seen(ranks: &mut Among<'_>, judge: &mut Judge, seed: u64, how: u8) -> Result<Step, Error> {
    let mut values = gradient();
    let mut sum = JudgedSum::begin(vec![5; RANKS], seed, true);
    sum.add(ranks, &mut values)?;
    let verdicts = sum.judge(ranks, judge, SIGMA, &[])?.verdicts;
    let how = [Combine::Sum, Combine::TrimmedMean, Combine::Median][usize::from(how >> 4) % 3];
    sum.sum(ranks, &verdicts, how, &mut values)?;
    Ok((verdicts, Ok(values)))
}

fn gradient() -> Vec<f32> {
    let mut random = SplitMix64::new(1);
    (0..LENGTH).map(|_| (random.next_f64() - 0.5) as f32).collect()
}
