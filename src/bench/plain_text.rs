//! Tokenising speed of a `tokenizer.json` by itself, on files as they lie on a disk.
//!
//! Both sides encode the same texts on one thread, text by text in turn, so that whatever else the
//! machine does slows both. Each begins without anything remembered. The ids must be the same; otherwise
//! there is no result.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sparktune_base::units::{count, counted};
use sparktune_data::ChatTokenizer;
use tokenizers::Tokenizer;

use crate::context::{Context, PlainText};
use crate::error::BenchError;
use crate::row::{Row, Target};

/// The size in bytes above which a file is left out: it is data rather than text.
const LARGEST_FILE: u64 = 1 << 20;

pub(crate) fn measure(context: &Context, input: &PlainText) -> Result<Vec<Row>, BenchError> {
    let PlainText { tokenizer: file, text } = input;
    let folder = context.folder.join("tokenizer");
    std::fs::create_dir_all(&folder).map_err(BenchError::io("create", &folder))?;
    std::fs::copy(file, folder.join("tokenizer.json")).map_err(BenchError::io("read", file))?;
    let own = ChatTokenizer::from_dir(&folder)?;
    let failed = |what: String, advice: &str| BenchError::Peer {
        peer: "tokenizers".into(),
        what,
        advice: advice.into(),
    };
    let library = Tokenizer::from_file(file)
        .map_err(|error| failed(format!("cannot open {}: {error}", file.display()), "Name another file"))?;

    let texts = texts(text, context.size.plain_text_bytes)?;
    let bytes: usize = texts.iter().map(String::len).sum();
    let (mut own_time, mut library_time) = (Duration::ZERO, Duration::ZERO);
    let mut tokens = 0;
    for text in &texts {
        let began = Instant::now();
        let ids = own.encode(text);
        own_time += began.elapsed();

        let began = Instant::now();
        let encoded = library.encode_fast(text.as_str(), false);
        library_time += began.elapsed();

        let encoded =
            encoded.map_err(|error| failed(error.to_string(), "Name another folder with --text"))?;
        tokens += encoded.len();
        if ids.ok().as_deref() != Some(encoded.get_ids()) {
            let start: String = text.chars().take(60).collect();
            let what = format!("gives other ids than sparktune for the text that begins with {start:?}");
            return Err(failed(what, "Report this"));
        }
    }
    if bytes == 0 {
        let what = format!("has nothing to tokenise: {} has no text", text.display());
        return Err(failed(what, "Name another folder with --text"));
    }
    let rate = |time: Duration| bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9);
    let ids = count(own.vocab_size() as u64);
    Ok(vec![
        Row::new(
            format!("plain text ({ids} ids)"),
            rate(own_time),
            "MB/s",
            format!(
                "{}, {}, one thread",
                counted(texts.len() as u64, "file"),
                counted(tokens as u64, "token")
            ),
        ),
        Row::new("  tokenizers library", rate(library_time), "MB/s", "encode_fast, text by text in turn"),
        Row::new("  ratio to the library", library_time.div_duration_f64(own_time), "×", "the same ids")
            .with_target(Target::AtLeast(5.0)),
    ])
}

/// Reads up to about so many bytes of the text files below a folder, in order of their paths.
fn texts(folder: &Path, most: u64) -> Result<Vec<String>, BenchError> {
    let mut texts = Vec::new();
    let mut bytes = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(BenchError::io("list", &folder))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        // The last folder is taken first.
        folders.extend(paths.iter().rev().filter(|path| path.is_dir() && !path.is_symlink()).cloned());
        for path in paths.iter().filter(|path| path.is_file()) {
            if bytes >= most {
                return Ok(texts);
            }
            let is_text = path.metadata().is_ok_and(|meta| meta.len() <= LARGEST_FILE);
            if let Some(text) = is_text.then(|| std::fs::read_to_string(path).ok()).flatten() {
                bytes += text.len() as u64;
                texts.push(text);
            }
        }
    }
    Ok(texts)
}
