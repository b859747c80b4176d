//! What patches may spoil of each other, named before they are applied.
//!
//! A pair of facts has one conflict, and a fact at most one with each patch, so that large patches about the
//! same subjects do not bury the reader. Prompts and subjects are looked up. Keys are compared pair by pair
//! but of most pairs only signs: those of their products with random directions, of which two keys have as
//! many in common as their angle is small (Charikar 2002, similarity estimation by rounding). So 22,000 facts
//! are held against as many in seconds.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;
use sparktune_base::random::SplitMix64;
use sparktune_infer::codebook_file::StoredCodebook;

use crate::facts::{Fact, words};
use crate::linear_algebra::dot;
use crate::noise::normal;
use crate::patch::{AboutPatch, Patch};

/// Keys that are closer than this angle, in degrees, cannot have values of their own for long: changing one
/// by 1 changes the other by cos 15° = 0.97 of it, as far as the covariance does not tell them apart.
pub const CLOSE_DEGREES: f64 = 15.0;

/// The random directions, in words of 64 signs.
const WORDS: usize = 4;
/// Keys with more different signs are not compared. At 15 degrees 21 of 256 signs differ on average; more
/// than this do so for one pair in ten thousand millions.
const MOST_DIFFERENT: u32 = 57;

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

/// Returns for each layer pairs of facts of one patch that have the same key but for this many degrees: what
/// one of them changes, the other one gets too.
pub(crate) fn same_keys(patch: &Patch) -> Vec<(usize, [String; 2])> {
    /// Facts of one patch are solved together, so that only keys that are nearly the same stand in the way.
    const SAME_DEGREES: f64 = 2.0;
    let keys: Vec<Near<'_>> = Keys::of_changes(patch).map(|keys| Near::of(keys.clone(), keys)).collect();
    let facts = &patch.about.facts;
    let pair = |place: usize| {
        keys.iter().find_map(|keys| {
            let (layer, other, degrees) = keys.nearest(place, &|other| other < place)?;
            let pair = [&facts[other].prompt, &facts[place].prompt].map(Clone::clone);
            (degrees < SAME_DEGREES).then_some((layer, pair))
        })
    };
    (0..facts.len()).into_par_iter().filter_map(pair).collect()
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
    let known = Keys::of(old);
    let known = |keys: &Keys<'_>| known.iter().find(|known| known.are_of_the_place(keys)).cloned();
    let keys = Keys::of(new).into_iter();
    let keys: Vec<Near<'_>> = keys.filter_map(|keys| Some(Near::of(known(&keys)?, keys))).collect();
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

/// The keys of a patch in a layer, one for each of its facts.
#[derive(Clone)]
struct Keys<'a> {
    layer: usize,
    /// Whether they are inputs of an MLP, which a codebook beside it recognises, and not of its `down_proj`.
    are_beside: bool,
    inner: usize,
    /// Row by row.
    numbers: Cow<'a, [f32]>,
}

impl<'a> Keys<'a> {
    fn of(patch: &'a Patch) -> Vec<Self> {
        let beside = patch.codebooks.iter().filter_map(|book| Self::of_book(book, patch));
        Self::of_changes(patch).chain(beside).collect()
    }

    /// Returns the keys of changes that have one for each fact.
    fn of_changes(patch: &'a Patch) -> impl Iterator<Item = Self> {
        let facts = patch.about.facts.len();
        patch.changes.iter().filter_map(move |change| {
            let inner = change.keys.len().checked_div(change.rank)?;
            let has_keys = change.rank == facts && inner > 0 && change.keys.len() == facts * inner;
            let numbers = Cow::Borrowed(&change.keys[..]);
            has_keys.then_some(Self { layer: change.layer, are_beside: false, inner, numbers })
        })
    }

    /// Returns for each fact the key of its first entry, at the end of its prompt, from the codebook's mean.
    /// Behind it the answer has begun, and those of equal targets are near each other as they should be.
    fn of_book(book: &StoredCodebook, patch: &Patch) -> Option<Self> {
        let AboutPatch { entries, facts, .. } = &patch.about;
        // A patch of an older program does not say how many each fact has.
        let entries = if entries.is_empty() { &vec![1; facts.len()] } else { entries };
        let sum = entries.iter().try_fold(0usize, |sum, entries| sum.checked_add(*entries))?;
        if entries.len() != facts.len() || sum != book.thresholds.len() || entries.contains(&0) {
            return None;
        }
        let inner = book.mean.len();
        let mut rows = book.keys.chunks_exact(inner);
        let mut numbers = Vec::with_capacity(facts.len() * inner);
        for entries in entries {
            let first = rows.by_ref().take(*entries).collect::<Vec<_>>()[0];
            numbers.extend(first.iter().zip(&book.mean).map(|(key, mean)| key - mean));
        }
        Some(Self { layer: book.layer, are_beside: true, inner, numbers: Cow::Owned(numbers) })
    }

    /// Returns whether keys can be held against these.
    fn are_of_the_place(&self, other: &Keys<'_>) -> bool {
        (self.layer, self.are_beside, self.inner) == (other.layer, other.are_beside, other.inner)
    }
}

/// The keys of two patches at one place, with the signs of each.
struct Near<'a> {
    old: Keys<'a>,
    new: Keys<'a>,
    old_signs: Vec<[u64; WORDS]>,
    new_signs: Vec<[u64; WORDS]>,
}

impl<'a> Near<'a> {
    fn of(old: Keys<'a>, new: Keys<'a>) -> Self {
        let mut random = SplitMix64::new(1);
        let directions: Vec<f32> = (0..WORDS * 64 * new.inner).map(|_| normal(&mut random) as f32).collect();
        let signs = |keys: &Keys<'_>| {
            keys.numbers.par_chunks_exact(keys.inner).map(|key| signs(key, &directions)).collect()
        };
        let (old_signs, new_signs) = (signs(&old), signs(&new));
        Self { old, new, old_signs, new_signs }
    }

    /// Returns the layer, the old fact whose key is the closest to that of a new one, and the angle, if any
    /// other fact is close.
    fn nearest(&self, place: usize, is_other: &dyn Fn(usize) -> bool) -> Option<(usize, usize, f64)> {
        fn row<'k>(keys: &'k Keys<'_>, place: usize) -> &'k [f32] {
            &keys.numbers[place * keys.inner..][..keys.inner]
        }
        let signs = &self.new_signs[place];
        let mut nearest = None;
        let mut least = CLOSE_DEGREES;
        for (other, known) in self.old_signs.iter().enumerate() {
            let different: u32 = signs.iter().zip(known).map(|(one, other)| (one ^ other).count_ones()).sum();
            if different > MOST_DIFFERENT || !is_other(other) {
                continue;
            }
            let degrees = angle(row(&self.new, place), row(&self.old, other));
            if degrees < least {
                (least, nearest) = (degrees, Some((self.new.layer, other, degrees)));
            }
        }
        nearest
    }
}

/// Returns whether the products of a key with each direction are negative, as bits.
fn signs(key: &[f32], directions: &[f32]) -> [u64; WORDS] {
    const LANES: usize = 16;
    let mut words = [0; WORDS];
    for (place, direction) in directions.chunks_exact(key.len()).enumerate() {
        // Many sums at a time, which the processor adds at once.
        let mut sums = [0.0f32; LANES];
        for (keys, numbers) in key.chunks(LANES).zip(direction.chunks(LANES)) {
            for ((sum, key), number) in sums.iter_mut().zip(keys).zip(numbers) {
                *sum += key * number;
            }
        }
        words[place / 64] |= u64::from(sums.iter().sum::<f32>() < 0.0) << (place % 64);
    }
    words
}

/// Returns the angle between two keys in degrees.
fn angle(one: &[f32], other: &[f32]) -> f64 {
    let wide = |key: &[f32]| key.iter().map(|number| f64::from(*number)).collect::<Vec<_>>();
    let (one, other) = (wide(one), wide(other));
    let cosine = dot(&one, &other) / (dot(&one, &one) * dot(&other, &other)).sqrt();
    cosine.clamp(-1.0, 1.0).acos().to_degrees()
}
