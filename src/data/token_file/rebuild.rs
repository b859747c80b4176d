//! Recovers the intact part of a damaged, truncated or unfinished file, as a v2 file.

use std::fs::TryLockError;
use std::path::Path;

use serde::Serialize;
use sparktune_base::regular_file::open_regular;

use super::convert::{OnDamage, PackFileOptions, pack_file};
use super::error::TokenFileError;
use super::reader::{Mask, map, mask_fault, release};
use super::scan::{Found, Scan, tokens_of};
use super::v1;
use super::v2::{Header, HeaderFault};
use super::verify::is_v2;
use super::writer::TokenFileWriter;

/// The result of [`rebuild`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    /// The number of examples in the new file, in their old order.
    pub recovered_examples: u64,
    /// The number of tokens in them.
    pub recovered_tokens: u64,
    /// Whether the old header was readable, which v1 files do not have. Otherwise the new one has no hashes
    /// and no source names, and never counts as current.
    pub header_recovered: bool,
}

/// Writes all intact packets of a damaged, truncated or unfinished file into a new one of version 2, which
/// passes [`verify`](super::verify). The report of [`verify`](super::verify) on the old file lists the lost
/// packets.
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
    if !is_v2(&map) && v1::looks_like(&map) {
        let options = PackFileOptions { on_damage: OnDamage::Skip, ..PackFileOptions::default() };
        let saved = pack_file(damaged, output, &options)?;
        return Ok(Rebuilt {
            recovered_examples: saved.examples,
            recovered_tokens: saved.tokens,
            header_recovered: false,
        });
    }
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
        loss_mask.extend(Mask::of(bytes, &packet).iter());
        let (hash, route) = (packet.content_hash, packet.route);
        writer.push_routed(tokens_of(bytes, &packet), &loss_mask, packet.origin, hash, route)?;
    }
    let written = writer.finish()?;
    Ok(Rebuilt {
        recovered_examples: written.examples,
        recovered_tokens: written.total_tokens,
        header_recovered,
    })
}
