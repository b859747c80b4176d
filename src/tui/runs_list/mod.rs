//! The list of runs as a full screen, with the state of each and the actions on it.
//!
//! Enters: a folder of runs, keys, and the tick that reads a few of them. Leaves: a [`RunAction`]. The list
//! starts no process and deletes nothing; the program carries out the requested, reports the result with
//! [`RunsList::say`], and shows the list again. Only a request to stop is written from here: it is a file in
//! the run's own folder.

use sparktune_base::escape::escape;
use sparktune_base::program_name;

mod ask;
mod curve;
mod detail;
mod keys;
mod shelf;
mod table;
#[cfg(test)]
mod tests;
mod view;

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Size;
use sparktune_app::shell::run_argument;
use sparktune_app::stop_request::StopRequest;
use sparktune_runlog::{Lease, Liveness, Outcome, RunDir, RunsRoot, now_us};

use self::ask::{Answer, Ask};
use self::keys::{Do, FILTER_KEYS, Filtering, KEYS};
use self::shelf::{Look, Shelf};
use crate::screen::{App, Input, Next, TextInput, Theme, action};
use crate::state::State;

/// An action that the user requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunAction {
    /// Show this run live.
    Watch(RunDir),
    /// Resume this run.
    Resume(RunDir),
    /// Ask the wizard's questions with the answers of this run, for a new one.
    Again(RunDir),
    /// Write its outputs again.
    Export(RunDir),
    /// Delete the folder of this run. The user confirmed twice, and no trainer was running a moment ago.
    Delete(RunDir),
    /// Leave the list.
    Leave,
}

/// The column by which the rows are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The newest first.
    Started,
    /// Alphabetical, without the date.
    Name,
    /// Running runs first, then those that need attention.
    State,
    /// The lowest held-out loss first.
    Eval,
    /// The largest first.
    Size,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Order::Started => Order::Name,
            Order::Name => Order::State,
            Order::State => Order::Eval,
            Order::Eval => Order::Size,
            Order::Size => Order::Started,
        }
    }
}

/// The screen's state.
#[derive(Debug)]
pub struct RunsList {
    shelf: Shelf,
    /// The current time, from which ages are counted. Ticks advance it.
    now_us: u64,
    size: Size,
    order: Order,
    filter: TextInput,
    filtering: bool,
    /// The folder of the run under the cursor, once the user has moved the cursor.
    chosen: Option<PathBuf>,
    /// The last row of that run, where the cursor stays when the run is deleted.
    at: usize,
    asking: Option<Ask>,
    /// The requests to stop that were sent.
    stops: Vec<StopRequest>,
    helping: bool,
    message: Option<String>,
    requested: Option<RunAction>,
}

impl RunsList {
    /// Lists the runs of this folder. As many as there is time for are read at once, the others with later
    /// ticks.
    pub fn new(root: RunsRoot) -> Self {
        Self::at(root, now_us())
    }

    /// Like [`RunsList::new`], with a given current time.
    fn at(root: RunsRoot, now_us: u64) -> Self {
        let mut list = RunsList {
            shelf: Shelf::new(root),
            now_us,
            size: Size::default(),
            order: Order::Started,
            filter: TextInput::default(),
            filtering: false,
            chosen: None,
            at: 0,
            asking: None,
            stops: Vec::new(),
            helping: false,
            message: None,
            requested: None,
        };
        list.shelf.look();
        list
    }

    /// Returns the requested action, once; `None` when the list did not end the loop.
    pub fn requested(&mut self) -> Option<RunAction> {
        self.requested.take()
    }

    /// Shows the result of an action until the next key press.
    pub fn say(&mut self, text: &str) {
        self.message = Some(escape(text).into_owned());
        self.shelf.list_again();
    }

    /// Returns the rows that pass the filter, sorted.
    fn rows(&self) -> Vec<&Look> {
        let wanted: Vec<String> = self.filter.text().split_whitespace().map(str::to_lowercase).collect();
        let mut rows: Vec<&Look> =
            self.shelf.looks.iter().filter(|look| wanted.iter().all(|word| look.mentions(word))).collect();
        // The sort is stable, so equal rows stay in the order newest first.
        match self.order {
            Order::Started => {}
            Order::Name => rows.sort_by(|a, b| a.short_name().cmp(b.short_name())),
            Order::State => rows.sort_by_key(|look| urgency(look)),
            Order::Eval => rows.sort_by(|a, b| {
                let loss = |look: &Look| {
                    look.row.as_ref().and_then(|row| row.best_eval_nats).unwrap_or(f64::INFINITY)
                };
                loss(a).total_cmp(&loss(b))
            }),
            Order::Size => {
                rows.sort_by_key(|look| std::cmp::Reverse(look.row.as_ref().map_or(0, |row| row.size_bytes)));
            }
        }
        rows
    }

    /// Returns the position of the cursor among these rows.
    fn position(&self, rows: &[&Look]) -> usize {
        let here = self.chosen.as_deref().and_then(|path| rows.iter().position(|row| row.run.path() == path));
        here.unwrap_or(self.at.min(rows.len().saturating_sub(1)))
    }

    fn chosen(&self) -> Option<&Look> {
        let rows = self.rows();
        rows.get(self.position(&rows)).copied()
    }

    fn go_to(&mut self, place: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows();
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = place(self.position(&rows), last).min(last);
        let chosen = rows[at].run.path().to_owned();
        (self.at, self.chosen) = (at, Some(chosen));
    }

    /// Moves the cursor after rows were added or removed: it stays on its run, or on its row if the run is
    /// gone.
    fn settle(&mut self) {
        let rows = self.rows();
        let at = self.position(&rows);
        let chosen = rows.get(at).map(|look| look.run.path().to_owned());
        self.at = at;
        // Until the user moves it, the cursor stays at the top even when newer runs appear.
        if self.chosen.is_some() {
            self.chosen = chosen;
        }
    }

    fn tick(&mut self, now_us: u64) -> Next {
        let ages =
            |list: &Self| list.rows().iter().map(|look| table::when(look, list.now_us)).collect::<Vec<_>>();
        let before = ages(self);
        self.now_us = now_us;
        self.stops.retain_mut(|request| !request.insist());
        let changed = self.shelf.look();
        if changed {
            self.settle();
        }
        if changed || ages(self) != before { Next::Draw } else { Next::Keep }
    }

    fn press(&mut self, event: &KeyEvent) -> Next {
        self.message = None;
        if std::mem::take(&mut self.helping) {
            return Next::Draw;
        }
        if let Some(ask) = self.asking.take() {
            return self.answer(ask, event);
        }
        if self.filtering && self.type_filter(event) {
            return Next::Draw;
        }
        let page = usize::from(self.size.height).saturating_sub(view::FIXED_ROWS).max(1);
        match action(KEYS, event) {
            None => {}
            Some(Do::Up) => self.go_to(|at, _| at.saturating_sub(1)),
            Some(Do::Down) => self.go_to(|at, _| at + 1),
            Some(Do::PageUp) => self.go_to(|at, _| at.saturating_sub(page)),
            Some(Do::PageDown) => self.go_to(|at, _| at + page),
            Some(Do::First) => self.go_to(|_, _| 0),
            Some(Do::Last) => self.go_to(|_, last| last),
            Some(Do::Order) => {
                self.order = self.order.next();
                self.settle();
            }
            Some(Do::Filter) => self.filtering = true,
            Some(Do::Back) => {
                self.filter = TextInput::default();
                self.settle();
            }
            Some(Do::Help) => self.helping = true,
            Some(Do::Leave) => return self.leave_with(RunAction::Leave),
            Some(what @ (Do::Watch | Do::Resume | Do::Again | Do::Export | Do::Delete | Do::Stop)) => {
                if let Some(look) = self.chosen() {
                    let (run, liveness) = (look.run.clone(), look.liveness());
                    return self.act(what, run, liveness);
                }
            }
        }
        Next::Draw
    }

    /// Handles a key while the filter is typed. Returns false when the key belongs to the list.
    fn type_filter(&mut self, event: &KeyEvent) -> bool {
        match action(FILTER_KEYS, event) {
            Some(Filtering::Keep) => self.filtering = false,
            Some(Filtering::ShowAll) => {
                self.filtering = false;
                self.filter = TextInput::default();
            }
            None if matches!(event.code, KeyCode::Home | KeyCode::End) => return false,
            None if !self.filter.press(event) => return false,
            None => {}
        }
        self.settle();
        true
    }

    fn leave_with(&mut self, requested: RunAction) -> Next {
        if let RunAction::Watch(run)
        | RunAction::Resume(run)
        | RunAction::Again(run)
        | RunAction::Export(run)
        | RunAction::Delete(run) = &requested
        {
            // The row is read again, whatever the result.
            self.shelf.forget(run);
        }
        self.requested = Some(requested);
        Next::Leave
    }

    /// Carries out the action of a key on a run, or explains why it is not possible.
    fn act(&mut self, what: Do, run: RunDir, liveness: Option<Liveness>) -> Next {
        let live = liveness.is_some_and(Liveness::is_live);
        let (name, program) = (escape(&run.name()).into_owned(), program_name());
        let refusal = match (what, liveness) {
            (Do::Watch, _) => return self.leave_with(RunAction::Watch(run)),
            (Do::Again, _) => return self.leave_with(RunAction::Again(run)),
            (Do::Resume, _) if live => {
                format!("{name} is running, so there is nothing to resume. Enter watches it")
            }
            (Do::Resume, Some(Liveness::Finished { outcome })) if outcome.is_complete() => {
                format!(
                    "{name} is complete, so there is nothing to resume. `{program} resume {} --epochs N` trains it longer",
                    run_argument(&run)
                )
            }
            (Do::Resume, _) => return self.leave_with(RunAction::Resume(run)),
            (Do::Export, _) if live => {
                format!("{name} is running. It can be exported when it is done, or after s has stopped it")
            }
            (Do::Export, _) => return self.leave_with(RunAction::Export(run)),
            (Do::Stop, _) if live => {
                self.asking = Some(Ask::stop(&run));
                return Next::Draw;
            }
            (Do::Stop, state) => {
                format!("{name} is not running ({}), so there is nothing to stop", State::of(state).word)
            }
            (_, _) => match free_to_delete(&run) {
                Ok(()) => {
                    let size =
                        self.chosen().and_then(|look| look.row.as_ref()).map_or(0, |row| row.size_bytes);
                    self.asking = Some(Ask::delete(&run, size));
                    return Next::Draw;
                }
                Err(refusal) => refusal,
            },
        };
        self.message = Some(refusal);
        Next::Draw
    }

    fn answer(&mut self, mut ask: Ask, event: &KeyEvent) -> Next {
        match ask.press(event) {
            Answer::Asking => self.asking = Some(ask),
            Answer::No => self.message = Some(ask.kept()),
            Answer::Stop(run) => {
                let name = escape(&run.name()).into_owned();
                self.message = Some(match StopRequest::send(&run) {
                    Ok(request) => {
                        self.stops.push(request);
                        format!("{name}: asked to save a checkpoint and end")
                    }
                    Err(error) => escape(&error.to_string()).into_owned(),
                });
            }
            Answer::Delete(run) => match free_to_delete(&run) {
                Ok(()) => return self.leave_with(RunAction::Delete(run)),
                Err(refusal) => self.message = Some(refusal),
            },
        }
        Next::Draw
    }

    fn paste(&mut self, text: &str) -> Next {
        if let Some(ask) = &mut self.asking {
            ask.paste(text);
        } else if self.filtering {
            self.filter.paste(text);
            self.settle();
        }
        Next::Draw
    }
}

/// Checks the lease itself, because the state that was read may be a second old.
fn free_to_delete(run: &RunDir) -> Result<(), String> {
    let name = run.name();
    let refusal = match Lease::is_held(run) {
        Ok(false) => return Ok(()),
        Ok(true) => format!("{name} is running and cannot be deleted. Stop it with s, then delete it with x"),
        Err(error) => error.to_string(),
    };
    Err(escape(&refusal).into_owned())
}

/// Returns a sort key that is small for runs that are running or need attention.
fn urgency(look: &Look) -> u8 {
    match look.liveness() {
        Some(Liveness::Running) => 0,
        Some(Liveness::Stalled { .. }) => 1,
        Some(Liveness::Crashed) => 2,
        Some(Liveness::Finished { outcome: Outcome::Failed | Outcome::Diverged }) => 3,
        Some(Liveness::Finished { outcome: Outcome::Stopped | Outcome::Unknown }) => 4,
        Some(Liveness::NotStarted) => 5,
        Some(Liveness::Finished { outcome: Outcome::Completed }) => 6,
        None | Some(Liveness::Gone) => 7,
    }
}

impl App for RunsList {
    fn update(&mut self, input: Input) -> Next {
        match input {
            Input::Size(size) => {
                self.size = size;
                Next::Draw
            }
            Input::Tick => self.tick(now_us()),
            Input::Key(event) => self.press(&event),
            Input::Paste(text) => self.paste(&text),
        }
    }

    fn view(&self, frame: &mut Frame<'_>, theme: &Theme) {
        view::draw(self, frame, theme);
    }
}
