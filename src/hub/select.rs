//! Selects the files of a repository that a task needs, from their names and the list of shards in the index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use sparktune_base::regular_file::{MOST_MODEL_JSON_BYTES, read_model_json};

use crate::conventions::CARD;
use crate::error::Error;
use crate::model_name::is_plain_path;
use crate::repo_kind::RepoKind;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";

/// Small files that are downloaded if a repository has them. The two of the vision processor are not read
/// here, but a served model with a vision tower needs them.
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
];

/// Small files that nothing here reads, but that belong to a model: its licence, and other forms of its
/// tokenizer, which converters and servers read. An export copies them.
const OF_MODEL: &[&str] = &[
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
];

/// The largest card of a data set in bytes.
pub(crate) const LARGEST_CARD: u64 = 16 << 20;
/// The largest number of bytes of a tokenizer or another small file of a model.
const LARGEST_SMALL_FILE: u64 = 256 << 20;

/// Returns the largest number of bytes of a small file, as it is downloaded and read; `None` for weights and
/// data.
pub(crate) fn most_bytes(kind: RepoKind, name: &str) -> Option<u64> {
    match (kind, name) {
        (RepoKind::DataSet, CARD) => Some(LARGEST_CARD),
        (RepoKind::DataSet, _) => None,
        (RepoKind::Model, CONFIG | INDEX) => Some(MOST_MODEL_JSON_BYTES),
        (RepoKind::Model, name) => {
            let is_small = name == TOKENIZER || OPTIONAL.contains(&name) || OF_MODEL.contains(&name);
            is_small.then_some(LARGEST_SMALL_FILE)
        }
    }
}

/// The parts of a model that a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// `config.json`.
    Config,
    /// `config.json`, the tokenizer, the chat template and the generation defaults: enough to check and
    /// tokenise data.
    Tokenizer,
    /// All of these, the licence, every other form of the tokenizer, and the weights.
    Model,
    /// `config.json`, the index and the shards with `mtp.*` tensors; without an index, the single weight
    /// file.
    Mtp,
}

/// Returns the required files, small ones first. `has` says whether the repository contains a name; `index`
/// fetches the index and returns its path. It is called at most once, and only if necessary.
pub(crate) fn select(
    needs: Needs,
    repo: &str,
    names: &BTreeSet<String>,
    index: impl FnOnce() -> Result<std::path::PathBuf, Error>,
) -> Result<Vec<String>, Error> {
    let has = |name: &str| names.contains(name);
    let missing = |file: &str, advice| Error::FileMissing { repo: repo.into(), file: file.into(), advice };
    let weights = has(WEIGHTS) || has(INDEX);
    if !weights
        && (matches!(needs, Needs::Model | Needs::Mtp) || !has(CONFIG) && !other_weights(names).is_empty())
    {
        let other = other_weights(names);
        let found =
            if other.is_empty() { "no weights at all".into() } else { format!("only {}", other.join(", ")) };
        return Err(Error::NoSafetensors { repo: repo.into(), found });
    }
    if !has(CONFIG) {
        return Err(missing(CONFIG, "Choose a repository or folder that contains a complete model"));
    }
    let mut files = vec![CONFIG.to_string()];
    if matches!(needs, Needs::Tokenizer | Needs::Model) {
        if !has(TOKENIZER) {
            let advice = "Load the tokenizer in transformers and save it with `save_pretrained`, which writes this file";
            return Err(missing(TOKENIZER, advice));
        }
        files.push(TOKENIZER.into());
        let of_model = if needs == Needs::Model { OF_MODEL } else { &[] };
        let optional = OPTIONAL.iter().chain(of_model);
        files.extend(optional.filter(|name| has(name)).map(|name| name.to_string()));
    }
    if matches!(needs, Needs::Model | Needs::Mtp) {
        // If both exist, the single file is used, as in transformers.
        if has(WEIGHTS) {
            files.push(WEIGHTS.into());
        } else {
            files.push(INDEX.into());
            let index = Index::read(&index()?, repo)?;
            let shards = if needs == Needs::Mtp { index.shards_with("mtp.") } else { index.shards_with("") };
            if shards.is_empty() && needs == Needs::Mtp {
                return Err(Error::NoMtp { repo: repo.into() });
            }
            if let Some(shard) = shards.iter().find(|shard| !has(shard)) {
                return Err(missing(
                    shard,
                    "The index names it, so the model is incomplete. Choose another revision",
                ));
            }
            files.extend(shards);
        }
    }
    Ok(files)
}

/// Returns the kinds of weights that cannot be loaded, by the extensions in the list. Only constant words are
/// shown, not the names.
fn other_weights(names: &BTreeSet<String>) -> Vec<&'static str> {
    const KINDS: [(&str, &str); 9] = [
        (".gguf", "GGUF (quantised)"),
        (".bin", "pickled PyTorch (.bin)"),
        (".pt", "pickled PyTorch (.pt)"),
        (".pth", "pickled PyTorch (.pth)"),
        (".ckpt", "a pickled checkpoint (.ckpt)"),
        (".onnx", "ONNX"),
        (".h5", "TensorFlow (.h5)"),
        (".msgpack", "Flax (.msgpack)"),
        ("adapter_model.safetensors", "a LoRA adapter"),
    ];
    KINDS
        .iter()
        .filter(|(end, _)| names.iter().any(|name| name.ends_with(end)))
        .map(|(_, kind)| *kind)
        .collect()
}

/// `model.safetensors.index.json`.
#[derive(Debug, Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    fn read(path: &Path, repo: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::BadIndex { repo: repo.into(), file: INDEX, why };
        let text = read_model_json(path).map_err(Error::unreadable(path))?;
        // serde_json's message quotes the offending value; the position suffices and cannot contain control
        // characters.
        let index: Self = serde_json::from_str(&text).map_err(|e| {
            bad(format!(
                "not a list of shards (line {}, column {}: {})",
                e.line(),
                e.column(),
                if e.is_data() { "`weight_map` is missing or has the wrong type" } else { "not JSON" }
            ))
        })?;
        if index.weight_map.is_empty() {
            return Err(bad("`weight_map` is empty".into()));
        }
        for name in index.weight_map.values() {
            if !is_plain_path(name) || !name.ends_with(".safetensors") {
                return Err(Error::UnsafeName { repo: repo.into(), name: name.clone() });
            }
        }
        Ok(index)
    }

    fn shards_with(&self, prefix: &str) -> BTreeSet<String> {
        self.weight_map
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(_, file)| file.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| name.to_string()).collect()
    }

    fn with_index(needs: Needs, list: &[&str], index: &str) -> Result<Vec<String>, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(INDEX);
        std::fs::write(&path, index).unwrap();
        select(needs, "org/name", &names(list), || Ok(path.clone()))
    }

    const SHARDED: [&str; 8] = [
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        INDEX,
        "a.safetensors",
        "b.safetensors",
        "pytorch_model.bin",
        "README.md",
    ];
    const MAP: &str = r#"{"metadata":{"total_size":9},
        "weight_map":{"model.x":"a.safetensors","mtp.fc.weight":"b.safetensors","mtp.norm.weight":"b.safetensors"}}"#;

    #[test]
    fn each_need_takes_its_files_and_nothing_else() {
        let select = |needs| with_index(needs, &SHARDED, MAP).unwrap();
        assert_eq!(select(Needs::Config), ["config.json"]);
        assert_eq!(select(Needs::Tokenizer), ["config.json", "tokenizer.json", "chat_template.jinja"]);
        assert_eq!(
            select(Needs::Model),
            ["config.json", "tokenizer.json", "chat_template.jinja", INDEX, "a.safetensors", "b.safetensors"]
        );
        assert_eq!(select(Needs::Mtp), ["config.json", INDEX, "b.safetensors"]);
    }

    #[test]
    fn a_whole_model_comes_with_its_licence_and_every_form_of_its_tokenizer() {
        let list = ["LICENSE", "config.json", "merges.txt", "tokenizer.json", "tokenizer.model", WEIGHTS];
        let select = |needs| select(needs, "r", &names(&list), || panic!("not needed")).unwrap();
        assert_eq!(
            select(Needs::Model),
            ["config.json", "tokenizer.json", "LICENSE", "merges.txt", "tokenizer.model", WEIGHTS]
        );
        assert_eq!(select(Needs::Tokenizer), ["config.json", "tokenizer.json"]);
    }

    #[test]
    fn a_single_weight_file_wins_over_an_index() {
        let list = ["config.json", "tokenizer.json", WEIGHTS, INDEX];
        let files = select(Needs::Model, "org/name", &names(&list), || panic!("index not needed")).unwrap();
        assert_eq!(files, ["config.json", "tokenizer.json", WEIGHTS]);
        assert_eq!(
            select(Needs::Mtp, "r", &names(&list), || panic!("not needed")).unwrap(),
            ["config.json", WEIGHTS]
        );
    }

    #[test]
    fn weights_of_other_kinds_are_named_in_the_error() {
        let text = |needs, list: &[&str]| with_index(needs, list, "").unwrap_err().to_string();
        assert!(text(Needs::Model, &["config.json", "pytorch_model.bin"]).contains("pickled PyTorch (.bin)"));
        assert!(text(Needs::Config, &["model-q4.gguf"]).contains("GGUF"));
        assert!(text(Needs::Model, &["config.json", "adapter_model.safetensors"]).contains("LoRA adapter"));
        assert!(text(Needs::Model, &["config.json"]).contains("no weights at all"));
        assert!(text(Needs::Config, &["README.md"]).contains("config.json is missing"));
        assert!(text(Needs::Model, &["config.json", WEIGHTS]).contains("save_pretrained"));
    }

    #[test]
    fn an_index_without_mtp_says_which_option_to_use() {
        let map = r#"{"weight_map":{"model.x":"a.safetensors"}}"#;
        let error = with_index(Needs::Mtp, &SHARDED, map).unwrap_err();
        assert!(error.to_string().contains("--mtp none"), "{error}");
    }

    #[test]
    fn a_shard_that_the_repository_lacks_is_named() {
        let map = r#"{"weight_map":{"model.x":"c.safetensors"}}"#;
        let error = with_index(Needs::Model, &SHARDED, map).unwrap_err();
        assert!(matches!(&error, Error::FileMissing { file, .. } if file == "c.safetensors"), "{error}");
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for evil in [
            "../x.safetensors",
            "/etc/x.safetensors",
            "a\\\\..\\\\x.safetensors",
            "run.sh",
            "\\u001b[2J.safetensors",
            &format!("{}.safetensors", "x".repeat(5000)),
        ] {
            let map = format!(r#"{{"weight_map":{{"model.x":"{evil}"}}}}"#);
            let error = with_index(Needs::Model, &SHARDED, &map).unwrap_err();
            assert!(matches!(error, Error::UnsafeName { .. }), "{evil}: {error}");
            assert!(!error.to_string().contains('\u{1b}') && error.to_string().len() < 1000, "{error}");
        }
    }

    #[test]
    fn a_malformed_index_is_said_with_its_place() {
        for (text, part) in [
            ("{\"weight_map\":\n{\"a\":", "line 2, column 5: not JSON"),
            ("{}", "`weight_map` is missing"),
            (r#"{"weight_map":{"a":["b"]}}"#, "the wrong type"),
            (r#"{"weight_map":{}}"#, "empty"),
        ] {
            let error = with_index(Needs::Model, &SHARDED, text).unwrap_err();
            assert!(matches!(error, Error::BadIndex { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(INDEX) && error.contains(part), "{error}");
        }
    }
}
