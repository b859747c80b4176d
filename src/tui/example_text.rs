//! Renders an example as the model will see it, as lines of text. A label in front says which text is
//! trained, without colours or cursor movement.

use sparktune_base::escape::escape;
use sparktune_data::Rendering;

use crate::wrap::wrap;

/// Returns the example in lines of about `width` columns, with `context | …` or `trained | …` wherever that
/// changes. Characters that would move the cursor are escaped; line breaks are kept.
pub fn example_lines(example: &Rendering, width: usize) -> Vec<String> {
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
                lines.push(format!("{name:7} | {row}"));
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
        assert_eq!(
            example_lines(&Rendering { target_tokens: 4, spans }, 24),
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
    }
}
