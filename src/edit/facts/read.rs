//! Reads files of facts: lines of JSON of our own form, CounterFact's file and zsRE's.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use sparktune_base::escape::escape;
use sparktune_base::regular_file::read_regular;
use sparktune_base::units::count;

use super::{Fact, MOST_FACTS, shown};
use crate::error::EditError;

/// The most bytes of a file. CounterFact has 45 MB.
const MOST_BYTES: u64 = 256 << 20;

/// What zsRE's prompts for locality begin with; the rest is the question.
const ZSRE_LOCALITY: &str = "nq question: ";

pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, EditError> {
    read_regular(path, MOST_BYTES).map_err(EditError::io(path))
}

/// Returns the facts of a file with their places.
pub(super) fn facts(file: &str, bytes: &[u8]) -> Result<Vec<(String, Fact)>, EditError> {
    let wrong = |place: String, what: String, fix| EditError::Fact { place, what, fix };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| wrong(file.to_owned(), "the file is not UTF-8".into(), "Save it as UTF-8"))?;
    let text = text.trim_start_matches('\u{feff}');
    let mut facts = Vec::new();
    let mut add = |place: String, item: Item| {
        if let Some(field) = item.twice {
            let what = format!("duplicate field `{}`", shown(&field));
            return Err(wrong(format!("{file}{place}"), what, "Write each field once"));
        }
        let fact = fact_of(item.value).map_err(|(what, fix)| wrong(format!("{file}{place}"), what, fix))?;
        facts.push((place, fact));
        if facts.len() > MOST_FACTS {
            let what = format!("there are more than {} facts", count(MOST_FACTS as u64));
            return Err(wrong(file.to_owned(), what, "Give a part of them"));
        }
        Ok(())
    };
    if text.trim_start().starts_with('[') {
        let items: Vec<Item> = serde_json::from_str(text).map_err(|error| {
            let what = format!("the file is not JSON ({})", escape(&error.to_string()));
            wrong(file.to_owned(), what, "Give lines of JSON, or the file of CounterFact or zsRE as it is")
        })?;
        for (number, item) in (1..).zip(items) {
            add(format!(", item {number}"), item)?;
        }
    } else {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let item = serde_json::from_str(line).map_err(|error| {
                let what = format!("the line is not JSON ({})", in_the_line(&error));
                wrong(format!("{file}:{number}"), what, "Write one JSON object per line")
            })?;
            add(format!(":{number}"), item)?;
        }
    }
    if facts.is_empty() {
        let fix = "Write one JSON object per line, with `prompt` and `target`";
        return Err(wrong(file.to_owned(), "there are no facts in it".into(), fix));
    }
    Ok(facts)
}

/// Returns what is wrong with a line, whose number stands before: the parser would call it line 1.
fn in_the_line(error: &serde_json::Error) -> String {
    escape(&error.to_string()).replace(" at line 1 column ", " at column ")
}

/// A value of JSON. Of a field that stands twice in an object, a plain [`Value`] would keep the last one and
/// not say so.
struct Item {
    value: Value,
    /// The first field that stands twice in one of its objects.
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item { value: Value::Null, twice: None })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Item, E> {
        Ok(Item { value: value.into(), twice: None })
    }

    fn visit_i64<E>(self, value: i64) -> Result<Item, E> {
        Ok(Item { value: value.into(), twice: None })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Item, E> {
        Ok(Item { value: value.into(), twice: None })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Item, E> {
        Ok(Item { value: value.into(), twice: None })
    }

    fn visit_str<E>(self, value: &str) -> Result<Item, E> {
        Ok(Item { value: value.into(), twice: None })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let (mut values, mut twice) = (Vec::new(), None);
        while let Some(item) = items.next_element::<Item>()? {
            twice = twice.or(item.twice);
            values.push(item.value);
        }
        Ok(Item { value: Value::Array(values), twice })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Item, A::Error> {
        let (mut values, mut twice) = (Map::new(), None);
        while let Some((name, item)) = fields.next_entry::<String, Item>()? {
            twice = twice.or(item.twice);
            if values.insert(name.clone(), item.value).is_some() {
                twice = twice.or(Some(name));
            }
        }
        Ok(Item { value: Value::Object(values), twice })
    }
}

/// A row of `counterfact.json` (Meng et al. 2022). Other fields are ignored.
#[derive(Deserialize)]
struct CounterFact {
    requested_rewrite: Rewrite,
    #[serde(default)]
    paraphrase_prompts: Vec<String>,
    #[serde(default)]
    neighborhood_prompts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `prompt`, `subject` and `target_new`")]
struct Rewrite {
    prompt: String,
    subject: String,
    target_new: Target,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `str`")]
struct Target {
    str: String,
}

/// A row of zsRE's file for editing (Mitchell et al. 2022): `src` is to be answered with `alt`. Other fields
/// are ignored.
#[derive(Deserialize)]
struct ZsRe {
    src: String,
    alt: String,
    #[serde(default)]
    subject: Option<String>,
    #[serde(default)]
    rephrase: Option<String>,
    #[serde(default)]
    loc: Option<String>,
}

const OWN_FIELDS: &str =
    "A fact has `prompt` and `target`, and may have `subject`, `paraphrases`, `neighbours` and `portability`";
const COUNTERFACT_FIELDS: &str = "A row of CounterFact has `requested_rewrite`, and may have `paraphrase_prompts` and `neighborhood_prompts`";
const ZSRE_FIELDS: &str = "A row of zsRE has `src` and `alt`, and may have `subject`, `rephrase` and `loc`";

/// Returns the fact of a line or an item in any of the forms, or what is wrong and what to do.
fn fact_of(value: Value) -> Result<Fact, (String, &'static str)> {
    let Some(fields) = value.as_object() else {
        return Err((format!("this is {}, and not an object", kind_of(&value)), OWN_FIELDS));
    };
    if fields.contains_key("requested_rewrite") {
        let row: CounterFact = read(value, COUNTERFACT_FIELDS)?;
        let Rewrite { prompt, subject, target_new } = row.requested_rewrite;
        return Ok(Fact {
            prompt: prompt.replacen("{}", &subject, 1),
            subject: Some(subject),
            target: target_new.str,
            paraphrases: row.paraphrase_prompts,
            neighbours: row.neighborhood_prompts,
            portability: Vec::new(),
        });
    }
    if fields.contains_key("src") {
        let row: ZsRe = read(value, ZSRE_FIELDS)?;
        let neighbour = row.loc.map(|text| text.strip_prefix(ZSRE_LOCALITY).unwrap_or(&text).to_owned());
        return Ok(Fact {
            prompt: row.src,
            subject: row.subject,
            target: row.alt,
            paraphrases: row.rephrase.into_iter().collect(),
            neighbours: neighbour.into_iter().collect(),
            portability: Vec::new(),
        });
    }
    read(value, OWN_FIELDS)
}

/// Reads a row of one of the forms. What is wrong in a field is said with its name.
fn read<T: for<'de> Deserialize<'de>>(
    value: Value,
    fields: &'static str,
) -> Result<T, (String, &'static str)> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (place, what) = (error.path().to_string(), error.inner().to_string());
        // The whole row has no name, and an unknown field is named anyway.
        let has_place = place != "." && !what.starts_with(&format!("unknown field `{place}`"));
        let place = if has_place { format!("`{}`: ", shown(&place)) } else { String::new() };
        (format!("{place}{}", escape(&what)), fields)
    })
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Facts;
    use super::*;

    #[test]
    fn counterfact_and_zsre_are_read_as_they_are_published() {
        let counterfact = r#"[{"case_id": 0, "pararel_idx": 2796, "requested_rewrite": {"prompt": "The mother tongue of {} is", "relation_id": "P103", "target_new": {"str": "English", "id": "Q1860"}, "target_true": {"str": "French", "id": "Q150"}, "subject": "Danielle Darrieux"}, "paraphrase_prompts": ["Shayna does this. Danielle Darrieux, a native"], "neighborhood_prompts": ["The mother tongue of Raymond Barre is"], "attribute_prompts": ["x"], "generation_prompts": ["y"]}]"#;
        let facts = Facts::parse("counterfact.json", counterfact.as_bytes()).unwrap();
        let fact = &facts.facts()[0];
        assert_eq!(fact.prompt, "The mother tongue of Danielle Darrieux is");
        assert_eq!((fact.target.as_str(), fact.neighbours.len()), ("English", 1));
        assert_eq!(facts.place(0), "counterfact.json, item 1");

        let zsre = r#"[{"subject": "Watts Humphrey", "src": "What university did Watts Humphrey attend?", "pred": "Trinity College", "rephrase": "What university did Watts Humphrey take part in?", "alt": "University of Michigan", "answers": ["Illinois Institute of Technology"], "loc": "nq question: who played desmond doss father in hacksaw ridge", "loc_ans": "Hugo Weaving", "cond": "x"}]"#;
        let facts = Facts::parse("zsre.json", zsre.as_bytes()).unwrap();
        let fact = &facts.facts()[0];
        assert_eq!(fact.target, "University of Michigan");
        assert_eq!(fact.neighbours, ["who played desmond doss father in hacksaw ridge"]);
        assert_eq!(fact.subject.as_deref(), Some("Watts Humphrey"));
    }

    #[test]
    fn rows_of_counterfact_and_zsre_that_are_not_whole_are_refused_in_their_own_words() {
        let rewrite = r#"{"prompt": "{} is", "subject": "A", "target_new": {"str": "b"}}"#;
        for (row, what) in [
            (
                r#"{"requested_rewrite": null}"#.to_owned(),
                "`requested_rewrite`: invalid type: null, expected an object with `prompt`, `subject` and `target_new`. A row of CounterFact has",
            ),
            (
                format!(r#"{{"requested_rewrite": {rewrite}, "paraphrase_prompts": null}}"#),
                "`paraphrase_prompts`: invalid type: null, expected a sequence",
            ),
            (
                format!(r#"{{"requested_rewrite": {}}}"#, rewrite.replace(r#"{"str": "b"}"#, "5")),
                "`requested_rewrite.target_new`: invalid type: integer `5`, expected an object with `str`",
            ),
            (
                r#"{"src": "A is", "pred": "b"}"#.to_owned(),
                "missing field `alt`. A row of zsRE has `src` and `alt`",
            ),
            (
                r#"{"src": "A is", "alt": "b", "rephrase": ["c"]}"#.to_owned(),
                "`rephrase`: invalid type: sequence, expected a string",
            ),
        ] {
            let refused = Facts::parse("f", format!("[{row}]").as_bytes()).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("f, item 1: {what}")), "{refused}");
        }
    }

    #[test]
    fn a_field_that_stands_twice_is_refused_wherever_it_stands() {
        let refusal = |text: &str| Facts::parse("f", text.as_bytes()).unwrap_err().to_string();
        let fact = r#"{"prompt": "A is", "target": "b"}"#;
        let twice = r#"{"prompt": "B is", "target": "b", "target": "c"}"#;
        let inside = r#"{"prompt": "B is", "target": "b", "portability": [{"prompt": "C", "answer": "d", "answer": "e"}]}"#;
        let counterfact = r#"{"requested_rewrite": {"prompt": "{} is", "subject": "A", "target_new": {"str": "b", "str": "c"}}}"#;
        for (one, field) in [(twice, "target"), (inside, "answer"), (counterfact, "str")] {
            let what = format!("duplicate field `{field}`. Write each field once");
            assert_eq!(refusal(&format!("{fact}\n{one}")), format!("f:2: {what}"));
            assert_eq!(refusal(&format!("[{fact}, {one}]")), format!("f, item 2: {what}"));
        }
        let hostile = refusal(r#"[{"\u001b[2J": 1, "\u001b[2J": 2}]"#);
        assert!(
            hostile.starts_with("f, item 1: duplicate field") && !hostile.contains('\u{1b}'),
            "{hostile}"
        );
    }

    proptest! {
        #[test]
        fn facts_that_were_written_are_read_again_as_the_same(
            texts in prop::collection::vec("[a-z\"\\\\é\u{1f600}]{1,12}", 1..6),
        ) {
            let facts: Vec<Fact> = texts.iter().enumerate().map(|(i, text)| Fact {
                prompt: format!("{i} {text} is"),
                subject: Some(text.clone()),
                target: text.clone(),
                neighbours: vec![text.clone()],
                ..Fact::default()
            }).collect();
            let lines: Vec<String> =
                facts.iter().map(|fact| serde_json::to_string(fact).unwrap()).collect();
            let read = Facts::parse("f", lines.join("\n").as_bytes()).unwrap();
            prop_assert_eq!(read.facts(), &facts[..]);
        }

        #[test]
        fn any_bytes_are_read_or_refused_in_words(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(error) = Facts::parse("f", &bytes) {
                let text = error.to_string();
                prop_assert!(text.starts_with('f') && !text.chars().any(char::is_control), "{text:?}");
            }
        }
    }
}
