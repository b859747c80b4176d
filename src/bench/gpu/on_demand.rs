//! Sections that a run of all sections leaves out, because each takes minutes: all sizes, the MTP head, and
//! what each part of a fast step is worth.

use serde_json::{Value, json};
use sparktune_kernels::measuring::by_references;
use sparktune_model::{Checkpoint, Loss, Model, Mtp};
use sparktune_plan::MachineFacts;
use sparktune_plan::products::RANK;
use sparktune_train::stepper::{HeadStepper, Stepper};

use super::steps::{
    LeftToLibrary, Load, SETTINGS, fresh_rows, model_of, prepared, speeds, step_loss, stepped, tiny_config,
};
use super::{Bench, Row, row, sized, with};

const ALL_SIZES: [&str; 5] = ["0.8B", "2B", "4B", "9B", "27B"];
/// The pack of the head's training.
const HEAD_PACK: usize = 8192;
/// The number of tokens in a row that the head learns to draft.
const DRAFT_TOKENS: usize = 3;
/// The pack of the ladder. The plain operations walk over its tokens one by one.
const LADDER_PACK: usize = 1024;

/// Training steps of all sizes in the settings of the Qwen3.5 recipe's table: two packs of 2,048 tokens, or
/// of 1,024 for the 27B.
pub(super) fn sizes(bench: &mut Bench, machine: &MachineFacts) {
    let load = |size: &str| Load { pack: if size == "27B" { 1024 } else { 2048 }, packs: 2, prompt: 0 };
    speeds(bench, machine, &ALL_SIZES, load);
}

/// Steps of the head's training, whose text model is frozen and computed without a graph.
pub(super) fn head(bench: &mut Bench) {
    let (size, config, load) = if bench.is_tiny {
        ("tiny", tiny_config(), Load::of(72))
    } else {
        let (size, config) = sized(&["2B"]).remove(0);
        (size, config, Load::of(HEAD_PACK))
    };
    let name = format!("{size} MTP head");
    let head = row(json!({"name": name, "size": size, "method": "head", "pack": load.pack}));
    let (device, library, counts) = (bench.device.clone(), bench.library(), counts(bench));
    bench.measure(head.clone(), || {
        let computed = LeftToLibrary::new(library);
        let measured = || {
            let checkpoint = Checkpoint::random(config.clone(), 7);
            let model = Model::load(&checkpoint, &device, &mut |_, _| ())?;
            let mut stepper =
                HeadStepper::new(Mtp::load(&checkpoint, &device)?, &model, DRAFT_TOKENS, SETTINGS);
            let fresh = fresh_rows(load, config.vocab_size);
            stepped(&device, counts, load.pack, fresh, |rows| {
                let losses = stepper.step(rows, SETTINGS.learning_rate)?;
                Ok(losses.iter().map(Loss::nats).sum())
            })
        };
        vec![match measured() {
            Ok(done) => {
                let note = format!(
                    "{DRAFT_TOKENS} drafted tokens; the text model is computed in each step; {}",
                    computed.in_words()
                );
                with(head.into_iter().chain(done.fields).collect(), "note", note)
            }
            Err(error) => with(head, "failed", error.to_string()),
        }]
    });
    bench.device.memory_cleanup();
}

/// Steps before the timed ones, and timed ones.
fn counts(bench: &Bench) -> [usize; 2] {
    if bench.is_tiny { [1, 1] } else { [2, 5] }
}

/// A rung of the ladder: what it changes, and how its steps are computed.
struct Rung {
    name: &'static str,
    references: bool,
    recompute: bool,
    load: Load,
}

/// LoRA steps of the 2B on the same tokens: from the specification in plain tensor operations to the step of
/// a run, one change at a time. The losses of the first rung are those that the others are compared with.
pub(super) fn ladder(bench: &mut Bench) {
    let (size, config, pack, rank) = if bench.is_tiny {
        ("tiny", tiny_config(), 72, 8)
    } else {
        let (size, config) = sized(&["2B"]).remove(0);
        (size, config, LADDER_PACK, RANK)
    };
    let all = Load::of(pack);
    let rungs = [
        Rung { name: "reference ops, recompute", references: true, recompute: true, load: all },
        Rung { name: "own kernels, recompute", references: false, recompute: true, load: all },
        Rung { name: "own kernels, no recompute", references: false, recompute: false, load: all },
        Rung {
            name: "half of the tokens targets",
            references: false,
            recompute: false,
            load: Load { prompt: pack / 2, ..all },
        },
    ];
    let device = bench.device.clone();
    let (mut loaded, mut reference) = (None, Vec::new());
    for rung in rungs {
        let head = row(json!({
            "name": format!("{size} lora, {}", rung.name), "method": "lora", "pack": pack, "recompute": rung.recompute,
        }));
        // One step of the references takes as long as hundreds of the others.
        let counts = if rung.references { [1, 1] } else { counts(bench) };
        let (loaded, reference) = (&mut loaded, &mut reference);
        bench.measure(head.clone(), || {
            let mut measured = || {
                let model = prepared(model_of(&config, &device, loaded.take())?, Some(rank));
                let mut stepper = Stepper::from_model(model, SETTINGS, rung.recompute);
                let fresh = fresh_rows(rung.load, config.vocab_size);
                let steps = || stepped(&device, counts, pack, fresh, |rows| step_loss(&mut stepper, rows));
                let done = if rung.references { by_references(steps) } else { steps() };
                *loaded = Some(stepper.into_model());
                done
            };
            vec![match measured() {
                Ok(done) => {
                    let head: Row = head.into_iter().chain(done.fields).collect();
                    compared(head, &rung, &done.losses, reference)
                }
                Err(error) => with(head, "failed", error.to_string()),
            }]
        });
        bench.clock.longest = std::time::Duration::ZERO;
    }
    drop(loaded);
    bench.device.memory_cleanup();
}

/// Adds the losses of the first two steps to a row, next to those of the references. With fewer targets a
/// loss is another one.
fn compared(head: Row, rung: &Rung, losses: &[f64], reference: &mut Vec<f64>) -> Row {
    let first: Vec<f64> = losses.iter().copied().take(2).collect();
    if rung.references {
        *reference = first;
        return head;
    }
    if rung.load.prompt > 0 || reference.is_empty() {
        return head;
    }
    with(with(head, "curve", first), "reference_curve", Value::from(reference.clone()))
}
