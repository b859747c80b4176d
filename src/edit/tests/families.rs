//! Every family, and both kinds of layers of Qwen3.5, can be edited.

use burn::tensor::{Device, Tensor, TensorData};
use sparktune_base::random::SplitMix64;
use sparktune_infer::Room;
use sparktune_infer::codebook_file::StoredCodebook;
use sparktune_model::{Downstream, Model, PackedSequence};

use super::{facts, fixtures, ids, model, prefixes, text};
use crate::compute::{Loaded, Text, Writer};
use crate::facts::Fact;
use crate::host::host;
use crate::key_statistics::KeyStatistics;
use crate::linear_algebra::dot;
use crate::low_rank::LowRank;
use crate::memory::{inputs_of, memory};
use crate::patch::Method;
use crate::rome::{Site, memit, places_of, rome};
use crate::stack::Stack;
use crate::tokens::{FactTokens, Rendering};
use crate::ultraedit::ultraedit;

const FOLDERS: [&str; 8] = [
    "qwen35/checkpoint",
    "qwen35/checkpoint_trained_bf16",
    "others/qwen2",
    "others/qwen3",
    "others/llama",
    "others/llama_rope3",
    "others/mistral",
    "others/gemma3",
];

/// Returns the loss of the target behind the prompt alone, for each token.
fn loss(model: &Model, fact: &FactTokens) -> f64 {
    model.loss_sum(&fact.sequence()).nats() / fact.target.len() as f64
}

fn edited(folder: &str, layer: usize, write: impl Fn(&mut Model, &mut Site, &[FactTokens]) -> Vec<LowRank>) {
    let before = model(&fixtures().join(folder));
    let mut after = before.clone();
    let statistics = KeyStatistics::of(&before, layer, &text(), &mut || true).unwrap();
    // Behind the last layer no token reads what another one has got, so its subject has to be at the end.
    // Gemma scales what an MLP adds, and the attention of the random fixture does not carry that further.
    let is_last = layer + 1 == before.config().layers.len();
    let stays = is_last || folder.ends_with("gemma3");
    let facts = if stays { facts()[1..].to_vec() } else { facts() };
    let mut site = Site::new(layer, statistics, prefixes());
    let mut folded = before.clone();
    for change in write(&mut after, &mut site, &facts) {
        change.add_to(&mut folded);
    }
    for fact in facts {
        let [was, is] = [&before, &folded].map(|model| loss(model, &fact));
        // The weights of some fixtures are random and small, so that a change at an early place moves little.
        assert!(is < was - 0.03, "{folder}, layer {layer}: the loss of the target went from {was} to {is}");
    }
}

#[test]
fn rome_brings_the_target_nearer_in_every_family_and_in_both_kinds_of_qwen35s_layers() {
    for folder in FOLDERS {
        let layers = if folder.starts_with("qwen35") { vec![0, 3] } else { vec![0] };
        for layer in layers {
            edited(folder, layer, |model, site, facts| {
                vec![rome(model, site, facts, &mut |_| true).unwrap()]
            });
        }
    }
}

#[test]
fn memit_brings_the_targets_nearer_in_every_family_and_in_both_kinds_of_qwen35s_layers() {
    for folder in FOLDERS {
        let layers = if folder.starts_with("qwen35") { vec![0, 3] } else { vec![0] };
        for layer in layers {
            edited(folder, layer, |model, site, facts| {
                memit(model, std::slice::from_mut(site), facts, &mut |_| true).unwrap()
            });
        }
    }
}

#[test]
fn memit_over_several_layers_brings_a_target_nearer_and_is_refused_where_mlps_are_normalised() {
    for folder in ["qwen35/checkpoint", "others/llama"] {
        let before = model(&fixtures().join(folder));
        let layers: &[usize] = if folder.starts_with("qwen35") { &[0, 1, 2] } else { &[0, 1] };
        let mut sites: Vec<Site> = layers
            .iter()
            .map(|layer| {
                let statistics = KeyStatistics::of(&before, *layer, &text(), &mut || true).unwrap();
                Site::new(*layer, statistics, prefixes())
            })
            .collect();
        let mut after = before.clone();
        let facts = &facts()[1..];
        let changes = memit(&mut after, &mut sites, facts, &mut |_| true).unwrap();
        assert_eq!(changes.iter().map(|change| change.layer).collect::<Vec<_>>(), layers, "{folder}");
        let was = loss(&before, &facts[0]);
        let is = loss(&after, &facts[0]);
        assert!(is < was - 0.03, "{folder}: the loss of the target went from {was} to {is}");
    }
    let gemma = model(&fixtures().join("others/gemma3"));
    let mut sites: Vec<Site> = [0, 1]
        .map(|layer| {
            let statistics = KeyStatistics::of(&gemma, layer, &text(), &mut || true).unwrap();
            Site::new(layer, statistics, prefixes())
        })
        .into();
    let refused = memit(&mut gemma.clone(), &mut sites, &facts(), &mut |_| true).unwrap_err().to_string();
    assert!(refused.contains("Name one layer"), "{refused}");
}

#[test]
fn ultraedit_brings_the_targets_nearer_in_every_family() {
    for folder in FOLDERS {
        let before = model(&fixtures().join(folder));
        let layers: Vec<usize> = (0..before.config().layers.len()).collect();
        let mut after = before.clone();
        for change in ultraedit(&before, &layers, &facts(), &[], &mut |_| true).unwrap() {
            change.add_to(&mut after);
        }
        for fact in facts() {
            let [was, is] = [&before, &after].map(|model| loss(model, &fact));
            assert!(is < was - 0.3, "{folder}: the loss of the target went from {was} to {is}");
        }
    }
}

#[test]
fn ultraedit_takes_no_larger_step_that_makes_ordinary_text_much_less_likely() {
    let mut damaged = 0;
    for folder in FOLDERS {
        let before = model(&fixtures().join(folder));
        let layers: Vec<usize> = (0..before.config().layers.len()).collect();
        let of_text = |model: &Model| -> f64 {
            text().iter().map(|ids| model.loss_sum(&PackedSequence::single(ids)).nats()).sum()
        };
        let [free, bound] = [&[][..], &text()].map(|text| {
            let changes = ultraedit(&before, &layers, &facts(), text, &mut |_| true).unwrap();
            let size =
                changes.iter().flat_map(|change| &change.b).map(|x| f64::from(*x).powi(2)).sum::<f64>();
            let mut after = before.clone();
            changes.iter().for_each(|change| change.add_to(&mut after));
            (of_text(&after) / of_text(&before) - 1.0, size)
        });
        damaged += usize::from(free.0 > 0.02);
        assert!(bound.1 <= free.1, "{folder}: {bound:?}, and without text {free:?}");
        // The smallest step is taken in any case: no other one has so small a size.
        assert!(bound.0 <= 0.02 || bound.1 < free.1 / 4.0 || bound == free, "{folder}: {bound:?}, {free:?}");
    }
    assert!(damaged > 0, "in some family the text matters");
}

#[test]
fn the_mean_key_has_its_new_value_after_rome() {
    let before = model(&fixtures().join("qwen35/checkpoint"));
    let mut after = before.clone();
    let statistics = KeyStatistics::of(&before, 1, &text(), &mut || true).unwrap();
    let mut site = Site::new(1, statistics, prefixes());
    let change = rome(&mut after, &mut site, &facts()[..1], &mut |_| true).unwrap();
    let key: Vec<f64> = change.keys.iter().map(|number| f64::from(*number)).collect();
    let [was, is] = [&before, &after].map(|model| model.down_proj(1).weight.to_vec());
    for ((was, is), delta) in was.chunks_exact(128).zip(is.chunks_exact(128)).zip(&change.b) {
        let value = |row: &[f32]| dot(&row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), &key);
        assert!((value(is) - value(was) - f64::from(*delta)).abs() < 1e-4);
    }
}

#[test]
fn a_memory_makes_every_family_answer_with_the_target_and_changes_no_other_text_by_a_bit() {
    for folder in FOLDERS {
        let before = model(&fixtures().join(folder));
        let layer = before.config().layers.len() - 1;
        let of_text = inputs_of(&before, layer, &text(), &mut || true).unwrap();
        let book = memory(&before, layer, &facts(), &of_text, &[], None, &mut |_| true).unwrap().book;
        let mut after = before.clone();
        after.set_codebook(layer, Some(book.codebook()));
        for fact in facts() {
            if folder.ends_with("gemma3") {
                // Gemma scales the output of an MLP, so a correction of it can only turn what is added.
                let [was, is] = [&before, &after].map(|model| loss(model, &fact));
                assert!(is < was - 0.5, "{folder}: the loss of the target went from {was} to {is}");
                continue;
            }
            let mut cache = after.empty_cache();
            let mut hidden = after.continue_from(&fact.prompt, &mut cache);
            for token in &fact.target {
                let rows = hidden.dims()[0];
                let logits = after.logits(hidden.narrow(0, rows - 1, 1));
                let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
                assert_eq!(best as u32, *token, "{folder}");
                hidden = after.continue_from(&[*token], &mut cache);
            }
        }
        for ids in text() {
            let sequence = PackedSequence::single(&ids);
            assert_eq!(host(before.hidden(&sequence)), host(after.hidden(&sequence)), "{folder}");
        }
    }
}

#[test]
fn downstream_of_a_changed_output_values_and_gradients_are_those_of_the_whole_model() {
    for folder in FOLDERS {
        let model = model(&fixtures().join(folder));
        let (layers, width) = (model.config().layers.len(), model.config().hidden_size);
        let places = places_of(&facts()[0], &prefixes());
        let sequence = &places.sequence;
        let changed: Vec<usize> = places.rows[0].iter().chain(&places.subject).copied().collect();
        let targets = sequence.targets.rows.iter().map(|row| *row as usize);
        let read: Vec<usize> = targets.chain(places.subject).collect();
        let mut random = SplitMix64::new(3);
        let mut numbers = |rows: usize| {
            let numbers: Vec<f32> = (0..rows * width).map(|_| random.next_f64() as f32 - 0.5).collect();
            Tensor::<2>::from_data(TensorData::new(numbers, [rows, width]), &Device::flex())
        };
        let (delta, weights) = (numbers(1), numbers(read.len()));
        let nothing = Tensor::<2>::zeros([1, width], &Device::flex());
        let change = |delta: &Tensor<2>, rows: &[usize]| {
            let row = |row: &usize| {
                if changed.contains(row) { delta.clone() } else { nothing.clone().autodiff() }
            };
            Tensor::cat(rows.iter().map(row).collect(), 0)
        };
        let rows: Vec<usize> = (0..sequence.len()).collect();
        for layer in [0, layers - 1] {
            let [whole, part] = [true, false].map(|is_whole| {
                let delta = delta.clone().autodiff().require_grad();
                let hidden = if is_whole {
                    let hidden = model.hidden_tapped(sequence, &mut |i, tap| {
                        if i == layer {
                            tap.output_TH.autodiff() + change(&delta, &rows)
                        } else {
                            tap.output_TH
                        }
                    });
                    Tensor::cat(read.iter().map(|row| hidden.clone().narrow(0, *row, 1)).collect(), 0)
                } else {
                    let downstream = Downstream::new(&model, layer, sequence, &changed, &read);
                    let computed: Vec<usize> = downstream.computed().collect();
                    assert!(computed.len() < sequence.len() && downstream.place(read[1]) == 1);
                    downstream.hidden(change(&delta, &computed))
                };
                let sum = (hidden.clone() * weights.clone().autodiff()).sum();
                let gradient = delta.grad_remove(&mut sum.backward()).expect("the sum depends on it");
                (host(hidden), host(gradient))
            });
            let far = |a: &[f32], b: &[f32]| {
                assert_eq!(a.len(), b.len());
                a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
            };
            let largest = whole.1.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert!(far(&whole.0, &part.0) < 1e-4, "{folder}, layer {layer}: {}", far(&whole.0, &part.0));
            let off = far(&whole.1, &part.1) / largest.max(1e-3);
            assert!(off < 1e-3, "{folder}, layer {layer}: gradients are {off} apart");
        }
    }
}

#[test]
fn a_correction_is_not_recognised_where_those_below_it_answer() {
    let model = model(&fixtures().join("qwen35/checkpoint"));
    let layer = model.config().layers.len() - 1;
    let of_text = inputs_of(&model, layer, &text(), &mut || true).unwrap();
    let book = |fact: FactTokens, below: &[&StoredCodebook]| {
        memory(&model, layer, &[fact], &of_text, below, None, &mut |_| true).unwrap().book
    };
    let first = FactTokens { prompt: ids(5, 3, 40), ..facts().swap_remove(0) };
    let below = book(first.clone(), &[]);
    // Nearly the same words about something else.
    let near = FactTokens { prompt: [&[77], &first.prompt[1..]].concat(), ..first };
    let (alone, above) = (book(near.clone(), &[]), book(near, &[&below]));
    let [one, other] = [&alone, &above].map(|book| {
        let cosine = book.codebook().cosines(&below.keys[..below.mean.len()])[0];
        (book.thresholds[0], cosine)
    });
    assert!(one.0 <= one.1, "alone, it answers for the other: threshold and cosine {one:?}");
    assert!(other.0 > other.1, "threshold and cosine {other:?}");
}

#[test]
fn the_last_of_two_corrections_of_one_prompt_is_said_and_without_it_the_first() {
    let base = fixtures().join("qwen35/checkpoint");
    let stack = Stack::open(&base, None).unwrap();
    let before = model(&base);
    let layer = before.config().layers.len() - 1;
    // The prompt stands in the text, too, as its beginning.
    let prompt = ids(5, 3, 6);
    let read = [vec![[&prompt[..], &ids(60, 11, 20)].concat()], text()].concat();
    let read = Text { read, held_out: Vec::new(), beginnings: Vec::new() };
    let fact = |target: u32| FactTokens {
        prompt: prompt.clone(),
        first: 3,
        last: 5,
        target: vec![target],
        subject: None,
    };
    let room = Room { available: u64::MAX, reserve: 0, beside: String::new() };
    let loaded = Loaded::of(stack.clone()).unwrap();
    let mut go_on = |_| true;
    let mut writer =
        Writer::new(loaded, Method::Memory, vec![layer], &read, None, &room, &mut go_on).unwrap();
    for (name, target) in [("first", 90), ("second", 200)] {
        let facts = [Fact { prompt: name.to_owned(), target: name.to_owned(), ..Fact::default() }];
        let about = writer.stack.about(name, Method::Memory, Rendering::Raw, &[layer], &facts);
        let patch = writer.write(about, &[fact(target)], &mut go_on).unwrap();
        writer.push(&base, patch).unwrap();
    }
    let says = |stack: &Stack| {
        let model = stack.load(&stack.checkpoint().unwrap(), &Device::flex()).unwrap();
        // Read at once, and as the start of something longer: a key is recognised for all roundings.
        [&prompt[..], &[&prompt[..], &ids(30, 7, 40)].concat()].map(|ids| {
            let hidden = model.hidden(&PackedSequence::single(ids)).narrow(0, prompt.len() - 1, 1);
            let logits = model.logits(hidden);
            (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
        })
    };
    assert_eq!(says(&writer.stack), [200; 2]);
    let mut without = writer.stack.clone();
    without.remove("second").unwrap();
    assert_eq!(says(&without), [90; 2]);
    assert_eq!(writer.stack.codebooks()[0].thresholds.len(), 1, "one entry for one key");
}
