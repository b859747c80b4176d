// Kernels of the emulator's self-test that use every operation of `device/` and must compute the right numbers.
//
// They are compiled offline with the ops, so what the emulator runs is also what NVRTC accepts; and they show how the
// operations are written. Nothing launches them in training.
#pragma once
#include "../device/e4m3.cuh"
#include "../device/f16.cuh"
#include "../device/reduce.cuh"
#include "../device/shared.cuh"
#include "../device/tensor_core.cuh"

// C [64, 64] = A [64, K] · B [64, K]ᵀ with two stages of cp.async, ldmatrix and mma; rows of `PITCH` numbers in shared memory.
template <int PITCH>
DEVICE void product(const bf16* a, const bf16* b, float* c, int k) {
    SHARED(bf16, tile_a, 2 * 64 * PITCH);
    SHARED(bf16, tile_b, 2 * 64 * PITCH);
    const int lane = lane_index(), warp = warp_index();
    float sums[8][4] = {};
    const auto load = [&](int stage, int from) {
        for (int i = int(threadIdx.x); i < 256; i += 128) {
            const int row = i / 4, column = i % 4 * 8;
            cp_async16(&tile_a[(stage * 64 + row) * PITCH + column], a + row * k + from + column);
            cp_async16(&tile_b[(stage * 64 + row) * PITCH + column], b + row * k + from + column);
        }
        cp_async_commit();
    };
    load(0, 0);
    for (int from = 0, stage = 0; from < k; from += 32, stage ^= 1) {
        if (from + 32 < k) {
            load(stage ^ 1, from + 32);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        for (int inner = 0; inner < 32; inner += 16) {
            u32 of_a[4], of_b[4];
            ldmatrix_x4(of_a, &tile_a[(stage * 64 + warp * 16 + lane % 16) * PITCH + inner + lane / 16 * 8]);
            for (int column = 0; column < 64; column += 16) {
                const int row = column + lane % 8 + lane / 16 * 8;
                ldmatrix_x4(of_b, &tile_b[(stage * 64 + row) * PITCH + inner + lane / 8 % 2 * 8]);
                mma(sums[column / 8], of_a, of_b[0], of_b[1]);
                mma(sums[column / 8 + 1], of_a, of_b[2], of_b[3]);
            }
        }
        __syncthreads();
    }
    for (int n = 0; n < 8; ++n)
        for (int i = 0; i < 4; ++i) c[(warp * 16 + lane / 4 + 8 * (i / 2)) * 64 + n * 8 + lane % 4 * 2 + i % 2] = sums[n][i];
}

KERNEL(128) product_padded(const bf16* a, const bf16* b, float* c, int k) { product<40>(a, b, c, k); }

KERNEL(128) product_not_padded(const bf16* a, const bf16* b, float* c, int k) { product<32>(a, b, c, k); }

// C [16, 8] = A [16, 16] · B [8, 16]ᵀ in f16, each lane packing its own fragments.
KERNEL(32) product_of_halves(const float* a, const float* b, float* c) {
    const int row = lane_index() / 4, column = lane_index() % 4 * 2;
    const auto pair = [](const float* matrix, int row, int column) { return pack_f16(matrix[row * 16 + column], matrix[row * 16 + column + 1]); };
    const u32 of_a[4] = {pair(a, row, column), pair(a, row + 8, column), pair(a, row, column + 8), pair(a, row + 8, column + 8)};
    float sums[4] = {};
    mma_f16(sums, of_a, pair(b, row, column), pair(b, row, column + 8));
    for (int i = 0; i < 4; ++i) c[(row + 8 * (i / 2)) * 8 + column + i % 2] = sums[i] + 0.0f * unpack_f16(of_a[i]).x;
}

// C [16, 8] = A [16, 32] · B [8, 32]ᵀ in e4m3, each lane packing its own fragments.
KERNEL(32) product_of_bytes(const float* a, const float* b, float* c) {
    const int row = lane_index() / 4, column = lane_index() % 4 * 2;
    const auto four = [](const float* matrix, int row, int column) {
        const float* const at = matrix + row * 32 + column;
        return pack_e4m3(at[0], at[1], at[2], at[3]);
    };
    const int k = lane_index() % 4 * 4;
    const u32 of_a[4] = {four(a, row, k), four(a, row + 8, k), four(a, row, k + 16), four(a, row + 8, k + 16)};
    float sums[4] = {};
    mma_e4m3(sums, of_a, four(b, row, k), four(b, row, k + 16));
    for (int i = 0; i < 4; ++i) c[(row + 8 * (i / 2)) * 8 + column + i % 2] = sums[i];
}

// The scale of a row whose largest number is x.
KERNEL(32) scales_of_bytes(const bf16* x, float* scale) { scale[threadIdx.x] = e4m3_scale(size_bits(x[threadIdx.x])); }

KERNEL(32) transpose(u32* out) {
    SHARED(bf16, tile, 32 * 8);
    for (int i = 0; i < 8; ++i) tile[int(threadIdx.x) * 8 + i] = bf16{(unsigned short)(threadIdx.x * 8 + i)};
    __syncthreads();
    u32 registers[4];
    ldmatrix_x4_transposed(registers, &tile[int(threadIdx.x) * 8]);
    for (int matrix = 0; matrix < 4; ++matrix) out[matrix * 32 + threadIdx.x] = registers[matrix];
}

// Pairs go in, eights come out.
KERNEL(32) words_of_two_widths(u32* out) {
    SHARED(bf16, line, 64);
    store_shared(&line[int(threadIdx.x) * 2], 2 * threadIdx.x | (2 * threadIdx.x + 1) << 16);
    __syncthreads();
    const uint4 eight = load_shared<uint4>(&line[int(threadIdx.x) / 4 * 8]);
    const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
    u32 mine = 0;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) mine = threadIdx.x % 4 == i ? words[i] : mine;
    out[threadIdx.x] = mine;
}

KERNEL(64) bulk_copy_in_phases(const float* in, float* out) {
    SHARED(u64, ready, 1);
    SHARED(float, line, 64);
    if (threadIdx.x == 0) mbarrier_init(&ready[0], 1);
    __syncthreads();
    for (u32 round = 0; round < 3; ++round) {
        if (threadIdx.x == 0) {
            mbarrier_arrive(&ready[0], 256);
            bulk_copy(&line[0], in + round * 64, 256, &ready[0]);
        }
        mbarrier_wait(&ready[0], round & 1);
        out[round * 64 + threadIdx.x] = 2.0f * line[63 - threadIdx.x];
        __syncthreads();
    }
}

// The second warp pair waits for the first at a barrier of its own.
KERNEL(128) halves_of_a_block(float* out) {
    SHARED(float, line, 128);
    line[threadIdx.x] = float(threadIdx.x);
    const int half = int(threadIdx.x) / 64;
    named_barrier(1 + half, 64);
    out[threadIdx.x] = line[half * 64 + 63 - threadIdx.x % 64];
}

KERNEL(32) lanes(const float* in, float* out) {
    out[threadIdx.x] = warp_sum(float(threadIdx.x), 8);
    out[32 + threadIdx.x] = __shfl_down_sync(ALL_LANES, float(threadIdx.x), 4);
    out[64 + threadIdx.x] = float(__ballot_sync(ALL_LANES, threadIdx.x % 3 == 0) >> 16);
    if (__all_sync(ALL_LANES, out[32 + threadIdx.x] >= 4.0f)) out[128 + threadIdx.x] = __ldg(in + max(int(threadIdx.x), 16));
    if (threadIdx.x < 16) out[96 + threadIdx.x] = __shfl_sync(0xffffu, float(threadIdx.x), 3);
    else out[96 + threadIdx.x] = __any_sync(0xffff0000u, threadIdx.x == 20);
}

KERNEL(1024) sums_of_a_block(float* out) {
    const float2 sums = block_sum(float(threadIdx.x), 1.0f);
    out[threadIdx.x] = sums.x + sums.y;
}
