//! A chat as a full screen.
//!
//! ```text
//! ╭ header: the model, or two side by side, and the settings ╮
//! │ what was said                                    view    │
//! │                                                          │
//! │ a message                                                │
//! │ > what is typed                                          │
//! ╰ keys ────────────────────────────────────────────────────╯
//! ```
//!
//! Enters: keys, and what a thread with the models says (`backend`). Leaves: requests to that thread. What
//! models say is a stranger's text and is escaped before it is drawn.

pub(crate) mod backend;
mod ending;
mod keys;
pub mod line;
#[cfg(test)]
mod tests;
mod view;

use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use crossterm::event::KeyEvent;
use ratatui::Frame;
use ratatui::layout::Size;
use sparktune_app::chat::history::Earlier;
use sparktune_app::chat::{Said, Settings};
use sparktune_app::failure::Failure;
use sparktune_app::inference::Decoding;
use sparktune_base::escape::escape;
use sparktune_sampling::protocol::Finished;

use self::backend::{Ask, Heard};
pub use self::ending::{words_of_end, words_of_no_answer};
use self::keys::{Do, KEYS};
use self::line::Line;
use crate::screen::{App, Colours, Input, Next, TextInput, Theme, action};

/// How the models are.
#[derive(Debug, Clone, PartialEq)]
enum State {
    /// This one is being loaded.
    Loading(String),
    /// They listen.
    Ready,
    /// They answer the last question.
    Answering,
    /// They are gone, for this reason.
    Ended(String),
}

/// A question with the answers of all models.
#[derive(Debug, Clone, PartialEq)]
struct Exchange {
    question: String,
    answers: Vec<AnswerShown>,
}

/// An answer as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
struct AnswerShown {
    text: String,
    opens_thinking: bool,
    finished: Option<Finished>,
    error: Option<String>,
    /// Whether it is of an earlier conversation, which goes on.
    is_earlier: bool,
}

impl AnswerShown {
    fn is_open(&self) -> bool {
        self.finished.is_none() && self.error.is_none() && !self.is_earlier
    }
}

/// The screen's state.
#[derive(Debug)]
pub(crate) struct ChatScreen {
    names: Vec<String>,
    settings: Settings,
    decoding: Decoding,
    requests: Sender<Ask>,
    heard: Receiver<Heard>,
    state: State,
    exchanges: Vec<Exchange>,
    /// The number of questions, with those of earlier conversations.
    asked: u64,
    input: TextInput,
    /// What was said, the newest last, and which of it is shown in the input line.
    said: Vec<String>,
    recalled: Option<usize>,
    /// What was being typed when an earlier question was recalled.
    draft: String,
    /// The number of lines below the screen; 0 follows the answer.
    below: usize,
    shows_thoughts: bool,
    message: Option<String>,
    /// Why the models could not be loaded.
    failure: Option<Failure>,
    helping: bool,
    size: Size,
}

impl ChatScreen {
    /// Creates the screen of models with these names.
    pub(crate) fn new(
        names: Vec<String>,
        settings: Settings,
        decoding: Decoding,
        requests: Sender<Ask>,
        heard: Receiver<Heard>,
    ) -> Self {
        Self {
            state: State::Loading(names.first().cloned().unwrap_or_default()),
            names,
            settings,
            decoding,
            requests,
            heard,
            exchanges: Vec::new(),
            asked: 0,
            input: TextInput::default(),
            said: Vec::new(),
            recalled: None,
            draft: String::new(),
            below: 0,
            shows_thoughts: false,
            message: None,
            failure: None,
            helping: false,
            size: Size::default(),
        }
    }

    /// Shows a conversation that goes on.
    pub(crate) fn show_earlier(&mut self, earlier: &Earlier) {
        for [question, text] in earlier.exchanges() {
            let answer = AnswerShown { text: text.to_owned(), is_earlier: true, ..AnswerShown::default() };
            let answers = vec![answer; self.names.len()];
            self.exchanges.push(Exchange { question: question.to_owned(), answers });
            self.said.push(question.to_owned());
        }
    }

    /// Returns why the models could not be loaded, after the screen has left for that reason.
    pub(crate) fn into_failure(self) -> Option<Failure> {
        self.failure
    }

    fn ask(&mut self, ask: Ask) {
        // If the thread is gone, its last words say why.
        let _ = self.requests.send(ask);
    }

    fn press(&mut self, event: &KeyEvent) -> Next {
        if self.helping {
            self.helping = false;
            return Next::Draw;
        }
        self.message = None;
        match action(KEYS, event) {
            Some(Do::Send) => return self.enter(),
            Some(Do::Stop) if self.state == State::Answering => self.ask(Ask::Cancel),
            Some(Do::Stop) => {
                self.input.set("");
                self.recalled = None;
            }
            Some(Do::Again) => self.again(),
            Some(Do::New) => self.begin_again(),
            Some(Do::Thoughts) => self.shows_thoughts = !self.shows_thoughts,
            Some(Do::Earlier) => self.recall(-1),
            Some(Do::Later) => self.recall(1),
            Some(Do::PageUp) => self.scroll(true),
            Some(Do::PageDown) => self.scroll(false),
            Some(Do::Help) => self.helping = true,
            Some(Do::StopOrLeave) if self.state == State::Answering => self.ask(Ask::Cancel),
            Some(Do::StopOrLeave) => return Next::Leave,
            Some(Do::Leave) if self.input.text().is_empty() => return Next::Leave,
            Some(Do::Leave) | None => {
                self.input.press(event);
            }
        }
        Next::Draw
    }

    fn enter(&mut self) -> Next {
        let typed = self.input.text().to_owned();
        match line::read(&typed, &mut self.settings, self.decoding) {
            Ok(Line::Empty) => return Next::Draw,
            Ok(Line::Say(text)) if self.say(&text) => {}
            Ok(Line::Decode(decoding)) if self.is_free() => {
                // It is loaded before the thread says so.
                self.state = State::Loading(self.names.first().cloned().unwrap_or_default());
                self.ask(Ask::Decode(decoding));
            }
            // What cannot be said or done yet stays.
            Ok(Line::Say(_) | Line::Decode(_)) => return Next::Draw,
            Ok(Line::New) => self.begin_again(),
            Ok(Line::Told(told)) => self.message = Some(escape(&told).into_owned()),
            Ok(Line::Help) => self.helping = true,
            Ok(Line::Quit) => return Next::Leave,
            Err(error) => {
                self.message = Some(error);
                return Next::Draw;
            }
        }
        self.input.set("");
        self.said.push(typed);
        self.recalled = None;
        Next::Draw
    }

    /// Returns whether the models listen, and tells if they do not.
    fn is_free(&mut self) -> bool {
        match &self.state {
            State::Ready => return true,
            State::Loading(name) => {
                self.message = Some(format!("{} is still being loaded", escape(name)));
            }
            State::Answering => {
                self.message = Some("the answer is not complete; Esc ends it".to_owned());
            }
            State::Ended(_) => {}
        }
        false
    }

    /// Says it if the models listen. Returns whether they do.
    fn say(&mut self, text: &str) -> bool {
        if !self.is_free() {
            return false;
        }
        let answers = self.names.iter().map(|_| AnswerShown::default()).collect();
        self.exchanges.push(Exchange { question: text.to_owned(), answers });
        self.state = State::Answering;
        self.below = 0;
        self.asked += 1;
        let settings = Box::new(self.settings.clone());
        self.ask(Ask::Say { question: self.asked, text: text.to_owned(), settings });
        true
    }

    /// Asks the last question in a new conversation.
    fn again(&mut self) {
        if self.state == State::Ready
            && let Some(last) = self.exchanges.last().map(|exchange| exchange.question.clone())
        {
            self.begin_again();
            self.say(&last);
        }
    }

    fn begin_again(&mut self) {
        if matches!(self.state, State::Ready | State::Answering) {
            self.ask(Ask::BeginAgain);
            self.exchanges.clear();
            // What is still said of the last question is not shown under the next one.
            self.asked += 1;
            self.below = 0;
            self.state = State::Ready;
        }
    }

    /// Shows an earlier or later question in the input line; after the newest one comes what was being typed.
    fn recall(&mut self, step: isize) {
        let newest = self.said.len();
        let from = self.recalled.unwrap_or(newest);
        let at = from.saturating_add_signed(step).min(newest);
        if at == from {
            return;
        }
        if self.recalled.is_none() {
            self.draft = self.input.text().to_owned();
        }
        self.recalled = Some(at).filter(|at| *at < newest);
        let text = match self.recalled {
            Some(at) => self.said[at].clone(),
            None => std::mem::take(&mut self.draft),
        };
        self.input.set(text);
    }

    /// Returns the number of lines of the conversation on this screen.
    fn lines(&self) -> usize {
        let theme = Theme { colours: Colours::None, unicode: true };
        view::transcript(self, self.size.width, &theme).len()
    }

    fn scroll(&mut self, up: bool) {
        let height = view::transcript_height(self.size);
        let page = height.saturating_sub(2).max(1);
        let most = self.lines().saturating_sub(height);
        let below = self.below.min(most);
        self.below = if up { (below + page).min(most) } else { below.saturating_sub(page) };
    }

    /// Takes what the models have said since. An earlier part that the user reads stays in view. Returns
    /// whether there was anything new.
    fn listen_while_reading(&mut self) -> bool {
        if self.below == 0 {
            return self.listen();
        }
        // A long conversation takes a while to lay out, which idle ticks should not do.
        let first = match self.heard.try_recv() {
            Ok(first) => first,
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => return self.listen(),
        };
        let before = self.lines();
        // There may be fewer lines than when the user scrolled; then the end is in view already.
        self.below = self.below.min(before.saturating_sub(view::transcript_height(self.size)));
        self.hear(first);
        self.listen();
        if self.below > 0 {
            self.below = (self.below + self.lines()).saturating_sub(before);
        }
        true
    }

    /// Takes what the models have said since. Returns whether there was anything.
    fn listen(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.heard.try_recv() {
                Ok(heard) => {
                    any = true;
                    self.hear(heard);
                }
                Err(TryRecvError::Empty) => return any,
                Err(TryRecvError::Disconnected) => {
                    if !matches!(self.state, State::Ended(_)) {
                        self.state = State::Ended("the models are gone".to_owned());
                        any = true;
                    }
                    return any;
                }
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Loading(name) => self.state = State::Loading(name),
            Heard::Loaded { without_template } => {
                self.state = State::Ready;
                if !without_template.is_empty() {
                    let names: Vec<_> = without_template.iter().map(|name| escape(name)).collect();
                    self.message = Some(format!(
                        "no chat template: {} continues each line as text, without what was said before",
                        names.join(", ")
                    ));
                }
            }
            Heard::Decodes { decoding, failure } => {
                self.state = State::Ready;
                self.decoding = decoding;
                // A failure is escaped by whoever made it.
                self.message = Some(match failure {
                    None => format!("answers are made {decoding} from now on"),
                    Some(failure) => {
                        format!("answers are still made {decoding}: {failure}").replace('\n', " ")
                    }
                });
            }
            Heard::Said { question, said } if question == self.asked => self.note(said),
            // The conversation that it belongs to was left.
            Heard::Said { .. } => {}
            Heard::NotKept(why) => {
                self.message = Some(format!("the conversation is not kept: {}", why.replace('\n', " ")));
            }
            Heard::Ended(failure) if matches!(self.state, State::Loading(_)) => self.failure = Some(failure),
            // It is escaped by whoever made it.
            Heard::Ended(failure) => self.state = State::Ended(failure.to_string()),
        }
    }

    fn note(&mut self, said: Said) {
        let side = match &said {
            Said::Text { side, .. } | Said::Done { side, .. } | Said::Refused { side, .. } => *side,
        };
        let Some(exchange) = self.exchanges.last_mut() else { return };
        let Some(answer) = exchange.answers.get_mut(side) else { return };
        match said {
            Said::Text { text, opens_thinking, .. } => {
                answer.text.push_str(&text);
                answer.opens_thinking = opens_thinking;
            }
            Said::Done { finished, .. } => answer.finished = Some(finished),
            Said::Refused { error, .. } => answer.error = Some(error),
        }
        if exchange.answers.iter().all(|answer| !answer.is_open()) {
            self.state = State::Ready;
        }
    }
}

impl App for ChatScreen {
    fn update(&mut self, input: Input) -> Next {
        match input {
            Input::Key(event) => self.press(&event),
            Input::Paste(text) => {
                // Line breaks are part of what is said; the input line shows them as \n.
                let text = text.replace("\r\n", "\n").replace('\r', "\n");
                self.input.insert(&text);
                Next::Draw
            }
            Input::Size(size) => {
                self.size = size;
                Next::Draw
            }
            Input::Tick if self.listen_while_reading() => {
                if self.failure.is_some() {
                    return Next::Leave;
                }
                Next::Draw
            }
            Input::Tick => Next::Keep,
        }
    }

    fn view(&self, frame: &mut Frame<'_>, theme: &Theme) {
        view::draw(self, frame, theme);
    }
}
