//! The gradients of one chunk: of one value head, and of the key head that its group shares.
//!
//! Each step is one or two lines of the derivation in the header of the parent module, with the same names.

use std::iter;

use pulp::Arch;

use super::chunk::{CHUNK, Keys, PerRow, Values};
use super::inputs::Dims;
use super::matrix::{LANES, Matrix, Shape, View, Write, multiply, transpose};
use super::rows::{dot, inverse_norm_gradient, row_dots, scale, scale_rows, scale_rows_into, total};

/// The values of a chunk of one value head after the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub(super) arch: Arch,
    pub(super) keys: &'a Keys,
    pub(super) values: &'a Values,
    /// the incoming state `S`
    pub(super) state: View<'a>,
}

/// The gradients of one chunk and value head, with intermediate values.
pub(super) struct ValueGradients {
    /// `dO [C, dv]`, to be loaded by the caller
    pub(super) d_out: Matrix,
    /// `dZ [C, dv]`, which is also `dV`
    pub(super) d_errors: Matrix,
    pub(super) d_beta: PerRow,
    pub(super) d_g: PerRow,
    /// `dX [C, dv]`
    d_writes: Matrix,
    /// `E dO` and `E dZ`
    d_out_entering: Matrix,
    d_errors_entering: Matrix,
    /// one term of `dQ` or `dK`
    term: Matrix,
    writes_transposed: Matrix,
    state_transposed: Matrix,
    d_state_transposed: Matrix,
    /// valid up to the diagonal: `dP` and `-dN`
    d_attention: Matrix,
    d_coupling: Matrix,
    flow: Flow,
}

impl ValueGradients {
    pub(super) fn new(dims: Dims) -> Self {
        let Dims { key_dim, value_dim, .. } = dims;
        let value_rows = || Matrix::zeros(CHUNK, value_dim);
        let square = || Matrix::zeros(CHUNK, CHUNK);
        Self {
            d_out: value_rows(),
            d_errors: value_rows(),
            d_beta: [0.0; CHUNK],
            d_g: [0.0; CHUNK],
            d_writes: value_rows(),
            d_out_entering: value_rows(),
            d_errors_entering: value_rows(),
            term: Matrix::zeros(CHUNK, key_dim),
            writes_transposed: Matrix::zeros(value_dim, CHUNK),
            state_transposed: Matrix::zeros(value_dim, key_dim),
            d_state_transposed: Matrix::zeros(value_dim, key_dim),
            d_attention: square(),
            d_coupling: square(),
            flow: Flow::default(),
        }
    }

    /// Computes all gradients except that of the incoming state from `d_out` and `d_state`, the gradient of
    /// the outgoing state. Adds to `sums`.
    pub(super) fn compute(&mut self, chunk: Chunk<'_>, d_state: &Matrix, sums: &mut KeyGradients) {
        let Chunk { arch, keys, values, state } = chunk;
        self.flow = Flow::default();
        self.flow.through_chunk = values.decay.whole * state_dot(arch, d_state, state);
        self.leaving(chunk, d_state, sums);
        self.solve(chunk, d_state);
        self.between(chunk, sums);
        self.entering(chunk, sums);
        row_dots(arch, &self.d_writes, &values.errors, &mut self.d_beta[..keys.rows]);
        self.d_g = self.flow.d_g(keys.rows);
    }

    /// Computes `dS = γ dS' + Qᵀ E dO - Kᵀ E dZ` in place. Must follow [`ValueGradients::compute`].
    pub(super) fn retreat(&self, chunk: Chunk<'_>, d_state: &mut Matrix) {
        let Chunk { arch, keys, values, .. } = chunk;
        let rows = keys.rows;
        scale(arch, d_state, values.decay.whole);
        multiply(arch, d_state, Write::Add, keys.q.top(rows).t(), self.d_out_entering.top(rows), Shape::Full);
        multiply(
            arch,
            d_state,
            Write::Sub,
            keys.k.top(rows).t(),
            self.d_errors_entering.top(rows),
            Shape::Full,
        );
    }

    /// `dK += F X dS'ᵀ`
    fn leaving(&mut self, chunk: Chunk<'_>, d_state: &Matrix, sums: &mut KeyGradients) {
        let Chunk { arch, keys, values, .. } = chunk;
        let (rows, leaving) = (keys.rows, values.leaving.top(keys.rows));
        transpose(arch, &mut self.d_state_transposed, d_state.all());
        multiply(arch, &mut self.term, Write::Set, leaving, self.d_state_transposed.all(), Shape::Full);
        absorb(arch, &mut sums.d_k, 1.0, &self.term, &keys.k, &mut self.flow.leaving[..rows]);
    }

    /// `dX = Pᵀ dO + F K dS' - Nᵀ dZ`, `dZ = D dX`
    fn solve(&mut self, chunk: Chunk<'_>, d_state: &Matrix) {
        let Chunk { arch, keys, values, .. } = chunk;
        let (rows, attention) = (keys.rows, values.attention.corner(keys.rows, keys.rows));
        multiply(arch, &mut self.d_writes, Write::Set, keys.k.top(rows), d_state.all(), Shape::Full);
        scale_rows(arch, &mut self.d_writes, &values.decay.exit[..rows]);
        multiply(arch, &mut self.d_writes, Write::Add, attention.t(), self.d_out.top(rows), Shape::UpperLeft);
        values.solve_gradient(arch, rows, &mut self.d_writes, &mut self.d_errors);
    }

    /// Computes `dP = lower(dO Xᵀ)` and `dN = -strictly_lower(dZ Xᵀ)`, and propagates them to the scores and
    /// the decay.
    fn between(&mut self, chunk: Chunk<'_>, sums: &mut KeyGradients) {
        let Chunk { arch, keys, values, .. } = chunk;
        let rows = keys.rows;
        transpose(arch, &mut self.writes_transposed, values.writes.top(rows));
        let writes_transposed = self.writes_transposed.corner(self.writes_transposed.rows(), rows);
        let (d_attention, d_coupling) = (&mut self.d_attention, &mut self.d_coupling);
        multiply(arch, d_attention, Write::Set, self.d_out.top(rows), writes_transposed, Shape::LowerOut);
        multiply(arch, d_coupling, Write::Set, self.d_errors.top(rows), writes_transposed, Shape::LowerOut);
        let between = &mut self.flow.between;
        arch.dispatch(
            #[inline(always)]
            || {
                // passing[j] is the flow from row j to row i and the rows below it.
                let mut passing = [0.0; CHUNK];
                for i in (0..rows).rev() {
                    let decay = per_row(&values.decay.between, i);
                    let (attention, coupling) = (per_row(&values.attention, i), per_row(&values.coupling, i));
                    let (d_attention, d_coupling) = (per_row(d_attention, i), per_row(d_coupling, i));
                    let (d_qk, d_kk) = (sums.d_qk.row_mut(i), sums.d_kk.row_mut(i));
                    for j in 0..CHUNK {
                        // Selected, because values above the diagonal are undefined.
                        let d_attention = if j <= i { d_attention[j] } else { 0.0 };
                        let d_coupling = if j < i { -d_coupling[j] } else { 0.0 };
                        let decay = if j <= i { decay[j] } else { 0.0 };
                        let flows =
                            if j < i { d_attention * attention[j] + d_coupling * coupling[j] } else { 0.0 };
                        d_qk[j] += d_attention * decay;
                        d_kk[j] += d_coupling * decay;
                        passing[j] += flows;
                    }
                    between[i] = sum_of_first(&passing, i);
                }
            },
        );
    }

    /// `dQ += E dO Sᵀ`, `dK -= E dZ Sᵀ`
    fn entering(&mut self, chunk: Chunk<'_>, sums: &mut KeyGradients) {
        let Chunk { arch, keys, values, state } = chunk;
        let rows = keys.rows;
        let entry = &values.decay.entry[..rows];
        scale_rows_into(arch, &mut self.d_out_entering, &self.d_out, entry);
        scale_rows_into(arch, &mut self.d_errors_entering, &self.d_errors, entry);
        transpose(arch, &mut self.state_transposed, state);
        let state_transposed = self.state_transposed.all();
        let flow = &mut self.flow.entering[..rows];
        multiply(
            arch,
            &mut self.term,
            Write::Set,
            self.d_out_entering.top(rows),
            state_transposed,
            Shape::Full,
        );
        absorb(arch, &mut sums.d_q, 1.0, &self.term, &keys.q, flow);
        multiply(
            arch,
            &mut self.term,
            Write::Set,
            self.d_errors_entering.top(rows),
            state_transposed,
            Shape::Full,
        );
        absorb(arch, &mut sums.d_k, -1.0, &self.term, &keys.k, flow);
    }
}

/// The gradients of a chunk's [`Keys`], summed over the value heads of the group in their order.
pub(super) struct KeyGradients {
    /// `dQ [C, dk]`
    pub(super) d_q: Matrix,
    /// `dK [C, dk]`
    pub(super) d_k: Matrix,
    /// of `Q Kᵀ`, lower: `dP ⊙ Γ`
    d_qk: Matrix,
    /// of `K Kᵀ`, strictly lower: `dN ⊙ Γ`
    d_kk: Matrix,
}

impl KeyGradients {
    pub(super) fn new(dims: Dims) -> Self {
        let key_rows = || Matrix::zeros(CHUNK, dims.key_dim);
        let square = || Matrix::zeros(CHUNK, CHUNK);
        Self { d_q: key_rows(), d_k: key_rows(), d_qk: square(), d_kk: square() }
    }

    pub(super) fn clear(&mut self, rows: usize) {
        for gradient in [&mut self.d_q, &mut self.d_k, &mut self.d_qk, &mut self.d_kk] {
            gradient.clear_rows(0..rows);
        }
    }

    /// Propagates the gradients from the scores to q and k, and through the normalisation.
    pub(super) fn finish(&mut self, arch: Arch, keys: &Keys, query_scale: f32) {
        let rows = keys.rows;
        let (d_qk, d_kk) = (self.d_qk.corner(rows, rows), self.d_kk.corner(rows, rows));
        let (q, k) = (keys.q.top(rows), keys.k.top(rows));
        multiply(arch, &mut self.d_q, Write::Add, d_qk, k, Shape::LowerLeft);
        multiply(arch, &mut self.d_k, Write::Add, d_qk.t(), q, Shape::UpperLeft);
        multiply(arch, &mut self.d_k, Write::Add, d_kk, k, Shape::LowerLeft);
        multiply(arch, &mut self.d_k, Write::Add, d_kk.t(), k, Shape::UpperLeft);
        let (d_q, d_k) = (&mut self.d_q, &mut self.d_k);
        arch.dispatch(
            #[inline(always)]
            || {
                for i in 0..rows {
                    inverse_norm_gradient(keys.q.row(i), keys.q_inverse_norm[i], query_scale, d_q.row_mut(i));
                    inverse_norm_gradient(keys.k.row(i), keys.k_inverse_norm[i], 1.0, d_k.row_mut(i));
                }
            },
        );
    }
}

/// The products of the decay factors and their gradients, by the path of each factor.
struct Flow {
    /// from the incoming state to row i
    entering: PerRow,
    /// from row i to the outgoing state
    leaving: PerRow,
    /// from the incoming state to the outgoing one
    through_chunk: f32,
    /// `between[l]`: from the rows before l to row l and those after it
    between: PerRow,
}

impl Default for Flow {
    fn default() -> Self {
        Self { entering: [0.0; CHUNK], leaving: [0.0; CHUNK], through_chunk: 0.0, between: [0.0; CHUNK] }
    }
}

impl Flow {
    /// Returns the gradient of each `g_l`, which affects everything that passes from rows before l to row l
    /// or later.
    fn d_g(&self, rows: usize) -> PerRow {
        let mut d_g = self.between;
        let mut leaving_before = self.through_chunk;
        for (d_g, leaving) in iter::zip(&mut d_g, &self.leaving) {
            *d_g += leaving_before;
            leaving_before += leaving;
        }
        let mut entering_from_here = 0.0;
        for (d_g, entering) in iter::zip(&mut d_g[..rows], &self.entering).rev() {
            entering_from_here += entering;
            *d_g += entering_from_here;
        }
        d_g
    }
}

/// Computes `sum_i += sign term_i` and `flow_i += sign term_i · along_i`.
fn absorb(arch: Arch, sum: &mut Matrix, sign: f32, term: &Matrix, along: &Matrix, flow: &mut [f32]) {
    arch.dispatch(
        #[inline(always)]
        || {
            for (i, flow) in flow.iter_mut().enumerate() {
                for (sum, term) in iter::zip(sum.row_mut(i), term.row(i)) {
                    *sum += sign * term;
                }
                *flow += sign * dot(term.row(i), along.row(i));
            }
        },
    );
}

fn state_dot(arch: Arch, a: &Matrix, b: View<'_>) -> f32 {
    arch.dispatch(
        #[inline(always)]
        || dot(a.floats(), b.floats()),
    )
}

#[inline(always)]
fn per_row(matrix: &Matrix, i: usize) -> &PerRow {
    matrix.row(i).first_chunk().expect("square matrices have CHUNK columns")
}

/// Returns the sum of `row[..count]`, in an order that does not depend on `count`.
#[inline(always)]
fn sum_of_first(row: &PerRow, count: usize) -> f32 {
    let mut sums = [0.0; LANES];
    for (vector, values) in row.as_chunks::<LANES>().0.iter().enumerate() {
        for (lane, (sum, value)) in iter::zip(&mut sums, values).enumerate() {
            *sum += if vector * LANES + lane < count { *value } else { 0.0 };
        }
    }
    total(sums)
}
