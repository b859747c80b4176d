// Dropout over `count` numbers, bf16 in and out, fp32 between. Number i is kept if number i of the SplitMix64 sequence of
// the mask's key has high bits of at least `least`; the others become 0. Nothing is stored: every pass computes its mask.
//
// Launch: 256 threads, ceil(count / 2048) blocks. Buffers start 16-byte aligned.
#pragma once
#include "../device/bf16.cuh"

struct DropoutSizes {
    u64 count;
    u64 key[4];
    u32 masks;
    u32 least;
    float scale;
};

DEVICE u64 first_number() { return (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; }

DEVICE int numbers_left(u64 first, u64 count) { return first + 8 <= count ? 8 : first < count ? int(count - first) : 0; }

DEVICE float factor(u64 key, u64 i, const DropoutSizes& sizes) {
    u64 z = key + 0x9E3779B97F4A7C15ull * (i + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return u32(z >> 32) >= sizes.least ? sizes.scale : 0.0f;
}

KERNEL(256) dropout(const bf16* __restrict__ x, bf16* __restrict__ out, const DropoutSizes sizes) {
    const u64 first = first_number();
    const int count = numbers_left(first, sizes.count);
    if (count == 0) return;
    Eight y = load8(x + first, count);
#pragma unroll
    for (int i = 0; i < 8; ++i) y.at[i] *= factor(sizes.key[0], first + i, sizes);
    store8(out + first, y, count);
}

// total += Σ x_l ⊙ factors of mask l, summed in fp32 and rounded once.
KERNEL(256) dropout_add(const bf16* __restrict__ x0, const bf16* __restrict__ x1, const bf16* __restrict__ x2,
                        const bf16* __restrict__ x3, bf16* total, const DropoutSizes sizes) {
    const u64 first = first_number();
    const int count = numbers_left(first, sizes.count);
    if (count == 0) return;
    const bf16* const all[4] = {x0, x1, x2, x3};
    Eight sum = load8(total + first, count);
#pragma unroll
    for (int mask = 0; mask < 4; ++mask) {
        if (mask >= int(sizes.masks)) break;
        const Eight x = load8(all[mask] + first, count);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum.at[i] += x.at[i] * factor(sizes.key[mask], first + i, sizes);
    }
    store8(total + first, sum, count);
}
