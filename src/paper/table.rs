//! The figures of all pipelines side by side: as rows, which the white paper shows too, and as text for
//! terminals.

use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, milliseconds};

use crate::pipeline::{Arrangement, Pipeline};
use crate::results::Results;
use crate::speeds::Speeds;
use crate::spread::Spread;
use crate::summary::{Rates, Score, Summary, base_quality, summaries};
use crate::verdict::{fine_percent, judge};

const NONE: &str = "–";
/// The column of the untuned base.
const BASE: &str = "base";

/// Rows of cells, whose first is what the row shows.
pub(crate) struct Rows {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

fn or_none<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or(NONE.into(), show)
}

/// Formats a rate, from ten on without a fraction.
fn rate(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { count(value.round() as u64) }
}

/// `12,345 ±2 %`
fn rate_spread(spread: Spread) -> String {
    match spread.half_width {
        Some(half) => format!("{} ±{:.0} %", rate(spread.mean), 100.0 * half / spread.mean),
        None => rate(spread.mean),
    }
}

fn loss_spread(spread: Spread) -> String {
    match spread.half_width {
        Some(half) => format!("{:.4} ±{half:.3}", spread.mean),
        None => format!("{:.4}", spread.mean),
    }
}

fn passed(score: &Score) -> String {
    format!("{} of {}", score.passed, score.decided)
}

/// Returns the mean held-out loss before the first step, which is the base's.
fn base_held_out(results: &Results, arrangement: Arrangement) -> Option<f64> {
    let jsonl = results.trainings(arrangement, Pipeline::Jsonl);
    jsonl.first()?.evaluations.first().filter(|evaluation| evaluation.step == 0)?.loss
}

type Cell<'a> = &'a dyn Fn(&Summary) -> String;
type ShowScore = fn(&Score) -> String;

/// The figures of loading alone.
pub(crate) fn loading_rows(results: &Results, arrangement: Arrangement) -> Rows {
    let found = summaries(results, arrangement);
    let rates = |pick: fn(&Summary) -> Option<Rates>, value: fn(Rates) -> f64| {
        move |one: &Summary| or_none(pick(one).map(value), rate)
    };
    let cells: [(&str, Cell); 9] = [
        ("first batch", &|one| or_none(one.load_ms, milliseconds)),
        ("  of it the tokenizer", &|one| {
            or_none(one.tokenizer_ms, |ms| if ms == 0.0 { "none".into() } else { milliseconds(ms) })
        }),
        ("cold, samples/s", &rates(|one| one.cold, |rates| rates.samples)),
        ("cold, tokens/s", &rates(|one| one.cold, |rates| rates.tokens)),
        ("warm, samples/s", &rates(|one| one.warm, |rates| rates.samples)),
        ("warm, tokens/s", &rates(|one| one.warm, |rates| rates.tokens)),
        ("warm, positions/s", &rates(|one| one.warm, |rates| rates.positions)),
        ("warm, as QubGPU counts", &rates(|one| one.warm, |rates| rates.published)),
        ("positions per token", &|one| or_none(one.padding, |padding| format!("{padding:.2}"))),
    ];
    rows(&found, &cells, false)
}

/// The figures of training.
pub(crate) fn training_rows(results: &Results, arrangement: Arrangement) -> Rows {
    let found = summaries(results, arrangement);
    let cells: [(&str, Cell); 9] = [
        ("positions/s", &|one| or_none(one.positions_per_s, rate_spread)),
        ("tokens/s", &|one| or_none(one.tokens_per_s, rate_spread)),
        ("targets/s", &|one| or_none(one.targets_per_s, rate_spread)),
        ("as QubGPU counts", &|one| or_none(one.published_per_s, rate_spread)),
        ("wall time", &|one| or_none(one.wall_s, |wall| milliseconds(1e3 * wall.mean))),
        ("waiting for data", &|one| or_none(one.wait_share, |share| fine_percent(share.mean))),
        ("peak memory", &|one| or_none(one.peak_bytes, bytes)),
        ("final loss", &|one| or_none(one.final_loss, loss_spread)),
        ("held-out loss", &|one| or_none(one.held_out, loss_spread)),
    ];
    let mut table = rows(&found, &cells, true);
    if let Some((loss, row)) = base_held_out(results, arrangement).zip(table.rows.last_mut())
        && let Some(cell) = row.last_mut()
    {
        *cell = format!("{loss:.4}");
    }
    table
}

/// The answers, suite by suite.
pub(crate) fn answer_rows(results: &Results, arrangement: Arrangement) -> Rows {
    let found = summaries(results, arrangement);
    let base = base_quality(results);
    let mut table = rows(&found, &[], true);
    for suite in &results.settings.suites {
        let kinds: [(&str, ShowScore); 3] = [
            ("passed", passed),
            ("tokens/s", |score| rate(score.tokens_per_s)),
            ("time of an answer", |score| milliseconds(1e3 * score.answer_s)),
        ];
        for (kind, show) in kinds {
            let cell = |scores: &[Score]| or_none(scores.iter().find(|score| score.suite == *suite), show);
            let mut row = vec![format!("{suite}, {kind}")];
            row.extend(found.iter().map(|one| cell(&one.scores)));
            row.push(cell(&base));
            table.rows.push(row);
        }
    }
    table
}

fn rows(found: &[Summary], cells: &[(&str, Cell)], has_base: bool) -> Rows {
    let mut head = vec![String::new()];
    head.extend(found.iter().map(|one| one.pipeline.name().to_owned()));
    head.extend(has_base.then(|| BASE.to_owned()));
    let row = |(name, cell): &(&str, Cell)| {
        let mut row = vec![(*name).to_owned()];
        row.extend(found.iter().map(cell));
        row.extend(has_base.then(|| NONE.to_owned()));
        row
    };
    Rows { head, rows: cells.iter().map(row).collect() }
}

/// Returns all figures and verdicts as text for a terminal of this width.
pub fn table(results: &Results, speeds: &Speeds, width: usize) -> String {
    let mut text = format!(
        "{} on {}, {}\n{}\n",
        results.model.method, results.model.name, results.data.name, results.machine.words
    );
    for arrangement in Arrangement::ALL {
        let found = summaries(results, arrangement);
        if found.is_empty() {
            continue;
        }
        text.push_str(&format!("\n{}\n", arrangement.name().to_uppercase()));
        text.push_str(&wrapped(arrangement.about(), width, ""));
        let tables = [
            ("loading alone", loading_rows(results, arrangement)),
            ("training", training_rows(results, arrangement)),
            ("answers", answer_rows(results, arrangement)),
        ];
        let columns = tables.iter().map(|(_, table)| table.head.len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let lines = tables.iter().flat_map(|(_, table)| table.rows.iter().chain([&table.head]));
                lines.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for (name, table) in tables.iter().filter(|(_, table)| !table.rows.is_empty()) {
            text.push('\n');
            let head = std::iter::once((*name).to_owned()).chain(table.head.iter().skip(1).cloned());
            for row in std::iter::once(head.collect::<Vec<_>>()).chain(table.rows.iter().cloned()) {
                text.push_str(&line(&row, &widths));
            }
        }
    }
    text.push_str("\nVERDICTS ON QUBGPU'S CLAIMS\n");
    for judged in judge(results, speeds) {
        text.push('\n');
        text.push_str(&wrapped(&format!("{}: {}", judged.verdict.in_words(), judged.claim), width, ""));
        text.push_str(&wrapped(
            &format!("the same work: {}; as QubGPU counts: {}", judged.fair, judged.published),
            width,
            "  ",
        ));
        text.push_str(&wrapped(&judged.why, width, "  "));
    }
    for note in &results.notes {
        text.push_str(&wrapped(&format!("note: {note}"), width, ""));
    }
    // Names and notes may come from the file of a stranger.
    text.lines().map(|line| format!("{}\n", escape(line))).collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
        let cell = if at == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        text.push_str(&cell);
    }
    format!("{}\n", text.trim_end())
}

/// Breaks a text into lines of at most `width` characters, as far as words allow.
fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is always a line");
        let is_first = last.len() == indent.len();
        if !is_first && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("{indent}{word}"));
        } else {
            if !is_first {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{results, speeds};

    #[test]
    fn the_table_has_every_pipeline_every_claim_and_no_line_that_is_too_wide() {
        let text = table(&results(), &speeds(), 100);
        for pipeline in Pipeline::ALL {
            assert!(text.contains(pipeline.name()), "{text}");
        }
        assert!(text.contains("does not hold: 5.55 × training throughput"), "{text}");
        assert!(text.contains("note: No GPU was there."));
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 100, "{widest}\n{text}");
    }

    #[test]
    fn columns_of_all_tables_of_an_arrangement_stand_below_each_other() {
        let text = table(&results(), &speeds(), 100);
        let fair = text.split("FAIR").nth(1).unwrap();
        let ends = |name: &str| {
            let line = fair.lines().find(|line| line.starts_with(name)).unwrap();
            line.find("jsonl").unwrap() + "jsonl".len()
        };
        assert_eq!(ends("loading alone"), ends("training"));
        assert!(
            fair.lines().any(|line| line.starts_with("held-out loss") && line.ends_with("3.0000")),
            "{fair}"
        );
    }

    #[test]
    fn names_of_strangers_do_not_reach_the_terminal_as_they_are() {
        let mut results = results();
        results.model.name = "demo\u{1b}[31m".into();
        results.notes = vec!["a\u{202e}b".into()];
        let text = table(&results, &speeds(), 100);
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.contains("demo\\u{1b}[31m"), "{text}");
    }

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrapped("one two three", 7, ""), "one two\nthree\n");
        assert_eq!(wrapped("extraordinary", 5, "  "), "  extraordinary\n");
    }
}
