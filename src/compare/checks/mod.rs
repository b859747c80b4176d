//! The checks of an answer: how they are written in a suite, and what they say.
//!
//! A check is compiled when its suite is read, so that what cannot be used is refused before a model is
//! loaded. Patterns and schemas are a stranger's: their sizes are limited, a pattern takes time in proportion
//! to the text, and a schema refers to nothing but its own definitions.

mod code;
mod number;
mod quoted;
mod schema;

use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

pub use self::code::{CodeJob, CodeResult};
use self::number::last_number;
pub(crate) use self::quoted::quoted;
use self::schema::{PATTERN_BYTES, Schema};
use crate::overlap::{bleu, chrf};
use crate::reference_loss::ReferenceLoss;

/// The most bytes of a pattern, and of a text that is searched for.
const LONGEST_PATTERN: usize = 4 << 10;

/// A check as it is written in a suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Spec {
    Equals {
        value: String,
        #[serde(default)]
        ignore_case: bool,
    },
    Contains {
        value: String,
        #[serde(default)]
        ignore_case: bool,
    },
    Lacks {
        value: String,
        #[serde(default)]
        ignore_case: bool,
    },
    Regex {
        pattern: String,
    },
    JsonSchema {
        schema: serde_json::Value,
    },
    Number {
        value: f64,
        #[serde(default)]
        within: f64,
    },
    Chrf {
        at_least: Option<f64>,
    },
    Bleu {
        at_least: Option<f64>,
    },
    Perplexity {
        at_most: Option<f64>,
    },
    Python(code::PythonSpec),
    PythonTests(code::TestsSpec),
    Sql(code::SqlSpec),
}

/// A check that is ready to be made.
#[derive(Debug, Clone)]
pub struct Check {
    spec: Spec,
    ready: Ready,
}

#[derive(Debug, Clone)]
enum Ready {
    Text,
    Pattern(Regex),
    /// Shared by the prompts of a suite, as the program of a pattern is.
    Schema(Arc<Schema>),
}

/// What a check needs besides the text of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedsOf {
    /// Nothing.
    Text,
    /// The reference of the prompt.
    Reference,
    /// The loss of the reference.
    ReferenceLoss,
    /// That the code in the answer is run.
    Code,
}

/// An answer and what was found out about it.
pub struct Answered<'a> {
    /// What the model wrote.
    pub text: &'a str,
    /// The reference of the prompt.
    pub reference: Option<&'a str>,
    /// How likely the reference is to the model, or why that is not known.
    pub reference_loss: Result<ReferenceLoss, String>,
    /// Runs code, or says why it does not.
    pub run: &'a dyn Fn(&CodeJob) -> Result<CodeResult, String>,
}

/// What a check says about an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The kind of check, as suites write it, or `judge`.
    pub kind: String,
    /// What it checks, in a few words.
    pub check: String,
    /// Whether the answer passes; `None` if the check only measures, or was not made.
    pub passed: Option<bool>,
    /// The score, 0 to 1; `None` if the check was not made, or measures without a bound.
    pub score: Option<f64>,
    /// What was measured: a chrF, a BLEU, a perplexity, or a number of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Why it failed or was not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether the check would decide, but was not made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_missing: bool,
}

impl Check {
    /// Compiles a check.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(crate) fn new(spec: Spec) -> Result<Self, (String, String)> {
        let wrong = |what: &str, fix: &str| Err((what.to_owned(), fix.to_owned()));
        let ready = match &spec {
            Spec::Equals { value, .. } | Spec::Contains { value, .. } | Spec::Lacks { value, .. } => {
                if value.trim().is_empty() {
                    return wrong("the `value` of a check is empty", "Give the text to look for");
                }
                Ready::Text
            }
            Spec::Regex { pattern } => Ready::Pattern(compiled(pattern)?),
            Spec::JsonSchema { schema } => Ready::Schema(Arc::new(Schema::new(schema)?)),
            Spec::Number { value, within } => {
                if !value.is_finite() || !within.is_finite() || *within < 0.0 {
                    return wrong(
                        "`within` of a number is negative or not finite",
                        "Give the largest allowed distance, such as 0.01",
                    );
                }
                Ready::Text
            }
            Spec::Chrf { at_least } | Spec::Bleu { at_least } => {
                if at_least.is_some_and(|bound| !(0.0..=100.0).contains(&bound)) {
                    return wrong("`at_least` is outside 0 to 100", "Both chrF and BLEU are 0 to 100");
                }
                Ready::Text
            }
            Spec::Perplexity { at_most } => {
                if at_most.is_some_and(|bound| !(1.0..=1e12).contains(&bound)) {
                    return wrong("`at_most` is not a perplexity", "A perplexity is at least 1");
                }
                Ready::Text
            }
            Spec::Python(python) => python.check().map(|()| Ready::Text)?,
            Spec::PythonTests(tests) => tests.check().map(|()| Ready::Text)?,
            Spec::Sql(sql) => sql.check().map(|()| Ready::Text)?,
        };
        Ok(Self { spec, ready })
    }

    /// Returns what the check needs besides the text.
    pub fn needs(&self) -> NeedsOf {
        match self.spec {
            Spec::Chrf { .. } | Spec::Bleu { .. } => NeedsOf::Reference,
            Spec::Perplexity { .. } => NeedsOf::ReferenceLoss,
            Spec::Python(_) | Spec::PythonTests(_) | Spec::Sql(_) => NeedsOf::Code,
            _ => NeedsOf::Text,
        }
    }

    /// Returns the kind of the check, as suites write it.
    pub fn kind(&self) -> &'static str {
        match self.spec {
            Spec::Equals { .. } => "equals",
            Spec::Contains { .. } => "contains",
            Spec::Lacks { .. } => "lacks",
            Spec::Regex { .. } => "regex",
            Spec::JsonSchema { .. } => "json_schema",
            Spec::Number { .. } => "number",
            Spec::Chrf { .. } => "chrf",
            Spec::Bleu { .. } => "bleu",
            Spec::Perplexity { .. } => "perplexity",
            Spec::Python(_) => "python",
            Spec::PythonTests(_) => "python_tests",
            Spec::Sql(_) => "sql",
        }
    }

    /// Returns what it checks, in a few words.
    pub fn words(&self) -> String {
        match &self.spec {
            Spec::Equals { value, .. } => format!("equals {}", quoted(value)),
            Spec::Contains { value, .. } => format!("contains {}", quoted(value)),
            Spec::Lacks { value, .. } => format!("does not contain {}", quoted(value)),
            Spec::Regex { pattern } => format!("matches {}", quoted(pattern)),
            Spec::JsonSchema { .. } => "is JSON of the schema".to_owned(),
            Spec::Number { value, within: 0.0 } => format!("the last number is {value}"),
            Spec::Number { value, within } => format!("the last number is {value} ± {within}"),
            Spec::Chrf { at_least: None } => "chrF".to_owned(),
            Spec::Chrf { at_least: Some(bound) } => format!("chrF at least {bound}"),
            Spec::Bleu { at_least: None } => "BLEU".to_owned(),
            Spec::Bleu { at_least: Some(bound) } => format!("BLEU at least {bound}"),
            Spec::Perplexity { at_most: None } => "perplexity of the reference".to_owned(),
            Spec::Perplexity { at_most: Some(bound) } => format!("perplexity at most {bound}"),
            Spec::Python(_) => "the code passes its tests".to_owned(),
            Spec::PythonTests(_) => "the tests find the mistakes".to_owned(),
            Spec::Sql(_) => "the query gives the rows".to_owned(),
        }
    }

    /// Makes the check.
    pub fn outcome(&self, answered: &Answered<'_>) -> Outcome {
        let text = answered.text.trim();
        let of = |passed: bool, note: Option<String>| self.decided(passed, note.filter(|_| !passed));
        let found = || Some(format!("the answer is {}", quoted(text)));
        match &self.spec {
            Spec::Equals { value, ignore_case } => {
                let (value, text) = (folded(value.trim(), *ignore_case), folded(text, *ignore_case));
                of(value == text, found())
            }
            Spec::Contains { value, ignore_case } => {
                of(folded(text, *ignore_case).contains(&folded(value, *ignore_case)), None)
            }
            Spec::Lacks { value, ignore_case } => {
                of(!folded(text, *ignore_case).contains(&folded(value, *ignore_case)), None)
            }
            Spec::Regex { .. } => {
                let Ready::Pattern(pattern) = &self.ready else { unreachable!("compiled as a pattern") };
                of(pattern.is_match(text), None)
            }
            Spec::JsonSchema { .. } => {
                let Ready::Schema(schema) = &self.ready else { unreachable!("compiled as a schema") };
                let note = schema.first_problem(text);
                of(note.is_none(), note)
            }
            Spec::Number { value, within } => match last_number(text) {
                None => of(false, Some("the answer has no number".to_owned())),
                Some(number) => {
                    // A bound that is a decimal fraction is met by what is written as exactly that far away.
                    let reach = within + 1e-9 * value.abs().max(1.0);
                    let outcome = of((number - value).abs() <= reach, Some(format!("it is {number}")));
                    Outcome { value: Some(number), ..outcome }
                }
            },
            Spec::Chrf { at_least } => self.overlap(answered, *at_least, chrf),
            Spec::Bleu { at_least } => self.overlap(answered, *at_least, bleu),
            Spec::Perplexity { at_most } => match &answered.reference_loss {
                Err(why) => self.not_made(why),
                Ok(loss) => {
                    let perplexity = loss.perplexity();
                    let passed = at_most.map(|bound| perplexity <= bound);
                    let note = (passed == Some(false)).then(|| format!("it is {perplexity:.2}"));
                    let score = passed.map(f64::from);
                    Outcome { passed, score, value: Some(perplexity), note, ..self.outcome_of_kind() }
                }
            },
            Spec::Python(_) | Spec::PythonTests(_) | Spec::Sql(_) => self.run(answered),
        }
    }

    fn overlap(&self, answered: &Answered<'_>, at_least: Option<f64>, of: fn(&str, &str) -> f64) -> Outcome {
        let Some(reference) = answered.reference else { return self.not_made("the prompt has no reference") };
        let value = of(answered.text, reference);
        let passed = at_least.map(|bound| value >= bound);
        let note = (passed == Some(false)).then(|| format!("it is {value:.1}"));
        let score = at_least.map(|_| (value / 100.0).clamp(0.0, 1.0));
        Outcome { passed, score, value: Some(value), note, ..self.outcome_of_kind() }
    }

    fn run(&self, answered: &Answered<'_>) -> Outcome {
        let code = code::extracted(answered.text);
        let job = match &self.spec {
            Spec::Python(python) => python.job(&code),
            Spec::PythonTests(tests) => tests.job(&code),
            Spec::Sql(sql) => sql.job(&code),
            _ => unreachable!("only called for code"),
        };
        match (answered.run)(&job) {
            Err(why) => self.not_made(&why),
            Ok(CodeResult { passed, total, message }) => {
                let is_passed = total > 0 && passed == total;
                let score = if total == 0 { 0.0 } else { passed as f64 / total as f64 };
                let note = message.filter(|_| !is_passed);
                Outcome { passed: Some(is_passed), score: Some(score), note, ..self.outcome_of_kind() }
            }
        }
    }

    fn decided(&self, passed: bool, note: Option<String>) -> Outcome {
        Outcome { passed: Some(passed), score: Some(f64::from(passed)), note, ..self.outcome_of_kind() }
    }

    fn not_made(&self, why: &str) -> Outcome {
        let only_measures = matches!(
            self.spec,
            Spec::Chrf { at_least: None }
                | Spec::Bleu { at_least: None }
                | Spec::Perplexity { at_most: None }
        );
        Outcome { note: Some(why.to_owned()), is_missing: !only_measures, ..self.outcome_of_kind() }
    }

    fn outcome_of_kind(&self) -> Outcome {
        Outcome { kind: self.kind().to_owned(), check: self.words(), ..Outcome::default() }
    }
}

fn compiled(pattern: &str) -> Result<Regex, (String, String)> {
    if pattern.len() > LONGEST_PATTERN {
        let what = format!("a pattern has {} bytes", pattern.len());
        return Err((what, format!("Give one of at most {LONGEST_PATTERN}")));
    }
    let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).build();
    compiled.map_err(|error| {
        let reason = error.to_string();
        let last = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let fix = "Write it as the Rust crate `regex` reads it: without look-around and back-references";
        (format!("the pattern {} cannot be used: {last}", quoted(pattern)), fix.to_owned())
    })
}

fn folded(text: &str, ignore_case: bool) -> String {
    if ignore_case { text.to_lowercase() } else { text.to_owned() }
}

#[cfg(test)]
mod tests;
