//! `bench --gpu`: one section of what is measured on a GPU. Each row goes into a file and onto the screen as soon as it is known.

use crate::cli::{BenchArgs, GpuSection};
use crate::failure::{Exit, Failure};
use crate::output::print;

/// `sparktune bench --gpu SECTION`: exit code 77, and why as the last line, where it cannot be done here.
///
/// # Errors
/// A file that cannot be written, or a probe that came to nothing.
pub fn gpu_bench(section: GpuSection, args: &BenchArgs) -> Result<Exit, Failure> {
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

#[cfg(not(feature = "cuda"))]
fn measured(_: GpuSection, _: &BenchArgs) -> Result<Exit, Stopped> {
    Err(Stopped::CannotBeDoneHere("this build of sparktune has no CUDA".into()))
}

#[cfg(feature = "cuda")]
use on_cuda::measured;

#[cfg(feature = "cuda")]
mod on_cuda {
    use super::{BenchArgs, Exit, Failure, GpuSection, Stopped, print};
    use crate::output::print_json;
    use sparktune_train::gpu_bench::{Bench, Row};
    use std::fs::File;
    use std::io::Write;
    use std::time::Duration;

    pub(super) fn measured(section: GpuSection, args: &BenchArgs) -> Result<Exit, Stopped> {
        let file = args.json.clone().flatten();
        let open = |path| File::create(path).map_err(|error| Failure::io("write", path, &error));
        let mut written = file.as_deref().map(open).transpose().map_err(Stopped::Failed)?;
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
            GpuSection::Steps => bench.steps(&crate::job::machine(&std::env::temp_dir())),
            GpuSection::Probe => {
                let failed = |text| Stopped::Failed(Failure { exit: Exit::Device, text });
                let probe = bench.probe().map_err(failed)?;
                print_json(&probe).map_err(|error| Stopped::Failed(error.into()))?;
            }
        }
        match (wrong, file) {
            (None, _) => Ok(Exit::Done),
            (Some(error), Some(path)) => Err(Stopped::Failed(Failure::io("write", &path, &error))),
            (Some(error), None) => Err(Stopped::Failed(error.into())),
        }
    }

    fn put(file: Option<&mut File>, row: &Row) -> std::io::Result<()> {
        match file {
            Some(file) => {
                file.write_all(format!("{}\n", serde_json::to_string(row)?).as_bytes())?;
                print(&line(row))
            }
            None => print(&line(row)),
        }
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
