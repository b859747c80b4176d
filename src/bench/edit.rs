//! One fact written into a model in memory by r-ROME (`sparktune edit --method rome`): the search for the
//! value, the decomposition of the covariance, and the new weights. Reading the model, the covariance, which
//! an edit keeps, and the judgement are not counted.
//!
//! In a checkout of the program the model is that of `tests/fixtures/facts`, which knows what it is asked
//! about, or one that lies beside files of facts and text. Otherwise it is the model whose tokenizer is
//! measured: the demo's, or that of `--model`. A last one has random weights and wider MLPs: its search never
//! ends early, so it is an upper bound for a model of its size.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use sparktune_data::ChatTokenizer;
use sparktune_edit::{EditError, OneEdit};
use sparktune_model::{Checkpoint, Model};
use sparktune_plan::ModelConfig;

use crate::context::Context;
use crate::cpu::process_cpu_seconds;
use crate::error::BenchError;
use crate::median::median;
use crate::model::{CONFIG, random_ids};
use crate::row::{Row, Target, Timing};

/// What differs from the model that training is measured with: a small one whose MLP is wide, since that is
/// what an edit pays for.
const SIZES: [(&str, u64); 4] =
    [("vocab_size", 4096), ("hidden_size", 256), ("intermediate_size", 2048), ("num_hidden_layers", 4)];
/// The time that one edit may take, in milliseconds.
const GOAL: Target = Target::LessThan(1000.0);
/// The layer that is changed: a quarter of the way up, as `edit` chooses where no fact has a subject.
const LAYER: usize = 1;
/// Documents and their tokens, of which the covariance is computed.
const DOCUMENTS: [usize; 2] = [16, 128];

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let rounds = context.size.rounds.clamp(1, 3);
    let mut rows = Vec::new();
    if let Some(folder) = context.options.tokenizer.as_deref() {
        rows.extend(of_folder(folder, rounds)?);
    }
    let config = config()?;
    let vocabulary = config.vocab_size;
    let model = Model::load(&Checkpoint::random(config, 0), &Device::flex(), &mut |_, _| ())?;
    let fact = [random_ids(100, 8, vocabulary), random_ids(101, 2, vocabulary)];
    let edit = OneEdit::new(model, LAYER, &text(vocabulary), fact, 4)?;
    rows.extend(timed("one edit by rome, random weights", &edit, rounds, "MLP width 2,048")?);
    Ok(rows)
}

/// Measures a model that knows something: the one that lies with facts and text, or that of the folder.
fn of_folder(folder: &Path, rounds: usize) -> Result<Vec<Row>, BenchError> {
    const OF: &str = "a model that knows something";
    let edit = match world(folder) {
        Some(world) => {
            let [facts, text] = ["facts.jsonl", "text.jsonl"].map(|name| world.join(name));
            Some(("proof".to_owned(), OneEdit::of_files(&world.join("model"), &facts, &text)?))
        }
        None => known(folder)?,
    };
    let Some((name, edit)) = edit else { return Ok(Vec::new()) };
    let [first, part] = timed(&format!("one edit by rome, {name}"), &edit, rounds, OF)?;
    Ok(vec![first.with_target(GOAL), part])
}

/// Returns the folder with a model, facts and text that a model's folder lies in, or that a checkout has.
fn world(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let places = folder.ancestors().skip(1);
    let places = places.flat_map(|above| [above.to_owned(), above.join("tests/fixtures/facts")]);
    places.into_iter().find(|place| {
        ["facts.jsonl", "text.jsonl", "model/config.json"].iter().all(|name| place.join(name).is_file())
    })
}

/// Returns the model of a folder and its name, if it has weights and not only a tokenizer.
fn known(folder: &Path) -> Result<Option<(String, OneEdit)>, BenchError> {
    let Ok(checkpoint) = Checkpoint::open(folder) else { return Ok(None) };
    let tokenizer = ChatTokenizer::open(folder, None)?;
    let texts = ["The shop", "The shop closes at", " six"];
    let ids = texts.map(|text| tokenizer.encode(text).map_err(EditError::Text));
    let ids = ids.into_iter().collect::<Result<Vec<_>, _>>()?;
    let model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ())?;
    let (layers, vocabulary) = (model.config().layers.len(), model.config().vocab_size);
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fact = [ids[1].clone(), ids[2].clone()];
    let edit = OneEdit::new(model, layers / 4, &text(vocabulary), fact, ids[0].len())?;
    Ok(Some((name, edit)))
}

/// Returns documents of random tokens: the time does not depend on what they say.
fn text(vocabulary: usize) -> Vec<Vec<u32>> {
    (0..DOCUMENTS[0]).map(|i| random_ids(i as u64, DOCUMENTS[1], vocabulary)).collect()
}

/// Measures an edit: a row for all of it, and one for the part that later edits find in their cache.
fn timed(what: &str, edit: &OneEdit, rounds: usize, of: &str) -> Result<[Row; 2], BenchError> {
    let (mut wall, mut cpu, mut parts, mut losses) = (Vec::new(), Vec::new(), Vec::new(), [0.0; 2]);
    for _ in 0..rounds {
        let before = process_cpu_seconds();
        let took = edit.run()?;
        cpu.extend(process_cpu_seconds().zip(before).map(|(after, before)| after - before));
        wall.push(took.whole.as_secs_f64());
        parts.push(took.decomposition.as_secs_f64());
        losses = took.losses;
    }
    let seconds = median(wall);
    let note = format!(
        "median of {rounds}; {of}; the loss of the target went from {:.1} to {:.1}",
        losses[0], losses[1]
    );
    let row = Row::new(what, seconds * 1e3, "ms", note);
    let row = match cpu.len() {
        0 => row,
        _ => row.with_timing(Timing { seconds, cpu_seconds: median(cpu) }),
    };
    let note = "later edits of the same model read it; the rest is the search for the value";
    Ok([row, Row::new("  decomposing the covariance", median(parts) * 1e3, "ms", note)])
}

/// Returns the config of the model.
fn config() -> Result<ModelConfig, BenchError> {
    let mut config: Value = serde_json::from_str(CONFIG).expect("the config of the bench is JSON");
    for (name, size) in SIZES {
        config[name] = size.into();
    }
    let layers = SIZES[3].1 as usize;
    if let Some(types) = config["layer_types"].as_array_mut() {
        types.truncate(layers);
    }
    Ok(ModelConfig::from_json(&config.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_a_wide_mlp_and_both_kinds_of_layers() {
        let config = config().unwrap();
        assert_eq!((config.layers.len(), config.layers[0].intermediate_size), (4, 2048));
    }

    #[test]
    fn a_checkout_has_a_model_with_facts_and_text_and_other_folders_have_none() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        let facts = root.join("tests/fixtures/facts");
        assert_eq!(world(&root.join("presets/demo/model")), Some(facts.clone()));
        assert_eq!(world(&facts.join("model")), Some(facts));
        assert_eq!(world(tempfile::tempdir().unwrap().path()), None);
    }
}
