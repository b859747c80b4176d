//! Tests with real processes, locks and SIGKILLs: the state after a trainer dies at a random moment.
//!
//! The killed processes are this test binary, started again with a role in the environment.

#![expect(clippy::unwrap_used, reason = "all of it is test code")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sparktune_runlog::{
    Action, CheckpointRole, Checkpoints, ControlApplied, ControlInbox, EventTailer, EventWriter, Kind, Lease,
    Limit, Liveness, Notice, Outcome, RunDir, RunFinished, RunStarted, RunView, RunsRoot, Step, Warning,
    request,
};

const ROLE: &str = "SPARKTUNE_TEST_ROLE";
const RUN: &str = "SPARKTUNE_TEST_RUN";

fn start(role: &str, run: &RunDir) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(RUN, run.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// The entry point of the other processes of these tests; it does nothing when run alone.
#[test]
#[ignore = "a part of the other tests"]
fn victim() {
    let (Ok(role), Ok(run)) = (std::env::var(ROLE), std::env::var(RUN)) else { return };
    let run = RunDir::open(run).unwrap();
    match role.as_str() {
        "log" => log_for_ever(&run),
        "checkpoint" => checkpoint_for_ever(&run),
        "hold" => {
            let _lease = Lease::acquire(&run).unwrap();
            say("held");
            let _ = std::io::stdin().read(&mut [0]);
            std::thread::sleep(Duration::from_secs(600));
        }
        "obey" => obey(&run),
        "disk" => meet_a_full_and_a_read_only_disk(&run),
        other => panic!("no role {other}"),
    }
}

fn say(line: &str) {
    println!("\n> {line}");
    std::io::stdout().flush().unwrap();
}

/// Returns the lines that the process printed, without those of the test harness.
fn printed_lines(victim: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(victim.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("> ").map(str::to_owned))
}

fn log_for_ever(run: &RunDir) {
    let lease = Lease::acquire(run).unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    writer.emit(Kind::RunStarted(RunStarted::default()));
    say("logging");
    for step in 1.. {
        // Some lines are long, so that a kill can truncate one.
        let device = "x".repeat(step % 5000);
        writer.emit(Kind::RunStarted(RunStarted { device, ..RunStarted::default() }));
        writer.emit(Kind::Step(Step { step: step as u64, loss_nats: 1.0, ..Step::default() }));
    }
}

fn checkpoint_for_ever(run: &RunDir) {
    let lease = Lease::acquire(run).unwrap();
    let mut checkpoints = Checkpoints::new(run);
    checkpoints.clean(&lease).unwrap();
    let newest = checkpoints.newest_valid().unwrap();
    assert_eq!(newest.skipped, [], "a kill damaged a committed checkpoint");
    // Commits the newest step again, as a run that resumed from the previous one would.
    let first = newest.checkpoint.map_or(1, |c| c.step);
    say("committing");
    for step in first.. {
        let writer = checkpoints.begin(step, &lease).unwrap();
        fill(writer.path(), step);
        writer.commit().unwrap();
        say(&step.to_string());
        checkpoints.retain(2, |_| CheckpointRole::default(), &lease).unwrap();
    }
}

fn fill(folder: &Path, step: u64) {
    for file in 0..3_u64 {
        let content = [(step % 251) as u8].repeat(20_000 * file as usize + step as usize % 97);
        fs::write(folder.join(format!("part-{file}.bin")), content).unwrap();
    }
}

fn obey(run: &RunDir) {
    let lease = Lease::acquire(run).unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    let inbox = ControlInbox::new(&lease);
    writer.emit(Kind::RunStarted(RunStarted::default()));
    say("training");
    loop {
        for asked in inbox.poll().unwrap().requests {
            let (id, action) = (asked.id.clone(), asked.action.as_str().to_owned());
            writer.emit(Kind::ControlApplied(ControlApplied { id, action, step: 7 }));
            inbox.acknowledge(&asked).unwrap();
            if asked.action == Action::Stop {
                writer.emit(Kind::RunFinished(RunFinished {
                    outcome: Outcome::Stopped,
                    ..RunFinished::default()
                }));
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs on a small file system of its own, mounted over the folder of the runs.
fn meet_a_full_and_a_read_only_disk(run: &RunDir) {
    let lease = Lease::acquire(run).unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    let mut checkpoints = Checkpoints::new(run);
    let first = checkpoints.begin(1, &lease).unwrap();
    fill(first.path(), 1);
    first.commit().unwrap();

    let second = checkpoints.begin(2, &lease).unwrap();
    fill(second.path(), 2);
    let ballast = run.data().join("ballast");
    let mut file = fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
    let refusal = second.commit().unwrap_err();
    assert!(refusal.is_disk_full() && refusal.to_string().contains("disk is full"), "{refusal}");
    while file.write_all(&[0; 512]).is_ok() {}
    let warn = |message: &str| Kind::Warning(Warning { message: message.repeat(9000), step: None });
    writer.emit(warn("w"));
    assert_eq!(writer.lost(), 1);
    drop(file);
    fs::remove_file(&ballast).unwrap();

    writer.emit(warn("w"));
    let again = checkpoints.begin(2, &lease).unwrap();
    fill(again.path(), 2);
    assert_eq!(again.commit().unwrap().step, 2, "the retry, once there is room");
    let logged = RunView::replay(run).unwrap();
    assert_eq!(logged.warning_count, 2, "one warning, and one about the lost one");
    assert!(logged.warnings[1].what.message.contains("1 events before this one could not be logged"));

    drop((writer, lease));
    let root = run.path().parent().unwrap();
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(root).status().unwrap().success());
    for refusal in [Lease::acquire(run).unwrap_err(), RunsRoot::new(root).create("m", "lora").unwrap_err()] {
        assert!(refusal.to_string().contains("read-only"), "{refusal}");
    }
    // Watching needs no write access.
    assert_eq!(RunView::replay(run).unwrap().liveness(run).unwrap(), Liveness::Crashed);
    let newest = Checkpoints::new(run).newest_valid().unwrap();
    assert_eq!((newest.checkpoint.map(|c| c.step), newest.skipped), (Some(2), vec![]));
    say("survived");
}

fn kill(mut victim: Child) {
    victim.kill().unwrap();
    victim.wait().unwrap();
}

fn new_run(root: &tempfile::TempDir) -> RunDir {
    RunsRoot::new(root.path()).create("test", "lora").unwrap()
}

/// Pauses for a random time, so that kills happen at any moment.
fn random_pause(most: Duration) {
    use std::hash::{BuildHasher, RandomState};
    std::thread::sleep(most.mul_f64((RandomState::new().hash_one(0) % 1000) as f64 / 1000.0));
}

#[test]
fn a_reader_never_sees_a_torn_line_however_often_the_writer_is_killed() {
    const KILLS: u32 = 150;
    let root = tempfile::tempdir().unwrap();
    let run = new_run(&root);
    let over = AtomicBool::new(false);
    let (events, torn) = std::thread::scope(|threads| {
        let reader = threads.spawn(|| {
            let mut tailer = EventTailer::new(&run);
            let (mut at, mut events, mut torn) = ((0, 0), 0_u64, 0);
            loop {
                let last_round = over.load(Ordering::SeqCst);
                let batch = tailer.poll(Limit::default()).unwrap();
                for record in &batch.records {
                    let event = &record.event;
                    let follows = if event.attempt == at.0 { at.1 + 1 } else { 1 };
                    assert_eq!(event.seq, follows, "attempt {}", event.attempt);
                    at = (event.attempt, event.seq);
                    events += 1;
                }
                for notice in &batch.notices {
                    assert!(matches!(notice, Notice::TornEnd { .. }), "{notice}");
                    torn += 1;
                }
                if last_round && batch.at_end {
                    assert_eq!(tailer.malformed(), 0);
                    assert_eq!(at.0, KILLS);
                    return (events, torn);
                }
            }
        });
        for _ in 0..KILLS {
            let mut victim = start("log", &run);
            assert_eq!(printed_lines(&mut victim).next().as_deref(), Some("logging"));
            random_pause(Duration::from_millis(8));
            kill(victim);
        }
        over.store(true, Ordering::SeqCst);
        reader.join().unwrap()
    });
    println!("{events} events of {KILLS} killed writers, {torn} torn last lines");
    assert!(events > u64::from(KILLS));
    let view = RunView::replay(&run).unwrap();
    assert_eq!(view.liveness(&run).unwrap(), Liveness::Crashed);
}

#[test]
fn a_committed_checkpoint_survives_a_kill_at_any_instant() {
    const KILLS: u32 = 80;
    let root = tempfile::tempdir().unwrap();
    let run = new_run(&root);
    let mut acknowledged = 0;
    for round in 0..KILLS {
        let mut victim = start("checkpoint", &run);
        let mut lines = printed_lines(&mut victim);
        assert_eq!(lines.next().as_deref(), Some("committing"), "round {round}: the victim found damage");
        // A slow disk may take longer for a checkpoint than any pause, so every other kill comes after one.
        if round.is_multiple_of(2) {
            acknowledged = lines.next().unwrap().parse().unwrap();
        }
        random_pause(Duration::from_millis(60));
        kill(victim);
        acknowledged = lines.last().map_or(acknowledged, |step| step.parse().unwrap());

        let newest = Checkpoints::new(&run).newest_valid().unwrap();
        assert_eq!(newest.skipped, [], "round {round}");
        let step = newest.checkpoint.as_ref().map_or(0, |c| c.step);
        assert!(step >= acknowledged, "round {round}: step {acknowledged} was committed, {step} is left");
        if let Some(checkpoint) = newest.checkpoint {
            let expected = tempfile::tempdir().unwrap();
            fill(expected.path(), checkpoint.step);
            for entry in fs::read_dir(expected.path()).unwrap() {
                let entry = entry.unwrap();
                let there = fs::read(checkpoint.path.join(entry.file_name())).unwrap();
                assert!(there == fs::read(entry.path()).unwrap(), "round {round}: {:?}", entry.file_name());
            }
        }
    }
    println!("{acknowledged} checkpoints acknowledged over {KILLS} kills");
    assert!(acknowledged > 0);
    let lease = Lease::acquire(&run).unwrap();
    let mut checkpoints = Checkpoints::new(&run);
    checkpoints.clean(&lease).unwrap();
    checkpoints.retain(2, |_| CheckpointRole::default(), &lease).unwrap();
    assert!(fs::read_dir(run.checkpoints()).unwrap().count() <= 2, "kills leave nothing that is not cleaned");
}

#[test]
fn the_lease_of_a_killed_trainer_is_free_and_that_of_a_living_one_is_not() {
    let root = tempfile::tempdir().unwrap();
    let run = new_run(&root);
    for _ in 0..3 {
        let mut trainer = start("hold", &run);
        assert_eq!(printed_lines(&mut trainer).next().as_deref(), Some("held"));
        assert!(Lease::is_held(&run).unwrap());
        let refusal = Lease::acquire(&run).unwrap_err().to_string();
        assert!(refusal.contains(&format!("process {} on ", trainer.id())), "{refusal}");
        kill(trainer);
        assert!(!Lease::is_held(&run).unwrap());
    }
}

#[test]
fn another_process_carries_out_a_request_and_acknowledges_it() {
    let root = tempfile::tempdir().unwrap();
    let run = new_run(&root);
    let mut trainer = start("obey", &run);
    let mut lines = printed_lines(&mut trainer);
    assert_eq!(lines.next().as_deref(), Some("training"));
    assert_eq!(RunView::replay(&run).unwrap().liveness(&run).unwrap(), Liveness::Running);
    let checkpoint = request(&run, Action::Checkpoint).unwrap();
    let stop = request(&run, Action::Stop).unwrap();
    assert!(trainer.wait().unwrap().success());
    let mut acknowledged = Vec::new();
    for record in EventTailer::new(&run).poll(Limit::NONE).unwrap().records {
        if let Kind::ControlApplied(applied) = record.event.kind {
            acknowledged.push((applied.id, applied.action));
        }
    }
    assert_eq!(acknowledged, [(checkpoint.id, "checkpoint".to_owned()), (stop.id, "stop".to_owned())]);
    let view = RunView::replay(&run).unwrap();
    assert_eq!(view.liveness(&run).unwrap(), Liveness::Finished { outcome: Outcome::Stopped });
    assert_eq!(fs::read_dir(run.control()).unwrap().count(), 0);
}

#[test]
fn a_full_and_a_read_only_disk_are_said_and_cost_nothing_that_was_committed() {
    let root = tempfile::tempdir().unwrap();
    // Mounting needs a mount namespace, which not every container allows.
    let script = "mount -t tmpfs -o size=400k none \"$1\" && mkdir -p \"$RUN_DIR\"/events \"$RUN_DIR\"/checkpoints \
                  \"$RUN_DIR\"/data && shift && exec \"$@\"";
    let run = root.path().join("r");
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(root.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, "disk")
        .env(RUN, &run)
        .env("RUN_DIR", &run)
        .output();
    let output = match output {
        Ok(output) => {
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
        }
        Err(error) => error.to_string(),
    };
    if !output.contains("running 1 test") {
        println!("skipped: no mount namespace here: {output}");
        return;
    }
    assert!(output.contains("> survived"), "{output}");
}
