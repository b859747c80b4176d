//! The backward pass: one sweep forwards over the chunks of a segment for the states, one backwards for the
//! gradients.

use std::ops::Range;

use pulp::Arch;

use super::chunk::{Keys, Values, chunks_of};
use super::gradients::{Chunk, KeyGradients, ValueGradients};
use super::inputs::{Inputs, OutputGradients};
use super::matrix::Matrix;
use super::task::Task;

/// The destinations of one task's gradients, with the slices of its group for each token.
pub(super) struct Results<'a> {
    /// `[dk]`
    pub(super) d_q: Vec<&'a mut [f32]>,
    /// `[dk]`
    pub(super) d_k: Vec<&'a mut [f32]>,
    /// `[r, dv]`
    pub(super) d_v: Vec<&'a mut [f32]>,
    /// `[r]`
    pub(super) d_g: Vec<&'a mut [f32]>,
    /// `[r]`
    pub(super) d_beta: Vec<&'a mut [f32]>,
    /// `[r, dk, dv]`
    pub(super) d_initial_state: Option<&'a mut [f32]>,
}

/// Scratch memory of one thread.
pub(super) struct Backward<'a> {
    arch: Arch,
    inputs: Inputs<'a>,
    above: OutputGradients<'a>,
    keys: Keys,
    values: Values,
    /// one per value head of the group: the state in the first sweep, its gradient in the second
    states: Vec<Matrix>,
    /// the states entering each chunk of the segment, `[chunks, r, dk, dv]`
    saved: Matrix,
    key_gradients: KeyGradients,
    value_gradients: ValueGradients,
}

impl<'a> Backward<'a> {
    pub(super) fn new(inputs: Inputs<'a>, above: OutputGradients<'a>) -> Self {
        let dims = inputs.dims;
        Self {
            arch: Arch::new(),
            inputs,
            above,
            keys: Keys::new(&inputs),
            values: Values::new(&inputs),
            states: dims.group().map(|_| Matrix::zeros(dims.key_dim, dims.value_dim)).collect(),
            saved: Matrix::zeros(0, dims.value_dim),
            key_gradients: KeyGradients::new(dims),
            value_gradients: ValueGradients::new(dims),
        }
    }

    pub(super) fn run(&mut self, task: &Task, mut results: Results<'_>) {
        let dims = self.inputs.dims;
        self.save_states(task);
        for (member, d_state) in self.states.iter_mut().enumerate() {
            d_state.load(task.state_of(self.above.final_state, dims, member), dims.value_dim);
        }
        for (chunk, tokens) in chunks_of(task.tokens.clone()).enumerate().rev() {
            self.chunk(task, chunk, tokens, &mut results);
        }
        if let Some(d_initial_state) = results.d_initial_state {
            for (d_state, to) in self.states.iter().zip(d_initial_state.chunks_exact_mut(dims.state_len())) {
                d_state.store(to, dims.value_dim);
            }
        }
    }

    /// The first sweep: fills `saved`.
    fn save_states(&mut self, task: &Task) {
        let Self { arch, inputs, keys, values, states, saved, .. } = self;
        let (arch, dims) = (*arch, inputs.dims);
        let (group, state_rows) = (states.len(), dims.padded_key_dim());
        let chunks = chunks_of(task.tokens.clone());
        saved.ensure_rows(chunks.len() * group * state_rows);
        for (member, state) in states.iter_mut().enumerate() {
            state.load(task.state_of(inputs.initial_state, dims, member), dims.value_dim);
        }
        for (chunk, tokens) in chunks.enumerate() {
            let last = tokens.end == task.tokens.end;
            if !last {
                keys.load_keys(arch, inputs, task.key_head, tokens.clone());
            }
            for (member, state) in states.iter_mut().enumerate() {
                let slot = saved.band_mut((chunk * group + member) * state_rows, state_rows);
                slot.copy_from_slice(state.floats());
                if !last {
                    let head = task.value_head(dims, member);
                    values.load(arch, inputs, head, tokens.clone(), keys, state.all());
                    values.advance(arch, keys, state);
                }
            }
        }
    }

    /// One step of the second sweep: the gradients of one chunk.
    fn chunk(&mut self, task: &Task, chunk: usize, tokens: Range<usize>, results: &mut Results<'_>) {
        let Self { arch, inputs, above, keys, values, states, saved, key_gradients, value_gradients } = self;
        let (arch, dims) = (*arch, inputs.dims);
        let (group, state_rows) = (states.len(), dims.padded_key_dim());
        let first = tokens.start - task.tokens.start;
        keys.load_keys(arch, inputs, task.key_head, tokens.clone());
        keys.load_queries(arch, inputs, task.key_head, tokens.clone());
        key_gradients.clear(keys.rows);
        for (member, d_state) in states.iter_mut().enumerate() {
            let head = task.value_head(dims, member);
            let state = saved.band((chunk * group + member) * state_rows, state_rows);
            values.load(arch, inputs, head, tokens.clone(), keys, state);
            values.load_attention(arch, keys);
            value_gradients.d_out.clear_rows(tokens.len()..keys.rows);
            for (i, t) in tokens.clone().enumerate() {
                let d_out = &above.out[(t * dims.value_heads + head) * dims.value_dim..][..dims.value_dim];
                value_gradients.d_out.load_row(i, d_out);
            }

            let forward = Chunk { arch, keys, values, state };
            value_gradients.compute(forward, d_state, key_gradients);
            if chunk > 0 || results.d_initial_state.is_some() {
                value_gradients.retreat(forward, d_state);
            }

            for i in 0..tokens.len() {
                let d_v = &value_gradients.d_errors.row(i)[..dims.value_dim];
                results.d_v[first + i][dims.value_range(member)].copy_from_slice(d_v);
                results.d_g[first + i][member] = value_gradients.d_g[i];
                results.d_beta[first + i][member] = value_gradients.d_beta[i];
            }
        }
        key_gradients.finish(arch, keys, dims.query_scale());
        for i in 0..tokens.len() {
            results.d_q[first + i].copy_from_slice(&key_gradients.d_q.row(i)[..dims.key_dim]);
            results.d_k[first + i].copy_from_slice(&key_gradients.d_k.row(i)[..dims.key_dim]);
        }
    }
}
