// RMSNorm of each query and key head (zero-centred weight), then rotary embedding of its leading `rotary_dim` numbers,
// rotate-half pairing (QWEN35_SPEC 2.3 steps 1, 3 and 4); queries and keys in one launch. bf16 in and out, fp32 between.
//
// Queries are read out of the joint projection `q_joint [T, N · q_stride]`: with q_stride = 2·D a head's `D` queries are
// followed by its `D` gates. `k_joint [T, G · D]`; results `q [T, N·D]`, `k [T, G·D]`. `cosines, sines [T, rotary_dim / 2]`
// fp32. Backward gives the gradient of the whole joint projection: it takes the gates' gradient `d_gate [T, N·D]`
// along (not read when q_stride = D).
//
// `lanes` neighbouring lanes share a head, eight numbers each: the power of two that covers D / 8, at most 32, so D is at
// most 256. `rotary_dim` is a multiple of 16, so that a number's partner sits at the same place in another lane.
// Launch: 256 threads, any fixed number of blocks up to ceil(T · (N + G) · lanes / 256). Backward with the weights'
// gradients leaves one row per block in `d_weight_partial [blocks, 2 · D]` (queries, keys) for `sum_rows`.
#pragma once
#include "../device/bf16.cuh"
#include "../device/reduce.cuh"

struct QkNormRopeSizes {
    u32 tokens, q_heads, k_heads, head_dim, q_stride, rotary_dim, lanes;
    float eps;
};

// Which head a group of lanes works on, and where its numbers lie.
struct Head {
    u32 token;
    bool is_query;
    u64 joint;   // first number of this lane in the joint projection
    u64 normed;  // and in the result
    int count;   // numbers this lane has, at most 0 for a lane without work
};

DEVICE Head head_of(u32 vector, int first, const QkNormRopeSizes& s) {
    const u32 heads = s.q_heads + s.k_heads;
    Head head;
    head.token = vector / heads;
    const u32 index = vector % heads;
    head.is_query = index < s.q_heads;
    const u64 slot = head.is_query ? u64(head.token) * s.q_heads + index : u64(head.token) * s.k_heads + index - s.q_heads;
    head.joint = slot * (head.is_query ? s.q_stride : s.head_dim) + first;
    head.normed = slot * s.head_dim + first;
    head.count = head.token < s.tokens ? int(s.head_dim) - first : 0;
    return head;
}

// Rotates by the token's angle times `direction` (1, or -1 for the inverse). All lanes of the warp must call it.
DEVICE Eight rotated(const Eight& x, const Head& head, int first, const float* cosines, const float* sines, float direction,
                     const QkNormRopeSizes& s) {
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

KERNEL(256) qk_norm_rope_forward(const bf16* __restrict__ q_joint, const bf16* __restrict__ k_joint,
                                 const bf16* __restrict__ q_weight, const bf16* __restrict__ k_weight,
                                 const float* __restrict__ cosines, const float* __restrict__ sines,
                                 bf16* __restrict__ q, bf16* __restrict__ k, const QkNormRopeSizes s) {
    const u32 group = threadIdx.x / s.lanes, groups = blockDim.x / s.lanes;
    const u32 vectors = s.tokens * (s.q_heads + s.k_heads);
    const int first = int(threadIdx.x % s.lanes) * 8;
    // Whole blocks go round together: all lanes of a warp take part in its sums and exchanges.
    for (u32 base = blockIdx.x * groups; base < vectors; base += gridDim.x * groups) {
        const Head head = head_of(base + group, first, s);
        const Eight x = load8((head.is_query ? q_joint : k_joint) + head.joint, head.count);
        const Eight w = load8((head.is_query ? q_weight : k_weight) + first, head.count);
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) squares += x.at[i] * x.at[i];
        const float scale = rsqrtf(warp_sum(squares, int(s.lanes)) / float(s.head_dim) + s.eps);
        Eight n;
#pragma unroll
        for (int i = 0; i < 8; ++i) n.at[i] = x.at[i] * scale * (1.0f + w.at[i]);
        store8((head.is_query ? q : k) + head.normed, rotated(n, head, first, cosines, sines, 1.0f, s), head.count);
    }
}

// The rotation's inverse, then RMSNorm's backward as in `rms_norm`.
template <bool Weight>
DEVICE void qk_norm_rope_gradients(const bf16* q_joint, const bf16* k_joint, const bf16* q_weight, const bf16* k_weight,
                                   const float* cosines, const float* sines, const bf16* d_q, const bf16* d_k,
                                   const bf16* d_gate, bf16* d_q_joint, bf16* d_k_joint, float* d_weight_partial,
                                   const QkNormRopeSizes& s) {
    const u32 group = threadIdx.x / s.lanes, groups = blockDim.x / s.lanes;
    const u32 vectors = s.tokens * (s.q_heads + s.k_heads);
    const int first = int(threadIdx.x % s.lanes) * 8;
    Eight d_q_weight = zeros(), d_k_weight = zeros();
    for (u32 base = blockIdx.x * groups; base < vectors; base += gridDim.x * groups) {
        const Head head = head_of(base + group, first, s);
        const Eight x = load8((head.is_query ? q_joint : k_joint) + head.joint, head.count);
        const Eight w = load8((head.is_query ? q_weight : k_weight) + first, head.count);
        const Eight dy = load8((head.is_query ? d_q : d_k) + head.normed, head.count);
        const Eight dn = rotated(dy, head, first, cosines, sines, -1.0f, s);
        float squares = 0.0f, products = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            squares += x.at[i] * x.at[i];
            products += dn.at[i] * (1.0f + w.at[i]) * x.at[i];
        }
        const float scale = rsqrtf(warp_sum(squares, int(s.lanes)) / float(s.head_dim) + s.eps);
        const float mean = warp_sum(products, int(s.lanes)) / float(s.head_dim) * scale * scale;
        Eight dx;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            dx.at[i] = scale * (dn.at[i] * (1.0f + w.at[i]) - x.at[i] * mean);
            if (Weight) {
                const float dw = dn.at[i] * x.at[i] * scale;
                d_q_weight.at[i] += head.is_query ? dw : 0.0f;
                d_k_weight.at[i] += head.is_query ? 0.0f : dw;
            }
        }
        store8((head.is_query ? d_q_joint : d_k_joint) + head.joint, dx, head.count);
        if (head.is_query && s.q_stride > s.head_dim && head.count > 0)
            store8(d_q_joint + head.joint + s.head_dim, load8(d_gate + head.normed, head.count), head.count);
    }
    if (Weight) {
        float* partial = d_weight_partial + u64(blockIdx.x) * 2 * s.head_dim;
        sum_over_groups(d_q_weight, int(s.lanes), int(s.head_dim), partial);
        sum_over_groups(d_k_weight, int(s.lanes), int(s.head_dim), partial + s.head_dim);
    }
}

KERNEL(256) qk_norm_rope_backward(const bf16* __restrict__ q_joint, const bf16* __restrict__ k_joint,
                                  const bf16* __restrict__ q_weight, const bf16* __restrict__ k_weight,
                                  const float* __restrict__ cosines, const float* __restrict__ sines,
                                  const bf16* __restrict__ d_q, const bf16* __restrict__ d_k,
                                  const bf16* __restrict__ d_gate, bf16* __restrict__ d_q_joint,
                                  bf16* __restrict__ d_k_joint, const QkNormRopeSizes s) {
    qk_norm_rope_gradients<false>(q_joint, k_joint, q_weight, k_weight, cosines, sines, d_q, d_k, d_gate, d_q_joint,
                                  d_k_joint, nullptr, s);
}

KERNEL(256) qk_norm_rope_backward_weight(const bf16* __restrict__ q_joint, const bf16* __restrict__ k_joint,
                                         const bf16* __restrict__ q_weight, const bf16* __restrict__ k_weight,
                                         const float* __restrict__ cosines, const float* __restrict__ sines,
                                         const bf16* __restrict__ d_q, const bf16* __restrict__ d_k,
                                         const bf16* __restrict__ d_gate, bf16* __restrict__ d_q_joint,
                                         bf16* __restrict__ d_k_joint, float* __restrict__ d_weight_partial,
                                         const QkNormRopeSizes s) {
    qk_norm_rope_gradients<true>(q_joint, k_joint, q_weight, k_weight, cosines, sines, d_q, d_k, d_gate, d_q_joint,
                                 d_k_joint, d_weight_partial, s);
}
