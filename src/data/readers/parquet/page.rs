//! The pages of a column: their headers, and their bytes without compression.
//!
//! Enters: a file and a place in it. Leaves: one page, whose checksum is right if it has one. Memory is
//! bounded by what the file contains, by [`MAX_PAGE`] and by the budget of all columns: a page that claims to
//! be larger than its bytes can be is damaged.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::budget::{Budget, Held};
use super::damage::Damage;
use super::schema::ColumnChunk;
use super::thrift::Thrift;

/// The largest page, with and without compression.
const MAX_PAGE: usize = 256 << 20;
/// The sizes that are tried for the header of a page, which may contain the smallest and the largest value.
const HEADER_BYTES: [usize; 3] = [1 << 10, 1 << 16, 1 << 22];

/// What a page contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageKind {
    Dictionary,
    /// Levels and values, all of them compressed together.
    Data,
    /// Levels of these lengths, without compression, and values.
    DataV2 {
        repetition: usize,
        definition: usize,
    },
    /// Anything else, which is not needed.
    Other,
}

/// A page without compression.
pub(super) struct Page {
    pub kind: PageKind,
    pub encoding: i32,
    /// The number of entries.
    pub entries: u64,
    pub bytes: Vec<u8>,
    pub held: Held,
}

struct Header {
    kind: PageKind,
    encoding: i32,
    entries: u64,
    size: usize,
    compressed_size: usize,
    is_compressed: bool,
    checksum: Option<i32>,
    /// The length of the header itself.
    length: usize,
}

/// Reads the page at `*at` and moves on to the next one. Returns `None` at the end of the column.
pub(super) fn next_page(
    file: &File,
    budget: &Budget,
    at: &mut u64,
    chunk: &ColumnChunk,
    name: &str,
) -> Result<Option<Page>, Damage> {
    if *at >= chunk.end {
        return Ok(None);
    }
    let header = header(file, *at, chunk.end).ok_or_else(|| Damage::Page(name.to_owned()))?;
    let start = *at + header.length as u64;
    let end = start + header.compressed_size as u64;
    if end > chunk.end {
        return Err(Damage::Short);
    }
    *at = end;
    if header.size > MAX_PAGE || header.compressed_size > MAX_PAGE {
        return Err(Damage::TooLarge(name.to_owned()));
    }
    let held = budget.take(header.size).ok_or(Damage::Memory)?;
    let mut bytes = vec![0; header.compressed_size];
    file.read_exact_at(&mut bytes, start).map_err(|_| Damage::Short)?;
    if header.checksum.is_some_and(|checksum| checksum as u32 != crc32fast::hash(&bytes)) {
        return Err(Damage::Checksum(name.to_owned()));
    }
    let codec = if header.is_compressed { chunk.codec } else { 0 };
    let levels = match header.kind {
        PageKind::DataV2 { repetition, definition } => repetition.saturating_add(definition),
        _ => 0,
    };
    let damaged = || Damage::Page(name.to_owned());
    if levels > bytes.len() || levels > header.size {
        return Err(damaged());
    }
    let decompressed = match codec {
        0 => (bytes.len() == header.size).then_some(bytes),
        _ => {
            let mut plain = bytes[..levels].to_vec();
            let values = decompress(codec, &bytes[levels..], header.size - levels)?;
            values.map(|values| {
                plain.extend_from_slice(&values);
                plain
            })
        }
    };
    let bytes = decompressed.ok_or_else(damaged)?;
    let Header { kind, encoding, entries, .. } = header;
    Ok(Some(Page { kind, encoding, entries, bytes, held }))
}

fn header(file: &File, at: u64, end: u64) -> Option<Header> {
    let available = usize::try_from(end - at).unwrap_or(usize::MAX);
    HEADER_BYTES.iter().find_map(|length| {
        let mut bytes = vec![0; available.min(*length)];
        file.read_exact_at(&mut bytes, at).ok()?;
        parse_header(&bytes).ok()
    })
}

fn parse_header(bytes: &[u8]) -> Result<Header, Damage> {
    let mut header = Header {
        kind: PageKind::Other,
        encoding: -1,
        entries: 0,
        size: 0,
        compressed_size: 0,
        is_compressed: true,
        checksum: None,
        length: 0,
    };
    let mut thrift = Thrift::new(bytes);
    let mut page_type = -1;
    thrift.read_struct(|thrift, field| {
        match field.id {
            1 => page_type = thrift.integer(field)?,
            2 => header.size = thrift.integer(field)?,
            3 => header.compressed_size = thrift.integer(field)?,
            4 => header.checksum = Some(thrift.integer(field)?),
            5 | 7 => {
                Thrift::is_struct(field)?;
                header.kind = if field.id == 5 { PageKind::Data } else { PageKind::Dictionary };
                thrift.read_struct(|thrift, field| {
                    match field.id {
                        1 => header.entries = thrift.integer(field)?,
                        2 => header.encoding = thrift.integer(field)?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
            }
            8 => {
                Thrift::is_struct(field)?;
                let (mut repetition, mut definition) = (0, 0);
                thrift.read_struct(|thrift, field| {
                    match field.id {
                        1 => header.entries = thrift.integer(field)?,
                        4 => header.encoding = thrift.integer(field)?,
                        5 => definition = thrift.integer(field)?,
                        6 => repetition = thrift.integer(field)?,
                        7 => header.is_compressed = thrift.boolean(field)?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                header.kind = PageKind::DataV2 { repetition, definition };
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let is_of_its_type = matches!(
        (page_type, header.kind),
        (0, PageKind::Data) | (2, PageKind::Dictionary) | (3, PageKind::DataV2 { .. }) | (1, PageKind::Other)
    );
    header.length = bytes.len() - thrift.left();
    if is_of_its_type { Ok(header) } else { Err(Damage::Metadata) }
}

/// Returns the bytes without compression, or `None` if they are damaged or of another size.
fn decompress(codec: i32, bytes: &[u8], size: usize) -> Result<Option<Vec<u8>>, Damage> {
    let unsupported = |name| Err(Damage::Codec(name));
    if size == 0 {
        // A page of nothing but nulls may have no compressed bytes either.
        return Ok(Some(Vec::new()));
    }
    match codec {
        // Snappy says the size itself, and cannot make more than 64 bytes of three.
        1 => {
            let is_possible = snap::raw::decompress_len(bytes).is_ok_and(|said| said == size)
                && size <= bytes.len().saturating_mul(32);
            Ok(is_possible.then(|| snap::raw::Decoder::new().decompress_vec(bytes).ok()).flatten())
        }
        2 => Ok(read_exactly(flate2::read::MultiGzDecoder::new(bytes), size)),
        6 => Ok(zstd::stream::read::Decoder::with_buffer(bytes)
            .ok()
            .and_then(|reader| read_exactly(reader, size))),
        // LZ4 makes at most 255 bytes of one.
        7 => {
            let is_possible = size <= bytes.len().saturating_mul(255);
            let plain = is_possible.then(|| lz4_flex::block::decompress(bytes, size).ok()).flatten();
            Ok(plain.filter(|plain| plain.len() == size))
        }
        3 => unsupported("LZO"),
        4 => unsupported("Brotli"),
        5 => unsupported("LZ4 as Hadoop frames it"),
        _ => unsupported("an unknown method"),
    }
}

/// Reads a stream of this size. Memory grows only with what is there.
fn read_exactly(reader: impl Read, size: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let read: io::Result<usize> = reader.take(size as u64 + 1).read_to_end(&mut bytes);
    (read.ok()? == size).then_some(bytes)
}
