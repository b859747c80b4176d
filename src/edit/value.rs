//! The values that make a model answer with a target: ROME's section 3.2, for one or several places.
//!
//! Changes `δ` of the output of `down_proj` at some places of a sequence are found by gradient descent
//! (Adam), through burn's autodiff. The loss is the mean of the target's losses, plus `kl_factor · KL` of
//! what the model says of the subject otherwise (right behind the subject, where the change is; ROME asks
//! behind "{subject} is a"), plus `decay · ‖δ‖² / ‖v₀‖²`. Each `δ` stays within
//! `clamp · ‖v₀‖`, where `v₀` is the output that it is added to. What was found is shortened as long as the
//! model still answers with the target.

use burn::tensor::{Tensor, TensorData, activation};
use sparktune_kernels::linear_cross_entropy::{Targets, linear_cross_entropy};
use sparktune_model::{Downstream, Model, PackedSequence};

use crate::error::EditError;
use crate::host::host;

/// How values are searched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Search {
    /// The most steps.
    pub steps: usize,
    /// The loss of the target at which the search ends, in nats for each token.
    pub enough: f64,
    /// The size of a step in root mean squares of `v₀`.
    pub rate: f64,
    /// The largest size of `δ` in sizes of `v₀`.
    pub clamp: f64,
    /// The weight of the size of `δ`. ROME has 0.5 of its norm; the square has a gradient at zero.
    pub decay: f64,
    /// The weight of what the model says of the subject otherwise.
    pub kl_factor: f64,
    /// The loss of the target, in nats for each token, that the change still has when it is shortened; 0
    /// leaves it as it was found.
    pub short: f64,
}

impl Search {
    /// As ROME: a change at one early place that all later layers read.
    pub(crate) const ROME: Self =
        Self { steps: 60, enough: 0.02, rate: 0.5, clamp: 4.0, decay: 0.05, kl_factor: 0.0625, short: 0.05 };
}

/// A sequence with places to change.
pub(crate) struct Places {
    /// The sequence, whose loss mask is the target.
    pub sequence: PackedSequence,
    /// The rows of each change. The first change also holds at the row of `subject`.
    pub rows: Vec<Vec<usize>>,
    /// The row after which the model says what else it knows of the subject.
    pub subject: Option<usize>,
}

/// What the MLP computes at the places before any change: means over the rows of each.
pub(crate) struct Before {
    /// Inputs of the MLP, `[N, H]`.
    pub inputs: Vec<Vec<f64>>,
    /// Keys, `[N, I]`.
    pub keys: Vec<Vec<f64>>,
    /// Values, `[N, H]`.
    pub values: Vec<Vec<f64>>,
}

impl Places {
    /// Returns what the MLP of a layer computes at the places.
    pub(crate) fn before(&self, model: &Model, layer: usize) -> Before {
        let tap = model.mlp_at(layer, &self.sequence);
        Before {
            inputs: self.means(tap.input_TH),
            keys: self.means(tap.key_TI),
            values: self.means(tap.output_TH),
        }
    }

    /// Returns the mean rows of a tensor `[T, W]` at the places, `[N, W]`.
    pub(crate) fn means(&self, tensor: Tensor<2>) -> Vec<Vec<f64>> {
        let width = tensor.dims()[1];
        let numbers = host(tensor);
        let mean = |rows: &Vec<usize>| {
            let mut sums = vec![0.0; width];
            for row in rows {
                let row = &numbers[row * width..][..width];
                sums.iter_mut().zip(row).for_each(|(sum, number)| *sum += f64::from(*number));
            }
            sums.iter_mut().for_each(|sum| *sum /= rows.len() as f64);
            sums
        };
        self.rows.iter().map(mean).collect()
    }

    /// Returns the rows at which anything is changed.
    fn changed(&self) -> Vec<usize> {
        self.rows.iter().flatten().chain(&self.subject).copied().collect()
    }

    /// Returns the rows whose predictions are asked for.
    fn read(&self) -> Vec<usize> {
        self.sequence.targets.rows.iter().map(|row| *row as usize).chain(self.subject).collect()
    }

    /// Returns the matrix `[A, N]` that puts each change at its rows, of those that are computed.
    fn selection(&self, computed: &[usize], model: &Model) -> Tensor<2> {
        let changes = self.rows.len();
        let mut ones = vec![0.0f32; computed.len() * changes];
        for (row, ones) in computed.iter().zip(ones.chunks_exact_mut(changes)) {
            for (one, rows) in ones.iter_mut().zip(&self.rows) {
                *one = f32::from(u8::from(rows.contains(row)));
            }
            if self.subject == Some(*row) {
                ones[0] = 1.0;
            }
        }
        let data = TensorData::new(ones, [computed.len(), changes]);
        Tensor::from_data(data, &model.device().clone().inner())
    }
}

/// Finds the changes of the values at the places, `[N, H]`, with which the model answers with the target. The
/// model must be frozen.
///
/// # Errors
/// The loss is not finite, or `go_on`, asked before each step, says no.
pub(crate) fn find_values(
    model: &Model,
    layer: usize,
    places: &Places,
    before: &Before,
    search: Search,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<Vec<f64>>, EditError> {
    let mut descent = Descent::new(&before.values, search);
    let targets = places.sequence.target_tokens() as f64;
    let head = model.head().tensor;
    let downstream = Downstream::new(model, layer, &places.sequence, &places.changed(), &places.read());
    let selection = places.selection(&downstream.computed().collect::<Vec<_>>(), model);
    let place = |row: u32| downstream.place(row as usize) as u32;
    let Targets { rows, tokens } = &places.sequence.targets;
    let predicted = Targets { rows: rows.iter().map(|row| place(*row)).collect(), tokens: tokens.clone() };
    let subject = places.subject.map(|row| downstream.place(row));
    let run = |delta: &Tensor<2>| {
        let hidden = downstream.hidden(selection.clone().autodiff().matmul(delta.clone()));
        let of_target = linear_cross_entropy(hidden.clone(), head.clone(), &predicted, 1.0 / targets);
        let loss = f64::from(of_target.clone().inner().into_scalar::<f32>());
        (hidden, of_target, loss)
    };
    let mut unchanged_says = None;
    loop {
        if !go_on() {
            return Err(EditError::Stopped);
        }
        let delta = descent.tensor(model).autodiff().require_grad();
        let (hidden, of_target, loss) = run(&delta);
        if !loss.is_finite() {
            return Err(EditError::request(
                "the loss of a target is not finite, so the weights are damaged or the model cannot read the prompt",
                "Choose another model or prompt",
            ));
        }
        if loss < search.enough || descent.steps == search.steps {
            let tried = |share: f64| run(&descent.shortened(share, model).autodiff()).2;
            return Ok(descent.scaled(shortest(loss, search.short, tried)));
        }
        let mut total = of_target;
        if let Some(row) = subject.filter(|_| search.kl_factor > 0.0) {
            let logits = hidden.narrow(0, row, 1).matmul(head.clone().autodiff().transpose());
            let says = activation::log_softmax(logits, 1);
            let before = unchanged_says.get_or_insert_with(|| says.clone().inner()).clone();
            let divergence = (says.clone().exp() * (says - before.autodiff())).sum().reshape([1, 1]);
            total = total + divergence.mul_scalar(search.kl_factor);
        }
        if search.decay > 0.0 {
            let sizes = descent.inverse_squares(model).autodiff();
            let size = (delta.clone() * delta.clone() * sizes).sum().reshape([1, 1]);
            total = total + size.mul_scalar(search.decay);
        }
        let mut gradients = total.backward();
        let gradient = delta.grad_remove(&mut gradients).expect("the loss depends on the change");
        descent.step(&host(gradient));
    }
}

/// Returns the least share of a change, by halving, with which the loss is still below a limit; all of it if
/// it is above. The search goes on in steps of half the output's size, so it ends well
/// behind the place where the target is said, and a longer change does more to other keys: of 100 facts,
/// shorter values left 97 % of other answers as they were instead of 84 %
/// (tests/fixtures/facts/RESULTS.md).
fn shortest(loss: f64, limit: f64, tried: impl Fn(f64) -> f64) -> f64 {
    const HALVINGS: usize = 5;
    let (mut short, mut long) = (0.0, 1.0);
    for _ in 0..if loss < limit { HALVINGS } else { 0 } {
        let share = f64::midpoint(short, long);
        if tried(share) < limit {
            long = share;
        } else {
            short = share;
        }
    }
    long
}

/// Adam on the host, each change within a ball.
struct Descent {
    deltas: Vec<Vec<f64>>,
    moments: Vec<Vec<[f64; 2]>>,
    /// `‖v₀‖²` of each change.
    squares: Vec<f64>,
    steps: usize,
    search: Search,
}

impl Descent {
    fn new(before: &[Vec<f64>], search: Search) -> Self {
        // An MLP without an output at a place still gets a value there.
        let square = |value: &Vec<f64>| value.iter().map(|x| x * x).sum::<f64>().max(1e-6);
        Self {
            deltas: before.iter().map(|value| vec![0.0; value.len()]).collect(),
            moments: before.iter().map(|value| vec![[0.0; 2]; value.len()]).collect(),
            squares: before.iter().map(square).collect(),
            steps: 0,
            search,
        }
    }

    fn tensor(&self, model: &Model) -> Tensor<2> {
        self.rows(model, self.deltas.concat())
    }

    /// Returns a share of each change.
    fn scaled(&self, share: f64) -> Vec<Vec<f64>> {
        self.deltas.iter().map(|delta| delta.iter().map(|x| x * share).collect()).collect()
    }

    fn shortened(&self, share: f64, model: &Model) -> Tensor<2> {
        self.rows(model, self.scaled(share).concat())
    }

    /// Returns `1 / ‖v₀‖²` for each number of each change.
    fn inverse_squares(&self, model: &Model) -> Tensor<2> {
        let rows = self.deltas.iter().zip(&self.squares);
        self.rows(model, rows.flat_map(|(delta, square)| vec![1.0 / square; delta.len()]).collect())
    }

    fn rows(&self, model: &Model, numbers: Vec<f64>) -> Tensor<2> {
        let width = numbers.len() / self.deltas.len();
        let numbers: Vec<f32> = numbers.into_iter().map(|number| number as f32).collect();
        let data = TensorData::new(numbers, [self.deltas.len(), width]);
        Tensor::from_data(data, &model.device().clone().inner())
    }

    fn step(&mut self, gradients: &[f32]) {
        const BETAS: [f64; 2] = [0.9, 0.999];
        self.steps += 1;
        let corrections = BETAS.map(|beta| 1.0 - beta.powi(self.steps as i32));
        let mut gradients = gradients.iter();
        for ((delta, moments), square) in self.deltas.iter_mut().zip(&mut self.moments).zip(&self.squares) {
            let rate = self.search.rate * (square / delta.len() as f64).sqrt();
            for ((x, [mean, variance]), gradient) in delta.iter_mut().zip(moments).zip(&mut gradients) {
                let gradient = f64::from(*gradient);
                *mean += (1.0 - BETAS[0]) * (gradient - *mean);
                *variance += (1.0 - BETAS[1]) * (gradient * gradient - *variance);
                *x -= rate * (*mean / corrections[0]) / ((*variance / corrections[1]).sqrt() + 1e-8);
            }
            let length = delta.iter().map(|x| x * x).sum::<f64>().sqrt();
            let most = self.search.clamp * square.sqrt();
            if length > most {
                delta.iter_mut().for_each(|x| *x *= most / length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shortest;

    #[test]
    fn a_change_is_shortened_as_long_as_the_loss_stays_low_and_only_if_it_was() {
        let falls = |share: f64| 1.0 - share;
        let share = shortest(0.0, 0.5, falls);
        assert!((0.5..0.54).contains(&share) && falls(share) < 0.5, "{share}");
        assert_eq!(shortest(0.0, 2.0, falls), 1.0 / 32.0, "a change that is not needed nearly goes");
        assert_eq!(shortest(0.6, 0.5, falls), 1.0);
        assert_eq!(shortest(0.01, 0.0, falls), 1.0);
    }
}
