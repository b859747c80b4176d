//! Tests whether training is exact on a device: packing must not change results, and gradients must match
//! slopes of the loss.
//!
//! Both are tested in the number formats of evaluations and outputs, bf16 on a GPU, even if a run trains with
//! fp8, because the gradients of fp8 are not the slopes of its loss. The tests take seconds. They come before
//! the first run on a CUDA device, where they also compile and launch the kernels that the run will use.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor};
use sparktune_base::files::appended_file;
use sparktune_base::regular_file::read_regular;
use sparktune_kernels::adamw::Clip;
use sparktune_model::{Checkpoint, Gradients, Model, PackedSequence};

use crate::error::TrainError;
use crate::session::Session;
use crate::steps::is_host;

/// A property of training on a device, measured.
#[derive(Debug, Clone)]
pub struct SelfTest {
    /// The name of the compared quantity, in two or three words.
    pub name: &'static str,
    /// The result in a sentence with its numbers.
    pub found: String,
    /// Whether the result is within its limit.
    pub passed: bool,
}

/// The limits for the arithmetic of a device. The CPU computes in f32, other devices in bf16 with f32 sums.
struct Limits {
    /// The largest allowed difference of logits, relative to the largest logit.
    logits: f32,
    /// The largest allowed relative difference between a gradient and the measured slope along it.
    slope: f64,
    /// The relative change of the loss over which the slope is measured: far above the noise, and small
    /// enough for the loss to be linear.
    step: f64,
}

/// The most bytes of the file with the devices that have passed, each of which has a line.
const MOST_BYTES: u64 = 1 << 20;

const F32: Limits = Limits { logits: 1e-4, slope: 1e-2, step: 0.003 };
const BF16: Limits = Limits { logits: 2e-2, slope: 5e-2, step: 0.05 };

/// Runs all self-tests with the model of a checkpoint folder, which should be tiny.
///
/// # Errors
/// When the checkpoint cannot be read.
pub fn self_test(checkpoint: &Path, device: &Device) -> Result<Vec<SelfTest>, TrainError> {
    let checkpoint = Checkpoint::open(checkpoint)?;
    let mut model = Model::load(&checkpoint, device, &mut |_, _| ())?;
    let limits = if is_host(device) { F32 } else { BF16 };
    let packed = packed_equals_alone(&model);
    let slope = gradient_is_slope(&mut model, limits.step);
    let (allowed_logits, allowed_slope) = (limits.logits, limits.slope);
    Ok(vec![
        SelfTest {
            name: "packed = alone",
            found: format!(
                "logits of packed examples differ by {packed:.1e} at most (allowed {allowed_logits:.0e})"
            ),
            passed: packed <= allowed_logits,
        },
        SelfTest {
            name: "gradients",
            found: format!(
                "gradient and measured slope differ by {:.2} % (allowed {:.0} %)",
                slope * 100.0,
                allowed_slope * 100.0
            ),
            passed: slope <= allowed_slope,
        },
    ])
}

/// The self-tests before the first run on a CUDA device. They run once for each device, driver and build.
#[derive(Debug, Clone)]
pub struct BeforeFirstRun {
    /// The checkpoint folder of a tiny model to test with.
    pub model: PathBuf,
    /// The device, driver, compiler and build, in one line.
    pub on: String,
    /// The file that stores where the tests passed, one `on` per line.
    pub passed: PathBuf,
}

impl BeforeFirstRun {
    /// Runs the tests unless they have passed here before, and records them in the run's events.
    ///
    /// # Errors
    /// [`TrainError::Inexact`] when a test fails; also when the checkpoint cannot be read.
    pub(crate) fn run(&self, session: &Session, device: &Device) -> Result<(), TrainError> {
        let passed = read_regular(&self.passed, MOST_BYTES).unwrap_or_default();
        let passed = String::from_utf8_lossy(&passed);
        if passed.lines().any(|line| line == self.on) {
            return Ok(());
        }
        session
            .phase("self-test", format!("the first run on {}: testing whether training is exact", self.on));
        let tests = self_test(&self.model, device)?;
        for (done, test) in tests.iter().enumerate() {
            session.phase("self-test", format!("{}: {}", test.name, test.found));
            session.progress("self-test", done as u64 + 1, tests.len() as u64, "tests");
        }
        let failed = tests.iter().filter(|test| !test.passed);
        let failed: Vec<String> = failed.map(|test| format!("{}: {}", test.name, test.found)).collect();
        if !failed.is_empty() {
            return Err(TrainError::Inexact { on: self.on.clone(), failed: failed.join("; ") });
        }
        if let Err(error) = self.remember() {
            let path = self.passed.display();
            session.warn(format!("{path} cannot be written, so the next run will test again: {error}"), None);
        }
        Ok(())
    }

    fn remember(&self) -> io::Result<()> {
        appended_file().open(&self.passed)?.write_all(format!("{}\n", self.on).as_bytes())
    }
}

/// Returns ids spread over the vocabulary, different ones for each example.
fn example(model: &Model, number: usize, length: usize) -> Vec<u32> {
    let vocabulary = model.config().vocab_size;
    (0..length).map(|t| ((t * 7919 + number * 104_729 + t * t * 31) % vocabulary) as u32).collect()
}

fn logits(model: &Model, row: &PackedSequence) -> Vec<f32> {
    model.logits(model.hidden(row))
}

/// Returns the largest difference between the logits of packed examples and those of each example alone,
/// relative to the largest logit. NaN counts as an infinite difference.
fn packed_equals_alone(model: &Model) -> f32 {
    let examples: Vec<Vec<u32>> =
        [5, 70, 1, 33].iter().enumerate().map(|(i, length)| example(model, i, *length)).collect();
    let mut borders = vec![0];
    for example in &examples {
        borders.push(borders[borders.len() - 1] + example.len() as u32);
    }
    let ids = examples.concat();
    let packed = logits(model, &PackedSequence::new(&ids, &borders, &vec![true; ids.len()]));
    let alone: Vec<f32> =
        examples.iter().flat_map(|example| logits(model, &PackedSequence::single(example))).collect();
    let largest = alone.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let differences = packed.iter().zip(&alone).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, x| if x <= most { most } else { x }) / largest
}

/// Returns the relative difference between the norm of the gradient and the slope of the loss along it, over
/// all parameters at once.
fn gradient_is_slope(model: &mut Model, step: f64) -> f64 {
    let row = PackedSequence::single(&example(model, 9, 64));
    let scale = 1.0 / row.target_tokens() as f64;
    model.set_trainable(true);
    let mut gradients = Gradients::default();
    model.loss_and_gradients(&row, scale, false, &mut gradients);
    let norm = Clip::new(&gradients.all(), 1.0).norm();
    let step = step * model.loss_sum(&row).nats() * scale / norm;
    // Returns the loss after a step along the gradient, and the predicted change for the actual change of the
    // numbers: a bf16 number changes in whole units of its last place.
    let mut walk = |by: f64| {
        let mut expected = 0.0;
        model.visit_mut(&mut |param| {
            let Some(gradient) = gradients.get(param.name()) else { return };
            let before = wide(param.tensor());
            param.put(param.wide() + gradient.clone().mul_scalar((by / norm) as f32), false);
            let moved = wide(param.tensor()) - before;
            expected += f64::from((moved * gradient.clone()).sum().into_scalar::<f32>());
        });
        (model.loss_sum(&row).nats() * scale, expected)
    };
    let (up, _) = walk(step);
    let (down, expected) = walk(-2.0 * step);
    ((down - up) / expected - 1.0).abs()
}

fn wide(tensor: Tensor<2>) -> Tensor<2> {
    tensor.inner().cast(DType::F32)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_cpu_passes_on_the_demo_model() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets/demo/model");
        for test in self_test(&demo, &Device::flex()).unwrap() {
            assert!(test.passed, "{test:?}");
        }
    }

    #[test]
    fn where_the_tests_passed_is_not_written_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let [passed, mine] = [".self-tests", "mine"].map(|name| root.path().join(name));
        let tests = BeforeFirstRun { model: PathBuf::new(), on: "a GPU".into(), passed: passed.clone() };
        fs::write(&mine, "text").unwrap();
        std::os::unix::fs::symlink(&mine, &passed).unwrap();
        assert!(tests.remember().is_err());
        assert_eq!(fs::read_to_string(&mine).unwrap(), "text");
        fs::remove_file(&passed).unwrap();
        tests.remember().unwrap();
        tests.remember().unwrap();
        assert_eq!(fs::read_to_string(&passed).unwrap(), "a GPU\na GPU\n");
    }
}
