//! Encodes and decodes typed packets of version 2: tensors, a part in each packet, and bytes of any other
//! kind. No file is opened here.
//!
//! All numbers are little-endian, all checksums CRC-32C. A packet starts at a multiple of 64 bytes of its
//! file and is padded with zeros to such a multiple, as those of a token file. Every byte is covered by
//! exactly one checksum, and there is one encoding of each packet: bytes that have no meaning must be zero.
//!
//! ```text
//!   0  4  magic "QTPK"
//!   4  1  SRC        5  1  DST        6  1  TYP
//!   7  1  dtype of the tensor; 0 = the payload is no tensor
//!   8  8  number: 0, 1, 2, … in the order of the file
//!  16  8  payload_len, at most 16 MiB
//!  24  4  part of the tensor, from 0
//!  28  4  of: the number of its parts, at least 1
//!  32  8  state: the start of a hash of all tensors that were written together; 0 = unknown
//!  40  4  tensors: their number; 0 = unknown
//!  44  2  name_len, at most 1,024
//!  46  1  rank, at most 8
//!  47  9  zero
//!  56  4  body_crc: over the bytes from 64 to the end
//!  60  4  crc of the 60 bytes before it
//!  64 8r  shape of the whole tensor, u64
//!   …  …  name in UTF-8, zeros to a multiple of 64
//!   …  …  payload, zeros to a multiple of 64
//! ```
//!
//! A packet is self-contained: it can be sent and checked without the file, and it says which tensor it is a
//! part of, and of which state. v1 cannot hold a LoRA factor: its length has 16 bits, and it has no names.

use sparktune_base::escape::escape;
use sparktune_base::units::{bytes as size, count};

use super::codes::{BFLOAT16, FLOAT16, Route, TOKEN_IDS};
use super::dtype::Dtype;
use super::error::PacketError;

/// The first bytes of a typed packet.
pub const MAGIC: [u8; 4] = *b"QTPK";
/// The bytes of its header, after which its length is known.
pub const HEADER: usize = 64;
/// The most bytes of payload in a packet, which bounds the memory of a receiver.
pub const MAX_PAYLOAD: u64 = 16 << 20;
/// The most bytes of a tensor's name.
pub const MAX_NAME: usize = 1024;
/// The most dimensions of a tensor.
pub const MAX_RANK: usize = 8;
pub(super) const ALIGN: usize = 64;

/// The header of a typed packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedHeader {
    /// Where it comes from and what it is meant for.
    pub route: Route,
    /// TYP: how the payload is encoded.
    pub typ: u8,
    /// The place in its file, from 0.
    pub number: u64,
    /// The tensor that the payload is a part of, if it is one.
    pub tensor: Option<TensorPart>,
}

/// What a packet says of its tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPart {
    /// The name. Anyone may have written it: escape it before it is shown.
    pub name: String,
    /// The encoding of the numbers.
    pub dtype: Dtype,
    /// The shape of the whole tensor.
    pub shape: Vec<u64>,
    /// The place of this part, from 0.
    pub part: u32,
    /// The number of parts.
    pub of: u32,
    /// The tensors that were written together.
    pub state: StateId,
}

/// Identifies tensors that belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId {
    /// The first eight bytes of a hash of all of them; 0 if it is unknown.
    pub hash: u64,
    /// Their number; 0 if it is unknown.
    pub tensors: u32,
}

/// A packet, borrowed from its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedPacket<'a> {
    /// The header.
    pub header: TypedHeader,
    /// The payload.
    pub payload: &'a [u8],
}

/// Why bytes are no packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PacketFault {
    /// There are fewer bytes than the packet has. With `needs` bytes, more is known.
    Short {
        /// The number of bytes from the start of the packet.
        needs: usize,
    },
    /// They do not begin like a typed packet.
    Magic,
    /// The header does not match its checksum.
    HeaderChecksum,
    /// Shape, name, payload or padding do not match their checksum. The length of the packet is right.
    BodyChecksum {
        /// The length of the packet.
        len: usize,
    },
    /// The checksums are right, but the content is not.
    Content {
        /// What is wrong.
        what: String,
    },
}

impl std::fmt::Display for PacketFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short { needs } => {
                write!(f, "the packet is truncated: it needs {} bytes", count(*needs as u64))
            }
            Self::Magic => f.write_str("no typed packet begins here"),
            Self::HeaderChecksum => f.write_str("the packet's header does not match its checksum"),
            Self::BodyChecksum { .. } => {
                f.write_str("shape, name, payload or padding of the packet do not match their checksum")
            }
            Self::Content { what } => f.write_str(what),
        }
    }
}

/// The numbers of a header whose checksum is right.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    payload_len: u64,
    name_len: usize,
    rank: usize,
}

impl Numbers {
    /// Reads the numbers that determine the length.
    fn read(header: &[u8]) -> Result<Self, PacketFault> {
        let numbers = Self {
            payload_len: u64_at(header, 16),
            name_len: usize::from(u16::from_le_bytes([header[44], header[45]])),
            rank: usize::from(header[46]),
        };
        if numbers.payload_len > MAX_PAYLOAD {
            return Err(content(format!(
                "the packet states {} of payload, of which it may have {}",
                size(numbers.payload_len),
                size(MAX_PAYLOAD)
            )));
        }
        if numbers.name_len > MAX_NAME || numbers.rank > MAX_RANK {
            return Err(content(format!(
                "the packet states a name of {} bytes and {} dimensions; at most {MAX_NAME} and {MAX_RANK} are allowed",
                numbers.name_len, numbers.rank
            )));
        }
        Ok(numbers)
    }

    fn payload_start(self) -> usize {
        HEADER + (8 * self.rank + self.name_len).next_multiple_of(ALIGN)
    }

    fn len(self) -> usize {
        self.payload_start() + (self.payload_len as usize).next_multiple_of(ALIGN)
    }
}

fn content(what: String) -> PacketFault {
    PacketFault::Content { what }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns the length of the packet that these bytes begin, from its header alone. A reader of a stream asks
/// this after the first [`HEADER`] bytes.
///
/// # Errors
/// The bytes are too few, or are no intact header.
pub fn packet_len(bytes: &[u8]) -> Result<usize, PacketFault> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(PacketFault::Magic);
    }
    let Some(header) = bytes.get(..HEADER) else { return Err(PacketFault::Short { needs: HEADER }) };
    if crc32c::crc32c(&header[..60]) != u32_at(header, 60) {
        return Err(PacketFault::HeaderChecksum);
    }
    Numbers::read(header).map(Numbers::len)
}

/// Returns the length that a header states, whatever its checksum says.
///
/// Panics if there are fewer bytes than a header has.
pub(super) fn stated_len(bytes: &[u8]) -> usize {
    let (name_len, rank) = (usize::from(u16::from_le_bytes([bytes[44], bytes[45]])), usize::from(bytes[46]));
    let start = HEADER + (8 * rank + name_len).next_multiple_of(ALIGN);
    let payload = usize::try_from(u64_at(bytes, 16)).unwrap_or(usize::MAX);
    payload.checked_next_multiple_of(ALIGN).and_then(|len| len.checked_add(start)).unwrap_or(usize::MAX)
}

/// Returns the payload of a packet that was checked before.
pub(super) fn payload_of(packet: &[u8]) -> &[u8] {
    let numbers = Numbers::read(packet).expect("the packet was checked");
    &packet[numbers.payload_start()..][..numbers.payload_len as usize]
}

impl<'a> TypedPacket<'a> {
    /// Decodes and checks the packet at the start of `bytes`. Also returns its length.
    ///
    /// # Errors
    /// See [`PacketFault`].
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, usize), PacketFault> {
        let len = packet_len(bytes)?;
        let Some(packet) = bytes.get(..len) else { return Err(PacketFault::Short { needs: len }) };
        let numbers = Numbers::read(packet)?;
        if crc32c::crc32c(&packet[HEADER..]) != u32_at(packet, 56) {
            return Err(PacketFault::BodyChecksum { len });
        }
        let (start, payload_len) = (numbers.payload_start(), numbers.payload_len as usize);
        let described = HEADER + 8 * numbers.rank + numbers.name_len;
        let gaps = [&packet[47..56], &packet[described..start], &packet[start + payload_len..]];
        if gaps.into_iter().flatten().any(|byte| *byte != 0) {
            return Err(content("bytes of the packet that should be zero are not".into()));
        }
        let header = TypedHeader {
            route: Route { src: packet[4], dst: packet[5] },
            typ: packet[6],
            number: u64_at(packet, 8),
            tensor: tensor_of(packet, numbers)?,
        };
        header.check(numbers.payload_len).map_err(content)?;
        Ok((Self { header, payload: &packet[start..start + payload_len] }, len))
    }
}

/// Reads the description of the tensor, if there is one.
fn tensor_of(packet: &[u8], numbers: Numbers) -> Result<Option<TensorPart>, PacketFault> {
    let code = packet[7];
    if code == 0 {
        let is_empty = packet[24..28].iter().chain(&packet[32..47]).all(|byte| *byte == 0);
        let is_one = u32_at(packet, 28) == 1;
        return if is_empty && is_one {
            Ok(None)
        } else {
            Err(content("the packet describes a tensor but has no dtype".into()))
        };
    }
    let dtype = Dtype::of_code(code)
        .ok_or_else(|| content(format!("the packet has a dtype ({code}) that is unknown")))?;
    let shape_end = HEADER + 8 * numbers.rank;
    let name = std::str::from_utf8(&packet[shape_end..shape_end + numbers.name_len])
        .map_err(|_| content("the name of the packet's tensor is not UTF-8".into()))?;
    Ok(Some(TensorPart {
        name: name.to_owned(),
        dtype,
        shape: packet[HEADER..shape_end].chunks_exact(8).map(|size| u64_at(size, 0)).collect(),
        part: u32_at(packet, 24),
        of: u32_at(packet, 28),
        state: StateId { hash: u64_at(packet, 32), tensors: u32_at(packet, 40) },
    }))
}

impl TypedHeader {
    /// Returns what is wrong with a packet of `payload_len` bytes, in a sentence without its end.
    fn check(&self, payload_len: u64) -> Result<(), String> {
        let Some(tensor) = &self.tensor else {
            let is_numbers = [FLOAT16, BFLOAT16].contains(&self.typ) && !payload_len.is_multiple_of(2);
            let is_ids = self.typ == TOKEN_IDS && !payload_len.is_multiple_of(4);
            return if is_numbers || is_ids {
                Err(format!("{} bytes of payload are not a whole number of values", count(payload_len)))
            } else {
                Ok(())
            };
        };
        let TensorPart { name, dtype, shape, part, of, .. } = tensor;
        let shown = escape(name);
        if name.is_empty() {
            return Err("the tensor has no name".into());
        }
        if self.typ == TOKEN_IDS || [FLOAT16, BFLOAT16].contains(&self.typ) && self.typ != dtype.typ() {
            return Err(format!("TYP {} does not fit the dtype {} of {shown}", self.typ, dtype.name()));
        }
        let Some(total) = dtype.bytes_of(shape) else {
            return Err(format!("the shape {shape:?} of {shown} is too large"));
        };
        if part >= of || u64::from(*of) > total.max(1) {
            return Err(format!(
                "part {} of {} of {shown} cannot be",
                u64::from(*part) + 1,
                count((*of).into())
            ));
        }
        if payload_len > total || *of == 1 && payload_len != total {
            return Err(format!(
                "{shown} of shape {shape:?} has {} bytes, but this part has {}",
                count(total),
                count(payload_len)
            ));
        }
        Ok(())
    }

    /// Appends a packet with this header to `out`, which must begin at a multiple of 64 bytes of the file.
    ///
    /// # Errors
    /// The payload is too large, or the header contradicts itself or the payload.
    pub fn encode(&self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), PacketError> {
        const FIX: &str = "Cut it into smaller parts, or send it in another way";
        let (name, shape) = match &self.tensor {
            Some(tensor) => (tensor.name.as_str(), tensor.shape.as_slice()),
            None => ("", [].as_slice()),
        };
        let (bytes, rank) = (payload.len() as u64, shape.len());
        if bytes > MAX_PAYLOAD {
            let (has, most) = (size(bytes), size(MAX_PAYLOAD));
            return Err(PacketError::unfit(format!("the payload has {has}; a packet holds {most}"), FIX));
        }
        if name.len() > MAX_NAME || rank > MAX_RANK {
            let what = format!(
                "a tensor with a name of {} bytes and {rank} dimensions does not fit a packet, which holds {MAX_NAME} and {MAX_RANK}",
                name.len()
            );
            return Err(PacketError::unfit(what, "Give it a shorter name and fewer dimensions"));
        }
        self.check(bytes).map_err(|what| PacketError::unfit(what, "Correct the fields of the packet"))?;
        let start = out.len();
        let numbers = Numbers { payload_len: bytes, name_len: name.len(), rank };
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&MAGIC);
        (header[4], header[5], header[6]) = (self.route.src, self.route.dst, self.typ);
        header[8..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..24].copy_from_slice(&bytes.to_le_bytes());
        header[28..32].copy_from_slice(&1u32.to_le_bytes());
        if let Some(tensor) = &self.tensor {
            header[7] = tensor.dtype.code();
            header[24..28].copy_from_slice(&tensor.part.to_le_bytes());
            header[28..32].copy_from_slice(&tensor.of.to_le_bytes());
            header[32..40].copy_from_slice(&tensor.state.hash.to_le_bytes());
            header[40..44].copy_from_slice(&tensor.state.tensors.to_le_bytes());
        }
        header[44..46].copy_from_slice(&(name.len() as u16).to_le_bytes());
        header[46] = rank as u8;
        out.reserve(numbers.len());
        out.extend_from_slice(&header);
        shape.iter().for_each(|size| out.extend_from_slice(&size.to_le_bytes()));
        out.extend_from_slice(name.as_bytes());
        out.resize(start + numbers.payload_start(), 0);
        out.extend_from_slice(payload);
        out.resize(start + numbers.len(), 0);
        let body = crc32c::crc32c(&out[start + HEADER..]);
        out[start + 56..start + 60].copy_from_slice(&body.to_le_bytes());
        let crc = crc32c::crc32c(&out[start..start + 60]);
        out[start + 60..start + 64].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }
}
