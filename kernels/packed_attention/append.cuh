// Writes rows of keys or values behind those of caches that have room for them.
//
//   append_to_cache   ceil(count / 2048) blocks of 256 threads
//   append_to_caches  (ceil(most rows · width / 2048), 2, examples) blocks of 256 threads
#pragma once
#include "../device/bf16.cuh"
#include "../device/examples.cuh"

struct AppendSizes {
    u64 first, count;  // numbers; multiples of 8
};

// The new rows, `count` numbers, come to lie in the cache from number `first` on.
KERNEL(256) append_to_cache(const bf16* __restrict__ rows, bf16* __restrict__ cache, const AppendSizes sizes) {
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (at < sizes.count) store8(cache + sizes.first + at, load8(rows + at, 8), 8);
}

struct AppendAllSizes {
    u32 width;  // a multiple of 8
    ExampleRows rows;
    u32 past[EXAMPLES];  // rows that are in the caches of an example
};

// The rows of each example, of all that lie in `k` and `v`, behind those in its own caches.
KERNEL(256) append_to_caches(const bf16* __restrict__ k, const bf16* __restrict__ v, OF_EACH_EXAMPLE(bf16*, k_cache),
                             OF_EACH_EXAMPLE(bf16*, v_cache), const AppendAllSizes sizes) {
    const u32 first = of_example(sizes.rows.first, blockIdx.z), end = of_example(sizes.rows.first, blockIdx.z + 1);
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (at >= u64(end - first) * sizes.width) return;
    bf16 *const k_caches[EXAMPLES] = ALL_OF(k_cache), *const v_caches[EXAMPLES] = ALL_OF(v_cache);
    bf16* const cache = blockIdx.y ? of_example(v_caches, blockIdx.z) : of_example(k_caches, blockIdx.z);
    const bf16* const rows = (blockIdx.y ? v : k) + u64(first) * sizes.width;
    store8(cache + u64(of_example(sizes.past, blockIdx.z)) * sizes.width + at, load8(rows + at, 8), 8);
}
