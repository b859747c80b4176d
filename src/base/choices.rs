//! Enumerated choices, each with its word for flags, TOML and the environment.

/// Defines an enum of a setting's choices, with the word of each for users and files.
#[macro_export]
macro_rules! choice {
    ($(#[$about:meta])+ $name:ident { $($(#[$doc:meta])+ $variant:ident = $word:literal,)+ }) => {
        $(#[$about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name { $($(#[$doc])+ #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// All choices, in display order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Their words, in the same order.
            pub const WORDS: &[&str] = &[$($word),+];

            /// Returns the word that a user types.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("expected {}", $crate::choices::one_of(Self::WORDS))),
                }
            }
        }
    };
}

/// Formats the words as a phrase: `bfd or stream`.
pub fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).into(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

choice! {
    /// How examples share a pack.
    PackStrategy {
        /// Best-fit decreasing: whole examples, each in the fullest pack that still has room. An example over
        /// the pack length gets a pack of its own.
        Bfd = "bfd",
        /// Examples one after another, split wherever a pack is full, as in the Qwen3.5 recipe. The pieces of
        /// a split example do not attend to each other.
        Stream = "stream",
    }
}

choice! {
    /// Whether the empty `<think></think>` that a chat template inserts before an answer is trained.
    Think {
        /// It is a target like the answer, so the model learns not to think.
        Train = "train",
        /// It is context, so the model learns only the answer.
        Skip = "skip",
    }
}

choice! {
    /// The assistant turns of a conversation that are trained.
    #[derive(Default)]
    TrainOn {
        /// Every one.
        #[default]
        All = "all",
        /// The last one; the earlier ones are context.
        Last = "last",
    }
}

choice! {
    /// What becomes of an example with more tokens than the limit.
    #[derive(Default)]
    Overlong {
        /// Raw text is split, anything else is left out.
        #[default]
        Auto = "auto",
        /// It is left out.
        Drop = "drop",
        /// It ends at the limit: its beginning is kept, and only tokens before the limit are trained.
        Truncate = "truncate",
        /// A conversation becomes several examples of whole turns, each after the system turn. Raw text is
        /// cut at the limit, and each token is trained once.
        Split = "split",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_written_and_shown_by_its_word() {
        assert_eq!(PackStrategy::WORDS, ["bfd", "stream"]);
        for choice in PackStrategy::ALL {
            assert_eq!(choice.word().parse(), Ok(*choice));
            assert_eq!(serde_json::to_string(choice).unwrap(), format!("\"{choice}\""));
        }
        assert_eq!("best".parse::<PackStrategy>(), Err("expected bfd or stream".to_owned()));
    }
}
