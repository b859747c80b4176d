//! The values of one column in a row group, one after another, each with its levels.
//!
//! Enters: the pages of the column. Leaves: entries, of which those with a value have it as bytes.

use std::fs::File;
use std::sync::Arc;

use super::damage::Damage;
use super::levels::Levels;
use super::page::{Page, PageKind, next_page};
use super::schema::{ColumnChunk, Leaf, Physical};

/// A column that is being read.
pub(super) struct Column {
    file: Arc<File>,
    /// The name of the top-level column that it belongs to.
    name: String,
    leaf: Leaf,
    chunk: ColumnChunk,
    /// The place of the next page.
    at: u64,
    /// The entries that are left in the row group.
    left: u64,
    dictionary: Option<Dictionary>,
    page: DataPage,
    /// The levels of the entry that is next.
    next: Option<Entry>,
}

/// The levels of an entry.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    pub repetition: u16,
    pub definition: u16,
}

struct Dictionary {
    bytes: Vec<u8>,
    /// The place of each value in `bytes`.
    places: Vec<(u32, u32)>,
}

#[derive(Default)]
struct DataPage {
    bytes: Vec<u8>,
    /// The entries that are left in the page.
    left: u64,
    repetition: Levels,
    definition: Levels,
    /// The place of the next plain value, in bits for booleans.
    at: usize,
    /// The indices into the dictionary, or values of booleans, if the page has them.
    indices: Option<Levels>,
}

impl Column {
    pub(super) fn new(file: &Arc<File>, name: &str, leaf: Leaf, chunk: ColumnChunk) -> Result<Self, Damage> {
        let mut column = Self {
            file: file.clone(),
            name: name.to_owned(),
            leaf,
            chunk,
            at: chunk.start,
            left: chunk.entries,
            dictionary: None,
            page: DataPage::default(),
            next: None,
        };
        column.advance()?;
        Ok(column)
    }

    /// Returns the levels of the next entry, or `None` at the end.
    pub(super) fn peek(&self) -> Option<Entry> {
        self.next
    }

    fn damaged(&self) -> Damage {
        Damage::Page(self.name.clone())
    }

    /// Moves past an entry without a value.
    pub(super) fn skip(&mut self) -> Result<(), Damage> {
        match self.next {
            // An entry with a value stands where none may be.
            Some(entry) if entry.definition == self.leaf.max_definition => Err(self.damaged()),
            Some(_) => self.advance(),
            None => Err(self.damaged()),
        }
    }

    /// Gives the bytes of the next value to `take` and moves past it. A boolean is one byte, 0 or 1.
    pub(super) fn value(&mut self, take: impl FnOnce(&[u8])) -> Result<(), Damage> {
        if self.next.is_none_or(|entry| entry.definition != self.leaf.max_definition) {
            return Err(self.damaged());
        }
        let found = match (&mut self.page.indices, self.leaf.physical) {
            (Some(values), Physical::Boolean) => {
                let value = values.next(&self.page.bytes);
                value.map(|value| take(&[u8::from(value != 0)]))
            }
            (Some(indices), _) => {
                let dictionary = self.dictionary.as_ref();
                let index = indices.next(&self.page.bytes).map(|index| index as usize);
                let place =
                    dictionary.zip(index).and_then(|(known, index)| Some((known, known.places.get(index)?)));
                place.map(|(known, (start, end))| take(&known.bytes[*start as usize..*end as usize]))
            }
            (None, physical) => {
                let DataPage { bytes, at, .. } = &mut self.page;
                plain(physical, bytes, at).map(take)
            }
        };
        found.ok_or_else(|| self.damaged())?;
        self.advance()
    }

    /// Reads the levels of the next entry.
    fn advance(&mut self) -> Result<(), Damage> {
        if self.left == 0 {
            self.next = None;
            return Ok(());
        }
        while self.page.left == 0 {
            let page = next_page(&self.file, &mut self.at, &self.chunk, &self.name)?.ok_or(Damage::Short)?;
            self.begin(page)?;
        }
        self.left -= 1;
        self.page.left -= 1;
        let DataPage { bytes, repetition, definition, .. } = &mut self.page;
        let level = |levels: &mut Levels, max: u16| match max {
            0 => Some(0),
            _ => levels.next(bytes).and_then(|level| u16::try_from(level).ok()).filter(|level| *level <= max),
        };
        let repetition = level(repetition, self.leaf.max_repetition);
        let definition = level(definition, self.leaf.max_definition);
        let entry =
            repetition.zip(definition).map(|(repetition, definition)| Entry { repetition, definition });
        self.next = Some(entry.ok_or_else(|| self.damaged())?);
        Ok(())
    }

    fn begin(&mut self, page: Page) -> Result<(), Damage> {
        match page.kind {
            PageKind::Other => Ok(()),
            PageKind::Dictionary => {
                if !matches!(page.encoding, 0 | 2) {
                    return Err(self.unknown_encoding(page.encoding));
                }
                self.dictionary =
                    Some(Dictionary::new(self.leaf.physical, page).ok_or_else(|| self.damaged())?);
                Ok(())
            }
            PageKind::Data | PageKind::DataV2 { .. } => self.begin_data(page),
        }
    }

    fn begin_data(&mut self, page: Page) -> Result<(), Damage> {
        let Page { kind, encoding, entries, bytes } = page;
        let mut at = 0;
        let mut levels = |max: u16, length_v2: Option<usize>| {
            if max == 0 {
                // Version 2 says a length of 0 here.
                at += length_v2.unwrap_or(0);
                return Some(Levels::default());
            }
            let length = match length_v2 {
                Some(length) => length,
                None => {
                    let length = bytes.get(at..at.checked_add(4)?)?;
                    at += 4;
                    u32::from_le_bytes(length.try_into().ok()?) as usize
                }
            };
            let start = at;
            at = start.checked_add(length).filter(|end| *end <= bytes.len())?;
            Some(Levels::new(u16::BITS - max.leading_zeros(), start, at))
        };
        let lengths = match kind {
            PageKind::DataV2 { repetition, definition } => (Some(repetition), Some(definition)),
            _ => (None, None),
        };
        let repetition = levels(self.leaf.max_repetition, lengths.0);
        let definition = levels(self.leaf.max_definition, lengths.1);
        let (Some(repetition), Some(definition)) = (repetition, definition) else {
            return Err(self.damaged());
        };
        let indices = match encoding {
            0 => None,
            // Booleans in runs have their length before them.
            3 if self.leaf.physical == Physical::Boolean => Some(Levels::new(1, at + 4, bytes.len())),
            // A page of nothing but nulls may lack the number of bits.
            2 | 8 => match bytes.get(at) {
                Some(bits) if *bits > 32 => return Err(self.damaged()),
                bits => Some(Levels::new(bits.map_or(0, |bits| (*bits).into()), at + 1, bytes.len())),
            },
            other => return Err(self.unknown_encoding(other)),
        };
        let at = if self.leaf.physical == Physical::Boolean { at * 8 } else { at };
        self.page = DataPage { bytes, left: entries, repetition, definition, at, indices };
        Ok(())
    }

    fn unknown_encoding(&self, encoding: i32) -> Damage {
        let name = match encoding {
            5 => "DELTA_BINARY_PACKED",
            6 => "DELTA_LENGTH_BYTE_ARRAY",
            7 => "DELTA_BYTE_ARRAY",
            9 => "BYTE_STREAM_SPLIT",
            _ => "an unknown encoding",
        };
        Damage::Encoding(self.name.clone(), name)
    }
}

impl Dictionary {
    fn new(physical: Physical, page: Page) -> Option<Self> {
        // The count is only believed as far as values are there; a value without bytes ends it too.
        let mut places = Vec::new();
        let mut at = 0;
        while (places.len() as u64) < page.entries {
            let before = at;
            let length = plain(physical, &page.bytes, &mut at).map(<[u8]>::len)?;
            if at == before {
                return None;
            }
            places.push((u32::try_from(at - length).ok()?, u32::try_from(at).ok()?));
        }
        Some(Self { bytes: page.bytes, places })
    }
}

/// Returns the bytes of the plain value at this place, and moves past it.
fn plain<'p>(physical: Physical, page: &'p [u8], at: &mut usize) -> Option<&'p [u8]> {
    let length = match physical {
        Physical::Boolean => {
            let bit = page.get(*at / 8)? >> (*at % 8) & 1;
            *at += 1;
            return Some(if bit == 1 { &[1] } else { &[0] });
        }
        Physical::Int32 | Physical::Float => 4,
        Physical::Int64 | Physical::Double => 8,
        Physical::Fixed(length) => length,
        Physical::Bytes => {
            let length = page.get(*at..at.checked_add(4)?)?;
            *at += 4;
            u32::from_le_bytes(length.try_into().ok()?) as usize
        }
    };
    let start = *at;
    let end = start.checked_add(length)?;
    let value = page.get(start..end)?;
    *at = end;
    Some(value)
}
