//! The sections of `sparktune bench` that need no GPU: their names, and how much work each measures.

use crate::context::{Context, Options, QUICK, WHOLE};
use crate::error::BenchError;
use crate::row::Row;
use crate::{cluster, edit, loading, log, plain_text, screen, start, tokenising, tokens, train, validation};

/// A part of the program that is measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Start time.
    Start,
    /// Reading and checking JSON Lines.
    Validation,
    /// Rendering and tokenising examples.
    Tokenising,
    /// Reading token files.
    Tokens,
    /// Loading token files: reading them, building rows, and version 1.
    Loading,
    /// Packing examples and building the packs.
    Packing,
    /// Opening and following the log of a run.
    Log,
    /// Drawing the dashboard.
    Screen,
    /// Optimizer steps on the CPU.
    Train,
    /// One fact written into the weights of a model.
    Edit,
    /// Sums over ranks by each engine.
    Cluster,
}

impl Section {
    /// All sections, in the order in which they are measured.
    pub const ALL: [Self; 11] = [
        Self::Start,
        Self::Validation,
        Self::Tokenising,
        Self::Tokens,
        Self::Loading,
        Self::Packing,
        Self::Log,
        Self::Screen,
        Self::Train,
        Self::Edit,
        Self::Cluster,
    ];

    /// The name to select it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Validation => "validation",
            Self::Tokenising => "tokenising",
            Self::Tokens => "tokens",
            Self::Loading => "loading",
            Self::Packing => "packing",
            Self::Log => "log",
            Self::Screen => "screen",
            Self::Train => "train",
            Self::Edit => "edit",
            Self::Cluster => "cluster",
        }
    }

    /// One line of help.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Start => "Start-up time of the program",
            Self::Validation => "Checking JSON Lines; with --peers, compared with Python's json.loads",
            Self::Tokenising => "Rendering and tokenising examples, compared with the tokenizers library",
            Self::Tokens => "Reading token files, compared with a memory copy",
            Self::Loading => "Loading, cold and warm, against memory copies; with --peers, QubGPU's way",
            Self::Packing => "Packing examples and building the packs",
            Self::Log => "Opening the log of a long run, and following a live one",
            Self::Screen => "Time and size of the dashboard's frames",
            Self::Train => {
                "Optimizer steps on the CPU, LoRA and full; with --peers, compared with transformers and peft"
            }
            Self::Edit => "One fact written into the weights of a small model",
            Self::Cluster => {
                "Sums over ranks: over TCP, by NCCL, and in the network by a thread and by the kernel"
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
            Self::Tokenising => match &context.options.plain_text {
                Some(input) => plain_text::measure(context, input),
                None => tokenising::measure(context),
            },
            Self::Tokens => tokens::measure_reading(context),
            Self::Loading => loading::measure(context),
            Self::Packing => tokens::measure_packing(context),
            Self::Log => log::measure(context),
            Self::Screen => screen::measure(),
            Self::Train => train::measure(context),
            Self::Edit => edit::measure(context),
            Self::Cluster => cluster::measure(context),
        }
    }
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
        Options { program: "true".into(), tokenizer: None, plain_text: None, peers: None, quick: true }
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
