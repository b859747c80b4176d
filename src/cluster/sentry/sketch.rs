//! A few hundred numbers that stand for a gradient: its squared norm, and a random projection.
//!
//! The projection is a count sketch (Charikar, Chen, Farach-Colton 2002): every number is added, with a
//! random sign, to one of [`WIDTH`] sums. The cosine of two sketches is that of the gradients with an error
//! of about `1 / √WIDTH` (0.06), and the sketch of a sum is the sum of sketches, so chunks can be sketched
//! by whoever has them. Numbers that stand together go to different sums: block b of [`WIDTH`] numbers is
//! added to the sums in the order `place xor mask(b)`, so only the blocks' masks and signs are random.
//!
//! Long vectors are cut into stretches, which all processors add at the same time; their sums are added in
//! the order of places. So everything is added in an order that follows from the places of the numbers alone,
//! and the same numbers in the same pieces give the same bits on every machine.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sparktune_base::random::{GAMMA, mix};

/// The numbers of a sketch.
pub const WIDTH: usize = 256;
/// The numbers that are added with one permutation.
const LANES: usize = 8;
/// The blocks that are added in f32 before their sums are added in f64.
const BLOCKS: u64 = 64;
/// The numbers that one processor adds in one go: 512 KiB, which takes it some 50 µs.
const STRETCH: usize = 8 * BLOCKS as usize * WIDTH;

/// What is known of a contribution, or of a part of it: its squared norm, and its sketch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    squares: f64,
    sums: Vec<f64>,
}

impl Default for Summary {
    fn default() -> Self {
        Self { squares: 0.0, sums: vec![0.0; WIDTH] }
    }
}

/// The masks of signs that the bits of a byte mean.
const SIGNS: [[u32; LANES]; 256] = {
    let mut signs = [[0; LANES]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut lane = 0;
        while lane < LANES {
            signs[byte][lane] = ((byte as u32 >> lane) & 1) << 31;
            lane += 1;
        }
        byte += 1;
    }
    signs
};

/// The random choices for a block: a mask of places and a sign for each number.
struct Choices {
    mask: u8,
    signs: [u8; WIDTH / 8],
}

impl Choices {
    fn of(seed: u64, block: u64) -> Self {
        let mut state = mix(seed ^ mix(block.wrapping_add(GAMMA)));
        let mut next = || {
            state = state.wrapping_add(GAMMA);
            mix(state)
        };
        let mut signs = [0; WIDTH / 8];
        for eight in signs.chunks_exact_mut(8) {
            eight.copy_from_slice(&next().to_le_bytes());
        }
        Self { mask: next().to_le_bytes()[7], signs }
    }
}

impl Summary {
    /// Adds a part of a contribution that begins at place `at` of the whole. The choices depend on `seed`.
    pub fn add(&mut self, seed: u64, at: u64, values: &[f32]) {
        let first = STRETCH - (at % STRETCH as u64) as usize;
        let (first, others) = values.split_at(first.min(values.len()));
        self.add_stretch(seed, at, first);
        let from = at + first.len() as u64;
        let stretches = others.par_chunks(STRETCH).enumerate().map(|(number, stretch)| {
            let mut sum = Self::default();
            sum.add_stretch(seed, from + (number * STRETCH) as u64, stretch);
            sum
        });
        stretches.collect::<Vec<_>>().iter().for_each(|sum| self.merge(sum));
    }

    fn add_stretch(&mut self, seed: u64, at: u64, values: &[f32]) {
        let mut rest = values;
        let mut at = at;
        let mut sums = [0.0_f32; WIDTH];
        while !rest.is_empty() {
            let (block, first) = (at / WIDTH as u64, (at % WIDTH as u64) as usize);
            let (now, later) = rest.split_at(rest.len().min(WIDTH - first));
            let choices = Choices::of(seed, block);
            if let Ok(whole) = <&[f32; WIDTH]>::try_from(now) {
                self.squares += squares(whole);
                add_block(&mut sums, whole, &choices);
            } else {
                for (place, value) in now.iter().enumerate() {
                    let place = first + place;
                    self.squares += f64::from(*value) * f64::from(*value);
                    let sign = u32::from((choices.signs[place / 8] >> (place % 8)) & 1) << 31;
                    sums[place ^ usize::from(choices.mask)] += f32::from_bits(value.to_bits() ^ sign);
                }
            }
            at += now.len() as u64;
            rest = later;
            if (block + 1).is_multiple_of(BLOCKS) || rest.is_empty() {
                self.sums.iter_mut().zip(&mut sums).for_each(|(sum, part)| {
                    *sum += f64::from(std::mem::take(part));
                });
            }
        }
    }

    /// Adds the summary of another part of the same contribution.
    pub fn merge(&mut self, other: &Self) {
        self.squares += other.squares;
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, other)| *sum += other);
    }

    /// Returns the summary of the contribution multiplied by a number.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let sums = self.sums.iter().map(|sum| sum * factor).collect();
        Self { squares: self.squares * factor * factor, sums }
    }

    /// Returns this summary with another squared norm, where it is known exactly for a sum of parts whose
    /// sketches were added.
    #[must_use]
    pub fn with_squares(self, squares: f64) -> Self {
        Self { squares, ..self }
    }

    /// The Euclidean norm.
    pub fn norm(&self) -> f64 {
        self.squares.sqrt()
    }

    /// The sketch.
    pub fn sums(&self) -> &[f64] {
        &self.sums
    }

    /// Returns whether norm and sketch are numbers. The norm is NaN if a rank has said that its square is
    /// below zero.
    pub fn is_finite(&self) -> bool {
        self.norm().is_finite() && self.sums.iter().all(|sum| sum.is_finite())
    }

    /// The bytes of the summary, all little-endian: the squared norm and the sums.
    pub fn to_bytes(&self) -> Vec<u8> {
        std::iter::once(&self.squares).chain(&self.sums).flat_map(|number| number.to_le_bytes()).collect()
    }

    /// The number of bytes of a summary.
    pub const BYTES: usize = 8 * (WIDTH + 1);

    /// Reads the bytes of a summary; `None` if there are not [`Self::BYTES`] of them. Any bits are numbers,
    /// which the judge looks at.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES {
            return None;
        }
        let number = |eight: &[u8]| f64::from_le_bytes(eight.try_into().expect("eight bytes"));
        let mut numbers = bytes.chunks_exact(8).map(number);
        Some(Self { squares: numbers.next()?, sums: numbers.collect() })
    }
}

/// Adds the squares of a block in eight sums, which one vector register or two can hold.
fn squares(values: &[f32; WIDTH]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    for eight in values.chunks_exact(LANES) {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    sums.iter().sum()
}

fn add_block(sums: &mut [f32; WIDTH], values: &[f32; WIDTH], choices: &Choices) {
    // A permutation within eight lanes that is known to the compiler is one instruction or two.
    match choices.mask % 8 {
        0 => add_permuted::<0>(sums, values, choices),
        1 => add_permuted::<1>(sums, values, choices),
        2 => add_permuted::<2>(sums, values, choices),
        3 => add_permuted::<3>(sums, values, choices),
        4 => add_permuted::<4>(sums, values, choices),
        5 => add_permuted::<5>(sums, values, choices),
        6 => add_permuted::<6>(sums, values, choices),
        _ => add_permuted::<7>(sums, values, choices),
    }
}

fn add_permuted<const LOW: usize>(sums: &mut [f32; WIDTH], values: &[f32; WIDTH], choices: &Choices) {
    let high = usize::from(choices.mask) / LANES;
    for (group, eight) in values.chunks_exact(LANES).enumerate() {
        let signs = &SIGNS[usize::from(choices.signs[group])];
        let into = &mut sums[(group ^ high) * LANES..][..LANES];
        let signed: [f32; LANES] =
            std::array::from_fn(|lane| f32::from_bits(eight[lane].to_bits() ^ signs[lane]));
        for lane in 0..LANES {
            into[lane] += signed[lane ^ LOW];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sparktune_base::random::SplitMix64;

    use super::*;

    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        (0..count).map(|_| (0..6).map(|_| random.next_f64() as f32 - 0.5).sum()).collect()
    }

    fn of(values: &[f32]) -> Summary {
        let mut summary = Summary::default();
        summary.add(7, 0, values);
        summary
    }

    fn cosine(one: &[f64], other: &[f64]) -> f64 {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
    }

    #[test]
    fn cosines_of_sketches_are_those_of_the_vectors_within_their_noise() {
        let common = numbers(1, 40_000);
        let mut worst: f64 = 0.0;
        for case in 0..40 {
            let weight = (case % 10) as f32 / 5.0 - 1.0;
            let [one, other] = [2, 3].map(|seed| {
                let own = numbers(seed + 10 * case, common.len());
                own.iter().zip(&common).map(|(own, common)| own + weight * common).collect::<Vec<_>>()
            });
            let wide = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
            let exact = cosine(&wide(&one), &wide(&other));
            worst = worst.max((cosine(of(&one).sums(), of(&other).sums()) - exact).abs());
        }
        assert!((0.02..0.25).contains(&worst), "{worst}: 40 draws of a deviation of 0.06");
    }

    #[test]
    fn the_slow_way_gives_the_same_sketch() {
        let values = numbers(5, 3 * WIDTH + 17);
        let mut expected = vec![0.0; WIDTH];
        for (at, value) in values.iter().enumerate() {
            let choices = Choices::of(7, (at / WIDTH) as u64);
            let place = at % WIDTH;
            let sign = if (choices.signs[place / 8] >> (place % 8)) & 1 == 1 { -1.0 } else { 1.0 };
            expected[place ^ usize::from(choices.mask)] += sign * f64::from(*value);
        }
        let summary = of(&values);
        assert!(summary.sums().iter().zip(&expected).all(|(sum, expected)| (sum - expected).abs() < 1e-5));
        let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!((summary.norm().powi(2) / squares - 1.0).abs() < 1e-12);
    }

    #[test]
    fn any_number_of_processors_adds_long_vectors_to_the_same_bits() {
        let values = numbers(11, 3 * STRETCH + 17);
        let summarised = |processors| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(processors).build().unwrap();
            let mut summary = Summary::default();
            pool.install(|| summary.add(7, 1000, &values));
            summary
        };
        let alone = summarised(1);
        assert_eq!(summarised(4), alone);
        let mut sum = Summary::default();
        sum.add_stretch(7, 1000, &values);
        assert!((alone.norm() / sum.norm() - 1.0).abs() < 1e-12);
        for (one, other) in alone.sums().iter().zip(sum.sums()) {
            assert!((one - other).abs() < 1e-2, "{one} instead of {other}");
        }
    }

    proptest! {
        #[test]
        fn parts_in_any_cut_sum_to_the_sketch_of_the_whole(cuts in prop::collection::vec(0..4000_usize, 0..6)) {
            let values = numbers(9, 4000);
            let mut cuts = [cuts, vec![0, values.len()]].concat();
            cuts.sort_unstable();
            let mut sum = Summary::default();
            for cut in cuts.windows(2) {
                let mut part = Summary::default();
                part.add(7, cut[0] as u64, &values[cut[0]..cut[1]]);
                sum.merge(&part);
            }
            let whole = of(&values);
            prop_assert!((sum.norm() / whole.norm() - 1.0).abs() < 1e-12);
            for (part, whole) in sum.sums().iter().zip(whole.sums()) {
                prop_assert!((part - whole).abs() < 1e-3);
            }
        }

        #[test]
        fn any_numbers_are_summarised_and_any_bytes_are_read_or_refused(
            values in prop::collection::vec(any::<f32>(), 0..600), bytes: Vec<u8>,
        ) {
            let summary = of(&values);
            let read = Summary::parse(&summary.to_bytes()).unwrap();
            prop_assert_eq!(read.to_bytes(), summary.to_bytes());
            if values.iter().any(|value| !value.is_finite()) {
                prop_assert!(!summary.is_finite());
            }
            prop_assert!(Summary::parse(&bytes).is_none() || bytes.len() == Summary::BYTES);
        }
    }
}
