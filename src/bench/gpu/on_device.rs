//! Every section at tiny sizes on a CUDA device, or the emulated one.

use std::path::PathBuf;

use sparktune_kernels::testing::cuda_device;
use sparktune_model::{Checkpoint, Model, PackedSequence};

use super::launches::alone;
use super::*;
use crate::model::random_ids;

/// The rows of a section; none, with a word, where there is no CUDA device and none has to be.
fn rows(section: fn(&mut Bench)) -> Option<Vec<Row>> {
    rows_with(Products::Own, section)
}

fn rows_with(products: Products, section: fn(&mut Bench)) -> Option<Vec<Row>> {
    cuda_device()?;
    let mut rows = Vec::new();
    let mut report = |row: Row| rows.push(row);
    section(&mut Bench::new(None, true, products, &mut report).unwrap());
    Some(rows)
}

/// `tests/gpu/judge.py` refuses a line that is as far from the expected one.
const WRONG_LINE: f64 = 0.5;

fn number(row: &Row, field: &str) -> f64 {
    row.get(field).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {field} in {row:?}"))
}

#[test]
fn every_op_is_right_and_timed_at_a_tiny_shape() {
    let Some(rows) = rows(|bench| bench.kernels()) else { return };
    for row in &rows {
        assert!(!row.contains_key("failed") && !row.contains_key("skipped"), "{row:?}");
        assert!(number(row, "error") <= number(row, "tolerance"), "{row:?}");
        for line in ["worst_row", "worst_column"].iter().filter(|line| row.contains_key(**line)) {
            assert!(number(row, &format!("{line}_error")) < WRONG_LINE, "{row:?}");
        }
        assert!(number(row, "bytes") > 0.0, "{row:?}");
    }
    let names: HashSet<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    // What a step is predicted from is measured.
    for part in sparktune_train::step_work::predictions().iter().flat_map(|step| &step.parts) {
        assert!(names.contains(part.measured_as.as_str()), "{} is not in {names:?}", part.measured_as);
    }
    for op in ["copy", "matrix product", "gated_delta_rule backward", "packed_attention", "adamw clip"] {
        assert!(names.contains(op), "{op} is not in {names:?}");
    }
    let timed = rows.iter().filter(|row| row["share_of_floor"].is_number()).count();
    assert!(timed > 25, "only {timed} of {} have a share of their floor", rows.len());
}

#[test]
fn the_three_layouts_are_multiplied_right() {
    let Some(rows) = rows(|bench| bench.gemm()) else { return };
    // A GPU may have the vendor's library, which has a row behind ours.
    let (of_library, rows): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.contains_key("computed_by"));
    assert!(rows.len() == 3 && [0, 3].contains(&of_library.len()), "{of_library:?}");
    for row in &of_library {
        assert!(number(row, "error") <= number(row, "tolerance") && number(row, "tflops") > 0.0, "{row:?}");
    }
    for row in &rows {
        assert!(number(row, "error") <= number(row, "tolerance") && number(row, "tflops") > 0.0, "{row:?}");
        assert!(row["note"].as_str().is_some_and(|note| note.starts_with("tile ")), "{row:?}");
        // In several tiles, with the same bits; the fastest counts.
        let tiles = row["tiles"].as_array().unwrap();
        assert!(tiles.len() > 1 && number(row, "errors") == 0.0, "{row:?}");
        assert_eq!(tiles[0]["tile"], row["estimated_tile"]);
        let times = tiles.iter().map(|tile| tile["time_us"].as_f64().unwrap());
        assert_eq!(times.fold(f64::INFINITY, f64::min), number(row, "time_us"));
    }
}

#[test]
fn tiny_models_learn_as_on_the_cpu_and_their_steps_are_measured() {
    let Some(rows) = rows(|bench| bench.steps(&MachineFacts::default())) else { return };
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in &rows[2..] {
        let curve = |field: &str| -> Vec<f64> {
            row[field].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
        };
        let (found, expected) = (curve("curve"), curve("reference_curve"));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found / expected - 1.0).abs() <= 2e-3, "{row:?}");
        }
        assert!(expected[2] < expected[0], "{row:?}");
    }
    for row in &rows[..2] {
        assert!(!row.contains_key("failed"), "{row:?}");
        assert!(number(row, "tokens_per_s") > 0.0 && number(row, "peak_bytes") > 0.0, "{row:?}");
        // Random weights know nothing.
        assert!((number(row, "loss") - 160f64.ln()).abs() < 0.5, "{row:?}");
    }
}

#[test]
fn steps_of_all_sizes_and_of_the_head_are_measured() {
    let Some(found) = rows(|bench| bench.sizes(&MachineFacts::default())) else { return };
    let methods: Vec<&Value> = found.iter().map(|row| &row["method"]).collect();
    assert_eq!(methods, ["lora", "full"]);
    let Some(head) = rows(|bench| bench.head()) else { return };
    for row in found.iter().chain(&head) {
        assert!(!row.contains_key("failed") && number(row, "tokens_per_s") > 0.0, "{row:?}");
        assert!((number(row, "loss") - 160f64.ln()).abs() < 0.5, "{row:?}");
    }
    assert_eq!((number(&found[0], "packs"), head.len()), (2.0, 1));
}

/// As a run does with `--products auto`: with LoRA, in full, and of the MTP head. On the emulated device,
/// whose stand-in for the library is only found where this says so.
#[test]
fn steps_are_measured_with_the_products_that_a_run_would_leave_to_the_library() {
    let emulated =
        std::env::var_os("CUDA_PATH").map(PathBuf::from).filter(|path| path.join("cublaslt").is_dir());
    let (Some(_), Some(emulated)) = (cuda_device(), emulated) else {
        eprintln!("skipped: there is no emulated device");
        return;
    };
    let path = format!("{}:{}", emulated.join("cublaslt").display(), emulated.display());
    let child =
        alone(concat!(module_path!(), "::left_to_library")).env("LD_LIBRARY_PATH", path).output().unwrap();
    let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
}

#[test]
#[ignore = "the test above runs it in a process of its own, which finds the library"]
fn left_to_library() {
    let head = |products| rows_with(products, |bench| bench.head()).unwrap().remove(0);
    let (own, auto) = (head(Products::Own), head(Products::Auto));
    assert_eq!(number(&own, "library_products"), 0.0, "{own:?}");
    assert!(own["note"].as_str().unwrap().contains("all products by own kernels"), "{own:?}");
    // The same steps on the same tokens, but for rounding.
    let [of_own, of_auto] = [&own, &auto].map(|row| number(row, "loss"));
    assert!((of_own / of_auto - 1.0).abs() < 2e-3, "{of_own} {of_auto}: {auto:?}");
    let mut found = rows_with(Products::Auto, |bench| bench.sizes(&MachineFacts::default())).unwrap();
    found.push(auto);
    assert_eq!(found.len(), 3);
    for row in found {
        assert!(!row.contains_key("failed") && number(&row, "library_products") > 5.0, "{row:?}");
        assert!(row["note"].as_str().unwrap().contains(" kinds of products by cuBLASLt 13.0.2"), "{row:?}");
        assert!((number(&row, "loss") - 160f64.ln()).abs() < 0.5, "{row:?}");
    }
}

#[test]
fn the_ladder_ends_at_the_losses_of_plain_operations() {
    if cuda_device().is_none() {
        return;
    }
    let child = alone(concat!(module_path!(), "::climbed")).output().unwrap();
    let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
}

#[test]
#[ignore = "the test above runs it in a process of its own, whose launches are counted and whose ops are switched"]
fn climbed() {
    let rows = rows(|bench| bench.ladder()).expect("who starts this has seen the device");
    let launched: Vec<f64> = rows.iter().map(|row| number(row, "launches")).collect();
    // Only AdamW is a kernel of ours on the first rung, and recompute runs the layers once more.
    assert!(launched[0] < launched[2] && launched[2] < launched[1], "{launched:?}");
    for row in &rows[1..3] {
        let curve = |field: &str| -> Vec<f64> {
            row[field].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
        };
        for (found, expected) in curve("curve").iter().zip(curve("reference_curve")) {
            assert!((found / expected - 1.0).abs() <= 2e-3, "{row:?}");
        }
    }
    assert!(!rows[3].contains_key("failed") && !rows[3].contains_key("curve"), "{:?}", rows[3]);
}

#[test]
fn a_whole_model_is_written_with_its_loss_and_gradients() {
    let Some(device) = cuda_device() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut rows = Vec::new();
    let mut report = |row: Row| rows.push(row);
    Bench::new(None, true, Products::Own, &mut report).unwrap().whole(folder.path());
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(row["gradients"].as_array().unwrap().len(), 4, "{row:?}");
    // What was written is the model that was computed.
    let written = Checkpoint::open(folder.path()).unwrap();
    let model = Model::load(&written, &device, &mut |_, _| ()).unwrap();
    let input = PackedSequence::single(&random_ids(1, 72, 160));
    let loss = model.loss_sum(&input).nats() / input.target_tokens() as f64;
    assert!((number(row, "loss") - loss).abs() < 1e-3, "{loss}, {row:?}");
}

#[test]
fn a_probe_is_two_rates() {
    if cuda_device().is_none() {
        return;
    }
    let mut report = |_: Row| ();
    let probe = Bench::new(None, true, Products::Own, &mut report).unwrap().probe().unwrap();
    assert!(probe.bf16_tflops > 0.0 && probe.copy_gb_per_s > 0.0, "{probe:?}");
}
