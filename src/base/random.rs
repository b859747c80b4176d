//! Random numbers that never change.
//!
//! A library's generator may change with its version, and would then change the batches of a resumed run or
//! the weights of a test. The sequence is SplitMix64 (Steele, Lea, Flood 2014); numbers below a bound are
//! drawn by multiplication with rejection (Lemire 2019); permutations are Fisher–Yates from the end.

/// The step of the sequence's state: 2⁶⁴ divided by the golden ratio.
pub const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sequence of random numbers, determined by its state.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence at a state: the seed.
    pub fn new(state: u64) -> Self {
        Self(state)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Uniform in `0..1`, with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        let reject_below = bound.wrapping_neg() % bound;
        loop {
            let product = (self.next_u64() >> 32) * u64::from(bound);
            if product as u32 >= reject_below {
                return (product >> 32) as u32;
            }
        }
    }

    /// The numbers `0..len` in random order.
    pub fn permutation(&mut self, len: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..len).collect();
        for last in (1..len).rev() {
            order.swap(last as usize, self.below(last + 1) as usize);
        }
        order
    }
}

/// The random bits that belong to a state.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_the_published_sequence() {
        let mut rng = SplitMix64::new(1_234_567);
        let sequence = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], sequence);
    }
}
