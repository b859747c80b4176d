//! SIGKILL at random instants of any phase: of the launcher, of the trainer, or of both. What is resumed, or
//! started again where nothing was there yet, ends with the very bytes of the run that was never killed.
//!
//! CI kills a dozen times. `SPARKTUNE_KILLS=1000` in the environment kills that often, and prints what was
//! hit; `tests/README.md` has the results. Each test prints its seed; `SPARKTUNE_KILLS_SEED` with that number
//! aims at the same instants again, which a process need not reach in exactly the same state.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::crashes::{is_committing, numbers};
use crate::sparktune::{Place, done, outputs};

/// Kills of CI, in all tests of this file together.
const FEW: u32 = 12;
/// Kills of one run, after which it is let through.
const MOST_OF_A_RUN: u32 = 8;

/// The number of kills of a test that makes this share of all.
fn quota(share: f64) -> u32 {
    let all = std::env::var("SPARKTUNE_KILLS").map_or(FEW, |all| all.parse().unwrap());
    (f64::from(all) * share).ceil() as u32
}

/// Numbers that differ from run to run of the tests, unless `SPARKTUNE_KILLS_SEED` is set.
struct Random(u64);

impl Random {
    /// Prints the seed, which is shown with a failure.
    fn new() -> Self {
        let seed = std::env::var("SPARKTUNE_KILLS_SEED").map_or_else(
            |_| {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
                now.as_nanos() as u64
            },
            |seed| seed.parse().unwrap(),
        );
        println!("SPARKTUNE_KILLS_SEED={seed}");
        Self(seed)
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    fn within(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.below(longest.as_micros() as u64))
    }
}

/// The only run in the list that is not `but`, if there is one already.
fn the_run(place: &Place, but: Option<&Path>) -> Option<PathBuf> {
    let entries = fs::read_dir(place.join("runs")).ok()?.map(|entry| entry.unwrap().path());
    let is_run = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !name.starts_with('.') && path.is_dir() && Some(path.as_path()) != but
    };
    let runs: Vec<PathBuf> = entries.filter(is_run).collect();
    assert!(runs.len() <= 1, "{runs:?}");
    runs.into_iter().next()
}

/// The process that trains a run, from its lease.
pub(crate) fn trainer_of(run: &Path) -> Option<u32> {
    let lease: serde_json::Value = serde_json::from_slice(&fs::read(run.join("lease.lock")).ok()?).ok()?;
    let pid = lease["pid"].as_u64()? as u32;
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let name = run.file_name()?.to_str()?;
    (String::from_utf8_lossy(&words).contains(name) && lives(pid)).then_some(pid)
}

/// Whether the process is in one of these states, as `/proc` names them.
fn has_state(pid: u32, states: &[char]) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(states)))
}

/// Whether a process still has its files. A zombie has none, but its other threads may.
fn lives(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    threads > 1 || has_state(pid, &['R', 'S', 'D', 'T', 't', 'I'])
}

pub(crate) fn signal(name: &str, pid: u32) {
    // It may have ended by itself in this very instant.
    let _ = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status();
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(600), "waited ten minutes for {what}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

pub(crate) fn kill(pid: u32) {
    signal("KILL", pid);
    wait_for("a killed process to end", || !lives(pid));
}

/// What a run is doing, in a word.
fn phase(run: Option<&Path>, attempt: u32) -> String {
    let Some(run) = run else { return "launch".into() };
    let log = fs::read_to_string(run.join(format!("events/{attempt:04}.jsonl"))).unwrap_or_default();
    let phase = log.lines().rev().find_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        let ended = (event["kind"] == "run_finished").then_some("end");
        Some(ended.or_else(|| event["phase"].as_str())?.to_owned())
    });
    let phase = phase.unwrap_or_else(|| "start".into());
    if is_committing(run) { format!("{phase}, checkpoint") } else { phase }
}

/// Waits for a random instant, or until the process ends by itself.
fn has_ended_before(
    child: &mut Child,
    place: &Place,
    but: Option<&Path>,
    random: &mut Random,
    whole: Duration,
) -> bool {
    let (aim, soon) = (random.below(4), random.below(2) == 0);
    // Every other instant that no event decides is in the launch.
    let after = random.within(if soon { whole / 8 } else { whole });
    let wanted = ["export", "mtp"][random.below(2) as usize];
    let commits = random.below(4);
    let (mut seen, mut was_committing) = (0, true);
    let mut at = (aim < 2).then_some(after);
    let started = Instant::now();
    let attempt = the_run(place, but).map_or(1, |run| attempts(&run) + 1);
    loop {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        if at.is_some_and(|at| started.elapsed() >= at) {
            return false;
        }
        // The others aim at a commit or a phase, because these are short.
        if at.is_none()
            && let Some(run) = the_run(place, but)
        {
            let committing = is_committing(&run);
            seen += u64::from(committing && !was_committing);
            was_committing = committing;
            if aim == 2 && seen > commits {
                return false;
            }
            if aim == 3 && phase(Some(&run), attempt).starts_with(wanted) {
                at = Some(started.elapsed() + random.within(whole / 4));
            }
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn attempts(run: &Path) -> u32 {
    fs::read_dir(run.join("events")).map_or(0, |files| files.count() as u32)
}

#[track_caller]
fn are_equal(run: &Path, reference: &Path) {
    let expected: BTreeMap<String, String> = numbers(reference).into_iter().collect();
    for (step, numbers) in numbers(run) {
        assert_eq!(Some(&numbers), expected.get(&step), "{step} of {}", run.display());
    }
    let steps: BTreeMap<String, String> = numbers(run).into_iter().collect();
    assert_eq!(steps.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    let names = |all: &[(PathBuf, Vec<u8>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let (ours, theirs) = (outputs(run), outputs(reference));
    assert_eq!(names(&ours), names(&theirs));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(ours == theirs, "{} of {} differs", ours.0.display(), run.display());
    }
}

/// Kills runs that `start` begins, in a place that `prepare` makes, until there were enough kills, and
/// compares each with the one that was never killed.
fn killed(
    what: &str,
    kills: u32,
    prepare: &dyn Fn() -> (Place, Option<PathBuf>),
    start: &dyn Fn(&Place) -> Command,
) {
    let (place, before) = prepare();
    let began = Instant::now();
    done(&mut start(&place)).exits(0);
    let whole = began.elapsed();
    let reference = the_run(&place, before.as_deref()).unwrap();

    let mut random = Random::new();
    let mut hit: BTreeMap<String, u32> = BTreeMap::new();
    let (mut made, mut runs) = (0, 0);
    while made < kills {
        let (place, before) = prepare();
        let but = before.as_deref();
        let mut of_run = 0;
        loop {
            let run = the_run(&place, but);
            let mut command = match &run {
                Some(run) => place.command(["resume".as_ref(), run.as_os_str(), "--json".as_ref()]),
                None => start(&place),
            };
            let attempt = run.as_deref().map_or(1, |run| attempts(run) + 1);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let may_kill = made < kills && of_run < MOST_OF_A_RUN;
            if !may_kill || has_ended_before(&mut child, &place, but, &mut random, whole) {
                let output = child.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(0), "{what}, after {of_run} kills: {said}");
                break;
            }
            let run = the_run(&place, but);
            let trainer = run.as_deref().and_then(trainer_of);
            let at = phase(run.as_deref(), attempt);
            let victim = match (trainer, random.below(3)) {
                (Some(trainer), 0) => {
                    kill(trainer);
                    child.wait().unwrap();
                    "trainer"
                }
                (Some(trainer), 1) => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    // The trainer goes on without it.
                    let until = Instant::now() + random.within(whole * 2);
                    while lives(trainer) && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    kill(trainer);
                    "launcher, then trainer"
                }
                (trainer, _) => {
                    // It may be about to start a trainer, so it stands still while its children are listed.
                    signal("STOP", child.id());
                    wait_for("a process that stands still", || !has_state(child.id(), &['R', 'S', 'D']));
                    let children = children_of(child.id());
                    child.kill().unwrap();
                    child.wait().unwrap();
                    children.into_iter().chain(trainer).for_each(kill);
                    if trainer.is_some() { "both" } else { "launcher" }
                }
            };
            *hit.entry(format!("{at} ({victim})")).or_default() += 1;
            made += 1;
            of_run += 1;
        }
        are_equal(&the_run(&place, but).unwrap(), &reference);
        runs += 1;
    }
    println!("{what}: {made} kills of {runs} runs, no byte differs; of {whole:.1?} uninterrupted");
    hit.iter().for_each(|(at, times)| println!("    {times:4} in {at}"));
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap();
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        after_name.split(' ').nth(1).is_some_and(|id| id == parent.to_string())
    };
    ids.filter(is_child).collect()
}

fn with_chats() -> (Place, Option<PathBuf>) {
    let place = Place::new();
    place.chats(40);
    (place, None)
}

#[test]
fn a_lora_run_with_its_mtp_head_killed_in_any_phase_ends_with_the_same_bytes() {
    killed("lora with its head", quota(0.4), &with_chats, &|place| {
        place.train(&["--rank", "4", "--max-steps", "6", "--save-steps", "1"])
    });
}

#[test]
fn a_full_run_killed_in_any_phase_ends_with_the_same_bytes() {
    killed("full", quota(0.3), &with_chats, &|place| {
        place.train(&["--method", "full", "--max-steps", "6", "--save-steps", "1", "--mtp", "none"])
    });
}

#[test]
fn a_run_of_the_mtp_head_alone_killed_in_any_phase_ends_with_the_same_bytes() {
    let prepare = || {
        let (place, first) = Place::with_finished_run();
        place.chats(40);
        (place, Some(first))
    };
    killed("head", quota(0.2), &prepare, &|place| {
        let mut command = place.command(["head", "first-try"]);
        command.args(["--data", "train.jsonl", "--mtp-draft-tokens", "2", "--json"]);
        command
    });
}

/// Outputs are replaced as a whole, so that a reader never sees a part of them.
#[test]
fn an_export_killed_at_any_instant_leaves_whole_outputs_and_can_be_repeated() {
    let (place, run) = Place::with_finished_run();
    let export = || place.command(["export".as_ref(), run.as_os_str()]);
    let whole = Instant::now();
    done(&mut export()).exits(0);
    let mut whole = whole.elapsed();
    let before = outputs(&run);
    let mut random = Random::new();
    let (kills, mut made) = (quota(0.1), 0);
    while made < kills {
        let started = Instant::now();
        let mut child = export().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + random.within(whole);
        while child.try_wait().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
            made += 1;
        } else {
            // That of a busy machine may be much longer than those that follow.
            whole = whole.min(started.elapsed());
        }
        let here = outputs(&run);
        for file in &before {
            assert!(here.contains(file), "{} after kill {made}", file.0.display());
        }
    }
    done(&mut export()).exits(0);
    assert!(outputs(&run) == before, "an export after {made} kills leaves nothing else");
    println!("export: {made} kills, no byte differs");
}
