//! Numbers that are stored as differences: the encoding DELTA_BINARY_PACKED, which also has the lengths of
//! the other delta encodings.
//!
//! Enters: the bytes of a page. Leaves: one number after another. Nothing is allocated, so what the header
//! claims needs no check but that the bytes are there when they are read.
//!
//! A block begins with the smallest difference in it and the number of bits of each of its parts; a part has
//! the differences beyond the smallest in packed bits, and the last one of the page is padded.

use super::levels::packed;

/// Reads numbers. Sums wrap around, as the format says, so that they also serve numbers of 32 bits.
#[derive(Debug, Clone, Default)]
pub(super) struct Deltas {
    /// The number of parts of a block, and of differences in each of them.
    parts: usize,
    per_part: u64,
    /// The numbers that are left.
    left: u64,
    /// The last number, or the first one as long as `is_new`.
    last: i64,
    is_new: bool,
    /// The place behind the present part.
    at: usize,
    least: i64,
    /// The place of the numbers of bits, and the part that is next.
    widths: usize,
    part: usize,
    /// The present part: the differences left in it, their bits, and the place of the next one in bits.
    left_in_part: u64,
    width: u32,
    bit: u64,
}

impl Deltas {
    /// Reads the header at this place. Returns `None` if it is damaged. A page of nothing but nulls may lack
    /// it.
    pub(super) fn new(page: &[u8], mut at: usize) -> Option<Self> {
        if at == page.len() {
            return Some(Self { at, ..Self::default() });
        }
        let block = varint(page, &mut at)?;
        let parts = varint(page, &mut at)?;
        let left = varint(page, &mut at)?;
        let last = zigzag(page, &mut at)?;
        let per_part = block.checked_div(parts)?;
        if per_part == 0 || per_part % 8 != 0 || per_part.checked_mul(parts) != Some(block) {
            return None;
        }
        let parts = usize::try_from(parts).ok()?;
        // The first block begins when a difference is needed.
        Some(Self { parts, per_part, left, last, is_new: true, at, part: parts, ..Self::default() })
    }

    /// Returns the next number, or `None` at the end or if the bytes end.
    pub(super) fn next(&mut self, page: &[u8]) -> Option<i64> {
        self.left = self.left.checked_sub(1)?;
        if std::mem::take(&mut self.is_new) {
            return Some(self.last);
        }
        if self.left_in_part == 0 {
            self.begin_part(page)?;
        }
        self.left_in_part -= 1;
        let beyond = packed(page, self.bit, self.width)?;
        self.bit += u64::from(self.width);
        self.last = self.last.wrapping_add(self.least).wrapping_add(beyond as i64);
        Some(self.last)
    }

    /// Returns the next number as a length.
    pub(super) fn next_length(&mut self, page: &[u8]) -> Option<usize> {
        usize::try_from(self.next(page)?).ok()
    }

    /// Returns the place behind the last number.
    pub(super) fn end(&self, page: &[u8]) -> Option<usize> {
        let mut rest = self.clone();
        let mut differences = rest.left.saturating_sub(1);
        // Each turn reads at least a byte of the page, or fails.
        while differences > 0 {
            rest.begin_part(page)?;
            differences = differences.saturating_sub(self.per_part);
        }
        Some(rest.at)
    }

    fn begin_part(&mut self, page: &[u8]) -> Option<()> {
        if self.part == self.parts {
            self.least = zigzag(page, &mut self.at)?;
            self.widths = self.at;
            self.at = self.at.checked_add(self.parts)?;
            self.part = 0;
        }
        self.width = u32::from(*page.get(self.widths.checked_add(self.part)?)?);
        if self.width > u64::BITS {
            return None;
        }
        self.part += 1;
        self.bit = (self.at as u64).checked_mul(8)?;
        let bytes = (self.per_part / 8).checked_mul(self.width.into())?;
        self.at = self.at.checked_add(usize::try_from(bytes).ok()?).filter(|at| *at <= page.len())?;
        self.left_in_part = self.per_part;
        Some(())
    }
}

fn varint(page: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *page.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}

fn zigzag(page: &[u8], at: &mut usize) -> Option<i64> {
    let value = varint(page, at)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(page: &[u8]) -> Vec<i64> {
        let mut deltas = Deltas::new(page, 0).unwrap();
        std::iter::from_fn(|| deltas.next(page)).collect()
    }

    #[test]
    fn numbers_follow_from_the_first_the_least_difference_and_packed_bits() {
        // 7, 5, 3, 1, 2, 3, 4, 5: the example of the format's description, in a block of one part.
        let page = [32, 1, 8, 14, 3, 2, 0b1100_0000, 0b0011_1111, 0, 0, 0, 0, 0, 0];
        assert_eq!(all(&page), [7, 5, 3, 1, 2, 3, 4, 5]);
        assert_eq!(Deltas::new(&page, 0).unwrap().end(&page), Some(page.len()));
        // One number needs no block, and none need not even a header.
        assert_eq!(all(&[128, 1, 4, 1, 15]), [-8]);
        assert_eq!((all(&[]), all(&[128, 1, 4, 0, 0])), (vec![], vec![]));
    }

    #[test]
    fn headers_that_make_no_sense_are_refused() {
        for header in [&[128, 1, 0, 1, 0][..], &[0, 4, 1, 0], &[12, 1, 1, 0], &[128, 1, 3, 1, 0], &[128]] {
            assert!(Deltas::new(header, 0).is_none(), "{header:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_and_the_end_is_within_them(page in prop::collection::vec(any::<u8>(), 0..60)) {
            // A header of a block of 64 with two parts, and then anything.
            let page = [&[64, 2], page.as_slice()].concat();
            if let Some(mut deltas) = Deltas::new(&page, 0) {
                prop_assert!(deltas.end(&page).is_none_or(|end| end <= page.len()));
                let _ = std::iter::from_fn(|| deltas.next(&page)).take(10_000).count();
            }
        }
    }
}
