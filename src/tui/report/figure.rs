//! A chart as a figure of the page: caption, drawing, legend, and the same in words.

use sparktune_base::units::{UNKNOWN, count};
use sparktune_runlog::Series;

use super::axis::Axis;
use super::chart::{Chart, LARGE, Shown, steps};
use super::curve::{Column, columns};
use super::drawing::{Drawing, key};
use super::markup::Markup;

impl Chart<'_> {
    fn drawing(&self) -> Drawing {
        let (from, to) = self.span;
        let reduce = |series: &Series, most| columns(series, from, to, most);
        let kept = reduce(self.kept, self.detail.columns);
        let discarded = reduce(self.discarded, self.detail.columns / 2);
        let [eval, old_eval] = self.eval.map_or_else(Default::default, |both| both.map(|of| reduce(of, 80)));

        let finite =
            || [&kept, &discarded, &eval, &old_eval].into_iter().flatten().filter(|c| c.mean.is_some());
        let base = self.base.map(|(_, value)| value);
        let low = finite().map(|c| c.min).chain(base).fold(f64::INFINITY, f64::min);
        let high = finite().map(|c| c.max).chain(base).fold(f64::NEG_INFINITY, f64::max);
        let unit = self.unit.on_axis(high.abs().max(low.abs()));
        let log = !self.unit.starts_at_zero() && lies_flat(&kept, low, high);
        let y = if log {
            Axis::log(low, high, self.detail.ticks + 2)
        } else {
            let low = if self.unit.starts_at_zero() || (low > 0.0 && low < high * 0.3) {
                low.min(0.0)
            } else {
                low
            };
            Axis::linear(low / unit.0, high / unit.0, self.detail.ticks).in_units_of(unit.0)
        };
        Drawing {
            kept,
            discarded,
            eval,
            old_eval,
            x: Axis::steps(from, to, 8),
            y,
            unit: unit.1,
            log,
            from,
            to,
        }
    }

    /// Writes the figure.
    pub(super) fn write(&self, page: &mut Markup) {
        let drawing = self.drawing();
        let Drawing { unit, log, .. } = drawing;
        page.element("figure", &[], |page| {
            page.element("figcaption", &[], |page| {
                page.leaf("h3", &[], self.title);
                let scale = if log { "log scale" } else { "" };
                let notes: Vec<&str> = [unit, scale].into_iter().filter(|n| !n.is_empty()).collect();
                page.leaf("span", &[("class", "unit")], &notes.join(" · "));
                let last = self.kept.buckets().last().map(|b| b.last).filter(|v| v.is_finite());
                page.leaf(
                    "span",
                    &[("class", "last")],
                    &last.map_or(UNKNOWN.to_owned(), |v| self.unit.show(v)),
                );
            });
            let height = self.detail.height;
            let attrs = [
                ("class", "plot"),
                ("role", "img"),
                ("aria-label", self.title),
                ("width", "100%"),
                ("height", height),
            ];
            page.element("svg", &attrs, |page| {
                page.leaf("desc", &[], &self.in_words(&drawing));
                drawing.write(page, self);
            });
            self.legend(page, &drawing);
        });
    }

    /// Describes the chart in words, for screen readers.
    fn in_words(&self, drawing: &Drawing) -> String {
        let finite = || drawing.kept.iter().filter_map(|c| Some((c, c.mean?)));
        let Some(((_, first), (_, last))) = finite().next().zip(finite().next_back()) else {
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
        if let Some((whose, value)) = self.base {
            words.push_str(&format!(", {whose}'s evaluation {}", show(value)));
        }
        let broken: u64 = drawing.kept.iter().map(|c| c.nonfinite).sum();
        if broken > 0 {
            words.push_str(&format!(", {} non-finite values", count(broken)));
        }
        words.push('.');
        words
    }

    fn legend(&self, page: &mut Markup, drawing: &Drawing) {
        let large = self.detail == LARGE;
        let broken = [&drawing.kept, &drawing.discarded].iter().any(|of| of.iter().any(|c| c.nonfinite > 0));
        let zero_line = self.base.map_or_else(String::new, |(whose, _)| format!("{whose}'s evaluation"));
        let keys = [
            ("line", "smoothed", large),
            ("band", "each step, or the range of several", large),
            ("eval", "evaluation", !drawing.eval.is_empty()),
            ("base", &zero_line, self.base.is_some()),
            ("best", "best evaluation", self.best.is_some() && !drawing.eval.is_empty()),
            ("checkpoint", "checkpoint", !self.checkpoints.is_empty()),
            ("resume", "resumed", large && !self.resumes.is_empty()),
            ("old", "replaced by a later attempt", large && !drawing.discarded.is_empty()),
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

/// Returns whether most of the curve would be in the lowest part of a linear axis.
fn lies_flat(kept: &[Column], low: f64, high: f64) -> bool {
    let mut means: Vec<f64> = kept.iter().filter_map(|c| c.mean).collect();
    means.sort_unstable_by(f64::total_cmp);
    let Some(median) = means.get(means.len() / 2) else { return false };
    low > 0.0 && high >= low * 5.0 && median / high - low / high < 0.15 * (1.0 - low / high)
}
