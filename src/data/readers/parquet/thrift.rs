//! The compact protocol of Thrift, as far as the metadata of Parquet needs it.
//!
//! Enters: bytes of a file. Leaves: the fields of structs. Every read checks that the bytes are there,
//! nothing is allocated for a length that the file only claims, and values that nobody asked for are skipped
//! to a limited depth.

use super::damage::Damage;

/// The depth up to which unknown values are skipped.
const DEEPEST: u32 = 16;

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Reads values one after another.
pub(super) struct Thrift<'a> {
    rest: &'a [u8],
}

/// A field of a struct, whose value has not been read.
pub(super) struct Field {
    pub id: i16,
    kind: u8,
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of bytes that were not read.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Reads a struct. `field` reads the value of a field and returns true, or returns false to skip it.
    pub(super) fn read_struct(
        &mut self,
        mut field: impl FnMut(&mut Self, &Field) -> Result<bool, Damage>,
    ) -> Result<(), Damage> {
        let mut id: i16 = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let delta = i16::from(head >> 4);
            id = if delta > 0 { id.checked_add(delta).ok_or(Damage::Metadata)? } else { self.number()? };
            let next = Field { id, kind: head & 15 };
            if !field(self, &next)? {
                self.skip(next.kind, DEEPEST)?;
            }
        }
    }

    /// Reads a list of structs: `element` reads each of them.
    pub(super) fn read_list(
        &mut self,
        field: &Field,
        mut element: impl FnMut(&mut Self) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        let (count, kind) = self.list_head()?;
        if field.kind != LIST || (count > 0 && kind != STRUCT) {
            return Err(Damage::Metadata);
        }
        (0..count).try_for_each(|_| element(self))
    }

    /// Reads an integer of any width.
    pub(super) fn integer<T: TryFrom<i64>>(&mut self, field: &Field) -> Result<T, Damage> {
        // 4, 5 and 6 are integers of 16, 32 and 64 bits.
        if (4..=6).contains(&field.kind) { self.number() } else { Err(Damage::Metadata) }
    }

    pub(super) fn boolean(&mut self, field: &Field) -> Result<bool, Damage> {
        match field.kind {
            TRUE => Ok(true),
            FALSE => Ok(false),
            _ => Err(Damage::Metadata),
        }
    }

    /// Reads a name.
    pub(super) fn text(&mut self, field: &Field) -> Result<&'a str, Damage> {
        if field.kind != BINARY {
            return Err(Damage::Metadata);
        }
        let length = self.length()?;
        std::str::from_utf8(self.take(length)?).map_err(|_| Damage::Metadata)
    }

    /// Returns whether a field holds a struct, which the caller then reads.
    pub(super) fn is_struct(field: &Field) -> Result<(), Damage> {
        if field.kind == STRUCT { Ok(()) } else { Err(Damage::Metadata) }
    }

    fn byte(&mut self) -> Result<u8, Damage> {
        let (&byte, rest) = self.rest.split_first().ok_or(Damage::Metadata)?;
        self.rest = rest;
        Ok(byte)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Damage::Metadata)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Damage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(Damage::Metadata)
    }

    fn number<T: TryFrom<i64>>(&mut self) -> Result<T, Damage> {
        let zigzag = self.varint()?;
        let value = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        T::try_from(value).map_err(|_| Damage::Metadata)
    }

    fn length(&mut self) -> Result<usize, Damage> {
        usize::try_from(self.varint()?).map_err(|_| Damage::Metadata)
    }

    fn list_head(&mut self) -> Result<(usize, u8), Damage> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.length()? } else { usize::from(head >> 4) };
        // Each element takes at least a byte.
        if count > self.rest.len() {
            return Err(Damage::Metadata);
        }
        Ok((count, head & 15))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), Damage> {
        let depth = depth.checked_sub(1).ok_or(Damage::Metadata)?;
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.byte().map(drop),
            4..=6 => self.varint().map(drop),
            DOUBLE => self.take(8).map(drop),
            BINARY => {
                let length = self.length()?;
                self.take(length).map(drop)
            }
            LIST | SET => {
                let (count, kind) = self.list_head()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let count = self.length()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                if count > self.rest.len() {
                    return Err(Damage::Metadata);
                }
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            STRUCT => loop {
                let head = self.byte()?;
                if head == 0 {
                    return Ok(());
                }
                if head >> 4 == 0 {
                    self.varint()?;
                }
                self.skip(head & 15, depth)?;
            },
            _ => Err(Damage::Metadata),
        }
    }

    /// Skips an element of a list, in which a boolean takes a byte.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Result<(), Damage> {
        if matches!(kind, TRUE | FALSE) { self.byte().map(drop) } else { self.skip(kind, depth) }
    }
}
