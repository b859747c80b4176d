// bf16 from fp32, rounded to nearest even, and fp32 from bf16: the weights training computes with from the master weights of a
// checkpoint, and back.
//
// Launch: 256 threads, ceil(count / 2048) blocks.
#pragma once
#include "../device/bf16.cuh"

struct CastSizes {
    u64 count;
};

template <class From, class To>
DEVICE void cast_eight(const From* from, To* to, u64 numbers) {
    const u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (first >= numbers) return;
    const int count = int(min(u64(8), numbers - first));
    store8(to + first, load8(from + first, count), count);
}

KERNEL(256) cast_to_bf16(const float* __restrict__ from, bf16* __restrict__ to, const CastSizes sizes) {
    cast_eight(from, to, sizes.count);
}

KERNEL(256) cast_to_fp32(const bf16* __restrict__ from, float* __restrict__ to, const CastSizes sizes) {
    cast_eight(from, to, sizes.count);
}
