// `x ← factor · x` over `count` numbers, the factor one fp32 number on the device. The gradient that reaches a loss is one
// almost always: then nothing is read or written.
//
// Launch: 256 threads, ceil(count / 2048) blocks. `x` starts 16-byte aligned.
#pragma once
#include "../device/bf16.cuh"

struct ScaleSizes {
    u64 count;
};

template <class T>
DEVICE void scale(const float* factor, T* x, u64 count) {
    const float by = factor[0];
    const u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (by == 1.0f || first >= count) return;
    const int numbers = int(min(u64(8), count - first));
    Eight v = load8(x + first, numbers);
#pragma unroll
    for (int i = 0; i < 8; ++i) v.at[i] *= by;
    store8(x + first, v, numbers);
}

KERNEL(256) scale_bf16(const float* __restrict__ factor, bf16* __restrict__ x, const ScaleSizes sizes) {
    scale(factor, x, sizes.count);
}

KERNEL(256) scale_f32(const float* __restrict__ factor, float* __restrict__ x, const ScaleSizes sizes) {
    scale(factor, x, sizes.count);
}
