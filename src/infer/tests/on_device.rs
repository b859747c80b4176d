//! Answers on a CUDA device, or the emulated one.

use sparktune_kernels::testing::cuda_device;
use sparktune_sampling::SamplingParams;

use super::{answer, ask, ids, json, qwen35, roomy, with_tokenizer};
use crate::engine::{Engine, EngineOptions};
use crate::source::Source;

/// In bf16, later tokens of this small model may be others.
#[test]
fn the_first_greedy_tokens_are_those_of_transformers_and_sampled_ones_need_only_the_largest_logits() {
    let Some(device) = cuda_device() else { return };
    let golden = json(&qwen35("golden_greedy.json"));
    let trained = |row: &&serde_json::Value| row["checkpoint"] == "checkpoint_trained_bf16";
    let row = golden["rows"].as_array().unwrap().iter().find(trained).unwrap();
    let (folder, expected) =
        (with_tokenizer(&qwen35("checkpoint_trained_bf16")), &ids(&row["continuation"])[..8]);
    let greedy = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(8) };
    let sampled = SamplingParams {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.9,
        seed: Some(5),
        ignore_eos: true,
        ..SamplingParams::greedy(8)
    };
    for draft_tokens in [0, 2] {
        let options = EngineOptions { draft_tokens, ..EngineOptions::default() };
        let source = Source::open(folder.path(), None).unwrap();
        let mut engine = Engine::load(&source, options, &roomy(), &device, &mut |_, _| ()).unwrap();
        let got = answer(&mut engine, ask(&ids(&row["prompt"]), greedy.clone()));
        assert_eq!(got.ids(), expected, "{draft_tokens} drafted");
        // With log-probabilities, all logits leave the device, otherwise the largest.
        let [all, largest] = [Some(0), None].map(|logprobs| {
            let sampling = SamplingParams { logprobs, ..sampled.clone() };
            answer(&mut engine, ask(&ids(&row["prompt"]), sampling)).ids()
        });
        assert_eq!(largest, all, "{draft_tokens} drafted");
    }
}
