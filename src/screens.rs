//! Full screens: which one is opened when, and what the wishes that leave them set going.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use sparktune_plan::Answers;
use sparktune_runlog::{RunDir, RunsRoot};
use sparktune_tui::dashboard::Dashboard;
use sparktune_tui::runs_list::{RunsList, Wish};
use sparktune_tui::screen::{App, Frame, Input, Left, Next, Terminal, Theme, run};
use sparktune_tui::wizard::{Outcome, Setup, Wizard};
use sparktune_tui::{bytes, escape};

use crate::desk::{Desk, kept_draft};
use crate::failure::{Exit, Failure};
use crate::launch::{self, program};
use crate::output::note;

/// The terminal as a screen, until dropped.
pub struct Screens {
    terminal: Terminal,
    theme: Theme,
    /// A signal asks the process to end.
    quit: Arc<AtomicBool>,
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
            Failure::usage(format!("cannot set the terminal: {error}. --plain does without"))
        })?;
        Ok(Self { terminal, theme, quit })
    }

    fn show(&mut self, app: &mut dyn App) -> Result<Left, Failure> {
        Ok(run(&mut self.terminal, &self.theme, &self.quit, app)?)
    }

    /// The dashboard of a run, until it is left.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn dashboard(&mut self, run: &RunDir) -> Result<Left, Failure> {
        let beside = run.path().parent().map(RunsRoot::new);
        self.show(&mut Dashboard::open(run.clone(), beside))
    }

    /// The list of runs, and whatever is wished for there.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn runs(&mut self, root: &RunsRoot) -> Result<(), Failure> {
        let (tell, news) = mpsc::channel();
        let mut list = WithNews { list: RunsList::new(root.clone()), news };
        loop {
            if self.show(&mut list)? == Left::Called {
                return Ok(());
            }
            match list.list.wish() {
                None | Some(Wish::Leave) => return Ok(()),
                Some(Wish::Watch(run)) => {
                    if self.dashboard(&run)? == Left::Called {
                        return Ok(());
                    }
                }
                Some(Wish::Resume(run)) => match resume(&run) {
                    Ok(()) => list.list.say(&format!("{} goes on; Enter watches it", run.name())),
                    Err(failure) => list.list.say(&failure.text),
                },
                Some(Wish::Export(run)) => {
                    list.list.say(&format!("{}: writing the outputs again …", run.name()));
                    export(run, tell.clone());
                }
                Some(Wish::Delete(run)) => {
                    let name = run.name();
                    match run.delete() {
                        Ok(freed) => {
                            list.list.say(&format!("{name} is deleted, {} are free again", bytes(freed)))
                        }
                        Err(error) => list.list.say(&error.to_string()),
                    }
                }
            }
        }
    }

    /// The wizard; when it has started a run, the dashboard of that run.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn wizard(mut self, answers: Answers) -> Result<Exit, Failure> {
        let (ask, requests) = mpsc::channel();
        let (replies, told) = mpsc::channel();
        Desk::open(requests, replies, &answers);
        let folder = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let home = std::env::var_os("HOME").map(Into::into);
        let mut wizard = Wizard::new(Setup { answers, draft: kept_draft(), folder, home }, ask, told);
        let left = self.show(&mut wizard)?;
        let run = match wizard.outcome() {
            Some(Outcome::Started(folder)) => RunDir::open(folder)?,
            Some(Outcome::Left { draft_kept: true }) => {
                drop(self);
                note(
                    "nothing was started; the answers are kept, and the next `sparktune` offers to continue",
                );
                return Ok(Exit::Done);
            }
            Some(Outcome::Left { draft_kept: false }) | None => return Ok(Exit::Done),
        };
        // The worker threads end with the wizard.
        drop(wizard);
        if left == Left::ByApp {
            self.dashboard(&run)?;
        }
        drop(self);
        launch::say_how_it_stands(&run)
    }
}

/// The list of runs, told what became of wishes that take a while.
struct WithNews {
    list: RunsList,
    news: Receiver<String>,
}

impl App for WithNews {
    fn update(&mut self, input: Input) -> Next {
        let is_tick = input == Input::Tick;
        let next = self.list.update(input);
        // Not after a key: what it did could not be read, and a message taken out while leaving would be lost.
        if !is_tick || next == Next::Leave {
            return next;
        }
        match self.news.try_recv() {
            Ok(news) => {
                self.list.say(&news);
                Next::Draw
            }
            Err(_) => next,
        }
    }

    fn view(&self, frame: &mut Frame<'_>, theme: &Theme) {
        self.list.view(frame, theme);
    }
}

/// Continues a run that is neither completed nor at work.
fn resume(run: &RunDir) -> Result<(), Failure> {
    launch::may_resume(run)?;
    launch::start(run)
}

/// Writes the outputs of a run again, in a process of its own: a model is loaded for it. The last line it says is told.
fn export(run: RunDir, tell: Sender<String>) {
    std::thread::spawn(move || {
        let name = run.name();
        let folder = run.path().to_owned();
        let done = program().and_then(|program| {
            let mut command = Command::new(&program);
            command.arg("export").arg(folder).stdin(Stdio::null());
            command.output().map_err(|error| Failure::io("start", &program, &error))
        });
        let news = match done {
            Ok(output) if output.status.success() => {
                format!("{name}: the outputs are written again")
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                format!("{name}: {}", said.lines().last().unwrap_or("the export failed"))
            }
            Err(failure) => failure.text,
        };
        // Nobody may be left to hear it; the outputs are there all the same.
        let _ = tell.send(escape(&news).into_owned());
    });
}
