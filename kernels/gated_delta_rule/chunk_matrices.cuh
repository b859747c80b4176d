// The part of the delta rule that needs no state, for every chunk at once: norms of q and k, sums of the gates, and the matrices
// T (`inverses`) and P (`attentions`). Formulas and buffers: gated_delta_rule.cuh.
//
// Launch: (chunks, Nk) blocks of 256 threads. The scores of a key head stay in registers while the block goes through
// its value heads; the solve takes the place of q and k in shared memory.
#pragma once
#include "gated_delta_rule.cuh"

constexpr float LOWEST_LOG_DECAY = -100.0f;
// Rows of the transposed coupling: a multiple of four, and such that a stored fragment meets every bank once.
constexpr int COUPLING_PITCH = CHUNK + 4;

// 1 / norm of each row of a tile, four lanes a row.
template <int D>
DEVICE float inverse_norm(const bf16* tile) {
    const int row = int(threadIdx.x) / 4;
    float squares = 0.0f;
#pragma unroll
    for (int first = 0; first < D; first += 32) {
        const int column = first + int(threadIdx.x) % 4 * 8;
        if (column >= D) continue;
        const uint4 eight = load_shared<uint4>(tile + row * Tile<CHUNK, D>::PITCH + column);
        const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float low = __uint_as_float(words[i] << 16), high = __uint_as_float(words[i] & 0xffff0000u);
            squares += low * low + high * high;
        }
    }
    return rsqrtf(warp_sum(squares, 4) + 1e-6f);
}

// Column `threadIdx.x` of (I + L)^-1, for 64 threads, by substitution in fp32. `coupling` is L transposed, zero from its
// diagonal on. Blocks of 8 rows (more take more than 128 registers, which is two blocks a multiprocessor): first what the rows
// of earlier blocks contribute, then the block itself in registers.
DEVICE void solve_column(const float* coupling, float* solution) {
    const int column = int(threadIdx.x), begin = warp_index() * WARP;
#pragma unroll 1
    for (int block = 0; block < CHUNK; block += 8) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = block + i == column ? 1.0f : 0.0f;
        // Above its diagonal a column is zero, so the second warp's begin with row 32.
        for (int row = begin; row < block; ++row) {
            const float known = load_shared<float>(solution + row * CHUNK + column);
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                const float4 weight = load_shared<float4>(coupling + row * COUPLING_PITCH + block + i);
                x[i] -= weight.x * known;
                x[i + 1] -= weight.y * known;
                x[i + 2] -= weight.z * known;
                x[i + 3] -= weight.w * known;
            }
        }
#pragma unroll
        for (int row = 0; row < 8; ++row) {
            store_shared(solution + (block + row) * CHUNK + column, x[row]);
#pragma unroll
            for (int i = row / 4 * 4; i < 8; i += 4) {
                const float4 weight = load_shared<float4>(coupling + (block + row) * COUPLING_PITCH + block + i);
                const float known = x[row];
                x[i] -= weight.x * known;
                x[i + 1] -= weight.y * known;
                x[i + 2] -= weight.z * known;
                x[i + 3] -= weight.w * known;
            }
        }
    }
}

template <int D>
DEVICE void chunk_matrices(const bf16* qkv, const float* g, const float* beta, const u32* chunk_table, f16* inverses,
                           f16* attentions, float* gate_sums, float* norms, const DeltaRuleSizes& sizes) {
    typedef Tile<CHUNK, D> Rows;
    typedef Tile<CHUNK, CHUNK> Square;
    constexpr int SOLVE = CHUNK * COUPLING_PITCH + CHUNK * CHUNK;
    SHARED(float, room, (Rows::SIZE > SOLVE ? Rows::SIZE : SOLVE));  // two bf16 tiles take as much as one of floats
    SHARED(float, norm_q, CHUNK);
    SHARED(float, norm_k, CHUNK);
    SHARED(float, sums_of_g, CHUNK);
    SHARED(float, betas, CHUNK);
    bf16* const q = reinterpret_cast<bf16*>(&room[0]);
    bf16* const k = q + Rows::SIZE;
    float* const coupling = &room[0];
    float* const solution = coupling + CHUNK * COUPLING_PITCH;

    const u32 key_head = blockIdx.y, group = sizes.value_heads / sizes.key_heads;
    const ChunkOfTokens chunk = chunk_at(chunk_table, blockIdx.x);
    const u64 width = qkv_width(sizes, D);
    const int thread = int(threadIdx.x), lane = lane_index();
    const bf16* const from = qkv + chunk.first * width + key_head * D;
    copy_tile<Rows>(q, from, width, chunk.count);
    copy_tile<Rows>(k, from + sizes.key_heads * D, width, chunk.count);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();

    const float of_q = inverse_norm<D>(q), of_k = inverse_norm<D>(k);
    const int row = thread / 4;
    if (thread % 4 == 0) {
        norm_q[row] = of_q * rsqrtf(float(D));
        norm_k[row] = of_k;
        if (row < chunk.count) {
            float* const to = norms + 2 * ((chunk.first + row) * sizes.key_heads + key_head);
            to[0] = of_q;
            to[1] = of_k;
        }
    }
    Square::Sums qk, kk;
    clear(qk);
    clear(kk);
    multiply<D, false, false>(qk, q + Square::row() * Rows::PITCH, Rows::PITCH, k + Square::column() * Rows::PITCH, Rows::PITCH);
    multiply<D, false, false>(kk, k + Square::row() * Rows::PITCH, Rows::PITCH, k + Square::column() * Rows::PITCH, Rows::PITCH);

    for (u32 member = 0; member < group; ++member) {
        const u32 head = key_head * group + member;
        const u64 matrix = (u64(blockIdx.x) * sizes.value_heads + head) * (CHUNK * CHUNK);
        __syncthreads();  // q and k, or the solution of the head before, have been read.
        if (warp_index() == 0) {
            float decay[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u64 token = (chunk.first + 2 * lane + i) * sizes.value_heads + head;
                const bool exists = 2 * lane + i < chunk.count;
                decay[i] = exists ? g[token] : 0.0f;
                if (decay[i] < LOWEST_LOG_DECAY) decay[i] = LOWEST_LOG_DECAY;
                betas[2 * lane + i] = exists ? beta[token] : 0.0f;
            }
            const float2 sums = running_sums(make_float2(decay[0], decay[1]));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float sum = i == 0 ? sums.x : sums.y;
                sums_of_g[2 * lane + i] = sum;
                if (2 * lane + i < chunk.count) gate_sums[(chunk.first + 2 * lane + i) * sizes.value_heads + head] = sum;
            }
        }
        __syncthreads();

#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = Square::row_of(half);
            const float sum = sums_of_g[i], by_q = norm_q[i], by_k = betas[i] * norm_k[i];
#pragma unroll
            for (int n = 0; n < Square::COUNT; ++n) {
                float of_attention[2];
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    const int j = Square::column_of(n) + side;
                    // Chosen before the exponential, which above the diagonal may overflow.
                    const float decay = __expf(j <= i ? sum - sums_of_g[j] : 0.0f) * norm_k[j];
                    of_attention[side] = j <= i && i < chunk.count ? by_q * decay * qk[n][2 * half + side] : 0.0f;
                    store_shared(coupling + j * COUPLING_PITCH + i, j < i ? by_k * decay * kk[n][2 * half + side] : 0.0f);
                }
                write_pair(attentions + matrix + i * CHUNK + Square::column_of(n), of_attention[0], of_attention[1]);
            }
        }
        __syncthreads();
        if (thread < CHUNK) solve_column(coupling, solution);
        __syncthreads();
        for (int i = thread * 4; i < CHUNK * CHUNK; i += DELTA_THREADS * 4) {
            const float4 four = load_shared<float4>(solution + i);
            const int j = i % CHUNK;
            write_pair(inverses + matrix + i, four.x * betas[j], four.y * betas[j + 1]);
            write_pair(inverses + matrix + i + 2, four.z * betas[j + 2], four.w * betas[j + 3]);
        }
    }
}

KERNEL(256) delta_rule_chunk_matrices(const bf16* __restrict__ qkv, const float* __restrict__ g,
                                      const float* __restrict__ beta, const u32* __restrict__ chunk_table,
                                      f16* __restrict__ inverses, f16* __restrict__ attentions,
                                      float* __restrict__ gate_sums, float* __restrict__ norms,
                                      const DeltaRuleSizes sizes) {
    chunk_matrices<HEAD_DIM>(qkv, g, beta, chunk_table, inverses, attentions, gate_sums, norms, sizes);
}
