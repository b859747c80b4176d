//! Gets from a data set's name to the files of one split: finds it, reads its card, selects the files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use crate::conventions::CARD;
use crate::data_set_name::DataSetName;
use crate::error::Error;
use crate::hub::{Found, Hub, Place};
use crate::plan::DownloadPlan;
use crate::progress::{Progress, Watch};
use crate::repo_kind::RepoKind;
use crate::select::LARGEST_CARD;
use crate::splits::select;

/// A split of a data set that was found.
#[derive(Debug, Clone)]
pub struct DataSetPlan {
    /// The files of the split, and what is still to be downloaded of them.
    pub download: DownloadPlan,
    /// The name of the same split at the commit that was found. It gives the same files for ever.
    pub pinned: String,
}

impl Hub {
    /// Finds the split of a data set that this name means, and its files. Fetches the list of files and the
    /// card, but no data. A name with a commit whose list is in the cache needs no network for that.
    ///
    /// # Errors
    /// Any [`Error`]; a disk that is too small is not an error yet.
    pub fn plan_data_set(&self, name: &str, progress: &dyn Progress) -> Result<DataSetPlan, Error> {
        let stop = AtomicBool::new(false);
        let watch = Watch::new(progress, &stop);
        let name = DataSetName::parse(name)?;
        let shown = name.repo().to_string();
        let found = self.locate_repo(RepoKind::DataSet, &name.id, &name.revision, shown, &watch)?;
        if let Place::Remote { source, listing } = &found.place {
            // A cache that cannot be written may still hold all files; if it does not, the download says so.
            let _ = listing.keep(&source.cache);
        }
        let readme = self.card(&found, &watch)?;
        let files = select(&name, &found.names, readme.as_deref())?;
        self.require_cached(&found, &files)?;
        let download = self.plan_of(found, files, true, &watch)?;
        let commit = download.commit.as_deref().expect("a data set on the hub has a commit");
        Ok(DataSetPlan { pinned: name.at(commit).to_string(), download })
    }

    /// Returns the text of the card, if there is one.
    fn card(&self, found: &Found, watch: &Watch<'_>) -> Result<Option<String>, Error> {
        if !found.names.contains(CARD) {
            return Ok(None);
        }
        let require_small = |size: u64| match size {
            0..=LARGEST_CARD => Ok(()),
            _ => Err(Error::BadCard { repo: found.shown.clone(), why: format!("{size} bytes are too many") }),
        };
        if let Place::Remote { listing, .. } = &found.place {
            require_small(listing.files.get(CARD).and_then(|file| file.size).unwrap_or(0))?;
        }
        self.require_cached(found, &[CARD.to_owned()])?;
        let path = self.bring_small(found, CARD, watch)?;
        let bytes = std::fs::read(&path).map_err(Error::unreadable(&path))?;
        require_small(bytes.len() as u64)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Checks that all files are in the cache, if the cache is all there is. Otherwise a part of a split
    /// would pass for all of it.
    fn require_cached(&self, found: &Found, files: &[String]) -> Result<(), Error> {
        if matches!(found.place, Place::Remote { .. }) {
            return Ok(());
        }
        let folder = found.folder();
        let missing = files.iter().find(|file| !folder.join(file).is_file());
        let missing = missing.cloned().or_else(|| missing_shard(files));
        match missing.and_then(|missing| self.uncached(found, missing)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Returns the beginning of the name of a file that is missing in a numbered series. Python's library saves
/// no list of the files of a commit, so for its downloads the numbers alone tell.
fn missing_shard(files: &[String]) -> Option<String> {
    let mut series: BTreeMap<(&str, &str), BTreeSet<u32>> = BTreeMap::new();
    for file in files {
        let Some((start, rest)) = file.rsplit_once("-of-") else { continue };
        let Some((stem, shard)) = start.rsplit_once('-') else { continue };
        let count = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
        if let Ok(shard) = shard.parse() {
            series.entry((stem, count)).or_default().insert(shard);
        }
    }
    series.into_iter().find_map(|((stem, count), shards)| {
        let expected: u32 = count.parse().ok()?;
        let width = count.len();
        // One of so many numbers is missing, unless all are there.
        let missing = (0..expected).take(shards.len() + 1).find(|shard| !shards.contains(shard))?;
        Some(format!("{stem}-{missing:0width$}-of-{count}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_a_numbered_series_is_found() {
        let missing =
            |files: &[&str]| missing_shard(&files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            missing(&["a/train-00000-of-00002-ab.parquet", "a/train-00001-of-00002-cd.parquet"]),
            None
        );
        assert_eq!(missing(&["train-00001-of-00002.parquet"]).as_deref(), Some("train-00000-of-00002"));
        assert_eq!(
            missing(&["train-0-of-4000000000.jsonl"]).as_deref(),
            Some("train-0000000001-of-4000000000")
        );
        assert_eq!(
            missing(&["one-of-many.jsonl", "x-of-.jsonl", "-1-of-3.jsonl", "train.jsonl"]).as_deref(),
            Some("-0-of-3")
        );
    }
}
