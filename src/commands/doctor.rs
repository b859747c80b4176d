//! `doctor`: what this machine is, what is missing, and whether training is exact on it.

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
struct Line {
    #[serde(flatten)]
    finding: Finding,
    /// `ok`, `warning`, `failed` or `skipped`.
    status: &'static str,
    /// Whether a self-test passed; `None` where there is nothing to pass.
    passed: Option<bool>,
}

impl Line {
    fn test(check: Check) -> Self {
        let passed = match check.verdict {
            Verdict::Skipped => None,
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
            Severity::Note => "warning",
            Severity::Problem => "failed",
        };
        Self { finding, status, passed: None }
    }
}

/// `sparktune doctor`: exit code 4 where a self-test or something that the GPU needs fails.
///
/// # Errors
/// A settings file that cannot be read, or a broken demo model.
pub fn doctor(program: &Program, runs_dir_flag: Option<PathBuf>, json: bool) -> Result<Exit, Failure> {
    let runs = runs_dir(runs_dir_flag)?;
    let facts = Machine::gather();
    let findings = findings(&facts, program.has_cuda, &runs, disk_free_bytes(&runs));
    let mut lines: Vec<Line> = findings.into_iter().map(Line::from).collect();
    let tests = match demo_folder() {
        Some(demo) => self_tests(&demo.join("model"), &facts).map_err(from_training)?,
        None => vec![Check::skipped(
            "self-tests",
            format!("presets/demo was not found; set {HOME_VARIABLE} to the folder that holds presets/"),
        )],
    };
    let checks = cuda_checks(&facts, program.has_cuda);
    let healthy = tests.iter().chain(&checks).all(|check| check.verdict != Verdict::Failed);
    lines.extend(tests.into_iter().map(Line::test));
    if json {
        print_json(&lines)?;
    } else {
        let width = lines.iter().map(|line| line.finding.what.len()).max().unwrap_or(0);
        print(&lines.iter().map(|line| text(line, width)).collect::<String>())?;
    }
    Ok(if healthy { Exit::Done } else { Exit::Device })
}

fn text(line: &Line, width: usize) -> String {
    let status = if line.status == "failed" { "FAILED" } else { line.status };
    finding_text(&line.finding, &format!("{status:<9}"), width)
}

/// Training is exact here when packing changes nothing and gradients are slopes; tried on the demo's model,
/// on the CPU and where it can be on the GPU.
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

/// Stands after the names of tests on the GPU.
const ON_GPU: &str = " (GPU)";

/// The same tests on the first GPU. Its runtime fails by panics: here they are a test that failed, in words.
#[cfg(feature = "cuda")]
fn on_cuda(model: &Path) -> Result<Vec<Check>, TrainError> {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    let name = format!("self-tests{ON_GPU}");
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let devices = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec();
        match devices.first() {
            Some(device) => on_device(model, ON_GPU, device),
            None => Ok(vec![Check::failed(
                &name,
                "CUDA shows no GPU to this process",
                "look at CUDA_VISIBLE_DEVICES and `nvidia-smi`; in a container, start it with --gpus all",
            )]),
        }
    }));
    tried.unwrap_or_else(|panic| match sparktune_telemetry::noted_failure() {
        Some(what) => Ok(vec![Check::failed(&name, "the GPU's runtime failed", what)]),
        None => resume_unwind(panic),
    })
}

#[cfg(not(feature = "cuda"))]
fn on_cuda(_: &Path) -> Result<Vec<Check>, TrainError> {
    unreachable!("without CUDA the GPU is out of reach")
}

/// The trainer's self-tests on one device; `suffix` stands after their names.
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
        "do not train there until this is understood: run it again, and if it fails again, send the output of \
         `{} doctor --json` to the developers",
        program_name()
    )
}
