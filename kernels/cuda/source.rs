//! The device sources for the compiler: each is one string in which quoted includes are replaced by the
//! files, with one kernel to compile.
//!
//! Compiling all kernels of a file for each of them would take almost three times as long. Besides, the texts
//! of two kernels then differ, so a cache whose key is the text cannot return the code of another kernel.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../", $name)))),*]
    };
}

/// Every device source by its path below `kernels/`.
const FILES: &[(&str, &str)] = files![
    "adamw/adamw.cuh",
    "cast/cast.cuh",
    "causal_conv1d_silu/causal_conv1d_silu.cuh",
    "delta_gates/delta_gates.cuh",
    "device/async_copy.cuh",
    "device/bf16.cuh",
    "device/cuda.cuh",
    "device/e4m3.cuh",
    "device/examples.cuh",
    "device/f16.cuh",
    "device/gemm.cuh",
    "device/reduce.cuh",
    "device/shared.cuh",
    "device/silu.cuh",
    "device/silu_ends.cuh",
    "device/tensor_core.cuh",
    "dropout/dropout.cuh",
    "embedding/embedding.cuh",
    "fp8/fp8.cuh",
    "fp8/quantize.cuh",
    "gated_delta_rule/backward.cuh",
    "gated_delta_rule/chunk_matrices.cuh",
    "gated_delta_rule/forward.cuh",
    "gated_delta_rule/gated_delta_rule.cuh",
    "gated_delta_rule/gradients.cuh",
    "gated_delta_rule/state.cuh",
    "gated_delta_rule/steps.cuh",
    "gated_rms_norm/gated_rms_norm.cuh",
    "gelu_mul/gelu_mul.cuh",
    "largest/largest.cuh",
    "linear/by_row.cuh",
    "linear/linear.cuh",
    "linear/linear_sums.cuh",
    "linear_cross_entropy/linear_cross_entropy.cuh",
    "linear_cross_entropy/row_state.cuh",
    "linear_cross_entropy/rows.cuh",
    "lora_linear/lora_linear.cuh",
    "norm_rope/norm_rope.cuh",
    "packed_attention/append.cuh",
    "packed_attention/backward.cuh",
    "packed_attention/cached.cuh",
    "packed_attention/forward.cuh",
    "packed_attention/packed_attention.cuh",
    "probe/probe.cuh",
    "quantise/quantise.cuh",
    "rms_norm/rms_norm.cuh",
    "rope/rope.cuh",
    "scale/scale.cuh",
    "sigmoid_gate/sigmoid_gate.cuh",
    "silu_mul/silu_mul.cuh",
    "stack/stack.cuh",
    "sum_rows/sum_rows.cuh",
    "upload/upload.cuh",
];

/// A source made for one kernel and some shape: `#define`s, then the flattened file.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) text: String,
    /// A hash that distinguishes texts.
    pub(crate) hash: u64,
}

/// The name of a `#define` and its value.
pub(crate) type Define = (&'static str, String);

/// Returns the source at `path` for the kernel `entry` with these definitions. It is created only once.
pub(crate) fn source(path: &'static str, entry: &'static str, defines: &[Define]) -> Arc<Source> {
    type Made = HashMap<(&'static str, &'static str, Vec<Define>), Arc<Source>>;
    static MADE: LazyLock<Mutex<Made>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().expect("nothing panics while it holds the sources");
    let key = (path, entry, defines.to_vec());
    Arc::clone(made.entry(key).or_insert_with(|| {
        let mut text: String =
            defines.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        let mut file = String::new();
        flatten(path, &mut Vec::new(), &mut file);
        text.push_str(&with_one_kernel(&file, entry));
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Arc::new(Source { text, hash: hasher.finish() })
    }))
}

/// Appends the file at `path`. The first include of a file is replaced by its text, later ones by nothing.
fn flatten(path: &str, seen: &mut Vec<String>, text: &mut String) {
    seen.push(path.to_owned());
    let (_, file) = FILES.iter().find(|(name, _)| *name == path).expect("every device source is in the list");
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    for line in file.lines() {
        let include = line.trim_start().strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match include {
            Some(name) if name.ends_with(".cuh") => {
                let wanted = match name.strip_prefix("../") {
                    Some(from_above) => from_above.to_owned(),
                    None => format!("{folder}/{name}"),
                };
                if !seen.contains(&wanted) {
                    flatten(&wanted, seen, text);
                }
            }
            // A file of the emulator, inside an `#ifdef`, which a device compiler does not have.
            Some(name) => {
                text.push_str("#include \"");
                text.push_str(name);
                text.push_str("\"\n");
            }
            None if line.trim() == "#pragma once" => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

/// Returns the text with `OTHER_KERNEL(` instead of `KERNEL(` before the name of every kernel but `entry`.
fn with_one_kernel(text: &str, entry: &str) -> String {
    const START: &str = "\nKERNEL(";
    let mut out = String::with_capacity(text.len() + 256);
    let mut rest = text;
    while let Some(at) = rest.find(START) {
        let (before, kernel) = rest.split_at(at + 1);
        out.push_str(before);
        if name_of(kernel) != entry {
            out.push_str("OTHER_");
        }
        // What comes before the bracket must not be found again.
        let (start, behind) = kernel.split_at(START.len() - 1);
        out.push_str(start);
        rest = behind;
    }
    out + rest
}

/// Returns the name in `KERNEL(bounds) name(…`; the bounds may contain brackets.
fn name_of(kernel: &str) -> &str {
    let mut depth = 0;
    let behind = kernel.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => return false,
        };
        depth == 0
    });
    let declared = kernel[behind.map_or(kernel.len(), |end| end + 1)..].trim_start();
    declared.split('(').next().unwrap_or_default().trim_end()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_device_source_of_the_crate_is_in_the_list() {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found: Vec<String> = Vec::new();
        for folder in std::fs::read_dir(kernels).unwrap().map(Result::unwrap).filter(|f| f.path().is_dir()) {
            for file in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
                let name = file.path().strip_prefix(kernels).unwrap().to_string_lossy().into_owned();
                if name.ends_with(".cuh") && !name.starts_with("emulator/") {
                    found.push(name);
                }
            }
        }
        found.sort();
        let listed: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(found, listed);
    }

    #[test]
    fn an_included_file_comes_once_and_before_what_uses_it() {
        let made = source("silu_mul/silu_mul.cuh", "silu_mul_forward", &[("SHAPE", "7".into())]);
        assert!(made.text.starts_with("#define SHAPE 7\n"));
        assert_eq!(made.text.matches("struct bf16 {").count(), 1);
        assert!(made.text.find("struct bf16 {") < made.text.find("silu_mul_forward"));
    }

    #[test]
    fn a_source_has_one_kernel_and_keeps_the_others_as_functions() {
        for (path, file) in FILES {
            let mut text = String::new();
            flatten(path, &mut Vec::new(), &mut text);
            let kernels = text.matches("\nKERNEL(").count();
            let names = text.split("\nKERNEL(").skip(1).map(|rest| format!("({rest}"));
            for name in names.map(|kernel| name_of(&kernel).to_owned()) {
                let one = with_one_kernel(&text, &name);
                assert_eq!(one.matches("\nKERNEL(").count(), 1, "{path}: {name}");
                assert_eq!(one.matches("\nOTHER_KERNEL(").count(), kernels - 1, "{path}: {name}");
                assert!(
                    one.split("\nKERNEL(").nth(1).unwrap().contains(&format!("{name}(")),
                    "{path}: {name}"
                );
                assert_eq!(one.replace("OTHER_KERNEL(", "KERNEL("), text.replace("OTHER_KERNEL(", "KERNEL("));
            }
            let is_found = |line: &&str| line.trim_start().starts_with("KERNEL(");
            assert_eq!(file.lines().filter(is_found).count(), file.matches("\nKERNEL(").count(), "{path}");
        }
    }
}
