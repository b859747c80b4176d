//! One run folder: the paths of its parts, and the two records that are written once.
//!
//! Folders are 0700 and files 0600: a run holds the user's training data.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::files::{is_plain_name, private_file, private_folder, sync, write_shared_and_sync};
use sparktune_base::regular_file::read_regular;

use crate::error::{Doing, Error, Result};

/// The most bytes that a record has.
const MOST_BYTES: u64 = 64 << 20;

/// The file with the names of the runs that a run goes on with, one on each line.
pub(crate) const EARLIER: &str = "continues";
/// The name of the note about models.
const MODELS: &str = "models.json";

/// The folders of a run's models on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Models {
    /// The base model.
    pub base: PathBuf,
    /// The model whose MTP head is used, if that is another.
    pub head: Option<PathBuf>,
}

/// An existing run folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Opens an existing run folder.
    ///
    /// # Errors
    /// [`Error::NotARun`] when the folder is something else, [`Error::Io`] when it cannot be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        fs::metadata(&path).doing("open", &path)?;
        match fs::metadata(path.join("events")) {
            Ok(events) if events.is_dir() => Ok(RunDir { path }),
            // It is not visible whether another user's folder is a run.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(e).doing("open", path),
            _ => Err(Error::NotARun { path }),
        }
    }

    /// Returns the run whose outputs have this folder, such as `RUN/outputs/merged` or, of a checkpoint,
    /// `RUN/outputs/best/merged`.
    pub fn of_output(folder: &Path) -> Option<Self> {
        // By its name and by its real place: a link may stand for the outputs, or lead to them.
        let named = std::path::absolute(folder).ok();
        let real = folder.canonicalize().ok();
        let run = |folder: PathBuf| {
            let outputs = folder.ancestors().skip(1).take(2).find(|folder| folder.ends_with("outputs"))?;
            RunDir::open(outputs.parent()?).ok().filter(|run| run.plan().is_file())
        };
        [named, real].into_iter().flatten().find_map(run)
    }

    /// Creates the value for a folder that may be a run, but that this user may not read.
    pub(crate) fn unseen(path: PathBuf) -> Self {
        RunDir { path }
    }

    /// Creates the folder itself and its parts; fails when the folder exists.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        let builder = private_folder();
        builder.create(&path).doing("create", &path)?;
        let run = RunDir { path };
        for part in run.parts() {
            builder.create(&part).doing("create", &part)?;
        }
        Ok(run)
    }

    /// Returns the folders that a new run has, in the order in which they are made: `events` comes last,
    /// because its presence makes the folder a run.
    pub(crate) fn parts(&self) -> [PathBuf; 6] {
        [self.control(), self.data(), self.checkpoints(), self.logs(), self.outputs(), self.events()]
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder's own name, which is the name of the run for users.
    pub fn name(&self) -> String {
        // A relative `.` has no file name, but its absolute form has one.
        let absolute = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        absolute
            .file_name()
            .map_or_else(|| absolute.display().to_string(), |n| n.to_string_lossy().into_owned())
    }

    /// Returns `events/`.
    pub fn events(&self) -> PathBuf {
        self.path.join("events")
    }
    /// Returns the event file of an attempt, `events/0001.jsonl`.
    pub fn event_file(&self, attempt: u32) -> PathBuf {
        self.events().join(format!("{attempt:04}.jsonl"))
    }
    /// Returns `lease.lock`.
    pub fn lease_lock(&self) -> PathBuf {
        self.path.join("lease.lock")
    }
    /// Returns `control/`.
    pub fn control(&self) -> PathBuf {
        self.path.join("control")
    }
    /// Returns `data/`.
    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }
    /// Returns `checkpoints/`.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }
    /// Returns `logs/`.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }
    /// Returns the trainer's log of an attempt, `logs/trainer-0001.log`.
    pub fn trainer_log(&self, attempt: u32) -> PathBuf {
        self.logs().join(format!("trainer-{attempt:04}.log"))
    }
    /// Returns the crash report of an attempt, `logs/crash-0001.txt`.
    pub fn crash_report(&self, attempt: u32) -> PathBuf {
        self.logs().join(format!("crash-{attempt:04}.txt"))
    }
    /// Returns `outputs/`.
    pub fn outputs(&self) -> PathBuf {
        self.path.join("outputs")
    }
    /// Returns `tensorboard/`, which the first attempt that writes into it creates.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tensorboard")
    }
    /// Returns `plan.toml`.
    pub fn plan(&self) -> PathBuf {
        self.path.join("plan.toml")
    }
    /// Returns `data/prompts.json`, which exists if the user has prompts that are answered at each
    /// evaluation: the token ids of each.
    pub fn prompts(&self) -> PathBuf {
        self.data().join("prompts.json")
    }
    /// Returns `chat_template.jinja`, which exists if the run uses another template than its model's own.
    pub fn chat_template(&self) -> PathBuf {
        self.path.join("chat_template.jinja")
    }
    /// Returns `parent/`, the copy of the adapter that the run started from and the note about its parent. It
    /// exists if the run did not start from a published model.
    pub fn parent(&self) -> PathBuf {
        self.path.join("parent")
    }
    /// Returns `continues`, which exists if the run was led from other machines before.
    pub fn earlier_runs(&self) -> PathBuf {
        self.path.join(EARLIER)
    }
    /// Returns `provenance.json`.
    pub fn provenance(&self) -> PathBuf {
        self.path.join("provenance.json")
    }

    /// Returns the attempts that have an event file, ascending. Empty for a run that never started.
    ///
    /// # Errors
    /// [`Error::Io`] when `events/` cannot be listed.
    pub fn attempts(&self) -> Result<Vec<u32>> {
        let mut attempts = attempts_in(&self.events()).doing("list", self.events())?;
        attempts.sort_unstable();
        Ok(attempts)
    }

    /// Returns the number of the next attempt.
    ///
    /// # Errors
    /// [`Error::Io`] when `events/` cannot be listed.
    pub fn next_attempt(&self) -> Result<u32> {
        Ok(self.attempts()?.last().map_or(1, |last| last + 1))
    }

    /// Writes `plan.toml`, once.
    ///
    /// # Errors
    /// [`Error::AlreadyWritten`] when there is one.
    pub fn write_plan(&self, toml: &str) -> Result<()> {
        write_once(&self.plan(), toml.as_bytes())
    }

    /// Reads `plan.toml`.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read.
    pub fn read_plan(&self) -> Result<String> {
        let text = read_regular(&self.plan(), MOST_BYTES)
            .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
        text.doing("read", self.plan())
    }

    /// Notes where the models are on this machine, in `models.json`: the plan of a rank's run was made on
    /// another one.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be written.
    pub fn note_models(&self, models: &Models) -> Result<()> {
        let path = self.path.join(MODELS);
        // A path that is not UTF-8 cannot be noted.
        let text = serde_json::to_vec(models).map_err(io::Error::other).doing("write", &path)?;
        write_shared_and_sync(&path, text).doing("write", path)
    }

    /// Returns where the models are on this machine, if that was noted and they are still there. The folders
    /// that the plan names may have others here.
    pub fn models(&self) -> Option<Models> {
        let text = read_regular(&self.path.join(MODELS), MOST_BYTES).ok()?;
        serde_json::from_slice::<Models>(&text).ok().filter(|models| models.base.is_dir())
    }

    /// Writes `provenance.json`, once.
    ///
    /// # Errors
    /// [`Error::AlreadyWritten`] when there is one.
    pub fn write_provenance(&self, provenance: &impl serde::Serialize) -> Result<()> {
        let path = self.provenance();
        let mut json = serde_json::to_vec_pretty(provenance)
            .map_err(|e| Error::io("write", &path, io::Error::other(e)))?;
        json.push(b'\n');
        write_once(&path, &json)
    }

    /// Reads `provenance.json`.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read or has another structure.
    pub fn read_provenance<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        let path = self.provenance();
        let json = read_regular(&path, MOST_BYTES).doing("read", &path)?;
        serde_json::from_slice(&json).map_err(|e| Error::io("read", path, io::Error::other(e)))
    }

    /// Returns the size of all files inside in bytes. Files that vanish meanwhile count as 0.
    pub fn size_bytes(&self) -> u64 {
        Self::size_of(&self.path)
    }

    pub(crate) fn size_of(folder: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(folder) else { return 0 };
        entries
            .flatten()
            .map(|entry| match entry.metadata() {
                Ok(meta) if meta.is_dir() => Self::size_of(&entry.path()),
                Ok(meta) => meta.len(),
                Err(_) => 0,
            })
            .sum()
    }
}

/// Returns the name of the run of which this is the hidden folder of a rank.
pub(crate) fn run_of(folder: &Path) -> Option<&str> {
    let (rank, run) = folder.file_name()?.to_str()?.strip_prefix(".rank-")?.split_once("-of-")?;
    (is_plain_name(run) && rank.parse::<usize>().is_ok()).then_some(run)
}

fn write_once(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = match private_file().create_new(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            return Err(Error::AlreadyWritten { path: path.to_owned() });
        }
        opened => opened.doing("create", path)?,
    };
    if let Err(e) = file.write_all(bytes).and_then(|()| file.sync_all()) {
        // An incomplete record must not look like a complete one.
        let _ = fs::remove_file(path);
        return Err(Error::io("write", path, e));
    }
    let folder = path.parent().expect("a record lies in its run folder");
    sync(folder).doing("flush to disk", folder)
}

/// Attempts that have a file in a folder of events, in no order.
pub(crate) fn attempts_in(events: &Path) -> io::Result<Vec<u32>> {
    let mut attempts = Vec::new();
    for entry in fs::read_dir(events)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|n| n.strip_suffix(".jsonl")).and_then(|n| n.parse().ok());
        attempts.extend(number.filter(|n: &u32| *n > 0));
    }
    Ok(attempts)
}

/// Returns `BYTES` random bytes in hexadecimal, to distinguish runs or requests of the same moment.
pub(crate) fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0_u8; BYTES];
    // The kernel's generator is ready long before a trainer starts. If it fails, the callers' `create_new`
    // still prevents duplicate names.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn records_are_written_once_and_read_back() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        run.write_plan("seed = 1\n").unwrap();
        assert!(matches!(run.write_plan("seed = 2\n"), Err(Error::AlreadyWritten { .. })));
        assert_eq!(run.read_plan().unwrap(), "seed = 1\n");
        run.write_provenance(&serde_json::json!({"commit": "abc"})).unwrap();
        let back: serde_json::Value = run.read_provenance().unwrap();
        assert_eq!(back["commit"], "abc");
        assert_eq!(fs::metadata(run.plan()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(run.path()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_folder_of_outputs_leads_to_its_run_also_by_links() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        let [disk, link] = ["disk", "link"].map(|name| root.path().join(name));
        fs::create_dir_all(run.outputs().join("best/merged")).unwrap();
        fs::create_dir_all(disk.join("merged")).unwrap();
        std::os::unix::fs::symlink(disk.join("merged"), run.outputs().join("merged")).unwrap();
        std::os::unix::fs::symlink(run.outputs().join("best/merged"), &link).unwrap();
        let of = |folder: &Path| RunDir::of_output(folder).map(|found| found.name());
        assert_eq!(of(&link), None, "without a plan it is no run that was started");
        run.write_plan("seed = 1\n").unwrap();
        for folder in [run.outputs().join("merged"), run.outputs().join("best/merged"), link] {
            assert_eq!(of(&folder).as_deref(), Some("r"), "{}", folder.display());
        }
        for folder in [run.path(), &run.outputs(), &run.outputs().join("best/merged/x"), &disk.join("merged")]
        {
            assert_eq!(of(folder), None, "{}", folder.display());
        }
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_an_error_and_nobody_waits_for_its_beginning() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        let step = run.checkpoints().join("step-000001");
        fs::create_dir(&step).unwrap();
        let manifest = step.join("manifest.json");
        let pipes = [run.plan(), run.provenance(), run.lease_lock(), run.event_file(1), manifest];
        for path in &pipes {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        }
        let told = [
            run.read_plan().unwrap_err().to_string(),
            run.read_provenance::<serde_json::Value>().unwrap_err().to_string(),
            crate::Lease::is_held(&run).unwrap_err().to_string(),
            crate::RunView::replay(&run).unwrap_err().to_string(),
        ];
        for text in told {
            assert!(text.contains("it is a pipe"), "{text}");
        }
        assert_eq!(crate::Lease::holder_of(&run), crate::Holder::default());
        let found = crate::Checkpoints::new(&run).newest_valid().unwrap();
        assert!(found.checkpoint.is_none());
    }

    #[test]
    fn a_folder_without_events_is_no_run() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(RunDir::open(root.path()), Err(Error::NotARun { .. })));
        assert!(matches!(RunDir::open(root.path().join("no")), Err(Error::Io { .. })));
    }

    #[test]
    fn attempts_are_counted_from_the_event_files() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path().join("r")).unwrap();
        assert_eq!(run.next_attempt().unwrap(), 1);
        for name in ["0001.jsonl", "0010.jsonl", "notes.txt", "0002.jsonl~", "0000.jsonl"] {
            fs::write(run.events().join(name), "").unwrap();
        }
        assert_eq!(run.attempts().unwrap(), [1, 10]);
        assert_eq!(run.next_attempt().unwrap(), 11);
    }
}
