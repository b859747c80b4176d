//! Examples that were rendered, kept so that the next part of a list needs no tokenizer.
//!
//! Enters: the answers that render them, and their file. Leaves: the examples, as long as the file is the
//! same.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sparktune_app::check::Browsed;
use sparktune_base::stamp::Stamp;
use sparktune_plan::Answers;

use crate::locked::lock;

/// The number of lists that are kept.
const KEPT: usize = 4;

/// The kept examples.
#[derive(Default)]
pub(crate) struct BrowsedCache(Mutex<Vec<Entry>>);

struct Entry {
    key: (String, PathBuf, usize),
    stamp: Option<Stamp>,
    browsed: Arc<Browsed>,
}

impl BrowsedCache {
    /// Returns the first examples of this file under these answers, if they are known and it is the same.
    pub(crate) fn get(&self, answers: &Answers, path: &Path, window: usize) -> Option<Arc<Browsed>> {
        // What comes from the hub may change at any time, and is no file.
        let stamp = Some(Stamp::of(path)?);
        let key = key(answers, path, window);
        let entries = lock(&self.0);
        let entry = entries.iter().find(|entry| entry.key == key && entry.stamp == stamp)?;
        Some(entry.browsed.clone())
    }

    /// Keeps examples. The stamp is that of the file before they were rendered.
    pub(crate) fn put(
        &self,
        answers: &Answers,
        path: &Path,
        window: usize,
        stamp: Option<Stamp>,
        browsed: Browsed,
    ) -> Arc<Browsed> {
        let (key, browsed) = (key(answers, path, window), Arc::new(browsed));
        let mut entries = lock(&self.0);
        entries.retain(|entry| entry.key != key);
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push(Entry { key, stamp, browsed: browsed.clone() });
        browsed
    }
}

fn key(answers: &Answers, path: &Path, window: usize) -> (String, PathBuf, usize) {
    (answers.to_toml().unwrap_or_default(), path.to_owned(), window)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn examples_are_kept_until_the_file_changes() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.jsonl");
        fs::write(&path, "{}\n").unwrap();
        let (cache, answers) = (BrowsedCache::default(), Answers::default());
        let some = || Browsed { examples: Vec::new(), is_all: true, too_long_to_show: 0 };
        assert!(cache.get(&answers, &path, 200).is_none());
        cache.put(&answers, &path, 200, Stamp::of(&path), some());
        assert!(cache.get(&answers, &path, 200).is_some() && cache.get(&answers, &path, 400).is_none());
        fs::write(&path, "{}\n{}\n").unwrap();
        assert!(cache.get(&answers, &path, 200).is_none());
        for window in 1..=KEPT {
            cache.put(&answers, &path, window, Stamp::of(&path), some());
        }
        assert_eq!(lock(&cache.0).len(), KEPT);
    }
}
