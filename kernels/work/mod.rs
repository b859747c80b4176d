//! The work of the ops on a CUDA device, launch by launch: the bytes that the kernels move from and to
//! memory, and their FLOPs on the tensor cores.
//!
//! It is counted from the sources (`NOTES.md`); nothing is measured. A number that is read again while it is
//! in L2 counts once. Enters: sizes. Leaves: [`Work`], which `bench` compares times with, and from which the
//! time of a training step is predicted. Neither a device nor the feature `cuda` is needed.

pub mod decoding;

use crate::linear_cross_entropy::Slabs;

/// One launch of a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Launch {
    /// The number of bytes read and written.
    pub bytes: f64,
    /// FLOPs of the tensor cores; a multiply-add counts as two.
    pub flops: f64,
}

/// The launches of an op's two passes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Work {
    /// The launches of the forward pass.
    pub forward: Vec<Launch>,
    /// The launches of the backward pass.
    pub backward: Vec<Launch>,
}

/// The peak rates of a device.
#[derive(Debug, Clone, Copy)]
pub struct Ceilings {
    /// Bytes per second, read and written.
    pub bytes_per_s: f64,
    /// bf16 FLOPs per second.
    pub flops_per_s: f64,
}

impl Ceilings {
    /// Returns the shortest time in seconds for this many bytes and FLOPs, which overlap.
    pub fn floor_s(&self, bytes: f64, flops: f64) -> f64 {
        (bytes / self.bytes_per_s).max(flops / self.flops_per_s)
    }

    /// Returns the shortest time in seconds of these launches in sequence.
    pub fn floors_s(&self, launches: &[Launch]) -> f64 {
        launches.iter().map(|launch| self.floor_s(launch.bytes, launch.flops)).sum()
    }
}

/// Returns the FLOPs of these launches.
pub fn flops(launches: &[Launch]) -> f64 {
    launches.iter().map(|launch| launch.flops).sum()
}

fn moved(bytes: f64) -> Launch {
    Launch { bytes, flops: 0.0 }
}

const BF16: f64 = 2.0;
const F32: f64 = 4.0;
/// The bytes of an fp32 sum that is read, added to and written.
const ADDED: f64 = 8.0;
/// The number of rows in a tile of `device/gemm.cuh`.
const TILE: usize = 128;
/// The number of bytes of an operand that L2 keeps while the other one is streamed.
const KEPT: usize = 8 << 20;

/// Returns the number of tile rows that are computed together, as in `Tile::group`: as many as [`KEPT`] can
/// hold rows of A for.
fn group(k: usize) -> usize {
    (KEPT / (2 * TILE * k.max(1))).clamp(8, 16)
}

/// Counts `C [m, n] = A [m, k] · B [k, n]`, with `result` bytes for each number of C. A is read once; B is
/// read again for each group of A's rows unless L2 keeps it. If `k` is split, the parts are not counted,
/// because such results are small.
pub fn product(m: usize, n: usize, k: usize, result: f64) -> Launch {
    let readings = if 2 * n * k <= KEPT { 1 } else { m.div_ceil(TILE).div_ceil(group(k)) };
    let [m, n, k] = [m, n, k].map(|size| size as f64);
    Launch { bytes: BF16 * (m * k + n * k * readings as f64) + result * m * n, flops: 2.0 * m * n * k }
}

/// Counts layers with these `outputs` on the same input: one product each, and the input's gradient in one
/// pass over all.
pub fn linears(tokens: usize, width: usize, outputs: &[usize]) -> Work {
    Work {
        forward: outputs.iter().map(|out| product(tokens, *out, width, BF16)).collect(),
        backward: vec![product(tokens, width, outputs.iter().sum(), BF16)],
    }
}

/// Counts up's result where the same launch reads gate and writes `silu(gate) ⊙ up`, the hidden state, which
/// is `width` wide; `depth` counts up's input and rank.
pub fn gated_forward(tokens: usize, width: usize, depth: usize) -> Launch {
    let product = product(tokens, width, depth, BF16);
    Launch { bytes: product.bytes + 2.0 * BF16 * (tokens * width) as f64, ..product }
}

/// Counts the input's gradient of one layer whose input is `silu(gate) ⊙ up`, where the same launch makes the
/// gradients of gate and up of it: they are read and written instead of it. `depth` counts outputs and rank.
pub fn gated_backward(tokens: usize, width: usize, depth: usize) -> Launch {
    let product = product(tokens, width, depth, 0.0);
    Launch { bytes: product.bytes + 4.0 * BF16 * (tokens * width) as f64, ..product }
}

/// Counts the gradients of their weights in fp32; `added` if they are added to those of earlier
/// micro-batches.
pub fn weight_gradients(tokens: usize, width: usize, outputs: &[usize], added: bool) -> Work {
    let result = if added { ADDED } else { F32 };
    let backward = outputs.iter().map(|out| product(*out, width, tokens, result)).collect();
    Work { forward: Vec::new(), backward }
}

/// Like [`linears`], where each layer, given by its outputs and a rank, has an adapter in the same pass.
pub fn lora_linears(tokens: usize, width: usize, layers: &[(usize, usize)]) -> Work {
    let depth = layers.iter().map(|(out, rank)| out + rank).sum();
    Work {
        forward: layers.iter().map(|(out, rank)| product(tokens, *out, width + rank, BF16)).collect(),
        backward: vec![product(tokens, width, depth, BF16)],
    }
}

/// Counts what dropout adds to adapters on one input: the masked copy of the input for each of them, forward
/// and again backward, and one pass that adds the gradients of these copies.
pub fn dropout(tokens: usize, width: usize, adapters: usize) -> Work {
    let numbers = (tokens * width) as f64;
    let copies = || (0..adapters).map(|_| moved(2.0 * BF16 * numbers));
    let sum = moved((adapters as f64 + 2.0) * BF16 * numbers);
    Work { forward: copies().collect(), backward: copies().chain([sum]).collect() }
}

/// Counts the small products of their adapters: with all A concatenated `u = x Aᵀ` forward; `d_u = d_y B`,
/// `d_A` and `d_B` backward, `added` if they are added to those of earlier micro-batches.
pub fn adapters(tokens: usize, width: usize, layers: &[(usize, usize)], added: bool) -> Work {
    let result = if added { ADDED } else { F32 };
    let ranks: usize = layers.iter().map(|(_, rank)| rank).sum();
    let stack = (layers.len() > 1).then(|| moved(2.0 * BF16 * (ranks * width) as f64));
    let d_u = layers.iter().map(|(out, rank)| product(tokens, *rank, *out, BF16));
    let d_a = product(ranks, width, tokens, result);
    let d_b = layers.iter().map(|(out, rank)| product(*out, *rank, tokens, result));
    Work {
        forward: stack.into_iter().chain([product(tokens, ranks, width, BF16)]).collect(),
        backward: d_u.chain([d_a]).chain(d_b).collect(),
    }
}

/// Counts head and cross-entropy over `targets` of a row's `tokens`, all of which runs in the forward pass.
/// The gradient of a `trained` head is `added` to the sum of earlier micro-batches in a separate pass.
pub fn head(
    [tokens, targets]: [usize; 2],
    hidden: usize,
    vocabulary: usize,
    trained: bool,
    added: bool,
) -> Work {
    let Slabs { rows, width } = Slabs::new(targets, hidden, vocabulary, trained);
    let table = (vocabulary * hidden) as f64;
    let mut forward = Vec::new();
    for first in (0..targets).step_by(rows) {
        let rows = rows.min(targets - first);
        let of_rows = (rows * hidden) as f64;
        // This gathers the rows, and the rows of the weight for their targets.
        forward.push(moved(3.0 * BF16 * of_rows));
        for first_column in (0..vocabulary).step_by(width) {
            let width = width.min(vocabulary - first_column);
            let (logits, slab) = ((rows * width) as f64, (width * hidden) as f64);
            // There are eight bytes for every 64 logits.
            let statistics = logits / 8.0;
            let mut of_logits = product(rows, width, hidden, BF16);
            of_logits.bytes += statistics;
            // With 96 resident blocks, `e` is read one and a half times, and the weight once for eight tiles
            // of rows.
            let readings = (rows as f64 / (8 * TILE) as f64).max(1.0);
            let sum = if first_column > 0 { ADDED } else { F32 };
            let d_x = Launch {
                bytes: 1.5 * BF16 * logits + readings * BF16 * slab + sum * of_rows,
                flops: of_logits.flops,
            };
            forward.extend([of_logits, moved(statistics), d_x]);
        }
        forward.push(moved((F32 + BF16) * of_rows));
        if trained {
            forward.push(moved(2.0 * BF16 * of_rows));
            let sum = if first > 0 { ADDED } else { F32 };
            let bytes = BF16 * (rows * vocabulary) as f64 + BF16 * of_rows + sum * table;
            forward.push(Launch { bytes, flops: 2.0 * rows as f64 * table });
        }
    }
    // The gradient of rows without a target is filled with zeros.
    forward.push(moved(BF16 * ((tokens - targets) * hidden) as f64));
    let sum = (trained && added).then(|| moved(3.0 * F32 * table));
    Work { forward, backward: sum.into_iter().collect() }
}

/// Counts the lookup of embeddings. The gradient of a `trained` table is added to once for each of `distinct`
/// ids.
pub fn embedding(tokens: usize, width: usize, distinct: usize, trained: bool) -> Work {
    let rows = (tokens * width) as f64;
    let gradient = trained.then(|| moved(BF16 * rows + ADDED * (distinct * width) as f64));
    Work { forward: vec![moved(2.0 * BF16 * rows)], backward: gradient.into_iter().collect() }
}

/// Tokens of a chunk of the delta rule.
const CHUNK: f64 = 64.0;

/// Counts the gated delta rule with heads of `d` keys and values.
pub fn gated_delta_rule(tokens: usize, key_heads: usize, value_heads: usize, d: usize) -> Work {
    let [tokens, nk, nv, d] = [tokens, key_heads, value_heads, d].map(|size| size as f64);
    // Bytes of a token: q, or k; v, or anything of its width; T, or P; the states; gate sums and norms.
    let (keys, values, matrix) = (BF16 * nk * d, BF16 * nv * d, BF16 * nv * CHUNK);
    let (states, gates, norms) = (BF16 * nv * d * d / CHUNK, F32 * nv, 2.0 * F32 * nk);
    let scalars = gates + norms;
    // Multiply-adds of a token for one head: with a state, and with a chunk.
    let (state, chunk) = (d * d, CHUNK * d);
    let launch = |bytes: f64, multiply_adds: f64| Launch {
        bytes: tokens * bytes,
        flops: tokens * 2.0 * multiply_adds,
    };
    Work {
        forward: vec![
            launch(2.0 * keys + 2.0 * gates + 2.0 * matrix + scalars, nk * 2.0 * chunk),
            launch(2.0 * keys + 2.0 * values + 2.0 * matrix + scalars, nv * (3.0 * state + 2.0 * chunk)),
        ],
        // Factors that are split in two parts are multiplied twice, two such factors four times.
        backward: vec![
            launch(keys + 2.0 * values + matrix + scalars + states, nv * (2.0 * state + chunk)),
            launch(
                2.0 * keys + 2.0 * values + 2.0 * matrix + scalars + states,
                nv * (3.0 * state + 6.0 * chunk),
            ),
            launch(
                4.0 * keys + 3.0 * values + scalars + 2.0 * states + 3.0 * gates,
                nv * (3.0 * state + 10.0 * chunk),
            ),
        ],
    }
}

/// Counts causal attention, where a token is in an example of `length`. Backward computes eight products
/// instead of the two of forward, or seven for heads of up to 128 numbers.
pub fn packed_attention(tokens: usize, length: f64, heads: usize, kv_heads: usize, d: usize) -> Work {
    let rows = tokens as f64;
    let (queries, keys, scalars) =
        (BF16 * (heads * d) as f64, BF16 * (kv_heads * d) as f64, F32 * heads as f64);
    // Only Q Kᵀ, with half of the context on average.
    let product = (heads * d) as f64 * length;
    let launch = |bytes: f64, products: f64| Launch { bytes: rows * bytes, flops: rows * products * product };
    let products = if d > 128 { 8.0 } else { 7.0 };
    Work {
        forward: vec![launch(2.0 * queries + 2.0 * keys + scalars, 2.0)],
        backward: vec![
            launch(2.0 * queries + scalars, 0.0),
            launch(3.0 * queries + 4.0 * keys + 2.0 * scalars, products),
        ],
    }
}

/// The number of tokens that a thread of the convolution processes; it reads three more forward and six more
/// backward.
const RUN: f64 = 64.0;

/// Counts the convolution of four taps and silu.
pub fn causal_conv1d_silu(tokens: usize, channels: usize) -> Work {
    let once = BF16 * (tokens * channels) as f64;
    Work {
        forward: vec![moved(once * (2.0 + 3.0 / RUN))],
        backward: vec![moved(once * (3.0 + 2.0 * 6.0 / RUN))],
    }
}

/// Counts one pass in each direction over this many matrices of `count` bf16 numbers.
fn streams(count: usize, forward: f64, backward: f64) -> Work {
    let pass = |matrices: f64| (matrices > 0.0).then(|| moved(matrices * BF16 * count as f64));
    Work { forward: pass(forward).into_iter().collect(), backward: pass(backward).into_iter().collect() }
}

/// Counts `silu(gate) · up`.
pub fn silu_mul(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 3.0, 5.0)
}

/// Counts `gelu(gate) · up`.
pub fn gelu_mul(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 3.0, 5.0)
}

/// Counts RMSNorm.
pub fn rms_norm(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 2.0, 3.0)
}

/// Counts RMSNorm of a sum, which is a result too.
pub fn add_rms_norm(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 4.0, 4.0)
}

/// Counts RMSNorm times `silu` of a gate.
pub fn gated_rms_norm(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 3.0, 5.0)
}

/// Counts RMSNorm and rotation of each head, read from the projection's output. With `joint`, the output also
/// contains gates, whose gradient is written too.
pub fn norm_rope(tokens: usize, width: usize, joint: bool) -> Work {
    streams(tokens * width, 2.0, if joint { 4.0 } else { 3.0 })
}

/// Counts rotation alone.
pub fn rope(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 2.0, 2.0)
}

/// Counts attention's result times `sigmoid` of its gates; the gradient of the joint projection is twice as
/// wide.
pub fn sigmoid_gate(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 3.0, 6.0)
}

/// Counts the sum of the two gradients of a value that is used twice.
pub fn add_gradients(tokens: usize, width: usize) -> Work {
    streams(tokens * width, 0.0, 3.0)
}

/// Counts log decay and write strength from `a` and `b`, bf16 to fp32.
pub fn delta_gates(tokens: usize, heads: usize) -> Work {
    let count = (tokens * heads) as f64;
    let forward = 2.0 * (BF16 + F32) * count;
    Work { forward: vec![moved(forward)], backward: vec![moved(forward + 2.0 * BF16 * count)] }
}

/// Counts the seed of a backward pass: a product and its sum in fp32, and the gradient as it was kept.
pub fn seed_gradient(tokens: usize, width: usize) -> Work {
    let count = (tokens * width) as f64;
    let casts = moved(2.0 * (BF16 + F32) * count);
    Work {
        forward: vec![casts, moved(3.0 * F32 * count), moved(F32 * count)],
        backward: vec![Launch::default()],
    }
}

/// Counts AdamW for this many parameters: gradient read, master and moments read and written, the bf16 copy
/// written.
pub fn adamw(parameters: f64) -> Launch {
    moved((F32 + 3.0 * ADDED + BF16) * parameters)
}

/// Counts the norm for clipping gradients.
pub fn clip(parameters: f64) -> Launch {
    moved(F32 * parameters)
}

/// Counts the addition of a gradient to the sum.
pub fn accumulate(parameters: f64) -> Launch {
    moved(3.0 * F32 * parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(launches: &[Launch]) -> f64 {
        launches.iter().map(|launch| launch.bytes).sum()
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found:e} is not {expected:e}");
    }

    #[test]
    fn a_floor_is_the_longer_of_moving_and_computing() {
        let ceilings = Ceilings { bytes_per_s: 1e12, flops_per_s: 1e14 };
        assert_eq!(ceilings.floor_s(2e9, 0.0), 2e-3);
        assert_eq!(ceilings.floor_s(2e9, 1e12), 1e-2);
        // They run in sequence, so the idle resources of one do not help the other.
        let launches = [Launch { bytes: 2e9, flops: 0.0 }, Launch { bytes: 0.0, flops: 1e12 }];
        assert_eq!(ceilings.floors_s(&launches), 1.2e-2);
    }

    /// The figures of NOTES.md, "Floors": bytes per token and layer of the 2B.
    #[test]
    fn a_layer_of_the_2b_moves_what_the_notes_say() {
        let each = |work: Work, forward: f64, backward: f64| {
            close(bytes(&work.forward), 1e3 * forward);
            close(bytes(&work.backward), 1e3 * backward);
        };
        each(silu_mul(1, 6144), 36.9, 61.4);
        each(add_rms_norm(1, 2048), 16.4, 16.4);
        each(gated_rms_norm(1, 2048), 12.3, 20.5);
        each(gated_delta_rule(1, 16, 16, 128), 33.1, 96.3);
        each(causal_conv1d_silu(1, 6144), 24.6 + 0.6, 36.9 + 2.3);
        each(packed_attention(1, 3000.0, 8, 2, 256), 10.3, 24.6);
        each(sigmoid_gate(1, 2048), 12.3, 24.6);
        let attention = packed_attention(1, 3000.0, 8, 2, 256);
        close(flops(&attention.forward), 12.3e6);
        close(flops(&attention.backward), 49.2e6);
    }

    #[test]
    fn products_read_the_second_operand_once_for_each_group_of_rows() {
        // NOTES.md: 97 MB for 5,376 × 6,144 at k = 2048, and the result.
        let wide = product(5376, 6144, 2048, BF16);
        close(wide.bytes, 97e6 + 2.0 * 5376.0 * 6144.0);
        close(wide.flops, 135.3e9);
        // What L2 keeps is read once: u of three layers takes 4.1 KB a token and 0.26 a layer.
        let u = adapters(5376, 2048, &[4096, 512, 512].map(|out| (out, 128)), false).forward[1];
        close(u.bytes, 5376.0 * (4096.0 + 3.0 * 256.0) + 2.0 * 3.0 * 128.0 * 2048.0);
    }

    #[test]
    fn a_full_pack_of_the_2b_head_moves_what_the_notes_say() {
        let frozen = head([5376; 2], 2048, 248_320, false, false);
        let product = 2.0 * 5376.0 * 2048.0 * 248_320.0;
        close(flops(&frozen.forward), 2.0 * product);
        // Logits 6.0 GB, rows 0.17, d_x 9.9, start and finish 0.2.
        close(bytes(&frozen.forward), 16.3e9);
        let trained = head([5376; 2], 2048, 248_320, true, true);
        close(flops(&trained.forward), 3.0 * product);
        // d_W and `e` 8.8 GB, and about what a frozen weight takes.
        close(bytes(&trained.forward), 25.5e9);
        assert_eq!(bytes(&trained.backward), 12.0 * 2048.0 * 248_320.0);
        let half = head([5376, 2688], 2048, 248_320, true, false);
        close(flops(&half.forward), 1.5 * product);
        assert!(half.backward.is_empty());
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn groups_are_those_of_the_tiles() {
        for k in [128, 2048, 4096, 6144, 12_288] {
            assert_eq!(group(k), crate::linear::tile::WIDE[0].group(k) as usize, "{k}");
        }
    }
}
