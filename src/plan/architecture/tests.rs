use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::model_config::{ConfigOptions, ModelConfig};

/// Returns the configs of `published/` by file name, each with the number of parameters of its text model.
fn published() -> Vec<(String, Value, u64)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("architecture/published");
    let mut cases: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let case: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, case["config"].clone(), case["parameters"].as_u64().unwrap())
        })
        .collect();
    cases.sort_by(|one, other| one.0.cmp(&other.0));
    cases
}

fn read(config: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json(&config.to_string())
}

/// Returns the object that holds the text model's fields.
fn text(config: &mut Value) -> &mut Value {
    if config.get("text_config").is_some() { &mut config["text_config"] } else { config }
}

#[test]
fn published_configs_of_every_family_are_read_and_have_the_published_number_of_parameters() {
    let mut families = BTreeSet::new();
    for (name, config, parameters) in published() {
        let config = read(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(config.text_parameters(), parameters, "{name}");
        families.insert(config.architecture.word());
    }
    let all: BTreeSet<&str> = Architecture::ALL.iter().map(|family| family.word()).collect();
    assert_eq!(families, all, "a family has no published config to be held against");
}

#[test]
fn a_field_that_no_list_knows_is_refused_in_every_family_and_taken_once_it_is_ignored() {
    for (name, mut config, _) in published() {
        text(&mut config)["use_new_thing"] = json!(true);
        text(&mut config)["new_scale"] = json!(2.5);
        let error = read(&config).unwrap_err().to_string();
        for expected in ["`use_new_thing`", "`new_scale`", "--ignore-config-field new_scale"] {
            assert!(error.contains(expected), "{name}: {error}");
        }
        let mut options =
            ConfigOptions { ignored_fields: vec!["use_new_thing".into()], ..Default::default() };
        let error = ModelConfig::from_json_with(&config.to_string(), &options).unwrap_err().to_string();
        assert!(error.contains("`new_scale`") && !error.contains("use_new_thing"), "{name}: {error}");
        options.ignored_fields.push("new_scale".into());
        ModelConfig::from_json_with(&config.to_string(), &options).unwrap();
    }
}

#[test]
fn a_field_whose_value_turns_it_off_is_passed_over() {
    for (name, config, _) in published() {
        for off in [json!(null), json!(false), json!(0), json!(0.0), json!(""), json!([]), json!({})] {
            let mut config = config.clone();
            text(&mut config)["use_new_thing"] = off.clone();
            assert!(read(&config).is_ok(), "{name}: {off}");
        }
    }
}

#[test]
fn a_field_that_asks_for_another_computation_is_refused_in_every_family() {
    for (name, config, _) in published() {
        for (field, value) in
            [("num_experts", json!(8)), ("residual_multiplier", json!(0.22)), ("mlp_bias", json!(true))]
        {
            let mut config = config.clone();
            text(&mut config)[field] = value;
            let error = read(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{name}: {error}");
        }
        let mut config = config.clone();
        // A factor of one has no effect.
        text(&mut config)["residual_multiplier"] = json!(1.0);
        assert!(read(&config).is_ok(), "{name}");
    }
}

#[test]
fn fields_inside_rope_and_beside_the_text_model_are_looked_at_too() {
    for (name, config, _) in published() {
        let mut inside = config.clone();
        let rope = json!({"rope_type": "default", "rope_theta": 10000.0, "new_base": 3.0});
        text(&mut inside)["rope_parameters"] = rope;
        let error = read(&inside).unwrap_err().to_string();
        assert!(error.contains("`rope_parameters.new_base`"), "{name}: {error}");
        if config.get("text_config").is_some() {
            let mut beside = config.clone();
            beside["use_new_thing"] = json!(true);
            let error = read(&beside).unwrap_err().to_string();
            assert!(error.contains("`use_new_thing`"), "{name}: {error}");
        }
    }
}

#[test]
fn a_message_about_a_hostile_config_stays_short() {
    let (_, mut config, _) = published().remove(0);
    for i in 0..1000 {
        config[format!("{i:03}{}", "x".repeat(10_000))] = json!(1);
    }
    let error = read(&config).unwrap_err().to_string();
    assert!(error.len() < 3000 && error.contains("and 992 more"), "{error}");
}

#[test]
fn no_field_is_in_two_lists_of_a_family() {
    for family in Architecture::ALL {
        let FieldLists { used, harmless, refused, wrapper } = &family.family().fields;
        let all: Vec<&str> = [*used, *harmless, *refused, *wrapper].concat();
        let different: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(different.len(), all.len(), "{family}");
    }
}

#[test]
fn linear_layers_that_read_the_same_input_stand_side_by_side_and_have_its_width() {
    for (name, config, _) in published() {
        for (layer, _) in read(&config).unwrap().layer_kinds() {
            let groups = layer.input_groups();
            let inputs: Vec<Reads> = groups.iter().map(|group| group[0].reads).collect();
            assert_eq!(
                inputs,
                [Reads::MixerInput, Reads::Mixed, Reads::MlpInput, Reads::MlpHidden],
                "{name}: an input occurs twice, or groups are out of order"
            );
            for group in groups {
                assert!(group.iter().all(|linear| linear.input == group[0].input), "{name}: {group:?}");
            }
        }
    }
}

#[test]
fn windows_are_those_of_the_layers_that_the_config_names() {
    let (_, config, _) = published().into_iter().find(|(name, ..)| name == "qwen2.5-0.5b-instruct").unwrap();
    let windows = |config: &Value| -> Vec<Option<usize>> {
        let windows = read(config).unwrap().layers.into_iter().map(|layer| match layer.mixer {
            MixerSpec::Attention(attention) => attention.sliding_window,
            MixerSpec::GatedDeltaNet(_) => None,
        });
        windows.collect()
    };
    assert_eq!(windows(&config), [None; 24], "use_sliding_window is false");
    let mut some = config.clone();
    (some["use_sliding_window"], some["sliding_window"]) = (json!(true), json!(100));
    let expected =
        |windowed: fn(usize) -> bool| (0..24).map(|i| windowed(i).then_some(100)).collect::<Vec<_>>();
    assert_eq!(windows(&some), expected(|i| i >= 21), "from max_window_layers on");
    assert_eq!(read(&some).unwrap().max_example_tokens(), 32768, "layers without a window see everything");
    let mut listed = some.clone();
    let kind = |i: usize| if i.is_multiple_of(2) { "sliding_attention" } else { "full_attention" };
    listed["layer_types"] = (0..24).map(kind).collect();
    assert_eq!(windows(&listed), expected(|i| i.is_multiple_of(2)), "as listed");
    some["max_window_layers"] = json!(0);
    assert_eq!(read(&some).unwrap().max_example_tokens(), 100, "no layer sees further");
}

#[test]
fn a_gate_or_an_activation_that_is_not_computed_is_refused() {
    for (name, config, _) in published() {
        let mut config = config.clone();
        text(&mut config)["hidden_act"] = json!("gelu");
        assert!(read(&config).unwrap_err().to_string().contains("hidden_act"), "{name}");
    }
    let (_, config, _) = published().into_iter().find(|(name, ..)| name == "qwen3.5-27b").unwrap();
    for (field, value) in [("output_gate_type", json!("sigmoid")), ("attn_output_gate", json!(false))] {
        let mut config = config.clone();
        config["text_config"][field] = value;
        assert!(read(&config).unwrap_err().to_string().contains(field));
    }
}

/// The tables as text, one line for each tensor of one layer of each kind. A change of a table is visible
/// here.
#[test]
fn the_layers_of_qwen3_5_are_these() {
    let (_, config, _) = published().into_iter().find(|(name, ..)| name == "qwen3.5-27b").unwrap();
    let config = read(&config).unwrap();
    let kinds: Vec<_> =
        config.layer_kinds().into_iter().map(|(layer, count)| (layer.clone(), count)).collect();
    let rows = |layer: &LayerSpec| -> Vec<String> {
        layer.tensors().iter().map(|tensor| format!("{} {:?}", tensor.name, tensor.shape)).collect()
    };
    assert_eq!(kinds.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [48, 16]);
    assert_eq!(
        rows(&kinds[0].0),
        [
            "input_layernorm.weight [5120]",
            "linear_attn.in_proj_qkv.weight [10240, 5120]",
            "linear_attn.in_proj_z.weight [6144, 5120]",
            "linear_attn.in_proj_b.weight [48, 5120]",
            "linear_attn.in_proj_a.weight [48, 5120]",
            "linear_attn.out_proj.weight [5120, 6144]",
            "linear_attn.conv1d.weight [10240, 1, 4]",
            "linear_attn.A_log [48]",
            "linear_attn.dt_bias [48]",
            "linear_attn.norm.weight [128]",
            "post_attention_layernorm.weight [5120]",
            "mlp.gate_proj.weight [17408, 5120]",
            "mlp.up_proj.weight [17408, 5120]",
            "mlp.down_proj.weight [5120, 17408]",
        ]
    );
    assert_eq!(
        rows(&kinds[1].0),
        [
            "input_layernorm.weight [5120]",
            "self_attn.q_proj.weight [12288, 5120]",
            "self_attn.k_proj.weight [1024, 5120]",
            "self_attn.v_proj.weight [1024, 5120]",
            "self_attn.o_proj.weight [5120, 6144]",
            "self_attn.q_norm.weight [256]",
            "self_attn.k_norm.weight [256]",
            "post_attention_layernorm.weight [5120]",
            "mlp.gate_proj.weight [17408, 5120]",
            "mlp.up_proj.weight [17408, 5120]",
            "mlp.down_proj.weight [5120, 17408]",
        ]
    );
    // SPEC.md 1.2: 851 tensors, 3 of them outside the layers.
    assert_eq!(config.tensors().len(), 851);
    // Adapters on 8 and 7 linear layers add their inner vectors to the values that are kept (4 H + 3 I and
    // those of the mixer). Two of the 8 layers have only 48 outputs.
    assert_eq!(kinds[0].0.kept_with_adapters(0, |_| true), 4 * 5120 + 3 * 17408 + 2 * 10240 + 3 * 6144);
    assert_eq!(
        kinds[0].0.kept_with_adapters(128, |_| true) - kinds[0].0.kept_with_adapters(0, |_| true),
        6 * 128 + 2 * 48
    );
    assert_eq!(kinds[1].0.kept_with_adapters(0, |_| true), 4 * 5120 + 3 * 17408 + 5 * 6144 + 3 * 1024);
    assert_eq!(
        kinds[1].0.kept_with_adapters(128, |_| true) - kinds[1].0.kept_with_adapters(0, |_| true),
        7 * 128
    );
}
