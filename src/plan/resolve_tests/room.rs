//! Memory and disk: what fits, and what is proposed where it does not.

use super::*;

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
    let of_rank = |rank| Plan { method: lora(rank, 32.0), ..plan.clone() }.lighter();
    assert!(of_rank(24).contains(&"--rank 8".into()) && of_rank(100).contains(&"--rank 48".into()));
    assert!(!of_rank(15).iter().any(|change| change.contains("rank")));
    let mut least = plan;
    (least.method, least.recompute, least.pack.length) = (crate::Method::Full, true, 128);
    assert_eq!(least.lighter(), ["--method lora"], "what is at its least already is not named");
}

#[test]
fn what_ranks_keep_until_it_is_known_what_counts_is_part_of_the_memory() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let memory = |of_ranks: &[(&str, &str)]| {
        let answers = with(ask("Qwen/Qwen3.5-2B"), &[("method", "lora"), ("rank", "32")]);
        resolve(&with(answers, of_ranks), &facts).unwrap().advice.unwrap().memory
    };
    let alone = memory(&[]);
    // The gradients of adapters are one f32 for each trained number.
    for (of_ranks, copies) in [
        (&[("sentry", "warn")][..], 0),
        (&[("sentry", "drop")], 1),
        (&[("combine-ranks", "median")], 1),
        (&[("sentry", "drop"), ("combine-ranks", "trimmed-mean")], 1),
        (&[("sync", "diloco:5")], 3),
    ] {
        let more = memory(of_ranks).optimizer - alone.optimizer;
        assert_eq!(more, copies * alone.gradients, "{of_ranks:?}");
    }
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
    facts.machine.mem_available_bytes = 6_200_000_000;
    let error = resolve(&ask("Qwen/Qwen3.5-0.8B"), &facts).unwrap_err().to_string();
    assert!(error.contains("an example of 6,000 tokens in one pack"), "{error}");
    assert!(error.contains("--max-example-tokens "), "{error}");
}

#[test]
fn a_full_disk_keeps_fewer_checkpoints_and_then_says_so() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-4B");
    let full = with(ask("Qwen/Qwen3.5-4B"), &[("method", "full")]);
    facts.machine.disk_free_bytes = Some(340_000_000_000);
    let plan = resolve(&full, &facts).unwrap();
    assert_eq!(plan.checkpoint.keep, 1);
    assert!(reason(&plan, "checkpoint.keep").contains("because of the disk"));
    facts.machine.disk_free_bytes = Some(20_000_000_000);
    let error = resolve(&full, &facts).unwrap_err();
    assert!(error.exit_code() == 4 && error.to_string().contains("20.0 GB are free"), "{error}");
}

/// The number that a test of `runlog` counts on a disk, and two more of a text model before its head.
#[test]
fn the_disk_has_to_hold_every_checkpoint_that_can_be_there_at_a_time() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    for (pairs, checkpoints) in [
        (&[("mtp", "none")][..], 8),
        (&[("mtp", "none"), ("keep", "1")], 4),
        (&[("mtp", "trained")], 10),
        (&[("mtp", "none"), ("eval-fraction", "0")], 5),
        (&[("mtp", "trained"), ("eval-fraction", "0")], 6),
    ] {
        let plan = resolve(&with(ask("Qwen/Qwen3.5-2B"), pairs), &facts).unwrap();
        let reason = reason(&plan, "checkpoint.keep");
        assert!(reason.contains(&format!(" for {checkpoints} checkpoints of ")), "{pairs:?}: {reason}");
    }
}

/// Returns the remedies where these answers do not fit, with less and less memory, until there are none.
fn remedies_with_less_memory(mut facts: Facts, answers: &Answers) -> Vec<(Facts, Vec<String>)> {
    let mut all = Vec::new();
    while facts.machine.mem_available_bytes > 10_000_000 {
        facts.machine.mem_available_bytes = facts.machine.mem_available_bytes / 100 * 97;
        if let Err(PlanError::DoesNotFit { remedies, .. }) = resolve(answers, &facts) {
            let changes: Vec<String> = remedies.into_iter().map(|remedy| remedy.change).collect();
            if changes.is_empty() {
                break;
            }
            all.push((facts.clone(), changes));
        }
    }
    all
}

/// Returns the answers with the changes that a remedy names.
fn changed(answers: &Answers, remedy: &str) -> Answers {
    let words: Vec<&str> = remedy.split([' ', ',', ':']).collect();
    let flags = words.windows(2).filter_map(|two| Some((two[0].strip_prefix("--")?, two[1])));
    with(answers.clone(), &flags.collect::<Vec<_>>())
}

#[test]
fn whoever_follows_a_remedy_has_a_plan_that_fits() {
    let answers = with(
        ask("tiny"),
        &[
            ("method", "full"),
            ("recompute", "false"),
            ("pack-length", "4096"),
            ("micro-batch-packs", "4"),
            ("mtp", "none"),
        ],
    );
    let all = remedies_with_less_memory(demo_facts(), &answers);
    let (mut together, mut with_limit) = (0, 0);
    for (facts, remedies) in &all {
        for remedy in remedies {
            let fits = resolve(&changed(&answers, remedy), facts);
            assert!(fits.is_ok(), "{remedy}: {}", fits.unwrap_err());
            if remedy.contains(" together") {
                together += 1;
                with_limit += usize::from(remedy.contains("max-example-tokens"));
                assert!(remedy.contains("--micro-batch-packs 1 --pack-length "), "{remedy}");
            }
        }
    }
    assert!(together > 0 && together < all.len(), "{together} {with_limit} of {}: {all:?}", all.len());
}
