//! The `.qubgpu` v1 packet format of the Neural Datagram Protocol, for exchange with tools that use it.
//!
//! ```text
//!  0  1  0xAA
//!  1  1  SRC   source of the data       (1 = text corpus, 2 = code, 5 = gradient)
//!  2  1  DST   layer it is meant for    (1 = embedding, 2 = attention, 3 = feed-forward, 5 = LoRA)
//!  3  1  TYP   encoding of the payload  (1 = token ids, 3 = float16, 6 = bfloat16)
//!  4  2  LEN   bytes of payload, big-endian
//!  6  …  PAYLOAD: token ids as int32, big-endian
//!  …  2  CRC-16, big-endian
//! ```
//!
//! All codes are carried, also those that [`codes`](crate::packets::codes) has no name for.
//!
//! One packet is one example, so an example has at most 16,383 tokens. There is no file header, no loss mask,
//! no source line and no hash: on import every token but the first is a target, on export these are lost;
//! [`pack_file`](super::pack_file) and [`unpack`](super::unpack) say so.
//!
//! The public description of the protocol (the README of github.com/qubitpage/qubgpu) says "CRC-16/CCITT",
//! but not which of the algorithms of that name, nor which bytes it covers. The writer uses
//! CRC-16/CCITT-FALSE (polynomial 0x1021, start 0xFFFF, not reflected) over everything before it. The reader
//! also recognises the other interpretations: it uses the first one under which two packets in a row, or the
//! last packet of a file, are correct.
//!
//! After damage the reader searches for the next 0xAA that starts a correct packet, and reports the bytes in
//! between. The time for this grows only linearly with the bytes. So after bytes that look like packets
//! everywhere, it may take a correct packet for a part of the damage.

use std::fmt;
use std::io::{self, Read};

use crc::{CRC_16_IBM_3740, CRC_16_KERMIT, CRC_16_XMODEM, Crc, Table};

use crate::packets::codes::Route;
pub use crate::packets::codes::TOKEN_IDS;

/// The first byte of a packet.
pub const SYNC: u8 = 0xAA;
/// The largest number of tokens in one packet.
pub const MAX_TOKENS: usize = u16::MAX as usize / 4;
/// The bytes before the payload.
pub const HEADER: usize = 6;
const CRC: usize = 2;
const MAX_PACKET: usize = HEADER + u16::MAX as usize + CRC;
/// The most bytes that go through a checksum for each byte that is read. Damage may look like the beginning
/// of a long packet every few bytes, and each would be summed to its end. Intact tokens take about 20 while
/// the variant of the checksum is not known yet.
const SUMMED_PER_BYTE: usize = 64;

/// A variant of CRC-16, and the bytes of a packet that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checksum {
    algorithm: Crc16,
    covers: Covers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crc16 {
    CcittFalse,
    Xmodem,
    Kermit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Covers {
    AllBefore,
    AllButSync,
    Payload,
}

impl Checksum {
    const WRITTEN: Self = Self { algorithm: Crc16::CcittFalse, covers: Covers::AllBefore };

    fn known() -> impl Iterator<Item = Self> {
        [Crc16::CcittFalse, Crc16::Xmodem, Crc16::Kermit].into_iter().flat_map(|algorithm| {
            [Covers::AllBefore, Covers::AllButSync, Covers::Payload]
                .into_iter()
                .map(move |covers| Self { algorithm, covers })
        })
    }

    /// Returns the checksum of a packet, given without its last two bytes.
    fn of(self, before: &[u8]) -> u16 {
        self.algorithm.of(match self.covers {
            Covers::AllBefore => before,
            Covers::AllButSync => &before[1..],
            Covers::Payload => &before[HEADER..],
        })
    }

    fn is_right(self, packet: &[u8]) -> bool {
        let (before, crc) = packet.split_at(packet.len() - CRC);
        self.of(before).to_be_bytes() == crc
    }
}

// Sixteen bytes at a time. One at a time, the checksum would take most of the time of reading.
static CCITT_FALSE: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_IBM_3740);
static XMODEM: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);
static KERMIT: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_KERMIT);

impl Crc16 {
    fn of(self, bytes: &[u8]) -> u16 {
        match self {
            Self::CcittFalse => CCITT_FALSE.checksum(bytes),
            Self::Xmodem => XMODEM.checksum(bytes),
            Self::Kermit => KERMIT.checksum(bytes),
        }
    }
}

/// One intact packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The index among the intact packets, from 0.
    pub number: u64,
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// SRC and DST.
    pub route: Route,
    /// TYP: the encoding of the payload.
    pub kind: u8,
    /// The payload as stored in the file.
    pub payload: Vec<u8>,
}

impl Packet {
    /// Returns the payload as token ids, or an error that says why it does not contain any.
    pub fn token_ids(&self) -> Result<Vec<u32>, String> {
        let (ids, rest) = self.payload.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(format!(
                "{} bytes of payload are not a whole number of token ids",
                self.payload.len()
            ));
        }
        // All at once, by instructions for several ids; the signs are looked at together.
        let ids: Vec<u32> = ids.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect();
        if ids.iter().fold(0, |bits, id| bits | id).cast_signed() >= 0 {
            return Ok(ids);
        }
        let negative = ids.iter().map(|id| id.cast_signed()).find(|id| *id < 0).unwrap_or_default();
        Err(format!("{negative} is not a token id"))
    }
}

/// A range of bytes without a correct packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The number of intact packets before it.
    pub packets_before: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes contain no packet with a correct checksum", self.bytes)
    }
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An intact packet, of any kind.
    Packet(Packet),
    /// Bytes that were skipped.
    Damage(Damage),
}

/// Reads packets from a stream, or from bytes in memory, in constant memory for any input.
pub struct Reader<R> {
    input: R,
    window: Vec<u8>,
    /// The start of the unread part of `window`.
    start: usize,
    end: usize,
    input_ended: bool,
    /// The file offset of `window[start]`.
    offset: u64,
    packets: u64,
    checksum: Option<Checksum>,
    /// The length of the correct packet at `window[start]`, if it was found before the damage in front of it
    /// was reported. Finding it again would cost `may_sum` a second time.
    found: Option<usize>,
    /// The number of skipped bytes that were not reported yet.
    skipped: u64,
    /// The number of bytes that may be summed now.
    may_sum: usize,
}

impl<R: Read> Reader<R> {
    const WINDOW: usize = 1 << 20;

    /// Creates a reader. The input may also start in the middle of a packet.
    pub fn new(input: R) -> Self {
        Self {
            input,
            window: vec![0; Self::WINDOW],
            start: 0,
            end: 0,
            input_ended: false,
            offset: 0,
            packets: 0,
            checksum: None,
            found: None,
            skipped: 0,
            may_sum: SUMMED_PER_BYTE * MAX_PACKET,
        }
    }

    /// Returns the next packet or range of damage, or `None` at the end. `Err` only when the input fails.
    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        loop {
            self.fill()?;
            let packet_len = self.found.take().or_else(|| self.packet_here());
            if self.skipped > 0 && (packet_len.is_some() || self.start == self.end) {
                self.found = packet_len;
                let bytes = std::mem::take(&mut self.skipped);
                return Ok(Some(Item::Damage(Damage {
                    offset: self.offset - bytes,
                    bytes,
                    packets_before: self.packets,
                })));
            }
            if self.start == self.end {
                return Ok(None);
            }
            match packet_len {
                Some(len) => {
                    let bytes = &self.window[self.start..self.start + len];
                    let packet = Packet {
                        number: self.packets,
                        offset: self.offset,
                        route: Route { src: bytes[1], dst: bytes[2] },
                        kind: bytes[3],
                        payload: bytes[HEADER..len - CRC].to_vec(),
                    };
                    self.packets += 1;
                    self.advance(len);
                    return Ok(Some(Item::Packet(packet)));
                }
                None => {
                    let unread = &self.window[self.start + 1..self.end];
                    let skip = 1 + unread.iter().position(|&byte| byte == SYNC).unwrap_or(unread.len());
                    self.skipped += skip as u64;
                    self.advance(skip);
                }
            }
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
        self.may_sum = self.may_sum.saturating_add(SUMMED_PER_BYTE * bytes);
    }

    /// Fills the window with two whole packets, or everything that is left.
    fn fill(&mut self) -> io::Result<()> {
        if self.end - self.start >= 2 * MAX_PACKET || self.input_ended {
            return Ok(());
        }
        self.window.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        while self.end < self.window.len() {
            match self.input.read(&mut self.window[self.end..]) {
                Ok(0) => {
                    self.input_ended = true;
                    break;
                }
                Ok(bytes) => self.end += bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns the length of the correct packet that starts at the first unread byte.
    fn packet_here(&mut self) -> Option<usize> {
        let unread = &self.window[self.start..self.end];
        let len = framed_len(unread)?;
        let packet = &unread[..len];
        // While searching, 0xAA may be any byte, so a 16-bit checksum is trusted only for packets that
        // this program would use.
        if self.skipped > 0 && !(packet[3] == TOKEN_IDS && (len - HEADER - CRC).is_multiple_of(4)) {
            return None;
        }
        let checksums = if self.checksum.is_some() { 1 } else { Checksum::known().count() };
        self.may_sum = self.may_sum.checked_sub(checksums * len)?;
        if let Some(checksum) = self.checksum {
            return checksum.is_right(packet).then_some(len);
        }
        let next = &unread[len..];
        let confirmed = |checksum: Checksum| {
            next.is_empty() || framed_len(next).is_some_and(|len| checksum.is_right(&next[..len]))
        };
        let right = || Checksum::known().filter(|checksum| checksum.is_right(packet));
        self.checksum = right().find(|&c| confirmed(c)).or_else(|| right().find(|&c| c == Checksum::WRITTEN));
        self.checksum.map(|_| len)
    }
}

/// Returns the length of the packet that the first bytes describe, if all of it is in the window.
fn framed_len(bytes: &[u8]) -> Option<usize> {
    let [SYNC, _, _, _, high, low, ..] = *bytes else { return None };
    let len = HEADER + usize::from(u16::from_be_bytes([high, low])) + CRC;
    (len <= bytes.len()).then_some(len)
}

/// Returns whether `file` starts with v1 packets, or with damage and then packets.
pub(super) fn looks_like(file: &[u8]) -> bool {
    let mut reader = Reader::new(&file[..file.len().min(1 << 20)]);
    loop {
        match reader.next_item() {
            Ok(Some(Item::Packet(_))) => return true,
            Ok(Some(Item::Damage(_))) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

/// The reason why an example cannot be stored in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It has more than [`MAX_TOKENS`] tokens, or more than 65,535 bytes.
    TooLong,
    /// This id does not fit a signed 32-bit number.
    TokenId(u32),
}

/// Appends one example as a packet to `out`.
///
/// # Errors
/// It is too long, or has an id that no packet can hold. Nothing is appended then.
pub fn encode(tokens: &[u32], route: Route, out: &mut Vec<u8>) -> Result<(), Unfit> {
    if tokens.len() > MAX_TOKENS {
        return Err(Unfit::TooLong);
    }
    if let Some(&id) = tokens.iter().find(|&&id| i32::try_from(id).is_err()) {
        return Err(Unfit::TokenId(id));
    }
    let start = begin(route, TOKEN_IDS, (4 * tokens.len()) as u16, out);
    out.extend(tokens.iter().flat_map(|id| id.to_be_bytes()));
    end(start, out);
    Ok(())
}

/// Appends a packet of any kind to `out`.
///
/// # Errors
/// The payload has more than 65,535 bytes. Nothing is appended then.
pub fn encode_bytes(route: Route, kind: u8, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Unfit> {
    let len = u16::try_from(payload.len()).map_err(|_| Unfit::TooLong)?;
    let start = begin(route, kind, len, out);
    out.extend_from_slice(payload);
    end(start, out);
    Ok(())
}

/// Appends the bytes before a payload. Returns where the packet begins.
fn begin(route: Route, kind: u8, len: u16, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[SYNC, route.src, route.dst, kind]);
    out.extend_from_slice(&len.to_be_bytes());
    start
}

/// Appends the checksum of the packet that begins at `start`.
fn end(start: usize, out: &mut Vec<u8>) {
    let crc = Checksum::WRITTEN.of(&out[start..]);
    out.extend_from_slice(&crc.to_be_bytes());
}

/// Returns the checksum that a writer puts behind these bytes of a packet.
pub fn checksum(before: &[u8]) -> u16 {
    Checksum::WRITTEN.of(before)
}
