//! How fast the CPU multiplies matrices in fp32, which bounds how fast it trains, and how fast it reads
//! weights, which bounds how fast it writes text.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use sparktune_kernels::linear::by_row::logits_by_row;
use sparktune_kernels::linear::linear;
use sparktune_plan::CpuSpeed;

/// The rows and columns of the factors: those of a row of some hundred tokens in a model of this width.
const TOKENS: usize = 384;
const WIDTH: usize = 768;
/// The rows of a weight of this width that no cache holds: 100 MB.
const OUTPUTS: usize = 32_768;

/// Measures both on all usable cores together, each for half of `time`.
pub fn measure(time: Duration) -> CpuSpeed {
    let device = Device::flex();
    let ones = |rows: usize| Tensor::<2>::ones([rows, WIDTH], &device);
    let (tokens, weight) = (ones(TOKENS), ones(WIDTH));
    let multiplied_s = fastest(time / 2, || linear(tokens.clone(), weight.clone()));
    let (token, weight) = (ones(1), ones(OUTPUTS));
    let read_s = fastest(time / 2, || logits_by_row(token.clone(), weight.clone()));
    CpuSpeed {
        flops_per_s: 2.0 * (TOKENS * WIDTH * WIDTH) as f64 / multiplied_s,
        bytes_per_s: (size_of::<f32>() * OUTPUTS * WIDTH) as f64 / read_s,
    }
}

/// Returns the seconds of the fastest of those runs that fit into `time`, and of two at least.
fn fastest(time: Duration, work: impl Fn() -> Tensor<2>) -> f64 {
    let run = || {
        let started = Instant::now();
        let _ = work().into_data();
        started.elapsed()
    };
    let began = Instant::now();
    let mut fastest = run().min(run());
    while began.elapsed() < time {
        fastest = fastest.min(run());
    }
    fastest.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_found_even_without_time() {
        let CpuSpeed { flops_per_s, bytes_per_s } = measure(Duration::ZERO);
        assert!(flops_per_s > 1e6 && bytes_per_s > 1e6, "{flops_per_s:e} {bytes_per_s:e}");
    }
}
