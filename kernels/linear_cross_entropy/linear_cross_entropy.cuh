// Head and cross-entropy in one, on the rows that have a target: losses and gradients without the logits [n, V].
//
//     loss[i] = -ln softmax(x_i · Wᵀ)[token_i] = ln(1 + Σ_{v ≠ token_i} exp(logit_v - logit_token))
//     d_x_i = scale · (Σ_{v ≠ token_i} p_v W_v - (1 - p_token) W_token),   d_W = scale · Σ_i (p_i - onehot_i) ⊗ x_i
//
// hidden [T, H] bf16, W [V, H] bf16, `rows` [n] (ascending) and `tokens` [n] u32; H and V are multiples of 8. d_hidden [T, H] bf16, d_W [V, H] fp32.
//
// The work is cut into chunks of R rows, those into slabs of `width` columns of the vocabulary. What is stored of a slab's logits is
// `e = exp(logit - reference of the row)` in bf16 [R, width], with 0 at the target. The softmax's denominator then is a factor of the row,
// which nobody needs before the whole vocabulary has passed: the products run on `e`, and no pass over the logits lies between them.
//   - bf16 keeps `e` to 2⁻⁹ of itself whatever its size, which it would not keep the logit to.
//   - The reference is the target's logit, so that `e` of what matters lies between exp(-40) and exp(60). In a row that loses more than 60 nats a
//     logit may lie higher: `cross_entropy_rows` then moves the reference to the largest logit so far and raises a flag for
//     `cross_entropy_logits_again`, which writes the row's `e` anew; without a flag it returns at once. The losses come from the
//     statistics and are right either way.
//   - The target is left out of sum and product and comes in at the end in fp32, `1 - p_token` from the loss: a row that is nearly sure of its
//     target loses nothing to cancellation.
//
// Launches, for each chunk [first, first + R) of the targets:
//     cross_entropy_start
//     for each slab [first_column, first_column + width):
//         cross_entropy_logits, cross_entropy_rows, cross_entropy_logits_again, cross_entropy_backward_input
//     cross_entropy_finish                  d_hidden, the rows without a target between this chunk's and the next one's included
//     cross_entropy_weight_operands, cross_entropy_backward_weight     for d_W; the chunk must be a single slab then, width = V
// and after all chunks cross_entropy_sum. The losses alone: start, then statistics and rows for each slab; sum.
// One chunk with several slabs reads W twice in all and is the way where W is frozen. With d_W each chunk reads and writes all of d_W, so
// that R should be as large as memory allows.
//
// The row by row kernels are those of rows.cuh. Scratch, all of it written before it is read:
//     x [R, H] bf16; state [5, R] fp32 (`RowState`); flags [ceil(R / 32)] u32; e [R, width] bf16
//     statistics [ceil(width / STRIP), R] × 2 fp32: maximum and Σ exp(logit - maximum) of STRIP columns, the target left out
//     d_x [splits, R, H] fp32
// 2·R·width + 8·R·width / STRIP + R·H·(2 + 4·splits) bytes: 473 MB at R 5376, H 2048, width 35584 (7 slabs of V 248320), one split. Widths are
// multiples of 8, best of 128. Splits serve where R · H is few tiles; their number decides the order of the sum, so take it from the sizes.
// losses [n] fp32 and loss [2] fp32 are results. "Row threads" are ceil(H / 8) rounded up to a warp, at most 256.
//
// `group`: of the logits as in linear.cuh; 8 for d_x, whose k is long; 4 for d_W, so that a tile's columns of `e` are read once.
// TILE as in linear.cuh, STRIP its n / warps along n; "tile threads" are 32 · its warps.
// Compiled with: TILE=128,128,32,2,2,3; TILE=128,256,32,2,4,4
#pragma once
#include "../device/gemm.cuh"
#include "../device/reduce.cuh"
#include "row_state.cuh"

#ifndef TILE
#define TILE 128, 128, 32, 2, 2, 3
#endif

constexpr float LOG2_E = 1.4426950408889634f;

struct CrossEntropyLogitsSizes {
    u32 rows, hidden;         // R, H
    u32 first;                // target that the chunk starts at
    u32 first_column, width;  // the slab
    u32 group;                // tiles of a column that neighbouring blocks compute; see `tile_of_block`
};

struct CrossEntropyBackwardInputSizes {
    u32 rows, hidden;
    u32 first_column, width;
    u32 group;
    u32 width_of_split;  // columns of the slab that one of gridDim.y takes, a multiple of 8
    u32 accumulate;      // 0 for the first slab, else 1
};

struct CrossEntropyBackwardWeightSizes {
    u32 rows, hidden, vocabulary;
    u32 group;
    u32 accumulate;  // 0 to replace d_W, 1 to add to it
};

// 2ˣ; what is smaller than any normal number is zero.
DEVICE float power_of_two(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return x < -126.0f ? 0.0f : std::exp2(x);
#endif
}

// One tile of a slab: statistics of its strips and, with `Store`, `e`.
template <class Tile, bool Store, bool Statistics>
DEVICE void cross_entropy_tile(const bf16* x, const bf16* weight, const u32* tokens, const float* state, bf16* e, float2* statistics,
                               const CrossEntropyLogitsSizes& sizes, GemmPlace place) {
    const GemmTerm product[1] = {{x, weight + u64(sizes.first_column) * sizes.hidden, sizes.hidden, sizes.hidden, sizes.hidden}};
    Tile c;
    gemm_sums<Tile, K_INNER, K_INNER>(c, product, sizes.rows, sizes.width, place);

    const float nothing = -__uint_as_float(0x7f800000);
    const u32 strip_first = place.column + u32(warp_index() % Tile::warps_n * Tile::warp_n);
    const u32 own_first = strip_first + u32(lane_index() % 4 * 2);
    const u32 row_first = place.row + u32(warp_index() / Tile::warps_n * Tile::warp_m + lane_index() / 4);
    const bool ragged = strip_first + Tile::warp_n > sizes.width;
    // Column of each row's target, counted from the strip: outside of it for most. Loaded for all rows at once, to wait once.
    constexpr int ROWS = 2 * Tile::pieces_m;
    u32 targets[ROWS];
    float references[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const u32 row = row_first + u32(8 * i);
        targets[i] = row < sizes.rows ? tokens[sizes.first + row] - sizes.first_column - strip_first : ~0u;
        references[i] = Store && row < sizes.rows ? state[REFERENCE * sizes.rows + row] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const u32 row = row_first + u32(8 * i);
        const auto at = [&](int number) -> float& { return c.sums[i / 2][number / 2][i % 2 * 2 + number % 2]; };
        constexpr int NUMBERS = 2 * Tile::pieces_n;
        if (ragged) {
#pragma unroll
            for (int n = 0; n < NUMBERS; ++n)
                if (own_first + u32(n / 2 * 8) >= sizes.width) at(n) = nothing;
        }
        if (targets[i] < u32(Tile::warp_n)) {
#pragma unroll
            for (int n = 0; n < NUMBERS; ++n)
                if (targets[i] == u32(lane_index() % 4 * 2 + n / 2 * 8 + n % 2)) at(n) = nothing;
        }
        float maximum = nothing, sum = 0.0f;
#pragma unroll
        for (int n = 0; n < NUMBERS; ++n) maximum = fmaxf(maximum, at(n));
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(ALL_LANES, maximum, 2));
        const float base = maximum == nothing ? 0.0f : maximum;
        const float factor = power_of_two((base - references[i]) * LOG2_E);
#pragma unroll
        for (int n = 0; n < NUMBERS; ++n) {
            const float power = power_of_two((at(n) - base) * LOG2_E);
            if (Statistics) sum += power;
            if (Store) at(n) = power * factor;
        }
        if (Statistics) {
            sum = warp_sum(sum, 4);
            if (lane_index() % 4 == 0 && row < sizes.rows && strip_first < sizes.width)
                statistics[u64(strip_first / Tile::warp_n) * sizes.rows + row] = make_float2(maximum, sum);
        }
    }
    if (!Store) return;
    for_each_four(c, place, [&](u32 row, u32 column, float4 four) {
        if (row >= sizes.rows || column >= sizes.width) return;
        *reinterpret_cast<u64*>(e + u64(row) * sizes.width + column) =
            u64(pack_bf16(four.x, four.y)) | u64(pack_bf16(four.z, four.w)) << 32;
    });
}

template <class Tile>
DEVICE void logits(const bf16* x, const bf16* weight, const u32* tokens, const float* state, bf16* e, float2* statistics,
                   const CrossEntropyLogitsSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.rows, sizes.width, sizes.group);
    cross_entropy_tile<Tile, true, true>(x, weight, tokens, state, e, statistics, sizes, place);
}

template <class Tile>
DEVICE void statistics_alone(const bf16* x, const bf16* weight, const u32* tokens, float2* statistics,
                             const CrossEntropyLogitsSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.rows, sizes.width, sizes.group);
    cross_entropy_tile<Tile, false, true>(x, weight, tokens, nullptr, nullptr, statistics, sizes, place);
}

template <class Tile>
DEVICE void logits_again(const bf16* x, const bf16* weight, const u32* tokens, const float* state, const u32* flags, bf16* e,
                         const CrossEntropyLogitsSizes& sizes) {
    static_assert(Tile::m % ROWS_OF_FLAG == 0, "a flag belongs to one tile");
    const u32 tiles = (sizes.rows + Tile::m - 1) / Tile::m * ((sizes.width + Tile::n - 1) / Tile::n);
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const GemmPlace place = tile_of_block<Tile>(tile, sizes.rows, sizes.width, sizes.group);
        u32 flag = 0;
        for (u32 row = place.row; row < min(place.row + Tile::m, sizes.rows); row += ROWS_OF_FLAG) flag |= flags[row / ROWS_OF_FLAG];
        if (flag) cross_entropy_tile<Tile, true, false>(x, weight, tokens, state, e, nullptr, sizes, place);
    }
}

template <class Tile>
DEVICE void backward_input(const bf16* e, const bf16* weight, const float* state, float* d_x, const CrossEntropyBackwardInputSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.rows, sizes.hidden, sizes.group);
    const u32 from = min(blockIdx.y * sizes.width_of_split, sizes.width), width = min(sizes.width - from, sizes.width_of_split);
    const GemmTerm product[1] = {
        {e + from, weight + u64(sizes.first_column + from) * sizes.hidden, sizes.width, sizes.hidden, width}};
    Tile c;
    gemm_sums<Tile, K_INNER, K_OUTER>(c, product, sizes.rows, sizes.hidden, place);
    float* const out = d_x + u64(blockIdx.y) * sizes.rows * sizes.hidden;
    for_each_four(c, place, [&](u32 row, u32 column, float4 four) {
        if (row >= sizes.rows || column >= sizes.hidden) return;
        float4* const to = reinterpret_cast<float4*>(out + u64(row) * sizes.hidden + column);
        if (sizes.accumulate) {
            const float shrink = state[SHRINK * sizes.rows + row];
            const float4 before = *to;
            four = make_float4(before.x * shrink + four.x, before.y * shrink + four.y, before.z * shrink + four.z,
                               before.w * shrink + four.w);
        }
        *to = four;
    });
}

template <class Tile>
DEVICE void backward_weight(const bf16* e, const bf16* x, float* d_weight, const CrossEntropyBackwardWeightSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.vocabulary, sizes.hidden, sizes.group);
    const GemmTerm product[1] = {{e, x, sizes.vocabulary, sizes.hidden, sizes.rows}};
    Tile c;
    gemm_sums<Tile, K_OUTER, K_OUTER>(c, product, sizes.vocabulary, sizes.hidden, place);
    for_each_four(c, place, [&](u32 row, u32 column, float4 four) {
        if (row >= sizes.vocabulary || column >= sizes.hidden) return;
        float4* const to = reinterpret_cast<float4*>(d_weight + u64(row) * sizes.hidden + column);
        if (sizes.accumulate) four = make_float4(to->x + four.x, to->y + four.y, to->z + four.z, to->w + four.w);
        *to = four;
    });
}

using HeadTile = GemmTile<TILE>;

// Launch: tile threads, ceil(R / tile m) · ceil(width / tile n) blocks.
KERNEL(HeadTile::threads) cross_entropy_logits(const bf16* __restrict__ x, const bf16* __restrict__ weight, const u32* __restrict__ tokens,
                                               const float* __restrict__ state, bf16* __restrict__ e, float2* __restrict__ statistics,
                                               const CrossEntropyLogitsSizes sizes) {
    logits<HeadTile>(x, weight, tokens, state, e, statistics, sizes);
}

// The same without `e`, for the losses alone.
KERNEL(HeadTile::threads) cross_entropy_statistics(const bf16* __restrict__ x, const bf16* __restrict__ weight,
                                                   const u32* __restrict__ tokens, float2* __restrict__ statistics,
                                                   const CrossEntropyLogitsSizes sizes) {
    statistics_alone<HeadTile>(x, weight, tokens, statistics, sizes);
}

// `e` of the tiles with a flag. Launch: tile threads, any number of blocks, two per multiprocessor say.
KERNEL(HeadTile::threads) cross_entropy_logits_again(const bf16* __restrict__ x, const bf16* __restrict__ weight,
                                                     const u32* __restrict__ tokens, const float* __restrict__ state,
                                                     const u32* __restrict__ flags, bf16* __restrict__ e,
                                                     const CrossEntropyLogitsSizes sizes) {
    logits_again<HeadTile>(x, weight, tokens, state, flags, e, sizes);
}

// d_x [splits, R, H] (+)= e · W of the slab, what lies there brought to the reference of now.
// Launch: tile threads, blocks (ceil(R / tile m) · ceil(H / tile n), splits).
KERNEL(HeadTile::threads) cross_entropy_backward_input(const bf16* __restrict__ e, const bf16* __restrict__ weight,
                                                       const float* __restrict__ state, float* __restrict__ d_x,
                                                       const CrossEntropyBackwardInputSizes sizes) {
    backward_input<HeadTile>(e, weight, state, d_x, sizes);
}

// d_W [V, H] (+)= eᵀ · x. Launch: tile threads, ceil(V / tile m) · ceil(H / tile n) blocks.
KERNEL(HeadTile::threads) cross_entropy_backward_weight(const bf16* __restrict__ e, const bf16* __restrict__ x, float* __restrict__ d_weight,
                                                        const CrossEntropyBackwardWeightSizes sizes) {
    backward_weight<HeadTile>(e, x, d_weight, sizes);
}
