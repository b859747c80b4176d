//! Models whose chat template or tokenizer was written to do harm, and files that are none. Whatever they do,
//! the answer is a sentence that names the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Server, wait_until};
use crate::signals::{children, ticks_in};
use crate::sparktune::{Done, Place, checkpoint, copy, done};

/// Doubles a text until the memory is full.
const DOUBLING: &str =
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";

/// Sorts for minutes.
pub(crate) const SLOW: &str = "{% for i in range(9999) %}{% set x = range(99999)|reverse|sort %}{% endfor %}";

const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER: &str = "tokenizer.json";

/// A copy of the fixture's model with another chat template.
pub(crate) fn with_template(place: &Place, template: &str) -> PathBuf {
    let model = place.join("model");
    copy(&checkpoint(), &model);
    fs::write(model.join(TEMPLATE), template).unwrap();
    model
}

/// A copy of the fixture's model with a changed tokenizer.
fn with_tokenizer(place: &Place, change: impl FnOnce(&mut Value)) -> PathBuf {
    let model = place.join("model");
    copy(&checkpoint(), &model);
    let path = model.join(TOKENIZER);
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut tokenizer);
    fs::write(&path, tokenizer.to_string()).unwrap();
    model
}

/// Changes the number of tokens that the config of a model names.
fn with_vocabulary(model: &Path, size: usize) {
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["text_config"]["vocab_size"] = json!(size);
    fs::write(&path, config.to_string()).unwrap();
}

/// A plain template in which this comes before every message.
pub(crate) fn before_each_message(harm: &str) -> String {
    format!(
        "{{% for m in messages %}}{harm}{{{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n' }}}}{{% endif %}}"
    )
}

/// A normalizer that replaces a pattern.
fn replace(pattern: Value, content: String) -> Value {
    json!({ "type": "Replace", "pattern": pattern, "content": content })
}

/// A normalizer that makes a trillion letters of each "a".
fn growing() -> Value {
    let each = || replace(json!({ "String": "a" }), "a".repeat(100));
    json!({ "type": "Sequence", "normalizers": (0..6).map(|_| each()).collect::<Vec<_>>() })
}

/// Checks that a command refuses the model with a sentence that names this file.
#[track_caller]
fn refused(place: &Place, command: &str, file: &str) -> Done {
    let done = match command {
        "check" => place.sparktune(["check", "train.jsonl", "--model", "model"]),
        "train" => place.sparktune([
            "train",
            "--non-interactive",
            "--device",
            "cpu",
            "--model",
            "model",
            "--data",
            "train.jsonl",
        ]),
        _ => place.sparktune(["plan", "--model", "model", "--data", "train.jsonl"]),
    };
    let done = done.exits(2);
    assert!(done.err.contains(file), "{}", done.err);
    done
}

#[test]
fn a_template_that_does_not_end_or_takes_all_memory_is_refused_with_its_name() {
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}";
    let cases = [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
            "steps",
        ),
        ("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}".to_owned(), "bytes for one conversation"),
        (DOUBLING.to_owned(), "memory"),
        ("{{ [1]|slice(10000000000)|list|length }}".to_owned(), ""),
        (deep.to_owned(), ""),
        (format!("{{{{ {} 1 }}}}", "not ".repeat(50_000)), ""),
        (format!("{{# {} #}}", "x".repeat(300 << 10)), "256 KiB"),
    ];
    for (harm, why) in cases {
        let place = Place::new();
        place.chats(3);
        with_template(&place, &before_each_message(&harm));
        let done = refused(&place, "check", TEMPLATE);
        assert!(done.err.contains(why), "{}: {}", &harm[..60], done.err);
    }
}

/// What a command and the processes that it started took at the most.
#[derive(Debug, Default)]
struct Peaks {
    /// The memory of a worker in bytes.
    memory: u64,
    /// The processor time of a thread in seconds.
    seconds: f64,
}

/// Follows `check` of a model to its end, which is a refusal or not, and says what it took.
#[track_caller]
fn followed(place: &Place, code: i32) -> (Peaks, String) {
    let mut command = place.command(["check", "train.jsonl", "--model", "model"]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let id = child.id();
    let mut peaks = Peaks::default();
    while child.try_wait().unwrap().is_none() {
        let workers = children(id);
        for worker in &workers {
            let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
            let kibibytes = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
            let peak = status.lines().find(|line| line.starts_with("VmHWM:")).and_then(kibibytes);
            peaks.memory = peaks.memory.max(peak.unwrap_or(0) << 10);
        }
        for process in workers.into_iter().chain([id]) {
            for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
                let hundredths = ticks_in(&thread.path().join("stat"));
                peaks.seconds = peaks.seconds.max(hundredths as f64 / 100.0);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    (peaks, said)
}

/// Follows `check` again if what was seen does not fit: on a busy machine the test may look too late to see
/// the worker, and so may the process that ends it. What knows no limit never fits.
#[track_caller]
fn followed_until(place: &Place, code: i32, fits: impl Fn(&Peaks) -> bool) -> (Peaks, String) {
    let mut seen = followed(place, code);
    for _ in 0..9 {
        if fits(&seen.0) {
            break;
        }
        println!("once more, after {:?}", seen.0);
        seen = followed(place, code);
    }
    seen
}

/// What the worker may take: nearly four times the memory of the largest tokenizer of the catalog, and more
/// for each core.
fn memory_limit() -> u64 {
    4 * LARGEST_TOKENIZER + of_cores()
}

/// The memory in bytes for the caches of all cores.
fn of_cores() -> u64 {
    (std::thread::available_parallelism().unwrap().get() as u64 * 24) << 20
}

/// The memory in bytes that the largest tokenizer of the catalog takes.
const LARGEST_TOKENIZER: u64 = 284_000_000;

/// Between two looks at its memory, which come late on a busy machine, the worker goes on.
const BETWEEN_LOOKS: u64 = 1 << 30;

#[test]
fn files_that_take_memory_are_refused_before_they_have_four_times_that_of_the_largest_tokenizer() {
    let template = |place: &Place| {
        drop(with_template(place, &before_each_message("{{ [1]|slice(10000000000)|list|length }}")))
    };
    let tokenizer =
        |place: &Place| drop(with_tokenizer(place, |tokenizer| tokenizer["normalizer"] = growing()));
    for (file, harm) in [(TEMPLATE, &template as &dyn Fn(&Place)), (TOKENIZER, &tokenizer)] {
        let place = Place::new();
        place.chats(3);
        harm(&place);
        let limit = memory_limit();
        // More than half of it shows that the worker was seen, and that it was ended for its memory.
        let fits = |peaks: &Peaks| (limit / 2..limit + BETWEEN_LOOKS).contains(&peaks.memory);
        let (peaks, said) = followed_until(&place, 2, fits);
        assert!(said.contains(file) && said.contains("memory"), "{said}");
        println!("{file}: {} MB at most, the limit is {} MB", peaks.memory / 1_000_000, limit / 1_000_000);
        assert!(fits(&peaks), "{file}: {peaks:?}");
    }
}

/// So the limit is what it is said to be: four times this, and not less.
#[test]
fn a_tokenizer_of_248_000_tokens_takes_no_more_memory_than_the_limit_assumes() {
    let place = Place::new();
    place.chats(3);
    let model = with_tokenizer(&place, |tokenizer| {
        let added = tokenizer["added_tokens"].as_array().unwrap();
        let mut next = added.iter().filter_map(|token| token["id"].as_u64()).max().unwrap() + 1;
        let mut vocabulary = tokenizer["model"]["vocab"].as_object().unwrap().clone();
        let mut merges = tokenizer["model"]["merges"].as_array().unwrap().clone();
        // Each token is lengthened by each of those that were there.
        let mut all: Vec<String> = vocabulary.keys().cloned().collect();
        let ends = all.clone();
        for at in 0.. {
            for end in &ends {
                let longer = format!("{}{end}", all[at]);
                if vocabulary.len() < 248_000 && !vocabulary.contains_key(&longer) {
                    vocabulary.insert(longer.clone(), next.into());
                    merges.push(json!([all[at], end]));
                    all.push(longer);
                    next += 1;
                }
            }
            if vocabulary.len() == 248_000 {
                break;
            }
        }
        tokenizer["model"]["vocab"] = vocabulary.into();
        tokenizer["model"]["merges"] = merges.into();
    });
    with_vocabulary(&model, 250_000);
    // The program's own pages count here too.
    let most = LARGEST_TOKENIZER * 5 / 4 + of_cores();
    let (peaks, _) = followed_until(&place, 0, |peaks| peaks.memory >= LARGEST_TOKENIZER / 4);
    println!("{} MB at most", peaks.memory / 1_000_000);
    assert!((LARGEST_TOKENIZER / 4..most).contains(&peaks.memory), "{peaks:?}");
}

/// Nobody waits longer than ten seconds for the sentence, on a machine without other load. On one with other
/// load a test cannot measure that by the clock; so these are seconds of processor time, of the thread that
/// took the most. The limit of a piece of work is five of them.
#[test]
fn a_hostile_file_is_refused_within_ten_seconds_of_a_processor() {
    const LONGEST: f64 = 10.0;
    let nested = format!("{{{{ {} 1 }}}}", "not ".repeat(50_000));
    let templates = [SLOW, DOUBLING, &nested, "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}"];
    for harm in templates {
        let place = Place::new();
        place.chats(3);
        with_template(&place, &before_each_message(harm));
        // More shows that the slow template was seen at work.
        let least = if harm == SLOW { 2.0 } else { 0.0 };
        let fits = |peaks: &Peaks| (least..=LONGEST).contains(&peaks.seconds);
        let (peaks, said) = followed_until(&place, 2, fits);
        assert!(said.contains(TEMPLATE) && fits(&peaks), "{peaks:?}: {said}");
    }
    for normalizer in [growing(), replace(json!({ "Regex": "" }), "a".into())] {
        let place = Place::new();
        place.chats(3);
        with_tokenizer(&place, |tokenizer| tokenizer["normalizer"] = normalizer);
        let (peaks, said) = followed_until(&place, 2, |peaks| peaks.seconds <= LONGEST);
        assert!(said.contains(TOKENIZER) && peaks.seconds <= LONGEST, "{peaks:?}: {said}");
    }
}

/// They are run for prompts too, in the process that holds the model.
#[test]
fn a_hostile_file_of_a_model_that_answers_ends_its_worker_with_the_name_of_the_file() {
    let nested = format!("{{{{ {} 1 }}}}", "not ".repeat(50_000));
    let cases = [
        (DOUBLING, "memory"),
        (&nested, "nests too deeply"),
        (SLOW, "processor time"),
        ("{% if %}", "unexpected end"),
    ];
    for (harm, why) in cases {
        let place = Place::new();
        with_template(&place, &before_each_message(harm));
        let done = place.sparktune(["generate", "model", "--prompt", "Hello", "--max-tokens", "1"]).exits(2);
        assert!(done.err.contains(TEMPLATE) && done.err.contains(why), "{why}: {}", done.err);
    }
    let place = Place::new();
    let replace = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "a" });
    with_tokenizer(&place, |tokenizer| tokenizer["normalizer"] = replace);
    let done = place.sparktune(["generate", "model", "--prompt", "Hello", "--max-tokens", "1"]).exits(2);
    assert!(done.err.contains(TOKENIZER) && done.err.contains("it fails"), "{}", done.err);
}

#[test]
fn an_edit_ends_when_a_file_of_the_model_passes_a_limit_and_leaves_nothing() {
    let edit = |place: &Place, more: &[&str]| {
        place.write("facts.jsonl", "{\"prompt\": \"The shop closes at\", \"target\": \"six\"}\n");
        let args = ["edit", "model", "--facts", "facts.jsonl", "--method", "rome", "-o", "edited"];
        let done = place.sparktune([&args, more].concat()).exits(2);
        assert!(!place.join("edited").exists());
        done.err
    };
    let nested = format!("{{{{ {} 1 }}}}", "not ".repeat(50_000));
    // This one only does harm for the text of the fact.
    let deep = "{% if m.content.startswith('The shop') %}{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}{% endif %}";
    let cases = [
        (DOUBLING, "memory"),
        (SLOW, "processor time"),
        (&nested, "nests too deeply"),
        (deep, "nests too deeply"),
    ];
    for (harm, why) in cases {
        let place = Place::new();
        with_template(&place, &before_each_message(harm));
        let said = edit(&place, &["--chat"]);
        assert!(said.contains(TEMPLATE) && said.contains(why), "{said}");
    }
    let place = Place::new();
    let replace = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "a" });
    with_tokenizer(&place, |tokenizer| tokenizer["normalizer"] = replace);
    let said = edit(&place, &[]);
    assert!(said.contains(TOKENIZER) && said.contains("it fails"), "{said}");
}

/// Each chat says what is wrong with the file, its worker ends, and other models go on.
#[test]
fn a_hostile_template_behind_the_server_fails_its_own_chats_and_nothing_else() {
    for (harm, why, ways) in [(DOUBLING, "memory", 2), (SLOW, "processor time", 1)] {
        let place = Place::new();
        let hostile = with_template(&place, &before_each_message(harm));
        let sound = checkpoint();
        let models = [&hostile, &sound].map(|model| model.to_str().unwrap().to_owned());
        let server = Server::start(&place, &["--model", &models[0], "--model", &models[1]]);
        let chat = |model: &str, is_stream: bool| {
            let messages = json!([{"role": "user", "content": "Hello"}]);
            let body = json!({"model": model, "messages": messages, "max_tokens": 2, "stream": is_stream});
            server.post("/v1/chat/completions", &body)
        };
        for is_stream in [false, true].into_iter().take(ways) {
            let refused = chat("dir:model", is_stream);
            let words = &refused.body;
            assert!(refused.status >= 400 && words.contains(TEMPLATE) && words.contains(why), "{refused:?}");
            assert!(refused.json()["error"]["message"].is_string(), "{refused:?}");
        }
        chat("dir:checkpoint", false).has(200);
        server.get("/api/v1/health").has(200);
        wait_until("the end of the hostile worker", || server.children().len() == 1);
    }
}

#[test]
fn what_a_template_says_when_it_refuses_is_repeated_in_a_message_of_bounded_length() {
    let place = Place::new();
    place.chats(3);
    with_template(&place, &before_each_message("{{ raise_exception('no ' * 1000000) }}"));
    let done = refused(&place, "check", TEMPLATE);
    assert!(done.err.contains("no no no") && done.err.len() < 2_000, "{} bytes", done.err.len());
}

#[test]
fn a_template_that_is_harmless_until_one_line_is_refused_with_the_line() {
    let harm = "{% if 'lamp and' in m.content %}{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% endif %}";
    for command in ["check", "plan", "train"] {
        let place = Place::new();
        place.chats(40);
        with_template(&place, &before_each_message(harm));
        let done = refused(&place, command, TEMPLATE);
        assert!(done.err.contains("train.jsonl:") && done.err.contains("--chat-template"), "{}", done.err);
    }
}

#[test]
fn a_tokenizer_that_fails_or_takes_all_memory_is_refused_with_its_name() {
    let cases = [
        json!({ "type": "Precompiled", "precompiled_charsmap": "AAAAAA==" }),
        replace(json!({ "Regex": "" }), "a".into()),
        growing(),
    ];
    for normalizer in cases {
        let place = Place::new();
        place.chats(3);
        with_tokenizer(&place, |tokenizer| tokenizer["normalizer"] = normalizer.clone());
        refused(&place, "check", TOKENIZER);
    }
}

/// A decoder is first needed for the sample answers, which the trainer writes as text.
#[test]
fn a_decoder_that_fails_or_takes_all_memory_ends_the_training_with_its_name() {
    let grow = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(100) });
    let letter = json!({ "type": "Replace", "pattern": { "Regex": "^.*$" }, "content": "a" });
    let strip = json!({ "type": "Strip", "content": "a", "start": 1, "stop": 1 });
    for (decoders, why) in [(vec![grow; 6], "memory"), (vec![letter, strip], "it fails")] {
        let place = Place::new();
        place.chats(60);
        with_tokenizer(&place, |tokenizer| {
            tokenizer["decoder"] = json!({ "type": "Sequence", "decoders": decoders });
        });
        let done = refused(&place, "train", TOKENIZER);
        assert!(done.err.contains(why), "{why}: {}", done.err);
    }
}

/// They work with both files in their own process, as a training does with its decoder.
#[test]
fn measurements_refuse_a_hostile_template_or_tokenizer_with_its_name() {
    let nested = format!("{{{{ {} 1 }}}}", "not ".repeat(50_000));
    for (harm, why) in [(DOUBLING, "memory"), (SLOW, "processor time"), (&nested, "nests too deeply")] {
        let place = Place::new();
        with_template(&place, &before_each_message(harm));
        let done = place.sparktune(["bench", "tokenising", "--quick", "--model", "model"]).exits(2);
        assert!(done.err.contains(TEMPLATE) && done.err.contains(why), "{why}: {}", done.err);
    }
    let replace = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "a" });
    for command in [
        &["bench", "tokenising", "--quick"][..],
        &["bench", "pipelines", "--steps", "2", "--device", "cpu", "--data", "train.jsonl"],
    ] {
        let place = Place::new();
        place.chats(40);
        with_tokenizer(&place, |tokenizer| tokenizer["normalizer"] = replace.clone());
        let done = place.sparktune(command.iter().chain(&["--model", "model"])).exits(2);
        assert!(done.err.contains(TOKENIZER) && done.err.contains("it fails"), "{}", done.err);
    }
}

#[test]
fn the_small_files_of_a_model_are_not_read_when_they_are_far_too_large() {
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let place = Place::new();
        place.chats(3);
        let model = with_template(&place, "");
        fs::remove_file(model.join(TEMPLATE)).unwrap();
        fs::write(model.join(name), format!("{{\"a\": [0{}]}}", ",0".repeat(10 << 20))).unwrap();
        let done = refused(&place, "check", name);
        assert!(done.err.contains("no file of this kind has"), "{}", done.err);
    }
}

#[test]
fn a_vocabulary_without_the_tokens_of_the_data_is_refused_before_a_run_is_created() {
    let place = Place::new();
    place.chats(3);
    with_vocabulary(&with_template(&place, &before_each_message("")), 1);
    let checked = place.sparktune(["check", "train.jsonl", "--model", "model"]).exits(3);
    assert!(checked.out.contains("but the model's vocabulary ends at 1. "), "{}", checked.out);
    let of = ["--device", "cpu", "--data", "train.jsonl", "--model", "model"];
    for command in [&["plan"][..], &["train", "--non-interactive"]] {
        let done = place.sparktune(command.iter().chain(&of)).exits(3);
        assert!(done.err.contains("3 of 3 lines were rejected"), "{}", done.err);
    }
    assert!(!place.join("runs/latest").exists());
}

#[test]
fn tokenizers_with_random_or_ambiguous_tokens_are_reported() {
    let place = Place::new();
    place.chats(3);
    with_tokenizer(&place, |tokenizer| {
        tokenizer["model"]["dropout"] = json!(0.5);
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let last = vocabulary.values().filter_map(Value::as_u64).max().unwrap();
        vocabulary.insert("another".into(), json!(last));
    });
    let done = place.sparktune(["check", "train.jsonl", "--model", "model"]);
    assert!(done.err.contains("dropout of 0.5") && done.err.contains("have an id that another"), "{done:?}");
}

#[test]
fn lines_of_far_too_much_are_left_out_in_words() {
    let place = Place::new();
    place.chats(8);
    let turn = |role: &str, content: String| json!({ "role": role, "content": content });
    let many: Vec<Value> = (0..20_002).map(|i| turn(["user", "assistant"][i % 2], "x".into())).collect();
    let long = [turn("user", "Say a".into()), turn("assistant", "a".repeat(5 << 20))];
    let lines = format!("{}\n{}\n", json!({ "messages": many }), json!({ "messages": long }));
    let all = fs::read_to_string(place.join("train.jsonl")).unwrap() + &lines;
    place.write("train.jsonl", all);
    let model = checkpoint();
    let args = ["check", "train.jsonl", "--max-rejected", "0.5", "--model", model.to_str().unwrap()];
    let done = place.sparktune(args).exits(0);
    let kept = fs::read_to_string(place.join("rejected.jsonl")).unwrap();
    assert!(done.out.contains("20,002 messages") && kept.contains("bytes of text"), "{}", done.out);
    // How many tokens it has is not known.
    assert!(
        done.out.contains("too long and left out, first ") && done.out.contains(" (5,242,"),
        "{}",
        done.out
    );
}

/// Values of two to eight bytes, which would take two to six gigabytes if all were kept.
#[test]
fn a_line_of_very_many_small_values_takes_little_memory() {
    const LINE: usize = 32 << 20;
    let place = Place::new();
    let many = |value: &str| format!("[{}{value}]", format!("{value},").repeat(LINE / (value.len() + 1)));
    let numbers = many("0");
    let cases = [
        (format!(r#"{{"messages":{}}}"#, many("{}")), "messages; a conversation may have at most 20,000"),
        (format!(r#"{{"instruction":"a","output":"b","history":{}}}"#, many(r#"["",""]"#)), "at most 20,000"),
        (format!(r#"{{"conversations":[{{"from":"function_call","value":"{numbers}"}}]}}"#), "commas"),
        (format!(r#"{{"messages":[{{"role":"assistant","content":"b"}}],"tools":"{numbers}"}}"#), "commas"),
        (format!(r#"{{"messages":1,"x":{}}}"#, many(r#"{"a":0}"#)), "invalid type"),
        (format!(r#"{{"x":{numbers}}}"#), "no known format"),
    ];
    for (line, said) in cases {
        place.write("train.jsonl", line + "\n");
        // In KiB. An allocation beyond it fails, and ends the program.
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -d 800000; exec \"$0\" check train.jsonl"]).current_dir(place.path());
        // The stacks of all threads count too.
        limited.env("RAYON_NUM_THREADS", "2");
        let done = done(limited.arg(env!("CARGO_BIN_EXE_sparktune"))).exits(3);
        assert!(done.out.contains(said) || done.err.contains(said), "{said}: {done:?}");
    }
}

#[test]
fn pipes_and_devices_are_refused_wherever_a_file_is_expected() {
    let place = Place::new();
    place.chats(3);
    let made = Command::new("mkfifo").arg(place.join("pipe.jsonl")).status().unwrap();
    assert!(made.success());
    let piped = place.join("piped");
    copy(&checkpoint(), &piped);
    let weights = piped.join("model.safetensors");
    fs::remove_file(&weights).unwrap();
    assert!(Command::new("mkfifo").arg(weights).status().unwrap().success());
    let model = checkpoint();
    let model = model.to_str().unwrap();
    let folder = place.join("data");
    fs::create_dir(&folder).unwrap();
    fs::rename(place.join("pipe.jsonl"), folder.join("pipe.jsonl")).unwrap();
    for args in [
        &["check", "data/pipe.jsonl"][..],
        &["check", "data"],
        &["check", "/dev/zero"],
        &["check", "train.jsonl", "--rejected", "data/pipe.jsonl"],
        &["check", "train.jsonl", "--model", model, "--chat-template", "data/pipe.jsonl"],
        &["verify", "data/pipe.jsonl"],
        &["plan", "--data", "train.jsonl", "--model", model, "--preset", "data/pipe.jsonl"],
        &["generate", "piped", "--prompt", "Hello"],
    ] {
        let done = place.sparktune(args);
        assert_eq!(done.code, Some(2), "{args:?}: {done:?}");
        assert!(done.err.contains("only files are read"), "{args:?}: {}", done.err);
    }
}
