//! Every section at tiny sizes on the emulated device, and what needs no device.

use super::*;

/// The rows of a section; none, with a word, where there is no CUDA device and none has to be.
fn rows(section: fn(&mut Bench)) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let mut report = |row: Row| rows.push(row);
    match Bench::new(None, true, &mut report) {
        Ok(mut bench) => section(&mut bench),
        Err(why) => {
            assert!(std::env::var_os("SPARKTUNE_NEEDS_CUDA").is_none(), "{why}");
            eprintln!("skipped: {why}");
            return None;
        }
    }
    Some(rows)
}

fn number(row: &Row, field: &str) -> f64 {
    row.get(field).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {field} in {row:?}"))
}

#[test]
fn every_op_is_right_and_timed_at_a_tiny_shape() {
    let Some(rows) = rows(|bench| bench.kernels()) else { return };
    for row in &rows {
        assert!(!row.contains_key("failed") && !row.contains_key("skipped"), "{row:?}");
        assert!(number(row, "error") <= number(row, "tolerance"), "{row:?}");
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
    assert_eq!(rows.len(), 3);
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
    for row in &rows[..2] {
        let curve = |field: &str| -> Vec<f64> {
            row[field].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
        };
        let (found, expected) = (curve("curve"), curve("reference_curve"));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found / expected - 1.0).abs() <= 2e-3, "{row:?}");
        }
        assert!(expected[2] < expected[0], "{row:?}");
    }
    for row in &rows[2..] {
        assert!(!row.contains_key("failed"), "{row:?}");
        assert!(number(row, "tokens_per_s") > 0.0 && number(row, "peak_bytes") > 0.0, "{row:?}");
        // Random weights know nothing.
        assert!((number(row, "loss") - 160f64.ln()).abs() < 0.5, "{row:?}");
    }
}

#[test]
fn a_probe_is_two_rates() {
    let mut report = |_: Row| ();
    let Ok(mut bench) = Bench::new(None, true, &mut report) else { return };
    let probe = bench.probe().unwrap();
    assert!(probe.bf16_tflops > 0.0 && probe.copy_gb_per_s > 0.0, "{probe:?}");
}

#[test]
fn what_would_not_end_in_time_is_left_out_and_what_fails_says_so() {
    let mut rows = Vec::new();
    let mut report = |row: Row| rows.push(row);
    let clock = Clock { ends: Some(Instant::now() + Duration::from_secs(600)), longest: Duration::ZERO };
    let mut bench = Bench { device: Device::flex(), is_tiny: true, clock, report: &mut report };
    let head = |name: &str| row(json!({"name": name}));
    bench.measure(head("a"), || vec![with(head("a"), "time_us", 1.0)]);
    bench.measure(head("b"), || panic!("CUDA error: illegal address"));
    bench.clock.longest = Duration::from_secs(601);
    bench.measure(head("c"), || unreachable!("there is no time for it"));
    assert_eq!(rows[0]["time_us"], 1.0);
    assert!(rows[1]["failed"].as_str().is_some_and(|why| why.contains("illegal address")), "{rows:?}");
    assert_eq!((&rows[2]["name"], &rows[2]["skipped"]), (&json!("c"), &json!("no time is left")));
}

#[test]
fn a_row_without_ceilings_has_no_floor_and_what_is_not_a_number_is_null() {
    let mut measured = Measured {
        name: "copy".into(),
        shape: String::new(),
        error: f64::NAN,
        tolerance: 1e-2,
        seconds: Some(2e-3),
        bytes: 1e9,
        flops: 0.0,
        work: Vec::new(),
        note: String::new(),
    };
    let row = kernel_row(&measured, None);
    assert!(row["floor_us"].is_null() && row["share_of_floor"].is_null() && row["error"].is_null());
    let ceilings = Some(Ceilings { bytes_per_s: 1e12, flops_per_s: 1e14 });
    assert_eq!(kernel_row(&measured, ceilings)["share_of_floor"], 0.5);
    measured.seconds = None;
    assert!(kernel_row(&measured, ceilings)["floor_us"].is_null());
}

#[test]
fn ops_of_both_sizes_take_turns_and_none_comes_twice() {
    let cases = all_cases(false);
    let names: Vec<(&str, &str)> = cases.iter().map(|case| (case.name, case.shape.as_str())).collect();
    assert_eq!(names.len(), names.iter().collect::<HashSet<_>>().len());
    assert_eq!([names[0].0, names[1].0], ["gated_delta_rule", "packed_attention"]);
    assert_eq!(names.iter().filter(|(name, _)| *name == "lora_linear").count(), 2);
}
