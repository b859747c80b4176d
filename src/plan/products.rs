//! The matrix products in the training of the catalog's models, which `bench --gpu gemm` times.
//!
//! `tests/gpu/shapes.json` holds them, and the sizes of the models, for the Python scripts that measure the
//! vendor's library and other trainers. A test compares the file with this table, and writes it on request.

use std::collections::HashSet;

use crate::catalog::Catalog;
use crate::model_config::ModelConfig;

/// The pack length in tokens.
pub const PACK: usize = 5376;
/// The rank of the adapters.
pub const RANK: usize = 128;
/// The number of rows whose logits exist at once.
const HEAD_ROWS: usize = 1024;
/// The largest width at which a product is limited by reading its input. The kernels compute such linears
/// together with others.
const NARROW: usize = 64;

/// The product `C [m, n] = A [m, k] · B [k, n]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    /// The size of the model, the linear and the pass that first need it.
    pub name: String,
    /// The number of rows of the result.
    pub m: usize,
    /// The number of columns of the result.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// The row-major layout of `A` and `B` in memory: `N` as in the formula, `T` transposed.
    pub layout: &'static str,
}

/// Returns the catalog's shapes by name, smallest first, each with the config of a model.
pub fn shapes() -> Vec<(&'static str, ModelConfig)> {
    let catalog = Catalog::shipped();
    let mut seen = HashSet::new();
    let models = catalog.models.iter().filter(|model| seen.insert(model.shape.as_str()));
    models.map(|model| (model.shape.as_str(), catalog.model_facts(model).config)).collect()
}

/// Returns every distinct product of all sizes, smallest size first.
pub fn products() -> Vec<Product> {
    let mut products = Vec::new();
    let mut seen = HashSet::new();
    for (size, config) in shapes() {
        let mut add = |name: String, m: usize, n: usize, k: usize, layout: &'static str| {
            if seen.insert((m, n, k, layout)) {
                products.push(Product { name: format!("{size} {name}"), m, n, k, layout });
            }
        };
        let groups = config.layer_kinds().into_iter().flat_map(|(layer, _)| layer.input_groups());
        for group in groups {
            for linear in group.iter().filter(|linear| linear.output > NARROW) {
                let (name, out, width) = (linear.name(), linear.output, linear.input);
                add(format!("{name} forward"), PACK, out, width, "NT");
                add(format!("{name} dX"), PACK, width, out, "NN");
                add(format!("{name} dW"), out, width, PACK, "TN");
                add(format!("{name} LoRA B"), PACK, out, RANK, "NT");
                add(format!("{name} LoRA dU"), PACK, RANK, out, "NN");
                add(format!("{name} LoRA dB"), out, RANK, PACK, "TN");
            }
            let (together, width) = (RANK * group.len(), group[0].input);
            let names = group.iter().map(|linear| linear.name()).collect::<Vec<_>>().join("+");
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
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    /// Returns the text of `tests/gpu/shapes.json`: the sizes of the models by name, and the products, one
    /// per line.
    fn shapes_json() -> String {
        let lines = |items: Vec<String>| items.join(",\n    ");
        let sizes = shapes().into_iter().map(|(name, _)| {
            let config = Catalog::shipped().text_config(name).expect("the name is from the catalog");
            format!("\"{name}\": {}", Value::Object(config))
        });
        let products = products().into_iter().map(|Product { name, m, n, k, layout }| {
            json!({"name": name, "m": m, "n": n, "k": k, "layout": layout}).to_string()
        });
        format!(
            "{{\n  \"pack\": {PACK},\n  \"rank\": {RANK},\n  \"sizes\": {{\n    {}\n  }},\n  \"products\": [\n    {}\n  ]\n}}\n",
            lines(sizes.collect()),
            lines(products.collect())
        )
    }

    fn read(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn all_five_sizes_are_there_smallest_first() {
        let names: Vec<&str> = shapes().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["0.8B", "2B", "4B", "9B", "27B"]);
    }

    #[test]
    fn the_file_that_the_gpu_scripts_read_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu/shapes.json");
        if std::env::var_os("SPARKTUNE_UPDATE").is_some() {
            std::fs::write(&path, shapes_json()).unwrap();
        }
        let [written, expected] =
            [std::fs::read_to_string(&path).unwrap(), shapes_json()].map(|text| read(&text));
        assert!(
            written == expected,
            "run this test with SPARKTUNE_UPDATE=1 and commit tests/gpu/shapes.json"
        );
    }
}
