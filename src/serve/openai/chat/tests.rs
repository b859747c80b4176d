//! Requests and chunks, without a model.

use sparktune_sampling::protocol::{FinishReason, Token, Usage as WorkerUsage};

use super::*;

fn request(more: Value) -> ChatRequest {
    let mut body = json!({"messages": [{"role": "developer", "content": "Be short."}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body::read(Ok(Json(body))).unwrap()
}

fn piece(text: &str) -> Piece {
    let token = Token { id: 1, logprob: Some(-0.5), top_logprobs: vec![(1, -0.5)] };
    let spelled = vec![(1, text.to_owned())];
    Piece { id: "0".into(), text: text.into(), tokens: vec![token], spelled }
}

fn finished(finish_reason: FinishReason) -> Finished {
    let usage = WorkerUsage {
        prompt_tokens: 7,
        completion_tokens: 3,
        total_tokens: 10,
        drafted_tokens: 4,
        accepted_tokens: 2,
    };
    Finished { finish_reason, stop: None, usage, seed: 1, first_token_ms: 1.0, total_ms: 2.0 }
}

fn writer(tools: bool) -> ChoiceWriter {
    let parts = Parts::new(false, tools.then(Tools::default));
    ChoiceWriter { parts, most_calls: usize::MAX, calls: 0, logprobs: None }
}

fn chat_writer(writers: Vec<ChoiceWriter>) -> ChatWriter {
    ChatWriter { heading: Heading::new("chatcmpl", "dir:m".into()), writers, includes_usage: true }
}

#[test]
fn the_prompt_has_messages_tools_and_variables_of_the_template() {
    let asked = request(json!({"tools": [{"type": "function"}], "reasoning_effort": "none"}));
    assert!(has_tools(&asked).unwrap());
    let Prompt::Messages(given) = prompt(&asked, true).unwrap() else { panic!("these are messages") };
    assert_eq!(given["messages"][0]["role"], "system");
    assert_eq!(given["tools"][0]["type"], "function");
    assert_eq!(given["chat_template_kwargs"]["enable_thinking"], false);
    let told =
        request(json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}}));
    let Prompt::Messages(given) = prompt(&told, false).unwrap() else { panic!("these are messages") };
    assert_eq!(given["chat_template_kwargs"]["enable_thinking"], true);
    assert_eq!(given.get("tools"), None);

    assert!(!has_tools(&request(json!({"tools": [{}], "tool_choice": "none"}))).unwrap());
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
        let error = has_tools(&request(json!({"tools": [{}], "tool_choice": choice}))).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("tool_choice")));
    }
    let many: Vec<Value> = (0..=MOST_MESSAGES).map(|_| json!({"role": "user", "content": "x"})).collect();
    assert!(prompt(&request(json!({"messages": many})), false).unwrap_err().message.contains("at most"));
}

#[test]
fn both_names_of_the_limit_are_understood_and_the_newer_one_wins() {
    let sampling = |more: Value| sampling(&request(more), 0, &Wishes::default());
    let most = |more: Value| sampling(more).unwrap().max_tokens;
    assert_eq!(most(json!({})), None);
    assert_eq!(most(json!({"max_tokens": 5})), Some(5));
    assert_eq!(most(json!({"max_tokens": 5, "max_completion_tokens": 6})), Some(6));
    let error = sampling(json!({"top_logprobs": 3})).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("top_logprobs"));
    assert_eq!(sampling(json!({"logprobs": true, "top_logprobs": 3})).unwrap().logprobs, Some(3));
}

#[test]
fn a_stream_has_a_role_the_text_a_reason_and_the_usage() {
    let mut with_logprobs = writer(false);
    with_logprobs.logprobs = Some(Vec::new());
    let mut chunks = chat_writer(vec![with_logprobs, writer(false)]);
    let begin = chunks.begin();
    assert_eq!(begin.len(), 2);
    assert_eq!(begin[1]["choices"][0]["index"], 1);
    assert_eq!(begin[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(begin[0]["usage"], Value::Null);
    // Text that may become a mark is held back; its log-probabilities come with the text.
    assert!(chunks.piece(0, &piece("<thi")).is_empty());
    let text = chunks.piece(0, &piece("s"));
    assert_eq!(text[0]["choices"][0]["delta"], json!({"content": "<this"}));
    assert_eq!(text[0]["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 2);
    let end = chunks.end(0, &finished(FinishReason::Length));
    assert_eq!(end[0]["choices"][0]["finish_reason"], "length");
    let mut sums = Sums::default();
    sums.add(&finished(FinishReason::Stop), true);
    sums.add(&finished(FinishReason::Stop), false);
    let usage = chunks.usage(&sums).unwrap();
    assert_eq!(usage["choices"], json!([]));
    let expected = json!({"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13, "drafted_tokens": 8, "accepted_tokens": 4});
    assert_eq!(usage["usage"], expected);
    assert_eq!(usage["x_timing"]["total_ms"], 2.0);
}

#[test]
fn a_call_of_a_tool_is_a_delta_with_an_id_and_the_reason() {
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let mut chunks = chat_writer(vec![writer(true)]);
    assert_eq!(chunks.piece(0, &piece("Well. "))[0]["choices"][0]["delta"]["content"], "Well.");
    let calls = chunks.piece(0, &piece(&format!("{call}{call}")));
    assert_eq!(calls.len(), 2);
    let delta = &calls[1]["choices"][0]["delta"]["tool_calls"][0];
    assert_eq!((&delta["index"], &delta["type"]), (&json!(1), &json!("function")));
    assert_eq!(delta["function"], json!({"name": "add", "arguments": "{\"a\":1}"}));
    assert!(delta["id"].as_str().unwrap().starts_with("call-"));
    let end = chunks.end(0, &finished(FinishReason::Stop));
    assert_eq!(end.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    let collected = |text: &str| Collected {
        text: text.to_owned(),
        pieces: vec![piece(text)],
        finished: finished(FinishReason::Stop),
    };
    let mut one = writer(true);
    one.most_calls = 1;
    let message = one.message(&collected(&format!("{call}{call}")));
    assert_eq!((message.tool_calls.len(), message.content.as_deref()), (1, Some("")));
    let message = writer(true).message(&collected(call));
    assert_eq!((message.tool_calls.len(), message.content), (1, None));
    let message = writer(false).message(&collected("<think>\nso\n</think>\n\nYes."));
    assert_eq!(message.reasoning_content.as_deref(), Some("so"));
    assert_eq!(message.content.as_deref(), Some("Yes."));
    let value = serde_json::to_value(&message).unwrap();
    assert_eq!(value.get("tool_calls"), None);
}
