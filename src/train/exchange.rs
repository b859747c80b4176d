//! The exchange of a step's gradients with the other ranks, while the rest of the backward pass goes on.
//!
//! Enters: what this rank says of its share, then its gradients, each as soon as it is final, in any order.
//! Leaves: the loss and the gradients of the whole step. A thread has the collective during the step. What it
//! does, and in which order, is the same on all ranks and depends on the model only: the ranks' words first,
//! then buckets of whole parameters in the order of the backward pass, then the losses. So no timing changes
//! a bit, and a rank that cannot finish the step says so in its word, after which none of them sends a
//! gradient. A rank says its losses when it has all sums, so who hears the losses of all knows that every
//! rank can take the step: in a swarm, all that are left take it, or none does. It must not know
//! micro-batches.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, scope};
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use sparktune_cluster::{Collective, Error as ClusterError, Lent};
use sparktune_model::{Gradients, OnFinal};

use crate::cuda::{given_back, lend};
use crate::elapsed::milliseconds;
use crate::error::TrainError;
use crate::majority::who_differs;
use crate::members::Computed;
use crate::ranks::{Summed, bucket_of, gather};
use crate::trained::{Trained, require_gradients};

/// What a rank says of its share of a step before the gradients are added.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The number that its launcher gave it.
    pub(crate) rank: usize,
    pub(crate) step: u64,
    /// The numbers of its gradients.
    pub(crate) numbers: usize,
    /// The bits of the gradient norm that it computed for the step before.
    pub(crate) last_norm: Option<u64>,
    /// Why it cannot finish the step.
    pub(crate) gives_up: Option<String>,
}

/// What the thread with the collective gets.
enum Letter {
    /// Gradients of the next bucket.
    Bucket(Bucket),
    /// What this rank has done, after the last bucket.
    Done(Done),
}

/// Gradients of whole parameters, in the order of the exchange.
enum Bucket {
    /// Their numbers, one after the other.
    Host(Vec<f32>),
    /// Where the device has them.
    Lent(Box<Lent>),
}

/// The gradient of one parameter.
enum Gradient {
    Host(Vec<f32>),
    Device(Box<Tensor<2>>),
}

/// What a rank says when it has computed its share.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Done {
    /// The places of its micro-batches and the bits of their losses.
    losses: Vec<(usize, u64)>,
    computed: Computed,
}

/// What the thread has done.
enum Carried {
    Step {
        /// What each rank has said.
        done: Vec<Done>,
        sums: Vec<Bucket>,
    },
    /// A rank cannot finish the step.
    GivenUp(String),
    /// This rank has failed in the middle of the step.
    Abandoned,
}

/// This rank's gradients on their way to the others.
pub(crate) struct Outbox {
    place_of: BTreeMap<String, usize>,
    /// The gradients that wait for the rest of their bucket, in the order of the exchange.
    arrived: Vec<Arrival>,
    buckets: Vec<Range<usize>>,
    sent: usize,
    letters: Sender<Letter>,
}

enum Arrival {
    Awaited,
    Here(Gradient),
    Sent,
}

impl Outbox {
    fn new(ordered: &[Trained], letters: Sender<Letter>) -> Self {
        let place_of = ordered.iter().enumerate().map(|(place, param)| (param.name().to_owned(), place));
        Self {
            place_of: place_of.collect(),
            arrived: ordered.iter().map(|_| Arrival::Awaited).collect(),
            buckets: buckets(ordered),
            sent: 0,
            letters,
        }
    }

    /// Takes the final gradient of a parameter, and sends every bucket that is now due and complete.
    ///
    /// # Panics
    /// When the parameter is not trained, or its gradient was final before.
    fn put(&mut self, name: &str, gradient: Gradient) {
        let arrival = &mut self.arrived[self.place_of[name]];
        assert!(matches!(arrival, Arrival::Awaited), "the gradient of {name} was final before");
        *arrival = Arrival::Here(gradient);
        while let Some(bucket) = self.buckets.get(self.sent) {
            let of_bucket = &mut self.arrived[bucket.clone()];
            if of_bucket.iter().any(|arrival| !matches!(arrival, Arrival::Here(_))) {
                break;
            }
            let (mut numbers, mut tensors) = (Vec::new(), Vec::new());
            for arrival in of_bucket {
                match std::mem::replace(arrival, Arrival::Sent) {
                    Arrival::Here(Gradient::Device(tensor)) => tensors.push(*tensor),
                    Arrival::Here(Gradient::Host(more)) if numbers.is_empty() => numbers = more,
                    Arrival::Here(Gradient::Host(more)) => numbers.extend(more),
                    Arrival::Awaited | Arrival::Sent => unreachable!("the bucket is complete"),
                }
            }
            let bucket = if tensors.is_empty() { Bucket::Host(numbers) } else { Bucket::Lent(lend(tensors)) };
            // If the thread has ended, it says why.
            let _ = self.letters.send(Letter::Bucket(bucket));
            self.sent += 1;
        }
    }

    fn awaits(&self, name: &str) -> bool {
        matches!(self.arrived[self.place_of[name]], Arrival::Awaited)
    }
}

/// Cuts the parameters into buckets of at least so many numbers, in the order of the exchange.
fn buckets(ordered: &[Trained]) -> Vec<Range<usize>> {
    let least = bucket_of(ordered.iter().map(Trained::count).sum());
    let (mut buckets, mut from, mut numbers) = (Vec::new(), 0, 0);
    for (place, param) in ordered.iter().enumerate() {
        numbers += param.count();
        if numbers >= least || place + 1 == ordered.len() {
            buckets.push(from..place + 1);
            (from, numbers) = (place + 1, 0);
        }
    }
    buckets
}

/// What a rank hands over in the last micro-batch of its share.
pub(crate) struct Handed {
    /// The gradients that were not handed out, or are missing because the rank has no micro-batch.
    pub(crate) rest: Gradients,
    /// The losses of its micro-batches, by their places in the step.
    pub(crate) losses: Vec<(usize, f64)>,
    /// Whether there is a loss, so that every parameter must have a gradient.
    pub(crate) has_terms: bool,
}

/// A step over all ranks, and what it took.
pub(crate) struct Exchanged {
    pub(crate) summed: Summed,
    /// How long the step has waited for the exchange, in milliseconds.
    pub(crate) waited_ms: f64,
    /// What each rank has computed; nothing if they could not finish the step.
    pub(crate) computed: Vec<Computed>,
}

/// Adds a step over all ranks. `ordered` are the trained parameters in the order of the exchange, the same on
/// all ranks. `compute` gets the function that takes final gradients, and is not called if this rank gives
/// up. This rank's share was begun at `began`.
///
/// # Errors
/// Those of `compute`; a rank is gone, or computed something else in the step before.
pub(crate) fn exchanged(
    collective: &mut (dyn Collective + 'static),
    ordered: &[Trained],
    share: Share,
    device: &Device,
    began: Instant,
    compute: impl FnOnce(OnFinal) -> Result<Handed, TrainError>,
) -> Result<Exchanged, TrainError> {
    let (gives_up, step) = (share.gives_up.is_some(), share.step + 1);
    // The engine is the same until the members change, which ends the step.
    let on_device = collective.takes_lent().then_some(device);
    scope(|scope| {
        // Everything that can send is dropped with this closure, also when it panics: the thread then ends.
        let (letters, received) = channel();
        let carry = move || carry(collective, share, &received);
        let thread = Builder::new().name("exchange".into()).spawn_scoped(scope, carry);
        let thread = thread.map_err(ClusterError::Thread)?;
        let computed =
            if gives_up { Ok(()) } else { send_step(ordered, step, letters, on_device, began, compute) };
        let waits = Instant::now();
        let carried = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        let waited_ms = milliseconds(waits);
        computed?;
        let mut computed = Vec::new();
        let summed = match carried? {
            Carried::Step { done, sums } => {
                computed = done.iter().map(|done| done.computed).collect();
                let losses = done.into_iter().flat_map(|done| done.losses).collect();
                Summed::Step(total(losses), tensors(ordered, sums, device))
            }
            Carried::GivenUp(why) => Summed::GivenUp(why),
            Carried::Abandoned => unreachable!("what was computed has been sent"),
        };
        Ok(Exchanged { summed, waited_ms, computed })
    })
}

/// Sends the gradients of this rank as they become final, then the others and the losses. They stay on a
/// device whose memory the collective sums in.
fn send_step(
    ordered: &[Trained],
    step: u64,
    letters: Sender<Letter>,
    on_device: Option<&Device>,
    began: Instant,
    compute: impl FnOnce(OnFinal) -> Result<Handed, TrainError>,
) -> Result<(), TrainError> {
    let outbox = Arc::new(Mutex::new(Outbox::new(ordered, letters.clone())));
    let to_outbox = Arc::clone(&outbox);
    let stays = on_device.is_some();
    let on_final: OnFinal = Arc::new(move |name: &str, gradient: Tensor<2>| {
        // The numbers are read on this thread, because another one has another queue on a device.
        let gradient =
            if stays { Gradient::Device(Box::new(gradient)) } else { Gradient::Host(numbers(gradient)) };
        to_outbox.lock().unwrap_or_else(PoisonError::into_inner).put(name, gradient);
    });
    let Handed { mut rest, losses, has_terms } = compute(on_final)?;
    let mut outbox = outbox.lock().unwrap_or_else(PoisonError::into_inner);
    let awaited: Vec<&Trained> = ordered.iter().filter(|param| outbox.awaits(param.name())).collect();
    if has_terms {
        require_gradients(awaited.iter().copied(), step, |name| rest.get(name).is_some())?;
    }
    for param in awaited {
        let gradient = match on_device {
            Some(device) => Gradient::Device(Box::new(param.take(&mut rest, device))),
            None => {
                let numbers = rest.take(param.name()).map(numbers);
                Gradient::Host(numbers.unwrap_or_else(|| vec![0.0; param.count()]))
            }
        };
        outbox.put(param.name(), gradient);
    }
    let computed = Computed::new(losses.len(), began.elapsed());
    let losses = losses.into_iter().map(|(place, loss)| (place, loss.to_bits())).collect();
    let _ = letters.send(Letter::Done(Done { losses, computed }));
    Ok(())
}

fn numbers(gradient: Tensor<2>) -> Vec<f32> {
    gradient.into_data().try_into_vec_as::<f32>().expect("gradients are floats")
}

/// What the thread does with the collective: the same operations in the same order on all ranks.
fn carry(
    collective: &mut (dyn Collective + 'static),
    share: Share,
    letters: &Receiver<Letter>,
) -> Result<Carried, TrainError> {
    if let Some(why) = agreed(&gather(collective, &share)?)? {
        return Ok(Carried::GivenUp(why));
    }
    let mut sums = Vec::new();
    for letter in letters {
        match letter {
            Letter::Bucket(mut bucket) => {
                match &mut bucket {
                    Bucket::Host(numbers) => collective.all_reduce(numbers)?,
                    Bucket::Lent(lent) => collective.all_reduce_lent(&mut **lent)?,
                }
                sums.push(bucket);
            }
            Letter::Done(own) => {
                // Who says this has all sums, so the step is complete on all ranks or on none.
                let done = gather(collective, &own)?;
                return Ok(Carried::Step { done, sums });
            }
        }
    }
    Ok(Carried::Abandoned)
}

/// Adds the losses in the order of micro-batches.
fn total(mut losses: Vec<(usize, u64)>) -> f64 {
    losses.sort_unstable();
    losses.into_iter().map(|(_, bits)| f64::from_bits(bits)).sum()
}

/// Returns the sums as tensors on the device.
fn tensors(ordered: &[Trained], sums: Vec<Bucket>, device: &Device) -> Gradients {
    let mut gradients = Gradients::default();
    for (bucket, sums) in buckets(ordered).into_iter().zip(sums) {
        let of_bucket = &ordered[bucket];
        let numbers = match sums {
            Bucket::Host(numbers) => numbers,
            Bucket::Lent(lent) => {
                let sums = of_bucket.iter().zip(given_back(lent));
                sums.for_each(|(param, sum)| gradients.put(param.name().to_owned(), sum));
                continue;
            }
        };
        let mut rest = numbers.as_slice();
        for param in of_bucket {
            let (numbers, others) = rest.split_at(param.count());
            param.put(&mut gradients, numbers, device);
            rest = others;
        }
    }
    gradients
}

/// Compares what the ranks say about the step and the one before, so that ranks that compute different bits
/// stop at once and not with different weights. Returns the reason of the smallest rank that gives up, if one
/// does.
///
/// # Errors
/// They compute different steps.
pub(crate) fn agreed(shares: &[Share]) -> Result<Option<String>, TrainError> {
    let given_up = shares.iter().find_map(|share| {
        let why = share.gives_up.as_ref()?;
        Some(format!("rank {}: {why}", share.rank))
    });
    if given_up.is_some() {
        return Ok(given_up);
    }
    let differ = |what: &str, who: String| Err(TrainError::RanksDiffer { what: format!("{what}: {who}") });
    let of = |value: fn(&Share) -> u64| {
        let values: Vec<(usize, u64)> = shares.iter().map(|share| (share.rank, value(share))).collect();
        who_differs(&values)
    };
    if let Some(who) = of(|share| share.step) {
        return differ("they are at different steps", who);
    }
    if let Some(who) = of(|share| share.numbers as u64) {
        return differ("they train different numbers of weights", who);
    }
    let norms: Vec<_> = shares.iter().map(|share| (share.rank, share.last_norm)).collect();
    if let Some(who) = who_differs(&norms) {
        let step = shares[0].step.saturating_sub(1);
        return differ(
            &format!("after the same sums, the gradients of step {step} had different norms"),
            who,
        );
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> Share {
        Share { rank: 0, step: 4, numbers: 10, last_norm: Some(3), gives_up: None }
    }

    #[test]
    fn ranks_that_differ_are_named_with_what_differs() {
        let [first, second] = [share(), Share { rank: 1, ..share() }];
        assert!(agreed(&[first.clone(), second.clone()]).unwrap().is_none());
        for (other, word) in [
            (Share { step: 5, ..share() }, "at different steps"),
            (Share { numbers: 11, ..share() }, "different numbers of weights"),
            (Share { last_norm: Some(4), ..share() }, "of step 3 had different norms"),
            (Share { last_norm: None, ..share() }, "different norms"),
        ] {
            let other = Share { rank: 7, ..other };
            let said = agreed(&[first.clone(), second.clone(), other]).unwrap_err().to_string();
            assert!(said.contains("rank 7 differs") && said.contains(word), "{said}");
        }
    }

    /// One rank that says when it sums a bucket.
    struct Watched {
        summed: Sender<usize>,
        takes_lent: bool,
    }

    impl Collective for Watched {
        fn rank(&self) -> usize {
            0
        }
        fn world_size(&self) -> usize {
            1
        }
        fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), ClusterError> {
            let _ = self.summed.send(values.len());
            Ok(())
        }
        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, ClusterError> {
            Ok(vec![own.to_vec()])
        }
        fn leave(&mut self, _: Option<&str>) {}
        fn traffic(&self) -> sparktune_cluster::Traffic {
            sparktune_cluster::Traffic::default()
        }
        fn takes_lent(&self) -> bool {
            self.takes_lent
        }
        fn all_reduce_lent(&mut self, lent: &mut Lent) -> Result<(), ClusterError> {
            #[cfg(feature = "cuda")]
            let lent = lent.downcast_ref::<sparktune_kernels::nccl::Lent>().map(|lent| lent.count());
            #[cfg(not(feature = "cuda"))]
            let lent = lent.downcast_ref::<()>().map(|()| 0);
            let _ = self.summed.send(lent.unwrap());
            Ok(())
        }
    }

    /// Computes the gradients of two buckets, of which the second one is only computed when the first one is
    /// being summed.
    fn sums_while_it_computes(device: &Device, takes_lent: bool) {
        let least = bucket_of(0);
        let ordered = ["above", "below"].map(|name| Trained::with_shape(name, [1, least]));
        let (summed, sums) = channel();
        let mut ranks = Watched { summed, takes_lent };
        let gradient = |value: f32| Tensor::<2>::full([1, least], value, device);
        let compute = |on_final: OnFinal| {
            on_final("above", gradient(1.0));
            let first = sums.recv_timeout(std::time::Duration::from_secs(60));
            assert_eq!(first, Ok(least), "the pass is not over, and the first bucket is on its way");
            assert!(sums.try_recv().is_err());
            on_final("below", gradient(2.0));
            Ok(Handed { rest: Gradients::default(), losses: vec![(0, 0.5)], has_terms: true })
        };
        let share = Share { numbers: 2 * least, ..share() };
        let done = exchanged(&mut ranks, &ordered, share, device, Instant::now(), compute).unwrap();
        let Summed::Step(loss, gradients) = done.summed else { panic!("nobody gives up") };
        assert_eq!(loss, 0.5);
        for (name, value) in [("above", 1.0), ("below", 2.0)] {
            assert_eq!(numbers(gradients.get(name).unwrap().clone()), vec![value; least]);
        }
    }

    #[test]
    fn a_bucket_is_summed_while_the_rest_of_the_backward_pass_is_computed() {
        sums_while_it_computes(&Device::flex(), false);
    }

    #[cfg(feature = "cuda")]
    mod on_device {
        use super::*;

        #[test]
        fn a_bucket_that_stays_on_the_device_is_summed_while_the_rest_is_computed() {
            let Some(device) = sparktune_kernels::testing::cuda_device() else { return };
            sums_while_it_computes(&device, true);
        }
    }

    #[test]
    fn buckets_leave_in_one_order_whatever_order_the_gradients_become_final_in() {
        let least = bucket_of(0);
        let trained = |name: &str, count: usize| Trained::with_shape(name, [1, count]);
        let ordered =
            [("c", least - 1), ("a", 1), ("d", 2 * least), ("b", 5)].map(|(name, n)| trained(name, n));
        assert_eq!(buckets(&ordered), [0..2, 2..3, 3..4]);
        let mut seen = Vec::new();
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let (letters, received) = channel();
            let mut outbox = Outbox::new(&ordered, letters);
            let mut after_each = Vec::new();
            for place in order {
                let numbers = (0..ordered[place].count()).map(|i| (place * least + i) as f32).collect();
                assert!(outbox.awaits(ordered[place].name()));
                outbox.put(ordered[place].name(), Gradient::Host(numbers));
                after_each.push(outbox.sent);
            }
            drop(outbox);
            let all: Vec<Vec<f32>> = received
                .into_iter()
                .map(|letter| match letter {
                    Letter::Bucket(Bucket::Host(numbers)) => numbers,
                    _ => panic!("nothing is lent, and nobody is done"),
                })
                .collect();
            seen.push((all, after_each));
        }
        assert!(seen.iter().all(|(all, _)| *all == seen[0].0), "the same letters");
        assert_eq!(seen[0].1, [0, 1, 2, 3], "a bucket leaves before the rest is known");
        assert_eq!(seen[1].1, [0, 0, 0, 3]);
        let sums = seen.swap_remove(0).0.into_iter().map(Bucket::Host).collect();
        let gradients = tensors(&ordered, sums, &Device::flex());
        for (place, param) in ordered.iter().enumerate() {
            let numbers = numbers(gradients.get(param.name()).unwrap().clone());
            assert_eq!((numbers.len(), numbers[0]), (param.count(), (place * least) as f32));
        }
    }
}
