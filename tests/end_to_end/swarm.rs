//! A swarm of ranks, as processes on loopback, whose members are killed, stopped and continued, and as
//! processes in network namespaces, whose links are cut and mended: the run goes on with those that are left,
//! and one process that is told who they were has the same bits. Where no namespaces can be made, that test
//! says that it was skipped.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use sparktune_cluster::lab::Lab;
use sparktune_cluster::{RankCounts, Shares};

use crate::cluster::{
    FULL, LORA, alone, as_rank, assert_same, ended, long_enough, on_machine, port, ranks, run_of, signal,
    start_rank, training,
};
use crate::kills::{kill, trainer_of};
use crate::runs::wait;
use crate::sparktune::{Place, events, events_if_there, is_completed};

/// A rank that gets no processor for some seconds is not one that was stopped.
pub(crate) const SWARM: [&str; 4] = ["--swarm", "true", "--silence-s", "10"];

/// Lengths of runs, of which the first is long enough on a machine without other load.
pub(crate) const SHORT: [&str; 3] = ["60", "240", "960"];
const LONG: [&str; 3] = ["100", "300", "900"];
const LONGER: [&str; 3] = ["240", "480", "960"];

/// Who trains from which step on, of all attempts, as the events say it: the step, the members, who is lost.
/// That their shares change says nothing of them.
pub(crate) fn members(run: &Path) -> Vec<(u64, Vec<u64>, Vec<u64>)> {
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
pub(crate) fn counts(run: &Path) -> RankCounts {
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

/// Tries a test with longer and longer runs, as [`long_enough`] does, and with a longer and longer limit on
/// silence: nobody knows how long a busy machine keeps a rank waiting for a processor. The test is given the
/// length and the flags of a run. It also returns `None` if a rank was lost that it had not cut off or
/// stopped.
#[track_caller]
fn patient_enough(lengths: [&str; 3], test: impl Fn(&str, &[&str], &mut Vec<Child>) -> Option<()>) {
    const SILENCES: [&str; 3] = ["4", "10", "30"];
    long_enough(lengths, |steps, all| {
        let silence = SILENCES[lengths.iter().position(|length| *length == steps).unwrap()];
        let more = [&LORA[..], &["--swarm", "true", "--silence-s", silence]].concat();
        test(steps, &more, all)
    });
}

/// Whether a rank other than these was lost.
fn loses_another(events: &[serde_json::Value], than: &[u64]) -> bool {
    members_in(events).into_iter().any(|(_, _, lost)| lost.iter().any(|rank| !than.contains(rank)))
}

/// Asserts that rank 0 of three was lost, then rank 2 of the two that went on, and that the latter came back.
#[track_caller]
pub(crate) fn assert_comes_back_to_another(run: &Path) {
    let said: Vec<_> = members(run).into_iter().map(|(_, members, lost)| (members, lost)).collect();
    let change = |members: &[u64], lost: &[u64]| (members.to_vec(), lost.to_vec());
    let expected = [([0, 1, 2].as_slice(), [].as_slice()), (&[1, 2], &[0]), (&[1], &[2]), (&[1, 2], &[])];
    assert_eq!(said, expected.map(|(members, lost)| change(members, lost)));
}

/// Whether ranks were lost more often than a test has killed or stopped one: on a busy machine, a rank may
/// get no processor for longer than it may be silent.
pub(crate) fn loses_more(run: &Path, than: usize) -> bool {
    members(run).iter().map(|(_, _, lost)| lost.len()).sum::<usize>() > than
}

/// Whether a run has come to an end, planned or not.
fn is_finished(events: &[serde_json::Value]) -> bool {
    events.last().is_some_and(|event| event["kind"] == "run_finished")
}

/// The folders of all runs and ranks.
fn folders(place: &Place) -> Vec<PathBuf> {
    let all = std::fs::read_dir(place.join("runs")).unwrap().map(|run| run.unwrap().path());
    all.filter(|run| run.join("events").is_dir()).collect()
}

/// The folder of a rank while it trains in the run that rank 0 has here.
fn hidden(first: &Path, rank: usize) -> PathBuf {
    let name = first.file_name().unwrap().to_str().unwrap();
    first.with_file_name(format!(".rank-{rank}-of-{name}"))
}

/// The only folder besides that of rank 0: the run of the rank that has taken its place, with the same name
/// and four more digits.
#[track_caller]
fn taken_over(place: &Place, first: &Path) -> PathBuf {
    let runs = folders(place);
    let others: Vec<&PathBuf> = runs.iter().filter(|run| run.as_path() != first).collect();
    let [run] = others[..] else { panic!("{runs:?}") };
    let begins = first.file_name().unwrap().to_str().unwrap();
    assert!(run.file_name().unwrap().to_str().unwrap().starts_with(begins), "{runs:?}");
    run.clone()
}

/// The host and port at which a rank that has taken rank 0's place lets in ranks that were never there.
fn door(run: &Path) -> Option<(String, String)> {
    events_if_there(run)?.iter().find_map(|event| {
        let (_, said) = event["message"].as_str()?.split_once("MASTER_ADDR=")?;
        let (host, port) = said.split_once(" and MASTER_PORT=")?;
        Some((host.to_owned(), port.chars().take_while(char::is_ascii_digit).collect()))
    })
}

/// The process that trains as rank 0, which outlives the one that started it. It ends with the test.
struct Trainer<'a>(&'a Path);

impl Drop for Trainer<'_> {
    fn drop(&mut self) {
        if let Some(process) = trainer_of(self.0) {
            kill(process);
        }
    }
}

/// Waits until the run has taken so many steps; `None` if it is over.
#[track_caller]
pub(crate) fn run_with(
    place: &Place,
    count: u64,
    is_over: impl Fn(&[serde_json::Value]) -> bool,
) -> Option<PathBuf> {
    wait("a step", || {
        let run = run_of(place)?;
        let all = events(&run);
        let steps = all.iter().filter(|event| event["kind"] == "step");
        let has_steps = steps.filter_map(|event| event["step"].as_u64()).max() >= Some(count);
        if is_over(&all) { Some(None) } else { has_steps.then_some(Some(run)) }
    })
}

/// Waits until exactly these ranks train and have taken a step; `None` if the run is completed before that.
/// The folder of a rank that led it may then have another name.
#[track_caller]
pub(crate) fn go_on(run: &Path, left: &[u64]) -> Option<()> {
    go_on_unless(run, left, is_completed)
}

/// The same in [`patient_enough`], where only these ranks are cut off or stopped.
#[track_caller]
fn go_on_without(lost: &[u64], run: &Path, left: &[u64]) -> Option<()> {
    go_on_unless(run, left, |events| is_finished(events) || loses_another(events, lost))
}

#[track_caller]
fn go_on_unless(run: &Path, left: &[u64], is_over: impl Fn(&[serde_json::Value]) -> bool) -> Option<()> {
    wait("the others to go on", || {
        let Some(all) = events_if_there(run) else { return Some(None) };
        let is_left = members_in(&all).pop().is_some_and(|(_, members, _)| members == left);
        // Steps of an earlier attempt say nothing of the ranks that have just met.
        let kinds = all.iter().rev().map(|event| event["kind"].as_str().unwrap());
        let is_at_work = kinds.take_while(|kind| *kind != "members").any(|kind| kind == "step");
        if is_left && is_at_work { Some(Some(())) } else { is_over(&all).then_some(None) }
    })
}

#[test]
fn a_run_goes_on_without_ranks_that_are_killed_or_stopped_and_has_the_bits_of_its_replay() {
    let more = [&LORA[..], &SWARM].concat();
    long_enough(SHORT, |steps, all| {
        let place = Place::new();
        *all = ranks(4, training(&place, steps, &more));
        let run = run_with(&place, 2, is_completed)?;
        signal("KILL", &all[3]);
        go_on(&run, &[0, 1, 2])?;
        // Nothing is heard of it, but all its connections stay.
        signal("STOP", &all[1]);
        go_on(&run, &[0, 2])?;
        signal("KILL", &all[2]);
        go_on(&run, &[0])?;
        signal("KILL", &all[1]);
        let done = ended(std::mem::take(all));
        if loses_more(&run, 3) {
            return None;
        }
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
        let run = run_with(&place, 2, is_completed)?;
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
        if loses_more(&run, 2) {
            return None;
        }
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
        let run = run_with(&place, 2, is_completed)?;
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
        let first = run_with(&place, 4, is_completed)?;
        kill(trainer_of(&first)?);
        let hidden = hidden(&first, 1);
        go_on(&hidden, &[1, 2])?;
        signal("KILL", &all[2]);
        go_on(&hidden, &[1])?;
        all.push(start(2));
        go_on(&hidden, &[1, 2])?;
        let done = ended(std::mem::take(all));
        let run = taken_over(&place, &first);
        if loses_more(&run, 2) {
            return None;
        }
        assert_eq!([done[1].code, done[2].code, done[3].code], [Some(0), None, Some(0)], "{done:?}");
        assert!(done[1].err.contains("this rank has taken the place of the one that had"), "{}", done[1].err);
        assert_comes_back_to_another(&run);
        let (_alone, one_process) = alone(counts(&run), steps, &more);
        assert_same(&run, &one_process);
        Some(())
    });
}

#[test]
fn a_coordinator_that_is_stopped_loses_its_place_ends_when_it_continues_and_the_run_has_the_same_bits() {
    patient_enough(SHORT, |steps, more, all| {
        let place = Place::new();
        *all = ranks(3, training(&place, steps, more));
        let first = run_with(&place, 2, is_finished)?;
        let _trainer = Trainer(&first);
        let trainer = trainer_of(&first)?;
        crate::kills::signal("STOP", trainer);
        go_on_without(&[0], &hidden(&first, 1), &[1, 2])?;
        crate::kills::signal("CONT", trainer);
        let done = ended(std::mem::take(all));
        if folders(&place).iter().any(|run| loses_another(&events(run), &[0])) {
            return None;
        }
        assert_eq!([done[0].code, done[1].code, done[2].code], [Some(5), Some(0), Some(0)], "{done:?}");
        let all_of_first = events(&first);
        let reason = all_of_first.last().unwrap()["reason"].as_str().unwrap();
        assert!(reason.starts_with("1 of 3 ranks are left"), "{reason}");
        let run = taken_over(&place, &first);
        let said: Vec<_> = members(&run).into_iter().map(|(_, members, lost)| (members, lost)).collect();
        assert_eq!(said, [(vec![0, 1, 2], vec![]), (vec![1, 2], vec![0])]);
        let (_alone, one_process) = alone(counts(&run), steps, more);
        assert_same(&run, &one_process);
        Some(())
    });
}

/// First the link of a rank is cut, then that of the coordinator. When both have ended, their links are
/// mended, and they are started again: the rank as it was, and the coordinator's machine as another rank.
#[test]
fn ranks_and_a_coordinator_that_are_cut_off_end_and_come_back_and_the_run_has_the_bits_of_its_replay() {
    patient_enough(LONGER, |steps, more, all| {
        // The first machine connects the others and has no rank, so that each rank can be cut off.
        let Some(lab) = Lab::for_test(5, 1) else { return Some(()) };
        let place = Place::new();
        let train = training(&place, steps, more);
        let start = |rank: usize, machine: usize, first: &(String, String)| {
            let mut command = as_rank(train(), rank, (rank + 1).max(4), (&first.0, &first.1));
            command.env("SPARKTUNE_CLUSTER_TOKEN", "ranks of one machine in network namespaces");
            on_machine(&lab, machine, &command).spawn().unwrap()
        };
        let launched = (Lab::address(1).to_string(), "29500".to_owned());
        *all = (0..4).map(|rank| start(rank, rank + 1, &launched)).collect();
        let first = run_with(&place, 2, is_finished)?;
        let _trainer = Trainer(&first);
        let hidden = hidden(&first, 1);
        let lost = [3, 0];
        lab.cut(4).unwrap();
        go_on_without(&lost, &first, &[0, 1, 2])?;
        lab.cut(1).unwrap();
        go_on_without(&lost, &hidden, &[1, 2])?;
        wait("the rank that is cut off to end", || all[3].try_wait().unwrap());
        // The output of the process that started the coordinator is not read yet, so its events are.
        wait("the coordinator to end", || is_finished(&events(&first)).then_some(()));
        for machine in [4, 1] {
            lab.mend(machine).unwrap();
        }
        all.push(start(3, 4, &launched));
        go_on_without(&lost, &hidden, &[1, 2, 3])?;
        all.push(start(4, 1, &door(&hidden)?));
        go_on_without(&lost, &hidden, &[1, 2, 3, 4])?;
        let done = ended(std::mem::take(all));
        if folders(&place).iter().any(|run| loses_another(&events(run), &lost)) {
            return None;
        }
        let codes: Vec<_> = done.iter().map(|done| done.code).collect();
        assert_eq!(codes, [Some(5), Some(0), Some(0), Some(5), Some(0), Some(0)], "{done:?}");
        let of_rank = &done[3].err;
        assert!(
            of_rank.contains("stopped: rank 0 (") && of_rank.contains("is gone: it was silent for"),
            "{of_rank}"
        );
        let all_of_first = events(&first);
        let reason = all_of_first.last().unwrap()["reason"].as_str().unwrap();
        assert!(reason.starts_with("1 of 3 ranks are left"), "{reason}");
        let run = taken_over(&place, &first);
        let said: Vec<_> = members(&run).into_iter().map(|(_, members, lost)| (members, lost)).collect();
        let expected = [
            (vec![0, 1, 2, 3], vec![]),
            (vec![0, 1, 2], vec![3]),
            (vec![1, 2], vec![0]),
            (vec![1, 2, 3], vec![]),
            (vec![1, 2, 3, 4], vec![]),
        ];
        assert_eq!(said, expected);
        let (_alone, one_process) = alone(counts(&run), steps, more);
        assert_same(&run, &one_process);
        Some(())
    });
}

#[test]
fn a_swarm_of_two_whose_coordinator_is_killed_ends_and_continues_with_other_ranks_and_the_same_bits() {
    let more = [&FULL[..], &SWARM].concat();
    long_enough(["40", "160", "640"], |steps, all| {
        let place = Place::new();
        *all = ranks(3, training(&place, steps, &more));
        let run = run_with(&place, 4, is_completed)?;
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
