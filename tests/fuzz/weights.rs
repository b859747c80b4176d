//! Weight files, whose reader is part of the model and needs the tensor library.

use sparktune_model::Checkpoint;

use crate::targets::{Target, empty_folder, parts, repository, says_why};

pub(crate) const TARGETS: &[Target] = &[Target { name: "weights", run: weights }];

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
