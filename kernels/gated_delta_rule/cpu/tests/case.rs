//! Test inputs that own their memory, generated from a seed, and the comparison of results.

use std::iter;

use super::*;

/// Inputs that own their memory.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) dims: Dims,
    pub(super) qkv: Vec<f32>,
    pub(super) g: Vec<f32>,
    pub(super) beta: Vec<f32>,
    pub(super) cu_seqlens: Vec<u32>,
    pub(super) initial_state: Option<Vec<f32>>,
}

pub(super) struct Outputs {
    pub(super) out: Vec<f32>,
    pub(super) final_state: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gradients {
    pub(super) qkv: Vec<f32>,
    pub(super) g: Vec<f32>,
    pub(super) beta: Vec<f32>,
    pub(super) initial_state: Vec<f32>,
}

impl Case {
    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            dims: self.dims,
            qkv: &self.qkv,
            g: &self.g,
            beta: &self.beta,
            cu_seqlens: &self.cu_seqlens,
            initial_state: self.initial_state.as_deref(),
        }
    }

    pub(super) fn tokens(&self) -> usize {
        self.cu_seqlens[self.cu_seqlens.len() - 1] as usize
    }

    pub(super) fn blank_outputs(&self) -> Outputs {
        // Not zeros, so that the test detects values that are not overwritten.
        Outputs {
            out: vec![f32::NAN; self.tokens() * self.dims.values_width()],
            final_state: vec![f32::NAN; self.inputs().state_floats()],
        }
    }

    pub(super) fn forward(&self) -> Outputs {
        let mut outputs = self.blank_outputs();
        forward(self.inputs(), &mut outputs.out, Some(&mut outputs.final_state));
        outputs
    }

    pub(super) fn recurrent(&self) -> Outputs {
        let mut outputs = self.blank_outputs();
        recurrent(self.inputs(), &mut outputs.out, Some(&mut outputs.final_state));
        outputs
    }

    pub(super) fn backward(&self, above: OutputGradients<'_>) -> Gradients {
        let nan_like = |like: &[f32]| vec![f32::NAN; like.len()];
        let mut gradients = Gradients {
            qkv: nan_like(&self.qkv),
            g: nan_like(&self.g),
            beta: nan_like(&self.beta),
            initial_state: vec![f32::NAN; self.inputs().state_floats()],
        };
        let Gradients { qkv, g, beta, initial_state } = &mut gradients;
        backward(self.inputs(), above, InputGradients { qkv, g, beta, initial_state: Some(initial_state) });
        gradients
    }

    /// The segment with number `index`, alone.
    pub(super) fn segment(&self, index: usize) -> Self {
        let rows = |x: &[f32]| self.segment_rows(index, x);
        let states = |x: &Vec<f32>| self.segment_states(index, x);
        Self {
            dims: self.dims,
            qkv: rows(&self.qkv),
            g: rows(&self.g),
            beta: rows(&self.beta),
            cu_seqlens: vec![0, self.cu_seqlens[index + 1] - self.cu_seqlens[index]],
            initial_state: self.initial_state.as_ref().map(states),
        }
    }

    pub(super) fn segment_rows(&self, index: usize, x: &[f32]) -> Vec<f32> {
        let width = x.len() / self.tokens();
        x[self.cu_seqlens[index] as usize * width..self.cu_seqlens[index + 1] as usize * width].to_vec()
    }

    pub(super) fn segment_states(&self, index: usize, x: &[f32]) -> Vec<f32> {
        let len = self.dims.value_heads * self.dims.state_len();
        x[index * len..(index + 1) * len].to_vec()
    }
}

/// Returns a stream of numbers in [-1, 1), determined by the seed.
pub(super) fn numbers(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

pub(super) fn dims(key_heads: usize, r: usize, key_dim: usize, value_dim: usize) -> Dims {
    Dims { key_heads, value_heads: key_heads * r, key_dim, value_dim }
}

/// A random case; log decays lie in `[-strongest, 0]`, most of them near 0.
pub(super) fn random_case(
    dims: Dims,
    lengths: &[usize],
    strongest: f32,
    with_state: bool,
    seed: u64,
) -> Case {
    let mut next = numbers(seed);
    let cu_seqlens = iter::once(0)
        .chain(lengths.iter().scan(0, |end, len| {
            *end += *len as u32;
            Some(*end)
        }))
        .collect();
    let tokens: usize = lengths.iter().sum();
    let states = lengths.len() * dims.value_heads * dims.state_len();
    Case {
        dims,
        qkv: (0..tokens * dims.qkv_width()).map(|_| next()).collect(),
        g: (0..tokens * dims.value_heads).map(|_| -strongest * next().powi(4)).collect(),
        beta: (0..tokens * dims.value_heads).map(|_| 0.5 + 0.5 * next()).collect(),
        cu_seqlens,
        initial_state: with_state.then(|| (0..states).map(|_| next()).collect()),
    }
}

pub(super) fn probe(len: usize, seed: u64) -> Vec<f32> {
    let mut next = numbers(seed);
    (0..len).map(|_| next()).collect()
}

/// Returns the largest difference, relative to the largest value (or to 1e-4 if all values are smaller than
/// that).
pub(super) fn distance<A: Copy + Into<f64>, B: Copy + Into<f64>>(a: &[A], b: &[B]) -> f64 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(1e-4_f64, |largest, &b| largest.max(b.into().abs()));
    iter::zip(a, b).fold(0.0_f64, |worst, (&a, &b)| {
        let difference = (a.into() - b.into()).abs();
        if difference.is_finite() { worst.max(difference / largest) } else { f64::INFINITY }
    })
}

#[track_caller]
pub(super) fn assert_close<A: Copy + Into<f64>, B: Copy + Into<f64>>(
    what: &str,
    a: &[A],
    b: &[B],
    tolerance: f64,
) {
    let distance = distance(a, b);
    assert!(
        distance <= tolerance,
        "{what}: off by {distance:.2e} of its largest value, allowed {tolerance:.0e}"
    );
}
