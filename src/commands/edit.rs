//! `edit`: facts into weights, and the patches of an edited model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sparktune_app::answers::runs_dir;
use sparktune_app::caches::KEY_STATISTICS;
use sparktune_app::comparison::find_suite;
use sparktune_app::data_worker::{ModelTokenizer, guard_this_process};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::folders::private_folder_of_user;
use sparktune_app::models::find_named;
use sparktune_app::program::Program;
use sparktune_edit::stack::is_edited;
use sparktune_edit::{EditRequest, Facts, Method, Stack, edit as edit_facts, export_adapter};
use sparktune_infer::Render;
use sparktune_tui::output::{note, print, print_json, report};

use crate::edit_in_words::{Listed, edited_in_words, exported_in_words, list_in_words};
use crate::edit_measure::measure;
use crate::edit_request::{Aim, FactsRequest, Told, rendering, text_of};
use crate::edit_stack::{apply, remove, set, switch};
use crate::edit_trace::trace_facts;
use crate::failure::from_editing;
use crate::infer_worker::room;
use crate::interrupt::Interrupts;
use crate::request::Style;

/// What `edit` is asked for.
#[derive(Debug, Clone)]
pub enum EditCommand {
    /// Write facts into a model.
    Facts(Box<FactsRequest>),
    /// List the patches of a folder.
    List {
        /// The folder.
        model: PathBuf,
        /// Its base, if that has moved.
        base: Option<PathBuf>,
    },
    /// Apply patches to a model.
    Apply {
        /// The folder.
        model: PathBuf,
        /// The files of the patches.
        patches: Vec<PathBuf>,
        /// The folder to write.
        output: Option<PathBuf>,
        /// The base, if it has moved.
        base: Option<PathBuf>,
    },
    /// Replace all patches of a model by others, in one step.
    Set {
        /// The folder.
        model: PathBuf,
        /// The files of the patches, first one first.
        patches: Vec<PathBuf>,
        /// The names of those that are switched off.
        off: Vec<String>,
        /// The folder to write.
        output: Option<PathBuf>,
        /// The base, if it has moved.
        base: Option<PathBuf>,
    },
    /// Export patches as an adapter.
    Export {
        /// The folder.
        model: PathBuf,
        /// The names of the patches; without any, those that are switched on.
        names: Vec<String>,
        /// The folder to write.
        output: PathBuf,
        /// The base, if it has moved.
        base: Option<PathBuf>,
    },
    /// Switch a patch on or off.
    Switch {
        /// The folder.
        model: PathBuf,
        /// The name of the patch.
        name: String,
        /// Whether it is switched on.
        on: bool,
        /// The folder to write.
        output: Option<PathBuf>,
        /// The base, if it has moved.
        base: Option<PathBuf>,
    },
    /// Remove a patch.
    Remove {
        /// The folder.
        model: PathBuf,
        /// The name of the patch.
        name: String,
        /// The file that keeps it.
        keep: Option<PathBuf>,
        /// The folder to write.
        output: Option<PathBuf>,
        /// The base, if it has moved.
        base: Option<PathBuf>,
    },
}

impl EditCommand {
    /// Returns the model, as the user names it.
    fn model_mut(&mut self) -> &mut PathBuf {
        match self {
            Self::Facts(request) => &mut request.model,
            Self::List { model, .. }
            | Self::Apply { model, .. }
            | Self::Set { model, .. }
            | Self::Export { model, .. }
            | Self::Switch { model, .. }
            | Self::Remove { model, .. } => model,
        }
    }
}

/// Runs `sparktune edit`. `runs` is the folder of the runs, if a flag names it. The exit code is 3 if an edit
/// is not kept.
///
/// # Errors
/// A file cannot be used, the facts do not fit the model, or it was interrupted.
pub fn edit(
    program: &Program,
    mut command: EditCommand,
    runs: Option<PathBuf>,
    style: Style,
) -> Result<Exit, Failure> {
    let model = command.model_mut();
    *model = folder_of(model, runs)?;
    // The model's tokenizer runs in this process, beside its weights.
    guard_this_process(|failure| std::process::exit(report(&failure) as i32))?;
    match command {
        EditCommand::Facts(request) => {
            // A template that nests too deeply ends its process, which therefore is another one.
            let render = render_in(ModelTokenizer::open(&request.model, None, &())?);
            if request.aim == Aim::Edit {
                // Said before the facts are read, which may take long.
                output_of(request.output.clone(), &request.model)?;
            }
            let facts = Facts::read(&request.facts).map_err(from_editing)?;
            match &request.aim {
                Aim::Edit => write_facts(*request, &facts, render, style.json),
                Aim::Trace => trace_facts(&request, &facts, render, style.json),
                Aim::Measure(table) => measure(program, &request, &facts, table, render, style.json),
            }
        }
        EditCommand::List { model, base } => list(&model, base.as_deref(), style.json),
        EditCommand::Apply { model, patches, output, base } => {
            let output = output_of(output, &model)?;
            apply(&model, &patches, &output, base.as_deref(), style.json)
        }
        EditCommand::Set { model, patches, off, output, base } => {
            let output = output_of(output, &model)?;
            set(&model, &patches, &off, &output, base.as_deref(), style.json)
        }
        EditCommand::Export { model, names, output, base } => {
            let interrupts = Interrupts::listen()?;
            let stack = Stack::open(&model, base.as_deref()).map_err(from_editing)?;
            let exported = export_adapter(&stack, &names, &output, &mut || interrupts.count() == 0)
                .map_err(from_editing)?;
            if style.json {
                print_json(&exported)?
            } else {
                print(&exported_in_words(&exported))?
            }
            Ok(Exit::Done)
        }
        EditCommand::Switch { model, name, on, output, base } => {
            let output = output_of(output, &model)?;
            switch(&model, &name, on, &output, base.as_deref(), style.json)
        }
        EditCommand::Remove { model, name, keep, output, base } => {
            let output = output_of(output, &model)?;
            remove(&model, &name, keep.as_deref(), &output, base.as_deref(), style.json)
        }
    }
}

/// Renders in the process of this tokenizer. When that is ended, this one ends with the same sentence, as it
/// does when it passes a limit itself.
fn render_in(tokenizer: ModelTokenizer) -> Render {
    Arc::new(move |messages, kwargs| {
        tokenizer
            .render(messages, kwargs)
            .unwrap_or_else(|failure| std::process::exit(report(&failure) as i32))
    })
}

/// Returns the folder of a model: the one that was named, or the whole weights of a run or of a model of the
/// hub's cache.
fn folder_of(model: &Path, runs: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let is_run = model.join("plan.toml").is_file();
    match model.to_str() {
        // An edited folder may also be damaged, which whoever opens it says.
        Some(name) if is_run || !model.exists() => find_named(name, &runs_dir(runs)?)?.whole(),
        _ => Ok(model.to_owned()),
    }
}

/// Returns the folder to write: the one that was named, or the edited model itself. A link stays, and what it
/// leads to is changed. The place also has a name where the path is `.`.
fn output_of(output: Option<PathBuf>, model: &Path) -> Result<PathBuf, Failure> {
    let output = match output {
        Some(output) => output,
        None if is_edited(model) => model.to_owned(),
        None => {
            return Err(
                Failure::usage("no folder to write was named").hint("Name a new folder with --output")
            );
        }
    };
    if output.exists() {
        output.canonicalize().map_err(|error| Failure::io("use", &output, &error))
    } else {
        Ok(output)
    }
}

fn write_facts(request: FactsRequest, facts: &Facts, render: Render, json: bool) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let text = text_of(&request)?;
    let rendering = rendering(&request);
    let suite = request.suite.as_deref().map(find_suite).transpose()?;
    let output = output_of(request.output, &request.model)?;
    let name = match request.name {
        Some(name) => name,
        None => name_of(&request.facts),
    };
    // Without a place for them, statistics are computed again each time.
    let cache =
        runs_dir(request.runs_dir).and_then(|runs| private_folder_of_user(&runs, KEY_STATISTICS)).ok();
    let mut told = Told::new(&interrupts);
    let edited = edit_facts(
        EditRequest {
            model: &request.model,
            base: request.base.as_deref(),
            facts,
            method: Method::named(&request.method),
            layers: &request.layers,
            rendering,
            text: &text,
            suite: suite.as_ref(),
            cache: cache.as_deref(),
            name: &name,
            output: &output,
            force: request.force,
            write_known: request.write_known,
            render,
            room: room(),
        },
        &mut |stage| told.tell(stage),
    )
    .map_err(from_editing)?;
    if json {
        print_json(&edited)?;
    } else {
        print(&edited_in_words(&edited, facts))?;
    }
    Ok(if edited.refused.is_some() { Exit::Data } else { Exit::Done })
}

/// Returns a name for the patch of a file of facts.
fn name_of(facts: &Path) -> String {
    let stem = facts.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = stem.chars().take(64).map(plain).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "facts".to_owned() } else { name.to_owned() }
}

fn list(model: &Path, base: Option<&Path>, json: bool) -> Result<Exit, Failure> {
    let stack = Stack::open(model, base).map_err(from_editing)?;
    let (displaced, overwritten) = (stack.displaced(), stack.overwritten());
    let listed: Vec<Listed<'_>> = stack
        .patches
        .iter()
        .map(|patch| Listed {
            about: &patch.about,
            id: patch.reference().id,
            is_off: stack.off.contains(&patch.about.name),
            is_displaced: displaced.contains(&patch.about.name.as_str()),
            overwritten_by: overwritten.get(patch.about.name.as_str()).copied(),
        })
        .collect();
    if stack.lacks_codebook(model) && !json {
        note(
            "note: the corrections of its patches are missing in the folder; `edit enable` with one of their names writes them again",
        );
    }
    if json {
        print_json(&listed)?;
    } else {
        print(&list_in_words(&stack, &listed))?;
    }
    Ok(Exit::Done)
}
