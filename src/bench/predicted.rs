//! The work of training steps on a CUDA device, op by op, and the speed that follows from it: arithmetic that
//! needs no device.
//!
//! Enters: the counts of `sparktune_train::step_work`. Leaves: an object for each step, and the same as text.

use std::collections::HashSet;

use serde_json::Value;
use sparktune_train::step_work::{GAP_S, PROMISED_FOR, Part, Predicted, predictions, promised_for};

/// One step: the object for a file, and the table for people.
pub struct Prediction {
    /// All counts.
    pub row: Value,
    /// A line for each op.
    pub table: String,
}

/// Every step, and what they come to: tokens per second on the device that speeds are promised for.
pub fn predict() -> (Vec<Prediction>, String) {
    let steps = predictions();
    let ceilings = promised_for();
    let mut summary = format!(
        "Estimated for {PROMISED_FOR} from published rates, {:.0} TFLOP/s and {:.0} GB/s, in tokens/s: with every op at its floor, and at the shares above with {:.0} µs between launches:\n",
        ceilings.flops_per_s / 1e12,
        ceilings.bytes_per_s / 1e9,
        GAP_S * 1e6
    );
    for step in &steps {
        let [floors, shares] = step.tokens_per_s(ceilings);
        summary.push_str(&format!("{:<66} {floors:>6.0} {shares:>6.0}\n", step.name));
    }
    let predicted = steps.iter().map(|step| Prediction { row: step.row(), table: table(step) });
    (predicted.collect(), summary)
}

/// The ops of a step: calls, 10⁹ bytes and FLOPs, the floor, the assumed share of it, and the time that the
/// op then takes.
fn table(step: &Predicted) -> String {
    let mut ops: Vec<&str> = step.parts.iter().map(|part| part.op.as_str()).collect();
    let mut seen = HashSet::new();
    ops.retain(|op| seen.insert(*op));
    let mut text = format!("{}\n", step.name);
    let mut line = |cells: [String; 7]| {
        let [op, numbers @ ..] = cells;
        let numbers: Vec<String> = numbers.iter().map(|cell| format!("{cell:>10}")).collect();
        text.push_str(&format!("{op:<30}{}\n", numbers.concat()));
    };
    line(["op", "calls", "GB", "GFLOP", "floor ms", "share", "ms"].map(str::to_owned));
    for op in ops {
        let parts: Vec<&Part> = step.parts.iter().filter(|part| part.op == op).collect();
        let sum = |of: &dyn Fn(&Part) -> f64| parts.iter().map(|part| of(part)).sum::<f64>();
        let calls = sum(&|part| part.calls as f64);
        let work = |of: &dyn Fn(f64, f64) -> f64| {
            sum(&|part| {
                part.calls as f64
                    * part.launches.iter().map(|launch| of(launch.bytes, launch.flops)).sum::<f64>()
            })
        };
        let floor = sum(&|part| part.seconds(promised_for(), 1.0, 0.0));
        let takes = sum(&|part| part.seconds(promised_for(), part.share, GAP_S));
        line([
            op.to_owned(),
            format!("{calls:.0}"),
            format!("{:.1}", work(&|bytes, _| bytes) / 1e9),
            format!("{:.0}", work(&|_, flops| flops) / 1e9),
            format!("{:.2}", floor * 1e3),
            format!("{:.0} %", parts[0].share * 100.0),
            format!("{:.2}", takes * 1e3),
        ]);
    }
    text.push('\n');
    text
}
