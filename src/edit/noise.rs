//! Random numbers of the normal distribution.

use sparktune_base::random::SplitMix64;

/// Returns a number of the standard normal distribution, by Box and Muller.
pub(crate) fn normal(random: &mut SplitMix64) -> f64 {
    let (one, other) = (1.0 - random.next_f64(), random.next_f64());
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_is_normal() {
        let mut random = SplitMix64::new(3);
        let numbers: Vec<f64> = (0..20_000).map(|_| normal(&mut random)).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let square = numbers.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.04, "{mean} {square}");
    }
}
