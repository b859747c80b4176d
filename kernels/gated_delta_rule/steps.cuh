// The gated delta rule of up to EXAMPLES examples, each continued from a state (SPEC.md 2.4), token by token: what decoding and reading
// a prompt need. Forward only.
//
//   qkv [n, (2 Nk + Nv) D] bf16    q, k, v after the convolution, not normalised; the tokens of one example after those of another
//   g, beta [n, Nv] fp32
//   before_e [Nv, D, D] fp32       the state of example e, [dk, dv]
//   after_e [1 or its tokens, Nv, D, D]  its state behind its last token, or with `each` behind each of its tokens
//   out [n, Nv D] bf16
//
// With S the state before a token, a = exp(g), and q and k of unit length, q times D^-1/2, both products with the state are taken
// before it changes, so that the eight lanes of a column wait for each other once a token:
//
//   e = beta (v - a kᵀS)     S' = a S + k e     o = a qᵀS + (q · k) e
//
// Launch: (Nv, D / COLUMNS, examples) blocks of 8 · COLUMNS threads, COLUMNS = min(D, 32). Eight neighbouring lanes share a column of dv; each
// holds D / 8 of its keys in fp32 from the first token to the last. What a token gives does not depend on how many tokens and examples
// a launch has.
//
// Compiled with: HEAD_DIM=128; HEAD_DIM=64; HEAD_DIM=32; HEAD_DIM=16
#pragma once
#include "../device/examples.cuh"
#include "../device/reduce.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

struct DeltaStepsSizes {
    u32 key_heads, value_heads, each;
    ExampleRows tokens;
};

constexpr int COLUMN_LANES = 8;

template <int D>
struct StepsShape {
    static constexpr int COLUMNS = D < 32 ? D : 32, THREADS = COLUMN_LANES * COLUMNS;
};

template <int KEYS>
DEVICE void load_keys(float (&to)[KEYS], const bf16* from) {
#pragma unroll
    for (int first = 0; first < KEYS; first += 8) {
        const Eight part = load8(from + first, KEYS - first);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (first + i < KEYS) to[first + i] = part.at[i];
    }
}

template <int D>
DEVICE void delta_steps(const bf16* qkv, const float* g, const float* beta, const float* const (&befores)[EXAMPLES], bf16* out,
                        float* const (&afters)[EXAMPLES], const DeltaStepsSizes& sizes) {
    constexpr int KEYS = D / COLUMN_LANES;
    const u32 head = blockIdx.x, key_head = head / (sizes.value_heads / sizes.key_heads);
    const u32 column = blockIdx.y * StepsShape<D>::COLUMNS + threadIdx.x / COLUMN_LANES;
    const u32 first_key = threadIdx.x % COLUMN_LANES * KEYS;
    const u64 width = u64(2 * sizes.key_heads + sizes.value_heads) * D;
    const bf16* const qs = qkv + key_head * D + first_key;
    const bf16* const ks = qs + sizes.key_heads * D;
    const bf16* const vs = qkv + (2 * sizes.key_heads + head) * D + column;
    const u64 place = (u64(head) * D + first_key) * D + column;
    const u32 first = of_example(sizes.tokens.first, blockIdx.z), end = of_example(sizes.tokens.first, blockIdx.z + 1);
    const float* const before = of_example(befores, blockIdx.z) + place;
    float* after = of_example(afters, blockIdx.z) + place;
    float state[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i) state[i] = before[u64(i) * D];

    for (u32 token = first; token < end; ++token) {
        float q[KEYS], k[KEYS];
        load_keys(q, qs + token * width);
        load_keys(k, ks + token * width);
        const float v = to_float(vs[token * width]);
        const u64 gate = u64(token) * sizes.value_heads + head;
        const float decay = __expf(g[gate]);
        float q_q = 0.0f, k_k = 0.0f, q_k = 0.0f, q_state = 0.0f, k_state = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            q_q += q[i] * q[i];
            k_k += k[i] * k[i];
            q_k += q[i] * k[i];
            q_state += q[i] * state[i];
            k_state += k[i] * state[i];
        }
        const float norm_q = rsqrtf(warp_sum(q_q, COLUMN_LANES) + 1e-6f) * rsqrtf(float(D));
        const float norm_k = rsqrtf(warp_sum(k_k, COLUMN_LANES) + 1e-6f);
        const float predicted = decay * norm_k * warp_sum(k_state, COLUMN_LANES);
        const float error = beta[gate] * (v - predicted);
        const float read = norm_q * (decay * warp_sum(q_state, COLUMN_LANES) + norm_k * warp_sum(q_k, COLUMN_LANES) * error);
        const float written = norm_k * error;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) state[i] = decay * state[i] + k[i] * written;
        if (threadIdx.x % COLUMN_LANES == 0) out[gate * D + column] = to_bf16(read);
        if (!sizes.each && token + 1 < end) continue;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) after[u64(i) * D] = state[i];
        after += u64(sizes.value_heads) * D * D;
    }
}

KERNEL(256) delta_rule_steps(const bf16* __restrict__ qkv, const float* __restrict__ g, const float* __restrict__ beta,
                             OF_EACH_EXAMPLE(const float*, before), bf16* __restrict__ out, OF_EACH_EXAMPLE(float*, after),
                             const DeltaStepsSizes sizes) {
    delta_steps<HEAD_DIM>(qkv, g, beta, ALL_OF(before), out, ALL_OF(after), sizes);
}
