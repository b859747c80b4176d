// Packed causal attention, backward. With the weights `p = exp(scale · q·kᵀ - lse)` computed again, `dp = d_o·vᵀ`,
// `delta = Σ d_o ⊙ o` per query row and `ds = p ⊙ (dp - delta)`:
//     d_q = scale · ds k,    d_k = scale · dsᵀ q,    d_v = pᵀ d_o.
// Layouts and tables: `packed_attention.cuh`. No gradient is summed by two blocks, so the same inputs give the same bits; the
// sum over the query heads of a group is the sum over a block's streamed rows.
//
// Each block holds 128 rows of one side and forms one gradient of theirs, in registers, as forward does: of queries d_q, of
// keys d_k or d_v. Above 128 numbers a head d_k and d_v of 16 keys a warp are more than its registers, so they are two items of
// work and the scores of keys are computed twice: eight products where one pass would have five. Up to 128 one item forms both.
//
// Order: `packed_attention_delta` (or a kernel before it that left `delta`), then `packed_attention_backward`, which writes
// all three gradients.
// Launch: `packed_attention_delta` 256 threads, any number of blocks up to ceil(T · N · D / 2048). `packed_attention_backward`
// items · G blocks of 256 threads; the first word of an item says what it forms: 0 d_q of queries; 1 d_k of keys, and d_v too where
// D ≤ 128; 2 d_v of keys, only where D = 256. Every query has to be in one item of kind 0, every key in one of kind 1 (and 2).
// Cost of an item, for putting the longest first: streamed rows times 3, 3 (or 4) and 2.
// Compiled with: HEAD_DIM=256; HEAD_DIM=128; HEAD_DIM=64; HEAD_DIM=32; HEAD_DIM=16
#pragma once
#include "packed_attention.cuh"
#include "../device/reduce.cuh"

// delta [T, N] of `d_o, o [T, N·D]`.
template <int D>
DEVICE void attention_delta(const bf16* d_o, const bf16* o, float* delta, const PackedAttentionSizes& s) {
    constexpr int LANES_OF_ROW = D / 8;
    const u32 rows = s.tokens * s.q_heads, per_block = ATTENTION_THREADS / LANES_OF_ROW;
    // Whole blocks go round together: all lanes of a warp take part in its sums.
    for (u32 base = blockIdx.x * per_block; base < rows; base += gridDim.x * per_block) {
        const u32 row = base + threadIdx.x / LANES_OF_ROW;
        const u64 first = u64(row) * D + threadIdx.x % LANES_OF_ROW * 8;
        const Eight a = load8(d_o + first, row < rows ? 8 : 0), b = load8(o + first, row < rows ? 8 : 0);
        float product = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) product += a.at[i] * b.at[i];
        product = warp_sum(product, LANES_OF_ROW);
        if (threadIdx.x % LANES_OF_ROW == 0 && row < rows) delta[row] = product;
    }
}

// What a block is given: the tensors of the held side, then of the streamed side, in the order in which scores and dp
// multiply them.
struct Sides {
    const bf16 *held_of_scores, *held_of_dp, *streamed_of_scores, *streamed_of_dp;
    bf16 *from_scores, *from_weights;  // Σ scale · ds · streamed_of_scores, Σ p · streamed_of_dp
};

// `Scores`: forms the gradient that comes through the scores (d_q or d_k); `Weights`: the one through the weights (d_v).
// `tiles` has 128 held rows (where `Scores`), then two stages of two tiles; `statistics` the base-2 `lse` and the `delta` of the
// held queries, or of two stages of streamed ones.
template <int D, int Count, bool Queries, bool Scores, bool Weights, class Tiles, class Statistics, class Spans>
DEVICE void form_gradients(Tiles& tiles, Statistics& statistics, Spans& spans, const Sides& sides, const float* lse,
                           const float* delta, const u32* borders, u32 first, u32 count, u32 kv_head,
                           const PackedAttentionSizes& s) {
    constexpr u32 TILE = Count * D, STAGES = Scores ? 128 * D : 0;
    const Rows<D, Queries> rows(kv_head, s);
    const Rows<D, !Queries> others(kv_head, s);
    const u32 group = Queries ? rows.group : others.group;
    const Held<D, Queries> held(rows, group, first, count, borders, spans, s);

    // Threads of the first warps carry one number each of the streamed queries' statistics, a tile ahead. Rows behind the last
    // are zeros in both tiles and give nothing, whatever their weights.
    float carried = 0.0f;
    const auto request = [&](u32 stage, u32 from) {
        const u32 to = STAGES + stage * 2 * TILE;
        each_piece<D, Count>(others, from, held.all.end, [&](u32 where, u64 number, bool exists) {
            cp_async16(&tiles[to + where], sides.streamed_of_scores + number, exists);
            cp_async16(&tiles[to + TILE + where], sides.streamed_of_dp + number, exists);
        });
        cp_async_commit();
        if (!Queries && threadIdx.x < 2 * Count) {
            const bool of_lse = threadIdx.x < Count;
            const u32 row = from + threadIdx.x % Count;
            const float* statistic = of_lse ? lse : delta;
            carried = 0.0f;
            if (row < held.all.end) carried = statistic[others.statistic(row)] * (of_lse ? LOG2_E : 1.0f);
        }
    };
    const auto put_statistics = [&](u32 stage) {
        if (!Queries && threadIdx.x < 2 * Count) statistics[stage * 2 * Count + threadIdx.x] = carried;
    };

    // The held rows of one product in registers; of the other, if there is one, in shared memory.
    u32 left[D / 16][4];
    load_left<D>(left, Scores ? sides.held_of_dp : sides.held_of_scores, rows, held.row(), held.end);
    if (Scores)
        each_piece<D, 128>(rows, first * rows.group, held.end, [&](u32 where, u64 number, bool exists) {
            cp_async16(&tiles[where], sides.held_of_scores + number, exists);
        });
    request(0, held.all.begin);
    put_statistics(0);
    const auto in_registers = [&](int column, u32(&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = left[column / 16][i];
    };
    const auto in_shared = [&](int column, u32(&a)[4]) {
        const u32 thread = anew(threadIdx.x), base = place<D>(thread / WARP * 16 + thread % 16, thread % WARP / 16 * 8);
        ldmatrix_x4(a, &tiles[(base ^ column % 64) + column / 64 * 64]);
    };
    if (Queries && threadIdx.x < 128) {
        const u64 at = rows.statistic(min(held.first + threadIdx.x, held.end - 1));
        statistics[threadIdx.x] = lse[at] * LOG2_E;
        statistics[128 + threadIdx.x] = delta[at];
    }

    // What belongs to the queries of this lane's four numbers of columns n·8..n·8 + 8: `lse` (0) or `delta` (1).
    const auto statistic = [&](u32 stage, u32 which, u32 n, float(&of_query)[4]) {
        const u32 thread = anew(threadIdx.x);
        if (Queries) {
            const u32 at = which * 128 + thread / WARP * 16 + thread % WARP / 4;
            of_query[0] = of_query[1] = statistics[at];
            of_query[2] = of_query[3] = statistics[at + 8];
        } else {
            const float2 two = load_shared<float2>(&statistics[(stage * 2 + which) * Count + n * 8 + thread % 4 * 2]);
            of_query[0] = of_query[2] = two.x;
            of_query[1] = of_query[3] = two.y;
        }
    };

    constexpr int NONE = 1;
    float through_scores[Scores ? D / 8 : NONE][4] = {}, through_weights[Weights ? D / 8 : NONE][4] = {};
    const float unit = s.scale * LOG2_E;
    u32 stage = 0;
    for (u32 from = held.all.begin; from < held.all.end; from += Count, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // The tile is whole, and nobody reads the one before it any more, where the next one goes.
        const Sight seen_by_warp = sight(spans, from, Count);
        if (seen_by_warp.some) {
            const u32 of_scores = STAGES + stage * 2 * TILE, of_dp = of_scores + TILE;
            float p[Count / 8][4] = {}, ds[Scores ? Count / 8 : NONE][4] = {};
            // The request's address arithmetic runs beside the first product, the exponentials beside the second.
            if constexpr (Scores) {
                add_times_transposed<D, Count>(p, in_shared, tiles, of_scores);
                request(stage ^ 1, from + Count);
                add_times_transposed<D, Count>(ds, in_registers, tiles, of_dp);
            } else {
                add_times_transposed<D, Count>(p, in_registers, tiles, of_scores);
                request(stage ^ 1, from + Count);
            }
#pragma unroll
            for (int n = 0; n < Count / 8; ++n) {
                float of_query[4];
                statistic(stage, 0, n, of_query);
#pragma unroll
                for (int i = 0; i < 4; ++i) p[n][i] = power_of_two(p[n][i] * unit - of_query[i]);
            }
            if (!seen_by_warp.all) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const u32 row = min(held.row() + 8 * half, held.end - 1);
                    const Span seen = visible<Queries>(rows.token(row), group, borders, s);
                    const u32 column = from + anew(threadIdx.x) % 4 * 2 - seen.begin;
#pragma unroll
                    for (int n = 0; n < Count / 4; ++n) {
                        float& weight = p[n / 2][2 * half + n % 2];
                        weight = column + n / 2 * 8 + n % 2 < seen.end - seen.begin ? weight : 0.0f;
                    }
                }
            }
            if constexpr (Weights) add_times<D, Count>(through_weights, p, tiles, of_dp);
            if constexpr (Scores) {
#pragma unroll
                for (int n = 0; n < Count / 8; ++n) {
                    float of_query[4];
                    statistic(stage, 1, n, of_query);
#pragma unroll
                    for (int i = 0; i < 4; ++i) ds[n][i] = p[n][i] * (ds[n][i] - of_query[i]);
                }
                add_times<D, Count>(through_scores, ds, tiles, of_scores);
            }
        } else {
            request(stage ^ 1, from + Count);
        }
        put_statistics(stage ^ 1);
    }
    cp_async_wait<0>();  // The zeros behind the last tile: nothing may arrive after the block.
    if constexpr (Scores) store_rows<D>(sides.from_scores, through_scores, {s.scale, s.scale}, rows, held.row(), held.end);
    if constexpr (Weights) store_rows<D>(sides.from_weights, through_weights, {1.0f, 1.0f}, rows, held.row(), held.end);
}

template <int D, int Count>
DEVICE void attention_backward(const bf16* q, const bf16* k, const bf16* v, const bf16* d_o, const float* lse,
                               const float* delta, const u32* borders, const u32* work, bf16* d_q, bf16* d_k, bf16* d_v,
                               const PackedAttentionSizes& s) {
    DYNAMIC_SHARED(bf16, tiles, (128 + 4 * Count) * D, 0);
    SHARED(float, statistics, 256);
    SHARED(u32, spans, ATTENTION_THREADS / WARP * 4);
    const u32 item = blockIdx.x / s.kv_heads, kv_head = blockIdx.x % s.kv_heads;
    const u32 what = work[3 * item], first = work[3 * item + 1], count = work[3 * item + 2];
    if (what == 0) {
        form_gradients<D, Count, true, true, false>(tiles, statistics, spans, {q, d_o, k, v, d_q, nullptr}, lse, delta, borders,
                                                    first, count, kv_head, s);
    } else if constexpr (D <= 128) {
        form_gradients<D, Count, false, true, true>(tiles, statistics, spans, {k, v, q, d_o, d_k, d_v}, lse, delta, borders,
                                                    first, count, kv_head, s);
    } else if (what == 1) {
        form_gradients<D, Count, false, true, false>(tiles, statistics, spans, {k, v, q, d_o, d_k, nullptr}, lse, delta, borders,
                                                     first, count, kv_head, s);
    } else {
        // No held rows in shared memory: room for longer tiles.
        form_gradients<D, 2 * Count, false, false, true>(tiles, statistics, spans, {k, nullptr, q, d_o, nullptr, d_v}, lse, delta,
                                                         borders, first, count, kv_head, s);
    }
}

// Streamed rows of a tile. At 256 numbers a head more than 16 exceed shared memory, at 64 the registers of two blocks.
DEVICE constexpr int backward_rows(int head_dim) { return head_dim == 256 || head_dim == 64 ? 16 : 32; }

KERNEL(ATTENTION_THREADS)
packed_attention_delta(const bf16* __restrict__ d_o, const bf16* __restrict__ o, float* __restrict__ delta,
                       const PackedAttentionSizes sizes) {
    attention_delta<HEAD_DIM>(d_o, o, delta, sizes);
}

KERNEL(ATTENTION_THREADS, HEAD_DIM > 64 ? 1 : 2)
packed_attention_backward(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                          const bf16* __restrict__ d_o, const float* __restrict__ lse, const float* __restrict__ delta,
                          const u32* __restrict__ borders, const u32* __restrict__ work, bf16* __restrict__ d_q,
                          bf16* __restrict__ d_k, bf16* __restrict__ d_v, const PackedAttentionSizes sizes) {
    attention_backward<HEAD_DIM, backward_rows(HEAD_DIM)>(q, k, v, d_o, lse, delta, borders, work, d_q, d_k, d_v, sizes);
}
