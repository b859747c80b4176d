//! What all pages share: the answers, what is known for them, and the plan that follows.
//!
//! Facts follow answers: a page changes an answer, [`State::chase`] asks for what is now unknown and lets go what no
//! longer belongs to the answers, and [`State::replan`] makes the plan anew. So going back and changing something can
//! never leave a plan that rests on something else.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use ratatui::layout::Size;
use sparktune_plan::{Answer, Answers, Facts, Origin, Plan, PlanError, SETTINGS, Setting, resolve};

use super::Page;
use super::asked::{Asked, Wait};
use super::desk::{
    Ask, CacheState, Cached, DataFound, MachineFound, ModelFound, Progress, Recent, Reply, Request, Ticket,
    Told,
};
use crate::screen::Role;

/// Answers that say what a run is made from, not how: presets of the user leave them out.
pub(super) const OF_ONE_RUN: [&str; 8] =
    ["preset", "name", "model", "revision", "model-path", "data", "eval-data", "runs-dir"];

/// Why there is no plan for the answers as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub text: String,
    /// The setting at fault, by its place in `plan.toml`.
    pub key: Option<&'static str>,
}

impl From<&PlanError> for Problem {
    fn from(error: &PlanError) -> Self {
        Self { text: error.to_string(), key: error.setting().map(|setting| setting.key) }
    }
}

/// What the model's facts depend on.
type ModelKey = (String, Option<String>);

/// What the data's facts depend on so much that others cannot stand in for them.
type DataKey = (ModelKey, Vec<PathBuf>);

/// The names of further answers that the data is read by; a change of these is counted again when a page is left.
const COUNTED_BY: [&str; 4] = ["format", "think", "max-example-tokens", "eval-data"];

/// What the pages share.
pub(super) struct State {
    pub answers: Answers,
    /// Where the program runs, and the user's home.
    pub folder: PathBuf,
    pub home: Option<PathBuf>,
    pub size: Size,
    /// Ticks so far: the clock.
    pub now: u64,
    /// One line about what just happened.
    pub notice: Option<(Role, String)>,
    pub machine: Asked<MachineFound>,
    pub catalog: Asked<Vec<CacheState>>,
    pub recent: Asked<Recent>,
    pub model: Asked<Box<ModelFound>>,
    model_of: Option<ModelKey>,
    /// The model whose unknown architecture the user has confirmed.
    confirmed: Option<String>,
    pub data: Asked<Box<DataFound>>,
    data_of: Option<DataKey>,
    counted_as: Option<Answers>,
    /// The data is being counted again while the older counts serve.
    pub recount: Asked<Box<DataFound>>,
    facts: Option<Facts>,
    /// The last valid plan for the present model and data.
    pub plan: Option<Plan>,
    /// Why the answers give no plan, where they do not.
    pub problem: Option<Problem>,
    outbox: Sender<Request>,
    tickets: Ticket,
}

impl State {
    pub fn new(answers: Answers, folder: PathBuf, home: Option<PathBuf>, outbox: Sender<Request>) -> Self {
        let mut state = Self {
            answers,
            folder,
            home,
            size: Size { width: 80, height: 24 },
            now: 0,
            notice: None,
            machine: Asked::Not,
            catalog: Asked::Not,
            recent: Asked::Not,
            model: Asked::Not,
            model_of: None,
            confirmed: None,
            data: Asked::Not,
            data_of: None,
            counted_as: None,
            recount: Asked::Not,
            facts: None,
            plan: None,
            problem: None,
            outbox,
            tickets: 0,
        };
        state.look_at_machine();
        let ticket = state.ask(Ask::Catalog);
        state.catalog = Asked::waiting(ticket, 0);
        let ticket = state.ask(Ask::Recent);
        state.recent = Asked::waiting(ticket, 0);
        state
    }

    /// Sends a request. A desk that is gone is noticed where its replies are read.
    pub fn ask(&mut self, ask: Ask) -> Ticket {
        self.tickets += 1;
        let _ = self.outbox.send(Request { ticket: self.tickets, ask });
        self.tickets
    }

    /// Asks, and waits for the answer in `Asked`.
    pub fn expect<T>(&mut self, ask: Ask) -> Asked<T> {
        Asked::waiting(self.ask(ask), self.now)
    }

    fn cancel<T>(&mut self, asked: &Asked<T>) {
        if let Asked::Waiting(Wait { ticket, .. }) = asked {
            self.ask(Ask::Cancel { of: *ticket });
        }
    }

    pub fn look_at_machine(&mut self) {
        self.machine = self.expect(Ask::Machine);
    }

    pub fn say(&mut self, role: Role, words: impl Into<String>) {
        self.notice = Some((role, words.into()));
    }

    /// The model, once it is known and, where that is needed, confirmed.
    pub fn model_ready(&self) -> Option<&ModelFound> {
        let found = self.model.here()?;
        let fine = found.unknown_architecture.is_none() || self.confirmed.as_deref() == Some(&found.name);
        fine.then_some(&**found)
    }

    /// Whether the user has confirmed the architecture of the present model.
    pub fn is_confirmed(&self) -> bool {
        self.model.here().is_some_and(|found| self.confirmed.as_deref() == Some(&found.name))
    }

    pub fn confirm_model(&mut self) {
        self.confirmed = self.model.here().map(|found| found.name.clone());
    }

    /// Chooses a model. Of another one the revision and the folder would be wrong.
    pub fn choose_model(&mut self, name: &str) {
        let same = self.answers.model.as_ref().is_some_and(|answer| answer.value == name);
        if !same {
            self.answers.model = Some(Answer::flag(name.to_owned()));
            self.answers.revision = None;
            self.answers.model_path = None;
        } else if self.model.failed().is_some() {
            self.model_of = None;
        }
    }

    pub fn choose_data(&mut self, paths: Vec<PathBuf>) {
        self.answers.data = Some(Answer::flag(paths));
        if self.data.failed().is_some() {
            self.data_of = None;
        }
    }

    /// Reads the data once more, after a failure, a cancel, or because the files have changed.
    pub fn read_data_again(&mut self) {
        self.data_of = None;
    }

    /// Ends reading the data; it stays unread until asked for again.
    pub fn cancel_data(&mut self) {
        let data = std::mem::replace(&mut self.data, Asked::Failed("cancelled".into()));
        self.cancel(&data);
    }

    fn model_key(&self) -> Option<ModelKey> {
        let name = self.answers.model.as_ref()?.value.clone();
        Some((name, self.answers.revision.as_ref().map(|answer| answer.value.clone())))
    }

    /// Whether the present data was chosen by the user or given from outside; the model's part does not count.
    fn data_key(&self) -> Option<DataKey> {
        Some((self.model_key()?, self.answers.data.as_ref()?.value.clone()))
    }

    /// Asks for the facts that this page needs, and lets go those that no longer belong to the answers.
    pub fn chase(&mut self, page: Page) {
        let key = self.model_key();
        if key != self.model_of && (page >= Page::Model || self.model_of.is_some()) {
            let old = std::mem::take(&mut self.model);
            self.cancel(&old);
            self.model_of.clone_from(&key);
            if let Some((name, revision)) = key {
                self.model = self.expect(Ask::Model { name, revision });
            }
        }
        let key = self.data_key().filter(|_| self.model_ready().is_some());
        if key != self.data_of && (page >= Page::Data || self.data_of.is_some()) {
            let old = [std::mem::take(&mut self.data), std::mem::take(&mut self.recount)];
            old.iter().for_each(|old| self.cancel(old));
            self.data_of.clone_from(&key);
            if key.is_some() {
                self.counted_as = Some(self.counting());
                self.data = self.expect(Ask::Data { answers: Box::new(self.answers.clone()) });
            }
            self.replan();
        }
    }

    fn counting(&self) -> Answers {
        let mut answers = self.answers.clone();
        for setting in SETTINGS.iter().filter(|setting| !COUNTED_BY.contains(&setting.name)) {
            answers.clear(setting.name);
        }
        answers
    }

    /// Counts the data again, in the background, where an answer has changed that it is read by.
    pub fn count_again(&mut self) {
        let counting = self.counting();
        if self.data.here().is_none() || self.counted_as.as_ref() == Some(&counting) {
            return;
        }
        let old = std::mem::take(&mut self.recount);
        self.cancel(&old);
        self.counted_as = Some(counting);
        self.recount = self.expect(Ask::Data { answers: Box::new(self.answers.clone()) });
    }

    /// Makes the plan for the present answers. Where they give none, the last one stays, and the reason is kept.
    pub fn replan(&mut self) {
        let known = (self.machine.here(), self.model_ready(), self.data.here());
        let (Some(machine), Some(model), Some(data)) = known else {
            (self.facts, self.plan, self.problem) = (None, None, None);
            return;
        };
        self.facts = Some(Facts {
            machine: machine.facts.clone(),
            model: model.facts.clone(),
            data: data.facts.clone(),
            rates: machine.rates.clone(),
        });
        match self.plan_of(&self.answers) {
            Some(Ok(plan)) => (self.plan, self.problem) = (Some(plan), None),
            Some(Err(problem)) => self.problem = Some(problem),
            None => {}
        }
    }

    /// The plan that other answers would give with the present facts.
    pub fn plan_of(&self, answers: &Answers) -> Option<Result<Plan, Problem>> {
        Some(resolve(answers, self.facts.as_ref()?).map_err(|error| Problem::from(&error)))
    }

    /// The plan that would follow if one answer were another; `None` takes it back.
    pub fn plan_with(&self, setting: &Setting, text: Option<&str>) -> Option<Result<Plan, Problem>> {
        let mut answers = self.answers.clone();
        answers.clear(setting.name);
        match text.map(|text| answers.set(setting.name, text, Origin::Flag)) {
            Some(Err(error)) => Some(Err(Problem::from(&error))),
            _ => self.plan_of(&answers),
        }
    }

    /// Gives one answer where a plan follows from it; else says why not, and nothing has changed.
    pub fn try_answer(&mut self, setting: &Setting, text: &str) -> Result<(), Problem> {
        let mut answers = self.answers.clone();
        answers.clear(setting.name);
        answers.set(setting.name, text, Origin::Flag).map_err(|error| Problem::from(&error))?;
        match self.plan_of(&answers) {
            Some(Err(problem)) => Err(problem),
            Some(Ok(plan)) => {
                (self.answers, self.plan, self.problem) = (answers, Some(plan), None);
                Ok(())
            }
            None => {
                self.answers = answers;
                Ok(())
            }
        }
    }

    /// Takes one answer back: the plan's own value holds again.
    pub fn take_back(&mut self, setting: &Setting) {
        self.answers.clear(setting.name);
        self.replan();
    }

    /// Why the data cannot be trained on as it is: too much of it was rejected, or nothing is left.
    pub fn data_refused(&self) -> Option<String> {
        let report = &self.data.here()?.report;
        let most = self.answers.max_rejected.as_ref().map_or(0.01, |answer| answer.value);
        if !report.exceeds(most) {
            return None;
        }
        if report.examples == 0 && report.rejected == 0 {
            return Some("there is no example in it: every line is blank, or there is none".into());
        }
        Some(format!(
            "{} of {} lines were rejected, at most {} may be. w shows each with its fix; the limit is max_rejected",
            sparktune_plan::render::count(report.rejected),
            sparktune_plan::render::count(report.rejected + report.examples),
            sparktune_plan::render::percent(most),
        ))
    }

    /// How much of a catalog model is here.
    pub fn cached(&self, id: &str) -> Cached {
        let states = self.catalog.here().map(Vec::as_slice).unwrap_or_default();
        states.iter().find(|state| state.id == id).map(|state| state.cached).unwrap_or_default()
    }

    /// Takes a reply that is for all pages; hands back what is for one of them.
    pub fn told(&mut self, reply: Reply) -> Option<Reply> {
        let Reply { ticket, told } = reply;
        match told {
            Told::Machine(result) => {
                if self.machine.answer(ticket, result) {
                    self.replan();
                }
            }
            Told::Catalog(states) => {
                self.catalog.answer(ticket, Ok(states));
            }
            Told::Recent(recent) => {
                self.recent.answer(ticket, Ok(recent));
            }
            Told::Model(result) => {
                if self.model.answer(ticket, result) {
                    self.replan();
                }
            }
            Told::Data(result) => {
                if self.data.waits_for(ticket) {
                    self.data.answer(ticket, result);
                    self.replan();
                } else if self.recount.answer(ticket, result) {
                    self.recounted();
                }
            }
            Told::NotKept(words) => {
                self.say(Role::Warn, format!("the answers could not be kept for later: {words}"));
            }
            told => return Some(Reply { ticket, told }),
        }
        None
    }

    fn recounted(&mut self) {
        match std::mem::take(&mut self.recount) {
            Asked::Here(found) => self.data = Asked::Here(found),
            Asked::Failed(words) => self.data = Asked::Failed(words),
            waiting => self.recount = waiting,
        }
        self.replan();
    }

    /// Takes news of work under way.
    pub fn progress(&mut self, ticket: Ticket, progress: &Progress) -> bool {
        let now = self.now;
        self.model.progress(ticket, progress, now)
            || self.data.progress(ticket, progress, now)
            || self.recount.progress(ticket, progress, now)
    }

    /// A path as typed: `~/` is the home folder.
    pub fn path(&self, typed: &str) -> PathBuf {
        match (typed.strip_prefix("~"), &self.home) {
            (Some(""), Some(home)) => home.clone(),
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => PathBuf::from(typed),
        }
    }

    /// A path as it is shown: short where it lies here or at home. Not escaped.
    pub fn shown(&self, path: &Path) -> String {
        if let Ok(here) = path.strip_prefix(&self.folder)
            && !here.as_os_str().is_empty()
        {
            return here.display().to_string();
        }
        match self.home.as_ref().and_then(|home| path.strip_prefix(home).ok()) {
            Some(rest) if rest.as_os_str().is_empty() => "~".into(),
            Some(rest) => format!("~/{}", rest.display()),
            None => path.display().to_string(),
        }
    }
}
