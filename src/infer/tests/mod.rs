//! Tests of the engine on the fixtures' small models.

mod answers;
mod batches;
mod greedy;
mod lines;
#[cfg(feature = "cuda")]
mod on_device;
mod scores;
mod sources;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{Finished, Token};
use tempfile::TempDir;

use crate::engine::{Ask, Engine, EngineOptions};
use crate::event::SequenceId;
use crate::memory::Room;
use crate::source::Source;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

fn qwen35(name: &str) -> PathBuf {
    fixtures().join("qwen35").join(name)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn roomy() -> Room {
    Room { available: 1 << 40, reserve: 0, beside: String::new() }
}

/// Returns a copy of a checkpoint, with the tokenizer of the qwen35 set if it has none of its own.
fn with_tokenizer(checkpoint: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(checkpoint).unwrap().map(|file| file.unwrap().path()) {
        fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        if !copy.path().join(file).exists() {
            fs::copy(qwen35("checkpoint").join(file), copy.path().join(file)).unwrap();
        }
    }
    copy
}

fn load(folder: &Path, options: EngineOptions) -> Engine {
    let source = Source::open(folder, None).unwrap();
    Engine::load(&source, options, &roomy(), &Device::flex(), &mut |_, _| ()).unwrap()
}

fn engine(checkpoint: &str, draft_tokens: usize) -> Engine {
    let folder = with_tokenizer(&qwen35(checkpoint));
    load(folder.path(), EngineOptions { draft_tokens, ..EngineOptions::default() })
}

fn ask(prompt: &[u32], sampling: SamplingParams) -> Ask {
    Ask { prompt: prompt.to_vec(), adapter: None, sampling }
}

/// A complete answer.
#[derive(Debug, Default)]
struct Answered {
    tokens: Vec<Token>,
    text: String,
    /// The text as it arrived.
    pieces: Vec<String>,
    finished: Option<Finished>,
    error: Option<String>,
}

impl Answered {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    fn finished(&self) -> &Finished {
        self.finished.as_ref().unwrap_or_else(|| panic!("no end: {:?}", self.error))
    }
}

/// Answers everything that was submitted.
fn finish(engine: &mut Engine) -> BTreeMap<SequenceId, Answered> {
    let mut answers = BTreeMap::new();
    while !engine.is_idle() {
        step(engine, &mut answers);
    }
    answers
}

fn step(engine: &mut Engine, answers: &mut BTreeMap<SequenceId, Answered>) {
    for event in engine.step() {
        let answer: &mut Answered = answers.entry(event.id).or_default();
        assert!(answer.finished.is_none() && answer.error.is_none(), "something follows the end");
        answer.tokens.extend(event.tokens);
        answer.text.push_str(&event.text);
        answer.pieces.push(event.text);
        match event.end {
            Some(Ok(finished)) => answer.finished = Some(finished),
            Some(Err(error)) => answer.error = Some(error.to_string()),
            None => {}
        }
    }
}

/// Answers one request alone.
fn answer(engine: &mut Engine, ask: Ask) -> Answered {
    let id = engine.submit(ask).unwrap();
    finish(engine).remove(&id).unwrap()
}
