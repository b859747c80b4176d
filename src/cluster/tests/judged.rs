//! Ranks that sum over TCP and judge first, of which one lies: its gradient is left out, and all have the
//! same bits.

use sparktune_cluster::judged::JudgedSum;
use sparktune_cluster::sentry::{Combine, Decision, Judge, Reason, SIGMA, Verdict};
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
/// it has computed, and says so.
struct Liar(Tcp, f32);

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
        parts[rank] = values[count * rank / RANKS..count * (rank + 1) / RANKS].to_vec();
        Ok(parts)
    }

    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        self.0.spread(own, values)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.0.all_gather(own)
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

/// Lets ranks take steps that are judged strictly, and returns what was decided and the sums, by rank and
/// step.
fn steps(liar: usize, factor: f32) -> Vec<Vec<(Vec<Verdict>, Vec<u32>)>> {
    together(&all(RANKS), |tcp| {
        let mut ranks = Liar(tcp.unwrap(), 1.0);
        let mut judge = Judge::default();
        let one = |step: usize| {
            ranks.1 = if ranks.rank() == liar && step == LIE { factor } else { 1.0 };
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

#[test]
fn a_gradient_that_is_another_one_for_the_others_is_left_out_of_the_sum_of_all_ranks() {
    let lies: [(usize, f32, fn(&Reason) -> bool); 3] = [
        (0, 1e6, |reason| matches!(reason, Reason::Norm { times } if *times > 1e5)),
        (1, f32::NAN, |reason| *reason == Reason::NotFinite),
        (
            3,
            -1.0,
            |reason| matches!(reason, Reason::Direction { own, others } if *own < 0.0 && *others > 0.5),
        ),
    ];
    for (liar, factor, is_due) in lies {
        let all = steps(liar, factor);
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
}
