//! Feeds every parser of foreign bytes with a corpus and with changes of it, the same ones at each run.
//!
//! `tests/fuzz/run.sh` does it for as long as one likes, guided by coverage. A new target is a function in
//! `targets/`, a row of its table, a folder in `corpus/` and a row of [`CHANGES`].
//!
//! An input that breaks a promise is kept in a temporary file, whose name is printed; `SPARKTUNE_FUZZ_INPUT`
//! with that file, and the name of the test, try it again. If the program ends at once, that file holds what
//! was tried last. `SPARKTUNE_FUZZ_SEED` gives other changes.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

mod mutate;
mod targets;
mod weights;

use std::collections::BTreeSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;

use rustix::process::{Resource, Rlimit, setrlimit};
use sparktune_base::random::SplitMix64;
use targets::{LONGEST, TARGETS, Target, panics, repository};

/// The seed of all changes.
const SEED: u64 = 20_261_123;

/// The address space that all targets together may have. What they need is a small part of it.
const MOST_MEMORY: u64 = 8 << 30;

/// How many changed inputs each target is fed with: together half a minute of one slow core.
const CHANGES: &[(&str, u32)] = &[
    ("adapter_config", 12_000),
    ("checkpoint", 1_200),
    ("cluster_beacons", 9_000),
    ("cluster_judged", 1_500),
    ("cluster_messages", 9_000),
    ("cluster_notices", 9_000),
    ("cluster_parts", 9_000),
    ("cluster_sums", 1_500),
    ("cluster_words", 6_000),
    ("compressed", 600),
    ("control", 1_800),
    ("edited", 900),
    ("events", 1_800),
    ("facts", 6_000),
    ("hub_answers", 300),
    ("hub_data_set", 1_800),
    ("hub_model", 1_800),
    ("launchers", 9_000),
    ("lines", 2_400),
    ("model_config", 4_500),
    ("model_files", 450),
    ("names", 9_000),
    ("ndp_addresses", 9_000),
    ("ndp_frames", 9_000),
    ("ndp_spool", 900),
    ("packets", 3_000),
    ("parquet", 3_000),
    ("plan", 900),
    ("preset", 3_000),
    ("results", 300),
    ("run_data", 1_800),
    ("suite", 900),
    ("tables", 1_500),
    ("template", 450),
    ("texts", 1_500),
    ("token_file", 750),
    ("token_lines", 1_200),
    ("token_packets", 1_200),
    ("tokenizer", 450),
    ("weights", 1_500),
];

macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        $(#[test] fn $name() { holds(stringify!($name)); })+
        const NAMED: &[&str] = &[$(stringify!($name)),+];
    };
}

targets!(
    adapter_config,
    checkpoint,
    cluster_beacons,
    cluster_judged,
    cluster_messages,
    cluster_notices,
    cluster_parts,
    cluster_sums,
    cluster_words,
    compressed,
    control,
    edited,
    events,
    facts,
    hub_answers,
    hub_data_set,
    hub_model,
    launchers,
    lines,
    model_config,
    model_files,
    names,
    ndp_addresses,
    ndp_frames,
    ndp_spool,
    packets,
    parquet,
    plan,
    preset,
    results,
    run_data,
    suite,
    tables,
    template,
    texts,
    token_file,
    token_lines,
    token_packets,
    tokenizer,
    weights,
);

#[test]
fn every_target_has_a_test_a_corpus_and_a_number_of_changes() {
    let all: BTreeSet<&str> = all().map(|target| target.name).collect();
    assert_eq!(all, NAMED.iter().copied().collect());
    assert_eq!(all, CHANGES.iter().map(|(name, _)| *name).collect());
    let folders = std::fs::read_dir(repository("tests/fuzz/corpus")).unwrap();
    let folders: BTreeSet<String> =
        folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(all, folders.iter().map(String::as_str).collect());
    assert!(all.iter().all(|name| !corpus(name).is_empty()));
}

fn all() -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().chain(weights::TARGETS)
}

/// Feeds a target with its corpus, and then with changes of it.
fn holds(name: &str) {
    limit_memory();
    panics::watch();
    let target = all().find(|target| target.name == name).unwrap();
    if let Some(input) = std::env::var_os("SPARKTUNE_FUZZ_INPUT") {
        return (target.run)(&std::fs::read(input).unwrap());
    }
    let corpus = corpus(name);
    for (path, input) in &corpus {
        feed(target, input, &format!("{} of the corpus", path.display()));
    }
    let inputs: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let changes = CHANGES.iter().find(|(changed, _)| *changed == name).unwrap().1;
    let seed = std::env::var("SPARKTUNE_FUZZ_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let mut random = SplitMix64::new(seed);
    for number in 0..changes {
        let input = &inputs[random.below(inputs.len() as u32) as usize];
        let changed = mutate::mutate(input, &inputs, LONGEST, &mut random);
        feed(target, &changed, &format!("change {number} of seed {seed}"));
    }
    std::fs::remove_file(kept(name)).unwrap();
}

fn feed(target: &Target, input: &[u8], origin: &str) {
    // Written before it is read, because not everything that goes wrong can be caught.
    let path = kept(target.name);
    std::fs::write(&path, input).unwrap();
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        let (path, name) = (path.display(), target.name);
        panic!(
            "{origin} breaks `{name}`. It is in {path}: \
             `SPARKTUNE_FUZZ_INPUT={path} cargo test --release --workspace --test fuzz {name}` tries it again"
        );
    }
}

/// The file with the input that a target is fed with.
fn kept(name: &str) -> PathBuf {
    static ONCE: Once = Once::new();
    let start = std::env::temp_dir().join(format!("sparktune-fuzz-{}-", std::process::id()));
    // The text of `eprintln!` is lost if the program ends at once.
    let said = format!("what is tried last is in {}*\n", start.display());
    ONCE.call_once(|| std::io::stderr().write_all(said.as_bytes()).unwrap());
    PathBuf::from(format!("{}{name}", start.display()))
}

/// The inputs in the tree by name.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = repository("tests/fuzz/corpus").join(name);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Ends this program, instead of the machine, if a target asks for memory without bounds.
fn limit_memory() {
    let most = Rlimit { current: Some(MOST_MEMORY), maximum: Some(MOST_MEMORY) };
    setrlimit(Resource::As, most).unwrap();
}
