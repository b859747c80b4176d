//! `watch`, `runs`, `resume`, `stop`, `export`: the commands for existing runs.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use sparktune_app::answers::runs_dir;
use sparktune_app::cluster::elsewhere::refuse_succeeded;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::launch::{Changes, Conditions, may_resume};
use sparktune_app::program::Program;
use sparktune_app::run_folder::Provenance;
use sparktune_app::runs::{Awaited, find, find_running, go_back_to, request_stop};
use sparktune_app::summary::Summary;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::{count, counted, duration};
use sparktune_cluster::RankCounts;
use sparktune_runlog::{Liveness, Outcome, RunDir, RunView, RunsRoot, now_us};
use sparktune_train::{ExportedFiles, prolong};
pub use sparktune_train::{GgufRequest, GgufType, Length, Weights};
use sparktune_tui::output::{WrappedLines, columns, note, print, print_json, print_lines, stderr_columns};
use sparktune_tui::screens::Screens;
use sparktune_tui::{Output, follow, how_it_stands, newest_rows, runs_table};

use crate::attempt::{Display, run_attempt, with_result};
use crate::cluster_train::{gather, refuse_a_launcher_with, run_on_members};
use crate::failure::from_training;
use crate::follow_rank::follow_rank_0;
use crate::interrupt::Interrupts;
use crate::rank::other_rank;
use crate::request::{RunName, Style};
use crate::trainer::make_files_private;

/// Finds the run with that name.
pub(crate) fn find_run(name: RunName) -> Result<RunDir, Failure> {
    find(&name.run, name.runs_dir)
}

/// Runs `sparktune watch`.
///
/// # Errors
/// The run does not exist or cannot be read.
pub fn watch(program: &Program, name: RunName, style: Style) -> Result<Exit, Failure> {
    let run = find_run(name)?;
    let output = match Display::suited_to(style) {
        Display::Screen => {
            Screens::open()?.dashboard(program, &run)?;
            return Ok(Exit::Done);
        }
        Display::Json => Output::Json,
        Display::Lines => Output::Plain,
    };
    let width = columns().filter(|_| output == Output::Plain);
    let mut out = WrappedLines::new(io::stdout().lock(), width);
    let mut notes = WrappedLines::new(io::stderr(), stderr_columns());
    follow(&run, output, 1, &mut out, &mut notes, Liveness::is_live)?;
    Ok(Exit::Done)
}

/// The number of the newest runs that a table shows.
const SHOWN: usize = 50;

/// Runs `sparktune runs`. A table shows only the newest runs, unless `all` are wanted or those with some
/// words; a screen and JSON have all of them.
///
/// # Errors
/// The folder cannot be listed.
pub fn list(
    program: &Program,
    runs_dir_flag: Option<PathBuf>,
    all: bool,
    matching: Option<&str>,
    style: Style,
) -> Result<Exit, Failure> {
    let root = RunsRoot::new(runs_dir(runs_dir_flag)?);
    if Display::suited_to(style) == Display::Screen && matching.is_none() {
        Screens::open()?.runs(program, &root)?;
        return Ok(Exit::Done);
    }
    let most = if all || style.json || matching.is_some() { usize::MAX } else { SHOWN };
    let (mut rows, older) = newest_rows(&root, most)?;
    let is_empty = rows.is_empty();
    if let Some(words) = matching {
        rows.retain(|row| row.matches(words));
    }
    if style.json {
        print_json(&rows)?;
    } else if rows.is_empty() && !is_empty {
        note("no run has these words in its name, state or model");
    } else if rows.is_empty() {
        note(&format!("no runs yet in {}; `{} train` starts one", root.path().display(), program_name()));
    } else {
        print(&runs_table(&rows, now_us(), columns()))?;
    }
    if older > 0 {
        note(&format!(
            "{} not shown; `{} runs --all` shows all",
            counted(older as u64, "older run"),
            program_name()
        ));
    }
    Ok(Exit::Done)
}

/// What `resume` may do beside going on.
#[derive(Debug, Clone, Default)]
pub struct Resumed {
    /// The step to go back to, instead of the newest checkpoint.
    pub checkpoint: Option<u64>,
    /// The length that the run gets.
    pub length: Option<Length>,
    /// Go on with other inputs than the run started with.
    pub accept_changes: bool,
    /// Add gradients like this many ranks.
    pub sum_as: Option<RankCounts>,
    /// Go on with all members of the cluster.
    pub on_cluster: bool,
}

/// Runs `sparktune resume`: from the newest checkpoint, or from that of a named step, and for the planned
/// length or another one. A rank other than 0 has no run, and joins rank 0's.
///
/// # Errors
/// The run is being trained, has no such checkpoint, is longer already, or the trainer cannot be started.
pub fn resume(program: &Program, name: RunName, resumed: Resumed, style: Style) -> Result<Exit, Failure> {
    with_result(style, |run| start_again(program, name, resumed, style, run))
}

fn start_again(
    program: &Program,
    name: RunName,
    resumed: Resumed,
    style: Style,
    found: &mut Option<RunDir>,
) -> Result<Exit, Failure> {
    let Resumed { checkpoint, length, accept_changes, sum_as, on_cluster } = resumed;
    refuse_a_launcher_with(on_cluster)?;
    if let Some(placement) = other_rank()? {
        return follow_rank_0(program, &placement, name.runs_dir);
    }
    let interrupts = Interrupts::listen()?;
    let run = find_run(name)?;
    let view = RunView::replay(&run)?;
    let liveness = view.liveness(&run)?;
    if checkpoint.is_none() && length.is_none() {
        match (may_resume(&run), liveness) {
            // A script that resumes any run has reached its goal.
            (Err(completion), Liveness::Finished { outcome }) if outcome.is_complete() => {
                note(&completion.to_string());
                if style.json {
                    print_json(&Summary::from_run(&run, liveness, &view))?;
                }
                return Ok(if outcome == Outcome::Diverged { Exit::Diverged } else { Exit::Done });
            }
            (may, _) => may?,
        }
    }
    if !accept_changes {
        let flag = interrupts.flag();
        let unasked = refuse_succeeded(&run, move || flag.load(Ordering::SeqCst), note)?;
        unasked.iter().for_each(|text| note(text));
    }
    if let Some(step) = checkpoint {
        for name in go_back_to(&run, step)? {
            note(&format!("a later checkpoint was set aside as {}", run.checkpoints().join(name).display()));
        }
    }
    if let Some(length) = length {
        let prolonged = prolong(&run, length).map_err(from_training)?;
        for path in &prolonged.set_aside {
            note(&format!("the head is trained again: its checkpoint was set aside as {}", path.display()));
        }
        note(&format!(
            "{} had {} and now has {}; it continues from step {}",
            run.name(),
            counted(prolonged.steps_before, "step"),
            count(prolonged.steps),
            count(prolonged.from_step)
        ));
    }
    let began_with = run.read_provenance::<Provenance>().map(|provenance| provenance.build_blake3);
    if began_with.is_ok_and(|hash| program.build_hash().is_ok_and(|ours| ours != hash)) {
        note(
            "note: another build of sparktune started this run; its results may not be bit-identical from here on",
        );
    }
    let changes = if accept_changes { Changes::Accepted } else { Changes::Refused };
    let conditions = Conditions { changes, sum_as, environment: Vec::new() };
    let display = Display::suited_to(style);
    // What is refused before this does not describe what the run has trained.
    *found = Some(run.clone());
    if !on_cluster {
        return run_attempt(program, &run, conditions, display, &interrupts);
    }
    let members = gather(program, &interrupts)?;
    run_on_members(program, &run, &members, conditions, display, &interrupts)
}

/// Runs `sparktune stop`: for the run of this name, or without one for the run that is being trained. With
/// `no_wait` it returns at once after the request.
///
/// # Errors
/// The run has no trainer; without a name, no run is being trained, or several are.
pub fn stop(
    name: Option<String>,
    runs_dir: Option<PathBuf>,
    no_wait: bool,
    json: bool,
) -> Result<Exit, Failure> {
    let run = match name {
        Some(run) => find_run(RunName { run, runs_dir })?,
        None => find_running(runs_dir)?,
    };
    let stopping = request_stop(&run)?;
    if no_wait {
        note(&format!("{}: asked to save a checkpoint and end", run.name()));
        return Ok(Exit::Done);
    }
    // Ctrl-C ends this process, and the request stands.
    let told = |awaited| note(&format!("{}: {}", run.name(), in_words(awaited)));
    let stopped = stopping.wait(told, || false)?;
    if stopped.acknowledged_at.is_none() {
        note(&format!("{}: the trainer ended before it read the request", run.name()));
    }
    if json {
        print_json(&Summary::from_run(&run, stopped.liveness, &stopped.view))?;
    } else {
        print_lines(&format!("{}\n", how_it_stands(&run, stopped.liveness, &stopped.view)))?;
    }
    Ok(Exit::Done)
}

fn in_words(awaited: Awaited) -> String {
    match awaited {
        Awaited::Busy { phase, step } if phase == "train" => {
            format!("waiting for the end of step {}", count(step + 1))
        }
        Awaited::Busy { phase, .. } => {
            format!("waiting for the trainer, whose phase is \"{}\"", escape(&phase))
        }
        Awaited::Silent(seconds) => {
            let silent = duration(seconds as f64);
            format!("the trainer is alive, but has logged nothing for {silent}; its log is in logs/")
        }
        Awaited::EndsAfter(step) => format!("the trainer ends after step {step}"),
        Awaited::Signalled => {
            "the trainer has not answered yet, so it was sent a signal; it answers after its current step"
                .into()
        }
        Awaited::Frozen(pid) => format!(
            "the trainer is suspended (SIGSTOP, Ctrl-Z or a debugger) and cannot end; `kill -CONT {pid}` lets it go on"
        ),
    }
}

#[derive(Serialize)]
struct Exported {
    run_dir: PathBuf,
    outputs: Vec<PathBuf>,
    /// What the files contain and what not, in whole sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Runs `sparktune export`. With `gguf`, these files are written instead of the usual outputs. Ctrl-C ends it
/// between two tensors or layers.
///
/// # Errors
/// The run has no such checkpoint, or is being trained; the export was stopped.
pub fn export(
    name: RunName,
    weights: Weights,
    gguf: Option<GgufRequest>,
    json: bool,
) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let run = find_run(name)?;
    make_files_private();
    let stop = interrupts.flag();
    let exported = match gguf {
        None => sparktune_train::export_run(&run, weights, &stop),
        Some(request) => sparktune_train::export_gguf(&run, weights, request, &stop, &how_far(json)),
    };
    let ExportedFiles { paths: outputs, notes } = exported.map_err(from_training)?;
    if json {
        print_json(&Exported { run_dir: run.path().to_owned(), outputs, notes })?;
    } else {
        notes.iter().for_each(|text| note(text));
        let line = |path: &PathBuf| format!("{}\n", escape(&path.display().to_string()));
        let lines: Vec<String> = outputs.iter().map(line).collect();
        print(&lines.concat())?;
    }
    Ok(Exit::Done)
}

/// The shortest time between two lines about how far a file is.
const QUIET: Duration = Duration::from_secs(2);

/// Returns a printer of how far a file is. It prints nothing with `json`, nor of files that are soon written.
fn how_far(json: bool) -> impl Fn(&str, usize, usize) {
    let last = Cell::new(Instant::now());
    move |file, done, total| {
        if !json && last.get().elapsed() >= QUIET {
            last.set(Instant::now());
            note(&format!("{file}: {done} of {total} tensors are written"));
        }
    }
}
