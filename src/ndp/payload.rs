//! The fifth layer: the packets of a token file.
//!
//! Contract: [`Source`] gives only packets that are intact on its disk. [`Sink`] takes only the packet
//! that is next in the file, intact and within the announced size, and writes it behind the ones before
//! it; when it is closed, the file is verified as a whole and equals the served one, or there is none. How
//! packets travel is not known here.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_data::token_file::{Announced, Spool, TokenFile, TokenFileError};

/// What a server says of a file before it sends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The file hash, in hexadecimal digits.
    pub hash: String,
    /// The size of the file.
    pub bytes: u64,
    /// The number of examples.
    pub examples: u64,
}

/// A token file that is sent.
pub struct Source(TokenFile);

impl Source {
    /// Opens a file.
    ///
    /// # Errors
    /// It is not a sound token file.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        TokenFile::open(path).map(Self)
    }

    /// Returns what a receiver has to know first.
    pub fn description(&self) -> Description {
        let Self(file) = self;
        Description { hash: file.file_hash(), bytes: file.bytes().len() as u64, examples: file.len() as u64 }
    }

    /// Returns the bytes before the first packet.
    pub fn opening(&self) -> &[u8] {
        let Self(file) = self;
        &file.bytes()[..file.offsets().first().map_or(file.packets_end(), |first| *first as usize)]
    }

    /// Returns packet `example`, checked.
    ///
    /// # Errors
    /// It is damaged on this disk.
    pub fn packet(&self, example: u64) -> Result<&[u8], TokenFileError> {
        self.0.packet(example as usize)
    }

    /// Returns the bytes after the last packet.
    pub fn closing(&self) -> &[u8] {
        &self.0.bytes()[self.0.packets_end()..]
    }

    /// Returns the memory of what was sent to the system.
    pub fn release_pages(&self) {
        self.0.release_pages();
    }
}

/// A token file that is received.
pub struct Sink(Spool);

impl Sink {
    /// Opens the file that becomes `target`, or the part of it that an earlier attempt has left.
    ///
    /// # Errors
    /// It cannot be written, or another process receives it.
    pub fn open(target: &Path, announced: Announced) -> Result<Self, TokenFileError> {
        Spool::open(target, announced).map(Self)
    }

    /// Returns the number of the packet that is due.
    pub fn next(&self) -> u64 {
        self.0.next()
    }

    /// Returns the bytes that are there and intact.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Takes the bytes before the first packet.
    ///
    /// # Errors
    /// They are no header, or another one than an earlier attempt has received.
    pub fn opening(&mut self, bytes: &[u8]) -> Result<(), TokenFileError> {
        self.0.opening(bytes)
    }

    /// Takes the packet that is due.
    ///
    /// # Errors
    /// It is damaged, another one, or too much; or the disk fails.
    pub fn packet(&mut self, bytes: &[u8]) -> Result<(), TokenFileError> {
        self.0.packet(bytes)
    }

    /// Takes the bytes after the last packet, verifies the file and gives it its name.
    ///
    /// # Errors
    /// It is not the announced file, and is removed; or the disk fails.
    pub fn close(self, bytes: &[u8]) -> Result<(), TokenFileError> {
        self.0.finish(bytes)
    }
}
