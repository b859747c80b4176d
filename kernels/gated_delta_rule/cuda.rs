//! Launches of the delta rule's kernels; `gated_delta_rule.cuh` describes each of them.

use burn::tensor::DType;
use cubecl::server::Handle;

use super::{Dims, GatedDeltaRule};
use crate::Table;
use crate::cuda::examples::continued;
use crate::cuda::{CudaTensor, Kernel, OnCuda, Sizes, as_bf16, as_f32, dims, empty, empty_like, sizes};

/// Tokens of a chunk.
const CHUNK: usize = 64;
/// The largest number of columns of the state per block.
const SLICE: usize = 64;

/// The chunks of a packed row.
struct Chunks {
    /// First token and number of tokens of each chunk.
    chunks: Table<[u32; 2]>,
    /// First chunk and number of chunks of each example, the longest first.
    segments: Table<[u32; 2]>,
}

impl Chunks {
    fn new(cu_seqlens: &[u32]) -> Self {
        let (mut chunks, mut segments) = (Vec::new(), Vec::new());
        for border in cu_seqlens.windows(2).filter(|border| border[0] < border[1]) {
            let first_chunk = chunks.len() as u32;
            for first in (border[0]..border[1]).step_by(CHUNK) {
                chunks.push([first, (border[1] - first).min(CHUNK as u32)]);
            }
            segments.push([first_chunk, chunks.len() as u32 - first_chunk]);
        }
        segments.sort_by_key(|[_, chunks]| std::cmp::Reverse(*chunks));
        Self { chunks: chunks.into(), segments: segments.into() }
    }
}

/// A row's chunks on the device, and the arguments that all kernels share.
struct Launches {
    dims: Dims,
    chunks: usize,
    segments: usize,
    chunk_table: Handle,
    segment_table: Handle,
}

impl Launches {
    fn new(op: &GatedDeltaRule, like: &CudaTensor) -> Self {
        let row = op.cu_seqlens.derived([0; 3], Chunks::new);
        Self {
            dims: op.dims,
            chunks: row.chunks.len(),
            segments: row.segments.len(),
            chunk_table: row.chunks.on_device(like),
            segment_table: row.segments.on_device(like),
        }
    }

    fn kernel(&self, source: &'static str, name: &'static str) -> Kernel {
        Kernel::new(source, name).define("HEAD_DIM", self.dims.key_dim).threads(256)
    }

    /// Creates a kernel over all chunks at once.
    fn over_chunks(&self, source: &'static str, name: &'static str) -> Kernel {
        self.kernel(source, name).grid(self.chunks, self.dims.key_heads, 1)
    }

    /// Creates a kernel that iterates over the chunks of each example.
    fn over_segments(&self, source: &'static str, name: &'static str) -> Kernel {
        let slices = self.dims.value_dim / self.dims.value_dim.min(SLICE);
        self.kernel(source, name).grid(self.dims.value_heads * slices, self.segments, 1)
    }

    fn sizes(&self) -> Sizes {
        sizes![self.dims.key_heads as u32, self.dims.value_heads as u32]
    }

    /// Allocates matrices, or states, of every chunk and head. They are f16 or bf16, which only the kernels
    /// that write and read them need to know.
    fn per_chunk(&self, like: &CudaTensor, side: usize) -> CudaTensor {
        empty(like, [self.chunks * self.dims.value_heads, side * side], DType::BF16)
    }
}

/// Tensors kept from the forward pass for the backward pass.
struct ChunkMatrices {
    inverses: CudaTensor,
    attentions: CudaTensor,
    gate_sums: CudaTensor,
    norms: CudaTensor,
}

impl ChunkMatrices {
    fn new(launches: &Launches, qkv: &CudaTensor, g: &CudaTensor, beta: &CudaTensor) -> Self {
        let (rows, _) = dims(qkv);
        let made = Self {
            inverses: launches.per_chunk(qkv, CHUNK),
            attentions: launches.per_chunk(qkv, CHUNK),
            gate_sums: empty_like(g),
            norms: empty(qkv, [rows, 2 * launches.dims.key_heads], DType::F32),
        };
        launches
            .over_chunks("gated_delta_rule/chunk_matrices.cuh", "delta_rule_chunk_matrices")
            .read(qkv)
            .read(g)
            .read(beta)
            .read(&launches.chunk_table)
            .write(&made.inverses)
            .write(&made.attentions)
            .write(&made.gate_sums)
            .write(&made.norms)
            .launch(launches.sizes());
        made
    }
}

impl OnCuda<3> for GatedDeltaRule {
    fn fits(&self, _: [[usize; 2]; 3]) -> bool {
        fits(self.dims)
    }

    fn forward(
        &self,
        [qkv, g, beta]: [CudaTensor; 3],
        wanted: [bool; 3],
    ) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let (qkv, g, beta) = (as_bf16(qkv), as_f32(g), as_f32(beta));
        let launches = Launches::new(self, &qkv);
        let matrices = ChunkMatrices::new(&launches, &qkv, &g, &beta);
        let out = empty(&qkv, [dims(&qkv).0, self.dims.value_heads * self.dims.value_dim], DType::BF16);
        launches
            .over_segments("gated_delta_rule/forward.cuh", "delta_rule_forward")
            .read(&qkv)
            .read(&matrices.inverses)
            .read(&matrices.attentions)
            .read(&matrices.gate_sums)
            .read(&matrices.norms)
            .read(&launches.chunk_table)
            .read(&launches.segment_table)
            .write(&out)
            .launch(launches.sizes());
        if !wanted.contains(&true) {
            return ([out], Vec::new());
        }
        let ChunkMatrices { inverses, attentions, gate_sums, norms } = matrices;
        ([out], vec![qkv, beta, inverses, attentions, gate_sums, norms])
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 3],
    ) -> [Option<CudaTensor>; 3] {
        let [qkv, beta, inverses, attentions, gate_sums, norms] = &saved[..] else {
            unreachable!("forward saves six tensors")
        };
        let (d_out, launches) = (as_bf16(d_output), Launches::new(self, qkv));
        let side = self.dims.value_dim;
        let (writes, states, d_states) =
            (empty_like(&d_out), launches.per_chunk(qkv, side), launches.per_chunk(qkv, side));
        launches
            .over_segments("gated_delta_rule/forward.cuh", "delta_rule_states")
            .read(qkv)
            .read(inverses)
            .read(gate_sums)
            .read(norms)
            .read(&launches.chunk_table)
            .read(&launches.segment_table)
            .write(&writes)
            .write(&states)
            .launch(launches.sizes());
        let d_qkv = empty_like(qkv);
        launches
            .over_segments("gated_delta_rule/backward.cuh", "delta_rule_backward")
            .read(qkv)
            .read(inverses)
            .read(attentions)
            .read(gate_sums)
            .read(norms)
            .read(&d_out)
            .read(&launches.chunk_table)
            .read(&launches.segment_table)
            .update(&d_qkv)
            .write(&d_states)
            .launch(launches.sizes());
        let (d_g, d_beta) = (empty_like(beta), empty_like(beta));
        launches
            .over_chunks("gated_delta_rule/gradients.cuh", "delta_rule_gradients")
            .read(qkv)
            .read(beta)
            .read(gate_sums)
            .read(norms)
            .read(&states)
            .read(&d_states)
            .read(&writes)
            .read(&d_out)
            .read(&launches.chunk_table)
            .update(&d_qkv)
            .write(&d_g)
            .write(&d_beta)
            .launch(launches.sizes());
        [Some(d_qkv), Some(d_g), Some(d_beta)]
    }
}

/// Returns whether the kernels support heads of this width.
pub(super) fn fits(Dims { key_dim, value_dim, .. }: Dims) -> bool {
    key_dim == value_dim && matches!(key_dim, 16 | 32 | 64 | 128)
}

/// Continues examples with so many rows each from their states. Returns the outputs and the next states, as
/// [`continued`] does.
pub(super) fn steps(
    heads: Dims,
    [qkv, g, beta]: [CudaTensor; 3],
    states: &[CudaTensor],
    counts: &[usize],
    each: bool,
) -> (CudaTensor, Vec<Vec<CudaTensor>>) {
    let Dims { key_heads, value_heads, key_dim, value_dim } = heads;
    let (qkv, g, beta) = (as_bf16(qkv), as_f32(g), as_f32(beta));
    let out = empty(&qkv, [dims(&qkv).0, value_heads * value_dim], DType::BF16);
    let columns = value_dim.min(32);
    let after = continued(states, counts, each, |examples, before, after| {
        let mut sizes = sizes![key_heads as u32, value_heads as u32, u32::from(each)];
        examples.push_rows(&mut sizes);
        Kernel::new("gated_delta_rule/steps.cuh", "delta_rule_steps")
            .define("HEAD_DIM", key_dim)
            .grid(value_heads, value_dim / columns, before.len())
            .threads(8 * columns)
            .read(&qkv)
            .read(&g)
            .read(&beta)
            .read_each(before)
            .update(&out)
            .write_each(after)
            .launch(sizes);
    });
    (out, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_start_anew_at_borders_and_the_longest_example_comes_first() {
        let Chunks { chunks, segments } = Chunks::new(&[0, 3, 3, 73]);
        assert_eq!(chunks[..], [[0, 3], [3, 64], [67, 6]]);
        assert_eq!(segments[..], [[1, 2], [0, 1]]);
    }
}
