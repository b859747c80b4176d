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
use sparktune_tui::wizard::{Outcome, Wizard};
use sparktune_tui::{escape, how_it_stands};

use crate::desk::{Desk, kept_draft};
use crate::failure::{Exit, Failure};
use crate::launch;
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
        let root = run.path().parent().map(RunsRoot::new);
        self.show(&mut Dashboard::open(run.clone(), root))
    }
}
