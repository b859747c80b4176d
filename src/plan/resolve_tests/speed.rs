//! Which measured speed the time of a run is based on.

use super::*;

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
    facts.rates = Rates::from_toml(&text, "rates.toml").0;
    let here = time(&facts);
    assert_eq!(here.basis, RateBasis::MeasuredHere);
    assert!((here.tokens_per_s.unwrap() - 10_000.0).abs() < 1.0);
    facts.machine.gpus[0].name = "Some new GPU".into();
    let unknown = time(&facts);
    assert_eq!((unknown.basis, unknown.train_s), (RateBasis::Unknown, None));
}

#[test]
fn an_entry_that_was_not_written_to_its_end_makes_no_other_unusable() {
    let facts = recipe_facts("Qwen/Qwen3.5-2B");
    let rate = resolve(&ask("Qwen/Qwen3.5-2B"), &facts).unwrap().measured(5000.0).unwrap();
    let entry = Rates { rates: vec![rate.clone()], ..Rates::default() }.to_toml().unwrap();
    assert!(entry.starts_with("[[rate]]\n") && entry.ends_with("\"\n"), "{entry}");
    for cut in 0..entry.len() - 1 {
        let text = format!("{entry}\n{}\n{entry}", &entry[..cut]);
        let (read, wrong) = Rates::from_toml(&text, "rates.toml");
        assert_eq!(read.rates, [rate.clone(), rate.clone()], "{text}");
        assert_eq!(wrong.is_some(), cut > 0, "{text}");
    }
}

#[test]
fn a_speed_that_was_measured_with_dropout_is_that_of_dropout() {
    let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
    let asked =
        |dropout: &str| with(ask("Qwen/Qwen3.5-2B"), &[("method", "lora"), ("lora-dropout", dropout)]);
    let mut trained_s = |measured_with: &str, planned_with: &str| {
        facts.rates.rates.clear();
        let measured = resolve(&asked(measured_with), &facts).unwrap().measured(5000.0).unwrap();
        facts.rates.rates = vec![measured];
        resolve(&asked(planned_with), &facts).unwrap().advice.unwrap().time.train_s.unwrap()
    };
    let plain = trained_s("0", "0");
    assert!((trained_s("0.1", "0.1") / plain - 1.0).abs() < 1e-9, "the same settings take the same time");
    let (added, saved) = (trained_s("0", "0.1") - plain, plain - trained_s("0.1", "0"));
    assert!(added > 0.0 && (saved / added - 1.0).abs() < 1e-9, "{added} {saved}");
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
fn measured_products_of_the_cpu_scale_the_time_and_change_nothing_else() {
    let mut facts = demo_facts();
    let plan = |facts: &Facts| resolve(&ask("tiny"), facts).unwrap();
    let assumed = plan(&facts);
    // 83 % of them are what is assumed of two cores and a wide model, or half of it.
    for (products, speed) in [(80e9 / 0.83, 1.0), (40e9 / 0.83, 0.5)] {
        facts.machine.cpu_speed = Some(CpuSpeed { flops_per_s: products, bytes_per_s: 20e9 });
        let measured = plan(&facts);
        let [before, now] = [&assumed, &measured].map(|plan| plan.advice.as_ref().unwrap().time.clone());
        assert!((now.tokens_per_s.unwrap() / before.tokens_per_s.unwrap() / speed - 1.0).abs() < 1e-9);
        assert_eq!((now.basis, before.basis), (RateBasis::Estimate, RateBasis::Estimate));
        assert!(now.formula.contains("reached here"), "{}", now.formula);
        assert_eq!(Plan { advice: None, ..measured }, Plan { advice: None, ..assumed.clone() });
    }
}

#[test]
fn the_measured_speed_of_reading_weights_decides_how_long_samples_take_and_nothing_else() {
    let mut facts = demo_facts();
    let mut time = |flops_per_s, bytes_per_s| {
        facts.machine.cpu_speed = Some(CpuSpeed { flops_per_s, bytes_per_s });
        resolve(&ask("tiny"), &facts).unwrap().advice.unwrap().time
    };
    let (fast, slow) = (time(80e9, 20e9), time(80e9, 1e9));
    assert!(slow.eval_s > fast.eval_s && slow.finish_s > fast.finish_s, "{slow:?} {fast:?}");
    assert_eq!((slow.train_s, slow.tokens_per_s), (fast.train_s, fast.tokens_per_s));
    // A number that is not a speed counts as not measured.
    let unmeasured = [time(f64::NAN, 20e9), time(80e9, 0.0), time(-1.0, f64::INFINITY)];
    assert!(unmeasured.windows(2).all(|two| two[0] == two[1]), "{unmeasured:?}");
    assert!(!unmeasured[0].formula.contains("reached here") && fast.formula.contains("reached here"));
}

#[test]
fn the_vendors_library_is_recommended_where_it_has_instructions_that_our_kernels_lack() {
    let planned = |capability, pairs: &[(&str, &str)]| {
        let mut facts = recipe_facts("Qwen/Qwen3.5-2B");
        facts.machine.gpus[0].compute_capability = capability;
        resolve(&with(ask("Qwen/Qwen3.5-2B"), pairs), &facts).unwrap()
    };
    for (capability, expected) in [
        (Some((8, 0)), Products::Own),
        (Some((8, 9)), Products::Own),
        (Some((9, 0)), Products::Auto),
        (Some((10, 3)), Products::Auto),
        (Some((12, 1)), Products::Own),
        (None, Products::Own),
    ] {
        assert_eq!(planned(capability, &[]).products, expected, "{capability:?}");
    }
    assert_eq!(planned(Some((9, 0)), &[("device", "cpu")]).products, Products::Own);
    let activations = |products| {
        let plan = planned(Some((9, 0)), &[("products", products)]);
        assert_eq!(plan.products.word(), products);
        plan.advice.unwrap().memory.activations
    };
    assert_eq!(activations("auto"), activations("own") + (32 << 20));
}

#[test]
fn what_stays_empty_in_packs_takes_no_time() {
    let facts = Facts { data: report(vec![140; 320], 0.45), ..demo_facts() };
    let with_packs_of = |length| resolve(&with(ask("tiny"), &[("pack-length", length)]), &facts).unwrap();
    let curve = |plan: &Plan| plan.advice.as_ref().unwrap().curve.clone();
    // One example a pack in both.
    let (full, empty) = (with_packs_of("140"), with_packs_of("256"));
    let of =
        |plan: &Plan| curve(plan).into_iter().find(|point| point.pack_length == plan.pack.length).unwrap();
    assert_eq!(of(&full).rows, of(&empty).rows);
    assert!(of(&full).waste < 0.01, "{:?}", of(&full));
    assert!((of(&empty).waste - 116.0 / 256.0).abs() < 0.01, "{:?}", of(&empty));
    let speed = |plan: &Plan| plan.advice.as_ref().unwrap().time.tokens_per_s.unwrap();
    assert_eq!(speed(&full), speed(&empty));
}
