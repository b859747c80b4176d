//! Launches of `largest.cuh`.

use burn::tensor::DType;

use super::MOST;
use crate::cuda::{CudaTensor, Kernel, as_f32, dims, empty, into_tensor, sizes};

const SOURCE: &str = "largest/largest.cuh";

/// The number of keys that a block sorts.
const SORTED: usize = 4096;
/// The number of 32-bit words that a row of one group's keys has.
const WORDS: usize = 2 * MOST;

/// Returns the largest logits of each row with their tokens, and waits for them.
pub(super) fn largest(logits: CudaTensor) -> Vec<Vec<(u32, f32)>> {
    let logits = as_f32(logits);
    let mut keys = of_groups("largest_of_logits", &logits, dims(&logits).1);
    while dims(&keys).1 > WORDS {
        keys = of_groups("largest_of_keys", &keys, dims(&keys).1 / 2);
    }
    let words: Vec<f32> = into_tensor(keys).into_data().try_to_vec().expect("words are stored as f32");
    words.chunks_exact(WORDS).map(|row| row.as_chunks().0.iter().map_while(from_key).collect()).collect()
}

/// Returns the largest keys of each group of `SORTED` of the `count` in a row, as pairs of words that are
/// stored as f32.
fn of_groups(entry: &'static str, from: &CudaTensor, count: usize) -> CudaTensor {
    let (rows, groups) = (dims(from).0, count.div_ceil(SORTED));
    let keys = empty(from, [rows, groups * WORDS], DType::F32);
    Kernel::new(SOURCE, entry)
        .define("SORTED", format!("{SORTED}u"))
        .define("KEPT", format!("{MOST}u"))
        .grid(groups, rows, 1)
        .threads(512)
        .read(from)
        .write(&keys)
        .launch(sizes![count as u32]);
    keys
}

/// Returns the token and the logit of a key, the low word first. `None` for the key of nothing.
fn from_key(&[low, high]: &[f32; 2]) -> Option<(u32, f32)> {
    let (low, ordered) = (low.to_bits(), high.to_bits());
    let bits = if ordered >> 31 == 1 { ordered & 0x7fff_ffff } else { !ordered };
    ((low, ordered) != (0, 0)).then(|| (!low, f32::from_bits(bits)))
}
