//! The draft vocabulary: the token ids that drafts are chosen from, and the file that passes them to a
//! server.
//!
//! The head is trained on the whole vocabulary; only the choice of its drafts is restricted (FR-Spec, arXiv
//! 2502.14856).

use std::cmp::Reverse;
use std::path::Path;

use sparktune_base::files::write_and_sync;
use sparktune_data::ChatTokenizer;
use sparktune_data::token_file::TokenFile;
use sparktune_model::Checkpoint;
use sparktune_plan::Plan;
use sparktune_runlog::RunDir;

use crate::error::TrainError;
use crate::examples::{open_tokens, train_tokens};

/// Returns the ids that a run drafts from, ascending, or `None` if its plan uses the whole vocabulary. They
/// are the same for every attempt and every export, because the training tokens of a run never change.
///
/// # Errors
/// When the token file cannot be read.
pub(crate) fn for_run(run: &RunDir, plan: &Plan, base: &Checkpoint) -> Result<Option<Vec<u32>>, TrainError> {
    let Some(size) = plan.draft_vocab else { return Ok(None) };
    let vocabulary = base.config().vocab_size;
    let counts = target_counts(&open_tokens(&train_tokens(run), vocabulary)?, vocabulary);
    // Without a tokenizer the run was trained from tokens alone, and only their counts show which ids end
    // answers.
    let special =
        ChatTokenizer::without_template(base.dir()).map(|t| t.special_token_ids()).unwrap_or_default();
    Ok(Some(most_frequent(&counts, &special, size as usize)))
}

/// Counts how often each id of the vocabulary is a trained token.
fn target_counts(tokens: &TokenFile, vocabulary: usize) -> Vec<u64> {
    let mut counts = vec![0; vocabulary];
    for i in 0..tokens.len() {
        let targets = tokens.tokens(i).iter().zip(tokens.mask(i).iter()).filter(|(_, target)| *target);
        targets.for_each(|(id, _)| counts[*id as usize] += 1);
    }
    counts
}

/// Chooses `size` ids and returns them in ascending order. The special ones come first, because they end
/// answers and turns; then the most frequent. Of equally frequent ids the lower one is chosen, which a
/// byte-pair tokenizer learnt earlier.
fn most_frequent(counts: &[u64], special: &[u32], size: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..counts.len() as u32).collect();
    ids.sort_by_cached_key(|id| (!special.contains(id), Reverse(counts[*id as usize]), *id));
    ids.truncate(size);
    ids.sort_unstable();
    ids
}

/// Writes the ids for SGLang (`--speculative-token-map`) as a list in PyTorch's legacy format, which
/// `torch.load(…, weights_only=True)` still reads.
///
/// Source: `torch/serialization.py`, `_legacy_save`: five pickles with the magic number, the version, the
/// system, the value and an empty list of storages.
pub(crate) fn write_token_map(path: &Path, ids: &[u32]) -> Result<(), TrainError> {
    write_and_sync(path, token_map(ids)).map_err(TrainError::io(path))
}

fn token_map(ids: &[u32]) -> Vec<u8> {
    // Each pickle begins with its protocol (0x80 2) and ends with a stop (`.`).
    const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    const VERSION_1001: &[u8] = b"\x80\x02M\xe9\x03.";
    const SYSTEM: &[u8] = b"\x80\x02}.";
    const NO_STORAGES: &[u8] = b"\x80\x02].";
    let mut file = [MAGIC, VERSION_1001, SYSTEM].concat();
    // An empty list, a mark, the 32-bit integers, and the opcode that appends them all.
    file.extend(b"\x80\x02](");
    for id in ids {
        file.push(b'J');
        file.extend(id.to_le_bytes());
    }
    file.extend(b"e.");
    file.extend(NO_STORAGES);
    file
}

#[cfg(test)]
mod tests {
    use sparktune_data::token_file::{Header, Origin, TokenFileWriter};

    use super::*;

    #[test]
    fn special_ids_come_first_then_the_most_frequent_and_of_equals_the_lower() {
        let counts = [5, 9, 0, 9, 1, 0, 5, 0];
        let chosen = |special: &[u32], size| most_frequent(&counts, special, size);
        assert_eq!(chosen(&[], 1), [1]);
        assert_eq!(chosen(&[], 2), [1, 3]);
        assert_eq!(chosen(&[], 3), [0, 1, 3], "0 and 6 are as frequent");
        assert_eq!(chosen(&[7], 3), [1, 3, 7], "never a target, but special");
        assert_eq!(chosen(&[7, 99], 3), [1, 3, 7], "an id outside the vocabulary is none");
        assert_eq!(chosen(&[], 6), [0, 1, 2, 3, 4, 6], "and then the lowest that never were targets");
        assert_eq!(chosen(&[7], 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(chosen(&[4, 6, 7], 2), [4, 6], "fewer than are special: the most frequent of these");
    }

    #[test]
    fn only_targets_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.qubgpu");
        let header = Header { tokenizer: None, template: None, policy: "test".into(), sources: Vec::new() };
        let mut writer = TokenFileWriter::create(&path, header).unwrap();
        for line in 1..=2 {
            writer.push(&[3, 1, 1, 4], &[false, true, false, true], Origin { file: 0, line }).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(target_counts(&TokenFile::open(&path).unwrap(), 6), [0, 2, 0, 0, 2, 0]);
    }

    #[test]
    fn the_file_is_the_one_that_pytorch_loads() {
        // `torch.load(…, weights_only=True)` of these bytes gave [1, 300, 248319] (see
        // tests/peers/load_outputs.py).
        let expected = "80028a0a6cfc9c46f9206aa850192e80024de9032e80027d2e80025d284a010000004a2c0100004affc90300652e80025d2e";
        let hex: String = token_map(&[1, 300, 248_319]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
    }
}
