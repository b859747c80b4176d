//! Writes the adapter of a model as a GGUF file, which llama.cpp adds to a file of the base.
//!
//! llama.cpp scales an adapter by `alpha / rank`, with one alpha for the file and the rank of each tensor.
//! Here the scale is the same for all adapters, also for those of a lower rank. So the file has the alpha of
//! the setting's rank, and `B` of the others is scaled.

use std::path::Path;

use super::encoding::Encoding;
use super::families::place;
use super::file::{Progress, write_file};
use super::format::{Described, NAME_LIMIT, Value};
use super::layout::Layout;
use super::{Gguf, GgufContents};
use crate::linear::{Linear, Lora};
use crate::{LoraConfig, ModelError};

/// One of the two matrices of an adapter.
struct Half<'a> {
    linear: &'a Linear,
    is_a: bool,
    layout: Layout,
    factor: f32,
}

impl Gguf<'_> {
    /// Writes the adapter alone, in f32.
    ///
    /// # Errors
    /// The same as for [`write_model`](Self::write_model), and when the model has no adapter.
    pub fn write_adapter(
        &self,
        lora: LoraConfig,
        out: &Path,
        progress: &mut Progress,
    ) -> Result<GgufContents, ModelError> {
        let (mut described, mut halves) = (Vec::new(), Vec::new());
        for linear in self.model.linears() {
            let Some(Lora { a, b, scale, .. }) = &linear.lora else { continue };
            let refused = || self.refused(format!("llama.cpp has no name for `{}`", linear.path()));
            let placed = place(self.base.config(), linear.weight.name(), linear.weight.shape());
            let placed = placed.ok_or_else(refused)?;
            let rank = a.shape()[0];
            // The factor is 1 where the rank is that of the setting.
            let factor = *scale / (lora.scale() * lora.rank as f64 / rank as f64);
            let Layout { rows, columns, .. } = placed.layout;
            let of_a = Layout { columns, ..Layout::default() };
            let of_b = Layout { rows, ..Layout::default() };
            for (is_a, param, layout, factor) in [(true, a, of_a, 1.0), (false, b, of_b, factor as f32)] {
                let name = format!("{}.lora_{}", placed.name, if is_a { 'a' } else { 'b' });
                if name.len() >= NAME_LIMIT {
                    return Err(refused());
                }
                let shape = param.shape().to_vec();
                described.push(Described { name, shape, encoding: Encoding::F32 });
                halves.push(Half { linear, is_a, layout, factor });
            }
        }
        if described.is_empty() {
            return Err(self.refused("the run trained no adapter"));
        }
        let mut metadata = self.general("adapter", &described);
        metadata.put_text("adapter.type", "lora");
        metadata.put("adapter.lora.alpha", Value::F32((lora.scale() * lora.rank as f64) as f32));
        metadata.put("general.file_type", Value::U32(0));
        metadata.put("general.quantization_version", Value::U32(2));
        let bytes = write_file(out, &metadata, &described, progress, &mut |index| {
            let Half { linear, is_a, layout, factor } = &halves[index];
            let Lora { a, b, .. } = linear.lora.as_ref().expect("only adapters are listed");
            let param = if *is_a { a } else { b };
            let mut values = layout.apply(param.to_vec(), param.shape()[1]);
            if *factor != 1.0 {
                values.iter_mut().for_each(|x| *x *= factor);
            }
            Ok(values)
        })?;
        let tensors = described.len();
        Ok(GgufContents { tensors, trained: tensors, bytes, remarks: Vec::new() })
    }
}
