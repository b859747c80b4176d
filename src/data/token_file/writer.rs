//! Writes a v2 token file, example by example, in constant memory.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::error::TokenFileError;
use super::partial::PartialFile;
use super::v2::{
    ALIGN, FILE_MAGIC, Footer, Header, IndexLayout, MAX_HEADER, Origin, PacketHeader, around_tokens,
};
use crate::packets::codes::Route;

/// Writes one token file. The file appears under its name at [`finish`](Self::finish); if the writer is
/// dropped before, nothing is left. If the process is killed before, `<name>.partial` is left, from which
/// [`rebuild`](super::rebuild) recovers every complete packet.
pub struct TokenFileWriter {
    path: PathBuf,
    out: Sink,
    header: Header,
    /// The rows of the index, kept on disk because ten million examples would take 280 MB of memory.
    rows: BufWriter<File>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    examples: u64,
    total_tokens: u64,
    target_tokens: u64,
    max_token_id: u32,
}

/// The result of [`TokenFileWriter::finish`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Written {
    /// The number of examples in the file.
    pub examples: u64,
    /// The number of tokens in them.
    pub total_tokens: u64,
    /// The number of tokens that contribute to the loss.
    pub target_tokens: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
}

impl TokenFileWriter {
    /// Starts a file that will appear at `path`. Fails when another process is writing it.
    pub fn create(path: &Path, header: Header) -> Result<Self, TokenFileError> {
        Self::create_beside(path, "partial", header)
    }

    /// Like [`create`](Self::create), with another extension for the unfinished file, because a rebuild reads
    /// the usual one that a killed writer left.
    pub(super) fn create_beside(path: &Path, ending: &str, header: Header) -> Result<Self, TokenFileError> {
        let block = header.encode();
        if block.len() > MAX_HEADER {
            return Err(TokenFileError::HeaderTooLarge { path: path.to_path_buf(), bytes: block.len() });
        }
        let partial = PartialFile::create(path, ending, &FILE_MAGIC)?;
        let rows = tempfile::tempfile_in(partial.folder()).map_err(TokenFileError::io(partial.folder()))?;
        let mut writer = Self {
            path: path.to_path_buf(),
            out: Sink {
                partial,
                pending: Vec::with_capacity(Sink::CHUNK),
                hasher: blake3::Hasher::new(),
                written: 0,
            },
            header,
            rows: BufWriter::new(rows),
            counts: Counts::default(),
        };
        writer.out.write(&block).map_err(TokenFileError::io(path))?;
        Ok(writer)
    }

    /// Appends one example whose content hash is unknown. `loss_mask[t]` is true if token `t` is a target;
    /// the first token never is.
    pub fn push(
        &mut self,
        input_ids: &[u32],
        loss_mask: &[bool],
        origin: Origin,
    ) -> Result<(), TokenFileError> {
        self.push_hashed(input_ids, loss_mask, origin, 0)
    }

    /// Like [`push`](Self::push), with the hash of the content of its source line.
    pub fn push_hashed(
        &mut self,
        input_ids: &[u32],
        loss_mask: &[bool],
        origin: Origin,
        content_hash: u64,
    ) -> Result<(), TokenFileError> {
        self.push_routed(input_ids, loss_mask, origin, content_hash, None)
    }

    /// Like [`push_hashed`](Self::push_hashed), with SRC and DST, if they are known.
    pub fn push_routed(
        &mut self,
        input_ids: &[u32],
        loss_mask: &[bool],
        origin: Origin,
        content_hash: u64,
        route: Option<Route>,
    ) -> Result<(), TokenFileError> {
        let refuse = |reason| TokenFileError::BadExample {
            example: self.counts.examples,
            origin: self.header.describe(origin),
            reason,
        };
        if input_ids.is_empty() {
            return Err(refuse("it has no tokens"));
        }
        if loss_mask.len() != input_ids.len() {
            return Err(refuse("loss mask and tokens differ in length"));
        }
        if loss_mask[0] {
            return Err(refuse("its first token is marked as trained, but no earlier token predicts it"));
        }
        if u32::try_from(input_ids.len()).is_err() {
            return Err(refuse("it has more tokens than fit in 32 bits"));
        }
        if self.counts.examples == u64::from(u32::MAX) {
            let examples = self.counts.examples + 1;
            return Err(TokenFileError::TooManyExamples { path: self.path.clone(), examples });
        }
        self.append(input_ids, loss_mask, origin, content_hash, route).map_err(TokenFileError::io(&self.path))
    }

    fn append(
        &mut self,
        input_ids: &[u32],
        loss_mask: &[bool],
        origin: Origin,
        content_hash: u64,
        route: Option<Route>,
    ) -> io::Result<()> {
        let offset = self.out.written;
        let header = PacketHeader {
            example: self.counts.examples,
            origin,
            content_hash,
            route,
            ..PacketHeader::default()
        };
        let (header, rest) = around_tokens(header, input_ids, loss_mask);
        self.out.write(&header.encode())?;
        self.out.write(bytemuck::cast_slice(input_ids))?;
        self.out.write(&rest)?;
        let PacketHeader { token_count, target_count, .. } = header;
        self.rows.write_all(&Row { offset, token_count, target_count, origin }.encode())?;

        self.counts.examples += 1;
        self.counts.total_tokens += u64::from(token_count);
        self.counts.target_tokens += u64::from(target_count);
        self.counts.max_token_id = input_ids.iter().copied().fold(self.counts.max_token_id, u32::max);
        Ok(())
    }

    /// Returns the number of examples pushed so far.
    pub fn examples(&self) -> u64 {
        self.counts.examples
    }

    /// Writes index and footer, makes the file durable and renames it to its final name.
    pub fn finish(mut self) -> Result<Written, TokenFileError> {
        let bytes = self.write_end().map_err(TokenFileError::io(&self.path))?;
        self.out.partial.commit()?;
        let Counts { examples, total_tokens, target_tokens, .. } = self.counts;
        Ok(Written { examples, total_tokens, target_tokens, bytes })
    }

    fn write_end(&mut self) -> io::Result<u64> {
        let index_offset = self.out.written;
        let layout =
            IndexLayout::new(index_offset, self.counts.examples).expect("a written file fits 64 bits");
        let mut index_crc = 0;
        type Column = (fn(&Row) -> u64, usize);
        let columns: [Column; 5] = [
            (|row| row.offset, 8),
            (|row| row.origin.line, 8),
            (|row| u64::from(row.token_count), 4),
            (|row| u64::from(row.target_count), 4),
            (|row| u64::from(row.origin.file), 4),
        ];
        for (value, width) in columns {
            self.rows.flush()?;
            self.rows.get_mut().rewind()?;
            let mut rows = BufReader::with_capacity(1 << 20, self.rows.get_ref());
            let mut put = |bytes: &[u8]| {
                index_crc = crc32c::crc32c_append(index_crc, bytes);
                self.out.write(bytes)
            };
            let mut row = [0; Row::BYTES];
            for _ in 0..self.counts.examples {
                rows.read_exact(&mut row)?;
                put(&value(&Row::decode(&row)).to_le_bytes()[..width])?;
            }
            let used = self.counts.examples as usize * width;
            put(&[0; ALIGN][..used.next_multiple_of(ALIGN) - used])?;
        }
        debug_assert_eq!(self.out.written, layout.end);
        let file_len = self.out.written + super::v2::FOOTER as u64;
        let footer = Footer {
            file_len,
            index_offset,
            examples: self.counts.examples,
            total_tokens: self.counts.total_tokens,
            target_tokens: self.counts.target_tokens,
            max_token_id: self.counts.max_token_id,
            index_crc,
            file_hash: self.out.hash()?,
        };
        self.out.write(&footer.encode())?;
        self.out.flush()?;
        Ok(file_len)
    }
}

/// The index entry of one example, kept on disk until [`TokenFileWriter::finish`].
struct Row {
    offset: u64,
    token_count: u32,
    target_count: u32,
    origin: Origin,
}

impl Row {
    const BYTES: usize = 28;

    fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.origin.line.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.token_count.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.target_count.to_le_bytes());
        bytes[24..].copy_from_slice(&self.origin.file.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        use super::v2::{u32_at, u64_at};
        Self {
            offset: u64_at(bytes, 0),
            token_count: u32_at(bytes, 16),
            target_count: u32_at(bytes, 20),
            origin: Origin { file: u32_at(bytes, 24), line: u64_at(bytes, 8) },
        }
    }
}

/// Buffers, hashes and counts the bytes written to the partial file.
struct Sink {
    partial: PartialFile,
    pending: Vec<u8>,
    hasher: blake3::Hasher,
    written: u64,
}

impl Sink {
    const CHUNK: usize = 1 << 20;

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        if bytes.len() >= Self::CHUNK {
            // The tokens of a very long example are not copied.
            self.flush()?;
            self.hasher.update(bytes);
            return self.partial.file().write_all(bytes);
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= Self::CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.pending);
        self.partial.file().write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }

    /// Returns the hash of everything written so far.
    fn hash(&mut self) -> io::Result<[u8; 32]> {
        self.flush()?;
        Ok(*self.hasher.finalize().as_bytes())
    }
}
