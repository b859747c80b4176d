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
    let mut least = plan;
    (least.method, least.recompute, least.pack.length) = (crate::Method::Full, true, 128);
    assert_eq!(least.lighter(), ["--method lora"], "what is at its least already is not named");
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
    facts.machine.disk_free_bytes = Some(280_000_000_000);
    let plan = resolve(&full, &facts).unwrap();
    assert_eq!(plan.checkpoint.keep, 1);
    assert!(reason(&plan, "checkpoint.keep").contains("because of the disk"));
    facts.machine.disk_free_bytes = Some(20_000_000_000);
    let error = resolve(&full, &facts).unwrap_err();
    assert!(error.exit_code() == 4 && error.to_string().contains("20.0 GB are free"), "{error}");
}
