//! Tests of token files on disk: what is read back, and the effect of each damaged bit.

mod conversions;
mod damage;
mod round_trip;

use std::path::{Path, PathBuf};

use super::*;

/// An example with everything that the file stores about it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sample {
    tokens: Vec<u32>,
    mask: Vec<bool>,
    origin: Origin,
}

fn sample(len: usize, salt: u32, origin: Origin) -> Sample {
    let tokens = (0..len as u32).map(|t| (t * 7919 + salt * 104_729) % 248_320).collect();
    let mask = (0..len).map(|t| t > 0 && !(t as u32 + salt).is_multiple_of(3)).collect();
    Sample { tokens, mask, origin }
}

/// Returns examples with lengths around the boundaries of mask bytes and of alignment.
fn samples() -> Vec<Sample> {
    [1, 7, 8, 9, 15, 16, 40]
        .into_iter()
        .enumerate()
        .map(|(i, len)| sample(len, i as u32, Origin { file: i as u32 % 2, line: 10 * i as u64 + 3 }))
        .collect()
}

fn header() -> Header {
    Header {
        tokenizer: Some(blake3::hash(b"tokenizer").to_hex().to_string()),
        template: Some(blake3::hash(b"template").to_hex().to_string()),
        policy: "think=skip".into(),
        sources: ["first.jsonl", "second.jsonl"]
            .map(|name| Source { name: name.into(), ..Source::default() })
            .into(),
    }
}

fn write(path: &Path, samples: &[Sample]) -> Written {
    let mut writer = TokenFileWriter::create(path, header()).unwrap();
    for Sample { tokens, mask, origin } in samples {
        writer.push(tokens, mask, *origin).unwrap();
    }
    writer.finish().unwrap()
}

fn read(path: &Path) -> Result<Vec<Sample>, TokenFileError> {
    let file = TokenFile::open(path)?;
    (0..file.len())
        .map(|i| {
            let example = file.example(i)?;
            Ok(Sample {
                tokens: example.tokens.to_vec(),
                mask: example.mask.iter().collect(),
                origin: file.origin(i),
            })
        })
        .collect()
}

/// Returns a folder with one intact file, and that file's bytes.
fn sound_file() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.qubgpu");
    write(&path, &samples());
    let bytes = std::fs::read(&path).unwrap();
    (folder, path, bytes)
}
