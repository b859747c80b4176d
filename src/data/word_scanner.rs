//! Splits text into the words of byte-level BPE tokenizers, without a regular expression.
//!
//! Published tokenizers share a handful of patterns, which differ in a few points ([`Pattern`]). For these,
//! the end of a word follows from the classes of its characters. The pattern stays the specification: a
//! property test compares the two on any text, and any other pattern is matched by the regular expression.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// The classes of characters that the patterns tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Punctuation, symbols, controls: everything that has no class of its own.
    Other,
    /// `\p{L}`
    Letter,
    /// `\p{M}`
    Mark,
    /// `\p{N}`
    Number,
    /// White space but line breaks.
    Space,
    /// `\r` and `\n`
    LineBreak,
}

/// The characters of one page of the table.
const PAGE: usize = 256;

/// The class of every character, by pages, most of which are alike.
struct Kinds {
    ascii: [Kind; 128],
    page_of: Vec<u16>,
    pages: Vec<[Kind; PAGE]>,
}

static KINDS: LazyLock<Kinds> = LazyLock::new(Kinds::new);

impl Kinds {
    fn new() -> Self {
        let mut all = vec![Kind::Other; 0x11_0000];
        for (class, kind) in
            [(r"\p{M}", Kind::Mark), (r"\p{N}", Kind::Number), (r"\p{L}", Kind::Letter), (r"\s", Kind::Space)]
        {
            let hir = regex_syntax::parse(class).expect("the classes are in Unicode");
            let HirKind::Class(Class::Unicode(ranges)) = hir.kind() else { continue };
            for range in ranges.ranges() {
                all[range.start() as usize..=range.end() as usize].fill(kind);
            }
        }
        all['\r' as usize] = Kind::LineBreak;
        all['\n' as usize] = Kind::LineBreak;
        let mut pages: Vec<[Kind; PAGE]> = Vec::new();
        let mut page_of = Vec::new();
        for page in all.as_chunks::<PAGE>().0 {
            let known = pages.iter().position(|known| known == page);
            page_of.push(known.unwrap_or_else(|| {
                pages.push(*page);
                pages.len() - 1
            }) as u16);
        }
        Self { ascii: std::array::from_fn(|c| all[c]), page_of, pages }
    }

    fn of(&self, c: char) -> Kind {
        self.pages[usize::from(self.page_of[c as usize / PAGE])][c as usize % PAGE]
    }
}

/// How many numerals make a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numerals {
    One,
    UpToThree,
    /// Any number, also behind a space.
    All,
}

/// Finds the words of a known pattern.
#[derive(Clone, Copy)]
pub(crate) struct WordScanner {
    pattern: Pattern,
    kinds: &'static Kinds,
}

/// A pattern, by what distinguishes it from others.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    /// Whether `'S` is a contraction like `'s`.
    ignores_case: bool,
    /// Whether letters take any one character before them along, and not only a space.
    takes_any_before: bool,
    /// Whether marks count as letters.
    marks_are_letters: bool,
    numerals: Numerals,
    /// Whether line breaks belong to the punctuation before them, and end white space.
    line_ends_first: bool,
}

/// The known patterns.
const PATTERNS: [(&str, Pattern); 4] = [
    // Qwen 2, 2.5 and 3.
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        MODERN,
    ),
    // Qwen 3.5.
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern { marks_are_letters: true, ..MODERN },
    ),
    // Llama 3.
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern { numerals: Numerals::UpToThree, ..MODERN },
    ),
    // GPT-2.
    (
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        Pattern {
            ignores_case: false,
            takes_any_before: false,
            marks_are_letters: false,
            numerals: Numerals::All,
            line_ends_first: false,
        },
    ),
];

const MODERN: Pattern = Pattern {
    ignores_case: true,
    takes_any_before: true,
    marks_are_letters: false,
    numerals: Numerals::One,
    line_ends_first: true,
};

impl WordScanner {
    /// Returns the scanner for a pattern, or `None` if the pattern is another one.
    pub(crate) fn of_pattern(pattern: &str) -> Option<Self> {
        let (_, pattern) = PATTERNS.iter().find(|(known, _)| *known == pattern)?;
        Some(Self { pattern: *pattern, kinds: &KINDS })
    }

    /// Returns the end of the word that starts at byte `at`, which is before the end of the text.
    pub(crate) fn word_end(self, text: &str, at: usize) -> usize {
        let pattern = self.pattern;
        let text = Text { text, kinds: self.kinds, marks_are_letters: pattern.marks_are_letters };
        let Some((first, after)) = text.at(at) else { return at };
        if text.byte(at) == Some(b'\'')
            && let Some(end) = pattern.contraction(&text, at)
        {
            return end;
        }
        let next = || text.at(after).map(|(kind, _)| kind);
        let takes_next = match first {
            Kind::Letter => return text.run(after, Kind::Letter),
            Kind::Number if pattern.numerals != Numerals::All => {
                let most = if pattern.numerals == Numerals::One { 1 } else { 3 };
                return text.run_of(at, Kind::Number, most);
            }
            Kind::Number => return text.run(after, Kind::Number),
            Kind::LineBreak => false,
            Kind::Space => pattern.takes_any_before || text.byte(at) == Some(b' '),
            Kind::Other | Kind::Mark => pattern.takes_any_before,
        };
        let is_space = text.byte(at) == Some(b' ');
        match next() {
            Some(Kind::Letter) if takes_next => return text.run(after, Kind::Letter),
            Some(Kind::Number) if is_space && pattern.numerals == Numerals::All => {
                return text.run(after, Kind::Number);
            }
            Some(Kind::Other | Kind::Mark) if is_space => return pattern.punctuation(&text, after),
            _ => {}
        }
        match first {
            Kind::Other | Kind::Mark => pattern.punctuation(&text, at),
            _ => pattern.white_space(&text, at),
        }
    }
}

impl Pattern {
    /// Returns the end of a contraction at an apostrophe.
    fn contraction(self, text: &Text<'_>, at: usize) -> Option<usize> {
        let lower = |byte: u8| if self.ignores_case { byte.to_ascii_lowercase() } else { byte };
        let rest = text.text.as_bytes().get(at + 1..)?;
        let one = lower(*rest.first()?);
        if matches!(one, b's' | b't' | b'm' | b'd') {
            return Some(at + 2);
        }
        // The long s is an s of another case.
        if self.ignores_case && rest.starts_with("ſ".as_bytes()) {
            return Some(at + 1 + 'ſ'.len_utf8());
        }
        let two = lower(*rest.get(1)?);
        matches!((one, two), (b'r' | b'v', b'e') | (b'l', b'l')).then_some(at + 3)
    }

    /// Returns the end of punctuation that starts at `at`.
    fn punctuation(self, text: &Text<'_>, at: usize) -> usize {
        let end = text.punctuation(at);
        if self.line_ends_first { text.run(end, Kind::LineBreak) } else { end }
    }

    /// Returns the end of white space that starts at `at`: behind its last line break, or else before its
    /// last character, which the next word takes.
    fn white_space(self, text: &Text<'_>, at: usize) -> usize {
        let (mut end, mut last, mut behind_break) = (at, at, None);
        while let Some((kind @ (Kind::Space | Kind::LineBreak), after)) = text.at(end) {
            (last, end) = (end, after);
            if kind == Kind::LineBreak {
                behind_break = Some(after);
            }
        }
        match behind_break {
            Some(end) if self.line_ends_first => end,
            _ if end == text.text.len() || last == at => end,
            _ => last,
        }
    }
}

/// A text whose characters have kinds.
struct Text<'a> {
    text: &'a str,
    kinds: &'a Kinds,
    marks_are_letters: bool,
}

impl Text<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    /// Returns the kind of the character at `at`, and its end.
    #[inline]
    fn at(&self, at: usize) -> Option<(Kind, usize)> {
        match self.byte(at)? {
            byte @ ..128 => Some((self.kinds.ascii[usize::from(byte)], at + 1)),
            _ => self.beyond_ascii(at),
        }
    }

    /// Does the same for a character beyond ASCII.
    #[cold]
    fn beyond_ascii(&self, at: usize) -> Option<(Kind, usize)> {
        let c = self.text[at..].chars().next()?;
        let kind = match self.kinds.of(c) {
            Kind::Mark if self.marks_are_letters => Kind::Letter,
            kind => kind,
        };
        Some((kind, at + c.len_utf8()))
    }

    /// Returns the end of the characters of one kind from `at` on.
    #[inline]
    fn run(&self, mut at: usize, of: Kind) -> usize {
        while let Some((kind, after)) = self.at(at)
            && kind == of
        {
            at = after;
        }
        at
    }

    /// Returns the end of at most so many characters of one kind from `at` on.
    fn run_of(&self, mut at: usize, of: Kind, most: usize) -> usize {
        for _ in 0..most {
            match self.at(at) {
                Some((kind, after)) if kind == of => at = after,
                _ => break,
            }
        }
        at
    }

    /// Returns the end of the characters that are neither white space, letters nor numerals.
    fn punctuation(&self, mut at: usize) -> usize {
        while let Some((Kind::Other | Kind::Mark, after)) = self.at(at) {
            at = after;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_automata::{Anchored, Input, meta};

    use super::*;

    /// A known pattern without its look-ahead, which `regex` does not have, and its scanner.
    struct Known {
        pattern: &'static str,
        before_space: meta::Regex,
        scanner: WordScanner,
    }

    static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| {
        let known = |(pattern, _): (&'static str, Pattern)| Known {
            pattern,
            before_space: meta::Regex::new(pattern.strip_suffix(r"|\s+(?!\S)|\s+").unwrap()).unwrap(),
            scanner: WordScanner::of_pattern(pattern).unwrap(),
        };
        PATTERNS.into_iter().map(known).collect()
    });

    static SPACE: LazyLock<meta::Regex> = LazyLock::new(|| meta::Regex::new(r"\s+").unwrap());

    /// The words of a pattern, with the look-ahead of its last alternatives done here.
    fn words_by_regex(known: &Known, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let end_of = |regex: &meta::Regex| {
                let input = Input::new(text).span(at..text.len()).anchored(Anchored::Yes);
                regex.search_half(&input).map(|found| found.offset())
            };
            let end = end_of(&known.before_space).unwrap_or_else(|| {
                let end = end_of(&SPACE).expect("everything else is a word of its own");
                let last = text[..end].chars().next_back().unwrap().len_utf8();
                // White space gives its last character back, unless nothing is left or nothing follows.
                if end == text.len() || end - last == at { end } else { end - last }
            });
            words.push(text[at..end].to_owned());
            at = end;
        }
        words
    }

    fn words(scanner: WordScanner, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let end = scanner.word_end(text, at);
            assert!(end > at, "{text:?} at {at}");
            words.push(text[at..end].to_owned());
            at = end;
        }
        words
    }

    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            3 => "[ \t\n\r\u{b}\u{a0}\u{2003}\u{3000}]{1,4}",
            3 => "[a-z'A-Z0-9.,!?]{1,8}",
            2 => "'[sStTrReEvVmMlLdDſkK]{0,3}",
            2 => "[\\p{M}\\p{L}\\p{N}]{1,5}",
            1 => "[\\p{M}\\p{S}\\p{P}]{1,4}",
            2 => any::<String>(),
        ];
        prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn the_words_are_those_of_the_pattern(text in text()) {
            for known in KNOWN.iter() {
                prop_assert_eq!(
                    words(known.scanner, &text), words_by_regex(known, &text), "{}", known.pattern
                );
            }
        }
    }

    #[test]
    fn every_character_by_itself_and_next_to_others_is_as_the_pattern_has_it() {
        // The planes that Unicode uses. One text per page keeps a failure readable.
        for page in (0..0x3_4000u32).chain(0xE_0000..0xE_0200).step_by(PAGE) {
            let chars = (page..page + PAGE as u32).filter_map(char::from_u32);
            let text: String = chars.flat_map(|c| [c, 'a', c, '1', ' ', c, '\n']).collect();
            for known in KNOWN.iter() {
                let words = words(known.scanner, &text);
                assert_eq!(words, words_by_regex(known, &text), "{page:x} {}", known.pattern);
            }
        }
    }
}
