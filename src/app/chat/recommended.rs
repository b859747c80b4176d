//! How a model is to be sampled unless a person says otherwise: the settings of its `generation_config.json`,
//! which servers such as vLLM take as their defaults too.

use std::path::Path;

use serde_json::Value;
use sparktune_base::regular_file::read_regular;
use sparktune_sampling::SamplingParams;

/// The most bytes of the file that are read.
const MOST_BYTES: u64 = 1 << 20;

/// What a person has said about sampling. What is `None` is left to the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wishes {
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// The share of probability that is kept.
    pub top_p: Option<f64>,
    /// The number of tokens that are kept.
    pub top_k: Option<u32>,
    /// The least share of the most likely token's probability.
    pub min_p: Option<f64>,
    /// Makes tokens of prompt and answer less likely.
    pub repetition_penalty: Option<f64>,
}

impl Wishes {
    /// Puts what a person has said in the place of `params`' own values.
    pub fn over(&self, mut params: SamplingParams) -> SamplingParams {
        params.temperature = self.temperature.unwrap_or(params.temperature);
        params.top_p = self.top_p.unwrap_or(params.top_p);
        params.top_k = self.top_k.unwrap_or(params.top_k);
        params.min_p = self.min_p.unwrap_or(params.min_p);
        params.repetition_penalty = self.repetition_penalty.unwrap_or(params.repetition_penalty);
        params
    }

    /// Reads the wishes of a model's makers from the file in `folder`. What is not there, or out of its
    /// range, is nobody's wish: a model without the file is sampled as it was trained.
    pub fn of_model(folder: &Path) -> Self {
        let bytes = read_regular(&folder.join("generation_config.json"), MOST_BYTES).unwrap_or_default();
        let file: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let number = |name: &str| file[name].as_f64();
        let top_k = file["top_k"].as_u64().and_then(|k| u32::try_from(k).ok());
        let each = [
            Self { temperature: number("temperature"), ..Self::default() },
            Self { top_p: number("top_p"), ..Self::default() },
            Self { top_k, ..Self::default() },
            Self { min_p: number("min_p"), ..Self::default() },
            Self { repetition_penalty: number("repetition_penalty"), ..Self::default() },
        ];
        let is_allowed = |wish: &Self| wish.over(SamplingParams::default()).check().is_ok();
        each.into_iter().filter(is_allowed).fold(Self::default(), |all, one| one.or(all))
    }

    fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_p: self.top_p.or(other.top_p),
            top_k: self.top_k.or(other.top_k),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_sampled_as_its_makers_say_unless_a_person_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
            Wishes::of_model(folder.path())
        };
        assert_eq!(Wishes::of_model(folder.path()), Wishes::default(), "there is no file");
        let makers = of(r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.95}"#);
        let person = Wishes { temperature: Some(0.0), ..Wishes::default() };
        let params = person.over(makers.over(SamplingParams::default()));
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.0, 20, 0.95));
        // One value that cannot be used does not take the others with it.
        let odd = of(r#"{"temperature": -3, "top_p": "much", "top_k": -1, "min_p": 0.1}"#);
        assert_eq!(odd, Wishes { min_p: Some(0.1), ..Wishes::default() });
        for text in ["", "[]", "{", "7"] {
            assert_eq!(of(text), Wishes::default(), "{text}");
        }
    }
}
