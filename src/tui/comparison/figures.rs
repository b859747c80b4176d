//! The table: a row for each figure, a column for each model.

use sparktune_base::escape::escape;
use sparktune_base::units::{UNKNOWN, milliseconds, or_unknown, tokens_per_s};
use sparktune_compare::{Comparison, Estimate, ModelAnswers, Summary};
use unicode_width::UnicodeWidthStr;

use super::padded;
use crate::wrap::wrap;

/// The columns of the names of the figures, with the space behind them.
const NAMES: usize = 22;
/// The most columns of a model.
const WIDEST: usize = 34;
/// The fewest columns of a model.
const NARROWEST: usize = 26;

/// A figure: its name, and its value in words, if the model has one.
type Figure = (&'static str, fn(&Summary) -> Option<String>);

const FIGURES: [Figure; 10] = [
    ("passed", |s| s.pass_rate.map(|rate| format!("{} of {}, {}", s.passed, s.decided, percent(&rate)))),
    ("score", |s| s.score.map(|score| format!("{:.2} ({:.2} to {:.2})", score.value, score.low, score.high))),
    ("chrF", |s| s.chrf.map(|chrf| format!("{chrf:.1}"))),
    ("BLEU", |s| s.bleu.map(|bleu| format!("{bleu:.1}"))),
    ("reference perplexity", |s| s.reference_perplexity.map(|perplexity| format!("{perplexity:.2}"))),
    ("tokens per second", |s| s.tokens_per_s.map(tokens_per_s)),
    ("first token after", |s| s.first_token_ms.map(milliseconds)),
    ("tokens of an answer", |s| s.answer_tokens.map(|tokens| format!("{tokens:.0}"))),
    ("cut at their limit", |s| (s.cut > 0).then(|| s.cut.to_string())),
    ("without an answer", |s| (s.errors > 0).then(|| s.errors.to_string())),
];

fn percent(rate: &Estimate) -> String {
    let of = |share: f64| format!("{:.0}", share * 100.0);
    format!("{} % ({} to {} %)", of(rate.value), of(rate.low), of(rate.high))
}

pub(super) fn write(lines: &mut Vec<String>, comparison: &Comparison, columns: usize) {
    let models = &comparison.models;
    let all_pass = models.iter().all(|model| {
        model.summary.score.zip(model.summary.pass_rate).is_none_or(|(score, rate)| score.value == rate.value)
    });
    let figures: Vec<&Figure> = FIGURES
        .iter()
        // A score of whole checks says what the share of those that pass says.
        .filter(|(name, of)| {
            let is_given = models.iter().any(|model| of(&model.summary).is_some());
            is_given && !(*name == "score" && all_pass)
        })
        .collect();
    let names: Vec<String> = models.iter().map(|model| escape(&model.model.name).into_owned()).collect();
    let widest = names.iter().map(|name| name.width()).max().unwrap_or(0).clamp(NARROWEST, WIDEST);
    let fitting = (columns.saturating_sub(NAMES) / (NARROWEST + 2)).max(1);
    let at_a_time = fitting.min(models.len()).max(1);
    let width = widest.min((columns.saturating_sub(NAMES) / at_a_time).saturating_sub(2)).max(10);
    let blocks: Vec<(&[ModelAnswers], &[String])> =
        models.chunks(at_a_time).zip(names.chunks(at_a_time)).collect();
    for (models, names) in blocks {
        let cells =
            |cells: Vec<String>| cells.iter().map(|cell| padded(cell, width)).collect::<Vec<_>>().join("  ");
        lines.push(format!("{}{}", " ".repeat(NAMES), cells(names.to_vec())));
        for (name, of) in &figures {
            // What a model has none of is none; other figures are then not known.
            let empty = if name.starts_with("cut") || name.starts_with("without") { "0" } else { UNKNOWN };
            let row = models.iter().map(|model| {
                let shown = or_unknown(of(&model.summary), |text| text);
                if shown == UNKNOWN { empty.to_owned() } else { shown }
            });
            lines.push(format!("{}{}", padded(name, NAMES), cells(row.collect())));
        }
        lines.push(String::new());
    }
    lines.pop();
    if comparison.models.iter().any(|model| model.summary.pass_rate.is_some()) {
        lines.push(String::new());
        lines.extend(wrap("In brackets: 95 % intervals, which prompts like these would give.", columns));
    }
}
