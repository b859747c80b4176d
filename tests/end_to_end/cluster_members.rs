//! A cluster of three members on loopback, each with a home of its own: joining, training together with a
//! model that only one of them has, losing one with and without a swarm, its return, coming later, leaving.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{LORA, alone, assert_same, ended, long_enough, port, run_of, signal};
use crate::kills::{kill, trainer_of};
use crate::runs::wait;
use crate::sparktune::{Place, checkpoint, copy, done, events, events_if_there, files, is_completed};
use crate::swarm::{SWARM, assert_comes_back_to_another, counts, go_on, loses_more, members, run_with};

const TOKEN: &str = "SPARKTUNE_CLUSTER_TOKEN";
/// For how many seconds a coordinator may be gone before another member takes over.
const RETURNS: &str = "SPARKTUNE_CLUSTER_RETURN_S";
/// Lengths of runs that go on for the seconds after which an agent starts a rank again. 400 epochs have 2,000
/// steps.
const WITH_PAUSES: [&str; 3] = ["300", "900", "1900"];

/// An agent, which is killed at the end of its test.
struct Member {
    place: Place,
    agent: Child,
    /// What it printed when it listened; null if that was for people.
    listens: Value,
}

impl Member {
    /// Starts an agent and waits until it listens.
    fn start(place: Place, command: impl FnOnce(&Place) -> Command) -> Self {
        let (agent, line) = started(&mut command(&place));
        let Ok(listens) = serde_json::from_str(&line) else {
            let output = agent.wait_with_output().unwrap();
            panic!("{line}{}", String::from_utf8_lossy(&output.stderr))
        };
        Self { place, agent, listens }
    }

    fn members(&self) -> Vec<Value> {
        let done = self.place.sparktune(["cluster", "status", "--json"]).exits(0);
        done.last().as_array().unwrap().clone()
    }

    /// The coordinator and all that are there, by name; `None` if nobody coordinates now. Whoever asks again
    /// and again leaves a processor to others.
    fn present(&self) -> Option<(String, Vec<String>)> {
        sleep(Duration::from_millis(200));
        let done = self.place.sparktune(["cluster", "status", "--json"]);
        if done.code != Some(0) {
            return None;
        }
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        let rows = done.last();
        let there = rows.as_array().unwrap().iter().filter(|row| row["gone"].is_null());
        let coordinator = there.clone().find(|row| row["coordinates"] == true).map(name)?;
        let mut names: Vec<_> = there.map(name).collect();
        names.sort();
        Some((coordinator, names))
    }

    /// How many other agents this machine would look for after a start.
    fn known(&self) -> usize {
        let file = Path::new(self.listens["token_file"].as_str().unwrap());
        let kept: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        kept["known"].as_array().unwrap().len()
    }

    /// The cluster's secret, which nobody else may read.
    fn token(&self) -> String {
        let file = Path::new(self.listens["token_file"].as_str().unwrap());
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        let kept: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        kept["token"].as_str().unwrap().to_owned()
    }

    /// The process of the rank that the agent started, if it has not ended.
    fn rank(&self) -> Option<String> {
        // The kernel lists the children of each thread.
        let threads = fs::read_dir(format!("/proc/{}/task", self.agent.id())).unwrap();
        let children =
            threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).ok());
        let children: String = children.collect();
        children.split_whitespace().next().map(str::to_owned)
    }

    /// Kills its rank and also these processes; `None` if the rank has ended.
    fn kill_rank_and(&self, others: &[String]) -> Option<()> {
        let rank = self.rank()?;
        let killed = Command::new("kill").args(["-s", "KILL", &rank]).args(others).status().unwrap();
        killed.success().then_some(())
    }

    /// The file with what its rank was started with.
    fn kept_launch(&self) -> PathBuf {
        Path::new(self.listens["token_file"].as_str().unwrap()).with_file_name("cluster-rank.json")
    }
}

/// Starts an agent, and returns the first line that it prints, which it does when it listens.
fn started(command: &mut Command) -> (Child, String) {
    let mut agent = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(agent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (agent, line)
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

fn command(place: &Place, words: &[&str]) -> Command {
    place.command(words.iter().copied().chain(["--json", "--runs-dir", "runs"]))
}

fn row(member: &Member, name: &str) -> Option<Value> {
    member.members().into_iter().find(|row| row["name"] == name)
}

/// A cluster of three, of which the third has found it by itself. Its coordinator may be gone for so many
/// seconds.
fn three(returns_within_s: &str) -> [Member; 3] {
    let port = port();
    let command = |place: &Place, words: &[&str]| {
        let mut command = command(place, words);
        command.env(RETURNS, returns_within_s);
        command
    };
    let first = Member::start(Place::new(), |place| {
        command(place, &["cluster", "init", "--name", "spark1", "--port", &port])
    });
    let token = &*first.token();
    let at = format!("127.0.0.1:{port}");
    let second = Member::start(Place::new(), |place| {
        command(place, &["cluster", "join", &at, "--token", token, "--name", "spark2"])
    });
    let seen = fs::read(format!("/proc/{}/cmdline", second.agent.id())).unwrap();
    let seen = String::from_utf8_lossy(&seen);
    assert!(
        seen.contains("spark2") && !seen.contains(token),
        "the token does not stay in the list of processes"
    );
    let third = Member::start(Place::new(), |place| {
        let mut command = command(place, &["cluster", "join", "--name", "spark3", "--call-port", &port]);
        command.env(TOKEN, token);
        command
    });
    wait("three members", || (first.members().len() == 3).then_some(()));
    let stranger = Place::new();
    let refused = done(command(&stranger, &["cluster", "join", &at]).env(TOKEN, "0".repeat(64))).exits(2);
    assert!(refused.err.contains("another token"), "{}", refused.err);
    [first, second, third]
}

/// Trains the model that lies in this folder, and that no other member finds by its name: it leads through
/// the working folder of each process.
fn train(member: &Member, steps: &str, epochs: &str) -> Command {
    let common = ["--save-steps", "2", "--eval-steps", "2", "--mtp", "none", "--epochs", epochs];
    let more = ["--rank", "4", "--cluster", "--max-steps", steps];
    let mut command =
        member.place.train_model(Path::new("/proc/self/cwd/model"), &[&common[..], &more].concat());
    command.env("SPARKTUNE_GRAD_ACCUM_STEPS", "5");
    command
}

#[test]
fn three_members_train_a_model_that_one_of_them_has_and_name_the_one_that_is_killed() {
    let [first, second, mut third] = three("10");
    second.place.chats(40);
    copy(&checkpoint(), &second.place.join("model"));
    let trained = done(&mut train(&second, "4", "40")).exits(0);
    assert!(trained.err.contains("training on 3 machines"), "{}", trained.err);
    for name in ["spark1", "spark3"] {
        assert!(trained.err.contains(&format!("{name} has got")), "{}", trained.err);
    }
    let run = run_of(&second.place).unwrap();
    let (_alone, one_process) = alone(3, "4", &["--rank", "4"]);
    assert_same(&run, &one_process);
    for member in [&first, &third] {
        let runs = member.place.join("runs");
        let sent = files(&runs);
        let weights = sent.iter().find(|(name, _)| name.ends_with("model.safetensors")).unwrap();
        assert!(weights.1 == fs::read(checkpoint().join("model.safetensors")).unwrap());
        assert!(sent.iter().all(|(name, _)| name.starts_with(".models")), "nothing else is left: {sent:?}");
    }
    // Who has a wrong token is no member of anything, and can try the right one.
    let stranger = Place::new();
    let at = format!("127.0.0.1:{}", first.listens["port"]);
    let wrong = done(stranger.command(["cluster", "join", &at]).env(TOKEN, "0".repeat(64))).exits(2);
    assert!(wrong.err.contains("another token"), "{}", wrong.err);
    assert!(stranger.sparktune(["cluster", "leave"]).exits(2).err.contains("no member"));
    wait("everybody idle", || second.members().iter().all(|row| row["state"] == "idle").then_some(()));

    // Once more, without sending anything; one is killed on the way.
    fs::remove_dir_all(second.place.join("runs")).unwrap();
    let mut training = train(&second, "20000", "1000").spawn().unwrap();
    let run = wait("a step", || {
        assert_eq!(training.try_wait().unwrap(), None, "it trains until somebody is killed");
        let run = run_of(&second.place)?;
        events(&run).iter().any(|event| event["kind"] == "step").then_some(run)
    });
    // The coordinator hears of it a moment later.
    wait("the third at work", || {
        row(&first, "spark3").filter(|row| row["state"].as_str().unwrap().starts_with("rank 2 of "))
    });
    let busy = done(&mut train(&second, "4", "40")).exits(2);
    assert!(busy.err.contains("is busy with"), "{}", busy.err);
    let rank = third.rank().unwrap();
    assert!(Command::new("kill").args(["-s", "KILL", &rank]).status().unwrap().success());
    let ended = training.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(5), "{said}");
    assert_eq!(said.matches("has the model already").count(), 2, "{said}");
    assert!(
        said.contains("rank 2 is spark3") && said.contains("the rank of spark3 was ended by a signal"),
        "{said}"
    );
    let reason = events(&run).last().unwrap()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("rank 2"), "{reason}");

    // A member that is gone is in the list, with the reason, and a run goes on without it.
    third.agent.kill().unwrap();
    third.agent.wait().unwrap();
    wait("one gone", || row(&second, "spark3").unwrap()["gone"].is_string().then_some(()));
    wait("the others idle", || {
        let rows = second.members();
        rows.iter().all(|row| row["gone"].is_string() || row["state"] == "idle").then_some(())
    });
    let resume = || {
        let resumed = second.place.command(["resume", "--cluster", "--json", "--non-interactive"]).spawn();
        let before = events(&run).len();
        wait("a step with two", || {
            events(&run)[before..].iter().any(|event| event["kind"] == "step").then_some(())
        });
        wait("two at work", || {
            let rows = second.members();
            let at_work =
                |row: &&Value| row["state"].as_str().is_some_and(|state| state.starts_with("rank "));
            (rows.iter().filter(|row| row["gone"].is_null()).filter(at_work).count() == 2).then_some(())
        });
        resumed.unwrap()
    };
    let all_idle = || {
        wait("all idle again", || {
            let rows = second.members();
            rows.iter().all(|row| row["gone"].is_string() || row["state"] == "idle").then_some(())
        });
    };
    let resumed = resume();
    signal("INT", &resumed);
    // What it prints is read: a full pipe would keep it from hearing the signal.
    assert_eq!(resumed.wait_with_output().unwrap().status.code(), Some(5));
    all_idle();
    // Whoever has started a run may vanish: its machine is busy until the trainer ends.
    let mut resumed = resume();
    resumed.kill().unwrap();
    resumed.wait().unwrap();
    let busy = done(&mut train(&second, "4", "40")).exits(2);
    assert!(busy.err.contains("spark2 is busy with"), "{}", busy.err);
    second.place.sparktune(["stop"]).exits(0);
    all_idle();
    let doctor = first.place.sparktune(["cluster", "doctor", "--json"]).exits(4);
    let lines = doctor.last();
    let status = |what: &str| {
        let line = lines.as_array().unwrap().iter().find(|line| line["what"] == what);
        line.map(|line| line["status"].as_str().unwrap().to_owned())
    };
    for what in ["build", "bandwidth to spark2", "memory of spark2"] {
        assert_eq!(status(what).as_deref(), Some("ok"), "{what}: {doctor:?}");
    }
    assert_eq!(
        [status("members").as_deref(), status("bandwidth to spark3").as_deref()],
        [Some("failed"), None]
    );
    let found = |lines: &Value, what: &str| {
        let line = lines.as_array().unwrap().iter().find(|line| line["what"] == what);
        line.unwrap_or_else(|| panic!("{what}: {lines}"))["found"].as_str().unwrap().to_owned()
    };
    // All of them are on this machine, which is why they find the same there.
    assert!(found(&lines, "NCCL").ends_with("(the same on spark2)"), "{lines}");
    assert!(found(&lines, "link to spark2").contains("lo ("), "{lines}");
    assert!(found(&lines, "wall clock of spark2").contains("estimated"), "{lines}");
    // Only the machine that leads the run knows its model. The others have it from the transfer.
    assert_eq!(status("base model").as_deref(), Some("unknown"));
    assert!(found(&lines, "base model").contains("--model"), "{lines}");
    let of_leader = second.place.sparktune(["cluster", "doctor", "--json"]).exits(4);
    let base = found(&of_leader.last(), "base model");
    assert!(base.ends_with("the same files, by their hashes, on spark1"), "{base}");
    let other = second.place.join("other");
    copy(&checkpoint(), &other);
    fs::write(other.join("config.json"), "{}").unwrap();
    // By this name, each process finds its own folder.
    let named = ["cluster", "doctor", "--json", "--model", "/proc/self/cwd/other"];
    let base = found(&second.place.sparktune(named).exits(4).last(), "base model");
    assert!(base.ends_with("missing or different on spark1"), "{base}");
    let Member { agent, place, .. } = &second;
    place.sparktune(["cluster", "leave"]).exits(0);
    wait("the end of the agent", || {
        (!Path::new(&format!("/proc/{}/fd", agent.id())).is_dir() || is_ended(agent)).then_some(())
    });
    let names: Vec<_> = first.members().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["spark1", "spark3"]);
    let outside = place.sparktune(["cluster", "status"]).exits(2);
    assert!(outside.err.contains("no member of a cluster"), "{}", outside.err);
    // A machine that was gone in the middle of a run leaves before an agent runs there again.
    fs::write(third.kept_launch(), "{}").unwrap();
    third.place.sparktune(["cluster", "leave"]).exits(0);
    assert!(!third.kept_launch().exists());
}

/// The machine of the third one is gone: its agent and its rank have no time to say anything.
/// The third one comes while the others train, and later its machine is gone.
#[test]
fn a_swarm_on_members_lets_a_new_one_in_goes_on_without_it_and_has_the_bits_of_its_replay() {
    let more = [&LORA[..], &SWARM].concat();
    long_enough(WITH_PAUSES, |steps, all| {
        let [first, second, mut third] = three("10");
        signal("TERM", &third.agent);
        third.agent.wait().unwrap();
        wait("two members", || (first.present()?.1.len() == 2).then_some(()));
        second.place.chats(40);
        copy(&checkpoint(), &second.place.join("model"));
        all.push(train(&second, steps, "400").args(SWARM).spawn().unwrap());
        let run = run_with(&second.place, 2, is_completed)?;
        third.agent = command(&third.place, &["cluster", "join"]).spawn().unwrap();
        go_on(&run, &[0, 1, 2])?;
        third.kill_rank_and(&[third.agent.id().to_string()])?;
        third.agent.wait().unwrap();
        go_on(&run, &[0, 1])?;
        let output = ended(std::mem::take(all)).remove(0).exits(0);
        assert!(output.err.contains("is let in at the end of a step"), "{}", output.err);
        let (_alone, one_process) = alone(counts(&run), steps, &more);
        assert_same(&run, &one_process);
        Some(())
    });
}

/// Waits until a rank is lost; `None` if the run is completed before that.
#[track_caller]
fn loses(run: &Path, rank: u64) -> Option<()> {
    wait("the loss of a rank", || {
        let Some(all) = events_if_there(run) else { return Some(None) };
        let mut lost = all.iter().filter_map(|event| event["lost"].as_array()).flatten();
        let is_lost = lost.any(|lost| lost["rank"] == rank);
        if is_lost { Some(Some(())) } else { is_completed(&all).then_some(None) }
    })
}

/// The rank of the third one is killed. Then the machine of the first one is gone, and its agent comes back.
#[test]
fn ranks_of_members_that_have_ended_come_back_by_themselves_and_the_run_has_the_bits_of_its_replay() {
    let more = [&LORA[..], &SWARM].concat();
    long_enough(WITH_PAUSES, |steps, all| {
        let [mut first, second, third] = three("10");
        second.place.chats(40);
        copy(&checkpoint(), &second.place.join("model"));
        all.push(train(&second, steps, "400").args(SWARM).spawn().unwrap());
        let run = run_with(&second.place, 2, is_completed)?;
        assert!(first.kept_launch().exists() && third.kept_launch().exists());
        third.kill_rank_and(&[])?;
        loses(&run, 2)?;
        go_on(&run, &[0, 1, 2])?;
        first.kill_rank_and(&[first.agent.id().to_string()])?;
        first.agent.wait().unwrap();
        loses(&run, 1)?;
        first.agent = command(&first.place, &["cluster", "init"]).spawn().unwrap();
        go_on(&run, &[0, 2, 1])?;
        ended(std::mem::take(all)).remove(0).exits(0);
        if loses_more(&run, 2) {
            return None;
        }
        let lost: Vec<Vec<u64>> = members(&run).into_iter().map(|(_, _, lost)| lost).collect();
        assert_eq!(lost, [vec![], vec![2], vec![], vec![1], vec![]]);
        let (_alone, one_process) = alone(counts(&run), steps, &more);
        assert_same(&run, &one_process);
        // Nobody starts the rank of a complete run again.
        for member in [&first, &third] {
            wait("the end of a rank", || {
                (member.rank().is_none() && !member.kept_launch().exists()).then_some(())
            });
        }
        Some(())
    });
}

/// Nobody listens any more where the member was told that rank 0 is, and the program that started the run has
/// ended.
#[test]
fn the_rank_of_a_member_comes_back_to_the_one_that_has_taken_the_place_of_rank_0() {
    let more = [&LORA[..], &SWARM].concat();
    long_enough(WITH_PAUSES, |steps, all| {
        let [first, second, third] = three("10");
        second.place.chats(40);
        copy(&checkpoint(), &second.place.join("model"));
        all.push(train(&second, steps, "400").args(SWARM).spawn().unwrap());
        let led = run_with(&second.place, 4, is_completed)?;
        kill(trainer_of(&led)?);
        let name = led.file_name().unwrap().to_str().unwrap();
        let hidden = first.place.join("runs").join(format!(".rank-1-of-{name}"));
        go_on(&hidden, &[1, 2])?;
        ended(std::mem::take(all));
        // It is a run where it goes on, and is not made another one where it was led.
        let listed = done(&mut command(&first.place, &["runs"])).exits(0).last();
        assert_eq!(listed[0]["name"], name, "{listed}");
        let refused = done(&mut command(&second.place, &["resume", name])).exits(2);
        assert!(
            refused.err.contains("goes on with this run in place of the machine that had it"),
            "{}",
            refused.err
        );
        third.kill_rank_and(&[])?;
        loses(&hidden, 2)?;
        go_on(&hidden, &[1, 2])?;
        let run = wait("the end", || run_of(&first.place).filter(|run| is_completed(&events(run))));
        if loses_more(&run, 2) {
            return None;
        }
        assert_comes_back_to_another(&run);
        // The model was sent to this machine, and the folder that the plan names is not here any more.
        fs::rename(second.place.join("model"), second.place.join("elsewhere")).unwrap();
        wait("the export", || {
            (done(&mut command(&first.place, &["export", name])).code == Some(0)).then_some(())
        });
        let (_alone, one_process) = alone(counts(&run), steps, &more);
        assert_same(&run, &one_process);
        Some(())
    });
}

#[test]
fn the_members_go_on_when_the_coordinator_is_killed_or_suspended_and_it_returns_as_one_of_them() {
    let [mut first, second, third] = three("0");
    wait("the list at all members", || (second.known() == 2 && third.known() == 2).then_some(()));
    first.agent.kill().unwrap();
    first.agent.wait().unwrap();
    for member in [&second, &third] {
        wait("another coordinator", || {
            member.present().filter(|(_, names)| *names == ["spark2", "spark3"]).map(drop)
        });
    }
    assert!(row(&second, "spark1").unwrap()["gone"].is_string());
    // One more comes, by the address of any member, and a run has all that are there.
    let fourth = Member::start(Place::new(), |place| {
        let at = format!("127.0.0.1:{}", second.listens["port"]);
        let mut command = command(place, &["cluster", "join", &at, "--name", "spark4"]);
        command.env(TOKEN, second.token()).env(RETURNS, "0");
        command
    });
    wait("the fourth", || {
        fourth.present().filter(|(_, names)| *names == ["spark2", "spark3", "spark4"]).map(drop)
    });
    third.place.chats(40);
    copy(&checkpoint(), &third.place.join("model"));
    let trained = done(&mut train(&third, "4", "40")).exits(0);
    assert!(trained.err.contains("training on 3 machines"), "{}", trained.err);
    // The first one is started again as before.
    first.agent = command(&first.place, &["cluster", "init"]).env(RETURNS, "0").spawn().unwrap();
    let everybody = ["spark1", "spark2", "spark3", "spark4"];
    let (coordinator, _) = wait("everybody", || {
        first.present().filter(|(coordinator, names)| coordinator != "spark1" && *names == everybody)
    });
    // One that is suspended is silent, and does not know that it was.
    let all = [(&second, "spark2"), (&third, "spark3"), (&fourth, "spark4")];
    let (suspended, _) = all.into_iter().find(|(_, name)| *name == coordinator).unwrap();
    signal("STOP", &suspended.agent);
    wait("yet another coordinator", || {
        first.present().filter(|(now, names)| *now != coordinator && names.len() == 3)
    });
    signal("CONT", &suspended.agent);
    for member in [&first, suspended] {
        wait("everybody again", || {
            member.present().filter(|(now, names)| *now != coordinator && *names == everybody)
        });
    }
}

/// Whether a process that nobody has waited for has ended.
fn is_ended(process: &Child) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// A cluster of two: the line that `cluster init` prints for people is what makes the second one a member.
fn two_by_the_printed_line() -> [Member; 2] {
    let place = Place::new();
    let words = ["cluster", "init", "--name", "spark1", "--port", &port(), "--runs-dir", "runs"];
    let (agent, line) = started(&mut place.command(words));
    let first = Member { place, agent, listens: Value::Null };
    let (before, flags) = line.split_once(" cluster join ").unwrap_or_else(|| panic!("{line}"));
    let (token, program) = before.split_once(' ').unwrap_or_else(|| panic!("{line}"));
    let token = token.strip_prefix(TOKEN).and_then(|rest| rest.strip_prefix('=')).unwrap();
    assert_eq!(program, "sparktune", "{line}");
    let second = Member::start(Place::new(), |place| {
        let words: Vec<_> = ["cluster", "join"].into_iter().chain(flags.split_whitespace()).collect();
        let mut command = command(place, &words);
        command.env(TOKEN, token);
        command
    });
    wait("two members", || second.present().filter(|(_, names)| names.len() == 2).map(drop));
    [first, second]
}

/// The first signal asks the rank to end and waits for it, for 20 seconds at most.
#[test]
fn the_second_signal_ends_an_agent_that_waits_for_a_rank_that_hangs() {
    let [mut first, second] = two_by_the_printed_line();
    let another = first.place.sparktune(["cluster", "init"]).exits(2);
    assert!(another.err.contains("already running"), "{}", another.err);
    second.place.chats(40);
    copy(&checkpoint(), &second.place.join("model"));
    let mut training = train(&second, "20000", "1000").spawn().unwrap();
    wait("a step", || {
        assert_eq!(training.try_wait().unwrap(), None, "it trains until its agent ends");
        let run = run_of(&second.place)?;
        events(&run).iter().any(|event| event["kind"] == "step").then_some(())
    });
    let rank = first.rank().unwrap();
    let to_rank = |name: &str| Command::new("kill").args(["-s", name, &rank]).status().unwrap();
    assert!(to_rank("STOP").success());
    signal("TERM", &first.agent);
    // SIGUSR1 is how our programs ask each other; a process that is stopped cannot take it.
    wait("the request to the rank", || {
        let status = fs::read_to_string(format!("/proc/{rank}/status")).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        let pending = u64::from_str_radix(pending.trim(), 16).unwrap();
        (pending & 1 << (Signal::USR1.as_raw() - 1) != 0).then_some(())
    });
    assert!(!is_ended(&first.agent), "it waits for its rank");
    signal("TERM", &first.agent);
    let ended = first.agent.wait().unwrap();
    assert!(to_rank("KILL").success());
    assert_eq!((ended.code(), ended.signal()), (None, Some(Signal::TERM.as_raw())));
    training.wait_with_output().unwrap();
}

#[test]
fn what_needs_a_cluster_says_so_and_a_doctor_without_one_knows_nothing_of_it() {
    let place = Place::new();
    place.chats(4);
    let refused = done(&mut place.train(&["--cluster"])).exits(2);
    assert!(refused.err.contains("cluster init") || refused.out.contains("cluster init"), "{refused:?}");
    let rank = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    let refused = done(place.train(&["--cluster"]).envs(rank)).exits(2);
    assert!(refused.err.contains("launcher") || refused.out.contains("launcher"), "{refused:?}");
    let refused = place.sparktune(["cluster", "join", "127.0.0.1:1"]).exits(2);
    assert!(refused.err.contains(TOKEN) && refused.err.contains("safer"), "{}", refused.err);
    let refused = done(place.command(["cluster", "join", "127.0.0.1:1"]).env(TOKEN, "short")).exits(2);
    let is_told = refused.err.contains("shorter than 32") && refused.err.contains("cluster init");
    assert!(is_told, "{}", refused.err);
    assert!(place.sparktune(["cluster", "leave"]).exits(2).err.contains("no member"));
    let doctor = place.sparktune(["cluster", "doctor", "--json"]);
    let lines = doctor.last();
    for what in ["members", "build", "bandwidth", "base model"] {
        let line = lines.as_array().unwrap().iter().find(|line| line["what"] == what).unwrap();
        assert_eq!(line["status"], "unknown", "{line}");
    }
}
