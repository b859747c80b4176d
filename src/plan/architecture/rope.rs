//! Rotary position embedding, as `config.json` describes it.

use serde_json::{Map, Value};

use super::fields::{ConfigError, Fields};

/// The rotation of a layer's queries and keys by their positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// The number of leading dimensions of each head that are rotated (even, at most `head_dim`).
    pub rotary_dim: usize,
    /// The scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
}

/// A scaling of the frequencies, selected by `rope_type`.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum RopeScaling {
    /// `default`: the frequencies are not scaled.
    #[default]
    None,
    /// `linear`: all frequencies are divided by this factor.
    Linear(f64),
    /// `llama3`: the scaling of Llama 3.1.
    Llama3(Llama3Scaling),
}

/// `rope_scaling` of type `llama3`.
#[derive(Debug, Clone, PartialEq)]
pub struct Llama3Scaling {
    /// The factor by which long wavelengths are stretched.
    pub factor: f64,
    /// Wavelengths over `original / low_freq_factor` are stretched by the whole factor.
    pub low_freq_factor: f64,
    /// Wavelengths under `original / high_freq_factor` are not changed.
    pub high_freq_factor: f64,
    /// The context length of the original training, in tokens.
    pub original_max_position_embeddings: f64,
}

/// The config fields that [`Rope::read`] uses.
pub(super) const USED: &[&str] = &["rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"];

/// The fields inside `rope_parameters` and `rope_scaling` that are used, and those that name the sections of
/// multimodal positions, which are all equal for text (SPEC.md 2.3).
pub(super) const INNER: &[&str] = &[
    "rope_theta",
    "rope_type",
    "type",
    "partial_rotary_factor",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "mrope_section",
    "mrope_interleaved",
];

impl Rope {
    /// Reads the RoPE that all attention layers of a model share. `rotated` is the default for the share of
    /// each head that is rotated.
    pub(super) fn read(config: &Fields, head_dim: usize, rotated: f64) -> Result<Self, ConfigError> {
        // Newer files have everything in `rope_parameters`; older ones have `rope_theta` next to
        // `rope_scaling`.
        let parameters = config.map("rope_parameters").or_else(|| config.map("rope_scaling"));
        let theta = config.float("rope_theta", 10_000.0)?;
        let rotated = config.float("partial_rotary_factor", rotated)?;
        Self::from_parameters(parameters, theta, rotated, head_dim)
    }

    /// Reads a RoPE from its own parameters. `theta` and `rotated` are the defaults.
    pub(super) fn from_parameters(
        parameters: Option<&Map<String, Value>>,
        theta: f64,
        rotated: f64,
        head_dim: usize,
    ) -> Result<Self, ConfigError> {
        let none = Map::new();
        let parameters = Fields::new(parameters.unwrap_or(&none));
        let theta = parameters.float("rope_theta", theta)?;
        let factor = parameters.float("partial_rotary_factor", rotated)?;
        let rotary_dim = (head_dim as f64 * factor) as usize;
        if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let problem = "does not give an even number of rotated dimensions";
            return Err(ConfigError::field("partial_rotary_factor", problem));
        }
        let kind = parameters.text("rope_type").or_else(|| parameters.text("type")).unwrap_or("default");
        let scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => {
                let factor = parameters.float("factor", 0.0)?;
                if factor <= 0.0 {
                    return Err(ConfigError::field(
                        "rope_scaling.factor",
                        "is missing or not greater than 0",
                    ));
                }
                RopeScaling::Linear(factor)
            }
            "llama3" => RopeScaling::Llama3(Llama3Scaling {
                factor: parameters.float("factor", 8.0)?,
                low_freq_factor: parameters.float("low_freq_factor", 1.0)?,
                high_freq_factor: parameters.float("high_freq_factor", 4.0)?,
                original_max_position_embeddings: parameters
                    .float("original_max_position_embeddings", 8192.0)?,
            }),
            other => {
                let problem = format!("is `{other}`, which is not supported");
                return Err(ConfigError::field("rope_scaling.rope_type", &problem));
            }
        };
        Ok(Self { theta, rotary_dim, scaling })
    }
}
