//! Checks answers and data before anything is decided.

use std::path::Path;

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::count;

use crate::answer::Answer;
use crate::error::PlanError;
use crate::facts::{Facts, ModelFacts};
use crate::setting::{Limit, Number, Setting};
use crate::settings::{Answers, SETTINGS};

/// Returns the largest number of tokens that the model supports, clamped to what a plan can represent.
pub(crate) fn model_limit(model: &ModelFacts) -> u32 {
    model.config.max_example_tokens().clamp(1, 1 << 30) as u32
}

/// Returns the largest value that a model allows.
fn limit_of(limit: Limit, model: &ModelFacts) -> f64 {
    f64::from(match limit {
        Limit::Context => model_limit(model),
        Limit::HiddenSize => model.config.hidden_size.clamp(1, 1 << 16) as u32,
        Limit::Vocabulary => model.config.vocab_size.clamp(1, i32::MAX as usize) as u32,
    })
}

/// Refuses a number outside the range of its setting for this model.
///
/// # Errors
/// [`PlanError::BadValue`] with the range.
pub fn check_range(setting: &Setting, answers: &Answers, model: &ModelFacts) -> Result<(), PlanError> {
    let (Some(number), Some(value)) = (setting.number, answers.number(setting.key)) else { return Ok(()) };
    let limit = number.limit.map(|limit| limit_of(limit, model));
    let max = limit.map_or(number.max, |limit| limit.min(number.max));
    let range = Number { min: number.min.min(max), max, ..number };
    match answers.get(setting.name) {
        Some((text, origin)) if !(range.min..=range.max).contains(&value) => {
            let because = number.limit.filter(|_| max < number.max);
            let because = because.map_or(String::new(), |limit| format!(", {}", limit.about()));
            Err(PlanError::BadValue {
                key: setting.key,
                place: setting.place(origin),
                value: text.chars().take(40).collect(),
                expects: Setting { number: Some(range), ..*setting }.expects() + &because,
            })
        }
        _ => Ok(()),
    }
}

/// Refuses what no plan for this model can hold: numbers outside their ranges, a name that is no folder's.
pub(crate) fn check_ranges(answers: &Answers, facts: &Facts) -> Result<(), PlanError> {
    for setting in SETTINGS {
        check_range(setting, answers, &facts.model)?;
    }
    // The name becomes the name of a folder among the other runs.
    match &answers.name {
        Some(Answer { value, origin })
            if value.starts_with('.')
                || value.len() > 200
                || value.contains(|c: char| "/\\".contains(c) || c.is_control()) =>
        {
            Err(PlanError::BadValue {
                key: "name",
                place: Setting::of("name").map(|setting| setting.place(*origin)).unwrap_or_default(),
                value: escape(value).into_owned(),
                expects: "a folder's name: at most 200 bytes, no separator, no dot in front".into(),
            })
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_data(facts: &Facts) -> Result<(), PlanError> {
    let data = &facts.data;
    if data.examples == 0 || data.total_tokens == 0 || data.max == 0 {
        return Err(PlanError::Data {
            key: "data.train",
            what: "the data holds no usable example".into(),
            fix: format!(
                "Run `{} check` on it: for each rejected line it gives the reason and the fix",
                program_name()
            ),
        });
    }
    if data.target_tokens == 0 {
        return Err(PlanError::Data {
            key: "data.train",
            what: format!(
                "none of the {} tokens is trained, so there is nothing to learn",
                count(data.total_tokens)
            ),
            fix: format!(
                "Every conversation needs an assistant turn with content; `{} check` shows what was read",
                program_name()
            ),
        });
    }
    Ok(())
}

/// Checks that all paths are valid text, because a plan is text.
pub(crate) fn check_paths(answers: &Answers) -> Result<(), PlanError> {
    for setting in SETTINGS {
        let is_no_text = |path: &&Path| path.to_str().is_none();
        if let Some(path) = answers.paths(setting.key).into_iter().find(is_no_text) {
            return Err(PlanError::Data {
                key: setting.key,
                what: format!(
                    "the name of {} is not valid UTF-8, and a plan cannot hold it",
                    escape(&path.display().to_string())
                ),
                fix: "Rename it, or choose another".into(),
            });
        }
    }
    Ok(())
}
