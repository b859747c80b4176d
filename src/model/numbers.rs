//! Conversion of stored numbers, and generated numbers.

use half::{bf16, f16};
use safetensors::Dtype;
use sparktune_base::random::{GAMMA, SplitMix64};

/// Converts little-endian bytes of a float type to numbers; `None` for other types.
pub(crate) fn widen(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => return None,
    })
}

/// Converts numbers to little-endian bytes of a float type, rounded to nearest even; `None` for other types.
pub(crate) fn narrow(numbers: &[f32], dtype: Dtype) -> Option<Vec<u8>> {
    Some(match dtype {
        Dtype::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::BF16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::F16 => numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => return None,
    })
}

/// Returns a hash of a name that never changes: FNV-1a.
pub(crate) fn hash_of(name: &str) -> u64 {
    name.bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// Returns numbers uniform in `(-bound, bound)` that depend only on name and seed: splitmix64 from an FNV-1a
/// hash of the name.
///
/// All processors share the work: a random model of 27 billion numbers would take one of them minutes.
pub(crate) fn uniform(name: &str, seed: u64, count: usize, bound: f64) -> Vec<f32> {
    const LEAST: usize = 1 << 20;
    let state = hash_of(name) ^ seed.wrapping_mul(GAMMA);
    let fill = |first: usize, part: &mut [f32]| {
        let mut random = SplitMix64::new(state.wrapping_add(GAMMA.wrapping_mul(first as u64)));
        part.iter_mut().for_each(|x| *x = ((random.next_f64() * 2.0 - 1.0) * bound) as f32);
    };
    let mut numbers = vec![0.0; count];
    if count <= LEAST {
        fill(0, &mut numbers);
        return numbers;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let size = count.div_ceil(threads).max(LEAST);
    std::thread::scope(|scope| {
        for (place, part) in numbers.chunks_mut(size).enumerate() {
            scope.spawn(move || fill(place * size, part));
        }
    });
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_depend_on_how_many_threads_make_them() {
        let (count, mut random) = ((3 << 20) + 5, SplitMix64::new(hash_of("a") ^ 7u64.wrapping_mul(GAMMA)));
        let one_by_one: Vec<f32> =
            (0..count).map(|_| ((random.next_f64() * 2.0 - 1.0) * 0.5) as f32).collect();
        assert_eq!(uniform("a", 7, count, 0.5), one_by_one);
    }
}
