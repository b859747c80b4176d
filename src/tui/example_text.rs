//! Renders an example as the model will see it, as lines of text. A label in front says which text is
//! trained, without cursor movement, and a colour says it too if the terminal has colours.

use std::io::{self, IsTerminal};

use sparktune_base::escape::escape;
use sparktune_data::Rendering;

use crate::screen::{Colours, Theme};
use crate::wrap::wrap;

/// Begins and ends the colour of trained text: the green of the terminal's own palette.
const TRAINED: [&str; 2] = ["\u{1b}[32m", "\u{1b}[39m"];

/// Returns whether standard output is a terminal that shows colours.
pub fn stdout_has_colours() -> bool {
    let theme = Theme::from_env(|name| std::env::var(name).ok());
    io::stdout().is_terminal() && theme.colours != Colours::None
}

/// Returns the example in lines of about `width` columns, with `context | …` or `trained | …` wherever that
/// changes. Characters that would move the cursor are escaped; line breaks are kept.
pub fn example_lines(example: &Rendering, width: usize) -> Vec<String> {
    rows(example, width).into_iter().map(|(_, row)| row).collect()
}

/// Returns the same lines with the trained ones in colour.
pub fn coloured_example_lines(example: &Rendering, width: usize) -> Vec<String> {
    let [begin, end] = TRAINED;
    let coloured = |(trained, row): (bool, String)| if trained { format!("{begin}{row}{end}") } else { row };
    rows(example, width).into_iter().map(coloured).collect()
}

/// Returns the lines, each with whether its text is trained.
fn rows(example: &Rendering, width: usize) -> Vec<(bool, String)> {
    let mut stretches: Vec<(bool, String)> = Vec::new();
    for span in &example.spans {
        match stretches.last_mut() {
            Some((trained, text)) if *trained == span.trained => text.push_str(&span.text),
            _ => stretches.push((span.trained, span.text.clone())),
        }
    }
    let mut lines = Vec::new();
    for (trained, text) in stretches {
        let mut name = if trained { "trained" } else { "context" };
        let text = text.strip_suffix('\n').unwrap_or(&text);
        if text.is_empty() {
            continue;
        }
        for line in text.split('\n') {
            for row in wrap(&escape(line.trim_end_matches('\r')), width.saturating_sub(10).max(1)) {
                lines.push((trained, format!("{name:7} | {row}")));
                name = "";
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use sparktune_data::Span;

    use super::*;

    #[test]
    fn every_line_says_or_continues_what_it_is_and_nothing_in_it_moves_the_cursor() {
        let span = |text: &str, trained| Span { text: text.into(), trained, special: false, left_out: false };
        let spans = vec![
            span("<|im_start|>", false),
            span("user\nhi \u{1b}[2J\n", false),
            span("Hello there, this is long\n\nbye", true),
            span("\n", false),
        ];
        let example = Rendering { target_tokens: 4, spans };
        let lines = example_lines(&example, 24);
        assert_eq!(
            lines,
            [
                "context | <|im_start|>us",
                "        | er",
                "        | hi \\u{1b}[2J",
                "trained | Hello there,",
                "        | this is long",
                "        | ",
                "        | bye"
            ]
        );
        let coloured = coloured_example_lines(&example, 24);
        assert_eq!(coloured[..3], lines[..3], "context has no colour");
        assert_eq!(coloured[3], "\u{1b}[32mtrained | Hello there,\u{1b}[39m");
        assert_eq!(coloured[6], "\u{1b}[32m        | bye\u{1b}[39m");
    }
}
