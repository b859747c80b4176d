//! How often an epoch trains the examples of each data set, as an answer and as a value of the plan.
//!
//! Enters: `NAME=N` on the command line, several of them with commas in between, or a TOML table. Leaves: the
//! same. This file must not know what a data set holds.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Origin};
use crate::error::PlanError;
use crate::setting::{Kind, Setting};
use crate::shown::Shown;
use crate::values::Value;

/// The key of the setting.
pub(crate) const KEY: &str = "data.weights";
/// The weights that are accepted. Others are a mistake: so many epochs of one set, or so small a part of it,
/// are nobody's intention.
const ACCEPTED: RangeInclusive<f64> = 1e-6..=1000.0;

/// Weights by the name of the data set. A set that is not named has the weight 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weights(pub BTreeMap<String, f64>);

impl Weights {
    /// Returns the weight of each of these sets.
    pub fn of<'a>(&self, sets: impl IntoIterator<Item = &'a str>) -> Vec<f64> {
        sets.into_iter().map(|set| self.0.get(set).copied().unwrap_or(1.0)).collect()
    }

    /// Returns the weight 1 for each of these sets as text, to be changed by the user. Empty if a name cannot
    /// be written.
    pub fn even<'a>(sets: impl IntoIterator<Item = &'a str>) -> String {
        let weights = Self(sets.into_iter().map(|set| (set.to_owned(), 1.0)).collect());
        weights.checked().and_then(|weights| weights.to_text()).unwrap_or_default()
    }

    /// Returns whether no set has a weight.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the weights if they are accepted, with names that the command line can hold.
    fn checked(self) -> Option<Self> {
        let is_fit = |(name, weight): (&String, &f64)| !name.trim().is_empty() && ACCEPTED.contains(weight);
        (!self.is_empty() && self.0.iter().all(is_fit)).then_some(self)
    }

    /// Reads `NAME=N`. The name may contain equals signs.
    fn one(text: &str) -> Option<(String, f64)> {
        let (name, weight) = text.rsplit_once('=')?;
        Some((name.trim().to_owned(), f64::from_text(weight)?))
    }
}

/// Returns the weights of the answer for these sets. A name of the user that no set has is refused; one of a
/// preset, which is written for other data, is passed over.
///
/// # Errors
/// [`PlanError::Conflict`] names the sets that exist.
pub fn weights_of<'a>(
    answer: Option<&Answer<Weights>>,
    sets: impl Iterator<Item = &'a str> + Clone,
) -> Result<Vec<f64>, PlanError> {
    let Some(Answer { value, origin }) = answer else { return Ok(sets.map(|_| 1.0).collect()) };
    let unknown = value.0.keys().find(|name| sets.clone().all(|set| set != name.as_str()));
    if let Some(unknown) = unknown.filter(|_| *origin > Origin::Preset) {
        let place = Setting::of(KEY).map(|setting| setting.place(*origin)).unwrap_or_default();
        let names: Vec<&str> = sets.collect();
        return Err(PlanError::Conflict {
            key: KEY,
            what: format!("{place} names the data set {unknown:?}, which is not among the data"),
            fix: format!("Call it as it is given to --data: {}", names.join(", ")),
        });
    }
    Ok(value.of(sets))
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(name, weight)| format!("{name}={weight}")).collect();
        f.write_str(&all.join(", "))
    }
}

impl Shown for Weights {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for Weights {
    const KIND: Kind = Kind::Weights;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        let number = |value: &toml::Value| f64::from_toml(value);
        let table = value.as_table()?.iter();
        table
            .map(|(name, value)| Some((name.clone(), number(value)?)))
            .collect::<Option<_>>()
            .map(Self)?
            .checked()
    }

    fn from_text(text: &str) -> Option<Self> {
        if text.trim_start().starts_with('{') {
            // `toml::Value` parses whole documents, so the table is parsed as one of its values.
            let document: toml::Table = format!("weights = {text}").parse().ok()?;
            return Self::from_toml(document.get("weights").filter(|_| document.len() == 1)?);
        }
        let list: Option<Vec<_>> = text.split(',').map(Self::one).collect();
        // A name may contain a comma, as long as it cannot be read as several.
        let list = list.or_else(|| Some(vec![Self::one(text)?]))?;
        let (count, weights) = (list.len(), Self(list.into_iter().collect()));
        weights.checked().filter(|weights| weights.0.len() == count)
    }

    fn to_toml(&self) -> Option<toml::Value> {
        toml::Value::try_from(&self.0).ok()
    }

    fn to_text(&self) -> Option<String> {
        let plain = self.to_string();
        if Self::from_text(&plain).as_ref() == Some(self) {
            Some(plain)
        } else {
            Some(self.to_toml()?.to_string())
        }
    }

    fn from_words(words: &[&str]) -> Option<Self> {
        let mut all = BTreeMap::new();
        for word in words {
            for (name, weight) in Self::from_text(word)?.0 {
                if all.insert(name, weight).is_some() {
                    return None;
                }
            }
        }
        Self(all).checked()
    }

    fn to_words(&self) -> Option<Vec<String>> {
        let word = |(name, weight): (&String, &f64)| Self([(name.clone(), *weight)].into()).to_text();
        self.0.iter().map(word).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::settings::Answers;

    fn weights(pairs: &[(&str, f64)]) -> Weights {
        Weights(pairs.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect())
    }

    #[test]
    fn weights_are_read_from_words_from_one_text_and_from_a_table() {
        let both = weights(&[("a.jsonl", 2.0), ("hf:o/n:train", 0.5)]);
        let mut answers = Answers::default();
        answers.set("weight", "a.jsonl=2, hf:o/n:train=0.5", Origin::Flag).unwrap();
        assert_eq!(answers.weights.as_ref().unwrap().value, both);
        assert_eq!(answers.get("weight").unwrap().0, "a.jsonl=2, hf:o/n:train=0.5");
        let toml = answers.to_toml().unwrap();
        assert_eq!(Answers::from_toml(&toml, Origin::Flag, "draft").unwrap(), answers, "{toml}");
        let mut answers = Answers::default();
        answers.set_words("weight", &["a.jsonl=2", "hf:o/n:train=0.5"], Origin::Flag).unwrap();
        assert_eq!(answers.weights.unwrap().value, both);
        let table = "[data.weights]\n\"a.jsonl\" = 2\n\"hf:o/n:train\" = 0.5\n";
        let answers = Answers::from_toml(table, Origin::Preset, "file").unwrap();
        assert_eq!(answers.weights.unwrap().value, both);
        assert_eq!(Weights::even(["b.jsonl", "a.jsonl"]), "a.jsonl=1, b.jsonl=1");
        assert_eq!(Weights::from_text("a=b=2"), Some(weights(&[("a=b", 2.0)])));
        assert_eq!(Weights::from_text("x, y.jsonl=2"), Some(weights(&[("x, y.jsonl", 2.0)])));
    }

    #[test]
    fn what_is_no_number_of_the_range_is_refused() {
        for text in [
            "a",
            "a=",
            "=2",
            "a=0",
            "a=-1",
            "a=nan",
            "a=inf",
            "a=1001",
            "a=1e-320",
            "a=1,a=2",
            "{}",
            "{a = \"x\"}",
            "",
        ] {
            assert_eq!(Weights::from_text(text), None, "{text}");
            let error = Answers::default().set("weight", text, Origin::Flag).unwrap_err().to_string();
            assert!(error.contains("--weight") && error.contains("a.jsonl=2"), "{error}");
        }
        assert_eq!(Weights::from_words(&["a=1", "a=2"]), None);
    }

    #[test]
    fn a_name_that_no_set_has_is_refused_from_the_user_and_passed_over_in_a_preset() {
        let answer = |origin| Answer::new(weights(&[("b", 2.0), ("c", 3.0)]), origin);
        let error = weights_of(Some(&answer(Origin::Flag)), ["a", "b"].into_iter()).unwrap_err().to_string();
        assert!(error.contains("--weight names the data set \"c\"") && error.contains("a, b"), "{error}");
        assert_eq!(weights_of(Some(&answer(Origin::Preset)), ["a", "b"].into_iter()).unwrap(), [1.0, 2.0]);
        assert_eq!(weights_of(None, ["a", "b"].into_iter()).unwrap(), [1.0, 1.0]);
    }

    proptest! {
        #[test]
        fn any_name_is_written_so_that_it_is_read_back(
            sets in prop::collection::btree_map("[a-z=,{} \"'\\n-]{0,8}[a-z]", 0.001f64..1000.0, 1..4),
        ) {
            let sets = Weights(sets.into_iter().map(|(name, weight)| (name.trim().to_owned(), weight)).collect());
            prop_assert_eq!(crate::values::written(&sets).is_some(), true);
            prop_assert_eq!(crate::values::text_of(&sets).is_some(), true);
            let words = sets.to_words().unwrap();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            prop_assert_eq!(Weights::from_words(&words), Some(sets));
        }
    }
}
