//! Finds the files of the data that answers name. Files and folders are where their paths say; data sets
//! of the hub are downloaded first, and token files of other machines received.
//!
//! Enters: names as the user gave them. Leaves: [`Input`]s, whose files are on this machine. What they
//! hold is not known here.

use std::path::{Path, PathBuf};

use sparktune_data::{Input, InputFile};
use sparktune_hub::DataSetName;
use sparktune_ndp::Address;
use sparktune_plan::{Answers, weights_of};

use crate::failure::Failure;
use crate::folders::runs_dir_of;
use crate::listener::Listener;
use crate::model::{fetch, hub};
use crate::received_data::received;

/// The sets of training data and of eval data.
pub(crate) struct DataSets {
    pub train: Vec<Input>,
    pub eval: Vec<Input>,
}

impl DataSets {
    /// Finds the data of these answers.
    ///
    /// # Errors
    /// A data set of the hub, or of another machine, cannot be found or downloaded.
    pub(crate) fn find(answers: &Answers, listener: &dyn Listener) -> Result<Self, Failure> {
        let train = answers.data.as_ref().map(|answer| answer.value.as_slice()).unwrap_or_default();
        Self::of(train, answers, listener)
    }

    /// Finds this training data, and the eval data of these answers.
    ///
    /// # Errors
    /// The same as for [`DataSets::find`].
    pub(crate) fn of(train: &[PathBuf], answers: &Answers, listener: &dyn Listener) -> Result<Self, Failure> {
        let eval = answers.eval_data.as_ref().map(|answer| answer.value.as_slice()).unwrap_or_default();
        let runs_dir = runs_dir_of(answers);
        let find = |paths: &[PathBuf]| -> Result<Vec<Input>, Failure> {
            paths.iter().map(|path| input(path, &runs_dir, listener)).collect()
        };
        Ok(Self { train: find(train)?, eval: find(eval)? })
    }

    /// Returns all of them, training data first.
    pub(crate) fn all(&self) -> Vec<Input> {
        [self.train.as_slice(), &self.eval].concat()
    }
}

/// Returns the weight of each of these sets of training data.
///
/// # Errors
/// An answer names a set that does not exist.
pub(crate) fn weights_for(answers: &Answers, train: &[Input]) -> Result<Vec<f64>, Failure> {
    let names = train.iter().map(|input| input.name.as_str());
    Ok(weights_of(answers.weights.as_ref(), names)?)
}

/// Returns whether this names a data set of the hub, `hf:OWNER/NAME`, and no path.
pub fn is_of_hub(path: &Path) -> bool {
    path.to_str().is_some_and(DataSetName::is_meant_by)
}

/// Returns whether this names data that is not on this machine: a data set of the hub, or a token file of
/// another machine, `ndp://HOST:PORT/NAME#KEY`.
pub fn is_elsewhere(path: &Path) -> bool {
    is_of_hub(path) || path.to_str().is_some_and(Address::is_meant_by)
}

/// Checks the form of the name of data that is not on this machine.
///
/// # Errors
/// The problem with it, and the right form.
pub fn check_name(name: &str) -> Result<(), String> {
    if Address::is_meant_by(name) {
        return Address::parse(name).map(drop).map_err(|error| error.to_string());
    }
    DataSetName::parse(name).map(drop).map_err(|error| error.to_string())
}

fn input(path: &Path, runs_dir: &Path, listener: &dyn Listener) -> Result<Input, Failure> {
    if let Some(address) = path.to_str().filter(|name| Address::is_meant_by(name)) {
        return received(address, runs_dir, listener);
    }
    let Some(name) = path.to_str().filter(|name| DataSetName::is_meant_by(name)) else {
        return Ok(path.into());
    };
    let hub = hub()?;
    let found = hub.plan_data_set(name, listener)?;
    let snapshot = fetch(&hub, &found.download, listener)?;
    if let sparktune_hub::Origin::CacheInstead { why } = &snapshot.origin {
        listener.note(&format!("note: using the cached copy of the data set {name}: {why}"));
    }
    let file = |file: &String| InputFile { name: format!("{name} {file}"), path: snapshot.folder.join(file) };
    Ok(Input {
        name: name.to_owned(),
        pinned: Some(found.pinned),
        files: snapshot.files.iter().map(file).collect(),
    })
}

#[cfg(test)]
mod tests {
    use sparktune_base::choices::PackStrategy;
    use sparktune_base::random::SplitMix64;
    use sparktune_data::packing::{Mixture, Packing};
    use sparktune_data::{LengthReport, Unit};
    use sparktune_plan::packing::Lengths;

    use super::*;
    use crate::data::facts_of;

    #[test]
    fn the_plan_estimates_the_packs_that_a_weighted_run_then_fills() {
        let mut random = SplitMix64::new(3);
        let mut draw = |examples: usize, spread: f64| -> Vec<u32> {
            (0..examples).map(|_| (40.0 + spread * random.next_f64().powi(2)) as u32).collect()
        };
        let (short, long) = (draw(900, 400.0), draw(1500, 1900.0));
        let lengths = [short.clone(), long.clone()].concat();
        let set_of = (0..lengths.len()).map(|example| usize::from(example >= short.len()));
        for weights in [[2.0, 0.5], [1.0, 1.5], [0.25, 3.0]] {
            let facts = |lengths: &[u32]| {
                facts_of(&LengthReport::new(Unit::Tokens, &mut lengths.to_vec()).unwrap(), 1)
            };
            let sets = [(facts(&short), weights[0]), (facts(&long), weights[1])];
            let estimate = Lengths::of_epoch(&sets, u32::MAX);
            let mixture = Mixture::new(set_of.clone(), &weights).unwrap().unwrap();
            for strategy in [PackStrategy::Bfd, PackStrategy::Stream] {
                let packing = Packing::new(strategy, 4096, 1).unwrap();
                let packs = packing.mixed_epoch(&lengths, &mixture, 0).len() as f64;
                let estimated = estimate.pack(4096, strategy).count;
                assert!(
                    (estimated - packs).abs() <= (0.05 * packs).max(1.0),
                    "{weights:?} {strategy}: {estimated} for {packs}"
                );
            }
        }
    }

    #[test]
    fn a_name_of_the_hub_is_told_from_a_path() {
        assert!(is_of_hub(Path::new("hf:org/set")) && is_of_hub(Path::new("hf:")));
        for path in ["./hf:org/set", "/hf:a", "train.jsonl"] {
            assert!(!is_of_hub(Path::new(path)), "{path}");
        }
        assert!(check_name("hf:org/set:test").is_ok() && check_name("hf:set").is_err());
        let address = format!("ndp://spark-a:7272/train#{}", "0f".repeat(32));
        assert!(is_elsewhere(Path::new(&address)) && check_name(&address).is_ok());
        assert!(check_name("ndp://spark-a:7272/train").unwrap_err().contains("key is missing"));
    }
}
