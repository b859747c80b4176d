// The gated delta rule over a packed row (SPEC.md 2.4 to 2.6), chunked, forward and backward: what its kernels share. No
// kernel is in this file; they are in the four beside it, in the order of their launches:
//
//   chunk_matrices.cuh   delta_rule_chunk_matrices      all chunks at once: norms, gate sums, scores, triangular solve
//   forward.cuh          delta_rule_forward             chunks of a segment one after the other: outputs
//                        delta_rule_states              the same for backward: states and writes instead of outputs
//   backward.cuh         delta_rule_backward            chunks last to first: gradients of v and of the states
//   gradients.cuh        delta_rule_gradients           all chunks at once: gradients of q, k, g and beta
//
//   forward:   chunk_matrices, forward
//   backward:  chunk_matrices (if its results were not kept), states, backward, gradients
//
// With D = HEAD_DIM, r = Nv / Nk, value head m reading key head m / r; per chunk of C = 64 tokens, rows i and j of it,
// k and q of unit length, q times D^-1/2, S [D, D] the state before the chunk:
//
//   B_i = Σ_{l≤i} g_l     Γ_ij = exp(B_i - B_j)     E = diag(exp(B_i))     F = diag(exp(B_last - B_i))     γ = exp(B_last)
//   N = strictly_lower(K Kᵀ ⊙ Γ)     P = lower(Q Kᵀ ⊙ Γ)     T = (I + diag(beta) N)^-1 diag(beta)
//   X = T (V - E K S)     O = E Q S + P X     S' = γ S + Kᵀ F X
//
// and, from dO and dS', the gradient of the state behind the chunk:
//
//   dV = dZ = Tᵀ (Pᵀ dO + F K dS')            dS = γ dS' + Qᵀ E dO - Kᵀ E dZ
//   G = lower(dO Xᵀ) ⊙ Γ                       H = -strictly_lower(dZ Xᵀ) ⊙ Γ
//   dQ = E dO Sᵀ + G K                         dK = F X dS'ᵀ - E dZ Sᵀ + Gᵀ Q + H K + Hᵀ K
//   dbeta_i = dZ_i · X_i / beta_i²
//   dg_l = γ <S, dS'> + Σ_{i≥l} [q_i · dQ_i + k_i · (H K - E dZ Sᵀ - Gᵀ Q - Hᵀ K)_i] + Σ_{j<l} k_j · (F X dS'ᵀ)_j
//
// (`kernels/gated_delta_rule/cpu/mod.rs` derives them.) Everything but T, P and the last block is a column of dv on its own, so the
// passes over the chunks split dv between blocks.
//
// Buffers, row-major; `chunks` counts those of the whole pack:
//   qkv, d_qkv          [T, (2 Nk + Nv) D] bf16    q, k, v after the convolution, not normalised
//   out, d_out, writes  [T, Nv D] bf16             O, dO, X
//   g, beta, d_g, d_beta, gate_sums [T, Nv] fp32   gate_sums: B
//   norms               [T, Nk, 2] fp32            1 / sqrt(Σ x² + 1e-6) of q and of k
//   inverses, attentions [chunks, Nv, 64, 64] f16  T and P, zero outside the chunk's tokens
//   states, d_states    [chunks, Nv, D, D] bf16    S before, dS' behind each chunk, [dk, dv]
//   chunk_table         [chunks, 2] u32            first token and number of tokens (1 to 64); chunks start at each border and
//                                                  lie in the order of the tokens
//   segment_table       [segments, 2] u32          first chunk and number of chunks; in any order: the longest first
//                                                  leaves no block alone at the end
// A token of gate_sums, norms and of all outputs belongs to exactly one chunk, so every output is written completely.
//
// Numbers. State, gate sums, norms, scores and the triangular solve are fp32. Operands of the tensor cores:
//   - q and k as they are stored: norms and decays are factors of fp32 on rows of a product, or on G and H;
//   - T and P, which are at most 1 where beta is, in f16, and with them, forward, V - E K S and X. Where keys are alike the sums
//     over X cancel: with bf16 here the output is off by 1.5e-2, so by 2.8e-3 (cosine of the keys 0.97). The price: what V has over its
//     prediction must stay below 65504, and has fewer bits below 6e-5;
//   - in backward, where gradients may be of any size, T, P, G, H and Pᵀ dO + F K dS' as two bf16, high and low part (in the
//     same case d_v 2.6e-3 instead of 8e-3, d_g 1.2e-2 instead of 4.6e-2);
//   - rounded to bf16: S, F X, and in backward X, dS', dZ and E dO.
// A log decay below -100 is taken as -100, whose exponential is nothing beside 1. d_beta is 0 where |beta| < 1e-18, and below 1e-4
// only good to about 3e-8 / |beta| of itself, for T is f16; the sigmoid in front multiplies it with beta.
//
// Compiled with: HEAD_DIM=128; HEAD_DIM=64; HEAD_DIM=32; HEAD_DIM=16
#pragma once
#include "../device/f16.cuh"
#include "../device/reduce.cuh"
#include "../device/shared.cuh"
#include "../device/tensor_core.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

struct DeltaRuleSizes {
    u32 key_heads, value_heads;
};

constexpr int CHUNK = 64;
constexpr int DELTA_THREADS = 256;

// A matrix of 16-bit numbers in shared memory, and how the warps share the work on a result of its shape. Eight more numbers a row put
// the eight rows that `ldmatrix` reads at once, and the rows of a stored fragment, into different banks.
template <int ROWS, int COLUMNS>
struct Tile {
    static constexpr int PITCH = COLUMNS + 8, SIZE = ROWS * PITCH;
    static constexpr int BANDS = ROWS / 16, WARPS = DELTA_THREADS / WARP;
    static constexpr int GROUPS = WARPS / BANDS < COLUMNS / 16 ? WARPS / BANDS : COLUMNS / 16;
    // A warp has 16 rows and WIDTH columns, COUNT fragments of 8 columns.
    static constexpr int WIDTH = COLUMNS / GROUPS, COUNT = WIDTH / 8;
    typedef float Sums[COUNT][4];

    // Small heads leave warps without a part.
    DEVICE static bool mine() { return warp_index() < BANDS * GROUPS; }
    DEVICE static int row() { return warp_index() % BANDS * 16; }
    DEVICE static int group() { return warp_index() / BANDS; }
    DEVICE static int column() { return group() * WIDTH; }
    // Where this lane's sums lie: pair `half` of fragment `n` is (row_of(half), column_of(n)) and the column after it.
    DEVICE static int row_of(int half) { return row() + lane_index() / 4 + 8 * half; }
    DEVICE static int column_of(int n) { return column() + n * 8 + lane_index() % 4 * 2; }
};

DEVICE void clear(float (&sums)[4]) { sums[0] = sums[1] = sums[2] = sums[3] = 0.0f; }

template <int COUNT>
DEVICE void clear(float (&sums)[COUNT][4]) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n) clear(sums[n]);
}

// Multiplies the two rows that a lane has by their factors.
template <int COUNT>
DEVICE void scale_rows(float (&sums)[COUNT][4], float upper, float lower) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n) {
        sums[n][0] *= upper;
        sums[n][1] *= upper;
        sums[n][2] *= lower;
        sums[n][3] *= lower;
    }
}

// 16 rows of an operand A from `at`, its numbers [row][k], or [k][row] when `Turned`.
template <bool Turned, class Number>
DEVICE void load_a(u32 (&a)[4], const Number* at, int pitch) {
    const int lane = lane_index();
    if (Turned) ldmatrix_x4_transposed(a, at + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
    else ldmatrix_x4(a, at + lane % 16 * pitch + lane / 16 * 8);
}

// 16 columns of an operand B from `at`, its numbers [column][k], or [k][column] when `Turned`.
template <bool Turned, class Number>
DEVICE void load_b(u32 (&b)[4], const Number* at, int pitch) {
    const int lane = lane_index();
    if (Turned) ldmatrix_x4_transposed(b, at + lane % 16 * pitch + lane / 16 * 8);
    else ldmatrix_x4(b, at + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}

// 16 rows of A, ready for products with fragments of B in the same format, or with bf16 ones of f16 rows in two parts.
template <class NumberA, class NumberB>
struct Operand;

template <>
struct Operand<bf16, bf16> {
    u32 a[4];
    DEVICE void split() {}
    DEVICE void multiply(float (&sums)[4], u32 b0, u32 b1) const { mma(sums, a, b0, b1); }
};

template <>
struct Operand<f16, f16> {
    u32 a[4];
    DEVICE void split() {}
    DEVICE void multiply(float (&sums)[4], u32 b0, u32 b1) const { mma_f16(sums, a, b0, b1); }
};

// The 11 bits of an f16 number are the 8 of one bf16 number and the rest in another, nothing is lost.
template <>
struct Operand<f16, bf16> {
    u32 a[4], low[4];
    DEVICE void split() {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack_f16(a[i]);
            a[i] = pack_bf16(pair.x, pair.y);
            low[i] = pack_bf16(pair.x - __uint_as_float(a[i] << 16), pair.y - __uint_as_float(a[i] & 0xffff0000u));
        }
    }
    DEVICE void multiply(float (&sums)[4], u32 b0, u32 b1) const {
        mma(sums, low, b0, b1);
        mma(sums, a, b0, b1);
    }
};

// sums += A · B over `DEPTH` numbers. `a` is the first number of this warp's rows, `b` that of its columns. Eight independent `mma`
// are enough to hide their latency; fewer go several steps together, which takes registers.
template <int DEPTH, bool TurnedA, bool TurnedB, int COUNT, class NumberA, class NumberB>
DEVICE void multiply(float (&sums)[COUNT][4], const NumberA* a, int pitch_a, const NumberB* b, int pitch_b) {
#pragma unroll(COUNT > 4 ? 1 : 4)
    for (int k = 0; k < DEPTH; k += 16) {
        Operand<NumberA, NumberB> of_a;
        load_a<TurnedA>(of_a.a, TurnedA ? a + k * pitch_a : a + k, pitch_a);
        of_a.split();
#pragma unroll
        for (int n = 0; n < COUNT; n += 2) {
            u32 of_b[4];
            load_b<TurnedB>(of_b, TurnedB ? b + k * pitch_b + n * 8 : b + n * 8 * pitch_b + k, pitch_b);
            of_a.multiply(sums[n], of_b[0], of_b[1]);
            of_a.multiply(sums[n + 1], of_b[2], of_b[3]);
        }
    }
}

// Starts the copy of a matrix into a tile; rows from `rows` on become zero and are not read.
template <class Shape, class Number>
DEVICE void copy_tile(Number* to, const Number* from, u64 stride, int rows) {
    constexpr int LINE = (Shape::PITCH - 8) / 8, ROWS = Shape::SIZE / Shape::PITCH, PASS = DELTA_THREADS / LINE;
    const int row = int(threadIdx.x) / LINE, column = int(threadIdx.x) % LINE * 8;
    to += row * Shape::PITCH + column;
    from += row * stride + column;
#pragma unroll
    for (int first = 0; first < ROWS; first += PASS)
        if (ROWS % PASS == 0 || row < ROWS) cp_async16(to + first * Shape::PITCH, from + first * stride, first + row < rows);
}

DEVICE float2 load_pair(const bf16* at) {
    const u32 word = load_shared<u32>(at);
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

DEVICE void store_pair(bf16* at, float low, float high) { store_shared(at, pack_bf16(low, high)); }

DEVICE void store_pair(f16* at, float low, float high) { store_shared(at, pack_f16(low, high)); }

// The same to global memory, 4-byte aligned.
DEVICE void write_pair(bf16* at, float low, float high) { *reinterpret_cast<u32*>(at) = pack_bf16(low, high); }

DEVICE void write_pair(f16* at, float low, float high) { *reinterpret_cast<u32*>(at) = pack_f16(low, high); }

// Running sums over 64 numbers of which lane `l` has 2l and 2l + 1.
DEVICE float2 running_sums(float2 x) {
    const int lane = lane_index();
    float sum = x.x + x.y;
    for (int distance = 1; distance < WARP; distance *= 2) {
        const float before = __shfl_sync(ALL_LANES, sum, max(lane - distance, 0));
        if (lane >= distance) sum += before;
    }
    const float before = __shfl_sync(ALL_LANES, sum, max(lane - 1, 0)), first = lane > 0 ? before + x.x : x.x;
    return make_float2(first, first + x.y);
}

// A chunk of the table.
struct ChunkOfTokens {
    u64 first;
    int count;
};

DEVICE ChunkOfTokens chunk_at(const u32* chunk_table, u32 chunk) {
    return {chunk_table[2 * chunk], int(chunk_table[2 * chunk + 1])};
}

// Numbers a token takes in `qkv`.
DEVICE u64 qkv_width(const DeltaRuleSizes& sizes, int head_dim) {
    return u64(2 * sizes.key_heads + sizes.value_heads) * u64(head_dim);
}

// What stands in front of row `i` of a product in the formulas above, for q and k as they are stored: E with the norm of k, E with
// that of q (and its D^-1/2), F with that of k.
struct RowFactors {
    float entry_k, entry_q, exit_k;
};

// For row `i` of a chunk; zeros behind its end.
template <int D>
DEVICE RowFactors row_factors(const float* gate_sums, const float* norms, const DeltaRuleSizes& sizes, u32 head, ChunkOfTokens chunk,
                              int i) {
    if (i >= chunk.count) return {0.0f, 0.0f, 0.0f};
    const u64 token = chunk.first + i, last = chunk.first + chunk.count - 1;
    const float sum = gate_sums[token * sizes.value_heads + head], whole = gate_sums[last * sizes.value_heads + head];
    const float* norm = norms + 2 * (token * sizes.key_heads + head / (sizes.value_heads / sizes.key_heads));
    const float entry = __expf(sum);
    return {entry * norm[1], entry * norm[0] * rsqrtf(float(D)), __expf(whole - sum) * norm[1]};
}
