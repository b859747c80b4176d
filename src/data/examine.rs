//! Examines one chunk of lines. This is the parallel part of `check` and `prepare`.

use crate::chat_tokenizer::ChatTokenizer;
use crate::chunks::{Chunk, lines};
use crate::conversation::Conversation;
use crate::examples::{ExampleMaker, ExampleOptions, TooLong};
use crate::explain;
use crate::format::Format;
use crate::parse::parse_line;
use crate::progress::Progress;
use crate::rejection::Rejection;
use crate::served::{Effects, Prompts};
use crate::tokens::Tokens;
use crate::turns::MaskPolicy;

/// The settings for examining lines.
pub(crate) struct Examiner<'a> {
    /// The tokenizer. Without one, lines are validated but not rendered.
    pub tokenizer: Option<&'a ChatTokenizer>,
    pub policy: MaskPolicy,
    pub examples: ExampleOptions,
    /// The number of tokens above which an example is too long.
    pub max_example_tokens: Option<u32>,
    /// The prompts that a server sends, compared so far.
    pub prompts: Prompts,
    /// Says whether the work is cancelled.
    pub progress: &'a dyn Progress,
}

/// The result of examining a chunk.
pub(crate) struct Examined {
    pub file: u32,
    pub format: Option<Format>,
    pub lines: u64,
    pub blank: u64,
    pub outcomes: Vec<Outcome>,
}

/// The result of examining a line that is not blank.
pub(crate) struct Outcome {
    pub line: u64,
    pub result: Result<Accepted, Box<Refused>>,
}

pub(crate) struct Accepted {
    pub content_hash: u64,
    pub text_bytes: u32,
    pub empty_turns: u32,
    pub unusual_order: Option<&'static str>,
    pub special_tokens: u32,
    pub effects: Effects,
    /// The tokens of its examples, if there is a tokenizer. Without one it is a single example.
    pub tokens: Option<Vec<Tokens>>,
    pub too_long: TooLong,
    /// The line, if an example of it was left out because it is too long.
    pub left_out: Option<Box<Refused>>,
    /// The number of turns that could not become an example, next to others that did.
    pub refused_turns: u32,
    /// The line with the reason of the first of them.
    pub first_refused: Option<Box<Refused>>,
}

impl Accepted {
    /// Returns the number of its examples. It is 0 if all of them are too long.
    pub(crate) fn examples(&self) -> u64 {
        self.tokens.as_ref().map_or(1, |examples| examples.len() as u64)
    }
}

pub(crate) struct Refused {
    pub rejection: Rejection,
    pub text: String,
}

impl Examiner<'_> {
    pub(crate) fn examine(&self, chunk: &Chunk) -> Examined {
        let mut examined = Examined {
            file: chunk.file,
            format: chunk.format,
            lines: 0,
            blank: 0,
            outcomes: Vec::with_capacity(chunk.bytes.len() / 1024),
        };
        if let Some(bytes) = chunk.too_long {
            let text = String::from_utf8_lossy(&chunk.bytes).into_owned();
            let result = Err(Box::new(Refused { rejection: explain::too_long(bytes), text }));
            examined.lines = 1;
            examined.outcomes.push(Outcome { line: chunk.first_line, result });
            return examined;
        }
        // Validating a megabyte at once is five times as fast as line by line, so lines are checked one by
        // one only in a chunk that fails.
        let whole = simdutf8::basic::from_utf8(&chunk.bytes).ok();
        for line in lines(&chunk.bytes, chunk.first_line) {
            examined.lines += 1;
            if line.bytes.trim_ascii().is_empty() {
                examined.blank += 1;
                continue;
            }
            let text = match whole {
                Some(whole) => {
                    let start = line.bytes.as_ptr() as usize - chunk.bytes.as_ptr() as usize;
                    Ok(&whole[start..start + line.bytes.len()])
                }
                None => std::str::from_utf8(line.bytes),
            };
            let result = match text {
                Ok(text) => self.line(chunk.format, text).map_err(|rejection| (rejection, text.to_owned())),
                Err(e) => {
                    let lossy = String::from_utf8_lossy(line.bytes).into_owned();
                    Err((explain::invalid_utf8(e.valid_up_to()), lossy))
                }
            };
            let result = result.map_err(|(rejection, text)| Box::new(Refused { rejection, text }));
            examined.outcomes.push(Outcome { line: line.line_no, result });
        }
        examined
    }

    fn line(&self, format: Option<Format>, line: &str) -> Result<Accepted, Rejection> {
        let conversation = parse_line(format, line)?;
        let (empty_turns, unusual_order) = match &conversation {
            Conversation::Chat(chat) => (chat.empty_assistant_turns() as u32, chat.unusual_order()),
            Conversation::Completion { .. } => (0, None),
        };
        let mut accepted = Accepted {
            content_hash: conversation.content_hash(),
            text_bytes: conversation.text_bytes().try_into().unwrap_or(u32::MAX),
            empty_turns,
            unusual_order,
            special_tokens: 0,
            effects: Effects::default(),
            tokens: None,
            too_long: TooLong::default(),
            left_out: None,
            refused_turns: 0,
            first_refused: None,
        };
        if let Some(tokenizer) = self.tokenizer {
            accepted.special_tokens = tokenizer.special_tokens_in(&conversation) as u32;
            let maker = ExampleMaker {
                tokenizer,
                policy: self.policy,
                options: self.examples,
                max_tokens: self.max_example_tokens,
                prompts: &self.prompts,
                progress: self.progress,
            };
            // The turns of all examples of a long conversation take much more memory than their tokens.
            let examples = maker.make(conversation, |example| example.tokens)?;
            accepted.effects = examples.effects;
            accepted.too_long = examples.too_long;
            let refused = |rejection| Box::new(Refused { rejection, text: line.to_owned() });
            accepted.left_out = examples.left_out.map(refused);
            accepted.refused_turns = examples.refused_turns;
            accepted.first_refused = examples.first_refused.map(refused);
            accepted.tokens = Some(examples.made);
        }
        Ok(accepted)
    }
}
