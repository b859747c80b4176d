//! Adds up what the switch measures of each rank's contribution.

use crate::collective::Measured;
use crate::xdp::quantise::step;
use crate::xdp::wire::{MOST_WORKERS, SQUARES_SHIFT, Squares, VALUES};

/// What was measured since it was asked for.
pub(super) struct Measuring {
    pub(super) squares: [f64; MOST_WORKERS],
    peaks: [f64; MOST_WORKERS],
    /// The squared steps of all blocks, added.
    steps: f64,
}

impl Measuring {
    pub(super) const NOTHING: Self =
        Self { squares: [0.0; MOST_WORKERS], peaks: [0.0; MOST_WORKERS], steps: 0.0 };

    /// Adds a block with the magnitude that the ranks have agreed on.
    pub(super) fn add(&mut self, magnitude: f32, workers: usize, of_block: &Squares) {
        let step = if magnitude.is_finite() { step(magnitude, workers) } else { f64::NAN };
        let unit = step * step;
        self.steps += unit;
        let unit = unit * f64::from(1_u32 << SQUARES_SHIFT);
        self.squares.iter_mut().zip(of_block).for_each(|(sum, squares)| *sum += f64::from(*squares) * unit);
    }

    /// Adds the squared largest magnitudes that a rank has said.
    pub(super) fn said(&mut self, rank: usize, magnitudes: impl Iterator<Item = f32>) {
        self.peaks[rank] += magnitudes.map(|magnitude| f64::from(magnitude).powi(2)).sum::<f64>();
    }

    pub(super) fn measured(&self, workers: usize) -> Measured {
        // Each number is off by half a step at most, and a sum of squares lacks its lowest bits.
        let of_block = (VALUES as f64).sqrt() / 2.0 + f64::from(1_u32 << SQUARES_SHIFT).sqrt();
        let [squares, peaks] = [self.squares, self.peaks].map(|all| all[..workers].to_vec());
        Measured { squares, peaks, rounding: self.steps.sqrt() * of_block }
    }
}
