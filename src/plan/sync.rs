//! When several ranks exchange what they learned: an answer, and a value of the plan.
//!
//! Enters: `step`, or `diloco:H`. Leaves: the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::setting::Kind;
use crate::values::Value;

/// The most steps between two exchanges.
const MOST_STEPS: u32 = 10_000;

/// When ranks exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SyncPlan {
    /// The gradients of every step, so that ranks train exactly like one process.
    #[default]
    Step,
    /// The change of the weights after so many steps of each rank alone, which is another training.
    Diloco {
        /// The number of steps between two exchanges.
        steps: u32,
    },
}

impl SyncPlan {
    /// Returns whether it is the exact one.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(crate) fn is_step(&self) -> bool {
        *self == Self::Step
    }

    /// Warns of a training that is not the exact one.
    pub(crate) fn warning(self) -> Option<String> {
        let Self::Diloco { steps } = self else { return None };
        Some(format!(
            "--sync {self} is not the same training as --sync step: each rank takes {steps} steps alone before their changes are averaged (DiLoCo), so the weights depend on the number of ranks, and the loss falls more slowly per token. Losses of steps are those of rank 0's share. Use it only if the link is too slow for --sync step"
        ))
    }
}

impl fmt::Display for SyncPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step => f.write_str("step"),
            Self::Diloco { steps } => write!(f, "diloco:{steps}"),
        }
    }
}

/// The reason why a text is no [`SyncPlan`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`step` or `diloco:H` is expected, with H steps between two exchanges, 1 to {MOST_STEPS}")]
pub struct NoSync;

impl FromStr for SyncPlan {
    type Err = NoSync;

    fn from_str(text: &str) -> Result<Self, NoSync> {
        match text.trim() {
            "step" => Ok(Self::Step),
            text => {
                let steps = text.strip_prefix("diloco:").and_then(u32::from_text).ok_or(NoSync)?;
                if (1..=MOST_STEPS).contains(&steps) { Ok(Self::Diloco { steps }) } else { Err(NoSync) }
            }
        }
    }
}

impl TryFrom<String> for SyncPlan {
    type Error = NoSync;

    fn try_from(text: String) -> Result<Self, NoSync> {
        text.parse()
    }
}

impl From<SyncPlan> for String {
    fn from(sync: SyncPlan) -> Self {
        sync.to_string()
    }
}

impl Value for SyncPlan {
    const KIND: Kind = Kind::Sync;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        Self::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.to_string().into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_is_written_and_anything_else_is_refused() {
        for (text, sync) in [
            ("step", SyncPlan::Step),
            ("diloco:1", SyncPlan::Diloco { steps: 1 }),
            ("diloco:10000", SyncPlan::Diloco { steps: 10_000 }),
        ] {
            assert_eq!((text.parse(), sync.to_string().as_str()), (Ok(sync), text));
        }
        for text in ["", "diloco", "diloco:", "diloco:0", "diloco:10001", "diloco:-5", "diloco:x", "Step"] {
            assert_eq!(text.parse::<SyncPlan>(), Err(NoSync), "{text}");
        }
        assert!(SyncPlan::Step.warning().is_none());
        assert!(SyncPlan::Diloco { steps: 5 }.warning().is_some_and(|said| said.contains("not the same")));
    }
}
