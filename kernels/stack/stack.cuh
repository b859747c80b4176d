// Up to four matrices of the same width below each other: the adapters of layers that read the same input, so that one
// product serves all.
//
// Launch: 256 threads, blocks (ceil(largest count / 2048), matrices). Counts are multiples of 8; buffers start 16-byte
// aligned. Any buffer will do for a matrix that is not there.
#pragma once
#include "../device/bf16.cuh"

struct StackSizes {
    u32 counts[4];  // numbers of each matrix
};

KERNEL(256) stack(const bf16* __restrict__ a, const bf16* __restrict__ b, const bf16* __restrict__ c,
                  const bf16* __restrict__ d, bf16* __restrict__ all, const StackSizes sizes) {
    const u32 which = blockIdx.y, at = (blockIdx.x * 256 + threadIdx.x) * 8;
    // One by one: an array chosen from at run time would lie on the stack.
    const bf16* const matrix = which == 0 ? a : which == 1 ? b : which == 2 ? c : d;
    u64 first = 0;
    u32 count = sizes.counts[0];
#pragma unroll
    for (u32 i = 1; i < 4; ++i) {
        if (which < i) continue;
        first += count;
        count = sizes.counts[i];
    }
    if (at < count) store8(all + first + at, load8(matrix + at, 8), 8);
}
