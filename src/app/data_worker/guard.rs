//! The limits of a worker for a process that runs a model's tokenizer itself.
//!
//! Some work needs tokenizer and weights in one process, again and again, and its person waits in front
//! of it. Such a process keeps a ledger of its own, and a thread looks at it as a parent does. What passes a
//! limit cannot be stopped from within, so the process ends with the same sentence. An overflowed stack and a
//! failed allocation abort the process before anybody can say a sentence; therefore a worker reads both files
//! first, and renders by the chat template ([`ModelTokenizer`](super::ModelTokenizer)).

use std::panic::{set_hook, take_hook};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::ledger::{Ledger, is_at_work, keep_ledger_in, mark_failed};
use super::watch::Watch;
use crate::failure::Failure;

/// How often the ledger is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Watches what tokenizers take in this process from now on. `end` is called with the failure when a limit is
/// passed or one of them panics; it says so and ends the process.
///
/// # Errors
/// The system has no memory or no thread.
pub fn guard_this_process(end: impl Fn(Failure) + Send + Sync + 'static) -> Result<(), Failure> {
    let failed = |error| Failure::usage(format!("the limits of the tokenizer cannot be watched: {error}"));
    let ledger = Arc::new(Ledger::create().map_err(failed)?);
    keep_ledger_in(ledger.file().map_err(failed)?);
    let end = Arc::new(end);
    let (watched, ends) = (Arc::clone(&ledger), Arc::clone(&end));
    thread::Builder::new()
        .name("limits".into())
        .spawn(move || {
            let mut watch = Watch::beside_model(std::process::id());
            loop {
                thread::sleep(LOOK_EVERY);
                if let Some(failure) = watch.look(&watched) {
                    ends(failure);
                }
            }
        })
        .map_err(failed)?;
    let before = take_hook();
    set_hook(Box::new(move |panic| {
        if !is_at_work() {
            before(panic);
        } else if mark_failed() {
            let watch = Watch::beside_model(std::process::id());
            end(watch.panicked(&ledger, panic.payload_as_str().unwrap_or("it panicked")));
        }
    }));
    Ok(())
}
