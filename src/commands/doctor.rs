//! `doctor`: what this machine is, what is missing, and whether training is exact on it.

use burn::tensor::Device;
use serde::Serialize;
use sparktune_model::{Checkpoint, Gradients, Model, Row};
use sparktune_telemetry::{MachineFacts, disk_free_bytes};
use sparktune_tui::{Finding, Severity};

use crate::answers::{demo_folder, runs_dir};
use crate::cli::DoctorArgs;
use crate::failure::{Exit, Failure};
use crate::machine;
use crate::output::{print, print_json};

/// Largest difference between logits of a packed example and of the same example alone.
const LOGITS: f32 = 2e-4;
/// Largest relative difference between a gradient and the slope measured along it, in fp32.
const SLOPE: f64 = 1e-2;

/// One line of the diagnosis.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(flatten)]
    finding: Finding,
    /// Nothing where there is nothing to pass.
    passed: Option<bool>,
}

impl Line {
    fn test(what: &str, found: String, passed: bool) -> Self {
        let severity = if passed { Severity::Good } else { Severity::Problem };
        Self { finding: Finding { severity, ..Finding::good(what, found) }, passed: Some(passed) }
    }
}

impl From<Finding> for Line {
    fn from(finding: Finding) -> Self {
        Self { finding, passed: None }
    }
}

/// `sparktune doctor`: exit code 4 where a self-test fails.
///
/// # Errors
/// A settings file that cannot be read, or a broken demo model.
pub fn doctor(args: DoctorArgs) -> Result<Exit, Failure> {
    let runs = runs_dir(args.runs_dir)?;
    let facts = MachineFacts::gather();
    let findings = machine::findings(&facts, cfg!(feature = "cuda"), &runs, disk_free_bytes(&runs));
    let mut lines: Vec<Line> = findings.into_iter().map(Line::from).collect();
    match demo_folder() {
        Some(demo) => lines.extend(self_tests(&demo.join("model"))?),
        None => lines.push(Line::from(Finding::good(
            "self-tests",
            "skipped: presets/demo was not found; set SPARKTUNE_HOME to the folder that holds presets/",
        ))),
    }
    let healthy = lines.iter().all(|line| line.passed != Some(false));
    if args.json {
        print_json(&lines)?;
    } else {
        let width = lines.iter().map(|line| line.finding.what.len()).max().unwrap_or(0);
        print(&lines.iter().map(|line| text(line, width)).collect::<String>())?;
    }
    Ok(if healthy { Exit::Done } else { Exit::Device })
}

fn text(line: &Line, width: usize) -> String {
    let mark = match line.passed {
        None => "",
        Some(true) => "passed: ",
        Some(false) => "FAILED: ",
    };
    machine::text(&line.finding, mark, width)
}

/// Training is exact here when packing changes nothing and gradients are slopes; tried on the demo's model.
fn self_tests(model: &std::path::Path) -> Result<Vec<Line>, Failure> {
    let unusable = |error: sparktune_model::ModelError| Failure::usage(error.to_string());
    let checkpoint = Checkpoint::open(model).map_err(unusable)?;
    let mut model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).map_err(unusable)?;
    let packed = packed_equals_alone(&model);
    let slope = gradient_is_slope(&mut model);
    Ok(vec![
        Line::test(
            "packed = alone",
            format!("logits of packed examples differ by {packed:.1e} at most (allowed {LOGITS:.0e})"),
            packed <= LOGITS,
        ),
        Line::test(
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
