//! Tokenising speed: examples are read, parsed, rendered with the chat template and tokenised, as a training
//! does once for its data.
//!
//! The peer is the `tokenizers` library, linked into this program: it is given the rendered texts and
//! tokenises them as a batch on all cores, without reading, parsing or rendering. Passes of both alternate.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use sparktune_base::units::count;
use sparktune_data::{ChatTokenizer, CheckOptions, Conversation, Format, MaskPolicy, check, parse_line};
use tokenizers::Tokenizer;

use crate::context::Context;
use crate::error::BenchError;
use crate::median::median;
use crate::row::Row;
use crate::sample::write_sample;

/// Passes of each side.
const PASSES: usize = 3;

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let Some(folder) = &context.options.tokenizer else {
        (context.note)("skipped: presets/demo was not found; name a tokenizer with --model FOLDER");
        return Ok(Vec::new());
    };
    let tokenizer = ChatTokenizer::from_dir(folder)?;
    let sample = context.folder.join("tokenising.jsonl");
    write_sample(&sample, context.size.tokenising_bytes)?;
    let library = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(|error| BenchError::Peer {
        peer: "tokenizers".into(),
        what: format!("cannot open the tokenizer in {}: {error}", folder.display()),
        advice: "Name another folder with --model".into(),
    })?;
    let texts = rendered(&sample, &tokenizer)?;

    let (mut own, mut peer) = (Vec::new(), Vec::new());
    let (mut bytes, mut tokens) = (0, 0);
    let options = CheckOptions { tokenizer: Some(&tokenizer), ..CheckOptions::default() };
    for _ in 0..PASSES {
        let began = Instant::now();
        let report = check(std::slice::from_ref(&sample), &options, &())?;
        own.push(began.elapsed().as_secs_f64());
        (bytes, tokens) = (report.text_bytes, report.tokens.map_or(0, |tokens| tokens.total));

        let began = Instant::now();
        let encoded = library.encode_batch_fast(texts.clone(), false);
        peer.push(began.elapsed().as_secs_f64());
        drop(encoded.map_err(|error| BenchError::Peer {
            peer: "tokenizers".into(),
            what: format!("cannot tokenise the sample: {error}"),
            advice: "Name another tokenizer with --model".into(),
        })?);
    }
    std::fs::remove_file(&sample).map_err(BenchError::io("remove", &sample))?;

    let (own, peer) = (median(own), median(peer));
    let megabytes = bytes as f64 / 1e6;
    let ids = count(tokenizer.vocab_size() as u64);
    Ok(vec![
        Row::new(
            format!("tokenising ({ids} ids)"),
            megabytes / own,
            "MB/s",
            "reading, parsing and rendering included",
        ),
        Row::new("  in tokens", tokens as f64 / own, "tokens/s", "once; later read from the token file"),
        Row::new(
            "  tokenizers library",
            megabytes / peer,
            "MB/s",
            "encode_batch of the rendered texts alone",
        ),
        Row::new("  ratio to the library", peer / own, "×", ""),
    ])
}

/// The text of every example, as it is tokenised.
fn rendered(sample: &Path, tokenizer: &ChatTokenizer) -> Result<Vec<String>, BenchError> {
    let read = BenchError::io("read", sample);
    let file = std::fs::File::open(sample).map_err(read)?;
    let mut texts = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line.map_err(BenchError::io("read", sample))?;
        let Ok(Conversation::Chat(chat)) = parse_line(Some(Format::Messages), &line) else { continue };
        if let Ok((text, _)) = tokenizer.render_targets(&chat, MaskPolicy::default()) {
            texts.push(text);
        }
    }
    Ok(texts)
}
