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
fn the_guide_is_laid_out_for_a_terminal_and_its_pager_and_a_file_gets_it_as_it_was_written() {
    let world = World::new();
    let program = env!("CARGO_BIN_EXE_sparktune");
    let shell = std::path::Path::new("/bin/sh");
    let file = world.place.join("runs.md");
    let script = format!("'{program}' guide runs | cat; '{program}' guide runs > '{}'", file.display());
    let size = (72, 24);
    for args in [["guide", "runs.md#longer-and-shorter"], ["-c", &script]] {
        let program = if args[0] == "-c" { shell } else { std::path::Path::new(program) };
        let pty = crate::pty::Pty::spawn(program, args, world.place.path(), &world.env(&[]), size);
        let left = pty.left().exits(0);
        let text = String::from_utf8_lossy(&left.raw).replace("\r\n", "\n");
        assert!(
            text.contains("\nLonger and shorter\n---") && !text.contains("](") && !text.contains("|--"),
            "{text}"
        );
        // Code alone may be wider, so that it can be copied.
        let wide = text.lines().find(|line| line.chars().count() > 72 && !line.starts_with("  "));
        assert_eq!(wide, None);
    }
    let written = std::fs::read_to_string(file).unwrap();
    assert!(written.contains("## Longer and shorter") && written.contains("|---|---|"), "{written}");
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
