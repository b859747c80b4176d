//! A full screen for one run, live or finished: its progress, its loss, and what to do when it stalls.
//!
//! ```text
//! name · state                        header        model, progress, and when it will finish
//! progress, time left, panels         header
//! messages                            header        failures, stalls, requests, warnings: what to do
//! ╭ loss ───────────╮ ╭ speed ─╮      charts_panel  or one of the other panels: events_panel, samples_panel,
//! │                 │ ╭ memory ╮                    step_panel, machine_panel, facts_panel
//! ╰─────────────────╯ ╰────────╯
//! tok/s  memory  GPU                  gauges
//! keys                                keys, and what they do in acting
//! ```
//!
//! Enters: keys, ticks, and the run folder, which is only read (`reading`); a request to the trainer is one
//! file in it (`ask`). Leaves: a frame, and only when something visible has changed. Leaving the dashboard
//! never affects the run.

use sparktune_app::runs::planned_by;
use sparktune_base::program_name;

mod acting;
mod ask;
mod charts_panel;
mod compare;
mod copy;
mod events_panel;
mod facts_panel;
mod gauges;
mod header;
mod keys;
mod machine_panel;
mod reading;
mod samples_panel;
mod step_panel;
mod tab;
mod zoom;

#[cfg(test)]
mod tests;

use ask::Ask;
use compare::{OTHERS, Other, Picker};
use copy::Copies;
use facts_panel::Facts;
use keys::{Do, GROUPS};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Margin, Rect, Size};
use ratatui::text::Line;
use ratatui::widgets::{Block, Widget};
use reading::{Known, Reading};
use sparktune_base::escape::escape;
use sparktune_runlog::{Liveness, RunDir, RunView, RunsRoot};
use tab::Tab;
use zoom::Zoom;

use crate::chart::Window;
use crate::plain::standing;
use crate::screen::{App, Input, Next, Popup, Role, Theme, help, hint_line, hints, rows};
use crate::wrap::cut;

/// An overlay over the panels, which takes the keys.
#[derive(Debug)]
enum Overlay {
    Help,
    ConfirmStop,
    Pick(Picker),
    Copy(Copies),
}

/// The state that is shown while the screen is frozen.
#[derive(Debug)]
struct Frozen {
    here: Known,
    /// The runs that are compared with it.
    others: Vec<Known>,
}

/// Another screen, which the dashboard is left for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Talk to the run's model.
    Talk,
    /// Ask the wizard's questions with the run's answers.
    Again,
}

/// The dashboard of one run.
#[derive(Debug)]
pub struct Dashboard {
    here: Reading,
    /// The runs that are compared with this one, at most as many as there are roles for them.
    others: Vec<Other>,
    runs: Option<RunsRoot>,
    facts: Facts,
    frozen: Option<Box<Frozen>>,
    overlay: Option<Overlay>,
    asks: Vec<Ask>,
    /// What the user left for.
    wish: Option<Wish>,
    /// The text that the last key copies.
    copied: Option<String>,
    /// Why that was not possible.
    said: Option<String>,
    /// Whether the trainer was running when its state was last known. It is not updated while a long log is
    /// read.
    was_live: bool,
    /// Whether the trainer has ended since the last look.
    has_ended: bool,
    tab: Tab,
    /// The panel that was open before the page on serving, to which Esc returns.
    before_serving: Option<Tab>,
    /// The first visible line of each panel that is a list.
    scrolled: [usize; 6],
    zoom: Zoom,
    log: bool,
    /// The step of the crosshair.
    at: Option<u64>,
    /// The number of warnings when the events panel was last open.
    seen_warnings: u64,
    size: Size,
}

impl Dashboard {
    /// Opens the dashboard of a run; `runs` are those it can be compared with. Reads for a bounded time. An
    /// unreadable folder is reported on the screen.
    pub fn open(run: RunDir, runs: Option<RunsRoot>) -> Self {
        let mut dashboard = Self::of(Reading::open(run), runs);
        dashboard.read_facts();
        dashboard
    }

    /// Creates a dashboard for a view without a folder: a recording, a test, or a measurement.
    pub fn of_view(name: impl Into<String>, view: RunView, liveness: Liveness) -> Self {
        Self::of(Reading::of(name.into(), Known::of(view, liveness)), None)
    }

    fn of(here: Reading, runs: Option<RunsRoot>) -> Self {
        Self {
            was_live: here.known.liveness.is_some_and(Liveness::is_live),
            here,
            others: Vec::new(),
            runs,
            facts: Facts::default(),
            frozen: None,
            overlay: None,
            asks: Vec::new(),
            wish: None,
            copied: None,
            said: None,
            has_ended: false,
            tab: Tab::Charts,
            before_serving: None,
            scrolled: [0; 6],
            zoom: Zoom::default(),
            log: false,
            at: None,
            seen_warnings: 0,
            size: Size::new(80, 24),
        }
    }

    /// Returns the state of the trainer, or `None` before the log was read to its end.
    pub fn liveness(&self) -> Option<Liveness> {
        self.here.known.liveness
    }

    /// Returns one sentence about the run's state and the next step for the user. It is printed on the
    /// terminal after the screen closes.
    pub fn how_it_stands(&self) -> String {
        match (&self.here.trouble, self.here.known.liveness) {
            (Some(trouble), _) => trouble.clone(),
            (None, liveness) => {
                let words = liveness.map_or_else(
                    || "its log could not be read to the end".to_owned(),
                    |liveness| standing(&self.here.argument, liveness, &self.here.known.view),
                );
                format!("{}: {words}", escape(&self.here.name))
            }
        }
    }

    /// Returns the screen that the user left for, once; `None` if the user just left.
    pub fn takes_wish(&mut self) -> Option<Wish> {
        self.wish.take()
    }

    /// Shows a sentence until the next key.
    pub fn say(&mut self, words: &str) {
        self.said = Some(words.replace('\n', " "));
    }

    /// Returns whether the run has a model to talk to.
    fn can_talk(&self) -> bool {
        self.here.known.view.finished().is_some_and(|finished| !finished.outputs.is_empty())
    }

    fn shown(&self) -> &Known {
        self.frozen.as_ref().map_or(&self.here.known, |frozen| &frozen.here)
    }

    /// Returns the name, the state and the role of each compared run.
    fn shown_others(&self) -> impl Iterator<Item = (&str, &Known, Role)> {
        let frozen = self.frozen.as_ref().map(|frozen| frozen.others.as_slice()).unwrap_or_default();
        self.others.iter().zip(OTHERS).enumerate().map(move |(at, (other, role))| {
            let known = frozen.get(at).unwrap_or(&other.reading.known);
            (other.reading.name.as_str(), known, role)
        })
    }

    /// Returns the range of steps shown. It ends at the last step of any curve, so that steps which a later
    /// attempt replaces stay visible.
    fn window(&self) -> Window {
        self.zoom.window(self.newest())
    }

    fn newest(&self) -> u64 {
        let view = &self.shown().view;
        let replaced = view.discarded.loss.buckets().last().map_or(0, |bucket| bucket.last_step);
        view.steps_done().max(replaced)
    }

    fn crosshair(&self) -> Option<u64> {
        let window = self.window();
        self.at.map(|at| at.clamp(window.from, window.to))
    }

    fn new_warnings(&self) -> u64 {
        self.shown().noted_warnings.saturating_sub(self.seen_warnings)
    }

    fn read_facts(&mut self) {
        if let Some(run) = self.here.run() {
            self.facts.read(run, &self.here.known);
        }
        if let Some(planned) = self.facts.plan().and_then(planned_by) {
            self.here.known.view.expect(planned);
        }
    }

    fn tick(&mut self) -> Next {
        let news = self.here.look();
        if let Some(is_live) = self.here.known.liveness.map(Liveness::is_live) {
            self.has_ended = std::mem::replace(&mut self.was_live, is_live) && !is_live;
        }
        for answer in &news.answers {
            self.asks.iter_mut().for_each(|ask| ask.take_answer(answer));
        }
        self.asks.iter_mut().for_each(Ask::insist);
        if news.changed {
            self.read_facts();
        }
        let looks = self.others.iter_mut().map(|other| other.reading.look().changed);
        let other = looks.fold(false, |any, changed| any | changed);
        if self.tab == Tab::Events && self.frozen.is_none() {
            self.seen_warnings = self.here.known.noted_warnings;
        }
        // A frozen screen still shows the result of a request.
        let shown = self.frozen.is_none() && (news.changed || other) || !news.answers.is_empty();
        if shown { Next::Draw } else { Next::Keep }
    }

    /// Returns the open panel as lines, or none for panels that are drawn.
    fn lines(&self, width: u16, theme: &Theme) -> Vec<Line<'static>> {
        let known = self.shown();
        match self.tab {
            Tab::Charts | Tab::Machine => Vec::new(),
            Tab::Events => events_panel::lines(known, width, theme),
            Tab::Samples => samples_panel::lines(known, width, theme),
            Tab::Step => step_panel::lines(known, width, theme),
            Tab::Facts => {
                let mut lines = compare::differences(&self.facts, &self.others, width, theme);
                lines.extend(facts_panel::lines(&self.here.argument, known, &self.facts, width, theme));
                lines
            }
        }
    }

    fn places(&self, area: Rect) -> Places {
        let area = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
        // On a low screen the chart needs the rows more than the gauges do.
        let low = area.height < 20;
        let most = if low { 2 } else { area.height / 6 };
        let banner = (header::banner(self, area.width).len() as u16).min(most);
        let [name, model, progress, eta, tabs, banner, body, gauges, hints] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(u16::from(!low)),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(banner),
            Constraint::Fill(1),
            Constraint::Length(if low { 1 } else { 2 }),
            Constraint::Length(1),
        ])
        .areas(area);
        Places { name, model, progress, eta, tabs, banner, body, gauges, hints }
    }
}

struct Places {
    name: Rect,
    model: Rect,
    progress: Rect,
    eta: Rect,
    tabs: Rect,
    banner: Rect,
    body: Rect,
    gauges: Rect,
    hints: Rect,
}

impl App for Dashboard {
    fn update(&mut self, input: Input) -> Next {
        match input {
            Input::Tick => self.tick(),
            Input::Key(event) => self.press(&event),
            Input::Size(size) => {
                self.size = size;
                Next::Draw
            }
            Input::Paste(_) => Next::Keep,
        }
    }

    fn view(&self, frame: &mut Frame<'_>, theme: &Theme) {
        let area = frame.area();
        let places = self.places(area);
        let known = self.shown();
        let buffer = frame.buffer_mut();
        let live = known.liveness.map_or(self.here.trouble.is_none(), Liveness::is_live);
        header::name(self, places.name, buffer, theme);
        if places.model.height > 0 {
            header::model(known, live, places.model, buffer, theme);
        }
        header::progress(known, places.progress, buffer, theme);
        header::eta(known, live, places.eta, buffer, theme);
        header::tabs(self, places.tabs, buffer, theme);
        let messages = header::banner(self, places.banner.width);
        let (all, room) = (messages.len(), usize::from(places.banner.height));
        for (i, ((role, mut text), row)) in messages.into_iter().zip(places.banner.rows()).enumerate() {
            if i + 1 == room && all > room {
                text = format!("{} …", cut(&text, usize::from(row.width).saturating_sub(2)));
            }
            buffer.set_stringn(row.x, row.y, text, usize::from(row.width), theme.style(role));
        }
        match self.tab {
            Tab::Charts => charts_panel::draw(self, places.body, buffer, theme),
            Tab::Machine => machine_panel::draw(self, places.body, buffer, theme),
            _ => self.list(places.body, buffer, theme),
        }
        gauges::draw(&known.view, live, places.gauges, buffer, theme);
        frame.render_widget(self.hints(places.hints.width, theme), places.hints);
        match &self.overlay {
            None => {}
            Some(Overlay::Help) => {
                help(frame, area, theme, &GROUPS.map(|(title, table)| (title, rows(table))))
            }
            Some(Overlay::ConfirmStop) => confirm_stop(frame, area, theme),
            Some(Overlay::Pick(picker)) => picker.draw(frame, area, theme),
            Some(Overlay::Copy(copies)) => copies.draw(frame, area, theme),
        }
    }

    fn rings(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }

    fn copies(&mut self) -> Option<String> {
        self.copied.take()
    }

    fn hurries(&self) -> bool {
        self.here.behind || self.others.iter().any(|other| other.reading.behind)
    }
}

impl Dashboard {
    /// Draws the open panel as a list in a frame that says which part of it is visible.
    fn list(&self, area: Rect, buffer: &mut Buffer, theme: &Theme) {
        let inner = inside(area);
        let lines = self.lines(inner.width, theme);
        let height = usize::from(inner.height);
        let first = self.scrolled[self.tab as usize].min(lines.len().saturating_sub(height));
        let last = (first + height).min(lines.len());
        let mut block = Block::bordered()
            .border_set(theme.border())
            .border_style(theme.style(Role::Line))
            .title(Line::styled(format!(" {} ", self.tab.title()), theme.style(Role::Dim)));
        if lines.len() > height {
            let part = format!(" lines {}–{last} of {} ", first + 1, lines.len());
            block = block.title_bottom(Line::styled(part, theme.style(Role::Dim)).right_aligned());
        }
        block.render(area, buffer);
        for (line, row) in lines.iter().skip(first).zip(inner.rows()) {
            buffer.set_line(row.x, row.y, line, row.width);
        }
    }

    /// Returns the most useful keys. Those that control the run come first, as far as it can be controlled.
    fn hints(&self, width: u16, theme: &Theme) -> Line<'static> {
        let (may_be_live, can_talk) = (self.here.may_be_live(), self.can_talk());
        let is_useful = |what| match what {
            Do::Stop => may_be_live,
            Do::Talk => can_talk,
            Do::Again => !may_be_live,
            _ => true,
        };
        let useful = keys::RUN.iter().filter(|binding| is_useful(binding.action));
        let shown = useful.filter_map(|binding| match binding.action {
            Do::Leave if self.before_serving.is_some() => Some(("esc", "back")),
            _ => Some((binding.shown, binding.hint?)),
        });
        let mut line = hint_line(shown, width, theme);
        let of_charts = if self.tab == Tab::Charts { keys::CHARTS } else { &[] };
        for table in [of_charts, keys::PANELS] {
            let left = usize::from(width).saturating_sub(line.width());
            line.spans.extend(hints(table, left as u16, theme).spans);
        }
        line
    }
}

/// Returns the text area of a framed list.
fn inside(area: Rect) -> Rect {
    area.inner(Margin::new(2, 1))
}

fn confirm_stop(frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let lines = vec![
        Line::raw("It saves a checkpoint and ends; nothing is lost."),
        Line::raw(format!("`{} resume` continues from there", program_name())),
        Line::raw("with the same losses as without a stop."),
    ];
    Popup { title: "stop this run?", role: Role::Warn, lines, keys: "y stop   n keep running" }
        .draw(frame, area, theme);
}
