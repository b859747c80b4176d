//! The state that all pages share: the answers, the facts for them, and the plan that follows.
//!
//! Facts depend on answers: a page changes an answer, [`State::refresh_facts`] requests the facts that are
//! now unknown and drops those that no longer belong to the answers, and [`State::replan`] makes the plan
//! again. A plan therefore never rests on outdated facts.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use ratatui::layout::Size;
use sparktune_app::data::{DataFound, refusal};
use sparktune_app::files::expand_home;
use sparktune_app::listener::Progress;
use sparktune_app::machine::MachineFound;
use sparktune_app::model::{Cached, CachedModel, ModelFound};
use sparktune_app::planner::Planner;
use sparktune_app::questions::model::DEMO_LEFT;
use sparktune_app::questions::page::Page;
use sparktune_app::runs::Recent;
use sparktune_plan::{Answer, Answers, ConfigOptions, Facts};

use super::loading::{Loading, Wait};
use super::request::{Request, Response, Ticket, Ticketed};
use crate::screen::Role;

/// The answers that the model's facts depend on.
type ModelKey = (String, Option<String>, ConfigOptions);

/// The answers that the data's facts depend on.
type DataKey = (ModelKey, Vec<PathBuf>);

/// The state that all pages share.
pub(super) struct State {
    /// The answers, and the plan for the current model and data.
    pub planner: Planner,
    /// The working directory.
    pub folder: PathBuf,
    /// The user's home folder.
    pub home: Option<PathBuf>,
    /// The folder of the demo's model.
    pub demo: Option<String>,
    pub size: Size,
    /// The number of ticks so far, which serves as a clock.
    pub now: u64,
    /// One line about the last action.
    pub notice: Option<(Role, String)>,
    /// What the last key copies.
    pub copied: Option<String>,
    /// There is a draft of another wizard, so that the answers of this one are not saved.
    pub beside_draft: bool,
    pub machine: Loading<MachineFound>,
    pub catalog: Loading<Vec<CachedModel>>,
    pub recent: Loading<Recent>,
    pub model: Loading<Box<ModelFound>>,
    /// The answers that `model` belongs to.
    model_of: Option<ModelKey>,
    pub data: Loading<Box<DataFound>>,
    /// The answers that `data` belongs to.
    data_of: Option<DataKey>,
    /// The answers that the data was last read with.
    read_by: Option<Answers>,
    /// The state of reading the data again, while the older figures are still used.
    pub recount: Loading<Box<DataFound>>,
    outbox: Sender<Ticketed<Request>>,
    tickets: Ticket,
}

impl State {
    pub(super) fn new(
        answers: Answers,
        folder: PathBuf,
        home: Option<PathBuf>,
        demo: Option<String>,
        outbox: Sender<Ticketed<Request>>,
    ) -> Self {
        let mut state = Self {
            planner: Planner::new(answers),
            folder,
            home,
            demo,
            size: Size { width: 80, height: 24 },
            now: 0,
            notice: None,
            copied: None,
            beside_draft: false,
            machine: Loading::Idle,
            catalog: Loading::Idle,
            recent: Loading::Idle,
            model: Loading::Idle,
            model_of: None,
            data: Loading::Idle,
            data_of: None,
            read_by: None,
            recount: Loading::Idle,
            outbox,
            tickets: 0,
        };
        state.look_at_machine();
        state.catalog = state.request(Request::Catalog);
        state.recent = state.request(Request::Recent);
        state
    }

    /// Sends a request and returns its ticket. A backend that has ended is noticed where its responses are
    /// read.
    pub(super) fn send(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        let _ = self.outbox.send(Ticketed { ticket: self.tickets, body: request });
        self.tickets
    }

    /// Sends a request and returns a value that waits for the response.
    pub(super) fn request<T>(&mut self, request: Request) -> Loading<T> {
        Loading::waiting(self.send(request), self.now)
    }

    /// Asks the backend to end the work for a value that nobody needs any more.
    pub(super) fn cancel<T>(&mut self, loading: &Loading<T>) {
        if let Loading::Waiting(Wait { ticket, .. }) = loading {
            self.send(Request::Cancel { ticket: *ticket });
        }
    }

    pub(super) fn look_at_machine(&mut self) {
        self.machine = self.request(Request::Machine);
    }

    /// Shows one line about the last action.
    pub(super) fn say(&mut self, role: Role, words: impl Into<String>) {
        self.notice = Some((role, words.into()));
    }

    /// Returns the model, once it is known and, if necessary, confirmed.
    pub(super) fn model_ready(&self) -> Option<&ModelFound> {
        let found = self.model.ready()?;
        (found.unknown_architecture.is_none() || self.is_confirmed()).then_some(&**found)
    }

    /// Returns whether the user confirmed how an unknown family is treated.
    pub(super) fn is_confirmed(&self) -> bool {
        self.planner.answers.architecture.is_some()
    }

    /// Accepts the architecture that was suggested for an unknown family.
    pub(super) fn confirm_model(&mut self) {
        if let Some(found) = self.model.ready() {
            self.planner.answers.architecture = Some(Answer::flag(found.facts.config.architecture));
            // The model was already looked up as that architecture.
            self.model_of = self.model_key();
            self.replan();
        }
    }

    /// Chooses a model. A model that failed before is looked up again.
    pub(super) fn choose_model(&mut self, name: &str) {
        let is_same = self.planner.answers.model.as_ref().is_some_and(|answer| answer.value == name);
        if self.planner.choose_model(name) {
            self.say(Role::Accent, DEMO_LEFT);
        }
        if is_same && self.model.failed().is_some() {
            self.model_of = None;
        }
    }

    /// Chooses data. Data that failed before is read again.
    pub(super) fn choose_data(&mut self, paths: Vec<PathBuf>) {
        if self.planner.choose_data(paths) {
            self.say(Role::Accent, DEMO_LEFT);
        }
        if self.data.failed().is_some() {
            self.data_of = None;
        }
    }

    /// Reads the data again after a failure, a cancel, or a change of the files.
    pub(super) fn read_data_again(&mut self) {
        self.data_of = None;
    }

    /// Stops reading the data. It stays unread until the user requests it again.
    pub(super) fn cancel_data(&mut self) {
        let data = std::mem::replace(&mut self.data, Loading::Failed("cancelled".into()));
        self.cancel(&data);
    }

    fn model_key(&self) -> Option<ModelKey> {
        let Answers { model, revision, .. } = &self.planner.answers;
        let revision = revision.as_ref().map(|answer| answer.value.clone());
        Some((model.as_ref()?.value.clone(), revision, self.planner.answers.config_options()))
    }

    fn data_key(&self) -> Option<DataKey> {
        Some((self.model_key()?, self.planner.answers.data.as_ref()?.value.clone()))
    }

    /// Requests the facts that this page needs, and drops those that no longer belong to the answers.
    pub(super) fn refresh_facts(&mut self, page: Page) {
        let key = self.model_key();
        if key != self.model_of && (page >= Page::Model || self.model_of.is_some()) {
            let old = std::mem::take(&mut self.model);
            self.cancel(&old);
            self.model_of.clone_from(&key);
            if let Some((name, revision, config)) = key {
                self.model = self.request(Request::Model { name, revision, config });
            }
        }
        let key = self.data_key().filter(|_| self.model_ready().is_some());
        if key != self.data_of && (page >= Page::Data || self.data_of.is_some()) {
            let old = [std::mem::take(&mut self.data), std::mem::take(&mut self.recount)];
            old.iter().for_each(|old| self.cancel(old));
            self.data_of.clone_from(&key);
            if key.is_some() {
                self.read_by = Some(self.answers_data_is_read_by());
                self.data = self.request(self.data_request());
            }
            self.replan();
        }
    }

    fn data_request(&self) -> Request {
        Request::Data { answers: Box::new(self.planner.answers.clone()) }
    }

    fn answers_data_is_read_by(&self) -> Answers {
        self.planner.answers.without(|_, setting| !setting.reads_data)
    }

    /// Reads the data again in the background if an answer that affects it has changed. Data that could not
    /// be read with the old answer is read from the start.
    pub(super) fn count_again(&mut self) {
        let read_by = self.answers_data_is_read_by();
        if self.read_by.as_ref() == Some(&read_by) {
            return;
        }
        if self.data.failed().is_some() {
            self.data_of = None;
        }
        if self.data.ready().is_none() {
            return;
        }
        let old = std::mem::take(&mut self.recount);
        self.cancel(&old);
        self.read_by = Some(read_by);
        self.recount = self.request(self.data_request());
    }

    /// Like [`count_again`](Self::count_again), but only for answers that make other examples of the lines,
    /// on which every estimate rests. The size of the eval set, for example, can wait.
    pub(super) fn count_again_if_examples_change(&mut self) {
        let of_examples =
            |answers: &Answers| answers.without(|_, setting| !(setting.reads_data && setting.of_check));
        if self.read_by.as_ref().map(of_examples) != Some(of_examples(&self.planner.answers)) {
            self.count_again();
        }
    }

    /// Makes the plan from the answers and the current facts.
    pub(super) fn replan(&mut self) {
        let known = (self.machine.ready(), self.model_ready(), self.data.ready());
        let facts = match known {
            (Some(machine), Some(model), Some(data)) => Some(Facts {
                machine: machine.facts.clone(),
                model: model.facts.clone(),
                data: data.facts.clone(),
                rates: machine.rates.clone(),
                parent: data.parent.clone(),
            }),
            _ => None,
        };
        self.planner.set_facts(facts);
    }

    /// Returns why the data cannot be trained on as it is: too many lines were rejected, nothing is left, or
    /// a plan cannot contain its name.
    pub(super) fn data_refused(&self) -> Option<String> {
        let report = &self.data.ready()?.report;
        let Some(refusal) = refusal(&self.planner.answers, report) else {
            let problem = self.planner.problem.as_ref().filter(|problem| problem.key == Some("data.train"));
            return problem.map(|problem| problem.text.clone());
        };
        let keys = match (report.listed_lines(), report.examples) {
            (0, _) => "",
            _ if report.refused_files().next().is_some() => "",
            (_, 0) => ". w shows each with its fix",
            _ => ". w shows each with its fix; m trains on the rest anyway",
        };
        Some(format!("{}{keys}", refusal.text))
    }

    /// Raises the limit on rejected lines to the number found.
    pub(super) fn accept_the_rest(&mut self) {
        let Some(data) = self.data.ready() else { return };
        if let Some(limit) = self.planner.accept_the_rest(&data.report) {
            self.say(Role::Warn, format!("max_rejected is now {limit}; the rejected lines are skipped"));
        }
    }

    /// Returns how much of a catalog model is on this machine.
    pub(super) fn cached(&self, id: &str) -> Cached {
        let models = self.catalog.ready().map(Vec::as_slice).unwrap_or_default();
        models.iter().find(|model| model.id == id).map_or(Cached::Nothing, |model| model.cached)
    }

    /// Takes a response that concerns all pages. Returns a response that belongs to a single page.
    pub(super) fn receive(&mut self, response: Ticketed<Response>) -> Option<Ticketed<Response>> {
        let Ticketed { ticket, body } = response;
        match body {
            Response::Machine(result) => {
                if self.machine.answer(ticket, result) {
                    self.replan();
                }
            }
            Response::Catalog(models) => {
                self.catalog.answer(ticket, Ok(models));
            }
            Response::Recent(recent) => {
                self.recent.answer(ticket, Ok(recent));
            }
            Response::Model(result) => {
                if self.model.answer(ticket, result) {
                    self.replan();
                }
            }
            Response::Data(result) => {
                if self.data.waits_for(ticket) {
                    self.data.answer(ticket, result);
                    self.replan();
                } else if self.recount.answer(ticket, result) {
                    self.take_recount();
                }
            }
            body => return Some(Ticketed { ticket, body }),
        }
        None
    }

    fn take_recount(&mut self) {
        match std::mem::take(&mut self.recount) {
            Loading::Ready(found) => self.data = Loading::Ready(found),
            Loading::Failed(words) => self.data = Loading::Failed(words),
            waiting => self.recount = waiting,
        }
        self.replan();
    }

    /// Takes a progress message. Returns whether anything waits for it.
    pub(super) fn progress(&mut self, ticket: Ticket, progress: &Progress) -> bool {
        let now = self.now;
        self.model.progress(ticket, progress, now)
            || self.data.progress(ticket, progress, now)
            || self.recount.progress(ticket, progress, now)
    }

    /// Resolves a typed path: `~/` is the home folder.
    pub(super) fn path(&self, typed: &str) -> PathBuf {
        expand_home(typed, self.home.as_deref())
    }

    /// Returns a path as it is displayed, relative to the working directory or the home folder where
    /// possible. It is not escaped.
    pub(super) fn shown(&self, path: &Path) -> String {
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
