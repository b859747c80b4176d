//! From one epoch of a swarm to the next, on one rank. The header of [`swarm`](super) says why it is exact.
//!
//! **Only one epoch follows another.** The coordinator needs half of the members, with itself, or more. If it
//! is lost, the first of those that are left leads instead: it needs more than half, and at least two, so
//! that a rank that slept does not go on by itself. The two cannot both be true. A member follows another
//! leader only when it has lost the coordinator itself, and only if it has not said to anybody in this epoch
//! that it is ready for the next one: whom it said that to may be going on with it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sparktune_base::escape::escape;

use crate::collective::Collective;
use crate::error::Error;
use crate::mailbox::{Ended, operation};
use crate::swarm::Change;
use crate::swarm::notice::{Heard, Notice, shortened};
use crate::tcp::Tcp;
use crate::wire::Kind;

/// The most proposals that are kept of ranks that do not lead yet.
const MOST_EARLY: usize = 64;

/// Who is gone, and what was seen of it.
type Lost = BTreeMap<usize, String>;
/// What the ranks that are ready have heard, by their numbers.
type Ready = BTreeMap<usize, Heard>;

/// Returns what the ranks that are ready have heard together.
///
/// # Errors
/// They were not in the same operation: a bug of one of them.
fn heard_together(ready: &Ready) -> Result<Heard, (usize, String)> {
    let most = ready.iter().max_by_key(|(_, heard)| heard.words);
    let Some((_, most)) = most else { return Ok(Heard::default()) };
    match ready.iter().find(|(_, heard)| heard.words.saturating_add(1) < most.words) {
        None => Ok(most.clone()),
        Some((rank, heard)) => {
            let what = format!("it has heard all {} times where others have {}", heard.words, most.words);
            Err((*rank, what))
        }
    }
}

impl Tcp {
    /// Does a part of an operation that counts for nothing before the next word.
    pub(crate) fn as_one_epoch<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.begin()?;
        match work(self) {
            Err(Error::Regrouped) => {
                self.regroup()?;
                self.begin()?;
                Err(Error::Regrouped)
            }
            done => done,
        }
    }

    /// Exchanges words. They are complete on all ranks that are left, or on none.
    pub(crate) fn heard_by_all(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Vec<Vec<u8>>, Error>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.begin()?;
        let before = self.swarm.as_ref().map_or(0, |swarm| swarm.heard.words);
        match work(self) {
            Ok(words) => {
                if let Some(swarm) = &mut self.swarm {
                    swarm.heard.add(&words);
                }
                Ok(words)
            }
            Err(Error::Regrouped) => {
                self.regroup()?;
                match &self.swarm {
                    // The next operation is the one that all do again.
                    Some(swarm) if swarm.heard.words > before => Ok(swarm.heard.last()),
                    _ => {
                        self.begin()?;
                        Err(Error::Regrouped)
                    }
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Ends an operation at its beginning if the members have changed after the last one.
    fn begin(&mut self) -> Result<(), Error> {
        let is_changed = self.swarm.as_mut().is_some_and(|swarm| std::mem::take(&mut swarm.is_changed));
        if is_changed { Err(Error::Regrouped) } else { Ok(()) }
    }

    fn swarm(&mut self) -> &mut super::Swarm {
        self.swarm.get_or_insert_default()
    }

    fn regroup(&mut self) -> Result<(), Error> {
        let lost = self.suspected();
        let done = if self.rank() == 0 { self.lead(lost, false) } else { self.follow(lost) };
        if let Err(error) = &done {
            self.failure = Some(error.to_string());
            self.swarm().is_left_out |= matches!(error, Error::Ejected { .. });
            self.miss_others(error);
        }
        done
    }

    /// Records whether this rank ends because it has lost others.
    pub(crate) fn miss_others(&mut self, error: &Error) {
        self.swarm().has_lost_others |= matches!(error, Error::TooFew { .. } | Error::Lost { .. });
    }

    fn notify(&mut self, to: usize, notice: &Notice) {
        self.send(to, Kind::Notice, operation(notice.epoch(), 0), &Arc::new(notice.to_bytes()));
    }

    /// Takes whom this rank misses, and what it has seen of them.
    fn suspected(&mut self) -> Lost {
        std::mem::take(&mut self.swarm().suspects)
    }

    /// Proposes epochs until all members of one are ready, as the coordinator or in its place.
    fn lead(&mut self, mut lost: Lost, takes_over: bool) -> Result<(), Error> {
        let mut proposed = self.epoch;
        loop {
            while let Some((from, notice)) = self.mailbox.waiting_notice() {
                self.hear(from, &notice, &mut lost)?;
            }
            for rank in self.members.clone() {
                if let Some(error) = self.mailbox.gone(rank) {
                    lost.entry(rank).or_insert_with(|| shortened(&error.seen()));
                }
            }
            proposed += 1;
            let members: Vec<usize> =
                self.members.iter().copied().filter(|rank| !lost.contains_key(rank)).collect();
            let (left, of) = (members.len(), self.members.len());
            let is_enough = if takes_over { 2 * left > of && left > 1 } else { 2 * left >= of };
            if !is_enough {
                let why =
                    lost.iter().map(|(rank, why)| format!("rank {}: {why}", self.mailbox.launched_as(*rank)));
                return Err(Error::TooFew { left, of, why: why.collect::<Vec<_>>().join("; ") });
            }
            let said: Vec<(usize, String)> = lost.clone().into_iter().collect();
            let others = self.members.iter().copied().filter(|rank| *rank != self.own).collect::<Vec<_>>();
            // Those that are left out hear it too, if they live.
            for to in others {
                let proposal =
                    Notice::Regroup { epoch: proposed, members: members.clone(), lost: said.clone() };
                self.notify(to, &proposal);
            }
            let Some(ready) = self.ready(proposed, &members, &mut lost)? else { continue };
            let heard = heard_together(&ready).map_err(|(rank, what)| {
                let at = self.mailbox.place(rank).to_owned();
                Error::OutOfStep { rank: self.mailbox.launched_as(rank), at, what }
            })?;
            let own = self.own;
            for to in members.iter().copied().filter(|rank| *rank != own) {
                self.notify(to, &Notice::Resume { epoch: proposed, heard: heard.clone() });
            }
            let before = self.mailbox.launched_as(self.members[0]);
            let change = Change { epoch: proposed, members, lost: said, is_taken_over: takes_over };
            self.adopt(change, heard);
            if takes_over {
                self.tell(&format!(
                    "rank {before} is gone: this rank takes its place, and the run goes on in this rank's folder"
                ));
                self.open_door();
            }
            return Ok(());
        }
    }

    /// Waits until all members of a proposed epoch are ready; `None` if one more is lost.
    ///
    /// # Errors
    /// Others go on without this rank.
    fn ready(&mut self, epoch: u64, members: &[usize], lost: &mut Lost) -> Result<Option<Ready>, Error> {
        let mut ready = Ready::from([(self.own, self.swarm().heard.clone())]);
        loop {
            let missing: Vec<usize> =
                members.iter().copied().filter(|rank| !ready.contains_key(rank)).collect();
            if missing.is_empty() {
                return Ok(Some(ready));
            }
            match self.mailbox.notice(&missing) {
                Ok((from, Notice::Ready { epoch: of, heard })) if of == epoch && members.contains(&from) => {
                    ready.insert(from, heard);
                }
                Ok((from, notice)) => {
                    let before = lost.len();
                    self.hear(from, &notice, lost)?;
                    if lost.len() > before {
                        return Ok(None);
                    }
                }
                Err(Ended::Gone(rank, error)) => {
                    lost.insert(rank, shortened(&error.seen()));
                    return Ok(None);
                }
                Err(Ended::Notice | Ended::OutOfStep(_)) => {}
            }
        }
    }

    /// Takes a member's word that another one does not answer it. Of two that cannot hear each other, the one
    /// that says so first stays. A member that would lead in the coordinator's place does not hear it, so the
    /// coordinator goes on without that one; if the others follow it, too few are left.
    ///
    /// # Errors
    /// Another one leads, without this rank, which is not the coordinator.
    fn hear(&self, from: usize, notice: &Notice, lost: &mut Lost) -> Result<(), Error> {
        let Notice::Trouble { epoch, rank, why } = notice else {
            return match notice {
                Notice::Regroup { epoch, members, lost: said }
                    if *epoch > self.epoch && self.members.contains(&from) =>
                {
                    if members.contains(&self.own) {
                        Ok(())
                    } else if self.own == self.members[0] {
                        lost.entry(from).or_insert_with(|| "it does not hear the coordinator".to_owned());
                        Ok(())
                    } else {
                        Err(self.ejected(said))
                    }
                }
                _ => Ok(()),
            };
        };
        let is_member = |rank: &usize| self.members.contains(rank) && !lost.contains_key(rank);
        if *epoch == self.epoch && is_member(&from) && is_member(rank) && *rank != self.own && *rank != from {
            let why = escape(why);
            let from = self.mailbox.launched_as(from);
            lost.insert(*rank, shortened(&format!("rank {from} says of it: {why}")));
        }
        Ok(())
    }

    fn ejected(&self, lost: &[(usize, String)]) -> Error {
        let why = lost.iter().find(|(rank, _)| *rank == self.own);
        Error::Ejected { why: why.map_or_else(String::new, |(_, why)| escape(why).into_owned()) }
    }

    /// Says whom this rank misses, and waits for who leads: the coordinator, or, if this rank has lost it,
    /// the first of those that are left.
    fn follow(&mut self, mut lost: Lost) -> Result<(), Error> {
        let coordinator = self.members[0];
        if !lost.contains_key(&coordinator) {
            for (rank, why) in lost.clone() {
                self.notify(coordinator, &Notice::Trouble { epoch: self.epoch, rank, why });
            }
        }
        let mut proposed: Option<Change> = None;
        // What others than the leader have proposed. It counts when this rank follows them.
        let mut early: VecDeque<(usize, Notice)> = VecDeque::new();
        let mut told_to = coordinator;
        loop {
            let left: Vec<usize> =
                self.members.iter().copied().filter(|rank| !lost.contains_key(rank)).collect();
            if let Some(why) = lost.get(&coordinator) {
                let has_left = self.mailbox.gone(coordinator).filter(|_| self.mailbox.has_left(coordinator));
                let are_too_few = 2 * left.len() <= self.members.len();
                if has_left.is_some() || are_too_few || self.swarm().is_healing {
                    let rank = self.mailbox.launched_as(coordinator);
                    let at = self.mailbox.place(coordinator).to_owned();
                    return Err(has_left.unwrap_or(Error::Lost { rank, at, why: why.clone() }));
                }
            }
            let leader = left[0];
            if leader == self.own {
                return self.lead(lost, true);
            }
            if std::mem::replace(&mut told_to, leader) != leader {
                // It may hear the coordinator, which then goes on without this rank.
                let why = lost.get(&coordinator).cloned().unwrap_or_default();
                self.notify(leader, &Notice::Trouble { epoch: self.epoch, rank: coordinator, why });
            }
            let followed = early.iter().position(|(from, _)| *from == leader).and_then(|at| early.remove(at));
            let (from, notice) = match followed.map_or_else(|| self.mailbox.notice(&[leader]), Ok) {
                Ok(heard) => heard,
                // One that this rank was ready for may go on with it.
                Err(Ended::Gone(_, error) | Ended::OutOfStep(error)) if proposed.is_some() => {
                    return Err(error);
                }
                Err(Ended::OutOfStep(error)) => return Err(error),
                Err(Ended::Gone(rank, error)) => {
                    lost.insert(rank, shortened(&error.seen()));
                    continue;
                }
                Err(Ended::Notice) => continue,
            };
            let newest = proposed.as_ref().map_or(self.epoch, |change| change.epoch);
            match notice {
                Notice::Regroup { epoch, members, lost }
                    if epoch > self.epoch && !members.contains(&self.own) && self.members.contains(&from) =>
                {
                    return Err(self.ejected(&lost));
                }
                Notice::Regroup { .. } | Notice::Trouble { .. } if from != leader => {
                    // It does not hear who leads, which has to do without it.
                    if leader == coordinator && self.members.contains(&from) {
                        let why = "it does not hear the coordinator".to_owned();
                        self.notify(leader, &Notice::Trouble { epoch: self.epoch, rank: from, why });
                    }
                    early.push_back((from, notice));
                    early.drain(..early.len().saturating_sub(MOST_EARLY));
                }
                _ if from != leader => {}
                Notice::Regroup { epoch, members, lost } if epoch > newest => {
                    if members[0] != leader || !members.iter().all(|rank| self.members.contains(rank)) {
                        let at = self.mailbox.place(leader).to_owned();
                        let what = "it proposes members that are none".to_owned();
                        let rank = self.mailbox.launched_as(leader);
                        return Err(Error::OutOfStep { rank, at, what });
                    }
                    let heard = self.swarm().heard.clone();
                    self.notify(leader, &Notice::Ready { epoch, heard });
                    let lost = lost.into_iter().map(|(rank, why)| (rank, escape(&why).into_owned()));
                    let (lost, is_taken_over) = (lost.collect(), leader != coordinator);
                    proposed = Some(Change { epoch, members, lost, is_taken_over });
                }
                Notice::Resume { epoch, heard } => {
                    if let Some(change) = proposed.take_if(|change| change.epoch == epoch) {
                        self.adopt(change, heard);
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }

    /// Begins the epoch that all its members are ready for.
    fn adopt(&mut self, change: Change, heard: Heard) {
        for rank in self.members.clone() {
            if !change.members.contains(&rank) {
                let why = change.lost.iter().find(|(lost, _)| *lost == rank);
                let why = why.map_or("it was left out", |(_, why)| why.as_str());
                self.let_go(rank, &format!("the others go on without this rank: {why}"));
            }
        }
        (self.epoch, self.operation) = (change.epoch, 0);
        self.members.clone_from(&change.members);
        let swarm = self.swarm();
        if heard.words > swarm.heard.words {
            swarm.heard = heard;
        }
        swarm.suspects.clear();
        swarm.is_changed = true;
        swarm.changes.push(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(words: u64) -> Heard {
        let mut heard = Heard::default();
        (0..words).for_each(|word| heard.add(&[word.to_string().into_bytes()]));
        heard
    }

    #[test]
    fn what_one_of_the_ranks_has_heard_all_are_given_and_more_than_a_word_apart_they_cannot_be() {
        let of = |words: &[u64]| -> Ready {
            words.iter().enumerate().map(|(rank, words)| (rank, heard(*words))).collect()
        };
        assert_eq!(heard_together(&of(&[4, 4, 4])), Ok(heard(4)));
        assert_eq!(heard_together(&of(&[4, 5, 4])), Ok(heard(5)));
        assert_eq!(heard_together(&of(&[5, 5, 3])).unwrap_err().0, 2);
        assert_eq!(heard_together(&Ready::new()), Ok(heard(0)));
    }
}
