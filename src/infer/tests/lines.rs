//! The worker's lines.

use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};

use sparktune_sampling::protocol::{FinishReason, Reply};

use super::{engine, qwen35};
use crate::worker::serve;

/// An output that the test can read afterwards.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn answers(lines: &str) -> Vec<Reply> {
    let written = Written::default();
    serve(engine("checkpoint", 0), Cursor::new(lines.as_bytes().to_vec()), written.clone()).unwrap();
    let bytes = written.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn requests_are_answered_by_their_ids_and_answers_that_have_begun_are_completed() {
    let lora = qwen35("lora_final");
    let lines = format!(
        r#"{{"op":"generate","id":"a","prompt":"Hello","sampling":{{"temperature":0,"max_tokens":5,"ignore_eos":true}}}}
{{"op":"load_adapter","name":"tuned","folder":{lora:?}}}

{{"op":"generate","id":"b","adapter":"tuned","messages":[{{"role":"user","content":"Hi"}}],"sampling":{{"max_tokens":4,"ignore_eos":true}}}}
{{"op":"generate","id":"c","prompt_token_ids":[1,2,3],"sampling":{{"max_tokens":1000,"ignore_eos":true}}}}
{{"op":"cancel","id":"c"}}
{{"op":"cancel","id":"unknown"}}
{{"op":"score","id":"d","prompt":"Hello","continuation":" there","adapter":"tuned"}}
{{"op":"score","id":"e","prompt":"Hello","continuation":""}}
"#
    );
    let answers = answers(&lines);
    assert!(matches!(&answers[0], Reply::Ready(ready) if ready.has_template && ready.cache_tokens > 0));
    let is_loaded =
        |reply: &Reply| matches!(reply, Reply::Adapters { adapters, .. } if *adapters == ["tuned"]);
    assert!(answers.iter().any(is_loaded));
    let end = |wanted: &str| {
        answers.iter().find_map(|answer| match answer {
            Reply::Done { id, finished } if id == wanted => Some(finished.clone()),
            _ => None,
        })
    };
    let tokens = |wanted: &str| -> usize {
        let pieces = answers.iter().filter_map(|answer| match answer {
            Reply::Text(piece) if piece.id == wanted => Some(piece.tokens.len()),
            _ => None,
        });
        pieces.sum()
    };
    for (id, count) in [("a", 5), ("b", 4)] {
        let finished = end(id).unwrap();
        assert_eq!((finished.finish_reason, tokens(id)), (FinishReason::Length, count));
        assert_eq!(finished.usage.completion_tokens, count);
    }
    assert_eq!(end("c").unwrap().finish_reason, FinishReason::Cancelled);
    let accepted: Vec<_> = answers
        .iter()
        .filter_map(|answer| match answer {
            Reply::Accepted { id, prompt_tokens, opens_thinking } => {
                assert_eq!(*prompt_tokens, end(id).unwrap().usage.prompt_tokens);
                Some((id.as_str(), *opens_thinking))
            }
            _ => None,
        })
        .collect();
    assert_eq!(accepted, [("a", false), ("b", true), ("c", false)]);
    let scored = |answer: &Reply| matches!(answer, Reply::Scored { id, nats, tokens } if id == "d" && *nats > 0.0 && *tokens > 0);
    assert!(answers.iter().any(scored), "{answers:?}");
    let refused = |answer: &Reply| matches!(answer, Reply::Error { id: Some(id), error, .. } if id == "e" && error.contains("no tokens"));
    assert!(answers.iter().any(refused), "{answers:?}");
}

#[test]
fn tokens_with_log_probabilities_are_spelled() {
    let line = r#"{"op":"generate","id":"a","prompt":"x","sampling":{"max_tokens":3,"logprobs":2,"ignore_eos":true}}"#;
    let mut tokens = 0;
    for answer in answers(line) {
        let Reply::Text(piece) = answer else { continue };
        for token in &piece.tokens {
            tokens += 1;
            assert_eq!(token.top_logprobs.len(), 2);
            let ids = token.top_logprobs.iter().map(|(id, _)| *id).chain([token.id]);
            ids.for_each(|id| assert!(piece.spelled.iter().any(|(known, _)| *known == id), "{piece:?}"));
        }
    }
    assert_eq!(tokens, 3);
}

#[test]
fn lines_that_are_no_requests_are_errors_of_their_own_and_the_worker_goes_on() {
    let lines = concat!(
        "nonsense\n",
        "{\"op\":\"generate\",\"id\":\"a\",\"prompt\":\"x\",\"adapter\":\"none\"}\n",
        "{\"op\":\"generate\",\"id\":\"b\",\"prompt\":\"\"}\n",
        "{\"op\":\"generate\",\"id\":\"c\",\"prompt\":\"x\",\"sampling\":{\"top_p\":7}}\n",
        "{\"op\":\"load_adapter\",\"name\":\"n\",\"folder\":\"/nowhere\"}\n",
        "{\"op\":\"unload_adapter\",\"name\":\"n\"}\n",
        "{\"op\":\"generate\",\"id\":\"d\",\"prompt\":\"x\",\"sampling\":{\"max_tokens\":1}}"
    );
    let answers = answers(lines);
    let errors: Vec<Option<&str>> = answers
        .iter()
        .filter_map(|answer| match answer {
            Reply::Error { id, error, .. } if !error.is_empty() => Some(id.as_deref()),
            _ => None,
        })
        .collect();
    assert_eq!(errors, [None, Some("a"), Some("b"), Some("c"), Some("n"), Some("n")]);
    let none = |answer: &&Reply| matches!(answer, Reply::Adapters { adapters, .. } if adapters.is_empty());
    assert_eq!(
        answers.iter().filter(none).count(),
        2,
        "each request for an adapter is followed by all: {answers:?}"
    );
    assert!(matches!(answers.last(), Some(Reply::Done { id, .. }) if id == "d"), "{answers:?}");
}

#[test]
fn an_id_may_be_used_again_only_after_its_answer() {
    let one = r#"{"op":"generate","id":"a","prompt":"x","sampling":{"max_tokens":3,"ignore_eos":true}}"#;
    let answers = answers(&format!("{one}\n{one}\n"));
    let refused = |answer: &Reply| matches!(answer, Reply::Error { error, .. } if error.contains("this id"));
    // The second may come when the first is done already.
    let done = answers.iter().filter(|answer| matches!(answer, Reply::Done { .. })).count();
    assert_eq!(done + answers.iter().filter(|answer| refused(answer)).count(), 2);
}
