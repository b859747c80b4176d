//! llama.cpp's names for the ways in which a byte-level tokenizer splits a text before it merges.
//!
//! llama.cpp does not read the regular expression of a tokenizer; a file names one that it has built in. Its
//! converter recognises a tokenizer by the tokens of a fixed text. Here it is recognised by the expression
//! itself, so that a tokenizer with another vocabulary but the same expression is known too.
//!
//! Enters: parts of `tokenizer.json`. Leaves: the name, or what is unknown.

use serde_json::Value;
use sparktune_base::escape::shortened;

/// An expression that llama.cpp knows.
struct Known {
    /// The expression as `tokenizer.json` has it.
    expression: &'static str,
    /// Whether llama.cpp takes a piece of text that is a token as that token, without merging.
    ignores_merges: bool,
    name: &'static str,
}

/// Source: the expressions in the comments of `src/llama-vocab.cpp`.
const KNOWN: &[Known] = &[
    Known {
        expression: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ignores_merges: false,
        name: "qwen2",
    },
    Known {
        expression: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ignores_merges: false,
        name: "qwen35",
    },
    Known {
        expression: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ignores_merges: true,
        name: "llama-bpe",
    },
    // Mistral Nemo.
    Known {
        expression: r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ignores_merges: true,
        name: "tekken",
    },
];

/// Returns the value of `tokenizer.ggml.pre`.
///
/// # Errors
/// What llama.cpp does not know, after the words "the tokenizer …".
pub(super) fn name(
    normalizer: Option<&Value>,
    pre_tokenizer: Option<&Value>,
    ignores_merges: bool,
) -> Result<&'static str, String> {
    // llama.cpp does not normalise. Text that people type is in NFC already.
    if let Some(normalizer) = normalizer.filter(|it| !it.is_null() && kind(it) != Some("NFC")) {
        return Err(format!("normalises texts by {}", shown(normalizer)));
    }
    let unknown = || format!("splits texts by {}", pre_tokenizer.map_or_else(|| "nothing".to_owned(), shown));
    let steps = pre_tokenizer.map_or_else(Vec::new, steps);
    let Some((bytes, before)) = steps.split_last().filter(|(last, _)| kind(last) == Some("ByteLevel")) else {
        return Err(unknown());
    };
    let is = |value: &Value, field: &str, default: bool| {
        value.get(field).map_or(default, |flag| flag.as_bool() == Some(true))
    };
    let (splits_words, adds_space) = (is(bytes, "use_regex", true), is(bytes, "add_prefix_space", true));
    if adds_space {
        return Err("puts a space before each text".to_owned());
    }
    let (name, theirs_ignores) = match before {
        [] if splits_words => ("gpt-2", false),
        [digits]
            if splits_words && kind(digits) == Some("Digits") && is(digits, "individual_digits", false) =>
        {
            ("smollm", false)
        }
        [split] if !splits_words && is_plain_split(split) => {
            let expression = split.pointer("/pattern/Regex").and_then(Value::as_str);
            let known = KNOWN.iter().find(|known| Some(known.expression) == expression);
            known.map(|known| (known.name, known.ignores_merges)).ok_or_else(unknown)?
        }
        _ => return Err(unknown()),
    };
    if ignores_merges != theirs_ignores {
        let has = if ignores_merges { "has" } else { "does not have" };
        return Err(format!("{has} `ignore_merges`, unlike `{name}`, whose expression it has"));
    }
    Ok(name)
}

fn kind(value: &Value) -> Option<&str> {
    value.get("type")?.as_str()
}

/// Returns the steps of a pre-tokenizer, which may be a sequence.
fn steps(value: &Value) -> Vec<&Value> {
    match value.get("pretokenizers").and_then(Value::as_array) {
        Some(steps) if kind(value) == Some("Sequence") => steps.iter().collect(),
        _ => vec![value],
    }
}

/// Returns whether a step makes each match of its expression a piece.
fn is_plain_split(step: &Value) -> bool {
    kind(step) == Some("Split")
        && step.get("behavior").and_then(Value::as_str) == Some("Isolated")
        && step.get("invert").is_none_or(|invert| invert.as_bool() == Some(false))
}

/// Returns JSON for a message, shortened, because a hostile file may have any.
fn shown(value: &Value) -> String {
    shortened(&value.to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn split(expression: &str) -> Value {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]})
    }

    #[test]
    fn every_known_expression_has_its_name_and_any_other_is_refused_and_shown() {
        for known in KNOWN {
            let name = |ignores| name(None, Some(&split(known.expression)), ignores);
            assert_eq!(name(known.ignores_merges).unwrap(), known.name);
            assert!(name(!known.ignores_merges).unwrap_err().contains(known.name));
            let other = split(&known.expression.replace("{L}", "{Han}"));
            let error = super::name(None, Some(&other), known.ignores_merges).unwrap_err();
            assert!(error.contains("splits texts by") && error.contains("Split"), "{error}");
        }
        let nfc = json!({"type": "NFC"});
        assert_eq!(name(Some(&nfc), Some(&split(KNOWN[0].expression)), false).unwrap(), "qwen2");
        let lower = json!({"type": "Lowercase"});
        let error = name(Some(&lower), Some(&split(KNOWN[0].expression)), false).unwrap_err();
        assert!(error.contains("Lowercase"), "{error}");
    }

    #[test]
    fn the_splits_without_an_expression_of_their_own_are_known() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false});
        assert_eq!(name(None, Some(&bytes), false).unwrap(), "gpt-2");
        let digits = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, bytes]});
        assert_eq!(name(None, Some(&digits), false).unwrap(), "smollm");
        let with_space = json!({"type": "ByteLevel", "add_prefix_space": true});
        assert!(name(None, Some(&with_space), false).unwrap_err().contains("space"));
        assert!(name(None, None, false).unwrap_err().contains("nothing"));
        let long = name(None, Some(&json!({"type": "x".repeat(1 << 20)})), false).unwrap_err();
        assert!(long.len() < 1000);
    }
}
