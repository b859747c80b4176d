// `y = x Wᵀ`, its gradients, and every other bf16 product of two matrices: C [m, n] (+)= scale · A · B.
// bf16 operands, fp32 sums, whose order depends on the sizes and the number of splits alone.
//
// | kernel                   | A          | B             | C                                           |
// | `linear_forward`         | x [m, k]   | weight [n, k] | y [m, n] bf16                               |
// | `linear_backward_input`  | d_y [m, k] | weight [k, n] | d_x [m, n] bf16: k counts outputs, n inputs |
// | `linear_backward_weight` | d_y [k, m] | x [k, n]      | d_weight [m, n] fp32: k counts tokens       |
//
// Firsts and pitches let A, B and C be columns of wider matrices. They are multiples of 8, as are all sizes but those that
// count tokens (m of the first two kernels, k of the last) and outputs, which are multiples of 4; where they are not of 8, the pitch of
// y is theirs, and d_y has zeros up to its own.
//
// Launch: blocks (ceil(m / tile m) · ceil(n / tile n), 1, splits), threads 32 · warps m · warps n. splits is 1 and
// `k_of_split` k, but for `linear_backward_weight`, which may split its tokens into parts of `k_of_split`, splits =
// ceil(k / k_of_split): C is then partial [splits, m, n] fp32 (c_pitch n, c_first 0, accumulate 0), and `sum_splits` of
// linear_sums.cuh adds the parts in order, of some rows here and of others there if so wanted.
//
// TILE is m, n and k of a tile, its warps along m and n, its stages, and what L2 fetches ahead if anything; tile.rs says which one a product gets.
// `group` = 8 MiB / (2 · tile m · k), at least 8, at most 16: the rows of A that L2 keeps while B streams by.
//
// Compiled with: TILE=128,128,32,2,2,3; TILE=128,256,32,2,4,4; TILE=64,64,64,2,2,3; TILE=64,16,64,4,1,4; TILE=16,64,64,1,4,4; TILE=128,128,32,2,2,2; TILE=128,128,32,2,2,3,128
#pragma once
#include "../device/gemm.cuh"

#ifndef TILE
#define TILE 128, 128, 32, 2, 2, 3
#endif

struct LinearSizes {
    u32 m, n, k;
    u32 a_pitch, b_pitch, c_pitch;  // numbers from a row to the next
    u32 a_first, b_first, c_first;  // number of the buffer at which the matrix starts
    u32 group;                      // tiles of a column that neighbouring blocks compute; see `tile_of_block`
    u32 k_of_split;
    u32 accumulate;  // 1: adds to what C holds
    float scale;
};

template <class Tile, Order A, Order B, class T>
DEVICE void linear_tile(const bf16* a, const bf16* b, T* c, const LinearSizes& sizes) {
    const GemmPlace place = tile_of_block<Tile>(blockIdx.x, sizes.m, sizes.n, sizes.group);
    const u32 from = blockIdx.z * sizes.k_of_split, k = min(sizes.k - from, sizes.k_of_split);
    const GemmTerm terms[1] = {{a + sizes.a_first + u64(from) * (A == K_INNER ? 1 : sizes.a_pitch),
                                b + sizes.b_first + u64(from) * (B == K_INNER ? 1 : sizes.b_pitch), sizes.a_pitch,
                                sizes.b_pitch, k}};
    Tile tile;
    gemm_sums<Tile, A, B>(tile, terms, sizes.m, sizes.n, place);
    T* const out = c + sizes.c_first + u64(blockIdx.z) * sizes.m * sizes.n;
    for_each_four(tile, place, [&](u32 row, u32 column, float4 x) {
        if (row >= sizes.m || column >= sizes.n) return;
        x = make_float4(x.x * sizes.scale, x.y * sizes.scale, x.z * sizes.scale, x.w * sizes.scale);
        store4(out + u64(row) * sizes.c_pitch + column, x, sizes.accumulate);
    });
}

using LinearTile = GemmTile<TILE>;

KERNEL(LinearTile::threads)
linear_forward(const bf16* __restrict__ x, const bf16* __restrict__ weight, bf16* __restrict__ y, const LinearSizes sizes) {
    linear_tile<LinearTile, K_INNER, K_INNER>(x, weight, y, sizes);
}

KERNEL(LinearTile::threads)
linear_backward_input(const bf16* __restrict__ d_y, const bf16* __restrict__ weight, bf16* __restrict__ d_x,
                      const LinearSizes sizes) {
    linear_tile<LinearTile, K_INNER, K_OUTER>(d_y, weight, d_x, sizes);
}

KERNEL(LinearTile::threads)
linear_backward_weight(const bf16* __restrict__ d_y, const bf16* __restrict__ x, float* __restrict__ d_weight,
                       const LinearSizes sizes) {
    linear_tile<LinearTile, K_OUTER, K_OUTER>(d_y, x, d_weight, sizes);
}
