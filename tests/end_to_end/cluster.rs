//! Several ranks that train one model, as processes on loopback: the same bits as one process that adds in
//! their order, whatever is stopped, killed and resumed.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sparktune_cluster::lab::Lab;

use crate::crashes::numbers;
use crate::runs::wait;
use crate::sparktune::{Done, Place, events, files, is_completed, outputs};

pub(crate) const LORA: [&str; 2] = ["--rank", "4"];
pub(crate) const FULL: [&str; 2] = ["--method", "full"];
const RECOMPUTED: [&str; 4] = ["--method", "full", "--recompute", "true"];

/// A port that nobody listens on.
pub(crate) fn port() -> String {
    sparktune_cluster::free_port().unwrap().to_string()
}

/// Starts this command as every rank, with torchrun's variables.
pub(crate) fn ranks(world_size: usize, command: impl Fn() -> Command) -> Vec<Child> {
    let port = port();
    (0..world_size).map(|rank| start_rank(command(), rank, world_size, &port)).collect()
}

/// Starts this command as one rank.
pub(crate) fn start_rank(command: Command, rank: usize, world_size: usize, port: &str) -> Child {
    as_rank(command, rank, world_size, ("127.0.0.1", port)).spawn().unwrap()
}

/// This command as one rank, which is told the host and the port of rank 0.
pub(crate) fn as_rank(
    mut command: Command,
    rank: usize,
    world_size: usize,
    (host, port): (&str, &str),
) -> Command {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("MASTER_ADDR", host)
        .env("MASTER_PORT", port);
    command
}

/// This command on a machine of a lab.
pub(crate) fn on_machine(lab: &Lab, machine: usize, command: &Command) -> Command {
    let mut moved = lab.command(machine, command.get_program());
    moved.args(command.get_args()).current_dir(command.get_current_dir().unwrap());
    moved.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => moved.env(name, value),
            None => moved.env_remove(name),
        };
    }
    moved
}

/// Tries a test with longer and longer runs, until the test acts while its run is at work: nobody knows how
/// many steps a run takes before a busy machine gives the test a processor. A test that finds that the run is
/// over returns `None`. Ranks that it leaves are killed.
#[track_caller]
pub(crate) fn long_enough(lengths: [&str; 3], test: impl Fn(&str, &mut Vec<Child>) -> Option<()>) {
    for steps in lengths {
        let mut ranks = Vec::new();
        let was_in_time = test(steps, &mut ranks).is_some();
        for mut rank in ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
        if was_in_time {
            return;
        }
        println!("the run of {steps} steps was over too early");
    }
    panic!("all runs were over too early");
}

/// Waits until a run has logged a step of at least this number after its first `since` events; `None` if the
/// run is completed.
#[track_caller]
fn step_of(run: &Path, since: usize, least: u64) -> Option<()> {
    wait("a step", || {
        let all = events(run);
        let has_step =
            all[since..].iter().any(|event| event["kind"] == "step" && event["step"].as_u64() >= Some(least));
        // Once the last step is done, there is nothing to stop.
        if is_completed(&all) { Some(None) } else { has_step.then_some(Some(())) }
    })
}

pub(crate) fn ended(ranks: Vec<Child>) -> Vec<Done> {
    let ended = ranks.into_iter().map(|rank| {
        let output = rank.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    });
    ended.collect()
}

#[track_caller]
pub(crate) fn exit(done: Vec<Done>, code: i32) -> Vec<Done> {
    done.into_iter().map(|done| done.exits(code)).collect()
}

/// Steps of five micro-batches, which no number of ranks divides, of packed rows, with evaluations.
pub(crate) fn training<'a>(place: &'a Place, steps: &str, more: &[&str]) -> impl Fn() -> Command + use<'a> {
    // Other ranks may be reading them.
    if !place.join("train.jsonl").exists() {
        place.chats(40);
    }
    let common =
        ["--save-steps", "2", "--eval-steps", "2", "--mtp", "none", "--epochs", "400", "--max-steps"];
    let all: Vec<String> =
        common.iter().copied().chain([steps]).chain(more.iter().copied()).map(str::to_owned).collect();
    move || {
        let mut command = place.train(&all.iter().map(String::as_str).collect::<Vec<_>>());
        command.env("SPARKTUNE_GRAD_ACCUM_STEPS", "5");
        command
    }
}

pub(crate) fn run_of(place: &Place) -> Option<PathBuf> {
    let runs = fs::read_dir(place.join("runs")).ok()?;
    let is_run = |path: &PathBuf| {
        path.join("events").is_dir() && !path.file_name().unwrap().to_string_lossy().starts_with('.')
    };
    runs.map(|entry| entry.unwrap().path()).find(is_run)
}

/// The hidden folders of ranks other than 0.
fn folders_of_ranks(place: &Place) -> Vec<PathBuf> {
    let all = fs::read_dir(place.join("runs")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(".rank-")).collect()
}

/// The losses on the eval set, as their text in the events.
fn evals(run: &Path) -> Vec<(u64, String)> {
    let evals = events(run).into_iter().filter(|event| event["kind"] == "eval");
    evals.map(|eval| (eval["step"].as_u64().unwrap(), eval["loss_nats"].to_string())).collect()
}

/// Fails unless two runs have the same losses, norms, evaluations and weights, to the last bit.
#[track_caller]
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let last_of_each = |run: &Path| numbers(run).into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(last_of_each(one), last_of_each(other));
    let last_of_each = |run: &Path| evals(run).into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(last_of_each(one), last_of_each(other));
    let weights = |run: &Path| {
        let outputs = outputs(run).into_iter();
        outputs
            .filter(|(name, _)| name.extension().is_some_and(|end| end == "safetensors"))
            .collect::<Vec<_>>()
    };
    let (one, other) = (weights(one), weights(other));
    assert!(!one.is_empty() && one == other, "the weights differ");
}

/// One process that adds like so many ranks, as `--sum-as` says it.
pub(crate) fn alone(world_size: impl Display, steps: &str, more: &[&str]) -> (Place, PathBuf) {
    let place = Place::new();
    let sum_as = format!("--sum-as={world_size}");
    let done = crate::sparktune::done(&mut training(&place, steps, &[more, &[&sum_as]].concat())());
    done.exits(0);
    let run = run_of(&place).unwrap();
    (place, run)
}

#[test]
fn ranks_have_the_bits_of_one_process_that_adds_in_their_order() {
    let mut seen = Vec::new();
    let all: [(usize, &[&str]); 6] =
        [(2, &LORA), (2, &FULL), (3, &LORA), (3, &RECOMPUTED), (4, &FULL), (4, &LORA)];
    for (world_size, method) in all {
        let place = Place::new();
        let done = exit(ended(ranks(world_size, training(&place, "4", method))), 0);
        assert!(done[1].err.contains("rank 1 of") && done[1].out.is_empty(), "{:?}", done[1]);
        let run = run_of(&place).unwrap();
        let others = format!("{} other rank", world_size - 1);
        let predicted =
            events(&run).into_iter().find(|event| event["phase"] == "exchange").unwrap()["detail"]
                .to_string();
        assert!(
            predicted.contains(&others) && predicted.contains("measured now by 4 exchanges"),
            "{predicted}"
        );
        let (place_of_one, one_process) = alone(world_size, "4", method);
        assert_same(&run, &one_process);
        assert_eq!(folders_of_ranks(&place), [] as [PathBuf; 0], "nothing is left of the other ranks");
        let measured = [&place_of_one, &place].map(|place| place.join("runs/rates.toml").exists());
        assert_eq!(measured, [true, false], "the speed of several ranks is not that of their machine");
        if method == LORA {
            seen.push(numbers(&run));
        }
    }
    let first: Vec<_> =
        seen.iter().map(|numbers| numbers[0].1.split_once(' ').unwrap().0.to_owned()).collect();
    assert!(
        first.iter().all(|loss| *loss == first[0]),
        "the first loss is the same for any number: {first:?}"
    );
    assert!(seen[0] != seen[1] || seen[1] != seen[2], "another order of sums shows in the bits");
}

#[test]
fn ranks_that_sum_in_the_network_train_alike_with_rounded_sums() {
    let trained = |engine: &str, more: &[&str]| {
        let place = Place::new();
        let more = [&LORA[..], more].concat();
        let train = training(&place, "4", &more);
        let command = || {
            let mut command = train();
            command.env("SPARKTUNE_CLUSTER_ENGINE", engine);
            command
        };
        let done = exit(ended(ranks(2, command)), 0);
        let run = run_of(&place).unwrap();
        let losses: Vec<f64> = evals(&run).iter().map(|(_, loss)| loss.parse().unwrap()).collect();
        let mut said = done[1].err.clone();
        let phases = events(&run).into_iter().filter(|event| event["kind"] == "phase");
        phases.for_each(|phase| said += &format!("\n{}: {}", phase["phase"], phase["detail"]));
        (said, numbers(&run), losses)
    };
    let (said, rounded, found) = trained("xdp", &[]);
    assert!(said.contains("sums are made by a thread of rank 0, rounded to 16 bits"), "{said}");
    assert!(said.contains("a replay with --sum-as has other bits"), "{said}");
    // What the ranks announce is judged, and what is summed is that, rounded in other blocks.
    let (said, judged, of_judged) = trained("xdp", &["--sentry", "drop"]);
    assert!(said.contains("no gradient was doubted; judging took"), "{said}");
    assert!(!said.contains("had announced"), "{said}");
    let (said, exact, expected) = trained("tcp", &[]);
    assert!(!said.contains("rounded"), "{said}");
    assert!(rounded != exact && judged != exact, "rounding shows in the bits");
    let near = |(one, other): (&f64, &f64)| (one / other - 1.0).abs() < 1e-4;
    assert!(!found.is_empty() && found.len() == expected.len(), "{found:?}");
    for found in [found, of_judged] {
        assert!(found.iter().zip(&expected).all(near), "{found:?}, exactly {expected:?}");
    }
}

#[test]
fn ranks_that_are_stopped_and_killed_continue_with_the_same_bits() {
    long_enough(["30", "120", "480"], |steps, all| {
        let place = Place::new();
        // A signal to any rank stops all, after a checkpoint.
        *all = ranks(3, training(&place, steps, &LORA));
        let run = wait("a run", || run_of(&place));
        step_of(&run, 0, 3)?;
        signal("TERM", &all[2]);
        let done = ended(std::mem::take(all));
        if is_completed(&events(&run)) {
            return None;
        }
        let done = exit(done, 5);
        assert!(done[2].err.contains("`resume` on all ranks"), "{}", done[2].err);
        // The others say whose user has stopped them.
        assert_eq!(events(&run).last().unwrap()["reason"], "rank 2 was stopped");
        assert!(done[1].err.contains("stopped: rank 2 was stopped. `resume` on all"), "{}", done[1].err);
        assert_eq!(folders_of_ranks(&place).len(), 2, "they keep their logs");
        let newest =
            |run: &Path| fs::read_dir(run.join("checkpoints")).unwrap().map(|e| e.unwrap().path()).max();
        assert!(newest(&run).is_some());
        for rank in folders_of_ranks(&place) {
            let kept = newest(&rank);
            assert_eq!(kept, None, "only rank 0 writes checkpoints");
            assert!(events(&rank).iter().any(|event| event["kind"] == "step"), "it logs its steps");
        }

        // A rank that is killed is named by the others, which keep all finished steps.
        let before = events(&run).len();
        *all = ranks(3, || place.command(["resume", "--json", "--non-interactive"]));
        step_of(&run, before, 0)?;
        signal("KILL", &all[1]);
        let done = ended(std::mem::take(all));
        if is_completed(&events(&run)) {
            return None;
        }
        assert_eq!([done[0].code, done[1].code, done[2].code], [Some(5), None, Some(5)], "{done:?}");
        // Rank 0 may have noticed it first, and says so.
        let told = done[2].err.lines().find(|line| line.starts_with("stopped: rank "));
        assert!(told.is_some_and(|line| line.contains("rank 1 (127.0.0.1) is gone")), "{}", done[2].err);
        let reason = events(&run).last().unwrap()["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("rank 1") && reason.contains("resume"), "{reason}");

        exit(ended(ranks(3, || place.command(["resume", "--json", "--non-interactive"]))), 0);
        let (_alone, one_process) = alone(3, steps, &LORA);
        assert_same(&run, &one_process);
        Some(())
    });
}

/// Checkpoints are due after steps 2, 4, 6, …, and written after the exchanges of steps 3, 6, 9, ….
#[test]
fn ranks_that_exchange_rarely_have_the_bits_of_one_process_in_their_place_also_when_resumed() {
    let diloco = ["--rank", "4", "--sync", "diloco:3"];
    long_enough(["31", "121", "481"], |length, all| {
        let place = Place::new();
        *all = ranks(2, training(&place, length, &diloco));
        let run = wait("a run", || run_of(&place));
        step_of(&run, 0, 0)?;
        signal("TERM", &all[1]);
        let done = ended(std::mem::take(all));
        if is_completed(&events(&run)) {
            return None;
        }
        exit(done, 5);
        let kept = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
        let steps: Vec<u64> = kept
            .filter_map(|path| {
                path.file_name()?.to_str()?.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()
            })
            .collect();
        assert!(!steps.is_empty() && steps.iter().all(|step| step % 3 == 0), "{steps:?}");
        exit(ended(ranks(2, || place.command(["resume", "--json", "--non-interactive"]))), 0);
        let (_alone, one_process) = alone(2, length, &diloco);
        assert_same(&run, &one_process);
        let warned = events(&run).into_iter().any(|event| {
            event["kind"] == "warning" && event["message"].to_string().contains("not the same training")
        });
        assert!(warned, "a run says that this is another training");
        let exchanged = events(&run).into_iter().filter(|event| event["exchange_bytes"].as_u64() > Some(0));
        let steps: std::collections::BTreeSet<u64> =
            exchanged.map(|step| step["step"].as_u64().unwrap()).collect();
        let last: u64 = length.parse().unwrap();
        assert!(steps.iter().copied().eq((3..last).step_by(3).chain([last])), "{steps:?}");
        let (_exact, exact) = alone(2, length, &LORA);
        assert!(numbers(&exact) != numbers(&one_process));
        Some(())
    });
}

#[test]
fn ranks_that_are_judged_have_the_bits_of_one_process_that_judges() {
    let more = [LORA[0], LORA[1], "--sentry", "drop"];
    let place = Place::new();
    exit(ended(ranks(3, training(&place, "4", &more))), 0);
    let run = run_of(&place).unwrap();
    let said =
        events(&run).into_iter().find(|event| event["phase"] == "sentry").unwrap()["detail"].to_string();
    assert!(said.contains("no gradient was doubted; judging took"), "{said}");
    let (_alone, one_process) = alone(3, "4", &more);
    assert_same(&run, &one_process);
}

#[test]
fn half_of_a_launchers_variables_is_refused_before_anything_is_done() {
    let place = Place::new();
    let train = training(&place, "4", &LORA);
    for (name, value, word) in
        [("RANK", "1", "WORLD_SIZE is not"), ("SLURM_PROCID", "0", "SLURM_NTASKS is not")]
    {
        let done = crate::sparktune::done(train().env(name, value)).exits(2);
        assert!(done.err.contains(word) || done.out.contains(word), "{done:?}");
    }
    let elsewhere =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "29500")];
    let done = crate::sparktune::done(train().envs(elsewhere)).exits(2);
    assert!(done.err.contains("SPARKTUNE_CLUSTER_TOKEN"), "{done:?}");
    assert!(!place.join("runs").exists() || files(&place.join("runs")).is_empty());
}

pub(crate) fn signal(name: &str, process: &Child) {
    assert!(Command::new("kill").args(["-s", name, &process.id().to_string()]).status().unwrap().success());
}
