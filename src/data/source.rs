//! Which files the data comes from.
//!
//! Owns the walk from what the user named (files, folders) to an ordered list of files, and how each of them
//! is opened: plain, gzip or zstd, told apart by their first bytes. Knows nothing of lines.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DataError;
use crate::progress::{Phase, Progress, Step};

/// Suffixes looked for in a folder.
const SUFFIXES: [&str; 3] = [".jsonl", ".jsonl.gz", ".jsonl.zst"];
/// Written by us beside the data; never read back as data.
const REJECTED: &str = "rejected.jsonl";
/// Files from here on are read without leaving them in the page cache: on unified memory the cache competes
/// with the model.
const DROP_BEHIND_FROM: u64 = 4 << 30;
const DROP_EVERY: u64 = 64 << 20;

/// One input file.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// Where it lies.
    pub path: PathBuf,
    /// As the user named it: what reports and rejections call it.
    pub name: String,
    /// Size on disk.
    pub bytes: u64,
}

/// An ordered, non-empty list of input files.
#[derive(Debug, Clone)]
pub struct Source {
    files: Vec<SourceFile>,
}

impl Source {
    /// Resolves files and folders. A folder stands for the `.jsonl`, `.jsonl.gz` and `.jsonl.zst` files
    /// directly in it, in name order.
    ///
    /// # Errors
    /// A path that does not exist, a folder without data files, an empty list.
    pub fn open(inputs: &[PathBuf]) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for input in inputs {
            let meta = std::fs::metadata(input).map_err(DataError::io("read", input))?;
            if meta.is_dir() {
                let found = data_files(input)?;
                if found.is_empty() {
                    return Err(DataError::input(
                        input,
                        "no .jsonl, .jsonl.gz or .jsonl.zst file in this folder",
                        "Name the data files themselves, or give them one of these endings",
                    ));
                }
                files.extend(found);
            } else {
                files.push(SourceFile {
                    path: input.clone(),
                    name: input.display().to_string(),
                    bytes: meta.len(),
                });
            }
        }
        if files.is_empty() {
            return Err(DataError::input(
                PathBuf::new(),
                "no data was named",
                "Name a .jsonl file or a folder, for example --data train.jsonl",
            ));
        }
        Ok(Self { files })
    }

    /// The files in reading order.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Bytes on disk, all files together.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }

    /// BLAKE3 (hex) of each file as it lies on disk, in order. One sequential read.
    pub fn fingerprints(&self, progress: &dyn Progress) -> Result<Vec<String>, DataError> {
        let total = self.total_bytes();
        let mut done = 0;
        let mut buffer = vec![0; 1 << 20];
        let mut hashes = Vec::with_capacity(self.files.len());
        for file in &self.files {
            let mut disk = Disk::open(file)?;
            let mut hasher = blake3::Hasher::new();
            loop {
                let n = match disk.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(n) => n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => return Err(DataError::io("read", &file.path)(e)),
                };
                hasher.update(&buffer[..n]);
                let before = done;
                done += n as u64;
                if before / DROP_EVERY != done / DROP_EVERY {
                    progress.step(Step {
                        phase: Phase::Fingerprint,
                        bytes_done: done,
                        bytes_total: total,
                        examples: 0,
                    });
                    if progress.cancelled() {
                        return Err(DataError::Cancelled);
                    }
                }
            }
            hashes.push(hasher.finalize().to_hex().to_string());
        }
        Ok(hashes)
    }
}

fn data_files(folder: &Path) -> Result<Vec<SourceFile>, DataError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::io("list", folder))? {
        let path = entry.map_err(DataError::io("list", folder))?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        if name == REJECTED || name.starts_with('.') || !SUFFIXES.iter().any(|s| name.ends_with(s)) {
            continue;
        }
        let meta = std::fs::metadata(&path).map_err(DataError::io("read", &path))?;
        if meta.is_file() {
            files.push(SourceFile { name: path.display().to_string(), bytes: meta.len(), path });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// A file read once from front to back, counting what was consumed.
struct Disk {
    file: File,
    position: Arc<AtomicU64>,
    drop_behind: bool,
}

impl Disk {
    fn open(source: &SourceFile) -> Result<Self, DataError> {
        let file = File::open(&source.path).map_err(DataError::io("read", &source.path))?;
        let drop_behind = source.bytes >= DROP_BEHIND_FROM;
        Ok(Self { file, position: Arc::default(), drop_behind })
    }
}

impl Read for Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        let before = self.position.fetch_add(n as u64, Ordering::Relaxed);
        let after = before + n as u64;
        if self.drop_behind && before / DROP_EVERY != after / DROP_EVERY {
            // Advice only: a file system that cannot follow it changes nothing for us.
            let _ = rustix::fs::fadvise(
                &self.file,
                0,
                std::num::NonZeroU64::new(after),
                rustix::fs::Advice::DontNeed,
            );
        }
        Ok(n)
    }
}

/// An input being read: decompressed bytes, and how many bytes on disk they took so far.
pub(crate) struct Opened {
    pub reader: Box<dyn Read + Send>,
    pub position: Arc<AtomicU64>,
    pub compressed: bool,
}

/// Opens a file by what its first bytes say it is, whatever its name.
pub(crate) fn open(source: &SourceFile) -> Result<Opened, DataError> {
    let mut disk = Disk::open(source)?;
    let position = disk.position.clone();
    let mut magic = Vec::with_capacity(4);
    disk.by_ref().take(4).read_to_end(&mut magic).map_err(DataError::io("read", &source.path))?;
    let compressed = magic.starts_with(&[0x1f, 0x8b]) || magic == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = io::Cursor::new(magic.clone()).chain(disk);
    let reader: Box<dyn Read + Send> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::with_capacity(1 << 18, whole)))
    } else if compressed {
        Box::new(zstd::stream::read::Decoder::new(whole).map_err(DataError::io("read", &source.path))?)
    } else {
        Box::new(whole)
    };
    Ok(Opened { reader, position, compressed })
}
