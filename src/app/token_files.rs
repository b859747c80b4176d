//! Token files as data.
//!
//! Enters: answers whose data may be token files. Leaves: the settings that made those, which the plan has to
//! use, or the refusal of an answer that differs from them. This file must not know how text is read.

use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_base::program_name;
use sparktune_data::{ExampleOptions, Format, Input, PackedData, Policy, packed_data};
use sparktune_plan::{
    Answer, Answers, DataFormat, Origin, PackedFacts, PackedSettings, Setting, TemplateKwargs,
};

use crate::data_worker::ModelTokenizer;
use crate::failure::Failure;
use crate::listener::Listener;

/// Returns how the data of these answers was packed if it is token files, and `None` if it is text. `inputs`
/// are all data, training and eval.
///
/// # Errors
/// A file cannot be read, or a setting that the user gave differs from the one that made the tokens.
pub(crate) fn packed(answers: &Answers, inputs: &[Input]) -> Result<Option<PackedData>, Failure> {
    let Some(packed) = packed_data(inputs)? else { return Ok(None) };
    for (asked, made) in settings(answers, packed.policy.as_ref()) {
        let Some((key, origin, value)) = asked else { continue };
        if made.as_ref() == Some(&value) || origin <= Origin::Preset {
            continue;
        }
        let setting = Setting::of(key).expect("the table has it");
        let (place, path) = (setting.place(origin), packed.path.display().to_string());
        let (value, path, program) = (escape(&value), escape(&path), program_name());
        let why = match &made {
            Some(made) if made.is_empty() => "its tokens were made without".to_owned(),
            Some(made) => format!("its tokens were made with {}", escape(made)),
            None => "it does not say what made its tokens, which are used as they are".to_owned(),
        };
        let text = format!("{place} is {value}, but the data is the token file {path}, and {why}");
        return Err(Failure::usage(text).hint(format!(
            "Omit it, or make the file again from its text: `{program} pack` takes --{} too",
            setting.name
        )));
    }
    Ok(Some(packed))
}

/// A setting of the answers: its key, its origin and its value as text.
type Asked = Option<(&'static str, Origin, String)>;

/// Returns the settings that determine tokens, as the user asked for them and as they made a token file.
fn settings(answers: &Answers, made: Option<&Policy>) -> Vec<(Asked, Option<String>)> {
    fn asked<T>(key: &'static str, answer: &Option<Answer<T>>, text: impl Fn(&T) -> String) -> Asked {
        answer.as_ref().map(|answer| (key, answer.origin, text(&answer.value)))
    }
    let made = |text: fn(&Policy) -> String| made.map(text);
    let limit = |policy: &Policy| policy.max_example_tokens.map_or("none".into(), |limit| limit.to_string());
    vec![
        (
            asked("data.format", &answers.format, |format| format.word().into()),
            made(|policy| policy.format.map_or("auto", Format::name).to_owned()),
        ),
        (asked("data.map", &answers.map, FieldMap::to_string), made(|policy| policy.map.to_string())),
        (
            asked("data.think", &answers.think, |think| think.word().into()),
            made(|policy| policy.mask.think.word().into()),
        ),
        (
            asked("data.train_on", &answers.train_on, |turns| turns.word().into()),
            made(|policy| policy.examples.train_on.word().into()),
        ),
        (
            asked("data.split_turns", &answers.split_turns, bool::to_string),
            made(|policy| policy.examples.split_turns.to_string()),
        ),
        (
            asked("data.template_kwargs", &answers.template_kwargs, |kwargs| {
                serde_json::json!(kwargs.0).to_string()
            }),
            made(|policy| serde_json::json!(policy.template_kwargs).to_string()),
        ),
        (asked("data.max_example_tokens", &answers.max_example_tokens, u32::to_string), made(limit)),
        (
            asked("data.overlong", &answers.overlong, |overlong| overlong.word().into()),
            made(|policy| policy.examples.overlong.word().into()),
        ),
    ]
}

/// Gives the chat template the variables for the data: those that made a token file, or else those of the
/// answers and the text. `inputs` are all data, training and eval.
///
/// # Errors
/// The same as for [`packed`] and [`ModelTokenizer::choose_kwargs`].
pub(crate) fn set_kwargs_for(
    tokenizer: &ModelTokenizer,
    answers: &Answers,
    inputs: &[Input],
    read_as: (Option<Format>, &FieldMap),
    listener: &dyn Listener,
) -> Result<(), Failure> {
    match packed(answers, inputs)? {
        Some(packed) => {
            let kwargs = packed.policy.map(|policy| policy.template_kwargs).unwrap_or_default();
            tokenizer.set_kwargs(kwargs, listener)
        }
        None => tokenizer.choose_kwargs(given_kwargs(answers), inputs, read_as, listener),
    }
}

/// Returns the variables of the chat template that the user gave.
pub(crate) fn given_kwargs(answers: &Answers) -> Option<sparktune_data::TemplateKwargs> {
    answers.template_kwargs.as_ref().map(|answer| answer.value.0.clone())
}

/// Returns the facts for the plan about how token files were made.
pub(crate) fn packed_facts(packed: PackedData) -> PackedFacts {
    let settings = packed.policy.map(|policy| {
        let ExampleOptions { train_on, split_turns, overlong, long_pieces: _ } = policy.examples;
        PackedSettings {
            format: choice_of(policy.format),
            think: policy.mask.think,
            train_on,
            split_turns,
            overlong,
            max_example_tokens: policy.max_example_tokens,
            template_kwargs: TemplateKwargs(policy.template_kwargs),
        }
    });
    PackedFacts { settings }
}

/// Returns the choice that stands for a format; `auto` for none.
fn choice_of(format: Option<Format>) -> DataFormat {
    let word = format.map_or(DataFormat::Auto.word(), Format::name);
    word.parse().expect("every format is a choice, as a test in `data` says")
}
