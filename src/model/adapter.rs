//! Reads adapters in PEFT's format, to train them further.
//!
//! Enters: an adapter's folder, which is untrusted. Leaves: the adapters on the linear layers of a model. The
//! rules for its config and for the names and shapes of its tensors are `sparktune_plan::adapter`'s.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use sparktune_base::regular_file::read_model_json;
use sparktune_plan::adapter::{AdapterConfig, AdapterFacts, CONFIG_FILE, PICKLE_FILE, TENSOR_FILE};

use crate::decoder::Model;
use crate::error::ModelError;
use crate::linear::Lora;
use crate::lora::LoraConfig;
use crate::numbers::widen;
use crate::weight_file::WeightFile;

/// Returns the memory that an adapter takes on a model, in bytes, from the header of its file; 0 if there is
/// none that [`Model::load_lora`] could read.
pub fn lora_bytes(folder: &Path) -> u64 {
    let Ok(file) = WeightFile::open(&folder.join(TENSOR_FILE)) else { return 0 };
    let Ok(tensors) = SafeTensors::deserialize(file.bytes()) else { return 0 };
    let numbers = |view: &TensorView<'_>| view.shape().iter().product::<usize>() as u64;
    tensors.iter().map(|(_, view)| numbers(&view) * size_of::<f32>() as u64).sum()
}

impl Model {
    /// Attaches the adapters of a PEFT folder to the model, trainable, and freezes everything else.
    ///
    /// # Errors
    /// When a file is missing or damaged, does not fit the model, or contains a number that is not finite.
    pub fn load_lora(&mut self, folder: &Path) -> Result<LoraConfig, ModelError> {
        let wrong = |reason: String| ModelError::Adapter { path: folder.to_owned(), reason };
        let path = folder.join(CONFIG_FILE);
        let text = read_model_json(&path).map_err(ModelError::io(&path))?;
        let config = AdapterConfig::from_json(&text).map_err(|e| wrong(e.to_string()))?;
        let path = folder.join(TENSOR_FILE);
        if !path.exists() && folder.join(PICKLE_FILE).exists() {
            return Err(wrong(pickle_in_words()));
        }
        let file = WeightFile::open(&path).map_err(ModelError::io(&path))?;
        let tensors = SafeTensors::deserialize(file.bytes())
            .map_err(|e| wrong(format!("{TENSOR_FILE} is damaged ({e}). Copy the adapter again")))?;
        let views = tensors.tensors();
        let shapes = views.iter().map(|(name, view)| (name.as_str(), view.shape()));
        let fitted = config.fit(shapes, self.config()).map_err(|e| wrong(e.to_string()))?;

        let AdapterFacts { rank, alpha, rslora, clipped, targets, dropout } = fitted.facts;
        let config = LoraConfig { rank: rank as usize, alpha, rslora, clipped, targets, dropout };
        let numbers = |name: &str| {
            let view = tensors.tensor(name).map_err(|e| wrong(e.to_string()))?;
            let numbers = widen(view.data(), view.dtype()).ok_or_else(|| {
                wrong(format!("the tensor `{name}` is stored as {:?}, not as floats", view.dtype()))
            })?;
            file.forget_piece(view.data());
            if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
                return Err(wrong(format!(
                    "the tensor `{name}` contains the number {number}, so its training has failed. Choose another adapter, or an earlier checkpoint of it"
                )));
            }
            Ok(numbers)
        };
        self.set_trainable(false);
        let device = self.device().clone();
        for linear in self.linears_mut() {
            let path = linear.path().to_owned();
            linear.lora = match fitted.modules.get(&path) {
                Some([a, b]) => {
                    let (a, b) = (numbers(a)?, numbers(b)?);
                    let rank = a.len() / linear.weight.shape()[1];
                    Some(Lora::new(&path, config.scale(), rank, [a, b], &device))
                }
                None => None,
            };
        }
        Ok(config)
    }
}

fn pickle_in_words() -> String {
    format!(
        "{PICKLE_FILE} is a pickle, which can run programs when it is opened, so it is not read. Save the adapter as {TENSOR_FILE}, as PEFT does by default (safe_serialization=True)"
    )
}
