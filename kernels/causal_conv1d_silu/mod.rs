//! Causal depthwise convolution over time followed by silu; the window stops at the start of a packed example
//! (SPEC.md 2.4 step 2 and 2.6).
//!
//! `c_t = silu(Σ_j w[:, j] ⊙ u_{t-K+1+j})` with `u_s = 0` before the first token of the example of `t`; tap
//! `K-1` is the current token.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, TensorData, activation};
use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, slice, sum_rows, tensor};
use crate::op::joined;
#[cfg(feature = "cuda")]
use crate::op::{all_into_tensors, on_cpu};
use crate::simd::sigmoid;
use crate::{Op, Table, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct CausalConv1dSilu {
    /// For each token, its position in its own example, which is the number of earlier tokens available to
    /// the window.
    pub position_ids: Table,
}

/// Maps `u [T, C]`, `weight [C, K]` and `position_ids [T]`, counted from 0 in each packed example, to `[T,
/// C]`.
pub fn causal_conv1d_silu(u: Tensor<2>, weight: Tensor<2>, position_ids: &Table) -> Tensor<2> {
    apply(CausalConv1dSilu { position_ids: position_ids.clone() }, [u, weight])
}

/// Continues examples, each by so many of the rows of `u [n, C]` and behind a window of its own `[K - 1, C]`,
/// the inputs in front of its rows, which are zeros where there were none. Returns the results `[n, C]`, and
/// for each example the window behind its last row, or with `each` behind each of its rows; forward only.
pub fn continue_conv1d_silus(
    u: Tensor<2>,
    weight: Tensor<2>,
    examples: Vec<(usize, Tensor<2>)>,
    each: bool,
) -> (Tensor<2>, Vec<Vec<Tensor<2>>>) {
    #[cfg(feature = "cuda")]
    if !on_cpu(&u) && cuda::fits(weight.dims()[1]) {
        let [u, weight] = [u, weight].map(crate::cuda::primitive);
        let (counts, windows): (Vec<_>, Vec<_>) = examples.into_iter().unzip();
        let windows = windows.into_iter().map(crate::cuda::primitive).collect();
        let (y, windows) = cuda::steps(u, weight, windows, &counts, each);
        return (crate::cuda::into_tensor(y), all_into_tensors(windows));
    }
    let (mut ys, mut windows, mut first) = (Vec::new(), Vec::new(), 0);
    for (rows, mut window) in examples {
        let count = if each { 1 } else { rows };
        let mut of_example = Vec::new();
        for from in (first..first + rows).step_by(count) {
            let (y, after) = step(u.clone().narrow(0, from, count), weight.clone(), window);
            ys.push(y);
            of_example.push(after.clone());
            window = after;
        }
        first += rows;
        windows.push(of_example);
    }
    (joined(ys), windows)
}

fn step(u: Tensor<2>, weight: Tensor<2>, window: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let ([tokens, _], [history, _]) = (u.dims(), window.dims());
    let all = Tensor::cat(vec![window, u], 0);
    let window = all.clone().narrow(0, tokens, history);
    // The window precedes the new tokens like the start of the example, where the convolution reads zeros; an
    // empty window contains zeros too.
    let position_ids = (0..(history + tokens) as u32).collect();
    (causal_conv1d_silu(all, weight, &position_ids).narrow(0, history, tokens), window)
}

impl CausalConv1dSilu {
    /// Returns the lags (0 is the token itself) of a kernel with `taps` taps that are inside the example of
    /// token `t`.
    #[inline(always)]
    fn lags(&self, t: usize, taps: usize) -> usize {
        taps.min(self.position_ids[t] as usize + 1)
    }

    /// Returns the number of tokens of the same example whose window contains token `t`, including itself.
    #[inline(always)]
    fn seen_by(&self, t: usize, taps: usize) -> usize {
        (1..taps)
            .take_while(|lag| {
                self.position_ids
                    .get(t + lag)
                    .is_some_and(|p| *p as usize >= *lag && *p > self.position_ids[t])
            })
            .count()
            + 1
    }

    /// Computes the sum over the window of one token, before silu.
    #[inline(always)]
    fn window(&self, out: &mut [f32], u: &[f32], taps_kc: &[f32], t: usize, taps: usize) {
        let width = out.len();
        out.fill(0.0);
        for lag in 0..self.lags(t, taps) {
            let weight = &taps_kc[(taps - 1 - lag) * width..][..width];
            let u = &u[(t - lag) * width..][..width];
            for ((out, w), u) in out.iter_mut().zip(weight).zip(u) {
                *out += w * u;
            }
        }
    }
}

/// Transposes `[C, K]` to `[K, C]`, so that the channels of a tap are contiguous.
fn taps_first(weight: &[f32], channels: usize) -> Vec<f32> {
    let taps = weight.len() / channels;
    (0..taps).flat_map(|k| (0..channels).map(move |c| weight[c * taps + k])).collect()
}

impl Op<2> for CausalConv1dSilu {
    fn reference(&self, [u, weight]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        let ([t, width], [_, taps]) = (u.dims(), weight.dims());
        let device = u.device();
        let mut sum = Tensor::<2>::zeros([t, width], &device);
        for lag in 0..taps.min(t) {
            let inside: Vec<f32> =
                self.position_ids.iter().map(|p| if *p as usize >= lag { 1.0 } else { 0.0 }).collect();
            let inside = Tensor::<2>::from_data(TensorData::new(inside, [t, 1]), &device);
            let moved = u.clone().narrow(0, 0, t - lag);
            let moved = Tensor::cat(vec![Tensor::zeros([lag, width], &device), moved], 0);
            let tap = weight.clone().narrow(1, taps - 1 - lag, 1).reshape([1, width]);
            sum = sum + moved * inside * tap;
        }
        [activation::silu(sum)]
    }

    fn forward(&self, [u, weight]: [FlexTensor; 2], wanted: [bool; 2]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (rows, width) = dims(&u);
        let (_, taps) = dims(&weight);
        let (us, taps_kc) = (slice(&u), taps_first(slice(&weight), width));
        let out = fill_rows(
            rows,
            width,
            #[inline(always)]
            |row, chunk| {
                for (i, out) in chunk.chunks_exact_mut(width).enumerate() {
                    self.window(out, us, &taps_kc, row + i, taps);
                    for out in out {
                        *out *= sigmoid(*out);
                    }
                }
            },
        );
        let saved = if wanted.contains(&true) { vec![u, weight] } else { Vec::new() };
        ([tensor(out, rows)], saved)
    }

    /// With `ds = dy ⊙ silu'(s)`: `du_t = Σ_lag w[:, K-1-lag] ⊙ ds_{t+lag}` inside the example, `dw`
    /// likewise.
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (rows, width) = dims(&d_output);
        let (_, taps) = dims(&saved[1]);
        let (us, dy) = (slice(&saved[0]), slice(&d_output));
        let taps_kc = taps_first(slice(&saved[1]), width);
        let d_sum = fill_rows(
            rows,
            width,
            #[inline(always)]
            |row, chunk| {
                for (i, out) in chunk.chunks_exact_mut(width).enumerate() {
                    self.window(out, us, &taps_kc, row + i, taps);
                    for (x, dy) in out.iter_mut().zip(&dy[(row + i) * width..][..width]) {
                        let s = sigmoid(*x);
                        *x = dy * s * (1.0 + *x * (1.0 - s));
                    }
                }
            },
        );
        let d_u = wanted[0].then(|| {
            let d_u = fill_rows(
                rows,
                width,
                #[inline(always)]
                |row, chunk| {
                    for (i, out) in chunk.chunks_exact_mut(width).enumerate() {
                        for lag in 0..self.seen_by(row + i, taps) {
                            let weight = &taps_kc[(taps - 1 - lag) * width..][..width];
                            let d_sum = &d_sum[(row + i + lag) * width..][..width];
                            for ((out, w), d) in out.iter_mut().zip(weight).zip(d_sum) {
                                *out += w * d;
                            }
                        }
                    }
                },
            );
            tensor(d_u, rows)
        });
        let d_weight = wanted[1].then(|| {
            let d_taps_kc = sum_rows(
                rows,
                width * taps,
                #[inline(always)]
                |t, total| {
                    let d_sum = &d_sum[t * width..][..width];
                    for lag in 0..self.lags(t, taps) {
                        let total = &mut total[(taps - 1 - lag) * width..][..width];
                        let u = &us[(t - lag) * width..][..width];
                        for ((total, d), u) in total.iter_mut().zip(d_sum).zip(u) {
                            *total += d * u;
                        }
                    }
                },
            );
            tensor(taps_first(&d_taps_kc, taps), width)
        });
        [d_u, d_weight]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    fn positions(lengths: &[u32]) -> Table {
        lengths.iter().flat_map(|length| 0..*length).collect()
    }

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices_across_borders() {
        for lengths in [&[1][..], &[2], &[17], &[1, 1, 2, 3, 5, 8, 100], &[63, 64, 65]] {
            let op = CausalConv1dSilu { position_ids: positions(lengths) };
            let rows = lengths.iter().sum::<u32>() as usize;
            agrees_with_reference(op, [random(1, rows, 10), random(2, 10, 4)], 1e-5);
        }
    }

    #[test]
    fn continuing_examples_together_on_devices_gives_the_bits_of_each_whole_example() {
        for device in crate::check::devices() {
            let here = |x: Tensor<2>| x.to_device(&burn::tensor::Device::flex()).into_data();
            let weight = random(2, 24, 4).to_device(&device);
            // Ten examples of 90 tokens, more than a launch takes, in steps of these sizes.
            let us: Vec<_> = (0..10).map(|seed| random(10 + seed, 90, 24).to_device(&device)).collect();
            let whole: Vec<_> =
                us.iter().map(|u| causal_conv1d_silu(u.clone(), weight.clone(), &positions(&[90]))).collect();
            let mut windows = vec![Tensor::zeros([3, 24], &device); us.len()];
            for (from, n, each) in [(0, 1, true), (1, 2, true), (3, 70, false), (73, 17, true)] {
                let u = Tensor::cat(us.iter().map(|u| u.clone().narrow(0, from, n)).collect(), 0);
                let examples = windows.into_iter().map(|window| (n, window)).collect();
                let (y, after) = continue_conv1d_silus(u, weight.clone(), examples, each);
                for (i, whole) in whole.iter().enumerate() {
                    let found = here(y.clone().narrow(0, i * n, n));
                    assert_eq!(found, here(whole.clone().narrow(0, from, n)), "example {i} from {from}");
                    assert_eq!(after[i].len(), if each { n } else { 1 });
                }
                // Behind each row are the last three inputs.
                let end = from + n;
                for (back, window) in after[4].iter().rev().enumerate().filter(|_| end > 20) {
                    let expected = us[4].clone().narrow(0, end - back - 3, 3);
                    let expected = expected.cast(window.dtype());
                    assert_eq!(here(window.clone()), here(expected), "{back} rows before {end}");
                }
                windows = after.into_iter().map(|mut after| after.pop().unwrap()).collect();
            }
        }
    }

    #[test]
    fn a_packed_example_gives_the_same_bits_as_alone() {
        let (u, weight) = (random(1, 30, 6), random(2, 6, 4));
        let packed = causal_conv1d_silu(u.clone(), weight.clone(), &positions(&[11, 19]));
        let alone = causal_conv1d_silu(u.narrow(0, 11, 19), weight, &positions(&[19]));
        assert_eq!(packed.narrow(0, 11, 19).into_data(), alone.into_data());
    }
}
