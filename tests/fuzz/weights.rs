//! Weight files, files of facts and edited models, whose readers are in crates that need the tensor library.

use sparktune_edit::{Facts, Patch, Stack};
use sparktune_infer::codebook_file::{read_codebooks, write_codebooks};
use sparktune_model::Checkpoint;

use crate::targets::{Target, empty_folder, is_a_sentence, parts, repository, says_why};

pub(crate) const TARGETS: &[Target] = &[
    Target { name: "edited", run: edited },
    Target { name: "facts", run: facts },
    Target { name: "weights", run: weights },
];

/// An edited folder: its list of patches, a patch, and the corrections of its layers.
fn edited(input: &[u8]) {
    let [list, patch, codebook] = parts(input);
    let base = repository("tests/fixtures/others/gemma3");
    let folder = empty_folder("edited");
    let patches = folder.join("patches");
    std::fs::create_dir(&patches).expect("the folder can be made");
    let write = |path: &std::path::Path, bytes: &[u8]| {
        std::fs::write(path, bytes).expect("the file can be written");
    };
    let tokenizer = std::fs::read(base.join("tokenizer.json")).expect("the fixture is there");
    write(&folder.join("tokenizer.json"), &tokenizer);
    write(&patches.join("stack.json"), list);
    let (patch_file, codebook_file) = (patches.join("facts.qubgpu"), folder.join("codebook.qubgpu"));
    write(&patch_file, patch);
    write(&codebook_file, codebook);
    match Stack::open(&folder, Some(&base)) {
        Ok(stack) => {
            assert_eq!(stack.references().len(), stack.active().count());
            drop((stack.displaced(), stack.overwritten(), stack.lacks_codebook(&folder)));
        }
        Err(error) => is_a_sentence(&error),
    }
    let again = folder.join("again.qubgpu");
    match Patch::read(&patch_file) {
        Ok(read) => {
            read.write(&again).expect("what was read can be written");
            assert_eq!(Patch::read(&again).expect("what we wrote can be read"), read);
        }
        Err(error) => is_a_sentence(&error),
    }
    match read_codebooks(&codebook_file) {
        Ok(read) => {
            write_codebooks(&again, &read).expect("what was read can be written");
            assert_eq!(read_codebooks(&again).expect("what we wrote can be read").len(), read.len());
            read.iter().for_each(|stored| drop(stored.codebook()));
        }
        Err(error) => says_why(&error),
    }
}

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
