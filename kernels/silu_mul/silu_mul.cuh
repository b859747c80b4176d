// `silu(gate) ⊙ up`, the middle of the MLP, over `count` numbers; bf16 in and out, fp32 between.
//
// Launch: 256 threads, ceil(count / 2048) blocks. Buffers start 16-byte aligned.
#pragma once
#include "../device/bf16.cuh"
#include "../device/silu.cuh"

struct SiluMulSizes {
    u64 count;
};

DEVICE u64 first_number() { return (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; }

DEVICE int numbers_left(u64 first, u64 count) { return first + 8 <= count ? 8 : first < count ? int(count - first) : 0; }

KERNEL(256) silu_mul_forward(const bf16* __restrict__ gate, const bf16* __restrict__ up, bf16* __restrict__ out,
                             const SiluMulSizes sizes) {
    const u64 first = first_number();
    const int count = numbers_left(first, sizes.count);
    if (count == 0) return;
    const Eight g = load8(gate + first, count), u = load8(up + first, count);
    Eight y;
#pragma unroll
    for (int i = 0; i < 8; ++i) y.at[i] = silu(g.at[i]) * u.at[i];
    store8(out + first, y, count);
}

KERNEL(256) silu_mul_backward(const bf16* __restrict__ gate, const bf16* __restrict__ up, const bf16* __restrict__ d_out,
                              bf16* __restrict__ d_gate, bf16* __restrict__ d_up, const SiluMulSizes sizes) {
    const u64 first = first_number();
    const int count = numbers_left(first, sizes.count);
    if (count == 0) return;
    const Eight g = load8(gate + first, count), u = load8(up + first, count), dy = load8(d_out + first, count);
    Eight dg, du;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        dg.at[i] = dy.at[i] * u.at[i] * silu_derivative(g.at[i]);
        du.at[i] = dy.at[i] * silu(g.at[i]);
    }
    store8(d_gate + first, dg, count);
    store8(d_up + first, du, count);
}
