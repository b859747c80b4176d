// RMSNorm of whole rows with the residual add before it: `h = x + residual`, `y = h / rms(h) ⊙ (w + weight_offset)`
// (SPEC.md 2.1); `weight_offset` is 1 for zero-centred weights. bf16 in and out, fp32 weight and fp32 between.
//
// `h` is rounded to bf16 before it is normalised, as the stored residual stream is, so that backward, which starts from
// the stored `h`, sees the same numbers. One block per row; a row stays in registers, so its width is at most
// 4 · 8 · blockDim.x.
// Launch: blockDim.x = ceil(width / 8) rounded up to a warp, at most 256. Forward: `rows` blocks. Backward: `rows`
// blocks; with the weight's gradient any fixed number of blocks, each leaving one row of `d_weight_partial
// [blocks, width]` for `sum_rows`.
#pragma once
#include "../device/bf16.cuh"
#include "../device/reduce.cuh"

struct RmsNormSizes {
    u32 rows, width;
    float eps, weight_offset;
};

constexpr int ROW_CHUNKS = 4;

template <bool Add>
DEVICE void rms_norm_row(const bf16* x, const bf16* residual, const float* weight, bf16* h, bf16* y,
                         const RmsNormSizes& sizes) {
    const u64 row = u64(blockIdx.x) * sizes.width;
    Eight v[ROW_CHUNKS];
    float squares = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) {
        const int first = (chunk * int(blockDim.x) + int(threadIdx.x)) * 8, count = int(sizes.width) - first;
        v[chunk] = zeros();
        if (count <= 0) continue;
        v[chunk] = load8(x + row + first, count);
        if (Add) {
            const Eight r = load8(residual + row + first, count);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[chunk].at[i] = rounded(v[chunk].at[i] + r.at[i]);
            store8(h + row + first, v[chunk], count);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) squares += v[chunk].at[i] * v[chunk].at[i];
    }
    const float scale = rsqrtf(block_sum(squares, 0.0f).x / float(sizes.width) + sizes.eps);
#pragma unroll
    for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) {
        const int first = (chunk * int(blockDim.x) + int(threadIdx.x)) * 8, count = int(sizes.width) - first;
        if (count <= 0) continue;
        const Eight w = load8(weight + first, count);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[chunk].at[i] *= scale * (w.at[i] + sizes.weight_offset);
        store8(y + row + first, v[chunk], count);
    }
}

// With `n = h·s`, `s` the inverse RMS and `p = dy ⊙ (w + offset)`: `dx = s (p - n · mean(p ⊙ n))`, `dw = Σ dy ⊙ n`.
// `Add`: `d_x += d_h`, the gradient that reaches `h` past the norm; `d_x` is then that of `x` and of `residual`.
template <bool Add, bool Weight>
DEVICE void rms_norm_row_backward(const bf16* h, const float* weight, const bf16* d_y, const bf16* d_h, bf16* d_x,
                                  float* d_weight_partial, const RmsNormSizes& sizes) {
    Eight d_weight[ROW_CHUNKS] = {};
    for (u32 index = blockIdx.x; index < sizes.rows; index += gridDim.x) {
        const u64 row = u64(index) * sizes.width;
        Eight v[ROW_CHUNKS], dy[ROW_CHUNKS];
        float squares = 0.0f, products = 0.0f;
#pragma unroll
        for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) {
            const int first = (chunk * int(blockDim.x) + int(threadIdx.x)) * 8, count = int(sizes.width) - first;
            v[chunk] = dy[chunk] = zeros();
            if (count <= 0) continue;
            v[chunk] = load8(h + row + first, count);
            dy[chunk] = load8(d_y + row + first, count);
            const Eight w = load8(weight + first, count);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                squares += v[chunk].at[i] * v[chunk].at[i];
                products += dy[chunk].at[i] * (w.at[i] + sizes.weight_offset) * v[chunk].at[i];
            }
        }
        const float2 sums = block_sum(squares, products);
        const float scale = rsqrtf(sums.x / float(sizes.width) + sizes.eps);
        const float mean = sums.y / float(sizes.width) * scale * scale;
#pragma unroll
        for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) {
            const int first = (chunk * int(blockDim.x) + int(threadIdx.x)) * 8, count = int(sizes.width) - first;
            if (count <= 0) continue;
            const Eight w = load8(weight + first, count);
            Eight dx = Add ? load8(d_h + row + first, count) : zeros();
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (Weight) d_weight[chunk].at[i] += dy[chunk].at[i] * v[chunk].at[i] * scale;
                dx.at[i] += scale * (dy[chunk].at[i] * (w.at[i] + sizes.weight_offset) - v[chunk].at[i] * mean);
            }
            store8(d_x + row + first, dx, count);
        }
    }
    if (!Weight) return;
#pragma unroll
    for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) {
        const int first = (chunk * int(blockDim.x) + int(threadIdx.x)) * 8, count = int(sizes.width) - first;
        if (count > 0) store8(d_weight_partial + u64(blockIdx.x) * sizes.width + first, d_weight[chunk], count);
    }
}

KERNEL(256) rms_norm_forward(const bf16* __restrict__ x, const float* __restrict__ weight, bf16* __restrict__ y,
                             const RmsNormSizes sizes) {
    rms_norm_row<false>(x, nullptr, weight, nullptr, y, sizes);
}

KERNEL(256) add_rms_norm_forward(const bf16* __restrict__ x, const bf16* __restrict__ residual,
                                 const float* __restrict__ weight, bf16* __restrict__ h, bf16* __restrict__ y,
                                 const RmsNormSizes sizes) {
    rms_norm_row<true>(x, residual, weight, h, y, sizes);
}

KERNEL(256) rms_norm_backward(const bf16* __restrict__ x, const float* __restrict__ weight, const bf16* __restrict__ d_y,
                              bf16* __restrict__ d_x, const RmsNormSizes sizes) {
    rms_norm_row_backward<false, false>(x, weight, d_y, nullptr, d_x, nullptr, sizes);
}

KERNEL(256) rms_norm_backward_weight(const bf16* __restrict__ x, const float* __restrict__ weight,
                                     const bf16* __restrict__ d_y, bf16* __restrict__ d_x,
                                     float* __restrict__ d_weight_partial, const RmsNormSizes sizes) {
    rms_norm_row_backward<false, true>(x, weight, d_y, nullptr, d_x, d_weight_partial, sizes);
}

KERNEL(256) add_rms_norm_backward(const bf16* __restrict__ h, const float* __restrict__ weight,
                                  const bf16* __restrict__ d_y, const bf16* __restrict__ d_h, bf16* __restrict__ d_x,
                                  const RmsNormSizes sizes) {
    rms_norm_row_backward<true, false>(h, weight, d_y, d_h, d_x, nullptr, sizes);
}

// One block on a multiprocessor is enough to ask for: left to itself, ptxas would spill to fit two on sm_121a.
KERNEL(256, 1) add_rms_norm_backward_weight(const bf16* __restrict__ h, const float* __restrict__ weight,
                                         const bf16* __restrict__ d_y, const bf16* __restrict__ d_h,
                                         bf16* __restrict__ d_x, float* __restrict__ d_weight_partial,
                                         const RmsNormSizes sizes) {
    rms_norm_row_backward<true, true>(h, weight, d_y, d_h, d_x, d_weight_partial, sizes);
}
