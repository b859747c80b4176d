// Packed causal attention, forward (SPEC.md 2.3 step 6 and 2.6): per query head and token `o = softmax(scale · q·kᵀ) v` over
// the keys of the token's own example up to itself (and inside the window), and `lse`, the natural logarithm of the softmax's
// denominator. Layouts and tables: `packed_attention.cuh`. No score ever leaves the multiprocessor.
//
// Queries stay in registers as the left operand; a tile's scores are this warp's alone, become weights in place and are
// the left operand of the second product: no exchange between warps, one barrier a tile. Sums and maximum are fp32; the
// mixed values are moved to a new maximum only when one of the warp's rows has one.
//
// Launch: items · G blocks of 256 threads, `work` as `packed_attention.cuh` says, 0 in the first word of every item.
// Compiled with: HEAD_DIM=256; HEAD_DIM=128; HEAD_DIM=64; HEAD_DIM=32; HEAD_DIM=16
#pragma once
#include "packed_attention.cuh"

template <int D, int Keys>
DEVICE void attention_forward(const bf16* q, const bf16* k, const bf16* v, const u32* borders, const u32* work, bf16* o,
                              float* lse, const PackedAttentionSizes& s) {
    // Two stages, each a tile of keys and one of values.
    constexpr u32 TILE = Keys * D;
    DYNAMIC_SHARED(bf16, tiles, 4 * TILE, 0);
    SHARED(u32, spans, ATTENTION_THREADS / WARP * 4);
    const u32 item = blockIdx.x / s.kv_heads, kv_head = blockIdx.x % s.kv_heads;
    const Rows<D, true> queries(kv_head, s);
    const Rows<D, false> keys(kv_head, s);
    const Held<D, true> held(queries, queries.group, work[3 * item + 1], work[3 * item + 2], borders, spans, s);
    const auto request = [&](u32 stage, u32 from) {
        each_piece<D, Keys>(keys, from, held.all.end, [&](u32 where, u64 number, bool exists) {
            cp_async16(&tiles[stage * 2 * TILE + where], k + number, exists);
            cp_async16(&tiles[(stage * 2 + 1) * TILE + where], v + number, exists);
        });
        cp_async_commit();
    };
    request(0, held.all.begin);
    u32 left[D / 16][4];
    load_left<D>(left, q, queries, held.row(), held.end);
    const auto query = [&](int column, u32(&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = left[column / 16][i];
    };

    // Of the lane's two rows; `sum` over the lane's own columns.
    float mixed[D / 8][4] = {}, highest[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
    const float unit = s.scale * LOG2_E;
    u32 stage = 0;
    for (u32 from = held.all.begin; from < held.all.end; from += Keys, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // The tile is whole, and nobody reads the one before it any more, where the next one goes.
        const Sight seen_by_warp = sight(spans, from, Keys);
        if (!seen_by_warp.some) {
            request(stage ^ 1, from + Keys);
            continue;
        }

        float weights[Keys / 8][4] = {};
        add_times_transposed<D, Keys>(weights, query, tiles, stage * 2 * TILE);
        request(stage ^ 1, from + Keys);  // Here its address arithmetic runs beside the product.
        if (!seen_by_warp.all) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 row = min(held.row() + 8 * half, held.end - 1);
                const Span seen = visible<true>(queries.token(row), 1, borders, s);
                const u32 first = from + anew(threadIdx.x) % 4 * 2 - seen.begin;
#pragma unroll
                for (int n = 0; n < Keys / 4; ++n) {
                    float& weight = weights[n / 2][2 * half + n % 2];
                    weight = first + n / 2 * 8 + n % 2 < seen.end - seen.begin ? weight : minus_infinity();
                }
            }
        }

        bool higher = false;
        float shrink[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float here = highest[half];
#pragma unroll
            for (int n = 0; n < Keys / 4; ++n) here = fmaxf(here, weights[n / 2][2 * half + n % 2]);
            here = fmaxf(here, __shfl_xor_sync(ALL_LANES, here, 1));
            here = fmaxf(here, __shfl_xor_sync(ALL_LANES, here, 2));
            higher |= here > highest[half];
            // A row that has not seen a key yet has weights 0, not 2^(-∞ + ∞).
            const float top = here == minus_infinity() ? 0.0f : here * unit;
            shrink[half] = power_of_two(highest[half] * unit - top);
            highest[half] = here;
            float part = 0.0f;
#pragma unroll
            for (int n = 0; n < Keys / 4; ++n) {
                float& weight = weights[n / 2][2 * half + n % 2];
                weight = power_of_two(weight * unit - top);
                part += weight;
            }
            sum[half] = sum[half] * shrink[half] + part;
        }
        if (__any_sync(ALL_LANES, higher)) {
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) mixed[n][i] *= shrink[i / 2];
            }
        }
        add_times<D, Keys>(mixed, weights, tiles, (stage * 2 + 1) * TILE);
    }

    cp_async_wait<0>();  // The zeros behind the last tile: nothing may arrive after the block.

    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 1);
        sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 2);
        inverse[half] = 1.0f / sum[half];
        const u32 row = held.row() + 8 * half;
        if (lane_index() % 4 == 0 && row < held.end)
            lse[queries.statistic(row)] = highest[half] * s.scale + log2f(sum[half]) * LN_2;
    }
    store_rows<D>(o, mixed, inverse, queries, held.row(), held.end);
}

// Keys of a tile. At 256 numbers a head more than 32 exceed shared memory, at 64 the registers of two blocks (sm_90a).
DEVICE constexpr int forward_keys(int head_dim) { return head_dim == 256 || head_dim == 64 ? 32 : 64; }

KERNEL(ATTENTION_THREADS, HEAD_DIM > 64 ? 1 : 2)
packed_attention_forward(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                         const u32* __restrict__ borders, const u32* __restrict__ work, bf16* __restrict__ o,
                         float* __restrict__ lse, const PackedAttentionSizes sizes) {
    attention_forward<HEAD_DIM, forward_keys(HEAD_DIM)>(q, k, v, borders, work, o, lse, sizes);
}
