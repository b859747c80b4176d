//! Speed of token files and packing, on synthetic examples whose lengths are distributed like those of chats.
//!
//! Reading is compared with a copy of the same number of bytes in memory, measured in the same run. Each rate
//! is the best of several passes.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sparktune_base::choices::PackStrategy;
use sparktune_data::packing::{Pack, Packing};
use sparktune_data::token_file::{Header, Origin, TokenFile, TokenFileWriter};

use crate::context::Context;
use crate::error::BenchError;
use crate::row::{Row, Target};

/// Tokens of a pack.
pub(crate) const PACK_LENGTH: u32 = 4096;

/// Rows of the section `tokens`.
pub(crate) fn measure_reading(context: &Context) -> Result<Vec<Row>, BenchError> {
    let path = written(context)?;
    let file = TokenFile::open(&path)?;
    let total = file.total_tokens();
    let rate = |seconds: f64| total as f64 / seconds.max(1e-9);

    // Four bytes for a token, one bit for its loss mask.
    let bytes = (total * 4 + total / 8) as usize;
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    let copying = best_of(5, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        Ok(())
    })?;
    drop((from, to));

    touch(&file)?;
    let reading = best_of(5, || touch(&file))?;
    let first_reading = best_of(3, || touch(&TokenFile::open(&path)?))?;
    std::fs::remove_file(&path).map_err(BenchError::io("remove", &path))?;
    Ok(vec![
        Row::new("memory copy of tokens and masks", rate(copying), "tokens/s", "the limit of the next rows"),
        Row::new("token file, reading", rate(reading), "tokens/s", "every token and mask bit, in place"),
        Row::new("  ratio to the memory copy", copying / reading, "×", "").with_target(Target::AtLeast(0.5)),
        Row::new(
            "token file, first reading",
            rate(first_reading),
            "tokens/s",
            "page faults and checksums included",
        ),
    ])
}

/// Rows of the section `packing`.
pub(crate) fn measure_packing(context: &Context) -> Result<Vec<Row>, BenchError> {
    let path = written(context)?;
    let file = TokenFile::open(&path)?;
    let rate = |seconds: f64| file.total_tokens() as f64 / seconds.max(1e-9);
    let packing = Packing::new(PackStrategy::Bfd, PACK_LENGTH, 0).expect("a valid pack length");
    let choosing = best_of(3, || {
        black_box(packing.epoch(file.lengths(), 0));
        Ok(())
    })?;
    let packs = packing.epoch(file.lengths(), 0);
    let building = best_of(3, || {
        for pieces in packs.iter() {
            drop(black_box(Pack::build(&file, pieces)?));
        }
        Ok(())
    })?;
    std::fs::remove_file(&path).map_err(BenchError::io("remove", &path))?;
    Ok(vec![
        Row::new(
            "packing (bfd, 4,096 tokens)",
            rate(choosing),
            "tokens/s",
            "choosing the examples that share a pack",
        ),
        Row::new("building packs", rate(building), "tokens/s", "ids, positions, borders, masks"),
    ])
}

/// A token file with as many tokens as are measured.
pub(crate) fn written(context: &Context) -> Result<PathBuf, BenchError> {
    let path = context.folder.join("tokens.qubgpu");
    write_examples(&path, context.size.tokens)?;
    Ok(path)
}

/// Writes examples with about so many tokens together: many short ones, few long ones, 600 tokens on average.
fn write_examples(path: &Path, tokens: u64) -> Result<(), BenchError> {
    let mut writer = TokenFileWriter::create(path, Header::default())?;
    let ids: Vec<u32> = (0..4096).map(|i| i * 59 % 248_320).collect();
    let mask: Vec<bool> = (0..4096).map(|t| t % 1024 >= 300).collect();
    let mut written = 0;
    for i in 0u64.. {
        if written >= tokens {
            break;
        }
        let spread = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let len = 64 + (spread as usize % 1024) * (spread as usize / 1024 % 1024) / 490;
        writer.push(&ids[..len], &mask[..len], Origin { file: 0, line: i + 1 })?;
        written += len as u64;
    }
    writer.finish()?;
    Ok(())
}

/// Reads every token and every bit of the loss masks.
pub(crate) fn touch(file: &TokenFile) -> Result<(), BenchError> {
    let (mut ids, mut targets) = (0u32, 0u64);
    for i in 0..file.len() {
        let example = file.example(i)?;
        ids = example.tokens.iter().fold(ids, |sum, &id| sum.wrapping_add(id));
        targets += example.mask.count() as u64;
    }
    black_box((ids, targets));
    Ok(())
}

/// The least seconds that `work` takes in so many passes.
fn best_of(passes: u32, mut work: impl FnMut() -> Result<(), BenchError>) -> Result<f64, BenchError> {
    let mut best = f64::INFINITY;
    for _ in 0..passes {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
