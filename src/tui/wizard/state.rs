//! What all pages share: the answers, what is known for them, and the plan that follows.
//!
//! Facts follow answers: a page changes an answer, [`State::chase`] asks for what is now unknown and lets go what no
//! longer belongs to the answers, and [`State::replan`] makes the plan anew. So going back and changing something can
//! never leave a plan that rests on something else.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use ratatui::layout::Size;
use sparktune_plan::presets::OF_ONE_RUN;
use sparktune_plan::{
    Answer, Answers, ConfigOptions, Facts, Origin, Plan, PlanError, SETTINGS, Setting, resolve,
};

use super::Page;
use super::asked::{Asked, Wait};
use super::desk::{
    Ask, CacheState, Cached, DataFound, MachineFound, ModelFound, Progress, Recent, Reply, Request, Ticket,
    Told,
};
use crate::screen::Role;

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
type ModelKey = (String, Option<String>, ConfigOptions);

/// What the data's facts depend on so much that others cannot stand in for them.
type DataKey = (ModelKey, Vec<PathBuf>);

/// The names of further answers that the data is read by; a change of these is counted again when a page is left.
const COUNTED_BY: [&str; 4] = ["format", "think", "max-example-tokens", "eval-data"];

/// What the pages share.
pub(super) struct State {
    pub answers: Answers,
    /// What presets, files and the environment have said, also where an answer of the user counts more.
    below: Answers,
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
            below: answers.without(|origin, _| origin == Origin::Flag),
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
        (found.unknown_architecture.is_none() || self.is_confirmed()).then_some(&**found)
    }

    /// Whether the user has said what a family that is not known is to be computed as.
    pub fn is_confirmed(&self) -> bool {
        self.answers.architecture.is_some()
    }

    /// Takes the architecture that was offered for a family that is not known.
    pub fn confirm_model(&mut self) {
        if let Some(found) = self.model.here() {
            self.answers.architecture = Some(Answer::flag(found.facts.config.architecture));
            // It was looked at as that already.
            self.model_of = self.model_key();
            self.replan();
        }
    }

    /// Chooses a model. Of another one the revision and the folder would be wrong.
    pub fn choose_model(&mut self, name: &str) {
        let same = self.answers.model.as_ref().is_some_and(|answer| answer.value == name);
        if !same {
            self.answers.model = Some(Answer::flag(name.to_owned()));
            self.answers.revision = None;
            self.answers.model_path = None;
            self.answers.architecture = None;
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
        let Answers { model, revision, .. } = &self.answers;
        let revision = revision.as_ref().map(|answer| answer.value.clone());
        Some((model.as_ref()?.value.clone(), revision, self.answers.config_options()))
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
            if let Some((name, revision, config)) = key {
                self.model = self.expect(Ask::Model { name, revision, config });
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
        self.answers.without(|_, name| !COUNTED_BY.contains(&name))
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

    /// Takes one answer back. What a preset, a file or the environment had said holds again; where nobody had said
    /// anything else, or that itself is taken back, the plan's own value does.
    pub fn take_back(&mut self, setting: &Setting) {
        let own = self.answers.origin(setting.key) == Some(Origin::Flag);
        self.answers.clear(setting.name);
        if own {
            self.fall_back();
        } else {
            self.below.clear(setting.name);
        }
        self.replan();
    }

    /// Takes back all answers of the user but those that say what the run is made from.
    pub fn take_back_all(&mut self) {
        self.answers =
            self.answers.without(|origin, name| origin == Origin::Flag && !OF_ONE_RUN.contains(&name));
        self.fall_back();
        self.replan();
    }

    /// Lets what was said below hold where there is no answer.
    fn fall_back(&mut self) {
        self.answers = self.below.clone().merge(std::mem::take(&mut self.answers));
    }

    /// Puts a preset in the place of the last one; what the user said in other ways still counts more. Returns how many
    /// answers of the user do.
    pub fn use_preset(&mut self, name: &str, preset: Answers) -> usize {
        let of_last = |origin, name: &str| origin == Origin::Preset && !OF_ONE_RUN.contains(&name);
        self.below = preset.merge(self.below.without(of_last));
        self.answers = self.answers.without(of_last);
        self.fall_back();
        self.answers.preset = Some(Answer::flag(name.to_owned()));
        self.replan();
        let own = |setting: &&Setting| self.answers.origin(setting.key) == Some(Origin::Flag);
        SETTINGS.iter().filter(own).filter(|setting| !OF_ONE_RUN.contains(&setting.name)).count()
    }

    /// Starts over from other answers.
    pub fn start_from(&mut self, answers: Answers) {
        self.below = answers.without(|origin, _| origin == Origin::Flag);
        self.answers = answers;
    }

    /// Why the data cannot be trained on as it is: too much of it was rejected, nothing is left, or its
    /// name is none that a plan can hold.
    pub fn data_refused(&self) -> Option<String> {
        let report = &self.data.here()?.report;
        let most = self.answers.max_rejected.as_ref().map_or(0.01, |answer| answer.value);
        if !report.exceeds(most) {
            let problem = self.problem.as_ref().filter(|problem| problem.key == Some("data.train"));
            return problem.map(|problem| problem.text.clone());
        }
        if report.examples == 0 && report.rejected == 0 {
            return Some("there is no example in it: every line is blank, or there is none".into());
        }
        Some(format!(
            "{} of {} lines were rejected, at most {} may be. w shows each with its fix; m trains on the rest all the same",
            sparktune_plan::render::count(report.rejected),
            sparktune_plan::render::count(report.rejected + report.examples),
            sparktune_plan::render::percent(most),
        ))
    }

    /// Raises the limit on rejected lines to what was found.
    pub fn take_what_is_left(&mut self) {
        let most = self.answers.max_rejected.as_ref().map_or(0.01, |answer| answer.value);
        let report = self.data.here().map(|data| &data.report);
        let Some(report) = report.filter(|report| report.examples > 0 && report.exceeds(most)) else {
            return;
        };
        // The next whole percent.
        let share = (report.rejected_share() * 100.0).ceil() / 100.0;
        self.answers.max_rejected = Some(Answer::flag(share));
        self.replan();
        self.say(Role::Warn, format!("max_rejected is now {share}: the rejected lines are left out"));
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
