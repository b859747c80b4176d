//! The numbers of edits are those of an independent implementation in numpy (`tests/peers/edits.py`).

use safetensors::SafeTensors;
use sparktune_model::Model;

use super::{facts, fixtures, model, prefixes, text};
use crate::key_statistics::KeyStatistics;
use crate::linear_algebra::Matrix;
use crate::low_rank::LowRank;
use crate::rome::{Site, memit, rome};
use crate::ultraedit::ultraedit;
use crate::update::{Metric, Softness, Weighting, key_factor};

const LAYER: usize = 0;

/// Returns a tensor of the golden file.
fn golden(name: &str) -> Matrix {
    let bytes = std::fs::read(fixtures().join("edits/qwen3.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).unwrap();
    let numbers: Vec<f64> = view
        .data()
        .chunks_exact(4)
        .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
        .collect();
    let columns = *view.shape().last().unwrap();
    Matrix::new(numbers.len() / columns, columns, numbers)
}

fn distance(found: &Matrix, expected: &Matrix) -> f64 {
    let pairs = || found.numbers().iter().zip(expected.numbers());
    let square: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
    (square / expected.numbers().iter().map(|b| b * b).sum::<f64>()).sqrt()
}

fn of_f32(rows: usize, numbers: &[f32]) -> Matrix {
    let numbers: Vec<f64> = numbers.iter().map(|number| f64::from(*number)).collect();
    Matrix::new(rows, numbers.len() / rows, numbers)
}

/// Returns `B A`.
fn product(change: &LowRank) -> Matrix {
    let b_HN = of_f32(change.b.len() / change.rank, &change.b);
    b_HN.times(&of_f32(change.rank, &change.a))
}

fn statistics(model: &Model) -> KeyStatistics {
    KeyStatistics::of(model, LAYER, &text(), &mut || true).unwrap()
}

#[test]
fn the_covariance_of_keys_is_that_of_numpy() {
    let model = model(&fixtures().join("others/qwen3"));
    let found = statistics(&model);
    assert_eq!(found.tokens, 12 * 48);
    assert!(distance(&found.covariance, &golden("covariance")) < 1e-5);
}

#[test]
fn rome_changes_the_weights_as_numpy_does_with_differences_for_gradients() {
    let mut model = model(&fixtures().join("others/qwen3"));
    let mut site = Site::new(LAYER, statistics(&model), prefixes());
    let change = rome(&mut model, &mut site, &facts(), &mut |_| true).unwrap();
    for (fact, key) in change.key_matrix().numbers().chunks_exact(64).enumerate() {
        let expected = golden(&format!("rome.key.{fact}"));
        let found = Matrix::new(1, 64, key.to_vec());
        let far = distance(&found, &Matrix::new(1, 64, expected.numbers().to_vec()));
        assert!(far < 1e-4, "key {fact}: {far:.1e}");
    }
    let far = distance(&product(&change), &golden("rome"));
    assert!(far < 2e-3, "{far:.1e}");
}

#[test]
fn memit_changes_the_weights_as_numpy_does_by_the_formula_of_the_paper() {
    let mut model = model(&fixtures().join("others/qwen3"));
    let mut site = Site::new(LAYER, statistics(&model), prefixes());
    site.kept = golden("earlier");
    let changes = memit(&mut model, &mut [site], &facts(), &mut |_| true).unwrap();
    let far = distance(&product(&changes[0]), &golden("memit"));
    assert!(far < 2e-3, "{far:.1e}");
}

#[test]
fn memit_spreads_values_over_layers_as_numpy_does() {
    let mut model = model(&fixtures().join("others/qwen3"));
    let mut sites = [0, 1].map(|layer| {
        let statistics = KeyStatistics::of(&model, layer, &text(), &mut || true).unwrap();
        Site::new(layer, statistics, prefixes())
    });
    let changes = memit(&mut model, &mut sites, &facts(), &mut |_| true).unwrap();
    for (layer, change) in changes.iter().enumerate() {
        let far = distance(&product(change), &golden(&format!("spread.{layer}")));
        assert!(far < 2e-3, "layer {layer}: {far:.1e}");
    }
}

#[test]
fn ultraedit_changes_the_weights_as_numpy_does_by_the_formula_of_the_paper() {
    let model = model(&fixtures().join("others/qwen3"));
    let changes = ultraedit(&model, &[0, 1], &facts(), &[], &mut |_| true).unwrap();
    for (layer, change) in changes.iter().enumerate() {
        let far = distance(&product(change), &golden(&format!("ultraedit.{layer}")));
        assert!(far < 2e-3, "layer {layer}: {far:.1e}");
    }
}

#[test]
fn the_projection_of_alphaedit_is_that_of_the_papers_formula() {
    let model = model(&fixtures().join("others/qwen3"));
    let metric = Metric::null_space(&statistics(&model), 0.3, &mut || true).unwrap();
    let (keys, deltas) = (golden("memit.keys"), golden("memit.deltas"));
    let mut weighting = Weighting::new(metric, keys.columns());
    let a_NI = key_factor(&keys, &golden("earlier"), &mut weighting, Softness::Small).unwrap();
    let far = distance(&product(&LowRank::new(LAYER, &deltas, &a_NI, &keys)), &golden("alphaedit"));
    assert!(far < 2e-3, "{far:.1e}");
}
