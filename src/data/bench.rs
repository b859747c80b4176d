//! How fast the data front is, on data of a known kind: the functions behind `sparktune bench`.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use crate::{
    ChatTokenizer, DataError,
    check::{CheckOptions, check},
};

/// What was done in which time.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Throughput {
    /// Bytes worked on: of the file when validating, of the examples' text when tokenising.
    pub bytes: u64,
    /// Examples.
    pub examples: u64,
    /// Tokens, 0 when validating.
    pub tokens: u64,
    /// Wall time, reading included.
    pub seconds: f64,
}

impl Throughput {
    /// 10^6 bytes per second.
    pub fn megabytes_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    /// Tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// Writes about `bytes` of chat examples, always the same: sentences, code and lists, one character in thirty not ASCII, escapes as
/// Python's `json.dumps(…, ensure_ascii=False)` writes them.
///
/// # Errors
/// The file cannot be written.
pub fn write_sample(path: &Path, bytes: u64) -> Result<(), DataError> {
    const WORDS: [&str; 40] = [
        "the",
        "model",
        "reads",
        "a",
        "token",
        "and",
        "predicts",
        "what",
        "comes",
        "next",
        "loss",
        "falls",
        "slowly",
        "\"quoted\"",
        "naïve",
        "Straße",
        "東京",
        "it's",
        "3.14",
        "2,048",
        "def",
        "return",
        "x = y[0]",
        "{key: value}",
        "gradient",
        "attention",
        "layer",
        "memory",
        "kernel",
        "of",
        "in",
        "to",
        "is",
        "with",
        "sequence",
        "data",
        "because",
        "therefore",
        "café",
        "result",
    ];
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) as usize % below
    };
    let mut file = BufWriter::new(File::create(path).map_err(DataError::io("write", path))?);
    let mut written = 0;
    while written < bytes {
        let turns = 1 + next(3);
        let mut messages = Vec::with_capacity(2 * turns);
        for turn in 0..2 * turns {
            let mut text = String::new();
            for _ in 0..[12, 40, 120, 400][next(4)] {
                text.push_str(WORDS[next(WORDS.len())]);
                text.push_str([" ", " ", " ", " ", ". ", ", ", ":\n    ", "\n\n"][next(8)]);
            }
            let role = if turn % 2 == 0 { "user" } else { "assistant" };
            messages.push(serde_json::json!({ "role": role, "content": text }));
        }
        let line = serde_json::json!({ "messages": messages, "source": "sample" }).to_string() + "\n";
        file.write_all(line.as_bytes()).map_err(DataError::io("write", path))?;
        written += line.len() as u64;
    }
    file.flush().map_err(DataError::io("write", path))
}

/// Validates everything in `inputs`, on the current rayon pool.
///
/// # Errors
/// As [`check`].
pub fn measure_validation(inputs: &[PathBuf]) -> Result<Throughput, DataError> {
    let start = Instant::now();
    let report = check(inputs, &CheckOptions::default(), &())?;
    let bytes = report.files.iter().map(|f| f.bytes).sum();
    Ok(Throughput { bytes, examples: report.examples, tokens: 0, seconds: start.elapsed().as_secs_f64() })
}

/// Validates, renders and tokenises everything in `inputs`, on the current rayon pool.
///
/// # Errors
/// As [`check`].
pub fn measure_tokenising(inputs: &[PathBuf], tokenizer: &ChatTokenizer) -> Result<Throughput, DataError> {
    let start = Instant::now();
    let report = check(inputs, &CheckOptions { tokenizer: Some(tokenizer), ..CheckOptions::default() }, &())?;
    Ok(Throughput {
        bytes: report.text_bytes,
        examples: report.examples,
        tokens: report.tokens.map_or(0, |t| t.total),
        seconds: start.elapsed().as_secs_f64(),
    })
}
