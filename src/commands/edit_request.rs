//! What is asked for of facts, the text beside them, and what is told while they are worked on.

use std::path::PathBuf;

use sparktune_app::failure::Failure;
use sparktune_app::folders::demo_folder;
use sparktune_base::units::counted;
use sparktune_edit::text::{Document, documents};
use sparktune_edit::{Rendering, Stage};
use sparktune_tui::output::note;

use crate::failure::from_editing;
use crate::interrupt::Interrupts;

/// Facts to write, as the flags say.
#[derive(Debug, Clone)]
pub struct FactsRequest {
    /// The folder of the model.
    pub model: PathBuf,
    /// The file of facts.
    pub facts: PathBuf,
    /// The name of the method, or `auto`.
    pub method: String,
    /// The layers; without any, the method's own.
    pub layers: Vec<usize>,
    /// Whether prompts are rendered by the chat template.
    pub chat: bool,
    /// The file of ordinary text.
    pub text: Option<PathBuf>,
    /// The name of the patch.
    pub name: Option<String>,
    /// The folder to write.
    pub output: Option<PathBuf>,
    /// The base, if it has moved.
    pub base: Option<PathBuf>,
    /// Whether an edit is kept that damages the model.
    pub force: bool,
    /// Whether facts are written that the model knows.
    pub write_known: bool,
    /// The name of a general suite.
    pub suite: Option<String>,
    /// The folder of the runs, if a flag names it.
    pub runs_dir: Option<PathBuf>,
    /// What is done with the facts.
    pub aim: Aim,
}

/// What is done with facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Aim {
    /// They are written into the model.
    #[default]
    Edit,
    /// The layers that recall what the model says of their subjects are looked for.
    Trace,
    /// It is measured how well they hold.
    Measure(Table),
}

/// What is measured, as flags say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// The numbers of facts.
    pub counts: Vec<usize>,
    /// The names of the ways that are left out.
    pub without: Vec<String>,
}

/// Returns how the prompts of a request are read.
pub(crate) fn rendering(request: &FactsRequest) -> Rendering {
    if request.chat { Rendering::Chat } else { Rendering::Raw }
}

/// Returns the documents of the text that a request names, or of the demo's chats.
pub(crate) fn text_of(request: &FactsRequest) -> Result<Vec<Document>, Failure> {
    let file = match &request.text {
        Some(file) => file.clone(),
        None => default_text()?,
    };
    documents(&file).map_err(from_editing)
}

/// Says on standard error what is being done, once for each stage.
pub(crate) struct Told<'a> {
    interrupts: &'a Interrupts,
    last: Option<Stage>,
}

impl<'a> Told<'a> {
    pub(crate) fn new(interrupts: &'a Interrupts) -> Self {
        Self { interrupts, last: None }
    }

    /// Says what is being done, and returns whether to go on.
    pub(crate) fn tell(&mut self, stage: Stage) -> bool {
        if let Stage::Note(words) = &stage {
            note(&format!("note: {words}"));
        } else if self.last.as_ref() != Some(&stage) {
            match &stage {
                Stage::Before => note("asking the model before the edit"),
                Stage::Tracing => note("tracing a few facts for the layer that recalls them"),
                Stage::Statistics => note("computing the covariance of the text's keys"),
                Stage::Facts(0) => note("searching for values"),
                Stage::Facts(done) if !is_round(*done) => {}
                Stage::Facts(done) => note(&format!("{} done", counted(*done as u64, "fact"))),
                Stage::Note(_) => {}
                Stage::Writing => note("writing the model"),
                Stage::Judging => note("asking the model after the edit"),
            }
            self.last = Some(stage);
        }
        self.interrupts.count() == 0
    }
}

/// Returns whether a number of facts is worth a line: each of the first ten, each tenth of the first hundred,
/// and each hundredth.
fn is_round(done: usize) -> bool {
    match done {
        0..10 => true,
        10..100 => done.is_multiple_of(10),
        _ => done.is_multiple_of(100),
    }
}

/// Returns the demo's chats.
fn default_text() -> Result<PathBuf, Failure> {
    let demo = demo_folder().map(|folder| folder.join("train.jsonl")).filter(|file| file.is_file());
    demo.ok_or_else(|| {
        Failure::usage("the demo's chats were not found next to the program")
            .hint("Name ordinary text with --text: a text file, or lines of JSON")
    })
}
