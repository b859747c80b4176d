use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::catalog::Catalog;

fn model() -> ModelConfig {
    let catalog = Catalog::shipped();
    catalog.model_facts(catalog.find("Qwen/Qwen3.5-0.8B").unwrap()).config
}

const NAMED: &str = "base_model.model.model.language_model.";

/// The name and the shape of a tensor.
type Tensor = (String, Vec<usize>);

/// Returns the tensors of an adapter of rank 4 on layers of these names.
fn tensors(prefix: &str, names: &[&str]) -> Vec<Tensor> {
    let mut all = Vec::new();
    for (i, layer) in model().layers.iter().enumerate() {
        for linear in layer.linears().filter(|linear| names.contains(&linear.name())) {
            let name = |matrix| format!("{prefix}layers.{i}.{}.lora_{matrix}.weight", linear.path);
            all.push((name('A'), vec![4, linear.input]));
            all.push((name('B'), vec![linear.output, 4]));
        }
    }
    all
}

fn config(more: &Value) -> Result<AdapterConfig, AdapterError> {
    let mut config = json!({ "peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none" });
    for (field, value) in more.as_object().unwrap() {
        config[field] = value.clone();
    }
    AdapterConfig::from_json(&config.to_string())
}

fn fit(tensors: &[Tensor]) -> Result<FittedAdapter, AdapterError> {
    let tensors = tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice()));
    config(&json!({})).unwrap().fit(tensors, &model())
}

#[test]
fn names_of_all_classes_are_the_same_layers_and_the_layers_are_the_targets() {
    for prefix in [
        NAMED,
        "base_model.model.model.",
        "base_model.model.language_model.model.",
        "model.language_model.",
        "base_model.model.language_model.",
        "base_model.model.",
    ] {
        let fitted = fit(&tensors(prefix, &["q_proj", "up_proj"])).unwrap();
        assert_eq!(fitted.facts.targets.to_string(), "q_proj, up_proj", "{prefix}");
        assert!(fitted.facts.clipped);
        let [a, b] = &fitted.modules["layers.0.mlp.up_proj"];
        assert_eq!(a, &format!("{prefix}layers.0.mlp.up_proj.lora_A.weight"));
        assert_eq!(b, &format!("{prefix}layers.0.mlp.up_proj.lora_B.weight"));
    }
}

#[test]
fn tensors_that_are_missing_foreign_or_of_another_shape_are_named() {
    let good = tensors(NAMED, &["q_proj"]);
    let said = |change: &dyn Fn(&mut Vec<Tensor>)| {
        let mut changed = good.clone();
        change(&mut changed);
        fit(&changed).unwrap_err().to_string()
    };
    let missing = said(&|tensors| drop(tensors.remove(1)));
    assert!(missing.contains("q_proj.lora_B.weight` is missing"), "{missing}");
    let shape = said(&|tensors| tensors[0].1 = vec![8, 1024]);
    assert!(shape.contains("has the shape [8, 1024], but [4, 1024] is needed"), "{shape}");
    for foreign in [
        "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight",
        "base_model.model.model.language_model.layers.99.self_attn.q_proj.lora_A.weight",
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.layers.3.self_attn.q_proj.lora_magnitude_vector",
        "../../etc/passwd",
    ] {
        let said = said(&|tensors| tensors.push((foreign.to_owned(), vec![4, 4])));
        assert!(said.contains(foreign) && said.contains("no linear layer of this model"), "{said}");
    }
    assert_eq!(fit(&[]), Err(AdapterError::Empty));
}

#[test]
fn what_sparktune_does_not_compute_is_refused_by_its_field() {
    for (field, value) in [
        ("use_dora", json!(true)),
        ("peft_type", json!("LOHA")),
        ("bias", json!("all")),
        ("lora_bias", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("init_lora_weights", json!("pissa")),
        ("layer_replication", json!([[0, 4]])),
        ("of_the_future", json!(1)),
    ] {
        let error = config(&json!({ field: value })).unwrap_err();
        assert!(
            matches!(&error, AdapterError::Unsupported { field: named, .. } if named == field),
            "{error}"
        );
    }
    for (field, value) in [
        ("r", json!(0)),
        ("r", json!(1e300)),
        ("lora_alpha", json!("8")),
        ("rank_pattern", json!({ ".*": 4 })),
        ("rank_pattern", json!([4])),
        ("alpha_pattern", json!("q_proj")),
        ("alpha_pattern", json!({ "q_proj": "8" })),
        ("use_rslora", json!("true")),
        ("use_rslora", json!(1)),
        ("lora_dropout", json!("0.1")),
        ("lora_dropout", json!(1)),
    ] {
        let error = config(&json!({ field: value })).unwrap_err();
        assert!(matches!(&error, AdapterError::Field { field: named, .. } if *named == field), "{error}");
    }
    assert!(matches!(AdapterConfig::from_json("{"), Err(AdapterError::NotJson(_))));
}

#[test]
fn ranks_of_single_layers_are_read_where_all_layers_have_one_scale() {
    let mut tensors = tensors(NAMED, &["in_proj_a", "in_proj_b"]);
    for (name, shape) in &mut tensors {
        if name.contains("in_proj_a") {
            *shape.iter_mut().find(|size| **size == 4).unwrap() = 2;
        }
    }
    let fitted = |alphas: Value| {
        let config = config(&json!({ "rank_pattern": { "in_proj_a": 2 }, "alpha_pattern": alphas })).unwrap();
        config.fit(tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())), &model())
    };
    assert!(!fitted(json!({ "in_proj_a": 4 })).unwrap().facts.clipped);
    let error = fitted(json!({})).unwrap_err().to_string();
    assert!(error.contains("in_proj_a` has the scale 4, and others have 2"), "{error}");
}

proptest! {
    #[test]
    fn no_config_and_no_name_of_a_tensor_ends_in_a_panic(
        text in "[{}\\[\\]\":,a-z0-9_. ]{0,60}", name in "(base_model\\.)?(model\\.){0,2}[a-zA-Z0-9_.]{0,40}",
        shape in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let _ = AdapterConfig::from_json(&text);
        let _ = config(&json!({})).unwrap().fit([(name.as_str(), shape.as_slice())], &model());
    }
}
