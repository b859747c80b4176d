//! `manifest.json` of a checkpoint: every file with its size and BLAKE3 hash, and a hash over that list
//! itself. A flipped bit anywhere in the folder, including the manifest, is detected and its file is named.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use sparktune_base::files::sync;
use sparktune_base::regular_file::{open_regular, read_regular};

pub(crate) const MANIFEST: &str = "manifest.json";
const VERSION: u32 = 1;
const BLOCK: usize = 1 << 20;
/// The most bytes that a manifest has.
const MOST_BYTES: u64 = 16 << 20;

/// The reason why a checkpoint folder cannot be used. Its message names the file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words are in Display")]
pub enum Damage {
    NoManifest,
    BadManifest { reason: String },
    Missing { file: String },
    WrongSize { file: String, expected: u64, found: u64 },
    Corrupt { file: String },
    Unreadable { file: String, reason: String },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::NoManifest => write!(f, "{MANIFEST} is missing"),
            Damage::BadManifest { reason } => write!(f, "{MANIFEST} is damaged: {reason}"),
            Damage::Missing { file } => write!(f, "{file} is missing"),
            Damage::WrongSize { file, expected, found } if found < expected => {
                write!(f, "{file} is truncated: it has {found} of {expected} bytes")
            }
            Damage::WrongSize { file, expected, found } => {
                write!(f, "{file} has {found} bytes instead of {expected}")
            }
            Damage::Corrupt { file } => write!(f, "{file} is corrupt: its BLAKE3 hash does not match"),
            Damage::Unreadable { file, reason } => write!(f, "{file} cannot be read: {reason}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    v: u32,
    pub(crate) step: u64,
    files: Vec<Entry>,
    /// The BLAKE3 hash of the JSON of the three fields above.
    blake3: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The path relative to the checkpoint, with `/` as the separator.
    path: String,
    bytes: u64,
    blake3: String,
}

impl Manifest {
    /// Flushes every file under `folder` to the disk and lists the files.
    pub(crate) fn of_folder(folder: &Path, step: u64) -> Result<Manifest, (PathBuf, io::Error)> {
        let mut paths = Vec::new();
        walk(folder, &mut paths)?;
        paths.sort();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let entry = || -> io::Result<Entry> {
                let file = File::open(&path)?;
                file.sync_all()?;
                let (bytes, blake3) = hash(&file)?;
                let relative = path.strip_prefix(folder).expect("walked from the folder");
                let relative = relative.to_str().ok_or_else(|| io::Error::other("its name is not UTF-8"))?;
                Ok(Entry { path: relative.to_owned(), bytes, blake3 })
            };
            files.push(entry().map_err(|e| (path.clone(), e))?);
        }
        let blake3 = list_hash(VERSION, step, &files);
        Ok(Manifest { v: VERSION, step, files, blake3 })
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("plain fields serialise");
        json.push(b'\n');
        json
    }

    /// Reads the manifest of a folder and checks its own hash.
    pub(crate) fn read(folder: &Path) -> Result<Manifest, Damage> {
        let bad = |reason: String| Damage::BadManifest { reason };
        let json = match read_regular(&folder.join(MANIFEST), MOST_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Damage::NoManifest),
            read => read.map_err(|e| bad(e.to_string()))?,
        };
        let manifest: Manifest = serde_json::from_slice(&json).map_err(|e| bad(e.to_string()))?;
        if manifest.blake3 != list_hash(manifest.v, manifest.step, &manifest.files) {
            return Err(bad("its own BLAKE3 hash does not match".to_owned()));
        }
        if manifest.v != VERSION {
            return Err(bad(format!("version {} is newer than this sparktune; update it", manifest.v)));
        }
        Ok(manifest)
    }

    /// Compares names and sizes with the folder, which suffices to count checkpoints but not to trust one.
    pub(crate) fn check_sizes(&self, folder: &Path) -> Result<(), Damage> {
        for Entry { path, bytes, .. } in &self.files {
            let file = path.clone();
            match fs::symlink_metadata(folder.join(path)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Damage::Missing { file }),
                Err(e) => return Err(Damage::Unreadable { file, reason: e.to_string() }),
                Ok(meta) if meta.len() != *bytes => {
                    return Err(Damage::WrongSize { file, expected: *bytes, found: meta.len() });
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Compares every byte with the hashes.
    pub(crate) fn check_contents(&self, folder: &Path) -> Result<(), Damage> {
        self.check_sizes(folder)?;
        for Entry { path, blake3, .. } in &self.files {
            let found = open_regular(&folder.join(path)).and_then(|f| hash(&f));
            match found {
                Err(e) => return Err(Damage::Unreadable { file: path.clone(), reason: e.to_string() }),
                Ok((_, found)) if found != *blake3 => return Err(Damage::Corrupt { file: path.clone() }),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }
}

fn list_hash(v: u32, step: u64, files: &[Entry]) -> String {
    let list = serde_json::to_vec(&(v, step, files)).expect("plain fields serialise");
    blake3::hash(&list).to_hex().to_string()
}

fn hash(mut file: &File) -> io::Result<(u64, String)> {
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK];
    let mut bytes = 0;
    loop {
        match file.read(&mut block)? {
            0 => break,
            n => {
                hasher.update(&block[..n]);
                bytes += n as u64;
            }
        }
    }
    // With unified memory the page cache takes memory from the GPU. If the advice is refused, only memory is
    // wasted.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    Ok((bytes, hasher.finalize().to_hex().to_string()))
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), (PathBuf, io::Error)> {
    let at = |e: io::Error| (folder.to_owned(), e);
    for entry in fs::read_dir(folder).map_err(at)? {
        let entry = entry.map_err(at)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(at)?);
        if kind.is_dir() {
            walk(&path, paths)?;
            sync(&path).map_err(|e| (path, e))?;
        } else if kind.is_file() {
            paths.push(path);
        } else {
            return Err((path, io::Error::other("a checkpoint holds plain files only")));
        }
    }
    Ok(())
}
