//! Where a tensor goes: the part of a model that its name stands for.

use super::codes::{ATTENTION, EMBEDDING, FFN, LORA, OTHER_PART};

/// The parts of names that tell the destination, and its code. The first that matches decides, so that a LoRA
/// factor of an attention layer is a LoRA factor.
const PARTS: [(&[&str], u8); 4] = [
    (&["lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"], LORA),
    (&["self_attn", "linear_attn", "attn", "attention"], ATTENTION),
    (&["mlp", "ffn", "feed_forward"], FFN),
    (&["embed_tokens", "wte", "tok_embeddings"], EMBEDDING),
];
/// What names of adapters begin with.
const PREFIXES: [&str; 2] = ["base_model.model.", "base_model."];

/// The place of a tensor in a model, as its name tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The DST of its packets.
    pub dst: u8,
    /// The number of the layer, if the name has one.
    pub layer: Option<u32>,
    /// The module that it changes: the name without what adapters put around it.
    pub module: String,
}

/// Returns the place that a tensor's name stands for.
pub fn place_of(name: &str) -> Place {
    let segments: Vec<&str> = name.split('.').collect();
    let has = |words: &[&str]| segments.iter().any(|segment| words.contains(segment));
    let dst = PARTS.iter().find(|(words, _)| has(words)).map_or(OTHER_PART, |(_, code)| *code);
    let layer = segments
        .windows(2)
        .find(|pair| ["layers", "h", "blocks"].contains(&pair[0]))
        .and_then(|pair| pair[1].parse().ok());
    let inner = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let end = inner.find(".lora_").unwrap_or(inner.len());
    let module = inner[..end].trim_end_matches(".weight").trim_end_matches(".bias").to_owned();
    Place { dst, layer, module }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_parts_and_layers() {
        for (name, dst, layer, module) in [
            (
                "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight",
                LORA,
                Some(3),
                "model.layers.3.self_attn.q_proj",
            ),
            (
                "model.layers.11.linear_attn.in_proj_qkv.weight",
                ATTENTION,
                Some(11),
                "model.layers.11.linear_attn.in_proj_qkv",
            ),
            ("model.layers.0.mlp.down_proj.weight", FFN, Some(0), "model.layers.0.mlp.down_proj"),
            ("model.embed_tokens.weight", EMBEDDING, None, "model.embed_tokens"),
            ("model.norm.weight", OTHER_PART, None, "model.norm"),
            ("layers.99999999999.x", OTHER_PART, None, "layers.99999999999.x"),
            ("", OTHER_PART, None, ""),
        ] {
            assert_eq!(place_of(name), Place { dst, layer, module: module.into() });
        }
    }
}
