//! Starting a worker, and making room for it.

use std::sync::Arc;
use std::sync::mpsc::channel;

use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::WorkerOptions;
use sparktune_app::models::Opening;
use tokio::sync::{OwnedMutexGuard, watch};

use super::bridge::Bridge;
use super::commands::State;
use super::pool::Workers;
use super::refusal::Refusal;
use super::slot::{Key, Models, Slot};
use crate::locked::lock;

impl Workers {
    /// Starts a worker, after others have ended if there is no room for it beside them.
    pub(super) async fn start(&self, opening: &Opening) -> Result<Arc<Slot>, Refusal> {
        // The loading itself holds it too, because it goes on when who asked for it has left.
        let one_at_a_time = Arc::new(self.loading.clone().lock_owned().await);
        // Another request may have started it meanwhile.
        if let Some(slot) = self.slot_of(opening) {
            return Ok(slot);
        }
        while self.live().len() >= self.limits.loaded.max(1) {
            if !self.end_idle().await {
                let loaded = self.live().len();
                let text = format!(
                    "{loaded} models are loaded, which is the most at a time, and all of them are answering"
                );
                return Err(Refusal::NoRoom(Failure::new(Exit::Device, text).hint("Ask again later")));
            }
        }
        loop {
            let slot = self.spawn(opening, one_at_a_time.clone())?;
            match slot.ready().await {
                Ok(_) => return Ok(slot),
                // It says in words what is missing, and which training run it would have to be beside.
                Err(Refusal::Gone(failure)) if failure.exit == Exit::Device => {
                    if !self.end_idle().await {
                        return Err(Refusal::NoRoom(failure));
                    }
                }
                Err(Refusal::Gone(failure)) => return Err(Refusal::Broken(failure)),
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Starts a worker in a thread, which waits for its process. It holds `one_at_a_time` until the model is
    /// loaded.
    fn spawn(
        &self,
        opening: &Opening,
        one_at_a_time: Arc<OwnedMutexGuard<()>>,
    ) -> Result<Arc<Slot>, Refusal> {
        let (state, changes) = watch::channel(State::Loading);
        let (commands, receiver) = channel();
        let options = WorkerOptions {
            model: opening.model.clone(),
            base: None,
            max_sequences: self.limits.answers,
            decoding: self.limits.decoding,
        };
        let (program, idle) = (self.program.clone(), self.limits.idle);
        let thread = std::thread::Builder::new().name("inference".into());
        let models = Models::default();
        let of_slot = models.clone();
        // Made before anything is loaded, so that files that are written meanwhile are loaded again.
        let key = Key::of(opening);
        let run = move || Bridge::run(&program, &options, idle, &receiver, &state, &models, one_at_a_time);
        thread.spawn(run).map_err(|error| {
            Refusal::NoRoom(Failure::new(Exit::Device, format!("no thread can be started: {error}")))
        })?;
        let slot = Arc::new(Slot::new(key, commands, changes, of_slot));
        lock(&self.slots).push(slot.clone());
        Ok(slot)
    }

    /// Ends the worker without answers that was not asked for the longest time. Returns whether there was
    /// one.
    async fn end_idle(&self) -> bool {
        let slot = {
            let mut slots = lock(&self.slots);
            let idle = slots.iter().enumerate().filter(|(_, slot)| slot.answers() == 0);
            let idle = idle.filter(|(_, slot)| matches!(slot.state(), State::Ready(_)));
            let Some(at) = idle.min_by_key(|(_, slot)| slot.used()).map(|(at, _)| at) else { return false };
            slots.remove(at)
        };
        slot.end();
        slot.gone().await;
        true
    }
}
