//! What `sparktune edit --measure` has found about facts written into weights.
//!
//! `measured/edits.json` is a list of such results and part of the program; `measured/README.md` describes
//! it. An empty list says that nothing was measured.

use serde::Deserialize;

use crate::results::ResultsError;

const COMMITTED: &str = include_str!("measured/edits.json");

/// All results.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct EditResults {
    /// In the order of the file.
    pub measured: Vec<MeasuredEdits>,
}

/// Edits of one model by one method, of several sizes, and the controls.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct MeasuredEdits {
    /// When it ended, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// The machine in words.
    pub machine: String,
    /// The command that repeats it.
    pub command: String,
    /// The program and its version.
    #[serde(default)]
    pub program: Option<String>,
    /// The name of the model.
    pub model: String,
    /// The model and its facts in a sentence.
    #[serde(default)]
    pub about: Option<String>,
    /// The method.
    pub method: String,
    /// The layers that were changed.
    #[serde(default)]
    pub layers: Vec<usize>,
    /// The number of facts that the model did not know.
    pub facts: u64,
    /// The number of facts that it knew, which were left out.
    #[serde(default)]
    pub known: u64,
    /// The name of the general suite.
    #[serde(default)]
    pub suite_name: Option<String>,
    /// What the model passed of it without an edit.
    #[serde(default)]
    pub suite_before: Option<Share>,
    /// One row for each number of facts and way.
    pub rows: Vec<EditRow>,
}

/// The facts that were written, how, and what came of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct EditRow {
    /// The number of facts.
    pub count: u64,
    /// The way.
    pub how: Way,
    /// The number of patches that the facts were written in.
    #[serde(default)]
    pub patches: u64,
    /// How well it holds; none if it failed.
    pub scores: Option<EditScores>,
    /// What passes of the general suite.
    #[serde(default)]
    pub suite: Option<Share>,
    /// The time of the edit.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Why there are no scores.
    #[serde(default)]
    pub error: Option<String>,
}

/// How facts reach a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// All at once.
    Batched,
    /// One edit after the other.
    Sequential,
    /// A control: LoRA on the same facts.
    Lora,
    /// A control: the fact in the prompt.
    Prompt,
}

impl Way {
    /// Returns it in words.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Batched => "at once",
            Self::Sequential => "one after the other",
            Self::Lora => "LoRA instead",
            Self::Prompt => "the fact in the prompt instead",
        }
    }
}

/// Scores as `sparktune edit` prints them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct EditScores {
    /// Prompts that are answered with the target.
    pub efficacy: Option<Share>,
    /// Paraphrases that are.
    pub generalisation: Option<Share>,
    /// Prompts about something else that are answered as before.
    pub locality: Option<Share>,
    /// Questions that are answered with what follows.
    pub portability: Option<Share>,
    /// The change of the loss on held-out text.
    pub loss: Option<Drift>,
}

/// A share with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Share {
    /// The prompts that hold.
    pub hits: u64,
    /// All prompts.
    pub of: u64,
    /// The share.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The relative change of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Drift {
    /// The change.
    pub drift: f64,
    /// Its 95 % interval.
    pub interval: Option<(f64, f64)>,
}

impl EditResults {
    /// Returns the results that the program carries; they may be none.
    ///
    /// # Errors
    /// None in a program that was tested.
    pub fn committed() -> Result<Self, ResultsError> {
        Self::from_json(COMMITTED)
    }

    /// Reads results from JSON.
    ///
    /// # Errors
    /// It is no list of results, or a result has no rows or impossible numbers.
    pub fn from_json(text: &str) -> Result<Self, ResultsError> {
        let results: Self = serde_json::from_str(text).map_err(ResultsError::UnreadableEdits)?;
        for measured in &results.measured {
            let wrong =
                |what: &str| ResultsError::Contradiction(format!("edits of {}: {what}", measured.model));
            if measured.rows.is_empty() {
                return Err(wrong("there are no rows"));
            }
            for row in &measured.rows {
                if row.scores.is_none() && row.error.is_none() {
                    return Err(wrong("a row has neither scores nor an error"));
                }
                let mut shares = row.scores.iter().flat_map(EditScores::shares).chain(&row.suite);
                if !shares.all(Share::is_possible) {
                    return Err(wrong(
                        "a share is outside of its interval, or more prompts hold than there are",
                    ));
                }
            }
        }
        Ok(results)
    }
}

impl EditScores {
    pub(crate) fn shares(&self) -> impl Iterator<Item = &Share> {
        [&self.efficacy, &self.generalisation, &self.locality, &self.portability].into_iter().flatten()
    }
}

impl Share {
    fn is_possible(&self) -> bool {
        /// The numbers are rounded to six decimals.
        const ROUNDED: f64 = 1e-5;
        let is_its_share = (self.value - self.hits as f64 / self.of as f64).abs() < ROUNDED;
        self.hits <= self.of
            && is_its_share
            && (-ROUNDED..=self.value + ROUNDED).contains(&self.low)
            && (self.value - ROUNDED..=1.0 + ROUNDED).contains(&self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_results_of_edits_are_whole() {
        let committed = EditResults::committed().unwrap().measured;
        for method in ["memit", "rome", "memory", "ultraedit"] {
            let of_method = committed.iter().filter(|measured| measured.method == method);
            let counts: Vec<u64> =
                of_method.flat_map(|measured| &measured.rows).map(|row| row.count).collect();
            for count in [1, 10, 100, 1000] {
                let has = counts.contains(&count);
                assert!(has, "{method}: {count} facts were measured, or a row says why not");
            }
        }
        for measured in &committed {
            assert!(!measured.command.is_empty() && !measured.machine.is_empty(), "{}", measured.model);
            assert!(!measured.model.contains('/'), "a path says nothing: {}", measured.model);
        }
    }

    #[test]
    fn each_committed_row_stands_in_the_record_of_measurements_with_the_same_numbers() {
        let record = include_str!("../../tests/fixtures/facts/RESULTS.md");
        let percent = |value: f64| format!("{:.1}", 100.0 * value);
        let share = |share: &Option<Share>| {
            let Share { value, low, high, .. } = share.expect("the facts have prompts for all four");
            format!("{} % ({}–{})", percent(value), percent(low), percent(high))
        };
        let drift = |loss: &Option<Drift>| match loss {
            None => "–".to_owned(),
            Some(Drift { drift, interval }) => {
                let [drift, low, high] =
                    [*drift, interval.unwrap().0, interval.unwrap().1].map(|value| 100.0 * value);
                format!("{drift:+.2} % ({low:+.2} to {high:+.2})")
            }
        };
        for measured in EditResults::committed().unwrap().measured {
            for EditRow { count, how, scores, .. } in &measured.rows {
                let Some(scores) = scores else { continue };
                let (name, how) = match how {
                    Way::Batched => (measured.method.as_str(), "batched"),
                    Way::Sequential => (measured.method.as_str(), "sequential"),
                    Way::Lora => ("–", "lora"),
                    Way::Prompt => ("–", "prompt"),
                };
                let count = sparktune_base::units::count(*count);
                let shares =
                    [&scores.efficacy, &scores.generalisation, &scores.locality, &scores.portability]
                        .map(share);
                let line = format!(
                    "| {name} | {how} | {count} | {} | {} |",
                    shares.join(" | "),
                    drift(&scores.loss)
                );
                assert!(record.lines().any(|known| known.starts_with(&line)), "{line}");
            }
        }
    }

    #[test]
    fn impossible_results_are_refused() {
        let with = |row: &str| {
            let text = format!(
                r#"[{{"created_us":1,"machine":"m","command":"c","model":"x","method":"rome","facts":1,"rows":[{row}]}}]"#
            );
            EditResults::from_json(&text).map_err(|error| error.to_string())
        };
        let share = |hits: u32, value: f64| {
            format!(
                r#"{{"count":1,"how":"batched","scores":{{"efficacy":{{"hits":{hits},"of":2,"value":{value},"low":0.1,"high":0.9}},"generalisation":null,"locality":null,"portability":null,"loss":null}}}}"#
            )
        };
        assert!(with(&share(1, 0.5)).is_ok());
        assert!(with(&share(1, 0.6)).unwrap_err().contains("outside of its interval"));
        assert!(with(&share(3, 1.5)).is_err());
        assert!(with("").unwrap_err().contains("no rows"));
        assert!(with(r#"{"count":1,"how":"batched","scores":null}"#).unwrap_err().contains("neither scores"));
        assert!(with(r#"{"count":1,"how":"guessed","scores":null}"#).unwrap_err().contains("edit --measure"));
    }
}
