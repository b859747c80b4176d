//! The sections of `sparktune bench` that need no GPU: their names, and how much work each measures.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{BenchError, Row, log, screen, start, tokenising, tokens, train, validation};

/// A part of the program that is measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Start time.
    Start,
    /// Reading and checking JSON lines.
    Validation,
    /// Rendering and tokenising examples.
    Tokenising,
    /// Reading token files.
    Tokens,
    /// Packing examples and building the packs.
    Packing,
    /// Opening and following the log of a run.
    Log,
    /// Drawing the dashboard.
    Screen,
    /// Optimizer steps on the CPU.
    Train,
}

impl Section {
    /// All sections, in the order in which they are measured.
    pub const ALL: [Self; 8] = [
        Self::Start,
        Self::Validation,
        Self::Tokenising,
        Self::Tokens,
        Self::Packing,
        Self::Log,
        Self::Screen,
        Self::Train,
    ];

    /// The name to select it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Validation => "validation",
            Self::Tokenising => "tokenising",
            Self::Tokens => "tokens",
            Self::Packing => "packing",
            Self::Log => "log",
            Self::Screen => "screen",
            Self::Train => "train",
        }
    }

    /// One line of help.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Start => "Start-up time of the program",
            Self::Validation => "Checking JSON lines; with --peers, compared with Python's json.loads",
            Self::Tokenising => "Rendering and tokenising examples, compared with the tokenizers library",
            Self::Tokens => "Reading token files, compared with a memory copy",
            Self::Packing => "Packing examples and building the packs",
            Self::Log => "Opening the log of a long run, and following a live one",
            Self::Screen => "Time and size of the dashboard's frames",
            Self::Train => {
                "Optimizer steps on the CPU, LoRA and full; with --peers, compared with transformers and peft"
            }
        }
    }

    /// The section with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }

    fn measure(self, context: &Context) -> Result<Vec<Row>, BenchError> {
        match self {
            Self::Start => start::measure(context),
            Self::Validation => validation::measure(context),
            Self::Tokenising => tokenising::measure(context),
            Self::Tokens => tokens::measure_reading(context),
            Self::Packing => tokens::measure_packing(context),
            Self::Log => log::measure(context),
            Self::Screen => screen::measure(),
            Self::Train => train::measure(context),
        }
    }
}

/// The tools that the sections measure with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program itself: it is started to measure its start time, and trains in processes of its own.
    pub program: PathBuf,
    /// Folder with the tokenizer that is measured; without one that section says that it is skipped.
    pub tokenizer: Option<PathBuf>,
    /// A Python in which the peers run.
    pub peers: Option<PathBuf>,
    /// Less of everything: a few seconds in all, and less exact.
    pub quick: bool,
}

/// The amount of work in each measurement.
pub(crate) struct Size {
    pub(crate) starts: usize,
    pub(crate) validation_bytes: u64,
    pub(crate) validation_passes: usize,
    pub(crate) tokenising_bytes: u64,
    pub(crate) tokens: u64,
    pub(crate) logged_steps: u64,
    pub(crate) follow: Duration,
    /// Tokens of the one example that a training step is made on.
    pub(crate) train_tokens: usize,
    /// Rounds in which training alternates with its peer, and optimizer steps of each in a round.
    pub(crate) rounds: usize,
    pub(crate) steps_per_round: usize,
}

const WHOLE: Size = Size {
    starts: 21,
    validation_bytes: 512 << 20,
    validation_passes: 3,
    tokenising_bytes: 16 << 20,
    tokens: 32 << 20,
    logged_steps: 1_000_000,
    follow: Duration::from_secs(5),
    train_tokens: 1024,
    rounds: 5,
    steps_per_round: 2,
};
const QUICK: Size = Size {
    starts: 5,
    validation_bytes: 32 << 20,
    validation_passes: 1,
    tokenising_bytes: 1 << 20,
    tokens: 2 << 20,
    logged_steps: 20_000,
    follow: Duration::from_secs(1),
    train_tokens: 64,
    rounds: 1,
    steps_per_round: 1,
};

/// The input of every section.
pub(crate) struct Context<'a> {
    pub(crate) options: &'a Options,
    pub(crate) size: &'a Size,
    /// A folder for temporary files.
    pub(crate) folder: &'a Path,
    /// Receives what is being measured, or why it is not.
    pub(crate) note: &'a dyn Fn(&str),
}

/// Measures these sections, each once and in the order of [`Section::ALL`]; all of them if none is named.
/// `note` receives progress.
///
/// # Errors
/// There is too little disk space for the samples, a section fails, or a peer fails.
pub fn measure(sections: &[Section], options: &Options, note: &dyn Fn(&str)) -> Result<Vec<Row>, BenchError> {
    let folder = temporary_folder()?;
    let size = if options.quick { &QUICK } else { &WHOLE };
    let context = Context { options, size, folder: folder.path(), note };
    let mut rows = Vec::new();
    for section in Section::ALL.into_iter().filter(|one| sections.is_empty() || sections.contains(one)) {
        note(&format!("measuring {}", section.name()));
        let measured = section.measure(&context)?;
        rows.extend(measured.into_iter().map(|row| Row { section: section.name(), ..row }));
    }
    Ok(rows)
}

/// A folder for temporary files, which is removed in the end.
pub(crate) fn temporary_folder() -> Result<tempfile::TempDir, BenchError> {
    tempfile::Builder::new()
        .prefix("sparktune-bench-")
        .tempdir()
        .map_err(BenchError::io("create a folder in", &std::env::temp_dir()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn options() -> Options {
        Options { program: "true".into(), tokenizer: None, peers: None, quick: true }
    }

    #[test]
    fn every_section_is_found_by_its_name_and_by_no_other() {
        for section in Section::ALL {
            assert_eq!(Section::from_name(section.name()), Some(section));
        }
        assert_eq!(Section::from_name("everything"), None);
    }

    #[test]
    fn only_the_named_sections_are_measured_each_once_and_in_order() {
        let notes = RefCell::new(Vec::new());
        let chosen = [Section::Packing, Section::Start, Section::Packing];
        let rows = measure(&chosen, &options(), &|note| notes.borrow_mut().push(note.to_owned())).unwrap();
        let mut sections: Vec<&str> = rows.iter().map(|row| row.section).collect();
        sections.dedup();
        assert_eq!(sections, ["start", "packing"]);
        assert_eq!(*notes.borrow(), ["measuring start", "measuring packing"]);
    }

    #[test]
    fn without_a_tokenizer_that_section_is_skipped_with_a_reason() {
        let notes = RefCell::new(String::new());
        let rows = measure(&[Section::Tokenising], &options(), &|note| {
            notes.borrow_mut().push_str(note);
        });
        assert!(rows.unwrap().is_empty() && notes.borrow().contains("--model"), "{notes:?}");
    }
}
