//! `edit --measure`: facts written at once and one after the other, beside LoRA on the same facts and the
//! fact in the prompt, as a table.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sparktune_app::answers::runs_dir;
use sparktune_app::caches::KEY_STATISTICS;
use sparktune_app::comparison::find_suite;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::folders::private_folder_of_user;
use sparktune_app::program::Program;
use sparktune_base::escape::escape;
use sparktune_base::units::counted;
use sparktune_edit::scores::{LossDrift, Share};
use sparktune_edit::{EditError, Facts, MeasureRequest, Measured, MeasuredRow, Measurement, Method, Way};
use sparktune_infer::Render;
use sparktune_tui::output::{note, print, print_json};
use tempfile::TempDir;

use crate::edit_in_words::layers;
use crate::edit_request::{FactsRequest, Table, Told, rendering, text_of};
use crate::failure::from_editing;
use crate::infer_worker::room;
use crate::interrupt::Interrupts;

/// The folder of what is measured, next to the runs.
const WORK: &str = ".edit-measurements";
/// How often the training is looked after.
const EVERY: Duration = Duration::from_millis(100);
/// How the control learns the facts: as many epochs whatever their number is.
const LORA: [&str; 16] = [
    "--method",
    "lora",
    "--rank",
    "16",
    "--learning-rate",
    "0.001",
    "--pack-length",
    "512",
    "--grad-accum-steps",
    "1",
    "--eval-fraction",
    "0",
    "--export",
    "last",
    "--epochs",
    "60",
];

/// Measures the facts of a request, and prints the table.
///
/// # Errors
/// The model cannot be loaded or knows all facts, or it was interrupted. What fails in one row stands there.
pub(crate) fn measure(
    program: &Program,
    request: &FactsRequest,
    facts: &Facts,
    table: &Table,
    render: Render,
    json: bool,
) -> Result<Exit, Failure> {
    let method = Method::named(&request.method);
    let asks_for = |way: Way| !table.without.iter().any(|without| without == way.name());
    let written: Vec<Way> = Measurement::ways(method).iter().copied().filter(|way| asks_for(*way)).collect();
    if written.is_empty() && !asks_for(Way::Lora) && !asks_for(Way::Prompt) {
        return Err(Failure::usage("--without leaves nothing to measure").hint("Leave out fewer parts"));
    }
    let interrupts = Interrupts::listen()?;
    let text = text_of(request)?;
    let suite = request.suite.as_deref().map(find_suite).transpose()?;
    let runs = runs_dir(request.runs_dir.clone())?;
    let cache = private_folder_of_user(&runs, KEY_STATISTICS).ok();
    let work = WorkFolder::create(&runs)?;
    let mut told = Told::new(&interrupts);
    let measurement = Measurement::start(
        MeasureRequest {
            model: &request.model,
            base: request.base.as_deref(),
            facts,
            method,
            layers: &request.layers,
            rendering: rendering(request),
            text: &text,
            suite: suite.as_ref(),
            cache: cache.as_deref(),
            work: work.path(),
            render,
            room: room(),
        },
        &mut |stage| told.tell(stage),
    )
    .map_err(from_editing)?;
    let (counts, dropped) = counts_of(&table.counts, measurement.facts());
    if let Some(dropped) = dropped {
        note(&format!("note: {dropped}"));
    }
    let mut rows = Vec::new();
    for count in counts {
        let say = |how: Way| note(&format!("{}, {}", counted(count as u64, "fact"), how.name()));
        // Rows are also told as they come: the next one may take hours, and the table is printed whole.
        let mut add = |row: Result<MeasuredRow, EditError>| {
            let row = row.map_err(from_editing)?;
            note(&in_a_sentence(&row));
            rows.push(row);
            Ok::<(), Failure>(())
        };
        for how in written.iter().copied() {
            say(how);
            add(measurement.edited(count, how, &mut |stage| told.tell(stage)))?;
        }
        if asks_for(Way::Lora) {
            say(Way::Lora);
            let start = Instant::now();
            let lines = measurement.training_lines(count);
            let trained = train(program, &request.model, &lines, count, work.path(), &interrupts)?;
            let seconds = start.elapsed().as_secs_f64();
            let folder = trained.as_deref().map_err(Clone::clone);
            add(measurement.trained(count, folder, seconds, &mut |stage| told.tell(stage)))?;
        }
        if asks_for(Way::Prompt) {
            say(Way::Prompt);
            add(measurement.prompted(count, &mut |stage| told.tell(stage)))?;
        }
    }
    let measured = measurement.table(rows);
    if json {
        print_json(&measured)?;
    } else {
        print(&in_words(&measured))?;
    }
    Ok(Exit::Done)
}

/// Returns the numbers of facts that are measured, from few to many, and what is left out of those that were
/// asked for.
fn counts_of(wanted: &[usize], facts: usize) -> (Vec<usize>, Option<String>) {
    let mut counts: Vec<usize> = wanted.iter().map(|count| (*count).min(facts)).collect();
    counts.sort_unstable();
    counts.dedup();
    let larger: Vec<String> = wanted.iter().filter(|count| **count > facts).map(usize::to_string).collect();
    let dropped = format!(
        "the file has {} that the model does not know, so all of them are measured in place of {}",
        counted(facts as u64, "fact"),
        larger.join(", ")
    );
    (counts, Some(dropped).filter(|_| !larger.is_empty()))
}

/// A folder for what is measured, which is removed with everything in it.
struct WorkFolder {
    folder: TempDir,
    /// Held on the folder as long as it is used.
    _lock: Option<File>,
}

impl WorkFolder {
    /// Creates the folder, and removes those of measurements that were killed, each as large as a model.
    fn create(runs: &Path) -> Result<Self, Failure> {
        let parent = private_folder_of_user(runs, WORK)?;
        // A file system without locks keeps what was left.
        let lock = |path: &Path| File::open(path).and_then(|file| file.lock().map(|()| file)).ok();
        // Until the new folder is locked itself, nobody else looks for folders that nobody uses.
        let alone = lock(&parent);
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten().filter(|_| alone.is_some()) {
            let path = entry.path();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && File::open(&path).is_ok_and(|folder| folder.try_lock().is_ok()) {
                // What cannot be removed now is looked for again the next time.
                let _ = fs::remove_dir_all(path);
            }
        }
        let folder = TempDir::new_in(&parent).map_err(|error| Failure::io("create", &parent, &error))?;
        let lock = lock(folder.path());
        Ok(Self { folder, _lock: lock })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Trains an adapter on lines by this program itself, and returns the folder of its run, or why there is
/// none.
fn train(
    program: &Program,
    model: &Path,
    lines: &str,
    count: usize,
    work: &Path,
    interrupts: &Interrupts,
) -> Result<Result<PathBuf, String>, Failure> {
    let data = work.join(format!("facts-{count}.jsonl"));
    fs::write(&data, lines).map_err(|error| Failure::io("write", &data, &error))?;
    let output = work.join(format!("train-{count}.jsonl"));
    let file = File::create(&output).map_err(|error| Failure::io("write", &output, &error))?;
    let mut command = Command::new(program.path()?);
    // The control is the same whatever the user has set for own runs.
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SPARKTUNE_")) {
        command.env_remove(name);
    }
    command
        .args(["train", "--non-interactive", "--json", "--device", "cpu", "--name", "control", "--model"])
        .arg(model)
        .arg("--data")
        .arg(&data)
        .arg("--runs-dir")
        .arg(work.join("runs"))
        .args(LORA)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(Stdio::null())
        // So that Ctrl-C of a terminal reaches only this process. Together with the signal of `attend`, the
        // training would get two, and end before its trainer.
        .process_group(0);
    // `attend` looks at the signals: a second one must not end this process before it has ended the training.
    interrupts.follow();
    let attended = attend(&mut command, work, interrupts);
    interrupts.unfollow();
    attended?;
    let said = fs::read_to_string(&output).map_err(|error| Failure::io("read", &output, &error))?;
    let last: Value =
        said.lines().next_back().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let run = last["run_dir"].as_str().filter(|_| last["outcome"] == "completed");
    Ok(run.map(PathBuf::from).ok_or_else(|| {
        let why = last["error"].as_str().or(last["outcome"].as_str()).unwrap_or("it said nothing");
        format!("the training of the control failed: {why}")
    }))
}

/// Starts a training and waits for its end, or ends it when a signal comes.
fn attend(command: &mut Command, work: &Path, interrupts: &Interrupts) -> Result<(), Failure> {
    let mut child = command.spawn().map_err(|error| Failure::io("start", work, &error))?;
    while child.try_wait().map_err(|error| Failure::io("wait for", work, &error))?.is_none() {
        if interrupts.count() > 0 {
            // The training ends its trainer, which writes into a folder that is about to be removed.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            interrupts.unfollow();
            let _ = child.wait();
            return Err(from_editing(EditError::Stopped));
        }
        thread::sleep(EVERY);
    }
    Ok(())
}

/// Returns what a row says.
fn in_a_sentence(row: &MeasuredRow) -> String {
    let start = format!("{}, {}", counted(row.count as u64, "fact"), row.how.name());
    let Some(scores) = &row.scores else {
        return format!("{start}: {}", escape(row.error.as_deref().unwrap_or_default()));
    };
    let part = |name: &str, value: Option<&Share>| Some(format!("{name} {} %", share(Some(value?))));
    // What no prompt asks for is left out.
    let parts = [
        part("efficacy", scores.efficacy.as_ref()),
        part("generalisation", scores.generalisation.as_ref()),
        part("locality", scores.locality.as_ref()),
        part("portability", scores.portability.as_ref()),
        scores.loss.as_ref().map(|loss| format!("loss {} %", drift(Some(loss)))),
    ];
    format!("{start}: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// Returns the table.
fn in_words(measured: &Measured) -> String {
    let mut text = format!(
        "{} by {} in {}",
        counted(measured.facts as u64, "fact"),
        measured.method.name(),
        layers(&measured.layers)
    );
    if let Some(why) = &measured.why_layers {
        text.push_str(&format!(" ({why})"));
    }
    if measured.known > 0 {
        text.push_str(&format!("; {} that the model already knows are left out", measured.known));
    }
    let suite = measured.suite_name.as_deref().unwrap_or("suite");
    text.push_str(&format!(
        "\n\n{:>6} {:<11} {:>15} {:>15} {:>15} {:>15} {:>16} {:>15} {:>8}\n",
        "facts",
        "how",
        "efficacy %",
        "generalisation",
        "locality %",
        "portability %",
        "loss %",
        escape(suite),
        "seconds"
    ));
    if let Some(before) = &measured.suite_before {
        let nothing = ["–"; 4].map(|dash| format!("{dash:>15} ")).concat();
        text.push_str(&format!(
            "{:>6} {:<11} {nothing}{:>16} {:>15} {:>8}\n",
            0,
            "none",
            "–",
            share(Some(before)),
            "–"
        ));
    }
    for row in &measured.rows {
        let start = format!("{:>6} {:<11}", row.count, row.how.name());
        let Some(scores) = &row.scores else {
            let why = row.error.as_deref().unwrap_or_default();
            text.push_str(&format!("{start} {}\n", escape(why)));
            continue;
        };
        text.push_str(&format!(
            "{start} {:>15} {:>15} {:>15} {:>15} {:>16} {:>15} {:>8.1}\n",
            share(scores.efficacy.as_ref()),
            share(scores.generalisation.as_ref()),
            share(scores.locality.as_ref()),
            share(scores.portability.as_ref()),
            drift(scores.loss.as_ref()),
            share(row.suite.as_ref()),
            row.seconds
        ));
    }
    text.push_str("\nin brackets: 95 % intervals. lora: an adapter of rank 16 trained on the same facts; prompt: the fact before each prompt\n");
    text
}

fn share(share: Option<&Share>) -> String {
    share.map_or_else(
        || "–".to_owned(),
        |share| format!("{:.0} ({:.0}–{:.0})", share.value * 100.0, share.low * 100.0, share.high * 100.0),
    )
}

fn drift(loss: Option<&LossDrift>) -> String {
    let Some(LossDrift { drift, interval, .. }) = loss else { return "–".to_owned() };
    let percent = |value: f64| format!("{:+.1}", value * 100.0).replace('-', "−");
    let range =
        interval.map_or_else(String::new, |(low, high)| format!(" ({} {})", percent(low), percent(high)));
    format!("{}{range}", percent(*drift))
}

#[cfg(test)]
mod tests {
    use sparktune_edit::{Rendering, Scores};

    use super::*;

    #[test]
    fn sizes_that_the_file_does_not_have_are_named() {
        assert_eq!(counts_of(&[5, 1, 1], 9), (vec![1, 5], None));
        let (counts, dropped) = counts_of(&[100, 5, 1, 10], 5);
        assert_eq!(counts, [1, 5]);
        assert!(dropped.unwrap().ends_with("in place of 100, 10"));
    }

    #[test]
    fn what_a_killed_measurement_has_left_is_removed_by_the_next_one_and_what_is_used_stays() {
        let runs = tempfile::tempdir().unwrap();
        let first = WorkFolder::create(runs.path()).unwrap();
        let parent = first.path().parent().unwrap().to_owned();
        fs::create_dir(parent.join("left")).unwrap();
        fs::write(parent.join("left/model.safetensors"), "large").unwrap();
        let second = WorkFolder::create(runs.path()).unwrap();
        assert!(!parent.join("left").exists() && first.path().is_dir() && second.path().is_dir());
        drop((first, second));
        assert_eq!(fs::read_dir(parent).unwrap().count(), 0);
    }

    #[test]
    fn a_table_has_a_line_for_each_row_and_says_why_one_is_empty() {
        let row = |how: Way, scores: Option<Scores>, error: Option<&str>| MeasuredRow {
            count: 10,
            how,
            patches: 1,
            scores,
            suite: None,
            seconds: 1.25,
            error: error.map(str::to_owned),
        };
        let scores = Scores { efficacy: Share::of(9, 10), ..Scores::default() };
        let measured = Measured {
            model: "m".into(),
            method: Method::Memit,
            layers: vec![1, 2],
            why_layers: None,
            rendering: Rendering::Raw,
            facts: 10,
            known: 2,
            suite_name: None,
            suite_before: None,
            rows: vec![row(Way::Batched, Some(scores), None), row(Way::Lora, None, Some("it\u{1b} failed"))],
        };
        let told: Vec<String> = measured.rows.iter().map(in_a_sentence).collect();
        assert_eq!(told, ["10 facts, batched: efficacy 90 (60–98) %", "10 facts, lora: it\\u{1b} failed"]);
        let text = in_words(&measured);
        assert!(text.starts_with(
            "10 facts by memit in layers 1 and 2; 2 that the model already knows are left out\n"
        ));
        assert!(text.contains("    10 batched          90 (60–98)               –"), "{text}");
        assert!(text.contains("    10 lora        it") && !text.contains('\u{1b}'), "{text}");
    }
}
