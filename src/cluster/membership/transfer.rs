//! Files of a model from the machine that has them to one that has not: described by hash, sent from where
//! an earlier attempt ended, and used only when every byte is verified.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Builder;
use std::time::Duration;

use rustix::fs::statvfs;
use sparktune_base::files::{create_private_folder, private_file, sync};
use sparktune_base::regular_file::open_regular;
use sparktune_base::units::bytes as in_bytes;
use sparktune_ndp::frame::Codes;
use sparktune_ndp::stream::Channel;

use super::messages::{Answer, FileEntry, Folder, MOST_FILES};
use super::talk::{beat, lost, place_of, tell};
use crate::error::Error;

/// Bytes of a packet.
const PIECE: usize = 1 << 20;
/// The codes of a packet with bytes of a file.
pub(super) const BYTES: Codes = Codes { src: 0, dst: 0, typ: 1 };
/// What the files end with that training may open. Others in the folder of a model are not sent.
const ENDINGS: [&str; 5] = ["safetensors", "json", "jinja", "txt", "model"];
/// What the name of a file ends with until all of it is verified.
const PARTIAL: &str = "partial";
/// The pause between two looks at whether another member has fetched the files, or the disk is done.
const LOOK: Duration = Duration::from_millis(50);

/// Called between pieces of long work; an error ends it.
pub type Tick<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// Describes the files in the folder of a model.
///
/// # Errors
/// The folder cannot be read, or has no such files, or far too many.
pub fn describe(folder: &Path, tick: Tick<'_>) -> Result<Folder, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let is_wanted = path.extension().is_some_and(|end| ENDINGS.iter().any(|wanted| end == *wanted));
        // A link into a cache of downloads is a file too.
        if is_wanted && !name.starts_with('.') && path.is_file() {
            names.push(name);
        }
    }
    names.sort();
    if names.is_empty() || names.len() > MOST_FILES {
        let what =
            if names.is_empty() { "has no files of a model" } else { "has more files than a model has" };
        let source = io::Error::other(format!("it {what}, so it cannot be sent to other members"));
        return Err(at(folder)(source));
    }
    let mut files = Vec::new();
    for name in names {
        let path = folder.join(&name);
        let mut file = open_regular(&path).map_err(at(&path))?;
        let (hash, bytes) = hash(&mut file, &path, tick)?;
        files.push(FileEntry { name, bytes, blake3: hash.finalize().to_hex().to_string() });
    }
    Ok(Folder { path: folder.display().to_string(), files })
}

/// Reads a file to its end.
fn hash(file: &mut File, path: &Path, tick: Tick<'_>) -> Result<(blake3::Hasher, u64), Error> {
    let mut hasher = blake3::Hasher::new();
    let (mut piece, mut bytes) = (vec![0; PIECE], 0);
    loop {
        match file.read(&mut piece).map_err(at(path))? {
            0 => return Ok((hasher, bytes)),
            count => {
                hasher.update(&piece[..count]);
                bytes += count as u64;
                tick()?;
            }
        }
    }
}

/// Returns whether a folder has all of these files, with the same bytes.
///
/// # Errors
/// `tick` ends it.
pub fn has_the_same(place: &Path, folder: &Folder, tick: Tick<'_>) -> Result<bool, Error> {
    // Sizes first: they cost nothing.
    let has_size = |file: &FileEntry| {
        fs::metadata(place.join(&file.name)).is_ok_and(|found| found.is_file() && found.len() == file.bytes)
    };
    if !folder.files.iter().all(has_size) {
        return Ok(false);
    }
    for file in &folder.files {
        if !is_there(place, file, tick)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether a folder has this file, with the same bytes.
///
/// # Errors
/// `tick` ends it.
fn is_there(place: &Path, file: &FileEntry, tick: Tick<'_>) -> Result<bool, Error> {
    let path = place.join(&file.name);
    let Ok(mut opened) = open_regular(&path) else { return Ok(false) };
    match hash(&mut opened, &path, tick) {
        Err(Error::File { .. }) => Ok(false),
        hashed => Ok(hashed?.0.finalize().to_hex().as_str() == file.blake3),
    }
}

/// Sends the rest of a file.
///
/// # Errors
/// The file cannot be read, or the connection fails.
pub(super) fn send(
    channel: &mut Channel<'_>,
    place: &Path,
    file: &FileEntry,
    from: u64,
    sent: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let path = place.join(&file.name);
    let mut source = open_regular(&path).map_err(at(&path))?;
    source.seek(SeekFrom::Start(from)).map_err(at(&path))?;
    let mut piece = vec![0; PIECE];
    let mut left = file.bytes.saturating_sub(from);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let count = source.read(&mut piece[..most]).map_err(at(&path))?;
        if count == 0 {
            return Err(at(&path)(io::ErrorKind::UnexpectedEof.into()));
        }
        channel.send(BYTES, &piece[..count]).map_err(|error| lost(channel, &error))?;
        left -= count as u64;
        sent(count as u64);
    }
    channel.flush().map_err(|error| lost(channel, &error))
}

/// Fetches the files of a folder into `cache`, except those that are there with all their bytes: a disk may
/// have changed some since they were verified. Returns where the files are and how many bytes came. Members
/// that share the disk of the cache fetch one after the other, so that the second one finds what the first
/// one has fetched.
///
/// # Errors
/// The disk is too small or has no locks, the connection fails, or what arrives is not what was announced.
/// What has arrived is kept, and the next attempt continues there.
pub(super) fn fetch(
    channel: &mut Channel<'_>,
    index: usize,
    folder: &Folder,
    cache: &Path,
) -> Result<(PathBuf, u64), Error> {
    let place = place_in(cache, folder);
    create_private_folder(&place).map_err(at(&place))?;
    let _alone = alone(&place, &mut beat(channel))?;
    let mut missing = Vec::new();
    for (number, file) in folder.files.iter().enumerate() {
        if !is_there(&place, file, &mut beat(channel))? {
            missing.push((number, file));
        }
    }
    refuse_small_disk(&place, missing.iter().map(|(_, file)| bytes_to_come(&place, file)).sum())?;
    let mut fetched = 0;
    for (number, file) in missing {
        fetched += fetch_one(channel, [index, number], file, &place)?;
    }
    meanwhile(&mut beat(channel), &place, || sync(&place))?;
    Ok((place, fetched))
}

/// Returns where the files of a folder are when they have been fetched.
pub(super) fn place_in(cache: &Path, folder: &Folder) -> PathBuf {
    cache.join(&folder.digest().to_hex()[..32])
}

/// Flushes to the disk in a thread, because flushing gigabytes takes long without a sign of life, and calls
/// `tick` meanwhile.
///
/// # Errors
/// The disk refuses, the system starts no thread, or `tick` ends it once the disk is done.
fn meanwhile(
    tick: Tick<'_>,
    path: &Path,
    flush: impl FnOnce() -> io::Result<()> + Send,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let (sender, flushed) = mpsc::channel();
        let thread = Builder::new().name("flush".into());
        thread
            .spawn_scoped(scope, move || {
                let _ = sender.send(flush());
            })
            .map_err(Error::Thread)?;
        loop {
            match flushed.recv_timeout(LOOK) {
                Ok(done) => return done.map_err(at(path)),
                Err(RecvTimeoutError::Timeout) => tick()?,
                Err(RecvTimeoutError::Disconnected) => return Err(at(path)(io::ErrorKind::Other.into())),
            }
        }
    })
}

/// Waits until nobody else fetches into a folder. Others wait as long as the returned file is open.
fn alone(place: &Path, tick: Tick<'_>) -> Result<File, Error> {
    let path = place.with_extension("lock");
    let file = private_file().create(true).truncate(false).open(&path).map_err(at(&path))?;
    while !is_locked(&path, file.try_lock())? {
        tick()?;
        std::thread::sleep(LOOK);
    }
    Ok(file)
}

/// Returns whether a lock was taken.
///
/// # Errors
/// There are no locks on this disk.
fn is_locked(path: &Path, tried: Result<(), TryLockError>) -> Result<bool, Error> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(Error::NoLocks { path: path.to_owned(), source }),
    }
}

/// Returns the bytes of a file that have not arrived.
fn bytes_to_come(place: &Path, file: &FileEntry) -> u64 {
    let has = place.join(partial_name(file)).metadata().map_or(0, |partial| partial.len());
    file.bytes.saturating_sub(has)
}

/// The name of a file that has arrived in part.
fn partial_name(file: &FileEntry) -> String {
    format!("{}.{PARTIAL}", file.name)
}

fn fetch_one(
    channel: &mut Channel<'_>,
    [folder, number]: [usize; 2],
    file: &FileEntry,
    place: &Path,
) -> Result<u64, Error> {
    let target = place.join(&file.name);
    let partial = place.join(partial_name(file));
    let mut spool =
        private_file().read(true).create(true).truncate(false).open(&partial).map_err(at(&partial))?;
    let (mut hasher, mut have) = hash(&mut spool, &partial, &mut beat(channel))?;
    if have > file.bytes {
        spool.set_len(0).and_then(|()| spool.rewind()).map_err(at(&partial))?;
        (hasher, have) = (blake3::Hasher::new(), 0);
    }
    let from = have;
    tell(channel, &Answer::Want { folder, file: number, from })?;
    while have < file.bytes {
        let frame = channel.receive(PIECE).map_err(|error| lost(channel, &error))?;
        let count = frame.payload.len() as u64;
        if frame.codes != BYTES || count == 0 || have + count > file.bytes {
            let (at, why) = (place_of(channel), "it sends something else than was asked for");
            return Err(Error::Agent { at, why: why.into() });
        }
        hasher.update(&frame.payload);
        spool.write_all(&frame.payload).map_err(at(&partial))?;
        have += count;
        channel.deal_with(&frame).map_err(|error| lost(channel, &error))?;
    }
    meanwhile(&mut beat(channel), &partial, || spool.sync_all())?;
    if hasher.finalize().to_hex().as_str() != file.blake3 {
        fs::remove_file(&partial).map_err(at(&partial))?;
        let why =
            format!("the bytes of {} are not those that were announced, and were thrown away", file.name);
        return Err(Error::Agent { at: place_of(channel), why });
    }
    fs::rename(&partial, &target).map_err(at(&target))?;
    Ok(have - from)
}

fn refuse_small_disk(place: &Path, needed: u64) -> Result<(), Error> {
    let free = statvfs(place).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    if needed <= free {
        return Ok(());
    }
    let why = format!("the model needs {}, and {} are free there", in_bytes(needed), in_bytes(free));
    Err(at(place)(io::Error::new(io::ErrorKind::StorageFull, why)))
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_arrived_in_part_needs_room_for_the_rest_only() {
        let place = tempfile::tempdir().unwrap();
        let file = FileEntry { name: "model.safetensors".into(), bytes: 10, blake3: String::new() };
        assert_eq!(bytes_to_come(place.path(), &file), 10);
        let partial = place.path().join("model.safetensors.partial");
        for (has, needed) in [(4, 6), (10, 0), (12, 0)] {
            fs::write(&partial, vec![0; has]).unwrap();
            assert_eq!(bytes_to_come(place.path(), &file), needed, "{has}");
        }
        assert!(refuse_small_disk(place.path(), 0).is_ok());
        let refused = refuse_small_disk(place.path(), u64::MAX).unwrap_err().to_string();
        assert!(refused.contains("the model needs"), "{refused}");
    }

    #[test]
    fn signs_of_life_are_given_while_the_disk_is_slow() {
        let (sender, ticked) = mpsc::channel();
        let mut ticks = 0;
        let mut tick = || -> Result<(), Error> {
            ticks += 1;
            if ticks == 3 {
                sender.send(()).unwrap();
            }
            Ok(())
        };
        let slow = move || ticked.recv().map_err(io::Error::other);
        meanwhile(&mut tick, Path::new("a"), slow).unwrap();
        assert!(ticks >= 3, "{ticks}");
        let full = || -> io::Result<()> { Err(io::ErrorKind::StorageFull.into()) };
        let refused = meanwhile(&mut || Ok(()), Path::new("a"), full).unwrap_err().to_string();
        assert!(refused.starts_with("a: "), "{refused}");
    }

    #[test]
    fn a_disk_without_locks_is_named_with_what_helps() {
        let path = Path::new("/runs/.models/a.lock");
        let no_locks = TryLockError::Error(io::ErrorKind::Unsupported.into());
        let said = is_locked(path, Err(no_locks)).unwrap_err().to_string();
        assert!(said.starts_with("/runs/.models/a.lock: ") && said.contains("--runs-dir"), "{said}");
        assert!(is_locked(path, Ok(())).unwrap());
        assert!(!is_locked(path, Err(TryLockError::WouldBlock)).unwrap());
    }
}
