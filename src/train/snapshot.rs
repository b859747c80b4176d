//! The content of a checkpoint between two steps, and its writing.
//!
//! Taking a snapshot copies nothing: its tensors share their numbers with the model and the optimizer. While
//! it exists, an update leaves these numbers unchanged and writes to copies (`adamw::update`);
//! [`Saver`](crate::saver::Saver) describes the cost.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use burn::tensor::{Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use sparktune_model::Param;

use crate::error::TrainError;
use crate::optimizer::Optimizer;
use crate::state::{OPTIMIZER, STATE, State, WEIGHTS};

/// The number of bytes of a tensor that are fetched at a time, but at least one row: an embedding takes
/// gigabytes.
const PIECE: usize = 64 << 20;

/// State, weights and moments after one step.
pub(crate) struct Snapshot {
    pub(crate) state: State,
    /// Whether it belongs to the lowest eval loss so far.
    pub(crate) best: bool,
    /// The weights by name, f32 outside autodiff, as are the moments.
    weights: BTreeMap<String, Tensor<2>>,
    moments: BTreeMap<String, Tensor<2>>,
}

impl Snapshot {
    /// Takes a snapshot of parameters, optimizer and state.
    ///
    /// # Panics
    /// When the device failed.
    pub(crate) fn take(
        state: &State,
        parameters: &[&Param],
        optimizer: &Optimizer,
        device: &Device,
        best: bool,
    ) -> Self {
        let weights = parameters.iter().map(|param| (param.name().to_owned(), param.wide())).collect();
        let moments = optimizer
            .moments
            .iter()
            .flat_map(|(name, (m, v))| [(format!("m.{name}"), m.clone()), (format!("v.{name}"), v.clone())]);
        let snapshot = Self { state: state.clone(), best, weights, moments: moments.collect() };
        // Another thread reads the numbers on its own stream. cubecl makes that stream wait for the
        // allocation of a buffer, but not for kernels that have changed the buffer since.
        device.sync().expect("the device finishes its work");
        snapshot
    }

    /// Adds tensors that a checkpoint has beside the optimizer, f32 outside autodiff.
    pub(crate) fn with(mut self, more: BTreeMap<String, Tensor<2>>) -> Self {
        self.moments.extend(more);
        self
    }

    /// Writes the snapshot into the folder of an uncommitted checkpoint. Any thread may call this.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(&self.state).expect("plain fields serialise");
        let path = folder.join(STATE);
        fs::write(&path, text).map_err(TrainError::io(&path))?;
        for (file, tensors) in [(WEIGHTS, &self.weights), (OPTIMIZER, &self.moments)] {
            let path = folder.join(file);
            save(&path, tensors).map_err(TrainError::io(&path))?;
        }
        Ok(())
    }
}

/// Writes a safetensors file of f32 tensors, byte for byte as the crate would, with one piece of a tensor in
/// memory at a time.
fn save(path: &Path, tensors: &BTreeMap<String, Tensor<2>>) -> io::Result<()> {
    let mut end = 0;
    let infos = tensors.iter().map(|(name, tensor)| {
        let [rows, columns] = tensor.dims();
        let start = end;
        end += rows * columns * size_of::<f32>();
        let info = TensorInfo { dtype: Dtype::F32, shape: vec![rows, columns], data_offsets: (start, end) };
        (name.clone(), info)
    });
    let header = Metadata::new(None, infos.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for tensor in tensors.values() {
        let [rows, columns] = tensor.dims();
        let step = (PIECE / (columns * size_of::<f32>()).max(1)).max(1);
        for first in (0..rows).step_by(step) {
            let piece = tensor.clone().narrow(0, first, step.min(rows - first)).into_data();
            file.write_all(piece.as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use burn::tensor::TensorData;
    use sparktune_kernels::adamw::{AdamW, Clip, zeros_like};

    use super::*;
    use crate::saver::Saver;
    use crate::state::{read_optimizer, read_weights};

    /// Returns numbers that bf16 cannot represent.
    fn numbers(seed: usize, rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5).collect()
    }

    fn tensor(seed: usize, rows: usize, columns: usize, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(numbers(seed, rows, columns), [rows, columns]), device)
    }

    #[test]
    fn the_file_is_the_one_that_the_crate_writes() {
        let folder = tempfile::tempdir().unwrap();
        // One of the tensors is larger than a piece, with rows that do not divide it.
        let shapes = [("b", 3, 5), ("a.x", 1, 7), ("wide", 700, (PIECE / 4 / 600) | 1)];
        let all: Vec<(&str, Vec<f32>, [usize; 2])> = shapes
            .iter()
            .map(|(name, rows, columns)| (*name, numbers(1, *rows, *columns), [*rows, *columns]))
            .collect();
        let device = Device::flex();
        let tensors = all.iter().map(|(name, numbers, shape)| {
            ((*name).to_owned(), Tensor::from_data(TensorData::new(numbers.clone(), *shape), &device))
        });
        let path = folder.path().join("ours");
        save(&path, &tensors.collect()).unwrap();
        let views = all.iter().map(|(name, numbers, shape)| {
            let bytes = bytemuck::cast_slice(numbers);
            (*name, safetensors::tensor::TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
        });
        let theirs = safetensors::serialize(views, None).unwrap();
        assert!(theirs == fs::read(path).unwrap());
    }

    /// A matrix and a vector with their optimizer, trained for `steps` steps.
    struct Training {
        params: Vec<Param>,
        optimizer: Optimizer,
        step: u64,
    }

    impl Training {
        fn new(device: &Device) -> Self {
            let param = |name: &str, shape: &[usize]| {
                let mut param = Param::new(name, shape, numbers(3, shape.iter().product(), 1), device);
                param.set_trainable(true);
                param
            };
            let params = vec![param("matrix", &[24, 40]), param("vector", &[64])];
            Self { params, optimizer: Optimizer::default(), step: 0 }
        }

        fn step(&mut self, device: &Device) {
            self.step += 1;
            let adamw = AdamW {
                learning_rate: 1e-2,
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
                step: self.step,
            };
            let gradients = [tensor(self.step as usize, 24, 40, device), tensor(9, 1, 64, device)];
            let gradients = gradients.map(sparktune_kernels::packed);
            let clip = Clip::new(&gradients.iter().collect::<Vec<_>>(), 1.0);
            for (param, gradient) in self.params.iter_mut().zip(gradients) {
                let fresh = || (zeros_like(&gradient), zeros_like(&gradient));
                let moments = self.optimizer.moments.remove(param.name()).unwrap_or_else(fresh);
                let name = param.name().to_owned();
                param.update(|weights| {
                    let (weights, moments) = adamw.update(weights, moments, gradient, &clip);
                    self.optimizer.moments.insert(name, moments);
                    weights
                });
            }
        }

        /// Returns all weights and moments, on the host.
        fn numbers(&self) -> Vec<Vec<f32>> {
            let host = |tensor: &Tensor<2>| tensor.to_data().try_to_vec::<f32>().unwrap();
            let weights = self.params.iter().map(Param::to_vec);
            let moments = self.optimizer.moments.values().flat_map(|(m, v)| [host(m), host(v)]);
            weights.chain(moments).collect()
        }

        fn snapshot(&self, device: &Device) -> Snapshot {
            let params: Vec<&Param> = self.params.iter().collect();
            Snapshot::take(&State::start(), &params, &self.optimizer, device, false)
        }

        fn read(folder: &Path, device: &Device) -> Self {
            let mut read = Self::new(device);
            read_weights(folder, 2, &mut |f| read.params.iter_mut().for_each(&mut *f)).unwrap();
            read.optimizer = read_optimizer(folder, device, "").unwrap();
            read
        }
    }

    /// Delays the writer until training has taken more steps, several times. A thread that has read this
    /// training's memory before must not find older or newer numbers there.
    fn training_goes_on_beside_the_writer(device: &Device) {
        let folder = tempfile::tempdir().unwrap();
        let (go, goes) = channel::<()>();
        let at = folder.path().to_owned();
        let mut saver = Saver::start(move |snapshot| {
            goes.recv().unwrap();
            snapshot.write(&at)
        })
        .unwrap();
        let mut training = Training::new(device);
        training.step(device);
        for _ in 0..3 {
            let then = training.numbers();
            saver.save(training.snapshot(device));
            for _ in 0..3 {
                training.step(device);
            }
            assert!(saver.is_busy() && saver.outcome(Duration::ZERO).is_none(), "it is being written");
            let now = training.numbers();
            assert!(
                then.iter().zip(&now).all(|(then, now)| then != now),
                "every number was trained meanwhile"
            );
            go.send(()).unwrap();
            let outcome = loop {
                // This puts more work into the device's queue while the snapshot is read.
                training.step(device);
                if let Some(outcome) = saver.outcome(Duration::from_millis(1)) {
                    break outcome;
                }
            };
            outcome.unwrap();
            assert_eq!(Training::read(folder.path(), device).numbers(), then);
        }
    }

    #[test]
    fn training_goes_on_while_a_checkpoint_is_written_and_does_not_change_it() {
        training_goes_on_beside_the_writer(&Device::flex());
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn training_goes_on_while_a_checkpoint_is_written_on_device_too() {
        let Some(device) = sparktune_kernels::testing::cuda_device() else { return };
        training_goes_on_beside_the_writer(&device);
    }
}
