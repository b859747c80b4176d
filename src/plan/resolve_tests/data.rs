//! What becomes of the examples: their lengths, the chat template, thinking.

use super::*;

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
