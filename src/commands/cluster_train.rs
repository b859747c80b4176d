//! `train --cluster` and `resume --cluster`: one run on all members.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Signal, getpid, kill_process};
use sparktune_app::cluster::Room;
use sparktune_app::cluster::job::Members;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::job::Job;
use sparktune_app::launch::Conditions;
use sparktune_app::program::Program;
use sparktune_base::units::counted;
use sparktune_cluster::membership::Cancelled;
use sparktune_plan::{Answer, Answers, Origin, Plan, resolve};
use sparktune_runlog::{Attempt, Lease, MemberState, RunDir, RunView};
use sparktune_tui::output::note;
use sparktune_tui::progress::OnStderr;

use crate::attempt::{Display, run_attempt};
use crate::interrupt::Interrupts;
use crate::rank::placement;

/// Refuses `--cluster` in a process that a launcher started as one of its ranks.
///
/// # Errors
/// It is one.
pub(crate) fn refuse_a_launcher_with(on_cluster: bool) -> Result<(), Failure> {
    if on_cluster && placement()?.is_some() {
        let text = "a launcher started this process as one of its ranks, and --cluster starts ranks itself";
        return Err(Failure::usage(text).hint("Leave out --cluster, or start it without the launcher"));
    }
    Ok(())
}

/// Asks who is there, before anything is prepared.
///
/// # Errors
/// This machine is no member, the members are busy, or there are no others.
pub(crate) fn gather(program: &Program, interrupts: &Interrupts) -> Result<Members, Failure> {
    let listener = OnStderr::new(interrupts.flag());
    let members = Members::gather(program, &listener, cancelled(interrupts))?;
    note(&format!("training on {}", counted(members.world_size() as u64, "machine")));
    Ok(members)
}

fn cancelled(interrupts: &Interrupts) -> Cancelled {
    let flag = interrupts.flag();
    Arc::new(move || flag.load(Ordering::SeqCst))
}

/// Plans enough micro-batches for every machine, unless the user has said how many: a rank without one would
/// have nothing to do.
///
/// # Errors
/// There is no such plan.
pub(crate) fn with_work_for_all(job: Job, answers: &Answers, members: &Members) -> Result<Job, Failure> {
    let batch = job.plan.batch;
    let [packs, steps] = [batch.micro_batch_packs, batch.grad_accum_steps];
    let Some(answers) = enough_for(members.world_size(), packs, steps, answers) else { return Ok(job) };
    note(&format!(
        "each optimizer step has {} micro-batches, one per machine, where one machine alone would have {steps}",
        members.world_size()
    ));
    Ok(Job { plan: resolve(&answers, &job.facts)?, ..job })
}

/// Returns answers with a micro-batch for each rank, if the planned number of them does not suffice and was
/// not answered. Micro-batches of several packs become smaller, so that a step keeps its packs.
fn enough_for(ranks: usize, packs: u32, steps: u32, answers: &Answers) -> Option<Answers> {
    if answers.grad_accum_steps.is_some() || steps as usize >= ranks {
        return None;
    }
    let by_default = |value| Some(Answer::new(value, Origin::BuiltIn));
    let packs = (packs * steps).div_ceil(ranks as u32);
    Some(Answers {
        grad_accum_steps: by_default(ranks as u32),
        micro_batch_packs: answers.micro_batch_packs.clone().or_else(|| by_default(packs)),
        ..answers.clone()
    })
}

/// Returns whether the newest attempt trains in a swarm.
fn is_swarm_at_work(run: &RunDir) -> bool {
    let is_swarm = || Plan::from_toml(&run.read_plan().ok()?, "plan.toml").ok().map(|plan| plan.ranks.swarm);
    is_swarm() == Some(true)
        && RunView::glance(run).is_ok_and(|view| {
            view.members.is_some() || view.attempts.back().is_some_and(|attempt| attempt.last_step > 0)
        })
}

/// Returns whether the ranks of this attempt let in another one.
fn room(run: &RunDir, attempt: u32, micro_batches: usize) -> Room {
    let is_held = Lease::is_held(run).unwrap_or(false);
    match RunView::glance(run) {
        Ok(view) if is_held => room_in(&view, attempt, micro_batches),
        _ => Room::Closed,
    }
}

fn room_in(view: &RunView, attempt: u32, micro_batches: usize) -> Room {
    let takes_steps =
        |newest: &Attempt| newest.number == attempt && newest.last_step > 0 && newest.finished.is_none();
    let is_after_training = view.phase.as_ref().is_some_and(|of| ["mtp", "export"].contains(&&*of.phase));
    if is_after_training || !view.attempts.back().is_some_and(takes_steps) {
        return Room::Closed;
    }
    // In a long run, the change of the members may be far from the end of the log.
    let sampled = view
        .member_samples
        .as_ref()
        .map(|samples| samples.ranks.iter().filter(|rank| rank.state != MemberState::Gone).count());
    let ranks = sampled.or_else(|| Some(view.members.as_ref()?.members.len()));
    match ranks {
        Some(ranks) if ranks >= micro_batches => Room::NoWork { micro_batches },
        Some(_) => Room::Free,
        None => Room::Closed,
    }
}

/// Returns a function that does this only at its first call. Members often end together, and after a second
/// signal the command would not wait for its trainer.
fn once(act: impl Fn()) -> impl Fn() {
    let is_done = AtomicBool::new(false);
    move || {
        if !is_done.swap(true, Ordering::SeqCst) {
            act();
        }
    }
}

/// Starts the ranks of all members, and then the next attempt of a run as rank 0, which is followed as ever.
///
/// # Errors
/// A member cannot train, or the trainer cannot be started or followed.
pub(crate) fn run_on_members(
    program: &Program,
    run: &RunDir,
    members: &Members,
    conditions: Conditions,
    display: Display,
    interrupts: &Interrupts,
) -> Result<Exit, Failure> {
    let listener = OnStderr::new(interrupts.flag());
    let started = members.start(program, run, &listener, cancelled(interrupts))?;
    let environment = started.environment.clone();
    let attempt = run.next_attempt()?;
    let plan = Plan::from_toml(&run.read_plan()?, "plan.toml")?;
    let micro_batches = plan.batch.grad_accum_steps as usize;
    let [of_run, of_newcomers] = [(); 2].map(|()| run.clone());
    // A full screen shows who trains. What is said meanwhile is shown when it is left.
    let kept = Arc::new(Mutex::new((display == Display::Screen).then(Vec::new)));
    let [of_ended, of_others] = [(); 2].map(|()| {
        let kept = Arc::clone(&kept);
        move |text: &str| match &mut *kept.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(lines) => lines.push(text.to_owned()),
            None => note(text),
        }
    });
    // Before the others have met, only rank 0 waits for one that has ended; like Ctrl-C, this ends it. A
    // swarm that has begun goes on.
    let end = once(|| {
        let _ = kill_process(getpid(), Signal::INT);
    });
    let ended = move |text: &str| {
        of_ended(text);
        if !is_swarm_at_work(&of_run) {
            end();
        }
    };
    let is_stopped = interrupts.flag();
    let room = move || {
        if is_stopped.load(Ordering::SeqCst) {
            return Room::Closed;
        }
        room(&of_newcomers, attempt, micro_batches)
    };
    let ranks = started.follow(ended, room, of_others)?;
    let done = run_attempt(program, run, Conditions { environment, ..conditions }, display, interrupts);
    let lines = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
    lines.into_iter().flatten().for_each(|line: String| note(&line));
    ranks.let_go(Lease::is_held(run).unwrap_or(true));
    done
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use sparktune_runlog::{
        Event, Kind, MemberSample, MemberSamples, Members, Phase, RunFinished, RunStarted, Step,
    };

    use super::*;

    #[test]
    fn every_machine_gets_a_micro_batch_where_the_user_does_not_say_how_many() {
        let planned = |ranks, packs, steps, answers: &Answers| {
            let enough = enough_for(ranks, packs, steps, answers)?;
            Some([enough.micro_batch_packs, enough.grad_accum_steps].map(|answer| answer.unwrap().value))
        };
        let none = Answers::default();
        assert_eq!(planned(2, 1, 1, &none), Some([1, 2]), "a pack is not shared");
        assert_eq!(planned(2, 4, 1, &none), Some([2, 2]));
        assert_eq!(planned(3, 4, 2, &none), Some([3, 3]));
        assert_eq!([planned(2, 1, 2, &none), planned(2, 4, 16, &none)], [None; 2]);
        let four = Answers { micro_batch_packs: Some(Answer::flag(4)), ..Answers::default() };
        assert_eq!(planned(2, 4, 1, &four), Some([4, 2]));
        let one = Answers { grad_accum_steps: Some(Answer::flag(1)), ..Answers::default() };
        assert_eq!(planned(2, 1, 1, &one), None);
    }

    #[test]
    fn others_are_let_in_while_this_attempt_takes_steps_with_work_for_them() {
        let micro_batches = 3;
        let (mut view, mut seq) = (RunView::default(), 0);
        let mut log = |kind: Kind| {
            seq += 1;
            view.apply(&Event { attempt: 1, seq, time_us: 0, kind });
            (room_in(&view, 1, micro_batches), room_in(&view, 2, micro_batches))
        };
        let step = |step| Kind::Step(Step { step, ..Step::default() });
        let phase = |phase: &str| Kind::Phase(Phase { phase: phase.into(), detail: None });
        let members =
            |members: &[usize]| Kind::Members(Members { members: members.to_vec(), ..Members::default() });
        let closed = (Room::Closed, Room::Closed);
        let no_work = (Room::NoWork { micro_batches }, Room::Closed);
        assert_eq!(log(Kind::RunStarted(RunStarted::default())), closed);
        assert_eq!(log(members(&[0, 1])), closed);
        assert_eq!(log(step(1)), (Room::Free, Room::Closed));
        assert_eq!(log(members(&[0, 1, 2])), no_work);
        assert_eq!(log(members(&[0, 2])), (Room::Free, Room::Closed));
        let rank = |state| MemberSample { state, ..MemberSample::default() };
        let ranks = [MemberState::Training, MemberState::Healing, MemberState::Silent, MemberState::Gone];
        let sampled = |count: usize| MemberSamples {
            step: 2,
            ranks: ranks[4 - count..].iter().map(|state| rank(*state)).collect(),
        };
        assert_eq!(log(Kind::MemberSamples(sampled(4))), no_work);
        assert_eq!(log(Kind::MemberSamples(sampled(3))), (Room::Free, Room::Closed));
        for after in ["mtp", "export"] {
            assert_eq!(log(phase(after)), closed);
            assert_eq!(log(phase("train")), (Room::Free, Room::Closed));
        }
        assert_eq!(log(Kind::RunFinished(RunFinished::default())), closed);
    }

    #[test]
    fn members_that_end_together_send_one_signal() {
        let sent = AtomicUsize::new(0);
        let end = once(|| {
            sent.fetch_add(1, Ordering::SeqCst);
        });
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(&end);
            }
        });
        assert_eq!(sent.load(Ordering::SeqCst), 1);
    }
}
