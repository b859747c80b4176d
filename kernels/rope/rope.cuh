// Rotary embedding of the leading `rotary_dim` numbers of each head, rotate-half pairing (SPEC.md 2.3 step 4), for models
// without a norm of queries and keys: `x, y [T, N·D]` bf16, fp32 between; `cosines, sines [T, rotary_dim / 2]` fp32.
// `direction` is 1, or -1 for the inverse, which is the backward.
//
// A thread does eight pairs of a head, or eight of the numbers behind them that pass through. `rotary_dim` is even; it and
// D may be any such numbers.
// Launch: 256 threads, ceil(T · N · parts / 256) blocks with parts = ceil(rotary_dim / 16) + ceil((D - rotary_dim) / 8).
#pragma once
#include "../device/bf16.cuh"

struct RopeSizes {
    u32 tokens, heads, head_dim, rotary_dim;
    float direction;
};

KERNEL(256) rope(const bf16* __restrict__ x, const float* __restrict__ cosines, const float* __restrict__ sines,
                 bf16* __restrict__ y, const RopeSizes s) {
    const u32 half = s.rotary_dim / 2, pairs = (half + 7) / 8, parts = pairs + (s.head_dim - s.rotary_dim + 7) / 8;
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x, head = index / parts, part = index % parts;
    const u32 token = head / s.heads;
    if (token >= s.tokens) return;
    const u64 start = u64(head) * s.head_dim;
    if (part >= pairs) {
        const u32 first = s.rotary_dim + (part - pairs) * 8;
        const int count = min(int(s.head_dim - first), 8);
        store8(y + start + first, load8(x + start + first, count), count);
        return;
    }
    const u32 first = part * 8;
    const int count = min(int(half - first), 8);
    Eight a = load8(x + start + first, count), b = load8(x + start + half + first, count);
    const u64 angle = u64(token) * half + first;
    const Eight c = load8(cosines + angle, count), t = load8(sines + angle, count);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float low = a.at[i], high = b.at[i], sine = s.direction * t.at[i];
        a.at[i] = low * c.at[i] - high * sine;
        b.at[i] = high * c.at[i] + low * sine;
    }
    store8(y + start + first, a, count);
    store8(y + start + half + first, b, count);
}
