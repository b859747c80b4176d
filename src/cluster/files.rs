//! Files of rank 0 for all ranks.
//!
//! Rank 0 says which files there are, with their lengths and hashes, and then sends their bytes in pieces.
//! The other ranks write them below a folder of theirs. A name that would lead out of it is refused.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::files::{create_private_folder, private_file};
use sparktune_base::regular_file::open_regular;

use crate::collective::Collective;
use crate::error::Error;

/// The bytes that are sent at a time.
const PIECE: u64 = 8 << 20;

/// A file that rank 0 has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Shared {
    name: String,
    bytes: u64,
    blake3: String,
}

/// Copies the named files below `folder` of rank 0 to below `folder` of every other rank, which passes no
/// names. Files that are there already are replaced. All ranks must call this.
///
/// # Errors
/// A file cannot be read or written, does not arrive as it was sent, or a rank is gone.
pub fn share_files(collective: &mut dyn Collective, folder: &Path, names: &[String]) -> Result<(), Error> {
    let is_first = collective.rank() == 0;
    let own = if is_first { describe(folder, names)? } else { Vec::new() };
    let list = serde_json::to_vec(&own).expect("a list of files always serialises");
    let list = collective.broadcast(&list)?;
    let files: Vec<Shared> =
        serde_json::from_slice(&list).map_err(|_| out_of_step("it sends no list of files"))?;
    for file in &files {
        let path = place_of(folder, &file.name)?;
        if is_first { send(collective, &path, file)? } else { receive(collective, &path, file)? }
    }
    Ok(())
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
fn place_of(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let is_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let is_plain = !name.is_empty() && !name.contains(['\\', '\0']);
    if is_inside && is_plain {
        return Ok(folder.join(name));
    }
    Err(out_of_step(&format!("it sends a file named \"{}\"", escape(name))))
}

fn send(collective: &mut dyn Collective, path: &Path, file: &Shared) -> Result<(), Error> {
    let mut source = open_regular(path).map_err(at(path))?;
    let mut piece = Vec::new();
    let mut left = file.bytes;
    while left > 0 {
        piece.clear();
        (&mut source).take(PIECE.min(left)).read_to_end(&mut piece).map_err(at(path))?;
        if piece.is_empty() {
            return Err(at(path)(io::ErrorKind::UnexpectedEof.into()));
        }
        left -= piece.len() as u64;
        collective.broadcast(&piece)?;
    }
    Ok(())
}

fn receive(collective: &mut dyn Collective, path: &Path, file: &Shared) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        create_private_folder(folder).map_err(at(folder))?;
    }
    // A link at this place would lead elsewhere, and a token file may be another run's too.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(path)(error)),
        _ => {}
    }
    let mut target: File = private_file().create_new(true).open(path).map_err(at(path))?;
    let mut hasher = blake3::Hasher::new();
    let mut left = file.bytes;
    while left > 0 {
        let piece = collective.broadcast(&[])?;
        if piece.is_empty() || piece.len() as u64 > left {
            return Err(out_of_step("the pieces of a file do not fit together"));
        }
        left -= piece.len() as u64;
        hasher.update(&piece);
        target.write_all(&piece).map_err(at(path))?;
    }
    target.sync_all().map_err(at(path))?;
    if hasher.finalize().to_hex().as_str() != file.blake3 {
        return Err(out_of_step(&format!("{} changed while it was sent", escape(&file.name))));
    }
    Ok(())
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
