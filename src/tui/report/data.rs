//! The section about the data.

use sparktune_base::units::{self, UNKNOWN, count, counted};
use sparktune_data::{Report, Unit};

use super::input::ReportInput;
use super::markup::Markup;
use super::{MOST_ROWS, absent, bars, figures, left_out, section, table, untrusted};

pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    section(page, "Data", |page| match &run.data {
        Err(problem) => absent(page, problem),
        Ok(report) => {
            figures(page, &numbers(report));
            if let Some(lengths) = &report.lengths {
                let unit = match lengths.unit {
                    Unit::Tokens => "tokens",
                    Unit::Bytes => "bytes",
                };
                let pack = run.plan.as_ref().ok().map(|plan| plan.pack.length);
                bars::lengths(page, lengths, unit, pack.filter(|_| lengths.unit == Unit::Tokens));
                let words = format!(
                    "Half of the examples have at most {} {unit}, 90 % at most {}, 99 % at most {}; the longest has {}.",
                    count(lengths.p50.into()),
                    count(lengths.p90.into()),
                    count(lengths.p99.into()),
                    count(lengths.max.into())
                );
                page.leaf("p", &[("class", "note")], &words);
            }
            sets(page, report);
            rejections(page, report);
            findings(page, report);
            files(page, report);
        }
    });
}

fn numbers(report: &Report) -> Vec<(&'static str, String, String)> {
    let mut all = vec![("Examples", count(report.examples), format!("of {}", counted(report.lines, "line")))];
    let share = if report.rejected > 0 { units::percent(report.rejected_share()) } else { String::new() };
    all.push(("Rejected", count(report.rejected), share));
    if let Some(tokens) = &report.tokens {
        all.push(("Tokens", count(tokens.total), String::new()));
        all.push(("Trained", units::percent(tokens.target_share), counted(tokens.targets, "token")));
    }
    if let Some(split) = &report.split {
        all.push((
            "Eval set",
            count(split.eval_examples),
            format!("{} trained on", count(split.train_examples)),
        ));
    }
    all
}

fn sets(page: &mut Markup, report: &Report) {
    let sets = report.notable_sets();
    if sets.is_empty() {
        return;
    }
    page.leaf("h3", &[], "Data sets");
    let columns = ["Set", "Examples", "Trained on", "Weight", "Examples an epoch", "Tokens an epoch"];
    table(page, "rows", &columns, sets.iter().take(MOST_ROWS), |page, set| {
        page.element("tr", &[], |page| {
            untrusted(page, "td", "said", &set.name);
            let whole = |number: f64| count(number.round() as u64);
            let tokens = set.epoch_tokens().map_or_else(|| UNKNOWN.to_owned(), whole);
            let [examples, trained] = [set.examples, set.train_examples].map(count);
            for text in [examples, trained, set.weight.to_string(), whole(set.epoch_examples()), tokens] {
                page.leaf("td", &[("class", "number")], &text);
            }
        });
    });
    left_out(page, sets.len(), MOST_ROWS);
}

fn rejections(page: &mut Markup, report: &Report) {
    if report.rejections.is_empty() {
        return;
    }
    page.leaf("h3", &[], "Rejected lines");
    let columns = ["Count", "Kind", "First at", "Reason and fix"];
    table(page, "rows", &columns, report.rejections.iter().take(MOST_ROWS), |page, rejection| {
        page.element("tr", &[], |page| {
            page.leaf("td", &[("class", "number")], &count(rejection.count));
            page.leaf("td", &[], &rejection.kind.to_string());
            untrusted(page, "td", "said", &format!("{}:{}", rejection.first.file, rejection.first.line));
            untrusted(page, "td", "said", &rejection.example.to_string());
        });
    });
    page.leaf("p", &[("class", "note")], "All of them are listed in data/rejected.jsonl of the run folder.");
}

fn findings(page: &mut Markup, report: &Report) {
    let findings = report.findings();
    if findings.is_empty() {
        return;
    }
    page.leaf("h3", &[], "Notes");
    page.element("ul", &[], |page| {
        for finding in &findings {
            untrusted(page, "li", "said", finding.trim());
        }
    });
}

fn files(page: &mut Markup, report: &Report) {
    for file in &report.token_files {
        for line in file.to_string().lines() {
            untrusted(page, "p", "said", line.trim());
        }
    }
    page.element("details", &[], |page| {
        page.leaf("summary", &[], &format!("Files ({})", count(report.files.len() as u64)));
        let columns = ["File", "Format", "Side", "Lines", "Examples", "Rejected"];
        table(page, "rows", &columns, report.files.iter().take(MOST_ROWS), |page, file| {
            page.element("tr", &[], |page| {
                untrusted(page, "td", "said", &file.name);
                let format = file.format.map(|format| format.to_string());
                page.leaf("td", &[], format.as_deref().unwrap_or(UNKNOWN));
                page.leaf("td", &[], if file.eval { "eval" } else { "train" });
                for n in [file.lines, file.examples, file.rejected] {
                    page.leaf("td", &[("class", "number")], &count(n));
                }
            });
        });
        left_out(page, report.files.len(), MOST_ROWS);
    });
}
