//! Reads GGUF files in tests. It shares nothing with the writer, so that a mistake in one is not made twice.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};

/// The contents of a file.
pub(crate) struct GgufFile {
    pub(crate) keys: BTreeMap<String, Json>,
    pub(crate) tensors: BTreeMap<String, GgufTensor>,
}

/// A tensor, its dimensions as in the file: the innermost first.
pub(crate) struct GgufTensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: &'static str,
    pub(crate) data: Vec<u8>,
}

impl GgufTensor {
    /// Returns the values of an f32 tensor.
    pub(crate) fn floats(&self) -> Vec<f32> {
        assert_eq!(self.kind, "F32");
        let numbers = self.data.chunks_exact(4);
        numbers.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        self.at += N;
        self.bytes[self.at - N..self.at].try_into().unwrap()
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn long(&mut self) -> usize {
        usize::try_from(u64::from_le_bytes(self.take())).unwrap()
    }

    fn text(&mut self) -> String {
        let length = self.long();
        self.at += length;
        String::from_utf8(self.bytes[self.at - length..self.at].to_vec()).unwrap()
    }

    fn value(&mut self, kind: u32) -> Json {
        match kind {
            4 => json!(self.word()),
            5 => json!(self.word().cast_signed()),
            6 => json!(f32::from_le_bytes(self.take())),
            7 => json!(self.take::<1>()[0] == 1),
            8 => json!(self.text()),
            9 => {
                let (item, count) = (self.word(), self.long());
                (0..count).map(|_| self.value(item)).collect()
            }
            _ => panic!("a value of the kind {kind}"),
        }
    }
}

/// Reads a file, which must end with its last tensor and its padding.
pub(crate) fn read(path: &Path) -> GgufFile {
    let bytes = std::fs::read(path).unwrap();
    let mut cursor = Cursor { bytes: &bytes, at: 0 };
    assert_eq!(&cursor.take::<4>(), b"GGUF");
    assert_eq!(cursor.word(), 3);
    let (tensors, keys) = (cursor.long(), cursor.long());
    let keys: BTreeMap<String, Json> = (0..keys)
        .map(|_| {
            let (key, kind) = (cursor.text(), cursor.word());
            (key, cursor.value(kind))
        })
        .collect();
    let infos: Vec<(String, Vec<usize>, u32, usize)> = (0..tensors)
        .map(|_| {
            let (name, dimensions) = (cursor.text(), cursor.word());
            let shape = (0..dimensions).map(|_| cursor.long()).collect();
            (name, shape, cursor.word(), cursor.long())
        })
        .collect();
    let data = cursor.at.next_multiple_of(32);
    let mut end = data;
    let tensors = infos
        .into_iter()
        .map(|(name, shape, kind, offset)| {
            let values: usize = shape.iter().product();
            let (kind, length) = match kind {
                0 => ("F32", 4 * values),
                1 => ("F16", 2 * values),
                8 => ("Q8_0", values / 32 * 34),
                30 => ("BF16", 2 * values),
                _ => panic!("a tensor of the kind {kind}"),
            };
            assert_eq!(data + offset, end, "{name} follows the tensor before it");
            end = (data + offset + length).next_multiple_of(32);
            let data = bytes[data + offset..][..length].to_vec();
            (name, GgufTensor { shape, kind, data })
        })
        .collect();
    assert_eq!(end, bytes.len());
    GgufFile { keys, tensors }
}
