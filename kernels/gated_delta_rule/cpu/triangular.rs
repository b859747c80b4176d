//! Solves the triangular system inside a chunk, forwards and (for the gradient) backwards.
//!
//! With `N` strictly lower triangular and `D = diag(beta)`, solves for the prediction errors `Z` and the
//! writes `X = D Z`:
//!
//! ```text
//! forwards    Z = Y  - N  X        row i needs the rows above it
//! backwards  dX = Y' - Nᵀ dZ       row i needs the rows below it,   dZ = D dX
//! ```
//!
//! Both have the shape `error = start - coupling · (D error)`, with the coupling `N` or `Nᵀ`. The rows are
//! processed in blocks of [`PANEL`]: the contribution of earlier blocks is one panel of a product, the rest
//! is substituted in registers.

use pulp::{Arch, Simd, WithSimd};

use super::matrix::{Left, Matrix, PANEL, View, Write, panel};

/// Turns `errors` (the start on entry) into the solution and sets `writes = diag(beta) · errors`, on the
/// first `rows` rows.
pub(super) struct Solve<'a> {
    /// `N`, with zeros on and above the diagonal
    pub(super) coupling: View<'a>,
    pub(super) beta: &'a [f32],
    pub(super) errors: &'a mut Matrix,
    pub(super) writes: &'a mut Matrix,
}

impl Solve<'_> {
    pub(super) fn forwards(self, arch: Arch) {
        arch.dispatch(Forwards(self));
    }

    pub(super) fn backwards(self, arch: Arch) {
        arch.dispatch(Backwards(self));
    }

    /// One block of rows, given `known`, the rows of the writes that are already solved.
    #[inline(always)]
    fn block<S: Simd>(
        &mut self,
        simd: S,
        coupling: View<'_>,
        first: usize,
        known: std::ops::Range<usize>,
        order: [usize; PANEL],
    ) {
        let stride = self.errors.stride();
        let rows = first * stride..(first + PANEL) * stride;
        let errors = &mut self.errors.floats_mut()[rows.clone()];
        if !known.is_empty() {
            let left = Left { a: coupling, first, depth: known };
            panel(simd, errors, stride, Write::Sub, left, View::of(self.writes.floats(), stride), stride);
        }
        let weights = order.map(|i| order.map(|j| coupling.at(first + i, first + j)));
        let beta = order.map(|i| self.beta[first + i]);
        substitute(simd, errors, &mut self.writes.floats_mut()[rows], &weights, &beta, order);
    }
}

struct Forwards<'a>(Solve<'a>);

impl WithSimd for Forwards<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let coupling = self.0.coupling;
        for first in (0..coupling.rows()).step_by(PANEL) {
            self.0.block(simd, coupling, first, 0..first, std::array::from_fn(|i| i));
        }
    }
}

struct Backwards<'a>(Solve<'a>);

impl WithSimd for Backwards<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let coupling = self.0.coupling.t();
        let rows = coupling.rows();
        for first in (0..rows).step_by(PANEL).rev() {
            self.0.block(simd, coupling, first, first + PANEL..rows, std::array::from_fn(|i| PANEL - 1 - i));
        }
    }
}

/// Substitution within a block, taking its rows in `order`; `weights[i][j]` couples the `i`-th row taken to
/// the `j`-th.
#[inline(always)]
fn substitute<S: Simd>(
    simd: S,
    errors: &mut [f32],
    writes: &mut [f32],
    weights: &[[f32; PANEL]; PANEL],
    beta: &[f32; PANEL],
    order: [usize; PANEL],
) {
    let stride = errors.len() / PANEL / S::F32_LANES;
    let (errors, writes) = (S::as_mut_simd_f32s(errors).0, S::as_mut_simd_f32s(writes).0);
    for col in 0..stride {
        let mut done = [simd.splat_f32s(0.0); PANEL];
        for i in 0..PANEL {
            let at = order[i] * stride + col;
            let mut error = errors[at];
            for j in 0..i {
                error = simd.negate_mul_add_e_f32s(simd.splat_f32s(weights[i][j]), done[j], error);
            }
            done[i] = simd.mul_f32s(simd.splat_f32s(beta[i]), error);
            errors[at] = error;
            writes[at] = done[i];
        }
    }
}
