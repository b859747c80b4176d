//! The values of a page in each encoding.
//!
//! Enters: the bytes of a page behind its levels, and the dictionary of the column. Leaves: one value after
//! another, as the bytes that the plain encoding has for it. Memory is that of the page, and of one value.

use super::budget::Held;
use super::damage::Damage;
use super::delta::Deltas;
use super::levels::Levels;
use super::page::Page;
use super::schema::Physical;

/// Where the values of a page are read.
pub(super) enum Values {
    /// One after another from this place on, in bits for booleans.
    Plain(usize),
    /// As indices into the dictionary.
    Indices(Levels),
    /// Booleans in runs.
    Booleans(Levels),
    /// Whole numbers as differences.
    Numbers(Deltas),
    /// Bytes from this place on, after their lengths.
    Lengths(Deltas, usize),
    /// Bytes that begin like the value before them, from this place on.
    Prefixed { prefixes: Deltas, lengths: Deltas, at: usize, value: Vec<u8> },
    /// First the first bytes of all values, then their second bytes, ….
    Split { start: usize, values: usize, next: usize },
}

/// The values that a column refers to by their index.
pub(super) struct Dictionary {
    bytes: Vec<u8>,
    /// The place of each value in `bytes`.
    places: Vec<(u32, u32)>,
    _held: (Held, Held),
}

impl Values {
    /// Begins to read the values of a page from `at` on.
    ///
    /// # Errors
    /// The encoding is unknown or not made for such values, or the page of the column `name` is damaged.
    pub(super) fn new(
        encoding: i32,
        physical: Physical,
        page: &[u8],
        at: usize,
        name: &str,
    ) -> Result<Self, Damage> {
        let is_bytes = matches!(physical, Physical::Bytes | Physical::Fixed(_));
        let values = match (encoding, physical) {
            (0, Physical::Boolean) => at.checked_mul(8).map(Self::Plain),
            (0, _) => Some(Self::Plain(at)),
            // A page of nothing but nulls may lack the number of bits.
            (2 | 8, _) => match page.get(at) {
                Some(bits) if *bits > 32 => None,
                bits => {
                    let bits = bits.map_or(0, |bits| (*bits).into());
                    Some(Self::Indices(Levels::new(bits, at + 1, page.len())))
                }
            },
            // Runs of booleans have their length before them.
            (3, Physical::Boolean) => Some(Self::Booleans(Levels::new(1, at + 4, page.len()))),
            (5, Physical::Int32 | Physical::Int64) => Deltas::new(page, at).map(Self::Numbers),
            (6, Physical::Bytes) => {
                let lengths = Deltas::new(page, at);
                lengths.and_then(|lengths| Some(Self::Lengths(lengths.clone(), lengths.end(page)?)))
            }
            (7, _) if is_bytes => Self::prefixed(page, at),
            (9, _) if width(physical).is_some_and(|width| width > 0) => {
                let values = (page.len() - at) / width(physical).unwrap_or(1);
                Some(Self::Split { start: at, values, next: 0 })
            }
            _ => return Err(unknown_encoding(encoding, name)),
        };
        values.ok_or_else(|| Damage::Page(name.to_owned()))
    }

    fn prefixed(page: &[u8], at: usize) -> Option<Self> {
        let prefixes = Deltas::new(page, at)?;
        let lengths = Deltas::new(page, prefixes.end(page)?)?;
        let at = lengths.end(page)?;
        Some(Self::Prefixed { prefixes, lengths, at, value: Vec::new() })
    }

    /// Gives the bytes of the next value to `take`. A boolean is one byte, 0 or 1. Returns `None` if the page
    /// ends or is damaged.
    pub(super) fn next(
        &mut self,
        physical: Physical,
        page: &[u8],
        dictionary: Option<&Dictionary>,
        take: impl FnOnce(&[u8]),
    ) -> Option<()> {
        match self {
            Self::Plain(at) => plain(physical, page, at).map(take),
            Self::Indices(indices) => {
                let index = indices.next(page)? as usize;
                let known = dictionary?;
                let (start, end) = known.places.get(index)?;
                known.bytes.get(*start as usize..*end as usize).map(take)
            }
            Self::Booleans(runs) => runs.next(page).map(|value| take(&[u8::from(value != 0)])),
            Self::Numbers(deltas) => {
                let number = deltas.next(page)?;
                match physical {
                    // Differences of numbers of 32 bits wrap around at 32 bits.
                    Physical::Int32 => take(&(number as i32).to_le_bytes()),
                    _ => take(&number.to_le_bytes()),
                }
                Some(())
            }
            Self::Lengths(lengths, at) => {
                let length = lengths.next_length(page)?;
                sliced(page, at, length).map(take)
            }
            Self::Prefixed { prefixes, lengths, at, value } => {
                let shared = prefixes.next_length(page)?;
                let length = lengths.next_length(page)?;
                let rest = sliced(page, at, length)?;
                if shared > value.len() {
                    return None;
                }
                value.truncate(shared);
                value.extend_from_slice(rest);
                let is_whole = width(physical).is_none_or(|width| width == value.len());
                is_whole.then(|| take(value))
            }
            Self::Split { start, values, next } => {
                let width = width(physical)?;
                if *next == *values {
                    return None;
                }
                let part = |i: usize| page.get(*start + i * *values + *next).copied();
                let value: Vec<u8> = (0..width).map(part).collect::<Option<_>>()?;
                *next += 1;
                take(&value);
                Some(())
            }
        }
    }
}

impl Dictionary {
    /// Reads a page of a dictionary.
    ///
    /// # Errors
    /// The page of the column `name` is damaged, or the file needs too much memory.
    pub(super) fn new(physical: Physical, page: Page, name: &str) -> Result<Self, Damage> {
        if !matches!(page.encoding, 0 | 2) {
            return Err(unknown_encoding(page.encoding, name));
        }
        let damaged = || Damage::Page(name.to_owned());
        let least = width(physical).unwrap_or(4).max(1);
        let entries = usize::try_from(page.entries).map_err(|_| damaged())?;
        // The count is only believed as far as values can be there.
        if physical != Physical::Boolean && entries > page.bytes.len() / least {
            return Err(damaged());
        }
        let bytes = entries.min(page.bytes.len().saturating_mul(8)) * size_of::<(u32, u32)>();
        let held = page.held.budget().take(bytes).ok_or(Damage::Memory)?;
        let mut places = Vec::new();
        let mut at = 0;
        while places.len() < entries {
            let before = at;
            let length = plain(physical, &page.bytes, &mut at)
                .map(<[u8]>::len)
                .filter(|_| at > before)
                .ok_or_else(damaged)?;
            let place = u32::try_from(at - length).ok().zip(u32::try_from(at).ok());
            places.push(place.ok_or_else(damaged)?);
        }
        Ok(Self { bytes: page.bytes, places, _held: (page.held, held) })
    }
}

/// Returns the bytes of a value if all have the same number.
fn width(physical: Physical) -> Option<usize> {
    match physical {
        Physical::Int32 | Physical::Float => Some(4),
        Physical::Int64 | Physical::Double => Some(8),
        Physical::Fixed(length) => Some(length),
        Physical::Boolean | Physical::Bytes => None,
    }
}

/// Returns the next `length` bytes, and moves past them.
fn sliced<'p>(page: &'p [u8], at: &mut usize, length: usize) -> Option<&'p [u8]> {
    let end = at.checked_add(length)?;
    let bytes = page.get(*at..end)?;
    *at = end;
    Some(bytes)
}

/// Returns the bytes of the plain value at this place, and moves past it.
fn plain<'p>(physical: Physical, page: &'p [u8], at: &mut usize) -> Option<&'p [u8]> {
    let length = match (width(physical), physical) {
        (Some(width), _) => width,
        (None, Physical::Boolean) => {
            let bit = page.get(*at / 8)? >> (*at % 8) & 1;
            *at += 1;
            return Some(if bit == 1 { &[1] } else { &[0] });
        }
        (None, _) => u32::from_le_bytes(sliced(page, at, 4)?.try_into().ok()?) as usize,
    };
    sliced(page, at, length)
}

fn unknown_encoding(encoding: i32, name: &str) -> Damage {
    let words = match encoding {
        3 => "RLE",
        4 => "BIT_PACKED",
        5 => "DELTA_BINARY_PACKED",
        6 => "DELTA_LENGTH_BYTE_ARRAY",
        7 => "DELTA_BYTE_ARRAY",
        9 => "BYTE_STREAM_SPLIT",
        _ => "an unknown encoding",
    };
    Damage::Encoding(name.to_owned(), words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(encoding: i32, physical: Physical, page: &[u8]) -> Vec<Vec<u8>> {
        let mut values = Values::new(encoding, physical, page, 0, "a").unwrap();
        let mut all = Vec::new();
        while values.next(physical, page, None, |bytes| all.push(bytes.to_vec())).is_some() {}
        all
    }

    #[test]
    fn lengths_come_before_the_bytes_and_prefixes_before_the_lengths() {
        // Lengths 2, 0, 1: a first value and differences of -2 and +1.
        let lengths = [32, 1, 3, 4, 3, 2, 0b1100, 0, 0, 0, 0, 0, 0, 0];
        let page = [&lengths[..], b"abc"].concat();
        assert_eq!(read(6, Physical::Bytes, &page), [&b"ab"[..], b"", b"c"]);
        // Prefixes of 0, 2, 1 bytes.
        let prefixes = [32, 1, 3, 0, 1, 2, 0b0011, 0, 0, 0, 0, 0, 0, 0];
        let page = [&prefixes[..], &lengths, b"abc"].concat();
        assert_eq!(read(7, Physical::Bytes, &page), [&b"ab"[..], b"ab", b"ac"]);
        // More than the value before has: what is read until then is all there is.
        let prefixes = [32, 1, 3, 0, 6, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let page = [&prefixes[..], &lengths, b"abc"].concat();
        assert_eq!(read(7, Physical::Bytes, &page), [&b"ab"[..]]);
    }

    #[test]
    fn the_bytes_of_split_numbers_are_put_together() {
        assert_eq!(read(9, Physical::Int32, &[1, 5, 2, 6, 3, 7, 4, 8]), [[1, 2, 3, 4], [5, 6, 7, 8]]);
        assert_eq!(read(9, Physical::Fixed(2), &[1, 3, 5, 2, 4, 6]), [[1, 2], [3, 4], [5, 6]]);
        assert!(Values::new(9, Physical::Bytes, &[], 0, "a").is_err());
        assert!(Values::new(9, Physical::Fixed(0), &[], 0, "a").is_err());
    }

    #[test]
    fn differences_of_short_numbers_wrap_around_at_their_width() {
        // i32::MAX, then a difference of 1.
        let page = [32, 1, 2, 0xfe, 0xff, 0xff, 0xff, 0x0f, 2, 0];
        let wrapped = [i32::MAX.to_le_bytes().to_vec(), i32::MIN.to_le_bytes().to_vec()];
        assert_eq!(read(5, Physical::Int32, &page), wrapped);
    }
}
