//! The matrix products that training the models of the catalog takes: what `bench --gpu gemm` times. `tests/gpu/shapes.py` lists the
//! same for the vendor's library alone.

use std::collections::HashSet;

use crate::catalog::Catalog;
use crate::model_config::{LayerType, ModelConfig};

/// Tokens of a row.
pub const PACK: usize = 5376;
/// Rank of the adapters.
pub const RANK: usize = 128;
/// Rows whose logits exist at once.
const HEAD_ROWS: usize = 1024;
/// As narrow as this a product is bound by reading its input; the kernels take such linears together with others.
const NARROW: usize = 64;

/// Linears that read the same input, by their paths below the layer.
const GROUPS: [(LayerType, &[&str]); 6] = [
    (
        LayerType::LinearAttention,
        &[
            "linear_attn.in_proj_qkv",
            "linear_attn.in_proj_z",
            "linear_attn.in_proj_a",
            "linear_attn.in_proj_b",
        ],
    ),
    (LayerType::LinearAttention, &["linear_attn.out_proj"]),
    (LayerType::FullAttention, &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    (LayerType::FullAttention, &["self_attn.o_proj"]),
    (LayerType::FullAttention, &["mlp.gate_proj", "mlp.up_proj"]),
    (LayerType::FullAttention, &["mlp.down_proj"]),
];

/// `C [m, n] = A [m, k] · B [k, n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// Size of the model, linear and pass that first need it.
    pub name: String,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summed dimension.
    pub k: usize,
    /// How `A` and `B` lie in memory, row by row: `N` as in the formula, `T` transposed.
    pub layout: &'static str,
}

/// The catalog's shapes by name, smallest first, with the config of a model of each.
pub fn shapes() -> Vec<(&'static str, ModelConfig)> {
    let catalog = Catalog::shipped();
    let mut seen = HashSet::new();
    let models = catalog.models.iter().filter(|model| seen.insert(model.shape.as_str()));
    models.map(|model| (model.shape.as_str(), catalog.model_facts(model).config)).collect()
}

/// Every different product of all sizes, smallest size first.
pub fn products() -> Vec<Product> {
    let mut products = Vec::new();
    let mut seen = HashSet::new();
    for (size, config) in shapes() {
        let mut add = |name: String, m: usize, n: usize, k: usize, layout: &'static str| {
            if seen.insert((m, n, k, layout)) {
                products.push(Product { name: format!("{size} {name}"), m, n, k, layout });
            }
        };
        for (layer, paths) in GROUPS {
            let linears = config.linears(layer);
            let sizes = |path: &'static str| {
                let found = linears.iter().find(|(name, ..)| *name == path);
                let (_, out, width) = *found.expect("a linear of Qwen3.5");
                (path.rsplit_once('.').map_or(path, |(_, name)| name), out, width)
            };
            let group: Vec<_> = paths.iter().map(|path| sizes(path)).collect();
            for (name, out, width) in group.iter().copied().filter(|(_, out, _)| *out > NARROW) {
                add(format!("{name} forward"), PACK, out, width, "NT");
                add(format!("{name} dX"), PACK, width, out, "NN");
                add(format!("{name} dW"), out, width, PACK, "TN");
                add(format!("{name} LoRA B"), PACK, out, RANK, "NT");
                add(format!("{name} LoRA dU"), PACK, RANK, out, "NN");
                add(format!("{name} LoRA dB"), out, RANK, PACK, "TN");
            }
            let (together, width) = (RANK * group.len(), group[0].2);
            let names = group.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join("+");
            add(format!("{names} LoRA A"), PACK, together, width, "NT");
            add(format!("{names} LoRA dA"), together, width, PACK, "TN");
        }
        let (h, v) = (config.hidden_size, config.vocab_size);
        add("head forward".into(), HEAD_ROWS, v, h, "NT");
        add("head dX".into(), HEAD_ROWS, h, v, "NN");
        add("head dW".into(), v, h, HEAD_ROWS, "TN");
    }
    products
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn all_five_sizes_are_there_smallest_first() {
        let names: Vec<&str> = shapes().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["0.8B", "2B", "4B", "9B", "27B"]);
    }

    #[test]
    fn the_products_are_those_that_the_vendors_library_is_timed_with() {
        const LISTING: &str = "import shapes\nfor p in shapes.products(): print(*p.values(), sep='\\t')";
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/gpu");
        let python = Command::new("python3").args(["-B", "-c", LISTING]).env("PYTHONPATH", folder).output();
        let Some(listing) = python.ok().filter(|done| done.status.success()) else {
            eprintln!("skipped: python3 is not here, or is older than 3.11");
            return;
        };
        let listing = String::from_utf8(listing.stdout).unwrap();
        let ours: String = products()
            .iter()
            .map(|Product { name, m, n, k, layout }| format!("{name}\t{m}\t{n}\t{k}\t{layout}\n"))
            .collect();
        assert!(ours.lines().count() > 100);
        assert_eq!(ours, listing);
    }
}
