//! The random choices of an epoch. They never change, because a resumed run must see the same batches.
//!
//! Each sequence of random numbers starts at the first 8 bytes of BLAKE3 over purpose, seed and epoch. Golden
//! values in the tests ensure this.

use sparktune_base::random::{GAMMA, SplitMix64, mix};

/// Returns the initial state of a sequence for this purpose.
pub(super) fn state(purpose: &str, seed: u64, epoch: u64) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("sparktune packing v1");
    hasher.update(&seed.to_le_bytes()).update(&epoch.to_le_bytes()).update(purpose.as_bytes());
    let hash = hasher.finalize();
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    u64::from_le_bytes(*first)
}

fn permutation(len: usize, state: u64) -> Vec<u32> {
    let len = u32::try_from(len).expect("examples and rows are counted in 32 bits");
    SplitMix64::new(state).permutation(len)
}

/// Returns the examples `0..examples` in the random order of one epoch.
pub fn epoch_order(examples: usize, seed: u64, epoch: u64) -> Vec<u32> {
    permutation(examples, state("examples", seed, epoch))
}

/// Returns the order in which an epoch's rows are trained.
pub(super) fn row_order(rows: usize, seed: u64, epoch: u64) -> Vec<u32> {
    permutation(rows, state("rows", seed, epoch))
}

/// Returns a predicate for the examples that `epoch` leaves out when `share` of all are dropped. The choices
/// are independent for each example and epoch.
pub fn dropped(share: f64, seed: u64, epoch: u64) -> impl Fn(u32) -> bool {
    let key = state("drop", seed, epoch);
    // An f64 represents 53 bits exactly.
    let below = share * (1u64 << 53) as f64;
    move |example| {
        let bits = mix(key.wrapping_add(GAMMA.wrapping_mul(u64::from(example) + 1)));
        ((bits >> 11) as f64) < below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orders_are_the_ones_of_the_first_release() {
        assert_eq!(epoch_order(10, 42, 0), [3, 8, 0, 4, 7, 6, 1, 2, 5, 9]);
        assert_eq!(epoch_order(10, 42, 1), [5, 6, 7, 1, 9, 0, 3, 2, 4, 8]);
        assert_eq!(row_order(10, 42, 0), [6, 8, 3, 5, 2, 9, 4, 7, 1, 0]);
        let hash = |order: Vec<u32>| blake3::hash(bytemuck::cast_slice(&order)).to_hex()[..16].to_owned();
        assert_eq!(hash(epoch_order(100_000, 7, 3)), "d10d600973c3616b");
        let dropped: Vec<u32> = (0..40).filter(|&i| dropped(0.25, 42, 0)(i)).collect();
        assert_eq!(dropped, [2, 4, 7, 9, 14, 17, 26, 27, 28, 33, 34, 37]);
    }

    #[test]
    fn every_permutation_of_four_comes_up_about_equally_often() {
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..24_000 {
            *counts.entry(epoch_order(4, 1, epoch)).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        // 1000 are expected with a standard deviation of 31; five of those are allowed on either side.
        assert!(counts.values().all(|count| (845..1155).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_dropped_share_is_the_share_asked_for_and_differs_by_epoch() {
        let drops = |epoch| {
            let dropped = dropped(0.05, 9, epoch);
            (0..100_000).filter(move |&i| dropped(i))
        };
        let (first, second): (Vec<u32>, Vec<u32>) = (drops(0).collect(), drops(1).collect());
        for share in [first.len(), second.len()] {
            assert!((4_650..5_350).contains(&share), "{share}");
        }
        let both = first.iter().filter(|i| second.contains(i)).count();
        assert!((170..330).contains(&both), "{both}");
    }
}
