//! How fast token files are read and packed, beside a plain memory copy, on this machine.

use std::{hint::black_box, path::Path, time::Instant};

use serde::Serialize;

use super::{Header, Origin, TokenFile, TokenFileError, TokenFileWriter};
use crate::packing::{Pack, PackStrategy, Packing};

/// Rates in tokens per second, each the best of several passes over the same synthetic examples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Tokens in the examples.
    pub tokens: u64,
    /// Bytes on disk per token, packet headers and padding included.
    pub bytes_per_token: f64,
    /// Copying tokens and masks from one buffer in memory to another.
    pub memcpy_tokens_per_s: f64,
    /// Touching every token and mask bit in place, packets already checked.
    pub reading_tokens_per_s: f64,
    /// The same on first touch of a freshly opened file: page faults and checksums included, file in the page cache.
    pub first_reading_tokens_per_s: f64,
    /// Deciding which examples share a row.
    pub packing_tokens_per_s: f64,
    /// Building every row: ids, positions, borders, mask.
    pub building_tokens_per_s: f64,
}

/// Writes a token file of about `tokens` tokens into `folder`, measures, and removes it. About 10 bytes of memory per token.
pub fn measure_rates(folder: &Path, tokens: u64) -> Result<Rates, TokenFileError> {
    let scratch = tempfile::tempdir_in(folder).map_err(TokenFileError::io(folder))?;
    let path = scratch.path().join("rates.qubgpu");
    let bytes = write_examples(&path, tokens)?;
    let file = TokenFile::open(&path)?;
    let total = file.total_tokens();
    let rate = |seconds: f64| total as f64 / seconds.max(1e-9);

    let copied = (total * 4 + total / 8) as usize;
    let (from, mut to) = (vec![1u8; copied], vec![0u8; copied]);
    let memcpy = best_of(5, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        Ok(())
    })?;
    drop((from, to));

    let reading = {
        touch(&file)?;
        best_of(5, || touch(&file))?
    };
    let first_reading = best_of(3, || touch(&TokenFile::open(&path)?))?;

    let packing = Packing::new(PackStrategy::Bfd, 4096, 0).expect("a valid pack length");
    let packing_s = best_of(3, || {
        black_box(packing.epoch(file.lengths(), 0));
        Ok(())
    })?;
    let packs = packing.epoch(file.lengths(), 0);
    let building = best_of(3, || {
        packs.iter().try_for_each(|row| Pack::build(&file, row).map(|pack| drop(black_box(pack))))
    })?;
    Ok(Rates {
        tokens: total,
        bytes_per_token: bytes as f64 / total as f64,
        memcpy_tokens_per_s: rate(memcpy),
        reading_tokens_per_s: rate(reading),
        first_reading_tokens_per_s: rate(first_reading),
        packing_tokens_per_s: rate(packing_s),
        building_tokens_per_s: rate(building),
    })
}

/// Chat-like lengths: many short, few long, mean about 600. Returns the file's size.
fn write_examples(path: &Path, tokens: u64) -> Result<u64, TokenFileError> {
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
    Ok(writer.finish()?.bytes)
}

fn touch(file: &TokenFile) -> Result<(), TokenFileError> {
    let (mut ids, mut targets) = (0u32, 0u64);
    for i in 0..file.len() {
        let example = file.example(i)?;
        ids = example.tokens.iter().fold(ids, |sum, &id| sum.wrapping_add(id));
        targets += example.mask.count() as u64;
    }
    black_box((ids, targets));
    Ok(())
}

fn best_of(passes: u32, mut work: impl FnMut() -> Result<(), TokenFileError>) -> Result<f64, TokenFileError> {
    let mut best = f64::INFINITY;
    for _ in 0..passes {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
