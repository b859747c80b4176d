//! Finds packets without an index, for files whose index is lost or damaged.

use super::v2::{ALIGN, PACKET_HEADER, PacketHeader};

/// An item found in the packet area.
pub(super) enum Found {
    Intact(usize, PacketHeader),
    /// The packet header is intact, so the extent of the packet is known, but its content is damaged.
    BadPayload(usize, PacketHeader),
    /// The offset and length of bytes without a readable packet header.
    Gap(usize, usize),
}

/// Finds packets without an index, by their magic and checksums, in steps of the alignment.
pub(super) struct Scan<'a> {
    file: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Scan<'a> {
    pub(super) fn new(file: &'a [u8], start: usize, end: usize) -> Self {
        Self { file: &file[..end], at: start, end }
    }

    fn header_at(&self, at: usize) -> Option<PacketHeader> {
        PacketHeader::decode(&self.file[at..]).filter(|header| header.packet_len() <= self.end - at)
    }
}

impl Iterator for Scan<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        let start = self.at;
        if start >= self.end {
            return None;
        }
        if let Some(header) = self.header_at(start) {
            self.at = start + header.packet_len();
            let intact = crc32c::crc32c(&self.file[start + PACKET_HEADER..self.at]) == header.payload_crc;
            return Some(if intact {
                Found::Intact(start, header)
            } else {
                Found::BadPayload(start, header)
            });
        }
        let mut at = start;
        while at < self.end && self.header_at(at).is_none() {
            at += ALIGN;
        }
        self.at = at.min(self.end);
        Some(Found::Gap(start, self.at - start))
    }
}

/// Returns the number of intact packets among bytes that are packets alone.
pub(crate) fn intact_packets(bytes: &[u8]) -> usize {
    Scan::new(bytes, 0, bytes.len()).filter(|found| matches!(found, Found::Intact(..))).count()
}

/// Returns the offset of the first intact packet header, or the end of the file when there is none.
pub(super) fn first_packet(file: &[u8]) -> usize {
    (0..file.len())
        .step_by(ALIGN)
        .find(|&at| PacketHeader::decode(&file[at..]).is_some())
        .unwrap_or(file.len())
}

/// Returns the tokens of an intact packet.
pub(super) fn tokens_of<'a>(packet: &'a [u8], header: &PacketHeader) -> &'a [u32] {
    bytemuck::cast_slice(&packet[PACKET_HEADER..PACKET_HEADER + 4 * header.token_count as usize])
}
