//! What can be loaded, and when it is refused.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use sparktune_model::lora_bytes;
use sparktune_sampling::SamplingParams;

use super::{answer, ask, finish, load, qwen35, roomy, with_tokenizer};
use crate::engine::{Ask, Engine, EngineOptions};
use crate::error::InferError;
use crate::memory::Room;
use crate::source::Source;

fn tokens(folder: &Path, base: Option<&Path>) -> Vec<u32> {
    let source = Source::open(folder, base).unwrap();
    let options = EngineOptions::default();
    let mut engine = Engine::load(&source, options, &roomy(), &Device::flex(), &mut |_, _| ()).unwrap();
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(20) };
    answer(&mut engine, ask(&[5, 6, 7, 8], params)).ids()
}

#[test]
fn an_adapter_is_loaded_on_the_base_that_it_names_or_that_is_named() {
    let base = with_tokenizer(&qwen35("checkpoint"));
    let mut engine = load(base.path(), EngineOptions::default());
    engine.load_adapter("a", &qwen35("lora_final")).unwrap();
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(20) };
    let by_name = crate::Ask { adapter: Some("a".into()), ..ask(&[5, 6, 7, 8], params) };
    let expected = answer(&mut engine, by_name).ids();
    assert_eq!(tokens(&qwen35("lora_final"), Some(base.path())), expected);

    let adapter = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(qwen35("lora_final").join(file), adapter.path().join(file)).unwrap();
    }
    let path = adapter.path().join("adapter_config.json");
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["base_model_name_or_path"] = base.path().to_str().unwrap().into();
    fs::write(&path, config.to_string()).unwrap();
    assert_eq!(tokens(adapter.path(), None), expected);
    config["base_model_name_or_path"] = "some/model".into();
    fs::write(&path, config.to_string()).unwrap();
    let error = Source::open(adapter.path(), None).unwrap_err().to_string();
    assert!(error.contains("some/model") && error.contains("--base"), "{error}");
}

#[test]
fn a_folder_that_holds_nothing_to_load_is_refused_with_what_it_may_hold() {
    let empty = tempfile::tempdir().unwrap();
    let error = Source::open(empty.path(), None).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("plan.toml"), "{error}");
    fs::write(empty.path().join("plan.toml"), "nonsense = [").unwrap();
    assert!(Source::open(empty.path(), None).is_err());
}

#[test]
fn a_run_of_the_head_alone_has_its_weights_in_its_exported_model() {
    let run = tempfile::tempdir().unwrap();
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/run-261c35e/run/plan.toml");
    let plan = fs::read_to_string(older).unwrap();
    let lora = "kind = \"lora\"\nrank = 2\nalpha = 4.0\nrslora = false\n";
    assert!(plan.contains(lora));
    fs::write(run.path().join("plan.toml"), plan.replace(lora, "kind = \"head\"\n")).unwrap();
    fs::create_dir(run.path().join("events")).unwrap();
    let error = Source::open(run.path(), None).unwrap_err();
    assert!(matches!(error, InferError::NotExported(_)), "{error}");
    let exported = run.path().join("outputs/merged-mtp");
    fs::create_dir_all(&exported).unwrap();
    let source = Source::open(run.path(), None).unwrap();
    assert_eq!((source.weights, source.adapter, source.head), (exported, None, None));
}

#[test]
fn what_a_run_exported_and_what_was_edited_of_it_have_the_variables_of_its_template() {
    let run = tempfile::tempdir().unwrap();
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/run-261c35e/run/plan.toml");
    let kwargs = "\n[data.template_kwargs]\nenable_thinking = false\n";
    fs::write(run.path().join("plan.toml"), fs::read_to_string(older).unwrap() + kwargs).unwrap();
    let [merged, best, edited] =
        ["outputs/merged", "outputs/best/merged", "edited"].map(|name| run.path().join(name));
    for folder in [&merged, &best, &edited.join("patches"), &run.path().join("events")] {
        fs::create_dir_all(folder).unwrap();
    }
    for folder in [&merged, &best, &edited] {
        fs::write(folder.join("config.json"), "{}").unwrap();
    }
    let kwargs = |folder: &Path| Source::open(folder, None).unwrap().template_kwargs;
    assert_eq!(kwargs(&merged), [("enable_thinking".to_owned(), false.into())].into());
    assert_eq!(kwargs(&best), kwargs(&merged));
    assert!(kwargs(&edited).is_empty());
    let stack = serde_json::json!({"version": 1, "base": merged, "base_hash": "0", "patches": ["a"]});
    fs::write(edited.join("patches/stack.json"), stack.to_string()).unwrap();
    assert_eq!(kwargs(&edited), kwargs(&merged));
    // Without its plan, nobody knows how it was trained; with one that cannot be read, nobody guesses.
    fs::write(run.path().join("plan.toml"), "nonsense = [").unwrap();
    let error = Source::open(&merged, None).unwrap_err().to_string();
    assert!(error.contains("plan.toml"), "{error}");
    fs::remove_file(run.path().join("plan.toml")).unwrap();
    assert!(kwargs(&merged).is_empty());
}

#[test]
fn drafts_of_a_run_with_the_head_of_another_model_come_from_its_outputs_with_its_options() {
    // The config has a field that only an option of the run lets pass.
    let base = with_tokenizer(&qwen35("checkpoint"));
    let path = base.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["text_config"]["new_scale"] = serde_json::json!(2.0);
    fs::write(&path, config.to_string()).unwrap();

    let run = tempfile::tempdir().unwrap();
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/run-261c35e/run/plan.toml");
    let of_model = format!(
        "path = \"{}\"\nmtp_path = \"/nowhere\"\nignored_fields = [\"new_scale\"]",
        base.path().display()
    );
    let plan = fs::read_to_string(older).unwrap().replace("path = \"MODEL_FOLDER\"", &of_model);
    assert!(plan.contains(&of_model));
    fs::write(run.path().join("plan.toml"), plan).unwrap();
    fs::create_dir(run.path().join("events")).unwrap();
    let [merged, adapter] = ["merged", "adapter"].map(|name| run.path().join("outputs").join(name));
    for (from, to) in [(base.path(), &merged), (qwen35("lora_final").as_path(), &adapter)] {
        fs::create_dir_all(to).unwrap();
        for file in fs::read_dir(from).unwrap().map(|file| file.unwrap().path()) {
            fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
    let source = Source::open(run.path(), None).unwrap();
    assert_eq!((&source.head, &source.adapter), (&Some(merged), &Some(adapter.clone())));
    // An adapter of its outputs is that adapter, with what the run knows of the base.
    let best = run.path().join("outputs/best/adapter");
    for folder in [&adapter, &best] {
        fs::create_dir_all(folder).unwrap();
        fs::copy(qwen35("lora_final").join("adapter_config.json"), folder.join("adapter_config.json"))
            .unwrap();
        let of_adapter = Source::open(folder, None).unwrap();
        assert_eq!((&of_adapter.weights, &of_adapter.options), (&source.weights, &source.options));
        assert_eq!(of_adapter.adapter.as_ref(), Some(folder));
    }
    let options = EngineOptions { draft_tokens: 2, ..EngineOptions::default() };
    let mut engine = Engine::load(&source, options, &roomy(), &Device::flex(), &mut |_, _| ()).unwrap();
    assert_eq!(engine.draft_tokens(), 2);
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(20) };
    let drafted = answer(&mut engine, ask(&[5, 6, 7, 8], params));
    assert!(drafted.finished().usage.drafted_tokens > 0);
    assert_eq!(drafted.ids(), tokens(run.path(), None));
}

#[test]
fn a_config_or_a_list_of_weights_larger_than_any_is_not_read() {
    let huge = |path: &Path| fs::File::create(path).unwrap().set_len(1 << 30).unwrap();
    let folder = with_tokenizer(&qwen35("checkpoint"));
    huge(&folder.path().join("model.safetensors.index.json"));
    let checkpoint = || Source::open(folder.path(), None).unwrap().checkpoint().err().unwrap().to_string();
    let of_list = checkpoint();
    assert!(of_list.contains("index.json") && of_list.contains("more than"), "{of_list}");
    fs::remove_file(folder.path().join("config.json")).unwrap();
    huge(&folder.path().join("config.json"));
    let of_config = checkpoint();
    assert!(of_config.contains("config.json") && of_config.contains("more than"), "{of_config}");
    let adapter = tempfile::tempdir().unwrap();
    huge(&adapter.path().join("adapter_config.json"));
    let of_adapter = Source::open(adapter.path(), None).unwrap_err().to_string();
    assert!(of_adapter.contains("adapter_config.json") && of_adapter.contains("more than"), "{of_adapter}");
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_its_weights_are_read() {
    let folder = with_tokenizer(&qwen35("checkpoint"));
    let source = Source::open(folder.path(), None).unwrap();
    let load = |room: &Room| {
        Engine::load(&source, EngineOptions::default(), room, &Device::flex(), &mut |_, _| {
            panic!("nothing is loaded")
        })
    };
    let room = Room { available: 1 << 20, reserve: 1 << 19, beside: ", beside the run `abc`".into() };
    let error = load(&room).err().unwrap();
    assert!(matches!(error, InferError::NoRoom { .. }));
    let words = error.to_string();
    assert!(words.contains("beside the run `abc`") && words.contains("smaller model"), "{words}");
}

#[test]
fn less_memory_leaves_fewer_tokens_for_answers_and_the_plan_is_within_what_there_is() {
    let folder = with_tokenizer(&qwen35("checkpoint"));
    let source = Source::open(folder.path(), None).unwrap();
    let plan = |available| {
        let room = Room { available, reserve: 1000, beside: String::new() };
        let options = EngineOptions::default();
        Engine::load(&source, options, &room, &Device::flex(), &mut |_, _| ()).map(|engine| *engine.memory())
    };
    let most = plan(1 << 40).unwrap();
    let less = plan(1000 + most.total - most.per_token * 100).unwrap();
    assert_eq!(less.cache_tokens, most.cache_tokens - 100);
    assert!(less.total <= most.total);
    assert!(plan(1000 + most.weights).is_err());
}

#[test]
fn adapters_count_with_the_model_and_make_room_for_each_other_while_no_answer_uses_them() {
    let folder = with_tokenizer(&qwen35("checkpoint"));
    let source = Source::open(folder.path(), None).unwrap();
    let lora = qwen35("lora_final");
    let bytes = lora_bytes(&lora);
    let load = |available| {
        let room = Room { available, reserve: 0, beside: String::new() };
        Engine::load(&source, EngineOptions::default(), &room, &Device::flex(), &mut |_, _| ()).unwrap()
    };
    let most = *load(1 << 40).memory();

    // Answers get fewer tokens, until the adapter is forgotten.
    let mut engine = load(most.total + bytes / 2);
    engine.load_adapter("a", &lora).unwrap();
    let with = *engine.memory();
    assert!(bytes > 0 && with.adapters == bytes && with.total <= most.total + bytes / 2, "{with:?}");
    assert!(with.cache_tokens < most.cache_tokens, "{with:?}");
    engine.unload_adapter("a").unwrap();
    assert_eq!(engine.memory().cache_tokens, most.cache_tokens);

    // There is room for one beside the shortest answers.
    let least = engine.context_tokens().min(1024);
    let mut engine = load(most.total - most.per_token * (most.cache_tokens - least) as u64 + bytes * 3 / 2);
    engine.load_adapter("a", &lora).unwrap();
    let error = engine.load_adapter("b", &lora).unwrap_err();
    assert!(matches!(error, InferError::NoRoomForAdapter { .. }), "{error}");
    engine.make_room_for_adapter("a", &lora);
    assert_eq!(engine.adapters(), ["a"], "it is loaded already");
    engine.make_room_for_adapter("b", &lora);
    engine.load_adapter("b", &lora).unwrap();
    assert_eq!(engine.adapters(), ["b"]);
    let asked = Ask { adapter: Some("b".into()), ..ask(&[1, 2, 3], SamplingParams::greedy(3)) };
    engine.submit(asked).unwrap();
    engine.make_room_for_adapter("a", &lora);
    assert!(engine.load_adapter("a", &lora).is_err(), "an answer waits for the other");
    finish(&mut engine);
    engine.make_room_for_adapter("a", &lora);
    engine.load_adapter("a", &lora).unwrap();
    assert_eq!(engine.adapters(), ["a"]);

    // None makes room for one that is too large for all of it.
    let large = tempfile::tempdir().unwrap();
    let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    let file =
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; bytes as usize]].concat();
    fs::write(large.path().join("adapter_model.safetensors"), file).unwrap();
    assert!(lora_bytes(large.path()) > 2 * bytes);
    engine.make_room_for_adapter("b", large.path());
    assert_eq!(engine.adapters(), ["a"]);
    // An older one of the same name is no answer to that.
    let error = engine.load_adapter("a", large.path()).unwrap_err();
    assert!(matches!(error, InferError::NoRoomForAdapter { .. }), "{error}");
    assert!(engine.adapters().is_empty() && engine.memory().adapters == 0);
    engine.load_adapter("a", &lora).unwrap();
    engine.load_adapter("a", Path::new("/nowhere")).unwrap_err();
    assert!(engine.adapters().is_empty() && engine.memory().adapters == 0);
}
