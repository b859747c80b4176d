//! The forward pass: one sweep over the chunks of a segment.

use pulp::Arch;

use super::chunk::{CHUNK, Keys, Values, chunks_of};
use super::inputs::Inputs;
use super::matrix::{Matrix, Shape, Write, multiply};
use super::rows::scale_rows;
use super::task::Task;

/// The destinations of one task's results.
pub(super) struct Results<'a> {
    /// per token the outputs of the group's value heads, `[r, dv]`
    pub(super) out: Vec<&'a mut [f32]>,
    /// `[r, dk, dv]`
    pub(super) final_state: Option<&'a mut [f32]>,
}

/// Scratch memory of one thread.
pub(super) struct Forward<'a> {
    arch: Arch,
    inputs: Inputs<'a>,
    keys: Keys,
    values: Values,
    /// one per value head of the group
    states: Vec<Matrix>,
    out: Matrix,
}

impl<'a> Forward<'a> {
    pub(super) fn new(inputs: Inputs<'a>) -> Self {
        let dims = inputs.dims;
        Self {
            arch: Arch::new(),
            inputs,
            keys: Keys::new(&inputs),
            values: Values::new(&inputs),
            states: dims.group().map(|_| Matrix::zeros(dims.key_dim, dims.value_dim)).collect(),
            out: Matrix::zeros(CHUNK, dims.value_dim),
        }
    }

    pub(super) fn run(&mut self, task: &Task, mut results: Results<'_>) {
        let Self { arch, inputs, keys, values, states, out } = self;
        let (arch, dims) = (*arch, inputs.dims);
        for (member, state) in states.iter_mut().enumerate() {
            state.load(task.state_of(inputs.initial_state, dims, member), dims.value_dim);
        }
        for tokens in chunks_of(task.tokens.clone()) {
            keys.load_keys(arch, inputs, task.key_head, tokens.clone());
            keys.load_queries(arch, inputs, task.key_head, tokens.clone());
            for (member, state) in states.iter_mut().enumerate() {
                let head = task.value_head(dims, member);
                values.load(arch, inputs, head, tokens.clone(), keys, state.all());
                values.load_attention(arch, keys);
                read(arch, keys, values, state, out);
                for (i, t) in tokens.clone().enumerate() {
                    let to = &mut results.out[t - task.tokens.start][dims.value_range(member)];
                    to.copy_from_slice(&out.row(i)[..dims.value_dim]);
                }
                if tokens.end < task.tokens.end || results.final_state.is_some() {
                    values.advance(arch, keys, state);
                }
            }
        }
        if let Some(final_state) = results.final_state {
            for (state, to) in states.iter().zip(final_state.chunks_exact_mut(dims.state_len())) {
                state.store(to, dims.value_dim);
            }
        }
    }
}

/// Computes `O = diag(entry) Q S + P X`.
fn read(arch: Arch, keys: &Keys, values: &Values, state: &Matrix, out: &mut Matrix) {
    let rows = keys.rows;
    multiply(arch, out, Write::Set, keys.q.top(rows), state.all(), Shape::Full);
    scale_rows(arch, out, &values.decay.entry[..rows]);
    let attention = values.attention.corner(rows, rows);
    multiply(arch, out, Write::Add, attention, values.writes.top(rows), Shape::LowerLeft);
}
