//! Answers that are refused, with their place and a remedy, and what decides between them.

use super::*;

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
fn a_mistyped_key_names_the_file_and_the_nearest_known_one() {
    let error = |text: &str| Answers::from_toml(text, Origin::UserFile, "mine.toml").unwrap_err().to_string();
    let text = error("[method]\nrnak = 8");
    assert!(
        text.contains("mine.toml") && text.contains("`method.rnak`") && text.contains("`method.rank`"),
        "{text}"
    );
    assert!(error("rank = 8").contains("`method.rank`"));
    assert!(error("max_step = 8").contains("max_steps`"));
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

#[test]
fn a_limit_without_a_judge_is_refused_and_another_way_to_combine_ranks_is_warned_of() {
    let facts = demo_facts();
    let tiny = |pairs: &[(&str, &str)]| resolve(&with(ask("tiny"), pairs), &facts);
    let refused = tiny(&[("sentry-sigma", "4")]).unwrap_err().to_string();
    assert!(refused.contains("--sentry-sigma is 4, but no rank's gradient is judged"), "{refused}");
    let refused = tiny(&[("sentry", "drop"), ("sync", "diloco:5")]).unwrap_err().to_string();
    assert!(refused.contains("--sentry is drop, but ranks that exchange rarely"), "{refused}");
    let judged = tiny(&[("sentry", "drop"), ("sentry-sigma", "4")]).unwrap();
    assert_eq!((judged.ranks.sentry.word(), judged.ranks.sentry_sigma), ("drop", 4.0));
    let warned =
        |plan: &Plan| plan.warnings().iter().any(|said| said.contains("not the gradient of the loss"));
    assert!(!warned(&judged) && warned(&tiny(&[("combine-ranks", "median")]).unwrap()));
    // Plans of older programs have the defaults.
    let text = judged.to_toml().unwrap();
    let older: String = text.split_inclusive('\n').filter(|line| !line.starts_with("sentry")).collect();
    assert_eq!(Plan::from_toml(&older, "plan.toml").unwrap().ranks.sentry.word(), "off");
}

#[test]
fn a_swarm_is_refused_where_ranks_cannot_go_on_without_one_another() {
    let facts = demo_facts();
    let tiny = |pairs: &[(&str, &str)]| resolve(&with(ask("tiny"), pairs), &facts);
    let refused = |pairs: &[(&str, &str)]| tiny(pairs).unwrap_err().to_string();
    let said = refused(&[("silence-s", "9")]);
    assert!(said.contains("--silence-s is 9, but a run stops when a rank is gone"), "{said}");
    let said = refused(&[("swarm", "true"), ("sync", "diloco:5")]);
    assert!(
        said.contains("--swarm is true, but ranks that exchange rarely have different weights"),
        "{said}"
    );
    for judged in [("sentry", "warn"), ("combine-ranks", "median")] {
        let said = refused(&[("swarm", "true"), judged]);
        assert!(said.contains("--swarm is true, but ranks that are judged"), "{said}");
    }
    let ranks = tiny(&[("swarm", "true"), ("silence-s", "9")]).unwrap().ranks;
    assert_eq!((ranks.swarm, ranks.silence_s), (true, 9));
    let ranks = tiny(&[]).unwrap().ranks;
    assert_eq!((ranks.swarm, ranks.silence_s), (false, 5));
}
