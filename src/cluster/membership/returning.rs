//! If a rank of a swarm ends before the run does, its agent starts it again as it was. It finds the others as
//! any rank does that is started again: at the door of the rank that coordinates them.
//!
//! Only its agent can start it: the program that started the run may have ended, and so may rank 0. Only the
//! rank knows why it ends. One that ends for good (the run is complete or was stopped, or an error of its own
//! would come again) removes its [`Launch`], which its agent keeps. After any other end the launch is still
//! there: after a signal, the end of the machine, or the loss of others who may go on. An agent that finds a
//! launch when it starts does the same.

use std::time::{Duration, Instant};

use super::agent::{Agent, Shared, lock};
use super::launch::{Launch, Rank};
use super::messages::{Job, RankState, State};

/// The pause before a rank is started again for the first time, in which the others notice that it is gone.
/// Each further one is four times as long, up to the longest, because the others have to meet again for it.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(900);
/// How often a rank is started again: for about two hours, if each ends at once.
const MOST_RESTARTS: u32 = 12;
/// One that has trained for so long is as good as new.
const LONG: Duration = Duration::from_secs(3600);

/// Returns the pause before a rank is started again, for the first time with 1; `None` if that was often
/// enough.
fn pause(restarts: u32) -> Option<Duration> {
    let longer = 4_u32.saturating_pow(restarts.saturating_sub(1));
    (restarts <= MOST_RESTARTS).then(|| FIRST_PAUSE.saturating_mul(longer).min(LONGEST_PAUSE))
}

impl Shared<'_> {
    /// Returns what the host keeps. A job that no message could have brought says nothing, nor does that of
    /// another membership.
    fn kept(&self) -> Option<Launch> {
        let Agent { host, introduction, .. } = self.agent;
        host.kept().filter(|launch| launch.member == introduction.id && launch.job.check().is_ok())
    }

    /// Looks for a rank that an earlier agent has started, which may still train, or may have ended with that
    /// agent.
    pub(super) fn look_for_earlier_rank(&self) {
        let Some(Launch { job: Job { run, rank, world_size, .. }, .. }) = self.kept() else {
            return;
        };
        *lock(&self.work) = State::Training { run, rank, world_size };
        *lock(&self.rank) = Rank { met: Some(Instant::now()), ..Rank::default() };
    }

    /// Follows what becomes of the rank: frees the place for work when it has ended for good, and otherwise
    /// starts it again when that is due.
    pub(super) fn settle(&self) {
        let mut work = lock(&self.work);
        let (run, rank, world_size) = match &*work {
            State::Training { run, rank: rank @ 1.., world_size }
            | State::Returning { run, rank, world_size } => (run.clone(), *rank, *world_size),
            _ => return,
        };
        let changed = self.changed(&run, &mut lock(&self.rank));
        let Some((next, said)) = changed else { return };
        *work = match next {
            Next::Nothing => State::Idle,
            Next::Training => State::Training { run, rank, world_size },
            Next::Returning => State::Returning { run, rank, world_size },
        };
        drop(work);
        (self.agent.notice)(&said);
    }

    /// Returns what this member does from now on, and what has happened, if anything has.
    fn changed(&self, run: &str, rank: &mut Rank) -> Option<(Next, String)> {
        let host = self.agent.host;
        if let Some((_, launch)) = rank.due.take_if(|(due, _)| *due <= Instant::now()) {
            return Some(match host.start(&launch) {
                Ok(number) => {
                    *rank = Rank::started(number);
                    (Next::Returning, format!("the rank of {run} is started again"))
                }
                Err(why) => (Next::Nothing, format!("the rank of {run} cannot be started again: {why}")),
            });
        }
        if rank.due.is_some() {
            return None;
        }
        let (code, said) = match host.look(rank.number) {
            RankState::Ended { code, said } => (code, said),
            RankState::Training if rank.met.is_none() => {
                rank.met = Some(Instant::now());
                return Some((Next::Training, format!("the rank of {run} has met the others")));
            }
            RankState::Waiting | RankState::Training => return None,
        };
        let ended = match code {
            Some(0) => "has ended".to_owned(),
            Some(code) => format!("has ended with exit code {code}: {said}"),
            None => "was ended by a signal, or with its machine".to_owned(),
        };
        let launch = self.launch_again(rank);
        let again = launch.and_then(|launch| Some((pause(launch.restarts)?, launch)));
        let Some((pause, launch)) = again else {
            host.forget_launch();
            return Some((Next::Nothing, format!("the rank of {run} {ended}")));
        };
        rank.due = Some((Instant::now() + pause, launch));
        let seconds = pause.as_secs();
        Some((
            Next::Returning,
            format!("the rank of {run} is started again in {seconds} s, because it {ended}"),
        ))
    }

    /// Returns with what a rank that has ended is started again, if it can come back.
    fn launch_again(&self, ended: &Rank) -> Option<Launch> {
        let kept = self.kept().filter(|launch| launch.job.swarm)?;
        // The others do not begin without a rank that has never met them.
        let was_there = ended.met.is_some() || kept.restarts > 0;
        let has_trained_long = ended.met.is_some_and(|met| met.elapsed() >= LONG);
        let before = if has_trained_long { 0 } else { kept.restarts };
        was_there.then_some(Launch { restarts: before + 1, ..kept })
    }

    /// Makes way for other work. Returns false if the rank has met the others meanwhile and trains: to stop
    /// it would stop the run.
    pub(super) fn call_off_return(&self) -> bool {
        let mut rank = lock(&self.rank);
        let host = self.agent.host;
        if rank.due.take().is_none() {
            if host.look(rank.number) == RankState::Training {
                return false;
            }
            host.stop(rank.number);
        }
        host.forget_launch();
        true
    }
}

/// What a member does next with its rank.
enum Next {
    Nothing,
    Training,
    Returning,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_started_again_soon_then_ever_later_and_at_last_not_any_more() {
        let pauses: Vec<_> = (1..).map_while(pause).map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [2, 8, 32, 128, 512, 900, 900, 900, 900, 900, 900, 900]);
        assert_eq!(pauses.len(), MOST_RESTARTS as usize);
        assert_eq!(pause(u32::MAX), None);
    }
}
