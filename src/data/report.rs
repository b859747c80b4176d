//! The findings about the data: `report.json`, and the same as text.

use std::fmt;

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted, percent};

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
    /// The rejection of the first such line.
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
    /// Details of the first example, if they differ between examples.
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
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", escape(&self.file), self.line)
    }
}

/// The report as lines of text.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let format = file.format.map_or("format not recognised", Format::name);
            let side = if file.eval { ", eval" } else { "" };
            writeln!(f, "{} ({format}{side}): {}", escape(&file.name), counted(file.lines, "line"))?;
        }
        let (accepted, rejected) = (counted(self.examples, "example"), counted(self.rejected, "line"));
        write!(f, "{accepted} accepted, {rejected} rejected")?;
        if self.rejected > 0 {
            write!(f, " ({})", percent(self.rejected_share()))?;
        }
        writeln!(f, ", {} blank", count(self.blank_lines))?;
        for r in &self.rejections {
            let first = if r.count > 1 { "first " } else { "" };
            let example = r.example.to_string();
            let kind = r.kind;
            writeln!(f, "  {}, {kind}, {first}{}: {}", counted(r.count, "line"), r.first, escape(&example))?;
        }
        for line in self.findings() {
            writeln!(f, "{line}")?;
        }
        if let Some(tokens) = &self.tokens {
            let share = percent(tokens.target_share);
            let (total, targets) = (counted(tokens.total, "token"), count(tokens.targets));
            writeln!(f, "{total}, {targets} of them trained ({share})")?;
        }
        if let Some(split) = &self.split {
            writeln!(f, "{} train, {} eval", count(split.train_examples), count(split.eval_examples))?;
        }
        match &self.lengths {
            Some(lengths) => write!(f, "{lengths}"),
            None => Ok(()),
        }
    }
}

impl Report {
    /// Returns notes on the accepted examples, one escaped line each: copies, overlap, empty
    /// turns, ….
    pub fn findings(&self) -> Vec<String> {
        let findings = [
            ("identical to an earlier one", Some(&self.duplicates)),
            ("in both the training data and the eval set", Some(&self.in_train_and_eval)),
            ("with an empty assistant turn", Some(&self.empty_assistant_turns)),
            ("with an unusual order of turns", Some(&self.unusual_order)),
            ("with special tokens in the text", self.special_tokens_in_text.as_ref()),
        ];
        let present = findings.iter().filter_map(|(what, finding)| Some((what, (*finding)?)));
        present
            .filter(|(_, finding)| finding.examples > 0)
            .map(|(what, finding)| {
                let note = finding.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
                let first = finding.first.first().map_or(String::new(), |first| format!(", first {first}"));
                format!("{} {what}{note}{first}", counted(finding.examples, "example"))
            })
            .collect()
    }
}
