//! Checks data and shows examples of it, without tokenising it into the cache.
//!
//! Enters: the answers about data, and files. Leaves: the report, the rejected lines in a file, and the
//! examples as the model will see them.

use std::path::PathBuf;

use serde::Serialize;
use sparktune_base::choices::Think;
use sparktune_data::{CheckOptions, Place, Previewed, Rendering, Report};
use sparktune_plan::Answers;

use crate::data::{
    example_options, format, map, mask_policy, max_example_tokens, max_rejected, preview_of, think,
};
use crate::failure::Failure;
use crate::listener::Listener;
use crate::model::{BaseModel, find_base};
use crate::template::set_template_kwargs;

/// The findings of a check of data.
pub struct Checked {
    /// The report on all lines.
    pub report: Report,
    /// The share of rejected lines above which the data is refused.
    pub max_rejected: f64,
    /// Whether the share of rejected lines is within the limit and there is an example.
    pub accepted: bool,
    /// The examples to show.
    pub shown: Vec<ShownExample>,
}

/// An example as the model will see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShownExample {
    /// The place of its line.
    #[serde(flatten)]
    pub place: Place,
    /// The number of tokens.
    pub tokens: u32,
    /// Its text, with the trained part marked.
    #[serde(flatten)]
    pub rendering: Rendering,
}

/// Checks data. Rejected lines, and those that are too long, are written to the file `rejected`. If the
/// answers contain a model, tokens are counted too, and up to `show` examples are rendered; if they contain
/// evaluation data, it is checked and compared with the training data.
///
/// # Errors
/// Inputs or a model cannot be read, or examples cannot be shown because no model was given. Refused data is
/// not an error.
pub fn check(
    answers: &Answers,
    inputs: &[PathBuf],
    rejected: PathBuf,
    show: usize,
    listener: &dyn Listener,
) -> Result<Checked, Failure> {
    if show > 0 && answers.model.is_none() {
        let text = "--show needs a model, because its chat template and tokenizer make the examples";
        return Err(Failure::usage(text).hint("Name one with --model"));
    }
    let mut base = answers.model.as_ref().map(|_| find_base(answers, listener)).transpose()?;
    if let Some(base) = &mut base {
        set_template_kwargs(
            &mut base.tokenizer,
            answers,
            inputs,
            (format(answers), &map(answers)),
            listener,
        )?;
    }
    let options = CheckOptions {
        format: format(answers),
        map: map(answers),
        tokenizer: base.as_ref().map(|base| &base.tokenizer),
        policy: mask_policy(answers),
        examples: example_options(answers),
        max_example_tokens: base.as_ref().map(|base| max_example_tokens(answers, &base.facts)),
        eval_data: answers.eval_data.as_ref().map(|answer| answer.value.clone()).unwrap_or_default(),
        rejected_path: Some(rejected),
    };
    let max_rejected = max_rejected(answers);
    let report = sparktune_data::check(inputs, &options, listener)?;
    let shown = match &base {
        Some(base) if show > 0 => shown(answers, inputs, base, show)?,
        _ => Vec::new(),
    };
    Ok(Checked { accepted: !report.exceeds(max_rejected), report, max_rejected, shown })
}

/// Returns up to `limit` examples under the policy of the answers.
fn shown(
    answers: &Answers,
    inputs: &[PathBuf],
    base: &BaseModel,
    limit: usize,
) -> Result<Vec<ShownExample>, Failure> {
    let preview = preview_of(inputs, answers, base, Some(limit))?;
    let of_policy = |example: Previewed| ShownExample {
        place: example.place,
        tokens: example.tokens,
        rendering: match think(answers) {
            Think::Train => example.train,
            Think::Skip => example.skip,
        },
    };
    // An example without trained tokens is rejected under this policy.
    let is_trained = |shown: &ShownExample| shown.rendering.target_tokens > 0;
    Ok(preview.examples.into_iter().map(of_policy).filter(is_trained).collect())
}
