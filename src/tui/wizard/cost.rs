//! Draws the cost of a plan: memory by part, time with its formula, and the curve over pack lengths.

use ratatui::text::Line;
use sparktune_base::units::{bytes, count, duration, percent, tokens_per_s};
use sparktune_plan::{CostPoint, Memory, Plan, RateBasis, Time};
use unicode_width::UnicodeWidthStr;

use super::lines::{bar, fit, ink, inked, right, window, wrap};
use crate::screen::{Role, Theme};

/// The cost of a plan in three figures, for comparing plans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    pub seconds: Option<f64>,
    pub needed_bytes: u64,
    pub steps: u64,
}

impl Cost {
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let advice = plan.advice.as_ref()?;
        Some(Self {
            seconds: advice.time.total_s(),
            needed_bytes: advice.memory.needed_bytes(),
            steps: advice.time.steps,
        })
    }
}

/// Describes the basis of a time estimate in a few words.
pub(super) fn basis(time: &Time) -> &'static str {
    match time.basis {
        RateBasis::MeasuredHere => "measured here in an earlier run",
        RateBasis::Measured => "measured on a device of this kind",
        RateBasis::OriginalRecipe => "recipe's speed, unmeasured here",
        RateBasis::Estimate => "an estimate",
        RateBasis::Unknown => "unknown until the first steps",
    }
}

/// Formats a duration as `10 h 25 min`, or says that it is unknown.
pub(super) fn shown_s(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "unknown".to_owned(), duration)
}

fn changed(before: Option<String>, after: &str, theme: &Theme) -> String {
    match before.filter(|before| before != after) {
        Some(before) => format!("{before} {} {after}", theme.glyph("→", "->")),
        None => after.to_owned(),
    }
}

/// Draws the time: the figure, its basis, and as much of the formula as fits.
pub(super) fn time_lines(
    plan: &Plan,
    was: Option<Cost>,
    width: usize,
    formula_rows: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let Some(advice) = &plan.advice else { return Vec::new() };
    let time = &advice.time;
    let total = shown_s(time.total_s());
    let words = changed(was.map(|was| shown_s(was.seconds)), &total, theme);
    let role = if was.is_some_and(|was| shown_s(was.seconds) != total) { Role::Accent } else { Role::Title };
    let mut lines = vec![
        Line::from(vec![
            ink(theme, Role::Dim, "time    "),
            ink(theme, role, fit(&words, width.saturating_sub(8), theme)),
        ]),
        inked(theme, Role::Dim, fit(&format!("        {}", basis(time)), width, theme)),
    ];
    let speed =
        time.tokens_per_s.map_or_else(String::new, |rate| format!(" at {} tokens/s", tokens_per_s(rate)));
    let steps = changed(was.map(|was| count(was.steps)), &count(time.steps), theme);
    let about = plan.duration.about(time.steps);
    let steps = format!("        {about}{steps} step{}{speed}", if time.steps == 1 { "" } else { "s" });
    lines.push(inked(theme, Role::Dim, fit(&steps, width, theme)));
    if formula_rows > 0 {
        let mut formula = wrap(&time.formula, width);
        if formula.len() > formula_rows {
            let rest = formula.split_off(formula_rows - 1).join(" ");
            formula.push(fit(&rest, width, theme));
        }
        lines.extend(formula.into_iter().map(|line| inked(theme, Role::Dim, line)));
    }
    lines
}

/// A pattern and a colour for each part. Either alone distinguishes the parts.
const PARTS: [(&str, &str, Role); 8] = [
    ("█", "W", Role::Curve),
    ("▓", "A", Role::Other),
    ("▒", "G", Role::Eval),
    ("▚", "O", Role::Average),
    ("▞", "V", Role::Good),
    ("▤", "L", Role::Warn),
    ("░", "R", Role::Dim),
    ("▧", "E", Role::Trained),
];

/// Draws the memory in at most `rows` lines: needed and available bytes, the bar by part, and the parts in
/// words.
pub(super) fn memory_lines(
    memory: &Memory,
    was: Option<Cost>,
    width: usize,
    rows: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let needed = bytes(memory.needed_bytes());
    let before = was.map(|was| bytes(was.needed_bytes));
    let is_new = before.as_ref().is_some_and(|before| *before != needed);
    let words = format!("{} of {}", changed(before, &needed, theme), bytes(memory.available_bytes));
    let role = if !memory.fits() {
        Role::Bad
    } else if is_new {
        Role::Accent
    } else {
        Role::Title
    };
    let words = if memory.fits() { words } else { format!("{words}: too much") };
    let mut lines = vec![
        Line::from(vec![
            ink(theme, Role::Dim, "memory  "),
            ink(theme, role, fit(&words, width.saturating_sub(8), theme)),
        ]),
        memory_bar(memory, width, theme),
    ];
    lines.extend(memory_legend(memory, width, rows.saturating_sub(2), theme));
    lines.truncate(rows);
    lines
}

fn memory_bar(memory: &Memory, width: usize, theme: &Theme) -> Line<'static> {
    let all = memory.available_bytes.max(memory.needed_bytes()).max(1) as f64;
    let mut spans = Vec::new();
    let (mut used, mut sum) = (0, 0.0);
    for ((_, part), (unicode, ascii, role)) in memory.parts().into_iter().zip(PARTS) {
        sum += part as f64;
        let to = ((sum / all * width as f64).round() as usize).min(width);
        spans.push(ink(theme, role, theme.glyph(unicode, ascii).repeat(to.saturating_sub(used))));
        used = used.max(to);
    }
    spans.push(ink(theme, Role::Line, theme.glyph("·", ".").repeat(width - used)));
    Line::from(spans)
}

fn memory_legend(memory: &Memory, width: usize, rows: usize, theme: &Theme) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = vec![Line::default()];
    let mut parts: Vec<_> =
        memory.parts().into_iter().zip(PARTS).filter(|((_, part), _)| *part > 0).collect();
    // The largest parts come first, in case not all fit.
    parts.sort_by_key(|((_, part), _)| std::cmp::Reverse(*part));
    for ((name, part), (unicode, ascii, role)) in parts {
        let words = format!(" {name} {}  ", bytes(part));
        let last = lines.last_mut().expect("there is a line");
        if last.width() > 0 && last.width() + 1 + words.trim_end().width() > width {
            lines.push(Line::default());
        }
        let last = lines.last_mut().expect("there is a line");
        last.push_span(ink(theme, role, theme.glyph(unicode, ascii)));
        last.push_span(ink(theme, Role::Dim, words));
    }
    lines.truncate(rows);
    lines
}

/// Draws the curve over pack lengths around the chosen one, in at most `rows` lines.
pub(super) fn curve_lines(plan: &Plan, width: usize, rows: usize, theme: &Theme) -> Vec<Line<'static>> {
    let Some(advice) = plan.advice.as_ref().filter(|advice| rows >= 3 && !advice.curve.is_empty()) else {
        return Vec::new();
    };
    let columns = Columns::for_width(width);
    let mut lines = vec![columns.head(theme)];
    let points = &advice.curve;
    let chosen = points.iter().position(|point| point.pack_length == plan.pack.length).unwrap_or(0);
    let is_recipe = |at: usize| points[at].pack_length == advice.recipe_pack_length;
    let mut shown: Vec<usize> = window(chosen, points.len(), rows - 1).collect();
    // The recipe's choice is always included, for comparison.
    if let (Some(recipe), Some(last)) =
        ((0..points.len()).find(|at| is_recipe(*at)), shown.len().checked_sub(1))
        && !shown.contains(&recipe)
    {
        let edge = if recipe < shown[0] { 0 } else { last };
        shown[edge] = recipe;
    }
    lines.extend(shown.into_iter().map(|at| columns.row(&points[at], at == chosen, is_recipe(at), theme)));
    lines
}

/// The columns of the curve that fit.
struct Columns {
    width: usize,
    bar: usize,
    rows: bool,
}

impl Columns {
    fn for_width(width: usize) -> Self {
        let rows = width >= 70;
        let used = 8 + 6 + 7 + 9 + if rows { 10 } else { 0 } + 13;
        Self { width, bar: width.saturating_sub(used).clamp(0, 30), rows }
    }

    fn head(&self, theme: &Theme) -> Line<'static> {
        let rows = if self.rows { "     packs" } else { "" };
        let text = format!("  length {}  speed  empty{rows}   memory", " ".repeat(self.bar));
        inked(theme, Role::Dim, fit(&text, self.width, theme))
    }

    fn row(&self, point: &CostPoint, chosen: bool, is_recipe: bool, theme: &Theme) -> Line<'static> {
        let speed = percent(point.tokens_per_s_relative.clamp(0.0, 9.99));
        let full = bar(point.tokens_per_s_relative, self.bar, theme);
        let gap = self.bar.saturating_sub(full.width());
        let rows =
            if self.rows { format!(" {}", right(&count(point.rows), 9, theme)) } else { String::new() };
        let figures = format!(
            " {} {}{rows} {}",
            right(&speed, 6, theme),
            right(&percent(point.waste), 6, theme),
            right(&bytes(point.needed_bytes), 8, theme)
        );
        let mark = match (chosen, point.fits, is_recipe) {
            (true, ..) => theme.glyph(" ◂ chosen", " < chosen"),
            (_, false, _) => " too large",
            (_, _, true) => " recipe",
            _ if point.recompute => " recompute",
            _ => "",
        };
        let role = match (chosen, point.fits) {
            (true, _) => Role::Accent,
            (_, false) => Role::Dim,
            _ => Role::Text,
        };
        let line = Line::from(vec![
            ink(theme, role, format!("{} ", right(&count(point.pack_length.into()), 8, theme))),
            ink(theme, if point.fits { Role::Curve } else { Role::Line }, full),
            ink(theme, role, format!("{}{figures}{mark}", " ".repeat(gap))),
        ]);
        if line.width() <= self.width {
            line
        } else {
            inked(theme, role, fit(&line.to_string(), self.width, theme))
        }
    }
}
