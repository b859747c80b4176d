//! From nothing to a chat with one's own model, in a terminal of 80×24, as a person who follows the README
//! walks it: by full screens, with the wizard in the folder of the data, the dashboard to the end of the run,
//! and from there the chat; and by plain lines, with the command that the last line names.

use crate::plain::answer_all;
use crate::pty::Pty;
use crate::words::{COMPLETED, CTRL_C, DASHBOARD, DATA_IS_READ, ENTER, THERE_IS_A_PLAN, WIZARD};
use crate::world::{World, demo, wait};

/// A training of seconds. Everything else is what the wizard recommends.
const SHORT: [(&str, &str); 4] = [
    ("SPARKTUNE_MAX_STEPS", "12"),
    ("SPARKTUNE_LEARNING_RATE", "2e-3"),
    ("SPARKTUNE_SAMPLE_MAX_TOKENS", "16"),
    ("SPARKTUNE_MTP", "default"),
];

/// Presses Enter once the screen shows this, and then waits for what follows. A slow screen gets time,
/// because a second press would skip what follows.
#[track_caller]
fn answer(pty: &mut Pty, question: &str, next: &str) {
    pty.wait_for(question);
    for _ in 0..10 {
        pty.press(ENTER);
        if pty.shows_within(std::time::Duration::from_secs(60), |text| text.contains(next)) {
            return;
        }
    }
    panic!("{next} does not follow {question}:\n{}", pty.text());
}

/// Counts the answers on the screen that have ended: the length of each stands below it. Its speed does so
/// only if it has more than one token.
fn ended_answers(text: &str) -> usize {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_length = |three: &&[&str]| {
        let [before, number, noun] = three else { return false };
        *before != "most"
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && matches!(noun.trim_end_matches(','), "token" | "tokens")
    };
    words.windows(3).filter(is_length).count()
}

#[test]
fn from_nothing_to_a_chat_with_ones_own_model() {
    let world = World::new();
    let (model, data) = demo();
    std::fs::copy(data, world.place.join("mine.jsonl")).unwrap();
    // A README could be trained on as text, but nobody means it.
    std::fs::write(world.place.join("README.md"), "# My workshop\n").unwrap();
    let mut pty = world.open_with::<&str>([], (80, 24), &SHORT);
    answer(&mut pty, WIZARD[0], WIZARD[1]);
    // A model of one's own, by its folder.
    pty.press("o");
    pty.wait_for("id or folder");
    pty.press(model.to_str().unwrap());
    answer(&mut pty, WIZARD[1], WIZARD[2]);
    // The only data file of the folder is under the cursor, before the README.
    answer(&mut pty, "mine.jsonl", DATA_IS_READ);
    answer(&mut pty, DATA_IS_READ, WIZARD[3]);
    pty.wait_until("a plan", |text| THERE_IS_A_PLAN.iter().all(|words| text.contains(words)));
    answer(&mut pty, WIZARD[3], WIZARD[4]);
    answer(&mut pty, WIZARD[4], WIZARD[5]);
    answer(&mut pty, WIZARD[5], DASHBOARD);
    pty.wait_for(COMPLETED);
    let run = world.the_run();
    // What to do next stands on the last screen, and one key does it.
    pty.wait_for("t talk to it");
    pty.press("3");
    pty.wait_for("question 1 of");
    assert!(!pty.text().contains("<|im_start|>"), "{}", pty.text());
    pty.press("t");
    pty.wait_for("chat with");
    pty.wait_until("the models to be loaded", |text| !text.contains("loading"));
    // So short that both answers are on the screen, and without thoughts, which may take all of it.
    for (command, told) in [
        ("/set max-tokens 16", "at most 16 tokens"),
        ("/think off", "thinking: off"),
        ("/set temperature 0", "temperature: 0"),
    ] {
        pty.press(command);
        pty.press(ENTER);
        pty.wait_for(told);
    }
    pty.press("What does a bell cost?");
    pty.press(ENTER);
    // Before and after, side by side.
    pty.wait_until("both answers", |text| ended_answers(text) == 2);
    pty.press(CTRL_C);
    pty.wait_for(DASHBOARD);
    pty.press("q");
    pty.left().exits(0);
    let chats = wait("the conversation", || std::fs::read_dir(run.path().join("chats")).ok()?.next());
    let kept = std::fs::read_to_string(chats.unwrap().path()).unwrap();
    assert!(kept.contains("What does a bell cost?"), "{kept}");
}

#[test]
fn from_nothing_to_an_answer_of_ones_own_model_by_plain_lines() {
    let world = World::new();
    let (model, data) = demo();
    std::fs::copy(data, world.place.join("mine.jsonl")).unwrap();
    let mut pty = world.open_with(["--plain"], (80, 24), &SHORT);
    answer_all(&mut pty, model.to_str().unwrap(), "mine.jsonl");
    let left = pty.left().exits(0);
    let lines = String::from_utf8_lossy(&left.raw);
    assert!(lines.contains("outputs/SERVE.md") && lines.contains(COMPLETED), "{lines}");
    // The line that says how to talk to it is a command; with flags for a short answer without chance.
    let talk = lines.lines().find_map(|line| line.trim_end().strip_prefix("Talk to it: sparktune "));
    let talk = talk.unwrap_or_else(|| panic!("what to do next is not said:\n{lines}"));
    let run = world.the_run();
    assert_eq!(talk.split_once(' '), Some(("chat", &*run.name())));
    let more =
        ["--beside", "base", "--plain", "--temperature", "0", "--max-tokens", "16", "--thinking", "false"];
    let mut pty = world.open(talk.split(' ').chain(more));
    pty.wait_until("the prompt", |text| text.lines().any(|line| line.trim_end() == ">"));
    pty.press("What does a bell cost?");
    pty.press(ENTER);
    pty.wait_until("both answers", |text| ended_answers(text) == 2);
    pty.press("/quit");
    pty.press(ENTER);
    let left = pty.left().exits(0);
    assert!(!left.raw.contains(&b'\x1b'), "plain lines carry no control sequences: {}", left.text);
}
