// Ends of a product's tile in an MLP. What the product alone would store is rounded to bf16 first, as where it is stored between two
// launches.
#pragma once
#include "gemm.cuh"
#include "silu.cuh"

// The tile is of up: stores it, and silu(gate) ⊙ up. All are [m, n], n a multiple of 4. All lanes call it.
template <class Tile>
DEVICE void store_silu_product(const Tile& tile, GemmPlace place, u32 m, u32 n, const bf16* gate, bf16* up, bf16* product) {
    for_each_four(tile, place, [&](u32 row, u32 column, float4 sums) {
        if (row >= m || column >= n) return;
        const u64 at = u64(row) * n + column;
        const float4 g = load4(gate + at);
        store4(up + at, sums, false);
        store4(product + at,
               make_float4(silu(g.x) * rounded(sums.x), silu(g.y) * rounded(sums.y), silu(g.z) * rounded(sums.z),
                           silu(g.w) * rounded(sums.w)),
               false);
    });
}

// The tile is of the gradient of silu(gate) ⊙ up, which is dropped: stores those of gate and up. All are [m, n], n a multiple of 4.
// All lanes call it.
template <class Tile>
DEVICE void store_silu_gradients(const Tile& tile, GemmPlace place, u32 m, u32 n, const bf16* gate, const bf16* up, bf16* d_gate, bf16* d_up) {
    for_each_four(tile, place, [&](u32 row, u32 column, float4 sums) {
        if (row >= m || column >= n) return;
        const u64 at = u64(row) * n + column;
        const float4 g = load4(gate + at), u = load4(up + at);
        const float4 d = make_float4(rounded(sums.x), rounded(sums.y), rounded(sums.z), rounded(sums.w));
        store4(d_gate + at,
               make_float4(d.x * u.x * silu_derivative(g.x), d.y * u.y * silu_derivative(g.y), d.z * u.z * silu_derivative(g.z),
                           d.w * u.w * silu_derivative(g.w)),
               false);
        store4(d_up + at, make_float4(d.x * silu(g.x), d.y * silu(g.y), d.z * silu(g.z), d.w * silu(g.w)), false);
    });
}
