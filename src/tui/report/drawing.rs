//! Draws a chart as SVG without scripts.
//!
//! The outer SVG has the size of its place on the page and coordinates in percent, so that text, strokes and
//! markers keep their size on any screen; the curves lie in an inner SVG that is stretched. Hovering shows
//! the values, which each slice of the chart has as its `<title>`.

use sparktune_base::units::count;

use super::axis::{Axis, as_f64, figure};
use super::chart::{Chart, Mark, Shown, steps};
use super::curve::{Column, HEIGHT, WIDTH, band, line, stretches};
use super::markup::Markup;

/// The content of a chart, reduced to columns, with its axes.
pub(super) struct Drawing {
    pub kept: Vec<Column>,
    pub discarded: Vec<Column>,
    pub eval: Vec<Column>,
    pub old_eval: Vec<Column>,
    pub x: Axis,
    pub y: Axis,
    /// The name of the axis unit.
    pub unit: &'static str,
    pub log: bool,
    pub from: u64,
    pub to: u64,
}

impl Drawing {
    fn across(&self, step: f64) -> String {
        percent(self.x.place(step))
    }

    /// Writes the content of the chart's SVG.
    pub(super) fn write(&self, page: &mut Markup, chart: &Chart) {
        page.element("g", &[("class", "axis"), ("aria-hidden", "true")], |page| {
            values(page, &self.y);
            places(page, &self.x);
        });
        self.base(page, chart);
        self.resumes(page, chart);
        stretched(page, |page| self.curves(page, chart.unit.smooths()));
        self.slices(page, chart);
        self.broken(page);
        self.checkpoints(page, chart);
        self.evals(page, chart);
    }

    /// Draws the line that the evaluations are compared with.
    fn base(&self, page: &mut Markup, chart: &Chart) {
        let Some((whose, value)) = chart.base else { return };
        let y = percent(1.0 - self.y.place(value));
        let attrs = [("class", "base"), ("x1", "0"), ("x2", "100%"), ("y1", y.as_str()), ("y2", &y)];
        page.element("line", &attrs, |page| {
            page.leaf("title", &[], &format!("evaluation of {whose}: {}", chart.unit.show(value)));
        });
    }

    fn resumes(&self, page: &mut Markup, chart: &Chart) {
        for step in chart.resumes.iter().filter(|step| (self.from..=self.to).contains(step)) {
            let x = self.across(as_f64(*step));
            page.empty("line", &[("class", "resume"), ("x1", &x), ("x2", &x), ("y1", "0"), ("y2", "100%")]);
        }
    }

    fn curves(&self, page: &mut Markup, is_smoothed: bool) {
        for (columns, band_class, line_class) in
            [(&self.discarded, "old band", "old line"), (&self.kept, "band", "line")]
        {
            for stretch in stretches(columns) {
                page.empty("path", &[("class", band_class), ("d", &band(stretch, &self.x, &self.y))]);
            }
            for stretch in stretches(columns) {
                let value = |c: &Column| if is_smoothed { c.smooth } else { c.mean };
                let points: Vec<(f64, f64)> =
                    stretch.iter().filter_map(|c| Some((c.middle(), value(c)?))).collect();
                page.empty("path", &[("class", line_class), ("d", &line(&points, &self.x, &self.y))]);
            }
        }
        let points: Vec<(f64, f64)> = self.eval.iter().filter_map(|c| Some((c.middle(), c.mean?))).collect();
        if points.len() > 1 {
            page.empty("path", &[("class", "eval-line"), ("d", &line(&points, &self.x, &self.y))]);
        }
    }

    /// Draws vertical marks at steps whose value was not finite.
    fn broken(&self, page: &mut Markup) {
        for (columns, which) in [(&self.discarded, " (replaced)"), (&self.kept, "")] {
            let runs = columns.chunk_by(|a, b| a.nonfinite > 0 && b.nonfinite > 0);
            for run in runs.filter(|run| run[0].nonfinite > 0) {
                let (first, last) = (run[0].first, run[run.len() - 1].last);
                let x = self.across(as_f64(first) - 0.5);
                let wide = percent(self.x.place(as_f64(last) + 0.5) - self.x.place(as_f64(first) - 0.5));
                let n: u64 = run.iter().map(|c| c.nonfinite).sum();
                let title = format!("{}: {} not a finite number{which}", steps(first, last), count(n));
                let attrs =
                    [("class", "nan"), ("x", x.as_str()), ("y", "0"), ("width", &wide), ("height", "100%")];
                page.element("rect", &attrs, |page| page.leaf("title", &[], &title));
            }
        }
    }

    /// Draws invisible slices that show their values on hover.
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
        let inside: Vec<&Mark> =
            chart.checkpoints.iter().filter(|mark| (self.from..=self.to).contains(&mark.step)).collect();
        // Of marks in the same place, only the last one is drawn.
        let place = |mark: &Mark| (self.x.place(as_f64(mark.step)) * 100.0).floor();
        for mark in inside.chunk_by(|a, b| place(a) == place(b)).filter_map(|close| close.last()) {
            let x = self.across(as_f64(mark.step));
            // The mark is a small house on the axis; the inner SVG moves its origin there.
            page.element("svg", &[("x", &x), ("y", "100%"), ("class", "checkpoint")], |page| {
                page.element("path", &[("d", "M-4 0v-6l4-4 4 4v6z")], |page| {
                    page.leaf("title", &[], &mark.title)
                });
            });
        }
    }

    fn evals(&self, page: &mut Markup, chart: &Chart) {
        for column in &self.old_eval {
            let Some(mean) = column.mean else { continue };
            let title = format!(
                "evaluation at {}: {}, replaced by a later attempt",
                steps(column.first, column.last),
                figure(mean)
            );
            self.point(page, ("old eval", "3.5"), column.middle(), mean, &title);
        }
        for column in &self.eval {
            let Some(mean) = column.mean else { continue };
            let best = chart.best.is_some_and(|best| (column.first..=column.last).contains(&best));
            // Of several evaluations in a column, the best one is drawn.
            let value = if best { column.min } else { mean };
            let class_and_radius = if best { ("best", "5") } else { ("eval", "3.5") };
            let note = if best { " (best)" } else { "" };
            let title =
                format!("evaluation at {}: {}{note}", steps(column.first, column.last), figure(value));
            self.point(page, class_and_radius, column.middle(), value, &title);
        }
    }

    fn point(
        &self,
        page: &mut Markup,
        (class, r): (&'static str, &'static str),
        step: f64,
        value: f64,
        title: &str,
    ) {
        let (x, y) = (self.across(step), percent(1.0 - self.y.place(value)));
        page.element("circle", &[("class", class), ("cx", &x), ("cy", &y), ("r", r)], |page| {
            page.leaf("title", &[], title);
        });
    }
}

/// Draws lines and labels at the values.
pub(super) fn values(page: &mut Markup, y: &Axis) {
    for tick in y.ticks() {
        let at = percent(1.0 - tick.at);
        page.empty("line", &[("x1", "0"), ("x2", "100%"), ("y1", &at), ("y2", &at)]);
        let attrs = [("x", "-8"), ("y", at.as_str()), ("dy", "0.34em"), ("text-anchor", "end")];
        page.leaf("text", &attrs, &tick.label);
    }
}

/// Draws the labels below the chart.
pub(super) fn places(page: &mut Markup, x: &Axis) {
    for (i, tick) in x.ticks().iter().enumerate() {
        let anchor = if tick.at > 0.98 { "end" } else { "middle" };
        label_below(page, i, &percent(tick.at), anchor, &tick.label);
    }
}

/// Draws the `i`th label below a chart. Narrow pages show only every other one.
pub(super) fn label_below(page: &mut Markup, i: usize, at: &str, anchor: &'static str, label: &str) {
    let class = if i % 2 == 1 { "odd" } else { "even" };
    let attrs = [("class", class), ("x", at), ("y", "100%"), ("dy", "1.6em"), ("text-anchor", anchor)];
    page.leaf("text", &attrs, label);
}

/// Writes paths in the coordinates of [`super::curve::line`], stretched over the whole chart.
pub(super) fn stretched(page: &mut Markup, inside: impl FnOnce(&mut Markup)) {
    let view = format!("0 0 {WIDTH} {HEIGHT}");
    let attrs =
        [("viewBox", view.as_str()), ("width", "100%"), ("height", "100%"), ("preserveAspectRatio", "none")];
    page.element("svg", &attrs, inside);
}

/// Writes a legend key, drawn in the style of its curve.
pub(super) fn key(page: &mut Markup, class: &'static str) {
    page.element("svg", &[("width", "22"), ("height", "12"), ("viewBox", "0 0 22 12")], |page| match class {
        "line" => page.empty("path", &[("class", class), ("d", "M1 8C6 2 12 10 21 4")]),
        "old" => page.empty("path", &[("class", "old line"), ("d", "M1 8C6 2 12 10 21 4")]),
        "band" => page.empty("path", &[("class", class), ("d", "M1 9L8 5L21 7V2L8 1L1 3Z")]),
        "base" => {
            page.empty("line", &[("class", class), ("x1", "1"), ("x2", "21"), ("y1", "6"), ("y2", "6")])
        }
        "resume" => {
            page.empty("line", &[("class", class), ("x1", "11"), ("x2", "11"), ("y1", "0"), ("y2", "12")])
        }
        "nan" => {
            page.empty("rect", &[("class", class), ("x", "9"), ("y", "0"), ("width", "4"), ("height", "12")])
        }
        "checkpoint" => page.element("g", &[("class", class)], |page| {
            page.empty("path", &[("d", "M7 11v-6l4-4 4 4v6z")]);
        }),
        _ => {
            let r = if class == "best" { "5" } else { "3.5" };
            page.empty("circle", &[("class", class), ("cx", "11"), ("cy", "6"), ("r", r)]);
        }
    });
}

/// Formats a share of the width or height as a percentage.
pub(super) fn percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}
