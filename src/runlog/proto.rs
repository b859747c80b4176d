//! The parts of protobuf's encoding and TensorFlow's record framing that TensorBoard's event files need.
//!
//! Sources: protobuf's "Encoding" page; `tensorflow/core/lib/io/record_writer.h` for the framing `length: u64
//! LE, masked crc32c of it: u32 LE, data, masked crc32c of the data: u32 LE`.

/// A message being encoded.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn key(&mut self, field: u32, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    /// Adds an integer or enum that is not negative.
    pub(crate) fn whole(&mut self, field: u32, n: u64) {
        self.key(field, 0);
        self.varint(n);
    }

    pub(crate) fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn float(&mut self, field: u32, value: f32) {
        self.key(field, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, field: u32, text: &str) {
        self.key(field, 2);
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Adds a nested message.
    pub(crate) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.key(field, 2);
        self.varint(inner.0.len() as u64);
        self.0.extend_from_slice(&inner.0);
    }
}

/// Appends `data` as one record.
pub(crate) fn record(out: &mut Vec<u8>, data: &[u8]) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&masked_crc(data).to_le_bytes());
}

/// Returns the stored form of the checksum: rotated and shifted, so that data that contains checksums does
/// not look like its own checksum.
pub(crate) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_the_specification_shows_them() {
        // The examples of protobuf's "Encoding" page: 150 as field 1, "testing" as field 2, a message as
        // field 3.
        let mut message = Message::default();
        message.whole(1, 150);
        message.text(2, "testing");
        message.message(3, |inner| inner.whole(1, 150));
        let expected = b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01";
        assert_eq!(message.bytes(), expected);
    }

    #[test]
    fn a_record_is_framed_as_tensorflow_frames_it() {
        // The bytes that TensorBoard's own RecordWriter writes for Event{wall_time: 1, file_version:
        // "brain.Event:2"}.
        let mut event = Message::default();
        event.double(1, 1.0);
        event.text(3, "brain.Event:2");
        let mut out = Vec::new();
        record(&mut out, event.bytes());
        let theirs = b"\x18\0\0\0\0\0\0\0\xa3\x7fK\"\t\0\0\0\0\0\0\xf0?\x1a\rbrain.Event:2\x86\xbfWz";
        assert_eq!(out, theirs);
    }
}
