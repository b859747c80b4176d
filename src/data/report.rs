//! The findings about the data, for `report.json` and as text.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_base::units::{bytes, count, counted, counted_on_average, percent};

use crate::file_kind::FileKind;
use crate::foreign::Foreign;
use crate::format::Format;
use crate::lengths::{LengthReport, Unit};
use crate::rejection::{Kind, Rejection};
use crate::template::TemplateKwargs;
use crate::token_file::OnDamage;
pub use crate::token_file_report::TokenFileReport;

/// The largest number of columns that a hint names.
const COLUMNS: usize = 8;

/// Everything `check` and `prepare` found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The input files in order. If the data is token files, these are the files that those were made of.
    pub files: Vec<FileReport>,
    /// The sets of training data in order. Reports of older versions have none.
    #[serde(default)]
    pub sets: Vec<SetReport>,
    /// The token files that are the data; empty if the data is text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_files: Vec<TokenFileReport>,
    /// Lines read, including blank ones.
    pub lines: u64,
    /// Blank lines, which are skipped and not counted as rejected.
    pub blank_lines: u64,
    /// Accepted examples. A line can become several of them.
    pub examples: u64,
    /// Rejected lines.
    pub rejected: u64,
    /// Rejected lines by kind, most frequent first.
    pub rejections: Vec<RejectionCount>,
    /// Lines that belong to the list of rejected lines but are not in it, because it has only the first
    /// 100,000 of each file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u64,
    /// The columns of lines that no format fits: of the first line with the most frequent remedy.
    #[serde(default)]
    pub foreign: Option<Foreign>,
    /// Lines that became several examples.
    #[serde(default)]
    pub split_lines: SplitLines,
    /// Examples over the limit on tokens. They do not count as rejected.
    #[serde(default)]
    pub overlong: OverlongReport,
    /// Turns that could not become examples, in lines with others that did. `examples` is the number of
    /// lines, `occurrences` that of turns.
    #[serde(default)]
    pub refused_turns: Finding,
    /// Examples that are exact copies of an earlier one of the same side (train or eval). They are kept.
    pub duplicates: Finding,
    /// Eval examples that are also in the training data.
    pub in_train_and_eval: Finding,
    /// Examples with an empty assistant turn.
    pub empty_assistant_turns: Finding,
    /// Accepted examples with an unusual order of speakers.
    pub unusual_order: Finding,
    /// Examples whose own text contains special tokens, which become real special tokens. `None` without a
    /// model.
    pub special_tokens_in_text: Option<Finding>,
    /// What the chat template does to the examples. `None` without a model.
    pub template: Option<TemplateFindings>,
    /// Bytes of text in accepted examples.
    pub text_bytes: u64,
    /// Token counts. `None` without a model.
    pub tokens: Option<TokenCounts>,
    /// Lengths of accepted examples, in tokens with a model, otherwise in bytes. `None` when there are none.
    pub lengths: Option<LengthReport>,
    /// The numbers of examples in the training and eval sets. `None` if nothing was split.
    pub split: Option<SplitReport>,
}

/// What the chat template does to accepted examples that their author may not expect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateFindings {
    /// The variables that the template was rendered with.
    pub kwargs: TemplateKwargs,
    /// Examples whose prompt and completion are joined as they are, although the model has a template.
    pub not_rendered: Finding,
    /// Examples with turns whose reasoning is not in the rendered text, as with templates that keep only that
    /// of the last turn.
    pub reasoning_left_out: Finding,
    /// Examples with turns whose text or calls are not in the rendered text, or not all of them.
    pub turns_left_out: Finding,
    /// Examples whose tools are not in the rendered text.
    pub tools_left_out: Finding,
    /// Examples with turns that follow a different prompt in training than on a server. The server's prompt
    /// is the conversation before the turn, rendered with the same variables and with the opening of an
    /// assistant turn. Turns that a later question follows are not counted here.
    pub unlike_served: Finding,
    /// The same of turns that a later question follows. They are no fault of the settings: many templates
    /// render them in another way than the turn that is to be answered.
    pub earlier_unlike_served: Finding,
}

/// One input file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileReport {
    /// The name that the user gave.
    pub name: String,
    /// Whether it was given as eval data.
    pub eval: bool,
    /// The size on disk in bytes.
    pub bytes: u64,
    /// The format of its lines. `None` if it could not be detected.
    pub format: Option<Format>,
    /// Lines, including blank ones.
    pub lines: u64,
    /// Accepted examples.
    pub examples: u64,
    /// Rejected lines.
    pub rejected: u64,
    /// Why it cannot be read as data, or not to its end: a sentence with its path and the remedy. All data is
    /// then refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl FileReport {
    /// Returns the number of its lines, under the name that they have in a file of its kind.
    pub fn lines_in_words(&self) -> String {
        counted(self.lines, FileKind::of(Path::new(&self.name)).unit())
    }

    /// Returns the format of its lines, and whether it is refused.
    pub fn format_in_words(&self) -> String {
        match (self.format, &self.refused) {
            (Some(format), None) => format.name().to_owned(),
            (None, None) => "format not recognised".to_owned(),
            (Some(format), Some(_)) => format!("{}, refused", format.name()),
            (None, Some(_)) => "refused".to_owned(),
        }
    }
}

/// One set of training data: what the user named once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SetReport {
    /// The name that the user gave.
    pub name: String,
    /// Accepted examples.
    pub examples: u64,
    /// Those of them that are not in the eval set.
    pub train_examples: u64,
    /// The tokens of these. `None` without a model.
    pub train_tokens: Option<u64>,
    /// How often an epoch trains each of them.
    pub weight: f64,
}

impl SetReport {
    /// Creates an empty set, of which an epoch trains everything once.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), weight: 1.0, ..Self::default() }
    }

    /// Returns the number of examples in an epoch, fractional for a weight that is not whole.
    pub fn epoch_examples(&self) -> f64 {
        self.weight * self.train_examples as f64
    }

    /// Returns the number of tokens in an epoch, if they were counted.
    pub fn epoch_tokens(&self) -> Option<f64> {
        Some(self.weight * self.train_tokens? as f64)
    }
}

/// Formats the set as one line, with what an epoch has of it.
impl fmt::Display for SetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, weight {}: ", escape(&self.name), counted(self.examples, "example"), self.weight)?;
        write!(f, "{}", counted_on_average(self.epoch_examples(), "example"))?;
        if let Some(tokens) = self.epoch_tokens() {
            write!(f, " and {}", counted_on_average(tokens, "token"))?;
        }
        f.write_str(" an epoch")
    }
}

/// The place of an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The file, by the name that the user gave.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
}

/// Rejected lines of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectionCount {
    /// The kind.
    pub kind: Kind,
    /// The number of lines.
    pub count: u64,
    /// The place of the first one.
    pub first: Place,
    /// The rejection of the first one.
    pub example: Rejection,
    /// The number of lines with exactly this rejection. Reports of older versions do not say it.
    #[serde(default)]
    pub alike: u64,
}

/// Lines that became more than one example, each of which trains other turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitLines {
    /// The number of lines.
    pub lines: u64,
    /// The number of their examples.
    pub examples: u64,
}

/// Examples over the limit on tokens, and what became of them. In each finding, `examples` is the number of
/// lines; a line of which several examples are made can have several `occurrences`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlongReport {
    /// Those left out. Their lines are in the list of rejected lines.
    pub left_out: Finding,
    /// Those cut at the limit.
    pub cut: Finding,
    /// Those split into whole turns.
    pub split: Finding,
    /// Raw text that was cut into pieces, without losing a token.
    #[serde(default)]
    pub pieces: Finding,
    /// Lines of which nothing is left.
    pub lines_left_out: u64,
}

/// Examples with a noteworthy property.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The number of examples.
    pub examples: u64,
    /// The number of occurrences, which can be several per example.
    pub occurrences: u64,
    /// The places of the first few.
    pub first: Vec<Place>,
    /// Details of the first place, if they differ between examples.
    pub note: Option<String>,
}

/// Tokens of all accepted examples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// All tokens.
    pub total: u64,
    /// Tokens that contribute to the loss.
    pub targets: u64,
    /// `targets / total`.
    pub target_share: f64,
}

impl fmt::Display for TokenCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, share) = (counted(self.total, "token"), percent(self.target_share));
        write!(f, "{total}, {} of them trained ({share})", count(self.targets))
    }
}

/// The number of examples in the training set and in the eval set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitReport {
    /// Training examples.
    pub train_examples: u64,
    /// Examples of the eval set.
    pub eval_examples: u64,
}

impl Report {
    /// Gives the sets their weights, in the same order.
    pub fn set_weights(&mut self, weights: &[f64]) {
        self.sets.iter_mut().zip(weights).for_each(|(set, weight)| set.weight = *weight);
    }

    /// Returns the sets if there is something to say about them: there are several, or one with a weight.
    pub fn notable_sets(&self) -> &[SetReport] {
        match self.sets.as_slice() {
            [only] if only.weight == 1.0 => &[],
            sets => sets,
        }
    }

    /// Returns what the columns probably stand for, if most of the lines fit no format and have these
    /// columns. A single line with a mistyped field says nothing about the others.
    pub fn suggested_map(&self) -> Option<&FieldMap> {
        let foreign = self.foreign.as_ref().filter(|foreign| 2 * foreign.lines > self.filled_lines())?;
        foreign.map.as_ref()
    }

    /// Returns what to do about data that no format fits, if its columns probably stand for something.
    pub fn map_hint(&self) -> Option<String> {
        let map = self.suggested_map()?;
        let columns = &self.foreign.as_ref()?.columns;
        let names: Vec<String> = columns.iter().take(COLUMNS).map(|name| escape(name).into_owned()).collect();
        let more = if columns.len() > COLUMNS { ", …" } else { "" };
        let flag = escape(&map.flag()).into_owned();
        Some(format!("the columns {}{more} fit no format; say what they stand for: {flag}", names.join(", ")))
    }

    /// Returns the number of lines that are not blank.
    pub fn filled_lines(&self) -> u64 {
        self.rejected + self.accepted_lines() + self.overlong.lines_left_out
    }

    /// Returns the number of lines that became examples.
    pub fn accepted_lines(&self) -> u64 {
        self.examples - self.split_lines.examples + self.split_lines.lines
    }

    /// Returns the number of entries in the list of rejected lines, which also has the lines of examples left
    /// out because they are too long, and of turns left out because they cannot be rendered.
    pub fn listed_lines(&self) -> u64 {
        let belong = self.rejected + self.overlong.left_out.examples + self.refused_turns.examples;
        belong.saturating_sub(self.unlisted)
    }

    /// Returns the share of rejected lines among those that are not blank, 0 to 1.
    pub fn rejected_share(&self) -> f64 {
        match self.filled_lines() {
            0 => 0.0,
            lines => self.rejected as f64 / lines as f64,
        }
    }

    /// Notes what becomes of damaged examples in token files.
    pub(crate) fn set_on_damage(&mut self, on_damage: OnDamage) {
        for file in &mut self.token_files {
            file.drops_damaged = on_damage == OnDamage::Skip;
        }
    }

    /// Returns the files that cannot be read as data, or not to their end.
    pub fn refused_files(&self) -> impl Iterator<Item = &FileReport> {
        self.files.iter().filter(|file| file.refused.is_some())
    }

    /// Returns the number of rejected lines that the user has to do something about first. It is 0 if there
    /// are none, and if a file cannot be read at all, which comes before its lines.
    pub fn lines_to_correct(&self) -> u64 {
        if self.refused_files().next().is_some() { 0 } else { self.rejected }
    }

    /// Returns whether the data has to be refused (exit code 3), because the share of rejected lines is
    /// larger than `max_rejected`, a file cannot be read, a token file is damaged and that is not to be left
    /// out, or no example is left.
    pub fn exceeds(&self, max_rejected: f64) -> bool {
        self.examples == 0
            || self.refused_files().next().is_some()
            || self.token_files.iter().any(TokenFileReport::is_refused)
            || self.rejected_share() > max_rejected
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = if FileKind::of(Path::new(&self.file)) == FileKind::Parquet { "row " } else { "" };
        write!(f, "{}:{row}{}", escape(&self.file), self.line)
    }
}

/// Formats the report as lines of text.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.token_files {
            write!(f, "{file}")?;
        }
        let texts = if self.token_files.is_empty() { self.files.as_slice() } else { &[] };
        for file in texts {
            let side = if file.eval { ", eval" } else { "" };
            let (format, lines) = (file.format_in_words(), file.lines_in_words());
            writeln!(f, "{} ({format}{side}): {lines}", escape(&file.name))?;
            if let Some(why) = &file.refused {
                writeln!(f, "  {}", escape(why))?;
            }
        }
        for set in self.notable_sets() {
            writeln!(f, "{set}")?;
        }
        let (accepted, rejected) = (counted(self.examples, "example"), counted(self.rejected, "line"));
        let of = match self.split_lines.lines {
            0 => String::new(),
            _ => format!(" from {}", counted(self.accepted_lines(), "line")),
        };
        write!(f, "{accepted}{of} accepted, {rejected} rejected")?;
        if self.rejected > 0 {
            write!(f, " ({})", percent(self.rejected_share()))?;
        }
        writeln!(f, ", {} blank", count(self.blank_lines))?;
        for r in &self.rejections {
            let example = r.example.to_string();
            let kind = r.kind;
            // Reports of older programs do not say how many lines have the same reason.
            let alike = if r.alike == 0 { r.count } else { r.alike };
            let others = match r.count.saturating_sub(alike) {
                0 => String::new(),
                1 => " (and 1 line of this kind for another reason)".to_owned(),
                others => format!(" (and {} of this kind for other reasons)", counted(others, "line")),
            };
            let lines = counted(alike, "line");
            let first = if alike > 1 { "first " } else { "" };
            writeln!(f, "  {lines}, {kind}, {first}{}: {}{others}", r.first, escape(&example))?;
        }
        if self.unlisted > 0 {
            let (lines, listed) = (counted(self.unlisted, "line"), count(self.listed_lines()));
            writeln!(
                f,
                "  {lines} more than the {listed} in the list, which has the first 100,000 of each file"
            )?;
        }
        for line in self.findings() {
            writeln!(f, "{line}")?;
        }
        if let Some(tokens) = &self.tokens {
            writeln!(f, "{tokens}")?;
        }
        let is_chat = |file: &FileReport| file.format != Some(Format::Text);
        if let Some(TemplateFindings { kwargs, not_rendered, .. }) = &self.template
            && !kwargs.is_empty()
            && self.files.iter().any(is_chat)
            && not_rendered.examples < self.examples
        {
            let kwargs = serde_json::json!(kwargs).to_string();
            writeln!(f, "the chat template was rendered with {}", escape(&kwargs))?;
        }
        if let Some(TemplateFindings { earlier_unlike_served: earlier, .. }) = &self.template
            && earlier.examples > 0
        {
            writeln!(
                f,
                "{} with answers to earlier questions that the chat template renders otherwise than when they were asked; --split-turns trains each as a server sends it",
                counted(earlier.examples, "example")
            )?;
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

/// The length in bytes, about 64,000 tokens, from which an example is said to be long where no model has
/// counted its tokens.
const LONG: u32 = 1 << 18;

/// The number of examples below which data is said to be few.
const FEW: u64 = 50;

impl Report {
    /// Returns notes on the examples, one escaped line each: that there are hardly any, those that are too
    /// long, copies, overlap, empty turns, ….
    pub fn findings(&self) -> Vec<String> {
        let of_template = |finding: fn(&TemplateFindings) -> &Finding| self.template.as_ref().map(finding);
        let of_lines = [
            ("turn", "left out, because no example can be made of it", &self.refused_turns),
            ("example", "too long and left out", &self.overlong.left_out),
            ("example", "too long and cut at the limit", &self.overlong.cut),
            ("example", "too long and split into whole turns", &self.overlong.split),
        ];
        let findings = [
            ("of raw text cut into pieces, with each token trained once", Some(&self.overlong.pieces)),
            ("identical to an earlier one", Some(&self.duplicates)),
            ("in both the training data and the eval set", Some(&self.in_train_and_eval)),
            ("with an empty assistant turn", Some(&self.empty_assistant_turns)),
            ("with an unusual order of turns", Some(&self.unusual_order)),
            ("with special tokens in the text", self.special_tokens_in_text.as_ref()),
            (
                "whose prompt and completion are joined as they are, without the chat template; the fields instruction and output would be rendered with it",
                of_template(|t| &t.not_rendered),
            ),
            ("with reasoning that the chat template leaves out", of_template(|t| &t.reasoning_left_out)),
            (
                "with turns that the chat template leaves out in whole or part",
                of_template(|t| &t.turns_left_out),
            ),
            ("with tools that the chat template leaves out", of_template(|t| &t.tools_left_out)),
            (
                "with turns that follow a different prompt in training than on a server; --think and --template-kwargs change the prompt in training",
                of_template(|t| &t.unlike_served),
            ),
        ];
        let of_lines = of_lines.map(|(noun, what, finding)| (finding.occurrences, noun, what, finding));
        let present = findings.iter().filter_map(|(what, finding)| {
            let finding = (*finding)?;
            Some((finding.examples, "example", *what, finding))
        });
        let few = (1..FEW).contains(&self.examples).then(|| {
            format!(
                "only {}: enough to try the program, too few to teach a model more than these answers; a few hundred are a usual beginning",
                counted(self.examples, "example")
            )
        });
        let found = of_lines.into_iter().chain(present).filter(|(number, ..)| *number > 0).map(
            |(number, noun, what, finding)| {
                let note = finding.note.as_ref().map_or(String::new(), |note| format!(" ({})", escape(note)));
                let first = finding.first.first().map_or(String::new(), |first| format!(", first {first}"));
                format!("{} {what}{first}{note}", counted(number, noun))
            },
        );
        let long = self.lengths.as_ref().filter(|lengths| lengths.unit == Unit::Bytes && lengths.max > LONG);
        let long = long.map(|lengths| {
            format!(
                "the longest example has {}; --model tells whether that fits into a pack",
                bytes(lengths.max.into())
            )
        });
        few.into_iter()
            .chain(long)
            .chain(found)
            .chain(self.token_files.iter().flat_map(TokenFileReport::findings))
            .collect()
    }
}
