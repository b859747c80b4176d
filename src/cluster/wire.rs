//! What the payloads of frames between ranks are. Pure, because bytes of others are read here.
//!
//! A message is cut into parts, each the payload of one frame of `sparktune_ndp::frame`, which adds order,
//! length and a CRC-32C. A part is
//!
//! ```text
//!  0  8  operation: 0, 1, 2, … counted by each rank; of a swarm, in each epoch, whose number is in the
//!        upper 24 bits
//!  8  8  bytes of the whole message
//! 16  8  where this part begins in it
//! 24  …  its bytes
//! ```
//!
//! with all numbers little-endian. The frame's code TYP says what kind of message it is. An empty message is
//! one empty part.

use sparktune_ndp::frame::Codes;

/// The bytes before those of the part.
pub const HEAD: usize = 24;
/// The most bytes of a message in one part.
pub const MOST: usize = 1 << 20;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Numbers of one rank, for the rank that adds them.
    Contribution,
    /// The sums, from the rank that added them.
    Sum,
    /// Bytes of one rank, for all.
    Word,
    /// What one rank says to another about who belongs to the swarm.
    Notice,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Contribution, Self::Sum, Self::Word, Self::Notice];

    /// Returns the codes of frames of this kind.
    pub fn codes(self) -> Codes {
        let typ = match self {
            Self::Contribution => 1,
            Self::Sum => 2,
            Self::Word => 3,
            Self::Notice => 4,
        };
        Codes { src: 0, dst: 0, typ }
    }

    /// Returns the kind that these codes mean.
    pub fn of(codes: Codes) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.codes() == codes)
    }
}

/// The reason why a part is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it is")]
pub enum WireFault {
    #[error("a part of a message has {0} bytes, which is less than its head")]
    Short(usize),
    #[error("a part of another kind of message came")]
    OtherKind,
    #[error("operation {found} came where operation {expected} was due")]
    OtherOperation { expected: u64, found: u64 },
    #[error("a message of {found} bytes came where at most {most} were due")]
    TooLong { found: u64, most: u64 },
    #[error("the parts of a message do not fit together")]
    Unfit,
}

/// A part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The number of the operation.
    pub operation: u64,
    /// Bytes of the whole message.
    pub total: u64,
    /// Where this part begins in it.
    pub offset: u64,
    /// The bytes of the part.
    pub bytes: &'a [u8],
}

impl<'a> Part<'a> {
    /// Reads the payload of a frame.
    ///
    /// # Errors
    /// It is too short.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireFault> {
        let Some((head, bytes)) = payload.split_at_checked(HEAD) else {
            return Err(WireFault::Short(payload.len()));
        };
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        Ok(Self { operation: number(0), total: number(8), offset: number(16), bytes })
    }

    /// Writes the payload of a frame into an emptied buffer.
    pub fn write(&self, payload: &mut Vec<u8>) {
        payload.clear();
        for number in [self.operation, self.total, self.offset] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        payload.extend_from_slice(self.bytes);
    }

    /// Cuts a message into parts.
    pub fn of(operation: u64, message: &'a [u8]) -> impl Iterator<Item = Self> {
        let total = message.len() as u64;
        let count = message.len().div_ceil(MOST).max(1);
        (0..count).map(move |part| {
            let from = part * MOST;
            let bytes = &message[from..message.len().min(from + MOST)];
            Self { operation, total, offset: from as u64, bytes }
        })
    }
}

/// A message whose parts arrive. Its memory grows with the bytes that arrive.
#[derive(Debug)]
pub struct Assembly {
    kind: Kind,
    operation: u64,
    most: u64,
    total: Option<u64>,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Expects a message of this kind and operation, with at most this many bytes.
    pub fn new(kind: Kind, operation: u64, most: u64) -> Self {
        Self { kind, operation, most, total: None, bytes: Vec::new() }
    }

    /// Adds the next part. Returns whether the message is complete.
    ///
    /// # Errors
    /// The part does not belong to the message.
    pub fn add(&mut self, kind: Option<Kind>, part: Part) -> Result<bool, WireFault> {
        if kind != Some(self.kind) {
            return Err(WireFault::OtherKind);
        }
        if part.operation != self.operation {
            return Err(WireFault::OtherOperation { expected: self.operation, found: part.operation });
        }
        if part.total > self.most {
            return Err(WireFault::TooLong { found: part.total, most: self.most });
        }
        let total = *self.total.get_or_insert(part.total);
        let end = (self.bytes.len() + part.bytes.len()) as u64;
        let is_idle = part.bytes.is_empty() && total > 0;
        if part.total != total || part.offset != self.bytes.len() as u64 || end > total || is_idle {
            return Err(WireFault::Unfit);
        }
        self.bytes.extend_from_slice(part.bytes);
        Ok(end == total)
    }

    /// Returns the bytes that have arrived.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assembled(message: &[u8], most: u64) -> Result<Vec<u8>, WireFault> {
        let mut assembly = Assembly::new(Kind::Sum, 7, most);
        let mut payload = Vec::new();
        let (mut parts, mut is_whole) = (0, false);
        for part in Part::of(7, message) {
            assert!(!is_whole, "a part after the last one");
            part.write(&mut payload);
            is_whole = assembly.add(Kind::of(Kind::Sum.codes()), Part::parse(&payload)?)?;
            parts += 1;
        }
        assert!(is_whole && parts == message.len().div_ceil(MOST).max(1));
        Ok(assembly.into_bytes())
    }

    #[test]
    fn messages_of_any_length_arrive_as_they_were() {
        for length in [0, 1, MOST - 1, MOST, MOST + 1, 3 * MOST + 5] {
            let message: Vec<u8> = (0..length).map(|i| (i * 7 + i / 251) as u8).collect();
            assert!(assembled(&message, length as u64) == Ok(message), "{length}");
        }
        assert_eq!(assembled(&[1, 2, 3], 2), Err(WireFault::TooLong { found: 3, most: 2 }));
    }

    #[test]
    fn parts_of_something_else_are_refused() {
        let part = Part { operation: 7, total: 4, offset: 0, bytes: &[1, 2] };
        let add = |kind, parts: &[Part]| {
            let mut assembly = Assembly::new(Kind::Word, 7, 10);
            parts.iter().map(|part| assembly.add(kind, *part)).collect::<Result<Vec<_>, _>>()
        };
        let word = Some(Kind::Word);
        assert_eq!(add(word, &[part, Part { offset: 2, ..part }]), Ok(vec![false, true]));
        assert_eq!(add(Some(Kind::Sum), &[part]), Err(WireFault::OtherKind));
        assert_eq!(add(None, &[part]), Err(WireFault::OtherKind));
        let late = Part { operation: 8, ..part };
        assert_eq!(add(word, &[late]), Err(WireFault::OtherOperation { expected: 7, found: 8 }));
        for unfit in [
            Part { offset: 1, ..part },
            Part { total: 5, offset: 2, ..part },
            Part { offset: 2, bytes: &[1, 2, 3], ..part },
            Part { offset: 2, bytes: &[], ..part },
        ] {
            assert_eq!(add(word, &[part, unfit]), Err(WireFault::Unfit), "{unfit:?}");
        }
        assert_eq!(Part::parse(&[0; HEAD - 1]), Err(WireFault::Short(HEAD - 1)));
    }

    proptest! {
        #[test]
        fn any_payload_is_a_part_that_writes_the_same_bytes_or_is_too_short(payload: Vec<u8>) {
            match Part::parse(&payload) {
                Ok(part) => {
                    let mut written = vec![1];
                    part.write(&mut written);
                    prop_assert_eq!(written, payload);
                }
                Err(fault) => prop_assert_eq!(fault, WireFault::Short(payload.len())),
            }
        }
    }
}
