//! Estimates how full packs would be at a pack length, by running the two packing strategies on lengths drawn
//! from the histogram.
//!
//! The sample has at most 2048 lengths, at equal distances in the distribution, so that the same report
//! always gives the same estimate. A run packs the real lengths with the same best-fit algorithm.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use sparktune_base::best_fit::best_fit;
use sparktune_base::choices::PackStrategy;

use crate::cost::DELTA_CHUNK;
use crate::facts::DataFacts;

/// The largest number of lengths in a sample.
const SAMPLE: u64 = 2048;

/// A sample of the lengths of a data set, in tokens.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// The lengths, longest first.
    lengths: Rc<[u32]>,
    /// The number of examples of the data set per length of the sample.
    weight: f64,
    /// The number of tokens of the data set per token of the sample.
    token_weight: f64,
    /// The number of chunks of the delta rule per token.
    chunks_per_token: f64,
    /// Earlier results. Methods, ranks and models are compared at the same pack lengths, and a screen asks
    /// for them at every key press.
    packed: Rc<RefCell<HashMap<(u32, PackStrategy), Packs>>>,
}

/// The result of packing at one pack length, scaled to the whole data set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Packs {
    /// The number of packs in one epoch.
    pub count: f64,
    /// The number of tokens in one epoch.
    pub tokens: f64,
    /// The share of the packs' length that stays empty, 0 to 1. Packs are not padded, so empty space takes no
    /// work.
    pub waste: f64,
    /// The mean length of the piece that a token belongs to, `Σ len² / Σ len`, which determines the work of
    /// attention.
    pub context: f64,
    /// The number of examples longer than the pack length, each with a pack of its own.
    pub own_packs: f64,
}

impl Lengths {
    /// Draws lengths from histogram and quantiles. Examples over `limit` are left out, because the data stage
    /// rejects them.
    pub fn of(data: &DataFacts, limit: u32) -> Self {
        let n = data.examples.clamp(1, SAMPLE);
        let lengths = drawn(data, n as usize);
        let weight = data.examples as f64 / n as f64;
        // Lengths inside a bin are not uniform, so the lengths are scaled to the mean that was counted.
        let mean = lengths.iter().map(|n| f64::from(*n)).sum::<f64>() / n as f64;
        let correction = (data.mean() / mean).clamp(0.5, 2.0);
        Self::new(lengths, weight, weight * correction).up_to(limit)
    }

    /// Draws the lengths of one epoch from those of several data sets, each example as often as the weight of
    /// its set says.
    pub fn of_epoch(sets: &[(DataFacts, f64)], limit: u32) -> Self {
        let epoch_of = |(data, weight): &(DataFacts, f64)| data.examples as f64 * weight;
        let examples: f64 = sets.iter().map(epoch_of).sum();
        let n = examples.clamp(1.0, SAMPLE as f64);
        let lengths: Vec<u32> = sets
            .iter()
            .filter(|(data, _)| data.examples > 0)
            .flat_map(|set| {
                let share = (epoch_of(set) / examples * n).round().max(1.0) as usize;
                drawn(&set.0, share)
            })
            .collect();
        let tokens: f64 = sets.iter().map(|(data, weight)| data.total_tokens as f64 * weight).sum();
        let sampled = lengths.iter().map(|n| f64::from(*n)).sum::<f64>().max(1.0);
        let weight = examples / lengths.len().max(1) as f64;
        // As for a single set, lengths are scaled to the tokens that were counted.
        let correction =
            (tokens / examples.max(1.0) / (sampled / lengths.len().max(1) as f64)).clamp(0.5, 2.0);
        Self::new(lengths, weight, weight * correction).up_to(limit)
    }

    fn new(mut lengths: Vec<u32>, weight: f64, token_weight: f64) -> Self {
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let chunks_per_token = chunks_per_token(&lengths);
        Self { lengths: lengths.into(), weight, token_weight, chunks_per_token, packed: Rc::default() }
    }

    /// Returns the sample without the examples over `limit`.
    #[must_use]
    pub fn up_to(&self, limit: u32) -> Self {
        match self.lengths.partition_point(|length| *length > limit) {
            0 => self.clone(),
            over => {
                let lengths = &self.lengths[over..];
                let chunks_per_token = chunks_per_token(lengths);
                Self { lengths: lengths.into(), chunks_per_token, packed: Rc::default(), ..*self }
            }
        }
    }

    /// Returns the number of chunks of the delta rule per token: each example begins a chunk of its own, so
    /// that short ones have more than one in 64 tokens.
    pub const fn chunks_per_token(&self) -> f64 {
        self.chunks_per_token
    }

    /// Returns the number of examples of the data set that are not over the limit.
    pub fn examples(&self) -> f64 {
        self.lengths.len() as f64 * self.weight
    }

    /// Returns the length that this share of the examples does not exceed, or 0 without examples.
    pub fn quantile(&self, share: f64) -> u32 {
        let last = self.lengths.len().saturating_sub(1);
        let longer = last.saturating_sub((share * last as f64).ceil() as usize);
        self.lengths.get(longer).copied().unwrap_or(0)
    }

    /// Packs the sample. A `pack_length` of 0 counts as 1.
    pub fn pack(&self, pack_length: u32, strategy: PackStrategy) -> Packs {
        let key = (pack_length.max(1), strategy);
        *self.packed.borrow_mut().entry(key).or_insert_with(|| self.packed_anew(key.0, strategy))
    }

    fn packed_anew(&self, pack_length: u32, strategy: PackStrategy) -> Packs {
        let tokens: f64 = self.lengths.iter().map(|n| f64::from(*n)).sum();
        let packed = match strategy {
            PackStrategy::Bfd => best_fit_decreasing(&self.lengths, pack_length),
            PackStrategy::Stream => stream(&self.lengths, pack_length),
        };
        Packs {
            count: packed.count * self.token_weight,
            tokens: tokens * self.token_weight,
            waste: if packed.room > 0.0 { (1.0 - tokens / packed.room).max(0.0) } else { 0.0 },
            context: if tokens > 0.0 { packed.squares / tokens } else { 0.0 },
            own_packs: packed.own_packs * self.weight,
        }
    }
}

fn chunks_per_token(lengths: &[u32]) -> f64 {
    let sum = |of: fn(u32) -> u32| lengths.iter().map(|length| f64::from(of(*length))).sum::<f64>();
    sum(|length| length.div_ceil(DELTA_CHUNK)).max(1.0) / sum(|length| length).max(1.0)
}

/// Draws this many lengths at equal distances in the distribution, ascending.
fn drawn(data: &DataFacts, n: usize) -> Vec<u32> {
    let knots = knots(data);
    let mut next = 1;
    let length = |i: usize| {
        let share = (i as f64 + 0.5) / n as f64;
        while next + 1 < knots.len() && knots[next].1 < share {
            next += 1;
        }
        let ((low, below), (high, up_to)) = (knots[next - 1], knots[next]);
        let inside = if up_to > below { ((share - below) / (up_to - below)).clamp(0.0, 1.0) } else { 1.0 };
        let length = f64::from(low) + inside * (f64::from(high) - f64::from(low));
        (length.round() as u32).clamp(1, data.max.max(1))
    };
    (0..n).map(length).collect()
}

struct Packed {
    count: f64,
    room: f64,
    squares: f64,
    own_packs: f64,
}

fn best_fit_decreasing(longest_first: &[u32], pack_length: u32) -> Packed {
    let packs =
        best_fit(longest_first.iter().copied(), pack_length).into_iter().max().map_or(0, |last| last + 1);
    let overlong = longest_first.iter().take_while(|length| **length > pack_length);
    let (own_packs, own_tokens) = overlong.fold((0, 0), |(n, sum), length| (n + 1, sum + u64::from(*length)));
    Packed {
        count: f64::from(packs),
        room: (u64::from(packs - own_packs) * u64::from(pack_length) + own_tokens) as f64,
        squares: longest_first.iter().map(|length| f64::from(*length).powi(2)).sum(),
        own_packs: f64::from(own_packs),
    }
}

fn stream(lengths: &[u32], pack_length: u32) -> Packed {
    let total: f64 = lengths.iter().map(|n| f64::from(*n)).sum();
    let width = f64::from(pack_length);
    // The start of an example in its pack is practically random, so the expected pieces are computed: an
    // example of q whole packs and a rest r is cut into pieces whose squares have this mean over all starts.
    let squares = lengths
        .iter()
        .map(|n| {
            let n = f64::from(*n);
            if n <= width {
                // One piece with probability 1 - n/w, otherwise two with a uniform cut: E = n² - n³/(3w).
                n * n - n * n * n / (3.0 * width)
            } else {
                // Two end pieces, uniform in (0, w), with E ≈ 2w²/3, and whole packs for the rest.
                2.0 * width * width / 3.0 + (n - width) * width
            }
        })
        .sum();
    let count = (total / width).ceil();
    Packed { count, room: total, squares, own_packs: 0.0 }
}

/// Returns points of the distribution, ascending in both coordinates: a length, and the share of the examples
/// that do not exceed it.
///
/// Bins may be wide (each twice the one before), so the quantiles of the report are points too.
fn knots(data: &DataFacts) -> Vec<(u32, f64)> {
    let total: f64 = data.histogram.iter().map(|bucket| bucket.count as f64).sum();
    let mut counted = 0.0;
    let mut knots = vec![(0, 0.0), (data.p50, 0.5), (data.p90, 0.9), (data.p99, 0.99)];
    for bucket in &data.histogram {
        counted += bucket.count as f64;
        knots.push((bucket.up_to, if total > 0.0 { counted / total } else { 0.0 }));
    }
    knots.retain(|(length, _)| *length < data.max);
    knots.push((data.max, 1.0));
    knots.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut highest: f64 = 0.0;
    for (_, share) in &mut knots {
        highest = highest.max(*share);
        *share = highest;
    }
    if knots.len() == 1 {
        knots.insert(0, (0, 0.0));
    }
    knots
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::facts::LengthBucket;

    fn uniform(examples: u64, max: u32) -> DataFacts {
        DataFacts {
            examples,
            total_tokens: examples * u64::from(max) / 2,
            target_tokens: examples * u64::from(max) / 4,
            p50: max / 2,
            p90: max / 10 * 9,
            p99: max / 100 * 99,
            max,
            histogram: (1..=10).map(|i| LengthBucket { up_to: max / 10 * i, count: examples / 10 }).collect(),
            ..DataFacts::default()
        }
    }

    #[test]
    fn long_packs_of_short_examples_are_nearly_full() {
        let lengths = Lengths::of(&uniform(20_000, 1000), u32::MAX);
        let packs = lengths.pack(8192, PackStrategy::Bfd);
        assert!(packs.waste < 0.01, "{packs:?}");
        assert!((packs.tokens / 10e6 - 1.0).abs() < 0.01, "{packs:?}");
        // Uniform lengths up to m have Σ n² / Σ n = 2m/3.
        assert!((packs.context - 667.0).abs() < 10.0, "{packs:?}");
    }

    #[test]
    fn an_example_over_the_pack_length_has_a_pack_of_its_own_under_bfd_and_is_cut_under_stream() {
        let lengths = Lengths::of(&uniform(1000, 1000), u32::MAX);
        let bfd = lengths.pack(500, PackStrategy::Bfd);
        assert!((bfd.own_packs - 500.0).abs() <= 2.0, "{bfd:?}");
        let stream = lengths.pack(500, PackStrategy::Stream);
        assert_eq!(stream.own_packs, 0.0);
        assert!(stream.context < bfd.context && (stream.count - 1000.0).abs() < 10.0, "{stream:?}");
    }

    #[test]
    fn an_epoch_of_several_sets_has_each_of_them_as_often_as_its_weight_says() {
        let (short, long) = (uniform(1000, 100), uniform(3000, 1000));
        let sets = |a, b| [(short.clone(), a), (long.clone(), b)];
        let lengths = Lengths::of_epoch(&sets(2.0, 0.5), u32::MAX);
        assert!((lengths.examples() - 3500.0).abs() < 1.0, "{}", lengths.examples());
        let packs = lengths.pack(4096, PackStrategy::Bfd);
        assert!((packs.tokens / (2.0 * 50e3 + 0.5 * 1500e3) - 1.0).abs() < 1e-6, "{packs:?}");
        assert!((lengths.quantile(0.5) as i64 - 90).abs() < 60, "{}", lengths.quantile(0.5));
        // A set alone is drawn as it always was.
        let alone = Lengths::of_epoch(&[(long.clone(), 1.0)], u32::MAX);
        assert_eq!(alone.lengths, Lengths::of(&long, u32::MAX).lengths);
        assert_eq!(Lengths::of_epoch(&sets(1.0, 1.0), 250).quantile(1.0), 250);
        assert_eq!(Lengths::of_epoch(&[], 250).examples(), 0.0);
    }

    #[test]
    fn every_example_begins_a_chunk_of_its_own() {
        let of = |lengths: &[u32]| Lengths::new(lengths.to_vec(), 1.0, 1.0);
        assert_eq!(of(&[64, 640]).chunks_per_token(), 1.0 / 64.0);
        let short = of(&[640, 20, 65]);
        assert_eq!(short.chunks_per_token(), 13.0 / 725.0);
        assert_eq!(short.up_to(65).chunks_per_token(), 3.0 / 85.0, "without the long one");
    }

    #[test]
    fn examples_over_the_limit_are_left_out() {
        let lengths = Lengths::of(&uniform(1000, 1000), 250);
        assert!((lengths.examples() - 250.0).abs() <= 2.0, "{}", lengths.examples());
    }

    #[test]
    fn the_expected_pieces_of_a_stream_are_those_of_a_real_cut() {
        let mut seed = 9u64;
        let lengths: Vec<u32> = (0..20_000)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                1 + ((seed >> 33) % 1500) as u32
            })
            .collect();
        let (mut at, mut squares) = (0u64, 0.0);
        for n in &lengths {
            let (mut from, end) = (at, at + u64::from(*n));
            while from < end {
                let to = end.min((from / 500 + 1) * 500);
                squares += ((to - from) as f64).powi(2);
                from = to;
            }
            at = end;
        }
        let expected = stream(&lengths, 500).squares;
        assert!((expected / squares - 1.0).abs() < 0.02, "{expected} {squares}");
    }

    #[test]
    fn bins_that_double_and_quantiles_predict_what_packing_the_real_lengths_gives() {
        let mut seed = 3u64;
        let mut uniform = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        for spread in [0.2, 0.5, 0.8] {
            let mut real: Vec<u32> = (0..2048)
                .map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0)
                .map(|normal| 1 + (2000.0 * (normal * spread).exp()) as u32)
                .collect();
            real.sort_unstable();
            let at = |percent: usize| real[real.len() * percent / 100];
            let bin = |i: u32| real.iter().filter(|n| n.ilog2() == i).count() as u64;
            let data = DataFacts {
                examples: real.len() as u64,
                total_tokens: real.iter().map(|n| u64::from(*n)).sum(),
                target_tokens: 1,
                p50: at(50),
                p90: at(90),
                p99: at(99),
                max: real[real.len() - 1],
                histogram: (0..20).map(|i| LengthBucket { up_to: (2u32 << i) - 1, count: bin(i) }).collect(),
                ..DataFacts::default()
            };
            let drawn = Lengths::of(&data, u32::MAX);
            let truth = Lengths::new(real, 1.0, 1.0);
            for length in [2048, 4096, 8192, 16384] {
                let (drawn, truth) =
                    (drawn.pack(length, PackStrategy::Bfd), truth.pack(length, PackStrategy::Bfd));
                assert!((drawn.waste - truth.waste).abs() < 0.05, "{spread} {length}: {drawn:?} {truth:?}");
                assert!(
                    (drawn.count / truth.count - 1.0).abs() < 0.05,
                    "{spread} {length}: {drawn:?} {truth:?}"
                );
                assert!(
                    (drawn.context / truth.context - 1.0).abs() < 0.1,
                    "{spread} {length}: {drawn:?} {truth:?}"
                );
                assert!(
                    (drawn.tokens / truth.tokens - 1.0).abs() < 1e-6,
                    "{spread} {length}: {drawn:?} {truth:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn any_report_gives_finite_packs_that_hold_all_tokens(
            examples in 0u64..1 << 40, total in 0u64..1 << 50, p in prop::array::uniform4(0u32..1 << 20),
            counts in prop::collection::vec((0u32..1 << 20, 0u64..1 << 40), 0..8), length in 0u32..1 << 20,
        ) {
            let data = DataFacts {
                examples, total_tokens: total, target_tokens: total, p50: p[0], p90: p[1], p99: p[2], max: p[3],
                histogram: counts.into_iter().map(|(up_to, count)| LengthBucket { up_to, count }).collect(),
                ..DataFacts::default()
            };
            for strategy in [PackStrategy::Bfd, PackStrategy::Stream] {
                let packs = Lengths::of(&data, u32::MAX).pack(length, strategy);
                prop_assert!(packs.count.is_finite() && packs.context.is_finite());
                prop_assert!((0.0..=1.0).contains(&packs.waste));
                prop_assert!(packs.count * f64::from(length.max(data.max).max(1)) >= packs.tokens * 0.999);
            }
        }
    }
}
