//! The wizard: one question per screen, from no answers to a running job.
//!
//! Owns how the questions of [`sparktune_app::questions`] are shown as pages, and which page is next. Enters:
//! keys, and the responses of a [`backend`]. Leaves: requests to it, and in the end an [`Outcome`]. The
//! wizard opens no file and queries no device; all advice comes from the plan. Each page has its own file;
//! `state` is shared, and its facts always belong to the current answers.

pub mod backend;
mod browser;
mod command;
mod cost;
mod data;
mod frame;
mod histogram;
mod keys;
mod leaving;
mod lines;
mod loading;
mod machine;
mod model;
mod model_table;
mod mtp;
mod path_line;
mod presets;
mod preview;
mod recommendation;
mod rejected;
pub mod request;
mod review;
mod settings;
mod starting;
mod state;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use data::DataPage;
use keys::{COMMON, Common, KeyResult, Keys};
use leaving::{Choice, Leaving};
use loading::Loading;
use machine::MachinePage;
use model::ModelPage;
use mtp::MtpPage;
use presets::{PresetList, SavePreset};
use ratatui::Frame;
use recommendation::PlanPage;
use request::{Request, Response, Ticketed};
use review::ReviewPage;
use sparktune_app::draft::Draft;
use sparktune_app::presets::Preset;
pub use sparktune_app::questions::page::Page;
use sparktune_plan::Answers;
use starting::Starting;
use state::State;

use crate::screen::{App, Input, Next, Role, Theme, action, help, rows};

/// The initial state of a wizard.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The answers from flags, environment, user file and preset.
    pub answers: Answers,
    /// The draft of an earlier, unfinished wizard. The first question is whether to continue it.
    pub draft: Option<Draft>,
    /// The absolute working directory, where browsing starts.
    pub folder: PathBuf,
    /// The user's home folder, for `~/`.
    pub home: Option<PathBuf>,
}

/// How the wizard ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The user left before a run was started.
    Left {
        /// The answers were kept; the next wizard offers to continue.
        draft_kept: bool,
    },
    /// A run was started in this folder.
    Started(PathBuf),
}

/// The wizard.
pub struct Wizard {
    state: State,
    responses: Receiver<Ticketed<Response>>,
    /// The backend has ended.
    is_alone: bool,
    page: Page,
    over: Option<Over>,
    machine: MachinePage,
    model: ModelPage,
    data: DataPage,
    plan: PlanPage,
    mtp: MtpPage,
    review: ReviewPage,
    starting: Starting,
    /// The user has left, but a start is still being cancelled.
    leaves_soon: Option<bool>,
    /// The preset that a continued draft names, until its text was read.
    preset_of_draft: Option<(String, Loading<Vec<Preset>>)>,
    /// The draft as it was saved last, or the initial one.
    kept: Draft,
    is_kept: bool,
    outcome: Option<Outcome>,
}

/// An overlay over the page, which takes the keys first.
enum Over {
    Help,
    Leaving(Leaving),
    Presets(PresetList),
    Save(SavePreset),
}

impl Wizard {
    /// Starts at the first page, or with the question whether to continue the draft. Sends the first
    /// requests.
    pub fn new(
        setup: Setup,
        requests: Sender<Ticketed<Request>>,
        responses: Receiver<Ticketed<Response>>,
    ) -> Self {
        let Setup { answers, draft, folder, home } = setup;
        let kept = Draft::new(Page::Machine, &answers);
        Self {
            state: State::new(answers, folder, home, requests),
            responses,
            is_alone: false,
            page: Page::Machine,
            over: draft.map(|draft| Over::Leaving(Leaving::Continue(Box::new(draft)))),
            machine: MachinePage::default(),
            model: ModelPage::default(),
            data: DataPage::default(),
            plan: PlanPage::default(),
            mtp: MtpPage::default(),
            review: ReviewPage::default(),
            starting: Starting::default(),
            leaves_soon: None,
            preset_of_draft: None,
            kept,
            is_kept: false,
            outcome: None,
        }
    }

    /// Returns how the wizard ended. It is `None` while the wizard runs, and when it was ended from outside;
    /// the answers are then kept.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    fn end(&mut self, outcome: Outcome) -> Next {
        self.outcome = Some(outcome);
        Next::Leave
    }

    // Keys.

    fn key(&mut self, event: &KeyEvent) -> Next {
        self.state.notice = None;
        let ctrl_c = event.code == KeyCode::Char('c') && event.modifiers.contains(KeyModifiers::CONTROL);
        if let Some(next) = self.over_key(event, ctrl_c) {
            return next;
        }
        if ctrl_c {
            return self.ask_to_leave();
        }
        if event.code == KeyCode::F(1) {
            self.over = Some(Over::Help);
            return Next::Draw;
        }
        let result = if self.starting.is_shown() {
            self.starting.key(event, &mut self.state)
        } else {
            self.page_key(event)
        };
        match result {
            KeyResult::Handled => self.after_answer(),
            KeyResult::Next => self.next(),
            KeyResult::Demo => drop(self.state.send(Request::Demo)),
            KeyResult::Presets => self.over = Some(Over::Presets(PresetList::open(&mut self.state))),
            KeyResult::SavePreset => self.over = Some(Over::Save(SavePreset::open())),
            KeyResult::Start => self.starting.start(&mut self.state),
            KeyResult::Ignored if self.keys().typing => return Next::Keep,
            KeyResult::Ignored => match action(COMMON, event) {
                Some(Common::Help) => self.over = Some(Over::Help),
                Some(Common::Leave) => return self.ask_to_leave(),
                _ if self.starting.is_shown() => return Next::Keep,
                Some(Common::Next) => self.next(),
                Some(Common::Back) => self.back(),
                None => return Next::Keep,
            },
        }
        Next::Draw
    }

    fn page_key(&mut self, event: &KeyEvent) -> KeyResult {
        let state = &mut self.state;
        match self.page {
            Page::Machine => self.machine.key(event, state),
            Page::Model => self.model.key(event, state),
            Page::Data => self.data.key(event, state),
            Page::Plan => self.plan.key(event, state),
            Page::Mtp => self.mtp.key(event, state),
            Page::Review => self.review.key(event, state),
        }
    }

    /// Passes a key to the overlay. Overlays consume every key, so that none reaches the page below.
    fn over_key(&mut self, event: &KeyEvent, ctrl_c: bool) -> Option<Next> {
        let closed = match self.over.as_mut()? {
            Over::Help => Some(true),
            Over::Leaving(leaving) => {
                // Pressing Ctrl-C again leaves without further questions.
                let choice = if ctrl_c { Some(leaving.insisted()) } else { leaving.key(event) };
                return Some(choice.map_or(Next::Keep, |choice| self.chose(choice)));
            }
            _ if ctrl_c => return Some(self.ask_to_leave()),
            Over::Presets(list) => list.key(event, &mut self.state),
            Over::Save(save) => save.key(event, &mut self.state),
        };
        if closed == Some(true) {
            self.over = None;
            self.after_answer();
        }
        Some(if closed.is_some() { Next::Draw } else { Next::Keep })
    }

    fn chose(&mut self, choice: Choice) -> Next {
        let over = self.over.take();
        match (choice, over) {
            (Choice::Stay, _) => {}
            (Choice::Leave { keep }, _) => return self.leave(keep),
            (Choice::Anew, _) => drop(self.state.send(Request::ForgetDraft)),
            (Choice::Continue, Some(Over::Leaving(Leaving::Continue(draft)))) => self.go_on_with(*draft),
            (Choice::Continue, _) => {}
        }
        Next::Draw
    }

    /// Continues a draft. Answers given by a flag take precedence.
    fn go_on_with(&mut self, draft: Draft) {
        let given = std::mem::take(&mut self.state.planner.answers);
        let preset = draft.answers.preset.as_ref().map(|answer| answer.value.clone());
        let same = given.preset.as_ref().map(|answer| &answer.value) == preset.as_ref();
        self.state.planner.answers = draft.answers.clone().merge(given);
        if let Some(name) = preset.filter(|_| !same) {
            let presets = self.state.request(Request::Presets { also: Some(name.clone()) });
            self.preset_of_draft = Some((name, presets));
        }
        self.kept = draft.clone();
        self.is_kept = true;
        self.go_to(draft.page);
    }

    fn ask_to_leave(&mut self) -> Next {
        let answered = self.is_kept || self.draft() != self.kept;
        self.over =
            Some(Over::Leaving(Leaving::Leave { answered, starting: self.starting.run.wait().is_some() }));
        Next::Draw
    }

    fn leave(&mut self, keep: bool) -> Next {
        if keep {
            self.keep();
        } else {
            self.state.send(Request::ForgetDraft);
            self.is_kept = false;
        }
        let draft_kept = self.is_kept;
        // A start in progress is cancelled first. If the user leaves a second time, it is left to itself.
        if self.starting.run.wait().is_some() && self.leaves_soon.is_none() && !self.is_alone {
            self.starting.cancel(&mut self.state);
            self.leaves_soon = Some(draft_kept);
            return Next::Draw;
        }
        self.end(Outcome::Left { draft_kept })
    }

    // From page to page.

    fn go_to(&mut self, page: Page) {
        if self.page >= Page::Data {
            self.state.count_again();
        }
        self.page = page;
        self.state.refresh_facts(page);
        let state = &mut self.state;
        match page {
            Page::Machine => {}
            Page::Model => self.model.enter(state),
            Page::Data => self.data.enter(state),
            Page::Plan => self.plan.enter(state),
            Page::Mtp => self.mtp.refresh(state),
            Page::Review => self.review.enter(),
        }
    }

    fn next(&mut self) {
        if let Some(why) = self.not_answered() {
            return self.state.say(Role::Warn, why);
        }
        let Some(mut page) = self.page.step(1) else { return };
        if page == Page::Mtp && !MtpPage::is_asked(&self.state) {
            page = Page::Review;
            self.state.say(Role::Dim, "this model has no MTP head: that question is skipped");
        }
        self.go_to(page);
    }

    fn back(&mut self) {
        let Some(mut page) = self.page.step(-1) else {
            self.ask_to_leave();
            return;
        };
        if page == Page::Mtp && !MtpPage::is_asked(&self.state) {
            page = Page::Plan;
        }
        self.go_to(page);
    }

    /// Returns the question on this page that has to be answered before the next page makes sense.
    fn not_answered(&self) -> Option<String> {
        let state = &self.state;
        match self.page {
            Page::Machine | Page::Review => None,
            Page::Model => match (state.model_ready(), state.model.wait(), state.model.ready()) {
                (Some(_), ..) => None,
                (None, Some(_), _) => Some("the model is still being checked".into()),
                (None, None, Some(_)) => Some("its architecture is unknown; y trains it anyway".into()),
                (None, None, None) => Some("enter chooses the model under the cursor".into()),
            },
            Page::Data => match (state.data.ready(), state.data.wait()) {
                (Some(_), _) => state.data_refused(),
                (None, Some(_)) => Some("the data is still being read; x cancels".into()),
                (None, None) => Some("choose data first: o opens the files".into()),
            },
            Page::Plan | Page::Mtp => match (&state.planner.problem, &state.planner.plan) {
                (Some(problem), _) => Some(problem.text.clone()),
                (None, None) => Some("there is no plan yet: it needs a model and data".into()),
                (None, Some(_)) => None,
            },
        }
    }

    // Responses.

    /// Takes all pending responses.
    fn poll(&mut self) -> Option<Next> {
        let mut next = None;
        loop {
            match self.responses.try_recv() {
                Ok(response) => {
                    let after = self.receive(response);
                    next = if next == Some(Next::Leave) { next } else { Some(after) };
                }
                Err(TryRecvError::Empty) => return next,
                Err(TryRecvError::Disconnected) if self.is_alone => return next,
                Err(TryRecvError::Disconnected) => {
                    self.is_alone = true;
                    let words = "the part of sparktune that reads files has failed, so nothing can be read any more. Leave (q) and start again; your answers are saved";
                    self.state.say(Role::Bad, words);
                    return Some(Next::Draw);
                }
            }
        }
    }

    fn receive(&mut self, response: Ticketed<Response>) -> Next {
        if let Response::Progress(progress) = &response.body {
            let now = self.state.now;
            let is_awaited = self.state.progress(response.ticket, progress)
                || self.starting.run.progress(response.ticket, progress, now);
            return if is_awaited { Next::Draw } else { Next::Keep };
        }
        let about_model = matches!(response.body, Response::Model(_));
        let about_facts = about_model || matches!(response.body, Response::Machine(_) | Response::Data(_));
        if let Some(response) = self.state.receive(response) {
            return self.receive_for_page(response);
        }
        if about_facts {
            self.plan.refresh(&self.state);
            self.mtp.refresh(&self.state);
            if self.page == Page::Model && self.state.planner.answers.model.is_none() {
                self.model.enter(&self.state);
            } else {
                self.model.refresh(&self.state);
            }
        }
        if about_model
            && self.page == Page::Model
            && self.model.go_on_if_found(&self.state) == KeyResult::Next
        {
            self.next();
        }
        self.after_answer();
        Next::Draw
    }

    fn receive_for_page(&mut self, response: Ticketed<Response>) -> Next {
        match &response.body {
            Response::Started(_) => {
                if let Some(run) = self.starting.receive(response, &mut self.state) {
                    self.state.send(Request::ForgetDraft);
                    return self.end(Outcome::Started(run));
                }
                if let (Some(draft_kept), None) = (self.leaves_soon, self.starting.run.wait()) {
                    return self.end(Outcome::Left { draft_kept });
                }
            }
            Response::Demo(Ok(answers)) => {
                if self.page == Page::Machine {
                    self.state.planner.start_from((**answers).clone());
                    self.state
                        .say(Role::Accent, "the demo's answers are filled in; Enter accepts each of them");
                    self.go_to(Page::Model);
                }
            }
            Response::Demo(Err(words)) => self.state.say(Role::Bad, words.clone()),
            Response::Presets(presets) => {
                if let Some((name, loading)) = &mut self.preset_of_draft
                    && loading.answer(response.ticket, Ok(presets.clone()))
                {
                    if let Err(words) = presets::load_named(&name.clone(), presets, &mut self.state) {
                        self.state.say(Role::Warn, words);
                    }
                    self.preset_of_draft = None;
                }
                if let Some(Over::Presets(list)) = &mut self.over {
                    list.receive(&response);
                }
            }
            Response::Saved(_) => {
                if let Some(Over::Save(save)) = &mut self.over
                    && save.receive(&response, &mut self.state)
                {
                    self.over = None;
                }
            }
            _ => {
                self.model.receive(&response);
                self.data.receive(&response, &self.state);
            }
        }
        self.after_answer();
        Next::Draw
    }

    // Keeping the draft.

    fn draft(&self) -> Draft {
        Draft::new(self.page, &self.state.planner.answers)
    }

    /// Updates the facts and the draft after an answer.
    fn after_answer(&mut self) {
        self.state.refresh_facts(self.page);
        if self.page == Page::Mtp {
            self.mtp.refresh(&self.state);
        }
        self.keep();
    }

    fn keep(&mut self) {
        let draft = self.draft();
        if matches!(self.over, Some(Over::Leaving(Leaving::Continue(_)))) || draft == self.kept {
            return;
        }
        self.state.send(Request::KeepDraft { draft: Box::new(draft.clone()) });
        self.kept = draft;
        self.is_kept = true;
    }

    // Drawing.

    fn keys(&self) -> Keys {
        if self.starting.is_shown() {
            return self.starting.keys();
        }
        match self.page {
            Page::Machine => self.machine.keys(),
            Page::Model => self.model.keys(),
            Page::Data => self.data.keys(&self.state),
            Page::Plan => self.plan.keys(),
            Page::Mtp => self.mtp.keys(),
            Page::Review => self.review.keys(),
        }
    }

    fn paste(&mut self, text: &str) -> Next {
        let state = &mut self.state;
        match (&mut self.over, self.page) {
            (Some(Over::Save(save)), _) => save.paste(text),
            (Some(_), _) => return Next::Keep,
            _ if self.starting.is_shown() => return Next::Keep,
            (None, Page::Model) => self.model.paste(text, state),
            (None, Page::Data) => self.data.paste(text, state),
            (None, Page::Plan) => self.plan.paste(text, state),
            (None, _) => return Next::Keep,
        }
        self.after_answer();
        Next::Draw
    }

    fn is_waiting(&self) -> bool {
        let state = &self.state;
        let waits = [state.machine.wait(), state.model.wait(), state.data.wait(), self.starting.run.wait()];
        waits.iter().any(Option::is_some)
    }
}

impl App for Wizard {
    fn update(&mut self, input: Input) -> Next {
        if self.outcome.is_some() {
            return Next::Leave;
        }
        match input {
            Input::Key(event) => {
                let next = self.key(&event);
                if next == Next::Draw {
                    self.keep();
                }
                next
            }
            Input::Paste(text) => self.paste(&text),
            Input::Size(size) => {
                self.state.size = size;
                Next::Draw
            }
            Input::Tick => {
                self.state.now += 1;
                let waited = self.is_waiting();
                let after = self.poll().unwrap_or(Next::Keep);
                if after == Next::Keep && waited { Next::Draw } else { after }
            }
        }
    }

    fn view(&self, frame: &mut Frame<'_>, theme: &Theme) {
        let area = frame.area();
        if self.page == Page::Review
            && self.review.command
            && self.over.is_none()
            && !self.starting.is_shown()
        {
            return self.review.view_command(&self.state, frame, theme);
        }
        let keys = self.keys();
        let (hints, always) = match &self.over {
            Some(Over::Leaving(leaving)) => (leaving.keys().hints, Vec::new()),
            Some(Over::Presets(list)) => (list.keys().hints, Vec::new()),
            Some(Over::Save(save)) => (save.keys().hints, Vec::new()),
            Some(Over::Help) => (Vec::new(), Vec::new()),
            None if keys.typing => (keys.hints, vec![("F1", "keys")]),
            None => {
                // Esc may have another meaning here, and on the first page it does not go back.
                let esc_is_taken = self.starting.is_shown()
                    || self.page == Page::Machine
                    || keys.hints.iter().any(|(key, _)| *key == "esc");
                let common = COMMON.iter().filter_map(|binding| Some((binding.shown, binding.hint?)));
                (keys.hints, common.filter(|(key, _)| !(esc_is_taken && *key == "esc")).collect())
            }
        };
        let hints = frame::hints(hints, &always, area.width.saturating_sub(2));
        let body = frame::around(self.page, self.starting.is_shown(), &self.state, hints, frame, theme);
        let state = &self.state;
        if self.starting.is_shown() {
            self.starting.view(state, frame, body, theme);
        } else {
            match self.page {
                Page::Machine => self.machine.view(state, frame, body, theme),
                Page::Model => self.model.view(state, frame, body, theme),
                Page::Data => self.data.view(state, frame, body, theme),
                Page::Plan => self.plan.view(state, frame, body, theme),
                Page::Mtp => self.mtp.view(state, frame, body, theme),
                Page::Review => self.review.view(state, frame, body, theme),
            }
        }
        match &self.over {
            None => {}
            Some(Over::Help) => {
                let keys = self.keys();
                let title = if keys.typing { "while typing" } else { "here" };
                let groups = [(title, keys.rows), ("on every page", rows(COMMON))];
                help(frame, area, theme, &groups);
            }
            Some(Over::Leaving(leaving)) => leaving.view(state, frame, area, theme),
            Some(Over::Presets(list)) => list.view(frame, area, theme),
            Some(Over::Save(save)) => save.view(frame, area, theme),
        }
    }
}
