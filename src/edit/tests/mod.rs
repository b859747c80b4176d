//! Tests of edits on the fixtures' small models.

mod families;
mod folders;
mod peer;
mod tracing;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use sparktune_model::{Checkpoint, Model};

use crate::tokens::FactTokens;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

fn model(folder: &Path) -> Model {
    Model::load(&Checkpoint::open(folder).unwrap(), &Device::flex(), &mut |_, _| ()).unwrap()
}

/// Token ids in arithmetic progression, the same as in `tests/peers/edits.py`.
fn ids(start: u32, step: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (start + step * i) % 250 + 3).collect()
}

fn text() -> Vec<Vec<u32>> {
    (0..12).map(|s| ids(17 * s, 7 + 2 * s, 48)).collect()
}

fn prefixes() -> Vec<Vec<u32>> {
    let text = text();
    vec![Vec::new(), text[0][..10].to_vec(), text[1][..10].to_vec()]
}

fn facts() -> Vec<FactTokens> {
    let first = FactTokens {
        prompt: ids(5, 3, 6),
        first: 0,
        last: 3,
        target: ids(90, 1, 2),
        subject: Some(ids(5, 3, 4)),
    };
    let second =
        FactTokens { prompt: ids(40, 9, 7), first: 6, last: 6, target: ids(200, 5, 1), subject: None };
    vec![first, second]
}
