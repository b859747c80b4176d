//! The parameters of sampling, as OpenAI's API and vLLM's `SamplingParams` name and define them.

use serde::{Deserialize, Serialize};

/// The largest number of stop strings, and of stop tokens.
const MOST_STOPS: usize = 64;
/// The most bytes of a stop string, so that little text has to be held back.
const LONGEST_STOP: usize = 1024;
/// The largest number of alternatives per token.
const MOST_LOGPROBS: u32 = 20;

/// How tokens are chosen. The defaults sample from the model's own distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Logits are divided by it. 0 chooses the most likely token.
    pub temperature: f64,
    /// Only the most likely tokens are kept whose probabilities add up to this.
    pub top_p: f64,
    /// Only this many of the most likely tokens are kept. 0 keeps all.
    pub top_k: u32,
    /// Only tokens are kept that are at least this share as likely as the most likely one.
    pub min_p: f64,
    /// Subtracted from the logit of each token that the answer has.
    pub presence_penalty: f64,
    /// Subtracted from the logit of a token for each time that the answer has it.
    pub frequency_penalty: f64,
    /// Divides the positive and multiplies the negative logits of tokens that the prompt or the answer has.
    pub repetition_penalty: f64,
    /// The seed of the random numbers. The same seed gives the same answer to the same prompt, whatever else
    /// is computed at the time. Without one, a seed is chosen and reported.
    pub seed: Option<u64>,
    /// Texts that end the answer. They are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer, in addition to those that the model ends its answers with.
    pub stop_token_ids: Vec<u32>,
    /// Whether the answer goes on after the tokens that the model ends its answers with.
    pub ignore_eos: bool,
    /// The largest number of tokens of the answer. Without it the context is the limit.
    pub max_tokens: Option<u32>,
    /// Whether each token has its log-probability, and how many of the most likely tokens it is given with.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            max_tokens: None,
            logprobs: None,
        }
    }
}

/// A parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} is {found}, but must be {allowed}. Change it, or leave it out for the default")]
pub struct Invalid {
    /// The name of the parameter.
    pub name: &'static str,
    /// Its value.
    pub found: String,
    /// The range in words.
    pub allowed: &'static str,
}

impl SamplingParams {
    /// Greedy decoding of at most this many tokens.
    pub fn greedy(max_tokens: u32) -> Self {
        Self { temperature: 0.0, max_tokens: Some(max_tokens), ..Self::default() }
    }

    /// Checks that every parameter is in its range.
    ///
    /// # Errors
    /// The first parameter that is not.
    pub fn check(&self) -> Result<(), Invalid> {
        let invalid = |name, found: String, allowed| Err(Invalid { name, found, allowed });
        let number = |name, value: f64, is_allowed: bool, allowed| {
            if is_allowed { Ok(()) } else { invalid(name, value.to_string(), allowed) }
        };
        // A comparison with NaN is false, so that NaN is in no range.
        number("temperature", self.temperature, (0.0..=100.0).contains(&self.temperature), "0 to 100")?;
        number("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        number("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1")?;
        for (name, penalty) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            number(name, penalty, (-2.0..=2.0).contains(&penalty), "-2 to 2")?;
        }
        let repetition = self.repetition_penalty;
        let is_allowed = (0.01..=100.0).contains(&repetition);
        number("repetition_penalty", repetition, is_allowed, "0.01 to 100")?;
        if self.max_tokens == Some(0) {
            return invalid("max_tokens", "0".into(), "at least 1");
        }
        if let Some(n) = self.logprobs.filter(|n| *n > MOST_LOGPROBS) {
            return invalid("logprobs", n.to_string(), "at most 20");
        }
        if self.stop.len().max(self.stop_token_ids.len()) > MOST_STOPS {
            let found = self.stop.len().max(self.stop_token_ids.len());
            return invalid("stop", format!("a list of {found}"), "a list of at most 64");
        }
        match self.stop.iter().find(|stop| stop.is_empty() || stop.len() > LONGEST_STOP) {
            Some(stop) => invalid("stop", format!("{} bytes long", stop.len()), "1 to 1024 bytes long"),
            None => Ok(()),
        }
    }

    /// Returns how many of the largest logits, after penalties, a token is drawn from; `None` for all.
    pub fn largest_kept(&self) -> Option<usize> {
        let count = if self.is_greedy() { 1 } else { self.top_k as usize };
        (count > 0).then_some(count)
    }

    /// Returns how many of a model's largest logits must be known to draw a token and to describe it; `None`
    /// for all, as penalties and log-probabilities need them.
    pub fn largest_needed(&self) -> Option<usize> {
        let needs_all = self.has_penalties() || self.logprobs.is_some();
        self.largest_kept().filter(|_| !needs_all)
    }

    /// Returns whether any penalty changes logits.
    pub fn has_penalties(&self) -> bool {
        (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)
    }

    /// Returns whether the most likely token is chosen.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_outside_their_range_are_refused_with_name_value_and_range() {
        let check = |json: &str| {
            serde_json::from_str::<SamplingParams>(json).unwrap().check().map_err(|error| error.to_string())
        };
        assert_eq!(check("{}"), Ok(()));
        assert_eq!(check(r#"{"temperature": 0, "top_k": 40, "seed": 18446744073709551615}"#), Ok(()));
        for (json, name) in [
            (r#"{"temperature": -0.1}"#, "temperature is -0.1"),
            (r#"{"top_p": 0}"#, "top_p is 0"),
            (r#"{"min_p": 1.5}"#, "min_p is 1.5"),
            (r#"{"presence_penalty": 3}"#, "presence_penalty is 3"),
            (r#"{"frequency_penalty": -2.5}"#, "frequency_penalty is -2.5"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty is 0"),
            (r#"{"max_tokens": 0}"#, "max_tokens is 0"),
            (r#"{"logprobs": 21}"#, "logprobs is 21"),
            (r#"{"stop": [""]}"#, "stop is 0 bytes long"),
        ] {
            let error = check(json).unwrap_err();
            assert!(error.contains(name) && error.contains("but must be"), "{json}: {error}");
        }
        let not_a_number = SamplingParams { temperature: f64::NAN, ..SamplingParams::default() };
        assert!(not_a_number.check().is_err());
    }

    #[test]
    fn an_unknown_parameter_is_refused_and_not_ignored() {
        let error = serde_json::from_str::<SamplingParams>(r#"{"temprature": 1}"#).unwrap_err();
        assert!(error.to_string().contains("temprature"), "{error}");
    }
}
