//! How the numbers of a tensor are stored in a GGUF file.
//!
//! Enters: f32 numbers. Leaves: the bytes that llama.cpp's own converter writes for them.

use half::{bf16, f16};
use sparktune_base::choice;

/// The number of values of a row that share a scale in `q8_0`.
const BLOCK: usize = 32;

choice! {
    /// The type of a model's matrices in a GGUF file. All vectors and norms are f32.
    GgufType {
        /// Half precision.
        F16 = "f16",
        /// The type of most published models.
        Bf16 = "bf16",
        /// Eight bits, with one scale for each 32 values of a row.
        Q8_0 = "q8_0",
    }
}

impl GgufType {
    /// Returns the value of `general.file_type`.
    pub(super) const fn file_type(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the encoding of a matrix with rows of this width.
    pub(super) fn encoding(self, width: usize) -> Encoding {
        match self {
            Self::Bf16 => Encoding::Bf16,
            Self::Q8_0 if width.is_multiple_of(BLOCK) => Encoding::Q8_0,
            // llama.cpp's converter falls back to f16 as well.
            Self::F16 | Self::Q8_0 => Encoding::F16,
        }
    }
}

/// The encoding of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    F32,
    F16,
    Bf16,
    Q8_0,
}

impl Encoding {
    /// Returns its number in the file.
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns the size of a number of values in bytes.
    pub(super) const fn bytes(self, values: usize) -> usize {
        match self {
            Self::F32 => 4 * values,
            Self::F16 | Self::Bf16 => 2 * values,
            Self::Q8_0 => values / BLOCK * (BLOCK + 2),
        }
    }

    /// Appends the bytes of numbers, whose count is a multiple of 32 for `q8_0`. Returns `None` if one of
    /// them, or a scale, is not finite in this encoding.
    #[must_use]
    pub(super) fn encode(self, numbers: &[f32], out: &mut Vec<u8>) -> Option<()> {
        out.reserve(self.bytes(numbers.len()));
        match self {
            Self::F32 => {
                for x in numbers {
                    out.extend_from_slice(&finite(*x)?.to_le_bytes());
                }
            }
            Self::F16 => {
                for x in numbers {
                    let narrow = f16::from_f32(*x);
                    finite(narrow.to_f32())?;
                    out.extend_from_slice(&narrow.to_le_bytes());
                }
            }
            Self::Bf16 => {
                for x in numbers {
                    let narrow = bf16::from_f32(*x);
                    finite(narrow.to_f32())?;
                    out.extend_from_slice(&narrow.to_le_bytes());
                }
            }
            Self::Q8_0 => {
                for block in numbers.chunks_exact(BLOCK) {
                    quantise(block, out)?;
                }
            }
        }
        Some(())
    }
}

/// Appends a block of `q8_0`: the scale in f16, then 32 whole numbers. The values are those of
/// `quantize_row_q8_0_ref` in ggml, which divides by the scale before it is rounded to f16, and rounds halves
/// away from zero.
fn quantise(block: &[f32], out: &mut Vec<u8>) -> Option<()> {
    block.iter().try_for_each(|x| finite(*x).map(drop))?;
    let largest = block.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16::from_f32(scale);
    finite(stored.to_f32())?;
    out.extend_from_slice(&stored.to_le_bytes());
    out.extend(block.iter().map(|x| ((x * inverse).round() as i8).cast_unsigned()));
    Some(())
}

fn finite(x: f32) -> Option<f32> {
    x.is_finite().then_some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(encoding: Encoding, numbers: &[f32]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        encoding.encode(numbers, &mut out)?;
        assert_eq!(out.len(), encoding.bytes(numbers.len()));
        Some(out)
    }

    #[test]
    fn a_block_of_q8_0_has_the_scale_of_its_largest_value_and_halves_go_away_from_zero() {
        let mut block = [0.0f32; BLOCK];
        // The scale is 1, so the stored numbers are the rounded values.
        for (x, value) in block.iter_mut().zip([127.0, -126.5, 0.5, -0.5, 1.5, 2.4, -3.6, 0.0]) {
            *x = value;
        }
        let bytes = encoded(Encoding::Q8_0, &block).unwrap();
        assert_eq!(bytes[..2], f16::ONE.to_le_bytes());
        let numbers: Vec<i8> = bytes[2..10].iter().map(|byte| byte.cast_signed()).collect();
        assert_eq!(numbers, [127, -127, 1, -1, 2, 2, -4, 0]);
        assert_eq!(encoded(Encoding::Q8_0, &[0.0; BLOCK]).unwrap(), [0; BLOCK + 2]);
        // 1 / scale overflows for a subnormal scale, as it does in ggml, and the numbers saturate.
        assert!(encoded(Encoding::Q8_0, &[f32::MIN_POSITIVE; BLOCK]).is_some());
    }

    #[test]
    fn a_number_that_a_type_cannot_hold_is_not_written_as_an_infinity() {
        assert!(encoded(Encoding::F16, &[65504.0]).is_some());
        assert!(encoded(Encoding::F16, &[70000.0]).is_none());
        assert!(encoded(Encoding::Bf16, &[70000.0]).is_some());
        for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16, Encoding::Q8_0] {
            assert!(encoded(encoding, &[f32::NAN; BLOCK]).is_none(), "{encoding:?}");
        }
    }

    #[test]
    fn rows_that_have_no_whole_blocks_are_half_precision() {
        assert_eq!(GgufType::Q8_0.encoding(64), Encoding::Q8_0);
        assert_eq!(GgufType::Q8_0.encoding(48), Encoding::F16);
        assert_eq!(GgufType::Bf16.encoding(48), Encoding::Bf16);
    }
}
