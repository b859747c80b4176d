//! Writes a token file that arrives packet by packet, and continues where an earlier process stopped.
//!
//! Bytes go to `<name>.partial`, which stays when the process ends at any moment. The next spool keeps its
//! intact beginning: the header, and packets in order up to the first that is damaged, out of order or
//! cut. The file gets its name only after the whole of it was verified against the hash that was
//! announced.

use std::fs::{self, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sparktune_base::files::{private_file, sync};
use sparktune_base::locked::Locked;

use super::damage::{Defect, Part};
use super::error::TokenFileError;
use super::partial::{open_unfinished, refuse_foreign};
use super::reader::{TokenFile, map, mask_fault};
use super::scan::{Found, Scan};
use super::v2::{FILE_MAGIC, Header, HeaderFault, PACKET_HEADER, PacketHeader};
use super::verify::verify;

/// Bytes that are gathered before they are written.
const GATHERED: usize = 1 << 20;

/// What a sender says of a token file beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// The file hash, [`TokenFile::file_hash`].
    pub hash: [u8; 32],
    /// The size in bytes.
    pub bytes: u64,
    /// The number of examples.
    pub examples: u64,
}

/// A token file that is arriving.
#[derive(Debug)]
pub struct Spool {
    target: PathBuf,
    partial: PathBuf,
    file: Locked,
    announced: Announced,
    gathered: Vec<u8>,
    /// The header block, empty until it has arrived.
    header: Vec<u8>,
    next: u64,
    bytes: u64,
}

impl Spool {
    /// Opens the file that becomes `target`, and keeps what is intact of an earlier attempt.
    ///
    /// # Errors
    /// It cannot be written, or another process is receiving it.
    pub fn open(target: &Path, announced: Announced) -> Result<Self, TokenFileError> {
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        let partial = target.with_file_name(name);
        let io = |source| TokenFileError::Io { path: partial.clone(), source };
        let file = open_unfinished(private_file(), &partial)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(TokenFileError::BeingWritten { path: target.to_path_buf() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        refuse_foreign(&file, &partial, &FILE_MAGIC)?;
        let (header, next, bytes) = intact_part(&partial, announced)?;
        file.set_len(bytes).map_err(io)?;
        (&file).seek(SeekFrom::Start(bytes)).map_err(io)?;
        let (target, file) = (target.to_path_buf(), Locked::new(file));
        Ok(Self { target, partial, file, announced, gathered: Vec::new(), header, next, bytes })
    }

    /// Returns the number of the example that is due.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of bytes that are there.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the header block. After an earlier attempt it must be the same.
    ///
    /// # Errors
    /// It is not a header, or another one; or the disk fails.
    pub fn opening(&mut self, block: &[u8]) -> Result<(), TokenFileError> {
        if !self.header.is_empty() {
            let is_same = self.header == block;
            return if is_same { Ok(()) } else { Err(self.refused(Part::Header, 0, "it has changed")) };
        }
        match Header::decode(block) {
            Ok((_, length)) if length == block.len() => {}
            Ok(_) => return Err(self.refused(Part::Header, 0, "bytes follow it")),
            Err(HeaderFault::Damaged(defect)) => return Err(TokenFileError::damaged(&self.partial, defect)),
            Err(HeaderFault::Version(version)) => {
                return Err(TokenFileError::UnsupportedVersion { path: self.target.clone(), version });
            }
        }
        self.header = block.to_vec();
        self.append(block)
    }

    /// Takes the packet of the example that is due.
    ///
    /// # Errors
    /// It is damaged, or of another example; or the disk fails.
    pub fn packet(&mut self, packet: &[u8]) -> Result<(), TokenFileError> {
        if self.header.is_empty() {
            return Err(self.refused(Part::Packet, 0, "it comes before the header"));
        }
        if let Some(what) = fault_of(packet, self.next) {
            return Err(self.refused(Part::Packet, self.bytes as usize, what));
        }
        self.append(packet)?;
        self.next += 1;
        Ok(())
    }

    /// Takes index and footer, verifies the whole file, and gives it its name.
    ///
    /// # Errors
    /// Packets are missing, or it is not the announced file, which is then removed; or the disk fails.
    pub fn finish(mut self, closing: &[u8]) -> Result<(), TokenFileError> {
        if self.next != self.announced.examples {
            let what = "packets are missing before index and footer";
            return Err(self.refused(Part::Packet, self.bytes as usize, what));
        }
        self.append(closing)?;
        self.write_out()?;
        self.file.sync_all().map_err(TokenFileError::io(&self.partial))?;
        if let Err(error) = self.verified() {
            // Nothing of it can be trusted, since every packet alone was intact.
            fs::remove_file(&self.partial).map_err(TokenFileError::io(&self.partial))?;
            return Err(error);
        }
        fs::rename(&self.partial, &self.target).map_err(TokenFileError::io(&self.target))?;
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        sync(folder).map_err(TokenFileError::io(folder))
    }

    fn verified(&self) -> Result<(), TokenFileError> {
        let report = verify(&self.partial)?;
        if let Some(defect) = report.defects.into_iter().next() {
            return Err(TokenFileError::damaged(&self.partial, defect));
        }
        let hash = blake3::Hash::from_bytes(self.announced.hash).to_hex();
        if TokenFile::open(&self.partial)?.file_hash() != hash.as_str() {
            return Err(self.refused(Part::FileHash, 0, "the content differs from what was announced"));
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), TokenFileError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.announced.bytes {
            return Err(self.refused(
                Part::Packet,
                self.announced.bytes as usize,
                "more arrived than was announced",
            ));
        }
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() < GATHERED { Ok(()) } else { self.write_out() }
    }

    fn write_out(&mut self) -> Result<(), TokenFileError> {
        let written = (&*self.file).write_all(&self.gathered);
        self.gathered.clear();
        written.map_err(TokenFileError::io(&self.partial))
    }

    fn refused(&self, part: Part, offset: usize, what: &str) -> TokenFileError {
        let defect = Defect::new(part, offset, what);
        let is_of_packet = matches!(part, Part::Packet);
        let defect = if is_of_packet { defect.of_example(self.next, None) } else { defect };
        TokenFileError::damaged(&self.target, defect)
    }
}

impl Drop for Spool {
    /// Keeps what has arrived. The error of a full disk was or will be that of another write.
    fn drop(&mut self) {
        let _ = self.write_out();
    }
}

/// Returns the header block, the number of packets and the number of bytes of the intact beginning of a
/// file.
fn intact_part(partial: &Path, announced: Announced) -> Result<(Vec<u8>, u64, u64), TokenFileError> {
    let nothing = (Vec::new(), 0, 0);
    let Some(map) = map(partial)? else { return Ok(nothing) };
    let Ok((_, length)) = Header::decode(&map) else { return Ok(nothing) };
    let (mut next, mut end) = (0, length);
    for found in Scan::new(&map, length, map.len()) {
        match found {
            Found::Intact(at, header)
                if at == end
                    && next < announced.examples
                    && fault_of(&map[at..at + header.packet_len()], next).is_none() =>
            {
                next += 1;
                end = at + header.packet_len();
            }
            _ => break,
        }
    }
    if end as u64 > announced.bytes { Ok(nothing) } else { Ok((map[..length].to_vec(), next, end as u64)) }
}

/// Returns what is wrong with a packet that should be that of `example`.
fn fault_of(packet: &[u8], example: u64) -> Option<&'static str> {
    let Some(header) = PacketHeader::decode(packet) else {
        return Some("packet header does not match its checksum");
    };
    if header.packet_len() != packet.len() {
        return Some("it has another length than its header says");
    }
    if crc32c::crc32c(&packet[PACKET_HEADER..]) != header.payload_crc {
        return Some("tokens, mask or padding do not match their checksum");
    }
    if header.example != example {
        return Some("it is the packet of another example");
    }
    mask_fault(packet, &header)
}
