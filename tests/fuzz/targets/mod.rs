//! What strangers can feed to the program: one function for each kind of bytes. Each calls the program's own
//! public functions and panics where one of their promises does not hold.
//!
//! Promises that all targets keep to: the same input gives the same answer; an error is text of bounded
//! length; what was read is bounded by what was given. A target adds its own: a round trip where there is a
//! writer, ids within the vocabulary, ranges within the text. Memory and time are bounded by whoever runs a
//! target: `main.rs` by a limit of the system, `run.sh` by libFuzzer's.
//!
//! A target that needs several files takes them from one input, whose parts a line of `%%%%` separates.

mod cluster;
mod data;
mod hub;
mod judged;
mod model;
mod ndp;
mod packets;
pub(crate) mod panics;
mod plans;
mod results;
mod runs;
mod token_files;

use std::cell::OnceCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use sparktune_base::escape::is_active;
use tempfile::TempDir;

/// A function that is fed with bytes.
pub(crate) struct Target {
    /// The name, which is also that of its folder of the corpus.
    pub name: &'static str,
    /// Reads the bytes and panics where a promise does not hold.
    pub run: fn(&[u8]),
}

/// All targets but those that need the tensor library.
pub(crate) const TARGETS: &[Target] = &[
    Target { name: "adapter_config", run: model::adapter_config },
    Target { name: "checkpoint", run: runs::checkpoint },
    Target { name: "cluster_beacons", run: cluster::beacons },
    Target { name: "cluster_judged", run: judged::judged },
    Target { name: "cluster_messages", run: cluster::messages },
    Target { name: "cluster_notices", run: cluster::notices },
    Target { name: "cluster_parts", run: cluster::parts },
    Target { name: "cluster_sums", run: cluster::sums },
    Target { name: "cluster_words", run: cluster::words },
    Target { name: "compressed", run: data::compressed },
    Target { name: "control", run: runs::control },
    Target { name: "events", run: runs::events },
    Target { name: "hub_answers", run: hub::answers },
    Target { name: "hub_data_set", run: hub::data_set },
    Target { name: "hub_model", run: hub::model },
    Target { name: "launchers", run: cluster::launchers },
    Target { name: "lines", run: data::lines },
    Target { name: "model_config", run: model::config },
    Target { name: "model_files", run: model::files },
    Target { name: "names", run: plans::names },
    Target { name: "ndp_addresses", run: ndp::addresses },
    Target { name: "ndp_frames", run: ndp::frames },
    Target { name: "ndp_spool", run: ndp::spool },
    Target { name: "packets", run: packets::packets },
    Target { name: "parquet", run: data::parquet },
    Target { name: "plan", run: plans::plan },
    Target { name: "preset", run: plans::preset },
    Target { name: "results", run: results::results },
    Target { name: "run_data", run: runs::data },
    Target { name: "suite", run: plans::suite },
    Target { name: "tables", run: data::tables },
    Target { name: "template", run: model::template },
    Target { name: "texts", run: data::texts },
    Target { name: "token_file", run: token_files::v2 },
    Target { name: "token_lines", run: token_files::lines },
    Target { name: "token_packets", run: token_files::v1 },
    Target { name: "tokenizer", run: model::tokenizer },
];

/// The longest input that is tried. Limits of the program that lie above it have tests of their own.
pub(crate) const LONGEST: usize = 64 << 10;

/// Splits an input into its parts; missing ones are empty.
pub(crate) fn parts<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    const BORDER: &[u8] = b"\n%%%%\n";
    let mut rest = Some(input);
    std::array::from_fn(|i| {
        let whole = rest.take().unwrap_or_default();
        let border = whole.windows(BORDER.len()).position(|window| window == BORDER);
        match border.filter(|_| i + 1 < N) {
            Some(at) => {
                rest = Some(&whole[at + BORDER.len()..]);
                &whole[..at]
            }
            None => whole,
        }
    })
}

/// Returns a folder of this thread: where `TMPDIR` says, otherwise in memory if the system has such a place.
pub(crate) fn folder() -> PathBuf {
    thread_local! { static FOLDER: OnceCell<TempDir> = const { OnceCell::new() } }
    let new = || {
        let memory = Path::new("/dev/shm");
        let in_memory = std::env::var_os("TMPDIR").is_none() && memory.is_dir();
        let made = if in_memory { TempDir::new_in(memory) } else { TempDir::new() };
        made.expect("a temporary folder can be made")
    };
    FOLDER.with(|folder| folder.get_or_init(new).path().to_owned())
}

/// Returns a folder of this thread with this name, which is empty.
pub(crate) fn empty_folder(name: &str) -> PathBuf {
    let folder = folder().join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// Writes a file into the folder of this thread, below folders if its name has them.
pub(crate) fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    let parent = path.parent().expect("a file is in a folder");
    if !parent.is_dir() {
        std::fs::create_dir_all(parent).expect("the folder can be made");
    }
    std::fs::write(&path, bytes).expect("the file can be written");
    path
}

/// Returns a file or folder of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    let found =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join(".ci/run").is_file());
    found.expect("the targets are below the repository").join(path)
}

/// Checks an error whose text is escaped where it is shown: it says something, and not everything.
pub(crate) fn says_why(error: &dyn Display) {
    let text = error.to_string();
    assert!(!text.trim().is_empty(), "an error without a word");
    assert!(text.len() <= 2 * LONGEST, "an error of {} bytes: {:.200}", text.len(), text);
}

/// Checks a text that is shown as it is.
pub(crate) fn is_a_sentence(text: &dyn Display) {
    says_why(text);
    let text = text.to_string();
    let active: Vec<char> = text.chars().filter(|c| *c != '\n' && is_active(*c)).collect();
    assert!(active.is_empty(), "active characters {active:?} in {text:?}");
}
