// The largest logits of each row with their tokens, sorted; the first of equals in front, NaN left out.
//
//   logits [rows, V] fp32  →  keys [rows, ceil(V / 4096) · 64] u64      largest_of_logits
//   keys [rows, n] u64     →  keys [rows, ceil(n / 4096) · 64] u64      largest_of_keys
//
// A key has the logit in its high half, as an integer in the order of floating-point numbers (-0 is 0), and the complement of the token in its low half:
// the greater key has the greater logit, or the same one and the earlier token. 0 is the key of NaN and of what is not there.
// A block sorts 4,096 keys in shared memory (bitonic) and writes the 64 greatest, so that each of the 64 greatest of a row is among those that are written.
//
// Launch: largest_of_logits, then largest_of_keys until a row is one group; (groups, rows) blocks of 512 threads.
#pragma once
#include "../device/cuda.cuh"

struct LargestSizes {
    u32 count;  // V, or n
};

// The trainer defines both.
#ifndef SORTED
#define SORTED 4096u
#define KEPT 64u
#endif

DEVICE u64 key_of(float logit, u32 token) {
    if (logit != logit) return 0;
    const u32 bits = __float_as_uint(logit + 0.0f);
    return u64(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | ~token;
}

DEVICE u64 key_of(u64 key, u32) { return key; }

template <class T>
DEVICE void write_largest(const T* from, u64* to, u32 count) {
    SHARED(u64, keys, SORTED);
    const T* row = from + u64(blockIdx.y) * count;
    for (u32 i = threadIdx.x; i < SORTED; i += blockDim.x) {
        const u32 at = blockIdx.x * SORTED + i;
        keys[i] = at < count ? key_of(row[at], at) : 0;
    }
    for (u32 run = 2; run <= SORTED; run *= 2)
        for (u32 distance = run / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < SORTED / 2; pair += blockDim.x) {
                const u32 low = 2 * pair - (pair & (distance - 1)), high = low + distance;
                const u64 a = keys[low], b = keys[high];
                // Runs fall and rise in turn; the last one, which is all, falls.
                if ((a < b) == ((low & run) == 0)) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    __syncthreads();
    if (threadIdx.x < KEPT) to[(u64(blockIdx.y) * gridDim.x + blockIdx.x) * KEPT + threadIdx.x] = keys[threadIdx.x];
}

KERNEL(512) largest_of_logits(const float* __restrict__ logits, u64* __restrict__ keys, const LargestSizes sizes) {
    write_largest(logits, keys, sizes.count);
}

KERNEL(512) largest_of_keys(const u64* __restrict__ from, u64* __restrict__ keys, const LargestSizes sizes) {
    write_largest(from, keys, sizes.count);
}
