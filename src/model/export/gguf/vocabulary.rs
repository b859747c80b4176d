//! The tokenizer in a GGUF file: its tokens with their types, how they merge, the special ones, and the chat
//! template.
//!
//! Enters: `tokenizer.json`, `tokenizer_config.json` and `config.json` of the base. Leaves: the fields that
//! llama.cpp's converter writes. The files are untrusted; whatever llama.cpp cannot represent is refused in
//! words.

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value as Json;
use sparktune_base::regular_file::read_model_json;

use super::format::{Metadata, Value};
use super::pre_tokenizer;
use super::tokenizer_json::{Bpe, Merge, Tokenizer};

/// The types of tokens in llama.cpp.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The character that stands for a space in the tokens of SentencePiece.
const SPACE: &str = "\u{2581}";

/// The scores of tokens that no merge makes, and of ids without a token. They are below the score of every
/// token that a merge makes.
const UNMERGED: f32 = -1e6;
const PADDED: f32 = -1e7;

/// Adds the fields of the tokenizer in a base's folder, for a model with `vocab_size` rows in its embedding.
///
/// # Errors
/// What cannot be read, or what llama.cpp does not know.
pub(super) fn put(
    metadata: &mut Metadata,
    dir: &Path,
    vocab_size: usize,
    template: Option<&str>,
) -> Result<(), String> {
    let tokenizer = Tokenizer::read(dir)?;
    let tokens = Tokens::collect(&tokenizer, vocab_size)?;
    if tokenizer.model.byte_fallback {
        metadata.put_text("tokenizer.ggml.model", "llama");
        metadata.put_text("tokenizer.ggml.pre", "default");
        metadata.put("tokenizer.ggml.scores", Value::F32s(tokens.scores(&tokenizer.model)));
        metadata.put("tokenizer.ggml.add_space_prefix", Value::Bool(adds_space(&tokenizer)));
    } else {
        let Tokenizer { normalizer, pre_tokenizer, model, .. } = &tokenizer;
        let name = pre_tokenizer::name(normalizer.as_ref(), pre_tokenizer.as_ref(), model.ignore_merges)
            .map_err(|what| format!("the tokenizer {what}, which llama.cpp does not know"))?;
        metadata.put_text("tokenizer.ggml.model", "gpt2");
        metadata.put_text("tokenizer.ggml.pre", name);
        let merges = model.merges.iter().map(Merge::text).collect();
        metadata.put("tokenizer.ggml.merges", Value::Texts(merges));
    }
    let tokenizer_config = json(&dir.join("tokenizer_config.json"))?;
    let config = json(&dir.join("config.json"))?;
    put_special(metadata, &tokenizer, &tokenizer_config, &config, vocab_size);
    metadata.put("tokenizer.ggml.tokens", Value::Texts(tokens.texts));
    metadata.put("tokenizer.ggml.token_type", Value::I32s(tokens.types));
    if let Some(template) = template {
        metadata.put_text("tokenizer.chat_template", template);
    }
    Ok(())
}

/// Returns the contents of a JSON file, which may be missing.
fn json(path: &Path) -> Result<Json, String> {
    match read_model_json(path) {
        Ok(text) => {
            serde_json::from_str(&text).map_err(|error| format!("{} is not JSON ({error})", path.display()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Json::Null),
        Err(error) => Err(format!("{} cannot be read ({error})", path.display())),
    }
}

/// The tokens by id.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
}

impl Tokens {
    fn collect(tokenizer: &Tokenizer, vocab_size: usize) -> Result<Self, String> {
        let mut found: Vec<Option<(String, i32)>> = vec![None; vocab_size];
        let mut set = |id: u32, text: String, kind: i32| match found.get_mut(id as usize) {
            Some(place) => {
                *place = Some((text, kind));
                Ok(())
            }
            None => Err(format!(
                "the tokenizer has a token with the id {id}, but the model's vocabulary ends at {vocab_size}"
            )),
        };
        let Bpe { vocab, byte_fallback, unk_token, .. } = &tokenizer.model;
        for (text, id) in vocab {
            let kind = match text {
                text if *byte_fallback && is_byte(text) => BYTE,
                text if *byte_fallback && unk_token.as_ref() == Some(text) => UNKNOWN,
                _ => NORMAL,
            };
            set(*id, text.clone(), kind)?;
        }
        for added in &tokenizer.added_tokens {
            // llama.cpp compares user-defined tokens with the text as the user typed it.
            let (text, kind) = if added.special || looks_special(&added.content) {
                (added.content.clone(), CONTROL)
            } else {
                (added.content.replace(SPACE, " "), USER_DEFINED)
            };
            set(added.id, text, kind)?;
        }
        let padded = found.into_iter().enumerate();
        let (texts, types): (Vec<String>, Vec<i32>) =
            padded.map(|(id, token)| token.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED))).unzip();
        let mut seen = HashSet::new();
        match texts.iter().position(|text| !seen.insert(text)) {
            Some(id) => Err(format!("the tokenizer has the text of the token {id} twice")),
            None => Ok(Self { texts, types }),
        }
    }

    /// Returns the scores of a SentencePiece vocabulary, by which llama.cpp chooses what to merge first.
    ///
    /// The scores themselves are in `tokenizer.model`, which a model need not have. Their order is that of
    /// the merges in `tokenizer.json`, which were made from them, and only the order matters.
    fn scores(&self, model: &Bpe) -> Vec<f32> {
        let mut ranks: BTreeMap<String, usize> = BTreeMap::new();
        for (rank, merge) in model.merges.iter().enumerate() {
            ranks.entry(merge.merged()).or_insert(rank);
        }
        let mut order: Vec<&usize> = ranks.values().collect();
        order.sort_unstable();
        // Consecutive numbers are exact in f32, unlike the ranks of half a million merges and more.
        let score = |rank: &usize| -(order.binary_search(&rank).unwrap_or(order.len()) as f32);
        let of = |(text, kind): (&String, &i32)| match *kind {
            UNUSED => PADDED,
            NORMAL => ranks.get(text).map_or(UNMERGED, score),
            _ => UNMERGED,
        };
        self.texts.iter().zip(&self.types).map(of).collect()
    }
}

/// Returns whether a token stands for one byte: `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns whether a token is meant to be special although it is not marked as such, by the rule of
/// llama.cpp's converter.
fn looks_special(text: &str) -> bool {
    let between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}

/// Returns whether a SentencePiece tokenizer puts a space before a text.
fn adds_space(tokenizer: &Tokenizer) -> bool {
    let kind = |value: &Json| value.get("type").and_then(Json::as_str).map(str::to_owned);
    let parts = |value: &Option<Json>, list: &str| -> Vec<Json> {
        let Some(value) = value else { return Vec::new() };
        let listed = value.get(list).and_then(Json::as_array);
        listed.cloned().unwrap_or_else(|| vec![value.clone()])
    };
    let prepends =
        parts(&tokenizer.normalizer, "normalizers").iter().any(|it| kind(it).as_deref() == Some("Prepend"));
    let metaspace = parts(&tokenizer.pre_tokenizer, "pretokenizers").into_iter().any(|it| {
        let scheme = it.get("prepend_scheme").and_then(Json::as_str);
        let older = it.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(true);
        kind(&it).as_deref() == Some("Metaspace") && scheme.map_or(older, |scheme| scheme != "never")
    });
    prepends || metaspace
}

/// The special tokens: their name in the files of a model, and in a GGUF file.
const SPECIAL: [(&str, &str); 6] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    // The spelling is llama.cpp's.
    ("sep", "seperator"),
    ("pad", "padding"),
    ("mask", "mask"),
];

/// Adds the ids of special tokens, and whether the tokenizer adds them to a text.
fn put_special(
    metadata: &mut Metadata,
    tokenizer: &Tokenizer,
    tokenizer_config: &Json,
    config: &Json,
    vocab_size: usize,
) {
    let text_of = |name: &str| {
        let value = tokenizer_config.get(format!("{name}_token"))?;
        value.as_str().or_else(|| value.get("content")?.as_str())
    };
    let added = |text: &str| tokenizer.added_tokens.iter().find(|added| added.content == text);
    for (name, theirs) in SPECIAL {
        let by_text = text_of(name).and_then(added).map(|added| u64::from(added.id));
        let field = format!("{name}_token_id");
        let in_config = || {
            let outer = config.get(&field).filter(|id| !id.is_null());
            outer.or_else(|| config.get("text_config")?.get(&field))?.as_u64()
        };
        let id = by_text.or_else(in_config).filter(|id| *id < vocab_size as u64);
        if let Some(id) = id.and_then(|id| u32::try_from(id).ok()) {
            metadata.put(format!("tokenizer.ggml.{theirs}_token_id"), Value::U32(id));
        }
    }
    for (name, at_end) in [("bos", false), ("eos", true)] {
        let from_config = tokenizer_config.get(format!("add_{name}_token")).and_then(Json::as_bool);
        let adds =
            added_by_processor(tokenizer.post_processor.as_ref(), text_of(name), at_end).or(from_config);
        if let Some(adds) = adds {
            metadata.put(format!("tokenizer.ggml.add_{name}_token"), Value::Bool(adds));
        }
    }
}

/// Returns whether the post-processor puts this special token at an end of a text, if it says so.
fn added_by_processor(processor: Option<&Json>, special: Option<&str>, at_end: bool) -> Option<bool> {
    let processor = processor?;
    let steps = processor.get("processors").and_then(Json::as_array);
    let steps: Vec<&Json> = steps.map_or_else(|| vec![processor], |steps| steps.iter().collect());
    let mut adds = None;
    for step in steps {
        match step.get("type").and_then(Json::as_str) {
            Some("ByteLevel") => adds = adds.or(Some(false)),
            Some("TemplateProcessing") => {
                let single = step.get("single").and_then(Json::as_array).filter(|single| single.len() > 1);
                let place = single.and_then(|single| if at_end { single.last() } else { single.first() });
                let id = place.and_then(|place| place.pointer("/SpecialToken/id")).and_then(Json::as_str);
                if let Some(id) = id {
                    adds = Some(special.is_none_or(|special| special == id));
                }
            }
            _ => {}
        }
    }
    adds
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn written(tokenizer: &Json, config: &Json, vocab_size: usize) -> Result<Metadata, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let mut metadata = Metadata::default();
        put(&mut metadata, dir.path(), vocab_size, None)?;
        Ok(metadata)
    }

    fn sentence_piece() -> Json {
        json!({
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}]},
            "pre_tokenizer": null,
            "post_processor": {"type": "TemplateProcessing", "single": [
                {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
            "added_tokens": [
                {"id": 1, "content": "<s>", "special": true},
                {"id": 7, "content": "▁▁x", "special": false},
                {"id": 8, "content": "<|turn|>", "special": false},
            ],
            "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "a": 3, "b": 4, "ab": 5, "abb": 6},
                "merges": [["a", "b"], ["ab", "b"], ["a", "bb"]]},
        })
    }

    #[test]
    fn a_sentence_piece_tokenizer_has_types_and_scores_in_the_order_of_its_merges() {
        let config = json!({"bos_token": {"content": "<s>"}, "unk_token": "<unk>"});
        let metadata = written(&sentence_piece(), &config, 10).unwrap();
        let types = [UNKNOWN, CONTROL, BYTE, NORMAL, NORMAL, NORMAL, NORMAL, USER_DEFINED, CONTROL, UNUSED];
        assert_eq!(metadata.get("tokenizer.ggml.token_type"), Some(&Value::I32s(types.to_vec())));
        let Some(Value::Texts(texts)) = metadata.get("tokenizer.ggml.tokens") else { panic!("tokens") };
        assert_eq!(texts[7..], ["  x", "<|turn|>", "[PAD9]"]);
        let Some(Value::F32s(scores)) = metadata.get("tokenizer.ggml.scores") else { panic!("scores") };
        assert_eq!(scores[3..7], [UNMERGED, UNMERGED, 0.0, -1.0]);
        assert_eq!(metadata.get("tokenizer.ggml.add_space_prefix"), Some(&Value::Bool(true)));
        assert_eq!(metadata.get("tokenizer.ggml.bos_token_id"), Some(&Value::U32(1)));
        assert_eq!(metadata.get("tokenizer.ggml.add_bos_token"), Some(&Value::Bool(true)));
        assert_eq!(metadata.get("tokenizer.ggml.eos_token_id"), None);
    }

    #[test]
    fn a_tokenizer_that_llama_cpp_cannot_represent_is_refused_and_the_reason_named() {
        let refusal = |tokenizer: &Json| written(tokenizer, &json!({}), 10).map(drop).unwrap_err();
        let mut unigram = sentence_piece();
        unigram["model"] = json!({"type": "Unigram", "vocab": [["a", -1.0]]});
        assert!(refusal(&unigram).contains("Unigram"));
        let mut outside = sentence_piece();
        outside["added_tokens"][0]["id"] = json!(4_000_000_000u32);
        assert!(refusal(&outside).contains("4000000000") && refusal(&outside).contains("ends at 10"));
        let mut twice = sentence_piece();
        twice["added_tokens"][2]["content"] = json!("[PAD9]");
        assert!(refusal(&twice).contains("twice"));
        let mut bytes = sentence_piece();
        bytes["model"]["byte_fallback"] = json!(false);
        assert!(refusal(&bytes).contains("normalises texts by"));
        assert!(refusal(&json!({"model": {"type": "BPE"}})).contains("not a tokenizer"));
        assert!(refusal(&json!([])).contains("not a tokenizer"));
    }

    #[test]
    fn a_damaged_tokenizer_is_read_or_refused_but_never_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let whole = sentence_piece().to_string().into_bytes();
        let mut refused = 0;
        for at in 0..whole.len() {
            for byte in [b'9', b'"', b'{', 0xFF] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                fs::write(dir.path().join("tokenizer.json"), damaged).unwrap();
                refused += usize::from(put(&mut Metadata::default(), dir.path(), 10, None).is_err());
            }
        }
        assert!(refused > whole.len(), "{refused} of {}", 4 * whole.len());
    }
}
