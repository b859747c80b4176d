//! The samples that the model writes during training: each question once, and under it the answers by step,
//! so that one can read what the training changes. All of this text is untrusted.

use ratatui::text::{Line, Span};
use sparktune_app::thought::without_thinking;
use sparktune_base::escape::escape;
use sparktune_base::units::{clock, count, counted};
use sparktune_runlog::{Sample, Seen};

use super::Known;
use crate::screen::{Role, Theme};
use crate::spoken::{answered, spoken};
use crate::wrap::wrap;

/// The largest number of characters of a text that is shown; the log has all of it.
const MOST: usize = 4000;

/// Returns the samples in lines of at most `width` columns.
pub(super) fn lines(known: &Known, width: u16, theme: &Theme) -> Vec<Line<'static>> {
    let mut questions: Vec<(&str, Vec<&Seen<Sample>>)> = Vec::new();
    for sample in &known.view.samples {
        let prompt = sample.what.prompt.as_str();
        match questions.iter_mut().find(|(known, _)| *known == prompt) {
            Some((_, answers)) => answers.push(sample),
            None => questions.push((prompt, vec![sample])),
        }
    }
    let mut lines = Vec::new();
    let all = questions.len() as u64;
    for ((prompt, mut answers), number) in questions.into_iter().zip(1..) {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        let head = format!("question {} of {}", count(number), count(all));
        lines.push(Line::styled(head, theme.style(Role::Title)));
        text(&spoken(prompt), "asked ", Role::Dim, width, theme, &mut lines);
        answers.sort_by_key(|sample| sample.what.step);
        for sample in answers {
            answer(sample, width, theme, &mut lines);
        }
    }
    if lines.is_empty() {
        let none = "no samples yet; they are written at each evaluation if the plan includes samples";
        lines.extend(
            wrap(none, usize::from(width)).into_iter().map(|l| Line::styled(l, theme.style(Role::Dim))),
        );
    }
    lines
}

fn answer(sample: &Seen<Sample>, width: u16, theme: &Theme, lines: &mut Vec<Line<'static>>) {
    let step = match sample.what.step {
        0 => "base model".to_owned(),
        step => format!("step {}", count(step)),
    };
    let (thought, said) = without_thinking(&sample.what.text, false);
    let thought = thought.map_or(0, |thought| thought.split_whitespace().count()) as u64;
    let thought =
        if thought > 0 { format!("  {} of thought", counted(thought, "word")) } else { String::new() };
    let facts = format!("  {}{thought}  {}", counted(sample.what.tokens, "token"), clock(sample.time_us));
    let mut head =
        vec![Span::styled(step, theme.style(Role::Accent)), Span::styled(facts, theme.style(Role::Dim))];
    if sample.discarded {
        head.push(Span::styled("  replaced by a later attempt", theme.style(Role::Discarded)));
    }
    lines.push(Line::from(head));
    let body = if sample.discarded { Role::Discarded } else { Role::Text };
    // An answer that is all thought is shown as it is: there is nothing else to judge.
    let said = if said.trim().is_empty() { sample.what.text.as_str() } else { said };
    text(answered(said).trim(), "wrote ", body, width, theme, lines);
}

fn text(
    text: &str,
    label: &'static str,
    role: Role,
    width: u16,
    theme: &Theme,
    lines: &mut Vec<Line<'static>>,
) {
    let shown: String = text.chars().take(MOST).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    let room = usize::from(width).saturating_sub(label.len());
    let mut label = label;
    // Its own line breaks are kept; everything else that could move the cursor is escaped.
    for line in format!("{shown}{more}").split('\n') {
        for part in wrap(&escape(line.trim_end_matches('\r')), room) {
            lines.push(Line::from(vec![
                Span::styled(format!("{label:<6}"), theme.style(Role::Accent)),
                Span::styled(part, theme.style(role)),
            ]));
            label = "";
        }
    }
}
