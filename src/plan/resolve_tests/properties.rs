//! Properties of every plan, for any answers and facts.

use super::*;

fn origins() -> impl Strategy<Value = Origin> {
    prop::sample::select(vec![Origin::Preset, Origin::UserFile, Origin::Environment, Origin::Flag])
}

/// Generates any value for any of the answers, sensible or not.
fn any_answers() -> impl Strategy<Value = Answers> {
    let texts = prop::sample::select(vec![
        "0",
        "1",
        "2",
        "7",
        "64",
        "128",
        "1000",
        "4096",
        "65536",
        "4294967295",
        "0.1",
        "0.5",
        "2e-4",
        "-1",
        "1e300",
        "true",
        "false",
        "lora",
        "full",
        "bfd",
        "stream",
        "trained",
        "default",
        "none",
        "cpu",
        "cuda",
        "auto",
        "train",
        "skip",
        "messages",
        "name",
        "../x",
        "\u{1b}[2J",
    ]);
    prop::collection::vec((0..SETTINGS.len(), texts, origins()), 0..12).prop_map(|given| {
        given.into_iter().fold(ask("Qwen/Qwen3.5-2B"), |mut answers, (which, text, origin)| {
            let _ = answers.set(SETTINGS[which].name, text, origin);
            answers
        })
    })
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let amount = || prop_oneof![Just(0u64), 0u64..1 << 20, 0u64..1 << 40, any::<u64>()];
    let gpu = prop_oneof![
        Just(GpuMemory::Unified),
        (amount(), amount())
            .prop_map(|(total_bytes, free_bytes)| GpuMemory::Dedicated { total_bytes, free_bytes })
    ];
    let probe = prop::option::of((prop::num::f64::ANY, prop::num::f64::ANY))
        .prop_map(|probe| probe.map(|(bf16_tflops, copy_gb_per_s)| Probe { bf16_tflops, copy_gb_per_s }));
    let cpu = (0usize..256, prop::option::of((prop::num::f64::ANY, prop::num::f64::ANY)));
    let machine = (amount(), amount(), cpu, prop::option::of(amount()), prop::option::of(gpu), probe)
        .prop_map(|(mem_total_bytes, mem_available_bytes, cpu, disk_free_bytes, gpu, probe)| {
            let (cores, cpu_speed) = cpu;
            MachineFacts {
                mem_total_bytes,
                mem_available_bytes,
                cores,
                cpu_speed: cpu_speed.map(|(flops_per_s, bytes_per_s)| CpuSpeed { flops_per_s, bytes_per_s }),
                disk_free_bytes,
                gpus: gpu
                    .map(|memory| Gpu { name: "NVIDIA GB10".into(), memory, compute_capability: None })
                    .into_iter()
                    .collect(),
                no_gpu_because: None,
                probe,
            }
        });
    let length = || prop_oneof![0u32..300, 0u32..1 << 16, any::<u32>()];
    let data = (
        prop_oneof![0u64..200, 0u64..1 << 20, any::<u64>()],
        amount(),
        amount(),
        prop::array::uniform4(length()),
        prop::collection::vec((length(), amount()), 0..6),
    )
        .prop_map(|(examples, total_tokens, target_tokens, [p50, p90, p99, max], buckets)| DataFacts {
            examples,
            total_tokens,
            target_tokens,
            p50,
            p90,
            p99,
            max,
            histogram: buckets.into_iter().map(|(up_to, count)| LengthBucket { up_to, count }).collect(),
            ..DataFacts::default()
        });
    let model = (0..5usize, prop::option::of(1usize..100_000)).prop_map(|(which, limit)| {
        let mut model = match which {
            0 => tiny_model(),
            n => {
                let catalog = Catalog::shipped();
                catalog.model_facts(&catalog.models[n * 2 - 1])
            }
        };
        model.config.max_position_embeddings = limit.unwrap_or(model.config.max_position_embeddings);
        model
    });
    let page = crate::measured::tests::PAGE.replace("NVIDIA Made-up", "NVIDIA GB10");
    let measured = Measured::from_page(&page).unwrap();
    let measured = prop_oneof![Just(Measured::default()), Just(measured)];
    (machine, model, data, measured).prop_map(|(machine, model, data, measured)| Facts {
        machine,
        model,
        data,
        rates: Rates { measured, ..Rates::default() },
        parent: None,
    })
}

/// Generates facts under which most plans are possible.
fn roomy_facts() -> impl Strategy<Value = Facts> {
    (any_facts(), 1u64..1 << 20, 8u32..3000).prop_map(|(facts, examples, mean)| Facts {
        machine: spark(),
        data: DataFacts {
            examples,
            total_tokens: examples * u64::from(mean),
            target_tokens: examples,
            p50: mean,
            p90: mean * 2,
            p99: mean * 3,
            max: mean * 4,
            histogram: Vec::new(),
            ..DataFacts::default()
        },
        ..facts
    })
}

/// Checks the properties that hold for every plan.
fn check(answers: &Answers, facts: &Facts) -> Result<bool, TestCaseError> {
    let plan = match resolve(answers, facts) {
        Ok(plan) => plan,
        Err(error) => {
            prop_assert!(error.to_string().len() > 20 && error.exit_code() != 70, "{error}");
            return Ok(false);
        }
    };
    let advice = plan.advice.as_ref().unwrap();
    prop_assert!(advice.memory.fits(), "{:?}", advice.memory);
    prop_assert!(advice.curve.iter().any(|point| point.pack_length == plan.pack.length && point.fits));
    prop_assert!(plan.batch.packs_per_step() >= 1 && advice.time.steps >= 1);
    prop_assert!(u64::from(plan.pack.length) <= facts.model.config.max_example_tokens() as u64);
    for setting in SETTINGS {
        let explained = advice.explain.iter().filter(|row| row.key == setting.key).count();
        let adapters = setting.key.starts_with("method.") && setting.key != "method.kind";
        prop_assert!(
            explained == 1 || adapters && plan.method == Method::Full,
            "{} {explained}",
            setting.key
        );
    }
    prop_assert!(advice.explain.iter().all(|row| !row.reason.is_empty()));
    for text in [render::explain(&plan, 80), render::summary(&plan), render::cost_curve(&plan)] {
        prop_assert!(!text.contains(char::from(27)), "an escape sequence");
    }

    let text = plan.to_toml().unwrap();
    prop_assert_eq!(&Plan::from_toml(&text, "plan.toml").unwrap(), &plan);
    let json = serde_json::to_string(&plan).unwrap();
    prop_assert!(serde_json::from_str::<Plan>(&json).is_ok(), "{json}");
    let bare = without_advice(plan.clone());
    prop_assert_eq!(&Plan::from_toml(&bare.to_toml().unwrap(), "plan.toml").unwrap(), &bare);
    // A plan is also a preset, and resolves to itself.
    let again = Answers::from_toml(&text, Origin::Preset, "plan.toml").unwrap();
    prop_assert_eq!(without_advice(resolve(&again, facts).unwrap()), bare);
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn any_facts_and_answers_give_a_plan_that_fits_or_an_error_that_speaks(
        answers in any_answers(), facts in any_facts(),
    ) {
        check(&answers, &facts)?;
    }

    #[test]
    fn a_spark_with_ordinary_data_always_has_a_plan(facts in roomy_facts()) {
        let limit = facts.model.config.max_example_tokens() as u64;
        let short = u64::from(facts.data.p50) < limit;
        prop_assert!(check(&ask("Qwen/Qwen3.5-2B"), &facts)? || !short);
    }

    #[test]
    fn whatever_the_order_of_the_layers_the_highest_origin_wins(
        given in prop::collection::vec((0u32..1000, origins()), 1..6),
    ) {
        let layers = given.iter().map(|(rank, origin)| Answers {
            rank: Some(Answer::new(*rank, *origin)), ..Answers::default()
        });
        let highest = given.iter().map(|(_, origin)| *origin).max().unwrap();
        let won = Answers::layered(layers).rank.unwrap();
        prop_assert_eq!(won.origin, highest);
        let last = given.iter().rev().find(|(_, origin)| *origin == highest).unwrap();
        prop_assert_eq!(won.value, last.0);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
        let _ = Answers::from_toml(&text, Origin::UserFile, "x");
        let _ = Plan::from_toml(&text, "x");
        for setting in SETTINGS {
            let _ = Answers::default().set(setting.name, &text, Origin::Flag);
        }
        prop_assert_eq!(PathBuf::from_text(&text).is_some(), !text.trim().is_empty());
    }
}
