//! Encodes and decodes the layout of `.qubgpu` v2. No file is opened here.
//!
//! All numbers are little-endian, all checksums CRC-32C, all hashes BLAKE3. Every part starts at a multiple
//! of 64 bytes and is padded with zeros to such a multiple. Every byte of the file, including padding, is
//! covered by exactly one checksum and by the file hash.
//!
//! ```text
//! HEADER   at 0                                 PACKET   one per example, back to back after the header
//!   0  8  magic "QUBGPU2\n"                        0  4  magic "QPKT"
//!   8  4  version = 2                              4  4  token_count n, at least 1
//!  12  4  block_len: the whole header              8  8  example: 0, 1, 2, … in file order
//!  16  4  json_len                                16  8  source_line, from 1; 0 = unknown
//!  20  4  zero                                    24  4  source_file: place in the header's list
//!  24  …  JSON: tokenizer, template, policy,      28  4  target_count: set bits of the mask
//!         sources                                 32  4  payload_crc: over the bytes from 64 to the end
//!   …  …  zeros                                   36  8  content_hash of the source line; 0 = unknown
//!  -4  4  crc of the block before it              44  1  1 = SRC and DST are known
//!                                                 45  1  SRC
//!                                                 46  1  DST
//!                                                 47 13  zero
//!                                                 60  4  crc of the 60 bytes before it
//!                                                 64 4n  tokens, u32
//! INDEX    after the last packet, columns          …  m  mask, m = ⌈n/8⌉: bit t%8 of byte t/8 is token t
//!   offset        u64 × examples                   …  …  zeros to a multiple of 64
//!   source_line   u64 × examples
//!   length        u32 × examples                FOOTER   the last 128 bytes
//!   target_count  u32 × examples                   0  8  magic "QUBEND2\n"
//!   source_file   u32 × examples                   8  8  file_len
//!   each padded to a multiple of 64               16  8  index_offset
//!                                                 24  8  examples
//!                                                 32  8  total_tokens
//!                                                 40  8  target_tokens
//!                                                 48  4  max_token_id (0 when there is none)
//!                                                 52  4  index_crc: from index_offset to the footer
//!                                                 56  8  zero
//!                                                 64 32  file hash: over all bytes before the footer
//!                                                 96 28  zero
//!                                                124  4  crc of the 124 bytes before it
//! ```
//!
//! The content hash is that of [`Conversation::content_hash`](crate::Conversation::content_hash): it
//! decides whether an example is trained or evaluated, so a run from a token file splits its data as one
//! from the text does. Programs from before it wrote zeros there and ignore it, so both read each other's
//! files. The same holds for SRC and DST, which are those of the v1 packet that an example came from.
//!
//! A packet is self-contained: it stores its length, its position and its origin, so it can be sent, checked
//! and trained without the rest of the file, and a scan in steps of 64 bytes finds all intact packets when
//! index and footer are lost. Such a scan can rebuild index and footer completely. Token pages start 64 bytes
//! after a multiple of 64, so a reader that copies straight into device memory gets aligned pages.

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;

use super::damage::{Defect, Part};
use crate::packets::codes::Route;

pub(super) const ALIGN: usize = 64;
pub(super) const FILE_MAGIC: [u8; 8] = *b"QUBGPU2\n";
pub(crate) const PACKET_MAGIC: [u8; 4] = *b"QPKT";
pub(super) const FOOTER_MAGIC: [u8; 8] = *b"QUBEND2\n";
pub(super) const VERSION: u32 = 2;
pub(crate) const PACKET_HEADER: usize = 64;
/// The place of the content hash in a packet.
pub(super) const CONTENT_HASH: usize = 36;
/// The place of SRC and DST in a packet, behind a byte that says whether they are known.
const ROUTE: usize = 44;
pub(super) const FOOTER: usize = 128;
/// The largest header, so that a damaged length cannot cause a huge allocation. It suffices for about 100,000
/// source files.
pub(super) const MAX_HEADER: usize = 16 << 20;
const HEADER_FIXED: usize = 24;

// Tokens are returned as `&[u32]` directly from the mapped file.
#[cfg(target_endian = "big")]
compile_error!("token files are little-endian and read in place");

pub(super) const fn align_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN as u64)
}

/// Returns the size in bytes of a packet with `tokens` tokens.
pub(crate) const fn packet_len(tokens: u32) -> u64 {
    PACKET_HEADER as u64 + align_up(4 * tokens as u64 + tokens.div_ceil(8) as u64)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Describes the inputs of a token file. A cached file is current exactly when its header equals the header
/// it would get now.
///
/// Hashes are lower-case hex BLAKE3. They are `None` if unknown, as after an import from v1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The hash of the tokenizer.
    pub tokenizer: Option<String>,
    /// The hash of the chat template.
    pub template: Option<String>,
    /// Everything else that determines tokens and masks, as text: thinking policy, split, limits. It is
    /// stored as text instead of a hash, so that an outdated cache can be explained.
    pub policy: String,
    /// The source files, in the order of [`Origin::file`].
    pub sources: Vec<Source>,
}

/// One source file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The name for display.
    pub name: String,
    /// The hash of its bytes.
    pub blake3: Option<String>,
    /// The set of training data that it belongs to, by its position among the sets of the run. `None` if
    /// there is only one, and for eval data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<u32>,
}

/// The source of an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The index in [`Header::sources`].
    pub file: u32,
    /// The line in that file, counted from 1; 0 means unknown.
    pub line: u64,
}

impl Header {
    /// Returns the set of training data of an example, if its source says it.
    pub fn set_of(&self, origin: Origin) -> Option<u32> {
        self.sources.get(origin.file as usize)?.set
    }

    /// Formats an origin as `train.jsonl:812`. Control characters are escaped, because file names are
    /// untrusted.
    pub fn describe(&self, origin: Origin) -> String {
        let name = match self.sources.get(origin.file as usize) {
            Some(source) => escape(&source.name).into_owned(),
            None => format!("source {}", origin.file),
        };
        format!("{name}:{}", origin.line)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("strings and lists always serialise");
        let block_len = align_up((HEADER_FIXED + json.len() + 4) as u64) as usize;
        let mut block = vec![0; block_len];
        block[..8].copy_from_slice(&FILE_MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&(block_len as u32).to_le_bytes());
        block[16..20].copy_from_slice(&(json.len() as u32).to_le_bytes());
        block[HEADER_FIXED..HEADER_FIXED + json.len()].copy_from_slice(&json);
        seal(&mut block);
        block
    }

    /// Decodes the header at the start of `file`. Also returns the length of its block.
    pub(super) fn decode(file: &[u8]) -> Result<(Self, usize), HeaderFault> {
        let defect = |what: &str| HeaderFault::Damaged(Defect::new(Part::Header, 0, what));
        if file.len() < HEADER_FIXED {
            return Err(defect("the file ends inside it"));
        }
        if file[..8] != FILE_MAGIC {
            return Err(defect("the magic number is wrong"));
        }
        let block_len = u32_at(file, 12) as usize;
        if block_len < ALIGN || !block_len.is_multiple_of(ALIGN) || block_len > MAX_HEADER.min(file.len()) {
            return Err(defect("its length is invalid"));
        }
        let block = &file[..block_len];
        if !is_sealed(block) {
            return Err(defect("checksum does not match"));
        }
        let version = u32_at(block, 8);
        if version != VERSION {
            return Err(HeaderFault::Version(version));
        }
        let json = HEADER_FIXED
            .checked_add(u32_at(block, 16) as usize)
            .and_then(|end| block.get(HEADER_FIXED..end))
            .ok_or_else(|| defect("its text extends beyond its end"))?;
        let header =
            serde_json::from_slice(json).map_err(|e| defect(&format!("its text is not readable: {e}")))?;
        Ok((header, block_len))
    }
}

pub(super) enum HeaderFault {
    Version(u32),
    Damaged(Defect),
}

/// Writes the checksum of all previous bytes into the last four.
fn seal(block: &mut [u8]) {
    let end = block.len() - 4;
    let crc = crc32c::crc32c(&block[..end]);
    block[end..].copy_from_slice(&crc.to_le_bytes());
}

fn is_sealed(block: &[u8]) -> bool {
    let end = block.len() - 4;
    crc32c::crc32c(&block[..end]) == u32_at(block, end)
}

/// The first 64 bytes of a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PacketHeader {
    pub token_count: u32,
    pub example: u64,
    pub origin: Origin,
    pub target_count: u32,
    pub payload_crc: u32,
    /// The hash of the content of its source line; 0 if it is unknown.
    pub content_hash: u64,
    /// SRC and DST, if they are known.
    pub route: Option<Route>,
}

/// Reads SRC and DST from the header of a packet.
pub(super) fn route_in(packet: &[u8]) -> Option<Route> {
    (packet[ROUTE] == 1).then(|| Route { src: packet[ROUTE + 1], dst: packet[ROUTE + 2] })
}

impl PacketHeader {
    pub(super) fn encode(&self) -> [u8; PACKET_HEADER] {
        let mut block = [0; PACKET_HEADER];
        block[..4].copy_from_slice(&PACKET_MAGIC);
        block[4..8].copy_from_slice(&self.token_count.to_le_bytes());
        block[8..16].copy_from_slice(&self.example.to_le_bytes());
        block[16..24].copy_from_slice(&self.origin.line.to_le_bytes());
        block[24..28].copy_from_slice(&self.origin.file.to_le_bytes());
        block[28..32].copy_from_slice(&self.target_count.to_le_bytes());
        block[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        block[CONTENT_HASH..CONTENT_HASH + 8].copy_from_slice(&self.content_hash.to_le_bytes());
        if let Some(Route { src, dst }) = self.route {
            block[ROUTE..ROUTE + 3].copy_from_slice(&[1, src, dst]);
        }
        seal(&mut block);
        block
    }

    /// Decodes a packet header. Returns `None` unless `bytes` start with an intact one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let block = bytes.get(..PACKET_HEADER)?;
        if block[..4] != PACKET_MAGIC || !is_sealed(block) {
            return None;
        }
        let header = Self {
            token_count: u32_at(block, 4),
            example: u64_at(block, 8),
            origin: Origin { line: u64_at(block, 16), file: u32_at(block, 24) },
            target_count: u32_at(block, 28),
            payload_crc: u32_at(block, 32),
            content_hash: u64_at(block, CONTENT_HASH),
            route: route_in(block),
        };
        (header.token_count > 0).then_some(header)
    }

    pub(super) fn packet_len(&self) -> usize {
        packet_len(self.token_count) as usize
    }
}

/// Returns the header of a packet, with the counts and the checksum of `tokens` and `mask` whatever it says,
/// and what comes after the tokens: the bits of the mask, and zeros up to a multiple of 64 bytes.
pub(super) fn around_tokens(header: PacketHeader, tokens: &[u32], mask: &[bool]) -> (PacketHeader, Vec<u8>) {
    let token_count = tokens.len() as u32;
    let ids: &[u8] = bytemuck::cast_slice(tokens);
    let bits_of = |bits: &[bool]| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
    let mut rest: Vec<u8> = mask.chunks(8).map(bits_of).collect();
    rest.resize(packet_len(token_count) as usize - PACKET_HEADER - ids.len(), 0);
    let header = PacketHeader {
        token_count,
        target_count: mask.iter().filter(|&&target| target).count() as u32,
        payload_crc: crc32c::crc32c_append(crc32c::crc32c(ids), &rest),
        ..header
    };
    (header, rest)
}

/// Appends a packet to `out`, which must begin at a multiple of 64 bytes. The header's counts and checksum
/// are those of `tokens` and `mask`, whatever it says.
pub(crate) fn encode_packet(header: PacketHeader, tokens: &[u32], mask: &[bool], out: &mut Vec<u8>) {
    let (header, rest) = around_tokens(header, tokens, mask);
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(bytemuck::cast_slice(tokens));
    out.extend_from_slice(&rest);
}

/// The last 128 bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footer {
    pub file_len: u64,
    pub index_offset: u64,
    pub examples: u64,
    pub total_tokens: u64,
    pub target_tokens: u64,
    pub max_token_id: u32,
    pub index_crc: u32,
    pub file_hash: [u8; 32],
}

impl Footer {
    pub(super) fn encode(&self) -> [u8; FOOTER] {
        let mut block = [0; FOOTER];
        block[..8].copy_from_slice(&FOOTER_MAGIC);
        let numbers =
            [self.file_len, self.index_offset, self.examples, self.total_tokens, self.target_tokens];
        for (i, number) in numbers.iter().enumerate() {
            block[8 + 8 * i..16 + 8 * i].copy_from_slice(&number.to_le_bytes());
        }
        block[48..52].copy_from_slice(&self.max_token_id.to_le_bytes());
        block[52..56].copy_from_slice(&self.index_crc.to_le_bytes());
        block[64..96].copy_from_slice(&self.file_hash);
        seal(&mut block);
        block
    }

    /// Decodes the footer at the end of `file`, and checks its sizes against each other and against the file.
    pub(super) fn decode(file: &[u8]) -> Result<Self, FooterFault> {
        let Some(at) = file.len().checked_sub(FOOTER) else { return Err(FooterFault::Absent) };
        let block = &file[at..];
        let defect = |what: &str| Err(FooterFault::Damaged(Defect::new(Part::Footer, at, what)));
        if !is_sealed(block) {
            // If the magic or the length is intact, this is a damaged footer. Otherwise the file is
            // truncated.
            let was_footer = block[..8] == FOOTER_MAGIC || u64_at(block, 8) == file.len() as u64;
            return if was_footer { defect("checksum does not match") } else { Err(FooterFault::Absent) };
        }
        if block[..8] != FOOTER_MAGIC {
            return defect("the magic number is wrong");
        }
        if block[56..64].iter().chain(&block[96..124]).any(|&byte| byte != 0) {
            return defect("bytes that should be zero are not");
        }
        let number = |i: usize| u64_at(block, 8 + 8 * i);
        let footer = Self {
            file_len: number(0),
            index_offset: number(1),
            examples: number(2),
            total_tokens: number(3),
            target_tokens: number(4),
            max_token_id: u32_at(block, 48),
            index_crc: u32_at(block, 52),
            file_hash: block[64..96].try_into().expect("32 bytes"),
        };
        if footer.file_len != file.len() as u64 {
            return defect(&format!("it states {} bytes, but the file has {}", footer.file_len, file.len()));
        }
        let end = IndexLayout::new(footer.index_offset, footer.examples).map(|index| index.end);
        if end != Some(at as u64) || !footer.index_offset.is_multiple_of(ALIGN as u64) {
            return defect("index and footer do not meet");
        }
        Ok(footer)
    }
}

pub(super) enum FooterFault {
    Absent,
    Damaged(Defect),
}

/// The positions of the index columns of `examples` examples when the index starts at `start`. `None` if they
/// overflow.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexLayout {
    pub offset: u64,
    pub source_line: u64,
    pub length: u64,
    pub target_count: u64,
    pub source_file: u64,
    pub end: u64,
}

impl IndexLayout {
    pub(super) fn new(start: u64, examples: u64) -> Option<Self> {
        let column = |at: u64, width: u64| {
            examples
                .checked_mul(width)
                .and_then(|bytes| bytes.checked_next_multiple_of(ALIGN as u64))
                .and_then(|bytes| at.checked_add(bytes))
        };
        let source_line = column(start, 8)?;
        let length = column(source_line, 8)?;
        let target_count = column(length, 4)?;
        let source_file = column(target_count, 4)?;
        let end = column(source_file, 4)?;
        Some(Self { offset: start, source_line, length, target_count, source_file, end })
    }
}
