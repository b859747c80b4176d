// A block with all the shared memory that a GB10 gives one, 99 KB: whether the driver launches it and where its writes go.
//
// Attention, the delta rule and the largest tiles take as much. It is more than the 48 KB that a kernel has without asking, so the
// launch opts in.
//
// Launch: 256 threads, one block.
#pragma once
#include "../device/cuda.cuh"

constexpr u32 PROBE_WORDS = 101376 / 4;

struct ProbeSizes {
    float first;
};

// `reversed[i] = first + PROBE_WORDS - 1 - i`: each number was written to shared memory by another thread, at the other end.
KERNEL(256) probe(float* __restrict__ reversed, const ProbeSizes sizes) {
    DYNAMIC_SHARED(float, words, PROBE_WORDS, 0);
    for (u32 i = threadIdx.x; i < PROBE_WORDS; i += 256) words[i] = sizes.first + float(i);
    __syncthreads();
    for (u32 i = threadIdx.x; i < PROBE_WORDS; i += 256) reversed[i] = words[PROBE_WORDS - 1 - i];
}
