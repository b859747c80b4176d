// Attention of the newest tokens of up to EXAMPLES examples over their cached keys and values, for decoding; forward only.
//
//   q, o [T, N·D] bf16    the n tokens of one example after those of another
//   k_e, v_e [at least `keys`, G·D] bf16  of example e; the newest n of `keys` rows belong to its queries
//   mixed [parts, D], ends [parts, 2] fp32    what a split found: its sum, the largest score and the weights' sum; an example has
//                                             [splits, n·N] of these parts, from its `first_part` on
//
// A query sees the keys up to its own. Reading keys and values bounds the work, so they are read by as many blocks as there are runs of
// SPLIT keys, which start at multiples of SPLIT; a block holds its key/value head's rows (query, head of the group), up to HELD of
// them. D / 8 neighbouring lanes share a key, 8 numbers each. What a query gets does not depend on how many queries and examples there are
// in a launch: keys fall to the same lanes, and what it does not see adds nothing.
//
//   cached_attention        (most splits, G, held · examples) blocks of 256 threads, `held` the most blocks that hold an example's rows,
//                           ceil(n · N / G / HELD); split s has the keys from (first_split + s) · SPLIT on
//   merge_cached_attention  ceil(T · N · D / 256) blocks of 256 threads, after it
//
// Compiled with: HEAD_DIM=256; HEAD_DIM=128; HEAD_DIM=64; HEAD_DIM=32; HEAD_DIM=16
#pragma once
#include "../device/examples.cuh"
#include "../device/reduce.cuh"
#include "packed_attention.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

struct CachedAttentionSizes {
    u32 q_heads, kv_heads;
    u32 window;  // a query sees at most so many keys, at least its own
    u32 held;
    float scale;  // on the scores, above 0
    ExampleRows queries;
    u32 keys[EXAMPLES], first_split[EXAMPLES], splits[EXAMPLES], first_part[EXAMPLES];
};

// What of the sizes belongs to one example.
struct CachedExample {
    u32 first_query, queries, keys, first_split, splits, first_part;

    DEVICE CachedExample(const CachedAttentionSizes& sizes, u32 example)
        : first_query(of_example(sizes.queries.first, example)),
          queries(of_example(sizes.queries.first, example + 1) - first_query),
          keys(of_example(sizes.keys, example)),
          first_split(of_example(sizes.first_split, example)),
          splits(of_example(sizes.splits, example)),
          first_part(of_example(sizes.first_part, example)) {}
};

constexpr int SPLIT = 128, HELD = 4;

template <int D>
DEVICE void attend_to_split(const bf16* q, const bf16* const (&ks)[EXAMPLES], const bf16* const (&vs)[EXAMPLES], float* mixed, float* ends,
                            const CachedAttentionSizes& sizes) {
    constexpr int LANES = D / 8, GROUPS = ATTENTION_THREADS / LANES;
    SHARED(float, maxima, HELD * GROUPS);
    SHARED(float, weights, HELD * GROUPS);
    SHARED(float, parts, HELD * GROUPS * D);
    const u32 kv_head = blockIdx.y, heads_of_group = sizes.q_heads / sizes.kv_heads;
    const CachedExample of(sizes, blockIdx.z / sizes.held);
    const u32 rows = of.queries * heads_of_group, first_row = blockIdx.z % sizes.held * HELD;
    if (blockIdx.x >= of.splits || first_row >= rows) return;
    const bf16 *const k = of_example(ks, blockIdx.z / sizes.held), *const v = of_example(vs, blockIdx.z / sizes.held);
    const int group = int(threadIdx.x) / LANES, column = int(threadIdx.x) % LANES * 8;
    const u64 width = u64(sizes.kv_heads) * D;
    const u32 first_key = (of.first_split + blockIdx.x) * SPLIT;

    // Where row `r` lies among those of all heads of the example, and the keys that it sees.
    const auto place = [&](u32 r) {
        const u32 row = min(first_row + r, rows - 1);
        return u64(row / heads_of_group) * sizes.q_heads + kv_head * heads_of_group + row % heads_of_group;
    };
    Eight query[HELD], sum[HELD];
    float largest[HELD], weight[HELD];
    u32 last[HELD];
#pragma unroll
    for (u32 r = 0; r < HELD; ++r) {
        query[r] = load8(q + (u64(of.first_query) * sizes.q_heads + place(r)) * D + column, 8);
        sum[r] = zeros();
        largest[r] = minus_infinity();
        weight[r] = 0.0f;
        last[r] = of.keys - of.queries + min(first_row + r, rows - 1) / heads_of_group;
    }
#pragma unroll 2
    for (u32 of_split = u32(group); of_split < u32(SPLIT); of_split += u32(GROUPS)) {
        // Lanes of a warp take every step together.
        const u32 key = first_key + of_split;
        const bool is_there = key < of.keys;
        const u64 at = key * width + kv_head * D + column;
        const Eight of_key = is_there ? load8(k + at, 8) : zeros(), of_value = is_there ? load8(v + at, 8) : zeros();
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
            float score = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) score += query[r].at[i] * of_key.at[i];
            score = warp_sum(score, LANES) * (sizes.scale * LOG2_E);
            if (key > last[r] || last[r] - key >= sizes.window) continue;
            const float now = fmaxf(largest[r], score), kept = power_of_two(largest[r] - now), added = power_of_two(score - now);
            largest[r] = now;
            weight[r] = weight[r] * kept + added;
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[r].at[i] = sum[r].at[i] * kept + of_value.at[i] * added;
        }
    }
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
        if (column == 0) {
            maxima[r * GROUPS + group] = largest[r];
            weights[r * GROUPS + group] = weight[r];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) parts[(r * GROUPS + group) * D + column + i] = sum[r].at[i];
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < HELD * D; i += ATTENTION_THREADS) {
        const int r = i / D;
        if (first_row + u32(r) >= rows) continue;
        float most = minus_infinity();
        for (int g = 0; g < GROUPS; ++g) most = fmaxf(most, maxima[r * GROUPS + g]);
        float total = 0.0f, of_all = 0.0f;
        if (most > minus_infinity())
            for (int g = 0; g < GROUPS; ++g) {
                const float factor = power_of_two(maxima[r * GROUPS + g] - most);
                total += factor * weights[r * GROUPS + g];
                of_all += factor * parts[(r * GROUPS + g) * D + i % D];
            }
        const u64 to = of.first_part + u64(blockIdx.x) * of.queries * sizes.q_heads + place(u32(r));
        mixed[to * D + i % D] = of_all;
        if (i % D == 0) {
            ends[2 * to] = most;
            ends[2 * to + 1] = total;
        }
    }
}

KERNEL(ATTENTION_THREADS) cached_attention(const bf16* __restrict__ q, OF_EACH_EXAMPLE(const bf16*, k), OF_EACH_EXAMPLE(const bf16*, v),
                                           float* __restrict__ mixed, float* __restrict__ ends, const CachedAttentionSizes sizes) {
    attend_to_split<HEAD_DIM>(q, ALL_OF(k), ALL_OF(v), mixed, ends, sizes);
}

template <int D>
DEVICE void merge_splits(const float* mixed, const float* ends, bf16* o, const CachedAttentionSizes& sizes) {
    const u32 number = blockIdx.x * blockDim.x + threadIdx.x, query = sizes.queries.first[0] + number / D / sizes.q_heads;
    if (query >= sizes.queries.first[EXAMPLES]) return;
    u32 example = 0;
#pragma unroll
    for (int i = 1; i < EXAMPLES; ++i)
        if (query >= sizes.queries.first[i]) example = u32(i);
    const CachedExample of(sizes, example);
    const u32 rows = of.queries * sizes.q_heads, row = (query - of.first_query) * sizes.q_heads + number / D % sizes.q_heads;
    float most = minus_infinity();
    for (u32 split = 0; split < of.splits; ++split) most = fmaxf(most, ends[2 * (of.first_part + u64(split) * rows + row)]);
    float total = 0.0f, of_all = 0.0f;
    for (u32 split = 0; split < of.splits; ++split) {
        const u64 at = of.first_part + u64(split) * rows + row;
        const float factor = power_of_two(ends[2 * at] - most);
        total += factor * ends[2 * at + 1];
        of_all += factor * mixed[at * D + number % D];
    }
    o[u64(sizes.queries.first[0]) * sizes.q_heads * D + number] = to_bf16(of_all / total);
}

KERNEL(256) merge_cached_attention(const float* __restrict__ mixed, const float* __restrict__ ends, bf16* __restrict__ o,
                                   const CachedAttentionSizes sizes) {
    merge_splits<HEAD_DIM>(mixed, ends, o, sizes);
}
