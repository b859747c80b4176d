//! `tokenizer.json`, as far as a GGUF file needs it. The file is untrusted.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;
use sparktune_base::escape::shortened;
use sparktune_base::regular_file::read_tokenizer_json;

/// `tokenizer.json`, as far as it is needed.
#[derive(Deserialize)]
pub(super) struct Tokenizer {
    pub(super) normalizer: Option<Json>,
    pub(super) pre_tokenizer: Option<Json>,
    pub(super) post_processor: Option<Json>,
    #[serde(default)]
    pub(super) added_tokens: Vec<Added>,
    pub(super) model: Bpe,
}

#[derive(Deserialize)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
}

#[derive(Deserialize)]
pub(super) struct Bpe {
    pub(super) vocab: BTreeMap<String, u32>,
    pub(super) merges: Vec<Merge>,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    pub(super) unk_token: Option<String>,
}

/// A merge, in either of the forms that the tokenizers library has written.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    Pair([String; 2]),
    Text(String),
}

impl Merge {
    /// Returns the two tokens with a space between them. A space inside a token becomes the character that
    /// stands for it in byte-level tokens.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Pair(pair) => pair.each_ref().map(|part| part.replace(' ', "\u{120}")).join(" "),
            Self::Text(text) => text.clone(),
        }
    }

    /// Returns the token that the merge makes.
    pub(super) fn merged(&self) -> String {
        match self {
            Self::Pair(pair) => pair.concat(),
            Self::Text(text) => text.replacen(' ', "", 1),
        }
    }
}

/// The kind of a tokenizer, which is read first, because the fields of the kinds differ.
#[derive(Deserialize)]
struct Kind {
    model: ModelKind,
}

#[derive(Deserialize)]
struct ModelKind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Tokenizer {
    /// Reads the file in a base's folder.
    ///
    /// # Errors
    /// What is wrong with it, or that it is no BPE tokenizer.
    pub(super) fn read(dir: &Path) -> Result<Self, String> {
        let bytes = read_tokenizer_json(&dir.join("tokenizer.json"))
            .map_err(|error| format!("tokenizer.json cannot be read ({error})"))?;
        let wrong = |error: serde_json::Error| format!("tokenizer.json is not a tokenizer ({error})");
        let kind: Kind = serde_json::from_slice(&bytes).map_err(wrong)?;
        if let Some(kind) = kind.model.kind.filter(|kind| kind != "BPE") {
            let shown = shortened(&kind);
            return Err(format!("the tokenizer is of the type `{shown}`, and only BPE is supported here"));
        }
        serde_json::from_slice(&bytes).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_of_both_forms_are_written_alike() {
        let pair = Merge::Pair(["a b".into(), "c".into()]);
        assert_eq!(pair.text(), "aĠb c");
        let old = Merge::Text("Ġa c".into());
        assert_eq!((old.text(), old.merged()), ("Ġa c".to_owned(), "Ġac".to_owned()));
    }
}
