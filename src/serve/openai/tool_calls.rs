//! Calls of tools, as models write them between `<tool_call>` and `</tool_call>`.
//!
//! Qwen2.5, Qwen3 and others trained in the manner of Hermes write JSON, `{"name": …, "arguments": {…}}`.
//! Qwen3-Coder and Qwen3.5 write `<function=NAME>` with a `<parameter=NAME>` for each argument, whose values
//! are text; the tool's JSON schema says which of them are numbers or lists.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// The name of the tool.
    pub name: String,
    /// Its arguments, as JSON.
    pub arguments: String,
}

/// A call of a tool in OpenAI's form.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ApiToolCall {
    /// The number of the call in the answer; in streams only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Its id, which the message with its result names.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The function.
    pub function: ApiFunction,
}

/// The function that is called.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ApiFunction {
    /// Its name.
    pub name: String,
    /// Its arguments, as JSON in a string.
    pub arguments: String,
}

impl ToolCall {
    /// Returns the call in OpenAI's form.
    pub(crate) fn api(self, id: String, index: Option<usize>) -> ApiToolCall {
        let function = ApiFunction { name: self.name, arguments: self.arguments };
        ApiToolCall { index, id, kind: "function", function }
    }
}

/// The tools of a request: the JSON schema of each one's arguments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    schemas: BTreeMap<String, Value>,
}

impl Tools {
    /// Reads the tools of a request. Those that are in no known form have no schema.
    pub(crate) fn of(tools: &[Value]) -> Self {
        let named = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function.get("parameters").cloned().unwrap_or(Value::Null)))
        });
        Self { schemas: named.collect() }
    }

    /// Reads what is between the marks. `None` if it is no call.
    pub(crate) fn read(&self, block: &str) -> Option<ToolCall> {
        let block = block.trim();
        if block.starts_with("<function=") { self.read_xml(block) } else { read_json(block) }
    }

    fn read_xml(&self, block: &str) -> Option<ToolCall> {
        let (name, mut rest) = block.strip_prefix("<function=")?.split_once('>')?;
        let schema = self.schemas.get(name).and_then(|schema| schema.get("properties"));
        let mut arguments = Map::new();
        while let Some((_, parameter)) = rest.split_once("<parameter=") {
            let (key, after) = parameter.split_once('>')?;
            // A model may forget the end of a parameter.
            let ends = ["</parameter>", "<parameter=", "</function>"];
            let end = ends.iter().filter_map(|end| after.find(end)).min().unwrap_or(after.len());
            let text = after[..end].strip_prefix('\n').unwrap_or(&after[..end]);
            let text = text.strip_suffix('\n').unwrap_or(text);
            arguments.insert(key.to_owned(), value(text, schema.and_then(|schema| schema.get(key))));
            rest = &after[end..];
        }
        let is_name = !name.is_empty() && !name.contains(['<', '\n']);
        is_name.then(|| ToolCall { name: name.to_owned(), arguments: Value::Object(arguments).to_string() })
    }
}

/// Returns the value of a parameter, by the type in its schema. Without one, JSON is JSON and the rest text.
fn value(text: &str, schema: Option<&Value>) -> Value {
    let kind = schema.and_then(|schema| schema.get("type")).and_then(Value::as_str);
    let as_text = || Value::String(text.to_owned());
    match kind {
        Some("string") => as_text(),
        // Models of Python write its words.
        Some("boolean") if text.eq_ignore_ascii_case("true") => Value::Bool(true),
        Some("boolean") if text.eq_ignore_ascii_case("false") => Value::Bool(false),
        _ if text == "None" => Value::Null,
        _ => serde_json::from_str(text).unwrap_or_else(|_| as_text()),
    }
}

fn read_json(block: &str) -> Option<ToolCall> {
    let Value::Object(mut call) = serde_json::from_str(block).ok()? else { return None };
    let name = call.get("name")?.as_str()?.to_owned();
    let arguments = call.remove("arguments").or_else(|| call.remove("parameters"));
    let arguments = match arguments {
        // Some models write the arguments as a string of JSON already.
        Some(Value::String(text)) => text,
        Some(arguments) => arguments.to_string(),
        None => "{}".to_owned(),
    };
    Some(ToolCall { name, arguments })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sparktune_base::random::SplitMix64;

    use super::*;
    use crate::mutate::mutate;

    fn call(tools: &Tools, block: &str) -> Option<(String, Value)> {
        let call = tools.read(block)?;
        Some((call.name, serde_json::from_str(&call.arguments).unwrap()))
    }

    #[test]
    fn json_and_functions_with_parameters_are_calls() {
        let tools = Tools::default();
        let hermes = "\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n";
        assert_eq!(call(&tools, hermes), Some(("add".into(), json!({"a": 1, "b": [2]}))));
        assert_eq!(call(&tools, r#"{"name": "now"}"#), Some(("now".into(), json!({}))));
        let text = r#"{"name": "add", "arguments": "{\"a\": 1}"}"#;
        assert_eq!(call(&tools, text), Some(("add".into(), json!({"a": 1}))));
        let coder = "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\ntwo\nlines\n</parameter>\n</function>";
        assert_eq!(call(&tools, coder), Some(("add".into(), json!({"a": 1, "note": "two\nlines"}))));
        assert_eq!(call(&tools, "<function=now>\n</function>"), Some(("now".into(), json!({}))));
        for no_call in ["", "{", "[]", "{\"arguments\": {}}", "<function=", "<function=>x", "text"] {
            assert_eq!(call(&tools, no_call), None, "{no_call}");
        }
    }

    #[test]
    fn the_schema_says_what_a_parameter_is() {
        let properties =
            json!({"zip": {"type": "string"}, "on": {"type": "boolean"}, "n": {"type": "integer"}});
        let tool =
            json!({"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}});
        let tools = Tools::of(&[tool, json!(5)]);
        let block = "<function=f><parameter=zip>00123</parameter><parameter=on>True</parameter><parameter=n>7</parameter></function>";
        assert_eq!(call(&tools, block), Some(("f".into(), json!({"zip": "00123", "on": true, "n": 7}))));
    }

    #[test]
    fn whatever_a_model_writes_between_the_marks_is_a_call_or_none() {
        let schema = json!({"properties": {"a": {"type": "number"}, "b": {"type": "boolean"}}});
        let tools =
            Tools::of(&[json!({"type": "function", "function": {"name": "add", "parameters": schema}})]);
        let blocks = [
            r#"{"name": "add", "arguments": {"a": 1, "b": [2, {"c": null}]}}"#,
            r#"{"name": "add", "arguments": "{\"a\": 1}"}"#,
            "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>",
        ];
        let blocks = blocks.map(|block| block.as_bytes().to_vec());
        let (mut random, mut calls) = (SplitMix64::new(14), 0);
        for block in blocks.iter().cycle().take(6000) {
            let block = mutate(block, &blocks, 4096, &mut random);
            let block = String::from_utf8_lossy(&block);
            let read = tools.read(&block);
            assert_eq!(read, tools.read(&block), "{block}");
            let Some(call) = read else { continue };
            calls += 1;
            let bound = 8 * block.len() + 64;
            assert!(call.name.len() <= block.len() && call.arguments.len() <= bound, "{block}: {call:?}");
        }
        assert!(calls > 500, "{calls}");
    }
}
