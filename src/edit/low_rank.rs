//! A change of `down_proj` as two factors, in files and on a model.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use sparktune_data::packets::numbers::Numbers;
use sparktune_model::Model;

use crate::linear_algebra::Matrix;

/// The change `B A` of the `down_proj` of a layer, of rank at most `N`.
///
/// In a file its tensors have the names that PEFT gives to the factors of an adapter:
/// `layers.3.mlp.down_proj.lora_A.weight` `[N, I]` and `.lora_B.weight` `[H, N]`; `.keys` `[N, I]` are the
/// keys that it was made for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LowRank {
    /// The layer.
    pub layer: usize,
    /// `N`.
    pub rank: usize,
    /// `A`, row by row.
    pub a: Vec<f32>,
    /// `B`, row by row.
    pub b: Vec<f32>,
    /// The keys, row by row.
    pub keys: Vec<f32>,
}

impl LowRank {
    pub(crate) fn new(layer: usize, deltas_NH: &Matrix, a_NI: &Matrix, keys_NI: &Matrix) -> Self {
        let narrow = |matrix: &Matrix| matrix.numbers().iter().map(|number| *number as f32).collect();
        let (rank, width) = (deltas_NH.rows(), deltas_NH.columns());
        let b = (0..width).flat_map(|h| (0..rank).map(move |n| deltas_NH.row(n)[h] as f32)).collect();
        Self { layer, rank, a: narrow(a_NI), b, keys: narrow(keys_NI) }
    }

    /// Adds the factors of another change of the same layer.
    pub(crate) fn append(&mut self, other: &Self) {
        let rows = self.b.chunks_exact(self.rank).zip(other.b.chunks_exact(other.rank));
        self.b = rows.flat_map(|(one, other)| one.iter().chain(other).copied().collect::<Vec<_>>()).collect();
        self.a.extend(&other.a);
        self.keys.extend(&other.keys);
        self.rank += other.rank;
    }

    /// Returns the change multiplied by a factor.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let b = self.b.iter().map(|number| (f64::from(*number) * factor) as f32).collect();
        Self { b, ..self.clone() }
    }

    /// Returns the same change with a rank of at most the smaller width of the layer, `[H, I]`: beyond that
    /// the product and the identity are its factors.
    pub(crate) fn within(self, [width, inner]: [usize; 2]) -> Self {
        let smaller = width.min(inner);
        if self.rank <= smaller {
            return self;
        }
        let mut product = vec![0.0f64; width * inner];
        for (row, factors) in product.chunks_exact_mut(inner).zip(self.b.chunks_exact(self.rank)) {
            for (factor, a) in factors.iter().zip(self.a.chunks_exact(inner)) {
                let factor = f64::from(*factor);
                row.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * f64::from(*a));
            }
        }
        let product: Vec<f32> = product.into_iter().map(|number| number as f32).collect();
        let mut identity = vec![0.0; smaller * smaller];
        identity.iter_mut().step_by(smaller + 1).for_each(|one| *one = 1.0);
        let (a, b) = if smaller == width { (product, identity) } else { (identity, product) };
        Self { rank: smaller, a, b, ..self }
    }

    /// Returns `A` and `B` for a larger rank, with zeros, for a layer `[H, I]`.
    pub(crate) fn padded(&self, rank: usize, [width, inner]: [usize; 2]) -> [Vec<f32>; 2] {
        let mut a = self.a.clone();
        a.resize(rank * inner, 0.0);
        let mut b = vec![0.0; width * rank];
        for (wide, narrow) in b.chunks_exact_mut(rank).zip(self.b.chunks_exact(self.rank)) {
            wide[..self.rank].copy_from_slice(narrow);
        }
        [a, b]
    }

    /// Returns its keys, `[N, I]`.
    pub(crate) fn key_matrix(&self) -> Matrix {
        let numbers: Vec<f64> = self.keys.iter().map(|number| f64::from(*number)).collect();
        Matrix::new(self.rank, numbers.len() / self.rank.max(1), numbers)
    }

    /// Returns whether its factors and keys are those of one change, whatever model it belongs to.
    pub(crate) fn is_whole(&self) -> bool {
        let is_of_rank = |numbers: &[f32]| !numbers.is_empty() && numbers.len().is_multiple_of(self.rank);
        self.rank > 0 && is_of_rank(&self.a) && is_of_rank(&self.b) && self.keys.len() == self.a.len()
    }

    /// Returns whether its sizes are those of the layer of a model.
    pub(crate) fn fits(&self, layers: usize, width: usize, inner: impl FnOnce(usize) -> usize) -> bool {
        self.layer < layers
            && self.rank > 0
            && Some(self.b.len()) == self.rank.checked_mul(width)
            && Some(self.a.len()) == self.rank.checked_mul(inner(self.layer))
            && self.keys.len() == self.a.len()
    }

    /// Adds the change to the weight of a model, in f64.
    pub(crate) fn add_to(&self, model: &mut Model) {
        let weight = &mut model.down_proj_mut(self.layer).weight;
        let inner = weight.shape()[1];
        let mut numbers = weight.to_vec();
        let a: Vec<f64> = self.a.iter().map(|number| f64::from(*number)).collect();
        for (row, factors) in numbers.chunks_exact_mut(inner).zip(self.b.chunks_exact(self.rank)) {
            let mut sums: Vec<f64> = row.iter().map(|number| f64::from(*number)).collect();
            for (factor, a) in factors.iter().zip(a.chunks_exact(inner)) {
                let factor = f64::from(*factor);
                sums.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * a);
            }
            row.iter_mut().zip(sums).for_each(|(number, sum)| *number = sum as f32);
        }
        let shape = [weight.shape()[0], inner];
        let device = weight.tensor().device().inner();
        weight.put(Tensor::from_data(TensorData::new(numbers, shape), &device), false);
    }

    /// Returns its tensors.
    pub(crate) fn tensors(&self) -> [Numbers; 3] {
        let rank = self.rank as u64;
        let tensor = |part: &str, shape: [u64; 2], values: &[f32]| Numbers {
            name: format!("layers.{}.mlp.down_proj.{part}", self.layer),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        let per_rank = |values: &[f32]| values.len() as u64 / rank;
        [
            tensor("lora_A.weight", [rank, per_rank(&self.a)], &self.a),
            tensor("lora_B.weight", [per_rank(&self.b), rank], &self.b),
            tensor("keys", [rank, per_rank(&self.keys)], &self.keys),
        ]
    }

    /// Returns the changes among tensors, by layer. Other tensors are ignored.
    pub(crate) fn of_tensors(tensors: &[Numbers]) -> Vec<Self> {
        let mut by_layer: BTreeMap<usize, Self> = BTreeMap::new();
        for tensor in tensors {
            let place =
                tensor.name.strip_prefix("layers.").and_then(|rest| rest.split_once(".mlp.down_proj."));
            let Some((layer, part)) = place else { continue };
            let Ok(layer) = layer.parse() else { continue };
            let change = by_layer.entry(layer).or_insert_with(|| Self { layer, ..Self::default() });
            let values = tensor.values.clone();
            match part {
                "lora_A.weight" => {
                    change.rank = tensor.shape.first().map_or(0, |rank| *rank as usize);
                    change.a = values;
                }
                "lora_B.weight" => change.b = values,
                "keys" => change.keys = values,
                _ => {}
            }
        }
        by_layer.into_values().collect()
    }
}
