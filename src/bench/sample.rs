//! Sample data: chat examples that are the same in every run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::BenchError;

/// Writes about `bytes` of chat examples as JSON Lines: sentences, code and lists, one character in thirty
/// not ASCII, with the escapes that Python's `json.dumps(…, ensure_ascii=False)` writes.
pub(crate) fn write_sample(path: &Path, bytes: u64) -> Result<(), BenchError> {
    const WORDS: &str = "the|model|reads|a|token|and|predicts|what|comes|next|loss|falls|slowly|\"quoted\"|naïve|Straße|東京|\
        it's|3.14|2,048|def|return|x = y[0]|{key: value}|gradient|attention|layer|memory|kernel|of|in|to|is|\
        with|sequence|data|because|therefore|café|result";
    let words: Vec<&str> = WORDS.split('|').collect();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) as usize % below
    };
    let mut file = BufWriter::new(File::create(path).map_err(BenchError::io("write", path))?);
    let mut written = 0;
    while written < bytes {
        let turns = 1 + next(3);
        let mut messages = Vec::with_capacity(2 * turns);
        for turn in 0..2 * turns {
            let mut text = String::new();
            for _ in 0..[12, 40, 120, 400][next(4)] {
                text.push_str(words[next(words.len())]);
                text.push_str([" ", " ", " ", " ", ". ", ", ", ":\n    ", "\n\n"][next(8)]);
            }
            let role = if turn % 2 == 0 { "user" } else { "assistant" };
            messages.push(serde_json::json!({ "role": role, "content": text }));
        }
        let line = serde_json::json!({ "messages": messages, "source": "sample" }).to_string() + "\n";
        file.write_all(line.as_bytes()).map_err(BenchError::io("write", path))?;
        written += line.len() as u64;
    }
    file.flush().map_err(BenchError::io("write", path))
}
