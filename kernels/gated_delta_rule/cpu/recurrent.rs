//! The rule one token at a time, as in its definition: for decoding, and as the specification of the chunked
//! form.

use std::iter;

use pulp::Arch;

use super::forward::Results;
use super::inputs::Inputs;
use super::rows::L2_NORM_EPS;
use super::task::Task;

/// Runs one task, with all value heads of the group in sequence.
pub(super) fn run(inputs: &Inputs<'_>, task: &Task, mut results: Results<'_>) {
    let (arch, dims) = (Arch::new(), inputs.dims);
    for member in dims.group() {
        let head = task.value_head(dims, member);
        let mut state = vec![0.0; dims.state_len()];
        if let Some(initial) = task.state_of(inputs.initial_state, dims, member) {
            state.copy_from_slice(initial);
        }
        for (t, out) in iter::zip(task.tokens.clone(), &mut results.out) {
            let q = unit(inputs.q(t, task.key_head), dims.query_scale());
            let k = unit(inputs.k(t, task.key_head), 1.0);
            let (g, beta, v) = (inputs.g(t, head), inputs.beta(t, head), inputs.v(t, head));
            let out = &mut out[dims.value_range(member)];
            arch.dispatch(
                #[inline(always)]
                || step(&mut state, &q, &k, v, g, beta, out),
            );
        }
        if let Some(final_state) = &mut results.final_state {
            final_state[member * dims.state_len()..][..dims.state_len()].copy_from_slice(&state);
        }
    }
}

fn unit(x: &[f32], scale: f32) -> Vec<f32> {
    let norm = (x.iter().map(|x| x * x).sum::<f32>() + L2_NORM_EPS).sqrt();
    x.iter().map(|x| x / norm * scale).collect()
}

/// Decays the state `[dk, dv]`, corrects its prediction for `k` towards `v`, and reads it with `q`.
#[inline(always)]
fn step(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], g: f32, beta: f32, out: &mut [f32]) {
    let decay = g.exp();
    let mut error = v.to_vec();
    for (row, k) in iter::zip(state.chunks_exact_mut(v.len()), k) {
        for (error, state) in iter::zip(&mut error, row) {
            *state *= decay;
            *error -= *state * k;
        }
    }
    out.fill(0.0);
    for (row, (q, k)) in iter::zip(state.chunks_exact_mut(v.len()), iter::zip(q, k)) {
        for (out, (state, error)) in iter::zip(&mut *out, iter::zip(row, &error)) {
            *state += k * beta * error;
            *out += *state * q;
        }
    }
}
