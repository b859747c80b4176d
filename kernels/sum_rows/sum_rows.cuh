// Adds the partial weight gradients that the blocks of a backward launch left: `partial [rows, width]` fp32 →
// `total [width]` fp32, in an order that depends on `rows` alone.
//
// Launch: 256 threads, ceil(width / 32) blocks.
#pragma once
#include "../device/cuda.cuh"

struct SumRowsSizes {
    u32 rows, width;
};

// Each warp adds every eighth row of 32 columns, then the first warp adds the eight sums.
KERNEL(256) sum_rows(const float* __restrict__ partial, float* __restrict__ total, const SumRowsSizes sizes) {
    SHARED(float, sums, 8 * WARP);
    const u32 column = blockIdx.x * WARP + u32(lane_index());
    float sum = 0.0f;
    if (column < sizes.width) {
#pragma unroll 4
        for (u32 row = u32(warp_index()); row < sizes.rows; row += 8) sum += partial[u64(row) * sizes.width + column];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp_index() == 0 && column < sizes.width) {
        sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < 8; ++warp) sum += sums[warp * WARP + lane_index()];
        total[column] = sum;
    }
}
