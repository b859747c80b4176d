//! Greedy answers are those of transformers.

use sparktune_sampling::SamplingParams;

use super::{answer, ask, engine, finish, fixtures, ids, json, load, qwen35, with_tokenizer};
use crate::engine::EngineOptions;

fn greedy(tokens: usize) -> SamplingParams {
    SamplingParams { ignore_eos: true, ..SamplingParams::greedy(tokens as u32) }
}

#[test]
fn greedy_answers_of_every_family_are_those_of_transformers_token_for_token() {
    let golden = json(&fixtures().join("others/greedy.json"));
    for (family, rows) in golden.as_object().unwrap() {
        let folder = with_tokenizer(&fixtures().join("others").join(family));
        let mut engine = load(folder.path(), EngineOptions::default());
        let rows: Vec<_> = rows.as_array().unwrap().iter().collect();
        // All at once, so that they are decoded in one batch.
        let expected: Vec<Vec<u32>> = rows.iter().map(|row| ids(&row["continuation"])).collect();
        for (row, expected) in rows.iter().zip(&expected) {
            engine.submit(ask(&ids(&row["prompt"]), greedy(expected.len()))).unwrap();
        }
        let answers = finish(&mut engine);
        for (answer, expected) in answers.values().zip(&expected) {
            assert_eq!(answer.ids(), *expected, "{family}");
        }
    }
}

#[test]
fn drafts_change_neither_the_greedy_tokens_of_transformers_nor_their_text_and_some_are_accepted() {
    let golden = json(&qwen35("golden_greedy.json"));
    for row in golden["rows"].as_array().unwrap() {
        let (folder, expected) = (row["checkpoint"].as_str().unwrap(), ids(&row["continuation"]));
        let mut text = None;
        for draft_tokens in [0, 1, 3] {
            let mut engine = engine(folder, draft_tokens);
            assert_eq!(engine.draft_tokens(), draft_tokens);
            let got = answer(&mut engine, ask(&ids(&row["prompt"]), greedy(expected.len())));
            assert_eq!(got.ids(), expected, "{folder}, {draft_tokens} drafted");
            assert_eq!(*text.get_or_insert(got.text.clone()), got.text);
            let usage = got.finished().usage;
            assert_eq!(usage.completion_tokens, expected.len());
            assert_eq!(usage.drafted_tokens > 0, draft_tokens > 0);
            assert!(usage.accepted_tokens <= usage.drafted_tokens);
            let rounds = &row["speculative"][format!("k{draft_tokens}")]["rounds"];
            if let Some(rounds) = rounds.as_array() {
                // The last round may be cut short by the number of tokens that were asked for.
                let log: Vec<usize> =
                    rounds.iter().map(|round| round["accepted"].as_u64().unwrap() as usize).collect();
                let sure: usize = log[..log.len() - 1].iter().sum();
                assert!(
                    usage.accepted_tokens >= sure.saturating_sub(draft_tokens),
                    "{folder}: {usage:?}, {log:?}"
                );
            }
        }
    }
}
