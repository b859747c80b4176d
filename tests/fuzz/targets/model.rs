//! Files that come with a model or an adapter, but not its weights.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::OnceLock;

use sparktune_app::chat::recommended::Wishes;
use sparktune_data::{ChatTokenizer, Conversation, Format, MaskPolicy, parse_line};
use sparktune_plan::adapter::AdapterConfig;
use sparktune_plan::{Architecture, ConfigOptions, ModelConfig, ModelFacts};

use super::panics::is_of_crate;
use super::{empty_folder, parts, repository, says_why};

/// How the paths of that crate's sources begin below the registry.
const CRATE_OF_TOKENIZERS: &str = "/tokenizers-";

/// The most characters of a template and of its conversation: together with the depth of their loops they
/// bound the time of one rendering.
const LONGEST_TEMPLATE: usize = 8 << 10;

/// A chat template, and a line with the conversation that it renders.
pub(super) fn template(input: &[u8]) {
    let [template, line] = parts(input);
    let (Ok(template), Ok(line)) = (std::str::from_utf8(template), std::str::from_utf8(line)) else { return };
    if template.len() > LONGEST_TEMPLATE || line.len() > LONGEST_TEMPLATE {
        return;
    }
    let folder = empty_folder("template");
    write(&folder, "tokenizer.json", &small_tokenizer());
    write(&folder, "chat_template.jinja", template.as_bytes());
    let tokenizer = match ChatTokenizer::from_dir(&folder) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return says_why(&error),
    };
    let Ok(conversation) = parse_line(Some(Format::Messages), line) else { return };
    encode(&tokenizer, &conversation);
}

/// A tokenizer, its configuration, and a text.
///
/// The crate `tokenizers` panics on some files that it does not expect. Its panics are passed over here: we
/// can only keep them from ending the program, which is not this function's affair.
pub(super) fn tokenizer(input: &[u8]) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| tokenise(input))) else { return };
    if !is_of_crate(CRATE_OF_TOKENIZERS) {
        resume_unwind(panic);
    }
}

/// The small files beside a tokenizer: its configuration, a template in JSON, and how answers are sampled.
pub(super) fn files(input: &[u8]) {
    let [config, template, generation] = parts(input);
    // Of a template, `template` bounds the time.
    if template.len() > LONGEST_TEMPLATE || config.len() > LONGEST_TEMPLATE {
        return;
    }
    let folder = empty_folder("files");
    write(&folder, "tokenizer.json", &small_tokenizer());
    write(&folder, "tokenizer_config.json", config);
    write(&folder, "chat_template.json", template);
    write(&folder, "generation_config.json", generation);
    assert_eq!(Wishes::of_model(&folder), Wishes::of_model(&folder));
    let tokenizer = match ChatTokenizer::from_dir(&folder) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return says_why(&error),
    };
    let ends = tokenizer.eos_token_ids();
    assert!(ends.len() <= generation.len() + 1, "{} ids that end an answer", ends.len());
    let line = r#"{"messages":[{"role":"user","content":"1 + 1"},{"role":"assistant","content":"2"}]}"#;
    encode(&tokenizer, &parse_line(Some(Format::Messages), line).expect("a chat"));
}

fn tokenise(input: &[u8]) {
    let [tokenizer, config, text] = parts(input);
    let folder = empty_folder("tokenizer");
    write(&folder, "tokenizer.json", tokenizer);
    write(&folder, "tokenizer_config.json", config);
    let tokenizer = match ChatTokenizer::from_dir(&folder) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return says_why(&error),
    };
    let text = String::from_utf8_lossy(text);
    let (first, second) = (tokenizer.encode(&text), tokenizer.encode(&text));
    assert_eq!(first, second, "the same text, tokenised twice");
    match first {
        Ok(ids) => drop(tokenizer.decode(&ids)),
        Err(rejection) => says_why(&rejection.reason),
    }
    encode(&tokenizer, &Conversation::Completion { prompt: "1 + 1 =".into(), completion: text });
}

fn encode(tokenizer: &ChatTokenizer, conversation: &Conversation<'_>) {
    let (first, second) = (
        tokenizer.encode_conversation(conversation, MaskPolicy::default()),
        tokenizer.encode_conversation(conversation, MaskPolicy::default()),
    );
    match (first, second) {
        (Ok(first), Ok(second)) => {
            assert_eq!(first.input_ids, second.input_ids, "the same conversation, tokenised twice");
            assert_eq!(first.input_ids.len(), first.loss_mask.len());
            assert!(first.target_count() > 0 && !first.loss_mask[0]);
        }
        (Err(first), Err(second)) => {
            assert_eq!(first, second);
            says_why(&first.reason);
        }
        (first, second) => panic!("{first:?} and then {second:?}"),
    }
    if let Conversation::Chat(chat) = conversation
        && let Ok((text, targets)) = tokenizer.render_targets(chat, MaskPolicy::default())
    {
        targets
            .iter()
            .for_each(|target| assert!(text.get(target.clone()).is_some(), "{target:?} of {text:?}"));
        assert!(targets.windows(2).all(|pair| pair[0].end <= pair[1].start), "{targets:?}");
    }
}

/// `config.json`, read as its own family and as every other.
pub(super) fn config(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let families =
        [Architecture::Qwen35, Architecture::Llama, Architecture::Gemma3].into_iter().map(Some).chain([None]);
    for computed_as in families {
        let options = ConfigOptions { computed_as, ignored_fields: vec!["new_scale".to_owned()] };
        let config = match ModelConfig::from_json_with(&text, &options) {
            Ok(config) => config,
            Err(error) => {
                says_why(&error);
                continue;
            }
        };
        assert_eq!(Ok(&config), ModelConfig::from_json_with(&text, &options).as_ref().map_err(|_| ()));
        // Each layer has a few dozen tensors at the most.
        assert!(config.tensors().len() <= 64 * (config.layers.len() + 1));
        let facts = ModelFacts::from_config(config);
        assert!(facts.weight_bytes(2) >= facts.text_parameters());
    }
    drop(ModelConfig::unknown_family(&text, &[]));
}

/// `adapter_config.json`, and the names and shapes of the tensors: one a line, as `NAME 8 64`.
pub(super) fn adapter_config(input: &[u8]) {
    let [config, tensors] = parts(input);
    let config = match AdapterConfig::from_json(&String::from_utf8_lossy(config)) {
        Ok(config) => config,
        Err(error) => return says_why(&error),
    };
    let tensors = String::from_utf8_lossy(tensors);
    let tensors: Vec<(&str, Vec<usize>)> = tensors
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            (words.next().unwrap_or_default(), words.filter_map(|word| word.parse().ok()).collect())
        })
        .collect();
    let named = tensors.iter().map(|(name, shape)| (*name, shape.as_slice()));
    match config.fit(named, small_model()) {
        Ok(fitted) => assert!(2 * fitted.modules.len() == tensors.len(), "a tensor was passed over"),
        Err(error) => says_why(&error),
    }
}

fn small_model() -> &'static ModelConfig {
    static MODEL: OnceLock<ModelConfig> = OnceLock::new();
    MODEL.get_or_init(|| {
        let text = std::fs::read_to_string(repository("tests/fixtures/others/gemma3/config.json"));
        ModelConfig::from_json(&text.expect("the fixture is there")).expect("the fixture is a config")
    })
}

fn small_tokenizer() -> Vec<u8> {
    static TOKENIZER: OnceLock<Vec<u8>> = OnceLock::new();
    let read = || std::fs::read(repository("tests/fixtures/others/gemma3/tokenizer.json"));
    TOKENIZER.get_or_init(|| read().expect("the fixture is there")).clone()
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).expect("the file can be written");
}
