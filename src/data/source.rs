//! The input files of the data.
//!
//! Owns the resolution of the sets of data (files, folders) to an ordered list of files, and the opening of
//! each file: plain, gzip or zstd, detected from its first bytes. It must not know lines.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sparktune_base::regular_file::{open_regular, refuse_other_kinds};

use crate::error::DataError;
use crate::file_kind::{DATA_ENDINGS, FileKind};
use crate::input::Input;
use crate::progress::{Phase, Progress, Step};

/// The size in bytes from which a file is dropped from the page cache after reading: with unified memory the
/// cache competes with the model.
const DROP_BEHIND_FROM: u64 = 4 << 30;
const DROP_EVERY: u64 = 64 << 20;

/// One input file.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The name that the user gave, which reports and rejections use.
    pub name: String,
    /// The size on disk in bytes.
    pub bytes: u64,
    /// The set that it belongs to, by its position among the inputs.
    pub set: u32,
}

/// An ordered, non-empty list of input files.
#[derive(Debug, Clone)]
pub struct Source {
    files: Vec<SourceFile>,
    inputs: Vec<Input>,
}

impl Source {
    /// Resolves files and folders. A folder is replaced by the data files directly in it, in name order:
    /// those with lines or rows, or if there are none, those of raw text.
    ///
    /// # Errors
    /// A path does not exist, a folder has no data files, or the list is empty.
    pub fn open<I: Clone + Into<Input>>(inputs: &[I]) -> Result<Self, DataError> {
        let inputs: Vec<Input> = inputs.iter().cloned().map(Into::into).collect();
        let mut files = Vec::new();
        let of_set = |(set, input): (usize, &Input)| {
            input.files.iter().map(|file| (set as u32, file.clone())).collect::<Vec<_>>()
        };
        for (set, input) in inputs.iter().enumerate().flat_map(of_set) {
            let meta = std::fs::metadata(&input.path).map_err(DataError::io("read", &input.path))?;
            refuse_other_kinds(meta.file_type()).map_err(DataError::io("read", &input.path))?;
            if meta.is_dir() {
                let found = data_files(&input.path, set)?;
                if found.is_empty() {
                    return Err(DataError::input(
                        input.path,
                        format!("no data in this folder (files ending in {DATA_ENDINGS})"),
                        "Name the data files themselves, or rename them to one of these endings",
                    ));
                }
                files.extend(found);
            } else {
                files.push(SourceFile { path: input.path, name: input.name, bytes: meta.len(), set });
            }
        }
        if files.is_empty() {
            return Err(DataError::no_data());
        }
        Ok(Self { files, inputs })
    }

    /// Returns the sets, in the order of [`SourceFile::set`].
    pub fn sets(&self) -> &[Input] {
        &self.inputs
    }

    /// Returns the files in reading order.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Returns the size of all files on disk in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }

    /// Returns the BLAKE3 hash (hex) of each file on disk, in order. This reads all files once.
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

fn data_files(folder: &Path, set: u32) -> Result<Vec<SourceFile>, DataError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::io("list", folder))? {
        let path = entry.map_err(DataError::io("list", folder))?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden || !FileKind::is_data(&path) {
            continue;
        }
        let meta = std::fs::metadata(&path).map_err(DataError::io("read", &path))?;
        refuse_other_kinds(meta.file_type()).map_err(DataError::io("read", &path))?;
        if meta.is_file() {
            files.push(SourceFile { name: path.display().to_string(), bytes: meta.len(), path, set });
        }
    }
    let is_text = |file: &SourceFile| FileKind::of(&file.path) == FileKind::Text;
    if !files.iter().all(is_text) {
        files.retain(|file| !is_text(file));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// A file that is read once sequentially and counts the bytes that were read.
struct Disk {
    file: File,
    position: Arc<AtomicU64>,
    drop_behind: bool,
}

impl Disk {
    fn open(source: &SourceFile) -> Result<Self, DataError> {
        let file = open_regular(&source.path).map_err(DataError::io("read", &source.path))?;
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
            // This is only advice: a file system that ignores it makes no difference.
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

/// An open input: its decompressed bytes, and the number of bytes on disk read so far.
pub(crate) struct Opened {
    pub reader: Box<dyn Read + Send>,
    pub position: Arc<AtomicU64>,
    pub compressed: bool,
}

/// Opens a file with the decoder for its first bytes, independent of its name.
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
