// The parts of a product whose `k` was split, added up in an order that depends on the launch alone.
//
// `sum_splits`: partial [splits, count] fp32 → c [count] fp32, added to what c holds if `accumulate`; count is a multiple
// of 4. Blocks ceil(count / 1024), 256 threads.
#pragma once
#include "../device/gemm.cuh"

struct SumSplitsSizes {
    u32 splits, count, accumulate;
};

KERNEL(256) sum_splits(const float* __restrict__ partial, float* __restrict__ c, const SumSplitsSizes sizes) {
    const u32 at = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (at >= sizes.count) return;
    float4 sum = load4(partial + at);
#pragma unroll 4
    for (u32 split = 1; split < sizes.splits; ++split) sum = add4(sum, load4(partial + u64(split) * sizes.count + at));
    store4(c + at, sum, sizes.accumulate);
}
