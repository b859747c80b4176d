//! The receiving side: fetches a token file, however often the connection is cut.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};
use sparktune_base::files::write_shared;
use sparktune_data::token_file::{Announced, TokenFile};

use crate::address::{Address, from_hex, to_hex};
use crate::error::Error;
use crate::frame::Frame;
use crate::medium::Patience;
use crate::messages::{Reply, Want};
use crate::payload::{Description, Sink};
use crate::routing::{Taker, taker_of};
use crate::secret::Token;
use crate::stream::{Channel, MOST_PAYLOAD, message};

/// Watches over a transfer. Called from the thread that receives.
pub trait Watch: Sync {
    /// Verified bytes on this machine, of how many.
    fn progress(&self, have: u64, size: u64);

    /// An attempt failed; the next one follows after `wait`.
    fn retry(&self, why: &Error, wait: Duration);

    /// Returns whether to give up.
    fn is_cancelled(&self) -> bool;
}

/// A token file that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The file.
    pub path: PathBuf,
    /// The address that means this content for ever.
    pub pinned: Address,
    /// Why the server was not asked, if an earlier copy is used without that.
    pub unasked: Option<String>,
}

/// The content that an address had when it was last asked.
#[derive(Serialize, Deserialize)]
struct Last {
    address: String,
    hash: String,
}

/// Fetches the token file of an address into `folder`, which should be private, unless it is there
/// already. The token is needed only if the server has to be asked.
///
/// # Errors
/// The file cannot be had. What was received is kept, and the same call continues there.
pub fn receive(
    address: &Address,
    token: impl FnOnce() -> Result<Token, Error>,
    folder: &Path,
    patience: Patience,
    watch: &dyn Watch,
) -> Result<Received, Error> {
    let received =
        |hash, unasked| Received { path: place_of(folder, hash), pinned: address.pinned(hash), unasked };
    if let Some(hash) = address.hash.filter(|hash| is_there(folder, *hash)) {
        return Ok(received(hash, None));
    }
    let last = address.hash.is_none().then(|| last_content(folder, address)).flatten();
    let last = last.filter(|hash| is_there(folder, *hash));
    let token = token()?;
    let mut attempt = Attempt { address, token: &token, folder, patience, watch, have: 0, size: 0 };
    let (mut fruitless, mut furthest) = (0, 0);
    loop {
        let error = match attempt.run() {
            Ok(hash) => {
                remember(folder, address, hash)?;
                return Ok(received(hash, None));
            }
            Err(error) if error.is_passing() => error,
            Err(error) => return Err(error),
        };
        // A copy that is there is not worth waiting for a server that is away.
        if let Some(hash) = last.filter(|_| attempt.size == 0) {
            return Ok(received(hash, Some(error.to_string())));
        }
        fruitless = if attempt.have > furthest { 1 } else { fruitless + 1 };
        furthest = furthest.max(attempt.have);
        if fruitless >= patience.attempts {
            let (place, last) = (address.short(), Box::new(error));
            let Attempt { have, size, .. } = attempt;
            return Err(Error::Interrupted { place, have, size, attempts: fruitless, last });
        }
        let wait = patience.wait(fruitless);
        watch.retry(&error, wait);
        pause(wait, watch)?;
    }
}

/// One connection, and what all of them have brought.
struct Attempt<'a> {
    address: &'a Address,
    token: &'a Token,
    folder: &'a Path,
    patience: Patience,
    watch: &'a dyn Watch,
    have: u64,
    /// The size of the file; 0 until a server has announced it.
    size: u64,
}

impl Attempt<'_> {
    /// Returns the hash of the file that is there then.
    fn run(&mut self) -> Result<[u8; 32], Error> {
        let watch = self.watch;
        let cancelled = Arc::new(move || watch.is_cancelled());
        let mut channel = Channel::connect(self.address, self.token, self.patience, cancelled)?;
        let place = self.address.short();
        channel.tell(&Want::File { name: self.address.name.clone() })?;
        let description = match channel.hear()? {
            Reply::File(description) => description,
            other => return Err(refusal(place, other)),
        };
        let Some(hash) = from_hex(&description.hash) else {
            return Err(Error::Protocol { place, what: "the announced hash is not a hash" });
        };
        if self.address.hash.is_some_and(|wanted| wanted != hash) {
            return Err(Error::OtherContent { place });
        }
        if is_there(self.folder, hash) {
            return Ok(hash);
        }
        let Description { bytes, examples, .. } = description;
        let payload = |source| Error::Payload { place: place.clone(), source };
        let mut sink =
            Sink::open(&place_of(self.folder, hash), Announced { hash, bytes, examples }).map_err(payload)?;
        (self.have, self.size) = (sink.bytes(), bytes);
        self.watch.progress(self.have, self.size);
        self.refuse_small_disk()?;
        channel.tell(&Want::From { example: sink.next() })?;
        loop {
            let frame = channel.receive(MOST_PAYLOAD)?;
            match taker_of(frame.codes).map_err(|fault| Error::Routing { place: place.clone(), fault })? {
                Taker::Opening => sink.opening(&frame.payload).map_err(payload)?,
                Taker::Example => sink.packet(&frame.payload).map_err(payload)?,
                Taker::Closing => {
                    // Verifying takes a while, for which the server need not wait. It has nothing more to
                    // say, so it does not matter if it is gone already.
                    let _ = channel.bid_farewell();
                    sink.close(&frame.payload).map_err(payload)?;
                    self.have = self.size;
                    self.watch.progress(self.have, self.size);
                    return Ok(hash);
                }
                Taker::Channel => return Err(refusal(place.clone(), message(&place, &frame)?)),
            }
            self.dealt_with(&mut channel, &frame, sink.bytes())?;
        }
    }

    fn dealt_with(&mut self, channel: &mut Channel<'_>, frame: &Frame, have: u64) -> Result<(), Error> {
        self.have = have;
        self.watch.progress(self.have, self.size);
        channel.deal_with(frame)
    }

    fn refuse_small_disk(&self) -> Result<(), Error> {
        let needed = self.size - self.have.min(self.size);
        let free = statvfs(self.folder).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        if needed <= free {
            return Ok(());
        }
        Err(Error::DiskFull { folder: self.folder.to_path_buf(), needed, free })
    }
}

/// Returns the failure that a reply stands for.
fn refusal(place: String, reply: Reply) -> Error {
    match reply {
        Reply::File(_) => Error::Protocol { place, what: "a file was announced twice" },
        Reply::NoSuchFile { known } => {
            let known = known.into_iter().filter(|name| crate::address::is_name(name)).take(20).collect();
            Error::NoSuchFile { place, known }
        }
        Reply::Damaged { example } => Error::DamagedThere { place, example },
        Reply::Busy => Error::Away { place, why: "has as many connections as it takes" },
    }
}

/// Sleeps in short pieces, so that cancelling takes effect quickly.
fn pause(time: Duration, watch: &dyn Watch) -> Result<(), Error> {
    const PIECE: Duration = Duration::from_millis(100);
    let mut left = time;
    loop {
        if watch.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if left.is_zero() {
            return Ok(());
        }
        let piece = left.min(PIECE);
        std::thread::sleep(piece);
        left -= piece;
    }
}

/// Returns the place of a file with this content.
fn place_of(folder: &Path, hash: [u8; 32]) -> PathBuf {
    folder.join(format!("{}.qubgpu", to_hex(&hash)))
}

/// Returns whether a file with this content is there. It was verified before it got this name.
fn is_there(folder: &Path, hash: [u8; 32]) -> bool {
    TokenFile::open(&place_of(folder, hash)).is_ok_and(|file| file.file_hash() == to_hex(&hash))
}

/// Returns the file that says which content an address had.
fn note_of(folder: &Path, address: &Address) -> PathBuf {
    let name = blake3::hash(Address { hash: None, ..address.clone() }.to_string().as_bytes()).to_hex();
    folder.join(format!("{}.json", &name[..16]))
}

fn last_content(folder: &Path, address: &Address) -> Option<[u8; 32]> {
    let text = sparktune_base::regular_file::read_regular(&note_of(folder, address), 4096).ok()?;
    let last: Last = serde_json::from_slice(&text).ok()?;
    let same =
        Address::parse(&last.address).is_ok_and(|noted| noted == Address { hash: None, ..address.clone() });
    from_hex(&last.hash).filter(|_| same)
}

fn remember(folder: &Path, address: &Address, hash: [u8; 32]) -> Result<(), Error> {
    let address = Address { hash: None, ..address.clone() };
    let path = note_of(folder, &address);
    let last = Last { address: address.to_string(), hash: to_hex(&hash) };
    let text = serde_json::to_string(&last).expect("texts always serialise");
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    write_shared(&path, text).map_err(Error::io(&path))
}
