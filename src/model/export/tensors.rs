//! The tensors of an export, by shard: which are the base's and which are trained, and the bytes of both.
//!
//! A trained tensor is fetched from its device when it is written, and dropped before the next one.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use crate::checkpoint::{Checkpoint, TensorInfo};
use crate::decoder::Model;
use crate::error::ModelError;
use crate::linear::Linear;
use crate::mtp::Mtp;
use crate::param::Param;
use crate::weight_file::WeightFile;
use crate::weight_writer::{Described, sort, write_header, write_numbers};

/// The values of a parameter in the output.
enum Written<'a> {
    Param(&'a Param),
    Merged(&'a Linear),
}

impl Written<'_> {
    fn numbers(&self) -> Vec<f32> {
        match self {
            Self::Param(param) => param.to_vec(),
            Self::Merged(linear) => linear.merged_weight(),
        }
    }
}

/// The tensors of an output.
pub(super) struct Tensors<'a> {
    base: &'a Checkpoint,
    /// The trained ones, by stored name.
    trained: BTreeMap<String, Written<'a>>,
    with_mtp: bool,
}

impl<'a> Tensors<'a> {
    /// Collects the tensors of an output. Without `with_mtp`, those of the MTP head are left out.
    ///
    /// # Errors
    /// The stored name of a parameter that has no tensor in the base.
    pub(super) fn new(
        base: &'a Checkpoint,
        model: &'a Model,
        mtp: Option<&'a Mtp>,
        with_mtp: bool,
    ) -> Result<Self, String> {
        let trained: BTreeMap<String, Written> = parameters(model, mtp)
            .into_iter()
            .map(|(canonical, written)| (base.stored_name(canonical), written))
            .collect();
        let unknown = trained.keys().find(|name| !base.tensors().contains_key(*name)).cloned();
        match unknown {
            Some(unknown) => Err(unknown),
            None => Ok(Self { base, trained, with_mtp }),
        }
    }

    /// Returns all tensors of the base that the output has too, by stored name.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'a str, &'a TensorInfo)> {
        let (base, with_mtp) = (self.base, self.with_mtp);
        let all = base.tensors().iter().map(|(name, info)| (name.as_str(), info));
        all.filter(move |(name, _)| with_mtp || !name.starts_with("mtp."))
    }

    pub(super) fn is_trained(&self, name: &str) -> bool {
        self.trained.contains_key(name)
    }

    /// Returns the trained values of a tensor, or `None` if it is the base's.
    pub(super) fn trained_numbers(&self, name: &str) -> Option<Vec<f32>> {
        self.trained.get(name).map(Written::numbers)
    }

    /// Returns whether a shard has tensors of a trained MTP head.
    pub(super) fn has_trained_mtp(&self, shard: usize) -> bool {
        self.all()
            .any(|(name, info)| info.shard == shard && name.starts_with("mtp.") && self.is_trained(name))
    }

    /// Writes the bytes of a shard. `path` names it in errors.
    ///
    /// # Errors
    /// When it cannot be written, or [`ModelError::Stopped`] when `go_on`, asked before each tensor, says no.
    pub(super) fn write_shard(
        &self,
        shard: usize,
        path: &Path,
        out: &mut dyn Write,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), ModelError> {
        let mut described: Vec<Described> = self
            .all()
            .filter(|(_, info)| info.shard == shard)
            .map(|(name, info)| {
                let length = self.base.bytes(info).len();
                Described { name, dtype: info.dtype, shape: &info.shape, length }
            })
            .collect();
        sort(&mut described);
        write_header(&described, out).map_err(ModelError::io(path))?;
        for Described { name, dtype, .. } in described {
            if !go_on() {
                return Err(ModelError::Stopped);
            }
            let info = &self.base.tensors()[name];
            let done = match self.trained.get(name) {
                Some(written) => write_numbers(&written.numbers(), dtype, out),
                None => out.write_all(self.base.bytes(info)),
            };
            self.base.forget(info);
            done.map_err(ModelError::io(path))?;
        }
        Ok(())
    }

    /// Returns whether a file holds exactly the bytes of a shard.
    ///
    /// # Errors
    /// [`ModelError::Stopped`] when `go_on`, asked before each tensor, says no.
    pub(super) fn is_shard(
        &self,
        shard: usize,
        path: &Path,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, ModelError> {
        let Ok(file) = WeightFile::open(path) else { return Ok(false) };
        let mut compared = Compared { file: &file, length: 0 };
        match self.write_shard(shard, path, &mut compared, go_on) {
            Ok(()) => Ok(compared.length == file.bytes().len()),
            Err(ModelError::Stopped) => Err(ModelError::Stopped),
            Err(_) => Ok(false),
        }
    }
}

/// Compares what is written with a file. A difference is an error.
struct Compared<'a> {
    file: &'a WeightFile,
    /// The number of bytes that were equal so far.
    length: usize,
}

impl Write for Compared<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let found = self.file.bytes().get(self.length..self.length + bytes.len());
        if found != Some(bytes) {
            return Err(io::Error::other("the file differs"));
        }
        self.file.forget(self.length..self.length + bytes.len());
        self.length += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the trained parameters by canonical name: trainable ones, the merged weights of linear layers with
/// an adapter, and all parameters of `mtp`.
fn parameters<'a>(model: &'a Model, mtp: Option<&'a Mtp>) -> BTreeMap<&'a str, Written<'a>> {
    let mut all = BTreeMap::new();
    model.visit(&mut |param: &'a Param| {
        if param.is_trainable() && !param.name().contains(".lora_") {
            all.insert(param.name(), Written::Param(param));
        }
    });
    for linear in model.linears().into_iter().filter(|linear| linear.lora.is_some()) {
        all.insert(linear.weight.name(), Written::Merged(linear));
    }
    if let Some(mtp) = mtp {
        mtp.visit(&mut |param: &'a Param| {
            all.insert(param.name(), Written::Param(param));
        });
    }
    all
}
