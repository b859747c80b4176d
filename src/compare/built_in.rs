//! The suites that are part of the program, in `presets/suites`.

use crate::suite::Suite;

/// A suite that is part of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in a sentence.
    pub about: &'static str,
    /// Its lines.
    pub jsonl: &'static str,
}

/// All of them. The first one is asked if the user names none.
pub const SUITES: [BuiltIn; 4] = [
    BuiltIn {
        name: "instructions",
        about: "Does the model follow instructions about the form of an answer?",
        jsonl: include_str!("../../presets/suites/instructions.jsonl"),
    },
    BuiltIn {
        name: "arithmetic",
        about: "Does it compute with small numbers, in plain questions and in short stories?",
        jsonl: include_str!("../../presets/suites/arithmetic.jsonl"),
    },
    BuiltIn {
        name: "coding",
        about: "Does it write, complete, repair, explain and test small Python functions, and SQL?",
        jsonl: include_str!("../../presets/suites/coding.jsonl"),
    },
    BuiltIn {
        name: "demo",
        about: "Does it answer as the demo's workshop does? Chats that the demo holds out from training.",
        jsonl: include_str!("../../presets/suites/demo.jsonl"),
    },
];

impl BuiltIn {
    /// Returns the suite of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SUITES.iter().find(|suite| suite.name == name)
    }

    /// Reads the suite.
    pub fn suite(&self) -> Suite {
        Suite::read(self.name, self.jsonl.as_bytes()).expect("a test reads every suite of the program")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_of_the_program_can_be_read_and_says_the_same_of_itself() {
        for built_in in SUITES {
            let suite = Suite::read(built_in.name, built_in.jsonl.as_bytes()).unwrap();
            assert_eq!((suite.name.as_str(), suite.about.as_str()), (built_in.name, built_in.about));
            assert!(suite.prompts.len() >= 10, "{}: {} prompts", suite.name, suite.prompts.len());
            assert!(suite.prompts.iter().all(|prompt| !prompt.checks.is_empty()), "{}", suite.name);
            assert_eq!(suite.has_code(), suite.name == "coding");
        }
        assert_eq!(BuiltIn::named("coding").map(|suite| suite.name), Some("coding"));
        assert_eq!(BuiltIn::named("nothing"), None);
    }
}
