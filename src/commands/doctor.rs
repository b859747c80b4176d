//! `doctor`: describes this machine, missing parts, and whether training is exact on it.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Serialize;
use sparktune_app::answers::runs_dir;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::findings::{Finding, Severity, findings};
use sparktune_app::folders::{HOME_VARIABLE, demo_folder};
use sparktune_app::program::Program;
use sparktune_base::program_name;
use sparktune_telemetry::{Check, Machine, Verdict, cuda_checks, disk_free_bytes, out_of_reach};
use sparktune_train::TrainError;
use sparktune_tui::finding_text;
use sparktune_tui::output::{print, print_json};

use crate::failure::from_training;

/// One line of the diagnosis.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    #[serde(flatten)]
    finding: Finding,
    /// `ok`, `warning`, `failed`, `unknown` or `skipped`.
    status: &'static str,
    /// Whether a self-test passed; `None` for other lines.
    passed: Option<bool>,
}

impl Line {
    /// Returns the width of the first column that it needs.
    pub(crate) fn width(&self) -> usize {
        self.finding.what.chars().count()
    }

    fn test(check: Check) -> Self {
        let passed = match check.verdict {
            Verdict::Skipped | Verdict::Unknown => None,
            verdict => Some(verdict != Verdict::Failed),
        };
        Self { passed, ..Self::from(Finding::from(check)) }
    }
}

impl From<Finding> for Line {
    fn from(finding: Finding) -> Self {
        let status = match finding.severity {
            Severity::Good => "ok",
            Severity::Skipped => "skipped",
            Severity::Unknown => "unknown",
            Severity::Note => "warning",
            Severity::Problem => "failed",
        };
        Self { finding, status, passed: None }
    }
}

/// Runs `sparktune doctor`. The exit code is 4 if a self-test fails or something that the GPU needs is
/// missing.
///
/// # Errors
/// The settings file cannot be read, or the demo model is damaged.
pub fn doctor(program: &Program, runs_dir_flag: Option<PathBuf>, json: bool) -> Result<Exit, Failure> {
    let runs = runs_dir(runs_dir_flag)?;
    let facts = Machine::gather();
    let findings = findings(&facts, program.has_cuda, &runs, disk_free_bytes(&runs));
    let mut lines: Vec<Line> = findings.into_iter().map(Line::from).collect();
    let tests = match demo_folder() {
        Some(demo) => self_tests(&demo.join("model"), &facts).map_err(from_training)?,
        None => vec![Check::skipped(
            "self-tests",
            format!("presets/demo was not found; set {HOME_VARIABLE} to the folder that contains presets/"),
        )],
    };
    let checks = cuda_checks(&facts, program.has_cuda);
    let healthy = tests.iter().chain(&checks).all(|check| check.verdict != Verdict::Failed);
    lines.extend(tests.into_iter().map(Line::test));
    if json {
        print_json(&lines)?;
    } else {
        let width = lines.iter().map(Line::width).max().unwrap_or(0);
        print(&lines.iter().map(|line| text(line, width)).collect::<String>())?;
    }
    Ok(if healthy { Exit::Done } else { Exit::Device })
}

/// Formats a line of the diagnosis.
pub(crate) fn text(line: &Line, width: usize) -> String {
    let status = match line.status {
        "failed" => "FAILED",
        "unknown" => "UNKNOWN",
        status => status,
    };
    finding_text(&line.finding, &format!("{status:<9}"), width)
}

/// Tests whether training is exact here, which means that packing changes nothing and gradients match slopes,
/// with the demo's model on the CPU and, if possible, on the GPU.
fn self_tests(model: &Path, facts: &Machine) -> Result<Vec<Check>, TrainError> {
    let mut tests = on_device(model, "", &Device::flex())?;
    let on_gpu: Vec<Check> = match out_of_reach(facts, cfg!(feature = "cuda")) {
        Some(why) => {
            tests.iter().map(|test| Check::skipped(&format!("{}{ON_GPU}", test.name), why)).collect()
        }
        None => on_cuda(model)?,
    };
    tests.extend(on_gpu);
    Ok(tests)
}

/// The suffix of the names of tests on the GPU.
const ON_GPU: &str = " (GPU)";

/// Runs the same tests on the first GPU. Its runtime fails by panics, which count as a failed test.
#[cfg(feature = "cuda")]
fn on_cuda(model: &Path) -> Result<Vec<Check>, TrainError> {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    let name = format!("self-tests{ON_GPU}");
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let devices = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec();
        match devices.first() {
            Some(device) => {
                let mut checks = vec![shared_memory(device)];
                if checks[0].verdict == Verdict::Ok {
                    checks.push(clock(device));
                    checks.extend(on_device(model, ON_GPU, device)?);
                }
                Ok(checks)
            }
            None => Ok(vec![Check::failed(
                &name,
                "CUDA shows no GPU to this process",
                "check CUDA_VISIBLE_DEVICES and `nvidia-smi`; start a container with --gpus all",
            )]),
        }
    }));
    tried.unwrap_or_else(|panic| match sparktune_telemetry::recorded_failure() {
        Some(what) => Ok(vec![Check::failed(&name, "the GPU's runtime failed", what)]),
        None => resume_unwind(panic),
    })
}

/// Reads the clock of the first GPU under load; unknown where there is none to load.
pub(crate) fn clock_of_gpu(facts: &Machine) -> Check {
    const NAME: &str = "clock under load";
    match out_of_reach(facts, cfg!(feature = "cuda")) {
        Some(why) => Check::unknown(NAME, why),
        None => loaded_clock(NAME),
    }
}

#[cfg(feature = "cuda")]
fn loaded_clock(name: &str) -> Check {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let devices = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec();
        devices.first().map(clock)
    }));
    let unknown = || Check::unknown(name, "the GPU does not compute; `doctor` says why");
    tried.ok().flatten().unwrap_or_else(unknown)
}

#[cfg(not(feature = "cuda"))]
fn loaded_clock(name: &str) -> Check {
    Check::unknown(name, "this build has no CUDA")
}

/// Launches a kernel with as much shared memory as the largest ones of a training step.
#[cfg(feature = "cuda")]
fn shared_memory(device: &Device) -> Check {
    let name = format!("shared memory{ON_GPU}");
    if sparktune_bench::gpu::probe::shared_memory_works(device) {
        return Check::ok(&name, "a kernel with 99 KB in one block returns the right numbers");
    }
    Check::failed(&name, "a kernel with 99 KB in one block returns wrong numbers", not_exact())
}

/// Reads the SM clock during a second of matrix products.
#[cfg(feature = "cuda")]
fn clock(device: &Device) -> Check {
    let name = format!("clock under load{ON_GPU}");
    let mut sampler = sparktune_telemetry::Sampler::new();
    let mut gpu = || sampler.sample().gpus.into_iter().next();
    let boost = gpu().and_then(|gpu| gpu.sm_clock_mhz.and(gpu.sm_clock_max_mhz));
    let mut clocks = Vec::new();
    // Nothing is gained by a load whose clock cannot be read.
    if boost.is_some() {
        sparktune_bench::gpu::probe::keep_busy(device, std::time::Duration::from_secs(1), || {
            clocks.extend(gpu().and_then(|gpu| gpu.sm_clock_mhz));
        });
    }
    sparktune_telemetry::clock_under_load(&name, &clocks, boost)
}

#[cfg(not(feature = "cuda"))]
fn on_cuda(_: &Path) -> Result<Vec<Check>, TrainError> {
    unreachable!("the GPU cannot be used without CUDA")
}

/// Runs the trainer's self-tests on one device; `suffix` is appended to their names.
fn on_device(model: &Path, suffix: &str, device: &Device) -> Result<Vec<Check>, TrainError> {
    let tests = sparktune_train::self_test(model, device)?.into_iter();
    let checks = tests.map(|test| {
        let name = format!("{}{suffix}", test.name);
        if test.passed { Check::ok(&name, test.found) } else { Check::failed(&name, test.found, not_exact()) }
    });
    Ok(checks.collect())
}

fn not_exact() -> String {
    format!(
        "do not train on this device until the cause is known: run `doctor` again, and if it fails again, send the output of `{} doctor --json` to the developers",
        program_name()
    )
}
