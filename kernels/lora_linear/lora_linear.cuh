// A frozen linear layer with a low-rank adapter, `y = x Wᵀ + u Bᵀ` with `u = scale · x Aᵀ`, and the gradient of
// an input that several layers share, `d_x = Σ_i d_y_i W_i + d_u A` with `d_u_i = scale · d_y_i B_i`. bf16 operands, fp32
// sums. No gradient of W.
//
// The adapter is one more term of the same sums: a tile goes along k of x and W, then along the rank of u and B, and is
// rounded once. u and d_u themselves are rounded to bf16.
//
// Layers that share x share its adapters' products: the A_i [rank_i, k] lie below each other in one A [Σ rank, k], so that
// u and d_u are [m, Σ rank], layer i's part being columns of them (`u_first`). In this order, all but two from linear.cuh:
//   u     = linear_forward(x, A)              once        scale
//   y_i   = lora_linear_forward               each layer
//   d_u_i = linear_backward_input(d_y_i, B_i) each layer  scale, c_pitch Σ rank, c_first
//   d_x   = lora_linears_backward_input       once for up to four layers
//   d_A   = linear_backward_weight(d_u, x)    once        [Σ rank, k] fp32, shared out among the layers by sum_splits
//   d_B_i = linear_backward_weight(d_y_i, u)  each layer  [n, rank_i] fp32, b_pitch Σ rank, b_first
// `lora_linears_backward_input` serves layers without adapters too (rank 0): the sum over layers stays in fp32 and d_x is
// written once.
//
// `gated_linear_forward` is up's product behind gate: it writes up as `lora_linear_forward` does, and silu(gate) ⊙ up [m, n] with the
// bits of `silu_mul_forward`.
// `gated_linear_backward_input` is for one layer, with an adapter or without one (rank 0), whose input is silu(gate) ⊙ up: instead of
// d_x [m, n] it writes the gradients of gate and up, with the bits of `silu_mul_backward` after d_x in two launches.
//
// Launch: blocks ceil(m / tile m) · ceil(n / tile n), threads 32 · warps m · warps n; TILE and `group` as in linear.cuh.
// Widths, pitches, firsts and ranks are multiples of 8, outputs of 4 as in linear.cuh; m is free.
//
// Compiled with: TILE=128,128,32,2,2,3; TILE=128,256,32,2,4,4; TILE=64,64,64,2,2,3; TILE=128,128,32,2,2,2; TILE=128,128,32,2,2,3,128
#pragma once
#include "../device/gemm.cuh"
#include "../device/silu_ends.cuh"

#ifndef TILE
#define TILE 128, 128, 32, 2, 2, 3
#endif

struct LoraForwardSizes {
    u32 m, n, k, rank;  // x [m, k], W [n, k], u [m, rank] within [m, u_pitch], B [n, rank]
    u32 u_pitch, u_first;
    u32 y_pitch, y_first;  // y [m, n] within [m, y_pitch]
    u32 group;
};

constexpr int LORA_LAYERS = 4;

struct LoraInputSizes {
    u32 m, n, rank;            // d_x [m, n], d_u [m, rank], A [rank, n]
    u32 group, accumulate;     // accumulate: adds to what d_x holds
    u32 outputs[LORA_LAYERS];  // d_y_i [m, outputs] within [m, d_y_pitch], W_i [outputs, n]; 0: there is no such layer
    u32 d_y_pitch[LORA_LAYERS], d_y_first[LORA_LAYERS];
};

struct GatedForwardSizes {
    u32 m, n, k, rank;  // x [m, k], W [n, k], u [m, rank] within [m, u_pitch], B [n, rank]; gate, up and their product [m, n]
    u32 u_pitch, u_first;
    u32 group;
};

struct GatedInputSizes {
    u32 m, n, k, rank;  // d_y [m, k] within [m, d_y_pitch], W [k, n], d_u [m, rank], A [rank, n]; gate and up [m, n]
    u32 d_y_pitch;
    u32 group;
};

template <class Tile>
DEVICE void lora_forward_tile(const bf16* x, const bf16* weight, const bf16* u, const bf16* b, bf16* y,
                              const LoraForwardSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.m, sizes.n, sizes.group);
    const GemmTerm terms[2] = {{x, weight, sizes.k, sizes.k, sizes.k},
                               {u + sizes.u_first, b, sizes.u_pitch, sizes.rank, sizes.rank}};
    Tile tile;
    gemm_sums<Tile, K_INNER, K_INNER>(tile, terms, sizes.m, sizes.n, place);
    for_each_four(tile, place, [&](u32 row, u32 column, float4 sums) {
        if (row >= sizes.m || column >= sizes.n) return;
        store4(y + sizes.y_first + u64(row) * sizes.y_pitch + column, sums, false);
    });
}

template <class Tile>
DEVICE void lora_input_tile(const bf16* const (&d_y)[LORA_LAYERS], const bf16* const (&weight)[LORA_LAYERS], const bf16* d_u,
                            const bf16* a, bf16* d_x, const LoraInputSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.m, sizes.n, sizes.group);
    GemmTerm terms[LORA_LAYERS + 1];
#pragma unroll
    for (int i = 0; i < LORA_LAYERS; ++i)
        terms[i] = {d_y[i] + sizes.d_y_first[i], weight[i], sizes.d_y_pitch[i], sizes.n, sizes.outputs[i]};
    terms[LORA_LAYERS] = {d_u, a, sizes.rank, sizes.n, sizes.rank};
    Tile tile;
    gemm_sums<Tile, K_INNER, K_OUTER>(tile, terms, sizes.m, sizes.n, place);
    for_each_four(tile, place, [&](u32 row, u32 column, float4 sums) {
        if (row < sizes.m && column < sizes.n) store4(d_x + u64(row) * sizes.n + column, sums, sizes.accumulate);
    });
}

template <class Tile>
DEVICE void gated_forward_tile(const bf16* x, const bf16* weight, const bf16* u, const bf16* b, const bf16* gate, bf16* up,
                               bf16* product, const GatedForwardSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.m, sizes.n, sizes.group);
    const GemmTerm terms[2] = {{x, weight, sizes.k, sizes.k, sizes.k},
                               {u + sizes.u_first, b, sizes.u_pitch, sizes.rank, sizes.rank}};
    Tile tile;
    gemm_sums<Tile, K_INNER, K_INNER>(tile, terms, sizes.m, sizes.n, place);
    store_silu_product(tile, place, sizes.m, sizes.n, gate, up, product);
}

template <class Tile>
DEVICE void gated_input_tile(const bf16* d_y, const bf16* weight, const bf16* d_u, const bf16* a, const bf16* gate, const bf16* up,
                             bf16* d_gate, bf16* d_up, const GatedInputSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.m, sizes.n, sizes.group);
    const GemmTerm terms[2] = {{d_y, weight, sizes.d_y_pitch, sizes.n, sizes.k}, {d_u, a, sizes.rank, sizes.n, sizes.rank}};
    Tile tile;
    gemm_sums<Tile, K_INNER, K_OUTER>(tile, terms, sizes.m, sizes.n, place);
    store_silu_gradients(tile, place, sizes.m, sizes.n, gate, up, d_gate, d_up);
}

using LoraTile = GemmTile<TILE>;

KERNEL(LoraTile::threads)
lora_linear_forward(const bf16* __restrict__ x, const bf16* __restrict__ weight, const bf16* __restrict__ u,
                    const bf16* __restrict__ b, bf16* __restrict__ y, const LoraForwardSizes sizes) {
    lora_forward_tile<LoraTile>(x, weight, u, b, y, sizes);
}

// Any buffer will do for a layer that is not there.
KERNEL(LoraTile::threads)
lora_linears_backward_input(const bf16* __restrict__ d_y_0, const bf16* __restrict__ weight_0,
                            const bf16* __restrict__ d_y_1, const bf16* __restrict__ weight_1,
                            const bf16* __restrict__ d_y_2, const bf16* __restrict__ weight_2,
                            const bf16* __restrict__ d_y_3, const bf16* __restrict__ weight_3, const bf16* __restrict__ d_u,
                            const bf16* __restrict__ a, bf16* __restrict__ d_x, const LoraInputSizes sizes) {
    lora_input_tile<LoraTile>({d_y_0, d_y_1, d_y_2, d_y_3}, {weight_0, weight_1, weight_2, weight_3}, d_u, a, d_x, sizes);
}

KERNEL(LoraTile::threads, 1)
gated_linear_forward(const bf16* __restrict__ x, const bf16* __restrict__ weight, const bf16* __restrict__ u,
                     const bf16* __restrict__ b, const bf16* __restrict__ gate, bf16* __restrict__ up,
                     bf16* __restrict__ product, const GatedForwardSizes sizes) {
    gated_forward_tile<LoraTile>(x, weight, u, b, gate, up, product, sizes);
}

// One block on a multiprocessor is enough to ask for: left to itself, ptxas would spill 64 × 64 tiles on sm_121a to fit one more.
KERNEL(LoraTile::threads, 1)
gated_linear_backward_input(const bf16* __restrict__ d_y, const bf16* __restrict__ weight, const bf16* __restrict__ d_u,
                            const bf16* __restrict__ a, const bf16* __restrict__ gate, const bf16* __restrict__ up,
                            bf16* __restrict__ d_gate, bf16* __restrict__ d_up, const GatedInputSizes sizes) {
    gated_input_tile<LoraTile>(d_y, weight, d_u, a, gate, up, d_gate, d_up, sizes);
}
