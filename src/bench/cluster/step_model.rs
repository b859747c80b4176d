//! How long a step would take with 2 to 64 ranks over links of 10, 100 and 200 Gb/s, and whether sums that
//! were measured here agree with the part of the model that this machine can check.
//!
//! Enters: the work of steps as `step_work` counts it for GB10, and measured sums. Leaves: rows, marked as
//! estimates. The model: the micro-batches of a step are dealt to the ranks; each rank sends, and receives,
//! 2 (W − 1) / W times its f32 gradients at the rate of its link or of one processor, whichever is slower;
//! once the first gradients are final, the rest of the backward pass of a rank's last micro-batch hides the
//! exchange, except for what is final last. Latencies are left out: there are two messages a bucket, and the
//! buckets of large gradients have 4 MB or more. `tests/peers/step_times.py` holds this against steps over
//! links of a known speed.

use sparktune_plan::cost::Work as Counted;
use sparktune_plan::products::{RANK, shapes};
use sparktune_plan::{MethodKind, ModelConfig, TargetModules};
use sparktune_train::step_work::{PROMISED_FOR, predictions, promised_for};

use crate::cluster::measured::{Measured, RANKS};
use crate::row::Row;

/// The micro-batches of a step, of one pack each.
const MICRO_BATCHES: usize = 64;
const WORLD_SIZES: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// Bits per second.
const LINKS: [(&str, f64); 3] = [("10 Gb/s", 10e9), ("100 Gb/s", 100e9), ("200 Gb/s", 200e9)];
/// The share of a link's bits that are gradients: TLS records in TCP segments in frames of 1,500 bytes.
const PAYLOAD: f64 = 0.94;

/// A step of a model on one rank.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    name: String,
    /// Forward and backward, in seconds.
    micro_batch: f64,
    /// The share of it that is the backward pass.
    backward: f64,
    /// The share of the backward pass that is over before any gradient is final: through the head, whose
    /// weights are the embedding's, and the highest layer.
    first: f64,
    /// The optimizer, which every rank runs whole, in seconds.
    update: f64,
    /// Numbers of the gradient.
    numbers: f64,
    /// The share of them that is final only when the backward pass is over.
    last: f64,
}

/// The time of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Time {
    seconds: f64,
    /// The part of it that waits for the exchange.
    waits: f64,
}

impl Step {
    /// Returns the time with so many ranks, which exchange so many bytes per second in each direction at
    /// once.
    fn with(&self, ranks: usize, bytes_per_s: f64) -> Time {
        let computes = MICRO_BATCHES.div_ceil(ranks) as f64 * self.micro_batch + self.update;
        let exchange = one_way(ranks) * self.numbers * 4.0 / bytes_per_s;
        let hidden = self.micro_batch * self.backward * (1.0 - self.first);
        let waits = (exchange - hidden).max(exchange * self.last);
        Time { seconds: computes + waits, waits }
    }
}

/// Returns how often a gradient leaves each of so many ranks, and arrives there.
fn one_way(ranks: usize) -> f64 {
    2.0 * (ranks - 1) as f64 / ranks as f64
}

/// The steps of the 2B whose speed is predicted, LoRA and full.
fn steps() -> Vec<Step> {
    let all = predictions();
    let seconds = |name: &str| {
        let step = all.iter().find(|step| step.name == name).expect("it is predicted");
        step.step.tokens_of_all() as f64 / step.tokens_per_s(promised_for())[1]
    };
    let shapes = shapes();
    let (_, config) = shapes.iter().find(|(size, _)| *size == "2B").expect("it is in the catalog");
    [MethodKind::Lora, MethodKind::Full]
        .into_iter()
        .map(|method| {
            let (one, sixteen) = (
                seconds(&format!("2B {method}")),
                seconds(&format!("2B {method}, 16 packs a step, 1 together")),
            );
            let update = (16.0 * one - sixteen) / 15.0;
            let (numbers, first, last) = gradients(config, method);
            // Without gradients of the base's weights, backward has as many products as forward.
            let backward = if method == MethodKind::Lora { 1.0 / 2.0 } else { 2.0 / 3.0 };
            let name = format!("2B {method}");
            Step { name, micro_batch: one - update, backward, first, update, numbers, last }
        })
        .collect()
}

/// Returns how many numbers a gradient has, which share of the backward pass is over before any of them is
/// final, and which share of them is final last: the lowest layer's, and where it is trained the embedding's,
/// which is also the head. All weights take equally long.
fn gradients(config: &ModelConfig, method: MethodKind) -> (f64, f64, f64) {
    let layers: Vec<_> = config.layer_kinds();
    let count = layers.iter().map(|(_, layers)| layers).sum::<usize>() as f64;
    let of_layers: f64 =
        layers.iter().map(|(layer, layers)| layer.parameters() as f64 * *layers as f64).sum();
    let embedding = (config.vocab_size * config.hidden_size) as f64;
    let weights = of_layers + embedding;
    let of_head_and_a_layer = (embedding + of_layers / count) / weights;
    match method {
        MethodKind::Lora => {
            let rank = u32::try_from(RANK).expect("a small rank");
            let numbers = Counted::from_config(config).adapter_parameters(rank, TargetModules::ALL);
            (numbers, of_head_and_a_layer, 1.0 / count)
        }
        MethodKind::Full => (weights, of_head_and_a_layer, of_head_and_a_layer),
    }
}

/// The estimates. `tcp` are exact sums of [`RANKS`] ranks, of which the processor time of a number follows.
pub(crate) fn estimates(tcp: &Measured) -> Vec<Row> {
    // What one processor moves at the time that TLS and adding take it.
    let processor = RANKS as f64 * one_way(RANKS) * 4.0 * 1e9 / tcp.cpu;
    let mut rows = Vec::new();
    for step in steps() {
        let alone = MICRO_BATCHES as f64 * step.micro_batch + step.update;
        for ranks in WORLD_SIZES {
            let over = |bits: f64| step.with(ranks, bits / 8.0 * PAYLOAD);
            let links: Vec<String> = LINKS
                .iter()
                .map(|(name, bits)| {
                    let time = over(*bits);
                    format!("{name} {:.1} s, waits {:.2}", time.seconds, time.waits)
                })
                .collect();
            let bound = step.with(ranks, processor);
            rows.push(Row::new(
                format!("estimate, {}, {ranks} ranks over 100 Gb/s: speed of one", step.name),
                alone / over(100e9).seconds,
                "×",
                format!(
                    "{MICRO_BATCHES} packs a step on {PROMISED_FOR}, by the step model: alone {alone:.1} s; {}. If one of this machine's processors carried it, {:.1} s",
                    links.join("; "),
                    bound.seconds
                ),
            ));
        }
    }
    rows
}

/// How long a sum takes here by the model, with more ranks than were measured first, beside what it took. The
/// ranks share so many processors.
pub(crate) fn checked(two: &Measured, more: &[(usize, Measured)], processors: usize) -> Vec<Row> {
    let row = |(ranks, measured): &(usize, Measured)| {
        let predicted = predicted_seconds(two.seconds, *ranks, processors);
        Row::new(
            format!("the model's sum of {ranks} ranks, for each second it took"),
            predicted / measured.seconds,
            "",
            format!(
                "predicted {:.0} ms from {RANKS} ranks on {processors} processors, measured {:.0} ms",
                predicted * 1e3,
                measured.seconds * 1e3
            ),
        )
    };
    more.iter().map(row).collect()
}

/// Returns the seconds of a sum of more ranks from those of [`RANKS`], if its processors are what it waits
/// for.
fn predicted_seconds(of_two: f64, ranks: usize, processors: usize) -> f64 {
    let work = |ranks: usize| ranks as f64 * one_way(ranks) / ranks.min(processors) as f64;
    of_two * work(ranks) / work(RANKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Step {
        let (name, numbers) = ("a".into(), 1e9);
        Step { name, micro_batch: 1.0, backward: 0.5, first: 0.2, update: 0.1, numbers, last: 0.25 }
    }

    #[test]
    fn the_backward_pass_hides_what_it_can_and_what_is_final_last_is_waited_for() {
        let all = MICRO_BATCHES as f64;
        // 4 × 10⁹ bytes each way.
        for (bytes_per_s, waits) in [(40e9, 0.025), (16e9, 0.0625), (4e9, 0.6), (1e9, 3.6)] {
            let time = step().with(2, bytes_per_s);
            assert!((time.waits - waits).abs() < 1e-9, "{time:?}");
            assert!((time.seconds - (all / 2.0 + 0.1 + waits)).abs() < 1e-9, "{time:?}");
        }
        // With 48 ranks, some have two micro-batches and the others wait.
        let time = step().with(48, f64::INFINITY);
        assert_eq!(time, Time { seconds: 2.1, waits: 0.0 });
    }

    #[test]
    fn the_steps_of_the_2b_are_those_of_the_step_model() {
        let [lora, full] = &steps()[..] else { panic!("two steps") };
        // 250 MB as bf16.
        assert!((100e6..160e6).contains(&lora.numbers), "{lora:?}");
        assert!((1.8e9..2.0e9).contains(&full.numbers), "{full:?}");
        assert!(
            lora.micro_batch > 0.0 && lora.update > 0.0 && full.update > lora.update,
            "{lora:?} {full:?}"
        );
        // The embedding is a quarter of the model, and its gradient is final last.
        assert!(lora.last < 0.05 && (0.2..0.4).contains(&full.last), "{lora:?} {full:?}");
        assert_eq!([lora.first, full.first], [full.last; 2]);
    }

    #[test]
    fn ranks_that_share_processors_take_turns() {
        // Twice the bytes of two ranks, on the same two processors.
        assert!((predicted_seconds(1.0, 3, 2) - 2.0).abs() < 1e-9);
        assert!((predicted_seconds(1.0, 4, 2) - 3.0).abs() < 1e-9);
        // With a processor each, only the bytes of a rank count.
        assert!((predicted_seconds(1.0, 4, 4) - 1.5).abs() < 1e-9);
    }
}
