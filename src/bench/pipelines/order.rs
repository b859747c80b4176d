//! Which examples each step has. It depends on the seed and on what is dropped, and on no pipeline.

use sparktune_base::random::mix;
use sparktune_data::packing::{dropped, epoch_order};

/// Returns the examples of each step: `batch` of them, over as many epochs as it takes. What remains of an
/// epoch is in a step with the first of the next one. Each epoch leaves out another share of `drop`.
pub(crate) fn steps(examples: usize, seed: u64, drop: f64, batch: usize, steps: usize) -> Vec<Vec<u32>> {
    let needed = batch * steps;
    let mut order = Vec::with_capacity(needed);
    let mut epoch = 0;
    while order.len() < needed && examples > 0 {
        let dropped = dropped(drop, seed, epoch);
        order.extend(epoch_order(examples, seed, epoch).into_iter().filter(|example| !dropped(*example)));
        epoch += 1;
    }
    order.truncate(needed);
    order.chunks(batch.max(1)).map(<[u32]>::to_vec).collect()
}

/// Returns a hash of the examples in their order, in hex.
pub(crate) fn hash(steps: &[Vec<u32>]) -> String {
    let of_step = |hash, step: &Vec<u32>| {
        step.iter().fold(mix(hash), |hash, example| mix(hash ^ u64::from(*example).wrapping_add(1)))
    };
    format!("{:016x}", steps.iter().fold(0, of_step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_comes_once_before_any_comes_again() {
        let steps = steps(7, 3, 0.0, 2, 10);
        assert!(steps.len() == 10 && steps.iter().all(|step| step.len() == 2));
        let order: Vec<u32> = steps.concat();
        for epoch in order.chunks_exact(7) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6]);
        }
    }

    #[test]
    fn dropping_leaves_out_about_its_share_and_keeps_the_order_of_the_others() {
        let all = steps(1000, 5, 0.0, 1, 1000).concat();
        let kept = steps(1000, 5, 0.05, 1, 930).concat();
        let mut places = kept.iter().map(|example| all.iter().position(|one| one == example).unwrap());
        assert!(places.clone().is_sorted() && places.next().is_some());
        let last = all.iter().position(|one| one == kept.last().unwrap()).unwrap();
        assert!((950..1000).contains(&last), "{last}");
    }

    #[test]
    fn the_hash_tells_orders_apart() {
        assert_eq!(hash(&steps(9, 1, 0.0, 2, 4)), hash(&steps(9, 1, 0.0, 2, 4)));
        assert_ne!(hash(&steps(9, 1, 0.0, 2, 4)), hash(&steps(9, 2, 0.0, 2, 4)));
        assert_ne!(hash(&[vec![1, 2], vec![3]]), hash(&[vec![1], vec![2, 3]]));
    }
}
