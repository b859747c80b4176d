//! The families in llama.cpp: the name of each in a GGUF file, the names of their tensors, and the layout in
//! which llama.cpp expects them.
//!
//! Enters: the canonical name of a tensor of the text model or of its MTP head. Leaves: its name, shape and
//! layout in the file. Source: `conversion/` and `gguf-py/gguf/tensor_mapping.py` of llama.cpp, in the
//! version of llama-cpp-python 0.3.36.

use sparktune_plan::architecture::{DeltaNetSpec, MixerSpec};
use sparktune_plan::{Architecture, ModelConfig};

use super::layout::{Layout, Values, interleaved_halves, tiled_heads};

/// A family in llama.cpp.
pub(super) struct Family {
    /// The value of `general.architecture`, which begins the names of the other fields.
    pub(super) name: &'static str,
    /// The name of `post_attention_layernorm`, which is the norm before the MLP in most families.
    post_attention_layernorm: &'static str,
    /// Whether llama.cpp rotates neighbouring pairs of queries and keys instead of halves.
    pub(super) rotates_pairs: bool,
    /// Whether the norms are zero-centred here, while llama.cpp multiplies by the stored weight.
    zero_centred: bool,
}

/// Returns the family of an architecture.
pub(super) const fn family(architecture: Architecture) -> Family {
    const PLAIN: Family =
        Family { name: "", post_attention_layernorm: "ffn_norm", rotates_pairs: false, zero_centred: false };
    const STYLED: Family =
        Family { post_attention_layernorm: "post_attention_norm", zero_centred: true, ..PLAIN };
    match architecture {
        Architecture::Qwen35 => Family { name: "qwen35", ..STYLED },
        Architecture::Gemma3 => Family { name: "gemma3", ..STYLED },
        Architecture::Qwen3 => Family { name: "qwen3", ..PLAIN },
        Architecture::Qwen2 => Family { name: "qwen2", ..PLAIN },
        Architecture::Llama | Architecture::Mistral => Family { name: "llama", rotates_pairs: true, ..PLAIN },
    }
}

/// The modules of a layer that have the same name in every family that has them.
const OF_LAYER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.out_proj", "ssm_out"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The modules outside of layers.
const OF_DECODER: &[(&str, &str)] =
    &[("embed_tokens", "token_embd"), ("norm", "output_norm"), ("lm_head", "output")];

/// The modules of an MTP head outside of its layer.
const OF_MTP: &[(&str, &str)] = &[
    ("fc", "nextn.eh_proj"),
    ("pre_fc_norm_embedding", "nextn.enorm"),
    ("pre_fc_norm_hidden", "nextn.hnorm"),
    ("norm", "nextn.shared_head_norm"),
];

/// A tensor in the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    pub(super) name: String,
    /// The outermost dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) layout: Layout,
    /// Whether it is f32 in every file.
    pub(super) is_wide: bool,
}

/// Returns the place of a tensor in the file, or `None` if llama.cpp has no name for it. The layer of an MTP
/// head follows the layers of the text model.
pub(super) fn place(config: &ModelConfig, canonical: &str, shape: &[usize]) -> Option<Placed> {
    let family = family(config.architecture);
    let name = name(config, &family, canonical)?;
    // The convolution is depthwise, so it has one dimension of size 1.
    let shape = match shape {
        [channels, 1, taps] => vec![*channels, *taps],
        _ => shape.to_vec(),
    };
    let is_norm = name.ends_with("norm.weight");
    let values = if name.ends_with(".ssm_a") {
        Values::MinusExp
    } else if is_norm && family.zero_centred && !name.ends_with(".ssm_norm.weight") {
        Values::PlusOne
    } else {
        Values::Same
    };
    let is_wide = shape.len() < 2 || is_norm || name.ends_with(".ssm_conv1d.weight");
    let (rows, columns) = order(config, &family, canonical, &shape);
    Some(Placed { name, shape, layout: Layout { rows, columns, values }, is_wide })
}

fn name(config: &ModelConfig, family: &Family, canonical: &str) -> Option<String> {
    let layers = config.layers.len();
    let (block, within) = if let Some(rest) = canonical.strip_prefix("mtp.") {
        match rest.strip_prefix("layers.0.") {
            Some(within) => (layers, within),
            None => return Some(format!("blk.{layers}.{}", renamed(OF_MTP, rest)?)),
        }
    } else if let Some(rest) = canonical.strip_prefix("layers.") {
        let (index, within) = rest.split_once('.')?;
        (index.parse().ok().filter(|index| *index < layers)?, within)
    } else {
        return renamed(OF_DECODER, canonical);
    };
    let within = match within {
        // Neither has the suffix `.weight`, so llama.cpp never quantises them.
        "linear_attn.A_log" => "ssm_a".to_owned(),
        "linear_attn.dt_bias" => "ssm_dt.bias".to_owned(),
        "post_attention_layernorm.weight" => format!("{}.weight", family.post_attention_layernorm),
        _ => renamed(OF_LAYER, within)?,
    };
    Some(format!("blk.{block}.{within}"))
}

/// Renames the module of a weight or bias.
fn renamed(table: &[(&str, &str)], name: &str) -> Option<String> {
    let (module, suffix) = name.rsplit_once('.').filter(|(_, suffix)| ["weight", "bias"].contains(suffix))?;
    table.iter().find(|(ours, _)| *ours == module).map(|(_, theirs)| format!("{theirs}.{suffix}"))
}

/// The old index of each new row or column, if they are reordered.
type Order = Option<Vec<usize>>;

/// Returns the order of the rows and of the columns of a tensor.
fn order(config: &ModelConfig, family: &Family, canonical: &str, shape: &[usize]) -> (Order, Order) {
    let Some((layer, within)) = canonical.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
    else {
        return (None, None);
    };
    let spec = layer.parse::<usize>().ok().and_then(|layer| config.layers.get(layer));
    match spec.map(|layer| &layer.mixer) {
        Some(MixerSpec::Attention(attention)) if family.rotates_pairs => {
            let heads = match within.rsplit_once('.') {
                Some(("self_attn.q_proj", _)) => attention.num_attention_heads,
                Some(("self_attn.k_proj", _)) => attention.num_key_value_heads,
                _ => return (None, None),
            };
            (Some(interleaved_halves(shape[0], heads)), None)
        }
        Some(MixerSpec::GatedDeltaNet(delta)) => delta_order(delta, within),
        _ => (None, None),
    }
}

/// Returns the order of the rows and columns of a tensor of a gated DeltaNet, which follows its value heads.
fn delta_order(delta: &DeltaNetSpec, within: &str) -> (Order, Order) {
    let per_group = delta.num_value_heads / delta.num_key_heads;
    if per_group == 1 {
        return (None, None);
    }
    let tiled = |before, width| Some(tiled_heads(before, delta.num_key_heads, per_group, width));
    match within {
        "linear_attn.in_proj_qkv.weight" | "linear_attn.conv1d.weight" => {
            (tiled(2 * delta.key_dim(), delta.value_head_dim), None)
        }
        "linear_attn.in_proj_z.weight" => (tiled(0, delta.value_head_dim), None),
        "linear_attn.in_proj_b.weight"
        | "linear_attn.in_proj_a.weight"
        | "linear_attn.A_log"
        | "linear_attn.dt_bias" => (tiled(0, 1), None),
        "linear_attn.out_proj.weight" => (None, tiled(0, delta.value_head_dim)),
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::NAME_LIMIT;
    use super::*;
    use crate::golden::qwen35;

    fn config() -> ModelConfig {
        let text = std::fs::read_to_string(qwen35().join("checkpoint/config.json")).unwrap();
        ModelConfig::from_json(&text).unwrap()
    }

    #[test]
    fn a_tensor_that_llama_cpp_has_no_name_for_has_no_place() {
        let config = config();
        assert_eq!(
            place(&config, "layers.3.mlp.up_proj.weight", &[8, 4]).unwrap().name,
            "blk.3.ffn_up.weight"
        );
        for name in [
            "layers.4.mlp.up_proj.weight",
            "layers.99999999999999999999.mlp.up_proj.weight",
            "mtp.layers.1.mlp.up_proj.weight",
            "layers.0.mlp.up_proj.scale",
            "layers.",
            "visual.blocks.0.attn.qkv.weight",
            "",
        ] {
            assert_eq!(place(&config, name, &[8, 4]), None, "{name}");
        }
    }

    #[test]
    fn the_longest_names_fit_with_as_many_layers_as_a_config_may_have() {
        let mut config = config();
        config.layers = vec![config.layers[0].clone(); 1024];
        let of_mtp = config.mtp.iter().flat_map(|mtp| mtp.tensors());
        let names = config.tensors().into_iter().chain(of_mtp).map(|tensor| tensor.name);
        let placed = names.map(|name| place(&config, &name, &[64]).unwrap().name);
        assert!(placed.map(|name| name.len() + ".lora_a".len()).max().unwrap() < NAME_LIMIT);
    }
}
