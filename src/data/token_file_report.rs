//! What `check` and `prepare` find out about a token file that is the data, for `report.json` and as text.

use std::fmt;

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, counted};

/// One token file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenFileReport {
    /// The name that the user gave.
    pub name: String,
    /// Whether it was given as eval data.
    pub eval: bool,
    /// The version of its format, 1 or 2.
    pub version: u32,
    /// The size on disk in bytes.
    pub bytes: u64,
    /// Intact examples.
    pub examples: u64,
    /// Intact examples without a trained token, which are left out.
    pub untrained: u64,
    /// Lines of the text whose content hash the file does not have.
    pub unhashed_lines: u64,
    /// The hash of the tokenizer that made its tokens, if the file has it.
    pub tokenizer: Option<String>,
    /// The hash of the chat template, if the file has it.
    pub template: Option<String>,
    /// The settings that made its tokens, as text; empty if the file does not say.
    pub policy: String,
    /// The first of the files that it was made of.
    pub sources: Vec<String>,
    /// The number of defects.
    pub defects: u64,
    /// Whether damaged examples are left out, so that the others are used.
    pub drops_damaged: bool,
    /// The first defects with their places.
    pub first_defects: Vec<String>,
}

impl TokenFileReport {
    /// Returns whether the file cannot be used because of its damage.
    pub fn is_refused(&self) -> bool {
        self.defects > 0 && !self.drops_damaged
    }

    /// Returns notes on what differs from a run on the text that the file was made of, one escaped line each.
    pub(crate) fn findings(&self) -> Vec<String> {
        let name = escape(&self.name);
        let mut notes = Vec::new();
        if self.version == 1 {
            notes.push(format!(
                "{name} is a v1 file and has no loss mask: every token of an example except the first is trained, prompts too"
            ));
        }
        if self.tokenizer.is_none() {
            notes.push(format!(
                "{name} does not say which tokenizer made its tokens, so nothing checks that they are the model's"
            ));
        }
        if self.unhashed_lines > 0 {
            notes.push(format!(
                "{name} has no hash of the text of {}, so a hash of the tokens decides whether they are trained or evaluated",
                counted(self.unhashed_lines, "line")
            ));
        }
        if self.defects > 0 && self.drops_damaged {
            notes.push(format!(
                "damaged examples of {name} left out, as data.on_damage says: {} found",
                counted(self.defects, "defect")
            ));
        }
        if self.untrained > 0 {
            notes.push(format!(
                "{} of {name} without a trained token left out",
                counted(self.untrained, "example")
            ));
        }
        notes
    }
}

/// Formats the file, its origin and its damage, one line each.
impl fmt::Display for TokenFileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.eval { ", eval" } else { "" };
        writeln!(
            f,
            "{} (token file, version {}{side}): {}, {}",
            escape(&self.name),
            self.version,
            bytes(self.bytes),
            counted(self.examples, "example")
        )?;
        if let Some((first, rest)) = self.sources.split_first()
            && self.version > 1
        {
            let more = if rest.is_empty() { "" } else { " and others" };
            writeln!(f, "  made of {}{more}", escape(first))?;
        }
        if !self.policy.is_empty() {
            writeln!(f, "  made with {}", escape(&self.policy))?;
        }
        if self.defects > 0 {
            writeln!(f, "  damaged: {}", counted(self.defects, "defect"))?;
        }
        for defect in &self.first_defects {
            writeln!(f, "    {}", escape(defect))?;
        }
        let more = self.defects.saturating_sub(self.first_defects.len() as u64);
        if more > 0 {
            writeln!(f, "    and {} more", count(more))?;
        }
        Ok(())
    }
}
