//! Token files that another machine serves, `ndp://HOST:PORT/NAME#KEY`: fetched into a folder next to the
//! runs, and then a file like any other.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sparktune_data::{Input, InputFile};
use sparktune_ndp::{Address, Error, Patience, Received, Token, Watch, receive};

use crate::failure::Failure;
use crate::folders::{private_folder_of_user, state_folder};
use crate::listener::{Listener, Progress, Unit};

/// The name of the folder next to the runs, for the user who is there first.
const RECEIVED: &str = ".received";
/// The shortest time between two reports of progress.
const BETWEEN_REPORTS: Duration = Duration::from_millis(100);

/// Fetches the token file of an address, unless it is there, and returns it as data.
///
/// # Errors
/// The address is malformed, or the file cannot be had. What was received is kept.
pub(crate) fn received(name: &str, runs_dir: &Path, listener: &dyn Listener) -> Result<Input, Failure> {
    let address = Address::parse(name)?;
    let folder = private_folder_of_user(runs_dir, RECEIVED)?;
    let token = || Token::find(std::env::var(Token::VARIABLE).ok().as_deref(), state_folder().as_deref());
    let watch =
        Watched { what: format!("receiving {}", address.short()), listener, reported: Mutex::new(None) };
    let Received { path, pinned, unasked } = receive(&address, token, &folder, Patience::default(), &watch)?;
    if let Some(why) = unasked {
        listener.note(&format!("note: using the copy that was received earlier: {why}"));
    }
    let file = InputFile { name: address.short(), path };
    Ok(Input { name: name.to_owned(), pinned: Some(pinned.to_string()), files: vec![file] })
}

/// Forwards a transfer to a listener.
struct Watched<'a> {
    what: String,
    listener: &'a dyn Listener,
    reported: Mutex<Option<Instant>>,
}

impl Watched<'_> {
    fn report(&self, done: u64, total: Option<u64>, note: Option<String>) {
        let what = self.what.clone();
        self.listener.progress(&Progress { what, done, total, unit: Unit::Bytes, note });
    }
}

impl Watch for Watched<'_> {
    fn progress(&self, have: u64, size: u64) {
        let mut reported = self.reported.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_due = reported.is_none_or(|at| at.elapsed() >= BETWEEN_REPORTS) || have == size;
        if is_due {
            *reported = Some(Instant::now());
            self.report(have, Some(size), None);
        }
    }

    fn retry(&self, why: &Error, wait: Duration) {
        let note = format!("{why}; trying again in {} s", wait.as_secs().max(1));
        self.listener.note(&format!("note: {note}"));
    }

    fn is_cancelled(&self) -> bool {
        self.listener.is_cancelled()
    }
}
