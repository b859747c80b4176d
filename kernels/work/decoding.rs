//! The work of a decoding step: the launches that continue one example by a few tokens.

use super::{BF16, F32, Launch, moved};
use crate::largest::{MOST, SORTED};

/// Counts a linear layer on few rows, with an adapter of this rank, or 0 without one.
pub fn linear_by_row(rows: usize, inputs: usize, outputs: usize, rank: usize) -> Vec<Launch> {
    let [rows, inputs, outputs, rank] = [rows, inputs, outputs, rank].map(|size| size as f64);
    let (x, y) = (BF16 * rows * inputs, BF16 * rows * outputs);
    let inner = (rank > 0.0).then(|| moved(x + BF16 * rank * inputs + F32 * rows * rank));
    let layer = moved(x + BF16 * outputs * (inputs + rank) + F32 * rows * rank + y);
    inner.into_iter().chain([layer]).collect()
}

/// Counts the logits of few rows, in fp32.
pub fn logits_by_row(rows: usize, width: usize, vocabulary: usize) -> Launch {
    let [rows, width, vocabulary] = [rows, width, vocabulary].map(|size| size as f64);
    moved(BF16 * width * (rows + vocabulary) + F32 * rows * vocabulary)
}

/// Counts the choice of the [`MOST`] largest logits of few rows.
pub fn largest_logits(rows: usize, vocabulary: usize) -> Vec<Launch> {
    let (mut left, mut launches) = (vocabulary, Vec::new());
    let mut bytes_of_one = F32;
    loop {
        let groups = left.div_ceil(SORTED);
        launches.push(moved(rows as f64 * (bytes_of_one * left as f64 + 8.0 * (MOST * groups) as f64)));
        if groups <= 1 {
            return launches;
        }
        (left, bytes_of_one) = (MOST * groups, 8.0);
    }
}

/// Counts a step of the short convolution with four taps.
pub fn conv_steps(rows: usize, channels: usize) -> Launch {
    let [rows, channels] = [rows, channels].map(|size| size as f64);
    moved(BF16 * channels * (2.0 * rows + 4.0 + 2.0 * 3.0))
}

/// Counts steps of the delta rule with heads of `d` keys and values.
pub fn delta_rule_steps(rows: usize, key_heads: usize, value_heads: usize, d: usize) -> Launch {
    let [rows, nk, nv, d] = [rows, key_heads, value_heads, d].map(|size| size as f64);
    moved(2.0 * F32 * nv * d * d + rows * (2.0 * BF16 * (nk + nv) * d + 2.0 * F32 * nv))
}

/// Counts attention of `queries` over `keys` cached tokens, after they were appended, with heads of width
/// `d`.
pub fn cached_attention(
    queries: usize,
    keys: usize,
    q_heads: usize,
    kv_heads: usize,
    d: usize,
) -> Vec<Launch> {
    let splits = keys.div_ceil(128) as f64;
    let [queries, keys, q_heads, kv_heads, d] = [queries, keys, q_heads, kv_heads, d].map(|size| size as f64);
    let (q, new) = (BF16 * queries * q_heads * d, BF16 * queries * kv_heads * d);
    let parts = F32 * splits * queries * q_heads * (d + 2.0);
    vec![moved(4.0 * new), moved(q + 2.0 * BF16 * keys * kv_heads * d + parts), moved(parts + q)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights that are read once are the floor of a token. NOTES.md, "Decoding", has the figures.
    #[test]
    fn a_token_of_the_2b_moves_little_beside_its_weights() {
        let bytes = |launches: &[Launch]| launches.iter().map(|launch| launch.bytes).sum::<f64>();
        let (hidden, inner, vocabulary) = (2048, 6144, 248_320);
        let linears = |shapes: &[(usize, usize)], rank| {
            shapes
                .iter()
                .flat_map(|(inputs, outputs)| linear_by_row(1, *inputs, *outputs, rank))
                .collect::<Vec<_>>()
        };
        let weights = |shapes: &[(usize, usize)]| {
            shapes.iter().map(|(inputs, outputs)| BF16 * (inputs * outputs) as f64).sum::<f64>()
        };
        let mlp = [(hidden, inner), (hidden, inner), (inner, hidden)];
        let delta = [(hidden, 6144), (hidden, 2048), (hidden, 16), (hidden, 16), (2048, hidden)];
        let attention = [(hidden, 4096), (hidden, 512), (hidden, 512), (2048, hidden)];
        let floor = 24.0 * weights(&mlp)
            + 18.0 * weights(&delta)
            + 6.0 * weights(&attention)
            + BF16 * (hidden * vocabulary) as f64;
        let step = |rank, keys| {
            let of_delta = bytes(&linears(&delta, rank))
                + conv_steps(1, 6144).bytes
                + delta_rule_steps(1, 16, 16, 128).bytes;
            let of_attention =
                bytes(&linears(&attention, rank)) + bytes(&cached_attention(1, keys, 8, 2, 256));
            // Norms, gates and sums of a layer, generously.
            let small = 24.0 * 40.0 * BF16 * hidden as f64;
            24.0 * bytes(&linears(&mlp, rank))
                + 18.0 * of_delta
                + 6.0 * of_attention
                + logits_by_row(1, hidden, vocabulary).bytes
                + bytes(&largest_logits(1, vocabulary))
                + small
        };
        let share = |rank, keys| (1000.0 * floor / step(rank, keys)).round() / 10.0;
        assert_eq!([share(0, 1024), share(32, 1024), share(32, 32_768)], [98.4, 96.6, 87.3]);
    }
}
