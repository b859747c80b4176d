//! What is decided about a contribution, and why, in words.

use std::fmt;

/// What becomes of a contribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// It is added as it is.
    Accept,
    /// It is multiplied by this number first, so that its norm is the largest that is accepted.
    Clip(f32),
    /// It is left out, and so are its tokens.
    Drop,
}

/// What is decided about a contribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// What becomes of it.
    pub decision: Decision,
    /// Why it is not accepted as it is.
    pub reason: Option<Reason>,
}

impl Verdict {
    /// The contribution is added as it is.
    pub const ACCEPTED: Self = Self { decision: Decision::Accept, reason: None };

    /// The contribution is left out.
    pub const fn dropped(reason: Reason) -> Self {
        Self { decision: Decision::Drop, reason: Some(reason) }
    }
}

/// Why a contribution is not accepted as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// A number is infinite or none.
    NotFinite,
    /// What it announces of its gradient cannot be true of any.
    Untrue,
    /// It has contributed something else than it had announced, and is muted since.
    Lied,
    /// The member has no share of this step.
    NotDue,
    /// The member has a share, and says that nothing is to be learned from it.
    Zero {
        /// The trained tokens of its share.
        terms: u64,
    },
    /// Its norm differs from that of most members.
    Norm {
        /// Its norm, in norms of most members.
        times: f64,
    },
    /// Its norm differs from those of earlier steps.
    NormOverTime {
        /// Its norm, in norms of earlier steps.
        times: f64,
    },
    /// It points elsewhere than most members.
    Direction {
        /// The cosine that it has with half of the others.
        own: f64,
        /// The cosine that they have with each other.
        others: f64,
    },
    /// The member has been off by a little for many steps.
    Record {
        /// The mean deviation of its norm, in deviations of such a mean.
        norm: f64,
        /// The same of its direction.
        cosine: f64,
    },
    /// The member was off for many steps before, and is left out for a while.
    Held {
        /// For so many steps, with this one.
        steps: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let times = |f: &mut fmt::Formatter, times: f64| {
            if (0.001..10_000.0).contains(&times) {
                write!(f, "{times:.3}")
            } else {
                write!(f, "{times:.1e}")
            }
        };
        match *self {
            Self::NotFinite => write!(f, "a number of its gradient is not finite"),
            Self::Untrue => {
                write!(f, "the norm that it announces does not fit the projection of its gradient")
            }
            Self::Lied => write!(
                f,
                "it has sent another gradient than the one that it announced, so nothing that it sends is added any more"
            ),
            Self::NotDue => write!(f, "it has no share of the step, but sent a gradient"),
            Self::Zero { terms } => {
                write!(f, "its gradient is zero, although its share has {terms} trained tokens")
            }
            Self::Norm { times: norm } => {
                write!(f, "its gradient's norm is ")?;
                times(f, norm)?;
                write!(f, " times that of most ranks")
            }
            Self::NormOverTime { times: norm } => {
                write!(f, "its gradient's norm is ")?;
                times(f, norm)?;
                write!(f, " times that of earlier steps")
            }
            Self::Direction { own, others } => write!(
                f,
                "its gradient points elsewhere: its cosine with most ranks is {own:.2}, and theirs with each other {others:.2}"
            ),
            Self::Held { steps } => {
                write!(f, "its gradients were off for many steps before, so it is left out for {steps} more")
            }
            Self::Record { norm, cosine } => write!(
                f,
                "its gradients have been off for many steps: their norms by {norm:+.1} and their directions by {cosine:+.1} deviations of the mean"
            ),
        }
    }
}
