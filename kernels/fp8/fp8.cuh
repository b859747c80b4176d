// The two products of linear layers whose operands may be rounded to e4m3, with or without an adapter: the forward pass of one
// layer, `y = x Wᵀ + u Bᵀ`, and the gradient of an input that several layers share, `d_x = Σ_i d_y_i W_i + d_u A`. Not lossless.
//
// e4m3 operands come from `quantize.cuh`, a scale for each row; what `u`, `B`, `d_u` and `A` are, lora_linear.cuh says. The sums
// of the e4m3 terms are multiplied by the scales of their row and column, which are powers of two, and the bf16 terms are then
// added to the same fp32 sums: a result is rounded once.
//
// In `fp8_linears_backward_input` the layers whose d_y and W are e4m3 are one product: their d_y lie side by side, their
// transposed W too, with one scale for a row through all of them. Layers that stay in bf16 are terms of their own.
//
// Launch: blocks ceil(m / tile m) · ceil(n / tile n), threads 32 · warps m · warps n; TILE and `group` as in linear.cuh, counted in
// bf16, so that a tile is 2 k of e4m3 deep. k and depth are multiples of 16, all other sizes but m of 8; outputs may be fewer than
// the numbers of d_y if those behind them are zeros.
//
// Compiled with: TILE=128,128,32,2,4,3; TILE=64,64,64,2,2,3
#pragma once
#include "../device/gemm.cuh"

#ifndef TILE
#define TILE 128, 128, 32, 2, 4, 3
#endif

struct Fp8ForwardSizes {
    u32 m, n, k, rank;  // x [m, k], W [n, k], u [m, rank] within [m, u_pitch], B [n, rank]; rank 0: no adapter
    u32 u_pitch, u_first;
    u32 group;
};

constexpr int FP8_LAYERS = 4;

struct Fp8InputSizes {
    u32 m, n, depth, rank;    // d_x [m, n]; of the e4m3 layers d_y [m, depth], W [n, depth]; d_u [m, rank], A [rank, n]
    u32 outputs[FP8_LAYERS];  // of the bf16 layers d_y_i [m, outputs] within [m, d_y_pitch], W_i [outputs, n]; 0: no such layer
    u32 d_y_pitch[FP8_LAYERS];
    u32 group;
};

// Two e4m3 matrices, as `gemm.cuh` takes them.
DEVICE GemmTerm e4m3_term(const unsigned char* a, const unsigned char* b, u32 k) {
    return {reinterpret_cast<const bf16*>(a), reinterpret_cast<const bf16*>(b), k / 2, k / 2, k / 2};
}

// The sums of one e4m3 term, brought back to their size.
template <class Tile>
DEVICE void e4m3_sums(Tile& c, const unsigned char* a, const float* of_row, const unsigned char* b, const float* of_column,
                      u32 m, u32 n, u32 k, GemmPlace place) {
    const GemmTerm terms[1] = {e4m3_term(a, b, k)};
    begin_sums(c);
    add_gemm_sums<Tile, K_INNER, K_INNER, FORMAT_E4M3>(c, terms, m, n, place);
    for_each_pair(c, place, [&](u32 row, u32 column, float& x, float& y) {
        if (row >= m || column >= n) return;
        // Together first: one may be huge where the other is tiny.
        x *= of_row[row] * of_column[column];
        y *= of_row[row] * of_column[column + 1];
    });
}

template <class Tile>
DEVICE void fp8_forward_tile(const unsigned char* x, const float* of_x, const unsigned char* weight, const float* of_weight,
                             const bf16* u, const bf16* b, bf16* y, const Fp8ForwardSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.m, sizes.n, sizes.group);
    Tile tile;
    e4m3_sums(tile, x, of_x, weight, of_weight, sizes.m, sizes.n, sizes.k, place);
    if (sizes.rank > 0) {
        const GemmTerm terms[1] = {{u + sizes.u_first, b, sizes.u_pitch, sizes.rank, sizes.rank}};
        add_gemm_sums<Tile, K_INNER, K_INNER, FORMAT_BF16>(tile, terms, sizes.m, sizes.n, place);
    }
    for_each_four(tile, place, [&](u32 row, u32 column, float4 sums) {
        if (row < sizes.m && column < sizes.n) store4(y + u64(row) * sizes.n + column, sums, false);
    });
}

template <class Tile>
DEVICE void fp8_input_tile(const unsigned char* d_y8, const float* of_d_y, const unsigned char* weight8,
                           const float* of_weight, const bf16* const (&d_y)[FP8_LAYERS],
                           const bf16* const (&weight)[FP8_LAYERS], const bf16* d_u, const bf16* a, bf16* d_x,
                           const Fp8InputSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.m, sizes.n, sizes.group);
    Tile tile;
    e4m3_sums(tile, d_y8, of_d_y, weight8, of_weight, sizes.m, sizes.n, sizes.depth, place);
    u32 others = sizes.rank;
    GemmTerm terms[FP8_LAYERS + 1];
#pragma unroll
    for (int i = 0; i < FP8_LAYERS; ++i) {
        terms[i] = {d_y[i], weight[i], sizes.d_y_pitch[i], sizes.n, sizes.outputs[i]};
        others += sizes.outputs[i];
    }
    terms[FP8_LAYERS] = {d_u, a, sizes.rank, sizes.n, sizes.rank};
    if (others > 0) add_gemm_sums<Tile, K_INNER, K_OUTER, FORMAT_BF16>(tile, terms, sizes.m, sizes.n, place);
    for_each_four(tile, place, [&](u32 row, u32 column, float4 sums) {
        if (row < sizes.m && column < sizes.n) store4(d_x + u64(row) * sizes.n + column, sums, false);
    });
}

using Fp8Tile = GemmTile<TILE>;

// Any buffers will do for an adapter or a layer that is not there.
KERNEL(Fp8Tile::threads)
fp8_linear_forward(const unsigned char* __restrict__ x, const float* __restrict__ of_x,
                   const unsigned char* __restrict__ weight, const float* __restrict__ of_weight,
                   const bf16* __restrict__ u, const bf16* __restrict__ b, bf16* __restrict__ y,
                   const Fp8ForwardSizes sizes) {
    fp8_forward_tile<Fp8Tile>(x, of_x, weight, of_weight, u, b, y, sizes);
}

KERNEL(Fp8Tile::threads)
fp8_linears_backward_input(const unsigned char* __restrict__ d_y, const float* __restrict__ of_d_y,
                           const unsigned char* __restrict__ weight, const float* __restrict__ of_weight,
                           const bf16* __restrict__ d_y_0, const bf16* __restrict__ weight_0,
                           const bf16* __restrict__ d_y_1, const bf16* __restrict__ weight_1,
                           const bf16* __restrict__ d_y_2, const bf16* __restrict__ weight_2,
                           const bf16* __restrict__ d_y_3, const bf16* __restrict__ weight_3, const bf16* __restrict__ d_u,
                           const bf16* __restrict__ a, bf16* __restrict__ d_x, const Fp8InputSizes sizes) {
    fp8_input_tile<Fp8Tile>(d_y, of_d_y, weight, of_weight, {d_y_0, d_y_1, d_y_2, d_y_3},
                            {weight_0, weight_1, weight_2, weight_3}, d_u, a, d_x, sizes);
}
