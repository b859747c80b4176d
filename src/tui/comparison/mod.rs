//! A comparison of models as lines: a table of what the answers come to, the verdict on each difference, and
//! answers side by side.
//!
//! Enters: a comparison and the number of columns. Leaves: text, in which prompts, answers and names are
//! escaped.

mod answers;
mod figures;
mod verdicts;

use sparktune_base::escape::escape;
use sparktune_base::units::counted;
use sparktune_compare::Comparison;

use crate::wrap::wrap;

/// Which answers are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// None.
    None,
    /// Those to prompts about which the models differ, and no more than a person reads.
    Differing,
    /// All of them.
    All,
}

/// Returns the comparison as text of this many columns, at least 60: the table needs them.
pub fn text(comparison: &Comparison, which: Answers, columns: usize) -> String {
    let columns = columns.max(60);
    let mut lines = Vec::new();
    if which != Answers::None {
        answers::write(&mut lines, comparison, which, columns);
    }
    let about = match &*comparison.about {
        "" => String::new(),
        about => format!(": {about}"),
    };
    let heading =
        format!("{}{about} ({})", comparison.suite, counted(comparison.prompts.len() as u64, "prompt"));
    lines.extend(wrap(&escape(&heading), columns));
    lines.push(String::new());
    figures::write(&mut lines, comparison, columns);
    verdicts::write(&mut lines, comparison, columns);
    for note in &comparison.notes {
        lines.push(String::new());
        lines.extend(indented(&format!("note: {}", escape(note)), "", "  ", columns));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Wraps a text whose first line begins otherwise than the others.
fn indented(text: &str, first: &str, rest: &str, columns: usize) -> Vec<String> {
    let room = columns.saturating_sub(rest.chars().count().max(first.chars().count()));
    let wrapped = wrap(text, room).into_iter().enumerate();
    wrapped.map(|(i, line)| format!("{}{line}", if i == 0 { first } else { rest })).collect()
}

/// Pads a cell to a width in columns.
fn padded(cell: &str, width: usize) -> String {
    use unicode_width::UnicodeWidthStr;
    let cell = crate::wrap::cut_to(cell, width, 5, "…");
    let room = width.saturating_sub(cell.width());
    cell + &" ".repeat(room)
}

#[cfg(test)]
mod tests;
