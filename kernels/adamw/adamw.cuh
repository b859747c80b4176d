// AdamW with global-norm clipping, without a word to the host in between: the sums of squares of all gradients
// (`adamw_squares`, one launch per parameter into its part of one `partial` array), the factor they ask for
// (`adamw_clip`, one launch), then the update of each parameter (`adamw_update`).
//
// As in torch (SPEC.md 3): `p ← p (1 - lr·wd)`, then `m`, `v` with bias correction and `p ← p - lr · m̂ / (sqrt(v̂) + eps)`.
// Gradient, master weight and both moments are fp32; the bf16 weight that training computes with is written beside them.
// Every sum has a fixed order. 30 bytes a parameter in `adamw_update`, 4 in `adamw_squares`.
//
// A norm that is not finite is the flag of a lost step: `adamw_update` then writes nothing, so that the parameters outlive it and the host
// may read the norm as late as it likes.
//
// `accumulate` and `accumulate_bf16` add up the gradients of micro-batches.
#pragma once
#include "../device/bf16.cuh"
#include "../device/reduce.cuh"

struct AdamWSquaresSizes {
    u64 count;
    u64 first_partial;  // where this parameter's partial sums begin
};

struct AdamWClipSizes {
    u32 partials;
    float gradient_scale;  // 1 / number of target tokens of the step
    float clip_norm;       // infinity for none
    u32 reserved;
};

struct AdamWUpdateSizes {
    u64 count;
    float beta1, beta2;
    float rest1, rest2;  // 1 - beta, rounded from double
    float eps;
    float step_size;   // lr / (1 - beta1^t)
    float root_scale;  // 1 / sqrt(1 - beta2^t)
    float decay;       // 1 - lr · weight_decay
};

// Numbers one block of `adamw_squares` adds: fixed, so that the order depends on the parameter's length only.
constexpr int SQUARES_PER_BLOCK = 16384;

// Launch: 256 threads, ceil(count / 16384) blocks.
KERNEL(256) adamw_squares(const float* __restrict__ gradient, float* __restrict__ partial, const AdamWSquaresSizes sizes) {
    const u64 begin = u64(blockIdx.x) * SQUARES_PER_BLOCK;
    float sum = 0.0f;
#pragma unroll 4
    for (int round = 0; round < SQUARES_PER_BLOCK / (256 * 8); ++round) {
        const u64 first = begin + (u64(round) * 256 + threadIdx.x) * 8;
        if (first >= sizes.count) break;
        const Eight g = load8(gradient + first, int(min(u64(8), sizes.count - first)));
        float eight = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) eight += g.at[i] * g.at[i];
        sum += eight;
    }
    sum = block_sum(sum, 0.0f).x;
    if (threadIdx.x == 0) partial[sizes.first_partial + blockIdx.x] = sum;
}

// Launch: 256 threads, one block. `result` = [norm of the scaled gradient, factor on the gradient].
// The factor is not a number when the norm is not finite.
KERNEL(256) adamw_clip(const float* __restrict__ partial, float* __restrict__ result, const AdamWClipSizes sizes) {
    SHARED(double, sums, 256);
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < sizes.partials; i += 256) sum += double(partial[i]);
    sums[threadIdx.x] = sum;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] = double(sums[threadIdx.x]) + double(sums[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) {
        const float norm = float(sqrt(double(sums[0]))) * sizes.gradient_scale;
        const float factor = sizes.clip_norm / (norm + 1e-6f);
        result[0] = norm;
        // `norm - norm` is zero, or not a number.
        result[1] = sizes.gradient_scale * (factor >= 1.0f ? 1.0f : factor) + (norm - norm);
    }
}

template <bool Narrow>
DEVICE void updated(const float* gradient, const float* clip, float* master, float* moment1, float* moment2, bf16* narrow,
                    const AdamWUpdateSizes& sizes) {
    const u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (first >= sizes.count) return;
    const int count = int(min(u64(8), sizes.count - first));
    const float scale = clip[1];
    if (scale != scale) return;
    const Eight g = load8(gradient + first, count);
    Eight p = load8(master + first, count), m = load8(moment1 + first, count), v = load8(moment2 + first, count);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float scaled = g.at[i] * scale;
        m.at[i] = sizes.beta1 * m.at[i] + sizes.rest1 * scaled;
        v.at[i] = sizes.beta2 * v.at[i] + sizes.rest2 * (scaled * scaled);
        p.at[i] = p.at[i] * sizes.decay - sizes.step_size * m.at[i] / (sqrtf(v.at[i]) * sizes.root_scale + sizes.eps);
    }
    store8(master + first, p, count);
    store8(moment1 + first, m, count);
    store8(moment2 + first, v, count);
    if (Narrow) store8(narrow + first, p, count);
}

// Launch: 256 threads, ceil(count / 2048) blocks. `narrow`: the weight that training computes with.
KERNEL(256) adamw_update(const float* __restrict__ gradient, const float* __restrict__ clip, float* __restrict__ master,
                         float* __restrict__ moment1, float* __restrict__ moment2, bf16* __restrict__ narrow,
                         const AdamWUpdateSizes sizes) {
    updated<true>(gradient, clip, master, moment1, moment2, narrow, sizes);
}

// The same for parameters that training computes with in fp32.
KERNEL(256) adamw_update_wide(const float* __restrict__ gradient, const float* __restrict__ clip, float* __restrict__ master,
                              float* __restrict__ moment1, float* __restrict__ moment2, const AdamWUpdateSizes sizes) {
    updated<false>(gradient, clip, master, moment1, moment2, nullptr, sizes);
}

struct AccumulateSizes {
    u64 count;
};

template <class Number>
DEVICE void accumulate_eight(const Number* addend, float* total, u64 numbers) {
    const u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (first >= numbers) return;
    const int count = int(min(u64(8), numbers - first));
    const Eight x = load8(addend + first, count);
    Eight sum = load8(total + first, count);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum.at[i] += x.at[i];
    store8(total + first, sum, count);
}

// `total += addend`. Launch: 256 threads, ceil(count / 2048) blocks.
KERNEL(256) accumulate(const float* __restrict__ addend, float* __restrict__ total, const AccumulateSizes sizes) {
    accumulate_eight(addend, total, sizes.count);
}

KERNEL(256) accumulate_bf16(const bf16* __restrict__ addend, float* __restrict__ total, const AccumulateSizes sizes) {
    accumulate_eight(addend, total, sizes.count);
}
