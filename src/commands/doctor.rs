//! `doctor`: what this machine is, what is missing, and whether training is exact on it.

use burn::tensor::Device;
use serde::Serialize;
use sparktune_model::{Checkpoint, Gradients, Model, Row};
use sparktune_telemetry::{MachineFacts, disk_free_bytes, memory_pressure};
use sparktune_tui::{bytes, escape};

use crate::answers::{demo_folder, runs_dir};
use crate::cli::DoctorArgs;
use crate::failure::{Exit, Failure};
use crate::output::{print, print_json};

/// Largest difference between logits of a packed example and of the same example alone.
const LOGITS: f32 = 2e-4;
/// Largest relative difference between a gradient and the slope measured along it, in fp32.
const SLOPE: f64 = 1e-2;

/// One line of the diagnosis.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    found: String,
    /// Nothing where there is nothing to pass.
    passed: Option<bool>,
}

impl Finding {
    fn fact(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.into(), found: found.into(), passed: None }
    }

    fn test(what: &str, found: String, passed: bool) -> Self {
        Self { what: what.into(), found, passed: Some(passed) }
    }
}

/// `sparktune doctor`: exit code 4 where a self-test fails.
///
/// # Errors
/// A settings file that cannot be read, or a broken demo model.
pub fn doctor(args: DoctorArgs) -> Result<Exit, Failure> {
    let mut findings = machine(&MachineFacts::gather());
    let runs = runs_dir(args.runs_dir)?;
    let free = disk_free_bytes(&runs).map_or_else(|| "unknown".into(), bytes);
    findings.push(Finding::fact("disk", format!("{free} free for {}", runs.display())));
    match demo_folder() {
        Some(demo) => findings.extend(self_tests(&demo.join("model"))?),
        None => findings.push(Finding::fact(
            "self-tests",
            "skipped: presets/demo was not found; set SPARKTUNE_HOME to the folder that holds presets/",
        )),
    }
    let healthy = findings.iter().all(|finding| finding.passed != Some(false));
    if args.json {
        print_json(&findings)?;
    } else {
        let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
        let line = |finding: &Finding| {
            let mark = match finding.passed {
                None => "",
                Some(true) => "passed: ",
                Some(false) => "FAILED: ",
            };
            format!("{:width$}  {mark}{}\n", finding.what, escape(&finding.found))
        };
        print(&findings.iter().map(line).collect::<String>())?;
    }
    Ok(if healthy { Exit::Done } else { Exit::Device })
}

fn machine(facts: &MachineFacts) -> Vec<Finding> {
    let unknown = || "unknown".to_owned();
    let text = |value: &Option<String>| value.clone().unwrap_or_else(unknown);
    let mut memory =
        format!("{} of {} available", bytes(facts.mem_available_bytes), bytes(facts.mem_total_bytes));
    if facts.mem_limit_bytes.is_some() {
        memory.push_str(", limited by the container");
    }
    if facts.mem_unified {
        memory.push_str(", shared by CPU and GPU");
    }
    if let Some(pressure) = memory_pressure() {
        memory.push_str(&format!("; pressure {:.0} %", pressure.some_percent));
    }
    let mut findings = vec![
        Finding::fact("sparktune", format!("{}, {}", env!("CARGO_PKG_VERSION"), facts.arch)),
        Finding::fact("system", format!("{}, kernel {}", text(&facts.os), text(&facts.kernel))),
        Finding::fact(
            "processor",
            format!("{}, {} threads usable", text(&facts.cpu_model), facts.cores_usable),
        ),
        Finding::fact("memory", memory),
    ];
    let driver = match (&facts.gpu_driver, &facts.cuda) {
        (Some(driver), cuda) => format!("version {driver}, CUDA up to {}", text(cuda)),
        (None, _) => "none: NVML was not found".to_owned(),
    };
    findings.push(Finding::fact("NVIDIA driver", driver));
    for gpu in &facts.gpus {
        let memory = gpu.mem_total_bytes.map_or_else(|| "shares the system's memory".to_owned(), bytes);
        let capability = text(&gpu.compute_capability);
        let name = text(&gpu.name);
        findings.push(Finding::fact(
            &format!("GPU {}", gpu.index),
            format!("{name}, compute {capability}, {memory}"),
        ));
    }
    let device = match (cfg!(feature = "cuda"), facts.gpus.is_empty()) {
        (true, true) => "CPU. This build has CUDA, but no GPU was found",
        (true, false) => "GPU 0, or the CPU with --device cpu",
        (false, true) => "CPU. This build has no CUDA, and no GPU was found",
        (false, false) => "CPU. This build has no CUDA; build it through ./run.sh to train on the GPU",
    };
    findings.push(Finding::fact("trains on", device));
    findings
}

/// Training is exact here when packing changes nothing and gradients are slopes; tried on the demo's model.
fn self_tests(model: &std::path::Path) -> Result<Vec<Finding>, Failure> {
    let unusable = |error: sparktune_model::ModelError| Failure::usage(error.to_string());
    let checkpoint = Checkpoint::open(model).map_err(unusable)?;
    let mut model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).map_err(unusable)?;
    let packed = packed_equals_alone(&model);
    let slope = gradient_is_slope(&mut model);
    Ok(vec![
        Finding::test(
            "packed = alone",
            format!("logits of packed examples differ by {packed:.1e} at most (allowed {LOGITS:.0e})"),
            packed <= LOGITS,
        ),
        Finding::test(
            "gradients",
            format!(
                "gradient and measured slope differ by {:.2} % (allowed {:.0} %)",
                slope * 100.0,
                SLOPE * 100.0
            ),
            slope <= SLOPE,
        ),
    ])
}

/// Ids spread over the vocabulary, different for each example.
fn example(model: &Model, number: usize, length: usize) -> Vec<u32> {
    let vocabulary = model.config().vocab_size;
    (0..length).map(|t| ((t * 7919 + number * 104_729 + t * t * 31) % vocabulary) as u32).collect()
}

fn logits(model: &Model, row: &Row) -> Vec<f32> {
    let logits = model.logits(model.hidden(row));
    logits.inner().into_data().try_to_vec().expect("logits are f32")
}

/// Largest difference between the logits of examples in one row and each of them in a row of its own.
fn packed_equals_alone(model: &Model) -> f32 {
    let examples: Vec<Vec<u32>> =
        [5, 70, 1, 33].iter().enumerate().map(|(i, length)| example(model, i, *length)).collect();
    let mut borders = vec![0];
    for example in &examples {
        borders.push(borders[borders.len() - 1] + example.len() as u32);
    }
    let ids = examples.concat();
    let packed = logits(model, &Row::new(&ids, &borders, &vec![true; ids.len()]));
    let alone = examples.iter().flat_map(|example| logits(model, &Row::single(example)));
    packed.iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Relative difference between the norm of the gradient and the slope of the loss along it, over all parameters at once.
fn gradient_is_slope(model: &mut Model) -> f64 {
    let row = Row::single(&example(model, 9, 64));
    let scale = 1.0 / row.target_tokens() as f64;
    model.set_trainable(true);
    let mut gradients = Gradients::default();
    model.loss_and_gradients(&row, scale, false, &mut gradients);
    let norm = gradients.norm();
    // A step that changes the loss by about 0.3 %: far above the noise of fp32, small enough to stay on the slope.
    let step = 0.003 * model.loss_sum(&row) * scale / norm;
    let mut walk = |by: f64| {
        model.visit_mut(&mut |param| {
            if let Some(gradient) = gradients.get(param.name()) {
                let moved = param.take() + gradient.clone().inner().mul_scalar((by / norm) as f32);
                param.put(moved, false);
            }
        });
        model.loss_sum(&row) * scale
    };
    let (up, down) = (walk(step), walk(-2.0 * step));
    ((up - down) / (2.0 * step) / norm - 1.0).abs()
}
