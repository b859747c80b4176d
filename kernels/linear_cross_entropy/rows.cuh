// The row by row part of head and cross-entropy: where a chunk starts, the softmax's statistics, the gradients' last factors, the sum.
// See linear_cross_entropy.cuh for what they compute, in which order they are launched, and the names of the sizes.
#pragma once
#include "../device/bf16.cuh"
#include "../device/reduce.cuh"
#include "row_state.cuh"

// How far a logit may lie above the reference: exp(60) · V still is far from the end of fp32.
constexpr float HIGHEST = 60.0f;

struct CrossEntropyStartSizes {
    u32 rows, width;  // R, H
    u32 first;        // target that the chunk starts at
};

struct CrossEntropyRowsSizes {
    u32 rows, strips, first;
};

struct CrossEntropyFinishSizes {
    u32 rows, width, first, splits;  // R, H
    u32 first_hidden;                // row of d_hidden that the first block writes
    float scale;
};

struct CrossEntropyWeightOperandsSizes {
    u32 rows, width, vocabulary, first;  // R, H, V
    float scale;
};

struct CrossEntropySumSizes {
    u32 count;
    float scale;
};

// Launch: row threads, R blocks. Gathers the chunk's rows, and the target's logit in fp32.
KERNEL(256) cross_entropy_start(const bf16* __restrict__ hidden, const bf16* __restrict__ weight, const u32* __restrict__ rows,
                                const u32* __restrict__ tokens, bf16* __restrict__ x, float* __restrict__ state,
                                const CrossEntropyStartSizes sizes) {
    const u32 row = blockIdx.x;
    const bf16* const from = hidden + u64(rows[sizes.first + row]) * sizes.width;
    const bf16* const target = weight + u64(tokens[sizes.first + row]) * sizes.width;
    bf16* const to = x + u64(row) * sizes.width;
    float product = 0.0f;
    for (u32 at = threadIdx.x * 8; at < sizes.width; at += blockDim.x * 8) {
        const Eight a = load8(from + at, 8), b = load8(target + at, 8);
#pragma unroll
        for (int i = 0; i < 8; ++i) product += a.at[i] * b.at[i];
        store8(to + at, a, 8);
    }
    product = block_sum(product, 0.0f).x;
    if (threadIdx.x > 0) return;
    state[TARGET_LOGIT * sizes.rows + row] = product;
    state[MAXIMUM * sizes.rows + row] = -__uint_as_float(0x7f800000);
    state[SUM * sizes.rows + row] = 0.0f;
    state[REFERENCE * sizes.rows + row] = product;
    state[SHRINK * sizes.rows + row] = 1.0f;
}

// Σ exp(logit - maximum) over some columns.
struct ExpSum {
    float maximum, sum;
};

DEVICE ExpSum joined(ExpSum a, ExpSum b) {
    const float maximum = fmaxf(a.maximum, b.maximum);
    // Also where both are empty.
    const float of_a = a.maximum == maximum ? a.sum : a.sum * expf(a.maximum - maximum);
    const float of_b = b.maximum == maximum ? b.sum : b.sum * expf(b.maximum - maximum);
    return ExpSum{maximum, of_a + of_b};
}

// Takes a slab's statistics into the rows' state, moves references that lie too low, and writes the losses as far as the
// vocabulary has passed. Launch: 256 threads, ceil(R / 32) blocks.
KERNEL(256) cross_entropy_rows(const float2* __restrict__ statistics, float* __restrict__ state, u32* __restrict__ flags,
                               float* __restrict__ losses, const CrossEntropyRowsSizes sizes) {
    SHARED(float, maxima, 8 * WARP);
    SHARED(float, sums, 8 * WARP);
    const u32 row = blockIdx.x * ROWS_OF_FLAG + u32(lane_index());
    const bool exists = row < sizes.rows;
    ExpSum all{-__uint_as_float(0x7f800000), 0.0f};
    if (exists) {
#pragma unroll 8
        for (u32 strip = u32(warp_index()); strip < sizes.strips; strip += 8) {
            const float2 next = statistics[u64(strip) * sizes.rows + row];
            all = joined(all, ExpSum{next.x, next.y});
        }
    }
    maxima[threadIdx.x] = all.maximum;
    sums[threadIdx.x] = all.sum;
    __syncthreads();
    if (warp_index() > 0) return;
    bool moved = false;
    if (exists) {
        float* const maximum = state + u64(MAXIMUM) * sizes.rows + row;
        float* const sum = state + u64(SUM) * sizes.rows + row;
        float* const reference = state + u64(REFERENCE) * sizes.rows + row;
        all = ExpSum{*maximum, *sum};
#pragma unroll
        for (int warp = 0; warp < 8; ++warp) all = joined(all, ExpSum{maxima[warp * WARP + lane_index()], sums[warp * WARP + lane_index()]});
        *maximum = all.maximum;
        *sum = all.sum;
        const float above = all.maximum - state[TARGET_LOGIT * sizes.rows + row];
        losses[sizes.first + row] = above <= 0.0f ? log1pf(all.sum * expf(above)) : above + logf(all.sum + expf(-above));
        const float before = *reference;
        moved = all.maximum - before > HIGHEST;
        if (moved) *reference = all.maximum;
        state[SHRINK * sizes.rows + row] = moved ? expf(before - all.maximum) : 1.0f;
    }
    const u32 any = __ballot_sync(ALL_LANES, moved);
    if (lane_index() == 0) flags[blockIdx.x] = any;
}

// With `p_v = e_v · softmax_factor`.
DEVICE float softmax_factor(const float* state, u32 rows, u32 row, float loss) {
    return expf(state[REFERENCE * rows + row] - state[TARGET_LOGIT * rows + row] - loss);
}

// d_hidden from the chunk's d_x. Each block writes one row of d_hidden, zeros where it has no target in the chunk: the launches of all chunks
// together cover [0, T), a chunk's blocks reaching from its first row (the first chunk's from 0) to the next chunk's (the last one's to T).
// Launch: row threads, blocks (number of such rows, ceil(H / (8 · threads))).
KERNEL(256) cross_entropy_finish(const float* __restrict__ d_x, const bf16* __restrict__ weight, const u32* __restrict__ rows,
                                 const u32* __restrict__ tokens, const float* __restrict__ state, const float* __restrict__ losses,
                                 bf16* __restrict__ d_hidden, const CrossEntropyFinishSizes sizes) {
    const u32 column = (blockIdx.y * blockDim.x + threadIdx.x) * 8, hidden_row = sizes.first_hidden + blockIdx.x;
    if (column >= sizes.width) return;
    // The first of the chunk's targets whose row is not before this one.
    u32 row = 0;
    for (u32 end = sizes.rows; row < end;) {
        const u32 middle = (row + end) / 2;
        if (rows[sizes.first + middle] < hidden_row) row = middle + 1;
        else end = middle;
    }
    Eight d = zeros();
    if (row < sizes.rows && rows[sizes.first + row] == hidden_row) {
        for (u32 split = 0; split < sizes.splits; ++split) {
            const Eight part = load8(d_x + (u64(split) * sizes.rows + row) * sizes.width + column, 8);
#pragma unroll
            for (int i = 0; i < 8; ++i) d.at[i] += part.at[i];
        }
        const float loss = losses[sizes.first + row];
        const float others = sizes.scale * softmax_factor(state, sizes.rows, row, loss), target = sizes.scale * expm1f(-loss);
        const Eight w = load8(weight + u64(tokens[sizes.first + row]) * sizes.width + column, 8);
#pragma unroll
        for (int i = 0; i < 8; ++i) d.at[i] = others * d.at[i] + target * w.at[i];
    }
    store8(d_hidden + u64(hidden_row) * sizes.width + column, d, 8);
}

// Brings the operands of d_W into the form d_W = eᵀ · x: the rows' factors into x, the target's entry into e, both in place.
// Launch: row threads, R blocks.
KERNEL(256) cross_entropy_weight_operands(const u32* __restrict__ tokens, const float* __restrict__ state, const float* __restrict__ losses,
                                          bf16* __restrict__ e, bf16* __restrict__ x, const CrossEntropyWeightOperandsSizes sizes) {
    const u32 row = blockIdx.x;
    const float loss = losses[sizes.first + row], factor = softmax_factor(state, sizes.rows, row, loss);
    if (threadIdx.x == 0) e[u64(row) * sizes.vocabulary + tokens[sizes.first + row]] = to_bf16(expm1f(-loss) / factor);
    for (u32 at = threadIdx.x * 8; at < sizes.width; at += blockDim.x * 8) {
        bf16* const eight = x + u64(row) * sizes.width + at;
        Eight scaled = load8(eight, 8);
#pragma unroll
        for (int i = 0; i < 8; ++i) scaled.at[i] *= sizes.scale * factor;
        store8(eight, scaled, 8);
    }
}

// loss [2] = scale · Σ losses as the sum of two fp32: the nearest one, and what it lacks of the sum in double.
// Launch: 256 threads, one block.
KERNEL(256) cross_entropy_sum(const float* __restrict__ losses, float* __restrict__ loss, const CrossEntropySumSizes sizes) {
    SHARED(double, sums, 256);
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < sizes.count; i += 256) sum += double(losses[i]);
    sums[threadIdx.x] = sum;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] = double(sums[threadIdx.x]) + double(sums[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) {
        const double total = double(sums[0]) * double(sizes.scale);
        loss[0] = float(total);
        loss[1] = float(total - double(loss[0]));
    }
}
