//! Weight files and files of facts, whose readers are in crates that need the tensor library.

use sparktune_edit::Facts;
use sparktune_model::Checkpoint;

use crate::targets::{Target, empty_folder, is_a_sentence, parts, repository, says_why};

pub(crate) const TARGETS: &[Target] =
    &[Target { name: "facts", run: facts }, Target { name: "weights", run: weights }];

/// A file of facts: what was read is sound, and written as lines it is read again as the same.
fn facts(input: &[u8]) {
    let read = match Facts::parse("facts.jsonl", input) {
        Ok(read) => read,
        Err(error) => return is_a_sentence(&error),
    };
    let mut lines = String::new();
    for (index, fact) in read.facts().iter().enumerate() {
        assert!(!fact.prompt.trim().is_empty() && !fact.target.trim().is_empty());
        assert!(fact.subject.as_ref().is_none_or(|subject| fact.prompt.contains(subject.as_str())));
        assert!(read.place(index).starts_with("facts.jsonl"));
        lines.push_str(&serde_json::to_string(fact).expect("a fact is JSON"));
        lines.push('\n');
    }
    let again = Facts::parse("again.jsonl", lines.as_bytes()).expect("what was read is sound");
    assert_eq!(again.facts(), read.facts());
}

/// Two shards in safetensors and their index; without an index, the first alone.
fn weights(input: &[u8]) {
    let [index, first, second] = parts(input);
    let folder = empty_folder("weights");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).expect("the file can be written");
    };
    let config = std::fs::read(repository("tests/fixtures/others/gemma3/config.json"));
    write("config.json", &config.expect("the fixture is there"));
    if !index.is_empty() {
        write("model.safetensors.index.json", index);
    }
    write("model.safetensors", first);
    write("a.safetensors", first);
    write("b.safetensors", second);
    let checkpoint = match Checkpoint::open(&folder) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return says_why(&error),
    };
    let mut bytes = 0;
    for (name, info) in checkpoint.tensors() {
        bytes += checkpoint.bytes(info).len();
        match checkpoint.numbers(name, &info.shape) {
            Ok(numbers) => assert_eq!(numbers.len(), info.shape.iter().product::<usize>()),
            Err(error) => says_why(&error),
        }
    }
    assert!(bytes <= input.len(), "{bytes} bytes of weights in {} bytes", input.len());
}
