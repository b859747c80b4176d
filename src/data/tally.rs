//! Counts the results of all lines, in input order, for the [`Report`].

use std::collections::BinaryHeap;
use std::path::Path;

use rayon::prelude::*;
use sparktune_base::units::{count, counted};

use crate::chat_tokenizer::ChatTokenizer;
use crate::error::DataError;
use crate::examine::{Accepted, Examined, Refused};
use crate::examples::TooLong;
use crate::foreign::Foreign;
use crate::input::Input;
use crate::lengths::{LengthReport, Unit};
use crate::rejected_file::RejectedFile;
use crate::rejection::Rejected;
use crate::report::{
    FileReport, Finding, Place, RejectionCount, Report, SetReport, SplitReport, TemplateFindings,
    TokenCounts, TokenFileReport,
};
use crate::served::{Effects, Noted};
use crate::source::SourceFile;

/// The number of places listed in a finding.
const PLACES: usize = 10;

/// The number of lines of a file that the list of rejected lines has. A small file can have billions of rows,
/// and whoever corrects data needs no more.
const LISTED: u64 = 100_000;

/// The number of different remedies for lines that no format fits whose lines are counted.
const SHAPES: usize = 16;

/// The number of examples that are counted: 2.7 GB of hashes, places and lengths. A small compressed file can
/// have billions of short lines.
const MOST_EXAMPLES: u64 = 1 << 27;

/// The training set or the eval set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Train,
    Eval,
}

/// An example's hash and place, 16 bytes in total. With its length that is 20 bytes: ten million examples
/// take 200 MB.
type Seen = (u64, PackedPlace);

/// The file in the upper 24 bits, the line in the lower 40.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PackedPlace(u64);

impl PackedPlace {
    fn new(file: u32, line: u64) -> Self {
        Self(u64::from(file) << 40 | (line & ((1 << 40) - 1)))
    }
}

pub(crate) struct Tally {
    report: Report,
    train: Vec<Seen>,
    eval: Vec<Seen>,
    split: SplitReport,
    lengths: Vec<u32>,
    most_examples: u64,
    /// The set of each file; `None` for eval data.
    set_of: Vec<Option<u32>>,
    with_model: bool,
    rejected_file: Option<RejectedFile>,
    /// The columns of lines that no format fits, by the remedy.
    foreign: Vec<(String, Foreign)>,
    /// The lines of the last file that are in the list.
    listed: (u32, u64),
}

impl Tally {
    pub(crate) fn new(
        tokenizer: Option<&ChatTokenizer>,
        rejected_path: Option<&Path>,
        sets: &[Input],
    ) -> Result<Self, DataError> {
        let with_model = tokenizer.is_some();
        let report = Report {
            sets: set_reports(sets, with_model),
            template: tokenizer.map(|tokenizer| TemplateFindings {
                kwargs: tokenizer.kwargs().clone(),
                ..TemplateFindings::default()
            }),
            special_tokens_in_text: with_model.then(Finding::default),
            tokens: with_model.then(TokenCounts::default),
            ..Report::default()
        };
        let rejected_file = rejected_path.map(RejectedFile::create).transpose()?;
        Ok(Self {
            report,
            train: Vec::new(),
            eval: Vec::new(),
            split: SplitReport::default(),
            lengths: Vec::new(),
            most_examples: MOST_EXAMPLES,
            set_of: Vec::new(),
            with_model,
            rejected_file,
            foreign: Vec::new(),
            listed: (0, 0),
        })
    }

    /// Creates the tally of token files. Lengths are in tokens, with or without a tokenizer.
    pub(crate) fn of_tokens(tokenizer: Option<&ChatTokenizer>, sets: &[Input]) -> Self {
        let template = tokenizer.map(|tokenizer| TemplateFindings {
            kwargs: tokenizer.kwargs().clone(),
            ..TemplateFindings::default()
        });
        let tokens = Some(TokenCounts::default());
        Self {
            report: Report { sets: set_reports(sets, true), template, tokens, ..Report::default() },
            train: Vec::new(),
            eval: Vec::new(),
            split: SplitReport::default(),
            lengths: Vec::new(),
            most_examples: MOST_EXAMPLES,
            set_of: Vec::new(),
            with_model: true,
            rejected_file: None,
            foreign: Vec::new(),
            listed: (0, 0),
        }
    }

    /// Adds the files of a source. Returns the index of its first file among all files.
    pub(crate) fn begin(&mut self, files: &[SourceFile], eval: bool) -> u32 {
        let first = self.report.files.len() as u32;
        self.set_of.extend(files.iter().map(|file| (!eval).then_some(file.set)));
        self.report.files.extend(files.iter().map(|f| FileReport {
            name: f.name.clone(),
            eval,
            bytes: f.bytes,
            format: None,
            lines: 0,
            examples: 0,
            rejected: 0,
            refused: None,
        }));
        first
    }

    pub(crate) fn examples(&self) -> u64 {
        self.report.examples
    }

    /// Counts a chunk's lines. The caller counts its accepted and rejected lines one by one.
    pub(crate) fn chunk(&mut self, file: u32, examined: &Examined) {
        let file = &mut self.report.files[file as usize];
        file.format = file.format.or(examined.format);
        file.refused = file.refused.take().or_else(|| examined.refused_file.clone());
        file.lines += examined.lines;
        self.report.lines += examined.lines;
        self.report.blank_lines += examined.blank;
    }

    /// Counts a line whose examples are in a token file.
    pub(crate) fn packed_line(&mut self, file: u32) {
        self.report.files[file as usize].lines += 1;
        self.report.lines += 1;
    }

    /// Adds what was found about a token file.
    pub(crate) fn token_file(&mut self, report: TokenFileReport) {
        self.report.token_files.push(report);
    }

    /// Counts a line that became at least one example. Each of its parts is in one of the sets.
    ///
    /// # Errors
    /// There are too many examples.
    pub(crate) fn accept(
        &mut self,
        file: u32,
        line: u64,
        accepted: &Accepted,
        sides: &[Side],
    ) -> Result<(), DataError> {
        let examples = accepted.examples();
        if self.report.examples + examples > self.most_examples {
            let problem = format!(
                "with line {} there are more than the {} examples that all data together may have",
                count(line),
                count(self.most_examples)
            );
            let fix = "Divide the data, for example with `split -l`, and use a part of it";
            return Err(DataError::input(&self.report.files[file as usize].name, problem, fix));
        }
        self.report.examples += examples;
        self.report.files[file as usize].examples += examples;
        if let Some(set) = self.set_of[file as usize] {
            self.report.sets[set as usize].count(accepted, sides);
        }
        if examples > 1 {
            self.report.split_lines.lines += 1;
            self.report.split_lines.examples += examples;
        }
        self.report.text_bytes += u64::from(accepted.text_bytes);
        for ((hash, examples), side) in accepted.parts().into_iter().zip(sides) {
            let seen = (hash, PackedPlace::new(file, line));
            match side {
                Side::Train => {
                    self.train.push(seen);
                    self.split.train_examples += examples;
                }
                Side::Eval => {
                    self.eval.push(seen);
                    self.split.eval_examples += examples;
                }
            }
        }
        match &accepted.tokens {
            Some(examples) => {
                self.lengths.extend(examples.iter().map(|tokens| tokens.input_ids.len() as u32))
            }
            None => self.lengths.push(accepted.text_bytes),
        }
        if let (Some(counts), Some(examples)) = (&mut self.report.tokens, &accepted.tokens) {
            counts.total += examples.iter().map(|tokens| tokens.input_ids.len() as u64).sum::<u64>();
            counts.targets += examples.iter().map(|tokens| tokens.target_count() as u64).sum::<u64>();
        }
        let Report { files, empty_assistant_turns, unusual_order, special_tokens_in_text, template, .. } =
            &mut self.report;
        let place = || Place { file: files[file as usize].name.clone(), line };
        found(empty_assistant_turns, 1, accepted.empty_turns, place, None);
        found(unusual_order, 1, u32::from(accepted.unusual_order.is_some()), place, accepted.unusual_order);
        if let Some(finding) = special_tokens_in_text {
            found(finding, 1, accepted.special_tokens, place, None);
        }
        if let Some(TemplateFindings {
            kwargs: _,
            not_rendered,
            reasoning_left_out,
            turns_left_out,
            tools_left_out,
            unlike_served,
            earlier_unlike_served,
        }) = template
        {
            let Effects {
                not_rendered: raw,
                reasoning_left_out: reasoning,
                turns_left_out: turns,
                tools_left_out: tools,
                unlike_served: prompts,
                earlier_unlike_served: earlier_prompts,
            } = &accepted.effects;
            let add = |finding: &mut Finding, Noted { examples, count, first }: &Noted| {
                found(finding, *examples, *count, place, first.as_deref());
            };
            add(not_rendered, raw);
            add(reasoning_left_out, reasoning);
            add(turns_left_out, turns);
            add(tools_left_out, tools);
            add(unlike_served, prompts);
            add(earlier_unlike_served, earlier_prompts);
        }
        Ok(())
    }

    /// Counts the examples of a line that are too long, and its turns that cannot be examples, if there are
    /// any. Lists the line if one of them was left out.
    pub(crate) fn left_out(
        &mut self,
        file: u32,
        line: u64,
        accepted: &mut Accepted,
    ) -> Result<(), DataError> {
        if let Some(refused) = accepted.first_refused.take() {
            let place = || Place { file: self.report.files[file as usize].name.clone(), line };
            let note = refused.rejection.to_string();
            found(&mut self.report.refused_turns, 1, accepted.refused_turns, place, Some(&note));
            self.list(file, line, *refused, true)?;
        }
        if accepted.too_long == TooLong::default() {
            return Ok(());
        }
        let TooLong { longest, left_out, cut, split, pieces } = accepted.too_long;
        let overlong = &mut self.report.overlong;
        overlong.lines_left_out += u64::from(accepted.examples() == 0);
        let files = &self.report.files;
        let place = || Place { file: files[file as usize].name.clone(), line };
        let note = match longest {
            0 => accepted.left_out.as_ref().map(|refused| refused.rejection.reason.clone()),
            tokens => Some(counted(tokens.into(), "token")),
        };
        let note = note.as_deref();
        found(&mut overlong.left_out, 1, left_out, place, note);
        found(&mut overlong.cut, 1, cut, place, note);
        found(&mut overlong.split, 1, split, place, note);
        found(&mut overlong.pieces, 1, pieces, place, note);
        match accepted.left_out.take() {
            Some(left_out) => self.list(file, line, *left_out, true),
            None => Ok(()),
        }
    }

    pub(crate) fn refuse(&mut self, file: u32, line: u64, refused: Refused) -> Result<(), DataError> {
        let rejection = &refused.rejection;
        self.report.rejected += 1;
        self.report.files[file as usize].rejected += 1;
        match self.foreign.iter().position(|(fix, _)| *fix == rejection.fix) {
            Some(known) => self.foreign[known].1.lines += 1,
            None if self.foreign.len() < SHAPES => {
                let foreign = Foreign::of(rejection, &refused.text);
                self.foreign.extend(foreign.map(|foreign| (rejection.fix.clone(), foreign)));
            }
            None => {}
        }
        match self.report.rejections.iter_mut().find(|r| r.kind == rejection.kind) {
            Some(count) => {
                count.count += 1;
                count.alike += u64::from(count.example == *rejection);
            }
            None => self.report.rejections.push(RejectionCount {
                kind: rejection.kind,
                count: 1,
                first: Place { file: self.report.files[file as usize].name.clone(), line },
                example: rejection.clone(),
                alike: 1,
            }),
        }
        self.list(file, line, refused, false)
    }

    /// Adds a line to the list of rejected lines, also one that does not count as rejected.
    fn list(&mut self, file: u32, line: u64, refused: Refused, not_counted: bool) -> Result<(), DataError> {
        // Files are read one after another.
        let before = if self.listed.0 == file { self.listed.1 } else { 0 };
        if before == LISTED {
            self.report.unlisted += 1;
            return Ok(());
        }
        self.listed = (file, before + 1);
        let Some(out) = &mut self.rejected_file else { return Ok(()) };
        let Refused { rejection, text } = refused;
        let file = self.report.files[file as usize].name.clone();
        out.push(&Rejected { file, line, not_counted, rejection, text })
    }

    /// Returns the report. `split` says whether there are a training and an eval set.
    pub(crate) fn finish(mut self, split: bool) -> Result<Report, DataError> {
        if let Some(file) = self.rejected_file.take() {
            file.finish()?;
        }
        self.report.split = split.then_some(self.split);
        // The first one of the most frequent.
        self.report.foreign = std::mem::take(&mut self.foreign)
            .into_iter()
            .map(|(_, foreign)| foreign)
            .rev()
            .max_by_key(|foreign| foreign.lines);
        self.report.rejections.sort_by_key(|r| (std::cmp::Reverse(r.count), r.kind));
        self.train.par_sort_unstable();
        self.eval.par_sort_unstable();
        self.report.duplicates = self.places(copies(&self.train).chain(copies(&self.eval)));
        let in_train = |seen: &&Seen| self.train.binary_search_by_key(&seen.0, |s| s.0).is_ok();
        self.report.in_train_and_eval = self.places(self.eval.iter().filter(in_train).map(|s| s.1));
        if let Some(tokens) = &mut self.report.tokens {
            tokens.target_share =
                if tokens.total == 0 { 0.0 } else { tokens.targets as f64 / tokens.total as f64 };
        }
        let unit = if self.with_model { Unit::Tokens } else { Unit::Bytes };
        self.report.lengths = LengthReport::new(unit, &mut self.lengths);
        Ok(self.report)
    }

    /// Counts places, and keeps the first few. All examples may be copies of one.
    fn places(&self, all: impl Iterator<Item = PackedPlace>) -> Finding {
        let mut examples = 0;
        let mut first = BinaryHeap::new();
        for place in all {
            examples += 1;
            first.push(place);
            if first.len() > PLACES {
                first.pop();
            }
        }
        let place = |p: PackedPlace| Place {
            file: self.report.files[(p.0 >> 40) as usize].name.clone(),
            line: p.0 & ((1 << 40) - 1),
        };
        let first = first.into_sorted_vec().into_iter().map(place).collect();
        Finding { examples, occurrences: examples, first, note: None }
    }
}

impl SetReport {
    /// Counts the examples of a line. Each of its parts is in one of the sets.
    fn count(&mut self, accepted: &Accepted, sides: &[Side]) {
        self.examples += accepted.examples();
        let mut lengths = accepted.tokens.iter().flatten().map(|tokens| tokens.input_ids.len() as u64);
        for ((_, examples), side) in accepted.parts().into_iter().zip(sides) {
            let tokens: u64 = lengths.by_ref().take(examples as usize).sum();
            if *side == Side::Eval {
                continue;
            }
            self.train_examples += examples;
            if let Some(sum) = &mut self.train_tokens {
                *sum += tokens;
            }
        }
    }
}

/// Returns empty reports on the sets of training data, with counts of tokens if there are tokens.
fn set_reports(sets: &[Input], counts_tokens: bool) -> Vec<SetReport> {
    let report =
        |input: &Input| SetReport { train_tokens: counts_tokens.then_some(0), ..SetReport::new(&input.name) };
    sets.iter().map(report).collect()
}

/// Returns all but the first example of each hash in a sorted list.
fn copies(sorted: &[Seen]) -> impl Iterator<Item = PackedPlace> {
    sorted.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1)
}

/// Adds what was found in a line, or in so many of its examples.
fn found(
    finding: &mut Finding,
    examples: u32,
    occurrences: u32,
    place: impl Fn() -> Place,
    note: Option<&str>,
) {
    if occurrences == 0 {
        return;
    }
    finding.examples += u64::from(examples);
    finding.occurrences += u64::from(occurrences);
    if finding.first.len() < PLACES {
        finding.first.push(place());
    }
    if finding.note.is_none() {
        finding.note = note.map(str::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::Effects;

    #[test]
    fn more_examples_than_are_counted_are_refused_with_the_line() {
        let mut tally = Tally::new(None, None, &[Input::from(Path::new("a.jsonl"))]).unwrap();
        tally.most_examples = 30;
        let name = "a.jsonl".to_owned();
        tally.begin(&[SourceFile { path: (&name).into(), name, bytes: 0, set: 0 }], false);
        // All are copies of one.
        let accepted = Accepted {
            content_hash: 7,
            is_text: false,
            text_bytes: 1,
            empty_turns: 0,
            unusual_order: None,
            special_tokens: 0,
            effects: Effects::default(),
            tokens: None,
            too_long: TooLong::default(),
            left_out: None,
            refused_turns: 0,
            first_refused: None,
        };
        let mut add = |line| tally.accept(0, line, &accepted, &[Side::Train]);
        (1..=30).for_each(|line| add(line).unwrap());
        let refused = add(31).unwrap_err().to_string();
        assert!(
            refused.contains("a.jsonl")
                && refused.contains("with line 31 there are more than the 30 examples "),
            "{refused}"
        );
        let copies = tally.finish(false).unwrap().duplicates;
        let first: Vec<u64> = copies.first.iter().map(|place| place.line).collect();
        assert_eq!((copies.examples, first), (29, (2..12).collect()));
    }
}
