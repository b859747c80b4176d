//! The memory that a model takes while it decodes, before anything is loaded.

use sparktune_model::Checkpoint;
use sparktune_plan::ModelConfig;
use sparktune_plan::architecture::MixerSpec;

use crate::error::InferError;

/// Bytes of a number on the CPU that is no weight. On a device most have two, so that less is needed there.
const F32: u64 = 4;

/// The fewest tokens for which a model is loaded at all, if its context is not shorter.
const LEAST_TOKENS: usize = 1024;

/// The largest number of tokens that all answers have together, if there is no other limit. More would take
/// memory from other programs for long prompts that nobody writes by hand.
const MOST_TOKENS: usize = 65_536;

/// The memory that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Available bytes.
    pub available: u64,
    /// Bytes of them that stay free for the system.
    pub reserve: u64,
    /// What else uses the memory, in words that continue a sentence: `, beside the run NAME`. May be empty.
    pub beside: String,
}

/// The memory of a model, by part, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights of the text model and the MTP head, as bf16 if they are stored so, else as f32.
    pub weights: u64,
    /// Adapters on them.
    pub adapters: u64,
    /// Keys and values of one token.
    pub per_token: u64,
    /// States and windows of all answers at a time.
    pub sequences: u64,
    /// Activations of a piece of a prompt, and logits.
    pub working: u64,
    /// The number of tokens that all answers may have together.
    pub cache_tokens: usize,
    /// All of it.
    pub total: u64,
    /// The bytes that all of it may have.
    usable: u64,
    /// The fewest and the most tokens that answers have.
    tokens: [usize; 2],
}

impl MemoryPlan {
    /// Plans a model with adapters of so many bytes, with at most `sequences` answers at a time that draft
    /// `draft_tokens`, and pieces of prompts of `prefill` tokens.
    ///
    /// # Errors
    /// There is not enough memory for the weights and one answer.
    pub fn new(
        checkpoint: &Checkpoint,
        adapters: u64,
        sequences: usize,
        draft_tokens: usize,
        prefill: usize,
        room: &Room,
    ) -> Result<Self, InferError> {
        let config = checkpoint.config();
        let head = config.mtp.iter().filter(|_| draft_tokens > 0).flat_map(|mtp| mtp.tensors());
        let tensors = config.tensors().into_iter().chain(head);
        let weights: u64 = tensors.map(|tensor| checkpoint.loaded_bytes(&tensor)).sum();
        let per_token = per_token(config) * F32;
        let per_sequence = per_sequence(config) * (2 + draft_tokens as u64) * F32;
        let working = working(config, sequences * (1 + draft_tokens), prefill) * F32;

        let context = config.max_position_embeddings;
        let least_tokens = LEAST_TOKENS.min(context);
        let plan = Self {
            weights,
            adapters,
            per_token,
            sequences: per_sequence * sequences as u64,
            working,
            cache_tokens: 0,
            total: 0,
            usable: room.available.saturating_sub(room.reserve),
            tokens: [least_tokens, MOST_TOKENS.min(context.saturating_mul(sequences))],
        };
        plan.with_adapters(adapters).ok_or_else(|| InferError::NoRoom {
            weights: weights + adapters,
            working: working + plan.sequences + per_token * least_tokens as u64,
            least_tokens,
            available: room.available,
            reserve: room.reserve,
            beside: room.beside.clone(),
        })
    }

    /// Returns the most bytes that adapters may have beside answers of so many tokens.
    pub(crate) fn bytes_for_adapters(&self, tokens: usize) -> u64 {
        let tokens = tokens.max(self.tokens[0]) as u64;
        let others = self.weights + self.working + self.sequences + self.per_token * tokens;
        self.usable.saturating_sub(others)
    }

    /// Returns the plan with adapters of so many bytes: where memory is short, answers get fewer tokens.
    /// `None` if too few are left.
    pub(crate) fn with_adapters(self, adapters: u64) -> Option<Self> {
        let fixed = self.weights + adapters + self.working + self.sequences;
        let left = self.usable.checked_sub(fixed)?;
        let fitting = usize::try_from(left / self.per_token.max(1)).unwrap_or(usize::MAX);
        let [least, most] = self.tokens;
        let cache_tokens = Some(fitting).filter(|fitting| *fitting >= least)?.min(most);
        Some(Self { adapters, cache_tokens, total: fixed + self.per_token * cache_tokens as u64, ..self })
    }
}

/// Returns the numbers that a token adds to the caches of all layers, the head's included.
fn per_token(config: &ModelConfig) -> u64 {
    let head = config.mtp.iter().map(|mtp| &mtp.layer);
    let of_layer = |mixer: &MixerSpec| match mixer {
        MixerSpec::Attention(attention) => 2 * attention.num_key_value_heads * attention.head_dim,
        MixerSpec::GatedDeltaNet(_) => 0,
    };
    config.layers.iter().chain(head).map(|layer| of_layer(&layer.mixer) as u64).sum()
}

/// Returns the numbers of the states of one answer, which do not grow.
fn per_sequence(config: &ModelConfig) -> u64 {
    let of_layer = |mixer: &MixerSpec| match mixer {
        MixerSpec::Attention(_) => 0,
        MixerSpec::GatedDeltaNet(delta) => {
            delta.num_value_heads * delta.key_head_dim * delta.value_head_dim
                + (delta.conv_kernel_dim - 1) * delta.conv_dim()
        }
    };
    config.layers.iter().map(|layer| of_layer(&layer.mixer) as u64).sum()
}

/// Returns the numbers that exist while a layer computes a piece of a prompt, and of the logits of a step.
fn working(config: &ModelConfig, rows: usize, prefill: usize) -> u64 {
    let widest = config.layers.iter().map(|layer| {
        let outputs: usize = layer.linears().map(|linear| linear.output).sum();
        outputs + 8 * config.hidden_size
    });
    // Logits are there as a tensor, on the host, and once more while one row is sampled.
    (widest.max().unwrap_or(0) * prefill.max(rows) + (2 * rows + 8) * config.vocab_size) as u64
}
