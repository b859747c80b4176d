//! The dtypes of tensors in packets, by the names that safetensors gives them.

use super::codes::{BFLOAT16, FLOAT16, TENSOR};

/// The encoding of a tensor's numbers: its code in a packet, its name, and the bytes of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dtype(u8);

/// Code, name and bytes of each. A code never changes its meaning; 0 stands for no tensor.
const DTYPES: [(u8, &str, u64); 15] = [
    (1, "BOOL", 1),
    (2, "U8", 1),
    (3, "I8", 1),
    (4, "F8_E5M2", 1),
    (5, "F8_E4M3", 1),
    (6, "I16", 2),
    (7, "U16", 2),
    (8, "F16", 2),
    (9, "BF16", 2),
    (10, "I32", 4),
    (11, "U32", 4),
    (12, "F32", 4),
    (13, "I64", 8),
    (14, "U64", 8),
    (15, "F64", 8),
];

impl Dtype {
    /// Float16.
    pub const F16: Self = Self(8);
    /// Bfloat16.
    pub const BF16: Self = Self(9);
    /// Float32.
    pub const F32: Self = Self(12);

    /// Returns the dtype of a code in a packet.
    pub fn of_code(code: u8) -> Option<Self> {
        DTYPES.iter().any(|row| row.0 == code).then_some(Self(code))
    }

    /// Returns the dtype that safetensors calls so.
    pub fn named(name: &str) -> Option<Self> {
        DTYPES.iter().find(|row| row.1 == name).map(|row| Self(row.0))
    }

    /// Returns all of them.
    pub fn all() -> impl Iterator<Item = Self> {
        DTYPES.iter().map(|row| Self(row.0))
    }

    fn row(self) -> &'static (u8, &'static str, u64) {
        // The codes are those of the rows, from 1.
        &DTYPES[usize::from(self.0) - 1]
    }

    /// Returns the code in a packet.
    pub fn code(self) -> u8 {
        self.0
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the bytes of one number.
    pub fn bytes(self) -> u64 {
        self.row().2
    }

    /// Returns the TYP of a packet with such numbers.
    pub fn typ(self) -> u8 {
        match self {
            Self::F16 => FLOAT16,
            Self::BF16 => BFLOAT16,
            _ => TENSOR,
        }
    }

    /// Returns the bytes of a tensor of this shape; `None` if they exceed 64 bits.
    pub fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        shape.iter().try_fold(self.bytes(), |bytes, size| bytes.checked_mul(*size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dtype_has_the_size_that_safetensors_gives_it_and_is_found_by_code_and_name() {
        for (place, dtype) in Dtype::all().enumerate() {
            assert_eq!(usize::from(dtype.code()), place + 1);
            assert_eq!(Dtype::of_code(dtype.code()), Some(dtype));
            assert_eq!(Dtype::named(dtype.name()), Some(dtype));
            let theirs: safetensors::Dtype = serde_json::from_str(&format!("\"{}\"", dtype.name())).unwrap();
            assert_eq!(theirs.bitsize() as u64, 8 * dtype.bytes());
        }
        assert_eq!((Dtype::F16.name(), Dtype::BF16.name(), Dtype::F32.name()), ("F16", "BF16", "F32"));
        assert_eq!((Dtype::of_code(0), Dtype::of_code(16)), (None, None));
        assert_eq!(Dtype::F32.bytes_of(&[1 << 40, 1 << 40]), None);
    }
}
