//! What QubGPU claims, with its own figures. They are typed here, once, and nowhere else.
//!
//! The source is QubGPU's published description: its table of loading, its table of training for 200 steps on
//! Qwen2.5-Coder-1.5B, and its table of answers.

/// A figure that QubGPU states for one of its pipelines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    /// With JSON Lines, tokenised at each step.
    pub(crate) jsonl: f64,
    /// With a mapped token file.
    pub(crate) ndp: f64,
    /// The same with 5 % of the packets dropped; as `ndp` where it states none.
    pub(crate) drop: f64,
}

/// Samples per second of loading alone.
pub(crate) const LOADING_SAMPLES: Figure = Figure { jsonl: 799.0, ndp: 2_390.0, drop: 2_390.0 };
/// Tokens per second of loading alone.
pub(crate) const LOADING_TOKENS: Figure = Figure { jsonl: 90_591.0, ndp: 1_221_702.0, drop: 1_221_702.0 };
/// Seconds until the data is loaded.
pub(crate) const LOAD_TIME: Figure = Figure { jsonl: 0.50, ndp: 0.17, drop: 0.17 };
/// Tokens per second of training.
pub(crate) const TRAINING: Figure = Figure { jsonl: 454.0, ndp: 2_518.0, drop: 2_698.0 };
/// Seconds of 200 training steps.
pub(crate) const WALL: Figure = Figure { jsonl: 737.1, ndp: 650.8, drop: 605.5 };
/// The final training loss.
pub(crate) const LOSS: Figure = Figure { jsonl: 1.2439, ndp: 0.6627, drop: 0.6123 };
/// The share of a step that waits for data.
pub(crate) const WAIT: Figure = Figure { jsonl: 0.006, ndp: 0.003, drop: 0.004 };
/// Quality by QubGPU's first table, and by its table of answers.
pub(crate) const QUALITY: Figure = Figure { jsonl: 0.967, ndp: 1.0, drop: 1.0 };
/// Quality by its second table.
pub(crate) const QUALITY_AGAIN: Figure = Figure { jsonl: 1.0, ndp: 1.0, drop: 0.95 };
/// Tokens per second of answers.
pub(crate) const ANSWERS: Figure = Figure { jsonl: 2.7, ndp: 3.0, drop: 3.2 };
/// The same of the untuned base.
pub(crate) const ANSWERS_OF_BASE: f64 = 6.5;
/// The training steps of its comparison.
pub(crate) const STEPS: f64 = 200.0;
/// The rows of its batches and their tokens.
pub(crate) const BATCH: f64 = 2.0;
/// Tokens of a row.
pub(crate) const ROW: f64 = 512.0;
/// The speed-up of training that its title gives.
pub(crate) const TITLE: f64 = 5.55;
/// The layers that its diagram counts, with JSON Lines and with packets.
pub(crate) const LAYERS: (usize, usize) = (6, 3);

/// Something that QubGPU says and that can be true or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// A short name.
    pub id: &'static str,
    /// What is claimed, in QubGPU's figures.
    pub says: &'static str,
}

/// All claims, in the order of the white paper.
pub const CLAIMS: [Claim; 12] = [
    Claim { id: "loading-samples", says: "3.0 × as many samples per second in loading (2,390 against 799)" },
    Claim {
        id: "loading-tokens",
        says: "13.5 × as many tokens per second in loading (1,221,702 against 90,591)",
    },
    Claim { id: "load-time", says: "2.9 × shorter load time (0.17 s against 0.50 s)" },
    Claim { id: "throughput", says: "5.55 × training throughput (2,698 tok/s against 454 tok/s)" },
    Claim { id: "loss", says: "50 % lower final loss in as many steps (0.6123 against 1.2439)" },
    Claim { id: "wall-time", says: "18 % less wall time for 200 steps (605 s against 737 s)" },
    Claim { id: "quality", says: "model quality 1.000 on all coding benchmarks (JSONL: 0.967)" },
    Claim { id: "waiting", says: "half the share of data I/O in a step (0.3 % against 0.6 %)" },
    Claim {
        id: "crc-drop",
        says: "dropping 5 % of the packets is the best of all: lowest loss, fastest training",
    },
    Claim { id: "layers", says: "3 layers from disk to GPU instead of 6" },
    Claim { id: "zero-copy", says: "zero-copy, GPU-direct" },
    Claim {
        id: "answers",
        says: "answers come at speeds that depend on the pipeline (2.7, 3.0 and 3.2 tok/s; the base 6.5)",
    },
];

impl Figure {
    /// Returns how many times the packets' figure is that of JSON Lines.
    pub(crate) fn ratio(&self) -> f64 {
        self.ndp / self.jsonl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratios_that_are_quoted_follow_from_the_figures() {
        let near = |found: f64, said: f64| (found - said).abs() < 0.05;
        assert!(near(LOADING_SAMPLES.ratio(), 3.0) && near(LOADING_TOKENS.ratio(), 13.5));
        assert!(near(1.0 / LOAD_TIME.ratio(), 2.9));
        // The title's factor is that of the pipeline without dropping, although it is quoted with the other.
        assert!(near(TRAINING.ratio(), TITLE) && !near(TRAINING.drop / TRAINING.jsonl, TITLE));
        assert!(near(WALL.drop / WALL.jsonl, 0.82) && near(LOSS.drop / LOSS.jsonl, 0.5));
    }
}
