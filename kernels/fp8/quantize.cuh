// bf16 matrices as e4m3 with a scale for each row, or for each column and then transposed: what both operands of a product
// need so that its sums run along rows and one factor of a row and one of a column bring them back (`fp8.cuh`).
//
// `quantize_rows`: up to four x_i [rows, width_i], side by side → q [rows, Σ width] e4m3, scale [rows] fp32. A scale is that of the
// row through all of them. Blocks ceil(rows / 8), 256 threads: a warp for each row.
//
// Of up to four W_i [outputs_i, width], below each other, transposed, with one scale for each column through all of them:
//   `column_maxima`     each W_i → maxima [parts, width], a row for each 256 outputs, from row `first_part` on. Blocks
//                       ceil(width / 256) × ceil(outputs / 256), 256 threads
//   `column_scales`     maxima → scale [width] fp32. Blocks ceil(width / 256), 256 threads
//   `quantize_columns`  each W_i → q [width, pitch] e4m3, columns `first` to `first + outputs`. Blocks ceil(width / 64) ×
//                       ceil(outputs / 128), 256 threads
//
// Widths and outputs are multiples of 16, rows are free.
#pragma once
#include "../device/e4m3.cuh"
#include "../device/shared.cuh"

constexpr int QUANTIZED = 4;

struct QuantizeRowsSizes {
    u32 rows;
    u32 width[QUANTIZED];  // 0: there is no such matrix
};

struct ColumnMaximaSizes {
    u32 outputs, width, first_part;
};

struct ColumnScalesSizes {
    u32 parts, width;
};

struct QuantizeColumnsSizes {
    u32 outputs, width, pitch, first;
};

// The bits of the largest size of eight numbers, 16-byte aligned, and of `largest`.
DEVICE u32 largest_of(const bf16* eight, u32 largest) {
    const uint4 words = *reinterpret_cast<const uint4*>(eight);
    const u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max(largest, max(pairs[i] & 0x7fff, pairs[i] >> 16 & 0x7fff));
    return largest;
}

KERNEL(256)
quantize_rows(const bf16* __restrict__ x_0, const bf16* __restrict__ x_1, const bf16* __restrict__ x_2,
              const bf16* __restrict__ x_3, unsigned char* __restrict__ q, float* __restrict__ scale,
              const QuantizeRowsSizes sizes) {
    const bf16* const x[QUANTIZED] = {x_0, x_1, x_2, x_3};
    const u32 row = blockIdx.x * 8 + u32(warp_index());
    if (row >= sizes.rows) return;
    u32 largest = 0, pitch = 0;
#pragma unroll
    for (int i = 0; i < QUANTIZED; ++i) {
        for (u32 at = 8 * u32(lane_index()); at < sizes.width[i]; at += 8 * WARP)
            largest = largest_of(x[i] + u64(row) * sizes.width[i] + at, largest);
        pitch += sizes.width[i];
    }
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    const float of_row = e4m3_scale(largest), inverse = 1.0f / of_row;
    if (lane_index() == 0) scale[row] = of_row;
    unsigned char* to = q + u64(row) * pitch;
#pragma unroll
    for (int i = 0; i < QUANTIZED; ++i) {
        for (u32 at = 16 * u32(lane_index()); at < sizes.width[i]; at += 16 * WARP) {
            u32 words[4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Eight e = load8(x[i] + u64(row) * sizes.width[i] + at + 8 * half, 8);
#pragma unroll
                for (int four = 0; four < 2; ++four)
                    words[2 * half + four] = pack_e4m3(e.at[4 * four] * inverse, e.at[4 * four + 1] * inverse,
                                                       e.at[4 * four + 2] * inverse, e.at[4 * four + 3] * inverse);
            }
            *reinterpret_cast<uint4*>(to + at) = make_uint4(words[0], words[1], words[2], words[3]);
        }
        to += sizes.width[i];
    }
}

KERNEL(256)
column_maxima(const bf16* __restrict__ weight, u32* __restrict__ maxima, const ColumnMaximaSizes sizes) {
    SHARED(u32, of_warps, 8 * 256);
    const u32 lane = u32(lane_index()), column = blockIdx.x * 256 + 8 * lane;
    u32 largest[8] = {};
    if (column < sizes.width)
        for (u32 i = u32(warp_index()); i < 256; i += 8) {
            const u32 row = blockIdx.y * 256 + i;
            if (row >= sizes.outputs) break;
            const uint4 words = *reinterpret_cast<const uint4*>(weight + u64(row) * sizes.width + column);
            const u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                largest[2 * pair] = max(largest[2 * pair], pairs[pair] & 0x7fff);
                largest[2 * pair + 1] = max(largest[2 * pair + 1], pairs[pair] >> 16 & 0x7fff);
            }
        }
    // Number `i` of all lanes side by side: no bank is met twice.
#pragma unroll
    for (int i = 0; i < 8; ++i) of_warps[u32(warp_index()) * 256 + i * WARP + lane] = largest[i];
    __syncthreads();
    u32 of_column = 0;
    for (u32 warp = 0; warp < 8; ++warp) of_column = max(of_column, u32(of_warps[warp * 256 + threadIdx.x]));
    const u32 mine = blockIdx.x * 256 + 8 * lane + u32(warp_index());
    if (mine < sizes.width) maxima[u64(sizes.first_part + blockIdx.y) * sizes.width + mine] = of_column;
}

KERNEL(256)
column_scales(const u32* __restrict__ maxima, float* __restrict__ scale, const ColumnScalesSizes sizes) {
    const u32 column = blockIdx.x * 256 + threadIdx.x;
    if (column >= sizes.width) return;
    u32 largest = 0;
#pragma unroll 4
    for (u32 part = 0; part < sizes.parts; ++part) largest = max(largest, maxima[u64(part) * sizes.width + column]);
    scale[column] = e4m3_scale(largest);
}

KERNEL(256)
quantize_columns(const bf16* __restrict__ weight, const float* __restrict__ scale, unsigned char* __restrict__ q,
                 const QuantizeColumnsSizes sizes) {
    // [64 columns, 128 outputs] of a byte, as words; a row's words exchanged in fours, so that neither the writes (one word of
    // eight columns) nor the reads (a row) meet a bank twice.
    SHARED(u32, turned, 64 * 32);
    const auto place = [](u32 column, u32 word) { return column * 32 + (word ^ (column / 8 * 4)); };
    const u32 eight = threadIdx.x % 8 * 8, four = threadIdx.x / 8;
    const u32 column = blockIdx.x * 64 + eight, row = blockIdx.y * 128 + 4 * four;
    if (column < sizes.width && row < sizes.outputs) {
        Eight e[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) e[i] = load8(weight + u64(row + i) * sizes.width + column, 8);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const float inverse = 1.0f / scale[column + i];
            turned[place(eight + i, four)] =
                pack_e4m3(e[0].at[i] * inverse, e[1].at[i] * inverse, e[2].at[i] * inverse, e[3].at[i] * inverse);
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 at = threadIdx.x + 256 * i, from = at / 8, word = at % 8 * 4;
        if (blockIdx.x * 64 + from >= sizes.width || blockIdx.y * 128 + 4 * word >= sizes.outputs) continue;
        *reinterpret_cast<uint4*>(q + u64(blockIdx.x * 64 + from) * sizes.pitch + sizes.first + blockIdx.y * 128 + 4 * word) =
            load_shared<uint4>(&turned[place(from, word)]);
    }
}
