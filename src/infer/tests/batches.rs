//! An answer does not depend on those beside it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use sparktune_sampling::SamplingParams;

use super::{Answered, answer, ask, engine, finish, qwen35, step};
use crate::engine::{Ask, EngineOptions};
use crate::event::SequenceId;

fn sampled(seed: u64, max_tokens: u32) -> SamplingParams {
    SamplingParams {
        seed: Some(seed),
        max_tokens: Some(max_tokens),
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        ignore_eos: true,
        logprobs: Some(2),
        ..SamplingParams::default()
    }
}

fn prompt(length: u32, key: u32) -> Vec<u32> {
    (0..length).map(|i| (i * 7 + key * 13 + 3) % 90).collect()
}

#[test]
fn answers_that_join_and_leave_a_batch_have_the_tokens_and_logprobs_that_they_have_alone() {
    for draft_tokens in [0, 2] {
        let mut engine = engine("checkpoint", draft_tokens);
        let asks: Vec<Ask> =
            (0..6).map(|i| ask(&prompt(3 + 40 * i, i), sampled(u64::from(i), 8 + 7 * i))).collect();
        let alone: Vec<Answered> = asks.iter().map(|ask| answer(&mut engine, ask.clone())).collect();
        let (mut answers, mut order) = (BTreeMap::new(), Vec::new());
        for ask in asks {
            order.push(engine.submit(ask).unwrap());
            // The next one joins after some tokens of this one.
            (0..3).for_each(|_| step(&mut engine, &mut answers));
        }
        let other = ask(&prompt(20, 9), sampled(9, 500));
        let other = engine.submit(other).unwrap();
        step(&mut engine, &mut answers);
        engine.cancel(other);
        while !engine.is_idle() {
            step(&mut engine, &mut answers);
        }
        for (id, alone) in order.iter().zip(&alone) {
            assert_eq!(answers[id].tokens, alone.tokens);
            assert_eq!(answers[id].text, alone.text);
            assert_eq!(answers[id].finished().seed, alone.finished().seed);
        }
    }
}

#[test]
fn prompts_that_are_computed_together_have_the_bits_that_they_have_alone() {
    for draft_tokens in [0, 2] {
        let mut engine = engine("checkpoint", draft_tokens);
        // Short ones are computed alone, and the last do not fit into one step.
        let lengths = [70, 3, 100, 65, 64, 130, 300, 200];
        let asks = || (0..).zip(lengths).map(|(i, length)| ask(&prompt(length, i), sampled(u64::from(i), 6)));
        let alone: Vec<Answered> = asks().map(|ask| answer(&mut engine, ask)).collect();
        let ids: Vec<SequenceId> = asks().map(|ask| engine.submit(ask).unwrap()).collect();
        let mut answers = BTreeMap::new();
        step(&mut engine, &mut answers);
        assert_eq!(answers.len(), 4, "70, 100, 65 and 130 tokens are computed in the first step");
        while !engine.is_idle() {
            step(&mut engine, &mut answers);
        }
        for (id, alone) in ids.iter().zip(&alone) {
            assert_eq!(answers[id].tokens, alone.tokens);
        }
    }
}

#[test]
fn a_long_prompt_is_computed_in_pieces_between_the_tokens_of_others() {
    let mut engine = engine("checkpoint", 0);
    let long = ask(&prompt(1100, 1), sampled(1, 4));
    let alone = answer(&mut engine, long.clone());
    let short = engine.submit(ask(&prompt(4, 2), sampled(2, 6))).unwrap();
    let mut answers = BTreeMap::new();
    step(&mut engine, &mut answers);
    let long = engine.submit(long).unwrap();
    for _ in 0..2 {
        let before = answers[&short].tokens.len();
        step(&mut engine, &mut answers);
        assert_eq!(answers[&short].tokens.len(), before + 1, "the short one goes on meanwhile");
        assert!(!answers.contains_key(&long));
    }
    while !engine.is_idle() {
        step(&mut engine, &mut answers);
    }
    assert_eq!(answers[&long].tokens, alone.tokens);
}

#[test]
fn the_same_seed_gives_the_same_text_with_and_without_drafts_and_another_seed_another_text() {
    let (mut plain, mut drafting) =
        (engine("checkpoint_trained_bf16", 0), engine("checkpoint_trained_bf16", 3));
    let mut accepted = 0;
    for seed in 0..4 {
        let cool = SamplingParams { temperature: 0.5, ..sampled(seed, 40) };
        let [one, two] =
            [&mut plain, &mut drafting].map(|engine| answer(engine, ask(&prompt(9, 1), cool.clone())));
        assert_eq!(one.tokens, two.tokens);
        accepted += two.finished().usage.accepted_tokens;
    }
    assert!(accepted > 0, "some sampled tokens were drafted");
    let texts = [1, 2].map(|seed| answer(&mut plain, ask(&prompt(9, 1), sampled(seed, 40))).text);
    assert_ne!(texts[0], texts[1]);
    let unseeded = SamplingParams { seed: None, ..sampled(0, 30) };
    let [one, two] = [0, 1].map(|_| answer(&mut plain, ask(&prompt(9, 1), unseeded.clone())));
    assert_ne!(one.finished().seed, two.finished().seed);
    let again = SamplingParams { seed: Some(one.finished().seed), ..unseeded };
    assert_eq!(answer(&mut plain, ask(&prompt(9, 1), again)).tokens, one.tokens);
}

#[test]
fn adapters_are_switched_by_name_without_another_base() {
    let mut engine = engine("checkpoint", 0);
    let with = |adapter: Option<&str>| Ask {
        adapter: adapter.map(str::to_owned),
        ..ask(&prompt(12, 3), sampled(5, 20))
    };
    let base = answer(&mut engine, with(None));
    assert!(engine.submit(with(Some("tuned"))).unwrap_err().to_string().contains("no adapter `tuned`"));
    engine.load_adapter("tuned", &qwen35("lora_final")).unwrap();
    let tuned = answer(&mut engine, with(Some("tuned")));
    assert_ne!(base.tokens, tuned.tokens);
    // Both at once, and the base again.
    let both = [None, Some("tuned")].map(|adapter| engine.submit(with(adapter)).unwrap());
    let answers = finish(&mut engine);
    assert_eq!(answers[&both[0]].tokens, base.tokens);
    assert_eq!(answers[&both[1]].tokens, tuned.tokens);

    // It is loaded again once its weights are others, also where they are written into the same file.
    let folder = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(qwen35("lora_init").join(file), folder.path().join(file)).unwrap();
    }
    engine.load_adapter("rewritten", folder.path()).unwrap();
    let weights = fs::read(qwen35("lora_final/adapter_model.safetensors")).unwrap();
    let mut file = fs::OpenOptions::new();
    let file = file.write(true).open(folder.path().join("adapter_model.safetensors")).unwrap();
    file.write_all_at(&weights, 0).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    engine.load_adapter("rewritten", folder.path()).unwrap();
    assert_eq!(answer(&mut engine, with(Some("rewritten"))).tokens, tuned.tokens);
    engine.unload_adapter("rewritten").unwrap();

    let error = engine.load_adapter("broken", &qwen35("checkpoint")).unwrap_err();
    assert!(error.to_string().contains("adapter_config.json"), "{error}");
    assert_eq!(engine.adapters(), ["tuned"]);
    let orphan = engine.submit(with(Some("tuned"))).unwrap();
    step(&mut engine, &mut BTreeMap::new());
    engine.unload_adapter("tuned").unwrap();
    assert!(finish(&mut engine)[&orphan].error.as_ref().unwrap().contains("tuned"));
    assert!(engine.unload_adapter("tuned").is_err());
}

#[test]
fn more_answers_than_fit_wait_for_their_turn() {
    let folder = super::with_tokenizer(&qwen35("checkpoint"));
    let options = EngineOptions { max_sequences: 2, max_waiting: 3, draft_tokens: 0 };
    let mut engine = super::load(folder.path(), options);
    for key in 0..3 {
        engine.submit(ask(&prompt(5, key), sampled(1, 5))).unwrap();
    }
    let error = engine.submit(ask(&prompt(5, 9), sampled(1, 5))).unwrap_err();
    assert!(error.to_string().contains("3 answers are waiting"), "{error}");
    assert_eq!(finish(&mut engine).len(), 3);
}
