//! The values of one column in a row group, one after another, each with its levels.
//!
//! Enters: the pages of the column. Leaves: entries, of which those with a value have it as bytes.

use std::fs::File;
use std::sync::Arc;

use super::budget::{Budget, Held};
use super::damage::Damage;
use super::levels::Levels;
use super::page::{Page, PageKind, next_page};
use super::schema::{ColumnChunk, Leaf};
use super::values::{Dictionary, Values};

/// A column that is being read.
pub(super) struct Column {
    file: Arc<File>,
    budget: Budget,
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

#[derive(Default)]
struct DataPage {
    bytes: Vec<u8>,
    /// The entries that are left in the page.
    left: u64,
    repetition: Levels,
    definition: Levels,
    /// `None` before the first page.
    values: Option<Values>,
    _held: Option<Held>,
}

impl Column {
    pub(super) fn new(
        file: &Arc<File>,
        budget: &Budget,
        name: &str,
        leaf: Leaf,
        chunk: ColumnChunk,
    ) -> Result<Self, Damage> {
        let mut column = Self {
            file: file.clone(),
            budget: budget.clone(),
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
        let DataPage { bytes, values, .. } = &mut self.page;
        let (physical, dictionary) = (self.leaf.physical, self.dictionary.as_ref());
        let found = values.as_mut().and_then(|values| values.next(physical, bytes, dictionary, take));
        found.ok_or_else(|| self.damaged())?;
        self.advance()
    }

    /// Reads the levels of the next entry.
    fn advance(&mut self) -> Result<(), Damage> {
        if self.left == 0 {
            self.next = None;
            // A page with more entries than the column has.
            return if self.page.left > 0 { Err(self.damaged()) } else { Ok(()) };
        }
        while self.page.left == 0 {
            // What the last page holds is given back before the next one is read.
            self.page = DataPage::default();
            let page = next_page(&self.file, &self.budget, &mut self.at, &self.chunk, &self.name)?;
            self.begin(page.ok_or(Damage::Short)?)?;
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
                self.dictionary = None;
                self.dictionary = Some(Dictionary::new(self.leaf.physical, page, &self.name)?);
                Ok(())
            }
            PageKind::Data | PageKind::DataV2 { .. } => self.begin_data(page),
        }
    }

    fn begin_data(&mut self, page: Page) -> Result<(), Damage> {
        let Page { kind, encoding, entries, bytes, held } = page;
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
        let values = Values::new(encoding, self.leaf.physical, &bytes, at, &self.name)?;
        self.page = DataPage {
            bytes,
            left: entries,
            repetition,
            definition,
            values: Some(values),
            _held: Some(held),
        };
        Ok(())
    }
}
