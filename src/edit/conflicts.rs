//! What patches may spoil of each other, named before they are applied.

use serde::Serialize;

use crate::facts::words;
use crate::linear_algebra::dot;
use crate::low_rank::LowRank;
use crate::patch::Patch;

/// Keys that are closer than this angle, in degrees, cannot have values of their own for long: changing one
/// by 1 changes the other by cos 15° = 0.97 of it, as far as the covariance does not tell them apart.
pub const CLOSE_DEGREES: f64 = 15.0;

/// Why two patches may spoil each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Conflict {
    /// Both answer the same prompt in different ways.
    SamePrompt {
        /// The other patch.
        patch: String,
        /// The prompt.
        prompt: String,
    },
    /// Both say something about the same subject.
    SameSubject {
        /// The other patch.
        patch: String,
        /// The subject.
        subject: String,
    },
    /// Keys of both are close.
    CloseKeys {
        /// The other patch.
        patch: String,
        /// The layer.
        layer: usize,
        /// The prompts of the two facts, the new one first.
        prompts: [String; 2],
        /// The angle between the keys.
        degrees: f64,
    },
}

impl Conflict {
    /// Returns the conflict in a sentence, escaped.
    pub fn words(&self) -> String {
        use crate::facts::shown;
        match self {
            Self::SamePrompt { patch, prompt } => {
                format!("patch {patch} answers the same prompt differently: `{}`", shown(prompt))
            }
            Self::SameSubject { patch, subject } => {
                format!("patch {patch} is about the same subject: `{}`", shown(subject))
            }
            Self::CloseKeys { patch, layer, prompts: [new, old], degrees } => format!(
                "the keys of `{}` and of `{}` in patch {patch} are {degrees:.0} degrees apart in layer {layer} (close is below {CLOSE_DEGREES})",
                shown(new),
                shown(old)
            ),
        }
    }
}

/// Returns the conflicts of a new patch with those below it. For each pair of facts, the first that holds.
pub fn conflicts(new: &Patch, below: &[Patch]) -> Vec<Conflict> {
    let mut found = Vec::new();
    for old in below {
        let patch = &old.about.name;
        for (i, fact) in new.about.facts.iter().enumerate() {
            for (j, other) in old.about.facts.iter().enumerate() {
                let same = |a: &str, b: &str| words(a).to_lowercase() == words(b).to_lowercase();
                let patch = patch.clone();
                if same(&fact.prompt, &other.prompt) {
                    if !same(&fact.target, &other.target) {
                        found.push(Conflict::SamePrompt { patch, prompt: fact.prompt.clone() });
                    }
                    continue;
                }
                if let (Some(subject), Some(known)) = (&fact.subject, &other.subject)
                    && same(subject, known)
                {
                    found.push(Conflict::SameSubject { patch, subject: subject.clone() });
                    continue;
                }
                let close = new.changes.iter().find_map(|change| {
                    let known = old.changes.iter().find(|known| known.layer == change.layer)?;
                    let (facts, others) = (new.about.facts.len(), old.about.facts.len());
                    let degrees = angle(key(change, i, facts)?, key(known, j, others)?);
                    (degrees < CLOSE_DEGREES).then_some((change.layer, degrees))
                });
                if let Some((layer, degrees)) = close {
                    let prompts = [fact.prompt.clone(), other.prompt.clone()];
                    found.push(Conflict::CloseKeys { patch, layer, prompts, degrees });
                }
            }
        }
    }
    found
}

/// Returns the key of a fact, if a change has one key for each fact.
fn key(change: &LowRank, fact: usize, facts: usize) -> Option<&[f32]> {
    let inner = change.keys.len().checked_div(change.rank).filter(|_| change.rank == facts)?;
    change.keys.get(fact * inner..(fact + 1) * inner)
}

/// Returns the angle between two keys in degrees.
fn angle(one: &[f32], other: &[f32]) -> f64 {
    let wide = |key: &[f32]| key.iter().map(|number| f64::from(*number)).collect::<Vec<_>>();
    let (one, other) = (wide(one), wide(other));
    let cosine = dot(&one, &other) / (dot(&one, &one) * dot(&other, &other)).sqrt();
    cosine.clamp(-1.0, 1.0).acos().to_degrees()
}
