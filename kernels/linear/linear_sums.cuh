// The parts of a product whose `k` was split, added up in an order that depends on the launch alone.
//
// `sum_splits`: partial [splits, Σ counts] fp32 → up to four matrices c_i [counts_i] fp32, added to what they hold if
// `accumulate`: the rows of one product are shared out among them, as those of adapters that were multiplied below each other. Counts are
// multiples of 4. Blocks (ceil(largest count / 1024), matrices), 256 threads. Any buffer will do for a matrix that is not there.
#pragma once
#include "../device/gemm.cuh"

struct SumSplitsSizes {
    u32 splits, accumulate;
    u32 counts[4];
};

KERNEL(256) sum_splits(const float* __restrict__ partial, float* a, float* b, float* c, float* d, const SumSplitsSizes sizes) {
    const u32 which = blockIdx.y, at = (blockIdx.x * 256 + threadIdx.x) * 4;
    // One by one: an array chosen from at run time would lie on the stack.
    float* const to = which == 0 ? a : which == 1 ? b : which == 2 ? c : d;
    u64 first = 0, all = sizes.counts[0];
    u32 count = sizes.counts[0];
#pragma unroll
    for (u32 i = 1; i < 4; ++i) {
        if (which >= i) {
            first += count;
            count = sizes.counts[i];
        }
        all += sizes.counts[i];
    }
    if (at >= count) return;
    const float* const from = partial + first + at;
    float4 sum = load4(from);
#pragma unroll 4
    for (u32 split = 1; split < sizes.splits; ++split) sum = add4(sum, load4(from + u64(split) * all));
    store4(to + at, sum, sizes.accumulate);
}
