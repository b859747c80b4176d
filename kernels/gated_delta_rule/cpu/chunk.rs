//! One chunk of one head: the values that forward and backward both compute from the inputs and the incoming
//! state.

use std::iter;
use std::ops::Range;

use pulp::Arch;

use super::inputs::Inputs;
use super::matrix::{Matrix, Shape, View, Write, multiply, padded, transpose};
use super::rows::{exp, inverse_norm, scale, scale_rows_into};
use super::triangular::Solve;

/// Tokens per chunk.
pub(super) const CHUNK: usize = 64;

/// One number per row of a chunk.
pub(super) type PerRow = [f32; CHUNK];

/// The log decay below which the factor is 0 in fp32. Clamping keeps -inf out of differences.
const LOWEST_LOG_DECAY: f32 = -200.0;

/// The chunks of a segment.
pub(super) fn chunks_of(
    tokens: Range<usize>,
) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator {
    let end = tokens.end;
    tokens.step_by(CHUNK).map(move |start| start..end.min(start + CHUNK))
}

/// Normalised queries and keys of one chunk and key head, and their scores. Shared by the value heads of the
/// group.
pub(super) struct Keys {
    /// rows in use: the chunk's length, padded with zero rows to whole vectors
    pub(super) rows: usize,
    /// `Q [C, dk]`, unit rows times `dk^-1/2`
    pub(super) q: Matrix,
    /// `K [C, dk]`, unit rows
    pub(super) k: Matrix,
    pub(super) q_inverse_norm: PerRow,
    pub(super) k_inverse_norm: PerRow,
    k_transposed: Matrix,
    /// `K Kᵀ`, valid below the diagonal
    kk: Matrix,
    /// `Q Kᵀ`, valid up to the diagonal
    qk: Matrix,
}

impl Keys {
    pub(super) fn new(inputs: &Inputs<'_>) -> Self {
        let dk = inputs.dims.key_dim;
        Self {
            rows: 0,
            q: Matrix::zeros(CHUNK, dk),
            k: Matrix::zeros(CHUNK, dk),
            q_inverse_norm: [0.0; CHUNK],
            k_inverse_norm: [0.0; CHUNK],
            k_transposed: Matrix::zeros(dk, CHUNK),
            kk: Matrix::zeros(CHUNK, CHUNK),
            qk: Matrix::zeros(CHUNK, CHUNK),
        }
    }

    /// Loads `K` and `K Kᵀ`, which suffice for writing to the state.
    pub(super) fn load_keys(&mut self, arch: Arch, inputs: &Inputs<'_>, head: usize, tokens: Range<usize>) {
        self.rows = padded(tokens.len());
        let raw = tokens.map(|t| inputs.k(t, head));
        load_unit_rows(arch, &mut self.k, &mut self.k_inverse_norm, raw, self.rows, 1.0);
        transpose(arch, &mut self.k_transposed, self.k.top(self.rows));
        let k_transposed = self.k_transposed.corner(inputs.dims.padded_key_dim(), self.rows);
        multiply(arch, &mut self.kk, Write::Set, self.k.top(self.rows), k_transposed, Shape::LowerOut);
    }

    /// Loads `Q` and `Q Kᵀ` too, which are needed for reading the state. Must follow [`Keys::load_keys`] for
    /// the same tokens.
    pub(super) fn load_queries(
        &mut self,
        arch: Arch,
        inputs: &Inputs<'_>,
        head: usize,
        tokens: Range<usize>,
    ) {
        let raw = tokens.map(|t| inputs.q(t, head));
        load_unit_rows(
            arch,
            &mut self.q,
            &mut self.q_inverse_norm,
            raw,
            self.rows,
            inputs.dims.query_scale(),
        );
        let k_transposed = self.k_transposed.corner(inputs.dims.padded_key_dim(), self.rows);
        multiply(arch, &mut self.qk, Write::Set, self.q.top(self.rows), k_transposed, Shape::LowerOut);
    }
}

/// Loads `to_i = factor raw_i / norm(raw_i)`, and zero rows up to `rows`.
fn load_unit_rows<'a>(
    arch: Arch,
    to: &mut Matrix,
    inverse_norms: &mut PerRow,
    raw: impl ExactSizeIterator<Item = &'a [f32]>,
    rows: usize,
    factor: f32,
) {
    to.clear_rows(raw.len()..rows);
    arch.dispatch(
        #[inline(always)]
        || {
            for (i, raw) in raw.enumerate() {
                to.load_row(i, raw);
                let row = to.row_mut(i);
                inverse_norms[i] = inverse_norm(row);
                for x in row {
                    *x *= inverse_norms[i] * factor;
                }
            }
        },
    );
}

/// Products of the decay factors within a chunk.
pub(super) struct Decay {
    /// `exp(B_i)`: from the incoming state to row i
    pub(super) entry: PerRow,
    /// `exp(B_last - B_i)`: from row i to the outgoing state
    pub(super) exit: PerRow,
    /// `exp(B_last)`
    pub(super) whole: f32,
    /// `Γ_ij = exp(B_i - B_j)` for `j <= i`, else 0
    pub(super) between: Matrix,
}

impl Decay {
    fn load(&mut self, arch: Arch, g: impl Iterator<Item = f32>, rows: usize) {
        // B is stored in two floats per row, because B_i - B_j must be exact to the last bits of g even for a
        // very negative B.
        let (mut high, mut low) = ([0.0; CHUNK], [0.0; CHUNK]);
        let mut sum = 0.0_f64;
        let mut g = g.map(|g| if g < LOWEST_LOG_DECAY { LOWEST_LOG_DECAY } else { g });
        for (high, low) in iter::zip(&mut high, &mut low).take(rows) {
            sum += f64::from(g.next().unwrap_or(0.0));
            *high = sum as f32;
            *low = (sum - f64::from(*high)) as f32;
        }
        let last = (high[rows - 1], low[rows - 1]);
        arch.dispatch(
            #[inline(always)]
            || {
                for j in 0..rows {
                    self.entry[j] = exp(high[j]);
                    self.exit[j] = exp((last.0 - high[j]) + (last.1 - low[j]));
                }
                for i in 0..rows {
                    let row = &mut self.between.row_mut(i)[..rows];
                    for (j, (factor, (high_j, low_j))) in iter::zip(row, iter::zip(&high, &low)).enumerate() {
                        let exponent = (high[i] - high_j) + (low[i] - low_j);
                        *factor = exp(if j <= i { exponent } else { LOWEST_LOG_DECAY });
                    }
                }
            },
        );
        self.whole = exp(last.0);
    }
}

/// The values of one value head in addition to its [`Keys`]: gates, couplings, and the solution of the
/// chunk's triangular system.
pub(super) struct Values {
    pub(super) beta: PerRow,
    pub(super) decay: Decay,
    /// `N = strictly_lower(K Kᵀ ⊙ Γ)`
    pub(super) coupling: Matrix,
    /// `P = lower(Q Kᵀ ⊙ Γ)`
    pub(super) attention: Matrix,
    /// `Z [C, dv]`: prediction errors
    pub(super) errors: Matrix,
    /// `X = diag(beta) Z`: what is written
    pub(super) writes: Matrix,
    /// `diag(exit) X`
    pub(super) leaving: Matrix,
}

impl Values {
    pub(super) fn new(inputs: &Inputs<'_>) -> Self {
        let square = || Matrix::zeros(CHUNK, CHUNK);
        let rows = || Matrix::zeros(CHUNK, inputs.dims.value_dim);
        Self {
            beta: [0.0; CHUNK],
            decay: Decay { entry: [0.0; CHUNK], exit: [0.0; CHUNK], whole: 0.0, between: square() },
            coupling: square(),
            attention: square(),
            errors: rows(),
            writes: rows(),
            leaving: rows(),
        }
    }

    /// Computes gates, `Z` and `X` of the chunk `tokens` of value head `head`, given the incoming `state`.
    pub(super) fn load(
        &mut self,
        arch: Arch,
        inputs: &Inputs<'_>,
        head: usize,
        tokens: Range<usize>,
        keys: &Keys,
        state: View<'_>,
    ) {
        let rows = keys.rows;
        self.decay.load(arch, tokens.clone().map(|t| inputs.g(t, head)), rows);
        self.beta.fill(0.0);
        for (beta, t) in iter::zip(&mut self.beta, tokens.clone()) {
            *beta = inputs.beta(t, head);
        }
        decayed(arch, &mut self.coupling, &keys.kk, &self.decay.between, rows, Diagonal::Excluded);

        // Y = V - diag(entry) K S
        multiply(arch, &mut self.errors, Write::Set, keys.k.top(rows), state, Shape::Full);
        let (errors, entry) = (&mut self.errors, &self.decay.entry);
        arch.dispatch(
            #[inline(always)]
            || {
                for (i, t) in tokens.enumerate() {
                    for (error, v) in iter::zip(errors.row_mut(i), inputs.v(t, head)) {
                        *error = v - entry[i] * *error;
                    }
                }
            },
        );
        let coupling = self.coupling.corner(rows, rows);
        Solve { coupling, beta: &self.beta, errors: &mut self.errors, writes: &mut self.writes }
            .forwards(arch);
        scale_rows_into(arch, &mut self.leaving, &self.writes, &self.decay.exit[..rows]);
    }

    /// Solves `d_writes_i -= Σ_{j>i} N_ji d_errors_j`, `d_errors = diag(beta) d_writes`.
    pub(super) fn solve_gradient(
        &self,
        arch: Arch,
        rows: usize,
        d_writes: &mut Matrix,
        d_errors: &mut Matrix,
    ) {
        let coupling = self.coupling.corner(rows, rows);
        Solve { coupling, beta: &self.beta, errors: d_writes, writes: d_errors }.backwards(arch);
    }

    /// Computes `P` for a chunk whose queries are loaded.
    pub(super) fn load_attention(&mut self, arch: Arch, keys: &Keys) {
        decayed(arch, &mut self.attention, &keys.qk, &self.decay.between, keys.rows, Diagonal::Included);
    }

    /// Updates the state: `S ← exp(B_last) S + Kᵀ diag(exit) X`.
    pub(super) fn advance(&self, arch: Arch, keys: &Keys, state: &mut Matrix) {
        scale(arch, state, self.decay.whole);
        multiply(
            arch,
            state,
            Write::Add,
            keys.k.top(keys.rows).t(),
            self.leaving.top(keys.rows),
            Shape::Full,
        );
    }
}

#[derive(Clone, Copy)]
enum Diagonal {
    Included,
    Excluded,
}

/// Computes `out = lower(scores ⊙ decay)`. It selects instead of multiplying by 0, because the scores above
/// the diagonal are undefined.
fn decayed(arch: Arch, out: &mut Matrix, scores: &Matrix, decay: &Matrix, rows: usize, diagonal: Diagonal) {
    arch.dispatch(
        #[inline(always)]
        || {
            for i in 0..rows {
                let end = match diagonal {
                    Diagonal::Included => i + 1,
                    Diagonal::Excluded => i,
                };
                let row = iter::zip(&mut out.row_mut(i)[..rows], iter::zip(scores.row(i), decay.row(i)));
                for (j, (out, (score, decay))) in row.enumerate() {
                    *out = if j < end { score * decay } else { 0.0 };
                }
            }
        },
    );
}
