//! Makes the examples of one conversation: chooses the turns that are trained, gives each of them an example
//! of its own if the user wants that, and applies the limit on tokens.
//!
//! Enters: a [`Conversation`]. Leaves: [`Examples`], which also say what was too long. It must not know files
//! or lines.

use sparktune_base::choices::{Overlong, TrainOn};

use crate::chat_tokenizer::ChatTokenizer;
use crate::conversation::{Chat, Conversation, Document, Message};
use crate::documents::PIECE_TOKENS;
use crate::explain;
use crate::rejection::{Kind, Rejection};
use crate::served::{Effects, Prompts};
use crate::tokens::Tokens;
use crate::turns::MaskPolicy;

/// How a conversation becomes examples. This is part of the fingerprint of token files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    /// The prompts that a server sends, compared so far.
    pub prompts: &'t Prompts,
}

/// The examples of one conversation.
#[derive(Debug, Default)]
pub(crate) struct Examples<'a> {
    /// The examples in the order of the conversation. Each has trained tokens.
    pub made: Vec<Example<'a>>,
    pub effects: Effects,
    pub too_long: TooLong,
    /// The reason why the first of those that were left out was.
    pub left_out: Option<Rejection>,
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
    /// The number of tokens of the longest.
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

impl ExampleMaker<'_> {
    /// Makes the examples of a conversation.
    ///
    /// # Errors
    /// The same as for [`ChatTokenizer::encode_conversation`]. It is no error if all of it is too long.
    pub(crate) fn make<'a>(&self, conversation: Conversation<'a>) -> Result<Examples<'a>, Rejection> {
        let mut examples = Examples::default();
        let conversation = match conversation {
            Conversation::Document(document) => {
                self.document(document, &mut examples)?;
                return Ok(examples);
            }
            conversation => conversation,
        };
        let mut untrained = None;
        for conversation in chosen(conversation, self.options) {
            let encoded = self.tokenizer.encode_and_compare(&conversation, self.policy, self.prompts);
            let tokens = match encoded {
                Ok((tokens, effects)) => {
                    examples.effects.add(effects);
                    tokens
                }
                // Next to examples of other turns, a turn without trained tokens is no loss.
                Err(rejection) if rejection.kind == Kind::NothingToTrain => {
                    untrained = Some(rejection);
                    continue;
                }
                Err(rejection) => return Err(rejection),
            };
            match self.max_tokens {
                Some(limit) if tokens.input_ids.len() > limit as usize => {
                    self.shorten(conversation, tokens, limit, &mut examples)?;
                }
                _ => examples.made.push(Example { conversation, tokens, is_cut: false }),
            }
        }
        match untrained {
            Some(rejection) if examples.made.is_empty() && examples.left_out.is_none() => Err(rejection),
            _ => Ok(examples),
        }
    }

    /// Adds a document, or its pieces if it is too long.
    fn document<'a>(&self, document: Document<'a>, examples: &mut Examples<'a>) -> Result<(), Rejection> {
        let tokens = self.tokenizer.encode_document(&document)?;
        // Examples are shown by their tokens, so that a long text is not kept with each of its pieces.
        drop(document);
        let conversation = Conversation::Document(Document::default());
        let splits = matches!(self.options.overlong, Overlong::Auto | Overlong::Split);
        let limit = if splits { self.options.piece_tokens(self.max_tokens) } else { self.max_tokens };
        let length = tokens.input_ids.len();
        match limit {
            Some(limit) if length > limit as usize && splits => {
                examples.too_long.pieces += 1;
                examples.too_long.longest = examples.too_long.longest.max(length as u32);
                let pieces = tokens.pieces(limit as usize).into_iter();
                let example = |tokens| Example { conversation: conversation.clone(), tokens, is_cut: true };
                examples.made.extend(pieces.map(example));
                Ok(())
            }
            Some(limit) if length > limit as usize => self.shorten(conversation, tokens, limit, examples),
            _ => {
                examples.made.push(Example { conversation, tokens, is_cut: false });
                Ok(())
            }
        }
    }

    /// Adds what is kept of an example that is too long.
    fn shorten<'a>(
        &self,
        conversation: Conversation<'a>,
        tokens: Tokens,
        limit: u32,
        examples: &mut Examples<'a>,
    ) -> Result<(), Rejection> {
        let Examples { made, too_long, left_out, effects: _ } = examples;
        let length = tokens.input_ids.len();
        let lost = match self.options.overlong {
            Overlong::Auto | Overlong::Drop => 1,
            Overlong::Truncate => match tokens.cut_at(limit as usize) {
                Some(tokens) => {
                    too_long.cut += 1;
                    made.push(Example { conversation, tokens, is_cut: true });
                    0
                }
                None => 1,
            },
            Overlong::Split => {
                let (parts, lost) = self.parts(&conversation, limit)?;
                too_long.split += u32::from(!parts.is_empty());
                made.extend(parts);
                lost
            }
        };
        if lost > 0 {
            too_long.left_out += lost;
            left_out.get_or_insert_with(|| explain::too_many_tokens(length, limit, self.options.overlong));
        }
        too_long.longest = too_long.longest.max(length as u32);
        Ok(())
    }

    /// Splits a conversation into parts of whole turns. Each part consists of the system turn and of
    /// exchanges, which are a user turn with everything up to the next one. Also returns how many exchanges
    /// with trained turns are too long even alone.
    ///
    /// Parts are filled from the end: each then has as much as possible of what precedes its last answer,
    /// and the part that is left short is the beginning of the conversation, which nothing precedes.
    fn parts<'a>(
        &self,
        conversation: &Conversation<'a>,
        limit: u32,
    ) -> Result<(Vec<Example<'a>>, u32), Rejection> {
        let Conversation::Chat(chat) = conversation else { return Ok((Vec::new(), 1)) };
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
        while let Some(last) = starts.iter().rposition(|&start| start < end) {
            let mut begin = starts[last];
            if messages[begin..end].iter().any(Message::is_trained) {
                let mut part = None;
                for &start in starts[..=last].iter().rev() {
                    let turns = messages[..system].iter().chain(&messages[start..end]).cloned().collect();
                    let conversation =
                        Conversation::Chat(Chat { messages: turns, tools: chat.tools.clone() });
                    let tokens = self.tokenizer.encode_conversation(&conversation, self.policy)?;
                    if tokens.input_ids.len() > limit as usize {
                        break;
                    }
                    begin = start;
                    part = Some(Example { conversation, tokens, is_cut: false });
                }
                too_long += u32::from(part.is_none());
                parts.extend(part);
            }
            end = begin;
        }
        parts.reverse();
        Ok((parts, too_long))
    }
}

/// Returns the conversations of which examples are made, in which exactly the chosen turns are trained.
fn chosen(conversation: Conversation<'_>, options: ExampleOptions) -> Vec<Conversation<'_>> {
    let mut chat = match conversation {
        Conversation::Chat(chat) => chat,
        other => return vec![other],
    };
    let trained: Vec<usize> = (0..chat.messages.len()).filter(|&i| chat.messages[i].is_trained()).collect();
    let first = match options.train_on {
        TrainOn::All => 0,
        TrainOn::Last => trained.len().saturating_sub(1),
    };
    // Without a trained turn the conversation is rejected as it is.
    let Some(&first_trained) = trained.get(first) else { return vec![Conversation::Chat(chat)] };
    if !options.split_turns {
        leave_out(&mut chat.messages[..first_trained]);
        return vec![Conversation::Chat(chat)];
    }
    let ending_with = |&last: &usize| {
        let mut messages = chat.messages[..=last].to_vec();
        leave_out(&mut messages[..last]);
        Conversation::Chat(Chat { messages, tools: chat.tools.clone() })
    };
    trained[first..].iter().map(ending_with).collect()
}

/// Makes turns context that is not trained.
fn leave_out(messages: &mut [Message<'_>]) {
    messages.iter_mut().for_each(|message| message.untrained = true);
}
