//! Reads a v2 token file in place: the packer gets slices of the mapped file, nothing is copied.
//!
//! [`TokenFile::open`] checks header, footer and index, and that all packets lie where the index says. The
//! packets themselves are checked when [`TokenFile::example`] first touches each, at the speed of memory, so
//! corruption stops a run at the example it hit and costs no pass of its own.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Mmap, UncheckedAdvice};
use sparktune_base::program_name;

use super::damage::{Defect, Part};
use super::error::TokenFileError;
use super::v1;
use super::v2::{
    FILE_MAGIC, Footer, FooterFault, Header, HeaderFault, IndexLayout, Origin, PACKET_HEADER, PacketHeader,
    packet_len,
};

/// An open v2 token file. Shared between threads freely.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    footer: Footer,
    index: IndexLayout,
    /// One bit per example: its packet's checksums were found right.
    checked: Box<[AtomicU64]>,
}

/// One example, in place.
#[derive(Debug, Clone, Copy)]
pub struct Example<'a> {
    /// Token ids, `[len]`.
    pub tokens: &'a [u32],
    /// Which of them are targets, `[len]`.
    pub mask: Mask<'a>,
}

/// Loss mask as bits: bit `t % 8` of byte `t / 8` is token `t`. Bits past the end are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask<'a> {
    bits: &'a [u8],
    len: usize,
}

impl<'a> Mask<'a> {
    pub(super) fn new(bits: &'a [u8], len: usize) -> Self {
        Self { bits, len }
    }

    /// Whether token `t` is a target. Panics when `t` is past the end.
    pub fn get(&self, t: usize) -> bool {
        assert!(t < self.len, "token {t} of {}", self.len);
        self.bits[t / 8] >> (t % 8) & 1 == 1
    }

    /// Number of targets.
    pub fn count(&self) -> usize {
        self.bits.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bits, eight tokens a byte.
    pub fn bytes(&self) -> &'a [u8] {
        self.bits
    }

    /// Token by token.
    pub fn iter(&self) -> impl Iterator<Item = bool> + use<'a> {
        let Self { bits, len } = *self;
        (0..len).map(move |t| bits[t / 8] >> (t % 8) & 1 == 1)
    }
}

/// Maps a file for reading. `None` when it is empty.
pub(super) fn map(path: &Path) -> Result<Option<Mmap>, TokenFileError> {
    let file = File::open(path).map_err(TokenFileError::io(path))?;
    if file.metadata().map_err(TokenFileError::io(path))?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: token files appear by rename and are never changed in place by this program, so the mapped
    // bytes stay as they are.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let map = unsafe { Mmap::map(&file) }.map_err(TokenFileError::io(path))?;
    Ok(Some(map))
}

/// Takes the pages of a range out of this process's memory; touched again, they come back from the file.
pub(super) fn release(map: &Mmap, range: Range<usize>) {
    // SAFETY: the mapping is shared and read-only, so dropped pages come back unchanged, under slices handed
    // out too.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let advised = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
    // Advice only: where the system refuses it, more memory stays in use and nothing else changes.
    drop(advised);
}

impl TokenFile {
    /// Opens and checks everything but the packets. A file with any fault in header, footer or index is
    /// refused, with the fault named.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        let truncated =
            |what: &str| TokenFileError::Truncated { path: path.to_path_buf(), what: what.into() };
        let Some(map) = map(path)? else { return Err(truncated("the file is empty")) };
        if map[..map.len().min(8)] != FILE_MAGIC[..map.len().min(8)] && !has_footer(&map) {
            let program = program_name();
            let (found, fix) = if v1::looks_like(&map) {
                ("it holds v1 packets", format!("Convert it with `{program} pack`"))
            } else {
                ("its first bytes are not a token file's", format!("Give a file made by `{program} pack`"))
            };
            return Err(TokenFileError::NotTokenFile { path: path.to_path_buf(), found, fix });
        }
        let (header, packets_start) = Header::decode(&map).map_err(|fault| match fault {
            HeaderFault::Version(version) => {
                TokenFileError::UnsupportedVersion { path: path.to_path_buf(), version }
            }
            HeaderFault::Damaged(defect) => TokenFileError::damaged(path, defect),
        })?;
        let footer = Footer::decode(&map).map_err(|fault| match fault {
            FooterFault::Absent => {
                truncated("it does not end with a footer, so it was cut or never finished")
            }
            FooterFault::Damaged(defect) => TokenFileError::damaged(path, defect),
        })?;
        if footer.examples > u64::from(u32::MAX) {
            return Err(TokenFileError::TooManyExamples {
                path: path.to_path_buf(),
                examples: footer.examples,
            });
        }
        let index =
            IndexLayout::new(footer.index_offset, footer.examples).expect("the footer's sizes were checked");
        let checked = (0..footer.examples.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let file = Self { path: path.to_path_buf(), map, header, footer, index, checked };
        file.check_index(packets_start as u64).map_err(|defect| TokenFileError::damaged(path, defect))?;
        Ok(file)
    }

    /// Every offset handed out later rests on this: packets lie back to back from the header to the index,
    /// with the stated lengths.
    fn check_index(&self, packets_start: u64) -> Result<(), Defect> {
        let defect = |what: String| Defect::new(Part::Index, self.index.offset as usize, what);
        let bytes = &self.map[self.index.offset as usize..self.index.end as usize];
        if crc32c::crc32c(bytes) != self.footer.index_crc {
            return Err(defect("checksum does not match".into()));
        }
        let (mut end, mut tokens, mut targets) = (packets_start, 0u64, 0u64);
        for i in 0..self.len() {
            let (offset, length) = (self.offsets()[i], self.lengths()[i]);
            let fits = self.index.offset.checked_sub(end).is_some_and(|room| packet_len(length) <= room);
            if offset != end || length == 0 || !fits {
                return Err(defect("offset and length do not continue the packet before".into())
                    .of_example(i as u64, Some(self.origin_text(i))));
            }
            end += packet_len(length);
            tokens += u64::from(length);
            targets += u64::from(self.target_counts()[i]);
        }
        if end != self.index.offset {
            return Err(defect("it does not cover all packets".into()));
        }
        if (tokens, targets) != (self.footer.total_tokens, self.footer.target_tokens) {
            return Err(defect("its token counts differ from the footer's".into()));
        }
        Ok(())
    }

    fn column_u64(&self, start: u64) -> &[u64] {
        bytemuck::cast_slice(&self.map[start as usize..start as usize + 8 * self.len()])
    }

    fn column_u32(&self, start: u64) -> &[u32] {
        bytemuck::cast_slice(&self.map[start as usize..start as usize + 4 * self.len()])
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sources of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of examples; fits 32 bits.
    pub fn len(&self) -> usize {
        self.footer.examples as usize
    }

    /// True for a file without examples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of all examples.
    pub fn total_tokens(&self) -> u64 {
        self.footer.total_tokens
    }

    /// Targets of all examples.
    pub fn target_tokens(&self) -> u64 {
        self.footer.target_tokens
    }

    /// The largest token id in the file, 0 when there is none. A model must have more embeddings than this.
    pub fn max_token_id(&self) -> u32 {
        self.footer.max_token_id
    }

    /// BLAKE3 of the file's content, as stored; names the data of a run. [`verify`](super::verify) recomputes
    /// it.
    pub fn file_hash(&self) -> String {
        blake3::Hash::from_bytes(self.footer.file_hash).to_hex().to_string()
    }

    /// Tokens per example, `[len]`.
    pub fn lengths(&self) -> &[u32] {
        self.column_u32(self.index.length)
    }

    /// Targets per example, `[len]`.
    pub fn target_counts(&self) -> &[u32] {
        self.column_u32(self.index.target_count)
    }

    /// Byte offset of each packet, `[len]`; its tokens start 64 bytes later. For readers that copy straight
    /// to a device.
    pub fn offsets(&self) -> &[u64] {
        self.column_u64(self.index.offset)
    }

    /// Where example `i` came from. Panics when `i` is past the end, like all accessors by example.
    pub fn origin(&self, i: usize) -> Origin {
        Origin { file: self.column_u32(self.index.source_file)[i], line: self.source_line(i) }
    }

    /// Source line of example `i`, from 1; 0 = unknown.
    pub fn source_line(&self, i: usize) -> u64 {
        self.column_u64(self.index.source_line)[i]
    }

    /// `train.jsonl:812`, safe to print.
    pub fn origin_text(&self, i: usize) -> String {
        self.header.describe(self.origin(i))
    }

    /// Tokens of example `i`, in place and unchecked; [`example`](Self::example) is the checked way.
    pub fn tokens(&self, i: usize) -> &[u32] {
        let start = self.offsets()[i] as usize + PACKET_HEADER;
        bytemuck::cast_slice(&self.map[start..start + 4 * self.lengths()[i] as usize])
    }

    /// Mask of example `i`, in place and unchecked.
    pub fn mask(&self, i: usize) -> Mask<'_> {
        let len = self.lengths()[i] as usize;
        let start = self.offsets()[i] as usize + PACKET_HEADER + 4 * len;
        Mask { bits: &self.map[start..start + len.div_ceil(8)], len }
    }

    /// Example `i`, in place. The first call for each example compares its packet with its checksums and with
    /// the index.
    pub fn example(&self, i: usize) -> Result<Example<'_>, TokenFileError> {
        let (word, bit) = (&self.checked[i / 64], 1u64 << (i % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.check_packet(i).map_err(|defect| TokenFileError::damaged(&self.path, defect))?;
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(Example { tokens: self.tokens(i), mask: self.mask(i) })
    }

    /// Hands the memory of all examples read so far back to the system. For one who reads a file larger than
    /// memory, every so often.
    pub fn release_pages(&self) {
        release(&self.map, 0..self.index.offset as usize);
    }

    fn check_packet(&self, i: usize) -> Result<(), Defect> {
        let start = self.offsets()[i] as usize;
        let packet = &self.map[start..start + packet_len(self.lengths()[i]) as usize];
        let entry = IndexEntry {
            length: self.lengths()[i],
            target_count: self.target_counts()[i],
            origin: self.origin(i),
        };
        packet_fault(packet, i as u64, entry).map_or(Ok(()), |what| {
            Err(Defect::new(Part::Packet, start, what).of_example(i as u64, Some(self.origin_text(i))))
        })
    }
}

/// The index entry of one example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub length: u32,
    pub target_count: u32,
    pub origin: Origin,
}

/// What is wrong with `packet`, which should be number `example` as the index has it.
fn packet_fault(packet: &[u8], example: u64, entry: IndexEntry) -> Option<&'static str> {
    let Some(header) = PacketHeader::decode(packet) else {
        return Some("packet header does not match its checksum");
    };
    let stated =
        IndexEntry { length: header.token_count, target_count: header.target_count, origin: header.origin };
    if header.example != example || stated != entry {
        return Some("packet and index disagree");
    }
    if crc32c::crc32c(&packet[PACKET_HEADER..]) != header.payload_crc {
        return Some("tokens, mask or padding do not match their checksum");
    }
    None
}

/// Whether the end is a v2 footer, whole or damaged: then this is a v2 file even if its start is unreadable.
pub(super) fn has_footer(file: &[u8]) -> bool {
    !matches!(Footer::decode(file), Err(FooterFault::Absent))
}
