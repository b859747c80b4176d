//! Tests of whole plans: layers of answers, decisions, refusals, and the two tables for people.
//!
//! The machines, models and data that they share are here, the tests in a file for each subject.

mod data;
mod evaluations;
mod head;
mod older_plans;
mod properties;
mod refusals;
mod room;
mod speed;
mod steps;
mod tables;

use std::path::PathBuf;

use proptest::prelude::*;
use sparktune_base::choices::{Overlong, PackStrategy, Think, TrainOn};
use sparktune_base::thinking::{Opening, Thinking};

use crate::answer::{Answer, Origin};
use crate::catalog::Catalog;
use crate::choices::{Device, DeviceChoice, Exported, MethodKind, Mtp, Products};
use crate::error::PlanError;
use crate::facts::{
    CpuSpeed, DataFacts, EvalSetFacts, Facts, Gpu, GpuMemory, LengthBucket, MachineFacts, ModelFacts, Rate,
    Rates, SetFacts, TooLong,
};
use crate::measured::{Measured, Probe};
use crate::model_config::ConfigOptions;
use crate::plan::{HeadPlan, Method, Plan, RateBasis};
use crate::presets::PRESETS;
use crate::render;
use crate::resolve::resolve;
use crate::settings::{Answers, SETTINGS};
use crate::targets::TargetModules;
use crate::template_kwargs::TemplateKwargs;
use crate::values::Value;

/// Returns the part of a plan that the trainer reads.
fn without_advice(plan: Plan) -> Plan {
    Plan { advice: None, ..plan }
}

fn report(mut lengths: Vec<u32>, target_share: f64) -> DataFacts {
    lengths.sort_unstable();
    let at = |share: f64| lengths[((lengths.len() - 1) as f64 * share) as usize];
    let max = at(1.0);
    let width = (max / 40).max(1);
    let total: u64 = lengths.iter().map(|n| u64::from(*n)).sum();
    let bucket = |i: u32| LengthBucket {
        up_to: i * width,
        count: lengths.iter().filter(|n| **n > (i - 1) * width && **n <= i * width).count() as u64,
    };
    DataFacts {
        examples: lengths.len() as u64,
        total_tokens: total,
        target_tokens: (total as f64 * target_share) as u64,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        max,
        histogram: (1..=max.div_ceil(width)).map(bucket).collect(),
        ..DataFacts::default()
    }
}

/// Returns log-normal lengths around a mean, the same on every call.
fn lengths(examples: usize, mean: f64, spread: f64) -> Vec<u32> {
    let mut seed = 7u64;
    let mut uniform = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    let raw: Vec<f64> = (0..examples)
        .map(|_| ((0..12).map(|_| uniform()).sum::<f64>() - 6.0) * spread)
        .map(f64::exp)
        .collect();
    let scale = mean / (raw.iter().sum::<f64>() / examples as f64);
    raw.iter().map(|n| (n * scale).round().max(1.0) as u32).collect()
}

fn spark() -> MachineFacts {
    MachineFacts {
        mem_total_bytes: 128_500_000_000,
        mem_available_bytes: 119_000_000_000,
        cores: 20,
        cpu_speed: None,
        disk_free_bytes: Some(3_000_000_000_000),
        gpus: vec![Gpu {
            name: "NVIDIA GB10".into(),
            memory: GpuMemory::Unified,
            compute_capability: Some((12, 1)),
        }],
        no_gpu_because: None,
        probe: None,
    }
}

fn two_cores() -> MachineFacts {
    MachineFacts {
        mem_total_bytes: 8_000_000_000,
        mem_available_bytes: 6_500_000_000,
        cores: 2,
        cpu_speed: None,
        disk_free_bytes: Some(40_000_000_000),
        gpus: Vec::new(),
        no_gpu_because: Some("this build has no CUDA".into()),
        probe: None,
    }
}

fn catalog_model(id: &str) -> ModelFacts {
    let catalog = Catalog::shipped();
    catalog.model_facts(catalog.find(id).unwrap())
}

fn tiny_model() -> ModelFacts {
    ModelFacts::from_config_json(
        r#"{"model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": {"model_type": "qwen3_5_text",
            "dtype": "bfloat16", "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
            "max_position_embeddings": 4096, "full_attention_interval": 4, "linear_num_key_heads": 4,
            "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1}}"#,
    )
    .unwrap()
}

/// Returns facts with the figures of the Qwen3.5 recipe's data set: 24,315 examples of 5,354 tokens on
/// average, 56 % of them targets.
fn recipe_facts(model: &str) -> Facts {
    Facts {
        machine: spark(),
        model: catalog_model(model),
        data: report(lengths(24_315, 5354.0, 0.5), 0.56),
        rates: Rates::default(),
        parent: None,
    }
}

/// Returns new adapters on all layers.
fn lora(rank: u32, alpha: f64) -> Method {
    let target_modules = TargetModules::ALL;
    Method::Lora { rank, alpha, rslora: false, clipped: true, target_modules, dropout: 0.0 }
}

fn demo_facts() -> Facts {
    Facts {
        machine: two_cores(),
        model: tiny_model(),
        data: report(lengths(320, 90.0, 0.35), 0.45),
        rates: Rates::default(),
        parent: None,
    }
}

fn ask(model: &str) -> Answers {
    Answers {
        model: Some(Answer::flag(model.to_owned())),
        data: Some(Answer::flag(vec!["train.jsonl".into()])),
        ..Answers::default()
    }
}

fn with(answers: Answers, pairs: &[(&str, &str)]) -> Answers {
    pairs.iter().fold(answers, |mut answers, (name, value)| {
        answers.set(name, value, Origin::Flag).unwrap();
        answers
    })
}

fn reason<'a>(plan: &'a Plan, key: &str) -> &'a str {
    &plan.advice.as_ref().unwrap().explain.iter().find(|row| row.key == key).unwrap().reason
}
