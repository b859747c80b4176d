//! A fast path for byte-level BPE tokenizers (Qwen, Llama 3, GPT-2 and similar ones), which returns the same
//! ids several times as fast.
//!
//! The `tokenizers` crate spends most of its time on alignments and on a string per token, which training
//! data does not need. Here the text is split into words (`word_scanner`, or the tokenizer's own pattern
//! if it is none of the usual ones), the bytes of a word are merged once (`word_merges`), and the result
//! is cached (`word_cache`). Nothing is allocated for a word that is in the cache. Anything the fast path
//! does not support (another kind of tokenizer, text that is not NFC) takes the slow path. A tokenizer
//! for which both paths differ on a set of difficult texts does not get a fast path at all.

use std::sync::Mutex;

use aho_corasick::{AhoCorasick, MatchKind};
use regex_automata::{Anchored, Input, meta};
use serde_json::Value;
use tokenizers::{Model, ModelWrapper, Tokenizer};
use unicode_normalization::{IsNormalized, is_nfc_quick};

use crate::word_cache::{LONGEST_WORD, WordCache};
use crate::word_merges::WordMerges;
use crate::word_scanner::WordScanner;

/// The end of the patterns in use: a run of white space leaves its last character to the next word. `regex`
/// has no look-ahead, so the pattern is compiled without it and the character is given back by this code.
const LOOK_AHEAD: &str = r"|\s+(?!\S)|\s+";
const LINE_ENDS_FIRST: &str = r"|\s*[\r\n]+";

/// The number of bytes above which a word, and with it the text, takes the slow path, which limits the size
/// of a text.
const LARGEST_WORD: usize = 1 << 20;

pub(crate) struct ByteBpe {
    added: Option<AhoCorasick>,
    added_ids: Vec<u32>,
    /// The way to find words without the regular expression, if the pattern is a usual one.
    scanner: Option<WordScanner>,
    words: meta::Regex,
    gives_back: bool,
    /// Whether white space that ends in a line break is matched by an alternative of its own and keeps its
    /// last character.
    line_ends_first: bool,
    nfc: bool,
    chars: [char; 256],
    merges: WordMerges,
    /// One cache for each thread, so that threads do not wait for each other. It is made when its thread
    /// first needs it.
    caches: Vec<Mutex<Option<Cache>>>,
}

struct Cache {
    search: meta::Cache,
    words: WordCache,
    /// The tokens of the word that is being merged.
    ids: Vec<u32>,
}

impl Cache {
    fn new(words: &meta::Regex) -> Self {
        Self { search: words.create_cache(), words: WordCache::new(), ids: Vec::new() }
    }
}

impl ByteBpe {
    /// Creates the fast path, or returns `None` if this tokenizer is of another kind.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let plain = model.dropout.is_none_or(|d| d == 0.0)
            && model.continuing_subword_prefix.is_none()
            && model.end_of_word_suffix.is_none();
        let chars = byte_chars();
        if !plain || chars.iter().any(|c| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_none()) {
            return None;
        }
        let nfc = match serde_json::to_value(tokenizer.get_normalizer()).ok()? {
            Value::Null => false,
            normalizer if normalizer["type"] == "NFC" => true,
            _ => return None,
        };
        let pattern = pattern(&serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?)?;
        let stripped = pattern.strip_suffix(LOOK_AHEAD);
        let words = meta::Regex::new(&stripped.map_or(pattern.clone(), |p| format!("{p}|\\s+"))).ok()?;

        let mut added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        if added.iter().any(|(_, t)| t.normalized || t.single_word || t.lstrip || t.rstrip) {
            return None;
        }
        let contents: Vec<&str> = added.iter().map(|(_, t)| t.content.as_str()).collect();
        let found = if contents.is_empty() {
            None
        } else {
            Some(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&contents).ok()?)
        };
        let bpe = Self {
            added: found,
            added_ids: added.iter().map(|(id, _)| *id).collect(),
            scanner: WordScanner::of_pattern(&pattern),
            gives_back: stripped.is_some(),
            line_ends_first: stripped.is_some_and(|p| p.ends_with(LINE_ENDS_FIRST)),
            nfc,
            merges: WordMerges::new(model, &chars)?,
            chars,
            caches: (0..=rayon::current_num_threads()).map(|_| Mutex::new(None)).collect(),
            words,
        };
        bpe.agrees(tokenizer, &contents).then_some(bpe)
    }

    /// Calls `token(id, bytes)` for each token of the text in order; the bytes of all tokens add up to the
    /// text. Returns `false` if the text must take the slow path, even if `token` was already called.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        mut token: impl FnMut(u32, usize),
    ) -> bool {
        let own = rayon::current_thread_index().map_or(0, |i| i + 1);
        let mut locked = self.caches.get(own).and_then(|c| c.try_lock().ok());
        let mut spare = None;
        let cache =
            locked.as_deref_mut().unwrap_or(&mut spare).get_or_insert_with(|| Cache::new(&self.words));
        let mut done = 0;
        let matches = self.added.iter().flat_map(|a| a.find_iter(text));
        for found in matches.map(Some).chain([None]) {
            let end = found.map_or(text.len(), |f| f.start());
            if !self.piece(tokenizer, &text[done..end], cache, &mut token) {
                return false;
            }
            if let Some(found) = found {
                token(self.added_ids[found.pattern().as_usize()], found.len());
                done = found.end();
            }
        }
        true
    }

    /// Encodes text between added tokens.
    fn piece(
        &self,
        tokenizer: &Tokenizer,
        piece: &str,
        cache: &mut Cache,
        token: &mut impl FnMut(u32, usize),
    ) -> bool {
        if self.nfc && !piece.is_ascii() && is_nfc_quick(piece.chars()) != IsNormalized::Yes {
            return false;
        }
        let mut at = 0;
        if let Some(scanner) = self.scanner {
            while at < piece.len() {
                let end = scanner.word_end(piece, at);
                if end == at || !self.word(tokenizer, piece, at, end, cache, token) {
                    return false;
                }
                at = end;
            }
            return true;
        }
        while at < piece.len() {
            let end = match self.match_end(piece, at, cache) {
                Some(end) if end == at => return false,
                Some(end) => self.word_end(piece, at, end),
                // Text that no alternative matches is a word too.
                None => piece[at..]
                    .char_indices()
                    .skip(1)
                    .map(|(i, _)| at + i)
                    .find(|&i| self.match_end(piece, i, cache).is_some())
                    .unwrap_or(piece.len()),
            };
            if !self.word(tokenizer, piece, at, end, cache, token) {
                return false;
            }
            at = end;
        }
        true
    }

    /// Returns the end of the match that begins at `at`. The match is anchored, so that the regex does not
    /// search backwards for its start.
    fn match_end(&self, piece: &str, at: usize, cache: &mut Cache) -> Option<usize> {
        let input = Input::new(piece).span(at..piece.len()).anchored(Anchored::Yes);
        self.words.search_half_with(&mut cache.search, &input).map(|m| m.offset())
    }

    fn word_end(&self, piece: &str, start: usize, end: usize) -> usize {
        let word = &piece[start..end];
        let last = match word.chars().next_back() {
            Some(c) if c.is_whitespace() => c,
            _ => return end,
        };
        let kept = !self.gives_back
            || end == piece.len()
            || word.len() == last.len_utf8()
            || (self.line_ends_first && matches!(last, '\r' | '\n'))
            || !word.chars().all(char::is_whitespace);
        if kept { end } else { end - last.len_utf8() }
    }

    /// Encodes the word `piece[at..end]`.
    #[inline]
    fn word(
        &self,
        tokenizer: &Tokenizer,
        piece: &str,
        at: usize,
        end: usize,
        cache: &mut Cache,
        token: &mut impl FnMut(u32, usize),
    ) -> bool {
        if let Some(ids) = cache.words.get(piece.as_bytes(), at, end) {
            ids.iter().for_each(|id| token(*id, self.merges.bytes_of(*id) as usize));
            return true;
        }
        if end - at > LONGEST_WORD {
            // The model takes about a hundred bytes for each byte of a word.
            if end - at > LARGEST_WORD {
                return false;
            }
            return self.long_word(tokenizer, &piece[at..end], token);
        }
        self.merges.merge(&piece.as_bytes()[at..end], &mut cache.ids);
        cache.words.insert(piece.as_bytes(), at, end, &cache.ids);
        cache.ids.iter().for_each(|id| token(*id, self.merges.bytes_of(*id) as usize));
        true
    }

    /// Encodes a word that is too long to be merged pair by pair, with the tokenizer's own model.
    fn long_word(&self, tokenizer: &Tokenizer, word: &str, token: &mut impl FnMut(u32, usize)) -> bool {
        let mapped: String = word.bytes().map(|b| self.chars[usize::from(b)]).collect();
        let Ok(tokens) = tokenizer.get_model().tokenize(&mapped) else { return false };
        let bytes = |token: &tokenizers::Token| token.value.chars().count();
        if tokens.iter().map(bytes).sum::<usize>() != word.len() {
            return false;
        }
        tokens.iter().for_each(|of| token(of.id, bytes(of)));
        true
    }

    /// Returns whether both paths give the same ids for the same bytes, on texts that patterns treat in
    /// special ways.
    fn agrees(&self, tokenizer: &Tokenizer, added: &[&str]) -> bool {
        let mut texts: Vec<String> = AWKWARD.iter().map(|t| (*t).to_owned()).collect();
        texts.push(added.join(" "));
        texts.push(added.join("\n\n"));
        texts.push(added.concat());
        texts.push(AWKWARD.concat());
        texts.iter().all(|text| {
            let mut fast = Vec::new();
            let mut at = 0;
            if !self.encode(tokenizer, text, |id, bytes| {
                fast.push((id, text.floor_char_boundary(at), text.ceil_char_boundary(at + bytes)));
                at += bytes;
            }) {
                // Such text takes the slow path anyway.
                return true;
            }
            let Ok(slow) = tokenizer.encode(text.as_str(), false) else { return false };
            let slow = slow.get_ids().iter().zip(slow.get_offsets()).map(|(&id, &(start, end))| {
                (id, text.floor_char_boundary(start), text.ceil_char_boundary(end))
            });
            fast.into_iter().eq(slow)
        })
    }
}

const AWKWARD: [&str; 16] = [
    "Hello world, it's 3 o'clock; WE'LL see I'd 'tis x's",
    "  two  spaces   three    four ",
    "\n\n\nlines\r\n\r\n  indented\n\n  \n\t\ttabs\t \n ",
    " \u{a0}\u{2003}wide\u{3000}  spaces\u{2028}x\u{85} y\u{b}\u{c}z",
    "1234567890 3.14159 1,000,000 x2y ²³ ½ ٣٤",
    "naïve Straße Москва 東京は日本の首都です。 שלום العربية हिन्दी ไทย",
    "👩\u{200d}👩\u{200d}👧 🇯🇵 🙂!? ❤\u{fe0f}\u{200b}x",
    "def f(x):\n\treturn x ** 2  # squared\n\n\nif __name__ == '__main__':\n    print(f(3))\n",
    "!!!???...---===///\n\n(((a)))[[b]]{{c}} <b>&amp;</b> \\n \\t \"q\"",
    "https://example.org/a_b-c?d=e&f=%20#g user@example.org",
    "   ",
    "\n",
    " x",
    "x ",
    "\u{301}combining first e\u{328}\u{301} ę́",
    "control\u{0}\u{1}\u{7f}\u{ad}soft\u{feff}mark",
];

/// Returns the pattern that splits text into words: `Sequence[Split(regex, isolated), ByteLevel(no regex, no
/// prefix space)]`.
fn pattern(pre_tokenizer: &Value) -> Option<String> {
    let [split, bytes] = pre_tokenizer.get("pretokenizers")?.as_array()?.as_slice() else { return None };
    let fits = pre_tokenizer["type"] == "Sequence"
        && split["type"] == "Split"
        && split["behavior"] == "Isolated"
        && split["invert"] == false
        && bytes["type"] == "ByteLevel"
        && bytes["use_regex"] == false
        && bytes["add_prefix_space"] == false;
    fits.then(|| split["pattern"]["Regex"].as_str().map(str::to_owned))?
}

/// Returns the character for each byte in byte-level vocabularies: printable Latin-1 bytes represent
/// themselves, the others use characters from U+0100 on.
fn byte_chars() -> [char; 256] {
    let mut next = '\u{100}'..;
    std::array::from_fn(|byte| {
        let c = char::from(byte as u8);
        let printable = matches!(c, '!'..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{ff}');
        if printable { c } else { next.next().expect("256 bytes at most") }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    /// Builds a tokenizer with the given pattern, all bytes, and merges of frequent pairs.
    fn tokenizer(pattern: &str, normalizer: Value) -> Tokenizer {
        let mut vocab = serde_json::Map::new();
        for c in byte_chars() {
            vocab.insert(c.to_string(), vocab.len().into());
        }
        let pairs = [
            ("h", "e"),
            ("l", "l"),
            ("he", "ll"),
            ("Ġ", "Ġ"),
            ("Ġ", "x"),
            ("Ċ", "Ċ"),
            ("Ã", "©"),
            ("1", "2"),
        ];
        for (a, b) in pairs {
            vocab.insert(format!("{a}{b}"), vocab.len().into());
        }
        let added = |id: usize, content: &str| {
            serde_json::json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true })
        };
        let size = vocab.len();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
            "added_tokens": [added(size, "<|a|>"), added(size + 1, "<|a|>b")],
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false } ] },
            "post_processor": null, "decoder": null,
            "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                "merges": pairs.map(|(a, b)| [a, b]) },
        });
        Tokenizer::from_bytes(json.to_string()).unwrap()
    }

    const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

    fn both_ways(tokenizer: &Tokenizer, bpe: &ByteBpe, text: &str) -> (Option<Vec<u32>>, Vec<u32>) {
        let mut ids = Vec::new();
        let mut bytes = 0;
        let known = bpe.encode(tokenizer, text, |id, n| {
            ids.push(id);
            bytes += n;
        });
        assert!(!known || bytes == text.len());
        (known.then_some(ids), tokenizer.encode(text, false).unwrap().get_ids().to_vec())
    }

    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            3 => "[ \t\n\r]{1,4}",
            3 => "[a-z'A-Z0-9.,!?]{1,8}",
            1 => Just("<|a|>".to_owned()),
            1 => Just("<|a|>b".to_owned()),
            1 => Just("hello é e\u{301} 東京".to_owned()),
            2 => any::<String>(),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    #[test]
    fn the_known_patterns_get_the_short_cut_and_others_do_not() {
        let nfc = serde_json::json!({ "type": "NFC" });
        for pattern in [QWEN, LLAMA3, GPT2] {
            assert!(ByteBpe::new(&tokenizer(pattern, nfc.clone())).is_some());
            assert!(ByteBpe::new(&tokenizer(pattern, Value::Null)).is_some());
        }
        assert!(ByteBpe::new(&tokenizer(r"a(?=b)|\s+", Value::Null)).is_none(), "look-ahead elsewhere");
        let lower = serde_json::json!({ "type": "Lowercase" });
        assert!(ByteBpe::new(&tokenizer(QWEN, lower)).is_none());
    }

    /// Every known pattern with and without NFC: the tokenizer, its fast path, and whether it normalises.
    static ALL: LazyLock<Vec<(Tokenizer, ByteBpe, bool)>> = LazyLock::new(|| {
        let normalizers = [Value::Null, serde_json::json!({ "type": "NFC" })];
        let each = [QWEN, LLAMA3, GPT2].into_iter().flat_map(|p| normalizers.iter().map(move |n| (p, n)));
        each.map(|(pattern, normalizer)| {
            let tokenizer = tokenizer(pattern, normalizer.clone());
            let bpe = ByteBpe::new(&tokenizer).unwrap();
            (tokenizer, bpe, !normalizer.is_null())
        })
        .collect()
    });

    proptest! {
        #[test]
        fn both_ways_give_the_same_ids(texts in prop::collection::vec(text(), 1..4)) {
            for (tokenizer, bpe, normalises) in ALL.iter() {
                // The texts are encoded twice, so that cached words are used.
                for text in texts.iter().chain(&texts) {
                    match both_ways(tokenizer, bpe, text) {
                        (Some(fast), slow) => prop_assert_eq!(fast, slow, "{:?}", text),
                        (None, _) => prop_assert!(normalises, "only text that is not NFC takes the long way"),
                    }
                }
            }
        }
    }
}
