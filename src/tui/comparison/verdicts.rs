//! The verdicts: what differs between the first model and each of the others.

use sparktune_base::escape::escape;
use sparktune_compare::{Comparison, Difference, Verdict};

use super::{indented, padded};

/// The columns of the measure and of the verdict.
const MEASURES: usize = 24;
const VERDICTS: usize = 9;

pub(super) fn write(lines: &mut Vec<String>, comparison: &Comparison, columns: usize) {
    let Some((first, others)) = comparison.models.split_first() else { return };
    for other in others {
        let name = &other.model.name;
        lines.push(String::new());
        let heading = format!("{} against {}", escape(name), escape(&first.model.name));
        lines.extend(indented(&heading, "", "  ", columns));
        let mut differences = comparison.differences_of(name).peekable();
        if differences.peek().is_none() {
            lines.extend(indented("nothing was measured that could differ", "  ", "  ", columns));
        }
        for difference in differences {
            let start = format!(
                "  {}{}",
                padded(difference.measure.words(), MEASURES),
                padded(word(difference), VERDICTS)
            );
            let rest = " ".repeat(2 + MEASURES + VERDICTS);
            lines.extend(indented(&figures(difference), &start, &rest, columns));
        }
        if let Some(first) = comparison.differences_of(name).next() {
            lines.extend(indented(&format!("→ {}", conclusion(first)), "  ", "    ", columns));
        }
    }
}

fn word(difference: &Difference) -> &'static str {
    match difference.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Equal => "equal",
        Verdict::Noise => "noise",
        Verdict::TooFew => "too few",
    }
}

fn figures(difference: &Difference) -> String {
    let Difference { measure, pairs, better, worse, mean, interval, p, .. } = difference;
    let interval = interval
        .map_or_else(String::new, |(low, high)| format!(" ({})", measure.shown_interval((low, high))));
    let chance = if *p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p:.3}") };
    format!("{}{interval}, {better} better and {worse} worse of {pairs}, {chance}", measure.shown(*mean))
}

fn conclusion(difference: &Difference) -> &'static str {
    match difference.verdict {
        Verdict::Better => "The difference is larger than chance makes it.",
        Verdict::Worse => "It is worse, by more than chance makes it.",
        Verdict::Equal => "Both do the same on every prompt.",
        Verdict::Noise => "The difference is noise: other prompts could turn it round.",
        Verdict::TooFew => "There are too few prompts to tell.",
    }
}
