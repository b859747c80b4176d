//! One page about a run, for people who would rather look than read.
//!
//! Enters: a run folder, read by [`ReportInput::read`], every file in bounded size. Leaves: one
//! self-contained HTML page from [`html`]: no script, nothing fetched, charts as SVG, readable in dark and
//! light, on paper and by a screen reader. A part of the folder that is missing or not readable becomes a
//! sentence on the page. All text from data, models, file names and logs gets in through `markup::Markup`,
//! which escapes it.
//!
//! One page, one kind of unit: bytes are decimal here, as in the reasons that the plan carries as text.

mod axis;
mod bars;
mod chart;
mod curve;
mod curves;
mod data;
mod drawing;
mod figure;
mod head;
mod history;
mod input;
mod markup;
mod outputs;
mod plan;
mod samples;
mod times;

pub use input::{OnDisk, Part, ReportInput, write_page};
use markup::{Markup, clip};
pub use times::Times;

/// Nothing is fetched and nothing runs, whatever the page might come to hold.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// Characters of a name, path, reason or message that are shown.
const LINE_CHARS: usize = 600;
/// Rows of a list that are shown.
const MOST_ROWS: usize = 200;

/// The page.
pub fn html(run: &ReportInput) -> String {
    let mut page = Markup::default();
    page.verbatim("<!DOCTYPE html>\n");
    page.element("html", &[("xmlns", "http://www.w3.org/1999/xhtml"), ("lang", "en")], |page| {
        page.element("head", &[], |page| {
            page.empty("meta", &[("charset", "utf-8")]);
            page.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
            page.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
            page.leaf("title", &[], &format!("{} · sparktune", clip(&run.name, LINE_CHARS)));
            page.element("style", &[], |page| page.verbatim(include_str!("style.css")));
        });
        page.element("body", &[], |page| {
            page.element("main", &[], |page| {
                head::write(page, run);
                curves::write(page, run);
                history::warnings(page, run);
                samples::write(page, run);
                outputs::write(page, run);
                data::write(page, run);
                plan::write(page, run);
                history::write(page, run);
                outputs::provenance(page, run);
            });
            page.leaf("footer", &[], &format!("sparktune report, read {}", times::moment(run.read_us)));
        });
    });
    page.verbatim("\n");
    page.finish()
}

/// A part of the page under its heading.
fn section(page: &mut Markup, title: &'static str, inside: impl FnOnce(&mut Markup)) {
    page.element("section", &[], |page| {
        page.leaf("h2", &[], title);
        inside(page);
    });
}

/// What is said where there is nothing to show.
fn absent(page: &mut Markup, sentence: &str) {
    page.element("p", &[("class", "absent")], |page| page.sentence(&clip(sentence, LINE_CHARS)));
}

/// Text that is not ours, set apart from its neighbours so that its direction stays its own.
fn said(page: &mut Markup, tag: &'static str, class: &'static str, text: &str) {
    page.leaf(tag, &[("class", class), ("dir", "auto")], &clip(text, LINE_CHARS));
}

/// A table with a heading for each column. Cells are written by `row`.
fn table<T>(
    page: &mut Markup,
    class: &'static str,
    columns: &[&'static str],
    rows: impl Iterator<Item = T>,
    mut row: impl FnMut(&mut Markup, T),
) {
    page.element("div", &[("class", "wide")], |page| {
        page.element("table", &[("class", class)], |page| {
            page.element("thead", &[], |page| {
                page.element("tr", &[], |page| {
                    for column in columns {
                        page.leaf("th", &[("scope", "col")], column);
                    }
                });
            });
            page.element("tbody", &[], |page| {
                for item in rows {
                    row(page, item);
                }
            });
        });
    });
}

/// Figures side by side: name, value, and a word more.
fn figures(page: &mut Markup, of: &[(&'static str, String, String)]) {
    page.element("dl", &[("class", "figures")], |page| {
        for (name, value, more) in of {
            page.element("div", &[], |page| {
                page.leaf("dt", &[], name);
                page.leaf("dd", &[], value);
                if !more.is_empty() {
                    page.leaf("dd", &[("class", "more"), ("dir", "auto")], &clip(more, LINE_CHARS));
                }
            });
        }
    });
}

/// Words about the rows that are not shown.
fn left_out(page: &mut Markup, all: usize, shown: usize) {
    if all > shown {
        absent(page, &format!("{} more are not shown.", sparktune_base::units::count((all - shown) as u64)));
    }
}
