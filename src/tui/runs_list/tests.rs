//! Tests of the list with real folders: display, keys, and refused actions.

use std::fs;
use std::path::PathBuf;

use crossterm::event::KeyModifiers;
use sparktune_runlog::{
    Action, CheckpointCommitted, Eval, Event, EventWriter, Kind, RunFinished, RunStarted, Step, Warning,
};
use tempfile::TempDir;

use super::*;
use crate::screen::Role;
use crate::screen::picture::{self, ASCII, NO_COLOUR, TRUE_COLOUR, drawn};

/// The current time in all snapshots.
const NOW_US: u64 = 1_763_645_250_000_000;
const HOUR_US: u64 = 3_600_000_000;

/// Creates a run's folder with a fixed name and fixed times, so that all snapshots show the same.
fn folder(root: &TempDir, name: &str) -> RunDir {
    for part in ["events", "checkpoints", "outputs", "control", "logs", "data"] {
        fs::create_dir_all(root.path().join(name).join(part)).unwrap();
    }
    RunDir::open(root.path().join(name)).unwrap()
}

struct Log {
    text: String,
    seq: u64,
    time_us: u64,
}

impl Log {
    fn begun(ago_us: u64, model: &str, total_steps: u64) -> Self {
        let mut log = Log { text: String::new(), seq: 0, time_us: NOW_US - ago_us };
        log.emit(Kind::RunStarted(RunStarted {
            model: model.into(),
            method: "lora".into(),
            device: "NVIDIA GB10".into(),
            total_steps: Some(total_steps),
            ..RunStarted::default()
        }));
        log
    }

    fn emit(&mut self, kind: Kind) {
        self.seq += 1;
        self.time_us += 1_500_000;
        let event = Event { attempt: 1, seq: self.seq, time_us: self.time_us, kind };
        self.text.push_str(&event.to_line().unwrap());
    }

    /// Writes steps with a loss that falls and fluctuates.
    fn steps(&mut self, to: u64, nan_at: Option<u64>) {
        for step in 1..=to {
            let fallen = 0.8 + 1.8 / (1.0 + step as f64 / 12.0);
            let loss_nats =
                if nan_at == Some(step) { f64::NAN } else { fallen + (step * 7 % 5) as f64 * 0.03 };
            self.emit(Kind::Step(Step { step, loss_nats, tokens_per_s: Some(3461.0), ..Step::default() }));
        }
    }

    fn write(&self, run: &RunDir) {
        fs::write(run.event_file(1), &self.text).unwrap();
    }
}

fn checkpoint(run: &RunDir, log: &mut Log, step: u64) {
    let name = format!("step-{step:06}");
    fs::create_dir(run.checkpoints().join(&name)).unwrap();
    log.emit(Kind::CheckpointCommitted(CheckpointCommitted { step, name, ..CheckpointCommitted::default() }));
}

fn finished(log: &mut Log, outcome: Outcome, step: u64, reason: Option<&str>) {
    let reason = reason.map(str::to_owned);
    log.emit(Kind::RunFinished(RunFinished { outcome, step, reason, ..RunFinished::default() }));
}

/// Creates one run in each state. The lease keeps one of them running.
fn some_runs() -> (TempDir, Lease) {
    let root = tempfile::tempdir().unwrap();
    let run = |name: &str| folder(&root, name);

    let done = run("20251112T080000Z-qwen3.5-2b-lora-0c31");
    let mut log = Log::begun(170 * HOUR_US, "Qwen/Qwen3.5-2B", 120);
    log.steps(120, None);
    log.emit(Kind::Eval(Eval { step: 120, loss_nats: 0.9312, ..Eval::default() }));
    checkpoint(&done, &mut log, 120);
    finished(&mut log, Outcome::Completed, 120, None);
    log.write(&done);
    for output in ["adapter", "merged", "merged-mtp"] {
        fs::create_dir(done.outputs().join(output)).unwrap();
    }

    let stopped = run("20251117T080000Z-qwen3.5-9b-instruct-chat-lora-77aa");
    let mut log = Log::begun(60 * HOUR_US, "Qwen/Qwen3.5-9B", 12_000);
    log.steps(60, None);
    log.emit(Kind::Eval(Eval { step: 60, loss_nats: 1.2604, ..Eval::default() }));
    checkpoint(&stopped, &mut log, 60);
    finished(&mut log, Outcome::Stopped, 60, Some("asked to"));
    log.write(&stopped);

    run("20251118T080000Z-demo-lora-9f00");

    let crashed = run("20251119T080000Z-qwen3.5-0.8b-lora-51d2");
    let mut log = Log::begun(20 * HOUR_US, "Qwen/Qwen3.5-0.8B", 300);
    log.steps(90, Some(71));
    checkpoint(&crashed, &mut log, 40);
    checkpoint(&crashed, &mut log, 80);
    log.emit(Kind::Warning(Warning { message: "loss was not finite at step 71".into(), step: Some(71) }));
    log.write(&crashed);

    fs::write(run("20251120T060000Z-qwen3.5-2b-full-b1b1").event_file(1), "{\"v\":9}\n").unwrap();

    let live = run("20251120T080000Z-qwen3.5-4b-lora-e4d5");
    let lease = Lease::acquire(&live).unwrap();
    let mut log = Log::begun(HOUR_US, "Qwen/Qwen3.5-4B", 4_000);
    log.steps(400, None);
    log.emit(Kind::Eval(Eval { step: 400, loss_nats: 0.9675, ..Eval::default() }));
    checkpoint(&live, &mut log, 400);
    log.write(&live);
    (root, lease)
}

#[test]
fn the_time_left_in_the_list_includes_the_head_that_follows_the_steps() {
    let root = tempfile::tempdir().unwrap();
    let run = folder(&root, "20251120T080000Z-qwen3.5-4b-lora-e4d5");
    let _lease = Lease::acquire(&run).unwrap();
    let mut log = Log::begun(HOUR_US, "Qwen/Qwen3.5-4B", 11);
    log.steps(10, None);
    log.write(&run);
    let left_s = || shelf::Look::read(&run).left_s.unwrap();
    assert!((left_s() - 1.5).abs() < 1e-6, "one step");
    run.write_plan(include_str!("../../../tests/fixtures/run-261c35e/run/plan.toml")).unwrap();
    // By this plan the head takes 128 times as long as a step.
    assert!((190.0..200.0).contains(&left_s()), "{}", left_s());
}

/// Opens the list of these folders with the same path, sizes and time in every snapshot.
fn posed(root: &TempDir) -> RunsList {
    let mut list = RunsList::at(RunsRoot::new(root.path()), NOW_US);
    while list.shelf.looks.iter().any(|look| look.row.is_none()) {
        list.shelf.look();
    }
    let home = PathBuf::from("/home/you/runs");
    for (n, look) in list.shelf.looks.iter_mut().enumerate() {
        let Some(row) = &mut look.row else { continue };
        row.path = home.join(&row.name);
        row.size_bytes = 123_456_789 << (2 * n);
        if row.liveness.is_some_and(Liveness::is_live) {
            // The time of the snapshots is fixed, that of the lease is not.
            row.liveness = Some(Liveness::Running);
            look.stands = "running; Enter watches it, s stops it after a checkpoint".into();
        }
        let real = root.path().display().to_string();
        look.stands = look.stands.replace(&real, "/home/you/runs");
    }
    list.shelf.root = RunsRoot::new(home);
    list
}

fn list_of(root: &TempDir) -> RunsList {
    let mut list = RunsList::at(RunsRoot::new(root.path()), NOW_US);
    list.update(Input::Size(Size::new(80, 24)));
    while list.shelf.looks.iter().any(|look| look.row.is_none()) {
        list.update(Input::Tick);
    }
    list
}

fn press(list: &mut RunsList, code: KeyCode) -> Next {
    list.update(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn type_in(list: &mut RunsList, text: &str) {
    for c in text.chars() {
        press(list, KeyCode::Char(c));
    }
}

/// Compares what `act` changes on the screen with a snapshot.
#[track_caller]
fn change<T>(name: &str, list: &mut RunsList, act: impl FnOnce(&mut RunsList) -> T) {
    let before = picture::usual(list);
    act(list);
    picture::check_change(name, &before, &picture::usual(list));
}

fn text(list: &mut RunsList) -> String {
    picture::text(&drawn(list, 132, 24, &NO_COLOUR))
}

/// Moves the cursor to the run whose name contains `part`.
fn choose(list: &mut RunsList, part: &str) -> RunDir {
    let path = list.shelf.looks.iter().find(|look| look.name.contains(part)).unwrap().run.path().to_owned();
    list.chosen = Some(path.clone());
    RunDir::open(path).unwrap()
}

#[test]
fn every_state_has_its_row_its_word_and_its_glyph() {
    let (root, _lease) = some_runs();
    let mut list = posed(&root);
    picture::check_wide("runs", &mut list);
    for (name, width, height, theme) in [("ascii", 80, 24, ASCII), ("60x16", 60, 16, TRUE_COLOUR)] {
        picture::check_text(
            &format!("runs-{name}"),
            &picture::text(&drawn(&mut list, width, height, &theme)),
        );
    }
    let screen = picture::usual(&mut list);
    picture::check_svg("runs", &screen);
    for (words, role) in [
        ("✖ crashed", Role::Bad),
        ("▲ unreadable", Role::Bad),
        ("■ stopped", Role::Warn),
        ("◌ not started", Role::Dim),
        ("✔ completed", Role::Good),
        ("● running", Role::Selected),
    ] {
        picture::assert_role(&screen, words, role);
    }
    change("runs-crashed", &mut list, |list| {
        press(list, KeyCode::Down);
        press(list, KeyCode::Down);
    });
}

#[test]
fn the_questions_before_deleting_say_what_would_be_lost() {
    let (root, _lease) = some_runs();
    let mut list = posed(&root);
    choose(&mut list, "0c31");
    change("runs-delete", &mut list, |list| press(list, KeyCode::Char('x')));
    change("runs-delete-for-good", &mut list, |list| {
        press(list, KeyCode::Char('y'));
        type_in(list, "0c3");
    });
    picture::assert_role(&picture::usual(&mut list), "delete it permanently?", Role::Bad);
}

#[test]
fn help_filter_and_an_empty_folder() {
    let (root, _lease) = some_runs();
    let mut list = posed(&root);
    change("runs-help", &mut list, |list| press(list, KeyCode::Char('?')));
    press(&mut list, KeyCode::Char('?'));
    press(&mut list, KeyCode::Char('/'));
    type_in(&mut list, "qwen LORA 2b");
    picture::check("runs-filter", &mut list);
    press(&mut list, KeyCode::Enter);
    let shown = text(&mut list);
    assert!(shown.contains("Esc shows all") && shown.contains("r resume"), "{shown}");
    let mut empty = RunsList::at(RunsRoot::new("/nowhere/at/all"), NOW_US);
    picture::check("runs-empty", &mut empty);
}

#[test]
fn a_key_that_a_run_allows_ends_the_list_with_the_action() {
    let (root, _lease) = some_runs();
    let mut list = list_of(&root);
    for (part, code, requested) in [
        ("e4d5", KeyCode::Enter, RunAction::Watch as fn(RunDir) -> RunAction),
        ("51d2", KeyCode::Char('r'), RunAction::Resume),
        ("9f00", KeyCode::Char('r'), RunAction::Resume),
        ("77aa", KeyCode::Char('r'), RunAction::Resume),
        ("0c31", KeyCode::Char('e'), RunAction::Export),
        ("0c31", KeyCode::Char('n'), RunAction::Again),
    ] {
        let run = choose(&mut list, part);
        assert_eq!(press(&mut list, code), Next::Leave, "{part}");
        assert_eq!(list.requested(), Some(requested(run)));
        assert_eq!(list.requested(), None, "an action is told once");
    }
    assert_eq!(press(&mut list, KeyCode::Char('q')), Next::Leave);
    assert_eq!(list.requested(), Some(RunAction::Leave));
}

#[test]
fn what_a_run_does_not_allow_is_refused_in_words() {
    let (root, _lease) = some_runs();
    let mut list = list_of(&root);
    for (part, key, words) in [
        ("e4d5", 'r', "nothing to resume"),
        ("e4d5", 'e', "after s has stopped it"),
        ("e4d5", 'x', "cannot be deleted"),
        ("0c31", 'r', "trains it longer"),
        ("51d2", 's', "nothing to stop"),
    ] {
        choose(&mut list, part);
        assert_eq!(press(&mut list, KeyCode::Char(key)), Next::Draw);
        assert!(list.asking.is_none() && list.requested().is_none());
        let shown = text(&mut list);
        assert!(shown.contains(words), "{key} on {part}:\n{shown}");
    }
    // The message disappears with the next key.
    press(&mut list, KeyCode::Up);
    assert!(list.message.is_none());
    // A command that can be pasted names a run of another folder by its path.
    let run = choose(&mut list, "0c31");
    press(&mut list, KeyCode::Char('r'));
    let command = format!("resume {} --epochs N`", run.path().display());
    assert!(list.message.as_ref().is_some_and(|message| message.contains(&command)), "{:?}", list.message);
}

#[test]
fn deleting_takes_a_yes_and_the_end_of_the_name_and_nothing_less() {
    let (root, _lease) = some_runs();
    let mut list = list_of(&root);
    let run = choose(&mut list, "51d2");
    let ways_out: [&[KeyCode]; 5] = [
        &[KeyCode::Char('n')],
        &[KeyCode::Enter],
        &[KeyCode::Char('y'), KeyCode::Esc],
        &[KeyCode::Char('x')],
        &[KeyCode::Char('y'), KeyCode::Char('y'), KeyCode::Esc],
    ];
    for way in ways_out {
        press(&mut list, KeyCode::Delete);
        for code in way {
            assert_ne!(press(&mut list, *code), Next::Leave, "{way:?}");
        }
        assert!(list.asking.is_none() && list.requested().is_none());
        assert!(text(&mut list).contains("was not deleted"), "{way:?}");
    }
    press(&mut list, KeyCode::Delete);
    press(&mut list, KeyCode::Char('y'));
    type_in(&mut list, "0c31");
    assert_eq!(press(&mut list, KeyCode::Enter), Next::Draw);
    assert!(text(&mut list).contains("that does not match"));
    list.update(Input::Key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL)));
    type_in(&mut list, "51d2");
    assert_eq!(press(&mut list, KeyCode::Enter), Next::Leave);
    assert_eq!(list.requested(), Some(RunAction::Delete(run.clone())));
    // This stands for the program, which deletes the run, reports it, and shows the list again.
    fs::remove_dir_all(run.path()).unwrap();
    list.say("deleted");
    list.update(Input::Tick);
    let shown = text(&mut list);
    assert!(shown.contains("deleted") && !shown.contains("51d2") && shown.contains("5 runs"), "{shown}");
}

#[test]
fn a_run_that_is_resumed_while_the_question_is_open_is_not_deleted() {
    let (root, _lease) = some_runs();
    let mut list = list_of(&root);
    let run = choose(&mut list, "51d2");
    press(&mut list, KeyCode::Delete);
    press(&mut list, KeyCode::Char('y'));
    type_in(&mut list, "51d2");
    let _trainer = Lease::acquire(&run).unwrap();
    assert_eq!(press(&mut list, KeyCode::Enter), Next::Draw);
    assert!(list.requested().is_none() && text(&mut list).contains("is running and"));
}

#[test]
fn stopping_asks_and_then_writes_a_request_that_the_trainer_reads() {
    let (root, lease) = some_runs();
    let mut list = list_of(&root);
    choose(&mut list, "e4d5");
    let inbox = sparktune_runlog::ControlInbox::new(&lease);
    press(&mut list, KeyCode::Char('s'));
    press(&mut list, KeyCode::Char('n'));
    assert!(inbox.poll().unwrap().requests.is_empty());
    press(&mut list, KeyCode::Char('s'));
    press(&mut list, KeyCode::Char('y'));
    let requests = inbox.poll().unwrap().requests;
    assert!(requests.len() == 1 && requests[0].action == Action::Stop, "{requests:?}");
    assert!(text(&mut list).contains("asked to save a checkpoint and end"));
}

#[test]
fn ticks_notice_what_others_do_and_a_quiet_folder_draws_nothing() {
    let (root, lease) = some_runs();
    let mut list = list_of(&root);
    let run = lease.run().clone();
    drop(lease);
    let until = |list: &mut RunsList, seen: &dyn Fn(&RunsList) -> bool, what: &str| {
        for _ in 0..20 {
            list.update(Input::Tick);
            if seen(list) {
                return;
            }
        }
        panic!("20 ticks did not show {what}");
    };
    let look = |list: &RunsList, part: &str| {
        list.shelf.looks.iter().find(|l| l.name.contains(part)).map(Look::liveness)
    };
    until(&mut list, &|list| look(list, "e4d5") == Some(Some(Liveness::Crashed)), "that the trainer is gone");
    // The run ended long ago, so its age is shown in days and does not change during the test.
    assert!((0..20).all(|_| list.update(Input::Tick) == Next::Keep), "a tick drew though nothing changed");
    let lease = Lease::acquire(&run).unwrap();
    EventWriter::open(&lease).unwrap().emit(Kind::Step(Step {
        step: 401,
        loss_nats: 0.5,
        ..Step::default()
    }));
    until(&mut list, &|list| look(list, "e4d5") == Some(Some(Liveness::Running)), "that it was resumed");
    folder(&root, "20251121T000000Z-new-lora-0001");
    until(&mut list, &|list| look(list, "0001").is_some(), "the new run");
    fs::remove_dir_all(root.path()).unwrap();
    until(&mut list, &|list| list.shelf.looks.is_empty(), "that the folder is gone");
    assert!(text(&mut list).contains("no runs here yet"));
}

#[test]
fn the_cursor_stays_on_its_run_when_newer_ones_come_and_when_it_goes_stays_on_the_row() {
    let (root, _lease) = some_runs();
    let mut list = list_of(&root);
    press(&mut list, KeyCode::Down);
    let chosen = list.chosen().unwrap().name.clone();
    folder(&root, "20251121T000000Z-new-lora-0001");
    list.shelf.list_again();
    list.update(Input::Tick);
    assert_eq!(list.chosen().unwrap().name, chosen);
    let rows: Vec<String> = list.rows().iter().map(|look| look.name.clone()).collect();
    let at = rows.iter().position(|name| *name == chosen).unwrap();
    fs::remove_dir_all(root.path().join(&chosen)).unwrap();
    list.shelf.list_again();
    list.update(Input::Tick);
    assert_eq!(list.chosen().unwrap().name, rows[at + 1]);
}

#[test]
fn rows_are_ordered_by_what_the_key_says() {
    let (root, _lease) = some_runs();
    let mut list = list_of(&root);
    let ends = |list: &RunsList| {
        list.rows().iter().map(|look| look.name[look.name.len() - 4..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ends(&list), ["e4d5", "b1b1", "51d2", "9f00", "77aa", "0c31"]);
    press(&mut list, KeyCode::Char('o'));
    assert_eq!(ends(&list), ["9f00", "51d2", "b1b1", "0c31", "e4d5", "77aa"]);
    press(&mut list, KeyCode::Char('o'));
    assert_eq!(ends(&list)[1..], ["51d2", "77aa", "9f00", "0c31", "b1b1"]);
    press(&mut list, KeyCode::Char('o'));
    assert_eq!(ends(&list)[..3], ["0c31", "e4d5", "77aa"]);
    for _ in 0..2 {
        press(&mut list, KeyCode::Char('o'));
    }
    assert_eq!(ends(&list)[0], "e4d5");
}

#[test]
fn hundreds_of_runs_are_read_in_portions_and_every_one_can_be_reached() {
    let root = tempfile::tempdir().unwrap();
    let mut log = Log::begun(HOUR_US, "Qwen/Qwen3.5-2B", 40);
    log.steps(40, None);
    for n in 0..250 {
        log.write(&folder(&root, &format!("20251101T{n:06}Z-qwen3.5-2b-lora-{n:04x}")));
    }
    let mut list = list_of(&root);
    assert_eq!(list.shelf.looks.len(), 250);
    press(&mut list, KeyCode::End);
    assert!(text(&mut list).contains("› qwen3.5-2b-lora-0000"));
    press(&mut list, KeyCode::PageUp);
    let shown = text(&mut list);
    assert!(shown.contains("› qwen3.5-2b-lora-0013"), "{shown}");
    press(&mut list, KeyCode::Home);
    assert!(text(&mut list).contains("› qwen3.5-2b-lora-00f9"));
    press(&mut list, KeyCode::Char('/'));
    type_in(&mut list, "lora-00a3");
    assert!(text(&mut list).contains("1 of 250 runs"), "{}", text(&mut list));
    press(&mut list, KeyCode::Esc);
    assert!(text(&mut list).contains("250 runs"));
}

#[test]
fn a_folder_that_may_not_be_read_does_not_look_empty() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let private = folder(&root, "20251120T060000Z-theirs-lora-b1b1");
    let closed = |path: &std::path::Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
        fs::read_dir(path).is_err()
    };
    if !closed(private.path()) {
        println!("skipped: this user may read everything");
        return;
    }
    let mut list = list_of(&root);
    let shown = text(&mut list);
    assert!(shown.contains("theirs-lora-b1b1") && shown.contains("permission denied"), "{shown}");
    assert!(closed(root.path()));
    let mut list = list_of(&root);
    let shown = text(&mut list);
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(private.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(shown.contains("cannot list") && shown.contains("permission denied"), "{shown}");
}

#[test]
fn names_with_control_characters_and_broken_unicode_are_shown_escaped_and_can_be_deleted() {
    use std::os::unix::ffi::OsStrExt;
    let root = tempfile::tempdir().unwrap();
    let names: [&[u8]; 4] =
        [b"two\nlines \x1b[2J", b"broken \xff name", b"quote\"d 'name'", "rtl \u{202e}gnp".as_bytes()];
    for name in names {
        fs::create_dir_all(root.path().join(std::ffi::OsStr::from_bytes(name)).join("events")).unwrap();
    }
    let mut list = list_of(&root);
    let shown = text(&mut list);
    for name in ["two\\nlines \\u{1b}[2J", "broken \u{fffd} name", "quote\"d 'name'", "rtl \\u{202e}gnp"] {
        assert!(shown.contains(name), "{name} is not in\n{shown}");
    }
    assert!(!shown.contains(['\u{1b}', '\u{202e}']));
    let run = choose(&mut list, "broken");
    press(&mut list, KeyCode::Char('x'));
    press(&mut list, KeyCode::Char('y'));
    type_in(&mut list, "name");
    press(&mut list, KeyCode::Enter);
    assert_eq!(
        list.requested(),
        Some(RunAction::Delete(run)),
        "the very folder, not what its name looks like"
    );
    choose(&mut list, "two");
    press(&mut list, KeyCode::Char('x'));
    press(&mut list, KeyCode::Char('y'));
    assert!(text(&mut list).contains("Type delete:"), "what nobody can type is not asked for");
}

#[test]
fn a_message_is_read_to_its_end() {
    let (root, _lease) = some_runs();
    let mut list = list_of(&root);
    list.say(&("the run is already being trained by process 4711 of this machine; ".repeat(4) + "THE-END"));
    let screen = picture::text(&drawn(&mut list, 80, 24, &NO_COLOUR));
    assert!(screen.contains("THE-END"), "{screen}");
}
