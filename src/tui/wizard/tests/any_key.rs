//! Presses any keys in any order, on any screen: nothing panics, and everything drawn stays in its place.

use proptest::prelude::*;

use super::*;
use crate::screen::picture::{ASCII, TRUE_COLOUR};

/// A key, a response to an open request, or a tick.
#[derive(Debug, Clone)]
enum Step {
    Press(KeyCode, KeyModifiers),
    Paste(String),
    Answer(usize),
    Tick,
    Size(u16, u16),
}

fn step() -> impl Strategy<Value = Step> {
    let plain = prop_oneof![
        3 => Just(KeyCode::Enter),
        1 => Just(KeyCode::Esc),
        1 => Just(KeyCode::Tab),
        1 => Just(KeyCode::BackTab),
        2 => Just(KeyCode::Up),
        3 => Just(KeyCode::Down),
        1 => Just(KeyCode::Left),
        2 => Just(KeyCode::Right),
        1 => Just(KeyCode::PageUp),
        1 => Just(KeyCode::PageDown),
        1 => Just(KeyCode::Home),
        1 => Just(KeyCode::End),
        1 => Just(KeyCode::Backspace),
        1 => Just(KeyCode::Delete),
        1 => Just(KeyCode::F(1)),
        8 => prop::sample::select("/ ?abcdefghklnopPrRtuwxy.0128~世".chars().collect::<Vec<_>>()).prop_map(KeyCode::Char),
    ];
    let modifiers = prop_oneof![9 => Just(KeyModifiers::NONE), 1 => Just(KeyModifiers::CONTROL), 1 => Just(KeyModifiers::ALT)];
    prop_oneof![
        12 => (plain, modifiers).prop_map(|(code, modifiers)| Step::Press(code, modifiers)),
        1 => any::<String>().prop_map(Step::Paste),
        6 => (0usize..4).prop_map(Step::Answer),
        1 => Just(Step::Tick),
        1 => (1u16..140, 1u16..50).prop_map(|(width, height)| Step::Size(width, height)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_keys_and_answers_leave_a_screen_that_can_be_drawn(
        steps in prop::collection::vec(step(), 1..60),
        given in any::<bool>(),
        small in any::<bool>(),
    ) {
        let machine = Ok(if small { laptop() } else { spark() });
        let answers = if given { flags(GIVEN) } else { Answers::default() };
        let mut rig = Rig::new(Setup { answers, ..Setup::default() }, World { machine, ..World::default() });
        for step in steps {
            match step {
                Step::Press(code, modifiers) => drop(rig.wizard.update(Input::Key(KeyEvent::new(code, modifiers)))),
                Step::Paste(text) => drop(rig.wizard.update(Input::Paste(text))),
                Step::Tick => drop(rig.wizard.update(Input::Tick)),
                Step::Size(width, height) => drop(drawn(&mut rig.wizard, width, height, &TRUE_COLOUR)),
                Step::Answer(at) => {
                    rig.collect();
                    if !rig.open.is_empty() {
                        let request = rig.open.remove(at % rig.open.len());
                        if let Some(response) = rig.answer(&request.body) {
                            rig.send(request.ticket, response);
                        }
                    }
                }
            }
            rig.collect();
        }
        for (width, height) in [(60, 16), (80, 24), (132, 40), (1, 1), (200, 17)] {
            let buffer = drawn(&mut rig.wizard, width, height, &ASCII);
            let text = text(&buffer);
            let is_harmless = !text.contains('\u{1b}') && !text.contains('\u{202e}');
            prop_assert!(is_harmless);
        }
    }
}
