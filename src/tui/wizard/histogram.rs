//! The distribution of example lengths as bars, with the chosen pack length marked.

use ratatui::text::Line;
use sparktune_base::units::count;
use sparktune_data::{Bin, LengthReport, Unit};
use sparktune_plan::Plan;
use unicode_width::UnicodeWidthStr;

use super::lines::{bar, fit, ink, right, wrapped};
use crate::screen::{Role, Theme};

/// Returns a heading with mean and percentiles, and at most `rows` lines of bars and marks.
pub(super) fn lines(
    lengths: &LengthReport,
    plan: Option<&Plan>,
    width: usize,
    rows: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let unit = match lengths.unit {
        Unit::Tokens => "tokens",
        Unit::Bytes => "bytes",
    };
    let n = |length: u32| count(length.into());
    let head = format!(
        "length in {unit}: mean {}, p50 {}, p90 {}, p99 {}, longest {}",
        count(lengths.mean.round() as u64),
        n(lengths.p50),
        n(lengths.p90),
        n(lengths.p99),
        n(lengths.max)
    );
    let mut lines = wrapped(theme, Role::Text, &head, width);
    let marks = plan.map(|plan| marks(lengths, plan)).unwrap_or_default();
    let bins = merged(&lengths.histogram, rows.saturating_sub(marks.len() + lines.len()));
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let figures = bins.iter().map(|bin| count(u64::from(bin.to)).len()).max().unwrap_or(1);
    let counts = count(most).len();
    let room = width.saturating_sub(2 * figures + counts + 5);
    for (i, bin) in bins.iter().enumerate() {
        let from = right(&n(bin.from), figures, theme);
        let to = right(&n(bin.to.saturating_sub(1).max(bin.from)), figures, theme);
        let full = bar(bin.count as f64 / most as f64, room, theme);
        // A bin that is not empty is always visible, however small.
        let full = if full.is_empty() && bin.count > 0 { theme.glyph("▏", ".").to_owned() } else { full };
        lines.push(Line::from(vec![
            ink(theme, Role::Dim, format!("{from}{}{to} ", theme.glyph("–", "-"))),
            ink(theme, Role::Text, format!("{} ", right(&count(bin.count), counts, theme))),
            ink(theme, Role::Curve, full),
        ]));
        let is_last = i + 1 == bins.len();
        for mark in &marks {
            let before = i > 0 && mark.length < bin.from;
            let inside = mark.length >= bin.from && mark.length < bin.to;
            if !before && (inside || (i == 0 && mark.length < bin.from) || (is_last && mark.length >= bin.to))
            {
                lines.push(mark.line(width, theme));
            }
        }
    }
    lines
}

struct Mark {
    length: u32,
    words: String,
    chosen: bool,
}

impl Mark {
    fn line(&self, width: usize, theme: &Theme) -> Line<'static> {
        let (role, rule) = if self.chosen {
            (Role::Accent, theme.glyph("━", "="))
        } else {
            (Role::Dim, theme.glyph("╌", "-"))
        };
        let words = fit(&format!(" {} ", self.words), width.saturating_sub(4), theme);
        let rest = width.saturating_sub(words.width() + 2).min(18);
        Line::from(vec![ink(theme, role, format!("{}{words}{}", rule.repeat(2), rule.repeat(rest)))])
    }
}

fn marks(lengths: &LengthReport, plan: &Plan) -> Vec<Mark> {
    let chosen = plan.pack.length;
    let curve = plan.advice.as_ref().map(|advice| advice.curve.as_slice()).unwrap_or_default();
    let longer = curve.iter().find(|point| point.pack_length == chosen).map_or(0, |point| point.own_rows);
    let mut words = format!("pack length {}", count(chosen.into()));
    if lengths.max <= chosen {
        words.push_str(": every example fits");
    } else if longer > 0 {
        words.push_str(&format!("; about {} longer examples get packs of their own", count(longer)));
    }
    let mut marks = vec![Mark { length: chosen, words, chosen: true }];
    if let Some(rule) = plan.advice.as_ref().map(|advice| advice.recipe_pack_length).filter(|r| *r != chosen)
    {
        let words = format!("the recipe's rule: {} (the mean)", count(rule.into()));
        marks.push(Mark { length: rule, words, chosen: false });
    }
    marks.sort_by_key(|mark| mark.length);
    marks
}

/// Merges bins until at most `most` are left, the shortest lengths first.
fn merged(bins: &[Bin], most: usize) -> Vec<Bin> {
    let most = most.max(2);
    let mut merged = bins.to_vec();
    while merged.len() > most {
        let first = merged.remove(0);
        merged[0].from = first.from;
        merged[0].count += first.count;
        merged[0].total += first.total;
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::picture::TRUE_COLOUR;

    #[test]
    fn merging_loses_no_example_and_bars_stay_in_their_width() {
        let mut lengths: Vec<u32> = (0..5000).map(|i| i * i % 60_000).collect();
        let report = LengthReport::new(Unit::Tokens, &mut lengths).unwrap();
        let bins = merged(&report.histogram, 4);
        assert_eq!((bins.len(), bins.iter().map(|bin| bin.count).sum::<u64>()), (4, 5000));
        for width in [28, 40, 80] {
            for rows in [2, 5, 20] {
                let lines = lines(&report, None, width, rows, &TRUE_COLOUR);
                assert!(lines.iter().all(|line| line.width() <= width), "{width} {rows}");
            }
        }
    }
}
