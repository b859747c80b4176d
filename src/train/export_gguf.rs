//! Exports a run for llama.cpp and Ollama: GGUF files and a `Modelfile`, in `gguf/` below the outputs.
//!
//! Enters: a run folder, and which files are wanted. Leaves: the files, and in sentences what they do not
//! contain. The other outputs are neither read nor changed.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use sparktune_base::files::{sync, write_and_sync};
use sparktune_base::units::{bytes, count};
use sparktune_data::chat_template_of;
use sparktune_model::export::gguf::{Gguf, GgufContents, GgufType};
use sparktune_model::{Checkpoint, Model, Mtp};
use sparktune_plan::{Mtp as MtpChoice, Plan};
use sparktune_runlog::{Lease, RunDir};

use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::export_run::{ExportedFiles, Loaded, Weights};
use crate::exported_template::exported_template;
use crate::gguf_section::FOLDER;
use crate::load;
use crate::modelfile::{modelfile, stop_texts};
use crate::outputs::{Export, Heads, TextModelOutputs};
use crate::served_head::serves_trained_head;

/// The files that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufRequest {
    /// The type of the complete model's matrices, if it is written.
    pub model: Option<GgufType>,
    /// Whether the adapter is written as a file of its own.
    pub adapter: bool,
}

/// Writes GGUF files of a run. `stop` ends it, and then earlier files are still there. `progress(file, done,
/// total)` is called before each tensor.
///
/// # Errors
/// When the run is training, has no such checkpoint or no adapter, llama.cpp cannot compute the model, or a
/// file cannot be written.
pub fn export_gguf(
    run: &RunDir,
    weights: Weights,
    request: GgufRequest,
    stop: &AtomicBool,
    progress: &dyn Fn(&str, usize, usize),
) -> Result<ExportedFiles, TrainError> {
    let _lease = Lease::acquire(run)?;
    let Loaded { plan, base, model, heads: [before, head], folder, mut notes, .. } =
        Loaded::load(run, weights)?;
    let adapter = match (request.adapter, load::lora(&plan)) {
        (true, None) => return Err(TrainError::NoAdapter),
        (true, adapter) => adapter,
        (false, _) => None,
    };
    let template = match exported_template(run, &plan, base.dir())? {
        Some(own) => Some(own),
        None => chat_template_of(base.dir())?,
    };
    let run_name = run.name();
    let is_trained_head_served = match (&before, request.model) {
        (Some(_), Some(_)) => match serves_trained_head(&folder, &base)? {
            Some(is_served) => is_served,
            None => is_trained_head_better(run, &plan, &base, &model, [&before, &head], stop)?,
        },
        _ => false,
    };
    let gguf = Gguf {
        base: &base,
        model: &model,
        // Without one, the base's is written.
        mtp: head.as_ref().filter(|_| is_trained_head_served),
        keep_mtp: plan.mtp != MtpChoice::None,
        name: &run_name,
        base_name: &plan.model.id,
        chat_template: template.as_deref(),
    };
    let folder = folder.join(FOLDER);
    fs::create_dir_all(&folder).map_err(TrainError::io(&folder))?;
    let mut paths = Vec::new();
    if let Some(lora) = adapter {
        let name = "adapter-f32.gguf";
        let path = folder.join(name);
        let mut before_tensor = told(name, stop, progress);
        let contents = gguf.write_adapter(lora, &path, &mut before_tensor)?;
        notes.push(in_words(name, &contents));
        paths.push(path);
    }
    if let Some(numbers) = request.model {
        let name = format!("model-{}.gguf", numbers.word());
        let path = folder.join(&name);
        let mut before_tensor = told(&name, stop, progress);
        let contents = gguf.write_model(numbers, &path, &mut before_tensor)?;
        notes.push(in_words(&name, &contents));
        if before.is_some() {
            notes.push(if is_trained_head_served {
                "Its MTP head is the trained one, which is better than the base's.".to_owned()
            } else {
                "Its MTP head is the base's, because the trained one is not better.".to_owned()
            });
        }
        notes.extend(contents.remarks);
        paths.push(path);

        let path = folder.join("Modelfile");
        write_and_sync(&path, modelfile(&name, &notes, &stop_texts(base.dir())))
            .map_err(TrainError::io(&path))?;
        paths.push(path);
    }
    sync(&folder).map_err(TrainError::io(&folder))?;
    Ok(ExportedFiles { paths, notes })
}

/// Measures the heads of a run that has no outputs yet, as its outputs would do.
fn is_trained_head_better(
    run: &RunDir,
    plan: &Plan,
    base: &Checkpoint,
    model: &Model,
    [before, last]: [&Option<Mtp>; 2],
    stop: &AtomicBool,
) -> Result<bool, TrainError> {
    let eval_set = EvalSet::open(run, plan, base, 1, &mut |_| ())?;
    let export = Export {
        run,
        folder: &run.outputs(),
        flag: "",
        plan,
        base,
        eval_set: eval_set.as_ref(),
        record: &|_| (),
        warn: &|_| (),
        progress: &|_, _, _| (),
        go_on: &|| !stop.load(Ordering::SeqCst),
    };
    let heads = Heads { before: before.clone(), last: last.clone(), among: None };
    Ok(export.choose_head(model, &heads, &mut TextModelOutputs::default())?.is_trained)
}

/// Returns what is called before each tensor of a file.
fn told<'a>(
    name: &'a str,
    stop: &'a AtomicBool,
    progress: &'a dyn Fn(&str, usize, usize),
) -> impl FnMut(usize, usize) -> bool + 'a {
    move |done, total| {
        progress(name, done, total);
        !stop.load(Ordering::SeqCst)
    }
}

fn in_words(name: &str, contents: &GgufContents) -> String {
    format!(
        "{name} has {} tensors, {} of them trained, in {}.",
        count(contents.tensors as u64),
        count(contents.trained as u64),
        bytes(contents.bytes)
    )
}
