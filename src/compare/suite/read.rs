//! From the bytes of a file to a suite.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sparktune_sampling::SamplingParams;

use super::{Ask, MOST_SUITE_BYTES, Suite, SuiteError, SuitePrompt};
use crate::checks::{Check, NeedsOf, Spec, quoted};

/// The most bytes of a line.
const LONGEST_LINE: usize = 1 << 20;
/// The most prompts of a suite.
const MOST_PROMPTS: usize = 10_000;
/// The most checks of a prompt.
const MOST_CHECKS: usize = 64;
/// The most characters of an id and of a name.
const LONGEST_NAME: usize = 80;
/// The most tokens of an answer where the suite does not say.
const MAX_TOKENS: u32 = 256;

/// The first line, if it describes the suite.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Header {
    suite: String,
    about: String,
    chat_template_kwargs: Map<String, Value>,
    sampling: Map<String, Value>,
    checks: Vec<Spec>,
}

/// Any other line.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Line {
    id: Option<String>,
    prompt: Option<String>,
    messages: Option<Value>,
    tools: Option<Value>,
    text: Option<String>,
    reference: Option<String>,
    chat_template_kwargs: Map<String, Value>,
    sampling: Map<String, Value>,
    checks: Vec<Spec>,
}

/// Why a line cannot be used, and what to do.
type Wrong = (String, String);

fn wrong<T>(what: impl Into<String>, fix: impl Into<String>) -> Result<T, Wrong> {
    Err((what.into(), fix.into()))
}

pub(super) fn read(name: &str, bytes: &[u8]) -> Result<Suite, SuiteError> {
    let at = |line: usize| {
        let name = name.to_owned();
        move |(what, fix): Wrong| SuiteError { name, line, what, fix }
    };
    if bytes.len() as u64 > MOST_SUITE_BYTES {
        let what = format!("a suite has at most {MOST_SUITE_BYTES} bytes");
        return Err(at(1)((what, "Split it".to_owned())));
    }
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut header = Header::default();
    // Compiled once: each prompt shares the patterns and schemas, which may be large.
    let mut header_checks = Vec::new();
    let (mut prompts, mut ids) = (Vec::<SuitePrompt>::new(), BTreeSet::new());
    for (i, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = i + 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let object = object_of(line).map_err(at(number))?;
        if object.contains_key("suite") {
            if !prompts.is_empty() || !header.suite.is_empty() {
                let fix = "Put the line with `suite` first, and only once";
                return Err(at(number)((
                    "a suite is described by its first line".to_owned(),
                    fix.to_owned(),
                )));
            }
            (header, header_checks) = header_of(object).map_err(at(number))?;
            continue;
        }
        let prompt = prompt_of(object, &header, &header_checks, number).map_err(at(number))?;
        if !ids.insert(prompt.id.clone()) {
            let what = format!("another prompt has the id {}", quoted(&prompt.id));
            return Err(at(number)((what, "Give each prompt an id of its own".to_owned())));
        }
        if prompts.len() == MOST_PROMPTS {
            let what = format!("the suite has more than {MOST_PROMPTS} prompts");
            return Err(at(number)((what, "Split it".to_owned())));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        let fix = r#"Give one object a line, such as {"prompt": "2 + 2?", "checks": [{"type": "number", "value": 4}]}"#;
        return Err(at(1)(("there is no prompt".to_owned(), fix.to_owned())));
    }
    let own_name = if header.suite.is_empty() { name.to_owned() } else { header.suite };
    Ok(Suite { name: own_name, about: header.about, prompts })
}

fn object_of(line: &[u8]) -> Result<Map<String, Value>, Wrong> {
    if line.len() > LONGEST_LINE {
        return wrong(format!("the line has {} bytes", line.len()), format!("Give at most {LONGEST_LINE}"));
    }
    match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => wrong("the line is not an object", "Write one JSON object a line"),
        Err(error) => {
            // The line of the error is that within this line.
            let text = error.to_string();
            let text = text.split(" at line ").next().unwrap_or_default();
            wrong(
                format!("the line is not JSON: {} at column {}", text, error.column()),
                "Write one JSON object a line",
            )
        }
    }
}

fn header_of(object: Map<String, Value>) -> Result<(Header, Vec<Check>), Wrong> {
    let mut header: Header = fields(Value::Object(object))?;
    header.suite = name_of("suite", &header.suite)?;
    header.about = header.about.split_whitespace().collect::<Vec<_>>().join(" ");
    // What is wrong with them is told of this line and not of the first prompt's.
    sampling_of(&header.sampling, &Map::new())?;
    let checks = compile(std::mem::take(&mut header.checks))?;
    Ok((header, checks))
}

fn prompt_of(
    object: Map<String, Value>,
    header: &Header,
    header_checks: &[Check],
    number: usize,
) -> Result<SuitePrompt, Wrong> {
    let line: Line = fields(Value::Object(object))?;
    let id = match &line.id {
        Some(id) => name_of("id", id)?,
        None => format!("line-{number}"),
    };
    let ask = ask_of(&line)?;
    let sampling = sampling_of(&header.sampling, &line.sampling)?;
    let mut template_kwargs = header.chat_template_kwargs.clone();
    template_kwargs.extend(line.chat_template_kwargs);
    let count = line.checks.len() + header_checks.len();
    if count > MOST_CHECKS {
        return wrong(format!("the prompt has {count} checks"), format!("Give at most {MOST_CHECKS}"));
    }
    let reference = line.reference.filter(|reference| !reference.is_empty());
    let mut checks = compile(line.checks)?;
    checks.extend_from_slice(header_checks);
    let wants_reference =
        checks.iter().find(|check| matches!(check.needs(), NeedsOf::Reference | NeedsOf::ReferenceLoss));
    if let Some(check) = wants_reference.filter(|_| reference.is_none()) {
        return wrong(
            format!("the check `{}` compares with a reference, which the prompt does not have", check.kind()),
            "Add `reference`, or remove the check",
        );
    }
    Ok(SuitePrompt { id, ask, template_kwargs, sampling, reference, checks })
}

fn ask_of(line: &Line) -> Result<Ask, Wrong> {
    if line.tools.is_some() && line.messages.is_none() {
        return wrong("`tools` belong to `messages`", "Write the prompt as `messages`");
    }
    match (&line.prompt, &line.messages, &line.text) {
        (Some(prompt), None, None) if !prompt.trim().is_empty() => Ok(Ask::User(prompt.clone())),
        (None, None, Some(text)) if !text.is_empty() => Ok(Ask::Text(text.clone())),
        (None, Some(messages), None) => {
            check_messages(messages)?;
            Ok(Ask::Messages { messages: messages.clone(), tools: line.tools.clone() })
        }
        (None, None, None) => wrong(
            "there is no prompt",
            "Give one of `prompt` (what a user says), `messages` (a conversation) or `text` (to be continued)",
        ),
        (Some(_), None, None) | (None, None, Some(_)) => {
            wrong("the prompt is empty", "Give at least one character")
        }
        _ => wrong(
            "there is more than one prompt",
            "Give one of `prompt` (what a user says), `messages` (a conversation) and `text` (to be continued)",
        ),
    }
}

fn check_messages(messages: &Value) -> Result<(), Wrong> {
    let fix = "Give a list of objects with `role` and `content`, the last of which is not of the assistant";
    let turns = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(last) = turns.last() else { return wrong("`messages` is not a list of turns", fix) };
    if let Some(turn) = turns.iter().position(|turn| turn.get("role").is_none_or(|role| !role.is_string())) {
        return wrong(format!("messages[{turn}] has no `role`"), fix);
    }
    if last["role"] == "assistant" {
        return wrong("the last turn is the assistant's, so there is nothing to answer", fix);
    }
    Ok(())
}

/// Returns the sampling of a suite with what a prompt says otherwise. Without either, the most likely tokens
/// are chosen, so that the same model gives the same answers.
fn sampling_of(suite: &Map<String, Value>, prompt: &Map<String, Value>) -> Result<SamplingParams, Wrong> {
    let mut all = Map::new();
    all.insert("temperature".to_owned(), json!(0.0));
    all.insert("max_tokens".to_owned(), json!(MAX_TOKENS));
    // What is drawn is drawn from the same numbers for each model.
    all.insert("seed".to_owned(), json!(0));
    all.extend(suite.clone());
    all.extend(prompt.clone());
    let sampling: SamplingParams =
        fields(Value::Object(all)).map_err(|(what, fix)| (format!("sampling: {what}"), fix))?;
    sampling.check().map_err(|invalid| {
        let text = invalid.to_string();
        let (what, fix) = text.split_once(". ").unwrap_or((&text, "Change it"));
        (format!("sampling: {what}"), fix.to_owned())
    })?;
    Ok(sampling)
}

fn compile(specs: Vec<Spec>) -> Result<Vec<Check>, Wrong> {
    let numbered = specs.into_iter().enumerate();
    numbered
        .map(|(i, spec)| Check::new(spec).map_err(|(what, fix)| (format!("checks[{i}]: {what}"), fix)))
        .collect()
}

/// Reads fields, and tells those that there are where one is unknown.
fn fields<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Wrong> {
    serde_json::from_value(value).map_err(|error| {
        let text = error.to_string();
        match text.split_once(", expected ") {
            Some((what, expected)) => (what.to_owned(), format!("Use {expected}")),
            None => (text, "Correct the line; the guide page compare.md explains its fields".to_owned()),
        }
    })
}

fn name_of(field: &str, text: &str) -> Result<String, Wrong> {
    let is_allowed = |c: char| c.is_alphanumeric() || "-_. /:+".contains(c);
    let characters = text.chars().count();
    if characters == 0 || characters > LONGEST_NAME || !text.chars().all(is_allowed) {
        return wrong(
            format!("`{field}` is {}", quoted(text)),
            format!("Use 1 to {LONGEST_NAME} letters, digits, spaces and -_./:+"),
        );
    }
    Ok(text.to_owned())
}
