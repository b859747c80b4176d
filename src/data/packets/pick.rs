//! Takes one packet out of a file of any kind, as bytes.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use sparktune_base::regular_file::open_regular;
use sparktune_base::units::count;

use super::error::PacketError;
use super::file::{PacketFile, is_packet_file};
use super::typed::MAX_PAYLOAD;
use crate::token_file::{Contents, OnDamage, TokenFile, contents, map_file, v1};

/// The most bytes of a packet, with room for its header and its padding.
const MOST: u64 = MAX_PAYLOAD + (1 << 16);

/// Returns the bytes of packet `number` of a file, counted from 0 among its intact packets; a token file's
/// are returned also if they are damaged. A file of another kind is taken as one packet.
///
/// # Errors
/// The file cannot be read, or has fewer packets.
pub fn packet_of(path: &Path, number: u64) -> Result<Vec<u8>, PacketError> {
    let none = |there: u64| {
        let what =
            format!("there is no packet {}: the file has {}, counted from 0", count(number), count(there));
        PacketError::file(path, what, "`packet show` lists what it carries")
    };
    if is_packet_file(path)? {
        let file = PacketFile::open(path, OnDamage::Skip)?;
        let place = usize::try_from(number).ok().filter(|place| *place < file.len());
        return Ok(file.packet_bytes(place.ok_or_else(|| none(file.len() as u64))?).to_vec());
    }
    match contents(path)? {
        Contents::V2 => {
            let file = TokenFile::open(path)?;
            let there = file.len() as u64;
            let place = usize::try_from(number).ok().filter(|_| number < there).ok_or_else(|| none(there))?;
            let map = map_file(path)?.ok_or_else(|| none(0))?;
            let start = file.offsets()[place] as usize;
            Ok(map[start..start + file.packet_len(place)].to_vec())
        }
        Contents::V1 => {
            let mut reader = v1::Reader::new(open_regular(path).map_err(PacketError::io(path))?);
            let mut there = 0;
            while let Some(item) = reader.next_item().map_err(PacketError::io(path))? {
                let v1::Item::Packet(packet) = item else { continue };
                if packet.number == number {
                    let bytes = v1::HEADER + packet.payload.len() + 2;
                    return read_at(path, packet.offset, bytes as u64);
                }
                there += 1;
            }
            Err(none(there))
        }
        Contents::IdLines | Contents::Other if number > 0 => Err(none(1)),
        Contents::IdLines | Contents::Other => read_at(path, 0, MOST),
    }
}

fn read_at(path: &Path, offset: u64, bytes: u64) -> Result<Vec<u8>, PacketError> {
    let mut file = open_regular(path).map_err(PacketError::io(path))?;
    let mut packet = Vec::new();
    file.seek(SeekFrom::Start(offset))
        .and_then(|_| file.take(bytes).read_to_end(&mut packet))
        .map_err(PacketError::io(path))?;
    Ok(packet)
}
