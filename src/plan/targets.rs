//! The linear layers that get adapters, chosen by their names.
//!
//! Enters: the words of a user, the names in a plan or in the files of an adapter. Leaves: a set of names. A
//! name stands for the layers of that name in every decoder layer, as in PEFT.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::architecture::{LinearSpec, Reads};
use crate::model_config::ModelConfig;

/// The names of the linear layers of all families.
const NAMES: [&str; 12] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// The word for all linear layers.
pub(crate) const ALL_LINEAR: &str = "all-linear";
/// The word for the linear layers of attention and of gated DeltaNet.
const ATTENTION: &str = "attention";
/// The word for the linear layers of MLPs.
const MLP: &str = "mlp";

/// A set of linear layers, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetModules(u16);

/// All linear layers, as in plans of older versions, which name none.
impl Default for TargetModules {
    fn default() -> Self {
        Self::ALL
    }
}

impl TargetModules {
    /// All linear layers of any model.
    pub const ALL: Self = Self(u16::MAX);

    /// Returns the set of these names, or the first name that no family has.
    pub fn of_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, &'a str> {
        names.into_iter().try_fold(Self(0), |set, name| match NAMES.iter().position(|known| *known == name) {
            Some(place) => Ok(Self(set.0 | 1 << place)),
            None => Err(name),
        })
    }

    /// Returns the layers of a model that these words name: `all-linear`, `attention`, `mlp`, or names.
    ///
    /// # Errors
    /// The first word that names no layer of this model.
    pub(crate) fn of_words<'a>(words: &'a [String], model: &ModelConfig) -> Result<Self, &'a str> {
        let linears = || model.layers.iter().flat_map(|layer| layer.linears());
        let mut names = Vec::new();
        for word in words {
            let is_meant = |linear: &&LinearSpec| match word.as_str() {
                ALL_LINEAR => true,
                ATTENTION => !is_of_mlp(linear),
                MLP => is_of_mlp(linear),
                name => linear.name() == name,
            };
            let before = names.len();
            names.extend(linears().filter(is_meant).map(LinearSpec::name));
            if names.len() == before {
                return Err(word);
            }
        }
        let set = Self::of_names(names).expect("the names of the tables are known");
        Ok(set.in_model(model))
    }

    /// Returns the same layers of a model: all, if the model has no others.
    #[must_use]
    pub fn in_model(self, model: &ModelConfig) -> Self {
        let mut linears = model.layers.iter().flat_map(|layer| layer.linears());
        if linears.all(|linear| self.contains(linear.name())) { Self::ALL } else { self }
    }

    /// Returns whether layers of this name are in the set.
    pub fn contains(self, name: &str) -> bool {
        match NAMES.iter().position(|known| *known == name) {
            Some(place) => self.0 & 1 << place != 0,
            None => self.is_all(),
        }
    }

    /// Returns whether all layers are in the set.
    pub fn is_all(&self) -> bool {
        *self == Self::ALL
    }

    /// Returns the words that [`of_words`](Self::of_words) reads.
    pub(crate) fn words(self) -> Vec<String> {
        if self.is_all() {
            return vec![ALL_LINEAR.to_owned()];
        }
        NAMES.into_iter().filter(|name| self.contains(name)).map(str::to_owned).collect()
    }
}

/// Returns the words with which the layers of a model can be chosen, for messages.
pub(crate) fn words_of(model: &ModelConfig) -> String {
    let mut words = vec![ALL_LINEAR, ATTENTION, MLP];
    for linear in model.layers.iter().flat_map(|layer| layer.linears()) {
        if !words.contains(&linear.name()) {
            words.push(linear.name());
        }
    }
    words.join(", ")
}

fn is_of_mlp(linear: &LinearSpec) -> bool {
    matches!(linear.reads, Reads::MlpInput | Reads::MlpHidden)
}

impl fmt::Display for TargetModules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(", "))
    }
}

impl Serialize for TargetModules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.words().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TargetModules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        if names == [ALL_LINEAR] {
            return Ok(Self::ALL);
        }
        Self::of_names(names.iter().map(String::as_str))
            .map_err(|name| serde::de::Error::custom(format!("`{name}` is not the name of a linear layer")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    fn model(id: &str) -> ModelConfig {
        let catalog = Catalog::shipped();
        catalog.model_facts(catalog.find(id).unwrap()).config
    }

    fn read(words: &str, model: &ModelConfig) -> Result<String, String> {
        let words: Vec<String> = words.split(',').map(str::to_owned).collect();
        TargetModules::of_words(&words, model).map(|set| set.to_string()).map_err(str::to_owned)
    }

    #[test]
    fn every_linear_layer_of_every_model_of_the_catalog_has_a_known_name() {
        for listed in &Catalog::shipped().models {
            for linear in model(&listed.id).layers.iter().flat_map(|layer| layer.linears()) {
                assert!(NAMES.contains(&linear.name()), "{} of {}", linear.name(), listed.id);
            }
        }
    }

    #[test]
    fn words_are_groups_or_names_and_all_names_together_are_all_linear() {
        let qwen = model("Qwen/Qwen3.5-2B");
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(read("all-linear", &qwen), ok("all-linear"));
        assert_eq!(read("mlp", &qwen), ok("gate_proj, up_proj, down_proj"));
        assert_eq!(
            read("attention", &qwen),
            ok("q_proj, k_proj, v_proj, o_proj, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, out_proj")
        );
        assert_eq!(read("mlp,attention", &qwen), ok("all-linear"));
        assert_eq!(read("v_proj,q_proj,q_proj", &qwen), ok("q_proj, v_proj"));
        assert_eq!(read("q_proj,query", &qwen), Err("query".to_owned()));
        assert!(words_of(&qwen).starts_with("all-linear, attention, mlp, "), "{}", words_of(&qwen));
    }

    #[test]
    fn a_set_is_a_list_of_names_in_toml() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Plan {
            set: TargetModules,
        }
        for (set, text) in [
            (TargetModules::ALL, "set = [\"all-linear\"]\n"),
            (TargetModules::of_names(["up_proj", "k_proj"]).unwrap(), "set = [\"k_proj\", \"up_proj\"]\n"),
        ] {
            assert_eq!(toml::to_string(&Plan { set }).unwrap(), text);
            assert_eq!(toml::from_str::<Plan>(text).unwrap(), Plan { set });
        }
        let error = toml::from_str::<Plan>("set = [\"lm_head\"]").unwrap_err().to_string();
        assert!(error.contains("`lm_head` is not the name of a linear layer"), "{error}");
    }
}
