//! The same way in plain mode: prompts answered one by one, lines, and a trainer that is killed.

use crate::pty::{Left, Pty};
use crate::sparktune::checkpoint;
use crate::words::{CTRL_C, DATA, DATA_IS_RIGHT, ENTER, MODEL, PROMPTS, WIZARD};
use crate::world::{World, hold_after, kill_trainer, steps_done};

/// The prompt that waits for an answer: inquire marks it with `?`, and answered ones with `>`. It is drawn
/// whole when its last line is there, the help in brackets.
fn question(text: &str) -> Option<String> {
    let (helped, question) = text.lines().rev().fold((false, None), |(helped, found), line| match found {
        Some(_) => (helped, found),
        None => (helped || line.starts_with('['), line.strip_prefix("? ").map(str::to_owned)),
    });
    question.filter(|_| helped)
}

/// Answers every prompt, those without a usable default as told, until lines of events come.
#[track_caller]
pub(crate) fn answer_all(pty: &mut Pty, model: &str, data: &str) -> Vec<String> {
    let mut asked: Vec<String> = Vec::new();
    while asked.len() < 12 {
        let last = asked.last().cloned();
        let is_new = |text: &str| question(text).is_some_and(|question| Some(beginning(&question)) != last);
        pty.wait_until("a question or the first step", |text| is_new(text) || text.contains(" step "));
        let text = pty.text();
        let Some(question) = question(&text).filter(|_| is_new(&text)) else { return asked };
        let known = PROMPTS.iter().find(|(words, _)| question.starts_with(words));
        let answer = known.map_or("", |(_, answer)| answer).replace(MODEL, model).replace(DATA, data);
        asked.push(beginning(&question));
        if !answer.is_empty() {
            pty.press(&answer);
            // The end of what was typed is shown before Enter takes it.
            let end: String = answer.chars().skip(answer.chars().count().saturating_sub(6)).collect();
            pty.wait_until("what was typed", |text| {
                self::question(text).is_some_and(|question| question.trim_end().ends_with(&end))
            });
        }
        pty.press(ENTER);
    }
    panic!("it does not stop asking; the screen is\n{}", pty.text());
}

/// Up to the end of the question: what follows is what was typed, or a default.
fn beginning(question: &str) -> String {
    let end = question.find([':', '?']).map_or(question.len(), |at| at + 1);
    question[..end].to_owned()
}

#[test]
fn prompts_are_answered_the_trainer_is_killed_and_resume_finishes_it() {
    let world = World::new();
    world.place.chats(800);
    let model = checkpoint();
    // Steps that take so long that the run does not end while the test waits for a processor.
    let env = [
        ("SPARKTUNE_MAX_STEPS", "150"),
        ("SPARKTUNE_GRAD_ACCUM_STEPS", "24"),
        ("SPARKTUNE_EPOCHS", "9999"),
        ("SPARKTUNE_RANK", "4"),
        ("SPARKTUNE_PACK_LENGTH", "128"),
        ("SPARKTUNE_SAVE_STEPS", "20"),
        ("SPARKTUNE_SAMPLE_COUNT", "0"),
        ("SPARKTUNE_MTP", "none"),
    ];
    let mut pty = world.open_with(["--plain"], (160, 50), &env);
    let asked = answer_all(&mut pty, model.to_str().unwrap(), "train.jsonl");
    assert!(asked.len() >= 2, "the model and the data were asked for: {asked:?}");
    assert!(asked.iter().any(|question| question == DATA_IS_RIGHT), "the data was shown: {asked:?}");
    let run = world.the_run();
    hold_after(&run, 20);
    kill_trainer(&run);
    let Left { text, .. } = pty.left().exits(5);
    assert!(text.contains("signal 9") && text.contains("sparktune resume"), "{text}");

    let left = world.open_with(["resume", "--plain"], (160, 50), &[]).left().exits(0);
    assert!(left.text.contains("completed"), "{}", left.text);
    assert!(!left.raw.contains(&b'\x1b'), "plain lines carry no control sequences");
    assert_eq!((steps_done(&run), run.attempts().unwrap()), (150, vec![1, 2]));
}

#[test]
fn ctrl_c_leaves_the_questions_of_a_dumb_terminal() {
    let world = World::new();
    let mut pty = world.open_with(["--plain"], (100, 60), &[("TERM", "dumb")]);
    pty.wait_for(WIZARD[0]);
    pty.wait_for(&format!("{} [", WIZARD[1]));
    // What is too long for a line goes on below itself, and the numbers stand in a column.
    let text = pty.text();
    assert!(text.contains("\n   9  ") && text.contains("\n  10  ") && !text.contains('…'), "{text}");
    pty.press(CTRL_C);
    let Left { text, .. } = pty.left().exits(2);
    assert!(text.contains("nothing was started"), "{text}");
}

#[test]
fn enter_alone_takes_the_only_data_file_in_the_folder() {
    let model = checkpoint();
    for (term, shown) in [("dumb", "[train.jsonl]"), ("xterm-256color", "(train.jsonl)")] {
        let world = World::new();
        world.place.chats(40);
        world.place.write("README.md", "A text that is no data");
        let args = ["--plain".as_ref(), "--model".as_ref(), model.as_os_str()];
        let mut pty = world.open_with(args, (160, 50), &[("TERM", term)]);
        pty.wait_until("the data's question", |text| text.contains(WIZARD[2]) && text.contains(shown));
        pty.press(ENTER);
        pty.wait_for(DATA_IS_RIGHT);
        pty.press(CTRL_C);
        pty.left().exits(2);
    }
}

/// Waits for a question of a dumb terminal, and takes the choice with this label by its number.
#[track_caller]
fn choose(pty: &mut Pty, question: &str, label: &str) {
    pty.wait_until(question, |text| is_asked(text, question));
    let text = pty.text();
    let mut numbered = text.lines().rev().filter_map(|line| line.trim_start().split_once("  "));
    let choice = numbered.find(|(_, choice)| choice.starts_with(label));
    let (number, _) = choice.unwrap_or_else(|| panic!("there is no choice {label}:\n{text}"));
    pty.press(number);
    pty.press(ENTER);
}

/// Returns whether the last line is this question, and whole.
fn is_asked(text: &str, question: &str) -> bool {
    text.trim_end().lines().last().is_some_and(|line| line.starts_with(question) && line.ends_with(':'))
}

#[test]
fn on_a_dumb_terminal_a_value_is_reset_by_an_empty_line_and_the_demo_is_left_for_another_model() {
    let world = World::new();
    let env = [("TERM", "dumb"), ("SPARKTUNE_HOME", env!("CARGO_MANIFEST_DIR")), ("SPARKTUNE_EPOCHS", "3")];
    // A model that was rejected or left does not come back with the demo.
    let mut pty = world.open_with(["--plain", "--model", "./typo"], (160, 200), &env);
    pty.wait_until(WIZARD[1], |text| is_asked(text, WIZARD[1]));
    let text = pty.text();
    let (table, problem) = (text.find("the longest packs"), text.find("Check the path"));
    assert!(table.is_some() && table < problem, "the problem is read below the table:\n{text}");
    choose(&mut pty, WIZARD[1], "fill in the demo");
    choose(&mut pty, DATA_IS_RIGHT, "use this data");
    pty.wait_until("the next question", |text| is_asked(text, WIZARD[4]) || is_asked(text, WIZARD[5]));
    if is_asked(&pty.text(), WIZARD[4]) {
        pty.press(ENTER);
    }
    // The line shows the present value, and an empty answer is no answer of the user's own any more.
    for (now, typed) in [("Now: 3", "7"), ("Now: 7", ""), ("Now: 3", "3")] {
        choose(&mut pty, WIZARD[5], "change a value");
        choose(&mut pty, "Which?", "epochs ");
        pty.wait_until(now, |text| {
            is_asked(text, "epochs:") && text.trim_end().ends_with(&format!("{now}):"))
        });
        pty.press(typed);
        pty.press(ENTER);
    }
    choose(&mut pty, WIZARD[5], "choose another model");
    pty.wait_for("the settings of the demo were reset");
    choose(&mut pty, WIZARD[1], "fill in the demo");
    pty.wait_until(DATA_IS_RIGHT, |text| is_asked(text, DATA_IS_RIGHT));
    pty.press(CTRL_C);
    pty.left().exits(2);
}
