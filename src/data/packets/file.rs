//! Files of typed packets.
//!
//! ```text
//! HEADER   at 0                                 PACKETS  as in `typed`, back to back after the header
//!   0  8  magic "QUBPKT2\n"
//!   8  4  version = 2                           FOOTER   the last 64 bytes
//!  12  4  block_len: the whole header              0  8  magic "QPKEND2\n"
//!  16  4  json_len                                 8  8  file_len
//!  20  4  zero                                    16  8  packets
//!  24  …  JSON: what it was made of, metadata     24  8  payload bytes in them
//!   …  …  zeros                                   32 28  zero
//!  -4  4  crc of the block before it              60  4  crc of the 60 bytes before it
//! ```
//!
//! A file is checked as a whole when it is opened, because its packets are few and large: at the speed of
//! memory. Damaged packets stop that, or are left out and counted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use sparktune_base::regular_file::open_regular;

use super::codes::Route;
use super::error::PacketError;
use super::typed::{ALIGN, HEADER, MAGIC, PacketFault, TypedHeader, TypedPacket};
use crate::token_file::{OnDamage, PartialFile, map_file};

/// The first bytes of a file.
pub const FILE_MAGIC: [u8; 8] = *b"QUBPKT2\n";
const FOOTER_MAGIC: [u8; 8] = *b"QPKEND2\n";
const VERSION: u32 = 2;
const HEADER_FIXED: usize = 24;
const FOOTER: usize = 64;
/// The largest header.
const MAX_HEADER: usize = 16 << 20;
/// The largest number of defects that are listed.
const LISTED: usize = 1000;
const AGAIN: &str = "Get the file again from where it was made";

/// What a file says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The name of the file that it was made of, for display.
    pub made_of: Option<String>,
    /// Names and values that the packets do not have, such as those of a safetensors file.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// Returns whether a file is one of typed packets, by its first bytes.
///
/// # Errors
/// The file cannot be read.
pub fn is_packet_file(path: &Path) -> Result<bool, PacketError> {
    let mut first = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(8).read_to_end(&mut first));
    read.map_err(PacketError::io(path))?;
    Ok(first == FILE_MAGIC)
}

/// Writes a file of typed packets, which appears under its name when it is complete.
pub struct PacketFileWriter {
    path: PathBuf,
    out: BufWriter<File>,
    partial: PartialFile,
    packet: Vec<u8>,
    written: u64,
    packets: u64,
    payload: u64,
}

impl PacketFileWriter {
    /// Starts a file.
    ///
    /// # Errors
    /// It cannot be written, another process writes it, or the metadata is too large.
    pub fn create(path: &Path, about: &About) -> Result<Self, PacketError> {
        let json = serde_json::to_vec(about).expect("strings always serialise");
        let block_len = (HEADER_FIXED + json.len() + 4).next_multiple_of(ALIGN);
        if block_len > MAX_HEADER {
            let what = format!("the metadata has {} bytes", json.len());
            return Err(PacketError::file(path, what, "Keep less of it: a file holds 16 MiB"));
        }
        let mut block = vec![0; block_len];
        block[..8].copy_from_slice(&FILE_MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&(block_len as u32).to_le_bytes());
        block[16..20].copy_from_slice(&(json.len() as u32).to_le_bytes());
        block[HEADER_FIXED..HEADER_FIXED + json.len()].copy_from_slice(&json);
        seal(&mut block);
        let partial = PartialFile::create(path, "partial", &FILE_MAGIC)?;
        let file = partial.file().try_clone().map_err(PacketError::io(path))?;
        let mut writer = Self {
            path: path.to_path_buf(),
            out: BufWriter::with_capacity(1 << 20, file),
            partial,
            packet: Vec::new(),
            written: 0,
            packets: 0,
            payload: 0,
        };
        writer.write(&block)?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), PacketError> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes).map_err(PacketError::io(&self.path))
    }

    /// Appends a packet; its number becomes its place in this file.
    ///
    /// # Errors
    /// It does not fit a packet, or the file cannot be written.
    pub fn push(&mut self, header: &TypedHeader, payload: &[u8]) -> Result<(), PacketError> {
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        let header = TypedHeader { number: self.packets, ..header.clone() };
        header.encode(payload, &mut packet)?;
        self.write(&packet)?;
        self.packet = packet;
        self.packets += 1;
        self.payload += payload.len() as u64;
        Ok(())
    }

    /// Writes the footer, makes the file durable and gives it its name. Returns its size in bytes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<u64, PacketError> {
        let len = self.written + FOOTER as u64;
        let mut footer = [0; FOOTER];
        footer[..8].copy_from_slice(&FOOTER_MAGIC);
        for (place, number) in [len, self.packets, self.payload].into_iter().enumerate() {
            footer[8 + 8 * place..16 + 8 * place].copy_from_slice(&number.to_le_bytes());
        }
        seal(&mut footer);
        self.write(&footer)?;
        self.out.flush().map_err(PacketError::io(&self.path))?;
        self.partial.commit()?;
        Ok(len)
    }
}

/// Writes the checksum of all bytes before into the last four.
fn seal(block: &mut [u8]) {
    let end = block.len() - 4;
    let crc = crc32c::crc32c(&block[..end]);
    block[end..].copy_from_slice(&crc.to_le_bytes());
}

fn is_sealed(block: &[u8]) -> bool {
    let (before, crc) = block.split_at(block.len() - 4);
    crc32c::crc32c(before).to_le_bytes() == crc
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn small(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// A place where a file differs from what its writer wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PacketDefect {
    /// The first byte of the damaged part.
    pub offset: u64,
    /// The problem.
    pub what: String,
}

/// An open file of typed packets, all of which were checked.
#[derive(Debug)]
pub struct PacketFile {
    map: Mmap,
    about: About,
    /// Where each intact packet begins.
    offsets: Vec<usize>,
    defects: Vec<PacketDefect>,
    defect_count: u64,
}

impl PacketFile {
    /// Opens a file and checks all of it. With [`OnDamage::Skip`], damaged packets are left out, listed and
    /// counted.
    ///
    /// # Errors
    /// It cannot be read, is no file of typed packets, or is damaged.
    pub fn open(path: &Path, on_damage: OnDamage) -> Result<Self, PacketError> {
        let no_file = "it does not begin like a file of typed packets";
        let Some(map) = map_file(path)? else {
            return Err(PacketError::file(path, "the file is empty", AGAIN));
        };
        if map.len() < HEADER_FIXED || map[..8] != FILE_MAGIC {
            return Err(PacketError::file(path, no_file, "`packet encode --tensors` writes such files"));
        }
        let (about, start) = read_header(path, &map)?;
        let mut file = Self { map, about, offsets: Vec::new(), defects: Vec::new(), defect_count: 0 };
        file.check(start);
        match file.defects.first() {
            Some(defect) if on_damage == OnDamage::Stop => {
                let what = format!("damaged at byte {}: {}", defect.offset, defect.what);
                let fix = "Get the file again from where it was made, or leave out what is damaged with --on-damage drop";
                Err(PacketError::file(path, what, fix))
            }
            _ => Ok(file),
        }
    }

    fn note(&mut self, offset: usize, what: impl Into<String>) {
        self.defect_count += 1;
        if self.defects.len() < LISTED {
            self.defects.push(PacketDefect { offset: offset as u64, what: what.into() });
        }
    }

    /// Checks every packet, and the footer.
    fn check(&mut self, start: usize) {
        let end = self.map.len().saturating_sub(FOOTER).max(start);
        let (mut at, mut number_expected, mut payload) = (start, 0, 0);
        while at < end {
            let after = match TypedPacket::decode(&self.map[at..end]) {
                Ok((packet, len)) => {
                    payload += packet.payload.len() as u64;
                    let found = packet.header.number;
                    // After damage, the numbers say how many packets are lost.
                    if found != number_expected && self.defect_count == 0 {
                        self.note(at, format!("packet {number_expected} was expected here, not {found}"));
                    }
                    number_expected = found.saturating_add(1);
                    self.offsets.push(at);
                    at += len;
                    continue;
                }
                Err(fault) => {
                    self.note(at, fault.to_string());
                    match fault {
                        // The header is right, so the next packet is known.
                        PacketFault::BodyChecksum { len } => {
                            number_expected += 1;
                            at + len
                        }
                        _ => at + ALIGN,
                    }
                }
            };
            at = self.next_magic(after, end);
        }
        let at = end;
        let footer =
            self.map.get(at..at + FOOTER).filter(|block| is_sealed(block) && block[..8] == FOOTER_MAGIC);
        let stated = footer.map(|block| (number(block, 8), number(block, 16), number(block, 24)));
        let seen = (self.map.len() as u64, self.offsets.len() as u64, payload);
        match stated {
            None => self.note(at, "the end of the file is missing or damaged"),
            Some(stated) if stated != seen && self.defect_count == 0 => {
                self.note(at, "the counts at the end of the file differ from its packets");
            }
            Some(_) => {}
        }
    }

    /// Returns the place from `at` on where a packet may begin.
    fn next_magic(&self, mut at: usize, end: usize) -> usize {
        while at + HEADER <= end && self.map[at..at + 4] != MAGIC {
            at += ALIGN;
        }
        if at + HEADER <= end { at } else { end }
    }

    /// Returns what the file says about itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the number of intact packets.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns whether there is no intact packet.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Returns the first 1,000 defects. There are none unless damage was to be left out.
    pub fn defects(&self) -> &[PacketDefect] {
        &self.defects
    }

    /// Returns the number of all defects.
    pub fn defect_count(&self) -> u64 {
        self.defect_count
    }

    /// Returns an intact packet. Panics if there are fewer.
    pub fn packet(&self, place: usize) -> TypedPacket<'_> {
        let bytes = &self.map[self.offsets[place]..];
        TypedPacket::decode(bytes).expect("the packet was checked when the file was opened").0
    }

    /// Returns the payload of an intact packet without checking it again. Panics if there are fewer packets.
    pub fn payload(&self, place: usize) -> &[u8] {
        super::typed::payload_of(&self.map[self.offsets[place]..])
    }

    /// Returns all intact packets.
    pub fn packets(&self) -> impl Iterator<Item = TypedPacket<'_>> {
        (0..self.len()).map(|place| self.packet(place))
    }

    /// Returns the bytes of an intact packet, to send them on. Panics if there are fewer.
    pub fn packet_bytes(&self, place: usize) -> &[u8] {
        let bytes = &self.map[self.offsets[place]..];
        let len = super::typed::packet_len(bytes).expect("the packet was checked when the file was opened");
        &bytes[..len]
    }

    /// Returns the route of an intact packet. Panics if there are fewer.
    pub fn route(&self, place: usize) -> Route {
        let at = self.offsets[place];
        Route { src: self.map[at + 4], dst: self.map[at + 5] }
    }
}

fn read_header(path: &Path, map: &[u8]) -> Result<(About, usize), PacketError> {
    let damaged = |what: &str| PacketError::file(path, format!("its header is damaged: {what}"), AGAIN);
    let block_len = small(map, 12);
    if block_len < ALIGN || !block_len.is_multiple_of(ALIGN) || block_len > MAX_HEADER.min(map.len()) {
        return Err(damaged("its length is invalid"));
    }
    let block = &map[..block_len];
    if !is_sealed(block) {
        return Err(damaged("its checksum does not match"));
    }
    let version = small(block, 8);
    if version != VERSION as usize {
        let what = format!("its format has version {version}, and this program reads version {VERSION}");
        return Err(PacketError::file(path, what, "Use a newer sparktune"));
    }
    let json = HEADER_FIXED.checked_add(small(block, 16)).and_then(|end| block.get(HEADER_FIXED..end));
    let json = json.ok_or_else(|| damaged("its text extends beyond its end"))?;
    let about = serde_json::from_slice(json).map_err(|_| damaged("its text cannot be read"))?;
    Ok((about, block_len))
}
