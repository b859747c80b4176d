//! One chart over steps, as SVG that needs no script.
//!
//! The outer SVG has the size of its place on the page and coordinates in percent, so that text, strokes and markers keep
//! their size on any screen; the curves lie in an inner SVG that is stretched. Hovering shows the values: each slice of
//! the chart carries them as its `<title>`.

use sparktune_plan::render;
use sparktune_runlog::Series;

use super::axis::{Axis, as_f64, figure};
use super::curve::{Column, HEIGHT, WIDTH, band, columns, line, stretches};
use super::markup::Markup;
use crate::quantity::{UNKNOWN, count};

/// What the values are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Unit {
    /// Numbers in this unit, which may be empty.
    Of(&'static str),
    /// Bytes, shown in the decimal unit that suits the largest.
    Bytes,
}

impl Unit {
    /// What one unit on the axis is, and its name.
    fn on_axis(self, largest: f64) -> (f64, &'static str) {
        match self {
            Unit::Of(name) => (1.0, name),
            Unit::Bytes => {
                let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
                units.into_iter().find(|(size, _)| largest >= *size).unwrap_or((1.0, "B"))
            }
        }
    }

    /// A value as text, beside a caption that names the unit.
    pub fn show(self, value: f64) -> String {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        match self {
            Unit::Bytes => render::bytes(value.max(0.0) as u64),
            Unit::Of(_) => figure(value),
        }
    }
}

/// Where the value axis begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Base {
    /// At 0.
    Zero,
    /// Near the smallest value, and logarithmic where most of the curve would otherwise lie flat on the ground.
    Fitted,
}

/// Which line is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Trace {
    /// The means themselves.
    Exact,
    /// The means smoothed, for what differs from step to step.
    Smooth,
}

/// How much of a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Detail {
    /// Points of a line, at most.
    pub columns: u64,
    /// Places that show their values when pointed at.
    pub slices: u64,
    /// Value ticks, about.
    pub ticks: u32,
    /// Height in CSS pixels.
    pub height: &'static str,
}

/// A chart to itself.
pub(super) const LARGE: Detail = Detail { columns: 400, slices: 60, ticks: 6, height: "320" };
/// One of several.
pub(super) const SMALL: Detail = Detail { columns: 160, slices: 24, ticks: 3, height: "132" };

/// Something that happened at a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    /// Steps trained by then.
    pub step: u64,
    /// What is shown when it is pointed at.
    pub title: String,
}

/// A chart over steps.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub title: &'a str,
    pub unit: Unit,
    pub base: Base,
    pub trace: Trace,
    pub detail: Detail,
    /// The steps that count.
    pub kept: &'a Series,
    /// Steps that a later attempt did again.
    pub discarded: &'a Series,
    /// Measured at some steps only, drawn as points.
    pub eval: Option<&'a Series>,
    /// The best of `eval`.
    pub best: Option<u64>,
    pub checkpoints: Vec<Mark>,
    pub resumes: Vec<Mark>,
}

/// What is drawn, brought down to columns, with its axes.
struct Drawing {
    kept: Vec<Column>,
    discarded: Vec<Column>,
    eval: Vec<Column>,
    x: Axis,
    y: Axis,
    /// Name of the axis unit.
    unit: &'static str,
    log: bool,
    from: u64,
    to: u64,
}

impl Chart<'_> {
    fn drawing(&self) -> Option<Drawing> {
        let all = [Some(self.kept), Some(self.discarded), self.eval];
        let ends = || all.iter().flatten().flat_map(|series| series.buckets());
        let (first, to) = (ends().map(|b| b.first_step).min()?, ends().map(|b| b.last_step).max()?);
        let from = if first <= to / 20 { 0 } else { first };
        let reduce = |series: &Series, most| columns(series, from, to, most);
        let kept = reduce(self.kept, self.detail.columns);
        let discarded = reduce(self.discarded, self.detail.columns / 2);
        let eval = self.eval.map(|series| reduce(series, 80)).unwrap_or_default();

        let finite = || kept.iter().chain(&discarded).chain(&eval).filter(|c| c.mean.is_some());
        let low = finite().map(|c| c.min).fold(f64::INFINITY, f64::min);
        let high = finite().map(|c| c.max).fold(f64::NEG_INFINITY, f64::max);
        let unit = self.unit.on_axis(high.abs().max(low.abs()));
        let log = self.base == Base::Fitted && lies_flat(&kept, low, high);
        let y = if log {
            Axis::log(low, high, self.detail.ticks as usize + 2)
        } else {
            let low = if self.base == Base::Zero || (low > 0.0 && low < high * 0.3) { low.min(0.0) } else { low };
            Axis::linear(low / unit.0, high / unit.0, self.detail.ticks).in_units_of(unit.0)
        };
        Some(Drawing { kept, discarded, eval, x: Axis::steps(from, to, 8), y, unit: unit.1, log, from, to })
    }

    /// Writes the figure; nothing when there is no value at all.
    pub fn write(&self, page: &mut Markup) {
        let Some(drawing) = self.drawing() else { return };
        let Drawing { unit, log, .. } = drawing;
        page.element("figure", &[], |page| {
            page.element("figcaption", &[], |page| {
                page.leaf("h3", &[], self.title);
                let scale = if log { "log scale" } else { "" };
                let notes: Vec<&str> = [unit, scale].into_iter().filter(|n| !n.is_empty()).collect();
                page.leaf("span", &[("class", "unit")], &notes.join(" · "));
                let last = self.kept.buckets().last().map(|b| b.last).filter(|v| v.is_finite());
                page.leaf("span", &[("class", "last")], &last.map_or(UNKNOWN.to_owned(), |v| self.unit.show(v)));
            });
            let height = self.detail.height;
            let attrs = [("class", "plot"), ("role", "img"), ("aria-label", self.title), ("width", "100%"), ("height", height)];
            page.element("svg", &attrs, |page| {
                page.leaf("desc", &[], &self.in_words(&drawing));
                drawing.write(page, self);
            });
            self.legend(page, &drawing);
        });
    }

    /// The chart for those who do not see it.
    fn in_words(&self, drawing: &Drawing) -> String {
        let finite = || drawing.kept.iter().filter_map(|c| Some((c, c.mean?)));
        let Some(((_, first), (_, last))) = finite().next().zip(finite().last()) else {
            return format!("{}: no finite value.", self.title);
        };
        let show = |value| self.unit.show(value);
        let lowest = finite().min_by(|(a, _), (b, _)| a.min.total_cmp(&b.min)).map(|(c, _)| c);
        let highest = finite().max_by(|(a, _), (b, _)| a.max.total_cmp(&b.max)).map(|(c, _)| c);
        let mut words = format!(
            "{} from step {} to {}: from {} to {}",
            self.title,
            count(drawing.kept.first().map_or(0, |c| c.first)),
            count(drawing.kept.last().map_or(0, |c| c.last)),
            show(first),
            show(last)
        );
        for (name, column, value) in
            [("lowest", lowest, lowest.map(|c| c.min)), ("highest", highest, highest.map(|c| c.max))]
        {
            if let Some((column, value)) = column.zip(value) {
                words.push_str(&format!(", {name} {} at {}", show(value), steps(column.first, column.last)));
            }
        }
        let broken: u64 = drawing.kept.iter().map(|c| c.nonfinite).sum();
        if broken > 0 {
            words.push_str(&format!(", {} values not finite", count(broken)));
        }
        words.push('.');
        words
    }

    fn legend(&self, page: &mut Markup, drawing: &Drawing) {
        let large = self.detail == LARGE;
        let broken = [&drawing.kept, &drawing.discarded].iter().any(|of| of.iter().any(|c| c.nonfinite > 0));
        let keys = [
            ("line", "smoothed", large),
            ("band", "each step, or smallest to largest", large),
            ("eval", "evaluation", !drawing.eval.is_empty()),
            ("best", "best evaluation", self.best.is_some() && !drawing.eval.is_empty()),
            ("checkpoint", "checkpoint", !self.checkpoints.is_empty()),
            ("resume", "resumed", large && !self.resumes.is_empty()),
            ("old", "done again by a later attempt", large && !drawing.discarded.is_empty()),
            ("nan", "not a finite number", broken),
        ];
        if !keys.iter().any(|(.., shown)| *shown) {
            return;
        }
        page.element("ul", &[("class", "legend"), ("aria-hidden", "true")], |page| {
            for (class, words, _) in keys.iter().filter(|(.., shown)| *shown) {
                page.element("li", &[], |page| {
                    key(page, class);
                    page.text(words);
                });
            }
        });
    }
}

/// Most of the curve would lie in the lowest part of a linear axis.
fn lies_flat(kept: &[Column], low: f64, high: f64) -> bool {
    let mut means: Vec<f64> = kept.iter().filter_map(|c| c.mean).collect();
    means.sort_unstable_by(f64::total_cmp);
    let Some(median) = means.get(means.len() / 2) else { return false };
    low > 0.0 && high >= low * 5.0 && median / high - low / high < 0.15 * (1.0 - low / high)
}

impl Drawing {
    fn across(&self, step: f64) -> String {
        percent(self.x.place(step))
    }

    fn write(&self, page: &mut Markup, chart: &Chart) {
        self.grid(page);
        self.resumes(page, chart);
        let (width, height) = (WIDTH, HEIGHT);
        let view = format!("0 0 {width} {height}");
        let attrs = [("viewBox", view.as_str()), ("width", "100%"), ("height", "100%"), ("preserveAspectRatio", "none")];
        page.element("svg", &attrs, |page| self.curves(page, chart.trace));
        self.broken(page);
        self.slices(page, chart);
        self.checkpoints(page, chart);
        self.evals(page, chart);
    }

    fn grid(&self, page: &mut Markup) {
        page.element("g", &[("class", "axis"), ("aria-hidden", "true")], |page| {
            for tick in self.y.ticks() {
                let y = percent(1.0 - tick.at);
                page.empty("line", &[("x1", "0"), ("x2", "100%"), ("y1", &y), ("y2", &y)]);
                page.leaf("text", &[("x", "-8"), ("y", &y), ("dy", "0.34em"), ("text-anchor", "end")], &tick.label);
            }
            let ticks = self.x.ticks();
            for (i, tick) in ticks.iter().enumerate() {
                let x = percent(tick.at);
                // Where there is little room every other label is left out.
                let class = if i % 2 == 1 { "odd" } else { "even" };
                let anchor = if tick.at > 0.98 { "end" } else { "middle" };
                let attrs =
                    [("class", class), ("x", x.as_str()), ("y", "100%"), ("dy", "1.6em"), ("text-anchor", anchor)];
                page.leaf("text", &attrs, &tick.label);
            }
        });
    }

    fn resumes(&self, page: &mut Markup, chart: &Chart) {
        for mark in chart.resumes.iter().filter(|mark| (self.from..=self.to).contains(&mark.step)) {
            let x = self.across(as_f64(mark.step));
            page.empty("line", &[("class", "resume"), ("x1", &x), ("x2", &x), ("y1", "0"), ("y2", "100%")]);
        }
    }

    fn curves(&self, page: &mut Markup, trace: Trace) {
        for (columns, band_class, line_class) in
            [(&self.discarded, "old band", "old line"), (&self.kept, "band", "line")]
        {
            for stretch in stretches(columns) {
                page.empty("path", &[("class", band_class), ("d", &band(stretch, &self.x, &self.y))]);
            }
            for stretch in stretches(columns) {
                let value = |c: &Column| if trace == Trace::Smooth { c.smooth } else { c.mean };
                let points: Vec<(f64, f64)> =
                    stretch.iter().filter_map(|c| Some((c.middle(), value(c)?))).collect();
                page.empty("path", &[("class", line_class), ("d", &line(&points, &self.x, &self.y))]);
            }
        }
        let points: Vec<(f64, f64)> =
            self.eval.iter().filter_map(|c| Some((c.middle(), c.mean?))).collect();
        if points.len() > 1 {
            page.empty("path", &[("class", "eval-line"), ("d", &line(&points, &self.x, &self.y))]);
        }
    }

    /// Steps whose value was not finite, as upright marks.
    fn broken(&self, page: &mut Markup) {
        for (columns, which) in [(&self.discarded, " (done again later)"), (&self.kept, "")] {
            let runs = columns.chunk_by(|a, b| a.nonfinite > 0 && b.nonfinite > 0);
            for run in runs.filter(|run| run[0].nonfinite > 0) {
                let (first, last) = (run[0].first, run[run.len() - 1].last);
                let x = self.across(as_f64(first) - 0.5);
                let wide = percent(self.x.place(as_f64(last) + 0.5) - self.x.place(as_f64(first) - 0.5));
                let n: u64 = run.iter().map(|c| c.nonfinite).sum();
                let title = format!("{}: {} not a finite number{which}", steps(first, last), count(n));
                let attrs = [("class", "nan"), ("x", x.as_str()), ("y", "0"), ("width", &wide), ("height", "100%")];
                page.element("rect", &attrs, |page| page.leaf("title", &[], &title));
            }
        }
    }

    /// Invisible slices that show their values when pointed at.
    fn slices(&self, page: &mut Markup, chart: &Chart) {
        let shown: Vec<&Column> = self.kept.iter().filter(|c| c.count > 0).collect();
        let slices = as_f64(chart.detail.slices.min(self.to - self.from + 1));
        let slot = |c: &Column| (self.x.place(c.middle()) * slices).min(slices - 1.0).floor();
        page.element("g", &[("class", "slices")], |page| {
            for slice in shown.chunk_by(|a, b| slot(a) == slot(b)) {
                let (first, last) = (slice[0].first, slice[slice.len() - 1].last);
                let values: u64 = slice.iter().map(|c| c.count).sum();
                let min = slice.iter().map(|c| c.min).fold(f64::INFINITY, f64::min);
                let max = slice.iter().map(|c| c.max).fold(f64::NEG_INFINITY, f64::max);
                let weigh = |c: &&Column| c.mean.unwrap_or(0.0) * (as_f64(c.count) / as_f64(values));
                let mean = slice.iter().map(weigh).sum::<f64>();
                let mut title = format!("{}: {}", steps(first, last), chart.unit.show(mean));
                if values > 1 {
                    title.push_str(&format!(" ({} to {})", chart.unit.show(min), chart.unit.show(max)));
                }
                let (x, wide) = (percent(slot(slice[0]) / slices), percent(1.0 / slices));
                let attrs = [("x", x.as_str()), ("width", &wide), ("height", "100%")];
                page.element("rect", &attrs, |page| page.leaf("title", &[], &title));
            }
        });
    }

    fn checkpoints(&self, page: &mut Markup, chart: &Chart) {
        for mark in chart.checkpoints.iter().filter(|mark| (self.from..=self.to).contains(&mark.step)) {
            let x = self.across(as_f64(mark.step));
            // A small house on the ground; the inner SVG moves its origin there.
            page.element("svg", &[("x", &x), ("y", "100%"), ("class", "checkpoint")], |page| {
                page.element("path", &[("d", "M-4 0v-6l4-4 4 4v6z")], |page| page.leaf("title", &[], &mark.title));
            });
        }
    }

    fn evals(&self, page: &mut Markup, chart: &Chart) {
        for column in &self.eval {
            let Some(mean) = column.mean else { continue };
            let best = chart.best.is_some_and(|best| (column.first..=column.last).contains(&best));
            // Several evaluations in a column: of them the best is the one to see.
            let value = if best { column.min } else { mean };
            let (x, y) = (self.across(column.middle()), percent(1.0 - self.y.place(value)));
            let (class, r) = if best { ("best", "5") } else { ("eval", "3.5") };
            let note = if best { " (best)" } else { "" };
            let title = format!("evaluation at {}: {}{note}", steps(column.first, column.last), figure(value));
            page.element("circle", &[("class", class), ("cx", &x), ("cy", &y), ("r", r)], |page| {
                page.leaf("title", &[], &title);
            });
        }
    }
}

/// A key of a legend, drawn like what it stands for.
fn key(page: &mut Markup, class: &'static str) {
    page.element("svg", &[("width", "22"), ("height", "12"), ("viewBox", "0 0 22 12")], |page| match class {
        "line" => page.empty("path", &[("class", class), ("d", "M1 8C6 2 12 10 21 4")]),
        "old" => page.empty("path", &[("class", "old line"), ("d", "M1 8C6 2 12 10 21 4")]),
        "band" => page.empty("path", &[("class", class), ("d", "M1 9L8 5L21 7V2L8 1L1 3Z")]),
        "resume" => page.empty("line", &[("class", class), ("x1", "11"), ("x2", "11"), ("y1", "0"), ("y2", "12")]),
        "nan" => page.empty("rect", &[("class", class), ("x", "9"), ("y", "0"), ("width", "4"), ("height", "12")]),
        "checkpoint" => page.element("g", &[("class", class)], |page| {
            page.empty("path", &[("d", "M7 11v-6l4-4 4 4v6z")]);
        }),
        _ => {
            let r = if class == "best" { "5" } else { "3.5" };
            page.empty("circle", &[("class", class), ("cx", "11"), ("cy", "6"), ("r", r)]);
        }
    });
}

/// `step 5`, `steps 5 to 9`
fn steps(first: u64, last: u64) -> String {
    if first == last {
        format!("step {}", count(first))
    } else {
        format!("steps {} to {}", count(first), count(last))
    }
}

/// A share of the width or height.
pub(super) fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}
