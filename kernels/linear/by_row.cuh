// Linear layers on the few rows of a decoding step: `y = x Wᵀ + scale · u Bᵀ`, each row's bits whatever the other rows are.
//
//   x [n, in] bf16    W [out, in] bf16    y [n, out] bf16, or fp32 for `_wide`
//   u [n, r] fp32     B [out, r] bf16: an adapter, r its rank; 0 without one, and u and B are not read
//
// Such a product is bound by reading W, and reads it once for up to eight rows. A warp has OUTPUTS rows of W; each lane sums every
// 32nd eight numbers of them, then the warp sums the lanes, in fp32. `in` and r may be any numbers; 16 bytes at a time are read where
// rows are aligned.
//
// Launch: (ceil(out / 32), ceil(n / ROWS)) blocks of 256 threads; ROWS is a number that n fits, or 8.
//
// Compiled with: ROWS=1; ROWS=2; ROWS=4; ROWS=8
#pragma once
#include "../device/reduce.cuh"

#ifndef ROWS
#define ROWS 8
#endif

struct ByRowSizes {
    u32 rows, inputs, outputs, rank;
    float scale;
};

constexpr int OUTPUTS = 4;

DEVICE void store(bf16* to, float x) { *to = to_bf16(x); }
DEVICE void store(float* to, float x) { *to = x; }

template <int N, class Result>
DEVICE void linear_rows(const bf16* x, const bf16* weight, const float* u, const bf16* b, Result* y, const ByRowSizes& sizes) {
    const u32 output = (blockIdx.x * (blockDim.x / WARP) + u32(warp_index())) * OUTPUTS, row = blockIdx.y * N;
    const u32 lane = u32(lane_index());
    if (output >= sizes.outputs) return;
    float sums[N][OUTPUTS] = {};
    for (u32 first = lane * 8; first < sizes.inputs; first += WARP * 8) {
        const int count = int(sizes.inputs - first);
        Eight of_weight[OUTPUTS];
#pragma unroll
        for (u32 o = 0; o < OUTPUTS; ++o) {
            const u32 at = min(output + o, sizes.outputs - 1);
            of_weight[o] = load8(weight + u64(at) * sizes.inputs + first, count);
        }
#pragma unroll
        for (u32 r = 0; r < N; ++r) {
            const Eight of_x = load8(x + u64(min(row + r, sizes.rows - 1)) * sizes.inputs + first, count);
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
                for (int i = 0; i < 8; ++i) sums[r][o] += of_x.at[i] * of_weight[o].at[i];
        }
    }
    // A lane keeps and writes one of the warp's results.
    float mine = 0.0f;
#pragma unroll
    for (u32 r = 0; r < N; ++r)
#pragma unroll
        for (u32 o = 0; o < OUTPUTS; ++o) {
            float sum = warp_sum(sums[r][o]);
            if (sizes.rank > 0) {
                const float* inner = u + u64(min(row + r, sizes.rows - 1)) * sizes.rank;
                const bf16* of_b = b + u64(min(output + o, sizes.outputs - 1)) * sizes.rank;
                float added = 0.0f;
                for (u32 i = lane; i < sizes.rank; i += WARP) added += inner[i] * to_float(of_b[i]);
                sum += sizes.scale * warp_sum(added);
            }
            if (lane == r * OUTPUTS + o) mine = sum;
        }
    const u32 to_row = row + lane / OUTPUTS, to_output = output + lane % OUTPUTS;
    if (lane < N * OUTPUTS && to_row < sizes.rows && to_output < sizes.outputs)
        store(y + u64(to_row) * sizes.outputs + to_output, mine);
}

KERNEL(256) linear_by_row(const bf16* __restrict__ x, const bf16* __restrict__ weight, const float* __restrict__ u,
                          const bf16* __restrict__ b, bf16* __restrict__ y, const ByRowSizes sizes) {
    linear_rows<ROWS>(x, weight, u, b, y, sizes);
}

KERNEL(256) linear_by_row_wide(const bf16* __restrict__ x, const bf16* __restrict__ weight, float* __restrict__ y,
                               const ByRowSizes sizes) {
    linear_rows<ROWS>(x, weight, nullptr, nullptr, y, sizes);
}
