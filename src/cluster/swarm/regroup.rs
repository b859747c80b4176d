//! From one epoch of a swarm to the next, on one rank. The header of [`swarm`](super) says why it is exact.

use std::collections::BTreeMap;
use std::sync::Arc;

use sparktune_base::escape::escape;

use crate::collective::Collective;
use crate::error::Error;
use crate::mailbox::{Ended, operation};
use crate::swarm::Change;
use crate::swarm::notice::{Heard, Notice, shortened};
use crate::tcp::Tcp;
use crate::wire::Kind;

/// What the ranks that are ready have heard, by their numbers.
type Ready = BTreeMap<usize, Heard>;

/// Returns what the ranks that are ready have heard together.
///
/// # Errors
/// They were not in the same operation: a bug of one of them.
fn heard_together(ready: &Ready) -> Result<Heard, (usize, String)> {
    let most = ready.iter().max_by_key(|(_, heard)| heard.words);
    let Some((_, most)) = most else { return Ok(Heard::default()) };
    match ready.iter().find(|(_, heard)| heard.words + 1 < most.words) {
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
        let done = if self.rank() == 0 { self.lead() } else { self.follow() };
        if let Err(error) = &done {
            self.failure = Some(error.to_string());
            self.swarm().is_left_out |= matches!(error, Error::Ejected { .. });
        }
        done
    }

    fn notify(&mut self, to: usize, notice: &Notice) {
        self.send(to, Kind::Notice, operation(notice.epoch(), 0), &Arc::new(notice.to_bytes()));
    }

    /// Proposes epochs until all members of one are ready.
    fn lead(&mut self) -> Result<(), Error> {
        let mut lost = std::mem::take(&mut self.swarm().suspects);
        let mut proposed = self.epoch;
        loop {
            while let Some((from, notice)) = self.mailbox.waiting_notice() {
                self.hear_trouble(from, &notice, &mut lost);
            }
            for rank in self.members.clone() {
                if let Some(error) = self.mailbox.gone(rank) {
                    lost.entry(rank).or_insert_with(|| shortened(&error.seen()));
                }
            }
            proposed += 1;
            let members: Vec<usize> =
                self.members.iter().copied().filter(|rank| !lost.contains_key(rank)).collect();
            let said: Vec<(usize, String)> = lost.clone().into_iter().collect();
            let others = self.members.iter().copied().filter(|rank| *rank != self.own).collect::<Vec<_>>();
            // Those that are left out hear it too, if they live.
            for to in others {
                let proposal =
                    Notice::Regroup { epoch: proposed, members: members.clone(), lost: said.clone() };
                self.notify(to, &proposal);
            }
            let Some(ready) = self.ready(proposed, &members, &mut lost) else { continue };
            let heard = heard_together(&ready).map_err(|(rank, what)| {
                let at = self.mailbox.place(rank).to_owned();
                Error::OutOfStep { rank, at, what }
            })?;
            let own = self.own;
            for to in members.iter().copied().filter(|rank| *rank != own) {
                self.notify(to, &Notice::Resume { epoch: proposed, heard: heard.clone() });
            }
            self.adopt(Change { epoch: proposed, members, lost: said }, heard);
            return Ok(());
        }
    }

    /// Waits until all members of a proposed epoch are ready; `None` if one more is lost.
    fn ready(&mut self, epoch: u64, members: &[usize], lost: &mut BTreeMap<usize, String>) -> Option<Ready> {
        let mut ready = Ready::from([(self.own, self.swarm().heard.clone())]);
        loop {
            let missing: Vec<usize> =
                members.iter().copied().filter(|rank| !ready.contains_key(rank)).collect();
            if missing.is_empty() {
                return Some(ready);
            }
            match self.mailbox.notice(&missing) {
                Ok((from, Notice::Ready { epoch: of, heard })) if of == epoch && members.contains(&from) => {
                    ready.insert(from, heard);
                }
                Ok((from, notice)) => {
                    let before = lost.len();
                    self.hear_trouble(from, &notice, lost);
                    if lost.len() > before {
                        return None;
                    }
                }
                Err(Ended::Gone(rank, error)) => {
                    lost.insert(rank, shortened(&error.seen()));
                    return None;
                }
                Err(Ended::Notice | Ended::OutOfStep(_)) => {}
            }
        }
    }

    /// Takes a member's word that another one does not answer it. Of two that cannot hear each other, the one
    /// that says so first stays.
    fn hear_trouble(&self, from: usize, notice: &Notice, lost: &mut BTreeMap<usize, String>) {
        let Notice::Trouble { epoch, rank, why } = notice else { return };
        let is_member = |rank: &usize| self.members.contains(rank) && !lost.contains_key(rank);
        if *epoch == self.epoch && is_member(&from) && is_member(rank) && *rank != self.own && *rank != from {
            let why = escape(why);
            lost.insert(*rank, shortened(&format!("rank {from} says of it: {why}")));
        }
    }

    /// Says whom this rank misses, and waits for the coordinator.
    fn follow(&mut self) -> Result<(), Error> {
        let coordinator = self.members[0];
        for (rank, why) in std::mem::take(&mut self.swarm().suspects) {
            if let Some(error) = self.mailbox.gone(coordinator) {
                return Err(error);
            }
            if rank == coordinator {
                let at = self.mailbox.place(rank).to_owned();
                return Err(Error::Lost { rank, at, why });
            }
            self.notify(coordinator, &Notice::Trouble { epoch: self.epoch, rank, why });
        }
        let mut proposed: Option<Change> = None;
        loop {
            let (from, notice) = match self.mailbox.notice(&[coordinator]) {
                Ok(heard) => heard,
                Err(Ended::Gone(_, error) | Ended::OutOfStep(error)) => return Err(error),
                Err(Ended::Notice) => continue,
            };
            let newest = proposed.as_ref().map_or(self.epoch, |change| change.epoch);
            match notice {
                _ if from != coordinator => {}
                Notice::Regroup { epoch, members, lost } if epoch > newest => {
                    if !members.contains(&self.own) {
                        let why = lost.into_iter().find(|(rank, _)| *rank == self.own);
                        let why = why.map_or_else(String::new, |(_, why)| escape(&why).into_owned());
                        return Err(Error::Ejected { why });
                    }
                    if members[0] != coordinator || !members.iter().all(|rank| self.members.contains(rank)) {
                        let at = self.mailbox.place(coordinator).to_owned();
                        let what = "it proposes members that are none".to_owned();
                        return Err(Error::OutOfStep { rank: coordinator, at, what });
                    }
                    let heard = self.swarm().heard.clone();
                    self.notify(coordinator, &Notice::Ready { epoch, heard });
                    let lost = lost.into_iter().map(|(rank, why)| (rank, escape(&why).into_owned()));
                    proposed = Some(Change { epoch, members, lost: lost.collect() });
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
