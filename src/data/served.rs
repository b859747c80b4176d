//! Compares what is trained with what the author of an example wrote, and with what a server sends.
//!
//! Enters: a conversation, its rendering and the trained spans. Leaves: [`Effects`]: what the chat template
//! leaves out, and which trained turns follow a different prompt in training than on a server. This file must
//! not know files or lines.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{LazyLock, Mutex, PoisonError};

use memchr::memmem::{self, Finder};

use crate::chat_tokenizer::ChatTokenizer;
use crate::conversation::{Chat, Content, Conversation, Json, Message};
use crate::rejection::Rejection;
use crate::template::Rendered;
use crate::tokens::Tokens;
use crate::turns::MaskPolicy;

/// The number of shapes of conversations whose comparison is kept. Data made by a program has a few, and data
/// of agents has many.
const MOST_SHAPES: usize = 1 << 16;

/// Occurrences in the examples of one line, and a description of the first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Noted {
    /// The number of examples with an occurrence.
    pub examples: u32,
    pub count: u32,
    pub first: Option<String>,
}

impl Noted {
    fn add(&mut self, what: impl FnOnce() -> String) {
        self.examples = 1;
        self.count += 1;
        self.first.get_or_insert_with(what);
    }

    fn join(&mut self, other: Self) {
        self.examples += other.examples;
        self.count += other.count;
        self.first = self.first.take().or(other.first);
    }
}

/// What the chat template does to the examples of one line that their author may not expect.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Effects {
    /// A prompt and its completion, if the template could have rendered them as a chat.
    pub not_rendered: Noted,
    /// Trained turns whose reasoning is not in the rendered text.
    pub reasoning_left_out: Noted,
    /// Turns whose text or calls are not in the rendered text, or not all of them.
    pub turns_left_out: Noted,
    /// The tools, if they are not in the rendered text.
    pub tools_left_out: Noted,
    /// Trained turns at the end of the conversation that follow a different prompt in training than on a
    /// server.
    pub unlike_served: Noted,
    /// Trained turns before a later question that do.
    pub earlier_unlike_served: Noted,
}

impl Effects {
    /// Adds those of another example of the same line.
    pub(crate) fn add(&mut self, other: Self) {
        let Self {
            not_rendered,
            reasoning_left_out,
            turns_left_out,
            tools_left_out,
            unlike_served,
            earlier_unlike_served,
        } = other;
        self.not_rendered.join(not_rendered);
        self.reasoning_left_out.join(reasoning_left_out);
        self.turns_left_out.join(turns_left_out);
        self.tools_left_out.join(tools_left_out);
        self.unlike_served.join(unlike_served);
        self.earlier_unlike_served.join(earlier_unlike_served);
    }

    /// Says that the turns were counted in a part of the conversation, which begins with other turns.
    pub(crate) fn in_a_part(mut self) -> Self {
        let Self {
            not_rendered: _,
            reasoning_left_out,
            turns_left_out,
            tools_left_out,
            unlike_served,
            earlier_unlike_served,
        } = &mut self;
        for noted in
            [reasoning_left_out, turns_left_out, tools_left_out, unlike_served, earlier_unlike_served]
        {
            noted.first = noted.first.take().map(|first| format!("in a part of it, {first}"));
        }
        self
    }
}

/// The tokens of an example, with the rendering and the trained spans of a chat.
pub(crate) struct Encoded {
    pub tokens: Tokens,
    rendered: Option<(Rendered, Vec<Range<usize>>)>,
}

impl ChatTokenizer {
    /// Returns the tokens of an example like [`encode_conversation`](Self::encode_conversation), with what
    /// [`effects`](Self::effects) needs.
    pub(crate) fn encode_example(
        &self,
        conversation: &Conversation<'_>,
        policy: MaskPolicy,
    ) -> Result<Encoded, Rejection> {
        let Conversation::Chat(chat) = conversation else {
            return Ok(Encoded { tokens: self.encode_conversation(conversation, policy)?, rendered: None });
        };
        let (rendered, targets) = self.render_chat(chat, policy)?;
        let tokens = self.trained_tokens(&rendered.text, &targets)?;
        Ok(Encoded { tokens, rendered: Some((rendered, targets)) })
    }

    /// Returns what the template does to an example.
    pub(crate) fn effects(
        &self,
        conversation: &Conversation<'_>,
        encoded: &Encoded,
        prompts: &Prompts,
    ) -> Effects {
        let (Conversation::Chat(chat), Some((rendered, targets))) = (conversation, &encoded.rendered) else {
            let is_raw =
                matches!(conversation, Conversation::Completion { .. }) && self.template_hash().is_some();
            let not_rendered =
                if is_raw { Noted { examples: 1, count: 1, first: None } } else { Noted::default() };
            return Effects { not_rendered, ..Effects::default() };
        };
        let mut effects = left_out(chat, rendered);
        let prompt_of = |before: &Chat<'_>| self.render_prompt(before).ok().map(|prompt| prompt.text);
        let unlike = prompts.compare(chat, rendered, targets, prompt_of);
        (effects.unlike_served, effects.earlier_unlike_served) = (unlike.last, unlike.earlier);
        effects
    }
}

/// Looks for everything that a conversation says in its rendered text.
fn left_out(chat: &Chat<'_>, rendered: &Rendered) -> Effects {
    let mut effects = Effects::default();
    let spans = rendered.by_message();
    for (i, message) in chat.messages.iter().enumerate() {
        // A turn that the template's loop does not render may stand before it, as the system turn often does.
        let text = spans.of(i).next().map_or(rendered.text.as_str(), |span| &rendered.text[span]);
        let (thought, answer) = match message.inline_thinking() {
            Some((thought, answer)) => (Some(thought), Some(answer)),
            None => (message.reasoning_content.as_deref(), None),
        };
        // A turn that is only context has its reasoning left out by a server too.
        if message.is_trained() && thought.is_some_and(|thought| !says(text, thought)) {
            effects.reasoning_left_out.add(|| format!("messages[{i}]"));
        }
        let has_text = match answer {
            Some(answer) => says(text, answer),
            None => message.texts().all(|part| says(text, part)),
        };
        if !has_text || !names_in(message.tool_calls.as_ref()).iter().all(|name| says(text, name)) {
            effects.turns_left_out.add(|| format!("messages[{i}], role {}", message.role));
        }
    }
    if !names_in(chat.tools.as_ref()).iter().all(|name| says(&rendered.text, name)) {
        effects.tools_left_out.add(|| "tools".to_owned());
    }
    effects
}

/// Returns whether a text contains a part, apart from whitespace around it, as it is or as a JSON string, in
/// which some templates write the answers of tools.
fn says(text: &str, part: &str) -> bool {
    let part = part.trim();
    contains(text, part) || contains(text, serde_json::json!(part).to_string().trim_matches('"'))
}

/// Returns whether a text contains a part. Most parts stand where their beginning is first found; preparing a
/// search for the whole of each would take a fifth of the time of a check.
fn contains(text: &str, part: &str) -> bool {
    const BEGINNING: usize = 16;
    const TRIED: usize = 8;
    let (text, part) = (text.as_bytes(), part.as_bytes());
    if part.len() > BEGINNING {
        let found = memmem::find_iter(text, &part[..BEGINNING]);
        if found.take(TRIED).any(|at| text[at..].starts_with(part)) {
            return true;
        }
    }
    memmem::find(text, part).is_some()
}

/// Returns the names of the functions in a list of calls or tools.
fn names_in(functions: Option<&Json<'_>>) -> Vec<String> {
    let parsed = functions.and_then(|list| serde_json::from_str(list.get()).ok());
    let Some(serde_json::Value::Array(list)) = parsed else { return Vec::new() };
    let name = |entry: &serde_json::Value| {
        Some(entry.get("function").unwrap_or(entry).get("name")?.as_str()?.to_owned())
    };
    list.iter().filter_map(name).collect()
}

/// Compares the text before each trained turn with the prompt that a server sends for it.
///
/// That prompt is the conversation before the turn, rendered with the opening of an assistant turn. It may
/// reach into the trained text, as an opening `<think>` does: the model then goes on from there. The result
/// depends on the template and on the shape of the conversation, not on its words, so each shape is compared
/// once, and in it the first turn of each kind.
#[derive(Debug, Default)]
pub(crate) struct Prompts {
    known: Mutex<HashMap<u64, Unlike>>,
}

/// The trained turns of an example that follow another prompt than a server's: those that no question
/// follows, and those before one. Templates often render the latter in another way, because they drop the
/// reasoning of answered questions.
#[derive(Debug, Clone, Default)]
struct Unlike {
    last: Noted,
    earlier: Noted,
}

impl Prompts {
    fn compare(
        &self,
        chat: &Chat<'_>,
        rendered: &Rendered,
        targets: &[Range<usize>],
        prompt_of: impl Fn(&Chat<'_>) -> Option<String>,
    ) -> Unlike {
        let shape = shape_of(chat);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(&shape).cloned();
        found.unwrap_or_else(|| {
            let unlike = unlike_prompts(chat, rendered, targets, prompt_of);
            let mut known = known();
            if known.len() < MOST_SHAPES {
                known.insert(shape, unlike.clone());
            }
            unlike
        })
    }
}

fn unlike_prompts(
    chat: &Chat<'_>,
    rendered: &Rendered,
    targets: &[Range<usize>],
    prompt_of: impl Fn(&Chat<'_>) -> Option<String>,
) -> Unlike {
    let mut unlike = Unlike::default();
    let last_user = chat.messages.iter().rposition(|message| message.role == "user");
    let mut of_kind: HashMap<u64, Option<String>> = HashMap::new();
    let mut previous = None;
    for target in targets {
        let holds = |span: &Range<usize>| span.start <= target.start && target.end <= span.end;
        // Spans follow one another, and there can be very many.
        let first = rendered.messages.partition_point(|(_, span)| span.end < target.end);
        let Some((i, span)) = rendered.messages.get(first).filter(|(_, span)| holds(span)) else { continue };
        // A template with generation tags can have several spans in a turn, of which the first follows a
        // prompt.
        if previous.replace(*i) == Some(*i) {
            continue;
        }
        let mut kind = DefaultHasher::new();
        (i.checked_sub(1).map(|before| &chat.messages[before].role), Some(*i) > last_user).hash(&mut kind);
        hash_shape(&chat.messages[*i], &mut kind);
        let difference = of_kind.entry(kind.finish()).or_insert_with(|| {
            let before = Chat { messages: chat.messages[..*i].to_vec(), tools: chat.tools.clone() };
            match prompt_of(&before) {
                Some(prompt) => difference(rendered, *i, span.start..target.start, &prompt),
                None => Some(format!("the template renders no prompt for messages[{i}]")),
            }
        });
        if let Some(difference) = difference {
            let noted = if Some(*i) > last_user { &mut unlike.last } else { &mut unlike.earlier };
            noted.add(|| difference.clone());
        }
    }
    unlike
}

/// Describes the difference between a prompt and the text before a trained turn, whose opening is given.
/// Returns `None` if the model goes on from the prompt with the trained text.
fn difference(rendered: &Rendered, turn: usize, opening: Range<usize>, prompt: &str) -> Option<String> {
    let text = rendered.text.as_str();
    if prompt.len() >= opening.end && text.starts_with(prompt) {
        return None;
    }
    if prompt.starts_with(&text[..opening.start]) {
        let (trained, sent) = (&text[opening.clone()], &prompt[opening.start..]);
        return Some(format!("messages[{turn}] follows {trained:?} in training, but {sent:?} on a server"));
    }
    let at = text.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
    let earlier = rendered.messages.iter().find(|(_, span)| span.contains(&at));
    let earlier = earlier.map_or("the text before the turns".to_owned(), |(i, _)| format!("messages[{i}]"));
    Some(format!("{earlier} is rendered differently in the prompt of messages[{turn}]"))
}

/// Returns a hash of everything about a conversation that templates look at, except its words.
fn shape_of(chat: &Chat<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (chat.tools.is_some(), chat.messages.len()).hash(&mut hasher);
    for message in &chat.messages {
        hash_shape(message, &mut hasher);
    }
    hasher.finish()
}

fn hash_shape(message: &Message<'_>, hasher: &mut DefaultHasher) {
    let Message { role, content, reasoning_content, tool_calls, name, tool_call_id, untrained } = message;
    let content = match content {
        Content::Absent => 0,
        Content::Null => 1,
        Content::Text(_) => 2,
        Content::Parts(parts) => 3 + parts.len(),
    };
    let is_blank = message.texts().all(|text| text.trim().is_empty());
    // Templates look for these in the text itself.
    static MARKS: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| ["<think>", "</think>", "<tool_response>"].map(Finder::new));
    let marks = MARKS.each_ref().map(|mark| message.texts().any(|t| mark.find(t.as_bytes()).is_some()));
    let reasoning = reasoning_content.as_ref().map(|reasoning| reasoning.trim().is_empty());
    let fields = [tool_calls.is_some(), name.is_some(), tool_call_id.is_some(), *untrained];
    (role, content, is_blank, marks, reasoning, fields).hash(hasher);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_wherever_it_stands_and_only_if_all_of_it_does() {
        let beginning = "the same beginning, ";
        let many: String = (0..20).map(|i| format!("{beginning}{i}; ")).collect();
        for i in 0..20 {
            assert!(contains(&many, &format!("{beginning}{i};")), "{i}");
        }
        assert!(!contains(&many, &format!("{beginning}20;")));
        assert!(contains("ab", "") && contains("ab", "b") && !contains("ab", "abc"));
        assert!(says("x \"a\\nb\" y", "  a\nb ") && !says("x a b y", "a\nb"));
    }
}
