//! A line chart for terminals.
//!
//! Enters: curves as the run log keeps them ([`Bucket`]s with smallest and largest value), marks, and the
//! range of steps to show. Leaves: cells of a ratatui buffer. It must not know runs or keys.
//!
//! ```text
//! ╭ loss ──────── ⣿ each step  ━ average  ◆ eval ╮
//! │ 2.0 ⠑⢄⢄                 ┊                    │   envelope: no spike is lost, whatever the width
//! │ 1.5    ⠉⠉⠑◆⢄⣀⢠⡀⣀ ×  ⢀⣀◆⣀⡀┊                    │   × and a gap: not finite      ┊ a later attempt begins
//! │                 ▲        ▲                   │   ▲ checkpoints
//! ╰──────────┴ 500 ──────────┴ 1,000 ────────────╯
//! ```

mod axis;
mod canvas;
mod columns;
mod sparkline;
mod unit;

#[cfg(test)]
mod tests;

use axis::Axis;
use canvas::{Canvas, Ink};
pub(crate) use columns::{Window, summary};
use ratatui::buffer::Buffer;
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Widget};
pub(crate) use sparkline::{Column, blocks, sparkline};
use sparktune_runlog::{Bucket, Unit};
use unicode_width::UnicodeWidthStr;
pub(crate) use unit::say;

use crate::screen::{Colours, Role, Theme};
use crate::ticks::step_ticks;

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The range from the smallest to the largest value of each column.
    Envelope,
    /// The moving average as a line.
    Average,
    /// A marker at each value.
    Points,
}

impl Shape {
    /// Returns the glyph that stands for a curve of this shape in a legend.
    pub(crate) fn glyph(self, role: Role, theme: &Theme) -> &'static str {
        match self {
            Shape::Envelope if theme.unicode => "⣿",
            Shape::Average if theme.unicode => "━",
            Shape::Points => theme.glyph("◆", "o"),
            _ if role == Role::Discarded => ",",
            _ if role == Role::Other => "+",
            _ if role == Role::Second => "x",
            _ if role == Role::Third => "%",
            Shape::Envelope => ":",
            Shape::Average => "*",
        }
    }
}

/// One curve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Curve<'a> {
    /// The name in the legend. An empty name leaves the curve out of the legend.
    pub name: &'a str,
    /// Its values, ascending by step.
    pub buckets: &'a [Bucket],
    /// How it is drawn.
    pub shape: Shape,
    /// The role that decides its colour and style.
    pub role: Role,
}

/// A marked step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The step.
    pub step: u64,
    /// The reason for the mark.
    pub kind: MarkKind,
}

/// The meaning of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// A checkpoint was committed.
    Checkpoint,
    /// A checkpoint with the lowest eval loss so far.
    Best,
    /// A later attempt resumed from here.
    Resume,
}

/// A chart, ready to be drawn.
#[derive(Debug)]
pub(crate) struct Chart<'a> {
    /// The text in the top border.
    pub title: Line<'a>,
    /// The unit of all its curves.
    pub unit: Unit,
    /// The steps shown.
    pub window: Window,
    /// Whether the value axis is logarithmic, where the values allow it.
    pub log: bool,
    /// The curves in drawing order: a later one hides an earlier one.
    pub curves: Vec<Curve<'a>>,
    /// The marked steps. They have a row of their own if there are any.
    pub marks: Vec<Mark>,
    /// A value that the curves are compared with, drawn as a horizontal line with the name that it has in the
    /// legend.
    pub level: Option<(f64, &'a str)>,
    /// The step of the crosshair, a vertical line through all curves.
    pub crosshair: Option<u64>,
    /// The text that is shown when there is nothing to draw.
    pub empty: &'a str,
}

/// The area of the curves, with its axes.
struct Plot {
    area: Rect,
    /// The row of marks below the plot.
    marks: Option<Rect>,
    axis: Axis,
    /// Values and their labels.
    ticks: Vec<(f64, String)>,
}

impl Chart<'_> {
    /// Draws the chart into an area of any size.
    pub(crate) fn draw(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let area = area.intersection(buffer.area);
        if area.width < 2 || area.height < 2 {
            return;
        }
        Block::bordered()
            .border_set(theme.border())
            .border_style(theme.style(Role::Line))
            .render(area, buffer);
        let title = self.title(area, buffer);
        let inner = area.inner(Margin::new(1, 1));
        let Some(plot) = self.plot(inner) else {
            if inner.height > 0 {
                let row = Rect { y: inner.y + inner.height / 2, height: 1, ..inner };
                Line::styled(self.empty, theme.style(Role::Dim)).centered().render(row, buffer);
            }
            return;
        };
        self.value_labels(&plot, buffer, theme);
        self.level(&plot, buffer, theme);
        let gaps = self.curves(&plot, buffer, theme);
        self.step_labels(&plot, area, buffer, theme);
        self.marks(&plot, &gaps, buffer, theme);
        self.legend(area, title, !gaps.is_empty(), buffer, theme);
    }

    /// Draws the title and returns the number of columns it takes.
    fn title(&self, area: Rect, buffer: &mut Buffer) -> u16 {
        let room = area.width.saturating_sub(4);
        if self.title.width() == 0 || room == 0 {
            return 0;
        }
        // One space on either side, without the border's style.
        let wide = (self.title.width() as u16).min(room) + 2;
        clear(Rect::new(area.x + 1, area.y, wide, 1), buffer);
        buffer.set_line(area.x + 2, area.y, &self.title, room);
        wide + 1
    }

    /// Returns the first and last step under the crosshair when the chart is drawn into `area`. All steps in
    /// the same column of cells count.
    pub(crate) fn steps_at_crosshair(&self, area: Rect) -> Option<(u64, u64)> {
        let cells = usize::from(self.plot(area.inner(Margin::new(1, 1)))?.area.width);
        let column = self.window.column(self.crosshair?, cells)?;
        Some(self.window.steps_of(column, cells))
    }

    fn plot(&self, inner: Rect) -> Option<Plot> {
        let mut values = Vec::new();
        for curve in &self.curves {
            match curve.shape {
                Shape::Average => {
                    let line = columns::average_line(curve.buckets, self.window, usize::from(inner.width));
                    values.extend(line.iter().flatten().map(|(_, y)| *y));
                }
                Shape::Envelope | Shape::Points => {
                    let all = columns::columns(curve.buckets, self.window, usize::from(inner.width));
                    values.extend(all.iter().flatten().flat_map(|column| [column.min, column.max]));
                }
            }
        }
        // A level alone is not worth a chart.
        if !values.is_empty() {
            values.extend(self.level.map(|(value, _)| value));
        }
        let mut axis = Axis::of(values.iter().copied(), self.log, unit::least_span(self.unit))?;
        if let Some(most) = unit::most(self.unit).filter(|most| values.iter().all(|value| value <= most)) {
            axis = axis.below(most);
        }
        let has_marks = !self.marks.is_empty() && inner.height > 3;
        let height = inner.height - u16::from(has_marks);
        let scale = unit::scale(self.unit, axis.largest());
        let (ticks, step) = axis.ticks((usize::from(height) / 3 + 2).min(9), scale.0);
        let labels = unit::labels(&ticks, step, scale);
        let gutter = labels.iter().map(|label| label.width()).max().unwrap_or(0) as u16 + 1;
        if inner.width < gutter + 4 || height == 0 {
            return None;
        }
        let area = Rect { x: inner.x + gutter, width: inner.width - gutter, height, ..inner };
        let marks = has_marks.then_some(Rect { y: area.y + height, height: 1, ..area });
        Some(Plot { area, marks, axis, ticks: ticks.into_iter().zip(labels).collect() })
    }

    /// Writes the values left of the plot and draws a faint line at each.
    fn value_labels(&self, plot: &Plot, buffer: &mut Buffer, theme: &Theme) {
        let area = plot.area;
        let mut taken = None;
        for (tick, label) in &plot.ticks {
            let row =
                area.y + ((1.0 - plot.axis.fraction(*tick)) * f64::from(area.height - 1)).round() as u16;
            if taken != Some(row) {
                buffer.set_string(area.x - 1 - label.width() as u16, row, label, theme.style(Role::Dim));
                for x in (area.x..area.right()).step_by(4) {
                    buffer[(x, row)].set_symbol(theme.glyph("·", ".")).set_style(theme.style(Role::Line));
                }
            }
            taken = Some(row);
        }
    }

    /// Draws the level in the row that a curve with this value would have.
    fn level(&self, plot: &Plot, buffer: &mut Buffer, theme: &Theme) {
        let Some((value, _)) = self.level else { return };
        let row = ((1.0 - plot.axis.fraction(value)) * f64::from(plot.area.height - 1)).round() as u16;
        for x in plot.area.x..plot.area.right() {
            let cell = &mut buffer[(x, plot.area.y + row)];
            cell.set_symbol(level_glyph(theme)).set_style(theme.style(Role::Eval));
        }
    }

    /// Draws the curves and returns the columns that contain values that were not finite.
    fn curves(&self, plot: &Plot, buffer: &mut Buffer, theme: &Theme) -> Vec<u16> {
        let area = plot.area;
        let mut canvas = Canvas::new(area.width, area.height, theme.unicode);
        let (width, height) = (canvas.width(), canvas.height());
        let down = |value: f64| (1.0 - plot.axis.fraction(value)) * (height - 1) as f64;
        let mut gaps = Vec::new();
        for curve in self.curves.iter().filter(|curve| curve.shape != Shape::Points) {
            canvas.layer(ink(curve, theme));
            let envelope = curve.shape == Shape::Envelope;
            let line = if envelope {
                columns::mean_line(curve.buckets, self.window, width)
            } else {
                columns::average_line(curve.buckets, self.window, width)
            };
            for pair in line.windows(2) {
                if let [Some((xa, ya)), Some((xb, yb))] = pair {
                    canvas.line((*xa, down(*ya)), (*xb, down(*yb)));
                }
            }
            // A point between two gaps is part of no line, so it is drawn as a dot.
            for (x, y) in line.iter().flatten().filter(|(x, _)| *x >= 0.0) {
                canvas.dot(x.floor() as usize, down(*y).round() as usize);
            }
            if envelope {
                let all = columns::columns(curve.buckets, self.window, width);
                for (x, column) in all.iter().enumerate().filter_map(|(x, c)| Some((x, c.as_ref()?))) {
                    if column.count > 0 {
                        canvas.bar(x, down(column.max).round() as usize, down(column.min).round() as usize);
                    }
                    let cell = (x * usize::from(area.width) / width) as u16;
                    if column.nonfinite > 0 && curve.role != Role::Discarded && gaps.last() != Some(&cell) {
                        gaps.push(cell);
                    }
                }
            }
        }
        for mark in self.marks.iter().filter(|mark| mark.kind == MarkKind::Resume) {
            self.vertical(mark.step, plot, theme.glyph("┊", "|"), theme.style(Role::Dim), buffer);
        }
        if let Some(step) = self.crosshair {
            self.vertical(step, plot, theme.glyph("│", "|"), theme.style(Role::Accent), buffer);
        }
        canvas.draw(area, buffer);
        for curve in self.curves.iter().filter(|curve| curve.shape == Shape::Points) {
            for bucket in curve.buckets {
                let at = self.window.column(bucket.last_step, usize::from(area.width));
                if let Some((x, value)) = at.zip(bucket.mean()).filter(|(_, value)| value.is_finite()) {
                    let y = (down(value).round() as usize * usize::from(area.height) / height) as u16;
                    buffer[(area.x + x as u16, area.y + y)]
                        .set_symbol(curve.shape.glyph(curve.role, theme))
                        .set_style(theme.style(curve.role));
                }
            }
        }
        gaps
    }

    fn vertical(&self, step: u64, plot: &Plot, glyph: &str, style: Style, buffer: &mut Buffer) {
        let Some(x) = self.window.column(step, usize::from(plot.area.width)) else { return };
        for y in plot.area.y..plot.area.bottom() {
            buffer[(plot.area.x + x as u16, y)].set_symbol(glyph).set_style(style);
        }
    }

    /// Writes steps into the bottom border.
    fn step_labels(&self, plot: &Plot, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let cells = usize::from(plot.area.width);
        let widest = step_labels_width(self.window);
        let (ticks, distance) = step_ticks(self.window.from, self.window.to, (cells / (widest + 5)).max(1));
        let mut free = area.x + 1;
        for tick in ticks {
            let Some(column) = self.window.column(tick, cells) else { continue };
            let label = format!("{} {} ", theme.glyph("┴", "+"), unit::step_label(tick, distance));
            let x = plot.area.x + column as u16;
            if x >= free && x + (label.width() as u16) < area.right() {
                buffer.set_string(x, area.bottom() - 1, &label, theme.style(Role::Dim));
                free = x + label.width() as u16 + 1;
            }
        }
    }

    fn marks(&self, plot: &Plot, gaps: &[u16], buffer: &mut Buffer, theme: &Theme) {
        for x in gaps {
            for y in plot.area.y..plot.area.bottom() {
                let cell = &mut buffer[(plot.area.x + x, y)];
                // Finite values in the same column stay visible.
                if y == plot.area.y || cell.symbol() == " " || cell.symbol() == theme.glyph("·", ".") {
                    let glyph = if y == plot.area.y { gap_glyph(theme) } else { theme.glyph("╎", ":") };
                    cell.set_symbol(glyph).set_style(theme.style(Role::Bad));
                }
            }
        }
        let Some(row) = plot.marks else { return };
        for mark in &self.marks {
            let Some(x) = self.window.column(mark.step, usize::from(row.width)) else { continue };
            let cell = &mut buffer[(row.x + x as u16, row.y)];
            let (glyph, role) = mark_look(mark.kind, theme);
            // The mark of the best checkpoint is not overwritten by its neighbours.
            if cell.symbol() != mark_look(MarkKind::Best, theme).0 {
                cell.set_symbol(glyph).set_style(theme.style(role));
            }
        }
    }

    /// Draws the legend at the right of the top border, with as many entries as fit.
    fn legend(&self, area: Rect, title: u16, gaps: bool, buffer: &mut Buffer, theme: &Theme) {
        let mut entries = Vec::new();
        let Window { from, to } = self.window;
        for curve in &self.curves {
            if !curve.name.is_empty() && summary(curve.buckets, from, to).is_some() {
                entries.push((curve.shape.glyph(curve.role, theme), curve.role, curve.name));
            }
        }
        // The compared runs come first, because they are what the user looks for.
        entries.sort_by_key(|(_, role, _)| !matches!(role, Role::Other | Role::Second | Role::Third));
        if let Some((_, name)) = self.level {
            entries.push((level_glyph(theme), Role::Eval, name));
        }
        if gaps {
            entries.push((gap_glyph(theme), Role::Bad, "NaN or inf"));
        }
        for (kind, name) in
            [(MarkKind::Checkpoint, "checkpoint"), (MarkKind::Best, "best"), (MarkKind::Resume, "resumed")]
        {
            if self.marks.iter().any(|mark| mark.kind == kind) {
                let (glyph, role) = mark_look(kind, theme);
                entries.push((glyph, role, name));
            }
        }
        let mut spans = Vec::new();
        let mut wide = 0;
        for (glyph, role, name) in entries {
            let more = (glyph.width() + name.width() + 3) as u16;
            if title + wide + more + 3 > area.width {
                continue;
            }
            wide += more;
            spans.push(Span::styled(format!(" {glyph}"), theme.style(role)));
            spans.push(Span::styled(format!(" {name}"), theme.style(Role::Dim)));
        }
        if !spans.is_empty() {
            let place = Rect::new(area.right() - 2 - wide, area.y, wide + 1, 1);
            clear(place, buffer);
            buffer.set_line(place.x, place.y, &Line::from(spans), place.width);
        }
    }
}

fn clear(place: Rect, buffer: &mut Buffer) {
    for position in place.intersection(buffer.area).positions() {
        buffer[position].reset();
    }
}

fn ink(curve: &Curve<'_>, theme: &Theme) -> Ink {
    Ink {
        style: theme.style(curve.role),
        ascii: curve
            .shape
            .glyph(curve.role, &Theme { unicode: false, ..*theme })
            .chars()
            .next()
            .unwrap_or('*'),
        sparse: theme.colours == Colours::None && curve.shape == Shape::Envelope,
    }
}

fn level_glyph(theme: &Theme) -> &'static str {
    theme.glyph("╌", "-")
}

fn gap_glyph(theme: &Theme) -> &'static str {
    theme.glyph("×", "!")
}

fn mark_look(kind: MarkKind, theme: &Theme) -> (&'static str, Role) {
    match kind {
        MarkKind::Checkpoint => (theme.glyph("▴", "^"), Role::Dim),
        MarkKind::Best => (theme.glyph("▲", "A"), Role::Good),
        MarkKind::Resume => (theme.glyph("┊", "|"), Role::Dim),
    }
}

fn step_labels_width(window: Window) -> usize {
    unit::step_label(window.to, window.to.saturating_sub(window.from) / 5).width()
}
