//! What a session records of the ranks: who trains from which step on, in which shares, and how they do.

use std::sync::Arc;

use sparktune_cluster::Collective;
use sparktune_cluster::swarm::Change;
use sparktune_runlog::{Kind, LostMember, Members};

use crate::members::{Computed, MemberWatch};
use crate::session::Session;

impl Session<'_> {
    /// Records who trains from this step on, counted from 1, if the members of a swarm have changed.
    pub(crate) fn record_members(&mut self, step: u64) {
        for Change { epoch, members, lost, is_taken_over } in self.ranks.changes() {
            let left = match members.len() {
                1 => format!("rank {} goes on alone", members[0]),
                more => format!("the other {more} ranks go on"),
            };
            for (rank, why) in &lost {
                self.warn(format!("rank {rank} is gone: {why}; {left}, from step {step}"), Some(step));
            }
            if let Some(watch) = &self.members {
                watch.lose(lost.iter().map(|(rank, _)| *rank));
            }
            let lost: Vec<LostMember> =
                lost.into_iter().map(|(rank, reason)| LostMember { rank, reason }).collect();
            if is_taken_over && self.ranks.is_first() {
                // Whatever becomes of this process, what only this folder has is not given up.
                if let Err(error) = self.run.become_successor() {
                    self.warn(error.to_string(), Some(step));
                }
                let at = self.ranks.address().map(|(host, port)| {
                    format!(
                        ". Ranks that were started before find it by themselves; others need MASTER_ADDR={host} and MASTER_PORT={port}"
                    )
                });
                self.warn(
                    format!(
                        "this rank takes the place of the one that had the run: it goes on here as {}, with its checkpoints and outputs. Do not resume the run there, which would make a second run of it{}",
                        self.run.name(),
                        at.unwrap_or_default()
                    ),
                    Some(step),
                );
            }
            // Those that are left have equal shares at first.
            self.events.emit(Kind::Members(Members { step, epoch, members, shares: Vec::new(), lost }));
            self.epoch = epoch;
            self.watch_members(step.saturating_sub(1));
        }
    }

    /// Records who trains from this step on, counted from 1, at the start of a swarm.
    pub(crate) fn record_first_members(&mut self, step: u64) {
        self.record_shares(step, 0);
        self.epoch = 0;
    }

    fn record_shares(&mut self, step: u64, epoch: u64) {
        let (members, shares) = (self.ranks.launched_as(), self.ranks.shares().unequal().to_vec());
        self.events.emit(Kind::Members(Members { step, epoch, members, shares, lost: Vec::new() }));
    }

    /// Records at rank 0 how the other processes do from here on, if there are any.
    pub(crate) fn watch_members(&mut self, step: u64) {
        let micro_batches = self.plan.batch.grad_accum_steps as usize;
        if self.members.is_some() || !self.ranks.has_others() || !self.ranks.is_first() {
            return;
        }
        let events = Arc::clone(&self.events);
        let watch = |collective: &dyn Collective| MemberWatch::start(collective, micro_batches, step, events);
        self.members = self.ranks.collective().map(|collective| watch(collective));
    }

    /// Records what each rank has computed of this step, counted from 1.
    pub(crate) fn computed(&self, step: u64, computed: &[Computed]) {
        if let Some(watch) = &self.members {
            watch.computed(step, computed);
        }
    }

    /// Takes the members that have met again, of which all after the first `known` have just come.
    pub(crate) fn members_met(&mut self, known: usize) {
        self.ranks.share_equally();
        if let (Some(watch), Some(collective)) = (&self.members, self.ranks.collective()) {
            watch.meet(collective, known);
        }
    }

    /// Returns the shares of the next step, if rank 0 of a swarm has seen that others are clearly better.
    pub(crate) fn better_shares(&self) -> Option<Vec<u32>> {
        let watch = self.members.as_ref().filter(|_| self.plan.ranks.swarm)?;
        let better = watch.better_shares()?;
        Some(better.counts(self.plan.batch.grad_accum_steps as usize))
    }

    /// Takes what rank 0 says of the shares from this step on, counted from 1.
    pub(crate) fn take_shares(&mut self, said: Vec<u32>, step: u64) {
        if !self.ranks.take_shares(said) {
            return;
        }
        self.record_shares(step, self.epoch);
        let shares = self.ranks.shares();
        if let Some(watch) = &self.members {
            let parts = shares.counts(self.plan.batch.grad_accum_steps as usize);
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            let of = parts.join(" and ");
            watch.shared(shares);
            self.phase(
                "train",
                format!("from step {step} on, the ranks compute {of} micro-batches of each step, according to their speed"),
            );
        }
    }

    /// Does without the other processes from here on.
    pub(crate) fn part(&mut self) {
        self.members = None;
        self.ranks.part();
    }
}
