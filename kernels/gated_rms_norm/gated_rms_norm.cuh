// The norm behind the delta rule: RMSNorm of each value head with weight `w`, then `⊙ silu(z)` (SPEC.md 2.4 step 8).
// `x, z [vectors, width]` with vectors = tokens · heads and width = the head's size, at most 256; `weight [width]`.
// bf16 in and out, fp32 weight and fp32 between.
//
// `lanes` neighbouring lanes share a vector, eight numbers each: the power of two that covers width / 8, at most 32.
// Launch: 256 threads, any fixed number of blocks up to ceil(vectors · lanes / 256). Backward with the weight's gradient
// leaves one row per block in `d_weight_partial [blocks, width]` for `sum_rows`.
#pragma once
#include "../device/bf16.cuh"
#include "../device/reduce.cuh"
#include "../device/silu.cuh"

struct GatedRmsNormSizes {
    u32 vectors, width, lanes;
    float eps;
};

KERNEL(256) gated_rms_norm_forward(const bf16* __restrict__ x, const bf16* __restrict__ z,
                                   const float* __restrict__ weight, bf16* __restrict__ y,
                                   const GatedRmsNormSizes sizes) {
    const u32 group = threadIdx.x / sizes.lanes, groups = blockDim.x / sizes.lanes;
    const int first = int(threadIdx.x % sizes.lanes) * 8, wide = int(sizes.width) - first;
    const Eight w = load8(weight + first, wide);
    // Whole blocks go round together: all lanes of a warp take part in its sums.
    for (u32 base = blockIdx.x * groups; base < sizes.vectors; base += gridDim.x * groups) {
        const int count = base + group < sizes.vectors ? wide : 0;
        const u64 at = u64(base + group) * sizes.width + first;
        const Eight v = load8(x + at, count), gate = load8(z + at, count);
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) squares += v.at[i] * v.at[i];
        const float scale = rsqrtf(warp_sum(squares, int(sizes.lanes)) / float(sizes.width) + sizes.eps);
        Eight out;
#pragma unroll
        for (int i = 0; i < 8; ++i) out.at[i] = v.at[i] * scale * w.at[i] * silu(gate.at[i]);
        store8(y + at, out, count);
    }
}

// As in RMSNorm with `p = dy ⊙ silu(z) ⊙ w`; `dz = dy ⊙ n ⊙ w ⊙ silu'(z)`, `dw = Σ dy ⊙ silu(z) ⊙ n`.
template <bool Weight>
DEVICE void gated_rms_norm_gradients(const bf16* x, const bf16* z, const float* weight, const bf16* d_y, bf16* d_x,
                                     bf16* d_z, float* d_weight_partial, const GatedRmsNormSizes& sizes) {
    const u32 group = threadIdx.x / sizes.lanes, groups = blockDim.x / sizes.lanes;
    const int first = int(threadIdx.x % sizes.lanes) * 8, wide = int(sizes.width) - first;
    const Eight w = load8(weight + first, wide);
    Eight d_weight = zeros();
    for (u32 base = blockIdx.x * groups; base < sizes.vectors; base += gridDim.x * groups) {
        const int count = base + group < sizes.vectors ? wide : 0;
        const u64 at = u64(base + group) * sizes.width + first;
        const Eight v = load8(x + at, count), gate = load8(z + at, count), dy = load8(d_y + at, count);
        float squares = 0.0f, products = 0.0f;
        Eight p;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            p.at[i] = dy.at[i] * silu(gate.at[i]);
            squares += v.at[i] * v.at[i];
            products += p.at[i] * w.at[i] * v.at[i];
        }
        const float scale = rsqrtf(warp_sum(squares, int(sizes.lanes)) / float(sizes.width) + sizes.eps);
        const float mean = warp_sum(products, int(sizes.lanes)) / float(sizes.width) * scale * scale;
        Eight dx, dz;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float n = v.at[i] * scale;
            if (Weight) d_weight.at[i] += p.at[i] * n;
            dx.at[i] = scale * (p.at[i] * w.at[i] - v.at[i] * mean);
            dz.at[i] = dy.at[i] * n * w.at[i] * silu_derivative(gate.at[i]);
        }
        store8(d_x + at, dx, count);
        store8(d_z + at, dz, count);
    }
    if (Weight)
        sum_over_groups(d_weight, int(sizes.lanes), int(sizes.width), d_weight_partial + u64(blockIdx.x) * sizes.width);
}

KERNEL(256) gated_rms_norm_backward(const bf16* __restrict__ x, const bf16* __restrict__ z,
                                    const float* __restrict__ weight, const bf16* __restrict__ d_y,
                                    bf16* __restrict__ d_x, bf16* __restrict__ d_z, const GatedRmsNormSizes sizes) {
    gated_rms_norm_gradients<false>(x, z, weight, d_y, d_x, d_z, nullptr, sizes);
}

KERNEL(256) gated_rms_norm_backward_weight(const bf16* __restrict__ x, const bf16* __restrict__ z,
                                           const float* __restrict__ weight, const bf16* __restrict__ d_y,
                                           bf16* __restrict__ d_x, bf16* __restrict__ d_z,
                                           float* __restrict__ d_weight_partial, const GatedRmsNormSizes sizes) {
    gated_rms_norm_gradients<true>(x, z, weight, d_y, d_x, d_z, d_weight_partial, sizes);
}
