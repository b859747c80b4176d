// `gelu(gate) ⊙ up`, the middle of Gemma's MLP, over `count` numbers; bf16 in and out, fp32 between. The GELU is the approximation
// by a hyperbolic tangent: gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
//
// Launch: 256 threads, ceil(count / 2048) blocks. Buffers start 16-byte aligned.
#pragma once
#include "../device/bf16.cuh"
#include "../device/silu.cuh"

struct GeluMulSizes {
    u64 count;
};

DEVICE u64 first_number() { return (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; }

DEVICE int numbers_left(u64 first, u64 count) { return first + 8 <= count ? 8 : first < count ? int(count - first) : 0; }

// 2 sqrt(2/pi)
constexpr float SLOPE = 1.5957691f;
constexpr float CUBIC = 0.044715f;

// gelu(x) / x
DEVICE float gelu_share(float x) { return sigmoid(SLOPE * (x + CUBIC * x * x * x)); }

KERNEL(256) gelu_mul_forward(const bf16* __restrict__ gate, const bf16* __restrict__ up, bf16* __restrict__ out,
                             const GeluMulSizes sizes) {
    const u64 first = first_number();
    const int count = numbers_left(first, sizes.count);
    if (count == 0) return;
    const Eight g = load8(gate + first, count), u = load8(up + first, count);
    Eight y;
#pragma unroll
    for (int i = 0; i < 8; ++i) y.at[i] = g.at[i] * gelu_share(g.at[i]) * u.at[i];
    store8(out + first, y, count);
}

KERNEL(256) gelu_mul_backward(const bf16* __restrict__ gate, const bf16* __restrict__ up, const bf16* __restrict__ d_out,
                              bf16* __restrict__ d_gate, bf16* __restrict__ d_up, const GeluMulSizes sizes) {
    const u64 first = first_number();
    const int count = numbers_left(first, sizes.count);
    if (count == 0) return;
    const Eight g = load8(gate + first, count), u = load8(up + first, count), dy = load8(d_out + first, count);
    Eight dg, du;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float x = g.at[i], s = gelu_share(x), slope = SLOPE * (1.0f + 3.0f * CUBIC * x * x);
        dg.at[i] = dy.at[i] * u.at[i] * s * (1.0f + x * (1.0f - s) * slope);
        du.at[i] = dy.at[i] * x * s;
    }
    store8(d_gate + first, dg, count);
    store8(d_up + first, du, count);
}
