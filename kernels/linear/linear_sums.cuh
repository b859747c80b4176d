// What is added up beside the products of linear.cuh, in an order that depends on the launch alone.
//
// `sum_splits`: partial [splits, count] fp32 → c [count] fp32, added to what c holds if `accumulate`; count is a multiple
// of 4. Blocks ceil(count / 1024), 256 threads.
// `linear_backward_bias`: d_y [rows, width] bf16 → partial [parts, width] fp32 for `sum_rows`; width is a multiple of 8.
// Blocks (ceil(width / 256), parts), 256 threads.
#pragma once
#include "../device/gemm.cuh"
#include "../device/reduce.cuh"

struct SumSplitsSizes {
    u32 splits, count, accumulate;
};

struct LinearBiasSizes {
    u32 rows, width;
};

KERNEL(256) sum_splits(const float* __restrict__ partial, float* __restrict__ c, const SumSplitsSizes sizes) {
    const u32 at = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (at >= sizes.count) return;
    float4 sum = load4(partial + at);
#pragma unroll 4
    for (u32 split = 1; split < sizes.splits; ++split) sum = add4(sum, load4(partial + u64(split) * sizes.count + at));
    store4(c + at, sum, sizes.accumulate);
}

// A warp adds every eighth of its part's rows, a lane eight columns.
KERNEL(256) linear_backward_bias(const bf16* __restrict__ d_y, float* __restrict__ partial, const LinearBiasSizes sizes) {
    const u32 first = blockIdx.x * 256, column = first + u32(lane_index()) * 8;
    const u32 rows = (sizes.rows + gridDim.y - 1) / gridDim.y, from = blockIdx.y * rows, to = min(from + rows, sizes.rows);
    Eight sum = zeros();
    if (column < sizes.width) {
#pragma unroll 4
        for (u32 row = from + u32(warp_index()); row < to; row += 8) {
            const Eight x = load8(d_y + u64(row) * sizes.width + column, 8);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum.at[i] += x.at[i];
        }
    }
    sum_over_groups(sum, WARP, int(min(sizes.width - first, 256u)), partial + u64(blockIdx.y) * sizes.width + first);
}
