//! Operations on rows and single numbers between the matrix products.
//!
//! Plain loops, compiled for the machine's widest vectors by calling them inside [`Arch::dispatch`]; hence
//! `inline(always)`.

use std::{array, iter};

use pulp::Arch;

use super::matrix::{LANES, Matrix};

/// Added to the sum of squares, inside the root.
pub(super) const L2_NORM_EPS: f32 = 1e-6;

/// Below this the exponential is 0 (it would be subnormal).
const EXP_UNDERFLOW: f32 = -87.0;

/// `exp(x)` for `x <= 0` without branches, so that loops over it vectorise. Relative error below 2e-7; 0
/// below -87.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln(2) / 2. Adding 1.5 · 2^23 rounds to an integer and leaves it in the low
    // bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with enough trailing zero bits that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // Taylor to r^7 / 7!: the rest is below 6e-9 on this interval.
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    let power_of_two = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    if x < EXP_UNDERFLOW { 0.0 } else { series * power_of_two }
}

/// `a · b` over rows of a multiple of [`LANES`] floats, summed in a fixed order.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (a, b) in iter::zip(a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0) {
        sums = array::from_fn(|lane| sums[lane] + a[lane] * b[lane]);
    }
    total(sums)
}

/// The sum of the lanes, pairwise.
#[inline(always)]
pub(super) fn total(lanes: [f32; LANES]) -> f32 {
    let eight: [f32; 8] = array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// `1 / sqrt(sum x² + eps)`
#[inline(always)]
pub(super) fn inverse_norm(row: &[f32]) -> f32 {
    (dot(row, row) + L2_NORM_EPS).sqrt().recip()
}

/// Turns the gradient of `y = scale x / norm(x)` into that of `x`, given `y`: the part along `y` has no
/// effect on `y`.
#[inline(always)]
pub(super) fn inverse_norm_gradient(y: &[f32], inverse_norm: f32, scale: f32, gradient: &mut [f32]) {
    let along = dot(y, gradient) / (scale * scale);
    for (d, y) in iter::zip(gradient, y) {
        *d = scale * inverse_norm * (*d - y * along);
    }
}

/// `out_i = scale_i a_i` for the first `scale.len()` rows.
pub(super) fn scale_rows_into(arch: Arch, out: &mut Matrix, a: &Matrix, scale: &[f32]) {
    let stride = a.stride();
    arch.dispatch(
        #[inline(always)]
        || {
            let rows = iter::zip(out.floats_mut().chunks_exact_mut(stride), a.floats().chunks_exact(stride));
            for ((out, a), scale) in iter::zip(rows, scale) {
                for (out, a) in iter::zip(out, a) {
                    *out = scale * a;
                }
            }
        },
    );
}

/// `a_i *= scale_i` for the first `scale.len()` rows.
pub(super) fn scale_rows(arch: Arch, a: &mut Matrix, scale: &[f32]) {
    let stride = a.stride();
    arch.dispatch(
        #[inline(always)]
        || {
            for (row, scale) in iter::zip(a.floats_mut().chunks_exact_mut(stride), scale) {
                for x in row {
                    *x *= scale;
                }
            }
        },
    );
}

/// `a *= scale`
pub(super) fn scale(arch: Arch, a: &mut Matrix, scale: f32) {
    arch.dispatch(
        #[inline(always)]
        || {
            for x in a.floats_mut() {
                *x *= scale;
            }
        },
    );
}

/// `out_i = a_i · b_i`
pub(super) fn row_dots(arch: Arch, a: &Matrix, b: &Matrix, out: &mut [f32]) {
    let stride = a.stride();
    arch.dispatch(
        #[inline(always)]
        || {
            let rows = iter::zip(a.floats().chunks_exact(stride), b.floats().chunks_exact(stride));
            for (out, (a, b)) in iter::zip(out, rows) {
                *out = dot(a, b);
            }
        },
    );
}
