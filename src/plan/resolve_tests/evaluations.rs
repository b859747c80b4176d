//! The eval set, evaluations, and which weights are exported.

use super::*;

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
    let parts = [usual.start_s, usual.train_s, usual.eval_s].map(Option::unwrap);
    let total = parts.iter().sum::<f64>() + usual.after_s();
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
