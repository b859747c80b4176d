//! Ranks that sum over TCP and judge first, of which one lies: its gradient is left out, and all have the
//! same bits.

use std::ops::Range;

use sparktune_cluster::judged::JudgedSum;
use sparktune_cluster::sentry::{Combine, Decision, Judge, Reason, SIGMA, Summary, Verdict};
use sparktune_cluster::tcp::Tcp;
use sparktune_cluster::{Collective, Error, Traffic};

use crate::{all, bits, numbers, together};

const RANKS: usize = 4;
const NUMBERS: usize = 20_003;
/// The numbers of the first of two buckets.
const FIRST: usize = 5003;
/// The step in which one lies, of so many.
const LIE: usize = 2;
const STEPS: usize = 4;

/// A rank that sends its gradient times a factor to the others. In the chunk that it adds itself, it has what
/// it has computed. It says so in its next summaries, or something else.
struct Liar(Tcp, f32, Option<Summary>);

/// The numbers of so many that this rank adds.
fn chunk(count: usize, rank: usize) -> Range<usize> {
    count * rank / RANKS..count * (rank + 1) / RANKS
}

impl Collective for Liar {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.0.all_reduce(values)
    }

    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let lie: Vec<f32> = values.iter().map(|value| value * self.1).collect();
        let mut parts = self.0.scatter(&lie)?;
        let (rank, count) = (self.rank(), values.len());
        parts[rank] = values[chunk(count, rank)].to_vec();
        Ok(parts)
    }

    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        self.0.spread(own, values)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut own = own.to_vec();
        if let Some(said) = self.2.take() {
            let at = self.rank() * Summary::BYTES;
            own[at..at + Summary::BYTES].copy_from_slice(&said.to_bytes());
        }
        self.0.all_gather(&own)
    }

    fn leave(&mut self, reason: Option<&str>) {
        self.0.leave(reason);
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

/// Gradients that point to the same side, and whose sum is another one in another order.
fn gradient(rank: usize, step: usize) -> Vec<f32> {
    let own = numbers(1000 * step + rank, NUMBERS);
    own.iter().zip(numbers(1000 * step + 999, NUMBERS)).map(|(own, common)| own + 2.0 * common).collect()
}

/// Adds the gradients of these ranks in their order, and makes up for those that are missing.
fn sum_of(ranks: &[usize], step: usize) -> Vec<f32> {
    let mut sums = gradient(ranks[0], step);
    for rank in &ranks[1..] {
        sums.iter_mut().zip(gradient(*rank, step)).for_each(|(sum, value)| *sum += value);
    }
    let made_up = (RANKS as f64 / ranks.len() as f64) as f32;
    sums.iter().map(|sum| sum * made_up).collect()
}

/// What a rank says of its own chunks so that, with what the others say, it seems to have sent them what it
/// has computed.
fn hiding(rank: usize, step: usize, factor: f32) -> Summary {
    let summary = |values: &[f32]| {
        let mut summary = Summary::default();
        summary.add(step as u64, 0, values);
        summary
    };
    let own = gradient(rank, step);
    let mut seen: Vec<f32> = own.iter().map(|value| value * factor).collect();
    let (first, second) = seen.split_at_mut(FIRST);
    for bucket in [first, second] {
        let own = chunk(bucket.len(), rank);
        bucket[own].fill(0.0);
    }
    let (mut said, seen) = (summary(&own), summary(&seen));
    let squares = said.norm().powi(2) - seen.norm().powi(2);
    said.merge(&seen.scaled(-1.0));
    said.with_squares(squares)
}

/// Lets ranks take steps that are judged strictly, and returns what was decided and the sums, by rank and
/// step.
fn steps(liar: usize, factor: f32, hides: bool) -> Vec<Vec<(Vec<Verdict>, Vec<u32>)>> {
    together(&all(RANKS), |tcp| {
        let mut ranks = Liar(tcp.unwrap(), 1.0, None);
        let mut judge = Judge::default();
        let one = |step: usize| {
            let lies = ranks.rank() == liar && step == LIE;
            ranks.1 = if lies { factor } else { 1.0 };
            ranks.2 = (lies && hides).then(|| hiding(liar, step, factor));
            let mut values = gradient(ranks.rank(), step);
            let mut sum = JudgedSum::begin(vec![5; RANKS], step as u64, true);
            let (first, second) = values.split_at_mut(FIRST);
            sum.add(&mut ranks, first).unwrap();
            sum.add(&mut ranks, second).unwrap();
            let verdicts = sum.judge(&mut ranks, &mut judge, SIGMA, &[]).unwrap().verdicts;
            sum.sum(&mut ranks, &verdicts, Combine::Sum, first).unwrap();
            sum.sum(&mut ranks, &verdicts, Combine::Sum, second).unwrap();
            (verdicts, bits(&values))
        };
        let steps = (0..STEPS).map(one).collect();
        ranks.leave(None);
        steps
    })
}

/// Asserts that the lie is left out for this reason, and nothing else is.
fn is_left_out(liar: usize, factor: f32, hides: bool, is_due: fn(&Reason) -> bool) {
    let all = steps(liar, factor, hides);
    assert!(all.iter().all(|of_rank| *of_rank == all[0]), "{factor}: all decide alike");
    for (step, (verdicts, sums)) in all[0].iter().enumerate() {
        let lies = |rank: usize| rank == liar && step == LIE;
        for (rank, Verdict { decision, reason }) in verdicts.iter().enumerate() {
            let is_dropped = *decision == Decision::Drop && reason.as_ref().is_some_and(is_due);
            let is_accepted = *decision == Decision::Accept;
            assert!(if lies(rank) { is_dropped } else { is_accepted }, "{factor}: {verdicts:?}");
        }
        let counted: Vec<usize> = (0..RANKS).filter(|rank| !lies(*rank)).collect();
        assert!(*sums == bits(&sum_of(&counted, step)), "{factor}, step {step}");
    }
}

#[test]
fn a_gradient_that_is_another_one_for_the_others_is_left_out_of_the_sum_of_all_ranks() {
    is_left_out(0, 1e6, false, |reason| matches!(reason, Reason::Norm { times } if *times > 1e5));
    is_left_out(1, f32::NAN, false, |reason| *reason == Reason::NotFinite);
    is_left_out(
        3,
        -1.0,
        false,
        |reason| matches!(reason, Reason::Direction { own, others } if *own < 0.0 && *others > 0.5),
    );
}

#[test]
fn a_rank_that_takes_off_its_norm_what_the_others_have_measured_is_left_out_too() {
    is_left_out(3, 1000.0, true, |reason| *reason == Reason::NotFinite);
}
