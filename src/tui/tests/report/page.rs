//! Tests of the page as markup: its contents, that text stays text, and that it is written atomically.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use sparktune_base::escape::escape;
use sparktune_plan::Plan;
use sparktune_runlog::{Event, EventWriter, Kind, Lease, RunStarted, RunsRoot, Step};
use sparktune_tui::report::{ReportInput, html, is_page, write_page};

use crate::runs::{self, Log, noise};

/// Parses the page with a strict parser.
fn parsed<R>(page: &str, look: impl FnOnce(&roxmltree::Document) -> R) -> R {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(page, options);
    look(&document.unwrap_or_else(|error| panic!("{error}\n{page}")))
}

/// Returns all text and tooltips, in order.
fn words(page: &str) -> String {
    parsed(page, |document| {
        let texts = document.descendants().filter_map(|node| node.is_text().then(|| node.text()).flatten());
        texts.collect::<Vec<_>>().join("\n")
    })
}

#[test]
fn the_zero_line_of_a_run_that_started_from_another_is_the_parents() {
    let root = tempfile::tempdir().unwrap();
    let page = html(&ReportInput::read(&runs::child(&RunsRoot::new(root.path()))));
    let words = words(&page);
    for expected in [
        "evaluation of the parent: 2.013",
        "the parent's evaluation 2.013",
        "\nParent\n2.0130\nheld-out loss before training",
    ] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    assert!(!words.contains("base model"), "{words}");
}

#[test]
fn a_realistic_run_has_all_its_parts_on_the_page() {
    let root = tempfile::tempdir().unwrap();
    let run = runs::realistic(&RunsRoot::new(root.path()));
    let page = html(&ReportInput::read(&run));
    let words = words(&page);
    for expected in [
        run.name().as_str(),
        "completed",
        "Qwen/Qwen3.5-2B",
        "LoRA, rank 128, alpha 256",
        "NVIDIA GB10, bf16",
        "2026-11-20 16:00:00 UTC",
        "0.6312",
        "in 2 attempts",
        "Training loss from step 1 to 1,240",
        "evaluation at step 1,000: 0.7254 (best)",
        "evaluation of the base model: 2.013",
        "base 2.0130 → best 0.7254 at step 1,000; outputs of step 1,000",
        "4 not a finite number",
        "evaluation at step 700: 0.7683, replaced by a later attempt",
        "checkpoint at step 600, 1.1 GB, the best so far",
        "The run used 31.2 GB at most",
        "the loss of step 472 is not a number; the step was left out",
        "If it has not moved for three days",
        "replaced by a later attempt",
        "vllm serve ./merged-mtp",
        "the complete model with the trained MTP head",
        "451 kB",
        "GPU clock from step 20 to 1,240",
        "messages[2].content: the field is missing. add the text, or leave the message out",
        "missing field",
        "train.jsonl:812",
        "identical to an earlier one",
        "pack length",
        "optimizer.learning_rate",
        "twice the rank, which scales the adapters by 2 at every rank",
        "from the speed measured by the Qwen3.5 recipe, another program",
        "Measured by phase: load 1 min 22 s",
        "the recipe's rule",
        "activations",
        "not kept",
        "was killed, or failed without an error message",
        "machine.gpus.0.name",
    ] {
        assert!(words.contains(expected), "{expected:?} is not on the page:\n{words}");
    }
    parsed(&page, |document| {
        let classes =
            |class: &str| document.descendants().filter(|n| n.attribute("class") == Some(class)).count();
        let plots = document.descendants().filter(|n| n.attribute("role") == Some("img"));
        for plot in plots {
            assert!(plot.attribute("aria-label").is_some_and(|label| !label.is_empty()));
            let desc = plot.children().find(|n| n.has_tag_name(("http://www.w3.org/1999/xhtml", "desc")));
            assert!(desc.and_then(|n| n.text()).is_some_and(|text| !text.is_empty()));
        }
        // The loss, ten side charts, lengths, pack lengths.
        assert!(classes("plot") == 13, "{}", classes("plot"));
        assert!(classes("nan") >= 1 && classes("old line") >= 5 && classes("resume") >= 5);
        let slices = document.descendants().filter(|n| n.attribute("class") == Some("slices"));
        assert_eq!(slices.map(|slices| slices.children().count()).max(), Some(60), "places to point at");
        let samples = document.descendants().filter(|n| n.attribute("class") == Some("answer old")).count();
        assert_eq!(samples, 1, "the evaluation at step 700 was done again");
    });
    assert!(page.len() < 300_000, "{} bytes", page.len());
}

#[test]
fn nothing_on_the_page_runs_or_is_fetched() {
    let root = tempfile::tempdir().unwrap();
    let page = html(&ReportInput::read(&runs::realistic(&RunsRoot::new(root.path()))));
    parsed(&page, |document| {
        let policy =
            document.descendants().find(|n| n.attribute("http-equiv") == Some("Content-Security-Policy"));
        assert_eq!(
            policy.unwrap().attribute("content"),
            Some("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
        );
        for node in document.descendants().filter(|node| node.is_element()) {
            let tag = node.tag_name().name();
            assert!(
                !["script", "link", "img", "image", "iframe", "object", "use", "a"].contains(&tag),
                "{tag}"
            );
            for attribute in node.attributes() {
                let name = attribute.name();
                assert!(!name.starts_with("on") && !["href", "src", "style"].contains(&name), "{tag} {name}");
            }
        }
    });
    let style = &page[page.find("<style>").unwrap()..page.find("</style>").unwrap()];
    assert!(!style.contains("url(") && !style.contains("@import"));
}

#[test]
fn a_missing_part_or_one_from_another_version_is_a_sentence() {
    let root = tempfile::tempdir().unwrap();
    let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
    let words_now = || words(&html(&ReportInput::read(&run)));
    let bare = words_now();
    for expected in [
        "the trainer has not started",
        "No step has been trained yet",
        "There is no plan.toml",
        "There is no report.json",
        "There is no provenance.json",
        "Nothing has been exported yet",
        "There is no checkpoint yet",
    ] {
        assert!(bare.contains(expected), "{expected:?} is not on the page:\n{bare}");
    }

    let newer = format!("{}\n[weather]\nrain = true\n", runs::plan().to_toml().unwrap());
    run.write_plan(&newer).unwrap();
    std::fs::write(run.data().join("report.json"), "{\"lines\": 1}").unwrap();
    std::fs::create_dir(run.provenance()).unwrap();
    let mut log = Log::of(&run);
    log.start(RunStarted::default());
    log.emit(Kind::Step(Step { step: 1, loss_nats: 1.5, ..Step::default() }));
    log.save();
    std::fs::write(run.event_file(2), "{\"v\":9,\"attempt\":2}\n").unwrap();
    let odd = words_now();
    for expected in [
        "The plan was written by another version of sparktune",
        "weather",
        "report.json was written by another version of sparktune, or is damaged",
        "provenance.json cannot be read: it is not a file",
        "event format v9 is newer",
        "1.5000",
    ] {
        assert!(odd.contains(expected), "{expected:?} is not on the page:\n{odd}");
    }

    let without_reasons = Plan { advice: None, ..runs::plan() };
    std::fs::write(run.plan(), without_reasons.to_toml().unwrap()).unwrap();
    assert!(words_now().contains("contains no reasons"));
}

#[test]
fn a_run_that_goes_on_and_one_that_crashed_say_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
    let lease = Lease::acquire(&run).unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    writer.emit(Kind::RunStarted(RunStarted { total_steps: Some(4000), ..RunStarted::default() }));
    for step in 1..=1000 {
        writer.emit(Kind::Step(Step { step, loss_nats: 1.5, ..Step::default() }));
    }
    writer.emit(Kind::Step(Step { step: 1001, step_ms: Some(1000.0), ..Step::default() }));
    // It lies elsewhere than in `runs`, so its path is what finds it.
    let named = run.path().display().to_string();
    let page = html(&ReportInput::read(&run));
    let live = words(&page);
    for expected in ["running", "of 4,000", "Time left", "continues", &format!("sparktune watch {named}")] {
        assert!(live.contains(expected), "{expected:?} is not on the page:\n{live}");
    }
    assert!(page.contains("aria-label=\"1,001 of 4,000 steps\""));
    // By this plan the head takes 128 times as long as a step, and the steps here followed at once.
    run.write_plan(include_str!("../../../../tests/fixtures/run-261c35e/run/plan.toml")).unwrap();
    let planned = words(&html(&ReportInput::read(&run)));
    assert!(planned.contains("Time left\n2 min "), "{planned}");
    drop((writer, lease));
    let crashed = words(&html(&ReportInput::read(&run)));
    for expected in ["crashed", "after step 1,001", "in logs/", &format!("sparktune resume {named}")] {
        assert!(crashed.contains(expected), "{expected:?} is not on the page:\n{crashed}");
    }
    assert!(!crashed.contains("Time left"));
}

#[test]
fn a_file_far_larger_than_sparktune_writes_it_is_not_read_in() {
    let root = tempfile::tempdir().unwrap();
    let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
    std::fs::write(run.outputs().join("SERVE.md"), "x".repeat(5 << 20)).unwrap();
    let page = html(&ReportInput::read(&run));
    assert!(words(&page).contains("SERVE.md cannot be read: it is much larger"));
    assert!(page.len() < 50_000);
}

#[test]
fn a_million_steps_make_a_page_of_ordinary_size() {
    let root = tempfile::tempdir().unwrap();
    let run = runs::realistic(&RunsRoot::new(root.path()));
    let mut input = ReportInput::read(&run);
    (input.view, input.times) = Default::default();
    let mut seq = 0;
    let mut apply = |attempt: u32, kind: Kind| {
        seq += 1;
        let event = Event { attempt, seq, time_us: seq * 1000, kind };
        input.view.apply(&event);
        input.times.add(&event);
    };
    let ranges = [(1, 250_000), (160_001, 500_000), (410_001, 750_000), (660_001, 1_000_000)];
    for (attempt, step) in
        (1..).zip(ranges).flat_map(|(n, (from, to))| (from..=to).map(move |step| (n, step)))
    {
        let (from, _) = ranges[attempt as usize - 1];
        if step == from {
            let resumed_from_step = (from > 1).then(|| from - 1);
            apply(attempt, Kind::RunStarted(RunStarted { resumed_from_step, ..RunStarted::default() }));
        }
        let value = 1.0 + noise(step);
        apply(
            attempt,
            Kind::Step(Step {
                step,
                loss_nats: if step % 1009 == 0 { f64::NAN } else { value },
                lr: Some(value),
                grad_norm: Some(value),
                tokens_per_s: Some(value * 1e3),
                step_ms: Some(value),
                mem_used_bytes: Some((value * 1e9) as u64),
                ..Step::default()
            }),
        );
        if step % 200 == 0 {
            let eval = sparktune_runlog::Eval { step, loss_nats: value, ..Default::default() };
            apply(attempt, Kind::Eval(eval));
            apply(attempt, Kind::DeviceSample(runs::reading(step)));
            let name = format!("step-{step}");
            let checkpoint = sparktune_runlog::CheckpointCommitted { step, name, ..Default::default() };
            apply(attempt, Kind::CheckpointCommitted(checkpoint));
        }
    }
    let page = html(&input);
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let longest = parsed(&page, |document| {
        let paths = document.descendants().filter_map(|node| node.attribute("d"));
        paths.map(|path| path.matches(['M', 'L']).count()).max().unwrap()
    });
    assert!((300..=800).contains(&longest), "a band of {longest} points");
}

#[test]
fn a_page_is_known_from_one_of_somebody_elses() {
    let root = tempfile::tempdir().unwrap();
    let run = runs::realistic(&RunsRoot::new(root.path()));
    let path = root.path().join("report.html");
    let is = |text: &str| {
        std::fs::write(&path, text).unwrap();
        is_page(&path).unwrap()
    };
    let long = ReportInput { name: "ä".repeat(10_000), ..ReportInput::read(&run) };
    assert!(is(&html(&long)));
    assert!(!is("") && !is("<!DOCTYPE html><title>mine</title>") && !is("the words · sparktune</title>"));
}

#[test]
fn the_page_is_private_and_replaces_the_one_before_whole() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("report.html");
    std::fs::write(&path, "old").unwrap();
    write_page(&path, "new").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1, "nothing is left beside it");
    assert!(write_page(&root.path().join("no/report.html"), "x").is_err());
    std::fs::create_dir(root.path().join("folder")).unwrap();
    assert!(write_page(&root.path().join("folder"), "x").is_err());
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 2, "nor after a failure");
}

/// Text that would be more than text somewhere.
fn evil() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        prop::sample::select(vec![
            "<script class=\"planted\">",
            "</title>",
            "\"><i class=\"planted\"/>",
            "' class='planted",
            "]]>",
            "<!--",
            "&lt;",
            "&#60;",
            "\u{202e}",
            "\u{1b}[2J",
            "\r\n",
            "\u{fffe}",
            "`",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_text_a_run_holds_it_stays_text(evil in evil()) {
        let root = tempfile::tempdir().unwrap();
        let run = runs::hostile(&RunsRoot::new(root.path()), &evil);
        let mut input = ReportInput::read(&run);
        prop_assert!(input.plan.is_ok() && input.data.is_ok() && input.provenance.is_ok() && input.serve.is_ok());
        input.name = evil.clone();
        input.notes.push(evil.clone());
        let page = html(&input);
        let (texts, planted) = parsed(&page, |document| {
            let planted = document.descendants().any(|n| n.attribute("class").is_some_and(|c| c.contains("planted")));
            let texts: Vec<String> =
                document.descendants().filter(|n| n.is_text()).map(|n| n.text().unwrap().to_owned()).collect();
            (texts, planted)
        });
        prop_assert!(!planted);
        // Noncharacters are spelled out, as active characters are.
        let shown = escape(&evil).replace('\u{fffe}', "\\u{fffe}").replace('\u{ffff}', "\\u{ffff}");
        let times = texts.iter().filter(|text| text.contains(&shown)).count();
        prop_assert!(evil.chars().count() > 500 || times > 100, "shown {times} times");
        for text in texts {
            prop_assert!(escape(&text.replace('\n', "")) == text.replace('\n', ""), "{:?}", text);
        }
    }

    #[test]
    fn whatever_numbers_a_run_holds_the_page_has_a_place_for_them(
        values in prop::collection::vec((1_u64..1_000_000, any::<f64>()), 1..60),
        usual in prop::collection::vec(-3.0..3.0_f64, 1..60),
    ) {
        let mut input = {
            let root = tempfile::tempdir().unwrap();
            ReportInput::read(&RunsRoot::new(root.path()).create("m", "lora").unwrap())
        };
        let usual = (1..).zip(usual.into_iter().map(f64::exp));
        for (seq, (step, value)) in (1..).zip(values.into_iter().chain(usual)) {
            let kind = Kind::Step(Step {
                step,
                loss_nats: value,
                lr: Some(value),
                grad_norm: Some(value),
                tokens_per_s: Some(value),
                step_ms: Some(value),
                data_ms: Some(value),
                mem_used_bytes: Some(value as u64),
                ..Step::default()
            });
            let event = Event { attempt: 1, seq, time_us: seq, kind };
            input.view.apply(&event);
            input.times.add(&event);
        }
        parsed(&html(&input), |document| {
            for attribute in document.descendants().flat_map(|node| node.attributes()) {
                if !["aria-label", "content"].contains(&attribute.name()) {
                    assert!(!attribute.value().contains("NaN") && !attribute.value().contains("inf"), "{attribute:?}");
                }
            }
        });
    }
}
