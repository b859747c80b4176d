//! The MTP head.

use super::*;

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
fn the_time_names_the_heads_that_are_measured() {
    let mut facts = demo_facts();
    facts.data.eval_set = Some(EvalSetFacts { examples: 30, total_tokens: 4000, target_tokens: 1200 });
    let formula_of = |facts: &Facts, answers: &[(&str, &str)]| {
        resolve(&with(ask("tiny"), answers), facts).unwrap().advice.unwrap().time.formula
    };
    for (answers, what) in [
        (&[("mtp", "trained")][..], "to measure both heads and write"),
        (&[("mtp", "trained"), ("draft-vocab", "512")], "to measure both heads and write"),
        // Without an eval set, a choice between heads is measured on prompts of the training data.
        (&[("mtp", "trained"), ("eval-fraction", "0")], "to measure both heads and write"),
        (&[("mtp", "default")], "to measure the head and write"),
        // The same head twice, with all tokens and with some.
        (&[("mtp", "default"), ("draft-vocab", "512")], "to measure the head and write"),
        (&[("mtp", "default"), ("eval-fraction", "0")], "to write"),
        (&[("mtp", "none")], "to write"),
    ] {
        facts.model.checkpoint_bytes = 1 << 30;
        let formula = formula_of(&facts, answers);
        assert!(formula.contains(&format!(" {what} the outputs")), "{answers:?}: {formula}");
    }
    // What takes no time is not named.
    facts.model.checkpoint_bytes = 1 << 20;
    let formula = formula_of(&facts, &[("mtp", "none")]);
    assert!(!formula.contains("the outputs"), "{formula}");
}

#[test]
fn the_head_has_a_rate_epochs_and_drafts_of_its_own_which_count_in_time_and_memory() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let plan = |pairs: &[(&str, &str)]| resolve(&with(ask("Qwen/Qwen3.5-2B"), pairs), &facts).unwrap();
    let (three, one) = (plan(&[]), plan(&[("mtp-draft-tokens", "1")]));
    assert_eq!(three.head, Some(HeadPlan { learning_rate: 2e-4, epochs: 1, draft_tokens: 3, alone: false }));
    let seconds = |plan: &Plan| plan.advice.as_ref().unwrap().time.mtp_s.unwrap();
    assert!(seconds(&three) > 1.05 * seconds(&one), "{} {}", seconds(&three), seconds(&one));
    let answers = [("mtp-learning-rate", "1e-4"), ("mtp-epochs", "2"), ("learning-rate", "3e-4")];
    let other = plan(&answers);
    let head = other.for_head();
    assert_eq!((head.optimizer.learning_rate, head.duration.epochs), (1e-4, 2.0));
    assert_eq!((other.optimizer.learning_rate, other.duration.epochs), (3e-4, 3.0));
    let unevaluated = |pairs: &[(&str, &str)]| seconds(&plan(&[pairs, &[("eval-fraction", "0")]].concat()));
    assert!((unevaluated(&answers) / unevaluated(&[]) - 2.0).abs() < 1e-6);
    // It is evaluated before its first step and at least four times.
    assert!(seconds(&three) > 1.02 * unevaluated(&[]), "{} {}", seconds(&three), unevaluated(&[]));
    let formula = &other.advice.as_ref().unwrap().time.formula;
    assert!(formula.contains("for the MTP head's epochs + "), "{formula}");

    // Without a training of the head they have no effect.
    let kept = plan(&[("mtp", "default")]);
    assert_eq!(kept.head, None);
    for flag in ["mtp-learning-rate", "mtp-epochs", "mtp-draft-tokens"] {
        let answers = with(ask("Qwen/Qwen3.5-2B"), &[("mtp", "default"), (flag, "1")]);
        let error = resolve(&answers, &facts).unwrap_err().to_string();
        assert!(error.contains("no MTP head is trained") && error.contains("--mtp trained"), "{error}");
    }
}
