//! Puts the parts of tensors together, wherever their packets come from, and refuses what does not belong
//! together.

use std::collections::BTreeMap;

use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted};

use super::dtype::Dtype;
use super::error::PacketError;
use super::typed::{StateId, TensorPart};

/// Tensors of which parts have come. `P` is where the payload of a part is.
#[derive(Debug)]
pub struct Assembly<P> {
    state: Option<StateId>,
    tensors: BTreeMap<String, Collected<P>>,
}

#[derive(Debug)]
struct Collected<P> {
    dtype: Dtype,
    shape: Vec<u64>,
    of: u32,
    /// The bytes that have come.
    bytes: u64,
    parts: BTreeMap<u32, P>,
}

/// A tensor whose parts are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeTensor<P> {
    /// Its name.
    pub name: String,
    /// The encoding of its numbers.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its parts in order.
    pub parts: Vec<P>,
}

impl<P> Default for Assembly<P> {
    fn default() -> Self {
        Self { state: None, tensors: BTreeMap::new() }
    }
}

impl<P> Assembly<P> {
    /// Adds the part of a packet with `bytes` bytes of payload.
    ///
    /// # Errors
    /// The part was there before, contradicts an earlier part of its tensor, or belongs to other tensors than
    /// those before it.
    pub fn add(&mut self, tensor: &TensorPart, bytes: u64, payload: P) -> Result<(), PacketError> {
        let TensorPart { name, dtype, shape, part, of, state } = tensor;
        let this = format!("part {} of {} of {}", u64::from(*part) + 1, count((*of).into()), escape(name));
        let first = *self.state.get_or_insert(*state);
        if first != *state {
            return Err(PacketError::parts(format!(
                "{this} is foreign: it belongs to the tensors {:016x}, and those before it to {:016x}",
                state.hash, first.hash
            )));
        }
        let collected = self.tensors.entry(name.clone()).or_insert_with(|| Collected {
            dtype: *dtype,
            shape: shape.clone(),
            of: *of,
            bytes: 0,
            parts: BTreeMap::new(),
        });
        if (collected.dtype, &collected.shape, collected.of) != (*dtype, shape, *of) {
            return Err(PacketError::parts(format!(
                "{this} is foreign: it is {} {shape:?}, and an earlier part says {} {:?} in {}",
                dtype.name(),
                collected.dtype.name(),
                collected.shape,
                counted(collected.of.into(), "part")
            )));
        }
        if collected.parts.insert(*part, payload).is_some() {
            return Err(PacketError::parts(format!("{this} comes twice")));
        }
        collected.bytes += bytes;
        Ok(())
    }

    /// Returns what identifies the tensors, if there is one.
    pub fn state(&self) -> Option<StateId> {
        self.state
    }

    /// Returns all tensors, by name.
    ///
    /// # Errors
    /// A part or a tensor is missing, or the parts of a tensor have more or fewer bytes than it.
    pub fn finish(self) -> Result<Vec<WholeTensor<P>>, PacketError> {
        for (name, tensor) in &self.tensors {
            let there = tensor.parts.len() as u64;
            let shown = escape(name);
            if there < u64::from(tensor.of) {
                let first = (0..tensor.of).find(|part| !tensor.parts.contains_key(part)).unwrap_or_default();
                return Err(PacketError::parts(format!(
                    "{shown} is incomplete: part {} of {} is missing, {there} are there",
                    u64::from(first) + 1,
                    count(tensor.of.into())
                )));
            }
            let total = tensor.dtype.bytes_of(&tensor.shape);
            if total != Some(tensor.bytes) {
                return Err(PacketError::parts(format!(
                    "the parts of {shown} have {}, and its shape needs {}",
                    counted(tensor.bytes, "byte"),
                    total.map_or("more than 64 bits count".to_owned(), count)
                )));
            }
        }
        let (stated, there) = (self.state.map_or(0, |state| state.tensors), self.tensors.len() as u64);
        if stated != 0 && u64::from(stated) != there {
            return Err(PacketError::parts(format!(
                "{} belong together, and {} there",
                counted(stated.into(), "tensor"),
                match there {
                    1 => "1 is".to_owned(),
                    more => format!("{} are", count(more)),
                }
            )));
        }
        let whole = |(name, tensor): (String, Collected<P>)| WholeTensor {
            name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            parts: tensor.parts.into_values().collect(),
        };
        Ok(self.tensors.into_iter().map(whole).collect())
    }
}
