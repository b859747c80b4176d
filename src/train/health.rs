//! Judges a run by its losses: does the model learn, does it overfit, has it diverged?
//!
//! Pure: losses enter, and warnings leave, each kind once in a run. Everything that a judgement needs is part
//! of the checkpoint, so a resumed run warns as an uninterrupted one. It must not know models, files or
//! clocks.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sparktune_base::program_name;
use sparktune_base::units::{count, loss};
use sparktune_plan::Plan;

/// The number of first steps whose mean loss the later ones are compared with. They include the warm-up,
/// because a learning rate that is far too high already shows there.
const FIRST_STEPS: usize = 10;

/// The weight of the newest loss in the average, the same as in the charts.
const NEWEST: f64 = 0.1;

/// The number of consecutive steps above the limit after which a run has diverged. A single batch with a high
/// loss is not a divergence.
const STEPS_ABOVE: u32 = 10;

/// The number of consecutive evaluations with a higher loss that count as overfitting.
const RISES: u32 = 2;

/// A change of the loss on the eval set below this share is neither a rise nor a gain.
const UNCHANGED: f64 = 0.001;

/// The number of consecutive evaluations within [`LEVEL`] of an earlier one that count as a plateau.
const LEVEL_EVALS: u32 = 3;
const LEVEL: f64 = 0.005;

/// Returns the loss above which training has diverged, for a loss at its start. The margin keeps the noise of
/// a small loss below it.
fn limit(start: f64) -> f64 {
    (1.5 * start).max(start + 0.5)
}

/// A loss in nats, stored by its bits, so that a resumed run compares the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Nats(u64);

impl Nats {
    fn of(loss: f64) -> Self {
        Self(loss.to_bits())
    }

    fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The settings of a run that its warnings speak about.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Given {
    learning_rate: f64,
    /// Plans of older versions do not say it.
    recommended_rate: Option<f64>,
    early_stop_patience: Option<u32>,
}

impl Given {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self {
            learning_rate: plan.optimizer.learning_rate,
            recommended_rate: plan.advice.as_ref().and_then(|advice| advice.recommended_learning_rate),
            early_stop_patience: plan.eval.early_stop_patience,
        }
    }

    fn what_to_do_about_divergence(&self) -> String {
        match self.recommended_rate.filter(|recommended| self.learning_rate > *recommended) {
            Some(recommended) => format!(
                "Start a new run with the recommended --learning-rate {recommended:e} or a lower one; this run's is {:e}",
                self.learning_rate
            ),
            None => "Start a new run with a --learning-rate that is three to ten times lower".to_owned(),
        }
    }
}

/// The subjects of the warnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Subject {
    Divergence,
    Overfitting,
    Plateau,
    ZeroGradient,
}

/// The losses of a run so far, as far as judgements need them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Health {
    /// The losses of the first steps.
    first: Vec<Nats>,
    /// The moving average of the training loss.
    average: Option<Nats>,
    /// The number of consecutive steps whose loss and average are above the limit.
    steps_above: u32,
    /// Whether the training loss went above the limit and its average did not come back.
    is_above: bool,
    /// The loss on the eval set before the first step.
    base_eval: Option<Nats>,
    /// Whether the run started from weights that were trained already, whose loss that is then.
    has_parent: bool,
    last_eval: Option<Nats>,
    /// The number of consecutive evaluations with a higher loss than the one before.
    rises: u32,
    /// The evaluation that begins a level stretch, its step, and the number of evaluations in the stretch.
    level: Option<(Nats, u64, u32)>,
    /// The warnings that were given.
    warned: BTreeSet<Subject>,
}

impl Health {
    /// Takes the loss on the eval set before the first step, and whether the weights come from another run or
    /// adapter.
    pub(crate) fn base(&mut self, loss: f64, has_parent: bool) {
        self.has_parent = has_parent;
        self.base_eval = Some(Nats::of(loss));
        self.last_eval = self.base_eval;
    }

    /// Takes the loss of a training step. Returns a warning when it shows that the run has diverged.
    pub(crate) fn step(&mut self, nats: f64, given: Given) -> Option<String> {
        if self.first.len() < FIRST_STEPS {
            self.first.push(Nats::of(nats));
        }
        let before = self.average.map_or(nats, Nats::value);
        let average = before + NEWEST * (nats - before);
        self.average = Some(Nats::of(average));
        let start = self.start()?;
        if average <= limit(start) {
            (self.steps_above, self.is_above) = (0, false);
            return None;
        }
        self.steps_above = if nats > limit(start) { self.steps_above + 1 } else { 0 };
        if self.steps_above < STEPS_ABOVE {
            return None;
        }
        self.is_above = true;
        self.warn(Subject::Divergence, || {
            format!(
                "training diverges: the average loss is {}, far above that of the first {FIRST_STEPS} steps, {}. {}",
                loss(average),
                loss(start),
                given.what_to_do_about_divergence()
            )
        })
    }

    /// Takes the norm of the gradients of a training step. Returns a warning when they are all zero.
    pub(crate) fn gradients(&mut self, norm: f64) -> Option<String> {
        (norm == 0.0).then(|| self.warn(Subject::ZeroGradient, || {
            "all gradients of a step are zero, so it trained nothing. The base model's weights may be all zero: compare its files with the published ones, or download them again".to_owned()
        })).flatten()
    }

    /// Takes the loss on the eval set after `step` steps, of which `total` are planned. Returns the warnings
    /// that follow from it.
    pub(crate) fn evaluated(&mut self, step: u64, total: u64, nats: f64, given: Given) -> Vec<String> {
        let rose = self.last_eval.is_some_and(|last| nats > last.value() * (1.0 + UNCHANGED));
        self.rises = if rose { self.rises + 1 } else { 0 };
        self.last_eval = Some(Nats::of(nats));
        self.level = match self.level {
            Some((level, since, evals)) if (nats - level.value()).abs() <= LEVEL * level.value().abs() => {
                Some((level, since, evals + 1))
            }
            _ => Some((Nats::of(nats), step, 0)),
        };
        let warnings =
            [self.eval_diverged(nats, given), self.overfits(nats, given), self.is_level(step, total, given)];
        warnings.into_iter().flatten().collect()
    }

    fn eval_diverged(&mut self, nats: f64, given: Given) -> Option<String> {
        let base = self.base_eval.map(Nats::value).filter(|base| nats > limit(*base))?;
        let of_zero_line = self.of_zero_line();
        self.warn(Subject::Divergence, || {
            format!(
                "training diverges: the held-out loss is {}, far above {}, {}. {}",
                loss(nats),
                of_zero_line,
                loss(base),
                given.what_to_do_about_divergence()
            )
        })
    }

    fn overfits(&mut self, nats: f64, given: Given) -> Option<String> {
        if self.rises < RISES {
            return None;
        }
        self.warn(Subject::Overfitting, || {
            let end = match given.early_stop_patience {
                None => format!(
                    "Train for fewer epochs, or let --early-stop-patience {RISES} end the next run here; `{} stop` ends this one",
                    program_name()
                ),
                Some(patience) => format!(
                    "Train for fewer epochs. Early stopping ends this run after {patience} evaluations without a lower loss; `{} stop` ends it now",
                    program_name()
                ),
            };
            format!(
                "the model overfits: the held-out loss rose at {RISES} evaluations in a row, to {}. {end}, and `{} export --best` then exports its best weights",
                loss(nats),
                program_name()
            )
        })
    }

    /// Near the end of a run the learning rate is low and the loss is level anyway, so it is not mentioned.
    fn is_level(&mut self, step: u64, total: u64, given: Given) -> Option<String> {
        let (level, since, evals) = self.level?;
        let left = total.saturating_sub(step);
        if evals < LEVEL_EVALS || left < total / 4 {
            return None;
        }
        self.warn(Subject::Plateau, || {
            let next = match given.early_stop_patience {
                None => format!("; --early-stop-patience {LEVEL_EVALS} ends the next one by itself"),
                Some(_) => String::new(),
            };
            format!(
                "the held-out loss has stayed near {} since step {}, so the {} steps that are left may change little. `{} stop` ends the run after a checkpoint{next}",
                loss(level.value()),
                count(since),
                count(left),
                program_name()
            )
        })
    }

    /// Returns whose loss the one before the first step is.
    pub(crate) fn of_zero_line(&self) -> &'static str {
        if self.has_parent { "the parent's" } else { "the base model's" }
    }

    /// Returns the loss on the eval set before the first step.
    pub(crate) fn base_eval(&self) -> Option<f64> {
        self.base_eval.map(Nats::value)
    }

    /// Returns why the run counts as diverged with the losses so far, or `None` if it does not. `exported` is
    /// the loss of the exported weights on the eval set: if it is lower than the base's, the run has not
    /// failed, whatever came after them.
    pub(crate) fn diverged(&self, exported: Option<f64>, given: Given) -> Option<String> {
        if exported.zip(self.base_eval()).is_some_and(|(exported, base)| exported < base) {
            return None;
        }
        let evals = self.base_eval.zip(self.last_eval).map(|(base, last)| (base.value(), last.value()));
        let (what, last, start) = match (evals, self.average.zip(self.start())) {
            (Some((base, last)), _) if last > limit(base) => {
                ("held-out loss", last, (self.of_zero_line(), base))
            }
            (_, Some((average, start))) if self.is_above => {
                ("average loss", average.value(), ("that of the first steps", start))
            }
            _ => return None,
        };
        let (of, start) = start;
        Some(format!(
            "the {what} ended at {}, far above {of}, {}. {}",
            loss(last),
            loss(start),
            given.what_to_do_about_divergence()
        ))
    }

    /// Returns the mean loss of the first steps, once all of them are done.
    fn start(&self) -> Option<f64> {
        let sum: f64 = self.first.iter().map(|loss| loss.value()).sum();
        (self.first.len() == FIRST_STEPS).then_some(sum / FIRST_STEPS as f64)
    }

    fn warn(&mut self, subject: Subject, words: impl FnOnce() -> String) -> Option<String> {
        self.warned.insert(subject).then(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: Given =
        Given { learning_rate: 2e-4, recommended_rate: Some(2e-4), early_stop_patience: None };

    /// Returns the steps after which the training losses caused a warning.
    fn warned_at(health: &mut Health, losses: impl IntoIterator<Item = f64>) -> Vec<usize> {
        let warned =
            losses.into_iter().enumerate().filter_map(|(i, loss)| health.step(loss, GIVEN).map(|_| i + 1));
        warned.collect()
    }

    fn evaluated(losses: &[f64]) -> Vec<Vec<String>> {
        let mut health = Health::default();
        health.base(losses[0], false);
        (1..).zip(&losses[1..]).map(|(step, loss)| health.evaluated(step, 100, *loss, GIVEN)).collect()
    }

    /// The beginnings of the warnings, with the index of their evaluation.
    fn subjects(warnings: &[Vec<String>]) -> Vec<(usize, &str)> {
        let all = warnings.iter().enumerate();
        all.flat_map(|(i, said)| said.iter().map(move |words| (i + 1, words.split(':').next().unwrap())))
            .map(|(i, words)| (i, words.split(" has stayed").next().unwrap()))
            .collect()
    }

    #[test]
    fn a_loss_far_above_that_of_the_first_steps_is_a_divergence_and_is_told_once() {
        let mut health = Health::default();
        let losses = [vec![2.0; 10], vec![9.0; 40]].concat();
        // The average passes 3 at the second of them, and stays above for ten steps.
        assert_eq!(warned_at(&mut health, losses), [21]);
        let why = health.diverged(None, GIVEN).unwrap();
        assert!(why.contains("far above that of the first steps, 2.0000"), "{why}");
        assert!(why.contains("--learning-rate"), "{why}");
    }

    #[test]
    fn gradients_that_are_all_zero_are_told_once() {
        let mut health = Health::default();
        assert_eq!(health.gradients(1e-30), None);
        assert!(health.gradients(0.0).unwrap().contains("weights may be all zero"));
        assert_eq!(health.gradients(0.0), None);
    }

    #[test]
    fn neither_a_spike_nor_noise_nor_a_slow_fall_is_a_divergence() {
        let spike = [vec![2.0; 20], vec![60.0], vec![2.0; 40]].concat();
        let noise: Vec<f64> = (0..200).map(|i| if i % 2 == 0 { 0.02 } else { 0.3 }).collect();
        let falling: Vec<f64> = (0..200).map(|i| 4.0 / f64::from(i + 1)).collect();
        for losses in [spike, noise, falling] {
            let mut health = Health::default();
            assert_eq!(warned_at(&mut health, losses), [] as [usize; 0]);
            assert_eq!(health.diverged(None, GIVEN), None);
        }
    }

    #[test]
    fn a_run_that_recovers_has_not_diverged_in_the_end() {
        let mut health = Health::default();
        let losses = [vec![2.0; 10], vec![9.0; 20], vec![1.0; 60]].concat();
        assert_eq!(warned_at(&mut health, losses).len(), 1);
        assert_eq!(health.diverged(None, GIVEN), None);
    }

    #[test]
    fn a_short_run_is_judged_by_its_held_out_loss() {
        let mut health = Health::default();
        health.base(2.0, false);
        assert_eq!(warned_at(&mut health, [2.0, 5.0, 9.0]), [] as [usize; 0]);
        assert_eq!(health.diverged(None, GIVEN), None);
        let said = health.evaluated(3, 3, 9.0, GIVEN);
        assert!(said.len() == 1 && said[0].contains("base model's, 2.0000"), "{said:?}");
        assert!(health.diverged(Some(9.0), GIVEN).unwrap().contains("the base model's, 2.0000"));
        assert_eq!(
            health.diverged(Some(1.5), GIVEN),
            None,
            "weights that are better than the base were exported"
        );
    }

    #[test]
    fn two_rises_in_a_row_are_overfitting_and_a_single_one_is_not() {
        let overfits = "the model overfits";
        let said = evaluated(&[2.0, 1.5, 1.2, 1.25, 1.3, 1.35, 1.4]);
        assert_eq!(subjects(&said), [(4, overfits)], "only once");
        assert!(said[3][0].contains("--early-stop-patience") && said[3][0].contains("export --best"));
        assert!(subjects(&evaluated(&[2.0, 1.5, 1.6, 1.4, 1.5, 1.3])).is_empty());
        assert_eq!(subjects(&evaluated(&[2.0, 2.1, 2.2])), [(2, overfits)], "the base is the first of them");
    }

    #[test]
    fn a_level_loss_is_a_plateau_unless_the_run_is_about_to_end() {
        let plateau = "the held-out loss";
        let losses = [2.0, 1.5, 1.501, 1.499, 1.5, 1.5];
        let said = evaluated(&losses);
        assert_eq!(subjects(&said), [(4, plateau)]);
        assert!(said[3][0].contains("near 1.5000 since step 1, so the 96 steps"), "{said:?}");
        let mut health = Health::default();
        let late = (95..).zip(losses).flat_map(|(step, loss)| health.evaluated(step, 100, loss, GIVEN));
        assert_eq!(late.count(), 0);
        assert!(subjects(&evaluated(&[2.0, 1.5, 1.45, 1.4, 1.35, 1.3])).is_empty(), "it still falls");
    }

    #[test]
    fn health_that_went_through_a_checkpoint_judges_the_same() {
        let losses = [vec![2.0; 10], vec![9.1; 40]].concat();
        let (mut whole, mut parts) = (Health::default(), Health::default());
        for (i, loss) in (0_u64..).zip(losses) {
            assert_eq!(whole.step(loss, GIVEN), parts.step(loss, GIVEN), "step {i}");
            let text = serde_json::to_string(&parts).unwrap();
            parts = serde_json::from_str(&text).unwrap();
            assert_eq!(whole, parts);
            assert_eq!(
                whole.evaluated(i, 50, loss, GIVEN),
                parts.evaluated(i, 50, loss, GIVEN),
                "evaluation {i}"
            );
        }
        assert_eq!(serde_json::from_str::<Health>("{}").unwrap(), Health::default(), "an older checkpoint");
    }

    #[test]
    fn advice_does_not_name_what_the_run_has_already() {
        let losses = [2.0, 1.5, 1.5, 1.5, 1.5, 1.7, 1.9];
        let said = |given: Given| {
            let mut health = Health::default();
            health.base(losses[0], false);
            let said =
                (1..).zip(&losses[1..]).flat_map(|(step, loss)| health.evaluated(step, 100, *loss, given));
            said.collect::<Vec<_>>()
        };
        let without = said(GIVEN);
        assert!(without.len() == 2 && without.iter().all(|words| words.contains("--early-stop-patience")));
        let with = said(Given { early_stop_patience: Some(9), ..GIVEN });
        assert!(with.iter().all(|words| !words.contains("--early-stop-patience")), "{with:?}");
        assert!(with[1].contains("ends this run after 9 evaluations without a lower loss"), "{with:?}");
    }

    #[test]
    fn a_diverged_run_with_a_rate_above_the_recommended_one_is_told_that_one() {
        let advice = |learning_rate, recommended_rate| {
            Given { learning_rate, recommended_rate, ..GIVEN }.what_to_do_about_divergence()
        };
        let high = advice(0.5, Some(2e-4));
        assert!(high.contains("recommended --learning-rate 2e-4") && high.contains("is 5e-1"), "{high}");
        for lower in [advice(2e-4, Some(2e-4)), advice(1e-5, Some(2e-4)), advice(0.5, None)] {
            assert!(lower.contains("three to ten times lower"), "{lower}");
        }
    }
}
