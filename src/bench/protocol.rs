//! The protocol of programs that take optimizer steps: their packs are in a file, followed by a line for each
//! step. The header of `tests/peers/train_steps.py` describes it.
//!
//! The peer and our own stepper use the same protocol, so that both can be measured in the same way.

use std::io::{BufRead, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_model::PackedSequence;

use crate::error::BenchError;

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;
/// The line that requests one optimizer step.
pub(crate) const STEP: &str = "step";
/// The line that requests the end.
pub(crate) const QUIT: &str = "quit";

/// One line of output.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Answer {
    Ready(Ready),
    Step(Stepped),
    Finished(Finished),
    Error { message: String },
}

/// The model is loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) protocol: u32,
    /// The program that makes the steps, with versions.
    pub(crate) peer: String,
    /// The version of PyTorch, if it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) torch: Option<String>,
    /// The number of trained parameters.
    pub(crate) trained_parameters: u64,
}

/// An optimizer step was taken.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stepped {
    /// The number of the step, from 1.
    pub(crate) step: u64,
    /// Mean loss per trained token before the update, nats; `None` where it is not finite.
    pub(crate) loss: Option<f64>,
    pub(crate) learning_rate: f64,
    /// Wall time of forward, backward, clipping and update.
    pub(crate) wall_s: f64,
    /// Processor time for the same, over all threads.
    pub(crate) cpu_s: f64,
    pub(crate) trained_tokens: u64,
}

/// The program ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finished {
    pub(crate) steps: u64,
    /// Highest resident memory of the process, loading included.
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// A packed sequence, as a line of the file of packs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Pack {
    /// The optimizer step it belongs to, from 1.
    step: u64,
    input_ids: Vec<u32>,
    /// The token itself if it is a target, otherwise [`NO_LABEL`].
    labels: Vec<i64>,
    /// The boundaries of the examples, `[0, …, T]`.
    cu_seqlens: Vec<u32>,
}

/// The label of a token that is not a target.
const NO_LABEL: i64 = -100;

/// Writes the packs of each step into a file.
pub(crate) fn write_packs<'a>(
    path: &Path,
    steps: impl IntoIterator<Item = &'a [PackedSequence]>,
) -> Result<(), BenchError> {
    let mut text = String::new();
    for (rows, step) in steps.into_iter().zip(1..) {
        for row in rows {
            let labels = row.input_ids.iter().zip(row.loss_mask.iter());
            let pack = Pack {
                step,
                input_ids: row.input_ids.to_vec(),
                labels: labels
                    .map(|(id, trained)| if *trained { i64::from(*id) } else { NO_LABEL })
                    .collect(),
                cu_seqlens: row.cu_seqlens.to_vec(),
            };
            text += &serde_json::to_string(&pack).expect("plain fields serialise");
            text.push('\n');
        }
    }
    std::fs::write(path, text).map_err(BenchError::io("write", path))
}

/// Reads the packs of each step from a file.
pub(crate) fn read_packs(path: &Path) -> Result<Vec<Vec<PackedSequence>>, BenchError> {
    let read = |error| BenchError::io("read", path)(error);
    let file = std::fs::File::open(path).map_err(read)?;
    let mut steps: Vec<Vec<PackedSequence>> = Vec::new();
    for line in std::io::BufReader::new(file).lines() {
        let pack: Pack = serde_json::from_str(&line.map_err(read)?).map_err(|error| read(error.into()))?;
        let mask: Vec<bool> = pack.labels.iter().map(|label| *label != NO_LABEL).collect();
        steps.resize_with(steps.len().max(pack.step as usize), Vec::new);
        let rows = steps.last_mut().expect("steps are counted from 1");
        rows.push(PackedSequence::new(&pack.input_ids, &pack.cu_seqlens, &mask));
    }
    Ok(steps)
}

/// Writes one answer on a line of its own.
pub(crate) fn put(out: &mut impl Write, answer: &Answer) -> Result<(), BenchError> {
    let line = serde_json::to_string(answer).expect("plain fields serialise");
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(BenchError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packs.jsonl");
        let first = [
            PackedSequence::new(&[5, 6, 7, 8], &[0, 2, 4], &[false, true, false, false]),
            PackedSequence::new(&[9, 9], &[0, 2], &[false, true]),
        ];
        let second = [PackedSequence::single(&[1, 2, 3])];
        write_packs(&path, [&first[..], &second[..]]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let line = r#"{"step":1,"input_ids":[5,6,7,8],"labels":[-100,6,-100,-100],"cu_seqlens":[0,2,4]}"#;
        assert_eq!(text.lines().next(), Some(line));
        let read = read_packs(&path).unwrap();
        assert_eq!(read.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        for (read, written) in read.iter().flatten().zip(first.iter().chain(&second)) {
            assert_eq!(read.input_ids[..], written.input_ids[..]);
            assert_eq!(read.cu_seqlens[..], written.cu_seqlens[..]);
            assert_eq!(read.loss_mask, written.loss_mask);
        }
    }
}
