//! Parquet: reads the columns of examples and writes each row as a line of JSON.
//!
//! This is a reader of our own, although there is a crate: that one panics on damaged files, and allocates
//! what a file claims before it looks whether it is there (`Vec::with_capacity` of a number of children, a
//! dictionary of a number of values), which ends the whole program. Here memory is bounded: dictionaries and
//! pages of all columns that are read have at most 1 GiB together ([`budget`]). So is what a small file can
//! claim: a run of copies or nulls takes a few bytes for billions of rows, so a file with more rows, or with
//! larger ones, than any table of examples has for its size is refused.
//! All encodings of the format are read, in pages of either version and with their checksums, and all
//! compressions but Brotli, LZO and the older of the two LZ4.
//!
//! Source: the format's specification at <https://github.com/apache/parquet-format>.

mod budget;
mod column;
mod damage;
mod delta;
mod levels;
mod page;
mod rows;
mod schema;
mod thrift;
mod values;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use budget::Budget;
use damage::Damage;
use rows::Rows;
use schema::Footer;
use sparktune_base::field_map::{FIELDS, FieldMap};
use sparktune_base::regular_file::open_regular;

use super::json_row::Header;
use super::other_kind::LFS_POINTER;
use super::stream::{MOST_LINES, ReadChunks};
use crate::chunk::Chunk;
use crate::error::DataError;

const MAGIC: &[u8] = b"PAR1";
/// The magic number at the end of a file whose footer is encrypted.
const ENCRYPTED: &[u8] = b"PARE";
/// The largest footer; in memory it takes up to ten times as much.
const MAX_FOOTER: u32 = 64 << 20;
/// A file with more rows than this, and more than so many for each of its bytes, is refused.
const SURELY_FINE: u64 = 100_000;
const ROWS_PER_BYTE: u64 = 16;
/// A file whose rows take more bytes than this as lines, and so many times its own size, is refused.
const SURELY_FINE_BYTES: u64 = 256 << 20;
const LARGEST_GROWTH: u64 = 1000;
/// The sets of columns that make an example. If a table has none of them, all of its columns are read, so
/// that a message can name them.
const EXAMPLES: [&[&str]; 5] =
    [&["messages"], &["conversations"], &["instruction", "output"], &["prompt", "completion"], &["text"]];

pub(super) struct ParquetRows {
    path: PathBuf,
    file: Arc<File>,
    bytes: u64,
    budget: Budget,
    footer: Footer,
    /// The top-level columns that are read, and what is known of each.
    selected: Vec<usize>,
    headers: Vec<Header>,
    /// The row group that is read, and the rows left in it.
    group: usize,
    rows: Option<Rows>,
    left: u64,
    /// The number of rows that were read.
    done: u64,
    /// How many bytes more the rows may have as lines, those of the present row group included.
    room: u64,
    position: Arc<AtomicU64>,
    /// A row that cannot be used, which follows the chunk before it.
    refused: Option<Chunk>,
    /// Why no more rows can be read after the previous chunk.
    failed: Option<DataError>,
}

impl ParquetRows {
    /// Opens a file. Also returns the number of its bytes that were read so far, as an estimate by rows.
    pub(super) fn open(path: &Path, map: &FieldMap) -> Result<(Self, Arc<AtomicU64>), DataError> {
        let file = open_regular(path).map_err(DataError::io("read", path))?;
        let bytes = file.metadata().map_err(DataError::io("read", path))?.len();
        let footer = read_footer(&file, bytes).map_err(unusable(path))?;
        if footer.rows > SURELY_FINE.max(bytes.saturating_mul(ROWS_PER_BYTE)) {
            return Err(unusable(path)(Damage::Claims { rows: footer.rows, size: bytes }));
        }
        let selected = select(&footer, map);
        let headers = selected.iter().map(|i| Header::new(&footer.columns[*i].name, map)).collect();
        let position = Arc::<AtomicU64>::default();
        let rows = Self {
            path: path.to_owned(),
            file: Arc::new(file),
            bytes,
            budget: Budget::new(),
            footer,
            selected,
            headers,
            group: 0,
            rows: None,
            left: 0,
            done: 0,
            room: SURELY_FINE_BYTES.max(bytes.saturating_mul(LARGEST_GROWTH)),
            position: position.clone(),
            refused: None,
            failed: None,
        };
        Ok((rows, position))
    }

    /// Returns the names of all columns.
    pub(super) fn column_names(&self) -> Vec<String> {
        self.footer.columns.iter().map(|node| node.name.clone()).collect()
    }

    /// Appends rows until there are enough bytes. Returns their number; it is 0 at the end, or if the first
    /// row was refused. If it fails, the buffer has the rows before the damage.
    fn fill(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<u64, Damage> {
        let mut written = 0;
        while buffer.len() < chunk_bytes && written < MOST_LINES as u64 {
            if self.left == 0 {
                if let Some(mut rows) = self.rows.take() {
                    let nodes: Vec<_> = self.selected.iter().map(|i| &self.footer.columns[*i]).collect();
                    rows.finish(&nodes)?;
                    self.room = rows.room();
                }
                let Self { file, budget, footer, selected, .. } = &*self;
                let Some(group) = footer.row_groups.get(self.group) else { break };
                let rows = Rows::open(file, budget, footer, group, selected, self.room)?;
                (self.left, self.rows) = (group.rows, Some(rows));
                self.group += 1;
                continue;
            }
            let Some(rows) = &mut self.rows else { break };
            let nodes = self.selected.iter().map(|i| &self.footer.columns[*i]);
            let columns: Vec<_> = nodes.zip(&self.headers).collect();
            let start = buffer.len();
            let refused = rows.write(&columns, buffer).inspect_err(|_| buffer.truncate(start))?;
            self.left -= 1;
            self.done += 1;
            if refused.is_some() {
                self.refused = Some(Chunk { first_line: self.done, refused, ..Chunk::default() });
                break;
            }
            written += 1;
        }
        Ok(written)
    }
}

impl ReadChunks for ParquetRows {
    fn next(&mut self, buffer: &mut Vec<u8>, chunk_bytes: usize) -> Result<Option<Chunk>, DataError> {
        if let Some(refused) = self.refused.take() {
            return Ok(Some(refused));
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let first_line = self.done + 1;
        let filled = self.fill(buffer, chunk_bytes).map_err(unusable(&self.path));
        let share = self.done as f64 / self.footer.rows.max(1) as f64;
        self.position.store((self.bytes as f64 * share) as u64, Ordering::Relaxed);
        match filled {
            Ok(0) => return Ok(self.refused.take()),
            Ok(_) => {}
            Err(error) if buffer.is_empty() => return Err(error),
            Err(error) => self.failed = Some(error),
        }
        Ok(Some(Chunk { first_line, bytes: std::mem::take(buffer), ..Chunk::default() }))
    }
}

fn unusable(path: &Path) -> impl FnOnce(Damage) -> DataError {
    move |damage| DataError::input(path, format!("the file {damage}"), damage.fix())
}

/// Reads the footer, which stands at the end of the file before its length.
fn read_footer(file: &File, bytes: u64) -> Result<Footer, Damage> {
    let mut head = [0; LFS_POINTER.len()];
    let mut tail = [0; 8];
    let tail_at = bytes.checked_sub(8).filter(|at| *at >= 4).ok_or(Damage::NotParquet)?;
    let read = file.read_at(&mut head, 0).map_err(|_| Damage::NotParquet)?;
    if head == *LFS_POINTER {
        return Err(Damage::NotFetched);
    }
    let head = head[..read].first_chunk::<4>().copied().unwrap_or_default();
    file.read_exact_at(&mut tail, tail_at).map_err(|_| Damage::NotParquet)?;
    let (length, magic) = tail.split_at(4);
    if head == ENCRYPTED || magic == ENCRYPTED {
        return Err(Damage::Encrypted);
    }
    if head != MAGIC || magic != MAGIC {
        return Err(Damage::NotParquet);
    }
    let length = u32::from_le_bytes(length.try_into().map_err(|_| Damage::NotParquet)?);
    let at = tail_at.checked_sub(length.into()).ok_or(Damage::Metadata)?;
    if length > MAX_FOOTER {
        return Err(Damage::Footer);
    }
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, at).map_err(|_| Damage::Metadata)?;
    Footer::read(&footer, at)
}

/// Chooses the columns that are read: those of a format or of the user's map, if the table has them.
fn select(footer: &Footer, map: &FieldMap) -> Vec<usize> {
    let is_in = |name: &str| footer.columns.iter().any(|node| node.name == name);
    let mapped = |name: &str| {
        map.pairs().any(|(column, _)| {
            column == name || column.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        })
    };
    let has_example = EXAMPLES.iter().any(|columns| columns.iter().all(|name| is_in(name)));
    let knows = has_example || footer.columns.iter().any(|node| mapped(&node.name));
    let is_read = |name: &str| !knows || FIELDS.contains(&name) || mapped(name);
    (0..footer.columns.len()).filter(|i| is_read(&footer.columns[*i].name)).collect()
}
