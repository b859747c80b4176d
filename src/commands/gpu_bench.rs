//! `bench --gpu`: one section of what is measured on a GPU, or predicted of one. Each row goes into a file and onto the screen as soon
//! as it is known.

use std::fs::File;
use std::io::{self, Write};

use serde::Serialize;
use sparktune_train::step_work::{GAP_S, PROMISED_FOR, Part, Predicted, predictions, promised_for};

use sparktune_app::failure::{Exit, Failure};
use sparktune_tui::output::print;

use crate::request::{BenchArgs, GpuSection};

/// `sparktune bench --gpu SECTION`: exit code 77, and why as the last line, where it cannot be done here.
///
/// # Errors
/// A file that cannot be written, or a probe that came to nothing.
pub fn gpu_bench(section: GpuSection, args: &BenchArgs) -> Result<Exit, Failure> {
    if section == GpuSection::Model {
        return model(args);
    }
    measured(section, args).or_else(|why| match why {
        Stopped::CannotBeDoneHere(why) => {
            print(&format!("{why}\n"))?;
            Ok(Exit::Skipped)
        }
        Stopped::Failed(failure) => Err(failure),
    })
}

/// Why nothing, or not all, was measured.
enum Stopped {
    CannotBeDoneHere(String),
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    Failed(Failure),
}

/// The file that `--json` names.
fn created(args: &BenchArgs) -> Result<Option<File>, Failure> {
    let open = |path| File::create(path).map_err(|error| Failure::io("write", path, &error));
    args.json.as_ref().and_then(Option::as_deref).map(open).transpose()
}

/// One object on a line of its own.
fn put(file: &mut File, row: &impl Serialize) -> io::Result<()> {
    file.write_all(format!("{}\n", serde_json::to_string(row)?).as_bytes())
}

/// What steps consist of, and the speeds that follow.
fn model(args: &BenchArgs) -> Result<Exit, Failure> {
    let (mut file, predictions) = (created(args)?, predictions());
    for step in &predictions {
        if let Some(file) = &mut file {
            put(file, &step.row())?;
        }
        print(&table(step))?;
    }
    let ceilings = promised_for();
    let mut text = format!(
        "Predicted for {PROMISED_FOR} from published rates, {:.0} TFLOP/s and {:.0} GB/s; an estimate, in tokens/s with every op at its \
         floor, and at the shares above with {:.0} µs between launches:\n",
        ceilings.flops_per_s / 1e12,
        ceilings.bytes_per_s / 1e9,
        GAP_S * 1e6
    );
    for step in &predictions {
        let [floors, shares] = step.tokens_per_s(ceilings);
        text.push_str(&format!("{:<66} {floors:>6.0} {shares:>6.0}\n", step.name));
    }
    print(&text)?;
    Ok(Exit::Done)
}

/// The ops of a step: calls, 10⁹ bytes and FLOPs, floor, the share that is assumed, and what the op then takes.
fn table(step: &Predicted) -> String {
    let mut ops: Vec<&str> = step.parts.iter().map(|part| part.op.as_str()).collect();
    let mut seen = std::collections::HashSet::new();
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

#[cfg(not(feature = "cuda"))]
fn measured(_: GpuSection, _: &BenchArgs) -> Result<Exit, Stopped> {
    Err(Stopped::CannotBeDoneHere("this build of sparktune has no CUDA".into()))
}

#[cfg(feature = "cuda")]
use on_cuda::measured;

#[cfg(feature = "cuda")]
mod on_cuda {
    use super::{BenchArgs, Exit, Failure, GpuSection, Stopped, created, print};
    use sparktune_train::gpu_bench::{Bench, Row};
    use sparktune_tui::output::print_json;
    use std::fs::File;
    use std::time::Duration;

    pub(super) fn measured(section: GpuSection, args: &BenchArgs) -> Result<Exit, Stopped> {
        let mut written = created(args).map_err(Stopped::Failed)?;
        let mut wrong = None;
        let mut tell = |row: Row| {
            if let Err(error) = put(written.as_mut(), &row) {
                wrong.get_or_insert(error);
            }
        };
        let limit = args.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let mut bench = Bench::new(limit, args.quick, &mut tell).map_err(Stopped::CannotBeDoneHere)?;
        match section {
            GpuSection::Kernels => bench.kernels(),
            GpuSection::Gemm => bench.gemm(),
            GpuSection::Steps => bench.steps(&sparktune_app::machine::machine(true, &std::env::temp_dir())),
            GpuSection::Probe => {
                let failed = |text| Stopped::Failed(Failure::new(Exit::Device, text));
                let probe = bench.probe().map_err(failed)?;
                print_json(&probe).map_err(|error| Stopped::Failed(error.into()))?;
            }
            GpuSection::Model => unreachable!("needs no device"),
        }
        match (wrong, args.json.as_ref().and_then(Option::as_deref)) {
            (None, _) => Ok(Exit::Done),
            (Some(error), Some(path)) => Err(Stopped::Failed(Failure::io("write", path, &error))),
            (Some(error), None) => Err(Stopped::Failed(error.into())),
        }
    }

    fn put(file: Option<&mut File>, row: &Row) -> std::io::Result<()> {
        if let Some(file) = file {
            super::put(file, row)?;
        }
        print(&line(row))
    }

    /// A row for somebody who waits: its name, its time, whether it is right, and what there is to note.
    fn line(row: &Row) -> String {
        let text = |field: &str| row.get(field).and_then(|value| value.as_str());
        let number = |field: &str| row.get(field).and_then(|value| value.as_f64());
        let mut words: Vec<String> =
            [text("name"), text("shape"), text("layout")].into_iter().flatten().map(str::to_owned).collect();
        for (field, unit) in [("time_us", "µs"), ("tflops", "TFLOP/s"), ("tokens_per_s", "tokens/s")] {
            words.extend(number(field).map(|value| format!("{value:.1} {unit}")));
        }
        if let Some(tolerance) = number("tolerance") {
            let error = number("error").map_or("not a number".into(), |error| format!("{error:.1e}"));
            words.push(format!("error {error} of {tolerance:.0e}"));
        }
        words.extend(text("note").filter(|note| !note.is_empty()).map(str::to_owned));
        for word in ["failed", "skipped"] {
            words.extend(text(word).map(|why| format!("{word}: {why}")));
        }
        format!("{}\n", words.join(", "))
    }
}
