//! Writes a trained model, or its adapter, as a GGUF file, which llama.cpp and Ollama run.
//!
//! The fields, names, layouts and types are those that llama.cpp's own converters write
//! (`convert_hf_to_gguf.py`, `convert_lora_to_gguf.py`). Every tensor of the base is either written or named
//! as left out. One tensor is in memory at a time. The file is written under a temporary name and then
//! renamed.

mod adapter;
mod encoding;
mod families;
mod file;
mod format;
mod hyperparameters;
mod layout;
mod limits;
mod pre_tokenizer;
#[cfg(test)]
mod reader;
mod sampling;
#[cfg(test)]
mod tests;
mod tokenizer_json;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::Path;

use self::encoding::Encoding;
pub use self::encoding::GgufType;
use self::families::{Placed, place};
pub use self::file::Progress;
use self::file::write_file;
use self::format::{Described, Metadata, NAME_LIMIT, Value};
use self::layout::Layout;
use super::tensors::Tensors;
use crate::{Checkpoint, Model, ModelError, Mtp};

/// The values that a tensor of the file is made from.
enum Source<'a> {
    /// A tensor of the base or its trained value, by its stored name.
    Stored(&'a str),
    Made(Vec<f32>),
}

/// A trained model to be written as GGUF.
#[derive(Clone, Copy)]
pub struct Gguf<'a> {
    /// The checkpoint that the model was trained from.
    pub base: &'a Checkpoint,
    /// The trained model.
    pub model: &'a Model,
    /// The trained MTP head. Without one, the base's is written.
    pub mtp: Option<&'a Mtp>,
    /// Whether an MTP head is written at all.
    pub keep_mtp: bool,
    /// The name of the model.
    pub name: &'a str,
    /// The name of the base: `Qwen/Qwen3.5-0.8B`.
    pub base_name: &'a str,
    /// The chat template.
    pub chat_template: Option<&'a str>,
}

/// What a GGUF file contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufContents {
    /// The number of tensors in the file.
    pub tensors: usize,
    /// The number of them with trained values.
    pub trained: usize,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// What is not in the file, or differs in llama.cpp, in whole sentences.
    pub remarks: Vec<String>,
}

impl Gguf<'_> {
    /// Writes the whole model, adapters merged.
    ///
    /// # Errors
    /// When llama.cpp does not know something of the model or its tokenizer, the disk is too small or a file
    /// cannot be written; [`ModelError::Stopped`] when `progress` says no. Then an older file is still there.
    pub fn write_model(
        &self,
        numbers: GgufType,
        out: &Path,
        progress: &mut Progress,
    ) -> Result<GgufContents, ModelError> {
        let base = self.base;
        let config = base.config();
        let mut remarks = limits::check(config).map_err(|reason| self.refused(reason))?;
        let with_mtp = self.keep_mtp && base.has_mtp() && config.mtp.is_some();
        let tensors = Tensors::new(base, self.model, self.mtp.filter(|_| with_mtp), with_mtp)
            .map_err(|name| ModelError::Missing { path: base.dir().to_owned(), name })?;
        let placed = self.place_all(with_mtp)?;
        remarks.extend(self.left_out(&placed)?);

        let mut described = Vec::new();
        let mut sources = Vec::new();
        if let Some(divisors) = hyperparameters::frequency_divisors(config) {
            described.push(Described {
                name: "rope_freqs.weight".to_owned(),
                shape: vec![divisors.len()],
                encoding: Encoding::F32,
            });
            sources.push((Source::Made(divisors), Layout::default()));
        }
        let mut fallen_back = 0;
        for (stored, placed) in &placed {
            let width = placed.shape.last().copied().unwrap_or(1);
            let encoding = if placed.is_wide { Encoding::F32 } else { numbers.encoding(width) };
            fallen_back += usize::from(numbers == GgufType::Q8_0 && encoding == Encoding::F16);
            described.push(Described { name: placed.name.clone(), shape: placed.shape.clone(), encoding });
            sources.push((Source::Stored(stored), placed.layout.clone()));
        }
        if fallen_back > 0 {
            remarks.push(format!(
                "{fallen_back} tensors are f16, because the width of their rows is no multiple of 32, as q8_0 requires."
            ));
        }

        let mut metadata = self.general("model", &described);
        hyperparameters::put(&mut metadata, config, base.config_text(), numbers, usize::from(with_mtp));
        vocabulary::put(&mut metadata, base.dir(), config.vocab_size, self.chat_template)
            .map_err(|reason| self.refused(reason))?;

        let trained = placed.keys().filter(|stored| tensors.is_trained(stored)).count();
        let bytes = write_file(out, &metadata, &described, progress, &mut |index| {
            let (source, layout) = &sources[index];
            let values = match source {
                Source::Stored(stored) => match tensors.trained_numbers(stored) {
                    Some(values) => values,
                    None => base.numbers(stored, &base.tensors()[*stored].shape)?,
                },
                Source::Made(values) => values.clone(),
            };
            let rows = described[index].shape.first().copied().unwrap_or(1).max(1);
            let columns = values.len() / rows;
            Ok(layout.apply(values, columns))
        })?;
        Ok(GgufContents { tensors: described.len(), trained, bytes, remarks })
    }

    /// Returns the place of every tensor that is written, by stored name.
    fn place_all(&self, with_mtp: bool) -> Result<BTreeMap<String, Placed>, ModelError> {
        let (base, config) = (self.base, self.base.config());
        let of_mtp = config.mtp.as_ref().filter(|_| with_mtp).map(|mtp| mtp.tensors()).unwrap_or_default();
        let mut names: Vec<String> =
            config.tensors().into_iter().chain(of_mtp).map(|tensor| tensor.name).collect();
        names.retain(|name| name != "lm_head.weight");
        if !base.is_tied() {
            names.push("lm_head.weight".to_owned());
        }
        let mut all = BTreeMap::new();
        for canonical in names {
            let stored = base.stored_name(&canonical);
            let Some(info) = base.tensors().get(&stored) else {
                return Err(ModelError::Missing { path: base.dir().to_owned(), name: stored });
            };
            let placed = place(config, &canonical, &info.shape)
                .filter(|placed| placed.name.len() < NAME_LIMIT)
                .ok_or_else(|| self.refused(format!("llama.cpp has no name for the tensor `{stored}`")))?;
            all.insert(stored, placed);
        }
        Ok(all)
    }

    /// Says which tensors of the base are not written, and why.
    fn left_out(&self, placed: &BTreeMap<String, Placed>) -> Result<Vec<String>, ModelError> {
        let (mut of_mtp, mut beside, mut computed) = (0, 0, 0);
        for name in self.base.tensors().keys().filter(|name| !placed.contains_key(*name)) {
            if name.starts_with("mtp.") {
                of_mtp += 1;
            } else if name.ends_with("rotary_emb.inv_freq") {
                computed += 1;
            } else if self.base.config().architecture.carries(name) {
                beside += 1;
            } else {
                return Err(self.refused(format!("no part of the model uses the tensor `{name}`")));
            }
        }
        let why_mtp = if self.keep_mtp {
            "llama.cpp runs only the first layer of such a head"
        } else {
            "as set in the plan"
        };
        let sentences = [
            (
                beside,
                "of the vision tower",
                "a file for text has none (llama.cpp reads them from an mmproj file, which is not written)",
            ),
            (of_mtp, "of the MTP head", why_mtp),
            (computed, "with rotary frequencies", "llama.cpp computes them"),
        ];
        let present = sentences.into_iter().filter(|(count, ..)| *count > 0);
        let sentence = |(count, what, why)| format!("{count} tensors {what} are not in the file: {why}.");
        Ok(present.map(sentence).collect())
    }

    /// Returns the fields that every file begins with.
    fn general(&self, kind: &str, tensors: &[Described]) -> Metadata {
        let mut metadata = Metadata::default();
        let family = families::family(self.base.config().architecture);
        metadata.put_text("general.architecture", family.name);
        metadata.put_text("general.type", kind);
        metadata.put_text("general.name", self.name);
        let parameters: usize = tensors.iter().map(Described::values).sum();
        metadata.put_text("general.size_label", size_label(parameters));
        metadata.put("general.base_model.count", Value::U32(1));
        let (organization, name) = name_in_hub(self.base_name);
        metadata.put_text("general.base_model.0.name", name);
        if let Some(organization) = organization {
            metadata.put_text("general.base_model.0.organization", organization);
        }
        sampling::put(&mut metadata, self.base.dir());
        metadata
    }

    fn refused(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Gguf { path: self.base.dir().to_owned(), reason: reason.into() }
    }
}

/// Splits the name of a base in a hub into its organization and the rest. Of a folder, only the last part is
/// taken: where it is on this machine is nobody else's business.
fn name_in_hub(name: &str) -> (Option<&str>, &str) {
    let (before, last) = name.trim_end_matches('/').rsplit_once('/').unwrap_or(("", name));
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with(['.', '~']) && !part.contains('/');
    (Some(before).filter(|before| is_plain(before)), last)
}

/// Returns a number of parameters as llama.cpp's converter labels it: `295K`, `1.9B`.
fn size_label(parameters: usize) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];
    let (unit, suffix) = units.into_iter().find(|(unit, _)| parameters as f64 > *unit).unwrap_or((1e3, "K"));
    let scaled = parameters as f64 / unit;
    // Two digits that are not leading zeros.
    let whole = scaled.round_ties_even();
    let digits = usize::from(whole < 10.0) + usize::from(whole == 0.0);
    format!("{scaled:.digits$}{suffix}")
}
