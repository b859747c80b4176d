//! Reads a v2 token file in place: callers get slices of the mapped file, and nothing is copied.
//!
//! [`TokenFile::open`] checks header, footer and index, and that all packets are at the positions in the
//! index. Each packet is checked when [`TokenFile::example`] first reads it, at the speed of memory.
//! Corruption therefore stops a run at the damaged example, without the cost of a separate pass.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Mmap, UncheckedAdvice};
use sparktune_base::program_name;
use sparktune_base::regular_file::open_regular;

use super::damage::{Defect, Part};
use super::error::TokenFileError;
use super::v1;
use super::v2::{
    CONTENT_HASH, FILE_MAGIC, Footer, FooterFault, Header, HeaderFault, IndexLayout, Origin, PACKET_HEADER,
    PacketHeader, packet_len, route_in, u64_at,
};
use crate::packets::codes::Route;

/// An open v2 token file. Threads may share it.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    footer: Footer,
    index: IndexLayout,
    /// One bit per example, set when the checksums of its packet were verified.
    checked: Box<[AtomicU64]>,
}

/// One example, borrowed from the mapped file.
#[derive(Debug, Clone, Copy)]
pub struct Example<'a> {
    /// Token ids, `[len]`.
    pub tokens: &'a [u32],
    /// Which tokens are targets, `[len]`.
    pub mask: Mask<'a>,
}

/// The loss mask as bits: bit `t % 8` of byte `t / 8` is token `t`. Bits past the end are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask<'a> {
    bits: &'a [u8],
    len: usize,
}

impl<'a> Mask<'a> {
    /// Returns the mask of an intact packet.
    pub(super) fn of(packet: &'a [u8], header: &PacketHeader) -> Self {
        let len = header.token_count as usize;
        let start = PACKET_HEADER + 4 * len;
        Self { bits: &packet[start..start + len.div_ceil(8)], len }
    }

    /// Returns whether token `t` is a target. Panics when `t` is out of range.
    pub fn get(&self, t: usize) -> bool {
        assert!(t < self.len, "token {t} of {}", self.len);
        self.bits[t / 8] >> (t % 8) & 1 == 1
    }

    /// Returns the number of targets.
    pub fn count(&self) -> usize {
        let (words, rest) = self.bits.as_chunks::<8>();
        let in_words: u32 = words.iter().map(|word| u64::from_le_bytes(*word).count_ones()).sum();
        in_words as usize + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>()
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bits, eight tokens per byte.
    pub fn bytes(&self) -> &'a [u8] {
        self.bits
    }

    /// Returns whether each token is a target, in order.
    pub fn iter(&self) -> impl Iterator<Item = bool> + use<'a> {
        let Self { bits, len } = *self;
        (0..len).map(move |t| bits[t / 8] >> (t % 8) & 1 == 1)
    }
}

/// Maps a file for reading. Returns `None` when it is empty.
pub(crate) fn map(path: &Path) -> Result<Option<Mmap>, TokenFileError> {
    let file = open_regular(path).map_err(TokenFileError::io(path))?;
    if file.metadata().map_err(TokenFileError::io(path))?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: token files appear by rename and this program never changes them in place, so the mapped bytes
    // stay the same.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let map = unsafe { Mmap::map(&file) }.map_err(TokenFileError::io(path))?;
    Ok(Some(map))
}

/// Removes the pages of a range from this process's memory. They are read again from the file on access.
pub(super) fn release(map: &Mmap, range: Range<usize>) {
    // SAFETY: the mapping is shared and read-only, so dropped pages come back unchanged, even under borrowed
    // slices.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    let advised = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
    // This is only advice: if the system refuses it, more memory stays in use and nothing else changes.
    drop(advised);
}

impl TokenFile {
    /// Opens a file and checks everything but the packets. A file with a defect in header, footer or index is
    /// refused with an error that names the defect.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        let truncated =
            |what: &str| TokenFileError::Truncated { path: path.to_path_buf(), what: what.into() };
        let Some(map) = map(path)? else { return Err(truncated("the file is empty")) };
        if map[..map.len().min(8)] != FILE_MAGIC[..map.len().min(8)] && !has_footer(&map) {
            let program = program_name();
            let (found, fix) = if v1::looks_like(&map) {
                ("it contains v1 packets", format!("Convert it with `{program} pack`"))
            } else {
                ("it does not begin like a token file", format!("Give a file made by `{program} pack`"))
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
            FooterFault::Absent => truncated("it has no footer, so it was truncated or never finished"),
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

    /// Checks the index, on which all offsets rely: packets are contiguous from the header to the index, with
    /// the stated lengths.
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
                return Err(defect("offset and length do not follow the previous packet".into())
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

    /// Returns the whole file, as it is mapped.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Returns the end of the packets in [`TokenFile::bytes`], which is the start of the index.
    pub fn packets_end(&self) -> usize {
        self.index.offset as usize
    }

    /// Returns the bytes of packet `i`, compared with their checksums and the index each time.
    ///
    /// # Errors
    /// The packet is damaged.
    pub fn packet(&self, i: usize) -> Result<&[u8], TokenFileError> {
        self.check_packet(i).map_err(|defect| TokenFileError::damaged(&self.path, defect))?;
        let start = self.offsets()[i] as usize;
        Ok(&self.map[start..start + packet_len(self.lengths()[i]) as usize])
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the header, which describes the sources of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the number of examples, which fits into 32 bits.
    pub fn len(&self) -> usize {
        self.footer.examples as usize
    }

    /// Returns whether the file has no examples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of tokens in all examples.
    pub fn total_tokens(&self) -> u64 {
        self.footer.total_tokens
    }

    /// Returns the number of targets in all examples.
    pub fn target_tokens(&self) -> u64 {
        self.footer.target_tokens
    }

    /// Returns the largest token id in the file, or 0 when there is none. A model must have more embeddings
    /// than this.
    pub fn max_token_id(&self) -> u32 {
        self.footer.max_token_id
    }

    /// Returns the stored BLAKE3 hash of the file's content, which identifies the data of a run.
    /// [`verify`](super::verify) recomputes it.
    pub fn file_hash(&self) -> String {
        blake3::Hash::from_bytes(self.footer.file_hash).to_hex().to_string()
    }

    /// Returns the number of tokens of each example, `[len]`.
    pub fn lengths(&self) -> &[u32] {
        self.column_u32(self.index.length)
    }

    /// Returns the number of targets of each example, `[len]`.
    pub fn target_counts(&self) -> &[u32] {
        self.column_u32(self.index.target_count)
    }

    /// Returns the byte offset of each packet, `[len]`, for readers that copy directly to a device. The
    /// tokens start 64 bytes later.
    pub fn offsets(&self) -> &[u64] {
        self.column_u64(self.index.offset)
    }

    /// Returns the source of example `i`. Panics when `i` is out of range, like all accessors by example.
    pub fn origin(&self, i: usize) -> Origin {
        Origin { file: self.column_u32(self.index.source_file)[i], line: self.source_line(i) }
    }

    /// Returns the source line of example `i`, counted from 1; 0 means unknown.
    pub fn source_line(&self, i: usize) -> u64 {
        self.column_u64(self.index.source_line)[i]
    }

    /// Returns the hash of the content of the source line of example `i`, without checking it. `None` if it
    /// is unknown.
    pub fn content_hash(&self, i: usize) -> Option<u64> {
        let hash = u64_at(&self.map, self.offsets()[i] as usize + CONTENT_HASH);
        (hash != 0).then_some(hash)
    }

    /// Returns the bytes of the packet of example `i`.
    pub(crate) fn packet_len(&self, i: usize) -> usize {
        packet_len(self.lengths()[i]) as usize
    }

    /// Returns SRC and DST of example `i`, without checking them. `None` if they are unknown, as for text.
    pub fn route(&self, i: usize) -> Option<Route> {
        route_in(&self.map[self.offsets()[i] as usize..])
    }

    /// Returns the source as text, `train.jsonl:812`, escaped for printing.
    pub fn origin_text(&self, i: usize) -> String {
        self.header.describe(self.origin(i))
    }

    /// Returns the tokens of example `i` without checking them; [`example`](Self::example) checks.
    pub fn tokens(&self, i: usize) -> &[u32] {
        let start = self.offsets()[i] as usize + PACKET_HEADER;
        bytemuck::cast_slice(&self.map[start..start + 4 * self.lengths()[i] as usize])
    }

    /// Returns the mask of example `i` without checking it.
    pub fn mask(&self, i: usize) -> Mask<'_> {
        let len = self.lengths()[i] as usize;
        let start = self.offsets()[i] as usize + PACKET_HEADER + 4 * len;
        Mask { bits: &self.map[start..start + len.div_ceil(8)], len }
    }

    /// Returns example `i`. The first call for each example compares its packet with the checksums and the
    /// index.
    pub fn example(&self, i: usize) -> Result<Example<'_>, TokenFileError> {
        let (word, bit) = (&self.checked[i / 64], 1u64 << (i % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.check_packet(i).map_err(|defect| TokenFileError::damaged(&self.path, defect))?;
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(Example { tokens: self.tokens(i), mask: self.mask(i) })
    }

    /// Reads one byte of each page of these tokens of examples. Whoever is about to read pieces from all over
    /// the file does this first: the processor then waits for several at once, and begins to read on by
    /// itself.
    pub(crate) fn fetch_ahead(&self, pieces: impl Iterator<Item = (usize, Range<usize>)>) {
        const PAGE: usize = 4096;
        let (map, offsets) = (&self.map[..], self.offsets());
        let mut read = 0;
        for (i, tokens) in pieces {
            let first = offsets[i] as usize + PACKET_HEADER;
            let (mut at, end) = (first + 4 * tokens.start, first + 4 * tokens.end);
            while at < end {
                read |= map.get(at).copied().unwrap_or_default();
                at += PAGE;
            }
        }
        std::hint::black_box(read);
    }

    /// Returns the memory of all examples read so far to the system. Readers of a file larger than memory
    /// call this regularly.
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

/// The entry of an example in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub length: u32,
    pub target_count: u32,
    pub origin: Origin,
}

/// Returns the defect of `packet`, which should be example number `example` according to the index.
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
    mask_fault(packet, &header)
}

/// Returns a defect that only a faulty writer can cause: the checksums are correct, but the mask is not.
pub(super) fn mask_fault(packet: &[u8], header: &PacketHeader) -> Option<&'static str> {
    let mask = Mask::of(packet, header);
    if mask.count() != header.target_count as usize {
        return Some("the mask has a different number of trained tokens than stated");
    }
    let in_last_byte = mask.len % 8;
    if in_last_byte > 0 && mask.bits.last().is_some_and(|byte| byte >> in_last_byte != 0) {
        return Some("the mask marks tokens after the last one as trained");
    }
    mask.get(0).then_some("the first token is marked as trained")
}

/// Returns whether the file ends with a v2 footer, intact or damaged. It is then a v2 file even if its start
/// is unreadable.
pub(super) fn has_footer(file: &[u8]) -> bool {
    !matches!(Footer::decode(file), Err(FooterFault::Absent))
}
