//! The variables with which a chat template is rendered, as an answer and as a value of the plan.
//!
//! Enters: a JSON object on the command line, or a TOML table. Leaves: the same, in one order. This file must
//! not know templates.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::setting::Kind;
use crate::shown::Shown;
use crate::values::Value;

/// Variables of a chat template by name, which servers call chat template kwargs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TemplateKwargs(pub BTreeMap<String, Json>);

/// The names that every rendering gives a meaning itself.
const TAKEN: [&str; 8] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "loop",
    "namespace",
    "range",
    "raise_exception",
    "strftime_now",
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

    /// Returns the variables if a template can read their names, and TOML can hold their values.
    fn checked(variables: BTreeMap<String, Json>) -> Option<Self> {
        let is_name = |name: &String| {
            let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let is_fit = |(name, value): (&String, &Json)| {
            is_name(name) && !TAKEN.contains(&name.as_str()) && fits_toml(value, DEEPEST)
        };
        variables.iter().all(is_fit).then_some(Self(variables))
    }
}

/// Returns whether TOML can hold a value: it has no null, its integers have 64 bits with a sign, and it is at
/// most `depth` deep.
fn fits_toml(value: &Json, depth: usize) -> bool {
    let fits = |value: &Json| depth > 1 && fits_toml(value, depth - 1);
    match value {
        Json::Null => false,
        Json::Array(items) => items.iter().all(fits),
        Json::Object(fields) => fields.values().all(fits),
        Json::Number(number) => number.is_i64() || number.is_f64(),
        Json::Bool(_) | Json::String(_) => true,
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
        value.as_table()?;
        Self::checked(value.clone().try_into().ok()?)
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::checked(serde_json::from_str(text).ok()?)
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
            &format!(r#"{{"deep": {}1{}}}"#, "[".repeat(32), "]".repeat(32)),
        ] {
            assert_eq!(TemplateKwargs::from_text(text), None, "{text}");
            let mut answers = Answers::default();
            let error = answers.set("template-kwargs", text, Origin::Flag).unwrap_err().to_string();
            assert!(error.contains("--template-kwargs") && error.contains("JSON object"), "{error}");
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
