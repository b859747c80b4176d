//! What patches may spoil of each other, named before they are applied.
//!
//! A pair of facts has one conflict, and a fact at most one with each patch, so that large patches about the
//! same subjects do not bury the reader. Prompts and subjects are looked up. Keys are compared pair by pair,
//! but of most pairs only the few numbers in which keys differ most: lengths are one, so two keys that are
//! already further apart in these than close ones are as a whole cannot be close.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;

use crate::facts::{Fact, words};
use crate::low_rank::LowRank;
use crate::patch::Patch;

/// Keys that are closer than this angle, in degrees, cannot have values of their own for long: changing one
/// by 1 changes the other by cos 15° = 0.97 of it, as far as the covariance does not tell them apart.
pub const CLOSE_DEGREES: f64 = 15.0;

/// The numbers of two keys that are compared at once.
const LANES: usize = 32;

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

/// Returns the conflicts of a new patch with those below it: of each of its facts with each patch the first
/// of the kinds of [`Conflict`] that there is, and of close keys the closest.
pub fn conflicts(new: &Patch, below: &[Patch]) -> Vec<Conflict> {
    below.iter().flat_map(|old| with_one(new, old)).collect()
}

fn with_one(new: &Patch, old: &Patch) -> Vec<Conflict> {
    let same = |text: &str| words(text).to_lowercase();
    let facts = &old.about.facts;
    let by = |key: &dyn Fn(&Fact) -> Option<String>| {
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, fact) in facts.iter().enumerate() {
            key(fact).into_iter().for_each(|key| places.entry(key).or_default().push(place));
        }
        places
    };
    let prompts = by(&|fact| Some(same(&fact.prompt)));
    let subjects = by(&|fact| fact.subject.as_deref().map(same));
    let keys: Vec<Near> = new.changes.iter().filter_map(|change| Near::of(change, new, old)).collect();
    let conflict = |place: usize, fact: &Fact| {
        let patch = old.about.name.clone();
        let asked = prompts.get(&same(&fact.prompt)).map_or(&[][..], Vec::as_slice);
        let target = same(&fact.target);
        if asked.iter().any(|other| same(&facts[*other].target) != target) {
            return Some(Conflict::SamePrompt { patch, prompt: fact.prompt.clone() });
        }
        let about = fact.subject.as_deref().and_then(|subject| subjects.get(&same(subject)));
        let about = about.map_or(&[][..], Vec::as_slice);
        // The same fact twice spoils nothing.
        if about.iter().any(|other| !asked.contains(other)) {
            let subject = fact.subject.clone().unwrap_or_default();
            return Some(Conflict::SameSubject { patch, subject });
        }
        let is_other = |other: usize| !asked.contains(&other);
        let (layer, other, degrees) = keys.iter().find_map(|keys| keys.nearest(place, &is_other))?;
        let prompts = [fact.prompt.clone(), facts[other].prompt.clone()];
        Some(Conflict::CloseKeys { patch, layer, prompts, degrees })
    };
    new.about.facts.par_iter().enumerate().filter_map(|(place, fact)| conflict(place, fact)).collect()
}

/// The keys of two changes of a layer, row by row, of length one, with the numbers first in which they differ
/// most.
struct Near {
    layer: usize,
    width: usize,
    new: Vec<f32>,
    old: Vec<f32>,
}

impl Near {
    /// Returns the keys of a change and of the other patch's change of its layer, if both have one key for
    /// each fact.
    fn of(change: &LowRank, new: &Patch, old: &Patch) -> Option<Self> {
        let known = old.changes.iter().find(|known| known.layer == change.layer)?;
        let has_keys = change.rank == new.about.facts.len() && known.rank == old.about.facts.len();
        let inner = change.keys.len().checked_div(change.rank).filter(|inner| *inner > 0 && has_keys)?;
        if known.keys.len() != known.rank * inner {
            return None;
        }
        let (one, other) = (of_length_one(&change.keys, inner), of_length_one(&known.keys, inner));
        let mut spread = vec![[0.0f64; 2]; inner];
        for row in one.chunks_exact(inner).chain(other.chunks_exact(inner)) {
            for ([sum, squares], number) in spread.iter_mut().zip(row) {
                *sum += f64::from(*number);
                *squares += f64::from(*number) * f64::from(*number);
            }
        }
        let count = (change.rank + known.rank) as f64;
        let variance = |place: &usize| spread[*place][1] - spread[*place][0] * spread[*place][0] / count;
        let mut order: Vec<usize> = (0..inner).collect();
        order.sort_by(|a, b| variance(b).total_cmp(&variance(a)));
        // Rows have a whole number of lanes; zeros at the end change no distance.
        let width = inner.next_multiple_of(LANES);
        let ordered = |keys: &[f32]| {
            let mut rows = vec![0.0; keys.len() / inner * width];
            for (to, from) in rows.chunks_exact_mut(width).zip(keys.chunks_exact(inner)) {
                to.iter_mut().zip(&order).for_each(|(number, place)| *number = from[*place]);
            }
            rows
        };
        Some(Self { layer: change.layer, width, new: ordered(&one), old: ordered(&other) })
    }

    /// Returns the layer, the old fact whose key is the closest to that of a new one, and the angle, if any
    /// other fact is close.
    fn nearest(&self, place: usize, is_other: &dyn Fn(usize) -> bool) -> Option<(usize, usize, f64)> {
        let key = &self.new[place * self.width..][..self.width];
        // The squared distance of two vectors of length one.
        let mut most = (2.0 - 2.0 * CLOSE_DEGREES.to_radians().cos()) as f32;
        let mut nearest = None;
        for (other, known) in self.old.chunks_exact(self.width).enumerate() {
            if let Some(distance) = distance_below(key, known, most)
                && is_other(other)
            {
                (most, nearest) = (distance, Some((other, distance)));
            }
        }
        let (other, distance) = nearest?;
        let degrees = (1.0 - f64::from(distance) / 2.0).clamp(-1.0, 1.0).acos().to_degrees();
        Some((self.layer, other, degrees))
    }
}

/// Returns the squared distance of two rows if it is below a limit.
fn distance_below(one: &[f32], other: &[f32], most: f32) -> Option<f32> {
    let mut sum = 0.0;
    for (a, b) in one.as_chunks::<LANES>().0.iter().zip(other.as_chunks::<LANES>().0) {
        let mut squares = [0.0f32; LANES];
        for lane in 0..LANES {
            squares[lane] = (a[lane] - b[lane]) * (a[lane] - b[lane]);
        }
        sum += squares.iter().sum::<f32>();
        if sum >= most {
            return None;
        }
    }
    Some(sum)
}

/// Scales rows to the length one.
fn of_length_one(keys: &[f32], inner: usize) -> Vec<f32> {
    let mut rows = keys.to_vec();
    for row in rows.chunks_exact_mut(inner) {
        let length = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        let scale = 1.0 / length.max(f64::MIN_POSITIVE);
        row.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
    }
    rows
}
