//! A hash of what a rank trains, which all ranks must have: weights, moments and the number of steps.
//!
//! After the same sums, ranks have the same norm of the gradients, which they compare in every step. That
//! says nothing of the weights: memory that has changed by itself, or a checkpoint that was read in another
//! way, is found by the hash. Ranks compare it when they have met, so that one that was healed is checked,
//! and before a checkpoint is written.

use sparktune_model::Param;

use crate::error::TrainError;
use crate::majority::who_differs;
use crate::optimizer::Optimizer;

/// The most numbers that are hashed before each checkpoint: with their moments 2.4 GB, about a second. The
/// adapters of any model are fewer.
pub(crate) const MOST_AT_CHECKPOINT: usize = 200_000_000;

/// Returns the hash of the trained parameters and their moments after so many steps.
pub(crate) fn state_hash(step: u64, trained: &[&Param], optimizer: &Optimizer) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&step.to_le_bytes());
    let mut sorted: Vec<&&Param> = trained.iter().collect();
    sorted.sort_by_key(|param| param.name());
    for param in sorted {
        hasher.update(param.name().as_bytes());
        hasher.update(bytemuck::cast_slice(&param.to_vec()));
        if let Some((first, second)) = optimizer.moments.get(param.name()) {
            let moments: [&_; 2] = [first, second];
            for moment in moments {
                hasher.update(moment.to_data().as_bytes());
            }
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Returns the number of trained numbers.
pub(crate) fn numbers(trained: &[&Param]) -> usize {
    trained.iter().map(|param| param.shape().iter().product::<usize>()).sum()
}

/// Checks that all ranks, named by the numbers that their launcher gave them, have the same hash after this
/// step.
///
/// # Errors
/// One of them has another one.
pub(crate) fn require_the_same(hashes: &[(usize, String)], step: u64) -> Result<(), TrainError> {
    match who_differs(hashes) {
        None => Ok(()),
        Some(who) => Err(TrainError::RanksDiffer {
            what: format!("after step {step}, weights or optimizer are not the same: {who}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};
    use sparktune_kernels::adamw::Moments;

    use super::*;

    #[test]
    fn one_other_bit_in_a_weight_or_a_moment_is_another_hash_and_names_the_rank() {
        let device = Device::flex();
        let tensor = |first: f32| Tensor::<2>::from_data([[first, 2.0]], &device);
        let param = |name: &str, first: f32| Param::new(name, &[1, 2], vec![first, 2.0], &device);
        let optimizer = |first: f32, second: f32| {
            let moments: Moments = (tensor(first), tensor(second));
            Optimizer { moments: [("a".to_owned(), moments)].into() }
        };
        let [a, b] = [param("a", 1.0), param("b", 3.0)];
        let hash = state_hash(4, &[&a, &b], &optimizer(5.0, 6.0));
        assert_eq!(state_hash(4, &[&b, &a], &optimizer(5.0, 6.0)), hash, "in any order");
        let next = |number: f32| f32::from_bits(number.to_bits() + 1);
        for (step, first, moments) in [
            (5, 1.0, (5.0, 6.0)),
            (4, next(1.0), (5.0, 6.0)),
            (4, 1.0, (next(5.0), 6.0)),
            (4, 1.0, (5.0, next(6.0))),
        ] {
            let other = state_hash(step, &[&param("a", first), &b], &optimizer(moments.0, moments.1));
            let all = [(0, hash.clone()), (1, hash.clone()), (5, other)];
            let error = require_the_same(&all, 4).unwrap_err().to_string();
            assert!(error.contains("rank 5 differs") && error.contains("after step 4"), "{error}");
        }
        assert!(require_the_same(&[(0, hash.clone()), (1, hash)], 4).is_ok());
        assert_eq!(numbers(&[&a, &b]), 4);
    }
}
