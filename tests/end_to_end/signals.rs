//! The second Ctrl-C or SIGTERM ends any command at once, whatever it is doing, and what works for it.
//!
//! The first one asks; it is answered by the tests of what is stopped.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cluster::{ended, ranks, run_of};
use crate::hostile_models::{SLOW, before_each_message, with_template};
use crate::kills::trainer_of;
use crate::runs::wait;
use crate::sparktune::{Place, checkpoint, events};

const SIGTERM: i32 = 15;
/// The time between two signals, in which the first one can be heard.
const BETWEEN: Duration = Duration::from_millis(200);
/// Longer than any machine needs to end a process.
const AT_ONCE: Duration = Duration::from_secs(60);

pub(crate) fn send(signal: Signal, process: u32) {
    kill_process(Pid::from_raw(process as i32).unwrap(), signal).unwrap();
}

fn terminate(process: u32) {
    send(Signal::TERM, process);
}

/// What the kernel tells of a process or a thread in `stat`, from its state on; nothing if it is gone.
fn fields(stat: &Path) -> Vec<String> {
    let stat = fs::read_to_string(stat).unwrap_or_default();
    let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
    rest.split_whitespace().map(str::to_owned).collect()
}

/// The processor time of which this file tells, in hundredths of a second.
pub(crate) fn ticks_in(stat: &Path) -> u64 {
    let fields = fields(stat);
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
}

fn ticks(process: u32) -> u64 {
    ticks_in(Path::new(&format!("/proc/{process}/stat")))
}

/// Whether a process is no more, or only waits for its parent.
fn is_gone(process: u32) -> bool {
    fields(Path::new(&format!("/proc/{process}/stat"))).first().is_none_or(|state| state == "Z")
}

/// The processes that a process has started.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// Sends two signals to a command once it is at work, and returns how it ended, at once and with its workers,
/// and the time between the two signals.
///
/// Two signals that come before the command gets a processor count as one, so more follow.
#[track_caller]
fn interrupted(mut child: Child, is_at_work: impl Fn() -> bool) -> (ExitStatus, Duration) {
    wait("work", || is_at_work().then_some(()));
    let workers = children(child.id());
    let first = Instant::now();
    terminate(child.id());
    std::thread::sleep(BETWEEN);
    terminate(child.id());
    let (second, between) = (Instant::now(), first.elapsed());
    let mut next = 5 * BETWEEN;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(second.elapsed() < AT_ONCE, "it goes on");
        if second.elapsed() > next {
            terminate(child.id());
            next *= 2;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    while !workers.iter().all(|worker| is_gone(*worker)) {
        assert!(second.elapsed() < AT_ONCE, "its workers go on");
        std::thread::sleep(Duration::from_millis(10));
    }
    (status, between)
}

/// Where the first signal is heard soon enough, there is nothing left for the second.
#[track_caller]
fn heard(status: ExitStatus) {
    assert!(status.code() == Some(130) || status.signal() == Some(SIGTERM), "{status:?}");
}

/// The first signal asks; here nobody listens, because nobody reads what is printed.
#[test]
fn a_command_that_waits_for_its_reader_ends() {
    let place = Place::new();
    place.chats(400);
    let mut command = place.command(["check", "train.jsonl", "--show", "400", "--model"]);
    let mut child = command.arg(checkpoint()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // Nobody reads more than the first byte, so the command waits in a system call and hears nothing.
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    let process = format!("/proc/{}", child.id());
    // Some kernels do not say where a process waits, but that it does.
    let waits = || {
        let at = fs::read_to_string(format!("{process}/wchan")).unwrap_or_default();
        let sleeps = fields(&Path::new(&process).join("stat")).first().is_some_and(|state| state == "S");
        sleeps && (at.contains("pipe_write") || at.is_empty() || at == "0")
    };
    assert_eq!(interrupted(child, waits).0.signal(), Some(SIGTERM));
}

/// A line may take five seconds of a processor, and a worker that was asked to end has one second for it. If
/// the second signal came as late as that, the command may have ended by the first.
#[test]
fn a_command_whose_template_is_slow_ends_with_the_worker_that_renders() {
    let place = Place::new();
    place.chats(3);
    with_template(&place, &before_each_message(SLOW));
    let mut command = place.command(["check", "train.jsonl", "--model", "model"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let id = child.id();
    let renders = || children(id).into_iter().any(|worker| ticks(worker) >= 30);
    let (status, between) = interrupted(child, renders);
    if between < 2 * BETWEEN {
        assert_eq!(status.signal(), Some(SIGTERM));
    }
    heard(status);
}

#[test]
fn a_command_that_reads_lines_of_800_000_messages_ends() {
    let place = Place::new();
    let folder = place.join("data");
    fs::create_dir(&folder).unwrap();
    let message = r#"{"role":"user","content":"x"}"#;
    let line = format!("{{\"messages\":[{message}{}]}}\n", format!(",{message}").repeat(800_000));
    fs::write(folder.join("0.jsonl"), line).unwrap();
    // Many names of one file: reading them all takes a minute.
    (1..1500).for_each(|i| fs::hard_link(folder.join("0.jsonl"), folder.join(format!("{i}.jsonl"))).unwrap());
    let mut command = place.command(["check", "data"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let id = child.id();
    heard(interrupted(child, || ticks(id) >= 30).0);
}

/// Answers everything with the beginning of a long list, a byte at a time or nothing more.
fn drip(mut stream: TcpStream, drips: bool, begun: &AtomicBool) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n{";
    let mut written = stream.write_all(head.as_bytes());
    begun.store(true, Ordering::SeqCst);
    while written.is_ok() {
        std::thread::sleep(Duration::from_millis(20));
        written = if drips { stream.write_all(b" ") } else { Ok(()) };
    }
}

#[test]
fn a_command_whose_hub_drips_or_is_silent_ends() {
    for drips in [true, false] {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", door.local_addr().unwrap());
        let begun = Arc::new(AtomicBool::new(false));
        let is_begun = Arc::clone(&begun);
        std::thread::spawn(move || {
            for stream in door.incoming() {
                let begun = Arc::clone(&begun);
                std::thread::spawn(move || drip(stream.unwrap(), drips, &begun));
            }
        });
        let place = Place::new();
        place.chats(4);
        let mut command = place.command(["plan", "--model", "org/slow", "--data", "train.jsonl"]);
        command.env("HF_ENDPOINT", endpoint).env("HF_HUB_OFFLINE", "0");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        heard(interrupted(child, || is_begun.load(Ordering::SeqCst)).0);
    }
}

/// A terminal sends Ctrl-C to all processes of a command.
#[test]
fn ctrl_c_in_a_measurement_ends_the_training_beside_it_with_its_trainer() {
    let place = Place::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/demo/model");
    let fact = |i| {
        let (subject, target) = (format!("Person {i}"), format!("House {i} by the sea"));
        json!({"prompt": format!("{subject} lives in"), "subject": subject, "target": target})
    };
    let facts: String = (0..40).map(|i| fact(i).to_string() + "\n").collect();
    let facts = place.write("facts.jsonl", facts);
    let mut command = place.command(["edit", "--measure", "40", "--method", "memory"]);
    command.args(["--without", "batched,sequential,prompt", "--runs-dir", "runs", "--facts"]).arg(facts);
    let mut child = command.arg(model).process_group(0).spawn().unwrap();
    let trainer = wait("the trainer", || {
        let trainings = children(child.id()).into_iter();
        trainings.flat_map(children).find(|process| {
            fs::read(format!("/proc/{process}/cmdline"))
                .is_ok_and(|words| words.windows(7).any(|w| w == b"trainer"))
        })
    });
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-s", "INT", "--", &group]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(is_gone(trainer), "it trains on in a folder that was removed");
    assert_eq!(fs::read_dir(place.join("runs/.edit-measurements")).unwrap().count(), 0);
}

/// Flags of a training whose steps take a second or more each, and are saved.
const LONG_STEPS: [&str; 8] = ["--rank", "4", "--mtp", "none", "--max-steps", "3", "--save-steps", "1"];

fn with_long_steps(place: &Place) -> Command {
    let mut command = place.train(&LONG_STEPS);
    command.env("SPARKTUNE_GRAD_ACCUM_STEPS", "300").env("SPARKTUNE_EVAL_EVERY_STEPS", "100000");
    command
}

/// Waits for a checkpoint after which no step has ended.
fn begun(place: &Place) -> PathBuf {
    wait("a step after a checkpoint", || run_of(place).filter(|run| has_begun(run)))
}

fn has_begun(run: &Path) -> bool {
    let events = events(run);
    let mut kinds = events.iter().rev().filter_map(|event| event["kind"].as_str());
    kinds.find(|kind| ["step", "checkpoint_committed", "run_finished"].contains(kind))
        == Some("checkpoint_committed")
}

/// Sends two SIGTERMs within one step, the second after the first was heard. The process is stopped except in
/// between, so that a test that waits for a processor does not miss the step.
fn terminate_twice_within_a_step(place: &Place, process: u32) {
    let run = begun(place);
    assert!(hold(process), "the trainer has ended");
    while !has_begun(&run) {
        send(Signal::CONT, process);
        begun(place);
        assert!(hold(process), "the trainer has ended");
    }
    terminate(process);
    assert!(is_pending(process));
    send(Signal::CONT, process);
    wait("the first signal", || (!is_pending(process)).then_some(()));
    assert!(hold(process), "the trainer has ended");
    assert!(!is_gone(process), "the first signal waits for the end of the step");
    terminate(process);
    send(Signal::CONT, process);
}

/// Stops a process, and waits until it stands still: a thread that waits for a processor has not heard of
/// that yet, and would take a SIGTERM first, whose number is lower. False if the process is gone.
#[track_caller]
pub(crate) fn hold(process: u32) -> bool {
    if kill_process(Pid::from_raw(process as i32).unwrap(), Signal::STOP).is_err() {
        return false;
    }
    wait("the process to stand still", || {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let mut states = threads.filter_map(|thread| fields(&thread.path().join("stat")).into_iter().next());
        states.all(|state| matches!(&*state, "T" | "Z" | "X")).then_some(true)
    })
}

/// Whether a SIGTERM to a process has not been delivered yet.
fn is_pending(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(pending.trim(), 16).unwrap() >> (SIGTERM - 1) & 1 == 1
}

/// The first one is answered after the step.
#[test]
fn a_trainer_ends_within_its_step_and_its_run_continues_from_the_checkpoint() {
    let place = Place::new();
    place.chats(3_000);
    let launcher = with_long_steps(&place).spawn().unwrap();
    let run = begun(&place);
    terminate_twice_within_a_step(&place, trainer_of(&run).unwrap());
    let second = Instant::now();
    let left = ended(vec![launcher]).remove(0).exits(5);
    assert!(second.elapsed() < AT_ONCE);
    let words = format!("the trainer was ended by signal {SIGTERM}");
    assert!(left.err.contains(&words) && left.err.contains("sparktune resume"), "{}", left.err);
    let saved =
        events(&run).iter().rfind(|event| event["kind"] == "checkpoint_committed").unwrap()["step"].clone();
    let resumed = place.sparktune(["resume", "--json"]).exits(0);
    assert_eq!(resumed.last()["outcome"], "completed");
    let started = events(&run).into_iter().rfind(|event| event["kind"] == "run_started").unwrap();
    assert_eq!(started["resumed_from_step"], saved, "{started}");
}

#[test]
fn a_rank_ends_within_its_step_and_the_others_say_which_one_is_gone() {
    let place = Place::new();
    place.chats(3_000);
    let started = ranks(2, || with_long_steps(&place));
    let rank = started[1].id();
    terminate_twice_within_a_step(&place, rank);
    wait("the end of the rank", || is_gone(rank).then_some(()));
    let done = ended(started);
    assert_eq!([done[0].code, done[1].code], [Some(5), None], "{done:?}");
    let run = run_of(&place).unwrap();
    let reason = events(&run).last().unwrap()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("rank 1") && reason.contains("resume"), "{reason}");
}
