//! The samples that the model writes during training: each question once, and under it the answers by step,
//! so that one can read what the training changes. All of this text is untrusted.

use ratatui::text::{Line, Span};
use sparktune_app::thought::without_thinking;
use sparktune_base::escape::escape;
use sparktune_base::units::{clock, count, counted};
use sparktune_runlog::{Sample, Seen};

use super::Known;
use crate::screen::{Role, Theme};
use crate::wrap::wrap;

/// The largest number of characters of a text that is shown; the log has all of it.
const MOST: usize = 4000;
/// Markers of chat templates that are not of the form `<|…|>`.
const MARKERS: [&str; 8] =
    ["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<s>", "</s>", "[INST]", "[/INST]"];
/// The longest marker of the form `<|…|>`, in bytes.
const LONGEST_MARKER: usize = 40;
/// What templates call those who speak.
const SPEAKERS: [&str; 5] = ["system", "developer", "user", "assistant", "model"];

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
    text(said.trim(), "wrote ", body, width, theme, lines);
}

/// Returns what is said in a prompt, without the marks of its template. The speakers are named if there are
/// several.
fn spoken(prompt: &str) -> String {
    let mut plain = String::with_capacity(prompt.len());
    let mut rest = prompt;
    while let Some(c) = rest.chars().next() {
        let named = MARKERS.iter().find(|marker| rest.starts_with(**marker)).map(|marker| marker.len());
        let barred = || {
            let end = rest.strip_prefix("<|")?.find("|>")? + 4;
            (end <= LONGEST_MARKER && !rest[..end].contains(char::is_whitespace)).then_some(end)
        };
        match named.or_else(barred) {
            // A mark in the place where a speaker is named stands for a line break.
            Some(length) => {
                plain.push('\n');
                rest = &rest[length..];
            }
            None => {
                plain.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    if plain == prompt {
        return plain;
    }
    let mut turns: Vec<(&str, Vec<&str>)> = vec![("", Vec::new())];
    for line in plain.lines().filter(|line| !matches!(line.trim(), "<think>" | "</think>")) {
        if SPEAKERS.contains(&line.trim()) {
            turns.push((line.trim(), Vec::new()));
        } else if let Some((_, lines)) = turns.last_mut() {
            lines.push(line);
        }
    }
    let mut turns: Vec<_> =
        turns.into_iter().map(|(who, lines)| (who, lines.join("\n").trim().to_owned())).collect();
    turns.retain(|(_, said)| !said.is_empty());
    match turns.as_slice() {
        [] => plain.trim().to_owned(),
        [(_, said)] => said.clone(),
        _ => {
            let turns = turns.iter().map(|(who, said)| match *who {
                "" => said.clone(),
                who => format!("{who}: {said}"),
            });
            turns.collect::<Vec<_>>().join("\n")
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_shown_without_the_marks_of_its_template() {
        let empty_thought = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
        let one = format!("<|im_start|>user\nIs 1 <| 2 |> 0?\nYes?<|im_end|>\n{empty_thought}");
        assert_eq!(spoken(&one), "Is 1 <| 2 |> 0?\nYes?");
        let many = format!(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n\
             Hello.<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n{empty_thought}"
        );
        assert_eq!(spoken(&many), "system: Be brief.\nuser: Hi.\nassistant: Hello.\nuser: And now?");
        assert_eq!(spoken("<bos><start_of_turn>user\nHi.<end_of_turn>\n<start_of_turn>model\n"), "Hi.");
        assert_eq!(spoken("<s>[INST] Hi. [/INST]"), "Hi.");
        // Raw text is what it is, with its spaces.
        assert_eq!(spoken("  user\n text"), "  user\n text");
        assert_eq!(spoken("<|im_start|>"), "");
    }
}
