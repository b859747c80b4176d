//! Makes the examples of one conversation: chooses the turns that are trained, gives each of them an example
//! of its own if the user wants that, and applies the limit on tokens.
//!
//! Enters: a [`Conversation`]. Leaves: [`Examples`], which also say what was too long. It must not know files
//! or lines.

use serde::{Deserialize, Serialize};
use sparktune_base::choices::{Overlong, TrainOn};

use crate::chat_tokenizer::ChatTokenizer;
use crate::conversation::{Chat, Conversation, Document, Message};
use crate::documents::{PIECE_TOKENS, Pieces};
use crate::explain;
use crate::progress::Progress;
use crate::rejection::{Kind, Rejection};
use crate::served::{Effects, Encoded, Prompts};
use crate::tokens::{TOKEN_BYTES, Tokens};
use crate::turns::MaskPolicy;

/// How a conversation becomes examples. This is part of the fingerprint of token files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleOptions {
    /// The assistant turns that are trained.
    pub train_on: TrainOn,
    /// Whether each of these turns becomes an example of its own, which ends with it. The turns before it are
    /// then rendered as they are in the prompt of a server.
    pub split_turns: bool,
    /// What becomes of an example over the limit on tokens.
    pub overlong: Overlong,
    /// Whether pieces of raw text may have as many tokens as any example. They have at most 4,096 otherwise.
    pub long_pieces: bool,
}

impl ExampleOptions {
    /// Returns the largest number of tokens of a piece of raw text that is split.
    pub(crate) fn piece_tokens(self, max_tokens: Option<u32>) -> Option<u32> {
        let most = if self.long_pieces { None } else { Some(PIECE_TOKENS) };
        max_tokens.into_iter().chain(most).min()
    }
}

/// Makes examples.
pub(crate) struct ExampleMaker<'t> {
    pub tokenizer: &'t ChatTokenizer,
    pub policy: MaskPolicy,
    pub options: ExampleOptions,
    /// The number of tokens above which an example is too long.
    pub max_tokens: Option<u32>,
    /// With so many examples of a conversation, no further turn is looked at. The parts of one turn, and the
    /// pieces of a document, are all made and may be more.
    pub enough: usize,
    /// The prompts that a server sends, compared so far.
    pub prompts: &'t Prompts,
    /// Says whether the work is cancelled. The examples of a line are then not all made.
    pub progress: &'t dyn Progress,
}

/// The largest number of bytes of text in the examples of one line. An example for each turn repeats all
/// turns before it, so a line of 64 MiB could otherwise need more memory than any machine has. Each byte may
/// become a token, which takes five bytes.
const MOST_BYTES: usize = 64 << 20;
/// The largest number of bytes of the tokens of all examples of one line: those of so much text, and some
/// that a chat template adds. Parts of whole turns, which repeat the system turn, and very short pieces of a
/// text could otherwise take any number.
const MOST_TOKEN_BYTES: usize = 6 * MOST_BYTES;
/// About the number of bytes that a chat template adds to each turn.
const MARKUP_BYTES: usize = 32;

/// The examples of one conversation.
#[derive(Debug)]
pub(crate) struct Examples<T> {
    /// What is kept of the examples, in the order of the conversation. Each has trained tokens.
    pub made: Vec<T>,
    pub effects: Effects,
    pub too_long: TooLong,
    /// The reason why the first of those that were left out was.
    pub left_out: Option<Rejection>,
    /// The number of turns of which no example can be made, next to others.
    pub refused_turns: u32,
    /// The reason of the first of them, which names it.
    pub first_refused: Option<Rejection>,
    /// The number of bytes of the tokens of those that were made of a chat or a completion.
    token_bytes: usize,
}

/// One example: its turns and their tokens.
#[derive(Debug)]
pub(crate) struct Example<'a> {
    pub conversation: Conversation<'a>,
    pub tokens: Tokens,
    /// Whether the tokens end before the conversation does.
    pub is_cut: bool,
}

/// What became of the examples of one conversation that are too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TooLong {
    /// The number of tokens of the longest of those that were tokenised.
    pub longest: u32,
    /// The number left out.
    pub left_out: u32,
    /// The number cut at the limit.
    pub cut: u32,
    /// The number split into whole turns.
    pub split: u32,
    /// The number of raw text that was cut into pieces.
    pub pieces: u32,
}

impl<T> Examples<T> {
    /// Notes that no example can be made of a turn.
    fn refuse(&mut self, turn: usize, mut rejection: Rejection) {
        self.refused_turns += 1;
        rejection.field = format!("messages[{turn}]");
        self.first_refused.get_or_insert(rejection);
    }

    /// Counts the tokens of one that was made.
    fn count(&mut self, tokens: &Tokens) {
        self.token_bytes += tokens.bytes();
    }

    /// Returns whether they have more tokens than one line may have.
    fn are_too_many(&self) -> bool {
        self.token_bytes > MOST_TOKEN_BYTES
    }
}

impl ExampleMaker<'_> {
    /// Makes the examples of a conversation, of each of which `keep` chooses what is needed.
    ///
    /// # Errors
    /// The same as for [`ChatTokenizer::encode_conversation`] if no example can be made, or all of them
    /// together would be too much text or too many tokens. It is no error if all of it is too long.
    pub(crate) fn make<'a, T>(
        &self,
        conversation: Conversation<'a>,
        keep: impl Fn(Example<'a>) -> T,
    ) -> Result<Examples<T>, Rejection> {
        let mut examples = Examples {
            made: Vec::new(),
            effects: Effects::default(),
            too_long: TooLong::default(),
            left_out: None,
            refused_turns: 0,
            first_refused: None,
            token_bytes: 0,
        };
        let is_split = self.options.split_turns;
        let conversation = match conversation {
            Conversation::Document(document) => {
                self.document(document, &mut examples, &keep)?;
                return Ok(examples);
            }
            conversation => conversation,
        };
        let mut untrained = None;
        for conversation in chosen(conversation, self.options)? {
            if self.progress.cancelled() || examples.are_too_many() || examples.made.len() >= self.enough {
                break;
            }
            let encoded = match self.tokenizer.encode_example(&conversation, self.policy) {
                Ok(encoded) => encoded,
                // Next to examples of other turns, a turn without trained tokens is no loss.
                Err(rejection) if rejection.kind == Kind::NothingToTrain => {
                    untrained = Some(rejection);
                    continue;
                }
                Err(rejection) if rejection.kind == Kind::TooManyTokens && self.max_tokens.is_some() => {
                    self.leave_out_untokenised(&conversation, rejection, &mut examples, &keep);
                    continue;
                }
                Err(rejection) => match &conversation {
                    Conversation::Chat(chat) if is_split => {
                        examples.refuse(chat.messages.len().saturating_sub(1), rejection);
                        continue;
                    }
                    _ => return Err(rejection),
                },
            };
            let length = encoded.tokens.input_ids.len();
            match self.max_tokens {
                Some(limit) if length > limit as usize => {
                    self.shorten(conversation, encoded, limit, &mut examples, &keep);
                }
                _ => {
                    let effects = self.tokenizer.effects(&conversation, &encoded, self.prompts);
                    examples.effects.add(effects);
                    examples.count(&encoded.tokens);
                    examples.made.push(keep(Example { conversation, tokens: encoded.tokens, is_cut: false }));
                }
            }
        }
        if examples.are_too_many() {
            return Err(explain::too_many_examples(MOST_TOKEN_BYTES));
        }
        if examples.made.is_empty()
            && examples.left_out.is_none()
            && let Some(rejection) = examples.first_refused.take().or(untrained)
        {
            return Err(rejection);
        }
        Ok(examples)
    }

    /// Adds a document, or its pieces if it is too long.
    fn document<'a, T>(
        &self,
        document: Document<'a>,
        examples: &mut Examples<T>,
        keep: &impl Fn(Example<'a>) -> T,
    ) -> Result<(), Rejection> {
        let splits = matches!(self.options.overlong, Overlong::Auto | Overlong::Split);
        let limit = if splits { self.options.piece_tokens(self.max_tokens) } else { self.max_tokens };
        let mut pieces = Pieces::new(limit.map(|limit| limit as usize), splits);
        self.tokenizer.tokens_of_document(&document, |ids| {
            pieces.add(ids);
            if pieces.bytes() > MOST_TOKEN_BYTES {
                return Err(explain::too_many_examples(MOST_TOKEN_BYTES));
            }
            Ok(())
        })?;
        // Examples are shown by their tokens, so that a long text is not kept with each of its pieces.
        drop(document);
        let (length, made) = pieces.finish();
        let is_cut = limit.is_some_and(|limit| length > limit as usize);
        let too_long = &mut examples.too_long;
        if is_cut {
            too_long.longest = too_long.longest.max(length as u32);
            match self.options.overlong {
                Overlong::Auto | Overlong::Split => too_long.pieces += 1,
                Overlong::Truncate if limit > Some(1) => too_long.cut += 1,
                Overlong::Truncate | Overlong::Drop => {
                    too_long.left_out += 1;
                    let limit = limit.unwrap_or(u32::MAX);
                    let explained = || explain::too_many_tokens(length, limit, self.options.overlong);
                    examples.left_out.get_or_insert_with(explained);
                    return Ok(());
                }
            }
        }
        let conversation = Conversation::Document(Document::default());
        let example = |tokens| keep(Example { conversation: conversation.clone(), tokens, is_cut });
        examples.made.extend(made.map(example));
        Ok(())
    }

    /// Adds what is kept of an example that is too long even to be tokenised: parts of it, if the user wants
    /// that.
    fn leave_out_untokenised<'a, T>(
        &self,
        conversation: &Conversation<'a>,
        rejection: Rejection,
        examples: &mut Examples<T>,
        keep: &impl Fn(Example<'a>) -> T,
    ) {
        let limit = self.max_tokens.unwrap_or(u32::MAX);
        let before = examples.made.len();
        let lost = match conversation {
            Conversation::Chat(chat) if self.options.overlong == Overlong::Split => {
                self.parts(chat, limit, examples, keep)
            }
            _ => 1,
        };
        examples.too_long.split += u32::from(examples.made.len() > before);
        if lost > 0 {
            examples.too_long.left_out += lost;
            examples.left_out.get_or_insert(rejection);
        }
    }

    /// Adds what is kept of an example that is too long.
    fn shorten<'a, T>(
        &self,
        conversation: Conversation<'a>,
        encoded: Encoded,
        limit: u32,
        examples: &mut Examples<T>,
        keep: &impl Fn(Example<'a>) -> T,
    ) {
        let length = encoded.tokens.input_ids.len();
        let lost = match (self.options.overlong, &conversation) {
            (Overlong::Auto | Overlong::Drop, _)
            | (Overlong::Split, Conversation::Completion { .. } | Conversation::Document(_)) => 1,
            (Overlong::Truncate, _) => {
                let effects = self.tokenizer.effects(&conversation, &encoded, self.prompts);
                match encoded.tokens.cut_at(limit as usize) {
                    Some(tokens) => {
                        examples.too_long.cut += 1;
                        examples.effects.add(effects);
                        examples.count(&tokens);
                        examples.made.push(keep(Example { conversation, tokens, is_cut: true }));
                        0
                    }
                    None => 1,
                }
            }
            (Overlong::Split, Conversation::Chat(chat)) => {
                let before = examples.made.len();
                let lost = self.parts(chat, limit, examples, keep);
                examples.too_long.split += u32::from(examples.made.len() > before);
                lost
            }
        };
        if lost > 0 {
            examples.too_long.left_out += lost;
            let explained = || explain::too_many_tokens(length, limit, self.options.overlong);
            examples.left_out.get_or_insert_with(explained);
        }
        examples.too_long.longest = examples.too_long.longest.max(length as u32);
    }

    /// Splits a conversation into parts of whole turns. Each part consists of the system turn and of
    /// exchanges, which are a user turn with everything up to the next one. Returns how many exchanges
    /// with trained turns are too long even alone.
    ///
    /// Parts are filled from the end: each then has as much as possible of what precedes its last answer,
    /// and the part that is left short is the beginning of the conversation, which nothing precedes.
    fn parts<'a, T>(
        &self,
        chat: &Chat<'a>,
        limit: u32,
        examples: &mut Examples<T>,
        keep: &impl Fn(Example<'a>) -> T,
    ) -> u32 {
        let messages = &chat.messages;
        let system = messages.iter().take_while(|m| matches!(&*m.role, "system" | "developer")).count();
        let is_user = |i: usize| messages[i].role == "user";
        let mut starts: Vec<usize> =
            (system..messages.len()).filter(|&i| is_user(i) && (i == 0 || !is_user(i - 1))).collect();
        // Turns before the first question belong to it.
        match starts.first_mut() {
            Some(first) => *first = system,
            None => starts.push(system),
        }
        let mut parts = Vec::new();
        let mut too_long = 0;
        let mut end = messages.len();
        while let Some(last) = starts.partition_point(|&start| start < end).checked_sub(1) {
            if self.progress.cancelled() || examples.are_too_many() {
                break;
            }
            let mut begin = starts[last];
            if messages[begin..end].iter().any(Message::is_trained) {
                let mut refusal = None;
                let part = largest(last + 1, |exchanges| {
                    let start = starts[last + 1 - exchanges];
                    let turns = messages[..system].iter().chain(&messages[start..end]).cloned().collect();
                    let part = Conversation::Chat(Chat { messages: turns, tools: chat.tools.clone() });
                    match self.tokenizer.encode_example(&part, self.policy) {
                        Ok(encoded) => {
                            let fits = encoded.tokens.input_ids.len() <= limit as usize;
                            fits.then_some((part, encoded))
                        }
                        Err(rejection) if rejection.kind == Kind::TooManyTokens => None,
                        Err(rejection) => {
                            refusal.get_or_insert(rejection);
                            None
                        }
                    }
                });
                match (part, refusal) {
                    (Some((exchanges, (conversation, encoded))), _) => {
                        begin = starts[last + 1 - exchanges];
                        let effects = self.tokenizer.effects(&conversation, &encoded, self.prompts);
                        examples.effects.add(effects.in_a_part());
                        examples.count(&encoded.tokens);
                        parts.push(keep(Example { conversation, tokens: encoded.tokens, is_cut: false }));
                    }
                    // Next to other parts, an exchange without trained tokens is no loss.
                    (None, Some(rejection)) if rejection.kind == Kind::NothingToTrain => {}
                    (None, Some(rejection)) => examples.refuse(begin, rejection),
                    (None, None) => too_long += 1,
                }
            }
            end = begin;
        }
        examples.made.extend(parts.into_iter().rev());
        too_long
    }
}

/// Returns the largest number from 1 to `most` for which `try_it` returns something, and this. Whatever
/// succeeds has to succeed with less too, so few numbers are tried: 1, 2, 4 and so on up to the first
/// failure, and then the middle of what is left.
fn largest<T>(most: usize, mut try_it: impl FnMut(usize) -> Option<T>) -> Option<(usize, T)> {
    let mut found = (1, try_it(1)?);
    let mut too_many = most + 1;
    while found.0 + 1 < too_many {
        let next = if too_many > most { most.min(found.0 * 2) } else { found.0.midpoint(too_many) };
        match try_it(next) {
            Some(result) => found = (next, result),
            None => too_many = next,
        }
    }
    Some(found)
}

/// The conversations of which examples are made, one after the other.
type Chosen<'a> = Box<dyn Iterator<Item = Conversation<'a>> + 'a>;

/// Returns the conversations of which examples are made, in which exactly the chosen turns are trained.
///
/// # Errors
/// Together they would be too much text.
fn chosen(conversation: Conversation<'_>, options: ExampleOptions) -> Result<Chosen<'_>, Rejection> {
    let only = |conversation| Ok(Box::new(std::iter::once(conversation)) as Chosen<'_>);
    let mut chat = match conversation {
        Conversation::Chat(chat) => chat,
        other => return only(other),
    };
    let trained = trained_turns(&chat, options.train_on);
    // Without a trained turn the conversation is rejected as it is.
    let Some(&first_trained) = trained.first() else { return only(Conversation::Chat(chat)) };
    if !options.split_turns {
        leave_out(&mut chat.messages[..first_trained]);
        return only(Conversation::Chat(chat));
    }
    if chat_bytes(&chat, options) > MOST_BYTES {
        return Err(explain::too_many_turns(trained.len(), MOST_BYTES));
    }
    Ok(Box::new(trained.into_iter().map(move |last| {
        let mut messages = chat.messages[..=last].to_vec();
        leave_out(&mut messages[..last]);
        Conversation::Chat(Chat { messages, tools: chat.tools.clone() })
    })))
}

/// Returns the turns that are trained.
fn trained_turns(chat: &Chat<'_>, train_on: TrainOn) -> Vec<usize> {
    let mut trained: Vec<usize> =
        (0..chat.messages.len()).filter(|&i| chat.messages[i].is_trained()).collect();
    if train_on == TrainOn::Last {
        trained.drain(..trained.len().saturating_sub(1));
    }
    trained
}

/// Returns about the number of bytes of text in all examples of a chat.
fn chat_bytes(chat: &Chat<'_>, options: ExampleOptions) -> usize {
    let mut bytes = chat.tools.as_ref().map_or(0, |tools| tools.get().len());
    let up_to = |message: &Message<'_>| {
        bytes += message.text_bytes() + MARKUP_BYTES;
        bytes
    };
    let bytes_up_to: Vec<usize> = chat.messages.iter().map(up_to).collect();
    if options.split_turns {
        trained_turns(chat, options.train_on).into_iter().map(|last| bytes_up_to[last]).sum()
    } else {
        bytes_up_to.last().copied().unwrap_or(0)
    }
}

/// Returns how many bytes the tokens of all examples of a conversation are expected to take: those of a token
/// for every two bytes of text. Numbers have more tokens, and most text has half as many.
pub(crate) fn expected_bytes(
    conversation: &Conversation<'_>,
    options: ExampleOptions,
    max_tokens: Option<u32>,
) -> usize {
    let text = match conversation {
        Conversation::Chat(chat) => {
            let text = chat_bytes(chat, options);
            if options.split_turns && text > MOST_BYTES {
                // It is rejected at once.
                return 0;
            }
            let may_be_split =
                options.overlong == Overlong::Split && max_tokens.is_some_and(|limit| text > limit as usize);
            let repeated = if may_be_split { repeated_bytes(chat, options) } else { 0 };
            text.saturating_add(repeated)
        }
        other => other.text_bytes(),
    };
    (text / 2).saturating_mul(TOKEN_BYTES).min(MOST_TOKEN_BYTES)
}

/// Returns the largest number of bytes of text that parts of whole turns repeat: what precedes the first
/// exchange, in a part for each.
fn repeated_bytes(chat: &Chat<'_>, options: ExampleOptions) -> usize {
    let system = chat.messages.iter().take_while(|m| matches!(&*m.role, "system" | "developer"));
    let tools = chat.tools.as_ref().map_or(0, |tools| tools.get().len());
    let exchanges = chat.messages.iter().filter(|message| message.role == "user").count();
    let examples = if options.split_turns { trained_turns(chat, options.train_on).len() } else { 1 };
    let bytes = tools + system.map(Message::text_bytes).sum::<usize>();
    bytes.saturating_mul(exchanges).saturating_mul(examples)
}

/// Makes turns context that is not trained.
fn leave_out(messages: &mut [Message<'_>]) {
    messages.iter_mut().for_each(|message| message.untrained = true);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use sparktune_base::choices::Think;

    use super::*;
    use crate::format::Format;
    use crate::parse::parse_line;

    #[test]
    fn no_more_examples_of_a_long_conversation_are_made_than_are_wanted() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets/demo/model");
        let tokenizer = ChatTokenizer::from_dir(&model).unwrap();
        let prompts = Prompts::default();
        let maker = ExampleMaker {
            tokenizer: &tokenizer,
            policy: Think::Train.into(),
            options: ExampleOptions { split_turns: true, ..ExampleOptions::default() },
            max_tokens: None,
            enough: 3,
            prompts: &prompts,
            progress: &(),
        };
        let exchange =
            ["user", "assistant"].map(|role| format!(r#"{{"role":"{role}","content":"x"}}"#)).join(",");
        let line = format!(r#"{{"messages":[{}]}}"#, vec![exchange; 1_000].join(","));
        let made = Cell::new(0);
        let conversation = parse_line(Some(Format::Messages), &line).unwrap();
        let examples = maker.make(conversation, |_| made.set(made.get() + 1)).unwrap();
        assert_eq!((examples.made.len(), made.get()), (3, 3));
    }

    #[test]
    fn the_largest_number_that_fits_is_found_in_few_tries() {
        for most in 1..70 {
            for limit in 0..=most {
                let mut tries = 0;
                let found = largest(most, |n| {
                    tries += 1;
                    (n <= limit).then_some(())
                });
                assert_eq!(found.map_or(0, |(n, ())| n), limit, "{most}");
                assert!(tries <= 2 + 2 * most.ilog2(), "{tries} tries of {most}");
            }
        }
    }
}
