//! Whether two models differ, prompt by prompt, or whether the difference is noise.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use sparktune_base::random::SplitMix64;
use sparktune_base::statistics::Mean;
use sparktune_base::units::counted;

use crate::answer::Answer;
use crate::model_answers::ModelAnswers;

/// The largest number of prompts that differ for which every assignment of signs is tried.
const EXACT_PAIRS: usize = 14;
/// The number of random assignments of signs where there are more.
const RESAMPLES: u32 = 20_000;
/// The seed of them, so that the same answers always give the same verdict.
const SEED: u64 = 20_261_124;
/// A difference that is as likely as this without any difference between the models is noise.
const LEVEL: f64 = 0.05;
/// The smallest number of pairs about which anything is said: five that all agree happen by chance once in
/// sixteen times, so fewer than six can never be told from noise.
const LEAST_PAIRS: usize = 6;
/// Sums of differences that are closer than this are equal: they are rounded in another order.
const ROUNDING: f64 = 1e-12;

/// What is compared between two answers to the same prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Whether the answer passes its checks.
    Passed,
    /// The mean score of its checks.
    Score,
    /// Its chrF against the reference.
    Chrf,
    /// The loss of a token of the reference, in nats. Less is better.
    ReferenceNats,
}

impl Measure {
    /// All measures, the most telling first.
    pub const ALL: [Self; 4] = [Self::Passed, Self::Score, Self::Chrf, Self::ReferenceNats];

    fn less_is_better(self) -> bool {
        matches!(self, Self::ReferenceNats)
    }

    /// Returns the largest difference that two answers can have.
    fn largest(self) -> f64 {
        match self {
            Self::Passed | Self::Score => 1.0,
            Self::Chrf => 100.0,
            Self::ReferenceNats => f64::INFINITY,
        }
    }

    /// Returns what it is in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Passed => "answers that pass",
            Self::Score => "score",
            Self::Chrf => "chrF",
            Self::ReferenceNats => "loss of the reference",
        }
    }

    /// Writes a difference with its unit.
    pub fn shown(self, difference: f64) -> String {
        let unit = match self {
            Self::Passed => " points",
            Self::ReferenceNats => " nats",
            Self::Score | Self::Chrf => "",
        };
        format!("{}{unit}", self.number(difference))
    }

    /// Writes an interval of differences, whose unit is known.
    pub fn shown_interval(self, (low, high): (f64, f64)) -> String {
        format!("{} to {}", self.number(low), self.number(high))
    }

    fn number(self, difference: f64) -> String {
        let number = match self {
            Self::Passed => format!("{:+.0}", difference * 100.0),
            Self::Score => format!("{difference:+.2}"),
            Self::Chrf => format!("{difference:+.1}"),
            Self::ReferenceNats => format!("{difference:+.3}"),
        };
        number.replace('-', "−")
    }
}

/// What a difference means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The model is better than the first one.
    Better,
    /// It is worse.
    Worse,
    /// Every prompt has the same value for both.
    Equal,
    /// The difference is as large as chance makes it.
    Noise,
    /// There are too few prompts to tell.
    TooFew,
}

/// The difference of one model from the first by one measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The name of the model.
    pub model: String,
    /// The name of the first model.
    pub against: String,
    /// What is compared.
    pub measure: Measure,
    /// The number of prompts that both have a value for.
    pub pairs: usize,
    /// The number of prompts where the model is better.
    pub better: usize,
    /// The number of prompts where it is worse.
    pub worse: usize,
    /// The mean of the differences: the model's value less the first one's.
    pub mean: f64,
    /// The 95 % interval of the mean; `None` if there are too few pairs.
    pub interval: Option<(f64, f64)>,
    /// How often a difference at least as large arises if both models are equally good, from the signs of the
    /// differences alone.
    pub p: f64,
    /// What it means.
    pub verdict: Verdict,
    /// The verdict in a sentence.
    pub words: String,
}

impl Answer {
    /// Returns what a measure says of this answer.
    pub fn value(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Passed => self.passed.map(|passed| if passed { 1.0 } else { 0.0 }),
            Measure::Score => self.score,
            Measure::Chrf => self.outcomes.iter().find(|outcome| outcome.kind == "chrf")?.value,
            Measure::ReferenceNats => {
                let reference = self.reference.filter(|reference| reference.tokens > 0)?;
                Some(reference.nats / reference.tokens as f64)
            }
        }
    }
}

/// Returns the differences of `model` from `first` by every measure that both have.
pub(crate) fn differences(first: &ModelAnswers, model: &ModelAnswers) -> Vec<Difference> {
    let by_measure = Measure::ALL.into_iter().filter_map(|measure| {
        let pairs: Vec<(f64, f64)> = first
            .answers
            .iter()
            .zip(&model.answers)
            .filter_map(|(first, own)| Some((own.value(measure)?, first.value(measure)?)))
            .collect();
        // A score of whole checks says what the share of those that pass says.
        let is_whole = |value: f64| value == 0.0 || value == 1.0;
        let says_no_more =
            measure == Measure::Score && pairs.iter().all(|(own, first)| is_whole(*own) && is_whole(*first));
        let is_given = !pairs.is_empty() && !says_no_more;
        is_given.then(|| Difference::of(&model.model.name, &first.model.name, measure, &pairs))
    });
    by_measure.collect()
}

impl Difference {
    /// Compares the values of a model with those of the first, `(own, first)` for each prompt.
    pub fn of(model: &str, against: &str, measure: Measure, pairs: &[(f64, f64)]) -> Self {
        let values: Vec<f64> = pairs.iter().map(|(own, first)| own - first).collect();
        let Mean { mean, half_width } = Mean::of(&values);
        let ordering = |value: &&f64| {
            let order = value.partial_cmp(&&0.0).unwrap_or(Ordering::Equal);
            if measure.less_is_better() { order.reverse() } else { order }
        };
        let better = values.iter().filter(|value| ordering(value) == Ordering::Greater).count();
        let worse = values.iter().filter(|value| ordering(value) == Ordering::Less).count();
        let most = measure.largest();
        let interval = half_width.map(|half| ((mean - half).max(-most), (mean + half).min(most)));
        let p = sign_flip_p(&values);
        let excludes_zero = interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0);
        let verdict = match () {
            () if pairs.len() < LEAST_PAIRS => Verdict::TooFew,
            () if better + worse == 0 => Verdict::Equal,
            () if p >= LEVEL || !excludes_zero => Verdict::Noise,
            () if (mean > 0.0) != measure.less_is_better() => Verdict::Better,
            () => Verdict::Worse,
        };
        let mut difference = Self {
            model: model.to_owned(),
            against: against.to_owned(),
            measure,
            pairs: pairs.len(),
            better,
            worse,
            mean,
            interval,
            p,
            verdict,
            words: String::new(),
        };
        difference.words = difference.in_words();
        difference
    }

    fn in_words(&self) -> String {
        let Self { model, against, measure, pairs, better, worse, mean, interval, p, verdict, .. } = self;
        let prompts = counted(*pairs as u64, "prompt");
        let what = measure.words();
        let size = measure.shown(*mean);
        let range = interval.map_or_else(String::new, |(low, high)| {
            format!(", 95 % interval {}", measure.shown_interval((low, high)))
        });
        let counts = format!("better on {better} and worse on {worse} of {prompts}");
        match verdict {
            Verdict::Better | Verdict::Worse => {
                let word = if *verdict == Verdict::Better { "better" } else { "worse" };
                format!("{model} is {word} than {against} ({what}: {size}{range}; {counts}; {})", chance(*p))
            }
            Verdict::Noise => format!(
                "the difference between {model} and {against} is noise ({what}: {size}{range}; {counts}; {})",
                chance(*p)
            ),
            Verdict::Equal => format!("{model} and {against} are equal on every prompt ({what}, {prompts})"),
            Verdict::TooFew => {
                let are = if *pairs == 1 { "is" } else { "are" };
                format!("{prompts} {are} too few to tell {model} from {against} ({what}: {size})")
            }
        }
    }
}

/// Writes how likely a difference is by chance.
fn chance(p: f64) -> String {
    if p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p:.3}") }
}

/// Returns the share of all assignments of signs to the differences whose sum is at least as far from zero:
/// Fisher's randomisation test of pairs. For differences of ±1 it is the exact test of McNemar. With more
/// than [`EXACT_PAIRS`] prompts that differ, random assignments stand for all, with a fixed seed.
fn sign_flip_p(values: &[f64]) -> f64 {
    let values: Vec<f64> = values.iter().copied().filter(|value| *value != 0.0).collect();
    if values.is_empty() {
        return 1.0;
    }
    let wanted = values.iter().sum::<f64>().abs() - ROUNDING;
    let is_as_far = |signs: u64| {
        let signed = values.iter().enumerate().map(|(i, v)| if signs >> i & 1 == 0 { *v } else { -v });
        signed.sum::<f64>().abs() >= wanted
    };
    if values.len() <= EXACT_PAIRS {
        let all = 1u64 << values.len();
        return (0..all).filter(|signs| is_as_far(*signs)).count() as f64 / all as f64;
    }
    let mut random = SplitMix64::new(SEED);
    let mut as_far = 0u32;
    for _ in 0..RESAMPLES {
        let mut sum = 0.0;
        for values in values.chunks(64) {
            let signs = random.next_u64();
            sum += values
                .iter()
                .enumerate()
                .map(|(i, v)| if signs >> i & 1 == 0 { *v } else { -v })
                .sum::<f64>();
        }
        as_far += u32::from(f64::abs(sum) >= wanted);
    }
    // The assignment that was observed is one of all.
    f64::from(as_far + 1) / f64::from(RESAMPLES + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(measure: Measure, pairs: &[(f64, f64)]) -> Difference {
        Difference::of("tuned", "base", measure, pairs)
    }

    fn passes(better: usize, worse: usize, ties: usize) -> Difference {
        let mut pairs = vec![(1.0, 0.0); better];
        pairs.extend(vec![(0.0, 1.0); worse]);
        pairs.extend(vec![(1.0, 1.0); ties]);
        difference(Measure::Passed, &pairs)
    }

    #[test]
    fn the_chance_of_passes_is_that_of_the_exact_test_of_mcnemar() {
        // 2 · Binom.cdf(k; n, 1/2), by hand.
        for (better, worse, p) in [(6, 0, 2.0 / 64.0), (5, 0, 2.0 / 32.0), (7, 1, 18.0 / 256.0), (3, 3, 1.0)]
        {
            assert!((passes(better, worse, 4).p - p).abs() < 1e-12, "{better}:{worse}");
        }
        // Random signs give the same to within their own error.
        let exact: f64 =
            2.0 * [1.0, 20.0, 190.0, 1140.0, 4845.0, 15_504.0].iter().sum::<f64>() / f64::from(1 << 20);
        assert!((passes(15, 5, 0).p - exact).abs() < 0.005, "{} and {exact}", passes(15, 5, 0).p);
    }

    #[test]
    fn a_verdict_needs_more_than_chance_and_says_so() {
        assert_eq!(passes(6, 0, 3).verdict, Verdict::Better);
        assert_eq!(passes(0, 6, 3).verdict, Verdict::Worse);
        let noise = passes(3, 2, 20);
        assert_eq!(noise.verdict, Verdict::Noise);
        assert!(noise.words.contains("is noise") && noise.words.contains("p = 1.000"), "{}", noise.words);
        assert_eq!(passes(5, 0, 1).verdict, Verdict::Noise);
        assert_eq!(passes(0, 0, 9).verdict, Verdict::Equal);
        assert_eq!(passes(5, 0, 0).verdict, Verdict::TooFew);
        assert!(passes(25, 0, 0).words.contains("p < 0.001"));
    }

    #[test]
    fn less_loss_is_better() {
        let pairs: Vec<(f64, f64)> = (0..8).map(|i| (1.0 + 0.01 * f64::from(i), 2.0)).collect();
        let found = difference(Measure::ReferenceNats, &pairs);
        assert_eq!((found.verdict, found.better, found.worse), (Verdict::Better, 8, 0));
        assert!(found.words.contains("−0.965 nats"), "{}", found.words);
    }
}
