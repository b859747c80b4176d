//! A place to run the binary in: a folder of its own, no settings of the machine, no network.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, Once, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The fixture checkpoint: a tiny Qwen3.5 with tokenizer, template, vision tower and MTP head.
pub(crate) fn checkpoint() -> PathBuf {
    let root = std::env::var_os("SPARKTUNE_FIXTURES")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), PathBuf::from);
    let set = if root.join("checkpoint").is_dir() { root } else { root.join("qwen35") };
    set.join("checkpoint").canonicalize().unwrap()
}

/// The tiny Gemma 3, with a tokenizer and template in the manner of Gemma's. `None` if other fixtures are
/// named that do not have it.
pub(crate) fn gemma3() -> Option<PathBuf> {
    let folder = checkpoint().join("../../others/gemma3");
    // That of the repository is always there.
    let is_missing = std::env::var_os("SPARKTUNE_FIXTURES").is_some() && !folder.is_dir();
    (!is_missing).then(|| folder.canonicalize().unwrap())
}

/// What an earlier program made: a run and what belongs to it.
pub(crate) fn old_fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run-261c35e")
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Fails the test, with everything that was said, unless the exit code is this one.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// The last line on standard output.
    #[track_caller]
    pub(crate) fn last(&self) -> Value {
        let last =
            self.out.lines().last().unwrap_or_else(|| panic!("nothing on stdout; stderr:\n{}", self.err));
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last}"))
    }

    /// The run folder that the last line names.
    #[track_caller]
    pub(crate) fn run_dir(&self) -> PathBuf {
        PathBuf::from(self.last()["run_dir"].as_str().unwrap_or_else(|| panic!("{self:?}")))
    }
}

/// How long a place is used at most.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// A working directory with the binary's whole world.
pub(crate) struct Place {
    folder: Arc<TempDir>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::for_at_most(LONGEST)
    }

    /// A place whose processes are killed after so long.
    fn for_at_most(limit: Duration) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        end_after(limit, &folder);
        Self { folder }
    }

    /// A place with a copy of the finished run that all tests share, and that run: of 40 chats and a line
    /// that is none, with a checkpoint every two steps.
    pub(crate) fn with_finished_run() -> (Self, PathBuf) {
        static RUNS: LazyLock<PathBuf> = LazyLock::new(|| {
            let place = Place::new();
            let chats = fs::read_to_string(place.chats(40)).unwrap();
            place.write("train.jsonl", chats + "{oops\n");
            let few = ["--rank", "4", "--max-steps", "6", "--save-steps", "2", "--mtp", "none"];
            let more = ["--max-rejected", "0.1", "--name", "first try"];
            done(&mut place.train(&[&few[..], &more].concat())).exits(0);
            // A temporary folder would stay behind: nothing ends a static.
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("finished-run");
            let _ = fs::remove_dir_all(&kept);
            copy(&place.join("runs"), &kept);
            kept
        });
        let place = Self::new();
        copy(&RUNS, &place.join("runs"));
        let mut entries = fs::read_dir(place.join("runs")).unwrap().map(|entry| entry.unwrap().path());
        let run = entries.find(|path| path.join("events").is_dir()).unwrap();
        (place, run)
    }

    /// A copy of the old run in `runs/`: a LoRA run on the demo's model that was stopped after step 9.
    pub(crate) fn old_run(&self) -> PathBuf {
        let run = self.join("runs/20261122T174755Z-old-lora-c691");
        for (name, bytes) in files(&old_fixture().join("run")) {
            let path = run.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        // In its plan the folder of the model is a word.
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/demo/model");
        let plan = fs::read_to_string(run.join("plan.toml")).unwrap();
        assert!(plan.contains("MODEL_FOLDER"));
        fs::write(run.join("plan.toml"), plan.replace("MODEL_FOLDER", model.to_str().unwrap())).unwrap();
        run
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// `train.jsonl` with this many short chats.
    pub(crate) fn chats(&self, count: usize) -> PathBuf {
        let lines: String = (0..count).map(|i| chat(i).to_string() + "\n").collect();
        self.write("train.jsonl", lines)
    }

    /// The binary with these arguments; nobody can be asked.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sparktune"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("SPARKTUNE_")
                || name.starts_with("HF_")
                || name.starts_with("XDG_")
                || name.to_lowercase().ends_with("_proxy")
            {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .current_dir(self.path())
            .env("HOME", self.path())
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn sparktune<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        done(&mut self.command(args))
    }

    /// `train --non-interactive --json` of the fixture checkpoint on `train.jsonl`, a few short steps, with
    /// more flags.
    pub(crate) fn train(&self, more: &[&str]) -> Command {
        self.train_model(&checkpoint(), more)
    }

    /// As [`train`](Self::train), of another model.
    pub(crate) fn train_model(&self, model: &Path, more: &[&str]) -> Command {
        let mut command = self.command(["train", "--non-interactive", "--json", "--device", "cpu"]);
        command.arg("--model").arg(model).args(["--data", "train.jsonl", "--pack-length", "128"]).args(more);
        command
            .env("SPARKTUNE_GRAD_ACCUM_STEPS", "2")
            .env("SPARKTUNE_SAMPLE_COUNT", "1")
            .env("SPARKTUNE_SAMPLE_MAX_TOKENS", "8");
        command
    }
}

/// Kills the processes in a folder that is still there after so long, so that a test whose program hangs
/// fails under its name, and does not keep all others from ending.
fn end_after(limit: Duration, folder: &Arc<TempDir>) {
    static WATCHED: Mutex<Vec<(Instant, String, Weak<TempDir>)>> = Mutex::new(Vec::new());
    static WATCH: Once = Once::new();
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    WATCHED.lock().unwrap().push((Instant::now() + limit, test, Arc::downgrade(folder)));
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let mut watched = WATCHED.lock().unwrap();
                watched.retain(|(_, _, folder)| folder.strong_count() > 0);
                let late = watched.iter().filter(|(until, ..)| *until < Instant::now());
                for (_, test, folder) in late {
                    let Some(folder) = folder.upgrade() else { continue };
                    for (process, command) in processes_in(folder.path()) {
                        eprintln!("{test} has hung: killing process {process}, {command}");
                        let _ = Command::new("kill").args(["-s", "KILL", &process]).status();
                    }
                }
            }
        });
    });
}

/// The processes that work in a folder, with their command lines.
fn processes_in(folder: &Path) -> Vec<(String, String)> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let working =
        all.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|at| at.starts_with(folder)));
    let named = |entry: fs::DirEntry| {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        (
            entry.file_name().to_string_lossy().into_owned(),
            String::from_utf8_lossy(&command).replace('\0', " "),
        )
    };
    working.map(named).collect()
}

#[test]
fn a_program_that_hangs_is_killed() {
    let place = Place::for_at_most(Duration::from_millis(100));
    let mut hanging = Command::new("sleep").arg("600").current_dir(place.path()).spawn().unwrap();
    assert_eq!(hanging.wait().unwrap().signal(), Some(9));
}

pub(crate) fn done(command: &mut Command) -> Done {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A short chat, different for each number.
pub(crate) fn chat(i: usize) -> Value {
    let words = ["river", "stone", "cloud", "lamp", "bread", "glass", "north", "seven"];
    let word = |n: usize| words[(i * 5 + n * 3 + i / 8) % words.len()];
    json!({"messages": [
        {"role": "user", "content": format!("Say {} and {} {i}.", word(0), word(1))},
        {"role": "assistant", "content": format!("{} {} {}, number {i}.", word(0), word(1), word(2)).repeat(1 + i % 3)},
    ]})
}

/// All events of a run, attempt by attempt.
#[track_caller]
pub(crate) fn events(run: &Path) -> Vec<Value> {
    events_if_there(run).unwrap_or_else(|| panic!("{} has no events", run.display()))
}

/// All events of a run, attempt by attempt; `None` if its folder does not exist, or no longer.
pub(crate) fn events_if_there(run: &Path) -> Option<Vec<Value>> {
    let files = fs::read_dir(run.join("events")).ok()?;
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut events = Vec::new();
    for file in files {
        let bytes = fs::read(file).ok()?;
        // A writer that was killed, or is at work, may leave the beginning of a line, or of a letter.
        let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        let whole = std::str::from_utf8(&bytes[..end]).unwrap();
        events.extend(whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
    }
    Some(events)
}

/// Whether a run has come to its planned end.
pub(crate) fn is_completed(events: &[Value]) -> bool {
    events.iter().any(|event| event["kind"] == "run_finished" && event["outcome"] == "completed")
}

/// (phase, step) → loss, of every attempt.
pub(crate) fn losses(run: &Path) -> Vec<(String, u64, f64)> {
    let mut phase = String::new();
    let mut losses = Vec::new();
    for event in events(run) {
        match event["kind"].as_str().unwrap() {
            "phase" => phase = event["phase"].as_str().unwrap().to_owned(),
            "step" => losses.push((
                phase.clone(),
                event["step"].as_u64().unwrap(),
                event["loss_nats"].as_f64().unwrap(),
            )),
            _ => {}
        }
    }
    losses
}

/// Every file below a folder with its bytes, in order of name.
pub(crate) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    fn walk(root: &Path, folder: &Path, all: &mut Vec<(PathBuf, Vec<u8>)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, all);
            } else {
                all.push((path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    let mut all = Vec::new();
    walk(folder, folder, &mut all);
    all.sort();
    all
}

/// The outputs of a run. The page about serving has the run's name, in whose place is a word.
pub(crate) fn outputs(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = files(&run.join("outputs"));
    let (_, page) = all.iter_mut().find(|(name, _)| name == Path::new("SERVE.md")).unwrap();
    let text = String::from_utf8(std::mem::take(page)).unwrap();
    *page = text.replace(run.file_name().unwrap().to_str().unwrap(), "RUN").into_bytes();
    all
}

/// A copy of a folder with the permissions of its files; nothing is at `to` yet.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// A run folder that has the plan and data of another and never ran.
pub(crate) fn fresh_copy(run: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for part in ["control", "checkpoints", "logs", "outputs", "events", "data"] {
        fs::create_dir(to.join(part)).unwrap();
    }
    for file in ["plan.toml", "provenance.json"] {
        fs::copy(run.join(file), to.join(file)).unwrap();
    }
    for entry in fs::read_dir(run.join("data")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join("data").join(path.file_name().unwrap())).unwrap();
    }
}
