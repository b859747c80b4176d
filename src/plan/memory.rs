//! Memory of training, by part, before anything is allocated.
//!
//! On the CPU everything is fp32. On a GPU weights and activations are bf16, and trained parameters have an
//! fp32 gradient, an fp32 master copy and two fp32 moments. Activations are the tensors that the fused ops
//! keep for their backward pass, times a slack; the head's logits exist for one chunk of rows only. A
//! checkpoint is written while the next steps run: [`copies_beside_checkpoint`]. The export comes after
//! training and needs neither its gradients nor its activations (`export_peak`).

use serde::{Deserialize, Serialize};
use sparktune_base::units::bytes;

use crate::architecture::{Activation, LayerSpec, LinearSpec, MixerSpec};
use crate::choices::{Device, MethodKind};
use crate::cost::{DELTA_CHUNK, Speed, Treatment, Work};
use crate::error::Shortage;
use crate::facts::{GpuMemory, MachineFacts, ModelFacts};
use crate::model_config::ModelConfig;
use crate::targets::TargetModules;

/// The most bytes that logits, their statistics and the gradients of a chunk of rows take on a GPU, with a
/// frozen head and with a trained one (`SCRATCH` and `SCRATCH_TRAINED` in
/// `kernels/linear_cross_entropy/slabs.rs`).
const CUDA_LOGITS: [f64; 2] = [480e6, 1456e6];

/// The most bytes that the vendor's library takes beside the matrices of a product, one product at a time
/// (`WORKSPACE_BYTES` in `kernels/cublaslt/sys.rs`).
const LIBRARY_WORKSPACE: u64 = 32 << 20;

/// The assumed overhead of allocators, temporaries of unfused ops and alignment on a GPU, as a factor on the
/// activations.
const SLACK: f64 = 1.25;
/// The same on the CPU, measured with a model of 142 million parameters: where a pack takes less than the
/// first of these times in seconds, and where it takes more than the second. The allocator of a trainer keeps
/// freed pages for ten seconds (`src/base/allocator.rs`), so quick packs find those of several ones before
/// them.
const CPU_SLACK: [(f64, f64); 2] = [(5.0, 1.9), (15.0, 1.1)];

/// The memory that a plan needs, by part, and the available memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights of the text model in the precision of the device.
    pub weights: u64,
    /// Adapters.
    pub adapters: u64,
    /// Gradients of the trained parameters, summed over the packs of a step, and those of one pack for the
    /// head's table.
    pub gradients: u64,
    /// Moments of AdamW and fp32 master weights. For adapters also the copies made while a checkpoint is
    /// written, and for several ranks those that they keep to average or to judge what they exchange.
    pub optimizer: u64,
    /// Tensors that the forward pass keeps for the backward pass, and the workspace of ops and of the
    /// vendor's library.
    pub activations: u64,
    /// Workspace of the head's loss: the logits of a chunk, and the gradients of its rows.
    pub logits_chunk: u64,
    /// Memory left for the program itself, the driver and the system.
    pub reserve: u64,
    /// The memory by which the export exceeds training; 0 where it needs less.
    #[serde(default)]
    pub export: u64,
    /// The memory that may be used.
    pub available_bytes: u64,
    /// The source of that figure.
    pub budget: String,
    /// The purpose of the reserve, and its calculation. Empty in plans written before this field existed.
    #[serde(default)]
    pub reserve_reason: String,
}

impl Memory {
    /// Returns the parts by name, in display order.
    pub fn parts(&self) -> [(&'static str, u64); 8] {
        [
            ("weights", self.weights),
            ("adapters", self.adapters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("logits chunk", self.logits_chunk),
            ("reserve", self.reserve),
            ("export", self.export),
        ]
    }

    /// Returns the sum of the parts.
    pub fn needed_bytes(&self) -> u64 {
        self.parts().iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Returns the memory of training and export themselves: all parts except the reserve. A measured peak is
    /// compared with this.
    pub fn training_bytes(&self) -> u64 {
        self.needed_bytes().saturating_sub(self.reserve)
    }

    /// Returns whether the parts fit into the available memory.
    pub fn fits(&self) -> bool {
        self.needed_bytes() <= self.available_bytes
    }

    /// Returns the memory left over in bytes, or 0 when the plan does not fit.
    pub fn spare_bytes(&self) -> u64 {
        self.available_bytes.saturating_sub(self.needed_bytes())
    }

    /// Counts an export of this peak, in bytes, after the training that the other parts describe.
    fn with_export(self, peak: f64) -> Self {
        let training = Self { export: 0, ..self };
        Self { export: whole(peak).saturating_sub(training.training_bytes()), ..training }
    }
}

impl From<&Memory> for Shortage {
    fn from(memory: &Memory) -> Self {
        let parts = memory.parts();
        let parts = parts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {}", bytes(*n)));
        Self {
            needed_bytes: memory.needed_bytes(),
            available_bytes: memory.available_bytes,
            budget: memory.budget.clone(),
            parts: parts.collect::<Vec<_>>().join(", "),
        }
    }
}

/// The settings that the memory depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Footprint {
    /// The device used for training.
    pub device: Device,
    /// Which parameters are trained.
    pub method: MethodKind,
    /// The rank of the adapters; 0 for full fine-tuning.
    pub rank: u32,
    /// The layers that have adapters.
    pub targets: TargetModules,
    /// Whether layers are computed again in the backward pass.
    pub recompute: bool,
    /// The number of tokens in a micro-batch: the longest pack times the packs of a micro-batch.
    pub tokens: f64,
    /// The number of chunks of the delta rule per token; see [`Lengths::chunks_per_token`]. It matters only
    /// on a GPU: the CPU holds the states of one example at a time and keeps nothing of a chunk.
    ///
    /// [`Lengths::chunks_per_token`]: crate::packing::Lengths::chunks_per_token
    pub chunks_per_token: f64,
    /// How many f32 copies of the trained parameters several ranks keep in the system's memory.
    pub host_copies: u32,
    /// Whether the vendor's library may compute matrix products.
    pub library: bool,
}

/// Rounds up to a number that TOML can represent.
fn whole(bytes: f64) -> u64 {
    (bytes.ceil() as u64).min(i64::MAX as u64 / 16)
}

/// The memory budget of a machine: the available memory, the reserve, and the source of the figures.
struct Budget {
    available: u64,
    reserve: u64,
    source: String,
    reason: &'static str,
}

const GB: u64 = 1_000_000_000;

/// Returns the reserve for the system in bytes, from its memory or the container's limit. `shared` means that
/// a GPU trains in the same memory.
///
/// The whole machine hangs when unified memory runs out, so a twelfth stays free, and CUDA itself takes about
/// 1 GB.
pub const fn system_reserve(mem_total_bytes: u64, shared: bool) -> u64 {
    if shared {
        GB.saturating_add(mem_total_bytes / 12)
    } else {
        (GB / 4).saturating_add(mem_total_bytes / 20)
    }
}

fn budget(machine: &MachineFacts, device: Device) -> Budget {
    let system = format!("available of {} system memory", bytes(machine.mem_total_bytes));
    match (device, machine.gpus.first().map(|gpu| gpu.memory)) {
        (Device::Cuda, Some(GpuMemory::Dedicated { total_bytes, free_bytes })) => Budget {
            available: free_bytes,
            reserve: GB.saturating_add(total_bytes / 33),
            source: format!("free of the GPU's {}", bytes(total_bytes)),
            reason: "1 GB and 3 % of the GPU's memory, for CUDA itself",
        },
        (Device::Cuda, _) => Budget {
            available: machine.mem_available_bytes,
            reserve: system_reserve(machine.mem_total_bytes, true),
            source: format!("{system}, unified"),
            reason: "1 GB for CUDA, and a twelfth of the memory to keep the machine responsive",
        },
        (Device::Cpu, _) => Budget {
            available: machine.mem_available_bytes,
            reserve: system_reserve(machine.mem_total_bytes, false),
            source: system,
            reason: "0.25 GB and 5 % of the memory, for the program and the system",
        },
    }
}

/// The bytes of a trained parameter in a checkpoint: it and its two moments in fp32.
pub(crate) const CHECKPOINT_BYTES: f64 = 12.0;

/// Returns whether an update during the writing of a checkpoint copies the checkpoint's tensors: weights and
/// moments. Adapters are small enough for this. With full fine-tuning there is no
/// memory for a second copy, so the update waits for the writer, and only the forward and backward pass
/// before it run meanwhile.
pub const fn copies_beside_checkpoint(method: MethodKind) -> bool {
    matches!(method, MethodKind::Lora)
}

/// Returns the workspace of the head's loss in bytes, for `tokens` rows with a target, as defined by the
/// kernels of `linear_cross_entropy`.
fn head(footprint: &Footprint, config: &ModelConfig) -> f64 {
    let (vocabulary, hidden, tokens) =
        (config.vocab_size as f64, config.hidden_size as f64, footprint.tokens);
    match (footprint.device, footprint.method) {
        // Tiles of exponentials; the rows, their gradients, and the gradients in token order.
        (Device::Cpu, MethodKind::Lora) => f64::from(2 << 20) + 12.0 * tokens * hidden,
        (Device::Cpu, MethodKind::Full) => f64::from(56 << 20) + 12.0 * tokens * hidden,
        // Logits in bf16 with 8 bytes of statistics for every 64, the rows in bf16 and their gradients, and
        // the gradients in token order.
        (Device::Cuda, method) => {
            let most = CUDA_LOGITS[usize::from(method == MethodKind::Full)];
            (tokens * (2.125 * vocabulary + 6.0 * hidden)).min(most) + 2.0 * tokens * hidden
        }
    }
}

/// Returns the number of values per token that a layer keeps for its backward pass, including the adapters'
/// inner vectors, which a GPU pads. The CPU computes `silu(gate) ⊙ up` again (`kernels/gated_mlp`); a GPU
/// keeps two matrices of 64 × 64 values for each head and chunk of the delta rule (`ChunkMatrices` in
/// `kernels/gated_delta_rule/cuda.rs`).
fn kept_per_token(layer: &LayerSpec, footprint: &Footprint) -> f64 {
    let rank = if footprint.device == Device::Cuda { padded(footprint.rank) } else { footprint.rank };
    let is_adapted = |linear: &LinearSpec| footprint.targets.contains(linear.name());
    let kept = layer.kept_with_adapters(rank as usize, is_adapted) as f64;
    match (footprint.device, &layer.mixer) {
        (Device::Cpu, _) if layer.activation == Activation::Silu => kept - layer.intermediate_size as f64,
        (Device::Cuda, MixerSpec::GatedDeltaNet(delta)) => {
            let of_chunk = 2.0 * f64::from(DELTA_CHUNK.pow(2)) * delta.num_value_heads as f64;
            kept + of_chunk * footprint.chunks_per_token
        }
        _ => kept,
    }
}

/// Returns the rank to which the matrices of adapters are padded on a GPU (`kernels/lora_linear`).
const fn padded(rank: u32) -> u32 {
    rank.next_multiple_of(8)
}

fn library_workspace(footprint: &Footprint) -> u64 {
    if footprint.library { LIBRARY_WORKSPACE } else { 0 }
}

/// Returns the bytes of a value in computations, and of the fp32 master copy of a trained one.
const fn widths(device: Device) -> (f64, f64) {
    match device {
        Device::Cpu => (4.0, 0.0),
        Device::Cuda => (2.0, 4.0),
    }
}

fn trained_parameters(model: &ModelFacts, work: &Work, footprint: &Footprint) -> f64 {
    match footprint.method {
        MethodKind::Lora => work.adapter_parameters(footprint.rank, footprint.targets),
        MethodKind::Full => model.text_parameters() as f64,
    }
}

/// Returns the peak of the export in bytes.
///
/// The model stays as it was trained, with the MTP head before and after its training. Beside it there is one
/// layer of the written model at a time, its output head, or a tensor that is being written.
fn export_peak(model: &ModelFacts, work: &Work, machine: &MachineFacts, footprint: &Footprint) -> f64 {
    let config = &model.config;
    let (width, master) = widths(footprint.device);
    let heads = model.mtp_parameters() as f64 * (2.0 * width + master);
    let layer = config.layer_kinds().iter().map(|(layer, _)| layer.parameters()).max().unwrap_or(0);
    let largest = layer.max((config.vocab_size * config.hidden_size) as u64) as f64;
    // A value is in memory as it is stored and as f32, and then as f32 and in the precision of the device.
    let host = match footprint.device {
        Device::Cpu => 8.0,
        Device::Cuda => 6.0,
    };
    let each = match machine.gpus.first().map(|gpu| gpu.memory) {
        // What happens on the host does not count.
        Some(GpuMemory::Dedicated { .. }) if footprint.device == Device::Cuda => width,
        _ => host,
    };
    model.text_parameters() as f64 * width
        + work.adapter_parameters(footprint.rank, footprint.targets) * width
        + trained_parameters(model, work, footprint) * master
        + heads
        + largest * each
}

/// Returns the factor on the activations. On the CPU it falls while packs become longer, but more slowly than
/// the activations grow, so that longer packs always need more.
fn slack(work: &Work, machine: &MachineFacts, hidden_size: usize, footprint: &Footprint) -> f64 {
    if footprint.device == Device::Cuda {
        return SLACK;
    }
    let treatment = Treatment {
        method: footprint.method,
        rank: footprint.rank,
        targets: footprint.targets,
        recompute: footprint.recompute,
        target_share: 1.0,
        // Without data it is unknown how long the examples of a pack are; this one adds little to its time.
        context: 0.0,
    };
    let speed = Speed::from_cpu(machine, hidden_size);
    let pack_s = footprint.tokens * work.training_flops(&treatment) / speed.flops_per_s;
    let [(quick, most), (slow, least)] = CPU_SLACK;
    let share = ((pack_s - quick) / (slow - quick)).clamp(0.0, 1.0);
    most + share * (least - most)
}

/// Estimates the memory of training and of the export after it.
pub fn estimate(model: &ModelFacts, work: &Work, machine: &MachineFacts, footprint: &Footprint) -> Memory {
    let config = &model.config;
    let (width, master) = widths(footprint.device);
    let parameters = model.text_parameters() as f64;
    let adapters = work.adapter_parameters(footprint.rank, footprint.targets);
    let trained = trained_parameters(model, work, footprint);

    let kept = |layer: &LayerSpec| kept_per_token(layer, footprint) * width;
    let widest = config.layers.iter().map(kept).fold(0.0, f64::max);
    let all: f64 = config.layers.iter().map(kept).sum();
    let inputs = config.layers.len() as f64 * config.hidden_size as f64 * width;
    // The backward pass of the delta rule holds the states of one layer, one per chunk: in fp32, or on a GPU
    // in bf16 together with their gradients.
    let chunks_per_token = match footprint.device {
        Device::Cpu => 1.0 / f64::from(DELTA_CHUNK),
        Device::Cuda => footprint.chunks_per_token,
    };
    let states = |layer: &LayerSpec| match &layer.mixer {
        MixerSpec::Attention(_) => 0.0,
        MixerSpec::GatedDeltaNet(delta) => {
            let state = (delta.num_value_heads * delta.key_head_dim) as f64 * delta.value_head_dim as f64;
            state * 4.0 * chunks_per_token
        }
    };
    let states = config.layers.iter().map(states).fold(0.0, f64::max);
    // The workspace holds the gradients of one layer's activations.
    let per_token = if footprint.recompute { inputs + widest } else { all } + widest + states;
    let activations = per_token * footprint.tokens * slack(work, machine, config.hidden_size, footprint);

    // The head's gradient is computed in the forward pass, in addition to the sum over earlier packs. On the
    // CPU the sum of an embedding that is not the head takes almost no memory, because pages of zeros that no
    // token of a step has touched are not allocated.
    let table = match (footprint.method, footprint.device) {
        (MethodKind::Lora, _) => 0.0,
        (MethodKind::Full, Device::Cpu) if !config.tie_word_embeddings => 0.0,
        (MethodKind::Full, _) => config.vocab_size as f64 * config.hidden_size as f64 * 4.0,
    };
    // Gradients of adapters are added to the sum when all of a pack exist, which without recompute is at its
    // end, when the activations have been freed. Gradients of the model's own matrices are added one by one.
    let of_one_row = if footprint.recompute { 0.0 } else { adapters * 4.0 };
    let copies = if copies_beside_checkpoint(footprint.method) { CHECKPOINT_BYTES } else { 0.0 };
    // Where the GPU has memory of its own, the system's is not what is short.
    let is_dedicated =
        matches!(machine.gpus.first().map(|gpu| gpu.memory), Some(GpuMemory::Dedicated { .. }));
    let on_host = match footprint.device {
        Device::Cuda if is_dedicated => 0.0,
        _ => 4.0 * f64::from(footprint.host_copies),
    };

    // Padding the rank of adapters takes a copy of them.
    let is_padded = footprint.device == Device::Cuda && padded(footprint.rank) != footprint.rank;
    let adapter_copies = if is_padded { 2.0 } else { 1.0 };

    let budget = budget(machine, footprint.device);
    Memory {
        weights: whole(parameters * width),
        adapters: whole(adapters * width * adapter_copies),
        gradients: whole(trained * 4.0 + table),
        optimizer: whole(trained * (8.0 + master + copies + on_host)),
        activations: whole(activations.max(of_one_row)) + library_workspace(footprint),
        logits_chunk: whole(head(footprint, config)),
        reserve: budget.reserve.min(i64::MAX as u64 / 16),
        export: 0,
        available_bytes: budget.available.min(i64::MAX as u64),
        budget: budget.source,
        reserve_reason: budget.reason.to_owned(),
    }
    .with_export(export_peak(model, work, machine, footprint))
}

/// Estimates the memory of training the MTP head after a training with this footprint, in packs of the same
/// number of tokens.
///
/// The text model only runs forward and keeps nothing, so only the activations of one layer are kept and
/// differentiated, once for each of the `draft_tokens` that the head learns to draft.
pub fn estimate_head(
    model: &ModelFacts,
    work: &Work,
    machine: &MachineFacts,
    footprint: &Footprint,
    draft_tokens: u32,
) -> Memory {
    let config = &model.config;
    let (width, master) = widths(footprint.device);
    let head = model.mtp_parameters() as f64;
    let trained = trained_parameters(model, work, footprint);
    let own = config
        .mtp
        .as_ref()
        .map_or(0.0, |mtp| kept_per_token(&mtp.layer, &Footprint { rank: 0, ..*footprint }));
    let widest = config.layers.iter().map(|layer| kept_per_token(layer, footprint)).fold(own, f64::max);
    // Kept: hidden state and embedding of each pair, both normed, both joined, and the output of the
    // projection that joins them.
    let hidden = config.hidden_size as f64;
    let joined = 7.0 * hidden;
    // Of each further drafted token there is also the gradient of the loss by the head's output.
    let steps = f64::from(draft_tokens);
    let kept = steps * (joined + own) + (steps - 1.0) * hidden;
    let main = estimate(model, work, machine, footprint);
    Memory {
        // The base's head stays in memory with the trained one, because both are measured at the end.
        weights: main.weights + whole(2.0 * head * width),
        gradients: whole(head * 4.0),
        optimizer: whole(head * (8.0 + master) + trained * master),
        activations: whole(
            (kept + widest) * width * footprint.tokens * slack(work, machine, config.hidden_size, footprint),
        ) + library_workspace(footprint),
        ..main
    }
    .with_export(export_peak(model, work, machine, footprint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::facts::Gpu;

    fn spark() -> MachineFacts {
        MachineFacts {
            mem_total_bytes: 128_500_000_000,
            mem_available_bytes: 120_000_000_000,
            cores: 20,
            cpu_speed: None,
            gpus: vec![Gpu {
                name: "NVIDIA GB10".into(),
                memory: GpuMemory::Unified,
                compute_capability: Some((12, 1)),
            }],
            ..MachineFacts::default()
        }
    }

    fn full(id: &str, method: MethodKind, rank: u32) -> Memory {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find(id).unwrap());
        let targets = TargetModules::ALL;
        let footprint = Footprint {
            device: Device::Cuda,
            method,
            rank,
            targets,
            recompute: true,
            tokens: 5376.0,
            chunks_per_token: 1.0 / 64.0,
            host_copies: 0,
            library: false,
        };
        estimate(&model, &Work::from_config(&model.config), &spark(), &footprint)
    }

    #[test]
    fn full_fine_tuning_fits_a_spark_up_to_4b_and_adapters_fit_27b() {
        for id in ["Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-4B"] {
            assert!(full(id, MethodKind::Full, 0).fits(), "{id}");
        }
        assert!(!full("Qwen/Qwen3.5-9B", MethodKind::Full, 0).fits());
        assert!(!full("Qwen/Qwen3.5-27B", MethodKind::Full, 0).fits());
        assert!(full("Qwen/Qwen3.5-27B", MethodKind::Lora, 128).fits());
    }

    /// Once, the export loaded the written model beside the trained one: 117 GB for LoRA of 27B.
    #[test]
    fn the_export_needs_one_model_and_is_counted_where_it_needs_more_than_training() {
        let catalog = Catalog::shipped();
        for entry in &catalog.models {
            let model = catalog.model_facts(entry);
            let work = Work::from_config(&model.config);
            let lora = |rank, tokens| Footprint {
                device: Device::Cuda,
                method: MethodKind::Lora,
                rank,
                targets: TargetModules::ALL,
                recompute: true,
                tokens,
                chunks_per_token: 1.0 / 64.0,
                host_copies: 0,
                library: false,
            };
            if entry.id == "Qwen/Qwen3.5-27B" {
                let peak = export_peak(&model, &work, &spark(), &lora(128, 5376.0));
                assert!((64e9..78e9).contains(&peak), "{peak}");
            }
            // Hardly anything is needed to train on a few tokens: then the export decides.
            let few = estimate(&model, &work, &spark(), &lora(1, 1.0));
            assert!(few.export > 0, "{}", entry.id);
            let export = export_peak(&model, &work, &spark(), &lora(1, 1.0));
            assert_eq!(few.training_bytes(), whole(export), "{}", entry.id);
        }
        let trained = full("Qwen/Qwen3.5-27B", MethodKind::Lora, 128);
        assert!(trained.export == 0 && trained.fits(), "training needs more");
        assert_eq!(full("Qwen/Qwen3.5-4B", MethodKind::Full, 0).export, 0);
    }

    #[test]
    fn copies_for_other_ranks_count_where_they_share_the_memory() {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let work = Work::from_config(&model.config);
        let mut dedicated = spark();
        dedicated.gpus[0].memory = GpuMemory::Dedicated { total_bytes: 140 * GB, free_bytes: 140 * GB };
        for (device, machine, counts) in [
            (Device::Cuda, spark(), true),
            (Device::Cpu, dedicated.clone(), true),
            (Device::Cuda, dedicated, false),
        ] {
            let alone = of_32_tokens(device, MethodKind::Full, 0);
            let optimizer = |footprint: &Footprint| estimate(&model, &work, &machine, footprint).optimizer;
            let more = optimizer(&Footprint { host_copies: 3, ..alone }) - optimizer(&alone);
            assert_eq!(more, if counts { 12 * model.text_parameters() } else { 0 }, "{device:?}");
        }
    }

    #[test]
    fn on_a_gpu_with_memory_of_its_own_only_what_the_device_holds_counts() {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let work = Work::from_config(&model.config);
        let mut machine = spark();
        let footprint = Footprint {
            device: Device::Cuda,
            method: MethodKind::Lora,
            rank: 128,
            targets: TargetModules::ALL,
            recompute: false,
            tokens: 512.0,
            chunks_per_token: 1.0 / 64.0,
            host_copies: 0,
            library: false,
        };
        let unified = export_peak(&model, &work, &machine, &footprint);
        machine.gpus[0].memory =
            GpuMemory::Dedicated { total_bytes: 80_000_000_000, free_bytes: 79_000_000_000 };
        let dedicated = export_peak(&model, &work, &machine, &footprint);
        assert_eq!(unified - dedicated, 4.0 * (model.config.vocab_size * model.config.hidden_size) as f64);
    }

    #[test]
    fn old_plans_without_a_figure_for_the_export_can_still_be_read() {
        let memory = full("Qwen/Qwen3.5-2B", MethodKind::Lora, 128);
        let mut value = serde_json::to_value(&memory).unwrap();
        value.as_object_mut().unwrap().remove("export").unwrap();
        assert_eq!(serde_json::from_value::<Memory>(value).unwrap(), Memory { export: 0, ..memory });
    }

    #[test]
    fn the_head_of_2b_takes_what_its_kernels_say() {
        let (vocabulary, hidden, tokens) = (248_320, 2048, 5376);
        // 480 MB, and the gradient of the hidden states in bf16, instead of the 2 GB of 1024 rows of f32
        // logits.
        let lora = full("Qwen/Qwen3.5-2B", MethodKind::Lora, 128);
        assert_eq!(lora.logits_chunk, 480_000_000 + 2 * tokens * hidden);
        let whole = full("Qwen/Qwen3.5-2B", MethodKind::Full, 0);
        // A trained head has half of the rows at a time, for its gradient is read and written by each chunk.
        assert_eq!(whole.logits_chunk, 1_456_000_000 + 2 * tokens * hidden);
        // 1.88 billion parameters: f32 gradients, the table's once more, f32 masters and two moments.
        let catalog = Catalog::shipped();
        let parameters = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap()).text_parameters();
        let table = vocabulary * hidden * 4;
        assert_eq!(whole.gradients, parameters * 4 + table);
        assert_eq!(table, 2_034_237_440);
        assert_eq!(whole.optimizer, parameters * 12);
    }

    fn of_32_tokens(device: Device, method: MethodKind, rank: u32) -> Footprint {
        let targets = TargetModules::ALL;
        Footprint {
            device,
            method,
            rank,
            targets,
            recompute: false,
            tokens: 32.0,
            chunks_per_token: 1.0 / 64.0,
            host_copies: 0,
            library: false,
        }
    }

    /// Measured on the CPU with two packs in sequence and tables of 102 MB: at its peak the second takes 265
    /// MB in addition to the weights if the tables are tied, 262 MB if not.
    #[test]
    fn an_embedding_beside_the_head_has_a_sum_of_its_own_which_the_cpu_does_not_touch() {
        let of = |tied: bool, device: Device| {
            let config = format!(
                r#"{{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 40000,
                "tie_word_embeddings": {tied}, "rms_norm_eps": 1e-6, "max_position_embeddings": 512}}"#
            );
            let model = ModelFacts::from_config_json(&config).unwrap();
            let footprint = of_32_tokens(device, MethodKind::Full, 0);
            estimate(&model, &Work::from_config(&model.config), &spark(), &footprint).gradients
        };
        let table = 40_000 * 64 * 4;
        assert_eq!(of(false, Device::Cuda) - of(true, Device::Cuda), table);
        assert_eq!(of(false, Device::Cpu), of(true, Device::Cpu));
    }

    #[test]
    fn few_tokens_of_a_small_vocabulary_need_no_more_than_their_logits() {
        let config = r#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "tie_word_embeddings": true,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 512}"#;
        let model = ModelFacts::from_config_json(config).unwrap();
        let of = |device, method, rank| {
            let footprint = of_32_tokens(device, method, rank);
            estimate(&model, &Work::from_config(&model.config), &spark(), &footprint)
        };
        let cuda = of(Device::Cuda, MethodKind::Full, 0);
        assert_eq!(cuda.logits_chunk, 32 * (2 * 512 + 512 / 8 + 6 * 64) + 32 * 64 * 2);
        assert_eq!(of(Device::Cpu, MethodKind::Full, 0).logits_chunk, (56 << 20) + 12 * 32 * 64);
        assert_eq!(of(Device::Cpu, MethodKind::Lora, 8).logits_chunk, (2 << 20) + 12 * 32 * 64);
    }

    #[test]
    fn an_update_beside_a_checkpoint_copies_adapters_and_never_all_weights() {
        let lora = full("Qwen/Qwen3.5-2B", MethodKind::Lora, 128);
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let adapters = Work::from_config(&model.config).adapter_parameters(128, TargetModules::ALL) as u64;
        assert_eq!(lora.optimizer, adapters * 24);
        assert_eq!(adapters * 12, 1_514_778_624, "the copies, beside masters and moments of the same size");
        assert_eq!(full("Qwen/Qwen3.5-2B", MethodKind::Full, 0).optimizer, model.text_parameters() * 12);
    }

    #[test]
    fn the_reserve_is_not_part_of_what_a_peak_is_held_against() {
        let memory = full("Qwen/Qwen3.5-2B", MethodKind::Lora, 128);
        assert!(memory.reserve > 0);
        assert_eq!(Memory { reserve: 0, ..memory.clone() }.needed_bytes(), memory.training_bytes());
    }

    #[test]
    fn the_reserve_of_unified_memory_is_kept_out_of_what_is_available_and_said() {
        let memory = full("Qwen/Qwen3.5-2B", MethodKind::Lora, 128);
        assert_eq!(memory.available_bytes, 120_000_000_000, "MemAvailable, not what the GPU says");
        assert_eq!(memory.reserve, 1_000_000_000 + 128_500_000_000 / 12);
        assert!(memory.needed_bytes() >= memory.reserve && memory.reserve_reason.contains("a twelfth"));
        let parts = memory.needed_bytes() - memory.reserve;
        let exactly = Memory { available_bytes: parts + memory.reserve, ..memory.clone() };
        let short = Memory { available_bytes: exactly.available_bytes - 1, ..memory };
        assert!(exactly.fits() && !short.fits());
        // In a container of 64 GB on the same machine, the limit is the available memory.
        assert!(system_reserve(64_000_000_000, true) < system_reserve(128_500_000_000, true));
    }

    #[test]
    fn the_heads_rows_may_be_far_longer_than_those_of_the_main_training() {
        let catalog = Catalog::shipped();
        for entry in &catalog.models {
            let model = catalog.model_facts(entry);
            let work = Work::from_config(&model.config);
            let footprint = Footprint {
                device: Device::Cuda,
                method: MethodKind::Lora,
                rank: 128,
                targets: TargetModules::ALL,
                recompute: false,
                tokens: 4096.0,
                chunks_per_token: 1.0 / 64.0,
                host_copies: 0,
                library: false,
            };
            let longer = Footprint { tokens: 8192.0, ..footprint };
            let main = estimate(&model, &work, &spark(), &footprint);
            let head = estimate_head(&model, &work, &spark(), &longer, 1);
            assert!(head.activations * 2 < main.activations, "{}", entry.id);
            // Each further drafted token keeps the activations of the head's layer once more.
            let drafting = |tokens| estimate_head(&model, &work, &spark(), &longer, tokens).activations;
            assert!(drafting(3) > drafting(2) && drafting(2) > head.activations, "{}", entry.id);
            assert!((drafting(3) - drafting(2)).abs_diff(drafting(2) - head.activations) <= 2);
            // Recompute in the text model makes no difference to the head, which keeps nothing of it.
            let again = Footprint { recompute: true, ..longer };
            assert_eq!(estimate_head(&model, &work, &spark(), &again, 1), head);
        }
    }

    #[test]
    fn the_librarys_workspace_is_in_the_memory_of_both_stages_and_nothing_else_changes() {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let work = Work::from_config(&model.config);
        for recompute in [false, true] {
            let own = Footprint {
                device: Device::Cuda,
                method: MethodKind::Lora,
                rank: 128,
                targets: TargetModules::ALL,
                recompute,
                tokens: 5376.0,
                chunks_per_token: 1.0 / 64.0,
                host_copies: 0,
                library: false,
            };
            let of = |footprint: &Footprint| {
                let main = estimate(&model, &work, &spark(), footprint);
                [main, estimate_head(&model, &work, &spark(), footprint, 3)]
            };
            for (without, with) in of(&own).into_iter().zip(of(&Footprint { library: true, ..own })) {
                assert_eq!(with.activations, without.activations + (32 << 20));
                let training = with.training_bytes() - with.export - (32 << 20);
                assert_eq!(training, without.training_bytes() - without.export);
                let same = Memory { activations: 0, export: 0, ..with };
                assert_eq!(same, Memory { activations: 0, export: 0, ..without });
            }
        }
    }

    #[test]
    fn recompute_keeps_far_fewer_activations_and_nothing_else_changes() {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let footprint = Footprint {
            device: Device::Cuda,
            method: MethodKind::Lora,
            rank: 128,
            targets: TargetModules::ALL,
            recompute: false,
            tokens: 5376.0,
            chunks_per_token: 1.0 / 64.0,
            host_copies: 0,
            library: false,
        };
        let work = Work::from_config(&model.config);
        let kept = estimate(&model, &work, &spark(), &footprint);
        let again = estimate(&model, &work, &spark(), &Footprint { recompute: true, ..footprint });
        assert!(again.activations * 5 < kept.activations, "{} {}", again.activations, kept.activations);
        assert_eq!(Memory { activations: 0, ..again }, Memory { activations: 0, ..kept });
    }

    #[test]
    fn short_examples_keep_more_chunks_on_a_gpu_and_a_padded_rank_needs_a_copy() {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let work = Work::from_config(&model.config);
        let of = |footprint: &Footprint| estimate(&model, &work, &spark(), footprint);
        let long = Footprint { tokens: 6400.0, ..of_32_tokens(Device::Cuda, MethodKind::Lora, 8) };
        // Examples of 20 tokens have 320 chunks instead of 100.
        let short = Footprint { chunks_per_token: 1.0 / 20.0, ..long };
        let (chunks, heads, layers) = (220.0, 16.0, 18.0);
        // Of each layer with a DeltaNet two bf16 matrices a head and chunk, of one of them the gradients, and
        // the states with theirs.
        let matrices = (layers + 1.0) * chunks * heads * 2.0 * 64.0 * 64.0 * 2.0;
        let states = chunks * heads * 128.0 * 128.0 * 4.0;
        let more = of(&short).activations - of(&long).activations;
        assert!((more as f64 / (SLACK * (matrices + states)) - 1.0).abs() < 1e-6, "{more}");
        let on_cpu = |footprint: Footprint| of(&Footprint { device: Device::Cpu, ..footprint });
        assert_eq!(on_cpu(short), on_cpu(long));

        let rank = |device, rank| of(&Footprint { device, rank, ..long });
        let [six, eight] = [6, 8].map(|r| rank(Device::Cuda, r));
        assert_eq!((six.activations, six.adapters), (eight.activations, eight.adapters * 2 * 6 / 8));
        assert_eq!(rank(Device::Cpu, 6).adapters * 8, rank(Device::Cpu, 8).adapters * 6);
    }
}
