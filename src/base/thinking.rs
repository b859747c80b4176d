//! What a chat template does about thinking, and how data is therefore rendered and trained.
//!
//! Enters: the opening of an answer, as a server writes it before the model's text, and whether any example
//! reasons. Leaves: the value of the template's variable `enable_thinking`, and whether an empty think block
//! is trained. Together they make the trained text what the server's prompt leads to. Pure: this file must
//! not know templates or files.

use serde::{Deserialize, Serialize};

use crate::choices::Think;

/// What the opening of an answer says about thinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Opening {
    /// Nothing: the model writes a think block itself, or none.
    #[default]
    Silent,
    /// It opens a think block, in which the model goes on.
    Open,
    /// It contains a whole think block, behind which the model answers at once.
    Closed,
}

impl Opening {
    /// Returns what the text of an opening says.
    pub fn of(text: &str) -> Self {
        match text.rfind("<think>") {
            None => Self::Silent,
            Some(at) if text[at..].contains("</think>") => Self::Closed,
            Some(_) => Self::Open,
        }
    }
}

/// The openings of a chat template by the value of its variable `enable_thinking`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Openings {
    /// Without a value.
    pub untold: Opening,
    /// With true.
    pub on: Opening,
    /// Whether true and false make a difference.
    pub can_switch: bool,
}

impl Openings {
    /// Returns the value of `enable_thinking` for data, or `None` if the template is to decide. `reasons`
    /// says whether any example reasons.
    pub fn enable_thinking(self, reasons: bool) -> Option<bool> {
        let is_off = self.untold == Opening::Closed && self.on != Opening::Closed;
        if reasons {
            // A server that is not told would never let the model reason.
            (self.can_switch && is_off).then_some(true)
        } else {
            self.can_switch.then_some(false)
        }
    }
}

/// What a chat template does about thinking with the variables that it is rendered with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinking {
    /// Whether it inserts an empty think block before an answer without reasoning.
    pub inserts_block: bool,
    /// What the opening of an answer says.
    pub opening: Opening,
}

impl Thinking {
    /// Returns whether the empty think block has to be trained, because the model has to write it, or part of
    /// it, behind the server's prompt. Where no block is inserted, nothing depends on it.
    pub fn think(self) -> Think {
        if self.inserts_block && self.opening != Opening::Closed { Think::Train } else { Think::Skip }
    }

    /// Returns the reason for [`think`](Self::think) as a clause.
    pub fn reason(self) -> &'static str {
        match (self.inserts_block, self.opening) {
            (false, _) => "the chat template adds no empty think block, so there is nothing to train or skip",
            (true, Opening::Closed) => "a server's prompt contains the empty think block, so it is context",
            (true, Opening::Open) => {
                "a server's prompt opens a think block, so the model has to learn to close it before an answer without reasoning"
            }
            (true, Opening::Silent) => {
                "a server's prompt ends before the think block, so the model has to learn to write the empty one itself"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENS: &str = "<|im_start|>assistant\n<think>\n";
    const CLOSES: &str = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    const SAYS_NOTHING: &str = "<|im_start|>assistant\n";

    /// A template by its openings without `enable_thinking`, with true and with false.
    struct Template {
        inserts_block: bool,
        openings: [&'static str; 3],
    }

    /// Qwen3.5 from 4B on, and the demo.
    const THINKS: Template = Template { inserts_block: true, openings: [OPENS, OPENS, CLOSES] };
    /// Qwen3.5 up to 2B.
    const THINKS_IF_TOLD: Template = Template { inserts_block: true, openings: [CLOSES, OPENS, CLOSES] };
    /// Qwen3: untold, the model opens the block itself.
    const LEAVES_IT_TO_THE_MODEL: Template =
        Template { inserts_block: true, openings: [SAYS_NOTHING, SAYS_NOTHING, CLOSES] };
    const ALWAYS_THINKS: Template = Template { inserts_block: true, openings: [OPENS; 3] };
    const NEVER_THINKS: Template = Template { inserts_block: true, openings: [CLOSES; 3] };
    /// Qwen2.5, Llama and Gemma.
    const KNOWS_NO_THINKING: Template = Template { inserts_block: false, openings: [SAYS_NOTHING; 3] };

    #[test]
    fn a_servers_prompt_leads_to_the_trained_text_with_every_kind_of_template_and_data() {
        use Think::{Skip, Train};
        // Data in which every example reasons is treated as data in which some do: what differs between them
        // are the empty blocks, of which it has none.
        let (none, some) = (false, true);
        for (template, reasons, told, think, prompt) in [
            (&THINKS, none, Some(false), Skip, CLOSES),
            (&THINKS, some, None, Train, OPENS),
            (&THINKS_IF_TOLD, none, Some(false), Skip, CLOSES),
            (&THINKS_IF_TOLD, some, Some(true), Train, OPENS),
            (&LEAVES_IT_TO_THE_MODEL, none, Some(false), Skip, CLOSES),
            (&LEAVES_IT_TO_THE_MODEL, some, None, Train, SAYS_NOTHING),
            (&ALWAYS_THINKS, none, None, Train, OPENS),
            (&ALWAYS_THINKS, some, None, Train, OPENS),
            (&NEVER_THINKS, none, None, Skip, CLOSES),
            (&NEVER_THINKS, some, None, Skip, CLOSES),
            (&KNOWS_NO_THINKING, none, None, Skip, SAYS_NOTHING),
            (&KNOWS_NO_THINKING, some, None, Skip, SAYS_NOTHING),
        ] {
            let [untold, on, off] = template.openings;
            let openings =
                Openings { untold: Opening::of(untold), on: Opening::of(on), can_switch: on != off };
            let enable = openings.enable_thinking(reasons);
            let sent = match enable {
                None => untold,
                Some(true) => on,
                Some(false) => off,
            };
            let thinking = Thinking { inserts_block: template.inserts_block, opening: Opening::of(sent) };
            assert_eq!((enable, thinking.think(), sent), (told, think, prompt), "{untold:?}, {reasons}");

            // What a turn without reasoning looks like, and where the trained part of it begins.
            let header = if template.inserts_block { CLOSES } else { SAYS_NOTHING };
            let begins = if think == Train { SAYS_NOTHING.len() } else { header.len() };
            let turn = format!("{header}Answer");
            assert!(turn.starts_with(sent), "the server's prompt leads to the turn");
            assert!(sent.len() >= begins, "everything behind the prompt is trained");
        }
    }

    #[test]
    fn an_opening_is_known_by_its_last_think_block() {
        assert_eq!(Opening::of(SAYS_NOTHING), Opening::Silent);
        assert_eq!(Opening::of(OPENS), Opening::Open);
        assert_eq!(Opening::of(CLOSES), Opening::Closed);
        assert_eq!(Opening::of("<think></think>\n<think>"), Opening::Open);
    }
}
