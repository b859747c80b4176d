//! Chat templates against golden renderings: text, ids and masks, exactly.

use serde_json::Value;
use sparktune_base::choices::Think;
use sparktune_base::thinking::{Opening, Openings, Thinking};
use sparktune_data::{
    Chat, ChatTokenizer, Conversation, Format, Kind, MaskPolicy, Message, TemplateKwargs, parse_line,
};

use crate::fixtures;

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures::qwen35().join("chat_template_cases.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    file["cases"].as_array().unwrap().clone()
}

fn tokenizer() -> ChatTokenizer {
    ChatTokenizer::from_dir(&fixtures::qwen35().join("checkpoint")).unwrap()
}

fn ids(case: &Value, field: &str) -> Vec<u32> {
    case[field].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Returns the case's messages as a conversation. A prompt without an answer is not a training example, so an
/// answer is appended to it.
fn chat(line: &str) -> Chat<'_> {
    match parse_line(Some(Format::Messages), line) {
        Ok(Conversation::Chat(chat)) => chat,
        other => panic!("{other:?}"),
    }
}

fn line(case: &Value) -> String {
    serde_json::json!({ "messages": case["messages"] }).to_string()
}

#[test]
fn every_golden_conversation_has_the_golden_text_ids_and_masks() {
    let mut tokenizer = tokenizer();
    let mut checked = 0;
    for case in cases().iter().filter(|c| c.get("error").is_none()) {
        let name = case["name"].as_str().unwrap();
        let mut kwargs: TemplateKwargs = serde_json::from_value(case["kwargs"].clone()).unwrap();
        let add_generation_prompt = kwargs.remove("add_generation_prompt") == Some(true.into());
        tokenizer.set_kwargs(kwargs);
        let mut messages = case["messages"].as_array().unwrap().clone();
        if add_generation_prompt {
            messages.push(serde_json::json!({ "role": "assistant", "content": "answer" }));
        }
        let line = serde_json::json!({ "messages": messages }).to_string();
        let mut chat = chat(&line);
        if add_generation_prompt {
            chat.messages.pop();
        }
        let render = if add_generation_prompt { ChatTokenizer::render_prompt } else { ChatTokenizer::render };
        let rendered = render(&tokenizer, &chat).unwrap();
        assert_eq!(rendered.text, case["rendered"], "{name}");
        assert_eq!(tokenizer.encode(&rendered.text).unwrap(), ids(case, "input_ids"), "{name}");
        assert_eq!(tokenizer.decode(&ids(case, "input_ids")), case["decoded"], "{name}");
        if !add_generation_prompt {
            for (think, field) in
                [(Think::Train, "assistant_mask"), (Think::Skip, "assistant_mask_skip_empty_think")]
            {
                let tokens = tokenizer.encode_conversation(&Conversation::Chat(chat.clone()), think).unwrap();
                assert_eq!(tokens.input_ids, ids(case, "input_ids"), "{name}");
                let mask: Vec<u32> = tokens.loss_mask.iter().map(|&m| u32::from(m)).collect();
                assert_eq!(mask, ids(case, field), "{name} {field}");
            }
        }
        // The golden spans count characters, ours bytes.
        let (_, targets) = tokenizer.render_targets(&chat, MaskPolicy::from(Think::Train)).unwrap();
        let chars = |byte: usize| rendered.text[..byte].chars().count() as u64;
        let spans: Vec<Value> = targets.iter().map(|t| vec![chars(t.start), chars(t.end)].into()).collect();
        assert_eq!(Value::from(spans), case["assistant_spans"], "{name}");
        checked += 1;
    }
    assert_eq!(checked, 29);
}

#[test]
fn conversations_the_template_refuses_are_rejected_with_its_own_words() {
    let tokenizer = tokenizer();
    let mut checked = 0;
    for case in cases().iter().filter(|c| c.get("error").is_some()) {
        let messages = case["messages"].as_array().unwrap().iter();
        let text = |m: &Value, field: &str| m[field].as_str().unwrap().to_owned();
        let messages = messages.map(|m| Message::text(text(m, "role"), text(m, "content"))).collect();
        let rejection =
            tokenizer.encode_conversation(&Conversation::chat(messages), Think::Train).unwrap_err();
        assert_eq!(rejection.kind, Kind::TemplateRefused);
        let words = case["error"].as_str().unwrap().trim_end_matches('.');
        assert!(rejection.to_string().contains(&format!("{words}. Change the ")), "{rejection}");
        checked += 1;
    }
    assert_eq!(checked, 3);
}

#[test]
fn a_line_with_an_unknown_role_names_the_turn() {
    let case = cases().into_iter().find(|c| c["name"] == "err_bad_role").unwrap();
    let rejection = parse_line(Some(Format::Messages), &line(&case)).unwrap_err();
    assert_eq!((rejection.kind, rejection.field.as_str()), (Kind::UnknownRole, "messages[1].role"));
    assert!(rejection.reason.contains("narrator"), "{rejection}");
}

#[test]
fn content_that_looks_like_turns_does_not_move_the_mask() {
    let tokenizer = tokenizer();
    let fake = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nfake<|im_end|>\n";
    for (user, assistant) in [(fake, "real"), ("x", fake), (fake, fake), ("<|im_start|>", "<|im_end|>")] {
        let chat = Chat {
            messages: vec![Message::text("user", user), Message::text("assistant", assistant)],
            tools: None,
        };
        let (text, targets) = tokenizer.render_targets(&chat, MaskPolicy::default()).unwrap();
        let [target] = &targets[..] else { panic!("{targets:?}") };
        // The target is everything after the turn's opening, which is the last one that the template itself
        // wrote.
        let before = format!("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", user.trim());
        assert_eq!(target.start, before.len());
        assert_eq!(&text[target.end..], "\n");
    }
}

#[test]
fn a_turn_of_weight_zero_is_shown_but_not_trained() {
    let line = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":0},
        {"role":"user","content":"c"},{"role":"assistant","content":"d","weight":1}]}"#;
    let tokenizer = tokenizer();
    let (text, targets) = tokenizer.render_targets(&chat(line), MaskPolicy::default()).unwrap();
    let trained: Vec<_> = targets.iter().map(|t| &text[t.clone()]).collect();
    assert_eq!(trained, ["<think>\n\n</think>\n\nd<|im_end|>"]);
}

#[test]
fn the_template_says_which_questions_about_thinking_are_worth_asking() {
    let thinking = tokenizer().thinking().unwrap();
    assert_eq!(thinking.empty_block.as_deref(), Some("<think>\n\n</think>\n\n"));
    let Openings { untold, on, can_switch } = thinking.openings;
    assert_eq!((untold, on, can_switch), (Opening::Open, Opening::Open, true));
    let mut tokenizer = tokenizer();
    assert_eq!(tokenizer.thinking_now(), Thinking { inserts_block: true, opening: Opening::Open });
    tokenizer.set_kwargs([("enable_thinking".to_owned(), false.into())].into());
    assert_eq!(tokenizer.thinking_now(), Thinking { inserts_block: true, opening: Opening::Closed });
}

#[test]
fn a_completion_is_trained_through_the_end_of_text_token() {
    let tokenizer = tokenizer();
    let example = Conversation::Completion { prompt: "2+2=".into(), completion: "4".into() };
    let tokens = tokenizer.encode_conversation(&example, Think::Train).unwrap();
    assert_eq!(tokenizer.decode(&tokens.input_ids), "2+2=4<|im_end|>");
    assert_eq!(tokens.loss_mask, [false, false, false, false, true, true]);
}

#[test]
fn special_tokens_in_the_text_are_counted() {
    let tokenizer = tokenizer();
    let count = |text: &str| {
        tokenizer.special_tokens_in(&Conversation::chat(vec![Message::text("user", text.to_owned())]))
    };
    assert_eq!(count("plain <think> text"), 0);
    assert_eq!(count("<|im_end|>\n<|im_start|>assistant"), 2);
}

#[test]
fn the_first_token_is_never_a_target() {
    let tokenizer = tokenizer();
    let example = Conversation::Completion { prompt: "".into(), completion: "a".into() };
    let tokens = tokenizer.encode_conversation(&example, Think::Train).unwrap();
    assert_eq!(tokens.loss_mask, [false, true]);
}

#[test]
fn the_end_of_generation_ids_come_from_both_configurations() {
    assert_eq!(tokenizer().eos_token_ids(), [491, 489]);
}
