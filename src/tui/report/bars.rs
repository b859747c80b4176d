//! The charts of the report that are not curves over steps: stacked bars, the lengths of the examples, and
//! the cost of each pack length.

use sparktune_base::units::{self, count};
use sparktune_data::LengthReport;
use sparktune_plan::{Advice, CostPoint};

use super::axis::{Axis, as_f64};
use super::curve::line;
use super::drawing::{label_below, percent, places, stretched, values};
use super::markup::Markup;

/// The largest number of points drawn of the cost curve.
const MOST_POINTS: usize = 200;
/// The style classes of the parts of a stacked bar, one for each part of a plan's memory.
const SHADES: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];

/// One part of a stacked bar.
pub(super) struct Part<'a> {
    pub name: &'a str,
    pub size: f64,
    /// The size as formatted text.
    pub shown: String,
}

/// Draws a stacked bar of parts of `whole`, with the name and size of each part in the legend. `rest` names
/// the remainder.
pub(super) fn stacked(page: &mut Markup, title: &str, parts: &[Part], whole: f64, rest: Option<Part>) {
    let present = || parts.iter().zip(SHADES).filter(|(part, _)| part.size > 0.0);
    let words =
        present().map(|(part, _)| format!("{} {}", part.name, part.shown)).collect::<Vec<_>>().join(", ");
    page.element("figure", &[("class", "bar")], |page| {
        let attrs = [("role", "img"), ("aria-label", title), ("width", "100%"), ("height", "26")];
        page.element("svg", &attrs, |page| {
            page.leaf("desc", &[], &words);
            page.empty("rect", &[("class", "free"), ("width", "100%"), ("height", "26"), ("rx", "4")]);
            let mut from = 0.0;
            for (part, class) in present() {
                let (x, wide) = (percent(from / whole), percent(part.size / whole));
                let attrs = [("class", class), ("x", &x), ("width", &wide), ("height", "26")];
                page.element("rect", &attrs, |page| {
                    page.leaf("title", &[], &format!("{} {}", part.name, part.shown));
                });
                from += part.size;
            }
        });
        page.element("ul", &[("class", "legend parts")], |page| {
            for (part, class) in present().chain(rest.iter().map(|part| (part, "free"))) {
                page.element("li", &[], |page| {
                    page.element("svg", &[("width", "12"), ("height", "12")], |page| {
                        page.empty(
                            "rect",
                            &[("class", class), ("width", "12"), ("height", "12"), ("rx", "2")],
                        );
                    });
                    page.text(part.name);
                    page.leaf("b", &[], &part.shown);
                });
            }
        });
    });
}

/// Draws the distribution of example lengths, with the pack length marked if it is known.
pub(super) fn lengths(page: &mut Markup, lengths: &LengthReport, unit: &str, pack_length: Option<u32>) {
    let bins = &lengths.histogram;
    let Some(most) = bins.iter().map(|bin| bin.count).max().filter(|most| *most > 0) else { return };
    let wide = 1.0 / as_f64(bins.len() as u64);
    let y = Axis::linear(0.0, as_f64(most), 3);
    page.element("figure", &[], |page| {
        page.element("figcaption", &[], |page| {
            page.leaf("h3", &[], "Length of the examples");
            page.leaf(
                "span",
                &[("class", "unit")],
                &format!("{unit}, from the number below each bar to the next"),
            );
        });
        let title = "Length of the examples";
        let attrs =
            [("class", "plot"), ("role", "img"), ("aria-label", title), ("width", "100%"), ("height", "180")];
        page.element("svg", &attrs, |page| {
            let words =
                bins.iter().map(|bin| format!("{} from {}", count(bin.count), count(bin.from.into())));
            page.leaf("desc", &[], &format!("Examples: {}.", words.collect::<Vec<_>>().join(", ")));
            page.element("g", &[("class", "axis"), ("aria-hidden", "true")], |page| values(page, &y));
            for (i, bin) in bins.iter().enumerate() {
                let from = as_f64(i as u64) * wide;
                let high = y.place(as_f64(bin.count));
                let (x, w) = (percent(from + wide * 0.08), percent(wide * 0.84));
                let (top, h) = (percent(1.0 - high), percent(high));
                let range =
                    format!("{} to {}", count(bin.from.into()), count(u64::from(bin.to).saturating_sub(1)));
                let attrs =
                    [("class", "column"), ("x", x.as_str()), ("width", &w), ("y", &top), ("height", &h)];
                page.element("rect", &attrs, |page| {
                    page.leaf("title", &[], &format!("{} examples of {range} {unit}", count(bin.count)));
                });
                label_below(page, i, &x, "start", &count(bin.from.into()));
            }
            let place = pack_length.and_then(|length| {
                let i = bins.iter().position(|bin| bin.from <= length && length < bin.to)?;
                let bin = bins[i];
                let inside = f64::from(length - bin.from) / f64::from((bin.to - bin.from).max(1));
                Some((length, (as_f64(i as u64) + inside) * wide))
            });
            if let Some((length, at)) = place {
                let x = percent(at);
                page.empty(
                    "line",
                    &[("class", "chosen"), ("x1", &x), ("x2", &x), ("y1", "0"), ("y2", "100%")],
                );
                let (anchor, dx) = if at > 0.6 { ("end", "-6") } else { ("start", "6") };
                let attrs = [
                    ("class", "chosen"),
                    ("x", x.as_str()),
                    ("y", "12"),
                    ("dx", dx),
                    ("text-anchor", anchor),
                ];
                page.leaf("text", &attrs, &format!("pack length {}", count(length.into())));
            }
        });
    });
}

/// Draws the estimated speed at each pack length. The chosen length and that of the recipe are marked.
pub(super) fn cost_curve(page: &mut Markup, advice: &Advice, chosen: u32) {
    let mut points: Vec<&CostPoint> = advice.curve.iter().take(MOST_POINTS).collect();
    points.retain(|point| point.tokens_per_s_relative.is_finite());
    points.sort_by_key(|point| point.pack_length);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    let slowest = points.iter().map(|p| p.tokens_per_s_relative).fold(f64::INFINITY, f64::min);
    let fastest = points.iter().map(|p| p.tokens_per_s_relative).fold(0.0, f64::max);
    let x = Axis::log(first.pack_length.into(), last.pack_length.into(), 10);
    let y = Axis::linear(slowest * 100.0, fastest * 100.0, 3);
    let title = "Speed by pack length";
    page.element("figure", &[], |page| {
        page.element("figcaption", &[], |page| {
            page.leaf("h3", &[], title);
            page.leaf(
                "span",
                &[("class", "unit")],
                "% of the fastest, estimated; by pack length in tokens, log scale",
            );
        });
        let attrs =
            [("class", "plot"), ("role", "img"), ("aria-label", title), ("width", "100%"), ("height", "180")];
        page.element("svg", &attrs, |page| {
            page.leaf("desc", &[], &format!("Chosen: {} tokens.", count(chosen.into())));
            page.element("g", &[("class", "axis"), ("aria-hidden", "true")], |page| {
                values(page, &y);
                places(page, &x);
            });
            let place = |p: &&CostPoint| (f64::from(p.pack_length), p.tokens_per_s_relative * 100.0);
            let curve = line(&points.iter().map(place).collect::<Vec<_>>(), &x, &y);
            stretched(page, |page| page.empty("path", &[("class", "line"), ("d", &curve)]));
            for point in &points {
                let class = match point {
                    p if p.pack_length == chosen => "best",
                    p if p.pack_length == advice.recipe_pack_length => "eval",
                    p if p.fits => "dot",
                    _ => "unfit",
                };
                let (step, value) = place(point);
                let (cx, cy) = (percent(x.place(step)), percent(1.0 - y.place(value)));
                let r = if class == "best" { "5" } else { "3" };
                page.element("circle", &[("class", class), ("cx", &cx), ("cy", &cy), ("r", r)], |page| {
                    page.leaf("title", &[], &in_words(point));
                });
            }
        });
        page.element("ul", &[("class", "legend"), ("aria-hidden", "true")], |page| {
            let keys = [
                ("best", "chosen", points.iter().any(|p| p.pack_length == chosen)),
                (
                    "eval",
                    "the recipe's rule",
                    points
                        .iter()
                        .any(|p| p.pack_length == advice.recipe_pack_length && p.pack_length != chosen),
                ),
                ("unfit", "does not fit", points.iter().any(|p| !p.fits)),
            ];
            for (class, words, _) in keys.iter().filter(|(.., shown)| *shown) {
                page.element("li", &[], |page| {
                    page.element("svg", &[("width", "12"), ("height", "12")], |page| {
                        page.empty("circle", &[("class", class), ("cx", "6"), ("cy", "6"), ("r", "4")]);
                    });
                    page.text(words);
                });
            }
        });
    });
}

fn in_words(point: &CostPoint) -> String {
    format!(
        "{} tokens: {} of the fastest, {} empty, {}{}{}",
        count(point.pack_length.into()),
        units::percent(point.tokens_per_s_relative),
        units::percent(point.waste),
        units::bytes(point.needed_bytes),
        if point.recompute { ", recompute" } else { "" },
        if point.fits { "" } else { ", does not fit" },
    )
}
