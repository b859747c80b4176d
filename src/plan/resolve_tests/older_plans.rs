//! Plans as files: those of older programs, and as presets.

use super::*;

#[test]
fn a_new_plan_clips_ranks_and_one_of_an_older_version_does_not_and_both_serve_as_presets() {
    let plan = resolve(&ask("Qwen/Qwen3.5-2B"), &recipe_facts("Qwen/Qwen3.5-2B")).unwrap();
    let is_clipped = |text: &str| match Plan::from_toml(text, "plan.toml").unwrap().method {
        Method::Lora { clipped, .. } => clipped,
        Method::Full | Method::Head => panic!("the plan has adapters"),
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
fn a_plan_of_an_older_program_exports_the_last_weights() {
    let plan = resolve(&ask("tiny"), &demo_facts()).unwrap();
    let text = plan.to_toml().unwrap();
    assert!(text.contains("export = \"best\"\n"), "{text}");
    let old = Plan::from_toml(&text.replace("export = \"best\"\n", ""), "plan.toml").unwrap();
    assert_eq!(old.export, Exported::Last);
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
    assert_eq!((head.optimizer.learning_rate, head.duration.epochs), (2e-4, 1.0));
}
