//! Examines one chunk of lines. This is the parallel part of `check` and `prepare`.

use sparktune_base::field_map::FieldMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::at_work;
use crate::chat_tokenizer::ChatTokenizer;
use crate::chunk::{Chunk, lines};
use crate::chunks::{ChunkPart, ChunkStart};
use crate::conversation::Conversation;
use crate::examples::{ExampleMaker, ExampleOptions, TooLong, expected_bytes};
use crate::explain;
use crate::format::Format;
use crate::mapped::{Columns, in_own_names};
use crate::progress::Progress;
use crate::rejection::{Kind, Rejection};
use crate::served::{Effects, Prompts};
use crate::token_room::TokenRoom;
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
    /// The number of ids that the model knows.
    pub vocabulary: Option<u32>,
    /// What the columns of foreign data stand for, and those that were found.
    pub map: &'a FieldMap,
    pub columns: Columns,
    /// The prompts that a server sends, compared so far.
    pub prompts: Prompts,
    /// The room for tokens that are being made, or wait to be folded.
    pub room: TokenRoom,
    /// Says whether the work is cancelled.
    pub progress: &'a dyn Progress,
}

/// The result of examining a chunk, or some of its lines.
pub(crate) struct Examined {
    pub file: u32,
    pub format: Option<Format>,
    pub lines: u64,
    pub blank: u64,
    /// Why the rest of the file cannot be read.
    pub refused_file: Option<String>,
    pub outcomes: Vec<Outcome>,
}

/// The result of examining a line that is not blank.
pub(crate) struct Outcome {
    pub line: u64,
    pub result: Result<Accepted, Box<Refused>>,
}

pub(crate) struct Accepted {
    pub content_hash: u64,
    /// Whether it is raw text, the pieces of which need not be in the same set.
    pub is_text: bool,
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

    /// Returns about the number of bytes of its tokens. Whoever folds it gives so much room back.
    pub(crate) fn token_bytes(&self) -> usize {
        self.tokens.iter().flatten().map(Tokens::bytes).sum()
    }

    /// Returns the parts of it that may be in different sets: a hash of each, and the number of its examples.
    /// A conversation has one part. The pieces of a text are parts of their own, because a text may be all
    /// there is, and pieces share no trained token.
    pub(crate) fn parts(&self) -> Vec<(u64, u64)> {
        if !self.is_text {
            return vec![(self.content_hash, self.examples())];
        }
        // The first piece has the hash of its text, so that a text of one piece is known in any format.
        let hash = |i: u64| if i == 0 { self.content_hash } else { piece_hash(self.content_hash, i) };
        (0..self.examples()).map(|i| (hash(i), 1)).collect()
    }
}

pub(crate) struct Refused {
    pub rejection: Rejection,
    pub text: String,
}

impl Refused {
    fn restore(&mut self, map: &FieldMap, original: &[u8]) {
        let nothing = Rejection::new(self.rejection.kind, "", "", "");
        self.rejection = in_own_names(std::mem::replace(&mut self.rejection, nothing), map);
        self.text = String::from_utf8_lossy(original).into_owned();
    }
}

fn piece_hash(text: u64, piece: u64) -> u64 {
    xxh3_64_with_seed(&piece.to_le_bytes(), text)
}

impl Examiner<'_> {
    /// Examines a chunk from a line on. Lines are put off if there is no room for their tokens.
    pub(crate) fn examine(&self, chunk: &Chunk, begin: ChunkStart) -> ChunkPart<Examined> {
        let mut examined = Examined {
            file: chunk.file,
            format: chunk.format,
            lines: 0,
            blank: 0,
            refused_file: chunk.refused_file.clone(),
            outcomes: Vec::with_capacity(chunk.bytes.len() / 1024),
        };
        if let Some(rejection) = &chunk.refused {
            let text = String::from_utf8_lossy(&chunk.bytes).into_owned();
            let result = Err(Box::new(Refused { rejection: rejection.clone(), text }));
            examined.lines = 1;
            examined.outcomes.push(Outcome { line: chunk.first_line, result });
            return ChunkPart { found: examined, done: None };
        }
        // Validating a megabyte at once is five times as fast as line by line, so lines are checked one by
        // one only in a chunk that fails.
        let whole = simdutf8::basic::from_utf8(&chunk.bytes).ok();
        let mut originals = lines(&chunk.original, chunk.first_line).skip(begin.lines);
        let at_work = at_work::on_lines();
        for (done, line) in chunk.lines().enumerate().skip(begin.lines) {
            let original = originals.next();
            if self.tokenizer.is_some_and(|tokenizer| tokenizer.template_holds().is_err()) {
                break;
            }
            if chunk.section.is_none() && line.bytes.trim_ascii().is_empty() {
                examined.lines += 1;
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
            at_work.begin(line.line_no);
            let is_next = begin.is_next && examined.outcomes.is_empty();
            let result = match text {
                Ok(text) => match self.line(chunk, text, is_next) {
                    Some(result) => result.map_err(|rejection| (rejection, text.to_owned())),
                    None => return ChunkPart { found: examined, done: Some(done) },
                },
                Err(e) => {
                    let lossy = String::from_utf8_lossy(line.bytes).into_owned();
                    let rejection = match chunk.section {
                        None => explain::invalid_utf8(e.valid_up_to()),
                        Some(_) => invalid_text(&line.bytes[..e.valid_up_to()], chunk),
                    };
                    Err((rejection, lossy))
                }
            };
            let result = result.map_err(|(rejection, text)| Box::new(Refused { rejection, text }));
            let result = self.in_own_names(result, original.map(|line| line.bytes));
            examined.lines += 1;
            examined.outcomes.push(Outcome { line: line.line_no, result });
        }
        ChunkPart { found: examined, done: None }
    }

    /// Gives rejections the names that the user gave the columns, and the line as it was.
    fn in_own_names(
        &self,
        mut result: Result<Accepted, Box<Refused>>,
        original: Option<&[u8]>,
    ) -> Result<Accepted, Box<Refused>> {
        let Some(original) = original else { return result };
        let refused = match &mut result {
            Ok(accepted) => vec![&mut accepted.left_out, &mut accepted.first_refused],
            Err(refused) => {
                refused.restore(self.map, original);
                return result;
            }
        };
        refused.into_iter().flatten().for_each(|refused| refused.restore(self.map, original));
        result
    }

    /// Examines a line. Returns `None` if there is no room for its tokens; those that are returned take some.
    fn line(&self, chunk: &Chunk, line: &str, is_next: bool) -> Option<Result<Accepted, Rejection>> {
        let conversation = match chunk.parse(line) {
            Ok(conversation) => conversation,
            Err(rejection) => return Some(Err(rejection)),
        };
        let Some(tokenizer) = self.tokenizer else { return Some(Ok(accepted(&conversation))) };
        let expected = expected_bytes(&conversation, self.examples, self.max_example_tokens);
        if !self.room.take(expected, is_next) {
            return None;
        }
        let result = self.with_tokens(tokenizer, conversation, line);
        self.room.change(expected, result.as_ref().map_or(0, Accepted::token_bytes));
        Some(result)
    }

    fn with_tokens(
        &self,
        tokenizer: &ChatTokenizer,
        conversation: Conversation<'_>,
        line: &str,
    ) -> Result<Accepted, Rejection> {
        let mut accepted = accepted(&conversation);
        accepted.special_tokens = tokenizer.special_tokens_in(&conversation) as u32;
        let maker = ExampleMaker {
            tokenizer,
            policy: self.policy,
            options: self.examples,
            max_tokens: self.max_example_tokens,
            enough: usize::MAX,
            prompts: &self.prompts,
            progress: self.progress,
        };
        // The turns of all examples of a long conversation take much more memory than their tokens.
        let examples = maker.make(conversation, |example| example.tokens)?;
        let largest = examples.made.iter().flat_map(|tokens| &tokens.input_ids).max();
        if let Some((token, vocabulary)) = largest.zip(self.vocabulary).filter(|(id, size)| *id >= size) {
            return Err(explain::unknown_token(*token, vocabulary));
        }
        accepted.effects = examples.effects;
        accepted.too_long = examples.too_long;
        let refused = |rejection| Box::new(Refused { rejection, text: line.to_owned() });
        accepted.left_out = examples.left_out.map(refused);
        accepted.refused_turns = examples.refused_turns;
        accepted.first_refused = examples.first_refused.map(refused);
        accepted.tokens = Some(examples.made);
        Ok(accepted)
    }
}

/// Returns what is known of a conversation without a tokenizer.
fn accepted(conversation: &Conversation<'_>) -> Accepted {
    let (empty_turns, unusual_order) = match conversation {
        Conversation::Chat(chat) => (chat.empty_assistant_turns() as u32, chat.unusual_order()),
        Conversation::Completion { .. } | Conversation::Document(_) => (0, None),
    };
    Accepted {
        content_hash: conversation.content_hash(),
        is_text: matches!(conversation, Conversation::Document(_)),
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
    }
}

/// Explains where a text that begins like this stops being UTF-8.
fn invalid_text(valid: &[u8], chunk: &Chunk) -> Rejection {
    let before = chunk.section.map_or(0, |section| section.before.min(valid.len()));
    let line = chunk.first_line + memchr::memchr_iter(b'\n', &valid[before..]).count() as u64;
    Rejection::new(
        Kind::InvalidUtf8,
        "",
        format!("not valid UTF-8 on line {line}"),
        "Write the file as UTF-8 (iconv -f ENCODING -t UTF-8)",
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sparktune_base::choices::Think;

    use super::*;

    /// What was found in a chunk: the lines with their tokens, or why they are rejected and how they were.
    fn examined(chunk: &Chunk, room: usize, map: &FieldMap) -> (u64, u64, Vec<(u64, String)>, usize) {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets/demo/model");
        let tokenizer = ChatTokenizer::from_dir(&model).unwrap();
        let examiner = Examiner {
            tokenizer: Some(&tokenizer),
            policy: Think::Train.into(),
            examples: ExampleOptions { split_turns: true, ..ExampleOptions::default() },
            max_example_tokens: None,
            vocabulary: None,
            map,
            columns: Columns::default(),
            prompts: Prompts::default(),
            room: TokenRoom::of(room),
            progress: &(),
        };
        let (mut lines, mut blank, mut outcomes, mut parts) = (0, 0, Vec::new(), 0);
        let mut done = Some(0);
        while let Some(lines_done) = done {
            // Other lines have taken everything, unless this chunk is next.
            let waiting = examiner.examine(chunk, ChunkStart { lines: lines_done, is_next: false });
            let part = match (waiting.done, waiting.found.outcomes.is_empty()) {
                (Some(_), true) => examiner.examine(chunk, ChunkStart { lines: lines_done, is_next: true }),
                _ => waiting,
            };
            lines += part.found.lines;
            blank += part.found.blank;
            for Outcome { line, result } in part.found.outcomes {
                outcomes.push((
                    line,
                    match result {
                        Ok(accepted) => {
                            examiner.room.change(accepted.token_bytes(), 0);
                            format!("{:?}", accepted.tokens)
                        }
                        Err(refused) => format!("{} {}", refused.rejection, refused.text),
                    },
                ));
            }
            assert!(part.done > done || part.done.is_none());
            (done, parts) = (part.done, parts + 1);
        }
        assert!(examiner.room.take(room, false), "some room was not given back");
        (lines, blank, outcomes, parts)
    }

    #[test]
    fn lines_that_are_put_off_are_examined_once_each_and_in_order() {
        let map: FieldMap = "q=prompt,a=completion".parse().unwrap();
        let text = |i: usize| format!(r#"{{"q":"question {i}","a":"{}"}}"#, "word ".repeat(i % 7));
        let mut own: Vec<String> = (0..40).map(text).collect();
        own[3] = String::new();
        own[4] = "{oops".into();
        own[17] = r#"{"q":"no answer"}"#.into();
        own[39] = "  ".into();
        let original = own.join("\n").into_bytes();
        let bytes = crate::mapped::renamed(&original, &map, &Columns::default());
        let chunk = Chunk {
            format: Some(Format::PromptCompletion),
            first_line: 7,
            bytes,
            original,
            ..Chunk::default()
        };
        let (lines, blank, whole, parts) = examined(&chunk, 1 << 30, &map);
        assert_eq!((lines, blank, whole.len(), parts), (40, 2, 38, 1));
        assert!(whole.iter().any(|(_, said)| said.contains("{oops")));
        for room in [0, 1, 500, 2_000] {
            let (lines, blank, in_parts, parts) = examined(&chunk, room, &map);
            assert_eq!((lines, blank), (40, 2), "{room}");
            assert!(parts > 1 && in_parts == whole, "{room}: {parts}");
        }
    }
}
