//! Run-time SIMD for the element-wise parts of the CPU ops: `dispatch`, and functions the compiler can
//! vectorise inside it.
//!
//! The program is built for baseline x86-64 (SSE2), so that one binary starts everywhere. `dispatch` compiles
//! its closure once per instruction set (baseline, AVX2+FMA, AVX-512 with pulp's `x86-v4`; NEON is baseline
//! on Arm) and picks one at run time. A loop in the closure is vectorised for that set provided that
//! everything it calls is inlined: mark the closure and its callees `#[inline(always)]`. The functions here
//! use neither branches nor fused multiply-adds: the first would stop the vectoriser, the second would be a
//! library call on machines without FMA. So a value has the same bits on every instruction set.

use burn::tensor::bf16;

/// A stored number that is exactly an f32.
pub(crate) trait Stored: Copy + Default + Send + Sync {
    /// Returns it as f32.
    fn wide(self) -> f32;
}

impl Stored for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

impl Stored for bf16 {
    /// Unlike `to_f32`, this has no branch for NaN, whose bits it keeps.
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// Runs `f` compiled for the best instruction set of this machine: `dispatch(#[inline(always)] || for x in xs
/// { … })`.
#[inline(always)]
pub(crate) fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}

/// `eˣ` to within 1.1 ulp for −87 ≤ x ≤ 88.3. Zero below −87 (no subnormals), +∞ above 88.4, NaN for NaN.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2 (Cody and Waite: `LN2_HI` has 9 significant bits, so n·LN2_HI is
/// exact), a polynomial for eʳ, and 2ⁿ put together from its exponent bits.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    /// 1.5·2²³: adding it leaves the nearest integer in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let capped = if x > 88.5 { 88.5 } else { x };
    let shifted = capped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (capped - n * LN2_HI) - n * LN2_LO;
    let tail = 1.388_889e-3 + r * 1.984_127e-4;
    let tail = 8.333_333e-3 + r * tail;
    let tail = 4.166_666_8e-2 + r * tail;
    let tail = 0.166_666_67 + r * tail;
    let tail = 0.5 + r * tail;
    let e_r = 1.0 + (r + r * r * tail);
    let two_n = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { e_r * two_n }
}

/// Logistic function 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Number of independent partial results of the reductions below: enough to fill two AVX-512 registers, and
/// the same number on every machine so that the order of additions, hence the bits, does not depend on it.
const LANES: usize = 32;

/// Σ xs, in a fixed order that depends on the length only.
#[inline(always)]
pub(crate) fn sum(xs: &[f32]) -> f32 {
    reduce(
        xs,
        0.0,
        #[inline(always)]
        |a, b| a + b,
    )
}

/// Returns the largest element; −∞ when empty. NaN may be ignored.
#[inline(always)]
pub(crate) fn max(xs: &[f32]) -> f32 {
    reduce(
        xs,
        f32::NEG_INFINITY,
        #[inline(always)]
        |a, b| if a > b { a } else { b },
    )
}

/// Σ xᵢ yᵢ over two slices of one length, in a fixed order.
#[inline(always)]
pub(crate) fn dot<X: Stored>(xs: &[X], ys: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (x_head, x_tail) = xs.as_chunks::<LANES>();
    let (y_head, y_tail) = ys.as_chunks::<LANES>();
    for (x, y) in x_head.iter().zip(y_head) {
        add_products(&mut lanes, x, y);
    }
    if !x_tail.is_empty() {
        add_products(&mut lanes, &filled_up(x_tail), &filled_up(y_tail));
    }
    fold(
        lanes,
        #[inline(always)]
        |a, b| a + b,
    )
}

/// Adds the products to the partial sums. With the multiplication in the same loop, or with fewer products at
/// a time, the compiler would leave the sums in memory, and each step would wait for it.
#[inline(always)]
fn add_products<X: Stored>(lanes: &mut [f32; LANES], xs: &[X; LANES], ys: &[f32; LANES]) {
    let mut products = [0.0; LANES];
    for l in 0..LANES {
        products[l] = xs[l].wide() * ys[l];
    }
    for l in 0..LANES {
        lanes[l] += products[l];
    }
}

/// The last numbers of a slice, with zeros after them. The zeros change no partial sum: none is −0.
#[inline(always)]
fn filled_up<X: Stored>(tail: &[X]) -> [X; LANES] {
    let mut all = [X::default(); LANES];
    all[..tail.len()].copy_from_slice(tail);
    all
}

#[inline(always)]
fn reduce(xs: &[f32], start: f32, op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (head, tail) = xs.as_chunks::<LANES>();
    for chunk in head {
        for l in 0..LANES {
            lanes[l] = op(lanes[l], chunk[l]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(tail) {
        *lane = op(*lane, x);
    }
    fold(lanes, op)
}

/// Combines the lanes pairwise.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = op(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the distance from the correctly rounded value in units of its last place.
    fn ulps(got: f32, exact: f64) -> f64 {
        let rounded = exact as f32;
        let ulp = f64::from(f32::from_bits(rounded.to_bits() + 1)) - f64::from(rounded);
        (f64::from(got) - exact).abs() / ulp
    }

    #[test]
    fn exp_is_within_1_1_ulp_over_its_whole_range() {
        let worst = (-8_700_000..=8_830_000)
            .map(|i| i as f32 * 1e-5)
            .map(|x| (ulps(exp(x), f64::from(x).exp()), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
        assert!(worst.0 <= 1.1, "{} ulp at {}", worst.0, worst.1);
    }

    #[test]
    fn exp_saturates_and_keeps_nan() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-87.1), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(88.5), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_holds_at_both_ends() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(sigmoid(200.0), 1.0);
        assert_eq!(sigmoid(-200.0), 0.0);
        assert!((sigmoid(-20.0) / (1.0 / (1.0 + 20f64.exp())) as f32 - 1.0).abs() < 1e-6);
        assert!(sigmoid(f32::NAN).is_nan());
    }

    #[test]
    fn dispatch_changes_no_bit() {
        let xs: Vec<f32> = (0..1013).map(|i| (i as f32 * 0.37).sin() * 40.0 - 40.0).collect();
        let exps = |out: &mut Vec<f32>| out.iter_mut().zip(&xs).for_each(|(e, &x)| *e = exp(x));
        let (mut plain, mut dispatched) = (vec![0.0; xs.len()], vec![0.0; xs.len()]);
        exps(&mut plain);
        dispatch(
            #[inline(always)]
            || exps(&mut dispatched),
        );
        assert_eq!(dispatched, plain);
        let reductions = || [sum(&xs), max(&xs), dot(&xs, &xs)];
        assert_eq!(dispatch(reductions), reductions());
    }

    #[test]
    fn reductions_cover_every_length() {
        for n in 0..100_usize {
            let xs: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(sum(&xs), (n * n.saturating_sub(1) / 2) as f32);
            assert_eq!(max(&xs), if n == 0 { f32::NEG_INFINITY } else { (n - 1) as f32 });
            assert_eq!(dot(&xs, &xs), xs.iter().map(|x| x * x).sum::<f32>());
            let ys: Vec<f32> = xs.iter().map(|x| x * 0.3 - 1.0).collect();
            let mut lanes = [0.0; LANES];
            xs.iter().zip(&ys).enumerate().for_each(|(i, (x, y))| lanes[i % LANES] += x * y);
            assert_eq!(dot(&xs, &ys).to_bits(), fold(lanes, |a, b| a + b).to_bits());
            let narrow: Vec<bf16> = ys.iter().map(|y| bf16::from_f32(*y)).collect();
            let wide: Vec<f32> = narrow.iter().map(|y| y.to_f32()).collect();
            assert_eq!(dot(&narrow, &xs), dot(&wide, &xs));
        }
    }
}
