//! The door of a swarm that is at work: rank 0 lets ranks wait that come later, until all meet again.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::error::Error;
use crate::introduction::{Answer, Caller, Member};

/// The pause between two signs that the swarm still works.
const AGAIN: Duration = Duration::from_millis(500);

/// Ranks that wait to be let in.
pub(crate) struct Door {
    waiting: Arc<Mutex<Vec<Caller>>>,
    is_closed: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Door {
    /// Lets ranks wait that `accept` brings in, which gets where they are sent to and when to end. They are
    /// told who works, because one of those takes this rank's place if it is lost.
    pub(crate) fn open(
        listener: TcpListener,
        others: Vec<Member>,
        accept: impl FnOnce(TcpListener, Sender<Caller>, Arc<AtomicBool>) -> Result<JoinHandle<()>, Error>,
    ) -> Result<Self, Error> {
        let (waiting, is_closed) = (Arc::<Mutex<Vec<Caller>>>::default(), Arc::new(AtomicBool::new(false)));
        let (send_caller, callers) = channel::<Caller>();
        let accepting = accept(listener, send_caller, Arc::clone(&is_closed))?;
        let (at_door, closed) = (Arc::clone(&waiting), Arc::clone(&is_closed));
        let wait = Answer::Wait { others };
        let look_after = move || {
            while !closed.load(Ordering::SeqCst) {
                let caller = callers.recv_timeout(AGAIN);
                let mut waiting = at_door.lock().unwrap_or_else(PoisonError::into_inner);
                // One that has gone again is forgotten.
                waiting.retain_mut(|caller| caller.channel.tell(&wait).is_ok());
                match caller {
                    Ok(caller) => waiting.push(caller),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let mut door = Self { waiting, is_closed, threads: vec![accepting] };
        door.threads.push(Builder::new().name("door".into()).spawn(look_after).map_err(Error::Thread)?);
        Ok(door)
    }

    /// Returns how many wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Lets nobody wait any more, and returns who did. Afterwards, the port is free.
    pub(crate) fn close(&mut self) -> Vec<Caller> {
        self.is_closed.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}
