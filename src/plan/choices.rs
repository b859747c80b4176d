//! The enumerated choices of a plan, each with its words for flags, TOML and the environment.

use sparktune_base::choice;
use sparktune_base::choices::{Overlong, PackStrategy, Think, TrainOn};
use sparktune_base::units::{bytes, duration};

use crate::setting::Kind;
use crate::values::Value;

/// Implements [`Value`] for choices.
macro_rules! values {
    ($($name:ident),+) => {
        $(impl Value for $name {
            const KIND: Kind = Kind::Choice(Self::WORDS);

            fn from_toml(value: &toml::Value) -> Option<Self> {
                Self::from_text(value.as_str()?)
            }

            fn from_text(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn to_toml(&self) -> Option<toml::Value> {
                Some(self.word().into())
            }

            fn to_text(&self) -> Option<String> {
                Some(self.word().into())
            }
        })+
    };
}

values!(
    Architecture,
    CombineRanks,
    DataFormat,
    Device,
    DeviceChoice,
    Exported,
    MethodKind,
    Mtp,
    OnDamage,
    Overlong,
    PackStrategy,
    Products,
    Sentry,
    Think,
    TrainOn
);

choice! {
    /// Which parameters are trained.
    MethodKind {
        /// Low-rank adapters on every linear layer; the base stays frozen.
        Lora = "lora",
        /// Every text parameter.
        Full = "full",
    }
}

choice! {
    /// What becomes of damaged examples in token files.
    #[derive(Default)]
    OnDamage {
        /// The file is refused.
        #[default]
        Stop = "stop",
        /// They are left out and counted.
        Drop = "drop",
    }
}

choice! {
    /// By whom the matrix products of training on a GPU are computed.
    #[derive(Default)]
    Products {
        /// All by our kernels.
        #[default]
        Own = "own",
        /// Each by the vendor's library or our kernels, whichever was measured to be faster on the device.
        Auto = "auto",
    }
}

impl Products {
    pub(crate) fn is_own(&self) -> bool {
        *self == Self::Own
    }

    /// Returns what is recommended for a GPU of this compute capability. The library uses instructions of
    /// some GPUs that our kernels do not have (`wgmma` of Hopper, `tcgen05` of Blackwell for data centres);
    /// on all others both multiply by `mma.sync`, and there is nothing to gain.
    pub fn recommended(compute_capability: Option<(u32, u32)>) -> Self {
        match compute_capability {
            Some((9 | 10, _)) => Self::Auto,
            _ => Self::Own,
        }
    }
}

choice! {
    /// How the multi-token-prediction (MTP) head is treated.
    Mtp {
        /// Trained after the main model, while the main model is frozen.
        Trained = "trained",
        /// The base's head, carried over unchanged.
        Default = "default",
        /// Left out of the output.
        None = "none",
    }
}

impl Mtp {
    /// Describes the benefit in a few sentences.
    pub const fn benefit(self) -> &'static str {
        match self {
            Self::Trained => {
                "After the main training, one more pass over the data trains the head on the tuned model, whose weights stay as they are. Its guesses then match what the tuned model writes, so most of them are accepted and serving stays fast."
            }
            Self::Default => {
                "The base model's head is kept unchanged. It guesses what the base model would have written: the further the tuned model has moved away, the fewer guesses are accepted."
            }
            Self::None => {
                "The head is left out, for servers that do not use it. You can only get it back by training again."
            }
        }
    }

    /// Describes the cost in words. `mtp_s` is the time that training the head takes, in seconds, if it is
    /// known; `more_bytes` is the memory that its stage needs beyond that of the main training, and
    /// `head_bytes` the size of the head on disk.
    pub fn cost(self, mtp_s: Option<f64>, more_bytes: u64, head_bytes: u64) -> String {
        match self {
            Self::Trained => {
                let time = mtp_s
                    .map_or("one more pass over the data".to_owned(), |s| format!("{} more", duration(s)));
                let memory = if more_bytes == 0 { "no".to_owned() } else { bytes(more_bytes) };
                format!("takes {time} and {memory} more memory")
            }
            Self::Default => "takes no time".to_owned(),
            Self::None => format!("takes no time and saves {} on disk", bytes(head_bytes)),
        }
    }
}

choice! {
    /// Which weights of a run its outputs contain.
    Exported {
        /// Those with the lowest loss on the eval set.
        Best = "best",
        /// Those of the last step.
        Last = "last",
    }
}

impl Exported {
    /// Returns what runs exported whose plans do not say it, because they were written before one could
    /// choose.
    pub(crate) const fn of_old_plans() -> Self {
        Self::Last
    }
}

choice! {
    /// What becomes of a rank's gradient that differs from the others'.
    #[derive(Default)]
    Sentry {
        /// It is not looked at.
        #[default]
        Off = "off",
        /// It is told, and counts.
        Warn = "warn",
        /// It is clipped or left out before it counts.
        Drop = "drop",
    }
}

choice! {
    /// How the gradients of several ranks become that of a step.
    #[derive(Default)]
    CombineRanks {
        /// Their sum: the gradient of the loss.
        #[default]
        Sum = "sum",
        /// The mean without the extremes of each number.
        TrimmedMean = "trimmed-mean",
        /// The median of each number.
        Median = "median",
    }
}

choice! {
    /// The device that the user asked for.
    DeviceChoice {
        /// A usable GPU if there is one, otherwise the CPU.
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// The first usable NVIDIA GPU.
        Cuda = "cuda",
    }
}

choice! {
    /// The device that was chosen.
    Device {
        /// The processor, in fp32.
        Cpu = "cpu",
        /// The first usable NVIDIA GPU, in bf16 with fp32 master weights of the trained parameters.
        Cuda = "cuda",
    }
}

choice! {
    /// The shape of a data file's lines.
    DataFormat {
        /// Decided for each file from its first lines.
        Auto = "auto",
        /// OpenAI `messages`.
        Messages = "messages",
        /// ShareGPT `conversations`.
        Sharegpt = "sharegpt",
        /// Alpaca `instruction`, `input`, `output`.
        Alpaca = "alpaca",
        /// `prompt` and `completion`.
        PromptCompletion = "prompt-completion",
        /// `text`: raw text, of which everything is trained.
        Text = "text",
    }
}

choice! {
    /// Families of decoder this program can train.
    Architecture {
        /// Qwen3.5, 3.6 and 3.8, dense: gated DeltaNet layers, and every fourth with gated attention.
        Qwen35 = "qwen3_5",
        /// Qwen3: RMS-normalised queries and keys.
        Qwen3 = "qwen3",
        /// Qwen2 and 2.5: biases on q, k and v.
        Qwen2 = "qwen2",
        /// Llama 2, 3 and relatives with the same layout.
        Llama = "llama",
        /// Mistral: Llama's layout with a sliding window.
        Mistral = "mistral",
        /// Gemma 3, text: five layers with a sliding window, then one with full attention.
        Gemma3 = "gemma3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_the_head_costs_time_and_where_its_stage_needs_it_memory() {
        assert_eq!(Mtp::Trained.cost(Some(5820.0), 0, 1), "takes 1 h 37 min more and no more memory");
        let more = Mtp::Trained.cost(None, 1_500_000_000, 1);
        assert_eq!(more, "takes one more pass over the data and 1.5 GB more memory");
    }
}
