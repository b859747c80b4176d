//! A whole step on one document of 131,072 tokens, as the emulated device sees it without running a kernel:
//! every launch has a shape that a device accepts, every kernel of ours in it is one whose last blocks
//! `kernels/real_grids` runs at such a length, and the memory is what the plan says.

use std::collections::BTreeSet;

use burn::tensor::{Device, DeviceType};
use sparktune_kernels::reserved_bytes;
use sparktune_kernels::testing::cuda_device;
use sparktune_model::PackedSequence;
use sparktune_plan::{MachineFacts, MethodKind, ModelConfig};
use sparktune_train::stepper::Stepper;

use super::launches::{TRACE, alone, is_burns, names};
use super::steps::{SETTINGS, SMALL, memory_of, model_of, prepared};
use crate::model::random_ids;

const TOKENS: usize = 131_072;
/// The bytes of the emulated device: as many as a Spark has for a run.
const MEMORY: &str = "119000000000";

/// The functions by which `real_grids` launches kernels whose name it does not use.
const FUNCTIONS: [(&str, &str); 17] = [
    ("linear_forward", "linear_tile<Tile, K_INNER, K_INNER>"),
    ("linear_backward_input", "linear_tile<Tile, K_INNER, K_OUTER>"),
    ("linear_backward_weight", "linear_tile<Tile, K_OUTER, K_OUTER>"),
    ("lora_linear_forward", "lora_forward_tile<Tile>"),
    ("lora_linears_backward_input", "lora_input_tile<Tile>"),
    ("gated_linear_forward", "gated_forward_tile<Tile>"),
    ("gated_linear_backward_input", "gated_input_tile<Tile>"),
    ("fp8_linear_forward", "fp8_forward_tile<Tile>"),
    ("fp8_linears_backward_input", "fp8_input_tile<Tile>"),
    ("packed_attention_forward", "attention::attention_forward<D"),
    ("packed_attention_delta", "attention::attention_delta<D>"),
    ("packed_attention_backward", "attention::attention_backward<D"),
    ("delta_rule_chunk_matrices", "delta_rule::chunk_matrices<D>"),
    ("delta_rule_forward", "delta_rule::walk_forward<D, false>"),
    ("delta_rule_states", "delta_rule::walk_forward<D, true>"),
    ("delta_rule_backward", "delta_rule::walk_backward<D>"),
    ("delta_rule_gradients", "delta_rule::gradients<D>"),
];

/// Kernels whose numbers are not as many as a pack has tokens, times a width: those of parameters, of their
/// partial sums, of a chunk of the head, whose memory is bounded, and of the losses, one a target.
const NOT_OF_TOKENS: [&str; 15] = [
    "adamw_squares",
    "adamw_clip",
    "adamw_update_wide",
    "sum_rows",
    "sum_splits",
    "stack",
    "column_maxima",
    "column_scales",
    "quantize_columns",
    "cross_entropy_rows",
    "cross_entropy_logits_again",
    "cross_entropy_backward_input",
    "cross_entropy_weight_operands",
    "cross_entropy_backward_weight",
    "cross_entropy_sum",
];

/// Two layers of the 2B, one with the delta rule and one with attention, and few words.
fn config() -> ModelConfig {
    let wider = [
        ("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 2"),
        ("\"full_attention_interval\": 4", "\"full_attention_interval\": 2"),
        ("\"dtype\": \"float32\"", "\"dtype\": \"bfloat16\""),
        (
            "\"hidden_size\": 256, \"intermediate_size\": 512",
            "\"hidden_size\": 2048, \"intermediate_size\": 6144",
        ),
        (
            "\"num_attention_heads\": 2, \"num_key_value_heads\": 1",
            "\"num_attention_heads\": 8, \"num_key_value_heads\": 2",
        ),
        (
            "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4",
            "\"linear_num_key_heads\": 16, \"linear_num_value_heads\": 16",
        ),
        ("\"max_position_embeddings\": 8192", "\"max_position_embeddings\": 262144"),
    ];
    let text = wider.iter().fold(SMALL.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    ModelConfig::from_json(&text).expect("the config of a Qwen3.5")
}

#[test]
fn a_step_of_131_072_tokens_on_device_has_the_planned_memory_and_kernels_that_hold_at_this_length() {
    if cuda_device().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let child = alone(concat!(module_path!(), "::undone"))
        .env(TRACE, &trace)
        .envs([("EMULATED_CUDA_UNDONE", "1"), ("EMULATED_CUDA_FILL", "0"), ("EMULATED_CUDA_MEMORY", MEMORY)])
        .output()
        .unwrap();
    let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
    let launched: BTreeSet<String> = names(&trace).into_iter().filter(|name| !is_burns(name)).collect();
    if launched.is_empty() {
        eprintln!("skipped: a real device does not tell its launches");
        return;
    }
    let held = include_str!("../../../kernels/real_grids/real_grids.test.cpp");
    let is_held = |name: &str| {
        let function = FUNCTIONS.iter().find(|(kernel, _)| *kernel == name);
        held.contains(&function.map_or_else(|| format!("{name},"), |(_, function)| (*function).to_owned()))
    };
    let others: Vec<&String> = launched.iter().filter(|name| !is_held(name)).collect();
    let unexpected: Vec<_> = others.iter().filter(|name| !NOT_OF_TOKENS.contains(&name.as_str())).collect();
    assert!(unexpected.is_empty(), "kernels/real_grids runs none of {unexpected:?}");
    assert!(launched.len() - others.len() > 35, "{launched:?}");
}

#[test]
#[ignore = "the test above runs it in a process of its own, on a device that runs no kernel"]
fn undone() {
    let device = Device::enumerate(DeviceType::Cuda).into_vec().remove(0);
    let config = config();
    let row = PackedSequence::single(&random_ids(1, TOKENS, config.vocab_size));
    let mut loaded = None;
    for (method, rank, is_fp8) in
        [(MethodKind::Lora, 128, false), (MethodKind::Full, 0, false), (MethodKind::Lora, 128, true)]
    {
        let plan = memory_of(&config, &MachineFacts::default(), method, rank, TOKENS, false, true);
        let planned = plan.training_bytes() - plan.export;
        let model = model_of(&config, &device, loaded.take()).unwrap();
        let model = if is_fp8 { model.with_fp8() } else { model };
        let mut stepper = Stepper::from_model(prepared(model, (rank > 0).then_some(rank)), SETTINGS, true);
        for _ in 0..2 {
            stepper.step(std::slice::from_ref(&row), SETTINGS.learning_rate).unwrap();
        }
        device.sync().unwrap();
        let held = reserved_bytes(&device).unwrap();
        println!("{method}, e4m3 {is_fp8}: {held} bytes of {planned}");
        // A plan has room for what a GPU's memory pool may leave unused.
        assert!(
            (planned / 3..planned).contains(&held),
            "{method}, e4m3 {is_fp8}: {held} of {planned}: {plan:?}"
        );
        loaded = Some(stepper.into_model());
    }
}
