//! What is known about models, data and the machine, kept so that a plan with other answers is made at once.
//!
//! Enters: answers. Leaves: the facts that a plan needs. They belong to the answers that decide how data is
//! read; whether they still hold is seen from the size, the time and the inode of each file, as far as files
//! are on this machine, and otherwise from their age.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sparktune_app::data::prepare_data;
use sparktune_app::failure::Failure;
use sparktune_app::folders::runs_dir_of;
use sparktune_app::job::gather_facts;
use sparktune_app::listener::{Listener, Silent};
use sparktune_app::machine::machine_and_rates;
use sparktune_app::model::{find_base, weigh};
use sparktune_app::program::Program;
use sparktune_base::stamp::Stamp;
use sparktune_data::Report;
use sparktune_plan::setting::{Heading, Setting};
use sparktune_plan::{Answers, Facts, MachineFacts, Rates, assumed_data};

use crate::locked::lock;

/// The number of pairs of model and data that are kept.
const KEPT: usize = 32;
/// The time after which the hub is asked again whether a model or data set has changed.
const HUB_AGE: Duration = Duration::from_secs(600);
/// The time for which the free memory of the machine is taken for current.
const MACHINE_AGE: Duration = Duration::from_secs(5);
/// The key of the weights of data sets, which reading notes among its findings.
const WEIGHTS: &str = "data.weights";
/// The files of a model that decide how data is tokenised, and what the model is.
const MODEL_FILES: [&str; 4] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// What reading model and data has found.
#[derive(Debug)]
pub(crate) struct Known {
    /// The facts for plans. Those of the machine are of the time of reading.
    pub facts: Facts,
    /// The findings about the data; `None` if it is assumed.
    pub report: Option<Report>,
    /// The bytes of the model that are still to be downloaded.
    pub missing_bytes: u64,
    /// The commit of a model from the hub.
    pub commit: Option<String>,
    /// The stamps of the model's small files, taken before its tokenizer read the data.
    stamps: Stamps,
}

/// Files with their stamps.
type Stamps = Vec<(PathBuf, Option<Stamp>)>;

/// Reads model and data of these answers. Without data, chats of ordinary length are assumed.
///
/// # Errors
/// Anything that prevents a plan, except for rejected lines.
pub(crate) fn read(program: &Program, answers: &Answers, listener: &dyn Listener) -> Result<Known, Failure> {
    let mut base = find_base(answers, listener)?;
    let stamps = stamped(MODEL_FILES.iter().map(|name| base.folder.join(name)));
    let download = weigh(&mut base, listener)?;
    let (facts, report) = if answers.data.is_some() {
        let prepared = prepare_data(answers, &base, listener)?;
        let facts = gather_facts(program, answers, &base, &prepared, listener)?;
        (facts, Some(prepared.report))
    } else {
        let (machine, rates) = machine_and_rates(program, &runs_dir_of(answers), listener)?;
        let model = base.facts.clone();
        (Facts { machine, model, data: assumed_data(), rates, parent: None }, None)
    };
    Ok(Known { facts, report, missing_bytes: download.bytes_missing(), commit: download.commit, stamps })
}

/// The kept facts.
#[derive(Debug, Default)]
pub(crate) struct FactCache {
    entries: Mutex<Vec<Entry>>,
    machine: Mutex<Option<(Instant, MachineFacts, Rates)>>,
}

#[derive(Debug)]
struct Entry {
    key: String,
    stamps: Stamps,
    /// When it was read, if it came from the hub.
    asked: Option<Instant>,
    known: Arc<Known>,
}

impl Entry {
    fn holds(&self) -> bool {
        self.asked.is_none_or(|asked| asked.elapsed() < HUB_AGE)
            && self.stamps.iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }
}

impl FactCache {
    /// Returns what is known for these answers, if it still holds.
    pub(crate) fn get(&self, answers: &Answers) -> Option<Arc<Known>> {
        let key = key(answers)?;
        let mut entries = lock(&self.entries);
        let at = entries.iter().position(|entry| entry.key == key)?;
        let entry = entries.remove(at);
        if !entry.holds() {
            return None;
        }
        let known = entry.known.clone();
        entries.push(entry);
        Some(known)
    }

    /// Keeps what was read for these answers. `stamps` are those of [`stamps`] before it was read, so that a
    /// change in the meantime is noticed.
    pub(crate) fn put(&self, answers: &Answers, mut stamps: Stamps, known: Known) -> Arc<Known> {
        stamps.extend(known.stamps.iter().cloned());
        let is_of_hub = known.commit.is_some() || !known.facts.data.pinned.is_empty();
        let known = Arc::new(known);
        if let Some(key) = key(answers) {
            let mut entries = lock(&self.entries);
            entries.retain(|entry| entry.key != key);
            if entries.len() >= KEPT {
                entries.remove(0);
            }
            entries.push(Entry { key, stamps, asked: is_of_hub.then(Instant::now), known: known.clone() });
        }
        known
    }

    /// Returns this machine as it is now, or was a few seconds ago.
    ///
    /// # Errors
    /// The measured speeds cannot be read.
    pub(crate) fn machine(
        &self,
        program: &Program,
        answers: &Answers,
    ) -> Result<(MachineFacts, Rates), Failure> {
        let mut machine = lock(&self.machine);
        if let Some((at, facts, rates)) = &*machine
            && at.elapsed() < MACHINE_AGE
        {
            return Ok((facts.clone(), rates.clone()));
        }
        let (facts, rates) = machine_and_rates(program, &runs_dir_of(answers), &Silent)?;
        *machine = Some((Instant::now(), facts.clone(), rates.clone()));
        Ok((facts, rates))
    }
}

/// Returns the stamps of the data files of these answers.
pub(crate) fn stamps(answers: &Answers) -> Stamps {
    let sets = answers.data.iter().chain(&answers.eval_data).flat_map(|answer| &answer.value);
    stamped(sets.chain(answers.chat_template.iter().map(|answer| &answer.value)).cloned())
}

fn stamped(files: impl Iterator<Item = PathBuf>) -> Stamps {
    let with_stamp = |path: PathBuf| {
        let stamp = Stamp::of(&path);
        (path, stamp)
    };
    files.map(with_stamp).collect()
}

/// Returns the answers that decide what is read and how, as text. `None` if they cannot be written.
fn key(answers: &Answers) -> Option<String> {
    let is_read =
        |setting: &Setting| setting.reads_data || setting.heading == Heading::Model || setting.key == WEIGHTS;
    answers.without(|_, setting| !is_read(setting)).to_toml().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use sparktune_plan::{Catalog, Origin};

    use super::*;

    fn known(folder: &Path) -> Known {
        let model = Catalog::shipped().model_facts(&Catalog::shipped().models[0]);
        let facts = Facts {
            machine: MachineFacts::default(),
            model,
            data: Default::default(),
            rates: Rates::default(),
            parent: None,
        };
        let stamps = stamped(MODEL_FILES.iter().map(|name| folder.join(name)));
        Known { facts, report: None, missing_bytes: 0, commit: None, stamps }
    }

    #[test]
    fn facts_hold_for_other_settings_until_a_file_changes_or_the_data_is_read_otherwise() {
        let place = tempfile::tempdir().unwrap();
        let (data, config) = (place.path().join("a.jsonl"), place.path().join("config.json"));
        fs::write(&data, "{}\n").unwrap();
        fs::write(&config, "{}").unwrap();
        let mut answers = Answers::default();
        answers.set("model", "org/name", Origin::Flag).unwrap();
        answers.set("data", data.to_str().unwrap(), Origin::Flag).unwrap();
        let cache = FactCache::default();
        assert!(cache.get(&answers).is_none());
        cache.put(&answers, stamps(&answers), known(place.path()));
        assert!(cache.get(&answers).is_some());

        let with = |name: &str, text: &str| {
            let mut other = answers.clone();
            other.set(name, text, Origin::Flag).unwrap();
            other
        };
        for (name, text) in [("rank", "8"), ("epochs", "5"), ("max-rejected", "0.5")] {
            assert!(cache.get(&with(name, text)).is_some(), "{name} needs no reading");
        }
        for (name, text) in [
            ("think", "train"),
            ("revision", "v2"),
            ("eval-fraction", "0.02"),
            ("model", "org/b"),
            ("weight", "a.jsonl=2"),
        ] {
            assert!(cache.get(&with(name, text)).is_none(), "{name} decides what is read");
        }
        fs::write(&data, "{}\n{}\n").unwrap();
        assert!(cache.get(&answers).is_none());
        cache.put(&answers, stamps(&answers), known(place.path()));
        fs::write(&config, "{\"a\": 1}").unwrap();
        assert!(cache.get(&answers).is_none());
        // A tokenizer that changes while the data is read is another one than that of the facts.
        let read = known(place.path());
        fs::write(place.path().join("tokenizer.json"), "{}").unwrap();
        cache.put(&answers, stamps(&answers), read);
        assert!(cache.get(&answers).is_none());
    }

    #[test]
    fn only_the_last_facts_are_kept() {
        let cache = FactCache::default();
        let of = |name: String| {
            let mut answers = Answers::default();
            answers.set("model", &name, Origin::Flag).unwrap();
            answers
        };
        for number in 0..=KEPT {
            cache.put(&of(format!("a/b{number}")), Vec::new(), known(Path::new("/nowhere")));
        }
        assert!(cache.get(&of("a/b0".into())).is_none() && cache.get(&of(format!("a/b{KEPT}"))).is_some());
        assert_eq!(lock(&cache.entries).len(), KEPT);
    }
}
