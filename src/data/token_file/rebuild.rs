//! Recovers the intact part of a damaged, truncated or unfinished v2 file.

use std::fs::TryLockError;
use std::path::Path;

use serde::Serialize;
use sparktune_base::regular_file::open_regular;

use super::error::TokenFileError;
use super::reader::{map, release};
use super::scan::{Found, Scan, mask_fault, mask_of, tokens_of};
use super::v2::{Header, HeaderFault};
use super::writer::TokenFileWriter;

/// The result of [`rebuild`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    /// The number of examples in the new file, in their old order.
    pub recovered_examples: u64,
    /// The number of tokens in them.
    pub recovered_tokens: u64,
    /// Whether the old header was readable. Otherwise the new one has no hashes and no source names, and
    /// never counts as current.
    pub header_recovered: bool,
}

/// Writes all intact packets of a damaged, truncated or unfinished v2 file into a new one, which passes
/// [`verify`](super::verify). The report of [`verify`](super::verify) on the old file lists the lost packets.
pub fn rebuild(damaged: &Path, output: &Path) -> Result<Rebuilt, TokenFileError> {
    // The lock ensures that no writer is writing the file now, or takes it over while it is read.
    let lock = open_regular(damaged).map_err(TokenFileError::io(damaged))?;
    match lock.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(TokenFileError::BeingWritten { path: damaged.to_path_buf() });
        }
        Err(TryLockError::Error(source)) => return Err(TokenFileError::io(damaged)(source)),
    }
    let Some(map) = map(damaged)? else {
        return Err(TokenFileError::Truncated {
            path: damaged.to_path_buf(),
            what: "the file is empty".into(),
        });
    };
    let (header, start) = match Header::decode(&map) {
        Ok((header, block_len)) => (Some(header), block_len),
        Err(HeaderFault::Damaged(_)) => (None, 0),
        Err(HeaderFault::Version(version)) => {
            return Err(TokenFileError::UnsupportedVersion { path: damaged.to_path_buf(), version });
        }
    };
    let header_recovered = header.is_some();
    let policy = "unknown: recovered from a file with a damaged header".to_owned();
    let mut writer = TokenFileWriter::create_beside(
        output,
        "rebuild",
        header.unwrap_or(Header { policy, ..Header::default() }),
    )?;
    let mut loss_mask = Vec::new();
    let mut released = 0;
    for found in Scan::new(&map, start, map.len()) {
        let Found::Intact(offset, packet) = found else { continue };
        if offset - released > 64 << 20 {
            release(&map, released..offset);
            released = offset;
        }
        let bytes = &map[offset..offset + packet.packet_len()];
        if mask_fault(bytes, &packet).is_some() {
            continue;
        }
        loss_mask.clear();
        loss_mask.extend(mask_of(bytes, &packet).iter());
        writer.push_hashed(tokens_of(bytes, &packet), &loss_mask, packet.origin, packet.content_hash)?;
    }
    let written = writer.finish()?;
    Ok(Rebuilt {
        recovered_examples: written.examples,
        recovered_tokens: written.total_tokens,
        header_recovered,
    })
}
