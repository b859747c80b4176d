//! Compares with the definition in f64, with tiles that are kept and tiles that are computed again.

use super::*;

/// Deterministic numbers in (−1, 1).
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

struct Case {
    hidden: Vec<f32>,
    weight: Vec<f32>,
    targets: Vec<u32>,
    h: usize,
    v: usize,
}

#[derive(Debug, PartialEq)]
struct Results {
    total: f64,
    losses: Vec<f32>,
    d_hidden: Vec<f32>,
    d_weight: Vec<f32>,
}

impl Case {
    fn new(r: usize, h: usize, v: usize) -> Self {
        let hidden = numbers(r * h, 1).into_iter().map(|x| 4.0 * x).collect();
        let targets = (0..r).map(|i| ((i * 7919 + v - 1) % v) as u32).collect();
        Self { hidden, weight: numbers(v * h, 2), targets, h, v }
    }

    /// Gradients go into buffers of NaN, or of ones if they are to be added.
    fn run(&self) -> Results {
        let mut d_hidden = vec![f32::NAN; self.hidden.len()];
        let mut d_weight = vec![1.0; self.weight.len()];
        let mut losses = vec![f32::NAN; self.targets.len()];
        let Self { hidden, weight, targets, h, v } = self;
        let (d, w) = (&mut d_hidden, &mut d_weight);
        let total = forward_backward(hidden, weight, targets, *h, *v, d, Some(w), Some(&mut losses));
        Results { total, losses, d_hidden, d_weight }
    }

    fn assert_matches_the_definition(&self) {
        let got = self.run();
        let (r, h, v) = (self.targets.len(), self.h, self.v);
        let (mut losses, mut d_hidden, mut d_weight) = (vec![0.0; r], vec![0.0; r * h], vec![1.0; v * h]);
        for (row, &target) in self.targets.iter().enumerate() {
            let x = &self.hidden[row * h..][..h];
            let dot = |w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
            let logits: Vec<f64> = self.weight.chunks_exact(h).map(dot).collect();
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
            losses[row] = lse - logits[target as usize];
            for (entry, logit) in logits.iter().enumerate() {
                let d = (logit - lse).exp() - f64::from(u8::from(entry == target as usize));
                for i in 0..h {
                    d_hidden[row * h + i] += d * f64::from(self.weight[entry * h + i]);
                    d_weight[entry * h + i] += d * f64::from(x[i]);
                }
            }
        }
        let total: f64 = losses.iter().sum();
        assert!((got.total - total).abs() <= 1e-6 * total.max(1.0), "{} against {total}", got.total);
        for (name, got, want) in [
            ("losses", &got.losses, &losses),
            ("d_hidden", &got.d_hidden, &d_hidden),
            ("d_weight", &got.d_weight, &d_weight),
        ] {
            let largest = want.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
            for (i, (&g, w)) in got.iter().zip(want).enumerate() {
                let error = (f64::from(g) - w).abs() / largest;
                assert!(error < 2e-6, "{name}[{i}] = {g} against {w} at [{r}, {h}] × {v}");
            }
        }
    }
}

#[test]
fn losses_and_gradients_match_the_definition_at_awkward_sizes() {
    for (r, h, v) in
        [(1, 1, 1), (1, 3, 2), (5, 7, 2047), (17, 12, 2048), (33, 5, 2049), (513, 4, 70), (1100, 3, 4100)]
    {
        Case::new(r, h, v).assert_matches_the_definition();
    }
}

#[test]
fn tiles_that_no_longer_fit_are_computed_again() {
    let case = Case::new(ROWS, 2, 32 * WIDTH + 5);
    assert!(ROWS * case.v * size_of::<f32>() > TILE_BYTES, "everything fits: nothing is tested");
    case.assert_matches_the_definition();
}

#[test]
fn a_frozen_head_and_the_loss_alone_give_the_same_bits() {
    let case = Case::new(600, 16, 5000);
    let all = case.run();
    let Case { hidden, weight, targets, h, v } = &case;
    let mut d_hidden = vec![f32::NAN; hidden.len()];
    let total = forward_backward(hidden, weight, targets, *h, *v, &mut d_hidden, None, None);
    assert!(total == all.total && d_hidden == all.d_hidden);
    let mut losses = vec![f32::NAN; targets.len()];
    assert_eq!(forward(hidden, weight, targets, *h, *v, Some(&mut losses)), total);
    assert_eq!(losses, all.losses);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let case = Case::new(600, 40, 5000);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.run())
    };
    let alone = run(1);
    assert!(alone == run(2) && alone == run(5));
}

#[test]
fn a_certain_prediction_costs_nothing_and_a_hopeless_one_stays_finite() {
    let (hidden, weight) = ([1.0, 0.0, 1.0, 0.0], [500.0, 0.0, -500.0, 0.0, 0.0, 1.0]);
    let mut losses = [f32::NAN; 2];
    let total = forward(&hidden, &weight, &[0, 1], 2, 3, Some(&mut losses));
    assert_eq!((total, losses), (1000.0, [0.0, 1000.0]));
}

#[test]
fn no_row_is_no_loss_and_no_gradient() {
    let mut d_weight = [3.0; 4];
    assert_eq!(forward_backward(&[], &[1.0; 4], &[], 2, 2, &mut [], Some(&mut d_weight), None), 0.0);
    assert_eq!(d_weight, [3.0; 4]);
}

#[test]
fn a_hidden_state_that_is_not_finite_makes_the_loss_nan() {
    let mut case = Case::new(3, 4, 10);
    case.hidden[5] = f32::NAN;
    assert!(case.run().total.is_nan());
}

#[test]
#[should_panic(expected = "outside the vocabulary of 2")]
fn a_target_past_the_vocabulary_is_refused() {
    forward(&[1.0], &[1.0, 2.0], &[2], 1, 2, None);
}
