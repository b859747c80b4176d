//! What can be done with a run while it trains and afterwards.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sparktune_runlog::{Lease, RunDir};

use crate::cluster::run_of;
use crate::kills::trainer_of;
use crate::sparktune::{Done, Place, copy, done, events};

/// Waits until `seen` gives something.
#[track_caller]
pub(crate) fn wait<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(600), "waited ten minutes for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_step(run: &Path) -> bool {
    events(run).iter().any(|event| event["kind"] == "step")
}

/// The lines of a pipe, which are read as they come.
struct Lines {
    so_far: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let so_far = Arc::new(Mutex::new(String::new()));
        let told = Arc::clone(&so_far);
        let reading = std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                told.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { so_far, reading }
    }

    fn has(&self, words: &str) -> bool {
        self.so_far.lock().unwrap().contains(words)
    }

    fn whole(self) -> String {
        self.reading.join().unwrap();
        std::mem::take(&mut *self.so_far.lock().unwrap())
    }
}

/// A command in the background whose output is read. Otherwise it would stand still when its pipe is full,
/// and then neither hear signals nor notice anything.
pub(crate) struct Heard {
    child: Child,
    out: Lines,
    err: Lines,
}

impl Heard {
    pub(crate) fn of(mut child: Child) -> Self {
        let (out, err) = (Lines::of(child.stdout.take().unwrap()), Lines::of(child.stderr.take().unwrap()));
        Self { child, out, err }
    }

    pub(crate) fn end(mut self) -> Done {
        let (out, err) = (self.out.whole(), self.err.whole());
        Done { code: self.child.wait().unwrap().code(), out, err }
    }
}

/// A training in the background that has done at least one step.
fn training(place: &Place, more: &[&str]) -> (Heard, PathBuf) {
    let (child, run) = unheard_training(place, more);
    (Heard::of(child), run)
}

/// Like [`training`], but nobody reads the output.
fn unheard_training(place: &Place, more: &[&str]) -> (Child, PathBuf) {
    place.chats(40);
    let flags = ["--rank", "4", "--mtp", "none", "--epochs", "9999", "--save-steps", "100000"];
    let child =
        place.train(&[&flags, more].concat()).env("SPARKTUNE_EVAL_EVERY_STEPS", "100000").spawn().unwrap();
    let run = wait("a step", || run_of(place).filter(|run| has_step(run)));
    (child, run)
}

fn end(child: Child) -> Done {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// Sends a signal to the process that trains a run.
fn signal_trainer(run: &Path, signal: Signal) {
    let process = trainer_of(run).unwrap();
    kill_process(Pid::from_raw(process as i32).unwrap(), signal).unwrap();
}

fn state(place: &Place) -> String {
    let rows = place.sparktune(["runs", "--json"]).exits(0).last();
    let row = &rows.as_array().unwrap()[0];
    format!("{} {}", row["state"].as_str().unwrap_or(""), row["outcome"].as_str().unwrap_or(""))
        .trim()
        .to_owned()
}

#[test]
fn stop_waits_for_the_checkpoint_and_the_launcher_says_stopped() {
    let place = Place::new();
    let (child, run) = training(&place, &["--max-steps", "1000000"]);
    assert_eq!(state(&place), "running");
    let result = place.sparktune(["stop", "--json"]).exits(0);
    assert_eq!(result.last()["outcome"], "stopped");
    assert!(result.err.contains("the trainer ends after step"), "{}", result.err);
    let launcher = child.end().exits(5);
    assert_eq!(launcher.last()["outcome"], "stopped");
    assert_eq!(state(&place), "finished stopped");
    assert_eq!(std::fs::read_dir(run.join("checkpoints")).unwrap().count(), 1);
    let again = place.sparktune(["stop"]).exits(2);
    assert!(again.err.contains("sparktune resume"), "{}", again.err);
}

#[test]
fn sigterm_at_the_launcher_is_a_stop_that_resume_continues_to_the_end() {
    // However long a busy machine takes between the first step and the signal, the last run is long enough.
    let in_time = [150, 1_500, 15_000].into_iter().any(is_stopped_and_continued);
    assert!(in_time, "no training was stopped before its end");
}

/// Stops a training of so many steps and continues it; false if it had ended before.
fn is_stopped_and_continued(steps: u64) -> bool {
    let place = Place::new();
    let (child, run) = training(&place, &["--max-steps", &steps.to_string()]);
    signal(&child.child, "TERM");
    let result = child.end();
    let stopped_at = result.last()["steps"].as_u64().unwrap();
    if stopped_at == steps {
        return false;
    }
    let result = result.exits(5);
    assert!(stopped_at < steps && result.err.contains("stopping"), "{}", result.err);
    let resumed = place.sparktune(["resume", "--json"]).exits(0);
    assert_eq!(
        (resumed.last()["outcome"].as_str(), resumed.last()["steps"].as_u64()),
        (Some("completed"), Some(steps))
    );
    let started: Vec<_> = events(&run).into_iter().filter(|event| event["kind"] == "run_started").collect();
    assert_eq!(started[1]["resumed_from_step"].as_u64(), Some(stopped_at));
    assert!(!resumed.out.lines().next().unwrap().contains("\"attempt\":1"), "only the new attempt is told");
    // Once more: finished is finished.
    let again = place.sparktune(["resume", "--json"]).exits(0);
    assert!(again.err.contains("nothing to resume"), "{}", again.err);
    assert_eq!(again.last()["outcome"], "completed");
    true
}

#[test]
fn a_signal_at_the_trainer_itself_stops_it_the_same_way() {
    let place = Place::new();
    let (child, run) = training(&place, &["--max-steps", "1000000"]);
    signal_trainer(&run, Signal::INT);
    assert_eq!(child.end().exits(5).last()["outcome"], "stopped");
}

/// This holds whether or not both are counted before anybody looks.
#[test]
fn two_signals_at_once_detach_from_a_trainer_that_ends_all_the_same() {
    let place = Place::new();
    let (child, run) = training(&place, &["--max-steps", "1000000"]);
    // Until the launcher follows the trainer, a second signal would end it.
    wait("a launcher that follows", || child.out.has("run_started").then_some(()));
    // Its steps are so short that it could end between the two.
    signal_trainer(&run, Signal::STOP);
    for signal in [Signal::INT, Signal::TERM] {
        kill_process(Pid::from_child(&child.child), signal).unwrap();
    }
    let left = child.end().exits(5);
    assert!(left.err.contains("detached"), "{}", left.err);
    signal_trainer(&run, Signal::CONT);
    let run = RunDir::open(run).unwrap();
    wait("the end of the trainer", || (!Lease::is_held(&run).unwrap()).then_some(()));
    assert_eq!(state(&place), "finished stopped");
}

/// A step takes some milliseconds here, so ten of them are less than the shortest silence that is told.
#[test]
fn a_trainer_that_stands_still_is_told_by_everyone_and_goes_on_when_it_is_continued() {
    let place = Place::new();
    let (child, run) = training(&place, &["--max-steps", "1000000"]);
    wait("some steps", || {
        (events(&run).iter().filter(|event| event["kind"] == "step").count() > 5).then_some(())
    });
    signal_trainer(&run, Signal::STOP);
    let watcher = Heard::of(place.command(["watch", "latest", "--plain"]).spawn().unwrap());
    wait("the stall", || (state(&place) == "stalled").then_some(()));
    let stop = Heard::of(place.command(["stop"]).spawn().unwrap());
    wait("the request", || std::fs::read_dir(run.join("control")).unwrap().next().map(drop));
    // The trainer is continued only when both commands have said what they should about it.
    for (told, words) in [
        (&stop.err, "has logged nothing for"),
        (&stop.err, "kill -CONT"),
        (&watcher.err, "stalled; the trainer is alive"),
    ] {
        wait(words, || told.has(words).then_some(()));
    }
    signal_trainer(&run, Signal::CONT);
    let stopped = stop.end().exits(0);
    assert!(stopped.err.contains("ends after step"), "{}", stopped.err);
    watcher.end().exits(0);
    assert_eq!(child.end().exits(5).last()["outcome"], "stopped");
    let losses: Vec<_> =
        events(&run).iter().filter(|e| e["kind"] == "step").map(|e| e["loss_nats"].clone()).collect();
    assert!(losses.len() > 5 && losses.iter().all(serde_json::Value::is_number));
}

#[test]
fn a_second_signal_detaches_from_the_trainer() {
    let place = Place::new();
    let (child, run) = training(&place, &["--max-steps", "1000000"]);
    // A trainer that is busy for long: the user does not want to wait.
    signal_trainer(&run, Signal::STOP);
    signal(&child.child, "INT");
    wait("the request", || std::fs::read_dir(run.join("control")).unwrap().next().map(drop));
    signal(&child.child, "INT");
    let left = child.end().exits(5);
    assert!(left.err.contains("detached") && left.err.contains("sparktune watch"), "{}", left.err);
    assert_eq!(left.last()["outcome"], "running");
    signal_trainer(&run, Signal::CONT);
    wait("the trainer's end", || (state(&place) == "finished stopped").then_some(()));
}

#[test]
fn a_second_trainer_is_refused_and_the_first_goes_on() {
    let place = Place::new();
    let (child, run) = training(&place, &["--max-steps", "1000000"]);
    let second = done(place.command(["trainer"]).arg(&run)).exits(2);
    assert!(
        second.err.contains("already being trained") && second.err.contains("sparktune stop"),
        "{}",
        second.err
    );
    let resumed = place.sparktune(["resume", "latest"]).exits(2);
    assert!(resumed.err.contains("already being trained"), "{}", resumed.err);
    let exported = place.sparktune(["export", "latest"]).exits(2);
    assert!(exported.err.contains("already being trained"), "{}", exported.err);
    assert_eq!(state(&place), "running");
    place.sparktune(["stop"]).exits(0);
    child.end().exits(5);
    assert_eq!(std::fs::read_dir(run.join("events")).unwrap().count(), 1, "no second attempt was opened");
}

#[test]
fn the_run_outlives_its_launcher_and_anyone_may_watch_or_leave() {
    let place = Place::new();
    let (mut child, run) = unheard_training(&place, &["--max-steps", "80"]);
    signal(&child, "HUP");
    // Under `nohup` the launcher does not hear that, but notices that nobody reads.
    drop(child.stdout.take());
    child.wait().unwrap();
    let mut leaver = place.command(["watch"]).spawn().unwrap();
    leaver.kill().unwrap();
    leaver.wait().unwrap();
    let watched = place.sparktune(["watch", "--json"]).exits(0);
    let last: serde_json::Value = serde_json::from_str(watched.out.lines().last().unwrap()).unwrap();
    assert_eq!((last["kind"].as_str(), last["outcome"].as_str()), (Some("run_finished"), Some("completed")));
    assert_eq!(watched.out.lines().count(), events(&run).len());
    let plain = place.sparktune(["watch", "--plain"]).exits(0);
    assert!(plain.out.contains(" step ") && plain.err.contains("completed, 80 steps"), "{}", plain.err);
}

#[test]
fn runs_are_listed_and_called_by_any_unique_name() {
    let (place, run) = Place::with_finished_run();
    let name = run.file_name().unwrap().to_str().unwrap();
    copy(&run, &run.with_file_name(name.replace("first-try", "alpha")));
    std::fs::rename(&run, run.with_file_name(name.replace("first-try", "beta"))).unwrap();
    let table = place.sparktune(["runs"]).exits(0).out;
    assert!(
        table.contains("alpha-lora") && table.contains("beta-lora") && table.contains("completed"),
        "{table}"
    );
    let rows = place.sparktune(["runs", "--json"]).exits(0).last();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    let both = place.sparktune(["watch", "2"]).exits(2);
    assert!(both.err.contains("matches 2 runs"), "{}", both.err);
    place.sparktune(["watch", "alpha"]).exits(0);
    let unknown = place.sparktune(["watch", "gamma"]).exits(2);
    assert!(unknown.err.contains("gamma") && unknown.err.contains("sparktune runs"), "{}", unknown.err);
    for old in 0..50 {
        std::fs::create_dir_all(place.join(&format!("runs/20200101T000000Z-old-{old}/events"))).unwrap();
    }
    let newest = place.sparktune(["runs"]).exits(0);
    assert!(newest.out.lines().nth(1).unwrap().contains("beta-lora"), "the newest is first: {}", newest.out);
    assert!(newest.err.contains("2 older runs not shown") && newest.out.lines().count() == 51, "{newest:?}");
    assert_eq!(place.sparktune(["runs", "--all"]).exits(0).out.lines().count(), 53);
}

#[test]
fn report_draws_a_run_as_one_page_that_only_its_owner_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let (place, run) = Place::with_finished_run();
    let result = place.sparktune(["report"]).exits(0);
    let page = run.canonicalize().unwrap().join("report.html");
    assert_eq!(Path::new(result.out.trim_end()), page);
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // So is all the rest: checkpoints, outputs and the data say what was learnt from.
    let open = Command::new("find").arg(&run).args(["-perm", "/077"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&open.stdout), "");
    let text = std::fs::read_to_string(&page).unwrap();
    for part in
        ["completed", "Training loss from step 1 to 6", "Every value with its reason", "train_tokens_blake3"]
    {
        assert!(text.contains(part), "{part} is not on the page");
    }
    let written = place.sparktune(["report", "latest", "--output", "page.html", "--json"]).exits(0).last();
    assert_eq!(
        written["report"].as_str().map(Path::new),
        Some(&*place.join("page.html").canonicalize().unwrap())
    );
    assert_eq!(written["bytes"], place.join("page.html").metadata().unwrap().len());
    let nowhere = place.sparktune(["report", "latest", "--output", "no/page.html"]).exits(2);
    assert!(nowhere.err.contains("no/page.html"), "{}", nowhere.err);
    // An earlier page is replaced, and a page of someone else's is not.
    place.sparktune(["report", "latest", "--output", "page.html"]).exits(0);
    place.write("mine.html", "<!DOCTYPE html><title>mine</title>");
    let taken = place.sparktune(["report", "latest", "--output", "mine.html"]).exits(2);
    assert!(
        taken.err.contains("mine.html exists and is another kind of file, so it is not replaced"),
        "{}",
        taken.err
    );
}

#[test]
fn export_writes_the_same_outputs_again() {
    let (place, run) = Place::with_finished_run();
    let merged = || std::fs::read(run.join("outputs/merged/model.safetensors")).unwrap();
    let before = merged();
    std::fs::remove_dir_all(run.join("outputs/merged")).unwrap();
    let result = place.sparktune(["export", "latest", "--json"]).exits(0).last();
    assert!(result["outputs"].as_array().unwrap().len() >= 2, "{result}");
    assert!(merged() == before);
}

#[test]
fn a_named_checkpoint_is_exported_or_resumed_and_later_ones_are_kept() {
    let (place, run) = Place::with_finished_run();
    for command in ["export", "resume"] {
        let refused = place.sparktune([command, "latest", "--checkpoint", "5"]).exits(2);
        assert!(refused.err.contains("choose one of these steps: 2, 4, 6"), "{}", refused.err);
    }
    assert!(
        place.sparktune(["export", "latest", "--checkpoint", "4", "--best"]).exits(2).err.contains("--best")
    );
    place.sparktune(["export", "latest", "--checkpoint", "4"]).exits(0);
    assert!(run.join("outputs/step-000004/merged/model.safetensors").is_file());

    let merged = || std::fs::read(run.join("outputs/merged/model.safetensors")).unwrap();
    let before = merged();
    let resumed = place.sparktune(["resume", "latest", "--checkpoint", "4", "--json"]).exits(0);
    assert!(resumed.err.contains("later-step-000006"), "{}", resumed.err);
    assert!(run.join("checkpoints/later-step-000006/manifest.json").is_file());
    assert!(merged() == before, "the same steps give the same weights");
    let summary = resumed.last();
    assert_eq!((summary["outcome"].as_str(), summary["steps"].as_u64()), (Some("completed"), Some(6)));
    let best = summary["best_step"].as_u64().unwrap();
    assert!([2, 4, 6].contains(&best) && summary["best_eval"].is_f64(), "{summary}");
    assert!(summary["base_eval"].as_f64().unwrap() > 0.0 && summary["warnings"].is_array(), "{summary}");
    let rows = place.sparktune(["runs", "--json"]).exits(0).last();
    assert_eq!(
        (rows[0]["best_step"].as_u64(), &rows[0]["best_eval_nats"]),
        (Some(best), &summary["best_eval"])
    );
}

#[test]
fn without_any_run_the_next_step_is_named() {
    let place = Place::new();
    for command in ["watch", "resume", "stop"] {
        let result = place.sparktune([command]).exits(2);
        assert!(result.err.contains("sparktune train"), "{}", result.err);
    }
}

#[test]
fn runs_are_found_by_their_words_and_deleted_only_with_yes() {
    let (place, run) = Place::with_finished_run();
    let runs_dir = run.parent().unwrap().to_str().unwrap().to_owned();
    let name = run.file_name().unwrap().to_str().unwrap().to_owned();
    let runs = |args: &[&str]| place.sparktune([&["runs", "--runs-dir", &runs_dir], args].concat());
    let listed = runs(&["--matching", "COMPLETED lora"]).exits(0).out;
    assert!(listed.contains(&name) && listed.contains("RANK"), "{listed}");
    assert!(runs(&["--matching", "no-such-word"]).exits(0).err.contains("no run has these words"));

    let own = format!(".tokens-{}", rustix::process::geteuid().as_raw());
    let [own_cache, of_another] = [&*own, ".tokens-backup"].map(|name| run.parent().unwrap().join(name));
    for folder in [&own_cache, &of_another] {
        std::fs::create_dir_all(folder.join("abc")).unwrap();
        std::fs::write(folder.join("abc/file"), [0; 1000]).unwrap();
    }
    let clean = runs(&["clean"]).exits(0);
    assert!(
        clean.out.contains(&format!("{own}: tokenised data, 1.0 kB")) && clean.err.contains("--yes"),
        "{clean:?}"
    );
    assert!(own_cache.exists());
    runs(&["clean", "--yes"]).exits(0);
    assert!(!own_cache.exists() && of_another.exists(), "a folder of the user is no cache");

    let asked = runs(&["delete", &name]).exits(2);
    assert!(asked.out.contains(&name) && asked.err.contains("--yes") && run.exists(), "{asked:?}");
    runs(&["delete", &name, "no-such-run", "--yes"]).exits(2);
    assert!(run.exists(), "nothing is deleted unless all can be");
    let deleted = runs(&["delete", &name, "--yes"]).exits(0).out;
    assert!(deleted.contains("was deleted; this freed") && !run.exists(), "{deleted}");
}

#[test]
fn a_complete_run_is_trained_longer_and_a_command_of_the_user_hears_of_its_end() {
    let (place, run) = Place::with_finished_run();
    let hook = "echo $SPARKTUNE_RUN_STATE > \"$SPARKTUNE_RUN_FOLDER/ended\"; exit 7";
    let resumed =
        place.sparktune(["resume", "latest", "--max-steps", "8", "--json", "--on-end", hook]).exits(0);
    assert!(resumed.err.contains("had 6 steps and now has 8; it continues from step 6"), "{}", resumed.err);
    let summary = resumed.last();
    assert_eq!((summary["outcome"].as_str(), summary["steps"].as_u64()), (Some("completed"), Some(8)));
    assert_eq!(std::fs::read_to_string(run.join("ended")).unwrap(), "completed\n");
    let log = std::fs::read_to_string(run.join("logs/on-end-0002.log")).unwrap();
    assert!(log.contains("the command failed (exit status: 7)"), "{log}");
    let plan = std::fs::read_to_string(run.join("plan.toml")).unwrap();
    assert!(plan.contains("[[duration.before]]") && plan.contains("max_steps = 8"), "{plan}");

    let done = place.sparktune(["resume", "latest"]).exits(0);
    assert!(done.err.contains("--epochs N` trains it longer"), "{}", done.err);
    let less = place.sparktune(["resume", "latest", "--max-steps", "3"]).exits(2);
    assert!(less.err.contains("has trained 8 steps already"), "{}", less.err);
}

#[test]
fn a_command_of_the_user_hears_of_an_early_failure_and_not_of_a_run_that_another_process_trains() {
    let (place, run) = Place::with_finished_run();
    let plan = std::fs::read_to_string(run.join("plan.toml")).unwrap();
    let trainer = || {
        let mut command = place.command(["trainer", run.to_str().unwrap()]);
        done(command.env("SPARKTUNE_ON_END", "echo $SPARKTUNE_RUN_STATE >> ended"))
    };
    let ended = || std::fs::read_to_string(run.join("ended")).unwrap_or_default();
    let damage = || std::fs::write(run.join("plan.toml"), "no plan").unwrap();

    let folder = RunDir::open(&run).unwrap();
    let lease = Lease::acquire(&folder).unwrap();
    // The trainer is refused at once, or fails even before.
    let refused = trainer().exits(2);
    assert!(refused.err.contains("being trained") || refused.err.contains("process"), "{}", refused.err);
    damage();
    trainer().exits(2);
    assert_eq!(ended(), "");
    drop(lease);
    trainer().exits(2);
    assert_eq!(ended(), "failed\n");
    std::fs::write(run.join("plan.toml"), plan).unwrap();
    trainer().exits(0);
    assert_eq!(ended(), "failed\ncompleted\n");
}

#[test]
fn a_training_that_does_not_begin_has_a_result_too() {
    let (place, run) = Place::with_finished_run();
    let runs_dir = ["--runs-dir", run.parent().unwrap().to_str().unwrap()];
    let failed = |args: &[&str]| {
        let result = place.sparktune([args, &["--json"], &runs_dir].concat());
        assert_ne!(result.code, Some(0), "{result:?}");
        let summary = result.last();
        assert_eq!(summary["outcome"], "failed", "{summary}");
        assert!(summary["error"].is_string(), "{summary}");
        summary["run_dir"].as_str().map(PathBuf::from)
    };
    assert_eq!(failed(&["resume", "no-such-run"]), None);
    // The run itself did not fail.
    assert_eq!(failed(&["resume", "latest", "--checkpoint", "99"]), None);
    assert_eq!(failed(&["head", "no-such-run"]), None);
}

#[test]
fn a_training_after_another_is_checked_at_once_and_starts_when_that_has_ended() {
    let place = Place::new();
    let (first, run) = training(&place, &["--max-steps", "1000000"]);
    let name = run.file_name().unwrap().to_str().unwrap().to_owned();
    let after =
        |more: &[&str]| place.train(&[&["--after", &name, "--mtp", "none", "--rank", "4"], more].concat());
    // A mistake is told while the first one still trains.
    let mistaken = done(&mut after(&["--data", "no-such-file.jsonl"])).exits(2);
    assert!(mistaken.err.contains("no-such-file.jsonl") && has_step(&run), "{}", mistaken.err);
    let mut second = after(&["--max-steps", "1", "--name", "second"]).spawn().unwrap();
    let mut said = BufReader::new(second.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = said.find(|line| line.contains("waiting for the end of")).unwrap();
    assert!(waits.contains(&name), "{waits}");
    assert!(second.try_wait().unwrap().is_none());
    place.sparktune(["stop", &name]).exits(0);
    first.end().exits(5);
    let rest: Vec<String> = said.collect();
    let ended = end(second);
    assert_eq!(ended.code, Some(0), "{rest:?}");
    let ends = events(&run).last().unwrap()["time_us"].as_u64().unwrap();
    let starts = events(&ended.run_dir())[0]["time_us"].as_u64().unwrap();
    assert!(ended.run_dir().to_str().unwrap().contains("second") && starts > ends, "{starts} {ends}");
}
