// The gates of the delta rule (SPEC.md 2.4 step 6), two numbers per token and value head: the log decay of the state
// `g = -exp(a_log) · softplus(a + dt_bias)` and the strength of a write `beta = sigmoid(b)`. `a`, `b` [rows, heads] bf16; `a_log`,
// `dt_bias` [heads] and `g`, `beta`, `d_g`, `d_beta` [rows, heads] fp32, for the delta rule adds g up and takes the exponential of the sum.
//
// Launch: 256 threads; at most 256 heads. Forward: ceil(rows · heads / 256) blocks. Backward: any number of blocks; with the
// gradients of the parameters a fixed one, each block leaving one row of `d_parameters_partial [blocks, 2 · heads]`, first a_log, then
// dt_bias, for `sum_rows`.
#pragma once
#include "../device/bf16.cuh"
#include "../device/silu.cuh"

struct DeltaGatesSizes {
    u32 rows, heads;
};

// ln(1 + eˣ) without overflow.
DEVICE float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(x > 0.0f ? -x : x)); }

KERNEL(256) delta_gates_forward(const bf16* __restrict__ a, const bf16* __restrict__ b, const float* __restrict__ a_log,
                                const float* __restrict__ dt_bias, float* __restrict__ g, float* __restrict__ beta,
                                const DeltaGatesSizes sizes) {
    const u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= u64(sizes.rows) * sizes.heads) return;
    const u32 head = u32(at % sizes.heads);
    g[at] = -expf(a_log[head]) * softplus(to_float(a[at]) + dt_bias[head]);
    beta[at] = sigmoid(to_float(b[at]));
}

// `da = -dg · exp(a_log) · sigmoid(a + dt_bias)`, `db = dbeta · beta · (1 - beta)`, `da_log = Σ dg · g`, `ddt_bias = Σ da`, the sums over
// rows. A thread keeps to one head; `256 / heads` rows go at once.
template <bool Parameters>
DEVICE void delta_gates_gradients(const bf16* a, const bf16* b, const float* a_log, const float* dt_bias, const float* d_g,
                                  const float* d_beta, bf16* d_a, bf16* d_b, float* d_parameters_partial,
                                  const DeltaGatesSizes& sizes) {
    SHARED(float, parts, Parameters ? 2 * 256 : 1);
    const u32 together = blockDim.x / sizes.heads, head = threadIdx.x % sizes.heads, mine = threadIdx.x / sizes.heads;
    float of_log = 0.0f, of_bias = 0.0f;
    if (mine < together) {
        const float rate = expf(a_log[head]), bias = dt_bias[head];
        for (u64 row = u64(blockIdx.x) * together + mine; row < sizes.rows; row += u64(gridDim.x) * together) {
            const u64 at = row * sizes.heads + head;
            const float x = to_float(a[at]) + bias, above = -d_g[at] * rate, da = above * sigmoid(x);
            const float strength = sigmoid(to_float(b[at]));
            d_a[at] = to_bf16(da);
            d_b[at] = to_bf16(d_beta[at] * strength * (1.0f - strength));
            of_log += above * softplus(x);
            of_bias += da;
        }
    }
    if (!Parameters) return;
    parts[threadIdx.x] = of_log;
    parts[256 + threadIdx.x] = of_bias;
    __syncthreads();
    for (u32 column = threadIdx.x; column < 2 * sizes.heads; column += blockDim.x) {
        const u32 first = column < sizes.heads ? column : 256 + column - sizes.heads;
        float sum = 0.0f;
        for (u32 i = 0; i < together; ++i) sum += parts[first + i * sizes.heads];
        d_parameters_partial[u64(blockIdx.x) * 2 * sizes.heads + column] = sum;
    }
}

KERNEL(256) delta_gates_backward(const bf16* __restrict__ a, const bf16* __restrict__ b, const float* __restrict__ a_log,
                                 const float* __restrict__ dt_bias, const float* __restrict__ d_g,
                                 const float* __restrict__ d_beta, bf16* __restrict__ d_a, bf16* __restrict__ d_b,
                                 const DeltaGatesSizes sizes) {
    delta_gates_gradients<false>(a, b, a_log, dt_bias, d_g, d_beta, d_a, d_b, nullptr, sizes);
}

KERNEL(256) delta_gates_backward_parameters(const bf16* __restrict__ a, const bf16* __restrict__ b,
                                            const float* __restrict__ a_log, const float* __restrict__ dt_bias,
                                            const float* __restrict__ d_g, const float* __restrict__ d_beta,
                                            bf16* __restrict__ d_a, bf16* __restrict__ d_b,
                                            float* __restrict__ d_parameters_partial, const DeltaGatesSizes sizes) {
    delta_gates_gradients<true>(a, b, a_log, dt_bias, d_g, d_beta, d_a, d_b, d_parameters_partial, sizes);
}
