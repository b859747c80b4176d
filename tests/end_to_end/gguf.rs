//! `export --gguf`: files for llama.cpp and Ollama.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::sparktune::Place;

/// Reads a file with llama.cpp's own package, and prints its architecture, its number of tensors and the
/// length of its vocabulary.
const READER: &str = "
import sys, gguf
reader = gguf.GGUFReader(sys.argv[1])
field = lambda name: reader.fields[name].contents()
print(field('general.architecture'), len(reader.tensors), len(field('tokenizer.ggml.tokens')))
";

#[test]
fn a_run_is_exported_as_gguf_without_touching_its_other_outputs() {
    let (place, run) = Place::with_finished_run();
    let page = fs::read_to_string(run.join("outputs/SERVE.md")).unwrap();
    assert!(page.contains("--gguf q8_0") && page.contains("ollama create"), "{page}");
    fs::remove_dir_all(run.join("outputs/merged")).unwrap();

    let both = ["export", "latest", "--gguf", "q8_0", "--gguf-adapter", "--json"];
    let result = place.sparktune(both).exits(0).last();
    let outputs = result["outputs"].as_array().unwrap();
    let names: Vec<&str> =
        outputs.iter().map(|path| path.as_str().unwrap().rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["adapter-f32.gguf", "model-q8_0.gguf", "Modelfile"]);
    let notes = result["notes"].to_string();
    assert!(notes.contains("The weights are those of step"), "{notes}");
    assert!(notes.contains("tensors of the vision tower are not in the file"), "{notes}");
    assert!(notes.contains("tensors of the MTP head are not in the file: as set in the plan"), "{notes}");
    assert!(!run.join("outputs/merged").exists());

    let folder = run.join("outputs/gguf");
    let model = folder.join("model-q8_0.gguf");
    assert_eq!(fs::metadata(&model).unwrap().permissions().mode() & 0o777, 0o600);
    let modelfile = fs::read_to_string(folder.join("Modelfile")).unwrap();
    assert!(modelfile.contains("\nFROM ./model-q8_0.gguf\nPARAMETER stop \"<|im_end|>\"\n"), "{modelfile}");
    let python = Command::new("python3").args(["-c", READER]).arg(&model).output();
    match python.ok().filter(|output| output.status.success()) {
        Some(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.starts_with("qwen35 ") && text.ends_with(" 512\n"), "{text}");
        }
        None => {
            println!("skipped: reading the file with llama.cpp's package `gguf`, which python3 does not have")
        }
    }

    let again = place.sparktune(["export", "latest", "--gguf", "bf16", "--best"]).exits(0);
    assert!(again.err.contains("model-bf16.gguf has") && again.out.contains("Modelfile"), "{}", again.err);
    assert!(run.join("outputs/best/gguf/model-bf16.gguf").is_file());
    let wrong = place.sparktune(["export", "latest", "--gguf", "q4_k"]).exits(2);
    assert!(wrong.err.contains("f16, bf16, q8_0"), "{}", wrong.err);
}

#[test]
fn a_run_of_full_fine_tuning_has_no_adapter_to_export() {
    let place = Place::new();
    place.chats(40);
    crate::sparktune::done(&mut place.train(&["--method", "full", "--max-steps", "2", "--mtp", "none"]))
        .exits(0);
    let refused = place.sparktune(["export", "latest", "--gguf-adapter"]).exits(2);
    assert!(refused.err.contains("has no adapter") && refused.err.contains("--gguf"), "{}", refused.err);
}
