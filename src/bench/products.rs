//! How fast the CPU multiplies matrices in fp32, which bounds how fast it trains.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};

/// The rows and columns of the factors: those of a row of some hundred tokens in a model of this width.
const TOKENS: usize = 384;
const WIDTH: usize = 768;

/// Returns what products reach on all usable cores together, in FLOP/s: the fastest of those that fit into
/// `time`, and of two at least.
pub fn fastest(time: Duration) -> f64 {
    let device = Device::flex();
    let (tokens, weights) =
        (Tensor::<2>::ones([TOKENS, WIDTH], &device), Tensor::<2>::ones([WIDTH, WIDTH], &device));
    let product = || {
        let started = Instant::now();
        let _ = tokens.clone().matmul(weights.clone()).into_data();
        started.elapsed()
    };
    let began = Instant::now();
    let mut fastest = product().min(product());
    while began.elapsed() < time {
        fastest = fastest.min(product());
    }
    2.0 * (TOKENS * WIDTH * WIDTH) as f64 / fastest.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_found_even_without_time() {
        assert!(fastest(Duration::ZERO) > 1e6);
    }
}
