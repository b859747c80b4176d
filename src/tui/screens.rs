//! Opens full screens one after the other, and carries out the chosen actions.
//!
//! Enters: answers, or a folder of runs. Leaves: how the wizard ended; everything else is done here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sparktune_app::chat::Settings;
use sparktune_app::chat::history::Earlier;
use sparktune_app::chat::recommended::Wishes;
use sparktune_app::draft::kept_draft;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::Decoding;
use sparktune_app::models::{OpenableModel, demo_model, find_named};
use sparktune_app::program::Program;
use sparktune_app::{launch, runs};
use sparktune_base::escape::escape;
use sparktune_base::units::bytes;
use sparktune_plan::Answers;
use sparktune_runlog::{RunDir, RunsRoot};
use sparktune_sampling::SamplingParams;

use crate::chat::{ChatScreen, backend};
use crate::dashboard::{Dashboard, Wish};
use crate::runs_list::{RunAction, RunsList};
use crate::screen::{App, Frame, Input, Left, Next, Terminal, Theme, end_by_signal, run};
use crate::wizard::backend::Backend;
use crate::wizard::{Begin, Outcome, Setup, Wizard};

/// The largest number of tokens of an answer in a chat that is opened from a dashboard.
const LONGEST_ANSWER: u32 = 512;

/// The terminal as a full screen, until it is dropped.
pub struct Screens {
    terminal: Terminal,
    theme: Theme,
    /// A flag that a signal sets to end the process.
    quit: Arc<AtomicBool>,
}

/// How a wizard ended.
#[derive(Debug, PartialEq, Eq)]
pub enum WizardEnd {
    /// It started this run; the dashboard was shown and closed.
    Started(RunDir),
    /// The user left, and the answers are kept for the next wizard.
    DraftKept,
    /// The user left, and there were no answers to keep.
    Left,
}

impl Screens {
    /// Takes the screen. A signal asks it to close; the second SIGINT or SIGTERM ends the process at once,
    /// also if the loop of the screen hangs.
    ///
    /// # Errors
    /// The terminal cannot be set.
    pub fn open() -> Result<Self, Failure> {
        let quit = Arc::new(AtomicBool::new(false));
        heed_signals(quit.clone())
            .map_err(|error| Failure::usage(format!("cannot handle signals: {error}")))?;
        let theme = Theme::from_env(|name| std::env::var(name).ok());
        let terminal = Terminal::enter().map_err(|error| {
            Failure::usage(format!("cannot set the terminal: {error}"))
                .hint("use --plain for questions and output line by line")
        })?;
        Ok(Self { terminal, theme, quit })
    }

    fn show(&mut self, app: &mut dyn App) -> Result<Left, Failure> {
        Ok(run(&mut self.terminal, &self.theme, &self.quit, app)?)
    }

    /// Shows the dashboard of a run until the user leaves it, and in between the chat with its model.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn dashboard(&mut self, program: &Program, run: &RunDir) -> Result<Left, Failure> {
        let siblings = run.path().parent().map(RunsRoot::new);
        let mut dashboard = Dashboard::open(run.clone(), siblings);
        loop {
            let left = self.show(&mut dashboard)?;
            let done = match dashboard.takes_wish() {
                _ if left == Left::Called => return Ok(left),
                None => return Ok(left),
                Some(Wish::Talk) => self.talk(program, run).map(drop),
                Some(Wish::Again) => match self.again(program, run) {
                    // The dashboard of the new run has been shown.
                    Ok(WizardEnd::Started(_)) => return Ok(left),
                    end => end.map(drop),
                },
            };
            if let Err(failure) = done {
                dashboard.say(&failure.to_string());
            }
        }
    }

    /// Shows the wizard with the answers of a run, for another one with changes.
    fn again(&mut self, program: &Program, run: &RunDir) -> Result<WizardEnd, Failure> {
        let beside_draft = kept_draft().is_some();
        self.wizard_with(program, runs::answers_again(run)?, Begin::WithPlan { beside_draft })
    }

    /// Shows a chat with the model of a run, beside its base if that can be found.
    fn talk(&mut self, program: &Program, run: &RunDir) -> Result<Exit, Failure> {
        let runs = run.path().parent().unwrap_or(run.path());
        let model = find_named(&run.path().to_string_lossy(), runs)?;
        let sampling = SamplingParams { max_tokens: Some(LONGEST_ANSWER), ..SamplingParams::default() };
        let sampling = Wishes::of_model(&model.opening()?.model).over(sampling);
        let settings = Settings { system: String::new(), sampling, thinking: None };
        let models: Vec<_> = model.started_from().into_iter().chain([model]).collect();
        self.chat(program, &models, settings, Decoding::default(), None)
    }

    /// Shows the list of runs, and carries out the chosen actions.
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
                    if self.dashboard(program, &run)? == Left::Called {
                        return Ok(());
                    }
                }
                Some(RunAction::Again(run)) => match self.again(program, &run) {
                    Ok(WizardEnd::Started(run)) => list.list.say(&format!("{} was started", run.name())),
                    Ok(_) => list.list.say("nothing was started"),
                    Err(failure) => list.list.say(&failure.to_string()),
                },
                Some(RunAction::Resume(run)) => {
                    list.list.say(&format!("{}: starting the trainer …", run.name()));
                    resume(program.clone(), run, sender.clone());
                }
                Some(RunAction::Export(run)) => {
                    list.list.say(&format!("{}: exporting the outputs again …", run.name()));
                    export(program.clone(), run, sender.clone());
                }
                Some(RunAction::Delete(run)) => {
                    let name = run.name();
                    match run.delete() {
                        Ok(freed) => {
                            list.list.say(&format!("{name} was deleted; this freed {}", bytes(freed)))
                        }
                        Err(error) => list.list.say(&error.to_string()),
                    }
                }
            }
        }
    }

    /// Shows a chat with these models until the user leaves it.
    ///
    /// # Errors
    /// The terminal cannot be used, or a model cannot be loaded.
    pub fn chat(
        &mut self,
        program: &Program,
        models: &[OpenableModel],
        settings: Settings,
        decoding: Decoding,
        earlier: Option<Earlier>,
    ) -> Result<Exit, Failure> {
        let (request_sender, requests) = mpsc::channel();
        let (heard_sender, heard) = mpsc::channel();
        let names = models.iter().map(|model| model.name.clone()).collect();
        let (program, models) = (program.clone(), models.to_vec());
        let mut chat = ChatScreen::new(names, settings, decoding, request_sender, heard);
        if let Some(earlier) = &earlier {
            chat.show_earlier(earlier);
        }
        std::thread::spawn(move || {
            backend::run(&program, &models, decoding, earlier, &requests, &heard_sender);
        });
        self.show(&mut chat)?;
        chat.into_failure().map_or(Ok(Exit::Done), Err)
    }

    /// Shows the wizard, and if it has started a run, the dashboard of that run.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn wizard(mut self, program: &Program, answers: Answers) -> Result<WizardEnd, Failure> {
        self.wizard_with(program, answers, Begin::from(kept_draft()))
    }

    fn wizard_with(
        &mut self,
        program: &Program,
        answers: Answers,
        begin: Begin,
    ) -> Result<WizardEnd, Failure> {
        let (request_sender, requests) = mpsc::channel();
        let (response_sender, responses) = mpsc::channel();
        let backend = Backend::spawn(program.clone(), requests, response_sender, &answers);
        let folder = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let home = std::env::var_os("HOME").map(Into::into);
        let setup = Setup { answers, begin, folder, home, demo: demo_model() };
        let mut wizard = Wizard::new(setup, request_sender, responses);
        let left = self.show(&mut wizard);
        let outcome = wizard.outcome_after(backend);
        let left = left?;
        let run = match outcome {
            Some(Outcome::Started(folder)) => RunDir::open(folder)?,
            Some(Outcome::Left { draft_kept: true }) => return Ok(WizardEnd::DraftKept),
            Some(Outcome::Left { draft_kept: false }) | None => return Ok(WizardEnd::Left),
        };
        if left == Left::ByApp {
            self.dashboard(program, &run)?;
        }
        Ok(WizardEnd::Started(run))
    }
}

fn heed_signals(quit: Arc<AtomicBool>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let heed = move || {
        let mut is_asked = false;
        for signal in signals.forever() {
            quit.store(true, Ordering::SeqCst);
            // The kernel and the shell both tell that a terminal is closed, and perhaps end what is in it
            // then, which is no haste.
            if signal != SIGHUP && std::mem::replace(&mut is_asked, true) {
                end_by_signal(signal);
            }
        }
    };
    std::thread::Builder::new().name("screen signals".into()).spawn(heed).map(drop)
}

/// The list of runs, with messages about slow actions.
struct ListWithMessages {
    list: RunsList,
    messages: Receiver<String>,
}

impl App for ListWithMessages {
    fn update(&mut self, input: Input) -> Next {
        let is_tick = input == Input::Tick;
        let next = self.list.update(input);
        // Messages are not taken after a key, whose own message could not be read, nor while leaving, when
        // they would be lost.
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

/// Continues a run on a thread, because other members of a cluster may be asked about it, and sends a message
/// about it.
fn resume(program: Program, run: RunDir, messages: Sender<String>) {
    std::thread::spawn(move || {
        let message = match launch::resume(&program, &run) {
            Ok(()) => format!("{} continues; Enter watches it", run.name()),
            Err(failure) => failure.to_string(),
        };
        let _ = messages.send(escape(&message).into_owned());
    });
}

/// Writes the outputs of a run again on a thread, and sends a message about it.
fn export(program: Program, run: RunDir, messages: Sender<String>) {
    std::thread::spawn(move || {
        let name = run.name();
        let message = match runs::export_in_process(&program, &run) {
            Ok(()) => format!("{name}: the outputs were exported again"),
            Err(failure) => format!("{name}: {failure}"),
        };
        // The list may have been closed; the outputs are written anyway.
        let _ = messages.send(escape(&message).into_owned());
    });
}
