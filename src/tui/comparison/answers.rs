//! Answers to the same prompt, side by side where they have room, and otherwise below one another.

use sparktune_base::escape::escape;
use sparktune_compare::{Answer, Comparison, PromptShown};

use super::{Answers, indented, padded};
use crate::wrap::{cut, wrap};

/// The fewest columns of an answer beside another.
const NARROWEST: usize = 36;
/// The most prompts whose answers are shown if not all were asked for.
const MOST_PROMPTS: usize = 12;
/// The most lines of a prompt, and of an answer, if not all were asked for.
const MOST_LINES: usize = 12;
/// What stands between two answers.
const BORDER: &str = " │ ";

pub(super) fn write(lines: &mut Vec<String>, comparison: &Comparison, which: Answers, columns: usize) {
    let all = which == Answers::All;
    let wanted: Vec<usize> =
        (0..comparison.prompts.len()).filter(|i| all || differs(comparison, *i)).collect();
    let most = if all { usize::MAX } else { MOST_PROMPTS };
    for i in wanted.iter().take(most) {
        prompt(lines, &comparison.prompts[*i], all, columns);
        answers(lines, comparison, *i, all, columns);
        lines.push(String::new());
    }
    let left = wanted.len().saturating_sub(most);
    if left > 0 {
        lines.extend(wrap(
            &format!("Answers to {left} more prompts differ; --answers all shows them."),
            columns,
        ));
        lines.push(String::new());
    }
}

/// Returns whether the models differ in what the checks say; in their texts, if no check decides.
fn differs(comparison: &Comparison, prompt: usize) -> bool {
    let answers: Vec<&Answer> =
        comparison.models.iter().filter_map(|model| model.answers.get(prompt)).collect();
    let Some((first, others)) = answers.split_first() else { return false };
    others.is_empty()
        || others.iter().any(|other| match (first.passed, other.passed) {
            (None, None) => first.text != other.text,
            (first, other) => first != other,
        })
}

fn prompt(lines: &mut Vec<String>, prompt: &PromptShown, all: bool, columns: usize) {
    let title = format!("── {} ", escape(&prompt.id));
    lines.push(format!("{title}{}", "─".repeat(columns.saturating_sub(title.chars().count()))));
    let most = if all { usize::MAX } else { MOST_LINES };
    block(lines, &prompt.last_text(), columns, most);
    if let Some(reference) = &prompt.reference {
        let reference = reference.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = cut(&escape(&reference), columns * 2);
        lines.extend(indented(&shown, "reference: ", "  ", columns));
    }
    lines.push(String::new());
}

fn answers(lines: &mut Vec<String>, comparison: &Comparison, prompt: usize, all: bool, columns: usize) {
    let most = if all { usize::MAX } else { MOST_LINES };
    let models = &comparison.models;
    let beside = (columns + BORDER.len()) / (NARROWEST + BORDER.len());
    let at_a_time = beside.min(models.len()).max(1);
    let border = BORDER.chars().count();
    let width = (columns - border * (at_a_time - 1)) / at_a_time;
    for models in models.chunks(at_a_time) {
        let mut blocks: Vec<Vec<String>> = Vec::new();
        for model in models {
            let mut of_model = Vec::new();
            if let Some(answer) = model.answers.get(prompt) {
                of_model.push(cut(&format!("{} {}", mark(answer), escape(&model.model.name)), width));
                body(&mut of_model, answer, width, most);
            }
            blocks.push(of_model);
        }
        let height = blocks.iter().map(Vec::len).max().unwrap_or(0);
        for row in 0..height {
            let cells: Vec<String> =
                blocks.iter().map(|block| padded(block.get(row).map_or("", String::as_str), width)).collect();
            lines.push(cells.join(BORDER));
        }
        if at_a_time == 1 {
            lines.push(String::new());
        }
    }
    if at_a_time == 1 {
        lines.pop();
    }
}

/// Writes what a model wrote, and which checks it failed.
fn body(lines: &mut Vec<String>, answer: &Answer, width: usize, most: usize) {
    match &answer.error {
        Some(error) => lines.extend(wrap(&format!("no answer: {}", escape(error)), width)),
        None if answer.text.trim().is_empty() => lines.push("(nothing)".to_owned()),
        None => block(lines, &answer.text, width, most),
    }
    for outcome in answer.outcomes.iter().filter(|outcome| outcome.passed == Some(false)) {
        let note = outcome.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        lines.extend(indented(&escape(&format!("not: {}{note}", outcome.check)), "· ", "  ", width));
    }
    let unmade = answer.outcomes.iter().filter(|outcome| outcome.passed.is_none() && outcome.value.is_none());
    for outcome in unmade {
        let note = outcome.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        lines.extend(indented(&escape(&format!("not checked, {}{note}", outcome.check)), "· ", "  ", width));
    }
    let measured = answer.outcomes.iter().filter(|outcome| outcome.passed.is_none());
    let measured: Vec<String> =
        measured.filter_map(|outcome| Some(format!("{} {:.1}", outcome.check, outcome.value?))).collect();
    if !measured.is_empty() {
        lines.extend(indented(&measured.join(", "), "· ", "  ", width));
    }
}

fn mark(answer: &Answer) -> &'static str {
    match answer.passed {
        Some(true) => "✓",
        Some(false) => "✗",
        None => "·",
    }
}

/// Writes a text with its lines, wrapped.
fn block(lines: &mut Vec<String>, text: &str, width: usize, most: usize) {
    let all: Vec<String> = text.trim().lines().flat_map(|line| wrap(&escape(line), width)).collect();
    let left = all.len().saturating_sub(most);
    lines.extend(all.into_iter().take(most));
    if left > 0 {
        lines.push(cut(&format!("… {left} more lines"), width));
    }
}
