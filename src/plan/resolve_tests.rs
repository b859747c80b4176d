//! Tests of whole plans: layers of answers, decisions, refusals, and the two tables for people.
//!
//! The file is long because all tests, including the properties, share the machines, models and data at its
//! head.

use std::path::PathBuf;

use proptest::prelude::*;
use sparktune_base::choices::{Overlong, PackStrategy, Think, TrainOn};
use sparktune_base::thinking::{Opening, Thinking};

use crate::answer::{Answer, Origin};
use crate::catalog::Catalog;
use crate::choices::{Device, DeviceChoice, Exported, MethodKind, Mtp};
use crate::error::PlanError;
use crate::facts::{
    DataFacts, EvalSetFacts, Facts, Gpu, GpuMemory, LengthBucket, MachineFacts, ModelFacts, Rate, Rates,
    SetFacts, TooLong,
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

#[test]
fn the_2b_on_a_spark_with_the_recipes_data_is_explained() {
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &recipe_facts("Qwen/Qwen3.5-2B")).unwrap();
    insta::assert_snapshot!("explain_2b_on_gb10", render::explain(&plan, 132));
    insta::assert_snapshot!(
        "summary_2b_on_gb10",
        format!("{}\n{}", render::summary(&plan), render::cost_curve(&plan))
    );
}

#[test]
fn a_run_that_ran_short_of_memory_is_told_what_is_lighter() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &facts).unwrap();
    let length = plan.pack.length;
    assert_eq!(plan.lighter()[0], "--recompute true");
    let shorter = format!("--pack-length {}", (length / 2).next_multiple_of(128));
    assert!(
        plan.lighter().contains(&shorter) && plan.lighter().contains(&"--rank 64".into()),
        "{:?}",
        plan.lighter()
    );
    let mut least = plan;
    (least.method, least.recompute, least.pack.length) = (crate::Method::Full, true, 128);
    assert_eq!(least.lighter(), ["--method lora"], "what is at its least already is not named");
}

#[test]
fn the_demo_on_two_cores_is_explained() {
    let preset = PRESETS.iter().find(|preset| preset.name == "demo").unwrap().answers().unwrap();
    let chosen = Answers {
        model: Some(Answer::new("demo/qwen3.5-tiny".into(), Origin::Preset)),
        data: Some(Answer::new(vec!["presets/demo/train.jsonl".into()], Origin::Preset)),
        preset: Some(Answer::flag("demo".into())),
        ..Answers::default()
    };
    let plan = resolve(&Answers::layered([preset, chosen]), &demo_facts()).unwrap();
    assert_eq!(plan.method, lora(8, 16.0));
    assert_eq!((plan.pack.length, plan.device), (256, Device::Cpu));
    let steps = plan.advice.as_ref().unwrap().time.steps;
    assert!((60..=100).contains(&steps), "{steps} steps");
    insta::assert_snapshot!("explain_demo_on_two_cores", render::explain(&plan, 100));
}

#[test]
fn a_run_that_max_steps_ends_early_says_after_how_many_epochs() {
    let steps = |answers: &Answers, facts: &Facts| {
        let summary = render::summary(&resolve(answers, facts).unwrap());
        summary.lines().find(|line| line.starts_with("steps")).unwrap().to_owned()
    };
    let (facts, answers) = (demo_facts(), ask("tiny"));
    assert!(steps(&answers, &facts).contains(" per epoch, 3 epochs), "), "{}", steps(&answers, &facts));
    let per_epoch = resolve(&answers, &facts).unwrap().advice.unwrap().time.steps_per_epoch;
    let short = with(ask("tiny"), &[("max-steps", &(per_epoch * 2).to_string())]);
    let steps_line = steps(&short, &facts);
    assert!(steps_line.contains("max_steps ends the run after about 2.0 of 3 epochs"), "{steps_line}");
    let plan = resolve(&short, &facts).unwrap();
    assert!(reason(&plan, "steps").contains("max_steps ends the run"), "{}", reason(&plan, "steps"));
    let trial = with(ask("Qwen/Qwen3.5-2B"), &[("max-steps", "20"), ("epochs", "1")]);
    let steps_line = steps(&trial, &recipe_facts("Qwen/Qwen3.5-2B"));
    assert!(steps_line.contains("after about 0.01 of 1 epoch)"), "{steps_line}");
    let idle = with(ask("tiny"), &[("max-steps", "1000000")]);
    assert!(steps(&idle, &facts).contains("3 epochs), "), "a limit that is never reached is not mentioned");
}

#[test]
fn examples_that_are_dropped_take_no_steps_and_no_time() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let time = |drop: &str| {
        let answers = with(ask("Qwen/Qwen3.5-2B"), &[("crc-drop", drop)]);
        resolve(&answers, &facts).unwrap().advice.unwrap().time
    };
    let (all, half) = (time("0"), time("0.5"));
    let is_half = |all: f64, half: f64| (half / all - 0.5).abs() < 0.01;
    assert!(is_half(all.steps as f64, half.steps as f64), "{} of {} steps", half.steps, all.steps);
    assert!(is_half(all.tokens_per_epoch as f64, half.tokens_per_epoch as f64), "{half:?}");
    assert!(is_half(all.train_s.unwrap(), half.train_s.unwrap()), "{half:?}");
    assert!(is_half(all.mtp_s.unwrap(), half.mtp_s.unwrap()), "{half:?}");
}

#[test]
fn max_steps_ends_the_heads_epoch_too() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let time = |pairs: &[(&str, &str)]| {
        resolve(&with(ask("Qwen/Qwen3.5-2B"), pairs), &facts).unwrap().advice.unwrap().time
    };
    let whole = time(&[]);
    let half = (whole.steps_per_epoch / 2).to_string();
    let ended = time(&[("max-steps", &half)]);
    let share = ended.mtp_s.unwrap() / whole.mtp_s.unwrap();
    // The head's rows are filled less, so that its epoch has some more steps than that of the text model.
    assert!((0.3..0.6).contains(&share), "{share}");
    assert!(ended.formula.contains("the MTP head's epoch, which max_steps ends early"), "{}", ended.formula);
    let idle = time(&[("max-steps", "1000000")]);
    assert_eq!((idle.mtp_s, idle.formula), (whole.mtp_s, whole.formula));
}

#[test]
fn an_error_says_which_setting_it_concerns() {
    let at = |answers: &Answers, facts: &Facts| resolve(answers, facts).unwrap_err().setting().unwrap().key;
    let mut facts = demo_facts();
    let tiny = |pairs: &[(&str, &str)]| with(ask("tiny"), pairs);
    assert_eq!(at(&Answers::default(), &facts), "model.id");
    assert_eq!(at(&tiny(&[("rank", "4096")]), &facts), "method.rank");
    assert_eq!(at(&tiny(&[("name", "../x")]), &facts), "name");
    assert_eq!(at(&tiny(&[("method", "full"), ("rank", "8")]), &facts), "method.rank");
    assert_eq!(at(&tiny(&[("device", "cuda")]), &facts), "device");
    facts.model.config.mtp_num_hidden_layers = 0;
    assert_eq!(at(&tiny(&[("mtp", "trained")]), &facts), "mtp");
    facts.machine.disk_free_bytes = Some(1000);
    assert_eq!(at(&tiny(&[]), &facts), "runs_dir");
    assert_eq!(at(&tiny(&[("keep", "9")]), &facts), "checkpoint.keep");
    facts.data.target_tokens = 0;
    assert_eq!(at(&tiny(&[]), &facts), "data.train");
    let facts = recipe_facts("Qwen/Qwen3.5-9B");
    let nine = |pairs: &[(&str, &str)]| with(ask("Qwen/Qwen3.5-9B"), pairs);
    assert_eq!(at(&nine(&[("method", "full")]), &facts), "method.kind");
    assert_eq!(at(&nine(&[("method", "full"), ("pack-length", "200000")]), &facts), "pack.length");
    let error = Answers::default().set("epochs", "many", Origin::Flag).unwrap_err();
    assert_eq!(error.setting().unwrap().name, "epochs");
    assert!(Answers::from_toml("x = 1", Origin::Preset, "x").unwrap_err().setting().is_none());
}

#[test]
fn without_model_and_data_both_are_named_at_once() {
    let error = resolve(&Answers::default(), &demo_facts()).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(
        text.contains("2 answers are missing") && text.contains("--model (or SPARKTUNE_MODEL)"),
        "{text}"
    );
    assert!(text.contains("--data (or SPARKTUNE_DATA)"), "{text}");
}

#[test]
fn the_learning_rate_follows_the_size_and_the_rank_and_names_its_source() {
    let cases = [
        ("Qwen/Qwen3.5-2B", Some(("rank", "64")), 2e-4, "the default of Unsloth 2026.10 for adapters"),
        ("Qwen/Qwen3.5-4B", None, 2e-4, "the default of Unsloth 2026.10 for adapters"),
        ("Qwen/Qwen3.5-9B", None, 1e-4, "the default of ms-swift 4.6 for adapters"),
        ("Qwen/Qwen3.5-2B", Some(("rank", "256")), 1e-4, "half of 2e-4 because the rank is above 128"),
        (
            "Qwen/Qwen3.5-2B",
            Some(("method", "full")),
            1e-5,
            "the default of ms-swift 4.6 for full fine-tuning",
        ),
    ];
    for (id, given, rate, source) in cases {
        let plan = resolve(&with(ask(id), given.as_slice()), &recipe_facts(id)).unwrap();
        let reason = reason(&plan, "optimizer.learning_rate");
        assert_eq!(plan.optimizer.learning_rate, rate, "{id} {given:?}");
        assert!(reason.starts_with(source), "{id} {given:?}: {reason}");
    }
}

#[test]
fn only_what_the_recipe_says_is_credited_to_it() {
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &recipe_facts("Qwen/Qwen3.5-2B")).unwrap();
    let rows = plan.advice.as_ref().unwrap().explain.iter();
    let credited = rows.filter(|row| row.reason.starts_with("as in the Qwen3.5 recipe"));
    let keys: Vec<&str> = credited.map(|row| row.key.as_str()).collect();
    assert_eq!(keys, ["method.rank", "pack.mtp_length", "duration.epochs"]);
    let recipe = PRESETS.iter().find(|preset| preset.name == "recipe").unwrap().answers().unwrap();
    assert_eq!((recipe.alpha, recipe.rslora, recipe.learning_rate), (None, None, None));
}

#[test]
fn a_new_plan_clips_ranks_and_one_of_an_older_version_does_not_and_both_serve_as_presets() {
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &recipe_facts("Qwen/Qwen3.5-2B")).unwrap();
    let is_clipped = |text: &str| match Plan::from_toml(text, "plan.toml").unwrap().method {
        Method::Lora { clipped, .. } => clipped,
        Method::Full => panic!("the plan has adapters"),
    };
    let new = without_advice(plan).to_toml().unwrap();
    let old = new.replace("clipped = true\n", "");
    assert!(is_clipped(&new) && old != new && !is_clipped(&old));
    for text in [new, old] {
        let answers = Answers::from_toml(&text, Origin::Preset, "plan.toml").unwrap();
        let again = resolve(&answers, &recipe_facts("Qwen/Qwen3.5-2B")).unwrap();
        assert!(is_clipped(&without_advice(again).to_toml().unwrap()), "a new run");
    }
    for wrong in ["[method]\nclipped = 3", "[model]\npath = true"] {
        let error = Answers::from_toml(wrong, Origin::Preset, "p.toml").unwrap_err();
        assert!(matches!(error, PlanError::UnknownKey { .. }), "{error}");
    }
}

#[test]
fn the_recipe_preset_gives_the_recipes_run() {
    let recipe = PRESETS.iter().find(|preset| preset.name == "recipe").unwrap().answers().unwrap();
    let answers = recipe.merge(ask("Qwen/Qwen3.5-2B"));
    let plan = resolve(&answers, &recipe_facts("Qwen/Qwen3.5-2B")).unwrap();
    assert_eq!((plan.pack.length, plan.pack.strategy), (5376, PackStrategy::Stream));
    assert_eq!(plan.batch.packs_per_step(), 16);
    assert!(plan.recompute);
    assert_eq!(plan.method, lora(128, 256.0));
}

#[test]
fn one_example_is_one_step_an_epoch() {
    let mut facts = demo_facts();
    // The length drawn from a wide bin is half of the one that was counted.
    let histogram = vec![LengthBucket { up_to: 31, count: 1 }];
    facts.data = DataFacts { histogram, ..report(vec![28], 0.5) };
    let plan = resolve(&with(ask("tiny"), &[("eval-fraction", "0")]), &facts).unwrap();
    let time = &plan.advice.as_ref().unwrap().time;
    assert_eq!((time.steps_per_epoch, time.tokens_per_step), (1, 28));
}

#[test]
fn a_small_data_set_still_has_eight_optimizer_steps_an_epoch() {
    let mut facts = demo_facts();
    facts.data = report(lengths(60, 400.0, 0.3), 0.5);
    let plan = resolve(&ask("tiny"), &facts).unwrap();
    let time = &plan.advice.as_ref().unwrap().time;
    assert!(time.steps_per_epoch >= 8, "{}", time.steps_per_epoch);
    assert!(reason(&plan, "batch.grad_accum_steps").contains("an epoch has only"));
    assert_eq!(plan.data.eval_fraction, 0.13, "eight examples");
}

#[test]
fn the_share_set_aside_is_the_one_that_is_drawn() {
    let planned = |examples: usize| {
        let facts = Facts { data: report(vec![90; examples], 0.5), ..demo_facts() };
        let plan = resolve(&ask("tiny"), &facts).unwrap();
        (plan.data.eval_fraction, reason(&plan, "data.eval_fraction").to_owned())
    };
    let drawn = "chosen by a seeded hash of each";
    assert_eq!(planned(3), (0.0, "fewer than 4 examples are not split".to_owned()));
    let why = format!("one in 4, because 2 % would be fewer than 8: about 5 of 20 examples, {drawn}");
    assert_eq!(planned(20), (0.25, why));
    let why = format!("at least 8, because 2 % would be fewer: about 8 of 320 examples, {drawn}");
    assert_eq!(planned(320), (0.025, why));
    assert_eq!(planned(20_000), (0.02, format!("2 %: about 400 of 20,000 examples, {drawn}")));
}

#[test]
fn an_answer_ten_times_off_its_recommendation_is_warned_about_and_taken() {
    let model = "Qwen/Qwen3.5-2B";
    let plan =
        |name: &str, value: &str| resolve(&with(ask(model), &[(name, value)]), &recipe_facts(model)).unwrap();
    let usual = resolve(&ask(model), &recipe_facts(model)).unwrap().optimizer.learning_rate;
    assert!(plan("learning-rate", &(usual * 5.0).to_string()).warnings().is_empty());
    for factor in [0.1, 10.0] {
        let plan = plan("learning-rate", &(usual * factor).to_string());
        assert!((plan.optimizer.learning_rate / usual / factor - 1.0).abs() < 1e-9);
        let [warning] = plan.warnings() else { panic!("{:?}", plan.warnings()) };
        assert!(warning.contains("--learning-rate is ") && warning.contains("10-fold"), "{warning}");
        assert!(render::summary(&plan).contains(&format!("warning: {warning}")));
        let read = Plan::from_toml(&plan.to_toml().unwrap(), "plan.toml").unwrap();
        assert_eq!(read.warnings(), plan.warnings());
    }
    assert!(plan("save-steps", "1").warnings().is_empty(), "it does not change what is learned");
}

#[test]
fn much_data_recommends_full_fine_tuning_where_it_fits_and_adapters_where_it_does_not() {
    let data = report(lengths(120_000, 2000.0, 0.4), 0.5);
    let facts = |id| Facts { data: data.clone(), ..recipe_facts(id) };
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &facts("Qwen/Qwen3.5-2B")).unwrap();
    assert_eq!(plan.method, Method::Full);
    assert_eq!(plan.optimizer.learning_rate, 1e-5);
    let plan = resolve(&ask("Qwen/Qwen3.5-9B"), &facts("Qwen/Qwen3.5-9B")).unwrap();
    assert_eq!(plan.method.kind(), MethodKind::Lora);
    assert!(reason(&plan, "method.kind").contains("but it needs"), "{}", reason(&plan, "method.kind"));
    let between = Facts { data: report(lengths(70_000, 900.0, 0.4), 0.5), ..facts("Qwen/Qwen3.5-2B") };
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &between).unwrap();
    assert!(
        reason(&plan, "method.kind").contains("between the two limits"),
        "{}",
        reason(&plan, "method.kind")
    );
}

#[test]
fn a_plan_that_does_not_fit_names_what_would_with_figures() {
    let answers = with(ask("Qwen/Qwen3.5-9B"), &[("method", "full")]);
    let error = resolve(&answers, &recipe_facts("Qwen/Qwen3.5-9B")).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    let text = error.to_string();
    assert!(
        text.contains("full fine-tuning of Qwen/Qwen3.5-9B") && text.contains("optimizer 107 GB"),
        "{text}"
    );
    assert!(text.contains("--method lora (") && text.contains("--model Qwen/Qwen3.5-4B ("), "{text}");
    let PlanError::DoesNotFit { remedies, memory, .. } = error else { panic!("{text}") };
    assert!(remedies.iter().all(|remedy| remedy.needed_bytes <= memory.available_bytes), "{text}");
}

#[test]
fn an_example_too_long_for_the_memory_leads_to_recompute_and_then_to_a_limit_on_examples() {
    let mut facts = demo_facts();
    facts.model = catalog_model("Qwen/Qwen3.5-0.8B");
    let mut long = lengths(2000, 700.0, 0.4);
    long.push(6000);
    facts.data = report(long, 0.5);
    facts.machine.mem_available_bytes = 13_000_000_000;
    let plan = resolve(&ask("Qwen/Qwen3.5-0.8B"), &facts).unwrap();
    assert!(
        plan.recompute && reason(&plan, "recompute").contains("without that"),
        "{}",
        reason(&plan, "recompute")
    );
    facts.machine.mem_available_bytes = 6_500_000_000;
    let error = resolve(&ask("Qwen/Qwen3.5-0.8B"), &facts).unwrap_err().to_string();
    assert!(error.contains("an example of 6,000 tokens in one pack"), "{error}");
    assert!(error.contains("--max-example-tokens "), "{error}");
}

#[test]
fn what_is_too_long_is_counted_in_the_reason() {
    let mut facts = demo_facts();
    let plan = resolve(&ask("tiny"), &facts).unwrap();
    assert_eq!((plan.data.overlong, plan.data.train_on), (Overlong::Auto, TrainOn::All));
    assert!(reason(&plan, "data.overlong").ends_with("no example is too long"));
    facts.data.too_long = TooLong { left_out: 12, cut: 1, split: 0 };
    let plan = resolve(&with(ask("tiny"), &[("overlong", "truncate")]), &facts).unwrap();
    assert_eq!(plan.data.overlong, Overlong::Truncate);
    assert!(reason(&plan, "data.overlong").ends_with("12 examples left out, 1 example cut"));
}

#[test]
fn a_full_disk_keeps_fewer_checkpoints_and_then_says_so() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-4B");
    let full = with(ask("Qwen/Qwen3.5-4B"), &[("method", "full")]);
    facts.machine.disk_free_bytes = Some(230_000_000_000);
    let plan = resolve(&full, &facts).unwrap();
    assert_eq!(plan.checkpoint.keep, 1);
    assert!(reason(&plan, "checkpoint.keep").contains("because of the disk"));
    facts.machine.disk_free_bytes = Some(20_000_000_000);
    let error = resolve(&full, &facts).unwrap_err();
    assert!(error.exit_code() == 4 && error.to_string().contains("20.0 GB are free"), "{error}");
}

#[test]
fn an_answer_out_of_range_names_its_place_and_the_range() {
    let facts = demo_facts();
    let text = |name: &str, value: &str| {
        resolve(&with(ask("tiny"), &[(name, value)]), &facts).unwrap_err().to_string()
    };
    assert!(
        text("pack-length", "9999")
            .contains("--pack-length is `9999`: expected a whole number from 16 to 4096")
    );
    // A range that does not depend on the model is checked as soon as the value is given.
    let refused = Answers::default().set("learning-rate", "0", Origin::Flag).unwrap_err().to_string();
    assert!(refused.contains("--learning-rate is `0`: expected a number from 1e-12 to 1"), "{refused}");
    assert!(text("name", "../elsewhere").contains("--name"));
    let mut answers = ask("tiny");
    answers.set("rank", "4096", Origin::Environment).unwrap();
    assert!(resolve(&answers, &facts).unwrap_err().to_string().starts_with("SPARKTUNE_RANK is `4096`"));
}

#[test]
fn answers_that_contradict_each_other_are_refused_with_both_places() {
    let facts = demo_facts();
    let error =
        resolve(&with(ask("tiny"), &[("method", "full"), ("rank", "8")]), &facts).unwrap_err().to_string();
    assert!(error.contains("--method is full") && error.contains("--rank is 8"), "{error}");
    for (name, value) in [("alpha", "64"), ("rslora", "true")] {
        let error = resolve(&with(ask("tiny"), &[("method", "full"), (name, value)]), &facts).unwrap_err();
        assert_eq!((error.exit_code(), error.setting().unwrap().name), (2, name));
        let text = error.to_string();
        assert!(
            text.contains(&format!("--method is full, which has no adapters, but --{name} is {value}")),
            "{text}"
        );
    }
    assert_eq!(
        resolve(&with(ask("tiny"), &[("method", "full"), ("rslora", "false")]), &facts).unwrap().method,
        Method::Full
    );
    // A preset's adapters apply to many models and methods; the user's own `--method full` overrides them.
    let mut preset = Answers::default();
    for (name, value) in [("rank", "8"), ("alpha", "64"), ("rslora", "true")] {
        preset.set(name, value, Origin::Preset).unwrap();
    }
    let plan = resolve(&preset.merge(with(ask("tiny"), &[("method", "full")])), &facts).unwrap();
    assert_eq!(plan.method, Method::Full);
}

#[test]
fn what_only_adapters_can_follow_recommends_them() {
    let facts = Facts { data: report(lengths(120_000, 2000.0, 0.4), 0.5), ..recipe_facts("Qwen/Qwen3.5-2B") };
    for (name, value, why) in
        [("rank", "8", "a rank"), ("alpha", "64", "an alpha"), ("rslora", "true", "rslora")]
    {
        let plan = resolve(&with(ask("Qwen/Qwen3.5-2B"), &[(name, value)]), &facts).unwrap();
        assert_eq!(plan.method.kind(), MethodKind::Lora);
        assert_eq!(reason(&plan, "method.kind"), format!("{why} was given"));
    }
}

#[test]
fn what_is_said_of_evaluations_that_never_come_is_refused_from_the_user_and_passed_over_in_a_preset() {
    let facts = demo_facts();
    let nothing_held_out = with(ask("tiny"), &[("eval-fraction", "0")]);
    let mut preset = Answers::default();
    for name in ["early-stop-patience", "eval-every-steps"] {
        let error = resolve(&with(nothing_held_out.clone(), &[(name, "3")]), &facts).unwrap_err();
        assert_eq!((error.exit_code(), error.setting().unwrap().name), (2, name));
        let text = error.to_string();
        assert!(text.contains(&format!("--{name} is 3, but there is no eval set")), "{text}");
        assert!(text.contains("--eval-data, or an --eval-fraction above 0"), "{text}");
        preset.set(name, "3", Origin::Preset).unwrap();
    }
    let idle = resolve(&preset.clone().merge(nothing_held_out), &facts).unwrap();
    assert_eq!((idle.eval.early_stop_patience, idle.eval.every_steps), (None, idle.checkpoint.save_steps));
    let heeded = resolve(&preset.merge(ask("tiny")), &facts).unwrap();
    assert_eq!((heeded.eval.early_stop_patience, heeded.eval.every_steps), (Some(3), 3));
}

#[test]
fn the_best_weights_are_exported_where_there_is_an_eval_set_and_the_last_where_there_is_none() {
    let facts = demo_facts();
    assert_eq!(resolve(&ask("tiny"), &facts).unwrap().export, Exported::Best);
    let last = resolve(&with(ask("tiny"), &[("export", "last")]), &facts).unwrap();
    assert_eq!(last.export, Exported::Last);
    assert!(reason(&last, "export").contains("recommended was best"), "{}", reason(&last, "export"));

    let nothing_held_out = with(ask("tiny"), &[("eval-fraction", "0")]);
    let error = resolve(&with(nothing_held_out.clone(), &[("export", "best")]), &facts).unwrap_err();
    assert_eq!((error.exit_code(), error.setting().unwrap().name), (2, "export"));
    assert!(error.to_string().contains("--export is best, but there is no eval set"), "{error}");
    let mut preset = Answers::default();
    preset.set("export", "best", Origin::Preset).unwrap();
    for answers in [
        nothing_held_out.clone(),
        preset.merge(nothing_held_out.clone()),
        with(nothing_held_out, &[("export", "last")]),
    ] {
        let plan = resolve(&answers, &facts).unwrap();
        assert_eq!(plan.export, Exported::Last);
        assert!(reason(&plan, "export").contains("there is no eval set"), "{}", reason(&plan, "export"));
    }
}

#[test]
fn a_plan_of_an_older_program_exports_the_last_weights() {
    let plan = resolve(&ask("tiny"), &demo_facts()).unwrap();
    let text = plan.to_toml().unwrap();
    assert!(text.contains("export = \"best\"\n"), "{text}");
    let old = Plan::from_toml(&text.replace("export = \"best\"\n", ""), "plan.toml").unwrap();
    assert_eq!(old.export, Exported::Last);
}

#[test]
fn a_model_without_an_mtp_head_has_none_unless_the_user_insists() {
    let mut facts = demo_facts();
    facts.model.config.mtp_num_hidden_layers = 0;
    let preset = Answers { mtp: Some(Answer::new(Mtp::Trained, Origin::Preset)), ..Answers::default() };
    assert_eq!(resolve(&preset.merge(ask("tiny")), &facts).unwrap().mtp, Mtp::None);
    let error = resolve(&with(ask("tiny"), &[("mtp", "trained")]), &facts).unwrap_err().to_string();
    assert!(error.contains("--mtp is trained") && error.contains("--mtp none"), "{error}");
}

#[test]
fn the_heads_rows_are_the_recipes_where_steps_and_memory_allow_it() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &facts).unwrap();
    assert_eq!(plan.pack.mtp_length, Some(8192));
    assert!(reason(&plan, "pack.mtp_length").starts_with("as in the Qwen3.5 recipe"));
    // Its steps have as many tokens as those of the main training.
    let head = plan.for_head();
    assert_eq!((head.pack.length, head.batch.micro_batch_packs), (8192, 1));
    let tokens = |plan: &Plan| plan.batch.packs_per_step() as f64 * f64::from(plan.pack.length);
    assert!((tokens(&head) / tokens(&plan) - 1.0).abs() < 0.05, "{} {}", tokens(&head), tokens(&plan));
    let Plan { pack, batch, optimizer, duration, .. } = plan.clone();
    assert_eq!(Plan { pack, batch, optimizer, duration, ..head }, plan);

    // With little data, a step is a single shorter pack.
    let small = resolve(&ask("tiny"), &demo_facts()).unwrap();
    let length = small.pack.mtp_length.unwrap();
    assert!(length < 4096 && u64::from(length) <= tokens(&small) as u64, "{length}");
    assert!(reason(&small, "pack.mtp_length").contains("as in the main training"));
    assert_eq!(small.for_head().batch.packs_per_step(), 1);

    // With little memory, the longest pack that fits is chosen; a longer one is refused, and the error says
    // what would fit.
    let mut tight = recipe_facts("Qwen/Qwen3.5-27B");
    tight.data = report(lengths(24_315, 2000.0, 0.1), 0.5);
    let (mut shorter, mut available) = (None, tight.machine.mem_available_bytes);
    while shorter.is_none() && available > 40_000_000_000 {
        tight.machine.mem_available_bytes = available;
        let found = resolve(&ask("Qwen/Qwen3.5-27B"), &tight).ok();
        shorter = found.filter(|plan| plan.pack.mtp_length.unwrap() < 8192);
        available -= 500_000_000;
    }
    let plan = shorter.unwrap();
    let why = reason(&plan, "pack.mtp_length");
    assert!(why.starts_with("the longest packs that fit"), "{why}");
    assert!(plan.advice.as_ref().unwrap().memory.fits());
    let longer = with(ask("Qwen/Qwen3.5-27B"), &[("mtp-pack-length", "8192")]);
    let error = resolve(&longer, &tight).unwrap_err();
    assert_eq!((error.exit_code(), error.setting().unwrap().name), (4, "mtp-pack-length"));
    let text = error.to_string();
    assert!(text.contains("training the MTP head in packs of 8,192 tokens does not fit"), "{text}");
    assert!(text.contains("--mtp-pack-length ") && text.contains("--mtp default"), "{text}");
}

#[test]
fn what_is_said_of_a_head_that_is_not_there_is_refused_from_the_user_and_passed_over_in_a_preset() {
    let facts = demo_facts();
    let tiny = |pairs: &[(&str, &str)]| resolve(&with(ask("tiny"), pairs), &facts);
    let given = tiny(&[("draft-vocab", "512"), ("mtp-pack-length", "1024")]).unwrap();
    assert_eq!((given.draft_vocab, given.pack.mtp_length), (Some(512), Some(1024)));
    let carried_over = tiny(&[("draft-vocab", "512"), ("mtp", "default")]).unwrap();
    assert_eq!((carried_over.draft_vocab, carried_over.pack.mtp_length), (Some(512), None));
    for (name, mtp) in [("draft-vocab", "none"), ("mtp-pack-length", "default"), ("mtp-pack-length", "none")]
    {
        let error = tiny(&[(name, "512"), ("mtp", mtp)]).unwrap_err();
        assert_eq!((error.exit_code(), error.setting().unwrap().name), (2, name));
        assert!(error.to_string().contains(&format!("--{name} is 512, but")), "{error}");
    }
    let mut preset = Answers::default();
    preset.set("draft-vocab", "512", Origin::Preset).unwrap();
    preset.set("mtp-pack-length", "512", Origin::Preset).unwrap();
    let plan = resolve(&preset.merge(with(ask("tiny"), &[("mtp", "none")])), &facts).unwrap();
    assert_eq!((plan.draft_vocab, plan.pack.mtp_length), (None, None));
    let text = tiny(&[("draft-vocab", "4096")]).unwrap_err().to_string();
    assert!(text.contains("--draft-vocab is `4096`: expected a whole number from 1 to 2048"), "{text}");
}

#[test]
fn the_variables_of_the_template_are_those_that_the_data_was_rendered_with() {
    let untold = resolve(&ask("tiny"), &demo_facts()).unwrap();
    assert_eq!(untold.data.template_kwargs, TemplateKwargs::default());
    assert!(reason(&untold, "data.template_kwargs").contains("the template's own defaults"));
    let mut facts = demo_facts();
    facts.data.template_kwargs = TemplateKwargs::without_thinking();
    let plan = resolve(&ask("tiny"), &facts).unwrap();
    assert_eq!(plan.data.template_kwargs, TemplateKwargs::without_thinking());
    assert!(reason(&plan, "data.template_kwargs").contains("no example has reasoning"));
    facts.data.template_kwargs = TemplateKwargs::thinking(true);
    let told = resolve(&ask("tiny"), &facts).unwrap();
    assert!(reason(&told, "data.template_kwargs").contains("does not think unless it is told to"));
    facts.data.template_kwargs = TemplateKwargs::without_thinking();
    // The plan of a run is a preset that renders the same.
    let preset = Answers::from_toml(&plan.to_toml().unwrap(), Origin::Preset, "plan.toml").unwrap();
    assert_eq!(preset.template_kwargs.unwrap().value, TemplateKwargs::without_thinking());

    let written = resolve(&with(ask("tiny"), &[("write-template-default", "true")]), &facts).unwrap();
    assert!(written.model.write_template_default && !plan.model.write_template_default);
    let error =
        resolve(&with(ask("tiny"), &[("write-template-default", "true")]), &demo_facts()).unwrap_err();
    assert!(error.to_string().contains("--write-template-default is true, but no variables"), "{error}");
    let mut preset = Answers::default();
    preset.set("write-template-default", "true", Origin::Preset).unwrap();
    let plan = resolve(&preset.merge(ask("tiny")), &demo_facts()).unwrap();
    assert!(!plan.model.write_template_default);
}

#[test]
fn the_empty_think_block_is_trained_where_the_model_has_to_close_it() {
    let mut facts = demo_facts();
    for (inserts_block, opening, think, why) in [
        (true, Opening::Open, Think::Train, "opens a think block"),
        (true, Opening::Silent, Think::Train, "write the empty one itself"),
        (true, Opening::Closed, Think::Skip, "so it is context"),
        (false, Opening::Silent, Think::Skip, "adds no empty think block"),
    ] {
        facts.data.thinking = Thinking { inserts_block, opening };
        let plan = resolve(&ask("tiny"), &facts).unwrap();
        assert_eq!(plan.data.think, think, "{opening:?}");
        assert!(reason(&plan, "data.think").contains(why), "{}", reason(&plan, "data.think"));
        // The user's own answer counts.
        let plan = resolve(&with(ask("tiny"), &[("think", "skip")]), &facts).unwrap();
        assert_eq!(plan.data.think, Think::Skip);
    }
    facts.data.earlier_unlike_served = 216;
    let plan = resolve(&ask("tiny"), &facts).unwrap();
    let reason = reason(&plan, "data.split_turns");
    assert!(reason.contains("answers to earlier questions in 216 examples"), "{reason}");
}

#[test]
fn an_eval_set_that_can_show_nothing_is_told_in_the_plan() {
    let mut facts = demo_facts();
    let warnings = |facts: &Facts, more: &[(&str, &str)]| {
        let plan = resolve(&with(ask("tiny"), more), facts).unwrap();
        let about = |warning: &&String| warning.contains("eval set");
        plan.warnings().iter().filter(about).cloned().collect::<Vec<_>>()
    };
    assert!(warnings(&facts, &[]).is_empty(), "its size is not known yet");
    let none = warnings(&facts, &[("eval-fraction", "0")]);
    assert!(none.len() == 1 && none[0].starts_with("there is no eval set"), "{none:?}");
    facts.data.eval_set = Some(EvalSetFacts { examples: 3, total_tokens: 400, target_tokens: 120 });
    let few = warnings(&facts, &[]);
    assert!(few.len() == 1 && few[0].contains("120 trained tokens in 3 examples"), "{few:?}");
    facts.data.eval_set = Some(EvalSetFacts { examples: 30, total_tokens: 4000, target_tokens: 1200 });
    assert!(warnings(&facts, &[]).is_empty());
}

#[test]
fn the_time_of_a_run_includes_the_evaluations_of_the_base_too_and_the_sample_answers() {
    let facts = demo_facts();
    let time = |more: &[(&str, &str)]| {
        let plan = resolve(&with(ask("tiny"), more), &facts).unwrap();
        plan.advice.unwrap().time
    };
    let usual = time(&[]);
    assert!(usual.formula.contains("with sample answers and that of the base"), "{}", usual.formula);
    let total = usual.train_s.unwrap() + usual.eval_s.unwrap() + usual.mtp_s.unwrap_or(0.0);
    assert_eq!(usual.total_s(), Some(total));
    let steps = usual.steps.to_string();
    let silent = |every: &str| time(&[("sample-count", "0"), ("eval-every-steps", every)]).eval_s.unwrap();
    // One evaluation at the end, and that of the base.
    let pass = silent(&steps) / 2.0;
    assert!(pass > 0.0 && (silent("1") / pass - (usual.steps + 1) as f64).abs() < 1e-6);
    let sampled = time(&[("sample-count", "2"), ("eval-every-steps", &steps)]).eval_s.unwrap();
    let twice = time(&[("sample-count", "4"), ("eval-every-steps", &steps)]).eval_s.unwrap();
    assert!(((twice - sampled) / (sampled - 2.0 * pass) - 1.0).abs() < 1e-6, "{twice} {sampled}");
    assert_eq!(time(&[("eval-fraction", "0")]).eval_s, None);
}

#[test]
fn examples_over_a_limit_that_the_data_was_not_read_with_are_counted_by_their_lengths() {
    let facts = demo_facts();
    let reason_of = |limit: &str| {
        let plan = resolve(&with(ask("tiny"), &[("max-example-tokens", limit)]), &facts).unwrap();
        reason(&plan, "data.overlong").to_owned()
    };
    let longest = facts.data.max;
    assert!(reason_of(&longest.to_string()).ends_with("no example is too long"));
    let over = reason_of(&(longest / 2).to_string());
    assert!(over.contains(&format!("over {} tokens", longest / 2)) && !over.contains("no example"), "{over}");
}

#[test]
fn cuda_that_cannot_be_used_is_an_error_and_auto_takes_the_cpu() {
    let facts = demo_facts();
    let error = resolve(&with(ask("tiny"), &[("device", "cuda")]), &facts).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(error.to_string().contains("this build has no CUDA"), "{error}");
    let auto = Answers { device: Some(Answer::flag(DeviceChoice::Auto)), ..ask("tiny") };
    assert_eq!(resolve(&auto, &facts).unwrap().device, Device::Cpu);
}

#[test]
fn data_without_targets_or_without_examples_is_a_data_error() {
    let mut facts = demo_facts();
    facts.data.target_tokens = 0;
    let error = resolve(&ask("tiny"), &facts).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("is trained, so"), "{error}");
    facts.data = DataFacts::default();
    assert_eq!(resolve(&ask("tiny"), &facts).unwrap_err().exit_code(), 3);
}

#[test]
fn a_speed_measured_here_is_used_before_the_recipes_and_carried_over_by_work() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    let plan = |facts: &Facts| resolve(&ask("Qwen/Qwen3.5-2B"), facts).unwrap();
    let time = |facts: &Facts| plan(facts).advice.unwrap().time;
    let recipe = time(&facts);
    assert_eq!((recipe.basis, recipe.tokens_per_s), (RateBasis::OriginalRecipe, Some(3461.0)));
    assert!(recipe.formula.contains("the Qwen3.5 recipe measured 3,461"), "{}", recipe.formula);
    let measured = plan(&facts).measured(5000.0).unwrap();
    let twice_the_work = Rate { flops_per_token: 2.0 * recipe.flops_per_token, ..measured };
    let text = Rates { rates: vec![twice_the_work], ..Rates::default() }.to_toml().unwrap();
    facts.rates = Rates::from_toml(&text, "rates.toml").unwrap();
    let here = time(&facts);
    assert_eq!(here.basis, RateBasis::MeasuredHere);
    assert!((here.tokens_per_s.unwrap() - 10_000.0).abs() < 1.0);
    facts.machine.gpus[0].name = "Some new GPU".into();
    let unknown = time(&facts);
    assert_eq!((unknown.basis, unknown.train_s), (RateBasis::Unknown, None));
}

#[test]
fn a_speed_measured_on_such_a_device_comes_after_one_from_here_and_before_the_recipes() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    let plan = |facts: &Facts| resolve(&ask("Qwen/Qwen3.5-2B"), facts).unwrap();
    let page = crate::measured::tests::PAGE;
    let measured = Measured::from_page(&page.replace("NVIDIA Made-up", &facts.machine.gpus[0].name)).unwrap();
    facts.rates.measured = measured;
    let time = plan(&facts).advice.unwrap().time;
    assert_eq!(time.basis, RateBasis::Measured);
    let carried_over = 10_000.0 * 9e9 / time.flops_per_token;
    assert!((time.tokens_per_s.unwrap() / carried_over - 1.0).abs() < 1e-9, "{time:?}");
    assert!(time.formula.contains("the Qwen3.5 recipe (another program) reached 3,461"), "{}", time.formula);

    facts.machine.probe = Some(Probe { bf16_tflops: 80.0, copy_gb_per_s: 450.0 });
    let probed = plan(&facts).advice.unwrap().time;
    assert!((probed.tokens_per_s.unwrap() / carried_over - 0.5).abs() < 1e-9, "{probed:?}");

    let here = plan(&facts).measured(5000.0).unwrap();
    facts.rates.rates = vec![here];
    assert_eq!(plan(&facts).advice.unwrap().time.basis, RateBasis::MeasuredHere);
}

#[test]
fn what_another_device_measured_is_an_estimate_and_only_with_a_probe() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    facts.rates.measured = Measured::from_page(crate::measured::tests::PAGE).unwrap();
    let time = |facts: &Facts| resolve(&ask("Qwen/Qwen3.5-2B"), facts).unwrap().advice.unwrap().time;
    assert_eq!(time(&facts).basis, RateBasis::OriginalRecipe);
    facts.machine.probe = Some(Probe { bf16_tflops: 80.0, copy_gb_per_s: 225.0 });
    let scaled = time(&facts);
    assert_eq!(scaled.basis, RateBasis::Estimate);
    assert!(scaled.formula.contains("estimate: tests/gpu measured 10,000 tokens/s"), "{}", scaled.formula);
    // A probe of the GPU does not apply to the CPU.
    let on_cpu = Answers { device: Some(Answer::flag(DeviceChoice::Cpu)), ..ask("Qwen/Qwen3.5-2B") };
    let cpu = resolve(&on_cpu, &facts).unwrap().advice.unwrap().time;
    assert!(cpu.formula.contains("cores"), "{}", cpu.formula);
}

#[test]
fn one_table_gives_each_setting_a_key_a_name_and_a_variable_of_its_own() {
    for (i, setting) in SETTINGS.iter().enumerate() {
        for other in &SETTINGS[..i] {
            assert!(setting.key != other.key && setting.env() != other.env(), "{}", setting.key);
        }
    }
}

#[test]
fn fp8_is_off_unless_asked_for_and_refused_where_there_is_none() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    let asked = |device: &str| with(ask("Qwen/Qwen3.5-2B"), &[("fp8", "true"), ("device", device)]);
    assert!(!resolve(&ask("Qwen/Qwen3.5-2B"), &facts).unwrap().fp8);
    let plan = resolve(&asked("auto"), &facts).unwrap();
    assert!(plan.fp8);
    assert!(crate::render::summary(&plan).contains("on cuda, linear layers in fp8 (not lossless)"));
    let advice = plan.advice.as_ref().unwrap();
    let row = advice.explain.iter().find(|row| row.key == "fp8").unwrap();
    assert!(row.reason.contains("lossy"), "{}", row.reason);
    // Its speed is not used for plans without fp8, nor the reverse.
    assert!(advice.time.formula.contains("the effect of fp8 is not included"), "{}", advice.time.formula);
    assert!(plan.measured(5000.0).is_none());
    let text = without_advice(plan).to_toml().unwrap();
    assert!(Plan::from_toml(&text, "plan.toml").unwrap().fp8);
    let older = text.replace("fp8 = true\n", "");
    assert!(older != text && !Plan::from_toml(&older, "plan.toml").unwrap().fp8);

    let refused = |facts: &Facts, answers: &Answers| {
        let error = resolve(answers, facts).unwrap_err();
        assert_eq!((error.exit_code(), error.setting().unwrap().key), (2, "fp8"));
        error.to_string()
    };
    let words = refused(&facts, &asked("cpu"));
    assert!(
        words.starts_with("--fp8 is true, but fp8 needs a GPU, and this run trains on the CPU. Omit it:"),
        "{words}"
    );
    facts.machine.gpus[0].compute_capability = Some((8, 6));
    let words = refused(&facts, &asked("cuda"));
    assert!(words.contains("NVIDIA GB10 has compute capability 8.6, and fp8 needs 8.9 or newer"), "{words}");
    let preset = Answers::from_toml("fp8 = true", Origin::Preset, "mine.toml").unwrap();
    refused(&facts, &ask("Qwen/Qwen3.5-2B").merge(preset));
}

#[test]
fn the_plan_holds_what_was_said_about_the_models_config_and_nothing_where_nothing_was() {
    let plan = without_advice(resolve(&ask("Qwen/Qwen3.5-2B"), &recipe_facts("Qwen/Qwen3.5-2B")).unwrap());
    assert!(!plan.to_toml().unwrap().contains("ignored_fields"));
    assert_eq!(plan.model.config_options(), ConfigOptions::default());
    let answers = with(ask("Qwen/Qwen3.5-2B"), &[("ignore-config-field", "new_scale,use_new_thing")]);
    let plan = resolve(&answers, &recipe_facts("Qwen/Qwen3.5-2B")).unwrap();
    let text = plan.to_toml().unwrap();
    let again = Plan::from_toml(&text, "plan.toml").unwrap();
    assert_eq!(again.model.config_options(), answers.config_options());
    assert_eq!(again.model.ignored_fields, ["new_scale", "use_new_thing"]);
    let preset = Answers::from_toml(&text, Origin::Preset, "plan.toml").unwrap();
    assert_eq!(preset.config_options(), answers.config_options());
}

#[test]
fn where_an_old_run_found_its_model_is_no_answer() {
    let mut facts = demo_facts();
    facts.model.path = Some("/there".into());
    let plan = resolve(&ask("tiny"), &facts).unwrap();
    assert_eq!(plan.model.path, Some("/there".into()));
    let rows = &plan.advice.as_ref().unwrap().explain;
    let at = rows.iter().position(|row| row.key == "model.path").unwrap();
    assert_eq!((rows[at - 1].key.as_str(), rows[at].value.as_str()), ("model.revision", "/there"));
    let text = plan.to_toml().unwrap();
    assert!(text.contains("path = \"/there\""), "{text}");
    let preset = Answers::from_toml(&text, Origin::Preset, "plan.toml").unwrap();
    facts.model.path = Some("/here".into());
    assert_eq!(resolve(&preset, &facts).unwrap().model.path, Some("/here".into()));
}

#[test]
fn the_plan_of_a_run_from_before_a_setting_is_read_with_its_default() {
    let off = with(ask("Qwen/Qwen3.5-2B"), &[("tensorboard", "false")]);
    let plan = without_advice(resolve(&off, &recipe_facts("Qwen/Qwen3.5-2B")).unwrap());
    assert!(!plan.log.tensorboard);
    let text = plan.to_toml().unwrap();
    let older = text.replace("[log]\ntensorboard = false\n", "");
    assert_ne!(older, text);
    assert!(Plan::from_toml(&older, "plan.toml").unwrap().log.tensorboard);
    // In old plans the head was trained in the packs of the main training.
    let older = text.replace("mtp_length = 8192\n", "");
    assert_ne!(older, text);
    let plan = Plan::from_toml(&older, "plan.toml").unwrap();
    let head = plan.for_head();
    assert_eq!((head.pack, head.batch), (plan.pack, plan.batch));
    // They trained it for one epoch with one rate, to draft one token.
    let older = text.replace("[head]\nlearning_rate = 0.0002\nepochs = 1\ndraft_tokens = 3\n", "");
    assert_ne!(older, text);
    let old = Plan::from_toml(&older, "plan.toml").unwrap();
    assert_eq!(old.head, None);
    let head = old.for_head();
    assert_eq!((head.optimizer.learning_rate, head.duration.epochs), (2e-4, 1));
}

#[test]
fn the_head_has_a_rate_epochs_and_drafts_of_its_own_which_count_in_time_and_memory() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let plan = |pairs: &[(&str, &str)]| resolve(&with(ask("Qwen/Qwen3.5-2B"), pairs), &facts).unwrap();
    let (three, one) = (plan(&[]), plan(&[("mtp-draft-tokens", "1")]));
    assert_eq!(three.head, Some(HeadPlan { learning_rate: 2e-4, epochs: 1, draft_tokens: 3 }));
    let seconds = |plan: &Plan| plan.advice.as_ref().unwrap().time.mtp_s.unwrap();
    assert!(seconds(&three) > 1.05 * seconds(&one), "{} {}", seconds(&three), seconds(&one));
    let answers = [("mtp-learning-rate", "1e-4"), ("mtp-epochs", "2"), ("learning-rate", "3e-4")];
    let other = plan(&answers);
    let head = other.for_head();
    assert_eq!((head.optimizer.learning_rate, head.duration.epochs), (1e-4, 2));
    assert_eq!((other.optimizer.learning_rate, other.duration.epochs), (3e-4, 3));
    assert!((seconds(&other) / seconds(&three) - 2.0).abs() < 1e-6);
    let formula = &other.advice.as_ref().unwrap().time.formula;
    assert!(formula.contains("for the MTP head's epochs;"), "{formula}");

    // Without a training of the head they have no effect.
    let kept = plan(&[("mtp", "default")]);
    assert_eq!(kept.head, None);
    for flag in ["mtp-learning-rate", "mtp-epochs", "mtp-draft-tokens"] {
        let answers = with(ask("Qwen/Qwen3.5-2B"), &[("mtp", "default"), (flag, "1")]);
        let error = resolve(&answers, &facts).unwrap_err().to_string();
        assert!(error.contains("no MTP head is trained") && error.contains("--mtp trained"), "{error}");
    }
}

#[test]
fn a_mistyped_key_names_the_file_and_the_nearest_known_one() {
    let error = |text: &str| Answers::from_toml(text, Origin::UserFile, "mine.toml").unwrap_err().to_string();
    let text = error("[method]\nrnak = 8");
    assert!(
        text.contains("mine.toml") && text.contains("`method.rnak`") && text.contains("`method.rank`"),
        "{text}"
    );
    assert!(error("rank = 8").contains("`method.rank`"));
    assert!(error("[method]\nrank = \"eight\"").contains("expected a whole number"));
    assert!(error("[method\nrank = 8").contains("line 1"));
}

#[test]
fn variables_set_answers_and_a_mistyped_one_is_not_passed_over() {
    let env = |pairs: &[(&str, &str)]| {
        Answers::from_env(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    };
    let answers =
        env(&[("SPARKTUNE_PACK_LENGTH", "5_376"), ("SPARKTUNE_FIXTURES", "/x"), ("HOME", "/y")]).unwrap();
    assert_eq!(answers.pack_length, Some(Answer::new(5376, Origin::Environment)));
    let error = env(&[("SPARKTUNE_PACK_LENGHT", "1")]).unwrap_err().to_string();
    assert!(error.contains("`SPARKTUNE_PACK_LENGTH`"), "{error}");
    let error = env(&[("SPARKTUNE_METHOD", "dora")]).unwrap_err().to_string();
    assert!(error.contains("SPARKTUNE_METHOD is `dora`: expected lora or full"), "{error}");
}

fn origins() -> impl Strategy<Value = Origin> {
    prop::sample::select(vec![Origin::Preset, Origin::UserFile, Origin::Environment, Origin::Flag])
}

/// Generates any value for any of the answers, sensible or not.
fn any_answers() -> impl Strategy<Value = Answers> {
    let texts = prop::sample::select(vec![
        "0",
        "1",
        "2",
        "7",
        "64",
        "128",
        "1000",
        "4096",
        "65536",
        "4294967295",
        "0.1",
        "0.5",
        "2e-4",
        "-1",
        "1e300",
        "true",
        "false",
        "lora",
        "full",
        "bfd",
        "stream",
        "trained",
        "default",
        "none",
        "cpu",
        "cuda",
        "auto",
        "train",
        "skip",
        "messages",
        "name",
        "../x",
        "\u{1b}[2J",
    ]);
    prop::collection::vec((0..SETTINGS.len(), texts, origins()), 0..12).prop_map(|given| {
        given.into_iter().fold(ask("Qwen/Qwen3.5-2B"), |mut answers, (which, text, origin)| {
            let _ = answers.set(SETTINGS[which].name, text, origin);
            answers
        })
    })
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let amount = || prop_oneof![Just(0u64), 0u64..1 << 20, 0u64..1 << 40, any::<u64>()];
    let gpu = prop_oneof![
        Just(GpuMemory::Unified),
        (amount(), amount())
            .prop_map(|(total_bytes, free_bytes)| GpuMemory::Dedicated { total_bytes, free_bytes })
    ];
    let probe = prop::option::of((prop::num::f64::ANY, prop::num::f64::ANY))
        .prop_map(|probe| probe.map(|(bf16_tflops, copy_gb_per_s)| Probe { bf16_tflops, copy_gb_per_s }));
    let machine = (amount(), amount(), 0usize..256, prop::option::of(amount()), prop::option::of(gpu), probe)
        .prop_map(|(mem_total_bytes, mem_available_bytes, cores, disk_free_bytes, gpu, probe)| {
            MachineFacts {
                mem_total_bytes,
                mem_available_bytes,
                cores,
                disk_free_bytes,
                gpus: gpu
                    .map(|memory| Gpu { name: "NVIDIA GB10".into(), memory, compute_capability: None })
                    .into_iter()
                    .collect(),
                no_gpu_because: None,
                probe,
            }
        });
    let length = || prop_oneof![0u32..300, 0u32..1 << 16, any::<u32>()];
    let data = (
        prop_oneof![0u64..200, 0u64..1 << 20, any::<u64>()],
        amount(),
        amount(),
        prop::array::uniform4(length()),
        prop::collection::vec((length(), amount()), 0..6),
    )
        .prop_map(|(examples, total_tokens, target_tokens, [p50, p90, p99, max], buckets)| DataFacts {
            examples,
            total_tokens,
            target_tokens,
            p50,
            p90,
            p99,
            max,
            histogram: buckets.into_iter().map(|(up_to, count)| LengthBucket { up_to, count }).collect(),
            ..DataFacts::default()
        });
    let model = (0..5usize, prop::option::of(1usize..100_000)).prop_map(|(which, limit)| {
        let mut model = match which {
            0 => tiny_model(),
            n => {
                let catalog = Catalog::shipped();
                catalog.model_facts(&catalog.models[n * 2 - 1])
            }
        };
        model.config.max_position_embeddings = limit.unwrap_or(model.config.max_position_embeddings);
        model
    });
    let page = crate::measured::tests::PAGE.replace("NVIDIA Made-up", "NVIDIA GB10");
    let measured = Measured::from_page(&page).unwrap();
    let measured = prop_oneof![Just(Measured::default()), Just(measured)];
    (machine, model, data, measured).prop_map(|(machine, model, data, measured)| Facts {
        machine,
        model,
        data,
        rates: Rates { measured, ..Rates::default() },
        parent: None,
    })
}

/// Generates facts under which most plans are possible.
fn roomy_facts() -> impl Strategy<Value = Facts> {
    (any_facts(), 1u64..1 << 20, 8u32..3000).prop_map(|(facts, examples, mean)| Facts {
        machine: spark(),
        data: DataFacts {
            examples,
            total_tokens: examples * u64::from(mean),
            target_tokens: examples,
            p50: mean,
            p90: mean * 2,
            p99: mean * 3,
            max: mean * 4,
            histogram: Vec::new(),
            ..DataFacts::default()
        },
        ..facts
    })
}

/// Checks the properties that hold for every plan.
fn check(answers: &Answers, facts: &Facts) -> Result<bool, TestCaseError> {
    let plan = match resolve(answers, facts) {
        Ok(plan) => plan,
        Err(error) => {
            prop_assert!(error.to_string().len() > 20 && error.exit_code() != 70, "{error}");
            return Ok(false);
        }
    };
    let advice = plan.advice.as_ref().unwrap();
    prop_assert!(advice.memory.fits(), "{:?}", advice.memory);
    prop_assert!(advice.curve.iter().any(|point| point.pack_length == plan.pack.length && point.fits));
    prop_assert!(plan.batch.packs_per_step() >= 1 && advice.time.steps >= 1);
    prop_assert!(u64::from(plan.pack.length) <= facts.model.config.max_example_tokens() as u64);
    for setting in SETTINGS {
        let explained = advice.explain.iter().filter(|row| row.key == setting.key).count();
        let adapters = setting.key.starts_with("method.") && setting.key != "method.kind";
        prop_assert!(
            explained == 1 || adapters && plan.method == Method::Full,
            "{} {explained}",
            setting.key
        );
    }
    prop_assert!(advice.explain.iter().all(|row| !row.reason.is_empty()));
    for text in [render::explain(&plan, 80), render::summary(&plan), render::cost_curve(&plan)] {
        prop_assert!(!text.contains(char::from(27)), "an escape sequence");
    }

    let text = plan.to_toml().unwrap();
    prop_assert_eq!(&Plan::from_toml(&text, "plan.toml").unwrap(), &plan);
    let json = serde_json::to_string(&plan).unwrap();
    prop_assert!(serde_json::from_str::<Plan>(&json).is_ok(), "{json}");
    let bare = without_advice(plan.clone());
    prop_assert_eq!(&Plan::from_toml(&bare.to_toml().unwrap(), "plan.toml").unwrap(), &bare);
    // A plan is also a preset, and resolves to itself.
    let again = Answers::from_toml(&text, Origin::Preset, "plan.toml").unwrap();
    prop_assert_eq!(without_advice(resolve(&again, facts).unwrap()), bare);
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn any_facts_and_answers_give_a_plan_that_fits_or_an_error_that_speaks(
        answers in any_answers(), facts in any_facts(),
    ) {
        check(&answers, &facts)?;
    }

    #[test]
    fn a_spark_with_ordinary_data_always_has_a_plan(facts in roomy_facts()) {
        let limit = facts.model.config.max_example_tokens() as u64;
        let short = u64::from(facts.data.p50) < limit;
        prop_assert!(check(&ask("Qwen/Qwen3.5-2B"), &facts)? || !short);
    }

    #[test]
    fn whatever_the_order_of_the_layers_the_highest_origin_wins(
        given in prop::collection::vec((0u32..1000, origins()), 1..6),
    ) {
        let layers = given.iter().map(|(rank, origin)| Answers {
            rank: Some(Answer::new(*rank, *origin)), ..Answers::default()
        });
        let highest = given.iter().map(|(_, origin)| *origin).max().unwrap();
        let won = Answers::layered(layers).rank.unwrap();
        prop_assert_eq!(won.origin, highest);
        let last = given.iter().rev().find(|(_, origin)| *origin == highest).unwrap();
        prop_assert_eq!(won.value, last.0);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
        let _ = Answers::from_toml(&text, Origin::UserFile, "x");
        let _ = Plan::from_toml(&text, "x");
        for setting in SETTINGS {
            let _ = Answers::default().set(setting.name, &text, Origin::Flag);
        }
        prop_assert_eq!(PathBuf::from_text(&text).is_some(), !text.trim().is_empty());
    }
}

#[test]
fn full_fine_tuning_on_a_gpu_passes_as_many_of_4_rows_together_as_fit_and_divide_a_step() {
    // A name of which the recipe has no speed, so that the time is an estimate.
    let id = "someone/else";
    let together = |facts: &Facts, pairs: &[(&str, &str)]| {
        let plan = resolve(&with(ask(id), pairs), facts).unwrap();
        let advice = plan.advice.as_ref().unwrap();
        let of_chosen = advice.curve.iter().find(|point| point.pack_length == plan.pack.length).unwrap();
        assert_eq!(of_chosen.needed_bytes, advice.memory.needed_bytes());
        (plan.batch.micro_batch_packs, plan)
    };
    // Packs of the recipe's length, all of them full: 16 per step.
    let full: &[(&str, &str)] = &[("method", "full"), ("pack-strategy", "stream"), ("pack-length", "5376")];
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    facts.machine.mem_total_bytes = 400_000_000_000;
    facts.machine.mem_available_bytes = 390_000_000_000;
    let alone = together(&facts, &[full, &[("micro-batch-packs", "1")]].concat()).1;
    let (mut found, mut last) = (Vec::new(), u64::MAX);
    while resolve(&with(ask(id), full), &facts).is_ok() {
        let (packs, plan) = together(&facts, full);
        let larger = plan.batch.packs_per_step() as f64 / alone.batch.packs_per_step() as f64;
        assert!((larger - 1.0).abs() <= 1.0 / 16.0, "a step of {larger} times as many rows is another batch");
        let needed = plan.advice.as_ref().unwrap().memory.needed_bytes();
        assert!(needed <= last && needed <= facts.machine.mem_available_bytes);
        assert!(packs == 1 || !plan.recompute, "{packs} only where nothing is computed again");
        last = needed;
        if found.last() != Some(&(packs, plan.recompute)) {
            found.push((packs, plan.recompute));
        }
        facts.machine.mem_available_bytes -= 2_000_000_000;
    }
    assert_eq!(found, [(4, false), (2, false), (1, false), (1, true)]);

    // The reason and the gain.
    facts.machine.mem_available_bytes = 390_000_000_000;
    let (_, plan) = together(&facts, full);
    let why = reason(&plan, "batch.micro_batch_packs");
    assert!(why.contains("the most of 4, 2 and 1") && why.contains("% faster"), "{why}");
    let speed = |plan: &Plan| plan.advice.as_ref().unwrap().time.tokens_per_s.unwrap();
    assert!((1.005..1.05).contains(&(speed(&plan) / speed(&alone))), "{} {}", speed(&plan), speed(&alone));
    assert_eq!(plan.lighter()[0], "--micro-batch-packs 1");

    // The user's answer is used, and a step is never made larger than requested.
    let (packs, plan) = together(&facts, &[full, &[("micro-batch-packs", "2")]].concat());
    assert_eq!(packs, 2);
    assert!(reason(&plan, "batch.micro_batch_packs").starts_with("recommended was 4"));
    let (packs, plan) = together(&facts, &[full, &[("grad-accum-steps", "8")]].concat());
    assert_eq!((packs, plan.batch.packs_per_step()), (1, 8));
    let why = reason(&plan, "batch.micro_batch_packs");
    assert!(why.contains("larger steps"), "{why}");

    // LoRA and the CPU gain nothing from it.
    let (packs, plan) = together(&facts, &[("method", "lora")]);
    assert_eq!(packs, 1);
    assert!(reason(&plan, "batch.micro_batch_packs").contains("adapters are small"));
    facts.machine.gpus.clear();
    let (packs, plan) = together(&facts, full);
    assert_eq!(packs, 1);
    assert!(reason(&plan, "batch.micro_batch_packs").contains("only need more memory"));
}

#[test]
fn weights_change_the_steps_and_a_data_set_of_the_hub_is_recorded_with_its_commit() {
    let mut facts = demo_facts();
    let set = |name: &str, examples| SetFacts {
        name: name.into(),
        lengths: report(lengths(examples, 200.0, 0.4), 0.5),
    };
    facts.data = report(lengths(6000, 200.0, 0.4), 0.5);
    facts.data.sets = vec![set("a.jsonl", 4000), set("hf:o/n", 2000)];
    facts.data.pinned = [("hf:o/n".to_owned(), "hf:o/n@0123".to_owned())].into();
    let answers =
        with(ask("tiny"), &[("data", r#"["a.jsonl", "hf:o/n"]"#), ("eval-fraction", "0"), ("epochs", "1")]);
    let plan = |weights: Option<&str>| {
        let answers = weights.map_or(answers.clone(), |text| with(answers.clone(), &[("weight", text)]));
        resolve(&answers, &facts)
    };
    let plain = plan(None).unwrap();
    assert_eq!(plain.data.train, [PathBuf::from("a.jsonl"), "hf:o/n@0123".into()]);
    assert!(plain.data.weights.is_empty());
    let tokens = |plan: &Plan| plan.advice.as_ref().unwrap().time.tokens_per_epoch;
    let shares = |plan: &Plan| plan.advice.as_ref().unwrap().sets.clone();
    assert_eq!(shares(&plain).len(), 2);
    let weighted = plan(Some("a.jsonl=0.5, hf:o/n=3")).unwrap();
    assert_eq!(weighted.data.weights_in_order(), [0.5, 3.0]);
    assert_eq!(shares(&weighted)[1].epoch_examples, 6000);
    let expected = shares(&weighted).iter().map(|set| set.epoch_tokens).sum::<u64>() as f64;
    assert!((tokens(&weighted) as f64 / expected - 1.0).abs() < 0.01, "{} {expected}", tokens(&weighted));
    assert!(tokens(&weighted) > tokens(&plain));
    let text = render::summary(&weighted);
    assert!(text.contains("hf:o/n: 2,000 examples") && text.contains("weight 3: 6,000 examples"), "{text}");
    // The plan of the run is a preset that means the same data and the same weights.
    let again = Answers::from_toml(&weighted.to_toml().unwrap(), Origin::Preset, "plan.toml").unwrap();
    assert_eq!(again.weights.unwrap().value.0["hf:o/n@0123"], 3.0);

    for (weights, words) in [("c=2", "\"c\""), ("a.jsonl=0.0001,hf:o/n=0.0001", "has 0 examples")] {
        let error = plan(Some(weights)).unwrap_err();
        assert_eq!(error.setting().unwrap().key, "data.weights");
        assert!(error.to_string().contains(words), "{error}");
    }
}
