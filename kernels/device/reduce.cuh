// Sums over lanes, warps and rows in an order that depends on the launch only: the same inputs give the same bits.
#pragma once
#include "bf16.cuh"

// The sum over each aligned group of `lanes` lanes (a power of two), in every lane of the group.
// All lanes of the warp must call it.
DEVICE float warp_sum(float x, int lanes = WARP) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

// The sums of `x` and `y` over the block, in every thread. All threads must call it; blocks are whole warps, at most 32.
DEVICE float2 block_sum(float x, float y) {
    SHARED(float, sums, 2 * WARP);
    const int lane = lane_index(), warp = warp_index(), warps = int(blockDim.x) / WARP;
    x = warp_sum(x);
    y = warp_sum(y);
    __syncthreads();  // The sums of the call before have been read.
    if (lane == 0) {
        sums[warp] = x;
        sums[WARP + warp] = y;
    }
    __syncthreads();
    x = lane < warps ? float(sums[lane]) : 0.0f;
    y = lane < warps ? float(sums[WARP + lane]) : 0.0f;
    return make_float2(warp_sum(x), warp_sum(y));
}

// Adds what the groups of `lanes` threads of a block hold for the same numbers, lane `c` of a group the numbers
// `8c..8c+8`, and writes the first `width` totals. For blocks of 256 threads, all of which must call it.
DEVICE void sum_over_groups(const Eight& part, int lanes, int width, float* total) {
    // The pitch keeps both the writes (fixed `i`) and the reads (all eight `i`) free of bank conflicts.
    constexpr int pitch = 260;
    SHARED(float, parts, 8 * pitch);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) parts[i * pitch + int(threadIdx.x)] = part.at[i];
    __syncthreads();
    const int groups = int(blockDim.x) / lanes;
    for (int number = int(threadIdx.x); number < width; number += int(blockDim.x)) {
        float sum = 0.0f;
        for (int group = 0; group < groups; ++group) sum += parts[number % 8 * pitch + group * lanes + number / 8];
        total[number] = sum;
    }
}
