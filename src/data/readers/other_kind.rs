//! What a data file is if it is no text in UTF-8: another encoding, or a file of another program.
//!
//! Enters: the first bytes of a file. Leaves: what it is and how to make a file of it that can be read. Only
//! what people take for data by mistake is recognised; anything else is explained line by line.

/// A file of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OtherKind {
    pub problem: &'static str,
    pub fix: &'static str,
}

const fn kind(problem: &'static str, fix: &'static str) -> OtherKind {
    OtherKind { problem, fix }
}

const UTF_16: OtherKind =
    kind("this file is UTF-16, but data must be UTF-8", "Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT");
const UTF_16_LE: OtherKind =
    kind("this file is UTF-16, but data must be UTF-8", "Convert it: iconv -f UTF-16LE -t UTF-8 IN > OUT");
const UTF_16_BE: OtherKind =
    kind("this file is UTF-16, but data must be UTF-8", "Convert it: iconv -f UTF-16BE -t UTF-8 IN > OUT");
const UTF_32: OtherKind =
    kind("this file is UTF-32, but data must be UTF-8", "Convert it: iconv -f UTF-32 -t UTF-8 IN > OUT");
const UTF_32_LE: OtherKind =
    kind("this file is UTF-32, but data must be UTF-8", "Convert it: iconv -f UTF-32LE -t UTF-8 IN > OUT");
const UTF_32_BE: OtherKind =
    kind("this file is UTF-32, but data must be UTF-8", "Convert it: iconv -f UTF-32BE -t UTF-8 IN > OUT");

/// The beginning of the small text that Git keeps in the place of a large file.
pub(super) const LFS_POINTER: &[u8; 40] = b"version https://git-lfs.github.com/spec/";
const NOT_FETCHED: OtherKind =
    kind("this is a pointer of Git LFS in the place of the data", "Fetch the data: git lfs pull");

/// Kinds by the bytes that they begin with. Of several that fit, the first counts.
const BY_BEGINNING: [(&[u8], OtherKind); 13] = [
    (b"\xff\xfe\x00\x00", UTF_32),
    (b"\x00\x00\xfe\xff", UTF_32),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (LFS_POINTER, NOT_FETCHED),
    (b"PAR1\x15", kind("this file is Parquet", "Give it a name that ends in .parquet")),
    (
        b"PK\x03\x04",
        kind("this file is a zip archive or a spreadsheet", "Unpack it, or save the table as CSV in UTF-8"),
    ),
    (
        b"\xd0\xcf\x11\xe0",
        kind(
            "this file is a spreadsheet or a document",
            "Save the table as CSV in UTF-8, or the text as .txt",
        ),
    ),
    (
        b"BZh",
        kind(
            "this file is compressed with bzip2",
            "Unpack it with bunzip2, or compress it with gzip or zstd",
        ),
    ),
    (
        b"\xfd7zXZ\x00",
        kind("this file is compressed with xz", "Unpack it with unxz, or compress it with gzip or zstd"),
    ),
    (b"SQLite format 3\x00", kind("this file is an SQLite database", "Export the table as CSV")),
    (b"ARROW1\x00\x00", ARROW),
    (b"\xff\xff\xff\xff", ARROW),
];

const ARROW: OtherKind = kind(
    "this file is Arrow",
    "Write it as Parquet; in Python, Dataset.from_file(IN).to_parquet(OUT) of the library datasets does",
);

/// Returns what a file is that begins like this, unless it may be text in UTF-8.
pub(super) fn other_kind(start: &[u8]) -> Option<OtherKind> {
    let known = BY_BEGINNING.iter().find(|(beginning, _)| start.starts_with(beginning));
    if let Some((_, kind)) = known {
        // A text may begin with these letters.
        return (!start.starts_with(b"BZh") || start.get(4..10) == Some(b"1AY&SY")).then_some(*kind);
    }
    // Without a mark, the first two characters tell: those of data and of most texts are ASCII, and no text
    // has a zero character there.
    match start.first_chunk::<4>()?.map(|byte| byte == 0) {
        [false, true, true, true] => Some(UTF_32_LE),
        [true, true, true, false] => Some(UTF_32_BE),
        [false, true, false, true] => Some(UTF_16_LE),
        [true, false, true, false] => Some(UTF_16_BE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text in UTF-16 or UTF-32, with the lower bytes first or last.
    fn wide(text: &str, bytes: usize, lower_first: bool) -> Vec<u8> {
        let character = |c: char| {
            let mut one = (c as u32).to_le_bytes()[..bytes].to_vec();
            if !lower_first {
                one.reverse();
            }
            one
        };
        text.chars().flat_map(character).collect()
    }

    #[test]
    fn other_encodings_are_told_with_and_without_a_mark() {
        for text in ["{\"text\": \"a\"}", "prompt,completion\n", "The river\n"] {
            assert_eq!(other_kind(text.as_bytes()), None, "{text}");
            for (bytes, lower_first, without, with) in [
                (2, true, UTF_16_LE, UTF_16),
                (2, false, UTF_16_BE, UTF_16),
                (4, true, UTF_32_LE, UTF_32),
                (4, false, UTF_32_BE, UTF_32),
            ] {
                assert_eq!(other_kind(&wide(text, bytes, lower_first)), Some(without), "{text}");
                let marked = format!("\u{feff}{text}");
                assert_eq!(other_kind(&wide(&marked, bytes, lower_first)), Some(with), "{text}");
            }
        }
    }

    #[test]
    fn files_of_other_programs_are_told_and_texts_that_begin_alike_are_not() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
        assert_eq!(other_kind(pointer.as_bytes()), Some(NOT_FETCHED));
        assert_eq!(
            other_kind(b"PK\x03\x04\x14\0").unwrap().problem,
            "this file is a zip archive or a spreadsheet"
        );
        assert!(other_kind(b"BZh91AY&SY\xff").is_some());
        for text in
            ["BZh is a name", "PK is one too", "version 1", "", "a", "\u{feff}a", "SQLite", "PAR1,PAR2"]
        {
            assert_eq!(other_kind(text.as_bytes()), None, "{text}");
        }
    }
}
