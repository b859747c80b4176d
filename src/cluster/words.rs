//! What ranks say to each other beside numbers and notices, all in one place for who tries any bytes on it.
//!
//! Each word is JSON between ranks that have proved the token: who a rank is, what it is answered,
//! heartbeats, signs of life and farewells, the list of files, and the word of a meeting.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{Shared, place_of};
use crate::heartbeat::Beat;
use crate::introduction::{Answer, Hello};
use crate::link::Signal;
use crate::tcp::Again;

/// Reads bytes as each kind of word. Returns the names of those that they are, each with whether the word is
/// written and read again as the same, and leads to no file outside of its folder.
pub fn read(bytes: &[u8]) -> Vec<(&'static str, bool)> {
    let files = |files: &Vec<Shared>| {
        let folder = Path::new("/folder");
        let places = files.iter().filter_map(|file| place_of(folder, &file.name).ok());
        places.into_iter().all(|place| place.starts_with(folder) && place != folder)
    };
    let all = [
        ("hello", word::<Hello>(bytes, |_| true)),
        ("answer", word::<Answer>(bytes, |_| true)),
        ("beat", word::<Beat>(bytes, |_| true)),
        ("signal", word::<Signal>(bytes, |_| true)),
        ("again", word::<Again>(bytes, |_| true)),
        ("files", word::<Vec<Shared>>(bytes, files)),
    ];
    all.into_iter().filter_map(|(name, word)| Some((name, word?))).collect()
}

fn word<T: Serialize + DeserializeOwned>(bytes: &[u8], holds: impl Fn(&T) -> bool) -> Option<bool> {
    let word: T = serde_json::from_slice(bytes).ok()?;
    let text = |word: &T| serde_json::to_string(word).expect("a word serialises");
    let written = text(&word);
    let again = serde_json::from_str::<T>(&written).map(|again| text(&again));
    Some(again.is_ok_and(|again| again == written) && holds(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_of_the_corpus_of_the_fuzz_target_is_read_as_what_its_name_says() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/corpus/cluster_words");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(corpus).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let kind = name.split('-').next().unwrap().to_owned();
            let read = read(&std::fs::read(&path).unwrap());
            assert!(read.iter().any(|(of, is_same)| *of == kind && *is_same), "{name}: {read:?}");
            names.push(kind);
        }
        names.sort();
        names.dedup();
        assert_eq!(names, ["again", "answer", "beat", "files", "hello", "signal"]);
    }
}
