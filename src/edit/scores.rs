//! What an edit comes to: shares of answers with their intervals, the change of the loss, and the limits
//! beyond which an edit is not worth keeping.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sparktune_base::statistics::{Mean, wilson};
use sparktune_base::units::counted;

use crate::clusters::wilson_of_groups;
use crate::judge::{Aspect, DocumentLoss, Probe};

/// Rounds to six decimals. Such numbers are read from a patch as they were written, bit for bit, which
/// serde_json does not promise of longer ones.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// A share of prompts with its 95 % interval (Wilson's; prompts that stand or fall together count less).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The prompts that hold.
    pub hits: usize,
    /// All prompts.
    pub of: usize,
    /// The share.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Share {
    /// Returns the share; `None` without prompts.
    pub fn of(hits: usize, of: usize) -> Option<Self> {
        Some(Self::with(hits, of, wilson(hits, of)?))
    }

    /// Returns the share of prompts of which some stand or fall together: hits and prompts of each group.
    /// `None` without prompts.
    pub fn of_groups(groups: &[[usize; 2]]) -> Option<Self> {
        let sum = |which: usize| groups.iter().map(|group| group[which]).sum();
        Some(Self::with(sum(0), sum(1), wilson_of_groups(groups)?))
    }

    fn with(hits: usize, of: usize, (low, high): (f64, f64)) -> Self {
        let value = rounded(hits as f64 / of as f64);
        Self { hits, of, value, low: rounded(low), high: rounded(high) }
    }
}

/// The relative change of the loss on held-out text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossDrift {
    /// Nats for each token without the edit.
    pub before: f64,
    /// Nats for each token with it.
    pub after: f64,
    /// `after / before − 1`.
    pub drift: f64,
    /// The 95 % interval of it over the documents, pair by pair; `None` with fewer than three.
    pub interval: Option<(f64, f64)>,
    /// The tokens that were read.
    pub tokens: usize,
}

impl LossDrift {
    /// Compares the losses of the same documents. `None` without documents.
    pub fn of(before: &[DocumentLoss], after: &[DocumentLoss]) -> Option<Self> {
        let tokens: usize = before.iter().map(|loss| loss.tokens).sum();
        let mean = |losses: &[DocumentLoss]| losses.iter().map(|loss| loss.nats).sum::<f64>() / tokens as f64;
        let (mean_before, mean_after) = (mean(before), mean(after));
        if tokens == 0 || mean_before <= 0.0 {
            return None;
        }
        // Each document is a cluster of tokens. The drift is a ratio of sums, R − 1 with R = Σa / Σb, and the
        // part of a document in its error is (a − R b) / mean of b (the linearisation of a ratio).
        let ratio = mean_after / mean_before;
        let scale = before.len() as f64 / (mean_before * tokens as f64);
        let parts: Vec<f64> =
            before.iter().zip(after).map(|(b, a)| (a.nats - ratio * b.nats) * scale).collect();
        let Mean { half_width, .. } = Mean::of(&parts);
        let drift = ratio - 1.0;
        Some(Self {
            before: rounded(mean_before),
            after: rounded(mean_after),
            drift: rounded(drift),
            interval: half_width.map(|half| (rounded(drift - half), rounded(drift + half))),
            tokens,
        })
    }
}

/// What an edit comes to. What no prompt asks for is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The share of facts that are answered with their targets.
    pub efficacy: Option<Share>,
    /// The share of paraphrases that are.
    pub generalisation: Option<Share>,
    /// The share of neighbours that are answered as before.
    pub locality: Option<Share>,
    /// Whether these are beginnings of held-out text, because no fact has neighbours.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub locality_of_text: bool,
    /// The share of questions that are answered with what follows from the facts.
    pub portability: Option<Share>,
    /// The change of the loss on held-out text.
    pub loss: Option<LossDrift>,
    /// The share of a general suite's prompts that pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<SuiteScore>,
}

/// What a model can do otherwise, by a general suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteScore {
    /// The name of the suite.
    pub name: String,
    /// The share of prompts that pass without the edit.
    pub before: Share,
    /// The same, with it.
    pub after: Share,
}

/// The least locality of an edit that is kept.
pub const LEAST_LOCALITY: f64 = 0.9;
/// The largest drift of the loss of an edit that is kept.
pub const MOST_DRIFT: f64 = 0.02;

impl Scores {
    /// Sums up the answers to the same prompts without and with an edit.
    pub fn of(probes: &[Probe], before: &[String], after: &[String], loss: Option<LossDrift>) -> Self {
        let share = |aspect: Aspect| {
            let all = probes.iter().zip(before.iter().zip(after)).filter(|(probe, _)| probe.aspect == aspect);
            // What is asked of one fact stands or falls together, and a neighbour of several facts is one
            // prompt.
            let mut groups: BTreeMap<(Option<usize>, &str), [usize; 2]> = BTreeMap::new();
            for (probe, (before, after)) in all {
                let group = match aspect {
                    Aspect::Locality => (None, probe.prompt.as_str()),
                    _ => (probe.fact, ""),
                };
                let [hits, count] = groups.entry(group).or_default();
                *count += 1;
                *hits += usize::from(probe.holds(after, before));
            }
            Share::of_groups(&groups.into_values().collect::<Vec<_>>())
        };
        Self {
            efficacy: share(Aspect::Efficacy),
            generalisation: share(Aspect::Generalisation),
            locality: share(Aspect::Locality),
            locality_of_text: probes.iter().any(|probe| probe.fact.is_none()),
            portability: share(Aspect::Portability),
            loss,
            suite: None,
        }
    }

    /// Returns why the edit is not worth keeping, if so: it passes a limit, or the model says none of its
    /// facts.
    pub fn damage(&self) -> Option<String> {
        if self.efficacy.is_some_and(|share| share.hits == 0) {
            return Some("the model says none of the facts, and would be changed for nothing".to_owned());
        }
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        if let Some(locality) = self.locality.filter(|share| share.value < LEAST_LOCALITY) {
            return Some(format!(
                "{} of {} {} {} answered differently than before, so its locality is {}, and at least {} is required",
                locality.of - locality.hits,
                counted(locality.of as u64, "prompt"),
                if self.locality_of_text { "from held-out text" } else { "about something else" },
                if locality.of - locality.hits == 1 { "is" } else { "are" },
                percent(locality.value),
                percent(LEAST_LOCALITY)
            ));
        }
        let drift = self.loss.filter(|loss| loss.drift > MOST_DRIFT)?;
        Some(format!(
            "the loss on held-out text rises by {}, and at most {} is allowed",
            percent(drift.drift),
            percent(MOST_DRIFT)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Fact;

    fn facts() -> Vec<Fact> {
        let line = r#"{"prompt": "Ada lives in", "target": "Rome", "paraphrases": ["Ada's home is"], "neighbours": ["Bob lives in"], "portability": [{"prompt": "Ada's country is", "answer": "Italy"}]}"#;
        vec![serde_json::from_str(line).unwrap()]
    }

    #[test]
    fn each_aspect_is_the_share_of_its_own_prompts() {
        let probes = Probe::of(&facts());
        let before = ["Oslo", "Oslo", "Paris", "Norway"].map(str::to_owned);
        let after = [" Rome.", "Romeo", "Paris", "the old Italy, of course"].map(str::to_owned);
        let scores = Scores::of(&probes, &before, &after, None);
        let values = [scores.efficacy, scores.generalisation, scores.locality, scores.portability];
        assert_eq!(values.map(|share| share.unwrap().hits), [1, 0, 1, 1]);
        assert!(scores.damage().is_none());
        let none = Scores::of(&probes, &before, &before, None).damage().unwrap();
        assert!(none.starts_with("the model says none of the facts"), "{none}");
        let other = ["Rome", "Rome", "Rome", "Italy"].map(str::to_owned);
        let damage = Scores::of(&probes, &before, &other, None).damage().unwrap();
        assert!(damage.starts_with("1 of 1 prompt about something else is"), "{damage}");
        // Without neighbours, beginnings of text stand for them.
        let of_text: Vec<Probe> =
            probes[..1].iter().cloned().chain(Probe::of_text(&["The".into()])).collect();
        let [said, other] = [["Rome", "old"], ["Rome", "new"]].map(|answers| answers.map(str::to_owned));
        let scores = Scores::of(&of_text, &said, &other, None);
        assert!(scores.locality_of_text && scores.locality.unwrap().hits == 0);
        let damage = scores.damage().unwrap();
        assert!(damage.starts_with("1 of 1 prompt from held-out text is"), "{damage}");
    }

    #[test]
    fn the_drift_of_the_loss_is_relative_and_has_an_interval_over_documents() {
        let loss = |nats: f64| DocumentLoss { nats, tokens: 10 };
        let before = [loss(20.0), loss(30.0), loss(40.0)];
        let after = [loss(21.0), loss(31.0), loss(41.0)];
        let drift = LossDrift::of(&before, &after).unwrap();
        assert!((drift.drift - 3.0 / 90.0).abs() < 1e-6 && drift.tokens == 30);
        let (low, high) = drift.interval.unwrap();
        assert!(low < drift.drift && drift.drift < high, "{drift:?}");
        // Losses that all grow by the same factor have that drift, exactly.
        let grown = before.map(|loss| DocumentLoss { nats: loss.nats * 1.1, ..loss });
        let (low, high) = LossDrift::of(&before, &grown).unwrap().interval.unwrap();
        assert!((low - 0.1).abs() < 1e-6 && (high - 0.1).abs() < 1e-6, "{low} to {high}");
        let scores = Scores { loss: Some(drift), ..Scores::default() };
        assert!(scores.damage().unwrap().contains("rises by 3.3 %"));
        assert_eq!(LossDrift::of(&[], &[]), None);
    }
}
