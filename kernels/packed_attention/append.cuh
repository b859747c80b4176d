// Writes rows of keys or values behind those of a cache that has room for them.
//
// Launch: ceil(count / 2048) blocks of 256 threads.
#pragma once
#include "../device/bf16.cuh"

struct AppendSizes {
    u64 first, count;  // numbers; multiples of 8
};

// The new rows, `count` numbers, come to lie in the cache from number `first` on.
KERNEL(256) append_to_cache(const bf16* __restrict__ rows, bf16* __restrict__ cache, const AppendSizes sizes) {
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (at < sizes.count) store8(cache + sizes.first + at, load8(rows + at, 8), 8);
}
