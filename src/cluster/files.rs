//! Files of rank 0 for all ranks.
//!
//! Rank 0 says which files there are, with their lengths and hashes; the others say how much they have of
//! each, the same file or the beginning that an earlier attempt left. Then rank 0 sends the rest in pieces,
//! to all, from where the one begins that has least. The other ranks write below a folder of theirs, and
//! use a file only when every byte is verified. A name that would lead out of the folder is refused.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::files::{create_private_folder, private_file};
use sparktune_base::regular_file::open_regular;

use crate::collective::Collective;
use crate::error::Error;

/// The bytes that are sent at a time.
const PIECE: u64 = 8 << 20;
/// What the name of a file ends with until all of it is verified.
const PARTIAL: &str = "partial";

/// A file that rank 0 has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub(crate) name: String,
    bytes: u64,
    blake3: String,
}

/// Copies the named files below `folder` of rank 0 to below `folder` of every other rank, which passes no
/// names. Other files of these names are replaced. All ranks must call this.
///
/// # Errors
/// A file cannot be read or written, does not arrive as it was sent, or a rank is gone.
pub fn share_files(collective: &mut dyn Collective, folder: &Path, names: &[String]) -> Result<(), Error> {
    share_files_and_tell(collective, folder, names, &mut |_, _| ())
}

/// Like [`share_files`], and calls `tell` after each piece with the bytes that have been sent, and all that
/// are to be.
///
/// # Errors
/// The same as for [`share_files`].
pub fn share_files_and_tell(
    collective: &mut dyn Collective,
    folder: &Path,
    names: &[String],
    tell: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let is_first = collective.rank() == 0;
    let own = if is_first { describe(folder, names)? } else { Vec::new() };
    let list = serde_json::to_vec(&own).expect("a list of files always serialises");
    let list = collective.broadcast(&list)?;
    let files: Vec<Shared> =
        serde_json::from_slice(&list).map_err(|_| out_of_step("it sends no list of files"))?;
    let paths = files.iter().map(|file| place_of(folder, &file.name)).collect::<Result<Vec<_>, _>>()?;
    let have = |(file, path): (&Shared, &PathBuf)| {
        if is_first || is_the_same(path, file) {
            return file.bytes;
        }
        let begun = std::fs::metadata(partial_of(path)).map_or(0, |begun| begun.len());
        // One that is as long as the whole is not: it would have been verified.
        if begun < file.bytes { begun } else { 0 }
    };
    let own: Vec<u64> = files.iter().zip(&paths).map(have).collect();
    let of_all = collective.all_gather(&serde_json::to_vec(&own).expect("numbers always serialise"))?;
    let of_all = of_all.iter().map(|have| serde_json::from_slice::<Vec<u64>>(have).ok());
    let of_all = of_all.map(|have| have.filter(|have| have.len() == files.len()));
    let of_all = of_all.collect::<Option<Vec<_>>>().ok_or_else(|| out_of_step("one has other files"))?;
    let least = |at: usize| of_all.iter().map(|have| have[at]).min().unwrap_or(0);
    let rest = |at: usize| files[at].bytes.saturating_sub(least(at));
    let (mut done, total) = (0, (0..files.len()).map(rest).sum());
    let mut tell = |bytes: u64| {
        done += bytes;
        tell(done, total);
    };
    for (at, (file, path)) in files.iter().zip(&paths).enumerate() {
        let from = least(at);
        if is_first {
            send(collective, path, file, from, &mut tell)?;
        } else if own[at] == file.bytes && (file.bytes > 0 || is_the_same(path, file)) {
            pass_over(collective, file, from, &mut tell)?;
        } else {
            receive(collective, path, file, [from, own[at]], &mut tell)?;
        }
    }
    Ok(())
}

/// Returns whether this file is here, whole.
fn is_the_same(path: &Path, file: &Shared) -> bool {
    let mut hasher = blake3::Hasher::new();
    let hashed = open_regular(path).and_then(|opened| {
        let is_as_long = opened.metadata()?.len() == file.bytes;
        is_as_long.then(|| hasher.update_reader(opened).map(drop)).transpose()
    });
    matches!(hashed, Ok(Some(()))) && hasher.finalize().to_hex().as_str() == file.blake3
}

fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(PARTIAL);
    path.with_file_name(name)
}

fn describe(folder: &Path, names: &[String]) -> Result<Vec<Shared>, Error> {
    let described = names.iter().map(|name| {
        let path = folder.join(name);
        let mut hasher = blake3::Hasher::new();
        let bytes = open_regular(&path).and_then(|file| {
            let bytes = file.metadata()?.len();
            hasher.update_reader(file)?;
            Ok(bytes)
        });
        let bytes = bytes.map_err(at(&path))?;
        Ok(Shared { name: name.clone(), bytes, blake3: hasher.finalize().to_hex().to_string() })
    });
    described.collect()
}

/// Returns the place of a file whose name another rank has sent.
pub(crate) fn place_of(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let is_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let is_plain = !name.is_empty() && !name.contains(['\\', '\0']);
    if is_inside && is_plain {
        return Ok(folder.join(name));
    }
    Err(out_of_step(&format!("it sends a file named \"{}\"", escape(name))))
}

fn send(
    collective: &mut dyn Collective,
    path: &Path,
    file: &Shared,
    from: u64,
    tell: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut source = open_regular(path).map_err(at(path))?;
    source.seek(SeekFrom::Start(from)).map_err(at(path))?;
    let mut piece = Vec::new();
    let mut left = file.bytes.saturating_sub(from);
    while left > 0 {
        piece.clear();
        (&mut source).take(PIECE.min(left)).read_to_end(&mut piece).map_err(at(path))?;
        if piece.is_empty() {
            return Err(at(path)(io::ErrorKind::UnexpectedEof.into()));
        }
        left -= piece.len() as u64;
        collective.broadcast(&piece)?;
        tell(piece.len() as u64);
    }
    Ok(())
}

/// Returns the next piece of a file of which so many bytes are left.
fn next_piece(collective: &mut dyn Collective, left: u64) -> Result<Vec<u8>, Error> {
    let piece = collective.broadcast(&[])?;
    if piece.is_empty() || piece.len() as u64 > left {
        return Err(out_of_step("the pieces of a file do not fit together"));
    }
    Ok(piece)
}

/// Lets a file pass that others lack.
fn pass_over(
    collective: &mut dyn Collective,
    file: &Shared,
    from: u64,
    tell: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut left = file.bytes.saturating_sub(from);
    while left > 0 {
        let count = next_piece(collective, left)?.len() as u64;
        left -= count;
        tell(count);
    }
    Ok(())
}

/// Receives a file whose bytes come from `from` on, and of which the first `have` are here.
fn receive(
    collective: &mut dyn Collective,
    path: &Path,
    file: &Shared,
    [from, have]: [u64; 2],
    tell: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        create_private_folder(folder).map_err(at(folder))?;
    }
    let partial = partial_of(path);
    let mut hasher = blake3::Hasher::new();
    let mut target: File = if have > 0 {
        let begun = open_regular(&partial).map_err(at(&partial))?;
        hasher.update_reader(begun.take(have)).map_err(at(&partial))?;
        private_file().append(true).open(&partial).map_err(at(&partial))?
    } else {
        // A link at this place would lead elsewhere.
        match std::fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&partial)(error)),
            _ => {}
        }
        private_file().create_new(true).open(&partial).map_err(at(&partial))?
    };
    let (mut left, mut known) = (file.bytes.saturating_sub(from), have.saturating_sub(from));
    while left > 0 {
        let piece = next_piece(collective, left)?;
        let count = piece.len() as u64;
        left -= count;
        let new = &piece[known.min(count) as usize..];
        known -= known.min(count);
        hasher.update(new);
        target.write_all(new).map_err(at(&partial))?;
        tell(count);
    }
    target.sync_all().map_err(at(&partial))?;
    if hasher.finalize().to_hex().as_str() != file.blake3 {
        // What an earlier attempt left may be damaged, so the next one begins anew.
        std::fs::remove_file(&partial).map_err(at(&partial))?;
        let what = format!(
            "{} changed while it was sent, or what was here of it was damaged and is thrown away",
            escape(&file.name)
        );
        return Err(out_of_step(&what));
    }
    // A token file at this place may be another run's too, so it is replaced and not written to.
    std::fs::rename(&partial, path).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path: path.clone(), source }
}

fn out_of_step(what: &str) -> Error {
    Error::OutOfStep { rank: 0, at: "sending files".into(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_refused() {
        let folder = Path::new("/folder");
        assert_eq!(place_of(folder, "data/train.qubgpu").unwrap(), Path::new("/folder/data/train.qubgpu"));
        for name in ["", "/etc/passwd", "../x", "data/../../x", "a\0b", "."] {
            assert!(place_of(folder, name).is_err(), "{name:?}");
        }
    }
}
