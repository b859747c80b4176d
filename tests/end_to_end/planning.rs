//! `plan` and `--dry-run`: everything is decided and explained, nothing is started.

use crate::sparktune::{Place, checkpoint, done};

fn plan(place: &Place, more: &[&str]) -> crate::sparktune::Done {
    let mut command = place.command(["plan", "--data", "train.jsonl"]);
    done(command.arg("--model").arg(checkpoint()).args(more))
}

#[test]
fn explain_gives_each_value_its_origin_and_reason() {
    let place = Place::new();
    place.chats(40);
    let result = plan(&place, &["--explain", "--rank", "16", "--preset", "quick"]).exits(0);
    let row = |key: &str| {
        result
            .out
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_else(|| panic!("{key}: {}", result.out))
    };
    assert!(row("method.rank").contains("16") && row("method.rank").contains("flag"));
    assert!(row("duration.epochs").contains("preset"));
    assert!(row("optimizer.learning_rate").contains("built-in"));
    assert!(result.out.contains("memory ") && result.out.contains("pack length"), "{}", result.out);
}

#[test]
fn what_the_job_would_take_elsewhere_follows_from_two_figures_of_the_user() {
    let place = Place::new();
    place.chats(40);
    let figures = ["--elsewhere-rate", "1000", "--elsewhere-price", "3.6"];
    let result = plan(&place, &figures).exits(0);
    let line = result.out.lines().find(|line| line.starts_with("elsewhere ")).unwrap_or_default();
    assert!(line.contains("at 1,000 tokens/s") && line.contains("an estimate"), "{}", result.out);
    let json = plan(&place, &[&figures[..], &["--json"]].concat()).exits(0).last();
    let time = &json["advice"]["time"];
    let here: f64 = ["start_s", "train_s", "eval_s", "mtp_s", "finish_s"]
        .iter()
        .filter_map(|part| time[part].as_f64())
        .sum();
    let there = json["elsewhere"]["seconds"].as_f64().unwrap();
    assert!((there * 1000.0 / (here * time["tokens_per_s"].as_f64().unwrap()) - 1.0).abs() < 1e-6, "{json}");
    assert!((json["elsewhere"]["price"].as_f64().unwrap() - there / 1000.0).abs() < 1e-9, "{json}");
    assert!(plan(&place, &[]).exits(0).out.lines().all(|line| !line.starts_with("elsewhere")));
    plan(&place, &["--elsewhere-price", "3.6"]).exits(2);
    plan(&place, &["--elsewhere-rate", "-1"]).exits(2);
}

#[test]
fn the_variable_stands_between_preset_and_flag() {
    let place = Place::new();
    place.chats(40);
    let with = |more: &[&str]| {
        let mut command = place.command(["plan", "--json", "--preset", "quick", "--data", "train.jsonl"]);
        done(command.arg("--model").arg(checkpoint()).args(more).env("SPARKTUNE_RANK", "24")).exits(0).last()
    };
    assert_eq!(with(&[])["method"]["rank"], 24);
    assert_eq!(with(&["--rank", "12"])["method"]["rank"], 12);
}

#[test]
fn json_is_the_plan_that_a_run_would_have() {
    let place = Place::new();
    place.chats(40);
    let plan = plan(&place, &["--json", "--method", "full", "--seed", "9"]).exits(0).last();
    assert_eq!(plan["method"]["kind"], "full");
    assert_eq!(plan["seed"], 9);
    assert_eq!(plan["model"]["path"], checkpoint().to_str().unwrap());
    assert!(plan["advice"]["memory"].is_object() && plan["advice"]["time"]["formula"].is_string());
}

#[test]
fn a_dry_run_starts_nothing() {
    let place = Place::new();
    place.chats(40);
    let result = done(&mut place.train(&["--dry-run"])).exits(0);
    assert_eq!(result.last()["method"]["kind"], "lora");
    let left: Vec<_> =
        std::fs::read_dir(place.join("runs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".tokens"], "only the token cache");
    assert!(place.sparktune(["runs", "--json"]).exits(0).last().as_array().unwrap().is_empty());
}

#[test]
fn a_dry_run_needs_no_weights() {
    let place = Place::new();
    place.chats(40);
    // Everything of the checkpoint but its weights, whose size alone is asked for.
    std::fs::create_dir(place.join("model")).unwrap();
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ] {
        std::fs::copy(checkpoint().join(file), place.join("model").join(file)).unwrap();
    }
    place.write("model/model.safetensors", "");
    let result = place.sparktune(["plan", "--model", "./model", "--data", "train.jsonl", "--json"]).exits(0);
    assert_eq!(result.last()["device"], "cpu");
}

#[test]
fn data_is_tokenised_once_for_any_number_of_plans() {
    let place = Place::new();
    let data = place.chats(40);
    let stamp = || {
        let cache = std::fs::read_dir(place.join("runs/.tokens")).unwrap().next().unwrap().unwrap().path();
        std::fs::metadata(cache.join("train.qubgpu")).unwrap().modified().unwrap()
    };
    plan(&place, &[]).exits(0);
    let first = stamp();
    plan(&place, &["--rank", "4"]).exits(0);
    assert_eq!(stamp(), first, "current data is used as it is");
    std::fs::write(
        &data,
        format!("{}{}\n", std::fs::read_to_string(&data).unwrap(), crate::sparktune::chat(99)),
    )
    .unwrap();
    plan(&place, &[]).exits(0);
    assert_ne!(stamp(), first, "changed data is tokenised again");
}

#[test]
fn refused_data_has_no_plan() {
    let place = Place::new();
    place.write("train.jsonl", "{oops\n{oops\n");
    let result = plan(&place, &[]).exits(3);
    assert!(
        result.err.contains("rejected.jsonl") && result.err.contains("sparktune check"),
        "{}",
        result.err
    );
}

#[test]
fn a_device_that_is_not_there_ends_with_4() {
    if cfg!(feature = "cuda") {
        println!("skipped: this build has CUDA");
        return;
    }
    let place = Place::new();
    place.chats(40);
    let result = plan(&place, &["--device", "cuda"]).exits(4);
    assert!(result.err.contains("--device") && result.err.contains("doctor"), "{}", result.err);
}

#[test]
fn data_is_tokenised_by_the_very_rules_that_the_plan_states() {
    let place = Place::new();
    place.chats(40);
    for more in [&["--json"][..], &["--json", "--think", "train"]] {
        let plan = plan(&place, more).exits(0).last();
        let think = plan["data"]["think"].as_str().unwrap();
        let rules = format!("empty_think={think}; ");
        let limit = format!("max_example_tokens={}; ", plan["data"]["max_example_tokens"]);
        let made = std::fs::read_dir(place.join("runs/.tokens")).unwrap().any(|cache| {
            let bytes = std::fs::read(cache.unwrap().path().join("train.qubgpu")).unwrap();
            let header = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]).into_owned();
            header.contains(&rules) && header.contains(&limit)
        });
        assert!(made, "no token file was made with {rules}{limit}");
    }
}
