//! Reads the body of a request: fields without effect are ignored, as other servers do, and those that would
//! change the answer but are not supported are refused.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;

/// A body as axum hands it over.
pub(crate) type Received = Result<Json<Value>, JsonRejection>;

/// A field, whether its value says what is done anyway, and what to do instead.
type Unsupported = (&'static str, fn(&Value) -> bool, &'static str);

/// Fields that are refused unless they say what is done anyway, and what to do instead.
const UNSUPPORTED: &[Unsupported] = &[
    ("logit_bias", is_empty, "leave it out"),
    ("response_format", is_text, "ask for JSON in the prompt, and check the answer"),
    ("functions", is_empty, "use `tools`"),
    ("function_call", is_never, "use `tools` and `tool_choice`"),
    ("modalities", is_only_text, "ask for text"),
    ("audio", is_never, "ask for text"),
    ("prediction", is_never, "leave it out"),
    ("web_search_options", is_never, "leave it out"),
    ("suffix", is_empty, "leave it out"),
    ("echo", is_off, "leave it out, and put the prompt before the answer yourself"),
    ("best_of", is_at_most_one, "use `n` and choose yourself"),
    ("use_beam_search", is_off, "leave it out"),
    ("min_tokens", is_off, "use `ignore_eos` with `max_tokens`"),
    ("prompt_logprobs", is_off, "leave it out"),
    ("bad_words", is_empty, "leave it out"),
    ("allowed_token_ids", is_empty, "leave it out"),
    ("structured_outputs", is_never, "ask for the form in the prompt, and check the answer"),
    ("guided_json", is_never, "ask for JSON in the prompt, and check the answer"),
    ("guided_regex", is_never, "ask for the form in the prompt, and check the answer"),
    ("guided_choice", is_never, "ask for one of them in the prompt, and check the answer"),
    ("guided_grammar", is_never, "ask for the form in the prompt, and check the answer"),
    ("chat_template", is_never, "open a run that was trained with it"),
    ("continue_final_message", is_off, "use /v1/completions with the rendered text"),
    ("add_generation_prompt", is_on, "use /v1/completions with the rendered text"),
    ("truncate_prompt_tokens", is_never, "shorten the prompt"),
];

fn is_never(_: &Value) -> bool {
    false
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn is_off(value: &Value) -> bool {
    matches!(value, Value::Bool(false)) || value.as_i64() == Some(0)
}

fn is_on(value: &Value) -> bool {
    matches!(value, Value::Bool(true))
}

fn is_at_most_one(value: &Value) -> bool {
    value.as_i64().is_some_and(|count| count <= 1)
}

fn is_text(value: &Value) -> bool {
    value.get("type").and_then(Value::as_str) == Some("text")
}

fn is_only_text(value: &Value) -> bool {
    value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))
}

/// Reads a request.
///
/// # Errors
/// It is not JSON, a field has another type than it should, or one is not supported.
pub(crate) fn read<T: DeserializeOwned>(received: Received) -> Result<T, ApiError> {
    let Json(Value::Object(mut fields)) = received? else {
        return Err(ApiError::invalid(
            "the body is not a JSON object. Send the fields of the request in one",
        ));
    };
    // Clients write null for what was not set.
    fields.retain(|_, value| !value.is_null());
    refuse_unsupported(&fields)?;
    if fields.get("messages").is_some_and(|messages| !messages.is_array()) {
        return Err(ApiError::invalid("messages must be an array").at("messages"));
    }
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| ApiError::invalid(format!("the request cannot be read: {error}")))
}

fn refuse_unsupported(fields: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, is_harmless, instead) in UNSUPPORTED {
        if fields.get(*name).is_some_and(|value| !is_harmless(value)) {
            let text = format!("`{name}` would change the answer, but is not supported: {instead}");
            return Err(ApiError::invalid(text).at(*name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sparktune_app::chat::recommended::Wishes;

    use super::super::types::{ChatRequest, CompletionRequest, PromptInput};
    use super::*;

    fn chat(more: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(Ok(Json(body)))
    }

    #[test]
    fn messages_that_are_no_array_are_refused_by_their_name() {
        let refused = chat(json!({"messages": "hi"})).unwrap_err();
        assert_eq!(
            (&*refused.message, refused.param.as_deref()),
            ("messages must be an array", Some("messages"))
        );
    }

    #[test]
    fn unknown_fields_and_nulls_are_ignored() {
        let request = chat(json!({"user": "me", "store": false, "temperature": null, "seed": -3})).unwrap();
        assert_eq!((request.sampling.temperature, request.sampling.seed), (None, Some(-3)));
        assert_eq!(
            request.sampling.params(1, Some(5), None, &Wishes::default()).unwrap().seed,
            Some((-2_i64).cast_unsigned())
        );
        for harmless in [
            json!({"logit_bias": {}}),
            json!({"response_format": {"type": "text"}}),
            json!({"modalities": ["text"]}),
            json!({"echo": false, "best_of": 1, "min_tokens": 0}),
        ] {
            assert!(chat(harmless.clone()).is_ok(), "{harmless}");
        }
    }

    #[test]
    fn what_would_change_the_answer_is_refused_by_name() {
        for (name, value) in [
            ("logit_bias", json!({"5": -100})),
            ("response_format", json!({"type": "json_object"})),
            ("response_format", json!({"type": "json_schema", "json_schema": {}})),
            ("functions", json!([{"name": "f"}])),
            ("modalities", json!(["text", "audio"])),
            ("best_of", json!(2)),
            ("echo", json!(true)),
            ("add_generation_prompt", json!(false)),
        ] {
            let error = chat(json!({name: value})).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(name)));
            assert!(error.message.contains("not supported"), "{}", error.message);
        }
        for more in [json!({"temperature": "hot"}), json!({"messages": ["x"]})] {
            let error = chat(more).err().map(|error| error.message).unwrap_or_default();
            assert!(error.contains("cannot be read"), "{error}");
        }
        assert!(read::<ChatRequest>(Ok(Json(json!([])))).unwrap_err().message.contains("not a JSON object"));
    }

    #[test]
    fn parameters_outside_their_range_are_refused_by_name() {
        for (name, value) in [("temperature", json!(-1)), ("top_p", json!(0)), ("stop", json!([""]))] {
            let request = chat(json!({name: value})).unwrap();
            let error = request.sampling.params(0, None, None, &Wishes::default()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
        }
        for n in [0, 17] {
            assert_eq!(chat(json!({"n": n})).unwrap().sampling.choices().unwrap_err().status, 400);
        }
        let makers = Wishes { temperature: Some(0.6), top_k: Some(20), ..Wishes::default() };
        let made = |fields| chat(fields).unwrap().sampling.params(0, None, None, &makers).unwrap();
        let (left_open, said) = (made(json!({})), made(json!({"temperature": 0.9, "top_k": -1})));
        assert_eq!((left_open.temperature, left_open.top_k), (0.6, 20), "as the model's makers want it");
        assert_eq!((said.temperature, said.top_k), (0.9, 0));
        assert_eq!(
            chat(json!({"top_k": -1}))
                .unwrap()
                .sampling
                .params(0, None, None, &Wishes::default())
                .unwrap()
                .top_k,
            0
        );
    }

    #[test]
    fn prompts_are_text_or_tokens_or_lists_of_them() {
        let read = |prompt: Value| read::<CompletionRequest>(Ok(Json(json!({"prompt": prompt}))));
        assert!(matches!(read(json!("a")).unwrap().prompt, PromptInput::Text(_)));
        assert!(matches!(read(json!(["a"])).unwrap().prompt, PromptInput::Texts(_)));
        assert!(matches!(read(json!([1, 2])).unwrap().prompt, PromptInput::Tokens(_)));
        assert!(matches!(read(json!([[1], [2]])).unwrap().prompt, PromptInput::TokenLists(_)));
        assert!(read(json!({"a": 1})).is_err());
    }
}
