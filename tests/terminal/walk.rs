//! From nothing to a finished run by keys alone, with everything that can happen on the way.

use std::time::Duration;

use rustix::process::Signal;
use sparktune_runlog::{Lease, Liveness, Outcome};

use crate::pty::Pty;
use crate::words::{
    COMPLETED, CRASHED, DASHBOARD, DATA_IS_READ, ENTER, ESCAPE, LEAVE_WIZARD, RUNNING, RUNS, THERE_IS_A_PLAN,
    WIZARD, YES,
};
use crate::world::{World, demo, hold_after, kill_trainer, liveness, signal_trainer, steps_done, wait};

/// Long enough to leave, come back and kill it; short enough to see the end.
const STEPS: &str = "200";

/// No generations, a checkpoint now and then, and steps that take so long that the run does not end while the
/// test waits for a processor: as variables, since the wizard is walked without touching them.
const SMALL: [(&str, &str); 7] = [
    ("SPARKTUNE_MAX_STEPS", STEPS),
    ("SPARKTUNE_EPOCHS", "9999"),
    ("SPARKTUNE_RANK", "4"),
    ("SPARKTUNE_PACK_LENGTH", "128"),
    ("SPARKTUNE_GRAD_ACCUM_STEPS", "6"),
    ("SPARKTUNE_SAVE_STEPS", "20"),
    ("SPARKTUNE_SAMPLE_COUNT", "0"),
];

/// Presses `q` until the program ends: screens that lie over each other are left one by one.
#[track_caller]
fn leave(mut pty: Pty) {
    wait("the end of the program", || {
        pty.press("q");
        std::thread::sleep(Duration::from_millis(300));
        pty.is_over().then_some(())
    });
    pty.left();
}

/// Takes what the page with this number recommends, once it has read what it needs to go on. A slow screen
/// gets time, because a second press would skip the next page.
#[track_caller]
fn press_on(wizard: &mut Pty, at: usize) {
    match at {
        2 => wizard.wait_for(DATA_IS_READ),
        3 => wizard.wait_until("a plan", |text| THERE_IS_A_PLAN.iter().all(|words| text.contains(words))),
        _ => {}
    }
    for _ in 0..10 {
        wizard.press(ENTER);
        if wizard.shows_within(Duration::from_secs(60), |text| !text.contains(WIZARD[at])) {
            return;
        }
    }
    panic!("the wizard stays at\n{}", wizard.text());
}

#[test]
fn the_wizard_by_keys_then_left_watched_killed_resumed_and_finished() {
    let world = World::new();
    let (model, data) = demo();
    let args = ["--model".as_ref(), model.as_os_str(), "--data".as_ref(), data.as_os_str()];
    let mut wizard = world.open_with(args, (100, 30), &SMALL);
    for (at, question) in WIZARD.iter().enumerate() {
        wizard.wait_for(question);
        if at == 3 {
            // Back and forward at will, nothing is lost.
            wizard.press(ESCAPE);
            wizard.wait_for(WIZARD[2]);
            press_on(&mut wizard, 2);
            wizard.wait_for(question);
        }
        press_on(&mut wizard, at);
    }
    // The wizard becomes the dashboard of a trainer that is a process of its own.
    wizard.wait_for(DASHBOARD);
    wizard.wait_for(RUNNING);
    let run = world.the_run();
    // Held still while one screen is left and another one opened, so that it does not end meanwhile.
    signal_trainer(&run, Signal::STOP);
    leave(wizard);
    assert!(Lease::is_held(&run).unwrap(), "the trainer is there");

    let watch = world.open(["watch"]);
    watch.wait_for(DASHBOARD);
    signal_trainer(&run, Signal::CONT);
    watch.wait_for(RUNNING);
    let seen = watch.text();
    watch.wait_until("something new, because the trainer goes on", |text| text != seen);
    hold_after(&run, 20);
    kill_trainer(&run);
    watch.wait_for(CRASHED);
    watch.wait_until("what to do", |text| text.contains("resume"));
    leave(watch);
    assert_eq!(liveness(&run), Liveness::Crashed);
    let killed_at = steps_done(&run);

    let mut list = world.open(["runs"]);
    list.wait_until("the crashed run", |text| text.contains(RUNS) && text.contains(CRASHED));
    list.press("r");
    list.wait_for(RUNNING);
    list.wait_for(COMPLETED);
    leave(list);
    assert_eq!(liveness(&run), Liveness::Finished { outcome: Outcome::Completed });
    assert!(steps_done(&run) > killed_at && run.attempts().unwrap() == [1, 2]);
}

/// A stranger's chat template that takes all memory is refused on the page, and the terminal is given back.
#[test]
fn the_wizard_names_a_hostile_template_and_can_still_be_left() {
    let world = World::new();
    let (model, data) = demo();
    let hostile = world.place.join("hostile");
    std::fs::create_dir(&hostile).unwrap();
    for file in std::fs::read_dir(model).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), hostile.join(file.file_name())).unwrap();
    }
    let doubling =
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    std::fs::write(hostile.join("chat_template.jinja"), doubling).unwrap();
    let args = ["--model".as_ref(), hostile.as_os_str(), "--data".as_ref(), data.as_os_str()];
    let mut wizard = world.open_with(args, (100, 30), &SMALL);
    wizard.wait_for(WIZARD[0]);
    press_on(&mut wizard, 0);
    wizard.wait_for(WIZARD[1]);
    wizard.press(ENTER);
    wizard.wait_until("what is wrong", |text| text.contains("the chat template cannot be used"));
    assert!(wizard.text().contains(WIZARD[1]), "{}", wizard.text());
    wizard.press("q");
    wizard.wait_for(LEAVE_WIZARD);
    wizard.press(YES);
    wizard.left().exits(0);
}

#[test]
fn from_the_list_a_run_is_watched_stopped_and_deleted() {
    let world = World::new();
    let run = world.training();
    let name = run.name();
    let mut list = world.open_with(["runs"], (132, 40), &[]);
    list.wait_until("the run", |text| text.contains(RUNS) && text.contains(RUNNING));
    list.press(ENTER);
    list.wait_for(DASHBOARD);
    list.press("q");
    list.wait_for(RUNS);

    list.press("x");
    list.wait_for("cannot be deleted");
    assert!(run.path().is_dir());
    list.press("s");
    list.wait_for("stop this run?");
    list.press("y");
    list.wait_for("asked to save a checkpoint and end");
    wait("the trainer's end", || (!Lease::is_held(&run).unwrap()).then_some(()));
    list.wait_for("stopped");

    list.press("x");
    list.wait_for("delete this run?");
    list.press("n");
    list.wait_for("was not deleted");
    list.press("x");
    list.wait_for("delete this run?");
    list.press("y");
    list.wait_for("permanently?");
    list.press(&name[name.len() - 4..]);
    list.press(ENTER);
    list.wait_for("no runs here yet");
    assert!(!run.path().exists());
    list.press("q");
    list.left().exits(0);
}

/// Model and data of the demo belong to no preset, and are kept all the same.
#[test]
fn the_demo_is_planned_again_from_the_list_of_runs() {
    let world = World::new();
    let short = [
        ("SPARKTUNE_HOME", env!("CARGO_MANIFEST_DIR")),
        ("SPARKTUNE_MAX_STEPS", "2"),
        ("SPARKTUNE_MTP", "none"),
        ("SPARKTUNE_SAMPLE_COUNT", "0"),
    ];
    world.open_with(["--demo", "--plain"], (80, 24), &short).left().exits(0);
    let mut list = world.open(["runs"]);
    list.wait_until("the run", |text| text.contains(RUNS) && text.contains(COMPLETED));
    list.press("n");
    list.wait_for(WIZARD[3]);
    list.wait_until("a plan", |text| THERE_IS_A_PLAN.iter().all(|words| text.contains(words)));
    assert!(!list.text().contains("A plan needs"), "{}", list.text());
}
