//! The ranks of adapters in whole runs: clipped to the layers' widths in new plans, and full in those of
//! older versions.

use std::sync::atomic::AtomicBool;

use safetensors::SafeTensors;
use sparktune_runlog::RunDir;
use sparktune_train::{Weights, train};

use crate::{bytes, export, run};

/// Returns the rank of an adapter on a layer with 4 outputs, in the outputs of a run.
fn rank_of_narrow_layer(run: &RunDir) -> usize {
    let file = bytes(run, "adapter/adapter_model.safetensors");
    let name = "base_model.model.model.language_model.layers.0.linear_attn.in_proj_a.lora_A.weight";
    SafeTensors::deserialize(&file).unwrap().tensor(name).unwrap().shape()[0]
}

#[test]
fn a_run_of_an_older_version_keeps_its_ranks_and_a_new_one_has_clipped_ones_when_resumed_and_exported() {
    let root = tempfile::tempdir().unwrap();
    for (clipped, rank) in [("", 16), (", clipped = true", 8)] {
        let method = format!(r#"{{ kind = "lora", rank = 16, alpha = 32.0, rslora = false{clipped} }}"#);
        let run = run(root.path(), &method, "none", 3, false);
        assert_eq!(train(&run, &AtomicBool::new(true)).unwrap().steps, 1);
        assert_eq!(train(&run, &AtomicBool::new(false)).unwrap().steps, 3);
        assert_eq!(rank_of_narrow_layer(&run), rank);
        let outputs = export(&run, Weights::Planned).unwrap();
        assert_eq!(rank_of_narrow_layer(&run), rank);
        assert!(outputs.contains(&run.outputs().join("adapter-causal-lm")), "{outputs:?}");
    }
}
