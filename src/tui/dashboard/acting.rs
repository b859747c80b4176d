//! What each key does: it changes what is shown, asks the trainer for something, or leaves.
//!
//! Enters: one key. Leaves: the changed state of the dashboard, and whether to draw again. Which key has
//! which action is in `keys`. Of what is drawn, this file knows only its size: scrolling ends where the lines
//! do, and an arrow moves the crosshair by a cell.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use sparktune_runlog::{Action, RunDir};

use super::ask::Ask;
use super::compare::{OTHERS, Other, Picked, Picker};
use super::copy::Copies;
use super::facts_panel::HOW_TO_SERVE;
use super::keys::{self, Do, GROUPS, Scroll};
use super::tab::Tab;
use super::zoom::Zoom;
use super::{Dashboard, Frozen, Overlay, Wish, charts_panel, inside};
use crate::screen::{Colours, Next, Theme, action};

impl Dashboard {
    pub(super) fn press(&mut self, event: &KeyEvent) -> Next {
        if let Some(next) = self.press_overlay(event) {
            return next;
        }
        let Some(what) = GROUPS.iter().find_map(|(_, table)| action(table, event)) else { return Next::Keep };
        // A trainer that has ended answers no more.
        let may_answer = self.here.may_be_live();
        self.asks.retain(|ask| may_answer && !ask.is_settled());
        self.said = None;
        match what {
            Do::Leave if event.code == KeyCode::Esc && self.before_serving.is_some() => {
                self.open_tab(self.before_serving.unwrap_or(self.tab));
            }
            Do::Leave if self.at.is_some() && event.code == KeyCode::Esc => self.at = None,
            Do::Leave => return Next::Leave,
            Do::Talk if self.can_talk() => {
                self.wish = Some(Wish::Talk);
                return Next::Leave;
            }
            Do::Again if self.here.run().is_some() => {
                self.wish = Some(Wish::Again);
                return Next::Leave;
            }
            Do::Talk => {
                self.say("there is no model to talk to yet; it is written at the end of the training")
            }
            what => self.act(what),
        }
        Next::Draw
    }

    fn press_overlay(&mut self, event: &KeyEvent) -> Option<Next> {
        let leaves = action(keys::RUN, event) == Some(Do::Leave) && event.code == KeyCode::Char('c');
        if leaves {
            return Some(Next::Leave);
        }
        match self.overlay.take()? {
            Overlay::Help => {}
            Overlay::ConfirmStop => match event.code {
                KeyCode::Char('y' | 'Y') => self.ask(Action::Stop),
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {}
                _ => self.overlay = Some(Overlay::ConfirmStop),
            },
            Overlay::Copy(copies) => match event.code {
                KeyCode::Char(digit) if copies.at(digit).is_some() => {
                    if let Some((label, text)) = copies.at(digit) {
                        self.copied = Some(text.clone());
                        self.say(&format!("copied, if this terminal allows it: {label}"));
                    }
                }
                KeyCode::Esc | KeyCode::Char('q') => {}
                _ => self.overlay = Some(Overlay::Copy(copies)),
            },
            Overlay::Pick(mut picker) => match picker.press(event) {
                Picked::Nothing => self.overlay = Some(Overlay::Pick(picker)),
                Picked::Closed => {}
                Picked::Run(run) => self.lay_over(run),
            },
        }
        Some(Next::Draw)
    }

    fn act(&mut self, what: Do) {
        let newest = self.newest();
        match what {
            Do::Open(tab) => self.open_tab(tab),
            Do::NextTab => self.open_tab(self.tab.neighbour(1)),
            Do::PreviousTab => self.open_tab(self.tab.neighbour(Tab::ALL.len() - 1)),
            Do::ZoomIn => self.zoom.zoom_in(newest, self.crosshair()),
            Do::ZoomOut => self.zoom.zoom_out(newest),
            Do::Older => self.zoom.pan(newest, false),
            Do::Newer => self.zoom.pan(newest, true),
            Do::Left => self.left_or_right(false),
            Do::Right => self.left_or_right(true),
            Do::Whole => self.zoom = Zoom::default(),
            Do::Follow => self.zoom.follow(),
            Do::Crosshair if self.at.is_some() => self.at = None,
            Do::Crosshair => self.at = Some(self.shown().view.steps_done().min(self.window().to)),
            Do::Log => self.log = !self.log,
            Do::Compare => {
                let laid = self.others.iter().map(|other| other.reading.name.clone()).collect();
                self.overlay = Some(Overlay::Pick(Picker::open(self.runs.as_ref(), &self.here.name, laid)));
            }
            Do::CompareNone => self.others.clear(),
            Do::Freeze if self.frozen.is_some() => self.frozen = None,
            Do::Freeze => {
                let others = self.others.iter().map(|other| other.reading.known.clone()).collect();
                self.frozen = Some(Box::new(Frozen { here: self.here.known.clone(), others }));
            }
            Do::Scroll(scroll) => self.scroll(scroll),
            // One key press must not stop a run that may be training, so this asks first.
            Do::Stop if self.here.may_be_live() => {
                self.overlay = Some(Overlay::ConfirmStop);
            }
            Do::Stop => self.ask(Action::Stop),
            Do::Checkpoint => self.ask(Action::Checkpoint),
            Do::Copy => {
                let serve = self.facts.serve();
                self.overlay = self.here.run().map(|run| Overlay::Copy(Copies::of(run, serve)));
            }
            Do::Serve => self.show_serving(),
            Do::Help => self.overlay = Some(Overlay::Help),
            Do::Leave | Do::Talk | Do::Again => {}
        }
    }

    /// Lays a run over this one, or takes it away again.
    fn lay_over(&mut self, run: RunDir) {
        // What is frozen belongs to the runs that were there.
        self.frozen = None;
        let name = run.name();
        if self.others.iter().any(|other| other.reading.name == name) {
            self.others.retain(|other| other.reading.name != name);
        } else if self.others.len() < OTHERS.len() {
            self.others.push(Other::open(run));
        } else {
            self.say(
                "three runs are laid over already; o and Enter on one of them takes it away, O all of them",
            );
        }
    }

    /// Opens the panel of the run at the page on serving the model.
    fn show_serving(&mut self) {
        if self.facts.serve().is_none() {
            return self.say("nothing can be served yet; the page is written at the end of the training");
        }
        let before = self.before_serving.unwrap_or(self.tab);
        self.open_tab(Tab::Facts);
        self.before_serving = Some(before);
        let places = self.places(Rect::new(0, 0, self.size.width, self.size.height));
        let inner = inside(places.body);
        let plain = Theme { colours: Colours::None, unicode: true };
        let lines = self.lines(inner.width, &plain);
        let at = lines.iter().position(|line| line.to_string() == HOW_TO_SERVE).unwrap_or(0);
        self.scrolled[Tab::Facts as usize] = at.min(lines.len().saturating_sub(usize::from(inner.height)));
    }

    fn ask(&mut self, what: Action) {
        self.asks.push(Ask::send(self.here.run(), what, self.here.known.liveness));
    }

    fn open_tab(&mut self, tab: Tab) {
        // Warnings shown so far count as seen, and so do those of a panel that opens now.
        if tab == Tab::Events || self.tab == Tab::Events {
            self.seen_warnings = self.shown().noted_warnings;
        }
        self.tab = tab;
        self.before_serving = None;
    }

    fn left_or_right(&mut self, right: bool) {
        let Some(at) = self.crosshair() else { return self.zoom.pan(self.newest(), right) };
        let window = self.window();
        let cells = charts_panel::cells(self.size.width);
        let by = ((window.to - window.from) / cells).saturating_add(1);
        let at = if right { at.saturating_add(by) } else { at.saturating_sub(by) };
        self.at = Some(at.clamp(window.from, window.to));
    }

    fn scroll(&mut self, scroll: Scroll) {
        let places = self.places(Rect::new(0, 0, self.size.width, self.size.height));
        let plain = Theme { colours: Colours::None, unicode: true };
        let inner = inside(places.body);
        let most = self.lines(inner.width, &plain).len().saturating_sub(usize::from(inner.height));
        let page = usize::from(inner.height.max(2)) - 1;
        let first = &mut self.scrolled[self.tab as usize];
        *first = match scroll {
            Scroll::Up => first.saturating_sub(1),
            Scroll::Down => *first + 1,
            Scroll::PageUp => first.saturating_sub(page),
            Scroll::PageDown => *first + page,
            Scroll::Top => 0,
            Scroll::Bottom => most,
        }
        .min(most);
    }
}
