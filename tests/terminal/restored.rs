//! However a screen ends, the terminal is as it was before, and the trainer goes on.

use std::fs;
use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;
use sparktune_runlog::Lease;

use crate::pty::{Left, Pty};
use crate::words::{CTRL_C, CTRL_Z, DASHBOARD, END, ENTER, LEAVE_WIZARD, RUNS, WIZARD, YES};
use crate::world::{ORDINARY, World, demo, signal_trainer, this_program, wait};

/// The dashboard of a run that lives, drawn.
fn watching(world: &World) -> Pty {
    let pty = world.open(["watch"]);
    pty.wait_for(DASHBOARD);
    assert!(pty.is_taken(), "a full screen takes the terminal");
    pty
}

#[test]
fn leaving_the_dashboard_by_key_or_by_signal_gives_the_terminal_back_and_leaves_the_trainer_alone() {
    let world = World::new();
    let run = world.training();
    // Held still, so that it is the same trainer at the end.
    signal_trainer(&run, Signal::STOP);
    let mut quit = watching(&world);
    quit.press("q");
    quit.left().exits(0);
    let mut interrupted = watching(&world);
    interrupted.press(CTRL_C);
    interrupted.left().exits(0);
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let pty = watching(&world);
        pty.signal(signal);
        let Left { text, .. } = pty.left();
        assert!(!text.contains(DASHBOARD), "{signal:?} left the screen behind:\n{text}");
    }
    assert!(Lease::is_held(&run).unwrap(), "the trainer goes on");
}

#[test]
fn a_connection_that_is_lost_ends_the_watcher_and_not_the_run() {
    let world = World::new();
    let run = world.paused();
    let watcher = watching(&world).hang_up();
    assert!(watcher.success(), "a closed window is no bug: {watcher:?}");
    let list = world.open(["runs"]);
    list.wait_for(RUNS);
    let list = list.hang_up();
    assert!(list.success(), "{list:?}");
    assert_eq!(
        std::fs::read_dir(run.control()).map_or(0, Iterator::count),
        0,
        "the run is asked for nothing"
    );
}

#[test]
fn the_list_and_the_wizard_give_the_terminal_back() {
    let world = World::new();
    let mut list = world.open(["runs"]);
    list.wait_for(RUNS);
    assert!(list.is_taken());
    list.press("q");
    list.left().exits(0);
    let (model, data) = demo();
    let args = ["--model".as_ref(), model.as_os_str(), "--data".as_ref(), data.as_os_str()];
    let mut wizard = world.open(args);
    wizard.wait_for(WIZARD[0]);
    assert!(wizard.is_taken());
    wizard.press("q");
    wizard.wait_for(LEAVE_WIZARD);
    wizard.press(YES);
    wizard.left().exits(0);
    let wizard = world.open(args);
    wizard.wait_for(WIZARD[0]);
    wizard.signal(Signal::TERM);
    wizard.left();
}

#[test]
fn a_stopped_screen_gives_the_terminal_to_the_shell_and_takes_it_again() {
    let world = World::new();
    world.paused();
    // A shell with job control is what Ctrl-Z needs.
    let program = env!("CARGO_BIN_EXE_sparktune");
    let script = format!("set -m; '{program}' watch; echo back in the shell; read line; fg; echo done");
    let shell = std::path::Path::new("/bin/sh");
    let mut pty = Pty::spawn(shell, ["-c", &script], world.place.path(), &world.env(&[]), (80, 48));
    pty.wait_for(DASHBOARD);
    pty.press(CTRL_Z);
    pty.wait_for("back in the shell");
    // The screen is not told about this, because the shell has the terminal.
    pty.resize(ORDINARY);
    pty.press(ENTER);
    pty.wait_for(DASHBOARD);
    // It scrolls by the new size: the last line can be reached.
    pty.press("6");
    pty.wait_for("lines 1–");
    pty.press(END);
    pty.wait_until("the last line", |text| {
        let lines = text.lines().find_map(|line| line.split_once(" lines ")?.1.split_once(" of "));
        lines.is_some_and(|(shown, all)| {
            let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
            let last = shown.split_once('–').map(|(_, last)| number(last));
            last == Some(number(all))
        })
    });
    pty.press("q");
    let left = pty.left();
    let (back, done) = (left.text.find("back in the shell"), left.text.find("done"));
    assert!(back.is_some() && back < done && !left.text.contains("error"), "{}", left.text);
}

/// Runs a test of this file that takes the terminal.
fn own_screen(world: &World, test: &str) -> Pty {
    let test = format!("restored::{test}");
    let args = ["--exact", &test, "--ignored", "--nocapture", "--test-threads=1", "--color=never"];
    Pty::spawn(&this_program(), args, world.place.path(), &world.env(&[]), ORDINARY)
}

#[test]
fn a_panic_gives_the_terminal_back() {
    let world = World::new();
    let left = own_screen(&world, "a_screen_that_panics").left();
    let raw = String::from_utf8_lossy(&left.raw);
    assert!(raw.contains("\x1b[?1049h") && raw.contains("drawn"), "it did take the screen:\n{raw}");
    assert!(!left.status.success() && left.text.contains("1 failed"), "{}", left.text);
}

#[test]
#[ignore = "takes the terminal it runs in; the test above gives it one"]
fn a_screen_that_panics() {
    let mut terminal = sparktune_tui::screen::Terminal::enter().unwrap();
    terminal.draw(|frame| frame.render_widget("drawn", frame.area())).unwrap();
    panic!("on purpose");
}

#[test]
fn a_screen_that_hangs_is_ended_by_the_second_signal_and_gives_the_terminal_back() {
    let world = World::new();
    let mut pty = own_screen(&world, "a_screen_that_hangs");
    // Not a word of the test's name, which is printed before the screen is taken.
    pty.wait_for("is stuck");
    assert!(pty.is_taken());
    // A terminal that is closed may be told at any time, and more than once.
    for signal in [Signal::HUP, Signal::TERM, Signal::HUP] {
        let before = naps(&pty);
        pty.signal(signal);
        // Another signal before the process has looked could count as the same one.
        wait("the signal to be heard", || (pty.is_over() || naps(&pty) > before).then_some(()));
        assert!(!pty.is_over(), "{signal:?} only asks");
    }
    pty.signal(Signal::TERM);
    let left = pty.left();
    assert_eq!(left.status.signal(), Some("Terminated"), "{}", left.text);
}

/// How often the thread of a screen that listens for signals has waited for the next one.
fn naps(pty: &Pty) -> u64 {
    let threads = format!("/proc/{}/task", pty.pid().as_raw_nonzero());
    let of = |thread: fs::DirEntry| -> Option<u64> {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let naps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        naps.trim().parse().ok().filter(|_| name.trim_end() == "screen signals")
    };
    fs::read_dir(threads).into_iter().flatten().flatten().find_map(of).unwrap_or(0)
}

#[test]
#[ignore = "takes the terminal it runs in; the test above gives it one"]
fn a_screen_that_hangs() {
    let _screens = sparktune_tui::screens::Screens::open().unwrap();
    print!("is stuck");
    std::io::stdout().flush().unwrap();
    // As a loop that waits for a disk that does not answer.
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
