use burn::tensor::Device;
use serde_json::Value;

use super::{json, model, qwen35};
use crate::{Acceptance, Checkpoint, Drafter, Generator, Mtp, speculative_greedy};

pub(super) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn greedy_decoding_gives_the_tokens_of_transformers() {
    let golden = json("golden_greedy.json");
    for row in golden["rows"].as_array().unwrap() {
        let model = model(row["checkpoint"].as_str().unwrap());
        let expected = ids(&row["continuation"]);
        let got: Vec<u32> = Generator::new(&model, &ids(&row["prompt"])).take(expected.len()).collect();
        assert_eq!(got, expected);
    }
}

#[test]
fn speculative_decoding_gives_the_same_tokens_and_the_acceptance_of_the_reference() {
    let golden = json("golden_greedy.json");
    let mut compared = 0;
    for row in golden["rows"].as_array().unwrap() {
        let folder = row["checkpoint"].as_str().unwrap();
        let model = model(folder);
        let checkpoint = Checkpoint::open(&qwen35().join(folder)).unwrap();
        let mtp = Mtp::load(&checkpoint, &Device::flex()).unwrap();
        let drafter = Drafter::new(&model, &mtp);
        let expected = ids(&row["continuation"]);
        for draft_length in 1..=3 {
            let prompt = ids(&row["prompt"]);
            let (got, run) = speculative_greedy(&drafter, &prompt, expected.len(), draft_length, |_| false);
            assert_eq!(got, expected, "{folder}, draft length {draft_length}");
            let rounds = &row["speculative"][format!("k{draft_length}")]["rounds"];
            if let Some(rounds) = rounds.as_array() {
                let log: Vec<usize> =
                    rounds.iter().map(|round| round["accepted"].as_u64().unwrap() as usize).collect();
                // The last pass may be truncated by the requested number of tokens.
                let common = run.accepted.len().min(log.len()) - 1;
                assert_eq!(run.accepted[..common], log[..common], "{folder}, draft length {draft_length}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 3, "only {compared} acceptance logs compared");
}

#[test]
fn drafts_from_some_of_the_vocabulary_change_what_is_kept_and_not_the_text() {
    let golden = json("golden_greedy.json");
    let mut kept_by_half = 0;
    for row in golden["rows"].as_array().unwrap() {
        let folder = row["checkpoint"].as_str().unwrap();
        let model = model(folder);
        let checkpoint = Checkpoint::open(&qwen35().join(folder)).unwrap();
        let mtp = Mtp::load(&checkpoint, &Device::flex()).unwrap();
        let (prompt, expected) = (ids(&row["prompt"]), ids(&row["continuation"]));
        let every: Vec<u32> = (0..model.config().vocab_size as u32).collect();
        // Every other token of the text, so that some drafts can be accepted and others cannot.
        let mut half: Vec<u32> = expected.iter().copied().step_by(2).collect();
        half.sort_unstable();
        half.dedup();
        let never: Vec<u32> = every.iter().copied().filter(|id| !expected.contains(id)).take(7).collect();
        for draft_length in 1..=4 {
            let run = |drafter: &Drafter<'_>| {
                speculative_greedy(drafter, &prompt, expected.len(), draft_length, |_| false)
            };
            let full = run(&Drafter::new(&model, &mtp));
            assert_eq!(
                run(&Drafter::among(&model, &mtp, &every)),
                full,
                "{folder}, draft length {draft_length}"
            );
            let (text, acceptance) = run(&Drafter::among(&model, &mtp, &half));
            assert_eq!(text, expected, "{folder}, draft length {draft_length}");
            kept_by_half += acceptance.accepted.iter().sum::<usize>();
            let (text, acceptance) = run(&Drafter::among(&model, &mtp, &never));
            assert_eq!(text, expected, "{folder}, draft length {draft_length}");
            assert_eq!(acceptance.mean(), 0.0, "no token of the text can be drafted");
        }
    }
    assert!(kept_by_half > 0, "some of these drafts are right");
}

#[test]
fn the_acceptance_at_every_token_is_that_of_the_real_loop_from_there() {
    let golden = json("golden_greedy.json");
    let mut kept = [0; 4];
    for row in golden["rows"].as_array().unwrap() {
        let folder = row["checkpoint"].as_str().unwrap();
        let model = model(folder);
        let checkpoint = Checkpoint::open(&qwen35().join(folder)).unwrap();
        let mtp = Mtp::load(&checkpoint, &Device::flex()).unwrap();
        let (prompt, expected) = (ids(&row["prompt"]), ids(&row["continuation"]));
        let text = [&prompt[..], &expected].concat();
        let mut half: Vec<u32> = expected.iter().copied().step_by(2).collect();
        half.sort_unstable();
        half.dedup();
        for drafter in [Drafter::new(&model, &mtp), Drafter::among(&model, &mtp, &half)] {
            let everywhere = drafter.accepted_everywhere(&text, prompt.len(), 4);
            assert_eq!(everywhere.len(), expected.len() - 1);
            for draft_length in 1..=4 {
                let (_, run) = speculative_greedy(&drafter, &prompt, expected.len(), draft_length, |_| false);
                assert_eq!(Acceptance::of_passes(&everywhere, draft_length), run, "{folder}, {draft_length}");
            }
            // The loop passes over most tokens, so it also starts behind some of these.
            for at in (1..everywhere.len()).step_by(7) {
                let (behind, rest) = text.split_at(prompt.len() + at);
                let (_, run) = speculative_greedy(&drafter, behind, rest.len().min(5), 4, |_| false);
                assert_eq!(run.accepted[0], everywhere[at], "{folder}, token {at}");
                kept[everywhere[at].min(3)] += 1;
            }
        }
        let drafter = Drafter::new(&model, &mtp);
        assert_eq!(drafter.accepted_everywhere(&text[..=prompt.len()], prompt.len(), 4), [0; 0]);
    }
    assert!(kept.iter().all(|count| *count > 0), "accepted tokens of all numbers are compared: {kept:?}");
}
