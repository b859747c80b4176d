//! The second layer: where a packet begins and ends.
//!
//! ```text
//!  0  4  magic "NDPF"
//!  4  3  SRC, DST, TYP
//!  7  1  zero
//!  8  8  number: 0, 1, 2, … in each direction of a connection
//! 16  4  bytes of payload
//! 20  4  CRC-32C of the 20 bytes before it and of the payload
//! 24  …  payload
//! ```
//!
//! All numbers are little-endian. Contract: a frame is returned only if it is whole, undamaged and the
//! next one; memory grows with the bytes that arrive and never with a length that is only claimed. A frame
//! is the same over any stream of bytes. What is in it, what its codes mean, and who sent it, is not known
//! here.

use std::io::{self, Read};

/// The bytes before the payload.
pub const HEAD: usize = 24;
/// The first bytes of every frame.
const MAGIC: [u8; 4] = *b"NDPF";
const CRC: usize = 20;

/// What a packet says of its way, which the routing layer interprets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Codes {
    /// SRC, the source.
    pub src: u8,
    /// DST, the destination.
    pub dst: u8,
    /// TYP, the encoding of the payload.
    pub typ: u8,
}

/// The codes of a message of the channel itself, at the end of the range of TYP, where nothing is published.
pub const CONTROL: Codes = Codes { src: 0, dst: 0, typ: 0xF0 };

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The codes of the payload.
    pub codes: Codes,
    /// Its number in this direction.
    pub number: u64,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The reason why a frame is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// It does not begin like one.
    #[error("what arrived is not a frame")]
    NoFrame,
    /// It has another place.
    #[error("frame {found} arrived where frame {expected} was due")]
    OutOfOrder {
        /// The number that was due.
        expected: u64,
        /// The number that it has.
        found: u64,
    },
    /// It is larger than what is taken here.
    #[error("frame {number} claims {claimed} bytes, of which {most} are taken")]
    TooLong {
        /// Its number.
        number: u64,
        /// The bytes that it claims.
        claimed: usize,
        /// The bytes that are taken.
        most: usize,
    },
    /// Its bytes differ from what was sent.
    #[error("frame {0} does not match its checksum")]
    Damaged(u64),
}

impl From<FrameFault> for io::Error {
    fn from(fault: FrameFault) -> Self {
        Self::new(io::ErrorKind::InvalidData, fault)
    }
}

/// Appends a frame to `out`.
///
/// # Panics
/// The payload has 4 GiB or more.
pub fn encode(codes: Codes, number: u64, payload: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[codes.src, codes.dst, codes.typ, 0]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).expect("payloads are small").to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out[start..]), payload);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Reads frame `number`, with at most `most` bytes of payload.
///
/// # Errors
/// A [`FrameFault`], `UnexpectedEof` if the stream ends, or what the stream fails with.
pub fn read(input: &mut impl Read, number: u64, most: usize) -> io::Result<Frame> {
    let mut head = [0; HEAD];
    input.read_exact(&mut head)?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let found = u64::from_le_bytes(head[8..16].try_into().expect("eight bytes"));
    if head[..4] != MAGIC || head[7] != 0 {
        return Err(FrameFault::NoFrame.into());
    }
    if found != number {
        return Err(FrameFault::OutOfOrder { expected: number, found }.into());
    }
    let claimed = word(16) as usize;
    if claimed > most {
        return Err(FrameFault::TooLong { number, claimed, most }.into());
    }
    let mut payload = Vec::with_capacity(claimed.min(64 << 10));
    input.take(claimed as u64).read_to_end(&mut payload)?;
    if payload.len() < claimed {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if crc32c::crc32c_append(crc32c::crc32c(&head[..CRC]), &payload) != word(CRC) {
        return Err(FrameFault::Damaged(number).into());
    }
    Ok(Frame { codes: Codes { src: head[4], dst: head[5], typ: head[6] }, number, payload })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CODES: Codes = Codes { src: 1, dst: 2, typ: 3 };

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(CODES, 7, payload, &mut bytes);
        bytes
    }

    fn fault(bytes: &[u8], number: u64, most: usize) -> FrameFault {
        *read(&mut &*bytes, number, most).unwrap_err().into_inner().unwrap().downcast().unwrap()
    }

    #[test]
    fn a_frame_is_refused_out_of_order_or_too_long() {
        let bytes = framed(b"abc");
        assert_eq!(fault(&bytes, 8, 99), FrameFault::OutOfOrder { expected: 8, found: 7 });
        assert_eq!(fault(&bytes, 7, 2), FrameFault::TooLong { number: 7, claimed: 3, most: 2 });
        assert_eq!(fault(&[0; HEAD], 0, 0), FrameFault::NoFrame);
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let mut bytes = framed(b"abc");
        bytes[16..20].copy_from_slice(&(1_u32 << 31).to_le_bytes());
        let error = read(&mut bytes.as_slice(), 7, usize::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written(payload: Vec<u8>, codes: [u8; 3], number: u64) {
            let [src, dst, typ] = codes;
            let codes = Codes { src, dst, typ };
            let mut bytes = vec![];
            encode(codes, number, &payload, &mut bytes);
            prop_assert_eq!(bytes.len(), HEAD + payload.len());
            prop_assert_eq!(
                read(&mut bytes.as_slice(), number, payload.len()).unwrap(),
                Frame { codes, number, payload }
            );
        }

        #[test]
        fn every_flipped_bit_and_every_cut_is_found(payload: Vec<u8>, at: prop::sample::Index, bit in 0..8_u32) {
            let bytes = framed(&payload);
            let at = at.index(bytes.len());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1_u8 << bit;
            prop_assert!(read(&mut flipped.as_slice(), 7, usize::MAX).is_err());
            prop_assert!(read(&mut &bytes[..at], 7, usize::MAX).is_err());
        }
    }
}
