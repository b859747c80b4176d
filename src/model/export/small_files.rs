//! The files of an export other than its weights: config, tokenizer, template and all other small files of
//! the base's folder.

use std::fs;

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;

/// The changes of `config.json` that make it fit the written tensors.
pub(super) struct AdjustedConfig {
    /// Whether an MTP head is written.
    pub(super) has_mtp: bool,
    /// Whether the output head is a separate tensor.
    pub(super) untied: bool,
}

/// Returns the names and contents of these files.
///
/// # Errors
/// When one cannot be read.
pub(super) fn small_files(
    base: &Checkpoint,
    adjusted: &AdjustedConfig,
) -> Result<Vec<(String, Vec<u8>)>, ModelError> {
    let mut files = Vec::new();
    let entries = fs::read_dir(base.dir()).map_err(ModelError::io(base.dir()))?;
    for entry in entries {
        let entry = entry.map_err(ModelError::io(base.dir()))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let small = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() < 256 << 20);
        // A codebook of corrections fits the weights that it was made for, and no others.
        let weights = [".safetensors", ".bin", ".pt", ".gguf", ".index.json", ".incomplete", ".qubgpu"];
        if !small || name.starts_with('.') || weights.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let contents = if name == "config.json" {
            adjusted.apply(base).into_bytes()
        } else {
            // Only the bytes are copied: the mode of the copy follows the umask of this process, not the
            // original.
            fs::read(&path).map_err(ModelError::io(&path))?
        };
        files.push((name, contents));
    }
    Ok(files)
}

/// The field that declares an MTP head, by the number of its layers. It belongs to the text model.
const HEADS: &str = "mtp_num_hidden_layers";

fn number_of_heads(config: &serde_json::Value) -> u64 {
    let of_text_model = config.get("text_config").unwrap_or(config);
    of_text_model.get(HEADS).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

impl AdjustedConfig {
    /// Returns the adjusted config. It is the base's text, byte for byte, if nothing has to change.
    fn apply(&self, base: &Checkpoint) -> String {
        let mut config: serde_json::Value =
            serde_json::from_str(base.config_text()).expect("was parsed when the base was opened");
        let declared = number_of_heads(&config);
        let drop_mtp = !self.has_mtp && declared > 0;
        // The head came from another model.
        let declare_mtp = self.has_mtp && declared == 0;
        let untie = self.untied && base.config().tie_word_embeddings;
        if !drop_mtp && !declare_mtp && !untie {
            return base.config_text().to_owned();
        }
        let mut set = |key: &str, to: serde_json::Value| {
            let inner = config.get("text_config").is_some().then_some("/text_config").into_iter();
            let mut was_there = false;
            for pointer in std::iter::once("").chain(inner) {
                if let Some(field) = config.pointer_mut(pointer).and_then(|map| map.get_mut(key)) {
                    *field = to.clone();
                    was_there = true;
                }
            }
            // If the config relied on the family's default, a differing value has to be written explicitly.
            match config.get_mut("text_config").filter(|_| !was_there && key == HEADS) {
                Some(of_text_model) => of_text_model[key] = to,
                None if !was_there => config[key] = to,
                None => {}
            }
        };
        if drop_mtp {
            set(HEADS, 0.into());
        }
        if declare_mtp {
            set(HEADS, base.config().mtp_num_hidden_layers.into());
        }
        if untie {
            set("tie_word_embeddings", false.into());
        }
        format!("{config:#}\n")
    }
}
