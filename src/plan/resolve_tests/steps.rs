//! Optimizer steps: their number and size, the learning rate, and what a step has of the data.

use super::*;

#[test]
fn examples_that_are_dropped_take_no_steps_and_no_time() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let time = |drop: &str| {
        // Evaluations take as long as before.
        let answers = with(ask("Qwen/Qwen3.5-2B"), &[("crc-drop", drop), ("eval-fraction", "0")]);
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

    // A limit that only the head's epochs reach does end something.
    let warned = |max_steps: u64| {
        let pairs = [("epochs", "1"), ("mtp-epochs", "3"), ("max-steps", &max_steps.to_string())];
        let plan = resolve(&with(ask("Qwen/Qwen3.5-2B"), &pairs), &facts).unwrap();
        plan.warnings().iter().any(|warning| warning.starts_with("--max-steps"))
    };
    assert!(!warned(2 * whole.steps_per_epoch) && warned(9 * whole.steps_per_epoch));
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
fn micro_batches_that_do_not_divide_a_step_change_it_and_the_reason_says_to_what() {
    let id = "Qwen/Qwen3.5-2B";
    let pairs = [
        ("method", "full"),
        ("pack-strategy", "stream"),
        ("pack-length", "5376"),
        ("micro-batch-packs", "3"),
    ];
    let mut facts = recipe_facts(id);
    facts.machine.mem_total_bytes = 400_000_000_000;
    facts.machine.mem_available_bytes = 390_000_000_000;
    let plan = resolve(&with(ask(id), &pairs), &facts).unwrap();
    assert_eq!(plan.batch.packs_per_step(), 15);
    let why = reason(&plan, "batch.grad_accum_steps");
    assert!(
        why.starts_with("16 packs of ") && why.contains("; whole micro-batches make it 15; an epoch"),
        "{why}"
    );

    let mut few = demo_facts();
    few.data = report(lengths(60, 400.0, 0.3), 0.5);
    let plan = resolve(&with(ask("tiny"), &[("micro-batch-packs", "64")]), &few).unwrap();
    let (why, time) = (reason(&plan, "batch.grad_accum_steps"), &plan.advice.as_ref().unwrap().time);
    assert_eq!(plan.batch.packs_per_step(), 64);
    assert!(why.contains("; whole micro-batches make it 64, so that an epoch has "), "{why}");
    assert!(why.ends_with(&format!("has {} optimizer step", time.steps_per_epoch)), "{why}");
}

#[test]
fn a_rank_and_recompute_have_reasons_of_their_own() {
    let id = "someone/else";
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    facts.machine.mem_total_bytes = 400_000_000_000;
    facts.machine.mem_available_bytes = 390_000_000_000;
    let why = |pairs: &[(&str, &str)]| {
        let plan = resolve(&with(ask(id), pairs), &facts).unwrap();
        reason(&plan, "batch.micro_batch_packs").to_owned()
    };
    assert!(!why(&[("method", "full")]).contains("fits only with recompute"));
    let given = why(&[("method", "full"), ("recompute", "true")]);
    assert!(given.contains("which recompute is given to save"), "{given}");

    let mut demo = demo_facts();
    let narrow = r#"{"model_type": "llama", "hidden_size": 200, "intermediate_size": 400, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "tie_word_embeddings": true}"#;
    demo.model = ModelFacts::from_config_json(narrow).unwrap();
    let plan = resolve(&ask("tiny"), &demo).unwrap();
    assert_eq!(plan.method.rank(), 32, "not 50");
    let why = reason(&plan, "method.rank");
    assert!(why.starts_with("the largest power of two up to a quarter of the hidden size, 200"), "{why}");
}

#[test]
fn a_model_without_kernels_for_a_shape_is_warned_about_on_a_gpu() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    let model = r#"{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 32001, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768, "tie_word_embeddings": true}"#;
    facts.model = ModelFacts::from_config_json(model).unwrap();
    let warnings = |pairs: &[(&str, &str)]| {
        let plan = resolve(&with(ask("someone/else"), pairs), &facts).unwrap();
        plan.warnings().to_vec()
    };
    let [warning] = &warnings(&[])[..] else { panic!("{:?}", warnings(&[])) };
    assert!(warning.contains("32,001 tokens"), "{warning}");
    assert_eq!(warnings(&[("device", "cpu")]), Vec::<String>::new());
    // Adapters of a rank that kernels do not take are padded.
    assert_eq!(warnings(&[("rank", "12")]).len(), 1);
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
