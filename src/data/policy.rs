//! The policy of a token file: everything except the tokenizer, the template and the text that determines its
//! tokens, its loss masks and its examples.
//!
//! It is stored in the file's header as text ([`Header::policy`](crate::token_file::Header::policy)), so that
//! people can read it. [`Policy::text`] writes it and [`Policy::parse`] reads it back.

use serde::{Deserialize, Serialize};
use sparktune_base::choices::{Overlong, TrainOn};
use sparktune_base::field_map::FieldMap;

use crate::examples::ExampleOptions;
use crate::format::Format;
use crate::template::TemplateKwargs;
use crate::turns::MaskPolicy;

/// Has to be increased when the same inputs would be tokenised, masked or reported on differently than
/// before.
const VERSION: u32 = 4;
/// The oldest version that makes the same tokens, masks and examples as this one, and writes policies in the
/// same words.
pub const SAME_TOKENS_SINCE: u32 = 4;

/// The ends of the text that say that raw text is left out if it is too long, that its pieces may be longer
/// than usual, and what the columns stand for.
const TEXT_IS_DROPPED: &str = "; text is dropped";
const LONG_PIECES: &str = "; long_pieces";
const MAP: &str = "; map=";

/// The settings that determine tokens, loss masks and examples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Which tokens of a turn are trained.
    pub mask: MaskPolicy,
    /// How a conversation becomes examples.
    pub examples: ExampleOptions,
    /// The variables with which the chat template is rendered.
    pub template_kwargs: TemplateKwargs,
    /// The number of tokens above which an example is too long.
    pub max_example_tokens: Option<u32>,
    /// The format of every file, or `None` if it is detected per file.
    pub format: Option<Format>,
    /// What the columns of foreign data stand for.
    pub map: FieldMap,
}

impl Policy {
    /// Returns the policy as text. `eval` says which examples are in the eval set.
    pub(crate) fn text(&self, eval: &str) -> String {
        let limit = self.max_example_tokens.map_or("none".to_owned(), |limit| limit.to_string());
        // The spelling of the first version is kept: with another one, no token file would be current.
        let format = self.format.map_or("detected", Format::name).replace('-', "_");
        let ExampleOptions { train_on, split_turns, overlong, long_pieces: _ } = self.examples;
        let kwargs = serde_json::json!(self.template_kwargs);
        // A setting that the first versions did not know is written only where it changes something, so that
        // token files that were made without it stay current.
        let (overlong, mut more) = match overlong {
            Overlong::Auto => (Overlong::Drop, String::new()),
            Overlong::Drop => (Overlong::Drop, TEXT_IS_DROPPED.to_owned()),
            other => (other, String::new()),
        };
        let pieces = self.examples.piece_tokens(self.max_example_tokens);
        if pieces != ExampleOptions::default().piece_tokens(self.max_example_tokens) {
            more.push_str(LONG_PIECES);
        }
        if !self.map.is_empty() {
            more.push_str(&format!("{MAP}{}", self.map));
        }
        format!(
            "v{VERSION}; empty_think={}; template_kwargs={kwargs}; max_example_tokens={limit}; format={format}; eval={eval}; train_on={train_on}; split_turns={split_turns}; overlong={overlong}{more}",
            self.mask.think
        )
    }

    /// Reads the text of a policy. Returns `None` if it is from a version whose tokens may differ under the
    /// same settings.
    pub fn parse(text: &str) -> Option<Self> {
        let (version, rest) = text.strip_prefix('v')?.split_once("; empty_think=")?;
        if !(SAME_TOKENS_SINCE..=VERSION).any(|same| version == same.to_string()) {
            return None;
        }
        let (think, rest) = rest.split_once("; template_kwargs=")?;
        // The variables may contain the separators of the text, so their JSON decides where they end.
        let mut json = serde_json::Deserializer::from_str(rest).into_iter::<TemplateKwargs>();
        let template_kwargs = json.next()?.ok()?;
        let rest = rest.get(json.byte_offset()..)?.strip_prefix("; max_example_tokens=")?;
        let (limit, rest) = rest.split_once("; format=")?;
        let (format, rest) = rest.split_once("; eval=")?;
        let (_, rest) = rest.split_once("; train_on=")?;
        let (train_on, rest) = rest.split_once("; split_turns=")?;
        let (split_turns, rest) = rest.split_once("; overlong=")?;
        // The names of columns may contain anything, so they come last.
        let (rest, map) = match rest.split_once(MAP) {
            Some((rest, map)) => (rest, map.parse().ok()?),
            None => (rest, FieldMap::default()),
        };
        let (rest, long_pieces) = match rest.strip_suffix(LONG_PIECES) {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let overlong = match rest.strip_suffix(TEXT_IS_DROPPED) {
            Some("drop") => Overlong::Drop,
            Some(_) => return None,
            None => match rest.parse().ok()? {
                Overlong::Auto => return None,
                Overlong::Drop => Overlong::Auto,
                other => other,
            },
        };
        let format = match format {
            "detected" => None,
            name => Some(Format::ALL.into_iter().find(|format| format.name().replace('-', "_") == name)?),
        };
        let train_on: TrainOn = train_on.parse().ok()?;
        Some(Self {
            mask: MaskPolicy { think: think.parse().ok()? },
            examples: ExampleOptions {
                train_on,
                split_turns: split_turns.parse().ok()?,
                overlong,
                long_pieces,
            },
            template_kwargs,
            max_example_tokens: if limit == "none" { None } else { Some(limit.parse().ok()?) },
            format,
            map,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sparktune_base::choices::Think;

    use super::*;

    fn policies() -> impl Strategy<Value = Policy> {
        let words = prop::collection::btree_map("\\PC{0,12}|; train_on=|\"}", "\\PC{0,12}|; eval=", 0..3);
        let choices = (0usize..2, 0usize..2, 0usize..Overlong::ALL.len(), any::<bool>());
        (choices, words, prop::option::of(any::<u32>()), prop::option::of(0usize..4)).prop_map(
            |((think, train_on, overlong, split_turns), words, max_example_tokens, format)| Policy {
                mask: Think::ALL[think].into(),
                examples: ExampleOptions {
                    train_on: TrainOn::ALL[train_on],
                    split_turns,
                    overlong: Overlong::ALL[overlong],
                    long_pieces: false,
                },
                template_kwargs: words.into_iter().map(|(name, word)| (name, word.into())).collect(),
                max_example_tokens,
                format: format.map(|format| Format::ALL[format]),
                map: if split_turns {
                    "q; x=prompt,a=completion".parse().unwrap()
                } else {
                    FieldMap::default()
                },
            },
        )
    }

    proptest! {
        #[test]
        fn a_policy_is_read_back_from_its_text_whatever_the_variables_contain(
            policy in policies(), eval in "none|split fraction=0.02 min=8 seed=0|files from 3",
        ) {
            prop_assert_eq!(Policy::parse(&policy.text(&eval)), Some(policy));
        }

        #[test]
        fn any_other_text_is_no_policy_and_no_panic(text in "\\PC{0,200}", cut in 0usize..400) {
            prop_assert_eq!(Policy::parse(&text), None);
            let whole = Policy::default().text("none");
            let cut = whole.floor_char_boundary(cut);
            prop_assert_eq!(Policy::parse(&whole[..cut]).is_some(), cut == whole.len());
        }
    }

    #[test]
    fn the_policies_of_token_files_in_circulation_keep_their_spelling() {
        let text = "v4; empty_think=train; template_kwargs={}; max_example_tokens=none; format=prompt_completion; eval=none; train_on=all; split_turns=false; overlong=drop";
        let policy = Policy { format: Some(Format::PromptCompletion), ..Policy::default() };
        assert_eq!(policy.text("none"), text);
        let of = |version: &str| Policy::parse(&text.replacen("v4", version, 1));
        assert_eq!(of("v4"), Some(policy));
        for older in ["v1", "v2", "v3"] {
            let why = "version 4 trains an end of text that the tokenizer adds, and reads more of ShareGPT";
            assert_eq!(of(older), None, "{older}: {why}");
        }
        for other in ["v5", "v04", "v"] {
            assert_eq!(of(other), None, "{other}");
        }
        let first = "v1; empty_think=skip; preserve_thinking=default; max_example_tokens=4096; format=detected; eval=split fraction=0.02 min=8 seed=0";
        assert_eq!(Policy::parse(first), None, "version 1 rendered conversations differently");
    }
}
