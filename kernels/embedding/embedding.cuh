// Rows of a matrix by index, and the gradient of the embedding table.
//
// `gather_rows`: `y [rows, width] = x [·, width][ids [rows]]`, bf16: the embedding, and any other picking of rows (the hidden states
// that a multi-token head starts from). An index may repeat; it must lie inside `x`, which the host has checked.
// Launch: 256 threads, blocks (rows, ceil(width / 2048)).
//
// `embedding_backward`: the gradient of the table, added into `d_weight [V, width]` fp32 row by row, without atomics: the host sorts the
// tokens by id (stably), one block adds all tokens of one id in the order of the row.
//
// `tokens [T]`: indices into `d_y [T, width]`, sorted by id; `starts [ids + 1]`: where each distinct id begins in it;
// `distinct_ids [ids]`. Rows of ids that do not occur are not touched. Adding lets a tied
// head write first (linear_cross_entropy writes all of `d_weight`) and micro-batches add up; alone, the first one starts from zeros.
// Launch: 256 threads, blocks (ids, ceil(width / 2048)).
#pragma once
#include "../device/bf16.cuh"

struct GatherRowsSizes {
    u32 rows, width;
};

struct EmbeddingSizes {
    u32 ids, width;
};

KERNEL(256) gather_rows(const bf16* __restrict__ x, const u32* __restrict__ ids, bf16* __restrict__ y, const GatherRowsSizes sizes) {
    const int first = int(blockIdx.y * blockDim.x + threadIdx.x) * 8, count = int(sizes.width) - first;
    if (count <= 0) return;
    store8(y + u64(blockIdx.x) * sizes.width + first, load8(x + u64(ids[blockIdx.x]) * sizes.width + first, count), count);
}

KERNEL(256) embedding_backward(const bf16* __restrict__ d_y, const u32* __restrict__ tokens,
                               const u32* __restrict__ starts, const u32* __restrict__ distinct_ids,
                               float* __restrict__ d_weight, const EmbeddingSizes sizes) {
    const int first = int(blockIdx.y * blockDim.x + threadIdx.x) * 8, count = int(sizes.width) - first;
    if (count <= 0) return;
    Eight sum = zeros();
    const u32 end = starts[blockIdx.x + 1];
#pragma unroll 4
    for (u32 at = starts[blockIdx.x]; at < end; ++at) {
        const Eight dy = load8(d_y + u64(tokens[at]) * sizes.width + first, count);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum.at[i] += dy.at[i];
    }
    float* row = d_weight + u64(distinct_ids[blockIdx.x]) * sizes.width + first;
    const Eight before = load8(row, count);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum.at[i] += before.at[i];
    store8(row, sum, count);
}
