//! What was found in the data: `report.json`, and the same for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::format::Format;
use crate::lengths::LengthReport;
use crate::rejection::{Kind, Rejection};

/// Everything `check` and `prepare` found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The input files in order.
    pub files: Vec<FileReport>,
    /// Lines read, blank ones included.
    pub lines: u64,
    /// Blank lines: skipped, not counted as rejected.
    pub blank_lines: u64,
    /// Accepted examples.
    pub examples: u64,
    /// Rejected lines. `examples + rejected + blank_lines = lines`.
    pub rejected: u64,
    /// Rejected lines by kind, most frequent first.
    pub rejections: Vec<RejectionCount>,
    /// Examples that are exact copies of an earlier one of the same side (train or eval). They are kept.
    pub duplicates: Finding,
    /// Eval examples that are also in the training data.
    pub in_train_and_eval: Finding,
    /// Examples with an assistant turn that says nothing.
    pub empty_assistant_turns: Finding,
    /// Examples with an unusual order of speakers that were accepted all the same.
    pub unusual_order: Finding,
    /// Examples whose own text has special tokens written out, which become the real tokens. `None` without
    /// a model.
    pub special_tokens_in_text: Option<Finding>,
    /// Bytes of text in accepted examples.
    pub text_bytes: u64,
    /// Token counts. `None` without a model.
    pub tokens: Option<TokenCounts>,
    /// Lengths of accepted examples, in tokens with a model, in bytes without. `None` when there are none.
    pub lengths: Option<LengthReport>,
    /// Which side the examples went to. `None` where nothing was split.
    pub split: Option<SplitReport>,
}

/// One input file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileReport {
    /// As the user named it.
    pub name: String,
    /// Whether it was named as eval data.
    pub eval: bool,
    /// Size on disk.
    pub bytes: u64,
    /// How its lines were read. `None` if no line could be recognised.
    pub format: Option<Format>,
    /// Lines, blank ones included.
    pub lines: u64,
    /// Accepted examples.
    pub examples: u64,
    /// Rejected lines.
    pub rejected: u64,
}

/// Where an example is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The file, as the user named it.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
}

/// Rejected lines of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectionCount {
    /// The kind.
    pub kind: Kind,
    /// How many.
    pub count: u64,
    /// Where the first is.
    pub first: Place,
    /// What is wrong with the first.
    pub example: Rejection,
}

/// Accepted examples with something worth knowing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How many examples.
    pub examples: u64,
    /// How often, where it can happen several times in one example.
    pub occurrences: u64,
    /// The first few places.
    pub first: Vec<Place>,
    /// What exactly it was at the first place, where that differs between examples.
    pub note: Option<String>,
}

/// Tokens of all accepted examples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// All tokens.
    pub total: u64,
    /// Those that carry loss.
    pub targets: u64,
    /// `targets / total`.
    pub target_share: f64,
}

/// How many examples went to which side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitReport {
    /// Training examples.
    pub train_examples: u64,
    /// Held-out examples.
    pub eval_examples: u64,
}

impl Report {
    /// Share of non-blank lines that were rejected, 0 to 1.
    pub fn rejected_share(&self) -> f64 {
        match self.rejected + self.examples {
            0 => 0.0,
            lines => self.rejected as f64 / lines as f64,
        }
    }

    /// Whether the data is to be refused (exit code 3): a larger share than `max_rejected` was rejected, or
    /// nothing is left.
    pub fn exceeds(&self, max_rejected: f64) -> bool {
        self.examples == 0 || self.rejected_share() > max_rejected
    }

    /// Rejected lines of a kind.
    pub fn rejected_as(&self, kind: Kind) -> u64 {
        self.rejections.iter().find(|r| r.kind == kind).map_or(0, |r| r.count)
    }
}

/// Text from data and file names, made harmless for a terminal: control characters and bidi overrides become
/// escapes.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let overrides = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        if c.is_control() || overrides { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", printable(&self.file), self.line)
    }
}

/// The report as lines of text.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let format = file.format.map_or("format not recognised", Format::name);
            let side = if file.eval { ", eval" } else { "" };
            writeln!(f, "{} ({format}{side}): {} lines", printable(&file.name), file.lines)?;
        }
        write!(f, "{} examples accepted, {} lines rejected", self.examples, self.rejected)?;
        if self.rejected > 0 {
            write!(f, " ({:.2} %)", 100.0 * self.rejected_share())?;
        }
        writeln!(f, ", {} blank", self.blank_lines)?;
        for r in &self.rejections {
            writeln!(f, "  {:>8} × {}: {}", r.count, r.first, printable(&r.example.to_string()))?;
        }
        for line in self.findings() {
            writeln!(f, "{line}")?;
        }
        if let Some(tokens) = &self.tokens {
            let share = 100.0 * tokens.target_share;
            writeln!(f, "{} tokens, {} of them carry loss ({share:.1} %)", tokens.total, tokens.targets)?;
        }
        if let Some(split) = &self.split {
            writeln!(f, "{} train, {} eval", split.train_examples, split.eval_examples)?;
        }
        match &self.lengths {
            Some(lengths) => write!(f, "{lengths}"),
            None => Ok(()),
        }
    }
}

impl Report {
    /// What a person should know of the accepted examples, one escaped line each: copies, overlap, empty
    /// turns, ….
    pub fn findings(&self) -> Vec<String> {
        let findings = [
            ("exact copies of an earlier example", Some(&self.duplicates)),
            ("eval examples that are also trained on", Some(&self.in_train_and_eval)),
            ("examples with an empty assistant turn", Some(&self.empty_assistant_turns)),
            ("examples with an unusual order of turns", Some(&self.unusual_order)),
            ("examples with special tokens in their text", self.special_tokens_in_text.as_ref()),
        ];
        let present = findings.iter().filter_map(|(what, finding)| Some((what, (*finding)?)));
        present
            .filter(|(_, finding)| finding.examples > 0)
            .map(|(what, finding)| {
                let note = finding.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
                let first = finding.first.first().map_or(String::new(), |first| format!(", first {first}"));
                format!("{:>10} {what}{note}{first}", finding.examples)
            })
            .collect()
    }
}
