//! Speaks the lines of `sparktune_sampling::protocol` over any reader and writer, for a process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use sparktune_sampling::protocol::{
    Generate, LONGEST_LINE, Piece, Prompt, Ready, Reply, Request, Score, Token,
};

use crate::engine::{Ask, Engine};
use crate::error::InferError;
use crate::event::{Event, SequenceId};

/// What a think block begins with.
const BLOCK_START: &str = "<think>";

/// A line that was read, or why there will be no more.
enum Line {
    Text(Vec<u8>),
    /// The line is longer than any request.
    TooLong,
    End,
}

/// A worker and the ids of its answers.
struct Serve<W> {
    engine: Engine,
    output: W,
    ids: BTreeMap<SequenceId, String>,
}

/// Answers requests from `input` until it ends, and completes the answers that have begun. If nobody reads
/// the output any more, the next write fails and ends the worker.
///
/// # Errors
/// The output cannot be written.
pub fn serve(engine: Engine, input: impl Read + Send + 'static, output: impl Write) -> io::Result<()> {
    let (sender, lines) = channel();
    // Reading waits, so a thread does it. It ends with the input, or with the process.
    thread::Builder::new().name("requests".into()).spawn(move || {
        let mut input = BufReader::new(input);
        loop {
            let line = read_line(&mut input);
            let is_last = !matches!(line, Line::Text(_));
            if sender.send(line).is_err() || is_last {
                break;
            }
        }
    })?;
    let mut worker = Serve { engine, output, ids: BTreeMap::new() };
    worker.write(&Reply::Ready(worker.ready()))?;
    worker.run(&lines)
}

fn read_line(input: &mut impl BufRead) -> Line {
    let mut line = Vec::new();
    match input.take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line) {
        Ok(0) | Err(_) => Line::End,
        Ok(_) if line.len() > LONGEST_LINE => Line::TooLong,
        Ok(_) => Line::Text(line),
    }
}

impl<W: Write> Serve<W> {
    fn run(&mut self, lines: &Receiver<Line>) -> io::Result<()> {
        let mut is_open = true;
        while is_open || !self.engine.is_idle() {
            // Without an answer to decode there is nothing to do but wait for a request.
            if is_open && self.engine.is_idle() {
                match lines.recv() {
                    Ok(line) => is_open = self.take(line)?,
                    Err(_) => is_open = false,
                }
            }
            while is_open {
                match lines.try_recv() {
                    Ok(line) => is_open = self.take(line)?,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => is_open = false,
                }
            }
            for event in self.engine.step() {
                self.tell(event)?;
            }
        }
        Ok(())
    }

    /// Carries out a line. Returns whether others may follow.
    fn take(&mut self, line: Line) -> io::Result<bool> {
        let line = match line {
            Line::End => return Ok(false),
            Line::TooLong => {
                let error = format!("a request is longer than {LONGEST_LINE} bytes. Send less text");
                self.write(&Reply::Failed { error })?;
                return Ok(false);
            }
            Line::Text(line) if line.trim_ascii().is_empty() => return Ok(true),
            Line::Text(line) => line,
        };
        match serde_json::from_slice(&line) {
            Ok(request) => self.carry_out(request)?,
            Err(error) => {
                let error = format!("not a request: {error}. Send one JSON object per line");
                self.write(&Reply::Error { id: None, error, no_room: false })?;
            }
        }
        Ok(true)
    }

    fn carry_out(&mut self, request: Request) -> io::Result<()> {
        let (name, done) = match request {
            Request::Generate(generate) => {
                let id = generate.id.clone();
                let answer = self.generate(*generate).unwrap_or_else(|error| refusal(id, error));
                return self.write(&answer);
            }
            Request::Score(score) => {
                let id = score.id.clone();
                let reply = match self.score(*score) {
                    Ok((nats, tokens)) => Reply::Scored { id, nats, tokens },
                    Err(error) => refusal(id, error),
                };
                return self.write(&reply);
            }
            Request::Cancel { id } => {
                let found = self.ids.iter().find(|(_, known)| **known == id).map(|(number, _)| *number);
                found.into_iter().for_each(|number| self.engine.cancel(number));
                return Ok(());
            }
            Request::LoadAdapter { name, folder, makes_room } => {
                let folder = Path::new(&folder);
                if makes_room {
                    self.engine.make_room_for_adapter(&name, folder);
                }
                let done = self.engine.load_adapter(&name, folder);
                (name, done)
            }
            Request::UnloadAdapter { name } => {
                let done = self.engine.unload_adapter(&name);
                (name, done)
            }
        };
        if let Err(error) = done {
            let no_room = matches!(error, InferError::NoRoomForAdapter { .. });
            self.write(&Reply::Error { id: Some(name), error: error.to_string(), no_room })?;
        }
        // Others may have been forgotten for one that could not be loaded.
        self.write(&Reply::Adapters {
            adapters: self.engine.adapters(),
            planned_bytes: self.engine.memory().total,
            context_tokens: self.engine.context_tokens(),
            cache_tokens: self.engine.memory().cache_tokens,
        })
    }

    /// Begins an answer. Returns that it was accepted.
    fn generate(&mut self, generate: Generate) -> Result<Reply, String> {
        let Generate { id, prompt, adapter, sampling } = generate;
        if self.ids.values().any(|known| *known == id) {
            return Err("another answer has this id. Choose an id of its own for each request".into());
        }
        let (prompt, opens_thinking) = self.encode(prompt)?;
        let prompt_tokens = prompt.len();
        let number = self.engine.submit(Ask { prompt, adapter, sampling }).map_err(in_words)?;
        self.ids.insert(number, id.clone());
        Ok(Reply::Accepted { id, prompt_tokens, opens_thinking })
    }

    /// Computes the loss of a continuation in nats. Returns the number of its tokens too.
    fn score(&self, score: Score) -> Result<(f64, usize), String> {
        let Score { id, prompt, continuation, adapter } = score;
        if self.ids.values().any(|known| *known == id) {
            return Err("an answer has this id. Choose an id of its own for each request".into());
        }
        let (prompt, _) = self.encode(prompt)?;
        let continuation = self.engine.encode(&continuation).map_err(in_words)?;
        let nats = self.engine.score(&prompt, &continuation, adapter.as_deref()).map_err(in_words)?;
        Ok((nats, continuation.len()))
    }

    /// Returns the tokens of a prompt, and whether it opens a think block.
    fn encode(&self, prompt: Prompt) -> Result<(Vec<u32>, bool), String> {
        let text = match prompt {
            Prompt::Prompt(text) => text,
            Prompt::PromptTokenIds(ids) => return Ok((ids, false)),
            Prompt::Messages(messages) => self.engine.render_messages(&messages).map_err(in_words)?,
        };
        let ids = self.engine.encode(&text).map_err(in_words)?;
        Ok((ids, text.trim_end().ends_with(BLOCK_START)))
    }

    fn tell(&mut self, event: Event) -> io::Result<()> {
        let Event { id: number, tokens, text, end } = event;
        let Some(id) = self.ids.get(&number).cloned() else { return Ok(()) };
        if !tokens.is_empty() || !text.is_empty() {
            let spelled = self.spelled(&tokens);
            self.write(&Reply::Text(Piece { id: id.clone(), text, tokens, spelled }))?;
        }
        match end {
            None => Ok(()),
            Some(end) => {
                self.ids.remove(&number);
                self.write(&match end {
                    Ok(finished) => Reply::Done { id, finished },
                    Err(error) => refusal(id, error.to_string()),
                })
            }
        }
    }

    /// Returns the texts of the tokens whose log-probabilities are known.
    fn spelled(&self, tokens: &[Token]) -> Vec<(u32, String)> {
        let known = tokens.iter().filter(|token| token.logprob.is_some());
        let ids: BTreeSet<u32> =
            known.flat_map(|token| token.top_logprobs.iter().map(|(id, _)| *id).chain([token.id])).collect();
        ids.into_iter().map(|id| (id, self.engine.tokenizer().decode(&[id]))).collect()
    }

    fn ready(&self) -> Ready {
        Ready {
            model: self.engine.name().to_owned(),
            context_tokens: self.engine.context_tokens(),
            cache_tokens: self.engine.memory().cache_tokens,
            draft_tokens: self.engine.draft_tokens(),
            has_template: self.engine.tokenizer().thinking().is_some(),
            planned_bytes: self.engine.memory().total,
        }
    }

    fn write(&mut self, reply: &Reply) -> io::Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        self.output.write_all(&line)?;
        self.output.flush()
    }
}

/// Says that there is no answer, or no more of it.
fn refusal(id: String, error: String) -> Reply {
    Reply::Error { id: Some(id), error, no_room: false }
}

fn in_words(error: InferError) -> String {
    error.to_string()
}
