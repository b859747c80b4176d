//! The variables with which a chat template is rendered, as an answer and as a value of the plan.
//!
//! Enters: a JSON object on the command line, or a TOML table. Leaves: the same, with the keys of all objects
//! in alphabetical order, because TOML has no other: a template that writes an object then writes the same
//! text however it was given. This file must not know templates.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sparktune_base::escape::escape;

use crate::setting::Kind;
use crate::shown::Shown;
use crate::values::Value;

/// Variables of a chat template by name, which servers call chat template kwargs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TemplateKwargs(pub BTreeMap<String, Json>);

/// The names that programs which render chat templates give a meaning themselves, so that no default in the
/// template takes effect and some of them refuse a value from outside.
const TAKEN: &[&str] = &[
    // The arguments of transformers' `apply_chat_template`, most of which vLLM sets too.
    "conversation",
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    // The special tokens, of which a tokenizer may have others.
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
    // Functions that transformers adds, and the names that Jinja has of its own.
    "raise_exception",
    "strftime_now",
    "range",
    "dict",
    "lipsum",
    "cycler",
    "joiner",
    "namespace",
    "loop",
    "self",
    "super",
    "caller",
    "varargs",
    "kwargs",
];

/// The largest depth of a value. The plan, which is written as TOML, can be read up to a depth of 80.
const DEEPEST: usize = 32;

impl TemplateKwargs {
    /// Returns the variables that tell a template whether to think.
    pub fn thinking(on: bool) -> Self {
        Self([("enable_thinking".to_owned(), Json::from(on))].into())
    }

    /// Returns the variables that tell a template not to think.
    pub fn without_thinking() -> Self {
        Self::thinking(false)
    }

    /// Returns lines of Jinja that give the variables these values where the caller of the template sets
    /// none. They belong at the head of a template.
    pub fn as_defaults(&self) -> String {
        let line = |(name, value): (&String, &Json)| {
            format!("{{%- set {name} = {name} if {name} is defined else {value} %}}\n")
        };
        self.0.iter().map(line).collect()
    }

    /// Reads a JSON object.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence.
    pub fn read(text: &str) -> Result<Self, String> {
        let variables =
            serde_json::from_str(text).map_err(|error| format!("this is no JSON object: {error}"))?;
        Self::checked(variables)
    }

    /// Reads a TOML table.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence.
    fn read_toml(value: &toml::Value) -> Result<Self, String> {
        let table = value.as_table().ok_or("this is no table")?;
        if let Some(name) = table.iter().find(|(_, value)| has_date(value)).map(|(name, _)| name) {
            return Err(format!(
                "`{name}` has a date, which JSON does not know: write it as text, in quotes"
            ));
        }
        Self::checked(value.clone().try_into().map_err(|error| format!("this is no table: {error}"))?)
    }

    /// Describes what is wrong with a JSON object that is refused, as the end of a sentence.
    pub(crate) fn problem_of_text(text: &str) -> Option<String> {
        Self::read(text).err()
    }

    /// The same for a TOML table.
    pub(crate) fn problem_of_toml(value: &toml::Value) -> Option<String> {
        Self::read_toml(value).err()
    }

    /// Returns the variables, with sorted keys, if a template can read their names, and TOML and templates
    /// treat their values as Python does.
    fn checked(mut variables: BTreeMap<String, Json>) -> Result<Self, String> {
        let is_name = |name: &String| {
            let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        for (name, value) in &mut variables {
            if !is_name(name) {
                return Err(format!("`{}` is no name that a template can read", escape(name)));
            }
            if TAKEN.contains(&name.as_str()) {
                return Err(format!("`{name}` gets its value from the program that renders the template"));
            }
            if let Some(problem) = problem_of(value, DEEPEST) {
                return Err(format!("`{name}` has {problem}"));
            }
            value.sort_all_objects();
        }
        Ok(Self(variables))
    }
}

/// Returns what keeps a value from being a variable. TOML has no null, integers of 64 bits with a sign, and
/// limits the depth. A number that Python prints with an exponent looks otherwise in a template that joins it
/// with text, because this program's templates print all digits.
fn problem_of(value: &Json, depth: usize) -> Option<&'static str> {
    if depth == 0 {
        return Some("more than 32 levels of lists and objects");
    }
    let of_all =
        |mut values: Box<dyn Iterator<Item = &Json> + '_>| values.find_map(|v| problem_of(v, depth - 1));
    match value {
        Json::Null => Some("a null: omit it"),
        Json::Array(items) => of_all(Box::new(items.iter())),
        Json::Object(fields) => of_all(Box::new(fields.values())),
        Json::Number(number) if number.is_i64() => None,
        Json::Number(number) => {
            let size = number.as_f64().unwrap_or(f64::NAN).abs();
            let is_plain = number.is_f64() && (size == 0.0 || (1e-4..1e16).contains(&size));
            (!is_plain).then_some(
                "a number of more than 64 bits, or one that Python prints with an exponent: write it as text, in quotes",
            )
        }
        Json::Bool(_) | Json::String(_) => None,
    }
}

/// Returns whether there is a date in a TOML value.
fn has_date(value: &toml::Value) -> bool {
    match value {
        toml::Value::Datetime(_) => true,
        toml::Value::Array(items) => items.iter().any(has_date),
        toml::Value::Table(fields) => fields.values().any(has_date),
        _ => false,
    }
}

impl fmt::Display for TemplateKwargs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", serde_json::json!(self.0))
    }
}

impl Shown for TemplateKwargs {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for TemplateKwargs {
    const KIND: Kind = Kind::Object;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        Self::read_toml(value).ok()
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::read(text).ok()
    }

    fn to_toml(&self) -> Option<toml::Value> {
        toml::Value::try_from(&self.0).ok()
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Origin;
    use crate::settings::Answers;

    #[test]
    fn variables_are_read_from_json_and_from_a_table_and_written_back() {
        let json = r#"{"reasoning_effort": "low", "enable_thinking": false, "budget": 1.0, "n": 3}"#;
        let mut answers = Answers::default();
        answers.set("template-kwargs", json, Origin::Flag).unwrap();
        let toml = "[data.template_kwargs]\nn = 3\nbudget = 1.0\nenable_thinking = false\nreasoning_effort = \"low\"\n";
        let of_file = Answers::from_toml(toml, Origin::Flag, "file").unwrap();
        assert_eq!(answers, of_file);
        let (text, _) = answers.get("template-kwargs").unwrap();
        assert_eq!(
            text, r#"{"budget":1.0,"enable_thinking":false,"n":3,"reasoning_effort":"low"}"#,
            "in one order, so that the same variables have the same tokens"
        );
        let written = answers.to_toml().unwrap();
        assert_eq!(Answers::from_toml(&written, Origin::Flag, "draft").unwrap(), answers, "{written}");
        let none = TemplateKwargs::from_text("{}").unwrap();
        assert_eq!((none.to_text().unwrap().as_str(), none.as_defaults().as_str()), ("{}", ""));
    }

    #[test]
    fn keys_have_one_order_however_they_were_given() {
        let json = r#"{"v": {"zeta": 1, "alpha": [{"y": 1, "x": 2}]}}"#;
        let kwargs = TemplateKwargs::from_text(json).unwrap();
        assert_eq!(kwargs.to_string(), r#"{"v":{"alpha":[{"x":2,"y":1}],"zeta":1}}"#);
        let toml: toml::Value = toml::from_str("v = { zeta = 1, alpha = [{ y = 1, x = 2 }] }").unwrap();
        assert_eq!(TemplateKwargs::from_toml(&toml).unwrap().to_string(), kwargs.to_string());
        assert!(kwargs.as_defaults().contains(r#"else {"alpha":[{"x":2,"y":1}],"zeta":1} %}"#));
    }

    #[test]
    fn what_no_template_can_read_is_refused() {
        for text in [
            "enable_thinking=false",
            "[1]",
            r#"{"a": null}"#,
            r#"{"a": 18446744073709551615}"#,
            r#"{"a": [{"b": null}]}"#,
            r#"{"a-b": 1}"#,
            r#"{"": 1}"#,
            r#"{"messages": []}"#,
            r#"{"namespace": 1}"#,
            r#"{"bos_token": ""}"#,
            r#"{"documents": []}"#,
            r#"{"cycler": 1}"#,
            r#"{"a": 18446744073709551616}"#,
            r#"{"a": -99999999999999999999}"#,
            r#"{"a": [1e-7]}"#,
            r#"{"a": 1e16}"#,
            &format!(r#"{{"deep": {}1{}}}"#, "[".repeat(32), "]".repeat(32)),
        ] {
            assert_eq!(TemplateKwargs::from_text(text), None, "{text}");
            let mut answers = Answers::default();
            let error = answers.set("template-kwargs", text, Origin::Flag).unwrap_err().to_string();
            assert!(error.contains("--template-kwargs") && error.contains("JSON object"), "{error}");
        }
        let problem = |text| TemplateKwargs::problem_of_text(text).unwrap();
        assert_eq!(
            problem(r#"{"eos_token": "x"}"#),
            "`eos_token` gets its value from the program that renders the template"
        );
        assert!(problem(r#"{"a": 1e22}"#).contains("as text, in quotes"));
        assert!(problem("{").contains("no JSON object"));
        for number in ["0.0001", "-0.0", "9007199254740993", "9999999999999998.0", "0.1"] {
            assert!(TemplateKwargs::from_text(&format!(r#"{{"a": {number}}}"#)).is_some(), "{number}");
        }
        for value in ["1979-05-27", "[07:32:00]", "{ b = 1979-05-27T07:32:00Z }", "nan", "1e300"] {
            let toml = format!("[data.template_kwargs]\na = {value}\n");
            let error = Answers::from_toml(&toml, Origin::Preset, "p.toml").unwrap_err().to_string();
            assert!(error.contains("data.template_kwargs") && error.contains("`a` has a"), "{error}");
        }
        let fits = format!(r#"{{"deep": {}1{}}}"#, "[".repeat(31), "]".repeat(31));
        assert!(TemplateKwargs::from_text(&fits).is_some());
    }

    #[test]
    fn defaults_are_lines_of_jinja_with_literals_that_it_shares_with_json() {
        let kwargs = TemplateKwargs::from_text(r#"{"enable_thinking": false, "effort": "\"low\""}"#).unwrap();
        assert_eq!(
            kwargs.as_defaults(),
            "{%- set effort = effort if effort is defined else \"\\\"low\\\"\" %}\n\
             {%- set enable_thinking = enable_thinking if enable_thinking is defined else false %}\n"
        );
    }
}
