//! What is kept of the gradients of a training, and its file: numbers in double precision, little-endian.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use sparktune_cluster::sentry::{Contribution, Summary, WIDTH};

use crate::error::BenchError;

/// The first number of a file.
const MAGIC: f64 = 0x5e27_0001 as f64;

/// The gradients of the micro-batches of one step, all from the same weights.
pub(crate) struct Step {
    /// The mean loss per trained token.
    pub(crate) loss: f64,
    /// The trained tokens of each.
    pub(crate) terms: Vec<u64>,
    /// The inner products of all pairs.
    pub(crate) products: Vec<f64>,
    /// The projection of each, and of a vector of ones.
    pub(crate) sketches: Vec<Vec<f64>>,
}

/// The steps of a training.
pub(crate) struct Recording {
    pub(crate) parameters: u64,
    /// The honest micro-batches of a step. Those after them are the first of them with wrong labels.
    pub(crate) honest: usize,
    pub(crate) wrong: usize,
    pub(crate) steps: Vec<Step>,
}

impl Recording {
    fn gradients(&self) -> usize {
        self.honest + self.wrong
    }

    /// Returns the largest ratio of the norm of a step's gradient to that of the step before: how high the
    /// spikes are. `None` if there is only one step.
    pub(crate) fn largest_rise(&self) -> Option<f64> {
        let honest: Vec<usize> = (0..self.honest).collect();
        let norm = |step: &Step| {
            let all = step.share(&honest);
            all.summary.norm() / all.terms as f64
        };
        let norms: Vec<f64> = self.steps.iter().map(norm).collect();
        norms.windows(2).map(|pair| pair[1] / pair[0]).reduce(f64::max)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), BenchError> {
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            let mut put =
                |numbers: &[f64]| numbers.iter().try_for_each(|number| file.write_all(&number.to_le_bytes()));
            put(&[MAGIC, self.parameters as f64, self.honest as f64, self.wrong as f64, WIDTH as f64])?;
            for step in &self.steps {
                put(&[step.loss])?;
                put(&step.terms.iter().map(|terms| *terms as f64).collect::<Vec<_>>())?;
                put(&step.products)?;
                step.sketches.iter().try_for_each(|sketch| put(sketch))?;
            }
            file.flush()
        };
        write().map_err(BenchError::io("write", path))
    }

    pub(crate) fn read(path: &Path) -> Result<Self, BenchError> {
        let bytes = std::fs::read(path).map_err(BenchError::io("read", path))?;
        let foreign = || BenchError::NoRecording { path: path.to_owned() };
        let mut numbers =
            bytes.chunks_exact(8).map(|eight| f64::from_le_bytes(eight.try_into().expect("eight bytes")));
        let mut take = |count: usize| numbers.by_ref().take(count).collect::<Vec<f64>>();
        let head = take(5);
        let [magic, parameters, honest, wrong, width] = head[..] else { return Err(foreign()) };
        if magic != MAGIC || width != WIDTH as f64 || !(3.0..1e4).contains(&honest) || wrong > honest {
            return Err(foreign());
        }
        let mut recording = Self {
            parameters: parameters as u64,
            honest: honest as usize,
            wrong: wrong as usize,
            steps: Vec::new(),
        };
        let count = recording.gradients();
        loop {
            let loss = take(1);
            let Some(loss) = loss.first() else { break };
            let terms: Vec<u64> = take(count).into_iter().map(|terms| terms as u64).collect();
            let products = take(count * count);
            let sketches: Vec<Vec<f64>> = (0..=count).map(|_| take(WIDTH)).collect();
            if sketches.iter().any(|sketch| sketch.len() != WIDTH) {
                return Err(foreign());
            }
            recording.steps.push(Step { loss: *loss, terms, products, sketches });
        }
        if recording.steps.is_empty() { Err(foreign()) } else { Ok(recording) }
    }
}

impl Step {
    /// Returns what a rank contributes that has computed these micro-batches: their sum.
    pub(crate) fn share(&self, of: &[usize]) -> Contribution {
        let count = self.terms.len();
        let squares: f64 = of
            .iter()
            .flat_map(|one| of.iter().map(move |other| one * count + other))
            .map(|pair| self.products[pair])
            .sum();
        let mut sums = vec![0.0; WIDTH];
        for one in of {
            sums.iter_mut().zip(&self.sketches[*one]).for_each(|(sum, value)| *sum += value);
        }
        let terms = of.iter().map(|one| self.terms[*one]).sum();
        Contribution { terms, summary: summary(squares, &sums) }
    }

    /// Returns the projection of a vector of ones, whose squared norm is the number of parameters.
    pub(crate) fn ones(&self, parameters: u64) -> Summary {
        summary(parameters as f64, &self.sketches[self.terms.len()])
    }
}

/// Puts a summary together from its numbers.
fn summary(squares: f64, sums: &[f64]) -> Summary {
    let bytes: Vec<u8> =
        std::iter::once(&squares.max(0.0)).chain(sums).flat_map(|number| number.to_le_bytes()).collect();
    Summary::parse(&bytes).expect("as many numbers as a summary has")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step whose gradients are one number each.
    fn step(gradients: [f64; 4], terms: u64) -> Step {
        let products = gradients.iter().flat_map(|one| gradients.map(|other| one * other)).collect();
        Step { loss: 1.0, terms: vec![terms; 4], products, sketches: vec![vec![0.0; WIDTH]; 5] }
    }

    #[test]
    fn the_largest_rise_is_that_of_the_honest_gradients_per_trained_token() {
        // The last gradient of each is one of wrong labels. The second step has twice the tokens.
        let calm = || vec![step([1.0, 1.0, 1.0, 9.0], 1), step([2.0, 2.0, 2.0, 99.0], 2)];
        let recording = |steps: Vec<Step>| Recording { parameters: 1, honest: 3, wrong: 1, steps };
        assert_eq!(recording(calm()).largest_rise(), Some(1.0));
        let mut steps = calm();
        steps.extend([step([5.0, 5.0, 5.0, 0.0], 1), step([1.0, 1.0, 1.0, 0.0], 1)]);
        assert_eq!(recording(steps).largest_rise(), Some(5.0));
        assert_eq!(recording(calm().split_off(1)).largest_rise(), None);
    }
}
