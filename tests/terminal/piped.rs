//! Where there is no screen to fill: dumb terminals, pipes, and nobody to be asked.

use crate::words::RUNNING;
use crate::world::{ORDINARY, World, kill_trainer};

#[test]
fn a_dumb_terminal_and_plain_get_lines_without_a_single_control_sequence() {
    let world = World::new();
    let run = world.training();
    kill_trainer(&run);
    for (args, env) in
        [(&["watch"][..], ("TERM", "dumb")), (&["watch", "--plain"], ("TERM", "xterm-256color"))]
    {
        let left = world.open_with(args, ORDINARY, &[env]).left();
        let text = String::from_utf8_lossy(&left.raw).into_owned();
        assert!(!text.contains('\x1b'), "{args:?} {env:?}: {text:?}");
        assert!(text.contains(" step ") && text.contains("crashed"), "{args:?} {env:?}: {text}");
    }
    let left = world.open_with(["runs"], ORDINARY, &[("TERM", "dumb")]).left().exits(0);
    let text = String::from_utf8_lossy(&left.raw).into_owned();
    assert!(!text.contains('\x1b') && text.contains("crashed") && text.contains("STATE"), "{text}");
}

#[test]
fn a_pipe_gets_plain_lines_though_a_person_sits_at_the_keyboard() {
    let world = World::new();
    let run = world.training();
    kill_trainer(&run);
    let program = env!("CARGO_BIN_EXE_sparktune");
    let script = format!("'{program}' watch | cat; '{program}' runs | cat");
    let shell = std::path::Path::new("/bin/sh");
    let left =
        crate::pty::Pty::spawn(shell, ["-c", &script], world.place.path(), &world.env(&[]), (200, 24)).left();
    let text = String::from_utf8_lossy(&left.raw).into_owned();
    assert!(!text.contains('\x1b') && text.contains(" step ") && text.contains("STATE"), "{text:?}");
    assert!(!text.contains(RUNNING), "{text}");
}

#[test]
fn non_interactive_asks_nobody_even_on_a_terminal_and_names_the_flags() {
    let world = World::new();
    for args in [&["--non-interactive"][..], &["train", "--non-interactive"], &["plan", "--non-interactive"]]
    {
        let left = world.open(args).left().exits(2);
        assert!(left.text.contains("--model") && left.text.contains("--data"), "{args:?}: {}", left.text);
        assert!(!left.raw.windows(8).any(|bytes| bytes == b"\x1b[?1049h"), "{args:?} took the screen");
    }
}
