//! The lines of JSON between an inference worker and the process that started it.
//!
//! The worker reads one [`Request`] per line from its standard input and writes one [`Reply`] per line to
//! its standard output: first `ready` (or `failed`, after which it ends), then parts of answers in any order,
//! each with the id of its request. It ends when its input ends. Ids are chosen by the asking side.
//!
//! `generate` asks for one answer, and `score` how likely a given text is instead of it. The first is
//! answered by `accepted` or `error` first, so that whoever asked knows whether there will be an answer
//! before the first token is there, which may be long after.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::params::SamplingParams;

/// The most bytes of a line. A longer one ends the worker, because its beginning says nothing of its end.
pub const LONGEST_LINE: usize = 64 << 20;

/// What is asked of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Continue a prompt.
    Generate(Box<Generate>),
    /// Compute how likely a continuation is. Other answers wait meanwhile.
    Score(Box<Score>),
    /// End an answer. Its `done` has the reason `cancelled`. Unknown ids are ignored, because the answer may
    /// just have ended.
    Cancel {
        /// The id of the answer.
        id: String,
    },
    /// Load an adapter from a folder, under a name, unless it is loaded as it is now. The base stays as it
    /// is. If it cannot be loaded, an older one of this name is forgotten.
    LoadAdapter {
        /// The name that requests use.
        name: String,
        /// The folder in PEFT's format.
        folder: String,
        /// Whether other adapters that no answer uses are forgotten where there is no room for it.
        #[serde(default)]
        makes_room: bool,
    },
    /// Forget an adapter. Answers that use it end with an error.
    UnloadAdapter {
        /// Its name.
        name: String,
    },
}

/// A prompt and how to continue it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    /// The id of the answer. It must not be that of another answer that is not done.
    pub id: String,
    /// What to continue.
    #[serde(flatten)]
    pub prompt: Prompt,
    /// The name of the adapter, or none for the model as it was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// How tokens are chosen.
    #[serde(default)]
    pub sampling: SamplingParams,
}

/// A prompt and a text that may follow it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The id of the reply. It must not be that of an answer that is not done.
    pub id: String,
    /// What comes before.
    #[serde(flatten)]
    pub prompt: Prompt,
    /// The text, which is tokenised on its own, as a model writes it behind the prompt. Special tokens in it
    /// are parsed as such.
    pub continuation: String,
    /// The name of the adapter, or none for the model as it was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
}

/// What is to be continued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Text, without a template. Special tokens in it are parsed as such.
    Prompt(String),
    /// Token ids.
    PromptTokenIds(Vec<u32>),
    /// The turns of a conversation in OpenAI's form, rendered by the model's chat template: an array, or an
    /// object with `messages`, and for the template `tools` and `chat_template_kwargs`, its variables by
    /// name.
    Messages(Value),
}

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Reply {
    /// The model is loaded.
    Ready(Ready),
    /// The model cannot be loaded, or the worker cannot go on. It ends.
    Failed {
        /// What is wrong, where, and what to do.
        error: String,
    },
    /// A request will be answered.
    Accepted {
        /// The id of the answer.
        id: String,
        /// The number of tokens of its prompt.
        prompt_tokens: usize,
        /// Whether the prompt ends with `<think>`, so that the answer begins inside a think block.
        opens_thinking: bool,
    },
    /// The next tokens of an answer.
    Text(Piece),
    /// An answer is complete.
    Done {
        /// The id of the answer.
        id: String,
        /// How it ended.
        #[serde(flatten)]
        finished: Finished,
    },
    /// How likely a continuation is.
    Scored {
        /// The id of the request.
        id: String,
        /// The sum of the losses of its tokens, in nats: the negative log-probability of the text.
        nats: f64,
        /// The number of its tokens.
        tokens: usize,
    },
    /// A request was refused, or its answer ended with an error.
    Error {
        /// The id of the answer, or the name of the adapter; none if the line was not understood.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// What is wrong, where, and what to do.
        error: String,
        /// Whether there is no room for an adapter that may be right.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        no_room: bool,
    },
    /// An adapter was asked for or forgotten. It follows each such request, after the `error` of one that was
    /// refused.
    Adapters {
        /// The names of all adapters now.
        adapters: Vec<String>,
        /// The memory that the model is planned with now, in bytes.
        planned_bytes: u64,
        /// The largest number of tokens of a prompt with its answer now.
        context_tokens: usize,
        /// The number of tokens that all answers at a time may have together now.
        cache_tokens: usize,
    },
}

/// A loaded model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Its name.
    pub model: String,
    /// The largest number of tokens of a prompt with its answer.
    pub context_tokens: usize,
    /// The number of tokens that all answers at a time may have together.
    pub cache_tokens: usize,
    /// The number of tokens that are drafted by the MTP head; 0 without one.
    pub draft_tokens: usize,
    /// Whether it has a chat template.
    pub has_template: bool,
    /// The memory that it was planned with, in bytes.
    pub planned_bytes: u64,
}

/// The next tokens of an answer and the text that is certain with them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The id of the answer.
    pub id: String,
    /// Whole characters. It may be empty while a character or a stop string is incomplete.
    pub text: String,
    /// The tokens.
    pub tokens: Vec<Token>,
    /// The text of each token of which a log-probability is given, by itself. A part of a character is
    /// U+FFFD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spelled: Vec<(u32, String)>,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability before penalties and filters, in nats, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f64>,
    /// The most likely tokens with theirs, most likely first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<(u32, f64)>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop token or stop string did.
    Stop,
    /// It has as many tokens as were asked for, or as fit into the context.
    Length,
    /// It was cancelled.
    Cancelled,
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The stop string, if one ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Tokens.
    pub usage: Usage,
    /// The seed of its random numbers.
    pub seed: u64,
    /// The time from the request to the first token, in milliseconds.
    pub first_token_ms: f64,
    /// The time from the request to the end, in milliseconds.
    pub total_ms: f64,
}

/// The tokens of an answer, as OpenAI counts them, and those of its drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer, with the one that ended it.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// Tokens that were drafted.
    pub drafted_tokens: usize,
    /// Drafted tokens that are part of the answer.
    pub accepted_tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_lines_that_a_person_can_write() {
        let read = |line: &str| serde_json::from_str::<Request>(line).unwrap();
        let Request::Generate(generate) = read(
            r#"{"op":"generate","id":"a","prompt":"Hello","sampling":{"temperature":0.2,"stop":["\n"]}}"#,
        ) else {
            panic!("it asks for text");
        };
        assert_eq!(generate.prompt, Prompt::Prompt("Hello".into()));
        assert_eq!((generate.sampling.temperature, generate.sampling.top_p), (0.2, 1.0));
        let chat = r#"{"op":"generate","id":"b","messages":[{"role":"user","content":"Hi"}],"adapter":"x"}"#;
        let Request::Generate(chat) = read(chat) else { panic!("it asks for text") };
        assert!(matches!(chat.prompt, Prompt::Messages(_)) && chat.adapter.as_deref() == Some("x"));
        let again = serde_json::to_string(&Request::Generate(chat.clone())).unwrap();
        assert_eq!(read(&again), Request::Generate(chat));
        assert_eq!(read(r#"{"op":"cancel","id":"a"}"#), Request::Cancel { id: "a".into() });
        let score = read(r#"{"op":"score","id":"c","prompt":"1, 2,","continuation":" 3"}"#);
        let Request::Score(score) = score else { panic!("it asks for a score") };
        assert_eq!((score.prompt, score.continuation.as_str()), (Prompt::Prompt("1, 2,".into()), " 3"));

        let token = Token { id: 5, logprob: None, top_logprobs: Vec::new() };
        let piece = Piece { id: "a".into(), text: "é".into(), tokens: vec![token], ..Piece::default() };
        let text = Reply::Text(piece.clone());
        let line = serde_json::to_string(&text).unwrap();
        assert_eq!(line, r#"{"event":"text","id":"a","text":"é","tokens":[{"id":5}]}"#);
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), text);
        let spelled = Reply::Text(Piece { spelled: vec![(5, "é".to_owned())], ..piece });
        let line = serde_json::to_string(&spelled).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), spelled, "{line}");
        let done = Finished {
            finish_reason: FinishReason::Length,
            stop: None,
            usage: Usage::default(),
            seed: u64::MAX,
            first_token_ms: 1.5,
            total_ms: 2.0,
        };
        let done = Reply::Done { id: "a".into(), finished: done };
        let line = serde_json::to_string(&done).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), done, "{line}");
    }

    #[test]
    fn a_damaged_line_is_an_error_and_no_panic() {
        for line in [
            "",
            "{",
            "[]",
            r#"{"op":"fly"}"#,
            r#"{"op":"cancel"}"#,
            r#"{"op":"generate","id":"a"}"#,
            r#"{"op":"generate","id":"a","prompt":1}"#,
            r#"{"op":"score","id":"a","prompt":"x"}"#,
        ] {
            assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
        }
    }
}
