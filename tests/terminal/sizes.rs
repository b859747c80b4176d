//! Terminals of all kinds: small, resized, without colour, without anything.

use crate::words::{DASHBOARD, RUNNING, RUNS, TOO_SMALL};
use crate::world::{ORDINARY, World};

#[test]
fn a_screen_follows_its_window_and_says_when_that_is_too_small() {
    let world = World::new();
    world.paused();
    let mut pty = world.open_with(["watch"], (60, 16), &[]);
    pty.wait_for(RUNNING);
    for size in [(132, 40), ORDINARY] {
        pty.resize(size);
        pty.wait_for(DASHBOARD);
        // The last row is the line of keys: the whole window is used.
        pty.wait_until("the whole window in use", |text| text.lines().count() == usize::from(size.1));
    }
    pty.resize((50, 12));
    pty.wait_for(TOO_SMALL);
    pty.resize((60, 16));
    pty.wait_until("the screen again", |text| text.contains(RUNNING) && !text.contains(TOO_SMALL));
    pty.press("q");
    pty.left().exits(0);
    let mut small = world.open_with(["runs"], (50, 12), &[]);
    small.wait_for(TOO_SMALL);
    small.press("q");
    small.left().exits(0);
}

#[test]
fn colours_come_only_where_they_are_wanted_and_states_are_words() {
    let world = World::new();
    world.paused();
    for (command, shows) in [("watch", DASHBOARD), ("runs", RUNS)] {
        for (variable, wanted) in [(("NO_COLOR", "1"), false), (("COLORTERM", "truecolor"), true)] {
            let mut pty = world.open_with([command], ORDINARY, &[variable]);
            pty.wait_until("the run's state", |text| text.contains(shows) && text.contains(RUNNING));
            pty.press("q");
            assert_eq!(pty.left().exits(0).has_colour(), wanted, "{command} with {variable:?}");
        }
    }
}

#[test]
fn a_locale_without_unicode_gets_ascii() {
    let world = World::new();
    world.paused();
    for (command, shows) in [("watch", DASHBOARD), ("runs", RUNS)] {
        let mut pty = world.open_with([command], ORDINARY, &[("LANG", "C")]);
        pty.wait_until("the run's state", |text| text.contains(shows) && text.contains(RUNNING));
        pty.press("q");
        let raw = pty.left().exits(0).raw;
        assert!(raw.is_ascii(), "{command}: {}", String::from_utf8_lossy(&raw));
    }
}

#[test]
fn several_terminals_watch_one_run() {
    let world = World::new();
    world.training();
    let mut watchers: Vec<_> =
        [ORDINARY, (132, 40), (60, 16)].map(|size| world.open_with(["watch"], size, &[])).into();
    for pty in &watchers {
        pty.wait_for(RUNNING);
        let seen = pty.text();
        pty.wait_until("something new", |text| text != seen);
    }
    for pty in &mut watchers {
        pty.press("q");
    }
    for pty in watchers {
        pty.left().exits(0);
    }
}
