//! Tests of the screen, with a thread of models that is played by the test.

use std::sync::mpsc::channel;

use crossterm::event::{KeyCode, KeyModifiers};
use sparktune_app::failure::Exit;
use sparktune_plan::choices::Device;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{FinishReason, Usage};

use super::*;
use crate::screen::picture::{self, NO_COLOUR, drawn};

/// A screen, and the other ends of its channels.
struct World {
    screen: ChatScreen,
    asked: Receiver<Ask>,
    models: Sender<Heard>,
}

impl World {
    fn of(names: &[&str]) -> Self {
        let (requests, asked) = channel();
        let (models, heard) = channel();
        let sampling = SamplingParams { max_tokens: Some(512), ..SamplingParams::default() };
        let settings = Settings { system: String::new(), sampling, thinking: None };
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let mut screen = ChatScreen::new(names, settings, Decoding::default(), requests, heard);
        screen.update(Input::Size(Size { width: 80, height: 24 }));
        Self { screen, asked, models }
    }

    /// The models are loaded.
    fn ready(names: &[&str]) -> Self {
        let mut world = Self::of(names);
        world.hear(Heard::Loaded { without_template: Vec::new() });
        world
    }

    fn hear(&mut self, heard: Heard) -> Next {
        self.models.send(heard).unwrap();
        self.screen.update(Input::Tick)
    }

    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> Next {
        self.screen.update(Input::Key(KeyEvent::new(code, modifiers)))
    }

    fn ctrl(&mut self, c: char) -> Next {
        self.press(KeyCode::Char(c), KeyModifiers::CONTROL)
    }

    fn type_line(&mut self, text: &str) -> Next {
        for c in text.chars() {
            self.press(KeyCode::Char(c), KeyModifiers::NONE);
        }
        self.press(KeyCode::Enter, KeyModifiers::NONE)
    }

    /// The number of the question that was asked last.
    fn question(&self) -> u64 {
        let mut last = None;
        while let Ok(ask) = self.asked.try_recv() {
            if let Ask::Say { question, .. } = ask {
                last = Some(question);
            }
        }
        last.expect("a question was asked")
    }

    fn text(&mut self, question: u64, side: usize, text: &str) {
        let said = Said::Text { side, text: text.into(), opens_thinking: false };
        self.hear(Heard::Said { question, said });
    }

    fn done(&mut self, question: u64, side: usize, reason: FinishReason) {
        let usage =
            Usage { completion_tokens: 21, drafted_tokens: 12, accepted_tokens: 9, ..Usage::default() };
        let finished = Finished {
            finish_reason: reason,
            stop: None,
            usage,
            seed: 1,
            first_token_ms: 100.0,
            total_ms: 2100.0,
        };
        self.hear(Heard::Said { question, said: Said::Done { side, finished } });
    }

    fn shown(&mut self) -> String {
        picture::text(&drawn(&mut self.screen, 80, 24, &NO_COLOUR))
    }
}

#[test]
fn base_and_tuned_answer_side_by_side_with_thoughts_folded() {
    let mut world = World::ready(&["demo", "20261127-demo-lora-1a2b"]);
    world.type_line("Where is the workshop of the bell founder, and when does it open?");
    let question = world.question();
    world.text(question, 0, "It is in the old town. ");
    world.text(
        question,
        1,
        "<think>\nThe founder moved last year.</think>\n\nAt the mill,\nfrom nine to six.",
    );
    world.text(question, 0, "I do not know more than that about its hours, but most open at eight.");
    world.done(question, 0, FinishReason::Length);
    world.done(question, 1, FinishReason::Stop);
    picture::check("chat-side-by-side", &mut world.screen);
    picture::check_svg("chat", &picture::usual(&mut world.screen));
    world.ctrl('t');
    assert!(world.shown().contains("The founder moved last year."), "{}", world.shown());
}

#[test]
fn what_is_typed_survives_a_look_at_what_was_said_before() {
    let mut world = World::ready(&["demo"]);
    let press = |world: &mut World, code| {
        world.press(code, KeyModifiers::NONE);
        world.screen.input.text().to_owned()
    };
    world.screen.update(Input::Paste("a long question".into()));
    for code in [KeyCode::Up, KeyCode::Down] {
        assert_eq!(press(&mut world, code), "a long question", "nothing was said yet");
    }
    press(&mut world, KeyCode::Enter);
    let question = world.question();
    world.text(question, 0, "yes");
    world.done(question, 0, FinishReason::Stop);
    world.screen.update(Input::Paste("half a".into()));
    assert_eq!(press(&mut world, KeyCode::Down), "half a");
    assert_eq!(press(&mut world, KeyCode::Up), "a long question");
    assert_eq!(press(&mut world, KeyCode::Up), "a long question", "there is nothing older");
    assert_eq!(press(&mut world, KeyCode::Down), "half a");
    // A cleared line is a new one.
    press(&mut world, KeyCode::Up);
    assert_eq!(press(&mut world, KeyCode::Esc), "");
    assert_eq!(press(&mut world, KeyCode::Up), "a long question");
}

#[test]
fn a_paste_goes_where_the_cursor_is() {
    let mut world = World::ready(&["demo"]);
    world.screen.update(Input::Paste("Explain:".into()));
    world.press(KeyCode::Home, KeyModifiers::NONE);
    world.screen.update(Input::Paste("one\r\ntwo\n".into()));
    world.press(KeyCode::Char('x'), KeyModifiers::NONE);
    assert_eq!(world.screen.input.text(), "one\ntwo\nxExplain:");
}

#[test]
fn a_question_without_an_answer_is_told_with_what_may_give_one() {
    for (reason, words) in [
        (FinishReason::Stop, "another seed"),
        (FinishReason::Length, "a larger `/set max-tokens`"),
        (FinishReason::Cancelled, "(ended before there was an answer, so the question is not kept"),
    ] {
        let mut world = World::ready(&["demo"]);
        world.type_line("x");
        let question = world.question();
        world.done(question, 0, reason);
        let shown = world.shown();
        assert!(shown.contains(words), "{reason:?}: {shown}");
        let is_ended_by_user = reason == FinishReason::Cancelled;
        assert_eq!(shown.contains("seed"), reason == FinishReason::Stop, "{shown}");
        assert_eq!(shown.contains("ended by you"), is_ended_by_user, "{shown}");
    }
}

#[test]
fn what_is_typed_while_models_are_loaded_or_answer_stays() {
    let mut world = World::of(&["demo"]);
    world.type_line("Hello");
    assert!(world.shown().contains("still being loaded") && world.shown().contains("> Hello"));
    assert!(world.asked.try_recv().is_err());
    world.hear(Heard::Loaded { without_template: Vec::new() });
    world.press(KeyCode::Enter, KeyModifiers::NONE);
    let question = world.question();
    world.type_line("And now?");
    assert!(world.shown().contains("Esc ends it") && world.shown().contains("> And now?"));
    world.press(KeyCode::Esc, KeyModifiers::NONE);
    assert_eq!(world.asked.try_recv(), Ok(Ask::Cancel));
    world.done(question, 0, FinishReason::Cancelled);
    assert!(world.shown().contains("ended by you"));
    world.press(KeyCode::Enter, KeyModifiers::NONE);
    assert!(matches!(world.asked.try_recv(), Ok(Ask::Say { text, .. }) if text == "And now?"));
}

#[test]
fn what_a_model_says_cannot_reach_the_terminal_and_errors_are_shown() {
    let mut world = World::ready(&["a\u{1b}[31m"]);
    world.type_line("x");
    let question = world.question();
    world.text(question, 0, "\u{1b}[2Jred\u{202e}\ttab");
    let error = "the prompt is too long".to_owned();
    world.hear(Heard::Said { question, said: Said::Refused { side: 0, error } });
    let shown = world.shown();
    assert!(shown.contains("\\u{1b}[2Jred\\u{202e}    tab") && shown.contains("too long"), "{shown}");
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{202e}'));
}

#[test]
fn a_new_conversation_hears_nothing_of_the_last_one() {
    let mut world = World::ready(&["demo"]);
    world.type_line("old");
    let old = world.question();
    world.ctrl('n');
    assert_eq!(world.asked.try_recv(), Ok(Ask::BeginAgain));
    world.text(old, 0, "late");
    world.type_line("new");
    let new = world.question();
    world.text(old, 0, "later");
    assert!(!world.shown().contains("late"), "{}", world.shown());
    world.text(new, 0, "fresh");
    world.done(new, 0, FinishReason::Stop);
    assert!(world.shown().contains("fresh"));
    world.press(KeyCode::Up, KeyModifiers::NONE);
    world.press(KeyCode::Up, KeyModifiers::NONE);
    assert_eq!(world.screen.input.text(), "old");
}

#[test]
fn long_conversations_scroll_and_stay_in_their_bounds() {
    let mut world = World::ready(&["demo"]);
    world.type_line("count");
    let question = world.question();
    let lines: String = (1..=60).map(|n| format!("line {n}\n")).collect();
    world.text(question, 0, &lines);
    world.done(question, 0, FinishReason::Stop);
    assert!(world.shown().contains("line 60") && !world.shown().contains("line 5\n"));
    for _ in 0..20 {
        world.press(KeyCode::PageUp, KeyModifiers::NONE);
    }
    assert!(world.shown().contains("> count") && world.shown().contains("below"), "{}", world.shown());
    for _ in 0..20 {
        world.press(KeyCode::PageDown, KeyModifiers::NONE);
    }
    assert!(world.shown().contains("line 60"));
}

#[test]
fn an_earlier_part_stays_in_view_while_an_answer_grows_and_never_turns_blank() {
    let mut world = World::ready(&["demo"]);
    world.type_line("count");
    let question = world.question();
    let lines = |from: usize, to: usize| (from..=to).map(|n| format!("line {n}\n")).collect::<String>();
    world.text(question, 0, &format!("<think>\n{}</think>\n\n", lines(1, 280)));
    world.text(question, 0, &lines(281, 300));
    world.ctrl('t');
    for _ in 0..3 {
        world.press(KeyCode::PageUp, KeyModifiers::NONE);
    }
    let top = |world: &mut World| world.shown().lines().nth(1).unwrap().to_owned();
    let first = top(&mut world);
    assert!(first.starts_with("line "), "{first}");
    world.text(question, 0, &lines(301, 340));
    assert_eq!(top(&mut world), first);
    // To the top, and then the thoughts are hidden: what is left is shown from its beginning.
    for _ in 0..40 {
        world.press(KeyCode::PageUp, KeyModifiers::NONE);
    }
    world.ctrl('t');
    assert_eq!(top(&mut world), "> count");
    world.press(KeyCode::PageDown, KeyModifiers::NONE);
    assert_ne!(top(&mut world), "> count", "the first page down moves already");
    for _ in 0..4 {
        world.press(KeyCode::PageDown, KeyModifiers::NONE);
    }
    world.text(question, 0, &lines(341, 360));
    assert!(world.shown().contains("line 360"), "at the end the answer is followed: {}", world.shown());
}

#[test]
fn an_answer_is_followed_again_once_hidden_thoughts_leave_nothing_to_scroll() {
    let mut world = World::ready(&["demo"]);
    world.type_line("count");
    let question = world.question();
    let lines = |from: usize, to: usize| (from..=to).map(|n| format!("line {n}\n")).collect::<String>();
    world.text(question, 0, &format!("<think>\n{}</think>\n\nshort\n", lines(1, 80)));
    world.ctrl('t');
    world.press(KeyCode::PageUp, KeyModifiers::NONE);
    assert_eq!(world.screen.update(Input::Tick), Next::Keep);
    world.ctrl('t');
    assert!(world.shown().contains("short"));
    world.text(question, 0, &lines(81, 140));
    assert!(world.shown().contains("line 140"), "{}", world.shown());
}

#[test]
fn commands_change_what_is_asked_next_and_keys_leave() {
    let mut world = World::ready(&["demo"]);
    world.type_line("/set temperature 0");
    world.screen.update(Input::Paste("one\r\ntwo".into()));
    world.press(KeyCode::Enter, KeyModifiers::NONE);
    let Ok(Ask::Say { text, settings, .. }) = world.asked.try_recv() else { panic!("a question") };
    assert_eq!((text.as_str(), settings.sampling.temperature), ("one\ntwo", 0.0));
    world.type_line("/nonsense");
    assert!(world.shown().contains("no such command"));
    assert_eq!(world.ctrl('d'), Next::Draw, "something is typed");
    world.press(KeyCode::F(1), KeyModifiers::NONE);
    assert!(world.shown().contains("/system TEXT"));
    let help = world.shown();
    for (what, about) in crate::screen::rows(KEYS).into_iter().chain(line::COMMANDS) {
        assert!(help.contains(about), "{what} is cut at 80 columns:\n{help}");
    }
    let mut ready = World::ready(&["demo"]);
    assert_eq!(ready.ctrl('d'), Next::Leave);
    assert_eq!(ready.type_line("/quit"), Next::Leave);
    assert_eq!(ready.ctrl('c'), Next::Leave);
}

#[test]
fn models_are_loaded_again_to_answer_elsewhere_and_the_conversation_goes_on() {
    let mut world = World::ready(&["demo"]);
    world.type_line("first");
    let question = world.question();
    world.type_line("/device cuda");
    assert!(world.shown().contains("Esc ends it") && world.shown().contains("> /device cuda"));
    world.text(question, 0, "an answer");
    world.done(question, 0, FinishReason::Stop);
    world.press(KeyCode::Enter, KeyModifiers::NONE);
    let cuda = Decoding { device: Device::Cuda, ..Decoding::default() };
    assert_eq!(world.asked.try_recv(), Ok(Ask::Decode(cuda)));
    world.type_line("second");
    assert!(world.shown().contains("still being loaded"), "{}", world.shown());
    world.hear(Heard::Decodes { decoding: cuda, failure: None });
    let shown = world.shown();
    assert!(shown.contains("on cuda from now on") && shown.contains("tokens, cuda"), "{shown}");
    assert!(shown.contains("an answer"), "{shown}");
    world.press(KeyCode::Enter, KeyModifiers::NONE);
    let question = world.question();
    world.done(question, 0, FinishReason::Stop);
    // What cannot be is told, and the models are as they were.
    world.type_line("/draft 3");
    assert_eq!(world.asked.try_recv(), Ok(Ask::Decode(Decoding { draft_tokens: 3, ..cuda })));
    let failure = Some(Failure::new(Exit::Device, "too little memory"));
    world.hear(Heard::Decodes { decoding: cuda, failure });
    let shown = world.shown();
    assert!(
        shown.contains("answers are still made on cuda: too little memory") && !shown.contains("drafts 3"),
        "{shown}"
    );
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_screen_with_the_reason() {
    let mut world = World::of(&["demo"]);
    let failure = Failure::new(Exit::Device, "too large");
    assert_eq!(world.hear(Heard::Ended(failure.clone())), Next::Leave);
    assert_eq!(world.screen.into_failure(), Some(failure.clone()));
    let mut world = World::ready(&["demo"]);
    assert_eq!(world.hear(Heard::Ended(failure)), Next::Draw);
    assert!(world.shown().contains("too large"));
    assert_eq!(world.screen.into_failure(), None);
}
