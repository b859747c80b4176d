//! The pipelines that bring training data from a file into a training step, and the arrangements in which
//! they are compared.

use serde::{Deserialize, Serialize};

/// How the pipelines are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrangement {
    /// As QubGPU compares: every example is padded to the same length, every token of an example is trained,
    /// and speeds are counted in QubGPU's way.
    Published,
    /// The same target tokens in the same order of examples.
    Fair,
    /// As [`Published`](Self::Published), on a model of the size that QubGPU used, with random weights.
    QubgpuSize,
}

/// A way from a file of training data to the rows of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Pipeline {
    /// JSON Lines, parsed, rendered, tokenised and padded at each step.
    #[serde(rename = "jsonl")]
    Jsonl,
    /// JSON Lines, parsed, rendered and tokenised at each step, several examples in a row without padding.
    #[serde(rename = "jsonl-packed")]
    JsonlPacked,
    /// A token file, mapped into memory.
    #[serde(rename = "qubgpu")]
    Qubgpu,
    /// The same, with a share of the examples left out at random in each epoch.
    #[serde(rename = "qubgpu+drop")]
    QubgpuDrop,
}

impl Arrangement {
    /// All arrangements.
    pub const ALL: [Self; 3] = [Self::Published, Self::Fair, Self::QubgpuSize];

    /// Returns its name in commands, files and headings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Fair => "fair",
            Self::QubgpuSize => "qubgpu-size",
        }
    }

    /// Returns what it is in a sentence.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Published => {
                "QubGPU's arrangement: every example is padded to the same length in every pipeline, every token of an example is trained, and the pipelines' speeds are counted as QubGPU counts them."
            }
            Self::Fair => {
                "The same examples in the same order, and in each of them the same trained tokens; a pipeline may pack."
            }
            Self::QubgpuSize => {
                "QubGPU's arrangement on a model of the shape of Qwen2.5-Coder-1.5B with random weights, which says something about speed and nothing about loss."
            }
        }
    }

    /// Returns the pipelines that are compared. QubGPU pads in all of its pipelines, so that one that packs
    /// has no place in its arrangement.
    pub const fn pipelines(self) -> &'static [Pipeline] {
        match self {
            Self::Published | Self::QubgpuSize => &[Pipeline::Jsonl, Pipeline::Qubgpu, Pipeline::QubgpuDrop],
            Self::Fair => &Pipeline::ALL,
        }
    }

    /// Returns whether every token of an example is trained, instead of those that the settings choose.
    pub const fn trains_every_token(self) -> bool {
        !matches!(self, Self::Fair)
    }
}

impl Pipeline {
    /// All pipelines.
    pub const ALL: [Self; 4] = [Self::Jsonl, Self::JsonlPacked, Self::Qubgpu, Self::QubgpuDrop];

    /// Returns its name in commands, files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::JsonlPacked => "jsonl-packed",
            Self::Qubgpu => "qubgpu",
            Self::QubgpuDrop => "qubgpu+drop",
        }
    }

    /// Returns whether its rows are padded to the same length in this arrangement.
    pub const fn pads(self, arrangement: Arrangement) -> bool {
        matches!(self, Self::Jsonl) || !matches!(arrangement, Arrangement::Fair)
    }

    /// Returns whether it reads a token file, instead of JSON Lines.
    pub const fn reads_tokens(self) -> bool {
        matches!(self, Self::Qubgpu | Self::QubgpuDrop)
    }

    /// Returns whether it leaves examples out at random.
    pub const fn drops(self) -> bool {
        matches!(self, Self::QubgpuDrop)
    }

    /// Returns the stages of an example on its way from the disk to the model, as this program carries them
    /// out.
    pub const fn stages(self) -> &'static [&'static str] {
        match self {
            Self::Jsonl => &[
                "parse JSON",
                "render the chat template",
                "tokenise",
                "pad to a row",
                "make tensors",
                "copy to the device",
            ],
            Self::JsonlPacked => &[
                "parse JSON",
                "render the chat template",
                "tokenise",
                "pack into a row",
                "make tensors",
                "copy to the device",
            ],
            Self::Qubgpu | Self::QubgpuDrop => &[
                "look the packet up in the mapped file",
                "build a row",
                "make tensors",
                "copy to the device",
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_files_and_in_tables() {
        for pipeline in Pipeline::ALL {
            assert_eq!(serde_json::to_value(pipeline).unwrap(), pipeline.name());
        }
        for arrangement in Arrangement::ALL {
            assert_eq!(serde_json::to_value(arrangement).unwrap(), arrangement.name());
        }
    }

    #[test]
    fn only_the_fair_arrangement_packs_and_there_jsonl_alone_pads() {
        for arrangement in [Arrangement::Published, Arrangement::QubgpuSize] {
            assert!(arrangement.pipelines().iter().all(|pipeline| pipeline.pads(arrangement)));
        }
        let fair = Arrangement::Fair;
        let pads = fair.pipelines().iter().filter(|pipeline| pipeline.pads(fair));
        assert_eq!(pads.collect::<Vec<_>>(), [&Pipeline::Jsonl]);
    }
}
