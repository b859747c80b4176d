//! Numbers as integers of 16 bits whose sums do not overflow. Pure.
//!
//! A block is as many numbers as a packet carries. The ranks first agree on the largest magnitude m of each
//! block over all of them; the largest of some numbers has no order. With W ranks, a number v is then sent as
//! the integer nearest to `v · q / m` with q = ⌊32767 / W⌋, so that no sum of W such integers leaves 16 bits.
//! Sums of integers have no order either: all ranks get the same bits, whoever was first.
//!
//! What is lost is at most half a step of `m / q` for each rank. With [`encode`]'s residual, it is added to
//! the number at the same place the next time, so that it is not lost in the mean (error feedback). A block
//! in which any rank has a number that is not finite becomes NaN on all ranks.

use crate::xdp::wire::VALUES;

/// A number so large that its last digit is 1: what is added to it is rounded to the nearest integer, the
/// even one of two. Without SSE 4.1, other ways to round are calls of a function.
const ROUNDING: f64 = (3_u64 << 51) as f64;

/// Returns the largest magnitude of each block of numbers, or NaN if one is not finite.
pub fn magnitudes(numbers: &[f32]) -> Vec<f32> {
    // The bits of magnitudes are in the order of magnitudes, and those of what is not finite come last.
    let bits = |number: &f32| number.abs().to_bits() as i32;
    let of_block = |block: &[f32]| f32::from_bits(block.iter().map(bits).fold(0, i32::max) as u32);
    numbers.chunks(VALUES).map(|block| larger(0.0, of_block(block))).collect()
}

/// Replaces the magnitudes of this rank by those over this rank and another.
pub fn agree(own: &mut [f32], others: impl IntoIterator<Item = f32>) {
    own.iter_mut().zip(others).for_each(|(own, other)| *own = larger(*own, other));
}

/// Returns the largest integer that each of `workers` ranks may send.
pub fn most(workers: usize) -> i16 {
    (usize::from(i16::MAX.unsigned_abs()) / workers.max(1)) as i16
}

/// Writes the integers of a block whose largest magnitude over all ranks is `magnitude`, little-endian; what
/// is left of `integers` becomes 0. If there is a residual, the numbers include it, and it becomes what the
/// integers leave out.
pub fn encode(
    numbers: &[f32],
    magnitude: f32,
    workers: usize,
    residual: Option<&mut [f32]>,
    integers: &mut [[u8; 2]],
) {
    let (integers, rest) = integers.split_at_mut(numbers.len());
    rest.fill([0; 2]);
    if !(magnitude.is_finite() && magnitude > 0.0) {
        integers.fill([0; 2]);
        // The numbers of a block that is all zeros, or is not finite on some rank, leave nothing behind.
        if let Some(residual) = residual {
            residual.fill(0.0);
        }
        return;
    }
    let most = f64::from(most(workers));
    // In double precision, so that no magnitude is too small to divide by.
    let scale = most / f64::from(magnitude);
    let rounded = |number: f32| (f64::from(number) * scale).clamp(-most, most) + ROUNDING;
    // The lowest bits of the sum are those of the integer.
    let write = |place: &mut [u8; 2], sum: f64| *place = (sum.to_bits() as u16).to_le_bytes();
    match residual {
        None => integers.iter_mut().zip(numbers).for_each(|(place, number)| write(place, rounded(*number))),
        Some(residual) => {
            let step = step(magnitude, workers);
            for ((place, number), left) in integers.iter_mut().zip(numbers).zip(residual) {
                let sum = rounded(*number);
                *left = (f64::from(*number) - (sum - ROUNDING) * step) as f32;
                write(place, sum);
            }
        }
    }
}

/// Replaces the numbers of a block by what the sums of integers mean.
pub fn decode(sums: impl IntoIterator<Item = i16>, magnitude: f32, workers: usize, numbers: &mut [f32]) {
    let step = if magnitude.is_finite() { step(magnitude, workers) } else { f64::NAN };
    numbers.iter_mut().zip(sums).for_each(|(number, sum)| *number = (f64::from(sum) * step) as f32);
}

/// Returns what an integer of 1 means in a block.
pub fn step(magnitude: f32, workers: usize) -> f64 {
    f64::from(magnitude) / f64::from(most(workers))
}

fn larger(a: f32, b: f32) -> f32 {
    if a.is_finite() && b.is_finite() { a.max(b) } else { f32::NAN }
}

#[cfg(test)]
mod tests {
    use sparktune_base::random::SplitMix64;

    use super::*;
    use crate::announced::ROUNDING_TO_16_BITS;

    /// Numbers like gradients: a common part and one for each rank, both with heavy tails, in rows of very
    /// different sizes.
    fn gradients(workers: usize, count: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut random = SplitMix64::new(seed);
        let mut tailed = || {
            let sum: f64 = (0..12).map(|_| random.next_f64()).sum::<f64>() - 6.0;
            sum / (random.next_f64() + 0.1).sqrt()
        };
        let mut all = vec![Vec::with_capacity(count); workers];
        let mut size = 1.0;
        for place in 0..count {
            if place % 4096 == 0 {
                size = (tailed() * 1.5 - 7.0).exp();
            }
            let common = 0.3 * tailed();
            all.iter_mut().for_each(|own| own.push(((common + tailed()) * size) as f32));
        }
        all
    }

    fn summed(parts: &[Vec<f32>], residuals: Option<&mut Vec<Vec<f32>>>) -> Vec<f32> {
        let workers = parts.len();
        let mut parts = parts.to_vec();
        if let Some(residuals) = &residuals {
            for (part, residual) in parts.iter_mut().zip(residuals.iter()) {
                part.iter_mut().zip(residual).for_each(|(value, left)| *value += left);
            }
        }
        let mut shared = magnitudes(&parts[0]);
        parts[1..].iter().for_each(|part| agree(&mut shared, magnitudes(part)));
        let mut sums = vec![0_i32; parts[0].len()];
        let mut none = vec![Vec::new(); workers];
        let has_residual = residuals.is_some();
        let residuals = residuals.map_or(&mut none, |residuals| residuals);
        for (part, residual) in parts.iter().zip(residuals) {
            for (block, numbers) in part.chunks(VALUES).enumerate() {
                let from = block * VALUES;
                let left = has_residual.then(|| &mut residual[from..from + numbers.len()]);
                let mut integers = [[1; 2]; VALUES];
                encode(numbers, shared[block], workers, left, &mut integers);
                assert!(integers[numbers.len()..].iter().all(|integer| *integer == [0; 2]));
                sums[from..].iter_mut().zip(integers).for_each(|(sum, integer)| {
                    *sum += i32::from(i16::from_le_bytes(integer));
                });
            }
        }
        let mut out = vec![0.0; sums.len()];
        for (block, numbers) in out.chunks_mut(VALUES).enumerate() {
            let sums = sums[block * VALUES..].iter().map(|sum| i16::try_from(*sum).unwrap());
            decode(sums, shared[block], workers, numbers);
        }
        out
    }

    fn exact(parts: &[Vec<f32>]) -> Vec<f64> {
        (0..parts[0].len()).map(|at| parts.iter().map(|part| f64::from(part[at])).sum()).collect()
    }

    /// The ratio of signal to noise in dB.
    fn ratio(exact: &[f64], found: impl IntoIterator<Item = f64>) -> f64 {
        let signal: f64 = exact.iter().map(|value| value * value).sum();
        let noise: f64 = exact.iter().zip(found).map(|(value, found)| (value - found).powi(2)).sum();
        10.0 * (signal / noise).log10()
    }

    fn as_bf16(value: f32) -> f32 {
        let bits = value.to_bits();
        f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
    }

    #[test]
    fn sums_are_nearer_to_the_exact_ones_than_those_of_a_ring_in_bf16() {
        println!("ranks  i16 in blocks of {VALUES}  bf16 ring  (dB of the sum)");
        for workers in [2, 3, 4, 8, 16] {
            let parts = gradients(workers, 1 << 16, 1);
            let exact = exact(&parts);
            let ours = ratio(&exact, summed(&parts, None).into_iter().map(f64::from));
            let ring = (0..exact.len()).map(|at| {
                let first = as_bf16(parts[0][at]);
                f64::from(parts[1..].iter().fold(first, |sum, part| as_bf16(sum + as_bf16(part[at]))))
            });
            let ring = ratio(&exact, ring);
            println!("{workers:5}  {ours:22.1}  {ring:9.1}");
            assert!(ours > ring + 6.0, "{workers} ranks: {ours} dB, bf16 {ring} dB");
        }
    }

    #[test]
    fn what_honest_ranks_lose_is_far_less_than_those_that_judge_announced_sums_allow() {
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        for workers in [2, 4, 16] {
            // Also if one of them has nearly all of the length.
            for factor in [1.0, 1e3] {
                let mut parts = gradients(workers, 1 << 15, 3);
                parts[0].iter_mut().for_each(|value| *value *= factor);
                let sums = summed(&parts, None);
                let mut lost = exact(&parts).into_iter().zip(sums).map(|(one, other)| one - f64::from(other));
                let lost = norm(&mut lost);
                let lengths: f64 =
                    parts.iter().map(|part| norm(&mut part.iter().map(|v| f64::from(*v)))).sum();
                let part = lost / lengths;
                assert!(part < ROUNDING_TO_16_BITS / 2.0, "{workers} ranks, {factor}: {part}");
            }
        }
    }

    #[test]
    fn with_feedback_the_mean_of_many_sums_loses_less() {
        let (workers, count, steps) = (8, VALUES * 4, 100);
        let [mut plain, mut fed, mut wanted] = [(); 3].map(|()| vec![0.0; count]);
        let mut residuals = vec![vec![0.0; count]; workers];
        for step in 0..steps {
            let parts = gradients(workers, count, step + 10);
            let add = |sums: &mut Vec<f64>, next: Vec<f32>| {
                sums.iter_mut().zip(next).for_each(|(sum, value)| *sum += f64::from(value));
            };
            add(&mut plain, summed(&parts, None));
            add(&mut fed, summed(&parts, Some(&mut residuals)));
            wanted.iter_mut().zip(exact(&parts)).for_each(|(sum, value)| *sum += value);
        }
        let (plain, fed) = (ratio(&wanted, plain), ratio(&wanted, fed));
        println!("after {steps} steps of {workers} ranks: {plain:.1} dB, with error feedback {fed:.1} dB");
        assert!(fed > plain + 10.0, "{fed} dB after {plain} dB");
    }

    #[test]
    fn integers_are_the_nearest_and_the_even_one_of_two() {
        // With a magnitude of 16383 and two ranks, a number is its own integer.
        let numbers = [0.5, 1.5, 2.5, -0.5, -1.5, 0.499_999_97, -2.500_000_2, 16383.0, -16383.0, 1e9];
        let mut integers = [[0; 2]; 10];
        encode(&numbers, 16383.0, 2, None, &mut integers);
        assert_eq!(integers.map(i16::from_le_bytes), [0, 2, 2, 0, -2, 0, -3, 16383, -16383, 16383]);
    }

    #[test]
    fn no_sum_leaves_16_bits_and_what_is_not_finite_is_seen_by_all() {
        for workers in 1..=16 {
            for edge in [f32::MAX, 1.0, f32::MIN_POSITIVE, f32::from_bits(1)] {
                let parts = vec![vec![edge, -edge, 0.0]; workers];
                let sums = summed(&parts, None);
                let expected = (f64::from(edge) * workers as f64) as f32;
                assert_eq!(sums, [expected, -expected, 0.0], "{workers} ranks, {edge}");
            }
        }
        let nan = summed(&[vec![1.0; VALUES + 1], [vec![f32::INFINITY], vec![1.0; VALUES]].concat()], None);
        assert!(nan[..VALUES].iter().all(|sum| sum.is_nan()));
        assert_eq!(nan[VALUES], 2.0);
        assert_eq!(summed(&[vec![0.0; 3], vec![-0.0; 3]], None), [0.0; 3]);
    }
}
