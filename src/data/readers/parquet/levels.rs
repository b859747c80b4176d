//! The hybrid of runs and packed bits in which Parquet stores levels and indices of a dictionary.

/// Reads numbers of a fixed number of bits, at most 32.
#[derive(Debug, Clone, Default)]
pub(super) struct Levels {
    bits: u32,
    at: usize,
    end: usize,
    run: Run,
}

#[derive(Debug, Clone, Copy, Default)]
enum Run {
    #[default]
    None,
    /// The same value this many times.
    Same { value: u32, left: u64 },
    /// Values in packed bits: the next bit, and how many values are left.
    Packed { bit: u64, left: u64 },
}

impl Levels {
    /// Creates a reader of the bytes `at..end` of the page that is given to [`next`](Self::next).
    pub(super) fn new(bits: u32, at: usize, end: usize) -> Self {
        Self { bits, at, end, run: Run::None }
    }

    /// Returns the next number, or `None` if the bytes end.
    pub(super) fn next(&mut self, page: &[u8]) -> Option<u32> {
        loop {
            match &mut self.run {
                Run::Same { value, left } if *left > 0 => {
                    *left -= 1;
                    return Some(*value);
                }
                Run::Packed { bit, left } if *left > 0 => {
                    *left -= 1;
                    let value = packed(page.get(..self.end)?, *bit, self.bits)? as u32;
                    *bit += u64::from(self.bits);
                    return Some(value);
                }
                _ => self.begin_run(page.get(..self.end)?)?,
            }
        }
    }

    fn begin_run(&mut self, page: &[u8]) -> Option<()> {
        let mut head = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = *page.get(self.at)?;
            self.at += 1;
            head |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        self.run = if head & 1 == 0 {
            let mut value = 0;
            for shift in (0..self.bits).step_by(8) {
                value |= u32::from(*page.get(self.at)?) << shift;
                self.at += 1;
            }
            Run::Same { value, left: head >> 1 }
        } else {
            let groups = head >> 1;
            let run = Run::Packed { bit: self.at as u64 * 8, left: groups * 8 };
            // The last run of a page may be shorter than it says.
            self.at = self.at.saturating_add(usize::try_from(groups * u64::from(self.bits)).ok()?);
            run
        };
        Some(())
    }
}

/// Returns the number in `bits` bits, at most 64, from this bit on.
pub(super) fn packed(page: &[u8], bit: u64, bits: u32) -> Option<u64> {
    if bits == 0 {
        return Some(0);
    }
    let first = usize::try_from(bit / 8).ok()?;
    let shift = (bit % 8) as u32;
    let mut value = 0_u128;
    for i in 0..(shift + bits).div_ceil(8) {
        value |= u128::from(*page.get(first + i as usize)?) << (8 * i);
    }
    Some((value >> shift & ((1 << bits) - 1)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_bits_follow_each_other() {
        // Four times 5, then eight numbers of three bits, as in the format's own description, then the end.
        let page = [4 << 1, 5, 3, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        let mut levels = Levels::new(3, 0, page.len());
        let numbers: Vec<u32> = std::iter::from_fn(|| levels.next(&page)).collect();
        assert_eq!(numbers, [5, 5, 5, 5, 0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn numbers_of_no_bits_are_zero_and_wide_ones_cross_bytes() {
        let mut levels = Levels::new(0, 0, 1);
        assert_eq!(levels.next(&[6]), Some(0));
        let mut levels = Levels::new(32, 0, 5);
        assert_eq!(levels.next(&[2, 1, 2, 3, 4]), Some(0x0403_0201));
        assert_eq!(packed(&[0, 0b1010_0000, 0b0000_0001], 13, 4), Some(0b1101));
        assert_eq!(packed(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0x7f], 7, 64), Some(0xfe00_0000_0000_0001));
    }
}
