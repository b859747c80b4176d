//! What is odd about a tokenizer, although it works.
//!
//! Enters: a tokenizer as it was read. Leaves: sentences for the user. This file must not know templates or
//! data.

use std::collections::HashMap;

use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted};
use tokenizers::{ModelWrapper, Tokenizer};

use crate::error::quoted;

/// Describes what makes the tokens of a text ambiguous or random.
pub(crate) fn oddities(tokenizer: &Tokenizer) -> Vec<String> {
    let mut found = Vec::new();
    if let ModelWrapper::BPE(model) = tokenizer.get_model()
        && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
    {
        found.push(format!(
            "it has a dropout of {dropout}, so the same text has other tokens each time. Remove `dropout` from its model, unless you mean this"
        ));
    }
    let vocabulary = tokenizer.get_vocab(true);
    let mut token_of: HashMap<u32, &str> = HashMap::with_capacity(vocabulary.len());
    let mut twice: Vec<(u32, &str, &str)> = Vec::new();
    for (token, id) in &vocabulary {
        if let Some(other) = token_of.insert(*id, token) {
            twice.push((*id, other.min(token), other.max(token)));
        }
    }
    // The order of a map differs from run to run.
    twice.sort_unstable();
    if let Some((id, one, other)) = twice.first() {
        found.push(format!(
            "{} of its vocabulary have an id that another one has too, as \"{}\" and \"{}\" have {}: the model cannot tell them apart",
            counted(twice.len() as u64, "token"),
            escape(&quoted(one)),
            escape(&quoted(other)),
            count((*id).into())
        ));
    }
    found
}
