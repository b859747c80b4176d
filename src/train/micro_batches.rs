//! The micro-batches of a step: the losses and gradients that this process computes of them, alone, as one of
//! several ranks, or in the place of all ranks.

use std::time::Instant;

use sparktune_cluster::Shares;
use sparktune_cluster::sentry::Judge;
use sparktune_model::{Gradients, Loss};

use crate::batches::Batch;
use crate::elapsed::milliseconds;
use crate::error::TrainError;
use crate::exchange::{Exchanged, Handed, Share, exchanged};
use crate::judged::{JudgedRanks, Shares as JudgedShares};
use crate::objective::{Objective, Trainee};
use crate::ranks::Summed;
use crate::session::Session;
use crate::trained::{Trained, add_rank, require_gradients};

/// The micro-batches of one step.
pub(crate) struct MicroBatches<'a, O: Objective> {
    pub(crate) objective: &'a O,
    pub(crate) trainee: &'a mut O::Trainee,
    pub(crate) batch: &'a Batch,
    /// The number of steps before this one.
    pub(crate) step: u64,
    /// The factor of each term of the loss, so that a term has the same weight in every micro-batch.
    pub(crate) scale: f64,
}

impl<O: Objective> MicroBatches<'_, O> {
    fn compute(&mut self, place: usize, gradients: &mut Gradients) -> Loss {
        self.trainee.begin_sequence(self.step, place);
        let sequence = &self.batch.sequences[place];
        self.objective.loss_and_gradients(self.trainee, sequence, self.scale, gradients)
    }

    /// Returns the micro-batches of a rank of those with these shares, in their order.
    pub(crate) fn of_rank(&self, rank: usize, shares: &Shares) -> Vec<usize> {
        let dealt = shares.deal(self.batch.sequences.len()).into_iter().enumerate();
        dealt.filter(|(_, to)| *to == rank).map(|(place, _)| place).collect()
    }

    /// Returns the losses of all micro-batches and the sum of their gradients, or `None` when memory runs
    /// out. Nothing waits for the device.
    pub(crate) fn alone(&mut self, session: &Session) -> Option<(Vec<Loss>, Gradients)> {
        self.at(&self.of_rank(0, &1.into()), session)
    }

    /// Like [`alone`](Self::alone), of these micro-batches.
    pub(crate) fn at(&mut self, places: &[usize], session: &Session) -> Option<(Vec<Loss>, Gradients)> {
        let mut gradients = Gradients::default();
        let mut losses = Vec::with_capacity(places.len());
        for place in places {
            // A step may take half a minute, which is too long for a machine whose memory runs out.
            if session.out_of_memory().is_some() {
                return None;
            }
            losses.push(self.compute(*place, &mut gradients));
        }
        Some((losses, gradients))
    }

    /// Returns the step over all ranks, whether this process is one of them or stands for all. Also returns
    /// how long it has waited for the others, in milliseconds.
    ///
    /// # Errors
    /// A parameter has no gradient; a rank is gone, or computed something else in the step before.
    pub(crate) fn over_ranks(
        &mut self,
        session: &mut Session,
        last_norm: Option<f64>,
    ) -> Result<(Summed, Option<f64>), TrainError> {
        if session.ranks.has_others() {
            let ordered = Trained::in_order(&self.trainee.in_backward_order());
            let (summed, waited_ms) = self.with_others(session, &ordered, last_norm)?;
            return Ok((summed, Some(waited_ms)));
        }
        let trained = Trained::of(&self.trainee.trained());
        Ok((self.in_the_place_of(&session.ranks.shares(), session, &trained)?, None))
    }

    /// Like [`over_ranks`](Self::over_ranks), but each rank's gradient is judged before it counts. So nothing
    /// leaves before this rank has computed all.
    ///
    /// # Errors
    /// Those of [`over_ranks`](Self::over_ranks).
    pub(crate) fn judged(
        &mut self,
        session: &mut Session,
        last_norm: Option<f64>,
        judged: &mut JudgedRanks,
        judge: &mut Option<Judge>,
    ) -> Result<(Summed, Option<f64>), TrainError> {
        let trained = Trained::of(&self.trainee.trained());
        let device = self.trainee.model().device().clone();
        let count = session.ranks.count();
        let equal = Shares::from(count);
        let (mut losses, mut gradients, mut gives_up) = (Vec::new(), Vec::new(), None);
        'ranks: for rank in session.ranks.own() {
            let mut of_rank = Gradients::default();
            let places = self.of_rank(rank, &equal);
            for place in &places {
                gives_up = session.out_of_memory();
                if gives_up.is_some() {
                    break 'ranks;
                }
                losses.push((*place, self.compute(*place, &mut of_rank)));
            }
            if self.have_terms(&places) {
                require_gradients(trained.iter(), self.step + 1, |name| of_rank.get(name).is_some())?;
            }
            gradients.push(of_rank);
        }
        let shares = JudgedShares {
            of: Share {
                rank: session.ranks.number(),
                step: self.step,
                numbers: trained.iter().map(Trained::count).sum(),
                last_norm: last_norm.map(f64::to_bits),
                gives_up,
            },
            losses: losses.into_iter().map(|(place, loss)| (place, loss.nats())).collect(),
            gradients,
            terms: (0..count).map(|rank| self.terms(&self.of_rank(rank, &equal)) as u64).collect(),
        };
        let started = Instant::now();
        let summed = judged.sum(&mut session.ranks, judge, shares, &trained, &device)?;
        Ok((summed, session.ranks.has_others().then(|| milliseconds(started))))
    }

    /// Returns the step as ranks with these shares add it, computed by this process in their place.
    ///
    /// # Errors
    /// A parameter has no gradient.
    fn in_the_place_of(
        &mut self,
        shares: &Shares,
        session: &Session,
        trained: &[Trained],
    ) -> Result<Summed, TrainError> {
        let device = self.trainee.model().device().clone();
        let (mut losses, mut sums) = (Vec::new(), None);
        for rank in 0..shares.ranks() {
            let mut gradients = Gradients::default();
            let places = self.of_rank(rank, shares);
            for place in &places {
                if let Some(why) = session.out_of_memory() {
                    return Ok(Summed::GivenUp(why));
                }
                losses.push((*place, self.compute(*place, &mut gradients)));
            }
            if self.have_terms(&places) {
                require_gradients(trained.iter(), self.step + 1, |name| gradients.get(name).is_some())?;
            }
            sums = Some(match sums {
                None => gradients,
                Some(sums) => add_rank(sums, gradients, trained, &device),
            });
        }
        // Added in the order of micro-batches, whoever computes them.
        losses.sort_unstable_by_key(|(place, _)| *place);
        let loss = losses.into_iter().map(|(_, loss)| loss.nats()).sum();
        Ok(Summed::Step(loss, sums.unwrap_or_default()))
    }

    /// Returns the step over all ranks, of which this process is one. The gradients go out while the backward
    /// pass of this rank's last micro-batch goes on. Also returns the milliseconds that the step has waited
    /// for the exchange.
    ///
    /// # Errors
    /// A parameter has no gradient; a rank is gone, or computed something else in the step before.
    fn with_others(
        &mut self,
        session: &mut Session,
        ordered: &[Trained],
        last_norm: Option<f64>,
    ) -> Result<(Summed, f64), TrainError> {
        let device = self.trainee.model().device().clone();
        let began = Instant::now();
        let places = self.of_rank(session.ranks.own().start, &session.ranks.shares());
        let (mut losses, mut gradients) = (Vec::new(), Gradients::default());
        let mut gives_up = None;
        for place in places.iter().take(places.len().saturating_sub(1)) {
            gives_up = session.out_of_memory();
            if gives_up.is_some() {
                break;
            }
            losses.push((*place, self.compute(*place, &mut gradients)));
        }
        let share = Share {
            rank: session.ranks.number(),
            step: self.step,
            numbers: ordered.iter().map(Trained::count).sum(),
            last_norm: last_norm.map(f64::to_bits),
            gives_up: gives_up.or_else(|| session.out_of_memory()),
        };
        if let Some(why) = share.gives_up.clone().filter(|_| session.ranks.may_be_missed(&session.plan)) {
            // The others of a swarm go on without this rank.
            session.ranks.leave(Some(&why));
            return Ok((Summed::GivenUp(why), 0.0));
        }
        let has_terms = self.have_terms(&places);
        let collective = session.ranks.collective().expect("called for a rank that has others");
        let step = self.step + 1;
        let exchanged = exchanged(collective, ordered, share, &device, began, |on_final| {
            if let Some(last) = places.last() {
                gradients.hand_out(on_final);
                losses.push((*last, self.compute(*last, &mut gradients)));
            }
            let losses = losses.into_iter().map(|(place, loss)| (place, loss.nats())).collect();
            Ok(Handed { rest: gradients, losses, has_terms })
        })?;
        let Exchanged { summed, waited_ms, computed } = exchanged;
        session.computed(step, &computed);
        Ok((summed, waited_ms))
    }

    /// Returns whether these micro-batches have a loss. A rank without a micro-batch, or without a trained
    /// token in it, contributes zeros.
    fn have_terms(&self, places: &[usize]) -> bool {
        self.terms(places) > 0
    }

    /// Returns the number of terms of the loss of these micro-batches.
    pub(crate) fn terms(&self, places: &[usize]) -> usize {
        places.iter().map(|place| self.objective.loss_terms(&self.batch.sequences[*place])).sum()
    }
}
