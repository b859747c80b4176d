//! The GGUF file format, version 3: a header with typed metadata, the descriptions of all tensors, and their
//! data, each tensor at a multiple of 32 bytes. All numbers are little-endian.
//!
//! Enters: metadata, and the name, shape and encoding of each tensor. Leaves: the bytes before the first
//! tensor. It must not know models. Source: `ggml/docs/gguf.md` and `gguf-py` of llama.cpp, version 0.19.
//!
//! This is our own code because the format is these few lines, and every byte is compared with what
//! llama.cpp's converter writes. The crate `ggus` (0.5) reads and writes it too, with quantisation of its
//! own.

use super::encoding::Encoding;

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;

/// Every tensor starts at a multiple of this number of bytes after the header.
const ALIGNMENT: u64 = 32;

/// llama.cpp refuses tensor names of this number of bytes and more.
pub(super) const NAME_LIMIT: usize = 64;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
}

/// Metadata in the order in which it is written.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    entries: Vec<(String, Value)>,
}

impl Metadata {
    /// Adds an entry.
    ///
    /// # Panics
    /// When there is one of this name.
    pub(super) fn put(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        assert!(self.get(&key).is_none(), "the key {key} is written once");
        self.entries.push((key, value));
    }

    pub(super) fn put_text(&mut self, key: &str, value: impl Into<String>) {
        self.put(key, Value::Text(value.into()));
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// The description of a tensor.
#[derive(Debug, Clone)]
pub(super) struct Described {
    /// Its name, shorter than [`NAME_LIMIT`].
    pub(super) name: String,
    /// The outermost dimension first, as in a checkpoint. The file has the reverse order.
    pub(super) shape: Vec<usize>,
    pub(super) encoding: Encoding,
}

impl Described {
    /// Returns the number of values.
    pub(super) fn values(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the size of its data in the file without padding, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.encoding.bytes(self.values()) as u64
    }
}

/// Returns the number of zero bytes that follow data of this size.
pub(super) fn padding(bytes: u64) -> usize {
    (bytes.next_multiple_of(ALIGNMENT) - bytes) as usize
}

/// Returns everything before the data of the first tensor, padding included.
pub(super) fn header(metadata: &Metadata, tensors: &[Described]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    length(tensors.len(), &mut out);
    length(metadata.entries.len(), &mut out);
    for (key, value) in &metadata.entries {
        text(key, &mut out);
        out.extend_from_slice(&kind(value).to_le_bytes());
        write_value(value, &mut out);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        text(&tensor.name, &mut out);
        out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|size| length(*size, &mut out));
        out.extend_from_slice(&tensor.encoding.code().to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        offset += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    let end = out.len() + padding(out.len() as u64);
    out.resize(end, 0);
    out
}

/// The code of an array, which is followed by the code of its items.
const ARRAY: u32 = 9;

/// Returns the code of a value's type.
fn kind(value: &Value) -> u32 {
    match value {
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::Texts(_) | Value::I32s(_) | Value::F32s(_) | Value::Bools(_) => ARRAY,
    }
}

fn write_value(value: &Value, out: &mut Vec<u8>) {
    let mut array = |item: &Value, items: usize| {
        out.extend_from_slice(&kind(item).to_le_bytes());
        length(items, out);
    };
    match value {
        Value::Texts(items) => array(&Value::Text(String::new()), items.len()),
        Value::I32s(items) => array(&Value::I32(0), items.len()),
        Value::F32s(items) => array(&Value::F32(0.0), items.len()),
        Value::Bools(items) => array(&Value::Bool(false), items.len()),
        _ => {}
    }
    match value {
        Value::U32(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::I32(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::F32(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        Value::Text(string) => text(string, out),
        Value::Texts(items) => items.iter().for_each(|item| text(item, out)),
        Value::I32s(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Value::F32s(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Value::Bools(items) => out.extend(items.iter().map(|item| u8::from(*item))),
    }
}

fn length(n: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(n as u64).to_le_bytes());
}

fn text(string: &str, out: &mut Vec<u8>) {
    length(string.len(), out);
    out.extend_from_slice(string.as_bytes());
}
