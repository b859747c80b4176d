//! What a model thinks before it answers, apart from the answer.

/// Splits a text into what the model thought and what it answered. `is_open` says whether the prompt had
/// opened the think block. Without an end of the block there is no answer yet.
pub fn without_thinking(text: &str, is_open: bool) -> (Option<&str>, &str) {
    let inside = if is_open { Some(text) } else { text.trim_start().strip_prefix("<think>") };
    match inside {
        None => (None, text),
        Some(inside) => {
            let (thought, answer) = inside.split_once("</think>").unwrap_or((inside, ""));
            (Some(thought.trim()).filter(|thought| !thought.is_empty()), answer.trim_start())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_thinks_is_no_part_of_its_answer() {
        assert_eq!(without_thinking("4", false), (None, "4"));
        assert_eq!(without_thinking("2 + 2\n</think>\n\n4", true), (Some("2 + 2"), "4"));
        assert_eq!(without_thinking("\n</think>\n\n4", true), (None, "4"));
        assert_eq!(without_thinking("<think>\nso\n</think>4", false), (Some("so"), "4"));
        assert_eq!(without_thinking("still thinking", true), (Some("still thinking"), ""));
    }
}
