//! Takes the responses of the backend, and passes each to the page that waits for it.
//!
//! Enters: the responses that have arrived. Leaves: the changed state and pages, and whether to draw again,
//! go to another page or leave. This file must not know how a response is shown.

use std::sync::mpsc::TryRecvError;

use super::keys::KeyResult;
use super::leaving::Leaving;
use super::request::{Request, Response, Ticket, Ticketed};
use super::{Outcome, Over, Page, Wizard, presets};
use crate::screen::{Next, Role};

impl Wizard {
    /// Takes all pending responses.
    pub(super) fn poll(&mut self) -> Option<Next> {
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
                    let kept = if self.kept.is_saved() { "; your answers are saved" } else { "" };
                    let words = format!(
                        "the part of sparktune that reads files has failed, so nothing can be read any more. Leave (q) and start again{kept}"
                    );
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
        if let Response::NotKept(why) = response.body {
            return self.receive_failed_save(response.ticket, why);
        }
        if let Some(response) = self.state.receive(response) {
            return self.receive_for_page(response);
        }
        if about_facts {
            self.plan.refresh(&self.state);
            self.mtp.refresh(&self.state);
            let is_open = self.page == Page::Model && self.state.planner.answers.model.is_none();
            if is_open && !self.model.is_moved() {
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

    fn receive_failed_save(&mut self, ticket: Ticket, why: String) -> Next {
        self.state.say(Role::Warn, format!("the answers could not be saved for later: {why}"));
        self.kept.failed(ticket, why);
        // A question that says that the answers are saved is asked again with the truth.
        if matches!(self.over, Some(Over::Leaving(Leaving::Leave { .. }))) {
            self.ask_to_leave();
        }
        Next::Draw
    }

    fn receive_for_page(&mut self, response: Ticketed<Response>) -> Next {
        match &response.body {
            Response::Started(_) => {
                if let Some(run) = self.starting.receive(response, &mut self.state) {
                    if !self.state.beside_draft {
                        self.state.send(Request::ForgetDraft);
                    }
                    return self.end(Outcome::Started(run));
                }
                if self.leaves_soon && self.starting.run.wait().is_none() {
                    return self.end(Outcome::Left { draft_kept: self.kept.is_saved() });
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
}
