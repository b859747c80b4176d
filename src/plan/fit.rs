//! Chooses pack length and recompute together, by their cost in time and memory, and reports the closest
//! choice when nothing fits.

use serde::{Deserialize, Serialize};
use sparktune_base::choices::PackStrategy;

use crate::choices::{Device, MethodKind};
use crate::cost::{Speed, Treatment, Work};
use crate::facts::{DataFacts, MachineFacts, ModelFacts};
use crate::memory::{self, Footprint, Memory};
use crate::packing::{Lengths, Packs};
use crate::ranges::model_limit;
use crate::targets::TargetModules;

/// A pack length and its cost, a point of the wizard's chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostPoint {
    /// The pack length in tokens.
    pub pack_length: u32,
    /// Speed relative to the fastest point that fits (or to the fastest of all, when none fits); 1 is best.
    pub tokens_per_s_relative: f64,
    /// The share of the packs' length that stays empty.
    pub waste: f64,
    /// The number of packs in one epoch.
    pub rows: u64,
    /// The number of examples longer than the pack length, each of which gets a pack of its own.
    pub own_rows: u64,
    /// The needed memory in bytes.
    pub needed_bytes: u64,
    /// Whether layers are computed again in the backward pass.
    pub recompute: bool,
    /// Whether the memory suffices on this machine.
    pub fits: bool,
}

/// The constraints that a choice must meet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Constraints {
    pub method: MethodKind,
    pub rank: u32,
    /// The layers that have adapters.
    pub targets: TargetModules,
    /// The user's choice, or `None` if it is free.
    pub recompute: Option<bool>,
    /// The user's choice, or `None` if it is free.
    pub pack_length: Option<u32>,
    /// The choice of the user or of the plan, or `None` if it is free; memory is then counted for a single
    /// pack.
    pub micro_batch_packs: Option<u32>,
}

/// The chosen point of the curve, with all its figures.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub pack_length: u32,
    pub recompute: bool,
    pub packs: Packs,
    pub memory: Memory,
    /// The estimated duration of one epoch in seconds.
    pub epoch_s: f64,
    pub curve: Vec<CostPoint>,
}

/// The inputs that stay the same while settings are tried.
#[derive(Clone)]
pub(crate) struct Fit<'a> {
    pub model: &'a ModelFacts,
    pub machine: &'a MachineFacts,
    pub device: Device,
    pub work: Work,
    pub speed: Speed,
    pub strategy: PackStrategy,
    pub lengths: Lengths,
    /// The longest accepted example in tokens.
    pub longest: u32,
    /// The longest pack that the model supports, in tokens.
    pub limit: u32,
    /// The pack length by the recipe's rule.
    pub rule: u32,
    pub target_share: f64,
    /// How many f32 copies of the trained parameters several ranks keep in the system's memory.
    pub host_copies: u32,
    /// Whether the vendor's library may compute matrix products.
    pub library: bool,
}

/// The tolerance within which a shorter pack length is preferred over the fastest one, as a share of its
/// speed. Shorter packs need less memory and allow finer steps.
const CLOSE_ENOUGH: f64 = 0.02;

/// The numbers of packs per micro-batch that are considered, if the packs of a step are a multiple and memory
/// allows.
const MICRO_BATCHES: [u32; 2] = [4, 2];

/// The number of packs per optimizer step when packs have the length of the recipe's rule.
const PACKS_PER_STEP: f64 = 16.0;
/// The smallest number of optimizer steps in an epoch.
const LEAST_STEPS: u64 = 8;

/// The number of packs per optimizer step, and the limits that determine it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepPacks {
    /// The number of packs in an epoch that are trained on.
    pub of_epoch: u64,
    /// The number of packs that contain as many tokens as the batch that the learning rate is meant for.
    same_tokens: f64,
    /// The largest number of packs with which an epoch has enough steps.
    few: u64,
}

impl StepPacks {
    /// Returns the number of packs per step if the micro-batch is one pack.
    pub(crate) fn count(self) -> u64 {
        (self.same_tokens.round() as u64).min(self.few)
    }

    /// Returns whether a step is smaller than the batch that the learning rate is meant for.
    pub(crate) fn is_cut(self) -> bool {
        self.count() < self.same_tokens.round() as u64
    }

    /// Returns the number of packs per step with this many packs per micro-batch, or `None` if the batch
    /// would change by more than rounding or one pack in 16.
    pub(crate) fn count_in_micro_batches_of(self, packs: u32) -> Option<u64> {
        let packs = u64::from(packs);
        let nearest = (self.same_tokens / packs as f64).round() as u64 * packs;
        let off = (nearest as f64 - self.same_tokens).abs();
        let is_same = nearest > 0 && nearest <= self.few && off <= (self.same_tokens / 16.0).max(0.5);
        [is_same.then_some(nearest), Some(self.count())]
            .into_iter()
            .flatten()
            .find(|count| count.is_multiple_of(packs))
    }
}

/// The longest useful pack, unless examples are longer: beyond this, no machine of the catalog becomes
/// faster.
const LONGEST_USEFUL: u32 = 32_768;

pub(crate) fn up_to_128(tokens: u32) -> u32 {
    tokens.clamp(1, u32::MAX - 127).next_multiple_of(128)
}

/// Returns the pack length by the recipe's rule: the mean length rounded to a multiple of 128, at least 128.
pub(crate) fn recipe_pack_length(data: &DataFacts, limit: u32) -> u32 {
    let multiples = (data.mean() / 128.0).round().clamp(1.0, f64::from(u32::MAX / 128));
    ((multiples as u32) * 128).min(limit)
}

impl<'a> Fit<'a> {
    /// Creates the inputs for training this model on this data and device. `lengths` are those of `data`
    /// without examples that are too long.
    pub(crate) fn new(
        model: &'a ModelFacts,
        machine: &'a MachineFacts,
        data: &DataFacts,
        device: Device,
        strategy: PackStrategy,
        lengths: Lengths,
    ) -> Self {
        let limit = model_limit(model);
        let speed = match (device, machine.gpus.first()) {
            (Device::Cuda, Some(gpu)) => Speed::from_gpu(gpu),
            _ => Speed::from_cpu(machine, model.config.hidden_size),
        };
        Fit {
            model,
            machine,
            device,
            work: Work::from_config(&model.config),
            speed,
            strategy,
            lengths,
            longest: data.max.min(limit),
            limit,
            rule: recipe_pack_length(data, limit),
            target_share: data.target_share(),
            host_copies: 0,
            library: false,
        }
    }

    /// Returns the number of parameters that this method trains in the text model.
    pub(crate) fn trained_parameters(&self, method: MethodKind, rank: u32, targets: TargetModules) -> f64 {
        match method {
            MethodKind::Lora => self.work.adapter_parameters(rank, targets),
            MethodKind::Full => self.model.text_parameters() as f64,
        }
    }

    /// Returns the settings that the FLOPs per token depend on.
    pub(crate) fn treatment(&self, constraints: &Constraints, recompute: bool, packs: &Packs) -> Treatment {
        let Constraints { method, rank, targets, .. } = *constraints;
        Treatment {
            method,
            rank,
            targets,
            recompute,
            target_share: self.target_share,
            context: packs.context,
        }
    }

    /// Returns the FLOPs of training per token.
    pub(crate) fn flops_per_token(&self, constraints: &Constraints, choice: &Choice) -> f64 {
        self.work.training_flops(&self.treatment(constraints, choice.recompute, &choice.packs))
    }

    /// Estimates the memory with this pack length, in which the longest pack counts.
    pub(crate) fn memory(&self, constraints: &Constraints, pack_length: u32, recompute: bool) -> Memory {
        self.memory_of_pack(constraints, self.longest_pack(pack_length), recompute)
    }

    /// Estimates the memory when the longest pack has `pack` tokens.
    pub(crate) fn memory_of_pack(&self, constraints: &Constraints, pack: u32, recompute: bool) -> Memory {
        let tokens = f64::from(pack) * f64::from(constraints.micro_batch_packs.unwrap_or(1));
        let footprint = self.footprint(constraints, tokens, recompute);
        memory::estimate(self.model, &self.work, self.machine, &footprint)
    }

    /// Estimates the memory of the MTP head's stage with this pack length, one pack at a time.
    pub(crate) fn memory_of_head(
        &self,
        constraints: &Constraints,
        pack_length: u32,
        draft_tokens: u32,
    ) -> Memory {
        let footprint = self.footprint(constraints, f64::from(self.longest_pack(pack_length)), true);
        memory::estimate_head(self.model, &self.work, self.machine, &footprint, draft_tokens)
    }

    fn footprint(&self, constraints: &Constraints, tokens: f64, recompute: bool) -> Footprint {
        Footprint {
            device: self.device,
            method: constraints.method,
            rank: constraints.rank,
            targets: constraints.targets,
            recompute,
            tokens,
            chunks_per_token: self.lengths.chunks_per_token(),
            host_copies: self.host_copies,
            library: self.library,
        }
    }

    /// With `bfd`, this may be a pack that contains a single long example.
    fn longest_pack(&self, pack_length: u32) -> u32 {
        match self.strategy {
            PackStrategy::Bfd => pack_length.max(self.longest),
            PackStrategy::Stream => pack_length,
        }
    }

    /// Estimates the duration of one epoch in seconds: tokens, and the fixed cost of each pack.
    fn epoch_s(&self, constraints: &Constraints, recompute: bool, packs: &Packs) -> f64 {
        // What stays empty costs nothing: a pack is as long as its examples and is not padded.
        let flops = packs.tokens * self.work.training_flops(&self.treatment(constraints, recompute, packs));
        let passes = if recompute { 3.0 } else { 2.0 };
        let width = if self.device == Device::Cuda { 2.0 } else { 4.0 };
        // The gradient of the head is added to that of earlier packs in a separate pass; for other matrices
        // the addition happens where the gradient is computed.
        let table = match constraints.method {
            MethodKind::Lora => 0.0,
            MethodKind::Full => 12.0 * self.work.head_parameters,
        };
        let pack_s = passes / 2.0 * self.model.config.layers.len() as f64 * self.speed.seconds_per_layer
            + (passes * self.work.linear_parameters * width + table) / self.speed.bytes_per_s;
        // If it is free, the largest value is assumed, so that packs are not made longer for a saving that
        // larger micro-batches bring anyway.
        let most = if self.gains_from_more(constraints.method) { MICRO_BATCHES[0] } else { 1 };
        let micro_batch_packs = constraints.micro_batch_packs.unwrap_or(most).max(1);
        flops / self.speed.flops_per_s + packs.count / f64::from(micro_batch_packs) * pack_s
    }

    /// Returns the number of packs per optimizer step when `train_share` of the examples is trained on.
    pub(crate) fn step_packs(&self, packs: &Packs, train_share: f64) -> StepPacks {
        // A pack that splits no example holds at least one, although the number of packs is corrected for
        // lengths that are only known as a histogram.
        let most = match self.strategy {
            PackStrategy::Bfd => packs.count.min(self.lengths.examples()),
            PackStrategy::Stream => packs.count,
        };
        // The limit of 2^40 keeps steps writable in TOML for nonsensical reports.
        let of_epoch = (most * train_share).ceil().clamp(1.0, (1u64 << 40) as f64) as u64;
        let pack_tokens = (packs.tokens / packs.count.max(1.0)).max(1.0);
        let same_tokens = (PACKS_PER_STEP * f64::from(self.rule) / pack_tokens).clamp(1.0, 64.0);
        StepPacks { of_epoch, same_tokens, few: (of_epoch / LEAST_STEPS).max(1) }
    }

    /// Converts a choice with the memory of a single pack to one with this many packs per micro-batch. The
    /// caller checks whether it fits without recompute.
    pub(crate) fn with_micro_batch(
        &self,
        constraints: &Constraints,
        choice: Choice,
        micro_batch_packs: u32,
    ) -> Choice {
        let constraints = Constraints { micro_batch_packs: Some(micro_batch_packs), ..*constraints };
        let memory = self.memory(&constraints, choice.pack_length, choice.recompute);
        let mut curve = choice.curve;
        for point in curve.iter_mut().filter(|point| point.pack_length == choice.pack_length) {
            point.needed_bytes = memory.needed_bytes();
        }
        let epoch_s = self.epoch_s(&constraints, choice.recompute, &choice.packs);
        Choice { memory, epoch_s, curve, ..choice }
    }

    /// Returns whether larger micro-batches save time, which is true only for full fine-tuning on a GPU:
    /// there, more than the weights is read and written once per micro-batch.
    fn gains_from_more(&self, method: MethodKind) -> bool {
        method == MethodKind::Full && self.device == Device::Cuda
    }

    /// Returns the best number of packs per micro-batch, for a choice whose memory was counted for a single
    /// pack.
    pub(crate) fn largest_micro_batch(
        &self,
        constraints: &Constraints,
        choice: &Choice,
        step: StepPacks,
    ) -> u32 {
        if !self.gains_from_more(constraints.method) || choice.recompute {
            return 1;
        }
        let fits = |packs: u32| {
            let constraints = Constraints { micro_batch_packs: Some(packs), ..*constraints };
            step.count_in_micro_batches_of(packs).is_some()
                && self.memory(&constraints, choice.pack_length, false).fits()
        };
        MICRO_BATCHES.into_iter().find(|packs| fits(*packs)).unwrap_or(1)
    }

    /// Returns the shortest pack length that is chosen automatically, into which 99 % of the examples fit.
    fn shortest(&self) -> u32 {
        up_to_128(self.lengths.quantile(0.99)).min(self.limit)
    }

    fn candidates(&self) -> Vec<u32> {
        let shortest = self.shortest();
        // There are at least eight packs, one for each optimizer step of a small epoch.
        let tokens = self.lengths.pack(self.limit, PackStrategy::Stream).tokens;
        let eighth = (tokens / 8.0).min(f64::from(u32::MAX)) as u32;
        let longest = eighth.min(LONGEST_USEFUL).max(shortest).max(self.rule).min(self.limit);
        let mut lengths = vec![shortest, self.rule];
        let mut length = up_to_128(self.lengths.quantile(0.5) / 2);
        while length <= longest && lengths.len() < 64 {
            lengths.push(length.min(self.limit));
            length = up_to_128(length.saturating_add((length / 8).max(1)));
        }
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// Returns the memory with this pack length, and whether it uses recompute: as the user chose, otherwise
    /// only if nothing fits without it.
    fn memory_and_recompute(&self, constraints: &Constraints, pack_length: u32) -> (Memory, bool) {
        if let Some(recompute) = constraints.recompute {
            return (self.memory(constraints, pack_length, recompute), recompute);
        }
        let kept = self.memory(constraints, pack_length, false);
        if kept.fits() { (kept, false) } else { (self.memory(constraints, pack_length, true), true) }
    }

    fn tried(&self, constraints: &Constraints, pack_length: u32) -> Choice {
        let packs = self.lengths.pack(pack_length, self.strategy);
        let (memory, recompute) = self.memory_and_recompute(constraints, pack_length);
        Choice {
            pack_length,
            recompute,
            memory,
            epoch_s: self.epoch_s(constraints, recompute, &packs),
            packs,
            curve: Vec::new(),
        }
    }

    /// Chooses the pack length, or returns the memory of the setting that came closest to fitting.
    pub(crate) fn choose(&self, constraints: &Constraints) -> Result<Choice, Box<Memory>> {
        let mut candidates = self.candidates();
        if let Some(length) = constraints.pack_length
            && let Err(at) = candidates.binary_search(&length)
        {
            candidates.insert(at, length);
        }
        let shortest = self.shortest();
        let eligible = |length: u32| match (constraints.pack_length, self.strategy) {
            (Some(asked), _) => length == asked,
            (None, PackStrategy::Stream) => length <= self.rule,
            (None, PackStrategy::Bfd) => length >= shortest,
        };
        // Whether anything fits is known without packing, and the remedies try dozens of failing settings.
        let memories = candidates
            .iter()
            .filter(|length| eligible(**length))
            .map(|l| self.memory_and_recompute(constraints, *l).0);
        let memories: Vec<Memory> = memories.collect();
        if !memories.iter().any(Memory::fits) {
            let least = memories.into_iter().min_by_key(Memory::needed_bytes);
            return Err(Box::new(least.unwrap_or_else(|| self.memory(constraints, shortest, true))));
        }
        let tried: Vec<Choice> =
            candidates.into_iter().map(|length| self.tried(constraints, length)).collect();
        let fitting = || tried.iter().filter(|choice| eligible(choice.pack_length) && choice.memory.fits());
        let best = fitting().map(|choice| choice.epoch_s).fold(f64::INFINITY, f64::min);
        let chosen = match self.strategy {
            // This is the recipe's rule, or the next shorter length that fits.
            PackStrategy::Stream => fitting().next_back(),
            PackStrategy::Bfd => fitting().find(|choice| choice.epoch_s <= best * (1.0 + CLOSE_ENOUGH)),
        };
        let chosen = chosen.expect("one fits, as was just seen");
        Ok(Choice { curve: curve(&tried), ..chosen.clone() })
    }
}

fn curve(tried: &[Choice]) -> Vec<CostPoint> {
    let fastest = |only_fitting: bool| {
        tried
            .iter()
            .filter(|choice| !only_fitting || choice.memory.fits())
            .map(|choice| choice.epoch_s)
            .fold(f64::INFINITY, f64::min)
    };
    let best = Some(fastest(true)).filter(|s| s.is_finite()).unwrap_or_else(|| fastest(false));
    let count = |x: f64| (x.round() as u64).min(i64::MAX as u64);
    tried
        .iter()
        .map(|choice| CostPoint {
            pack_length: choice.pack_length,
            tokens_per_s_relative: if choice.epoch_s > 0.0 { best / choice.epoch_s } else { 1.0 },
            waste: choice.packs.waste,
            rows: count(choice.packs.count),
            own_rows: count(choice.packs.own_packs),
            needed_bytes: choice.memory.needed_bytes(),
            recompute: choice.recompute,
            fits: choice.memory.fits(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_pass_together_where_a_step_stays_the_batch_it_is() {
        let counts = |same_tokens: f64, few: u64| {
            let step = StepPacks { of_epoch: 1000, same_tokens, few };
            [
                step.count(),
                step.count_in_micro_batches_of(4).unwrap_or(0),
                step.count_in_micro_batches_of(2).unwrap_or(0),
            ]
        };
        assert_eq!(counts(16.4, 125), [16, 16, 16]);
        // A change of one pack in 17 keeps the batch the same, one in 5 does not.
        assert_eq!(counts(17.0, 125), [17, 16, 18]);
        assert_eq!(counts(18.0, 125), [18, 0, 18]);
        assert_eq!(counts(5.0, 125), [5, 0, 0]);
        assert_eq!(counts(1.0, 125), [1, 0, 0]);
        // Little data makes steps small, and they are then never made larger.
        assert_eq!(counts(16.4, 8), [8, 8, 8]);
        assert_eq!(counts(16.4, 7), [7, 0, 0]);
    }
}
