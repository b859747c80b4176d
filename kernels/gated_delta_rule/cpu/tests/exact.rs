//! The rule in f64, written like its specification, and its derivatives as differences.

use std::iter;

use super::{Case, Dims};

/// Inputs in f64, by kind: qkv, g, beta, initial state.
pub(super) type Exact = [Vec<f64>; 4];

pub(super) fn exact(case: &Case) -> Exact {
    let widen = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let zeros = || vec![0.0; case.inputs().state_floats()];
    [
        widen(&case.qkv),
        widen(&case.g),
        widen(&case.beta),
        case.initial_state.as_deref().map_or_else(zeros, widen),
    ]
}

/// Returns outputs and final states, directly from the specification.
pub(super) fn exact_recurrence(case: &Case, [qkv, g, beta, initial_state]: &Exact) -> (Vec<f64>, Vec<f64>) {
    let Dims { key_heads, value_heads, key_dim, value_dim } = case.dims;
    let mut out = vec![0.0; case.tokens() * case.dims.values_width()];
    let mut states = initial_state.clone();
    for (segment, borders) in case.cu_seqlens.windows(2).enumerate() {
        for head in 0..value_heads {
            let state = &mut states[(segment * value_heads + head) * case.dims.state_len()..]
                [..case.dims.state_len()];
            for t in borders[0] as usize..borders[1] as usize {
                let row = &qkv[t * case.dims.qkv_width()..][..case.dims.qkv_width()];
                let unit = |start: usize, factor: f64| {
                    let x = &row[start..start + key_dim];
                    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / norm * factor).collect::<Vec<_>>()
                };
                let key_head = head / (value_heads / key_heads);
                let q = unit(key_head * key_dim, (key_dim as f64).powf(-0.5));
                let k = unit((key_heads + key_head) * key_dim, 1.0);
                let v = &row[2 * key_heads * key_dim + head * value_dim..][..value_dim];
                state.iter_mut().for_each(|s| *s *= g[t * value_heads + head].exp());
                for j in 0..value_dim {
                    let predicted: f64 = (0..key_dim).map(|i| state[i * value_dim + j] * k[i]).sum();
                    let write = beta[t * value_heads + head] * (v[j] - predicted);
                    (0..key_dim).for_each(|i| state[i * value_dim + j] += k[i] * write);
                    out[(t * value_heads + head) * value_dim + j] =
                        (0..key_dim).map(|i| state[i * value_dim + j] * q[i]).sum();
                }
            }
        }
    }
    (out, states)
}

/// Central differences of `Σ out·probe + Σ final_state·state_probe`.
pub(super) fn differences(case: &Case, out_probe: &[f32], state_probe: &[f32]) -> Exact {
    let loss = |inputs: &Exact| {
        let (out, states) = exact_recurrence(case, inputs);
        let weigh =
            |x: &[f64], probe: &[f32]| iter::zip(x, probe).map(|(x, &p)| x * f64::from(p)).sum::<f64>();
        weigh(&out, out_probe) + weigh(&states, state_probe)
    };
    let mut inputs = exact(case);
    std::array::from_fn(|kind| {
        (0..inputs[kind].len())
            .map(|i| {
                const STEP: f64 = 1e-5;
                let here = inputs[kind][i];
                inputs[kind][i] = here + STEP;
                let above = loss(&inputs);
                inputs[kind][i] = here - STEP;
                let below = loss(&inputs);
                inputs[kind][i] = here;
                (above - below) / (2.0 * STEP)
            })
            .collect()
    })
}
