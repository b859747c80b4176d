//! Checks data and shows examples of it, without tokenising it into the cache.
//!
//! Enters: the answers about data, and files. Leaves: the report, the rejected lines in a file, and the
//! examples as the model will see them.

use std::path::PathBuf;

use serde::Serialize;
use sparktune_base::choices::Think;
use sparktune_base::units::count;
use sparktune_data::{CheckOptions, Input, Pick, Place, Preview, Previewed, Rendering, Report, Wanted};
use sparktune_plan::{Answers, Origin, Setting};

use crate::data::{
    example_options, format, map, max_example_tokens, max_rejected, on_damage, preview_of, think, vocabulary,
};
use crate::data_sets::{DataSets, weights_for};
use crate::data_worker::CheckRequest;
use crate::failure::Failure;
use crate::listener::Listener;
use crate::model::{BaseModel, find_base};
use crate::token_files::{packed, set_kwargs_for};

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
    /// Why there is none of those that were asked for.
    pub not_found: Option<String>,
}

/// Which examples a check shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Show {
    /// The largest number of them.
    pub limit: usize,
    /// What they must be, instead of the first ones.
    pub wanted: Option<Wanted>,
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

/// Checks text or token files. Rejected lines, and those that are too long, are written to the file
/// `rejected`, if one is named. If the answers contain a model, tokens are counted too, and up to `show`
/// examples are rendered; if they contain eval data, it is checked and compared with the training data.
///
/// # Errors
/// Inputs or a model cannot be read, or examples cannot be shown because no model was given. Refused data is
/// not an error.
pub fn check(
    answers: &Answers,
    inputs: &[PathBuf],
    rejected: Option<PathBuf>,
    show: Show,
    listener: &dyn Listener,
) -> Result<Checked, Failure> {
    if answers.model.is_none() {
        refuse_what_needs_a_model(answers, &show)?;
    }
    let sets = DataSets::of(inputs, answers, listener)?;
    let base = answers.model.as_ref().map(|_| find_base(answers, listener)).transpose()?;
    if let Some(base) = &base {
        let read_as = (format(answers), &map(answers));
        set_kwargs_for(&base.tokenizer, answers, &sets.all(), read_as, listener)?;
    } else {
        packed(answers, &sets.all())?;
    }
    let thinking = base.as_ref().map(|base| base.tokenizer.thinking_now()).unwrap_or_default();
    let request = CheckRequest {
        inputs: sets.train.clone(),
        eval_data: sets.eval,
        format: format(answers),
        map: map(answers),
        policy: think(answers, thinking).into(),
        examples: example_options(answers),
        max_example_tokens: base.as_ref().map(|base| max_example_tokens(answers, &base.facts)).transpose()?,
        vocabulary: base.as_ref().map(|base| vocabulary(&base.facts)),
        on_damage: on_damage(answers),
        rejected_path: rejected,
    };
    let max_rejected = max_rejected(answers);
    let weights = weights_for(answers, &sets.train)?;
    let mut report = match &base {
        Some(base) => base.tokenizer.check(request, listener)?,
        None => check_text(request, listener)?,
    };
    report.set_weights(&weights);
    let (shown, not_found) = match &base {
        Some(base) if show.limit > 0 => shown(answers, &sets.train, base, show, listener)?,
        _ => (Vec::new(), None),
    };
    Ok(Checked { accepted: !report.exceeds(max_rejected), report, max_rejected, shown, not_found })
}

/// Examples from the beginning of data, in its order.
pub struct Browsed {
    /// The examples. Those without trained tokens, which are rejected, are not among them.
    pub examples: Vec<ShownExample>,
    /// Whether these are all examples of the data, apart from lines that are too long to show.
    pub is_all: bool,
    /// The number of lines that are not shown because they are longer than 1 MiB.
    pub too_long_to_show: u64,
}

/// Returns up to `limit` examples of these inputs as the model of the answers will see them, from the
/// beginning of the data on. A bounded part of it is read.
///
/// # Errors
/// No model was given, or inputs or the model cannot be read.
pub fn browse(
    answers: &Answers,
    inputs: &[PathBuf],
    limit: usize,
    listener: &dyn Listener,
) -> Result<Browsed, Failure> {
    if answers.model.is_none() {
        let text = "examples need a model, because its chat template and tokenizer make them";
        return Err(Failure::usage(text).hint("Name one with --model"));
    }
    let sets = DataSets::of(inputs, answers, listener)?;
    let base = find_base(answers, listener)?;
    set_kwargs_for(&base.tokenizer, answers, &sets.all(), (format(answers), &map(answers)), listener)?;
    // One more tells whether there are more. The last two may come from elsewhere in the data.
    let preview = preview_of(&sets.train, answers, &base, Some(limit.saturating_add(3)), None, listener)?;
    let is_first = |example: &Previewed| example.pick == Pick::First;
    let is_all = preview.whole && preview.examples.len() <= limit && preview.examples.iter().all(is_first);
    let first = preview.examples.into_iter().filter(is_first);
    let examples = trained(first, answers, &base).into_iter().take(limit).collect();
    Ok(Browsed { examples, is_all, too_long_to_show: preview.too_long_to_show })
}

/// Returns the examples of the data of these answers that are looked for, as their model will see them.
///
/// # Errors
/// Data or model cannot be read.
pub fn find(answers: &Answers, wanted: Wanted, listener: &dyn Listener) -> Result<Preview, Failure> {
    let sets = DataSets::find(answers, listener)?;
    let base = find_base(answers, listener)?;
    set_kwargs_for(&base.tokenizer, answers, &sets.all(), (format(answers), &map(answers)), listener)?;
    preview_of(&sets.train, answers, &base, None, Some(wanted), listener)
}

/// Checks data without a model.
fn check_text(request: CheckRequest, listener: &dyn Listener) -> Result<Report, Failure> {
    let CheckRequest { inputs, eval_data, format, map, policy, examples, on_damage, rejected_path, .. } =
        request;
    let options = CheckOptions {
        format,
        map,
        policy,
        examples,
        on_damage,
        eval_data,
        rejected_path,
        ..CheckOptions::default()
    };
    Ok(sparktune_data::check(&inputs, &options, listener)?)
}

/// Settings that say how a model's chat template renders examples, or how many of its tokens they may have.
const OF_MODEL: [&str; 5] =
    ["data.template_kwargs", "model.chat_template", "data.think", "data.max_example_tokens", "data.overlong"];

/// Refuses flags that would have no effect without a model. Those of a preset or a file are passed over.
fn refuse_what_needs_a_model(answers: &Answers, show: &Show) -> Result<(), Failure> {
    let given = OF_MODEL.iter().find(|key| answers.origin(key) == Some(Origin::Flag));
    let flag = match given.and_then(|key| Setting::of(key)) {
        Some(setting) => setting.place(Origin::Flag),
        None if show.wanted.is_some() => "showing an example".to_owned(),
        None if show.limit > 0 => "--show".to_owned(),
        None => return Ok(()),
    };
    let text = format!("{flag} needs a model, because its chat template and tokenizer make the examples");
    Err(Failure::usage(text).hint("Name one with --model"))
}

/// Returns up to `limit` examples under the policy of the answers.
fn shown(
    answers: &Answers,
    inputs: &[Input],
    base: &BaseModel,
    Show { limit, wanted }: Show,
    listener: &dyn Listener,
) -> Result<(Vec<ShownExample>, Option<String>), Failure> {
    let preview = preview_of(inputs, answers, base, Some(limit), wanted.clone(), listener)?;
    let why = match wanted {
        Some(wanted) => Some(why_none(&preview, &wanted)),
        None => why_nothing(&preview),
    };
    let shown = trained(preview.examples.into_iter(), answers, base);
    let not_found = why.filter(|_| shown.is_empty());
    Ok((shown, not_found))
}

/// Says why not one of the first examples is shown, if the report does not say it: rejected lines are in it.
fn why_nothing(preview: &Preview) -> Option<String> {
    let have = match preview.too_long_to_show {
        0 => return None,
        1 => "1 line has".to_owned(),
        lines => format!("{} lines have", count(lines)),
    };
    Some(format!("no example is shown: {have} more than 1 MiB, and such lines are not shown"))
}

/// Says why there is no example to show. The reasons of the search count only if it has found none: examples
/// that it has found may have no trained tokens.
fn why_none(preview: &Preview, wanted: &Wanted) -> String {
    let why = preview.why_not_found().filter(|_| preview.examples.is_empty());
    match (why, wanted) {
        (Some(why), _) => why,
        (None, Wanted::Line { line, .. }) => format!("no example comes from line {}", count(*line)),
        (None, Wanted::Text(text)) => format!("no example contains \"{text}\""),
    }
}

/// Returns examples under the policy of the answers. Those without trained tokens are rejected under it.
fn trained(
    examples: impl Iterator<Item = Previewed>,
    answers: &Answers,
    base: &BaseModel,
) -> Vec<ShownExample> {
    let of_policy = |example: Previewed| ShownExample {
        place: example.place,
        tokens: example.tokens,
        rendering: match think(answers, base.tokenizer.thinking_now()) {
            Think::Train => example.train,
            Think::Skip => example.skip,
        },
    };
    examples.map(of_policy).filter(|shown| shown.rendering.target_tokens > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_too_long_to_show_are_why_nothing_is_shown() {
        let preview = |lines| Preview { too_long_to_show: lines, ..Preview::default() };
        assert_eq!(why_nothing(&preview(0)), None);
        let said = "no example is shown: 1 line has more than 1 MiB, and such lines are not shown";
        assert_eq!(why_nothing(&preview(1)).as_deref(), Some(said));
        assert!(why_nothing(&preview(2_000)).unwrap().contains(": 2,000 lines have"));
    }

    #[test]
    fn what_a_search_has_not_read_is_no_reason_why_its_examples_are_not_shown() {
        let wanted = Wanted::Line { file: None, line: 1200 };
        let mut preview = Preview { refused_file: Some("b.jsonl: is UTF-16".into()), ..Preview::default() };
        assert_eq!(why_none(&preview, &wanted), "not all of the data was read: b.jsonl: is UTF-16");
        preview.examples.push(Previewed {
            place: Place { file: "a.jsonl".into(), line: 1200 },
            pick: Pick::First,
            tokens: 1,
            train: Rendering::default(),
            skip: Rendering::default(),
        });
        assert_eq!(why_none(&preview, &wanted), "no example comes from line 1,200");
    }
}
