//! The tables for people: the explained plan, the summary and the table of settings.

use super::*;

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
    let narrow = render::explain(&plan, 80);
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    let seed: Vec<&str> = narrow.lines().skip_while(|line| !line.starts_with("seed ")).take(2).collect();
    assert_eq!(seed[0].split_whitespace().collect::<Vec<_>>(), ["seed", "42", "preset"], "{narrow}");
    assert_eq!(seed[1], "    as recommended: any fixed number will do", "{narrow}");
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
    assert!(steps(&idle, &facts).contains("3 epochs), "), "{}", steps(&idle, &facts));
    let warned = format!(
        "--max-steps is 1,000,000, but the run ends after 3 epochs, about {} steps. To train longer, raise --epochs",
        3 * per_epoch
    );
    assert!(resolve(&idle, &facts).unwrap().warnings().contains(&warned), "{warned}");
    assert!(!resolve(&short, &facts).unwrap().warnings().iter().any(|warning| warning.contains("max-steps")));
}

#[test]
fn one_table_gives_each_setting_a_key_a_name_and_a_variable_of_its_own() {
    for (i, setting) in SETTINGS.iter().enumerate() {
        for other in &SETTINGS[..i] {
            assert!(setting.key != other.key && setting.env() != other.env(), "{}", setting.key);
        }
    }
}
