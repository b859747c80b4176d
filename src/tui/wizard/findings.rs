//! What was found in the data, in words and as bars: files, accepted and rejected lines, tokens, lengths.
//!
//! Enters: the findings of the state, and a width. Leaves: lines, and where they stand. This file must not
//! know keys, nor whether and how far the lines are scrolled.

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use sparktune_app::data::DataFound;
use sparktune_app::questions::data::suggested_map;
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted, percent};
use sparktune_data::Report;

use super::lines::{fit, fit_end, ink, inked, wrap, wrapped};
use super::preview::{policy_in_words, think};
use super::state::State;
use super::{frame, histogram};
use crate::screen::{Colours, Role, Theme};

/// Returns the area of the figures and, on a wide screen, that of an example next to them.
pub(super) fn parts(data: &DataFound, area: Rect) -> (Rect, Option<Rect>) {
    if area.width < 108 || data.preview.examples.is_empty() {
        return (area, None);
    }
    let [figures, _, example_area] = area.layout(&Layout::horizontal([
        Constraint::Percentage(54),
        Constraint::Length(2),
        Constraint::Fill(1),
    ]));
    (figures, Some(example_area))
}

/// Returns the findings in words, and the lengths as bars.
pub(super) fn figure_lines(data: &DataFound, state: &State, area: Rect, theme: &Theme) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let mut lines = summary(data, state, width, theme);
    if let Some(lengths) = &data.report.lengths {
        lines.push(Line::default());
        // If little space is left, the bars continue below and can be scrolled to.
        let room = usize::from(area.height).saturating_sub(lines.len());
        let room = if room < 9 { 14 } else { room };
        lines.extend(histogram::lines(lengths, state.planner.plan.as_ref(), width, room, theme));
    }
    lines
}

/// Returns the largest scroll offset of the figures.
pub(super) fn most_scrolled(state: &State) -> usize {
    let Some(data) = state.data.ready() else { return 0 };
    let (figures, _) = parts(data, frame::body(state.size));
    let plain = Theme { colours: Colours::None, unicode: true };
    figure_lines(data, state, figures, &plain).len().saturating_sub(usize::from(figures.height))
}

/// Returns the chosen files with their paths as short as possible.
pub(super) fn chosen(state: &State, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let paths = state.planner.answers.data.as_ref().map(|answer| answer.value.as_slice()).unwrap_or_default();
    let mut lines: Vec<_> = paths
        .iter()
        .take(3)
        .map(|path| inked(theme, Role::Title, fit_end(&escape(&state.shown(path)), width, theme)))
        .collect();
    if paths.len() > 3 {
        lines.push(inked(theme, Role::Dim, format!("and {} more", paths.len() - 3)));
    }
    lines
}

/// Describes the findings in words.
fn summary(data: &DataFound, state: &State, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let report = &data.report;
    let mut lines = files(report, width, theme);
    let ok = report.rejected == 0 && report.refused_files().next().is_none();
    let (role, glyph) = if ok { (Role::Good, theme.glyph("✓", "ok")) } else { (Role::Warn, "!") };
    let mut words = format!("{} accepted", counted(report.examples, "example"));
    if report.rejected > 0 {
        words.push_str(&format!(
            ", {} rejected ({}; w shows them)",
            counted(report.rejected, "line"),
            percent(report.rejected_share())
        ));
    }
    if report.blank_lines > 0 {
        words.push_str(&format!(", {} blank", count(report.blank_lines)));
    }
    lines.extend(marked(theme, role, glyph, &words, width));
    if let Some(refused) = state.data_refused() {
        lines.extend(wrapped(theme, Role::Bad, &refused, width));
    }
    if let Some(map) = suggested_map(&state.planner.answers, report) {
        let words = format!("the columns look like {}: c reads them so", escape(&map.to_string()));
        lines.extend(wrapped(theme, Role::Accent, &words, width));
    }
    let mut named = 0;
    for rejection in report.rejections.iter().take(2) {
        // Lines of the same kind whose reason is another one are not those of the example.
        let alike = if rejection.alike == 0 { rejection.count } else { rejection.alike };
        named += alike;
        let words = format!("  {} × {}", count(alike), rejection.example);
        lines.push(inked(theme, Role::Dim, fit(&escape(&words), width, theme)));
    }
    let others = report.rejections.iter().map(|rejection| rejection.count).sum::<u64>().saturating_sub(named);
    if others > 0 {
        let words = format!("  {} × for other reasons", count(others));
        lines.push(inked(theme, Role::Dim, fit(&words, width, theme)));
    }
    let facts = &data.facts;
    let words = format!(
        "{}, {} of them trained ({})",
        counted(facts.total_tokens, "token"),
        count(facts.target_tokens),
        percent(facts.target_share())
    );
    let words = if state.recount.wait().is_some() { format!("{words}; counting again") } else { words };
    lines.push(inked(theme, Role::Text, fit(&words, width, theme)));
    let policy = format!(
        "{}{}",
        policy_in_words(data, think(state)),
        if data.preview.empty_think_block.is_some() { " (t: switch)" } else { "" }
    );
    lines.push(inked(theme, Role::Dim, fit(&policy, width, theme)));
    for finding in report.findings().iter().take(4) {
        lines.extend(marked(theme, Role::Warn, "!", finding.trim_start(), width));
    }
    lines
}

/// Returns text after a mark that shows its severity.
fn marked(theme: &Theme, role: Role, mark: &str, words: &str, width: usize) -> Vec<Line<'static>> {
    let room = mark.chars().count() + 1;
    wrap(words, width.saturating_sub(room))
        .into_iter()
        .enumerate()
        .map(|(i, line)| {
            let head = if i == 0 { format!("{mark} ") } else { " ".repeat(room) };
            Line::from(vec![ink(theme, role, head), ink(theme, Role::Text, line)])
        })
        .collect()
}

/// Describes the files: those that are refused, each with the reason, and some of the others.
fn files(report: &Report, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    const SHOWN: usize = 3;
    let others = report.files.iter().filter(|file| file.refused.is_none()).take(SHOWN);
    let mut lines = Vec::new();
    for file in report.refused_files().chain(others) {
        let side = if file.eval { ", evaluation" } else { "" };
        let about = format!("  {}{side}, {}", file.format_in_words(), file.lines_in_words());
        let name = fit_end(&escape(&file.name), width.saturating_sub(about.len()), theme);
        lines.push(Line::from(vec![ink(theme, Role::Title, name), ink(theme, Role::Dim, about)]));
        if let Some(why) = &file.refused {
            lines.extend(wrapped(theme, Role::Bad, why, width));
        }
    }
    if report.files.len() > SHOWN {
        lines.push(inked(
            theme,
            Role::Dim,
            format!("and {} in all", counted(report.files.len() as u64, "file")),
        ));
    }
    lines
}
