//! The RoPE tables of a model's attention layers (SPEC.md 2.3).

use sparktune_kernels::rope::RopeTable;
use sparktune_plan::ModelConfig;
use sparktune_plan::architecture::{Llama3Scaling, Rope, RopeScaling};

/// The frequencies of every distinct RoPE of a model, in the order of [`ModelConfig::ropes`].
#[derive(Debug, Clone)]
pub(crate) struct Ropes {
    frequencies: Vec<Vec<f32>>,
}

/// The index of a layer's RoPE in its model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeIndex(usize);

/// The tables of all RoPEs for some positions.
pub(crate) struct RopeTables(Vec<RopeTable>);

impl Ropes {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self { frequencies: config.ropes().into_iter().map(inverse_frequencies).collect() }
    }

    /// Computes the tables for tokens at these positions.
    pub(crate) fn tables(&self, position_ids: &[u32]) -> RopeTables {
        let table = |frequencies: &Vec<f32>| RopeTable::new(position_ids, frequencies);
        RopeTables(self.frequencies.iter().map(table).collect())
    }
}

impl RopeIndex {
    pub(crate) fn new(config: &ModelConfig, rope: &Rope) -> Self {
        let index = config.ropes().iter().position(|other| *other == rope);
        Self(index.expect("the rotations of a model are those of its layers"))
    }
}

impl RopeTables {
    pub(crate) fn get(&self, index: RopeIndex) -> &RopeTable {
        &self.0[index.0]
    }
}

/// Returns `theta^(-2j / rotary_dim)`, scaled as the config requires.
///
/// Source: transformers `modeling_rope_utils.py`, `_compute_linear_scaling_rope_parameters` and
/// `_compute_llama3_parameters`.
fn inverse_frequencies(rope: &Rope) -> Vec<f32> {
    (0..rope.rotary_dim / 2)
        .map(|j| {
            let frequency = rope.theta.powf(-2.0 * j as f64 / rope.rotary_dim as f64);
            let scaled = match &rope.scaling {
                RopeScaling::None => frequency,
                RopeScaling::Linear(factor) => frequency / factor,
                RopeScaling::Llama3(scaling) => llama3(frequency, scaling),
            };
            scaled as f32
        })
        .collect()
}

fn llama3(frequency: f64, scaling: &Llama3Scaling) -> f64 {
    let wavelength = std::f64::consts::TAU / frequency;
    let original = scaling.original_max_position_embeddings;
    let (low, high) = (scaling.low_freq_factor, scaling.high_freq_factor);
    if wavelength > original / low {
        frequency / scaling.factor
    } else if wavelength < original / high {
        frequency
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / scaling.factor + smooth * frequency
    }
}
