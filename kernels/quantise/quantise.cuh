// Rounding of gradients to 16 bits on the device, for sums in the network (src/cluster/xdp/quantise.rs states the rule; the bits are the same).
//
//   tensors of fp32 numbers                    →  magnitudes [blocks] fp32            magnitudes_of_blocks
//   tensors, magnitudes over all ranks         →  integers [count] of the host, i16   integers_of_blocks
//   sums of the host, the same magnitudes      →  the numbers of the tensors          numbers_of_blocks
//
// The tensors' numbers count as if they lay one behind the other, and a block is BLOCK of those. `table` has a row for each tensor, {position of its first
// number, its address}, and a last one with the count of all numbers. A block with a number that is not finite has the magnitude NaN.
//
// Integers and sums lie in memory of the host that the device can reach; the sums of each block may lie at any place in it.
// Rounding is in double precision, so that no magnitude is too small to divide by: a few operations a number, which even a GPU with few fp64 units does
// faster than a link brings the integers.
//
// Launch: a block of 224 threads for each block of numbers.
#pragma once
#include "../device/cuda.cuh"

struct QuantiseSizes {
    u64 first;     // the position of the first number
    u64 count;     // numbers
    u64 integers;  // the device's address of the first number's integer
    u32 tensors;
    u32 most;      // the largest integer of a rank
};

// The caller of the kernels defines it (kernels/quantise/mod.rs).
#ifndef BLOCK
#define BLOCK 672u
#endif

constexpr u32 INFINITE = 0x7f800000u, NOT_A_NUMBER = 0x7fc00000u;

// The addresses of numbers, from some position on.
class Numbers {
    const u64* row;

  public:
    DEVICE Numbers(const u64* table, u32 tensors, u64 position) {
        u32 low = 0, high = tensors;
        while (high - low > 1) {
            const u32 middle = low + (high - low) / 2;
            (table[2 * middle] <= position ? low : high) = middle;
        }
        row = table + 2 * low;
    }
    // Positions must be asked for in rising order.
    DEVICE float* at(u64 position) {
        while (row[2] <= position) row += 2;
        return reinterpret_cast<float*>(row[1]) + (position - row[0]);
    }
};

// Calls `use` for each number of this block that is this thread's, with its address and its position among all.
template <class Use>
DEVICE void each_number(const u64* table, const QuantiseSizes& sizes, Use use) {
    const u64 first = u64(blockIdx.x) * BLOCK;
    const u64 end = first + BLOCK < sizes.count ? first + BLOCK : sizes.count;
    u64 at = first + threadIdx.x;
    if (at >= end) return;
    Numbers numbers(table, sizes.tensors, sizes.first + at);
    for (; at < end; at += blockDim.x) use(numbers.at(sizes.first + at), at);
}

KERNEL(224) magnitudes_of_blocks(const u64* __restrict__ table, float* __restrict__ magnitudes, const QuantiseSizes sizes) {
    SHARED(u32, of_warps, WARP);
    // Numbers without their signs are in the order of their bits.
    u32 most = 0;
    each_number(table, sizes, [&](const float* number, u64) {
        const u32 bits = __float_as_uint(*number) & 0x7fffffffu;
        if (bits > most) most = bits;
    });
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const u32 other = __shfl_xor_sync(ALL_LANES, most, distance);
        if (other > most) most = other;
    }
    if (lane_index() == 0) of_warps[warp_index()] = most;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < blockDim.x / WARP; ++warp)
        if (of_warps[warp] > most) most = of_warps[warp];
    magnitudes[blockIdx.x] = __uint_as_float(most < INFINITE ? most : NOT_A_NUMBER);
}

DEVICE bool is_finite(float magnitude) { return __float_as_uint(magnitude) < INFINITE; }

KERNEL(224) integers_of_blocks(const u64* __restrict__ table, const float* __restrict__ magnitudes, const QuantiseSizes sizes) {
    short* const integers = reinterpret_cast<short*>(sizes.integers);
    const float magnitude = magnitudes[blockIdx.x];
    const bool counts = is_finite(magnitude) && magnitude > 0.0f;
    const double most = double(sizes.most), scale = counts ? most / double(magnitude) : 0.0;
    each_number(table, sizes, [&](const float* number, u64 at) {
        double scaled = double(*number) * scale;
        scaled = scaled < -most ? -most : scaled > most ? most : scaled;
        // Rounds to the nearest integer, and halves to the even one. NaN has no integer: it can be here only on a muted rank, whose integers do not count.
        integers[at] = counts && scaled == scaled ? short(__double2int_rn(scaled)) : short(0);
    });
}

// `places` has the address of each block's sums.
KERNEL(224) numbers_of_blocks(const u64* __restrict__ table, const float* __restrict__ magnitudes, const u64* __restrict__ places, const QuantiseSizes sizes) {
    const short* const sums = reinterpret_cast<const short*>(places[blockIdx.x]);
    const u64 first = u64(blockIdx.x) * BLOCK;
    const float magnitude = magnitudes[blockIdx.x];
    const double step = double(magnitude) / double(sizes.most);
    each_number(table, sizes, [&](float* number, u64 at) {
        *number = is_finite(magnitude) ? float(double(sums[at - first]) * step) : __uint_as_float(NOT_A_NUMBER);
    });
}
