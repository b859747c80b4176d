//! A side memory beside an MLP: corrections of its output that are found by its input.
//!
//! Keys are inputs of the MLP (after its norm) less their mean over ordinary text, scaled to length one,
//! because hidden states share a large common part. An entry answers when the cosine of its key and the
//! input reaches its threshold; if none does, the output stays as it is, bit for bit. Among the entries that
//! answer, the correction is their mean weighted by `softmax(β · cosine)`: one step of a modern Hopfield
//! network (Ramsauer et al. 2021, arXiv 2008.02217), with the deferral radius of GRACE (Hartvigsen et al.
//! 2023, arXiv 2211.11031).
//!
//! Shapes: `N` entries, `H` hidden_size. A name ends with the shape of its values.
#![expect(non_snake_case, reason = "names end with the shapes of their tensors")]

use burn::tensor::{Tensor, TensorData};

/// The inverse temperature of retrieval. Entries that answer have cosines near one, so it is large: an entry
/// whose cosine is less by 0.1 has 1/150 of the weight.
const BETA: f32 = 50.0;

/// The cosine from which two inputs are the same: the same tokens at the same places give one of 1 but for
/// rounding.
const SAME: f32 = 0.9999;

/// The keys whose cosines with an input are summed together. The sum of each goes on from number to number,
/// as if it were alone, and many of them keep the processor busy.
const TOGETHER: usize = 16;

/// The corrections of one MLP. All numbers are on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Codebook {
    mean_H: Vec<f32>,
    /// Keys of length one in groups: the first number of each key of a group, the second of each, and so on,
    /// `[⌈N/TOGETHER⌉, H, TOGETHER]`. Places without a key have zeros.
    groups: Vec<[f32; TOGETHER]>,
    /// Row by row.
    values_NH: Vec<f32>,
    thresholds_N: Vec<f32>,
}

impl Codebook {
    /// Creates a codebook. `mean_H` is the mean input of the MLP; `keys_NH` are inputs, which are centred and
    /// scaled here; `thresholds_N` are cosines.
    ///
    /// # Panics
    /// When the sizes do not fit each other.
    pub fn new(mean_H: Vec<f32>, mut keys_NH: Vec<f32>, values_NH: Vec<f32>, thresholds_N: Vec<f32>) -> Self {
        let (width, entries) = (mean_H.len(), thresholds_N.len());
        assert!(width > 0 && keys_NH.len() == entries * width && values_NH.len() == keys_NH.len());
        keys_NH.chunks_exact_mut(width).for_each(|key_H| centre(key_H, &mean_H));
        let mut groups = vec![[0.0; TOGETHER]; entries.div_ceil(TOGETHER) * width];
        for (n, key_H) in keys_NH.chunks_exact(width).enumerate() {
            let group = &mut groups[n / TOGETHER * width..][..width];
            group.iter_mut().zip(key_H).for_each(|(numbers, number)| numbers[n % TOGETHER] = *number);
        }
        Self { mean_H, groups, values_NH, thresholds_N }
    }

    /// Returns the width of keys and values.
    pub fn width(&self) -> usize {
        self.mean_H.len()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.thresholds_N.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.thresholds_N.is_empty()
    }

    /// Returns whether a cosine is that of the same input, but for rounding.
    pub fn is_same(cosine: f32) -> bool {
        cosine >= SAME
    }

    /// Returns whether a key is the same as an input of the MLP, but for rounding.
    pub fn has_key(&self, input_H: &[f32]) -> bool {
        /// Numbers that are compared first: most keys differ in those already.
        const FEW: usize = 8;
        /// Two vectors of length one differ by at most this in each number if their cosine is `SAME`:
        /// `√(2 − 2 · SAME)`.
        const APART: f32 = 0.015;
        let mut query_H = input_H.to_vec();
        centre(&mut query_H, &self.mean_H);
        (0..self.len()).any(|n| {
            let group = &self.groups[n / TOGETHER * self.width()..][..self.width()];
            let pairs = || group.iter().map(|numbers| numbers[n % TOGETHER]).zip(&query_H);
            let is_near = pairs().take(FEW).all(|(one, other)| (one - other).abs() < APART);
            is_near && Self::is_same(pairs().map(|(one, other)| one * other).sum())
        })
    }

    /// Returns the cosine of each key with an input of the MLP.
    pub fn cosines(&self, input_H: &[f32]) -> Vec<f32> {
        let mut query_H = input_H.to_vec();
        centre(&mut query_H, &self.mean_H);
        let of_group = |group: &[[f32; TOGETHER]]| {
            let mut sums = [0.0f32; TOGETHER];
            for (numbers, query) in group.iter().zip(&query_H) {
                for (sum, number) in sums.iter_mut().zip(numbers) {
                    *sum += number * query;
                }
            }
            sums
        };
        let mut cosines: Vec<f32> = self.groups.chunks_exact(self.width()).flat_map(of_group).collect();
        cosines.truncate(self.len());
        cosines
    }

    /// Returns the correction for an input of the MLP, or `None` if no entry answers.
    pub fn recall(&self, input_H: &[f32]) -> Option<Vec<f32>> {
        let cosines = self.cosines(input_H);
        let answers = || cosines.iter().zip(&self.thresholds_N).map(|(cosine, least)| cosine >= least);
        let best = cosines.iter().zip(answers()).filter(|(_, answers)| *answers).map(|(cosine, _)| *cosine);
        let best = best.fold(f32::NEG_INFINITY, f32::max);
        if best == f32::NEG_INFINITY {
            return None;
        }
        let (mut sum_H, mut total) = (vec![0.0; self.width()], 0.0);
        for ((value_H, cosine), answers) in
            self.values_NH.chunks_exact(self.width()).zip(&cosines).zip(answers())
        {
            if answers {
                let weight = (BETA * (cosine - best)).exp();
                total += weight;
                sum_H.iter_mut().zip(value_H).for_each(|(sum, value)| *sum += weight * value);
            }
        }
        sum_H.iter_mut().for_each(|sum| *sum /= total);
        Some(sum_H)
    }

    /// Adds the corrections for the rows of `input_TH` to `output_TH`. Each row is computed as if it were
    /// alone, on the host.
    pub(crate) fn correct(&self, input_TH: &Tensor<2>, output_TH: Tensor<2>) -> Tensor<2> {
        let inputs = input_TH.clone().inner().into_data().convert::<f32>();
        let inputs: Vec<f32> = inputs.try_to_vec().expect("was converted to f32");
        let recalled: Vec<Option<Vec<f32>>> =
            inputs.chunks_exact(self.width()).map(|input_H| self.recall(input_H)).collect();
        if recalled.iter().all(Option::is_none) {
            return output_TH;
        }
        let none_H = vec![0.0; self.width()];
        let rows: Vec<f32> =
            recalled.iter().flat_map(|row| row.as_ref().unwrap_or(&none_H).iter().copied()).collect();
        let data = TensorData::new(rows, [recalled.len(), self.width()]);
        let corrections = Tensor::<2>::from_data(data, &output_TH.device().inner());
        let dtype = output_TH.dtype();
        output_TH + corrections.cast(dtype)
    }
}

/// Subtracts the mean and scales to length one.
fn centre(key_H: &mut [f32], mean_H: &[f32]) {
    key_H.iter_mut().zip(mean_H).for_each(|(x, mean)| *x -= mean);
    let length = dot(key_H, key_H).sqrt();
    if length > 0.0 {
        key_H.iter_mut().for_each(|x| *x /= length);
    }
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Codebook {
        let keys = vec![3.0, 1.0, 1.0, 3.0];
        Codebook::new(vec![1.0, 1.0], keys, vec![10.0, 0.0, 0.0, 20.0], vec![0.9, 0.9])
    }

    #[test]
    fn an_entry_answers_for_its_key_and_no_entry_for_others() {
        let codebook = two();
        assert_eq!(codebook.recall(&[3.0, 1.0]), Some(vec![10.0, 0.0]));
        assert_eq!(codebook.recall(&[1.0, 9.0]), Some(vec![0.0, 20.0]), "only the direction counts");
        assert_eq!(codebook.recall(&[2.0, 2.0]), None, "45 degrees from both");
        assert_eq!(codebook.recall(&[1.0, 1.0]), None, "the mean has no direction");
        assert!(codebook.has_key(&[3.0, 1.0]) && codebook.has_key(&[3.001, 1.0]));
        assert!(!codebook.has_key(&[3.0, 1.2]) && !codebook.has_key(&[1.0, 1.0]));
    }

    #[test]
    fn cosines_of_many_keys_have_the_bits_that_each_has_alone() {
        let (width, entries) = (37, 2 * TOGETHER + 3);
        let number = |i: usize| ((i * 7919 % 1013) as f32 - 500.0) / 300.0;
        let keys: Vec<f32> = (0..entries * width).map(number).collect();
        let mean: Vec<f32> = (0..width).map(|i| number(i + 5) / 10.0).collect();
        let thresholds = vec![0.9; entries];
        let codebook = Codebook::new(mean.clone(), keys.clone(), keys.clone(), thresholds);
        let input: Vec<f32> = (0..width).map(|i| number(3 * i + 1)).collect();
        let found = codebook.cosines(&input);
        let alone = keys.chunks_exact(width).map(|key| {
            let (mut key, mut query) = (key.to_vec(), input.clone());
            centre(&mut key, &mean);
            centre(&mut query, &mean);
            dot(&key, &query)
        });
        assert_eq!(found, alone.collect::<Vec<f32>>());
    }

    #[test]
    fn entries_that_answer_together_are_weighted_by_how_near_they_are() {
        let keys = vec![1.0, 0.0, 0.96, 0.28];
        let codebook = Codebook::new(vec![0.0, 0.0], keys, vec![1.0, 0.0, 0.0, 1.0], vec![0.5, 0.5]);
        let found = codebook.recall(&[1.0, 0.0]).unwrap();
        let far = (-50.0f32 * 0.04).exp();
        assert!((found[0] - 1.0 / (1.0 + far)).abs() < 1e-5 && (found[1] - far / (1.0 + far)).abs() < 1e-5);
    }
}
