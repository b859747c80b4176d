//! `watch`, `runs`, `resume`, `stop`, `export`: what can be done with a run that exists.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use sparktune_runlog::{
    Action, EventTailer, Kind, Limit, Liveness, Outcome, RunDir, RunView, RunsRoot, now_us, request,
};
use sparktune_tui::{Output, RunRow, follow, how_it_stands, runs_table};

use super::trainer::private_files;
use crate::answers::runs_dir;
use crate::cli::{ExportArgs, ResumeArgs, RunName, RunsArgs, StopArgs, WatchArgs};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::launch::{self, Following, Provenance, Summary};
use crate::output::{note, print, print_json};
use crate::screens::Screens;

/// The run of that name.
///
/// # Errors
/// There is none, or several.
pub(super) fn find(name: RunName) -> Result<RunDir, Failure> {
    Ok(RunsRoot::new(runs_dir(name.runs_dir)?).resolve(&name.run)?)
}

/// `sparktune watch`.
///
/// # Errors
/// A run that does not exist or cannot be read.
pub fn watch(args: WatchArgs) -> Result<Exit, Failure> {
    let run = find(args.run)?;
    if Following::suited(args.plain, args.json) == Following::Screen {
        Screens::open()?.dashboard(&run)?;
        return Ok(Exit::Done);
    }
    let output = if args.json { Output::Json } else { Output::Plain };
    follow(&run, output, 1, &mut io::stdout().lock(), &mut io::stderr(), Liveness::is_live)?;
    Ok(Exit::Done)
}

/// `sparktune runs`.
///
/// # Errors
/// A folder that cannot be listed.
pub fn list(args: RunsArgs) -> Result<Exit, Failure> {
    let root = RunsRoot::new(runs_dir(args.runs_dir)?);
    if Following::suited(args.plain, args.json) == Following::Screen {
        Screens::open()?.runs(&root)?;
        return Ok(Exit::Done);
    }
    let rows: Vec<RunRow> = root.list()?.iter().map(RunRow::read).collect();
    if args.json {
        print_json(&rows)?;
    } else if rows.is_empty() {
        note(&format!("no runs in {}; `sparktune train` starts one", root.path().display()));
    } else {
        print(&runs_table(&rows, now_us()))?;
    }
    Ok(Exit::Done)
}

/// `sparktune resume`.
///
/// # Errors
/// A run that is being trained, or a trainer that cannot be started.
pub fn resume(args: ResumeArgs) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let run = find(args.run)?;
    let view = RunView::replay(&run)?;
    let liveness = view.liveness(&run)?;
    let completed = liveness == Liveness::Finished { outcome: Outcome::Completed };
    match launch::may_resume(&run) {
        // A script that resumes whatever there is has what it wanted.
        Err(completion) if completed => {
            note(&completion.text);
            if args.json {
                print_json(&Summary::of_run(&run, liveness, &view))?;
            }
            return Ok(Exit::Done);
        }
        may => may?,
    }
    let began_with = run.read_provenance::<Provenance>().map(|provenance| provenance.build_blake3);
    if began_with.is_ok_and(|hash| launch::build_hash().is_ok_and(|ours| ours != hash)) {
        note(
            "note: this is another build of sparktune than the one that began the run; the rest may not be bit-identical",
        );
    }
    launch::run_attempt(&run, Following::suited(args.plain, args.json), &interrupts)
}

/// `sparktune stop`.
///
/// # Errors
/// A run that nobody trains.
pub fn stop(args: StopArgs) -> Result<Exit, Failure> {
    let run = find(args.run)?;
    let request = request(&run, Action::Stop)?;
    if args.no_wait {
        note(&format!("{}: asked to save a checkpoint and end", run.name()));
        return Ok(Exit::Done);
    }
    let mut tailer = EventTailer::new(&run);
    let mut view = RunView::default();
    let mut acknowledged = false;
    let liveness = loop {
        // Looked at before reading, so that the last words of a trainer that ends are read below.
        let live = view.liveness(&run)?.is_live();
        loop {
            let batch = tailer.poll(Limit::default())?;
            for record in &batch.records {
                view.apply(&record.event);
                if let Kind::ControlApplied(applied) = &record.event.kind
                    && applied.id == request.id
                {
                    acknowledged = true;
                    note(&format!("{}: the trainer ends after step {}", run.name(), applied.step));
                }
            }
            if batch.at_end {
                break;
            }
        }
        if !live {
            break view.liveness(&run)?;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if !acknowledged {
        note(&format!("{}: the trainer ended before it read the request", run.name()));
    }
    if args.json {
        print_json(&Summary::of_run(&run, liveness, &view))?;
    } else {
        print(&format!("{}\n", how_it_stands(&run, liveness, &view)))?;
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Exported {
    run_dir: PathBuf,
    outputs: Vec<PathBuf>,
}

/// `sparktune export`.
///
/// # Errors
/// A run without a whole checkpoint, or one that is being trained.
pub fn export(args: ExportArgs) -> Result<Exit, Failure> {
    let run = find(RunName { run: args.run, runs_dir: args.runs_dir })?;
    private_files();
    let outputs = sparktune_train::export_run(&run, args.best)?;
    if args.json {
        print_json(&Exported { run_dir: run.path().to_owned(), outputs })?;
    } else {
        let lines: Vec<String> = outputs.iter().map(|path| format!("{}\n", path.display())).collect();
        print(&lines.concat())?;
    }
    Ok(Exit::Done)
}
