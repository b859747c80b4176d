//! Takes the text of an answer apart while it arrives: reasoning, content, and tool calls.
//!
//! Enters: text in pieces. Leaves: parts in order. Nothing is held back longer than it may become a mark, and
//! a block that is no tool call is content, with its marks.

use super::tool_calls::{ToolCall, Tools};

const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALLED: &str = "</tool_call>";

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    /// Text inside a think block.
    Reasoning(String),
    /// Other text.
    Content(String),
    /// A call of a tool.
    Call(ToolCall),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing but white space was there.
    Start,
    /// In a think block of which nothing but white space was there.
    Opened,
    Thinking,
    /// Behind a think block or a call, where white space is no content.
    Behind,
    Content,
    InCall,
}

/// The text of an answer that is taken apart.
pub(crate) struct Parts {
    place: Place,
    /// Text whose part is not known yet.
    held: String,
    /// The tools that may be called; without them, calls are text.
    tools: Option<Tools>,
    /// The white space before a block that may be a call.
    gap: String,
}

impl Parts {
    /// Begins an answer, inside a think block if the prompt has opened one.
    pub(crate) fn new(opens_thinking: bool, tools: Option<Tools>) -> Self {
        let place = if opens_thinking { Place::Opened } else { Place::Start };
        Self { place, held: String::new(), tools, gap: String::new() }
    }

    /// Adds text. Returns the parts that are certain with it.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// Returns the rest, at the end of the text.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.held);
        let part = match self.place {
            Place::Opened | Place::Thinking => Part::Reasoning(rest.trim_end().to_owned()),
            Place::InCall => Part::Content(format!("{}{CALL}{rest}", self.gap)),
            Place::Start | Place::Behind | Place::Content => Part::Content(rest),
        };
        Some(part).filter(|part| !is_empty(part)).into_iter().collect()
    }

    /// Moves on by a part or a mark. Returns whether there may be more.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.place {
            Place::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(THINK) {
                    (self.held, self.place) = (rest.to_owned(), Place::Opened);
                } else if THINK.starts_with(text) {
                    return false;
                } else {
                    self.place = Place::Content;
                }
                true
            }
            Place::Opened => self.skip_white(Place::Thinking),
            Place::Behind => self.skip_white(Place::Content),
            Place::Thinking => {
                let found = self.held.find(THOUGHT);
                let end = found.unwrap_or_else(|| certain(&self.held, Some(THOUGHT), true));
                let text = &self.held[..end];
                let text = if found.is_some() { text.trim_end() } else { text };
                push(parts, Part::Reasoning(text.to_owned()));
                let after = found.map_or(end, |at| at + THOUGHT.len());
                self.held.drain(..after);
                if found.is_some() {
                    self.place = Place::Behind;
                }
                found.is_some()
            }
            Place::Content => {
                let mark = self.tools.as_ref().map(|_| CALL);
                let found = mark.and_then(|mark| self.held.find(mark));
                let end = found.unwrap_or_else(|| certain(&self.held, mark, mark.is_some()));
                let text = &self.held[..end];
                let kept = if found.is_some() { text.trim_end() } else { text };
                self.gap = text[kept.len()..].to_owned();
                push(parts, Part::Content(kept.to_owned()));
                let after = found.map_or(end, |at| at + CALL.len());
                self.held.drain(..after);
                if found.is_some() {
                    self.place = Place::InCall;
                }
                found.is_some()
            }
            Place::InCall => {
                let Some(at) = self.held.find(CALLED) else { return false };
                let block: String = self.held.drain(..at + CALLED.len()).collect();
                let call = self.tools.as_ref().and_then(|tools| tools.read(&block[..at]));
                self.place = if call.is_some() { Place::Behind } else { Place::Content };
                let as_text = || Part::Content(format!("{}{CALL}{block}", self.gap));
                parts.push(call.map_or_else(as_text, Part::Call));
                true
            }
        }
    }

    /// Leaves white space out and moves to this place once there is anything else.
    fn skip_white(&mut self, next: Place) -> bool {
        let white = self.held.len() - self.held.trim_start().len();
        self.held.drain(..white);
        if !self.held.is_empty() {
            self.place = next;
        }
        !self.held.is_empty()
    }
}

/// Returns how many bytes of a text are certain not to belong to a mark that is still coming: all but the
/// beginning of the mark at the end, and with `trims` the white space before it.
fn certain(text: &str, mark: Option<&str>, trims: bool) -> usize {
    let Some(mark) = mark else { return text.len() };
    let starts = (1..mark.len()).rev().find(|length| text.ends_with(&mark[..*length]));
    let text = &text[..text.len() - starts.unwrap_or(0)];
    if trims { text.trim_end().len() } else { text.len() }
}

fn push(parts: &mut Vec<Part>, part: Part) {
    if !is_empty(&part) {
        parts.push(part);
    }
}

fn is_empty(part: &Part) -> bool {
    matches!(part, Part::Reasoning(text) | Part::Content(text) if text.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns reasoning, content and the names of the tools called.
    fn apart(opens_thinking: bool, with_tools: bool, pieces: &[&str]) -> (String, String, Vec<String>) {
        let mut parts = Parts::new(opens_thinking, with_tools.then(Tools::default));
        let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
        let mut all: Vec<Part> = pieces.iter().flat_map(|piece| parts.push(piece)).collect();
        all.extend(parts.finish());
        for part in all {
            match part {
                Part::Reasoning(text) => reasoning.push_str(&text),
                Part::Content(text) => content.push_str(&text),
                Part::Call(call) => calls.push(call.name),
            }
        }
        (reasoning, content, calls)
    }

    #[test]
    fn thinking_is_apart_whether_the_prompt_or_the_answer_opens_it() {
        let told = ("because".to_owned(), "It is.".to_owned(), Vec::new());
        assert_eq!(apart(true, false, &["\nbecause\n</think>\n\nIt is."]), told);
        assert_eq!(apart(false, false, &["<think>\nbecause\n</think>\n\nIt is."]), told);
        assert_eq!(
            apart(false, false, &["\n<th", "ink>\nbeca", "use\n</thi", "nk>\n", "\nIt ", "is."]),
            told
        );
        let unfinished = apart(true, false, &["because it", " is\n"]);
        assert_eq!(unfinished, ("because it is".to_owned(), String::new(), Vec::new()));
        assert_eq!(apart(true, false, &["</think>", "\n\n", "yes"]).1, "yes");
    }

    #[test]
    fn text_without_marks_is_as_it_was() {
        for text in ["", " a <thin", "Say </think> and <think>.", "<tool_call>{}</tool_call> ", "\n x\n"] {
            assert_eq!(apart(false, false, &[text]).1, text);
        }
    }

    #[test]
    fn calls_are_apart_and_what_is_no_call_stays_text() {
        let call = r#"<tool_call>
{"name": "add", "arguments": {"a": 1}}
</tool_call>"#;
        let (_, content, calls) = apart(false, true, &["I add.\n", call, "\n", call, "\n"]);
        assert_eq!((content.as_str(), calls.len()), ("I add.", 2));
        let broken = "x <tool_call>nothing</tool_call> y";
        assert_eq!(apart(false, true, &[broken]).1, broken);
        assert_eq!(apart(false, true, &["a <tool_call>{\"name\""]).1, "a <tool_call>{\"name\"");
    }

    proptest! {
        #[test]
        fn where_the_text_is_cut_makes_no_difference(
            text in r"(<think>|</think>|<tool_call>|</tool_call>|\n|a|<|é| ){0,14}",
            cuts in prop::collection::vec(0usize..80, 0..8),
            opens in any::<bool>(),
            tools in any::<bool>(),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(apart(opens, tools, &pieces), apart(opens, tools, &[&text]));
        }
    }
}
