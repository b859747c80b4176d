//! Explains why a line could not be read: the place, the problem, and the remedy.
//!
//! Runs on rejected lines only, so it can afford to read the line into a tree and walk it, unless the tree
//! would be too large ([`json_tree`]).

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use sparktune_base::choices::Overlong;
use sparktune_base::units::count;

use crate::conversation::MOST_MESSAGES;
use crate::foreign::Foreign;
use crate::format::Format;
use crate::json_tree;
use crate::rejection::{Kind, Rejection};

pub(crate) const ROLE_FIX: &str = "Use one of: system, developer, user, assistant, tool, function";
pub(crate) const SPEAKER_FIX: &str = "Use one of: system, human, gpt, tool, observation, function_call";
/// The length in bytes of the longest line accepted. A line is held in memory as a whole.
pub(crate) const MAX_LINE_BYTES: usize = 64 << 20;
/// The largest number of fields named in the message about an unknown format.
const SHOWN_FIELDS: usize = 6;
const LINE_FIX: &str = "Write one JSON object per line; write line breaks inside a string as \\n";
const FORMAT_FIX: &str = "Name the fields messages, conversations, instruction + output, prompt + completion, or text; or say what stands for them, as in --map question=instruction,answer=output";
/// The remedy for an object that is written on several lines.
const OPEN_FIX: &str =
    "Write one JSON object per line (jq -c . IN > OUT does); write line breaks inside a string as \\n";

/// Quotes text from the data for a message: shortened and escaped for a terminal.
pub(crate) fn quoted(text: &str) -> String {
    const KEPT: usize = 40;
    let kept: String = text.chars().take(KEPT).collect();
    let dots = if text.chars().nth(KEPT).is_some() { "…" } else { "" };
    format!("{kept:?}{dots}")
}

pub(crate) fn invalid_utf8(valid_up_to: usize) -> Rejection {
    Rejection::new(
        Kind::InvalidUtf8,
        "",
        format!("not valid UTF-8 from byte {} on", valid_up_to + 1),
        "Write the file as UTF-8 (iconv -f ENCODING -t UTF-8)",
    )
}

pub(crate) fn too_long(bytes: u64) -> Rejection {
    Rejection::new(
        Kind::LineTooLong,
        "",
        format!("the line is {bytes} bytes long; a line may have at most {} MiB", MAX_LINE_BYTES >> 20),
        "Split the example; if the whole file is one line, write one example per line",
    )
}

/// Explains that a line has a token of the tokenizer that the model does not have.
pub(crate) fn unknown_token(token: u32, vocabulary: u32) -> Rejection {
    let (token, vocabulary) = (count(token.into()), count(vocabulary.into()));
    Rejection::new(
        Kind::UnknownToken,
        "",
        format!("it has the token {token}, but the model's vocabulary ends at {vocabulary}"),
        "Remove the text of this token if few lines have it; otherwise take tokenizer.json and config.json of the same model",
    )
}

/// Explains why a conversation is too long, whatever its messages say.
pub(crate) fn too_many_messages(field: &str, messages: usize) -> Rejection {
    let (messages, most) = (count(messages as u64), count(MOST_MESSAGES as u64));
    Rejection::new(
        Kind::LineTooLong,
        field,
        format!("{messages} messages; a conversation may have at most {most}"),
        "Write the conversation as several lines",
    )
}

/// Explains why the content of a conversation has too many parts.
pub(crate) fn too_many_parts(field: &str, parts: usize) -> Rejection {
    let (parts, most) = (count(parts as u64), count(MOST_MESSAGES as u64));
    Rejection::new(
        Kind::LineTooLong,
        field,
        format!("{parts} parts of content; a conversation may have at most {most}"),
        "Join the texts of the parts, or write the conversation as several lines",
    )
}

/// Explains why tools or calls of tools are not read.
pub(crate) fn too_much_json(field: &str) -> Rejection {
    let reason = format!("tools and calls with {}", json_tree::TOO_LARGE);
    Rejection::new(Kind::LineTooLong, field, reason, json_tree::TOO_LARGE_FIX)
}

/// Explains why a text is not tokenised. `is_unusual` says whether another text of this length would be.
pub(crate) fn too_much_text(bytes: usize, most: usize, is_unusual: bool) -> Rejection {
    let (such, fix) = if is_unusual {
        (
            " of such text",
            "Split the example, or remove words of more than a megabyte and characters that are not normalised (NFC)",
        )
    } else {
        ("", "Split the example into several")
    };
    let (bytes, most) = (count(bytes as u64), most >> 20);
    let reason = format!("{bytes} bytes of text; this tokenizer takes at most {most} MiB{such} at once");
    Rejection::new(Kind::TooManyTokens, "", reason, fix)
}

/// Explains why an example for each turn of a line is not made.
pub(crate) fn too_many_turns(trained: usize, most_bytes: usize) -> Rejection {
    Rejection::new(
        Kind::LineTooLong,
        "messages",
        format!(
            "{} trained turns, each with all turns before it, are more than {} MiB of text",
            count(trained as u64),
            most_bytes >> 20
        ),
        "Write the conversation as several lines, train it without --split-turns, or only its last turn with --train-on last",
    )
}

/// Explains why the examples of a line are not made.
pub(crate) fn too_many_examples(most_bytes: usize) -> Rejection {
    Rejection::new(
        Kind::LineTooLong,
        "",
        format!("tokenised, its examples would take more than {} MiB of memory", most_bytes >> 20),
        "Write it as several lines, or raise --max-example-tokens, so that it is cut into fewer parts",
    )
}

/// Explains why an example was left out although `overlong` may keep a part of it.
pub(crate) fn too_many_tokens(tokens: usize, limit: u32, overlong: Overlong) -> Rejection {
    let (why, fix) = match overlong {
        Overlong::Auto | Overlong::Drop => {
            ("", "keep a part of it with --overlong truncate or --overlong split")
        }
        Overlong::Truncate => (", and none of the tokens before the limit is trained", "shorten its prompt"),
        Overlong::Split => {
            (", and a part of whole turns is still too long", "keep its beginning with --overlong truncate")
        }
    };
    Rejection::new(
        Kind::TooManyTokens,
        "",
        format!("{tokens} tokens, more than the limit of {limit}{why}"),
        format!("Raise --max-example-tokens if you have set it below the model's own limit, or {fix}"),
    )
}

/// Explains why a line of a file whose format is unknown is rejected.
pub(crate) fn unrecognised(line: &str) -> Rejection {
    if json_tree::is_too_large([line]) {
        return match serde_json::from_str::<IgnoredAny>(line) {
            Err(e) => invalid_json(&e),
            Ok(_) => {
                let reason = "matches no known format, and is too large for its fields to be named";
                Rejection::new(Kind::UnknownFormat, "", reason, FORMAT_FIX)
            }
        };
    }
    match serde_json::from_str::<Value>(line) {
        Err(e) => invalid_json(&e),
        Ok(Value::Object(object)) => unknown_fields(&object),
        Ok(value) => not_an_object(&value),
    }
}

/// Explains why an object has no known format, and names its fields.
fn unknown_fields(object: &Map<String, Value>) -> Rejection {
    let has = |field: &str| object.contains_key(field);
    let fix = if has("chosen") && has("rejected") {
        "Preference pairs (DPO) cannot be trained yet; write the chosen answers as prompt + completion"
            .to_owned()
    } else if let Some(map) = Foreign::of_object(object).map {
        format!("Say what they stand for: {}", map.flag())
    } else {
        FORMAT_FIX.to_owned()
    };
    let mut names: Vec<_> = object.keys().take(SHOWN_FIELDS).map(|name| format!("{name:?}")).collect();
    if object.len() > SHOWN_FIELDS {
        names.push(format!("{} more", object.len() - SHOWN_FIELDS));
    }
    let found = if names.is_empty() { "no fields".to_owned() } else { names.join(", ") };
    let reason = format!("has {found}, which match no known format");
    Rejection::new(Kind::UnknownFormat, "", reason, fix)
}

/// Explains why a line could not be read as `format`. The parser's `error` is used when nothing more specific
/// is found.
pub(crate) fn unreadable(format: Format, line: &str, error: &serde_json::Error) -> Rejection {
    let otherwise = || {
        let fix = format!("Write the line in the {format} format");
        let reason = format!("{} at column {}", without_place(error), error.column());
        twice(error).unwrap_or_else(|| Rejection::new(Kind::WrongType, "", reason, fix))
    };
    let of_another_format = |field: &str| {
        let other = Format::detect(std::iter::once(line.as_bytes())).filter(|o| *o != format)?;
        Some(Rejection::new(
            Kind::UnknownFormat,
            field,
            format!("missing: the line looks like {other}, but the file is read as {format}"),
            format!("Put {other} lines into a file of their own, or set --format"),
        ))
    };
    if json_tree::is_too_large([line]) {
        let absent = || {
            let problem = without_place(error);
            let field = problem.strip_prefix("missing field `")?.strip_suffix('`')?;
            let missing = || Rejection::new(Kind::MissingField, field, "missing", format!("Add {field:?}"));
            Some(of_another_format(field).unwrap_or_else(missing))
        };
        return if error.is_data() { absent().unwrap_or_else(otherwise) } else { invalid_json(error) };
    }
    let object = match serde_json::from_str::<Value>(line) {
        Err(e) => return invalid_json(&e),
        Ok(Value::Object(object)) => object,
        Ok(value) => return not_an_object(&value),
    };
    let found = match format {
        Format::Messages => object.get("messages").and_then(|m| list(m, "messages")),
        Format::ShareGpt => object.get("conversations").and_then(|c| list(c, "conversations")),
        Format::Alpaca => ["instruction", "input", "output", "system"]
            .into_iter()
            .find_map(|f| object.get(f).and_then(|v| text_or_null(v, f))),
        Format::Text => object.get("text").and_then(|v| text_or_null(v, "text")),
        Format::PromptCompletion => ["prompt", "completion"].into_iter().find_map(|f| {
            let value = object.get(f)?;
            if value.is_array() { list(value, f) } else { text_or_null(value, f) }
        }),
    };
    let missing = || {
        let field = format.required().iter().find(|f| object.get(**f).is_none_or(Value::is_null))?;
        Some(of_another_format(field).unwrap_or_else(|| {
            let fix = match Foreign::of_object(&object).map {
                Some(map) => format!("Add {field:?}, or say what stands for it: {}", map.flag()),
                None => format!("Add {field:?}"),
            };
            Rejection::new(Kind::MissingField, *field, "missing or null", fix)
        }))
    };
    missing().or(found).unwrap_or_else(otherwise)
}

/// Explains that a line has a field twice, if that is the parser's error.
fn twice(error: &serde_json::Error) -> Option<Rejection> {
    let field = without_place(error).strip_prefix("duplicate field `")?.strip_suffix('`')?.to_owned();
    Some(Rejection::new(Kind::WrongType, field, "comes twice in the line", "Keep one of the two"))
}

fn invalid_json(error: &serde_json::Error) -> Rejection {
    let problem = match without_place(error).as_str() {
        // The parser's word for true, false and null.
        "expected ident" => "a word that is not true, false or null; text needs double quotes".to_owned(),
        problem => problem.to_owned(),
    };
    let (reason, fix) = if error.is_eof() {
        ("the line ends in the middle of a JSON value".to_owned(), OPEN_FIX)
    } else if HALF_CHARACTERS.contains(&problem.as_str()) {
        (
            format!(
                "half of a character at column {}: one of the two \\u escapes is missing",
                error.column()
            ),
            "Write both escapes, or the character itself in UTF-8, or remove the half",
        )
    } else {
        (format!("not valid JSON at column {}: {problem}", error.column()), LINE_FIX)
    };
    Rejection::new(Kind::InvalidJson, "", reason, fix)
}

/// What the parser says of a surrogate without the other one of its pair.
const HALF_CHARACTERS: [&str; 2] = ["lone leading surrogate in hex escape", "unexpected end of hex escape"];

/// Returns the beginning of the error's text, which may quote a whole string of the line, without "at line 1
/// column n", which users would read as a line of the file.
fn without_place(error: &serde_json::Error) -> String {
    const KEPT: usize = 200;
    let text = error.to_string();
    let problem = text.split(" at line ").next().unwrap_or(&text);
    match problem.char_indices().nth(KEPT) {
        Some((end, _)) => format!("{}…", &problem[..end]),
        None => problem.to_owned(),
    }
}

fn not_an_object(value: &Value) -> Rejection {
    Rejection::new(Kind::NotAnObject, "", format!("{}, not an object", type_name(value)), LINE_FIX)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn wrong(field: String, value: &Value, wanted: &str) -> Rejection {
    let fix = format!("Write {wanted}");
    Rejection::new(Kind::WrongType, field, format!("{}, not {wanted}", type_name(value)), fix)
}

fn text_or_null(value: &Value, field: &str) -> Option<Rejection> {
    (!value.is_string() && !value.is_null()).then(|| wrong(field.to_owned(), value, "a string"))
}

fn list(value: &Value, name: &str) -> Option<Rejection> {
    let Value::Array(turns) = value else {
        return Some(wrong(name.to_owned(), value, "a list of turns"));
    };
    turns.iter().enumerate().find_map(|(i, turn)| {
        let at = |field: &str| format!("{name}[{i}].{field}");
        let Value::Object(turn) = turn else {
            return Some(wrong(format!("{name}[{i}]"), turn, "an object"));
        };
        let fields = ["role", "reasoning_content"];
        let content = || match turn.get("content")? {
            Value::Array(parts) => parts.iter().enumerate().find_map(|(p, v)| part(v, at("content"), p)),
            Value::String(_) | Value::Null => None,
            other => Some(wrong(at("content"), other, "a string or a list of text parts")),
        };
        fields.into_iter().find_map(|f| turn.get(f).and_then(|v| text_or_null(v, &at(f)))).or_else(content)
    })
}

fn part(value: &Value, content: String, index: usize) -> Option<Rejection> {
    let field = format!("{content}[{index}]");
    let Value::Object(part) = value else { return Some(wrong(field, value, "an object")) };
    match part.get("type").and_then(Value::as_str) {
        None | Some("text") => match part.get("text") {
            Some(Value::String(_)) => None,
            Some(other) => Some(wrong(format!("{field}.text"), other, "a string")),
            None => Some(Rejection::new(
                Kind::MissingField,
                format!("{field}.text"),
                "missing",
                "Give the part some text, or remove it",
            )),
        },
        Some(kind) => Some(Rejection::new(
            Kind::UnsupportedContent,
            field,
            format!("a part of type {}: only text can be trained", quoted(kind)),
            "Remove the example, or replace the part with text",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse_line;

    #[test]
    fn halves_of_characters_fields_that_come_twice_and_open_objects_are_explained() {
        let twice = r#"{"prompt":"a","prompt":"b","completion":"c"}"#;
        // A field that comes twice does not hide which format is meant.
        let format = Format::detect(std::iter::once(twice.as_bytes()));
        assert_eq!(format, Some(Format::PromptCompletion));
        for (line, said) in [
            (twice, "prompt: comes twice in the line. Keep one of the two"),
            (r#"{"prompt":"a\ud83d","completion":"c"}"#, "half of a character at column"),
            (r#"{"prompt":"a\udc00","completion":"c"}"#, "half of a character at column"),
            ("{", "the line ends in the middle of a JSON value. Write one JSON object per line (jq -c . IN"),
            ("{]", "not valid JSON at column 2"),
            (r#"{"prompt": nope}"#, "not valid JSON at column 13: a word that is not true, false or null"),
        ] {
            let rejection = parse_line(format, line).unwrap_err().to_string();
            assert!(rejection.starts_with(said), "{rejection}");
        }
    }
}
