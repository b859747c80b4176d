// RMSNorm of each query or key head, `⊙ (w + weight_offset)`, then rotary embedding of its leading `rotary_dim` numbers,
// rotate-half pairing (SPEC.md 2.3 steps 1, 3 and 4). bf16 in and out, fp32 weight and fp32 between.
//
// Heads are read where a projection left them: `x [T, N · stride]`, of each `stride` numbers the first `D`; with stride = 2·D
// a head's queries are followed by its gates. Result `y [T, N·D]`. `cosines, sines [T, rotary_dim / 2]` fp32. Backward writes
// the gradient of all of `x`: zeros where the gates are, whose gradient comes from elsewhere.
//
// `lanes` neighbouring lanes share a head, eight numbers each: the power of two that covers D / 8, at most 32, so D is at
// most 256. `rotary_dim` is a multiple of 16, so that a number's partner sits at the same place in another lane.
// Launch: 256 threads, any fixed number of blocks up to ceil(T · N · lanes / 256). Backward with the weight's gradient
// leaves one row per block in `d_weight_partial [blocks, D]` for `sum_rows`.
#pragma once
#include "../device/bf16.cuh"
#include "../device/reduce.cuh"

struct NormRopeSizes {
    u32 tokens, heads, head_dim, stride, rotary_dim, lanes;
    float eps, weight_offset;
};

// Which head a group of lanes works on, and where its numbers lie.
struct Head {
    u32 token;
    u64 source;  // first number of this lane in the projection
    u64 normed;  // and in the result
    int count;   // numbers this lane has, at most 0 for a lane without work
};

DEVICE Head head_of(u32 vector, int first, const NormRopeSizes& s) {
    Head head;
    head.token = vector / s.heads;
    head.source = u64(vector) * s.stride + first;
    head.normed = u64(vector) * s.head_dim + first;
    head.count = head.token < s.tokens ? int(s.head_dim) - first : 0;
    return head;
}

// Rotates by the token's angle times `direction` (1, or -1 for the inverse). All lanes of the warp must call it.
DEVICE Eight rotated(const Eight& x, const Head& head, int first, const float* cosines, const float* sines, float direction,
                     const NormRopeSizes& s) {
    const int half = int(s.rotary_dim) / 2;
    const bool low = first < half, rotary = first < 2 * half && head.count > 0;
    const int partner = lane_index() + (rotary ? (low ? half / 8 : -half / 8) : 0);
    const u64 angle = u64(head.token) * half + (low ? first : first - half);
    const Eight c = load8(cosines + angle, rotary ? 8 : 0), t = load8(sines + angle, rotary ? 8 : 0);
    Eight y;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float other = __shfl_sync(ALL_LANES, x.at[i], partner);
        const float sine = low ? -direction * t.at[i] : direction * t.at[i];
        y.at[i] = rotary ? x.at[i] * c.at[i] + other * sine : x.at[i];
    }
    return y;
}

KERNEL(256) norm_rope_forward(const bf16* __restrict__ x, const float* __restrict__ weight,
                              const float* __restrict__ cosines, const float* __restrict__ sines, bf16* __restrict__ y,
                              const NormRopeSizes s) {
    const u32 group = threadIdx.x / s.lanes, groups = blockDim.x / s.lanes;
    const u32 vectors = s.tokens * s.heads;
    const int first = int(threadIdx.x % s.lanes) * 8;
    const Eight w = load8(weight + first, int(s.head_dim) - first);
    // Whole blocks go round together: all lanes of a warp take part in its sums and exchanges.
    for (u32 base = blockIdx.x * groups; base < vectors; base += gridDim.x * groups) {
        const Head head = head_of(base + group, first, s);
        const Eight v = load8(x + head.source, head.count);
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) squares += v.at[i] * v.at[i];
        const float scale = rsqrtf(warp_sum(squares, int(s.lanes)) / float(s.head_dim) + s.eps);
        Eight n;
#pragma unroll
        for (int i = 0; i < 8; ++i) n.at[i] = v.at[i] * scale * (w.at[i] + s.weight_offset);
        store8(y + head.normed, rotated(n, head, first, cosines, sines, 1.0f, s), head.count);
    }
}

// The rotation's inverse, then RMSNorm's backward as in `rms_norm`.
template <bool Weight>
DEVICE void norm_rope_gradients(const bf16* x, const float* weight, const float* cosines, const float* sines,
                                const bf16* d_y, bf16* d_x, float* d_weight_partial, const NormRopeSizes& s) {
    const u32 group = threadIdx.x / s.lanes, groups = blockDim.x / s.lanes;
    const u32 vectors = s.tokens * s.heads;
    const int first = int(threadIdx.x % s.lanes) * 8;
    const Eight w = load8(weight + first, int(s.head_dim) - first);
    Eight d_weight = zeros();
    for (u32 base = blockIdx.x * groups; base < vectors; base += gridDim.x * groups) {
        const Head head = head_of(base + group, first, s);
        const Eight v = load8(x + head.source, head.count), dy = load8(d_y + head.normed, head.count);
        const Eight dn = rotated(dy, head, first, cosines, sines, -1.0f, s);
        float squares = 0.0f, products = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            squares += v.at[i] * v.at[i];
            products += dn.at[i] * (w.at[i] + s.weight_offset) * v.at[i];
        }
        const float scale = rsqrtf(warp_sum(squares, int(s.lanes)) / float(s.head_dim) + s.eps);
        const float mean = warp_sum(products, int(s.lanes)) / float(s.head_dim) * scale * scale;
        Eight dx;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            dx.at[i] = scale * (dn.at[i] * (w.at[i] + s.weight_offset) - v.at[i] * mean);
            if (Weight) d_weight.at[i] += dn.at[i] * v.at[i] * scale;
        }
        store8(d_x + head.source, dx, head.count);
        for (u32 beside = s.head_dim; beside < s.stride; beside += s.head_dim)
            store8(d_x + head.source + beside, zeros(), head.count);
    }
    if (Weight) sum_over_groups(d_weight, int(s.lanes), int(s.head_dim), d_weight_partial + u64(blockIdx.x) * s.head_dim);
}

KERNEL(256) norm_rope_backward(const bf16* __restrict__ x, const float* __restrict__ weight,
                               const float* __restrict__ cosines, const float* __restrict__ sines,
                               const bf16* __restrict__ d_y, bf16* __restrict__ d_x, const NormRopeSizes s) {
    norm_rope_gradients<false>(x, weight, cosines, sines, d_y, d_x, nullptr, s);
}

KERNEL(256) norm_rope_backward_weight(const bf16* __restrict__ x, const float* __restrict__ weight,
                                      const float* __restrict__ cosines, const float* __restrict__ sines,
                                      const bf16* __restrict__ d_y, bf16* __restrict__ d_x,
                                      float* __restrict__ d_weight_partial, const NormRopeSizes s) {
    norm_rope_gradients<true>(x, weight, cosines, sines, d_y, d_x, d_weight_partial, s);
}
