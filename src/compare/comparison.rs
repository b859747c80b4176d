//! What a comparison has found, as it is kept in a file and shown by every interface.

use serde::{Deserialize, Serialize};

use crate::answer::PromptShown;
use crate::difference::{Difference, Measure, differences};
use crate::model_answers::ModelAnswers;
use crate::summary::Summary;

/// The version of the format. A reader refuses a higher one.
pub const VERSION: u32 = 1;

/// Answers of several models to the same prompts, with what the checks say about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The version of the format, [`VERSION`].
    pub version: u32,
    /// The name of the comparison, which is also that of its file.
    pub id: String,
    /// The time of its end, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// The name of the suite.
    pub suite: String,
    /// What the suite is about, in a sentence; may be empty.
    pub about: String,
    /// The command that judged the answers, if there was one.
    pub judge: Option<String>,
    /// Whether code that models wrote was run.
    pub code: CodeRuns,
    /// The largest number of answers that were computed at a time.
    pub at_a_time: usize,
    /// Notes of one sentence each, such as why code was not run.
    pub notes: Vec<String>,
    /// The prompts, in the order of the suite.
    pub prompts: Vec<PromptShown>,
    /// The models, in the order in which the user named them. The others are compared with the first.
    pub models: Vec<ModelAnswers>,
    /// What differs between the first model and each of the others.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Computes the summaries and the differences from the answers.
    pub fn summarise(&mut self) {
        for model in &mut self.models {
            model.summary = Summary::of(&model.answers, &self.prompts, model.generating_ms);
        }
        let Some((first, others)) = self.models.split_first() else { return };
        self.differences = others.iter().flat_map(|other| differences(first, other)).collect();
    }

    /// Returns the differences of one model from the first, the most telling measure first.
    pub fn differences_of<'a>(&'a self, model: &'a str) -> impl Iterator<Item = &'a Difference> {
        self.differences.iter().filter(move |difference| difference.model == model)
    }

    /// Returns the difference of one model from the first by this measure.
    pub fn difference(&self, model: &str, measure: Measure) -> Option<&Difference> {
        self.differences.iter().find(|found| found.model == model && found.measure == measure)
    }
}

/// Whether code that models wrote was run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeRuns {
    /// No prompt asks for it.
    #[default]
    NotNeeded,
    /// It was run in a sandbox.
    Ran,
    /// The user did not ask for it, so only the static checks count.
    NotAsked,
    /// The system refused the sandbox, so only the static checks count. A note says why.
    Refused,
}
