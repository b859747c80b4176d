//! A verdict and what it is based on.

use serde::{Deserialize, Serialize};

/// Whether a claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds here.
    Holds,
    /// The direction is right and the size is not.
    InPart,
    /// It does not hold here.
    DoesNotHold,
    /// Nothing here can decide it.
    NotMeasured,
}

/// A claim with our figures and the verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged {
    /// The claim's name.
    pub id: &'static str,
    /// What is claimed.
    pub claim: &'static str,
    /// Our figure in QubGPU's arrangement, counted as it counts.
    pub published: String,
    /// Our figure for the same work.
    pub fair: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in a sentence or two.
    pub why: String,
}

impl Verdict {
    /// Returns it in words.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::InPart => "holds in part",
            Self::DoesNotHold => "does not hold",
            Self::NotMeasured => "not measured",
        }
    }
}

/// What is found about a claim: the figures of both arrangements, the verdict, and why.
pub(super) type Found = (String, String, Verdict, String);
