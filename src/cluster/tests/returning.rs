//! Ranks that end before the run does, with agents in threads of this process: which of them are started
//! again, with what, and what they make way for.

use std::path::Path;
use std::sync::atomic::Ordering;

use sparktune_cluster::membership::messages::{Job, RankState, State};
use sparktune_cluster::membership::{Following, Launch, members, prepare};
use sparktune_cluster::{ClusterToken, Error, free_port, random_hex};

use crate::membership::{Counted, Machine, ended, job, model, never, recruit, sent_for, until, with_agents};

fn killed() -> RankState {
    RankState::Ended { code: None, said: "it trains".into() }
}

/// What the second member does, as the coordinator says.
fn state(token: &ClusterToken, ports: &[u16]) -> State {
    members("127.0.0.1", ports[0], token, never()).unwrap().remove(1).member.report.state
}

fn training() -> State {
    State::Training { run: "run".into(), rank: 1, world_size: 2 }
}

fn returning() -> State {
    State::Returning { run: "run".into(), rank: 1, world_size: 2 }
}

/// Starts a rank on the second member, and lets it go on alone.
fn start(token: &ClusterToken, ports: &[u16], job: &Job, model: &Path) -> Result<(), Error> {
    let watch = Counted::default();
    let crew = prepare(&recruit(ports[1]), token, job, &[model.to_owned()], never(), &watch)?;
    Following::let_go([crew.follow(|_, _, _| ()).unwrap()], true);
    until(|| state(token, ports) == training());
    Ok(())
}

/// Lets the rank meet the others, and waits until its agent knows it.
fn meet(machine: &Machine) {
    *machine.state.lock().unwrap() = RankState::Training;
    let looks = machine.looks.load(Ordering::SeqCst);
    until(|| machine.looks.load(Ordering::SeqCst) > looks + 2);
}

#[test]
fn when_the_run_has_ended_a_rank_that_waits_is_stopped_and_one_that_trains_is_let_go() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        // A job of one that comes late: the third of three.
        let job = Job { rank: 2, world_size: 3, ..job(model.path()) };
        let all = [
            (RankState::Training, false, false),
            (RankState::Waiting, true, false),
            (RankState::Waiting, false, true),
        ];
        for (rank, goes_on, is_in_vain) in all {
            *machine.state.lock().unwrap() = rank;
            let watch = Counted::default();
            let places = [model.path().to_owned()];
            let crew = prepare(&recruit(ports[1]), &token, &job, &places, never(), &watch).unwrap();
            let busy = State::Training { run: "run".into(), rank: 2, world_size: 3 };
            until(|| state(&token, ports) == busy);
            Following::let_go([crew.follow(|_, _, _| ()).unwrap()], goes_on);
            let is_stopped = || machine.stops.load(Ordering::SeqCst) == 1;
            if is_in_vain {
                until(is_stopped);
            } else {
                let looks = machine.looks.load(Ordering::SeqCst);
                until(|| machine.looks.load(Ordering::SeqCst) > looks + 20);
                assert!(!is_stopped(), "{goes_on}");
            }
            *machine.state.lock().unwrap() = ended(0);
            until(|| state(&token, ports) == State::Idle);
        }
    });
}

#[test]
fn a_rank_of_a_swarm_that_is_killed_is_started_again_and_trains_when_it_has_met_the_others() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        let job = Job { swarm: true, ..job(model.path()) };
        start(&token, ports, &job, model.path()).unwrap();
        meet(&machine);
        for again in 1..=2 {
            *machine.state.lock().unwrap() = killed();
            until(|| state(&token, ports) == returning());
            until(|| machine.started().len() == 1 + again as usize);
            let kept = machine.kept.lock().unwrap().clone().unwrap();
            assert_eq!(
                (&kept.job, kept.restarts, &kept.folders[..]),
                (&job, again, &[model.path().into()][..])
            );
            assert_eq!(state(&token, ports), returning(), "it waits at the door");
            meet(&machine);
            until(|| state(&token, ports) == training());
        }
        assert_eq!(machine.stops.load(Ordering::SeqCst), 0);
        // The run is complete, which the rank says by giving up what it was started with.
        *machine.kept.lock().unwrap() = None;
        *machine.state.lock().unwrap() = ended(0);
        until(|| state(&token, ports) == State::Idle);
    });
}

#[test]
fn a_rank_is_not_started_again_without_a_swarm_or_before_it_has_met_the_others_or_after_an_error_of_its_own()
{
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        let cases = [(false, true, killed()), (true, false, killed()), (true, true, ended(3))];
        for (at, (swarm, has_met, end)) in cases.into_iter().enumerate() {
            start(&token, ports, &Job { swarm, ..job(model.path()) }, model.path()).unwrap();
            if has_met {
                meet(&machine);
            }
            if end == ended(3) {
                *machine.kept.lock().unwrap() = None;
            }
            *machine.state.lock().unwrap() = end;
            until(|| state(&token, ports) != training());
            assert_eq!(state(&token, ports), State::Idle, "case {at}");
            assert_eq!((machine.started().len(), machine.kept.lock().unwrap().clone()), (at + 1, None));
        }
    });
}

#[test]
fn a_rank_that_waits_to_come_back_makes_way_for_other_work() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        for (at, is_at_door) in [false, true].into_iter().enumerate() {
            let (before, stops) = (machine.started().len(), machine.stops.load(Ordering::SeqCst));
            start(&token, ports, &Job { swarm: true, ..job(model.path()) }, model.path()).unwrap();
            meet(&machine);
            if !is_at_door {
                // It will be started again so late that other work comes before.
                machine.kept.lock().unwrap().as_mut().unwrap().restarts = 11;
            }
            *machine.state.lock().unwrap() = killed();
            until(|| state(&token, ports) == returning());
            if is_at_door {
                until(|| machine.started().len() == before + 2);
            }
            // The run of the others is over, and another one begins at once.
            assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 0);
            assert!(!machine.kept.lock().unwrap().as_ref().is_some_and(|kept| kept.job.swarm), "case {at}");
            // Who started it is gone while it waits, so it is told to end.
            let of_other_work = stops + u64::from(is_at_door) + 1;
            until(|| machine.stops.load(Ordering::SeqCst) == of_other_work);
            until(|| state(&token, ports) == State::Idle);
        }
    });
}

#[test]
fn a_rank_still_comes_back_if_the_work_that_it_made_way_for_does_not_begin() {
    let (token, model) = (ClusterToken::generate(), model());
    let machine = Machine::with(&[model.path()]);
    with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
        start(&token, ports, &Job { swarm: true, ..job(model.path()) }, model.path()).unwrap();
        meet(&machine);
        *machine.state.lock().unwrap() = killed();
        until(|| state(&token, ports) == returning());
        // Nobody listens where the other member of that work is.
        let others = [recruit(ports[1]), recruit(free_port().unwrap())].concat();
        let work = Job { world_size: 3, ..job(model.path()) };
        let places = [model.path().to_owned()];
        assert!(prepare(&others, &token, &work, &places, never(), &Counted::default()).is_err());
        until(|| machine.started().len() == 2);
        assert!(machine.kept.lock().unwrap().as_ref().unwrap().job.swarm);
    });
}

#[test]
fn an_agent_that_is_started_again_starts_the_rank_that_ended_with_its_machine_but_not_without_end() {
    let (token, model) = (ClusterToken::generate(), model());
    for (again, is_started) in [(0, true), (12, false)] {
        let machine = Machine::with(&[model.path()]);
        let job = Job { swarm: true, ..job(model.path()) };
        let first = [127, 0, 0, 1].into();
        let kept = Launch {
            member: machine.id.clone(),
            job,
            first,
            folders: vec![model.path().into()],
            restarts: again,
        };
        *machine.kept.lock().unwrap() = Some(kept.clone());
        *machine.state.lock().unwrap() = killed();
        with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
            if is_started {
                until(|| machine.started().len() == 1);
                assert_eq!(*machine.kept.lock().unwrap(), Some(Launch { restarts: 1, ..kept }));
                until(|| state(&token, ports) == returning());
            } else {
                until(|| state(&token, ports) == State::Idle && machine.kept.lock().unwrap().is_none());
                assert!(machine.started().is_empty());
            }
        });
    }
}

/// Rank 0 would never end here, and a run of no such name would be shown to all members.
#[test]
fn an_agent_that_is_started_again_starts_no_rank_of_another_membership_or_a_job_that_no_message_brought() {
    let (token, model) = (ClusterToken::generate(), model());
    let job = Job { swarm: true, ..job(model.path()) };
    let cases = [
        (Job { rank: 0, ..job.clone() }, true),
        (Job { run: "\u{1b}[2J".into(), ..job.clone() }, true),
        (job, false),
    ];
    for (job, is_of_member) in cases {
        let machine = Machine::with(&[model.path()]);
        let member = if is_of_member { machine.id.clone() } else { random_hex::<16>() };
        let first = [127, 0, 0, 1].into();
        *machine.kept.lock().unwrap() = Some(Launch { member, job, first, folders: Vec::new(), restarts: 0 });
        *machine.state.lock().unwrap() = killed();
        with_agents(&token, &[&Machine::with(&[]), &machine], |ports| {
            let told = || members("127.0.0.1", ports[0], &token, never()).unwrap().remove(1).member.report;
            until(|| told().free_bytes > 0);
            assert_eq!(told().state, State::Idle);
            assert_eq!(sent_for(&token, ports[1], model.path()).unwrap(), 0, "it takes other work");
        });
        assert_eq!(machine.started().len(), 1);
    }
}
