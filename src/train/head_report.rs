//! The report on an MTP head: how many of its drafted tokens are accepted, what drafting reads from memory,
//! and the tables of both for `SERVE.md`.

use std::fmt::Write;

use sparktune_base::statistics::Mean;
use sparktune_base::units::{bytes, count, counted, percent};
use sparktune_model::{Drafter, Model, ModelError, Mtp, speculative_greedy};
use sparktune_plan::ModelConfig;

use crate::acceptance::{Answers, LONGEST_DRAFT, Measured};
use crate::departure::Departure;

/// The number of answers that are compared with the text of speculative decoding, and of their tokens.
const COMPARED: usize = 4;
const COMPARED_TOKENS: usize = 32;

/// The amount of memory that drafting reads, in parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    /// Read for one drafted token: the MTP head, and the rows of the output head from which the token is
    /// chosen.
    draft: f64,
    /// Read in one pass of the model, which verifies a whole draft.
    pass: f64,
}

impl Reading {
    /// Computes the amounts for drafts chosen from `rows` rows of the output head.
    fn from_config(config: &ModelConfig, rows: usize) -> Self {
        let table = config.vocab_size as f64 * config.hidden_size as f64;
        // Of an embedding that is not the output head, only the rows of a pass's tokens are read.
        let embedding = if config.tie_word_embeddings { 0.0 } else { table };
        Self {
            draft: config.mtp_parameters() as f64 + rows as f64 * config.hidden_size as f64,
            pass: config.text_parameters() as f64 - embedding,
        }
    }

    /// Returns the cost of a drafted token as a share of a pass.
    fn share(self) -> f64 {
        self.draft / self.pass
    }

    /// Returns the speed-up over plain decoding when `accepted` of `length` drafted tokens are accepted per
    /// pass and the time is proportional to the bytes read.
    fn speedup(self, length: usize, accepted: f64) -> f64 {
        (1.0 + accepted) / (1.0 + length as f64 * self.share())
    }

    /// Returns the speed-up if every drafted token is accepted.
    fn bound(self, length: usize) -> f64 {
        self.speedup(length, length as f64)
    }
}

/// How many drafted tokens of a head are accepted, and the gain.
#[derive(Debug, Clone)]
pub(crate) struct HeadReport {
    measured: Measured,
    reading: Reading,
    /// The number of token ids it drafted from.
    rows: usize,
    /// Whether it was measured on prompts of the training data.
    is_of_training: bool,
    /// The first difference of a speculative text from plain greedy decoding; one that is no tie if there are
    /// several.
    pub(crate) departure: Option<Departure>,
}

impl HeadReport {
    /// Measures a head on the model's answers with frozen models, drafting from the ids `among` or from all,
    /// and compares the texts of real speculative decoding with the first answers. Returns `None` without an
    /// answer.
    ///
    /// # Errors
    /// Those of `may_go_on`, which is called with the answers so far and their number.
    pub(crate) fn measure(
        model: &Model,
        mtp: &Mtp,
        among: Option<&[u32]>,
        answers: &Answers,
        may_go_on: &dyn Fn(usize, usize) -> Result<(), ModelError>,
    ) -> Result<Option<Self>, ModelError> {
        let Answers { texts, stops, are_of_training } = answers;
        if texts.is_empty() {
            return Ok(None);
        }
        let drafter = among.map_or_else(|| Drafter::new(model, mtp), |ids| Drafter::among(model, mtp, ids));
        let measured = Measured::of(&drafter, texts, may_go_on)?;
        let stop = |id: u32| stops.contains(&id);
        let mut departure: Option<Departure> = None;
        for (number, text) in (1..).zip(texts.iter().take(COMPARED)) {
            may_go_on(texts.len(), texts.len())?;
            let greedy = &text.answer()[..text.answer().len().min(COMPARED_TOKENS)];
            let (found, _) = speculative_greedy(&drafter, text.prompt(), greedy.len(), LONGEST_DRAFT, stop);
            if departure.as_ref().is_none_or(Departure::is_tie) {
                departure =
                    Departure::find(model, number, text.prompt(), greedy, &found).or(departure.take());
            }
        }
        let config = model.config();
        let rows = among.map_or(config.vocab_size, <[u32]>::len);
        let reading = Reading::from_config(config, rows);
        Ok(Some(Self { measured, reading, rows, is_of_training: *are_of_training, departure }))
    }

    /// Returns whether this head is better than another: whether the model accepts more of its drafted
    /// tokens, beyond the chance that lies in the choice of prompts.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        self.measured.mean_above(&other.measured).is_above_zero()
    }

    /// Says in a sentence how many more drafted tokens are accepted than of another head.
    pub(crate) fn compared_with(&self, other: &Self) -> String {
        format!(
            "after a token of an answer, {:.3} of {LONGEST_DRAFT} drafted tokens are accepted of the trained head and {:.3} of the base's: a difference of {}",
            self.measured.mean(),
            other.measured.mean(),
            tokens_in_words(self.measured.mean_above(&other.measured))
        )
    }

    /// Says whether this trained head is served instead of the base's, with the acceptance of both at each
    /// position of a draft.
    pub(crate) fn compared_in_a_table(&self, base: &Self, is_served: bool) -> String {
        let which = if is_served {
            "**The trained head is served**: it is better than the base's."
        } else {
            "**The base's head is served**: the trained head is not better within noise."
        };
        let mut table = format!(
            "{which} The share of drafted tokens that are accepted together with all before them, after each of {} (greedy; measured), with the paired difference and its 95 % interval over the examples:\n\n| drafted token | base's head | trained head | difference |\n|---|---|---|---|\n",
            self.basis()
        );
        for position in 1..=LONGEST_DRAFT {
            let difference = self.measured.share_above(&base.measured, position);
            let interval = match difference.half_width {
                Some(half_width) => format!(" ± {:.1}", 100.0 * half_width),
                None => String::new(),
            };
            let [before, after] = [base, self].map(|head| percent(head.measured.share(position)));
            let points = 100.0 * difference.mean;
            let _ = writeln!(table, "| {position} | {before} | {after} | {points:+.1}{interval} points |");
        }
        let [before, after] = [base, self].map(|head| head.measured.mean());
        let difference = tokens_in_words(self.measured.mean_above(&base.measured));
        let _ = writeln!(table, "| all {LONGEST_DRAFT}, tokens | {before:.3} | {after:.3} | {difference} |");
        table
    }

    /// Returns the mean number of drafted tokens accepted per pass with drafts of `length` tokens.
    fn accepted(&self, length: usize) -> f64 {
        self.measured.per_pass(length)
    }

    /// Returns the estimated speed-up of serving with drafts of `length` tokens over plain decoding.
    fn speedup(&self, length: usize) -> f64 {
        match length {
            0 => 1.0,
            _ => self.reading.speedup(length, self.accepted(length)),
        }
    }

    /// Returns the difference that speculative decoding must not have, if there is one.
    pub(crate) fn defect(&self) -> Option<&Departure> {
        self.departure.as_ref().filter(|departure| !departure.is_tie())
    }

    /// Returns the draft length with the best estimate, or 0 if drafting gains nothing.
    pub(crate) fn recommended(&self) -> usize {
        if self.defect().is_some() {
            return 0;
        }
        if self.speedup(self.best_draft()) > 1.0 { self.best_draft() } else { 0 }
    }

    /// Returns the draft length with the best estimate, whether or not it gains anything.
    fn best_draft(&self) -> usize {
        let lengths = 1..=LONGEST_DRAFT;
        lengths.max_by(|a, b| self.speedup(*a).total_cmp(&self.speedup(*b))).unwrap_or(0)
    }

    /// Says what was measured on.
    pub(crate) fn basis(&self) -> String {
        let [tokens, answers] = [self.measured.tokens(), self.measured.answers()].map(|n| n as u64);
        let prompts = if self.is_of_training { "training data" } else { "eval set" };
        format!("{} of {} to prompts of the {prompts}", counted(tokens, "token"), counted(answers, "answer"))
    }

    /// Says what makes the figures less certain than those on an eval set, if anything does.
    pub(crate) fn caution(&self) -> Option<&'static str> {
        self.is_of_training.then_some(
            "There is no eval set, so the heads were measured on prompts of the training data. The answers are the model's own and not those of the data, but the trained head has seen the prompts, and may do worse with others.",
        )
    }

    /// Formats the report in one line, for the log.
    pub(crate) fn in_a_line(&self) -> String {
        let accepted: Vec<String> =
            (1..=LONGEST_DRAFT).map(|length| format!("{:.2}", self.accepted(length))).collect();
        let of = |length: usize| {
            format!("{:.2}× with drafts of {}", self.speedup(length), counted(length as u64, "token"))
        };
        let gain = match self.recommended() {
            0 => {
                format!("drafting does not pay: its estimated speed-up is {} at best", of(self.best_draft()))
            }
            length => format!("the estimated speed-up is {}", of(length)),
        };
        format!(
            "{} drafted tokens accepted per pass for drafts of 1 to {LONGEST_DRAFT} ({}); {gain}; drafting from {} tokens reads {} of the model per token",
            accepted.join(", "),
            self.basis(),
            count(self.rows as u64),
            percent(self.reading.share()),
        )
    }
}

/// `+0.123 ± 0.045 tokens`
fn tokens_in_words(difference: Mean) -> String {
    match difference.half_width {
        Some(half_width) => format!("{:+.3} ± {half_width:.3} tokens", difference.mean),
        None => format!("{:+.3} tokens, from too few answers to tell it from noise", difference.mean),
    }
}

pub(crate) fn acceptance_table(which: &str, last: &HeadReport, trimmed: Option<&HeadReport>) -> String {
    let mut columns = vec!["draft length".to_owned(), which.to_owned(), "estimated speed-up".to_owned()];
    columns.extend(
        trimmed
            .into_iter()
            .flat_map(|report| [format!("{which}, {}", tokens(report)), "estimated speed-up".to_owned()]),
    );
    let mut table = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for length in 1..=LONGEST_DRAFT {
        let _ = write!(table, "| {length} |");
        for report in [Some(last), trimmed].into_iter().flatten() {
            let _ = write!(table, " {:.2} | {:.2}× |", report.accepted(length), report.speedup(length));
        }
        table.push('\n');
    }
    table
}

/// Describes the number of token ids that a head drafted from.
fn tokens(report: &HeadReport) -> String {
    format!("{} tokens", count(report.rows as u64))
}

/// Returns a table of the memory read by a pass and by a drafted token, and of the gain if every draft is
/// accepted.
pub(crate) fn reading_table(last: &HeadReport, trimmed: Option<&HeadReport>) -> String {
    let bf16 = |parameters: f64| bytes((2.0 * parameters) as u64);
    let lengths: Vec<String> = (1..=LONGEST_DRAFT).map(|length| length.to_string()).collect();
    let mut table = format!(
        "Bytes read from memory (calculated, not measured: parameters in bf16, one request at a time). The last column is the \
         speed-up if every draft of {} tokens were accepted: (1 + length) / (1 + length × share).\n\n\
         | | reads | share of a pass | if all are accepted |\n|---|---|---|---|\n| a pass of the model | {} | | |\n",
        lengths.join(", "),
        bf16(last.reading.pass)
    );
    for report in [Some(last), trimmed].into_iter().flatten() {
        let bounds: Vec<String> =
            (1..=LONGEST_DRAFT).map(|length| format!("{:.2}×", report.reading.bound(length))).collect();
        let _ = writeln!(
            table,
            "| a draft from {} | {} | {} | {} |",
            tokens(report),
            bf16(report.reading.draft),
            percent(report.reading.share()),
            bounds.join(", ")
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::config;

    fn report(answers: Vec<Vec<usize>>) -> HeadReport {
        let reading = Reading { draft: 1.0, pass: 10.0 };
        let measured = Measured::new(answers);
        HeadReport { measured, reading, rows: 512, is_of_training: false, departure: None }
    }

    #[test]
    fn both_heads_are_compared_at_each_position_and_only_a_better_one_is_said_to_be_served() {
        let base = report(vec![vec![1, 0, 1, 0]; 5]);
        let trained = report(vec![vec![2, 1, 1, 0]; 5]);
        assert!(trained.is_better_than(&base) && !base.is_better_than(&trained));
        let table = trained.compared_in_a_table(&base, true);
        assert!(
            table.starts_with("**The trained head is served**") && table.contains("20 tokens of 5 answers")
        );
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            rows,
            [
                "| drafted token | base's head | trained head | difference |",
                "|---|---|---|---|",
                "| 1 | 50 % | 75 % | +25.0 ± 0.0 points |",
                "| 2 | 0 % | 25 % | +25.0 ± 0.0 points |",
                "| 3 | 0 % | 0 % | +0.0 ± 0.0 points |",
                "| 4 | 0 % | 0 % | +0.0 ± 0.0 points |",
                "| all 4, tokens | 0.500 | 1.000 | +0.500 ± 0.000 tokens |",
            ]
        );
        // The recommended length follows from the passes: drafts cost a tenth of a pass each.
        assert_eq!(trained.recommended(), 1);
        let kept = base.compared_in_a_table(&base, false);
        assert!(kept.contains("**The base's head is served**") && kept.contains("not better within noise"));
        let few = report(vec![vec![2, 2]]).compared_with(&report(vec![vec![1, 1]]));
        assert!(few.contains("+1.000 tokens, from too few answers"), "{few}");
    }

    #[test]
    fn the_line_of_the_log_has_the_estimate_of_what_was_measured_and_no_bound_beside_it() {
        let gains = report(vec![vec![2, 1, 1, 0]; 5]).in_a_line();
        assert!(
            gains.contains("; the estimated speed-up is 1.") && gains.contains("drafts of 1 token"),
            "{gains}"
        );
        let loses = report(vec![vec![0; 4]; 5]).in_a_line();
        assert!(
            loses.contains(
                "drafting does not pay: its estimated speed-up is 0.91× with drafts of 1 token at best"
            ),
            "{loses}"
        );
        assert!(!gains.contains("at most") && !loses.contains("at most"));
    }

    #[test]
    fn a_draft_of_the_2b_reads_30_percent_of_a_pass_and_an_eighth_of_the_vocabulary_frees_most_of_it() {
        let config = config("Qwen/Qwen3.5-2B");
        let full = Reading::from_config(&config, config.vocab_size);
        assert!((full.share() - 0.30).abs() < 0.01, "{}", full.share());
        assert!((full.bound(3) - 2.1).abs() < 0.05, "{}", full.bound(3));
        let trimmed = Reading::from_config(&config, 32_768);
        assert!((trimmed.share() - 0.068).abs() < 0.001, "{}", trimmed.share());
        assert!(trimmed.bound(3) > 3.3 && trimmed.pass == full.pass);
        assert_eq!(full.speedup(2, 0.0), 1.0 / (1.0 + 2.0 * full.share()));
    }

    #[test]
    fn a_pass_reads_next_to_nothing_of_an_embedding_that_is_not_the_head() {
        let config = config("Qwen/Qwen3.5-9B");
        let table = (config.vocab_size * config.hidden_size) as f64;
        let pass = Reading::from_config(&config, 1).pass;
        assert_eq!(pass, config.text_parameters() as f64 - table);
    }
}
