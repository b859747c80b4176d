//! Compares the whole model on a CUDA device, or the emulated one, with the CPU, which other tests compare
//! with transformers. The bf16 weights are the same; the CPU computes in f32, the device has bf16 activations
//! with f32 sums.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Tensor};
use sparktune_kernels::adamw::{AdamW, Clip, Moments, zeros_like};
use sparktune_kernels::testing::cuda_device;

use super::decoding::ids;
use super::others::FOLDERS;
use super::{Golden, json, qwen35, relative, root};
use crate::{
    Acceptance, BatchDecoder, Checkpoint, Continued, Drafter, Gradients, LoraConfig, Model, Mtp,
    PackedSequence, speculative_greedy,
};

/// The allowed relative difference of losses (`kernels/NOTES.md`, "Tolerances").
const LOSS: f64 = 2e-3;
/// The allowed relative L2 error of a gradient after bf16 activations in all layers of a small random model.
/// The limit for single kernels is 2e-2.
const GRADIENT: f64 = 1.5e-1;
const LOGITS: f64 = 2e-2;
/// The least cosine of the angle between all gradients of fp8 and those of bf16. This random model amplifies
/// small differences: bf16 itself, with a sixteenth of the rounding, differs by up to [`GRADIENT`] from f32.
const FP8_COSINE: f64 = 0.6;
/// The allowed difference between fp8 with and without recompute, which adds one rounding per layer that e4m3
/// amplifies.
const FP8_RECOMPUTED: f64 = 1e-1;

fn load(folder: &Path, device: &Device) -> Model {
    Model::load(&Checkpoint::open(folder).unwrap(), device, &mut |_, _| ()).unwrap()
}

fn host(tensor: Tensor<2>) -> Vec<f32> {
    tensor.inner().into_data().convert::<f32>().try_to_vec().unwrap()
}

fn bits(gradients: &Gradients) -> Vec<Vec<u32>> {
    gradients.all().into_iter().map(|g| host(g.clone()).into_iter().map(f32::to_bits).collect()).collect()
}

/// Returns a row of three examples, one of them longer than a chunk of the delta rule.
fn packed_row(vocabulary: usize) -> PackedSequence {
    let ids: Vec<u32> = (0..130).map(|t| ((t * t * 31 + t * 7919 + 5) % vocabulary) as u32).collect();
    PackedSequence::new(&ids, &[0, 40, 43, 130], &ids.iter().map(|id| id % 3 > 0).collect::<Vec<_>>())
}

fn loss_and_gradients(model: &Model, row: &PackedSequence, recompute: bool) -> (f64, Gradients) {
    let mut gradients = Gradients::default();
    let scale = 1.0 / row.target_tokens() as f64;
    let loss = model.loss_and_gradients(row, scale, recompute, &mut gradients).nats();
    (loss, gradients)
}

fn agree(what: &str, found: &Gradients, expected: &Gradients, names: impl Iterator<Item = String>) {
    let mut compared = 0;
    for name in names {
        let expected = expected.get(&name).unwrap_or_else(|| panic!("no gradient of {name} on the CPU"));
        let found = found.get(&name).unwrap_or_else(|| panic!("no gradient of {name} on the device"));
        let error = relative(&host(found.clone()), &host(expected.clone()));
        // A bias of keys has no gradient at all, because softmax ignores it.
        let norm = Clip::new(&[expected], 1.0).norm();
        assert!(error <= GRADIENT || norm < 1e-5, "{what}: gradient of {name} differs by {error:e}");
        compared += 1;
    }
    assert!(compared > 10, "only {compared} gradients compared");
}

fn trained_names(model: &Model) -> Vec<String> {
    let mut names = Vec::new();
    model.visit(&mut |param| names.extend(param.is_trainable().then(|| param.name().to_owned())));
    names
}

#[test]
fn losses_and_all_gradients_are_those_of_the_cpu_and_the_same_bits_each_time() {
    let Some(device) = cuda_device() else { return };
    let folder = qwen35().join("checkpoint_trained_bf16");
    let lora = LoraConfig::new(8, 16.0);
    for adapters in [false, true] {
        let prepared = |device: &Device| {
            let mut model = load(&folder, device);
            if adapters {
                model.attach_lora(lora, 3)
            } else {
                model.set_trainable(true)
            }
            model
        };
        let (on_host, on_device) = (prepared(&Device::flex()), prepared(&device));
        let row = packed_row(on_host.config().vocab_size);
        let (expected_loss, expected) = loss_and_gradients(&on_host, &row, false);
        let mut first: Option<Vec<Vec<u32>>> = None;
        for recompute in [false, true, false] {
            let (loss, gradients) = loss_and_gradients(&on_device, &row, recompute);
            assert!((loss / expected_loss - 1.0).abs() <= LOSS, "loss {loss} for {expected_loss}");
            // `B` starts at zero, so `A` has no gradient to compare yet.
            let names = trained_names(&on_host).into_iter().filter(|name| !name.contains("lora_A"));
            agree("text model", &gradients, &expected, names);
            if !recompute {
                let bits = bits(&gradients);
                assert!(first.get_or_insert_with(|| bits.clone()) == &bits, "other bits the second time");
            }
        }
        let evaluated = on_device.loss_sum(&row).nats() / row.target_tokens() as f64;
        assert!((evaluated / expected_loss - 1.0).abs() <= LOSS, "without gradients: {evaluated}");
    }
}

/// Random weights and activations lose more precision than those of a trained model.
#[test]
fn fp8_changes_losses_and_gradients_a_little_and_the_same_way_each_time() {
    let Some(device) = cuda_device() else { return };
    let mut model = load(&qwen35().join("checkpoint_trained_bf16"), &device);
    model.attach_lora(LoraConfig::new(8, 16.0), 3);
    let row = packed_row(model.config().vocab_size);
    let (exact_loss, exact) = loss_and_gradients(&model, &row, false);
    let rounding = model.with_fp8();
    let (loss, gradients) = loss_and_gradients(&rounding, &row, false);
    assert!(loss != exact_loss && (loss / exact_loss - 1.0).abs() < 1e-2, "{loss} for {exact_loss}");
    let (again, same) = loss_and_gradients(&rounding, &row, false);
    assert!(loss == again && bits(&same) == bits(&gradients), "other bits");
    let evaluated = rounding.loss_sum(&row).nats() / row.target_tokens() as f64;
    assert!((evaluated / loss - 1.0).abs() < 1e-6, "without gradients: {evaluated} for {loss}");
    // All gradients are compared at once, because those of some parameters of a random model are almost only
    // noise.
    let together =
        |gradients: &Gradients| gradients.all().into_iter().flat_map(|g| host(g.clone())).collect::<Vec<_>>();
    let (again, recomputed) = loss_and_gradients(&rounding, &row, true);
    let error = relative(&together(&recomputed), &together(&gradients));
    assert!(
        loss == again && error < FP8_RECOMPUTED,
        "recompute: {again} for {loss}, gradients differ by {error:e}"
    );
    let [rounded, exact] = [&gradients, &exact].map(together);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = dot(&rounded, &exact) / (dot(&rounded, &rounded) * dot(&exact, &exact)).sqrt();
    assert!((FP8_COSINE..0.9999).contains(&cosine), "gradients point elsewhere: {cosine}");
}

/// A large epsilon, so that a step follows the gradient. With the usual one the first steps follow only its
/// sign, even where a random model's gradient is smaller than bf16's noise.
const EPS: f64 = 1e-2;

/// Returns the losses of `steps` steps of AdamW with clipping on one row.
fn curve(model: &mut Model, row: &PackedSequence, steps: u64, learning_rate: f64) -> Vec<f64> {
    let mut moments: BTreeMap<String, Moments> = BTreeMap::new();
    let mut losses = Vec::new();
    for step in 1..=steps {
        let (loss, mut gradients) = loss_and_gradients(model, row, false);
        losses.push(loss);
        let clip = Clip::new(&gradients.all(), 1.0);
        model.visit_mut(&mut |param| {
            let Some(gradient) = gradients.take(param.name()) else { return };
            let weight_decay = if param.decays() { 0.01 } else { 0.0 };
            let adamw = AdamW { learning_rate, beta1: 0.9, beta2: 0.95, eps: EPS, weight_decay, step };
            let fresh = || (zeros_like(&gradient), zeros_like(&gradient));
            let before = moments.remove(param.name()).unwrap_or_else(fresh);
            let name = param.name().to_owned();
            param.update(|weights| {
                let (weights, after) = adamw.update(weights, before, gradient, &clip);
                moments.insert(name, after);
                weights
            });
        });
    }
    losses
}

#[test]
fn six_steps_follow_the_curve_of_the_cpu() {
    let Some(device) = cuda_device() else { return };
    // The weights have more digits than bf16. With bf16 numbers, rounding would undo a small step.
    let folder = qwen35().join("checkpoint");
    for adapters in [false, true] {
        let train = |device: &Device| {
            let mut model = load(&folder, device);
            if adapters {
                model.attach_lora(LoraConfig::new(8, 16.0), 3)
            } else {
                model.set_trainable(true)
            }
            let row = packed_row(model.config().vocab_size);
            // So large that six steps lead far enough to tell whether anything was learnt.
            curve(&mut model, &row, 6, if adapters { 1.8e-3 } else { 2e-4 })
        };
        let (expected, found) = (train(&Device::flex()), train(&device));
        // A device whose loss stays where it was is off by more than is let pass below.
        assert!(expected[5] < (1.0 - 1.5 * LOSS) * expected[0], "too little was learnt: {expected:?}");
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (found / expected - 1.0).abs();
            assert!(error <= LOSS, "step {step}: loss {found} for {expected} ({error:e})");
        }
    }
}

#[test]
fn the_mtp_head_and_decoding_agree_with_the_cpu() {
    let Some(device) = cuda_device() else { return };
    let golden = Golden::open("golden_forward.safetensors");
    let checkpoint = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let [on_host, on_device] = [Device::flex(), device].map(|device| {
        let model = Model::load(&checkpoint, &device, &mut |_, _| ()).unwrap();
        let mut mtp = Mtp::load(&checkpoint, &device).unwrap();
        mtp.set_trainable(true);
        (model, mtp)
    });
    let row = PackedSequence::single(&golden.ids("input_ids_130"));
    for draft_tokens in [1, 3] {
        let trained = |(model, mtp): &(Model, Mtp)| {
            let (mut gradients, scale) = (Gradients::default(), 1.0 / Mtp::target_tokens(&row) as f64);
            let hidden = model.hidden(&row);
            let loss = mtp.loss_and_gradients(model, hidden, &row, draft_tokens, scale, &mut gradients);
            (loss.nats(), gradients)
        };
        let ((expected_loss, expected), (loss, gradients)) = (trained(&on_host), trained(&on_device));
        assert!((loss / expected_loss - 1.0).abs() <= LOSS, "loss {loss} for {expected_loss}");
        let mut names = Vec::new();
        on_host.1.visit(&mut |param| names.push(param.name().to_owned()));
        agree("mtp", &gradients, &expected, names.into_iter());
    }

    let model = &on_device.0;
    let (ids, mut cache, mut continued) = (&row.input_ids[..24], model.empty_cache(), Vec::new());
    for part in [&ids[..17], &ids[17..18], &ids[18..24]] {
        continued.extend(host(model.continue_from(part, &mut cache)));
    }
    let error = relative(&continued, &host(model.hidden(&PackedSequence::single(ids))));
    assert!(error <= LOGITS, "decoding differs by {error:e}");
}

#[test]
fn a_batch_decodes_like_the_cpu_and_each_example_with_the_bits_that_it_has_alone() {
    let Some(device) = cuda_device() else { return };
    // States and full attention; windows.
    for folder in [qwen35().join("checkpoint_trained_bf16"), root().join("others/gemma3")] {
        let mut model = load(&folder, &device);
        model.attach_lora(LoraConfig::new(8, 16.0), 3);
        let (decoder, what) = (BatchDecoder::new(&model), folder.display());
        let row = packed_row(model.config().vocab_size);
        let (first, second) = (&row.input_ids[..40], &row.input_ids[43..60]);
        let read = |ids: &[u32]| {
            let mut cache = model.empty_cache();
            decoder.prefill(&mut [Continued { input_ids: ids, cache: &mut cache }]);
            cache
        };
        let (mut a, mut b, mut alone) = (read(&first[..33]), read(&second[..10]), read(&first[..33]));
        let (of_a, of_b) = (&first[33..36], &second[10..11]);
        let step = |batch: &mut [Continued<'_>]| host(decoder.step(batch));
        let together = step(&mut [
            Continued { input_ids: of_a, cache: &mut a },
            Continued { input_ids: of_b, cache: &mut b },
        ]);
        let mut one_by_one = Vec::new();
        for token in of_a.chunks(1) {
            one_by_one.extend(step(&mut [Continued { input_ids: token, cache: &mut alone }]));
        }
        assert!(together[..one_by_one.len()] == one_by_one, "{what}: other bits in a batch");
        // Two drafted tokens are taken back, and others come in their place.
        a.take_back(2);
        let [again, next] = [&first[34..35], &first[35..36]]
            .map(|ids| step(&mut [Continued { input_ids: ids, cache: &mut a }]));
        assert!([again, next].concat() == one_by_one[one_by_one.len() / 3..], "{what}: after drafts");
        let whole = host(model.hidden(&PackedSequence::single(&first[..36])));
        let error = relative(&one_by_one, &whole[whole.len() - one_by_one.len()..]);
        assert!(error <= LOGITS, "{what}: decoding differs by {error:e}");
        let hidden = decoder.step(&mut [Continued { input_ids: &of_a[..1], cache: &mut b }]);
        let logits = decoder.logits(hidden);
        assert!(logits.iter().any(|x| x.to_bits() & 0xffff != 0), "{what}: logits are not rounded to bf16");
    }
}

#[test]
fn drafts_from_some_tokens_give_the_text_of_the_cpu() {
    let Some(device) = cuda_device() else { return };
    let golden = json("golden_greedy.json");
    let trained = |row: &&serde_json::Value| row["checkpoint"] == "checkpoint_trained_bf16";
    let row = golden["rows"].as_array().unwrap().iter().find(trained).unwrap();
    let checkpoint = Checkpoint::open(&qwen35().join("checkpoint_trained_bf16")).unwrap();
    let model = Model::load(&checkpoint, &device, &mut |_, _| ()).unwrap();
    let mtp = Mtp::load(&checkpoint, &device).unwrap();
    let (prompt, expected) = (ids(&row["prompt"]), ids(&row["continuation"]));
    let drafter = Drafter::among(&model, &mtp, &[11, 13, 15, 16, 220]);
    let (text, run) = speculative_greedy(&drafter, &prompt, 8, 2, |_| false);
    assert_eq!(text, expected[..8]);
    assert!(run.mean() > 0.0, "{run:?}");
    let everywhere = drafter.accepted_everywhere(&[&prompt[..], &text].concat(), prompt.len(), 2);
    assert_eq!(Acceptance::of_passes(&everywhere, 2), run);
}

#[test]
fn other_architectures_agree_with_the_cpu() {
    let Some(device) = cuda_device() else { return };
    for name in FOLDERS {
        let folder = root().join("others").join(name);
        let [mut on_host, mut on_device] =
            [Device::flex(), device.clone()].map(|device| load(&folder, &device));
        on_host.set_trainable(true);
        on_device.set_trainable(true);
        let row = packed_row(on_host.config().vocab_size);
        let (expected_loss, expected) = loss_and_gradients(&on_host, &row, false);
        let (loss, gradients) = loss_and_gradients(&on_device, &row, false);
        assert!((loss / expected_loss - 1.0).abs() <= LOSS, "{name}: loss {loss} for {expected_loss}");
        agree(name, &gradients, &expected, trained_names(&on_host).into_iter());
    }
}
