//! Opens full screens one after the other, and carries out what was chosen on them.
//!
//! Enters: answers, or a folder of runs. Leaves: how the wizard ended; everything else is done by then.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use sparktune_app::draft::kept_draft;
use sparktune_app::failure::Failure;
use sparktune_app::program::Program;
use sparktune_app::{launch, runs};
use sparktune_base::escape::escape;
use sparktune_base::units::bytes;
use sparktune_plan::Answers;
use sparktune_runlog::{RunDir, RunsRoot};

use crate::dashboard::Dashboard;
use crate::runs_list::{RunAction, RunsList};
use crate::screen::{App, Frame, Input, Left, Next, Terminal, Theme, run};
use crate::wizard::backend::Backend;
use crate::wizard::{Outcome, Setup, Wizard};

/// The terminal as a screen, until dropped.
pub struct Screens {
    terminal: Terminal,
    theme: Theme,
    /// A signal asks the process to end.
    quit: Arc<AtomicBool>,
}

/// How a wizard ended.
#[derive(Debug, PartialEq, Eq)]
pub enum WizardEnd {
    /// It started this run; the dashboard was shown and left.
    Started(RunDir),
    /// It was left, and its answers are kept for the next one.
    DraftKept,
    /// It was left, and there was nothing to keep.
    Left,
}

impl Screens {
    /// Takes the screen.
    ///
    /// # Errors
    /// The terminal cannot be set.
    pub fn open() -> Result<Self, Failure> {
        let quit = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, quit.clone())
                .map_err(|error| Failure::usage(format!("cannot handle signals: {error}")))?;
        }
        let theme = Theme::from_env(|name| std::env::var(name).ok());
        let terminal = Terminal::enter().map_err(|error| {
            Failure::usage(format!("cannot set the terminal: {error}"))
                .hint("--plain asks and reports line by line")
        })?;
        Ok(Self { terminal, theme, quit })
    }

    fn show(&mut self, app: &mut dyn App) -> Result<Left, Failure> {
        Ok(run(&mut self.terminal, &self.theme, &self.quit, app)?)
    }

    /// Shows the dashboard of a run, until it is left.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn dashboard(&mut self, run: &RunDir) -> Result<Left, Failure> {
        let beside = run.path().parent().map(RunsRoot::new);
        self.show(&mut Dashboard::open(run.clone(), beside))
    }

    /// Shows the list of runs, and carries out what is chosen there.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn runs(&mut self, program: &Program, root: &RunsRoot) -> Result<(), Failure> {
        let (sender, messages) = mpsc::channel();
        let mut list = ListWithMessages { list: RunsList::new(root.clone()), messages };
        loop {
            if self.show(&mut list)? == Left::Called {
                return Ok(());
            }
            match list.list.requested() {
                None | Some(RunAction::Leave) => return Ok(()),
                Some(RunAction::Watch(run)) => {
                    if self.dashboard(&run)? == Left::Called {
                        return Ok(());
                    }
                }
                Some(RunAction::Resume(run)) => match launch::resume(program, &run) {
                    Ok(()) => list.list.say(&format!("{} continues; Enter watches it", run.name())),
                    Err(failure) => list.list.say(&failure.to_string()),
                },
                Some(RunAction::Export(run)) => {
                    list.list.say(&format!("{}: writing the outputs again …", run.name()));
                    export(program.clone(), run, sender.clone());
                }
                Some(RunAction::Delete(run)) => {
                    let name = run.name();
                    match run.delete() {
                        Ok(freed) => list.list.say(&format!("{name} is deleted; it freed {}", bytes(freed))),
                        Err(error) => list.list.say(&error.to_string()),
                    }
                }
            }
        }
    }

    /// Shows the wizard; when it has started a run, the dashboard of that run.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn wizard(mut self, program: &Program, answers: Answers) -> Result<WizardEnd, Failure> {
        let (request_sender, requests) = mpsc::channel();
        let (response_sender, responses) = mpsc::channel();
        Backend::spawn(program.clone(), requests, response_sender, &answers);
        let folder = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let home = std::env::var_os("HOME").map(Into::into);
        let setup = Setup { answers, draft: kept_draft(), folder, home };
        let mut wizard = Wizard::new(setup, request_sender, responses);
        let left = self.show(&mut wizard)?;
        let run = match wizard.outcome() {
            Some(Outcome::Started(folder)) => RunDir::open(folder)?,
            Some(Outcome::Left { draft_kept: true }) => return Ok(WizardEnd::DraftKept),
            Some(Outcome::Left { draft_kept: false }) | None => return Ok(WizardEnd::Left),
        };
        // The threads of the backend end with the wizard.
        drop(wizard);
        if left == Left::ByApp {
            self.dashboard(&run)?;
        }
        Ok(WizardEnd::Started(run))
    }
}

/// The list of runs, with messages about what takes a while.
struct ListWithMessages {
    list: RunsList,
    messages: Receiver<String>,
}

impl App for ListWithMessages {
    fn update(&mut self, input: Input) -> Next {
        let is_tick = input == Input::Tick;
        let next = self.list.update(input);
        // Not after a key: its own message could not be read, and a message taken while leaving would be
        // lost.
        if !is_tick || next == Next::Leave {
            return next;
        }
        match self.messages.try_recv() {
            Ok(message) => {
                self.list.say(&message);
                Next::Draw
            }
            Err(_) => next,
        }
    }

    fn view(&self, frame: &mut Frame<'_>, theme: &Theme) {
        self.list.view(frame, theme);
    }
}

/// Writes the outputs of a run again on a thread, and sends a message about it.
fn export(program: Program, run: RunDir, messages: Sender<String>) {
    std::thread::spawn(move || {
        let name = run.name();
        let message = match runs::export_in_process(&program, &run) {
            Ok(()) => format!("{name}: the outputs were written again"),
            Err(failure) => format!("{name}: {failure}"),
        };
        // The list may have been left; the outputs are there all the same.
        let _ = messages.send(escape(&message).into_owned());
    });
}
