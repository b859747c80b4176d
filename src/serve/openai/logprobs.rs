//! Log-probabilities in OpenAI's two forms.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use sparktune_sampling::protocol::Piece;
use utoipa::ToSchema;

/// A token with its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    /// Its text. A part of a character is U+FFFD.
    pub token: String,
    /// Its log-probability in nats, before penalties and filters.
    pub logprob: f64,
    /// The bytes of its text; none for a part of a character.
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub top_logprobs: Option<Vec<TokenLogprob>>,
}

impl TokenLogprob {
    fn new(token: String, logprob: f64, top_logprobs: Option<Vec<Self>>) -> Self {
        let is_whole = !token.contains(char::REPLACEMENT_CHARACTER);
        let bytes = is_whole.then(|| token.as_bytes().to_vec());
        Self { token, logprob, bytes, top_logprobs }
    }
}

/// Returns the tokens of a piece that have log-probabilities.
pub(crate) fn of_piece(piece: &Piece) -> Vec<TokenLogprob> {
    let spelled: BTreeMap<u32, &str> = piece.spelled.iter().map(|(id, text)| (*id, text.as_str())).collect();
    let text = |id: u32| spelled.get(&id).map_or_else(String::new, |text| (*text).to_owned());
    let tokens = piece.tokens.iter().filter_map(|token| {
        let top = token.top_logprobs.iter();
        let top = top.map(|(id, logprob)| TokenLogprob::new(text(*id), *logprob, None)).collect();
        Some(TokenLogprob::new(text(token.id), token.logprob?, Some(top)))
    });
    tokens.collect()
}

/// Returns the form of the older completions: lists with an entry per token. `offset` is the number of
/// characters of the answer before them.
pub(crate) fn as_lists(tokens: &[TokenLogprob], mut offset: usize) -> Value {
    let mut offsets = Vec::new();
    for token in tokens {
        offsets.push(offset);
        offset += token.token.chars().count();
    }
    let top: Vec<Map<String, Value>> = tokens
        .iter()
        .map(|token| {
            let top = token.top_logprobs.iter().flatten();
            top.map(|other| (other.token.clone(), json!(other.logprob))).collect()
        })
        .collect();
    json!({
        "tokens": tokens.iter().map(|token| &token.token).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": top,
        "text_offset": offsets,
    })
}

#[cfg(test)]
mod tests {
    use sparktune_sampling::protocol::Token;

    use super::*;

    #[test]
    fn tokens_are_told_with_their_alternatives() {
        let token = |id, logprob, top_logprobs| Token { id, logprob: Some(logprob), top_logprobs };
        let piece = Piece {
            tokens: vec![token(1, -0.5, vec![(1, -0.5), (2, -1.0)]), token(2, -0.1, vec![(2, -0.1)])],
            spelled: vec![(1, "é".to_owned()), (2, "\u{fffd}".to_owned())],
            ..Piece::default()
        };
        let tokens = of_piece(&piece);
        assert_eq!((tokens[0].token.as_str(), tokens[0].bytes.clone()), ("é", Some(vec![0xc3, 0xa9])));
        assert_eq!(tokens[1].bytes, None);
        assert_eq!(tokens[0].top_logprobs.as_ref().unwrap()[1].logprob, -1.0);
        let lists = as_lists(&tokens, 3);
        assert_eq!(lists["text_offset"], json!([3, 4]));
        assert_eq!(lists["top_logprobs"][0]["é"], json!(-0.5));
    }
}
