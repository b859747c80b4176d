//! One HTML page about a run.
//!
//! Enters: a run folder, read by [`ReportInput::read`], every file in bounded size. Leaves: one
//! self-contained HTML page from [`html`]: no script, nothing fetched, charts as SVG, readable in dark and
//! light, on paper and by a screen reader. A part of the folder that is missing or not readable becomes a
//! sentence on the page. All text from data, models, file names and logs gets in through `markup::Markup`,
//! which escapes it.
//!
//! Bytes are decimal on this page, as in the reasons that the plan contains as text.

mod axis;
mod bars;
mod chart;
mod comparison;
mod curve;
mod curves;
mod data;
mod drawing;
mod figure;
mod head;
mod history;
mod input;
mod markup;
mod mtp;
mod outputs;
mod plan;
mod samples;
mod times;

use input::TITLE_END;
pub use input::{OnDisk, Part, ReportInput, is_page, write_page};
use markup::{Markup, clip};
pub use times::Times;

/// A content security policy that forbids scripts and requests, whatever the page may contain.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// The largest number of characters shown of a name, path, reason or message.
const LINE_CHARS: usize = 600;
/// The largest number of rows shown of a list.
const MOST_ROWS: usize = 200;

/// Returns the page.
pub fn html(run: &ReportInput) -> String {
    let mut page = Markup::default();
    page.verbatim("<!DOCTYPE html>\n");
    page.element("html", &[("xmlns", "http://www.w3.org/1999/xhtml"), ("lang", "en")], |page| {
        page.element("head", &[], |page| {
            page.empty("meta", &[("charset", "utf-8")]);
            page.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
            page.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
            page.leaf("title", &[], &format!("{}{TITLE_END}", clip(&run.name, LINE_CHARS)));
            page.element("style", &[], |page| page.verbatim(include_str!("style.css")));
        });
        page.element("body", &[], |page| {
            page.element("main", &[], |page| {
                head::write(page, run);
                curves::write(page, run);
                mtp::write(page, run);
                history::warnings(page, run);
                samples::write(page, run);
                comparison::write(page, run);
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

/// Writes a section with its heading.
fn section(page: &mut Markup, title: &'static str, inside: impl FnOnce(&mut Markup)) {
    page.element("section", &[], |page| {
        page.leaf("h2", &[], title);
        inside(page);
    });
}

/// Writes the sentence that replaces missing content.
fn absent(page: &mut Markup, sentence: &str) {
    page.element("p", &[("class", "absent")], |page| page.sentence(&clip(sentence, LINE_CHARS)));
}

/// Writes untrusted text, isolated so that its text direction does not affect its neighbours.
fn untrusted(page: &mut Markup, tag: &'static str, class: &'static str, text: &str) {
    page.leaf(tag, &[("class", class), ("dir", "auto")], &clip(text, LINE_CHARS));
}

/// Writes a table with a heading for each column. `row` writes the cells of an item.
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

/// Writes figures side by side: name, value, and a short remark.
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

/// Writes how many rows are not shown.
fn left_out(page: &mut Markup, all: usize, shown: usize) {
    if all > shown {
        absent(page, &format!("{} more are not shown.", sparktune_base::units::count((all - shown) as u64)));
    }
}
