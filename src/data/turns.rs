//! Finds the part of a rendered conversation that the assistant is trained to write.
//!
//! For each template, a few test conversations are rendered once. They show the opening of an assistant turn
//! (the part that a server writes before the model's text), its closing, and the empty thinking block that
//! the template inserts. The target of a turn runs from the end of the opening to the end of the end-of-turn
//! token. A turn with another structure is rejected, because its mask would be a guess.

use std::ops::Range;

use minijinja::{Error, Value};
use sparktune_base::choices::Think;
use sparktune_base::thinking::{Opening, Openings};

use crate::conversation::{Chat, Json, Message};
use crate::rejection::{Kind, Rejection};
use crate::template::{Call, ChatTemplate, Rendered};

/// Which parts of a conversation are trained. This is part of the fingerprint of token files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MaskPolicy {
    /// Whether an inserted empty thinking block is trained.
    pub think: Think,
}

impl Default for MaskPolicy {
    fn default() -> Self {
        Think::Train.into()
    }
}

impl From<Think> for MaskPolicy {
    fn from(think: Think) -> Self {
        Self { think }
    }
}

/// How a template treats reasoning, which determines the available settings.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ThinkingSupport {
    /// The block that is inserted before an answer without reasoning, if any.
    pub empty_block: Option<String>,
    /// How the template opens an answer by the value of its variable `enable_thinking`.
    pub openings: Openings,
}

/// How a template renders assistant turns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TurnShape {
    /// Possible openings, longest first.
    openings: Vec<String>,
    /// Possible closings, longest first.
    closings: Vec<Closing>,
    empty_block: Option<String>,
    opened: Openings,
}

#[derive(Debug, Clone, PartialEq)]
struct Closing {
    text: String,
    /// The number of bytes that are target: up to the end-of-turn token, without the line break after it.
    target: usize,
}

const ANSWERS: [&str; 2] = ["Alpha one", "beta two"];
const THINK: &str = "<think>";

impl TurnShape {
    /// Determines the shape from test conversations. Turns end with one of `end_tokens`, or otherwise one of
    /// `special_tokens`.
    ///
    /// # Errors
    /// The template refuses a plain conversation, or its turns cannot be distinguished.
    pub(crate) fn learn(
        template: &ChatTemplate,
        end_tokens: &[String],
        special_tokens: &[String],
    ) -> Result<Self, String> {
        let mut earlier = Vec::new();
        let mut last = Vec::new();
        let mut empty_block = None;
        for pair in [ANSWERS, [ANSWERS[1], ANSWERS[0]]] {
            let chat = probe(&pair.map(|a| Message::text("assistant", a)));
            let rendered = render(template, &chat)?;
            let [first, second] = [1, 3].map(|i| segment(&rendered, i));
            let Some(second) = second else { return Err(untraceable()) };
            empty_block = empty_block.or_else(|| {
                let before = second.get(second.find(THINK)?..second.find(pair[1])?)?;
                (before.starts_with(THINK)).then(|| before.to_owned())
            });
            earlier.extend(first);
            last.push(second);
        }
        let mut calling = Vec::new();
        for name in ["first", "other"] {
            let call = serde_json::json!([{ "type": "function", "id": "call00000", "function": { "name": name, "arguments": { name: name } } }]);
            let mut chat = probe(&[Message {
                tool_calls: Some(Json::from_value(&call)),
                ..Message::text("assistant", "")
            }]);
            chat.tools = Some(Json::from_value(&serde_json::json!([{ "type": "function", "function": {
                "name": name, "description": name, "parameters": { "type": "object", "properties": {} } } }])));
            // Templates without tools refuse the call or leave it out; then there is nothing to learn.
            if let Ok(rendered) = template.render(&chat, Call::default()) {
                calling.extend(segment(&rendered, 1).filter(|s| s.contains(name)));
            }
        }
        let prompts = [None, Some(true), Some(false)].map(|enable_thinking| {
            let kwargs = enable_thinking.map(|on| ("enable_thinking".to_owned(), Value::from(on)));
            generation_prompt(template, kwargs.as_slice())
        });
        let opening_of = |prompt: &Option<String>| Opening::of(prompt.as_deref().unwrap_or_default());
        let opened = Openings {
            untold: opening_of(&prompts[0]),
            on: opening_of(&prompts[1]),
            can_switch: prompts[1] != prompts[2],
        };
        let answered: Vec<&str> = earlier.iter().chain(&last).map(String::as_str).collect();
        let prompts: Vec<&str> =
            prompts.iter().flatten().map(String::as_str).filter(|p| !p.is_empty()).collect();
        // The opening is what a server writes before the model's text; thinking belongs to the model.
        let opening = before_thinking(common_prefix(answered.iter().chain(&prompts)));
        let calls: Vec<&str> = calling.iter().map(String::as_str).collect();
        let of_all = before_thinking(common_prefix(answered.iter().chain(&calls)));
        let mut openings = vec![opening.to_owned(), of_all.to_owned()];
        let mut closings: Vec<Closing> = [&earlier, &last, &calling]
            .into_iter()
            .filter(|class| !class.is_empty())
            .map(|class| closing(common_suffix(class), end_tokens, special_tokens))
            .collect();
        openings.sort_by_key(|o| std::cmp::Reverse(o.len()));
        openings.dedup();
        closings.sort_by_key(|c| std::cmp::Reverse(c.text.len()));
        closings.dedup();
        Ok(Self { openings, closings, empty_block, opened })
    }

    /// Returns how the template treats reasoning.
    pub(crate) fn thinking(&self) -> ThinkingSupport {
        ThinkingSupport { empty_block: self.empty_block.clone(), openings: self.opened }
    }

    /// Returns the byte ranges of a rendering that are targets, in order.
    pub(crate) fn targets(
        &self,
        chat: &Chat<'_>,
        rendered: &Rendered,
        has_generation_marks: bool,
        think: Think,
    ) -> Result<Vec<Range<usize>>, Rejection> {
        let mut targets = Vec::new();
        let mut previous_end = 0;
        let spans = rendered.by_message();
        for (i, message) in chat.messages.iter().enumerate() {
            if message.role != "assistant" || message.untrained {
                continue;
            }
            let mut segments = spans.of(i);
            let (Some(segment), None) = (segments.next(), segments.next()) else {
                return Err(uncertain(
                    i,
                    "the chat template does not render this turn exactly once, separately from other turns",
                ));
            };
            if segment.start < previous_end {
                return Err(uncertain(i, "the chat template renders turns out of order"));
            }
            previous_end = segment.end;
            if has_generation_marks {
                let first = rendered.generated.partition_point(|g| g.start < segment.start);
                let marked = rendered.generated[first..].iter().take_while(|g| g.end <= segment.end);
                targets.extend(marked.map(|g| self.without_empty_block(&rendered.text, g.clone(), think)));
                continue;
            }
            let text = &rendered.text[segment.clone()];
            let opening = self.openings.iter().find(|o| text.starts_with(o.as_str()));
            let closing = self.closings.iter().find(|c| text.ends_with(&c.text));
            let (Some(opening), Some(closing)) = (opening, closing) else {
                return Err(uncertain(
                    i,
                    "the chat template opens or closes this turn differently from all others",
                ));
            };
            if opening.len() + closing.text.len() > text.len() {
                return Err(uncertain(
                    i,
                    "the chat template writes nothing between the start and the end of this turn",
                ));
            }
            let target = segment.start + opening.len()..segment.end - closing.text.len() + closing.target;
            targets.push(self.without_empty_block(&rendered.text, target, think));
        }
        Ok(targets)
    }

    fn without_empty_block(&self, text: &str, target: Range<usize>, think: Think) -> Range<usize> {
        match &self.empty_block {
            Some(block) if think == Think::Skip && text[target.clone()].starts_with(block.as_str()) => {
                target.start + block.len()..target.end
            }
            _ => target,
        }
    }
}

fn uncertain(message: usize, reason: &str) -> Rejection {
    Rejection::new(
        Kind::UncertainMask,
        format!("messages[{message}]"),
        format!("{reason}, so it is unclear which tokens to train"),
        "Change the turn, or mark the assistant's text with {% generation %} in the chat template",
    )
}

fn untraceable() -> String {
    "this chat template does not write all messages in one loop over `messages`, so the turns cannot be identified"
        .to_owned()
}

/// Returns a conversation in which each answer follows a question.
fn probe<'a>(answers: &[Message<'a>]) -> Chat<'a> {
    let messages = answers.iter().flat_map(|a| [Message::text("user", "Question"), a.clone()]).collect();
    Chat { messages, tools: None }
}

/// Renders a test conversation and verifies that the callbacks did not change the text.
fn render(template: &ChatTemplate, chat: &Chat<'_>) -> Result<Rendered, String> {
    let message_of = |e: Error| crate::template::error_text(&e);
    let rendered = template.render(chat, Call::default()).map_err(message_of)?;
    match template.render_untouched(chat, Call::default()) {
        Some(Err(e)) => Err(message_of(e)),
        Some(Ok(untouched)) if untouched != rendered.text => Err(untraceable()),
        _ => Ok(rendered),
    }
}

fn segment(rendered: &Rendered, message: usize) -> Option<String> {
    let span = rendered.messages.iter().find(|(m, _)| *m == message)?.1.clone();
    Some(rendered.text[span].to_owned())
}

/// Returns the opening of an answer with these variables.
pub(crate) fn generation_prompt(template: &ChatTemplate, kwargs: &[(String, Value)]) -> Option<String> {
    let chat = Chat { messages: vec![Message::text("user", "Question")], tools: None };
    let text = |add_generation_prompt| {
        template.render(&chat, Call { add_generation_prompt, kwargs }).ok().map(|rendered| rendered.text)
    };
    text(true)?.strip_prefix(&text(false)?).map(str::to_owned)
}

fn before_thinking(text: &str) -> &str {
    text.find(THINK).map_or(text, |at| &text[..at])
}

fn common_prefix<'a>(mut texts: impl Iterator<Item = &'a &'a str>) -> &'a str {
    let Some(&first) = texts.next() else { return "" };
    texts.fold(first, |prefix, text| {
        let same = prefix.char_indices().zip(text.chars()).find(|((_, a), b)| a != b);
        let length = same.map_or(prefix.len().min(text.len()), |((at, _), _)| at);
        &prefix[..length]
    })
}

fn common_suffix(texts: &[String]) -> &str {
    let Some(first) = texts.first() else { return "" };
    texts[1..].iter().fold(first.as_str(), |suffix, text| {
        let same: usize = suffix
            .chars()
            .rev()
            .zip(text.chars().rev())
            .take_while(|(a, b)| a == b)
            .map(|(a, _)| a.len_utf8())
            .sum();
        &suffix[suffix.len() - same..]
    })
}

/// Returns the target part of a closing: up to the first end-of-turn token, otherwise up to the first special
/// token, otherwise nothing.
fn closing(text: &str, end_tokens: &[String], special_tokens: &[String]) -> Closing {
    let first = |tokens: &[String]| {
        tokens.iter().filter_map(|t| Some((text.find(t.as_str())?, t.len()))).min_by_key(|(at, _)| *at)
    };
    let target = first(end_tokens).or_else(|| first(special_tokens)).map_or(0, |(at, length)| at + length);
    Closing { text: text.to_owned(), target }
}
