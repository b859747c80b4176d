//! A swarm of ranks, as processes on loopback, whose members are killed, stopped and continued: the run goes
//! on with those that are left, and one process that is told who they were has the same bits.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use sparktune_cluster::{RankCounts, Shares};

use crate::cluster::{
    FULL, LORA, alone, assert_same, ended, long_enough, port, ranks, run_of, signal, start_rank, training,
};
use crate::kills::{kill, trainer_of};
use crate::runs::wait;
use crate::sparktune::{Place, events, events_if_there, is_completed};

/// A rank that gets no processor for some seconds is not one that was stopped.
const SWARM: [&str; 4] = ["--swarm", "true", "--silence-s", "10"];

/// Lengths of runs, of which the first is long enough on a machine without other load.
const SHORT: [&str; 3] = ["60", "240", "960"];
const LONG: [&str; 3] = ["100", "300", "900"];

/// Who trains from which step on, of all attempts, as the events say it: the step, the members, who is lost.
/// That their shares change says nothing of them.
fn members(run: &Path) -> Vec<(u64, Vec<u64>, Vec<u64>)> {
    members_in(&events(run))
}

fn members_in(events: &[serde_json::Value]) -> Vec<(u64, Vec<u64>, Vec<u64>)> {
    let said = events.iter().filter(|event| event["kind"] == "members");
    let mut all: Vec<(u64, Vec<u64>, Vec<u64>)> = said
        .map(|event| {
            let numbers = |value: &serde_json::Value, of: &dyn Fn(&serde_json::Value) -> Option<u64>| {
                value.as_array().into_iter().flatten().map(|value| of(value).unwrap()).collect::<Vec<u64>>()
            };
            let members = numbers(&event["members"], &serde_json::Value::as_u64);
            let lost = numbers(&event["lost"], &|lost| lost["rank"].as_u64());
            (event["step"].as_u64().unwrap(), members, lost)
        })
        .collect();
    all.dedup_by(|later, earlier| later.2.is_empty() && later.1 == earlier.1);
    all
}

/// The numbers and the shares of ranks that a replay has to be told.
fn counts(run: &Path) -> RankCounts {
    let said = events(run).into_iter().filter(|event| event["kind"] == "members");
    said.fold(RankCounts::from(1), |counts, event| {
        let members = event["members"].as_array().unwrap().len();
        counts.then(event["step"].as_u64().unwrap(), shares(&event).unwrap_or_else(|| members.into()))
    })
}

/// The shares of an event, if they are not equal.
fn shares(event: &serde_json::Value) -> Option<Shares> {
    let of: Vec<u32> = serde_json::from_value(event["shares"].clone()).ok()?;
    Shares::new(of)
}

/// How the ranks were seen, at any time.
fn samples(run: &Path) -> Vec<serde_json::Value> {
    let seen = events(run).into_iter().filter(|event| event["kind"] == "member_samples");
    seen.flat_map(|event| event["ranks"].as_array().cloned().unwrap_or_default()).collect()
}

/// Waits until the run has taken so many steps; `None` if it is completed.
#[track_caller]
fn run_with(place: &Place, count: u64) -> Option<PathBuf> {
    wait("a step", || {
        let run = run_of(place)?;
        let all = events(&run);
        let steps = all.iter().filter(|event| event["kind"] == "step");
        let has_steps = steps.filter_map(|event| event["step"].as_u64()).max() >= Some(count);
        if is_completed(&all) { Some(None) } else { has_steps.then_some(Some(run)) }
    })
}

/// Waits until exactly these ranks train and have taken a step; `None` if the run is completed before that.
/// The folder of a rank that led it may then have another name.
#[track_caller]
fn go_on(run: &Path, left: &[u64]) -> Option<()> {
    wait("the others to go on", || {
        let Some(all) = events_if_there(run) else { return Some(None) };
        let is_left = members_in(&all).pop().is_some_and(|(_, members, _)| members == left);
        // Steps of an earlier attempt say nothing of the ranks that have just met.
        let kinds = all.iter().rev().map(|event| event["kind"].as_str().unwrap());
        let is_at_work = kinds.take_while(|kind| *kind != "members").any(|kind| kind == "step");
        if is_left && is_at_work { Some(Some(())) } else { is_completed(&all).then_some(None) }
    })
}

#[test]
fn a_run_goes_on_without_ranks_that_are_killed_or_stopped_and_has_the_bits_of_its_replay() {
    let more = [&LORA[..], &SWARM].concat();
    long_enough(SHORT, |steps, all| {
        let place = Place::new();
        *all = ranks(4, training(&place, steps, &more));
        let run = run_with(&place, 2)?;
        signal("KILL", &all[3]);
        go_on(&run, &[0, 1, 2])?;
        // Nothing is heard of it, but all its connections stay.
        signal("STOP", &all[1]);
        go_on(&run, &[0, 2])?;
        signal("KILL", &all[2]);
        go_on(&run, &[0])?;
        signal("KILL", &all[1]);
        let done = ended(std::mem::take(all));
        assert_eq!(
            [done[0].code, done[1].code, done[2].code, done[3].code],
            [Some(0), None, None, None],
            "{done:?}"
        );
        let said: Vec<_> = members(&run).into_iter().map(|(_, members, lost)| (members, lost)).collect();
        assert_eq!(
            said,
            [(vec![0, 1, 2, 3], vec![]), (vec![0, 1, 2], vec![3]), (vec![0, 2], vec![1]), (vec![0], vec![2])]
        );
        let warned: Vec<String> = events(&run)
            .into_iter()
            .filter(|event| event["kind"] == "warning")
            .map(|event| event["message"].to_string())
            .collect();
        let has_warned =
            |all: [&str; 2]| warned.iter().any(|said| all.iter().all(|words| said.contains(words)));
        // Whoever notices first says so: rank 0 itself, or another one to it.
        let has_told = has_warned(["rank 3 is gone", "its connection was cut"])
            && has_warned(["rank 1 is gone", "it was silent for 10 s"])
            && has_warned(["rank 2 is gone", "rank 0 goes on alone, from step "]);
        assert!(has_told, "{warned:?}");
        let seen = |rank: u64, state: &str, drops: u64| {
            samples(&run).iter().any(|of| of["rank"] == rank && of["state"] == state && of["drops"] == drops)
        };
        assert!(seen(0, "training", 0) && seen(3, "gone", 1), "{:?}", samples(&run));
        let (_alone, one_process) = alone(counts(&run), steps, &more);
        assert_same(&run, &one_process);
        Some(())
    });
}

/// The first to come is a rank that was stopped and left out, the second one that was killed and started
/// again.
#[test]
fn ranks_that_come_back_are_let_in_at_the_border_of_a_step_and_the_run_has_the_bits_of_its_replay() {
    let more = [&LORA[..], &SWARM].concat();
    long_enough(LONG, |steps, all| {
        let place = Place::new();
        let port = port();
        let start = |rank: usize| start_rank(training(&place, steps, &more)(), rank, 3, &port);
        *all = (0..3).map(start).collect();
        let run = run_with(&place, 2)?;
        signal("STOP", &all[1]);
        go_on(&run, &[0, 2])?;
        signal("CONT", &all[1]);
        // The rank that comes is the last one to be added, under its old number.
        go_on(&run, &[0, 2, 1])?;
        signal("KILL", &all[2]);
        go_on(&run, &[0, 1])?;
        all.push(start(2));
        go_on(&run, &[0, 1, 2])?;
        let done = ended(std::mem::take(all));
        assert_eq!(
            [done[0].code, done[1].code, done[2].code, done[3].code],
            [Some(0), Some(0), None, Some(0)],
            "{done:?}"
        );
        let told = [
            "the other ranks go on without this one",
            "silent for 10 s",
            "asks the others to be let in again",
        ];
        assert!(told.iter().all(|words| done[1].err.contains(words)), "{}", done[1].err);
        let lost: Vec<Vec<u64>> = members(&run).into_iter().map(|(_, _, lost)| lost).collect();
        assert_eq!(lost, [vec![], vec![1], vec![], vec![2], vec![]]);
        let (_alone, one_process) = alone(counts(&run), steps, &more);
        assert_same(&run, &one_process);
        Some(())
    });
}

#[test]
fn a_rank_that_becomes_slow_computes_less_of_each_step_and_the_run_has_the_bits_of_its_replay() {
    // Each stop lasts until the test continues the rank, which may be late, so the limit on silence is high.
    let more = [&LORA[..], &["--swarm", "true", "--silence-s", "30"]].concat();
    long_enough(SHORT, |steps, all| {
        let place = Place::new();
        *all = ranks(2, training(&place, steps, &more));
        let run = run_with(&place, 2)?;
        // It stands still nearly all the time, so that it cannot take a step without a pause.
        wait("a smaller share", || {
            for _ in 0..4 {
                signal("STOP", &all[1]);
                sleep(Duration::from_millis(200));
                signal("CONT", &all[1]);
                sleep(Duration::from_millis(2));
            }
            let logged = events(&run);
            let said = logged.iter().filter(|event| event["kind"] == "members");
            let is_smaller = said.filter_map(shares).any(|shares| shares.counts(5) == [4, 1]);
            if is_smaller { Some(Some(())) } else { is_completed(&logged).then_some(None) }
        })?;
        let done = ended(std::mem::take(all));
        assert_eq!([done[0].code, done[1].code], [Some(0), Some(0)], "{done:?}");
        assert!(members(&run).iter().all(|(_, members, _)| *members == [0, 1]), "nobody is left out");
        let counts = counts(&run);
        assert!(counts.to_string().contains("4+1@"), "{counts}");
        let (_alone, one_process) = alone(counts, steps, &more);
        assert_same(&run, &one_process);
        Some(())
    });
}

/// The rank that comes back was killed too, and is started again as it was: nobody listens any more where its
/// launcher says.
#[test]
fn the_next_rank_takes_the_place_of_a_coordinator_that_is_killed_lets_others_in_and_has_the_same_bits() {
    let more = [&LORA[..], &SWARM].concat();
    long_enough(LONG, |steps, all| {
        let place = Place::new();
        let port = port();
        let start = |rank: usize| start_rank(training(&place, steps, &more)(), rank, 3, &port);
        *all = (0..3).map(start).collect();
        let first = run_with(&place, 4)?;
        kill(trainer_of(&first)?);
        let name = first.file_name().unwrap().to_str().unwrap();
        let hidden = place.join("runs").join(format!(".rank-1-of-{name}"));
        go_on(&hidden, &[1, 2])?;
        signal("KILL", &all[2]);
        go_on(&hidden, &[1])?;
        all.push(start(2));
        go_on(&hidden, &[1, 2])?;
        let done = ended(std::mem::take(all));
        assert_eq!([done[1].code, done[2].code, done[3].code], [Some(0), None, Some(0)], "{done:?}");
        assert!(done[1].err.contains("this rank has taken the place of the one that had"), "{}", done[1].err);
        // The run of the first one stays as it was, and the other one has its name and four more digits.
        let folders = std::fs::read_dir(place.join("runs")).unwrap().map(|run| run.unwrap().path());
        let runs: Vec<PathBuf> = folders.filter(|run| run.join("events").is_dir()).collect();
        let others: Vec<&PathBuf> = runs.iter().filter(|run| **run != first).collect();
        let [run] = others[..] else { panic!("{runs:?}") };
        let begins = first.file_name().unwrap().to_str().unwrap();
        assert!(run.file_name().unwrap().to_str().unwrap().starts_with(begins), "{runs:?}");
        let said: Vec<_> = members(run).into_iter().map(|(_, members, lost)| (members, lost)).collect();
        let change = |members: &[u64], lost: &[u64]| (members.to_vec(), lost.to_vec());
        let expected = [([0, 1, 2].as_slice(), [].as_slice()), (&[1, 2], &[0]), (&[1], &[2]), (&[1, 2], &[])];
        assert_eq!(said, expected.map(|(members, lost)| change(members, lost)));
        let (_alone, one_process) = alone(counts(run), steps, &more);
        assert_same(run, &one_process);
        Some(())
    });
}

#[test]
fn a_swarm_of_two_whose_coordinator_is_killed_ends_and_continues_with_other_ranks_and_the_same_bits() {
    let more = [&FULL[..], &SWARM].concat();
    long_enough(["40", "160", "640"], |steps, all| {
        let place = Place::new();
        *all = ranks(3, training(&place, steps, &more));
        let run = run_with(&place, 4)?;
        signal("KILL", &all[2]);
        go_on(&run, &[0, 1])?;
        kill(trainer_of(&run)?);
        let done = ended(std::mem::take(all));
        if is_completed(&events(&run)) || done[1].code == Some(0) {
            return None;
        }
        assert_eq!((done[1].code, done[2].code), (Some(5), None), "{done:?}");
        assert!(done[1].err.contains("rank 0") && done[1].err.contains("resume"), "{}", done[1].err);

        // Two ranks are gone at once.
        *all = ranks(4, || place.command(["resume", "--json", "--non-interactive"]));
        go_on(&run, &[0, 1, 2, 3])?;
        signal("KILL", &all[1]);
        signal("KILL", &all[3]);
        go_on(&run, &[0, 2])?;
        let second = ended(std::mem::take(all));
        assert_eq!((second[0].code, second[2].code), (Some(0), Some(0)), "{second:?}");
        let (_alone, one_process) = alone(counts(&run), steps, &more);
        assert_same(&run, &one_process);
        Some(())
    });
}
