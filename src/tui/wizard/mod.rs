//! The wizard: one question per screen, from no answers to a running job.
//!
//! Owns how the questions of [`sparktune_app::questions`] are shown as pages, and which page is next. Enters:
//! keys, and the responses of a [`backend`]. Leaves: requests to it, and in the end an [`Outcome`]. The
//! wizard opens no file and queries no device; all advice comes from the plan. Each page has its own file;
//! `state` is shared, and its facts always belong to the current answers. Here are keys, overlays and the
//! draft; `paging` goes from page to page, `receiving` takes responses, `drawing` makes the picture.

pub mod backend;
mod browser;
mod command;
mod cost;
mod data;
mod drawing;
mod findings;
mod frame;
mod histogram;
mod kept;
mod keys;
mod leaving;
mod lines;
mod loading;
mod machine;
mod model;
mod model_table;
mod mtp;
mod no_plan;
mod paging;
mod path_line;
mod presets;
mod preview;
mod receiving;
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
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use data::DataPage;
use kept::Kept;
use keys::{COMMON, Common, KeyResult, Keys};
use leaving::{AnswersAre, Choice, Leaving};
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
use sparktune_app::planner::Planner;
use sparktune_app::presets::Preset;
pub use sparktune_app::questions::page::Page;
use sparktune_plan::{Answers, Origin};
use starting::Starting;
use state::State;

use crate::screen::{App, Input, Next, Theme, action};

/// The initial state of a wizard.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The answers from flags, environment, user file and preset.
    pub answers: Answers,
    /// Where the wizard begins.
    pub begin: Begin,
    /// The absolute working directory, where browsing starts.
    pub folder: PathBuf,
    /// The user's home folder, for `~/`.
    pub home: Option<PathBuf>,
    /// The folder of the demo's model, if it is there.
    pub demo: Option<String>,
}

/// Where a wizard begins.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Begin {
    /// At the first page.
    #[default]
    Anew,
    /// With the question whether to continue the draft of an earlier, unfinished wizard.
    WithDraft(Box<Draft>),
    /// On the page of the plan, because the answers already name model and data, and the user wants to change
    /// them.
    WithPlan {
        /// There is a draft of an earlier, unfinished wizard, which is left as it is.
        beside_draft: bool,
    },
}

impl From<Option<Draft>> for Begin {
    fn from(draft: Option<Draft>) -> Self {
        draft.map_or(Self::Anew, |draft| Self::WithDraft(Box::new(draft)))
    }
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
    leaves_soon: bool,
    /// The preset that a continued draft names, until its text was read.
    preset_of_draft: Option<(String, Loading<Vec<Preset>>)>,
    kept: Kept,
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
        let Setup { answers, begin, folder, home, demo } = setup;
        let kept = Kept::nothing(Draft::new(Page::Machine, &answers));
        let with_plan = matches!(begin, Begin::WithPlan { .. });
        let beside_draft = begin == Begin::WithPlan { beside_draft: true };
        let over = match begin {
            Begin::WithDraft(draft) => Some(Over::Leaving(Leaving::Continue(draft))),
            Begin::Anew | Begin::WithPlan { .. } => None,
        };
        let mut state = State::new(answers, folder, home, demo, requests);
        state.beside_draft = beside_draft;
        let mut wizard = Self {
            state,
            responses,
            is_alone: false,
            page: Page::Machine,
            over,
            machine: MachinePage::default(),
            model: ModelPage::default(),
            data: DataPage::default(),
            plan: PlanPage::default(),
            mtp: MtpPage::default(),
            review: ReviewPage::default(),
            starting: Starting::default(),
            leaves_soon: false,
            preset_of_draft: None,
            kept,
            outcome: None,
        };
        if with_plan {
            wizard.go_to(Page::Plan);
        }
        wizard
    }

    /// Returns how the wizard ended. It is `None` while the wizard runs, and when it was ended from outside;
    /// the answers are then kept.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Waits until this backend has saved the last draft, and returns how the wizard ended, as
    /// [`outcome`](Self::outcome) does. Only then is it known whether the answers are kept.
    pub fn outcome_after(self, backend: JoinHandle<()>) -> Option<Outcome> {
        let Self { state, responses, mut kept, outcome, .. } = self;
        // The backend ends once nobody can send requests any more. If it panicked, the wizard has said so.
        drop(state);
        let _ = backend.join();
        for Ticketed { ticket, body } in responses.try_iter() {
            if let Response::NotKept(why) = body {
                kept.failed(ticket, why);
            }
        }
        match outcome? {
            Outcome::Left { draft_kept } => Some(Outcome::Left { draft_kept: draft_kept && kept.is_saved() }),
            started @ Outcome::Started(_) => Some(started),
        }
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
            (Choice::Anew, _) => self.forget(),
            (Choice::Continue, Some(Over::Leaving(Leaving::Continue(draft)))) => self.go_on_with(*draft),
            (Choice::Continue, _) => {}
        }
        Next::Draw
    }

    /// Continues a draft. Answers given by a flag take precedence.
    fn go_on_with(&mut self, draft: Draft) {
        let given = std::mem::take(&mut self.state.planner.answers);
        // What the draft says about another model or other data does not hold for the given ones.
        let mut drafted = Planner::new(draft.answers.clone());
        if let Some(model) = given.model.as_ref().filter(|answer| answer.origin == Origin::Flag) {
            drafted.choose_model(&model.value);
        }
        if let Some(data) = given.data.as_ref().filter(|answer| answer.origin == Origin::Flag) {
            drafted.choose_data(data.value.clone());
        }
        let answers = drafted.answers;
        let preset = answers.preset.as_ref().map(|answer| answer.value.clone());
        let same = given.preset.as_ref().map(|answer| &answer.value) == preset.as_ref();
        self.state.planner.answers = answers.merge(given);
        if let Some(name) = preset.filter(|_| !same) {
            let presets = self.state.request(Request::Presets { also: Some(name.clone()) });
            self.preset_of_draft = Some((name, presets));
        }
        let page = draft.page;
        self.kept = Kept::earlier(draft);
        self.go_to(page);
    }

    fn ask_to_leave(&mut self) -> Next {
        let is_changed = self.draft() != self.kept.draft;
        let problem = match self.kept.problem() {
            None if self.is_alone && is_changed => Some("the part of sparktune that writes files has failed"),
            problem => problem,
        };
        let answers = match problem {
            _ if self.state.beside_draft => AnswersAre::BesideDraft,
            Some(why) if self.kept.has_any() => AnswersAre::SavedBefore(why.to_owned()),
            Some(why) => AnswersAre::Lost(why.to_owned()),
            None if self.kept.has_any() || is_changed => AnswersAre::Saved,
            None => AnswersAre::None,
        };
        let starting = self.starting.run.wait().is_some();
        self.over = Some(Over::Leaving(Leaving::Leave { answers, starting }));
        Next::Draw
    }

    fn leave(&mut self, keep: bool) -> Next {
        if keep {
            self.keep();
        } else {
            self.forget();
        }
        // A start in progress is cancelled first. If the user leaves a second time, it is left to itself.
        if self.starting.run.wait().is_some() && !self.leaves_soon && !self.is_alone {
            self.starting.cancel(&mut self.state);
            self.leaves_soon = true;
            return Next::Draw;
        }
        self.end(Outcome::Left { draft_kept: self.kept.is_saved() })
    }

    // Keeping the draft.

    /// Returns the draft of the present answers. A draft cannot say which answers hold for the present data
    /// alone, so these are left out, and the draft continues on the page where they are given.
    fn draft(&self) -> Draft {
        let planner = &self.state.planner;
        let answers = planner.answers_for_other_data();
        let page = if answers == planner.answers { self.page } else { self.page.min(Page::Data) };
        Draft::new(page, &answers)
    }

    fn forget(&mut self) {
        self.state.send(Request::ForgetDraft);
        self.kept.deleted();
    }

    /// Updates the facts and the draft after an answer.
    fn after_answer(&mut self) {
        if self.page == Page::Plan && !self.plan.is_typing() {
            self.state.count_again_if_examples_change();
        }
        self.state.refresh_facts(self.page);
        if self.page == Page::Mtp {
            self.mtp.refresh(&self.state);
        }
        self.keep();
    }

    fn keep(&mut self) {
        let draft = self.draft();
        let is_asking = matches!(self.over, Some(Over::Leaving(Leaving::Continue(_))));
        if is_asking || self.is_alone || self.state.beside_draft || draft == self.kept.draft {
            return;
        }
        let ticket = self.state.send(Request::KeepDraft { draft: Box::new(draft.clone()) });
        self.kept.sent(draft, ticket);
    }

    // The open page.

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
        self.draw(frame, theme);
    }

    fn copies(&mut self) -> Option<String> {
        self.state.copied.take()
    }
}
