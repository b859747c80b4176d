//! Several examples decoded at once.

use burn::tensor::Device;

use super::{host, json, model, qwen35};
use crate::golden::decoding::ids;
use crate::{BatchDecoder, Cache, Checkpoint, Continued, Model};

fn prompts_and_continuations() -> Vec<(String, Vec<u32>, Vec<u32>)> {
    let golden = json("golden_greedy.json");
    let rows = golden["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        (row["checkpoint"].as_str().unwrap().to_owned(), ids(&row["prompt"]), ids(&row["continuation"]))
    })
    .collect()
}

fn prefilled(decoder: &BatchDecoder, prompt: &[u32]) -> (Cache, Vec<f32>) {
    let mut cache = decoder.model().empty_cache();
    let hidden = decoder.prefill(&mut [Continued { input_ids: prompt, cache: &mut cache }]);
    let last = hidden.narrow(0, prompt.len() - 1, 1);
    (cache, decoder.logits(last))
}

/// Returns the logits after each of `tokens`, decoded alone and one by one.
fn one_by_one(decoder: &BatchDecoder, cache: &mut Cache, tokens: &[u32]) -> Vec<Vec<f32>> {
    let step = |token: &u32| {
        let hidden = decoder.step(&mut [Continued { input_ids: &[*token], cache: &mut *cache }]);
        decoder.logits(hidden)
    };
    tokens.iter().map(step).collect()
}

fn greatest(logits: &[f32]) -> u32 {
    crate::generate::greatest(logits) as u32
}

#[test]
fn a_batch_gives_each_example_the_bits_that_it_has_alone_and_the_tokens_of_transformers() {
    let rows = prompts_and_continuations();
    for folder in ["checkpoint", "checkpoint_trained_bf16"] {
        let of_folder: Vec<_> = rows.iter().filter(|row| row.0 == folder).collect();
        let Some((_, prompt, expected)) = of_folder.first() else { continue };
        let model = model(folder);
        let decoder = BatchDecoder::new(&model);
        let (mut alone, first) = prefilled(&decoder, prompt);
        let logits = one_by_one(&decoder, &mut alone, expected);
        assert_eq!(greatest(&first), expected[0]);
        for (logits, token) in logits.iter().zip(&expected[1..]) {
            assert_eq!(greatest(logits), *token);
        }
        // The second example joins later and has a shorter prompt; the third one gets three tokens at once.
        let (mut a, mut b) = (prefilled(&decoder, prompt).0, prefilled(&decoder, &prompt[..3]).0);
        let mut c = prefilled(&decoder, prompt).0;
        for t in 0..12 {
            let mut batch = vec![Continued { input_ids: &expected[t..=t], cache: &mut a }];
            if t >= 2 {
                batch.push(Continued { input_ids: &prompt[3..4], cache: &mut b });
            }
            if t % 3 == 0 {
                batch.push(Continued { input_ids: &expected[t..t + 3], cache: &mut c });
            }
            let got = decoder.logits(decoder.step(&mut batch));
            let width = model.config().vocab_size;
            assert!(got[..width] == logits[t], "{folder}: row {t} of the first example");
            if t % 3 == 0 {
                let start = got.len() - 3 * width;
                for (i, got) in got[start..].chunks_exact(width).enumerate() {
                    assert!(got == logits[t + i], "{folder}: token {} of the third example", t + i);
                }
            }
        }
    }
}

#[test]
fn weights_that_stay_bf16_take_half_of_the_memory_and_give_the_bits_of_f32() {
    let folder = "checkpoint_trained_bf16";
    let open = || Checkpoint::open(&qwen35().join(folder)).unwrap();
    let narrow = open().for_decoding();
    let load =
        |checkpoint| BatchDecoder::new(&Model::load(checkpoint, &Device::flex(), &mut |_, _| ()).unwrap());
    let decoders = [load(&open()), load(&narrow)];
    let (_, prompt, expected) = prompts_and_continuations().into_iter().find(|row| row.0 == folder).unwrap();
    let steps = decoders.each_ref().map(|decoder| {
        // Rows that are decoded alone, in twos and in more.
        let mut cache = decoder.model().empty_cache();
        let mut logits = Vec::new();
        for tokens in [&prompt[..1], &prompt[1..3], &prompt[3..8], &expected[..]] {
            let hidden = decoder.step(&mut [Continued { input_ids: tokens, cache: &mut cache }]);
            logits.extend(decoder.logits(hidden));
        }
        logits
    });
    assert!(steps[0] == steps[1]);
    let [wide, narrow_prefill] = decoders.each_ref().map(|decoder| prefilled(decoder, &prompt).1);
    for (wide, narrow) in wide.iter().zip(&narrow_prefill) {
        assert!((wide - narrow).abs() < 1e-4, "{wide} and {narrow}");
    }
    let bytes = |checkpoint: &Checkpoint| -> u64 {
        checkpoint.config().tensors().iter().map(|tensor| checkpoint.loaded_bytes(tensor)).sum()
    };
    let mut in_memory = 0;
    decoders[1].model().visit(&mut |param| {
        let tensor = param.tensor();
        in_memory += tensor.shape().num_elements() * tensor.dtype().size();
    });
    assert_eq!(bytes(&narrow), in_memory as u64);
    assert!(bytes(&narrow) < bytes(&open()) * 6 / 10);
}

#[test]
#[should_panic(expected = "was loaded for decoding")]
fn a_model_that_was_loaded_for_decoding_is_not_trained() {
    let checkpoint = Checkpoint::open(&qwen35().join("checkpoint_trained_bf16")).unwrap().for_decoding();
    Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap().set_trainable(true);
}

#[test]
fn tokens_that_are_taken_back_leave_the_state_as_it_was() {
    for (folder, prompt, expected) in prompts_and_continuations() {
        let decoder = BatchDecoder::new(&model(&folder));
        let mut plain = prefilled(&decoder, &prompt).0;
        let logits = one_by_one(&decoder, &mut plain, &expected[..4]);
        for kept in 1..=3 {
            let mut cache = prefilled(&decoder, &prompt).0;
            // Two right tokens and then wrong ones.
            let wrong = (expected[2] + 1) % 64;
            let draft = [expected[0], expected[1], wrong, wrong];
            decoder.step(&mut [Continued { input_ids: &draft, cache: &mut cache }]);
            cache.take_back(draft.len() - kept.min(2));
            assert_eq!(cache.len(), prompt.len() + kept.min(2));
            let rest = &expected[kept.min(2)..4];
            assert!(one_by_one(&decoder, &mut cache, rest) == logits[kept.min(2)..], "{folder}: {kept}");
        }
    }
}

#[test]
fn an_adapter_decodes_in_batches_like_the_full_forward_pass() {
    let checkpoint = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let base = Model::load(&checkpoint, &burn::tensor::Device::flex(), &mut |_, _| ()).unwrap();
    let mut adapted = base.clone();
    adapted.load_lora(&qwen35().join("lora_final")).unwrap();
    let ids: Vec<u32> = (0..20).map(|i| (i * 7 + 3) % 60).collect();
    let sequence = crate::PackedSequence::single(&ids);
    let decoder = BatchDecoder::new(&adapted);
    let mut cache = decoder.model().empty_cache();
    decoder.prefill(&mut [Continued { input_ids: &ids[..15], cache: &mut cache }]);
    let got = host(decoder.step(&mut [Continued { input_ids: &ids[15..], cache: &mut cache }]));
    let full = host(adapted.hidden(&sequence).narrow(0, 15, 5));
    assert!(super::difference(&got, &full) < 1e-4);
    let of_base = host(base.hidden(&sequence).narrow(0, 15, 5));
    assert!(super::difference(&got, &of_base) > 1e-3, "the adapter has no effect");
}
