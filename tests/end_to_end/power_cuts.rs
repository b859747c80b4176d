//! Power cuts: the real writes of a run are replayed up to any of them, without what was not flushed. From
//! every state that a disk may be in then, the run is resumed, or started again if it was not in the list
//! yet, and ends with the very bytes of the run that was never cut.
//!
//! CI tries some states. `SPARKTUNE_STATES=all` in the environment tries all, and prints what was found;
//! `tests/README.md` has the results. Without `strace`, the tests say that they were skipped.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::disk::{BYTES, Bytes, Change, History, NAMES, Names, Tree, write_tree};
use crate::sparktune::{Done, Place, done, files, outputs};
use crate::trace::traced;

/// States of each kind of run in CI.
const FEW: usize = 24;
/// States that are tried at the same time.
const AT_ONCE: usize = 2;

struct State {
    cut: usize,
    names: Names,
    bytes: Bytes,
    tree: Tree,
}

/// All states that differ, or some of them in a fixed order.
fn states(history: &History) -> Vec<State> {
    let mut seen = std::collections::BTreeSet::new();
    let mut all = Vec::new();
    for cut in 0..history.len() {
        for (names, bytes) in NAMES.into_iter().flat_map(|names| BYTES.map(|bytes| (names, bytes))) {
            let tree = history.tree(cut, names, bytes);
            let mut hasher = DefaultHasher::new();
            tree.hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                all.push((hasher.finish(), State { cut, names, bytes, tree }));
            }
        }
    }
    let wanted = std::env::var("SPARKTUNE_STATES").unwrap_or_else(|_| FEW.to_string());
    if wanted != "all" {
        // A hash is as good as chance.
        all.sort_by_key(|(hash, _)| *hash);
        all.truncate(wanted.parse().unwrap());
    }
    all.into_iter().map(|(_, state)| state).collect()
}

fn run_in(place: &Path) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(place.join("runs")).ok()?.map(|entry| entry.unwrap().path());
    let is_hidden = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with('.');
    entries.find(|path| !is_hidden(path) && path.is_dir())
}

/// What became of a state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    StartedAgain,
    Resumed,
    Refused(i32),
    Wrong(String),
}

fn outcome(state: &State, expected: &[(PathBuf, Vec<u8>)], start: &dyn Fn(&Place) -> Command) -> Outcome {
    let place = Place::new();
    place.chats(40);
    write_tree(&state.tree, place.path());
    let run = run_in(place.path());
    let Done { code, out, err } = match &run {
        Some(run) => done(&mut place.command(["resume".as_ref(), run.as_os_str(), "--json".as_ref()])),
        None => done(&mut start(&place)),
    };
    let said = format!("exit {code:?}: {err}{}", out.lines().last().unwrap_or_default());
    let listed = place.sparktune(["runs", "--plain"]);
    if listed.code != Some(0) {
        return Outcome::Wrong(format!("`runs` ends with {:?}: {}", listed.code, listed.err));
    }
    match code {
        Some(0) if outputs(&run_in(place.path()).unwrap()) != expected => {
            Outcome::Wrong(format!("other outputs: {said}"))
        }
        Some(0) if run.is_some() => Outcome::Resumed,
        Some(0) => Outcome::StartedAgain,
        Some(code @ 2..=5) if err.contains("error: ") && run.is_some() => {
            println!("{} refused: {said}", describe(state));
            Outcome::Refused(code)
        }
        _ => Outcome::Wrong(said),
    }
}

fn describe(state: &State) -> String {
    format!("cut {}, names {:?}, bytes {:?}", state.cut, state.names, state.bytes)
}

fn cut_everywhere(what: &str, start: &(dyn Fn(&Place) -> Command + Sync)) {
    let place = Place::new();
    place.chats(40);
    let Some(history) = traced(&start(&place), place.path()) else { return };
    let expected = outputs(&run_in(place.path()).unwrap());
    assert!(expected.len() > 5);
    // The model of the disk is that of the real one: after the last change, nothing differs.
    let whole = history.tree(history.len() - 1, Names::All, Bytes::All);
    for (name, bytes) in files(&place.join("runs")) {
        let modelled = whole.get(&Path::new("runs").join(&name)).and_then(Option::as_ref);
        assert!(modelled == Some(&bytes), "{} is not modelled", name.display());
    }

    let states = states(&history);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<Outcome, Vec<String>>::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(state) = states.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = outcome(state, &expected, start);
                    found.lock().unwrap().entry(outcome).or_default().push(describe(state));
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let flushes =
        (0..history.len()).filter(|cut| matches!(history.change(*cut), Change::Flush { .. })).count();
    println!("{what}: {} changes with {flushes} flushes, {} states", history.len(), states.len());
    for (outcome, states) in &found {
        println!("    {:5} {outcome:?}, as {}", states.len(), states[0]);
    }
    assert!(found.keys().all(|outcome| matches!(outcome, Outcome::Resumed | Outcome::StartedAgain)));
}

#[test]
fn a_run_whose_power_was_cut_at_any_write_ends_with_the_same_bytes() {
    cut_everywhere("lora", &|place| {
        place.train(&["--rank", "4", "--max-steps", "3", "--save-steps", "1", "--keep", "1", "--mtp", "none"])
    });
}

/// All weights are trained, and then the MTP head.
#[test]
fn so_does_a_run_that_trains_all_weights_and_a_head() {
    let flags = ["--max-steps", "2", "--save-steps", "1", "--keep", "1", "--mtp", "trained"];
    cut_everywhere("full, with head", &|place| place.train(&[&["--method", "full"], &flags[..]].concat()));
}
