//! What of the sections needs no device.

use sparktune_kernels::measuring::Line;

use super::*;

#[test]
fn what_would_not_end_in_time_is_left_out_and_what_fails_says_so() {
    let mut rows = Vec::new();
    let mut report = |row: Row| rows.push(row);
    let clock = Clock { ends: Some(Instant::now() + Duration::from_secs(600)), longest: Duration::ZERO };
    let mut bench =
        Bench { device: Device::flex(), is_tiny: true, products: Products::Own, clock, report: &mut report };
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
        worst: Some([Line { index: 3, distance: 0.25 }, Line { index: 5, distance: f32::INFINITY }]),
        tolerance: 1e-2,
        seconds: Some(2e-3),
        bytes: 1e9,
        flops: 0.0,
        work: Vec::new(),
        note: String::new(),
    };
    let row = kernel_row(&measured, None);
    assert_eq!((&row["worst_row"], &row["worst_row_error"]), (&json!(3), &json!(0.25)));
    assert!(row["worst_column"] == 5 && row["worst_column_error"].is_null(), "infinite is no number");
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
