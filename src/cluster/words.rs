//! What ranks say to each other beside numbers and notices, all in one place for who tries any bytes on it.
//!
//! Each word is JSON between ranks that have proved the token: who a rank is, what it is answered,
//! heartbeats, signs of life and farewells, the list of files, the word of a meeting, and what ranks say
//! before they sum by NCCL or in the network.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sparktune_base::escape::is_active;

use crate::error::failure;
use crate::files::{Shared, place_of};
use crate::heartbeat::Beat;
use crate::introduction::{Answer, Hello};
use crate::link::Signal;
use crate::nccl::Id;
use crate::nccl::preflight::Facts;
use crate::tcp::Again;
use crate::xdp::{Opened, Place, Tried};

/// Reads bytes as each kind of word. Returns the names of the kinds that they are, each with whether the word
/// is the same when it is written and read again, leads to no file outside its folder, and says nothing that
/// a terminal would obey.
pub fn read(bytes: &[u8]) -> Vec<(&'static str, bool)> {
    let files = |files: &Vec<Shared>| {
        let folder = Path::new("/folder");
        let places = files.iter().filter_map(|file| place_of(folder, &file.name).ok());
        places.into_iter().all(|place| place.starts_with(folder) && place != folder)
    };
    let opened = |opened: &Opened| {
        let has_port = opened.reply_port().map_or_else(|why| is_shown(&why), |port| port > 0);
        has_port && opened.why().is_none_or(|why| is_shown(&why))
    };
    let all = [
        ("hello", word::<Hello>(bytes, |_| true)),
        ("answer", word::<Answer>(bytes, |_| true)),
        ("beat", word::<Beat>(bytes, |_| true)),
        ("signal", word::<Signal>(bytes, |_| true)),
        ("again", word::<Again>(bytes, |_| true)),
        ("files", word::<Vec<Shared>>(bytes, files)),
        ("opened", word::<Opened>(bytes, opened)),
        ("place", word::<Place>(bytes, is_told)),
        ("tried", word::<Tried>(bytes, |(said, _)| is_told(said))),
        ("facts", word::<Facts>(bytes, |_| true)),
        ("id", word::<Id>(bytes, is_told)),
    ];
    all.into_iter().filter_map(|(name, word)| Some((name, word?))).collect()
}

/// Returns whether a text has nothing that a terminal would obey.
fn is_shown(text: &str) -> bool {
    !text.contains(is_active)
}

/// Returns whether the reason of a rank that cannot go on is safe to show.
fn is_told<T>(said: &Result<T, String>) -> bool {
    failure(std::slice::from_ref(said)).is_none_or(|why| is_shown(&why))
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
        let kinds = [
            "again", "answer", "beat", "facts", "files", "hello", "id", "opened", "place", "signal", "tried",
        ];
        assert_eq!(names, kinds);
    }
}
