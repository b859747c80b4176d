//! How an answer arrives and ends.

use std::collections::BTreeMap;

use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::FinishReason;

use super::{answer, ask, engine, finish, step};

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams::greedy(max_tokens)
}

#[test]
fn an_answer_ends_at_a_stop_token_a_stop_string_or_its_length_and_says_which() {
    let mut engine = engine("checkpoint", 0);
    let prompt = engine.encode("The quick brown fox").unwrap();
    let plain = SamplingParams { ignore_eos: true, ..greedy(12) };
    let whole = answer(&mut engine, ask(&prompt, plain.clone()));
    let usage = whole.finished().usage;
    assert_eq!(whole.finished().finish_reason, FinishReason::Length);
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (prompt.len(), 12));
    assert_eq!(usage.total_tokens, prompt.len() + 12);
    assert!(whole.finished().first_token_ms > 0.0);
    assert!(whole.finished().total_ms >= whole.finished().first_token_ms);

    let stop_token = whole.ids()[4];
    let first = whole.ids().iter().position(|id| *id == stop_token).unwrap();
    let stopped = SamplingParams { stop_token_ids: vec![stop_token], ..plain.clone() };
    let stopped = answer(&mut engine, ask(&prompt, stopped));
    assert_eq!(stopped.finished().finish_reason, FinishReason::Stop);
    assert_eq!(stopped.ids(), whole.ids()[..=first]);
    assert!(whole.text.starts_with(&stopped.text) && stopped.text.len() < whole.text.len());

    let middle = whole.text.char_indices().nth(whole.text.chars().count() / 2).unwrap().0;
    let stop: String = whole.text[middle..].chars().take(3).collect();
    let before = whole.text.find(&stop).unwrap();
    let stopped = SamplingParams { stop: vec!["never there".into(), stop.clone()], ..plain };
    let stopped = answer(&mut engine, ask(&prompt, stopped));
    assert_eq!(stopped.text, whole.text[..before]);
    assert_eq!(stopped.finished().stop.as_deref(), Some(stop.as_str()));
    assert_eq!(stopped.finished().finish_reason, FinishReason::Stop);
}

#[test]
fn text_arrives_in_whole_characters_whose_bytes_come_in_several_tokens() {
    let engine = engine("checkpoint", 0);
    let tokenizer = engine.tokenizer();
    for text in ["häßliche 🦊🏳️‍🌈 Füchse – 狐狸", "\u{e9}\u{1f44d}\u{1f3fd} \u{10348}", "plain words"]
    {
        let ids = tokenizer.encode(text).unwrap();
        let mut stream = crate::text::TextStream::after(&[5, 6], &[].into());
        let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id, tokenizer)).collect();
        assert!(pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)), "{pieces:?}");
        assert_eq!(pieces.concat() + &stream.finish(tokenizer), text);
    }
    // Half a character at the end is shown as such, once.
    let fox = tokenizer.encode("🦊").unwrap();
    assert!(fox.len() > 1, "the tokenizer has no token for this character");
    let mut stream = crate::text::TextStream::after(&[], &[].into());
    assert_eq!(stream.push(fox[0], tokenizer), "");
    assert_eq!(stream.finish(tokenizer), "\u{fffd}");
    assert_eq!(stream.finish(tokenizer), "");
    // What never becomes a character is not held back for ever.
    let mut stream = crate::text::TextStream::after(&[], &[].into());
    let pieces: Vec<String> = (0..40).map(|_| stream.push(fox[0], tokenizer)).collect();
    assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() >= 4, "{pieces:?}");
}

#[test]
fn an_answer_can_be_cancelled_at_every_token() {
    let mut engine = engine("checkpoint", 2);
    let prompt = engine.encode("one two three").unwrap();
    let params = SamplingParams { ignore_eos: true, ..greedy(10) };
    let whole = answer(&mut engine, ask(&prompt, params.clone()));
    for steps in 0..6 {
        let id = engine.submit(ask(&prompt, params.clone())).unwrap();
        let mut answers = BTreeMap::new();
        (0..steps).for_each(|_| step(&mut engine, &mut answers));
        if answers.get(&id).is_some_and(|answer| answer.finished.is_some()) {
            continue;
        }
        engine.cancel(id);
        engine.cancel(id);
        while !engine.is_idle() {
            step(&mut engine, &mut answers);
        }
        let cancelled = &answers[&id];
        assert_eq!(cancelled.finished().finish_reason, FinishReason::Cancelled, "after {steps} steps");
        assert!(whole.ids().starts_with(&cancelled.ids()));
        assert_eq!(cancelled.finished().usage.completion_tokens, cancelled.tokens.len());
    }
    // What is cancelled leaves nothing behind.
    assert_eq!(answer(&mut engine, ask(&prompt, params)).tokens, whole.tokens);
}

#[test]
fn penalties_and_logprobs_reach_the_answer() {
    let mut engine = engine("checkpoint", 0);
    let prompt = engine.encode("again and again").unwrap();
    let params = SamplingParams { ignore_eos: true, logprobs: Some(3), ..greedy(20) };
    let plain = answer(&mut engine, ask(&prompt, params.clone()));
    for token in &plain.tokens {
        assert_eq!(token.top_logprobs.len(), 3);
        assert_eq!(token.top_logprobs[0], (token.id, token.logprob.unwrap()), "it is the most likely one");
        assert!(token.logprob.unwrap() < 0.0);
    }
    let repeats = |ids: Vec<u32>| ids.len() - ids.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(repeats(plain.ids()) > 0, "the small model repeats itself");
    let frequency_penalty = SamplingParams { frequency_penalty: 2.0, presence_penalty: 2.0, ..params };
    let penalised = answer(&mut engine, ask(&prompt, frequency_penalty));
    assert!(repeats(penalised.ids()) < repeats(plain.ids()));
}

#[test]
fn requests_that_cannot_be_answered_are_refused_in_words() {
    let mut engine = engine("checkpoint", 0);
    let mut refusal =
        |prompt: &[u32], params: SamplingParams| engine.submit(ask(prompt, params)).unwrap_err().to_string();
    assert!(refusal(&[], greedy(1)).contains("no tokens"));
    assert!(refusal(&[4_000_000], greedy(1)).contains("token 4000000"));
    assert!(refusal(&vec![1; 1 << 20], greedy(1)).contains("Shorten the prompt"));
    assert!(refusal(&[1], SamplingParams { top_p: 2.0, ..greedy(1) }).contains("top_p is 2"));
    assert!(engine.is_idle());

    let messages = |json: &str| engine.render_messages(&serde_json::from_str(json).unwrap());
    for (json, words) in [
        ("[]", "no list"),
        ("{}", "no list"),
        ("[1]", "[0] is not an object"),
        (r#"[{"content":"x"}]"#, "[0] has no `role`"),
        (r#"[{"role":"user","content":5}]"#, "no text"),
        (r#"[{"role":"user","content":[{"type":"image_url"}]}]"#, "without `text`"),
        (r#"{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":[]}"#, "not an object"),
    ] {
        let error = messages(json).unwrap_err().to_string();
        assert!(error.contains(words), "{json}: {error}");
    }
}

#[test]
fn messages_are_rendered_as_a_server_renders_them() {
    let mut engine = engine("checkpoint", 0);
    let messages = serde_json::json!([
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    ]);
    let text = engine.render_messages(&messages).unwrap();
    assert!(text.contains("Be short.") && text.contains("Hello"), "{text}");
    assert!(text.ends_with("assistant\n<think>\n"), "{text}");
    let kwargs = serde_json::json!({"enable_thinking": false, "eos_token": "x", "unread": [1]});
    let request = serde_json::json!({"messages": messages, "tools": null, "chat_template_kwargs": kwargs});
    let quick = engine.render_messages(&request).unwrap();
    assert_eq!(quick, text.replace("<think>\n", "<think>\n\n</think>\n\n"));
    let ids = engine.encode(&text).unwrap();
    engine.submit(ask(&ids, greedy(3))).unwrap();
    assert_eq!(finish(&mut engine).len(), 1);
}
