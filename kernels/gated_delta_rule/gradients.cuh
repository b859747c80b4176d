// The part of the delta rule's backward that is left when the states and their gradients are known, for every chunk at once: the
// gradients of q, k, g and beta. Formulas and buffers: gated_delta_rule.cuh.
//
// Launch: (chunks, Nk) blocks of 256 threads. A block adds up the gradients of its key head over the value heads, in their order, in
// registers. Run after delta_rule_states and delta_rule_backward: reads dV from `d_qkv` and writes the parts of q and k.
//
// Gradients are taken with respect to q and k as stored, first with their norms held fixed (the norms are in the factors of the
// rows and in G and H), then the norms' own part is taken off: dx = d - x (x · d) / norm².
#pragma once
#include "gated_delta_rule.cuh"

// Σ_n of the products of this lane's sums in one row with the numbers of a tile there, added over the lanes of the row.
template <class Rows>
DEVICE float row_dot(const typename Rows::Sums& sums, const bf16* tile, int half) {
    float dot = 0.0f;
#pragma unroll
    for (int n = 0; n < Rows::COUNT; ++n) {
        const float2 pair = load_pair(tile + Rows::row_of(half) * Rows::PITCH + Rows::column_of(n));
        dot += sums[n][2 * half] * pair.x + sums[n][2 * half + 1] * pair.y;
    }
    return warp_sum(dot, 4);
}

template <int COUNT>
DEVICE void add(float (&to)[COUNT][4], const float (&sums)[COUNT][4]) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[n][i] += sums[n][i];
}

// A matrix of 64 × 64 as the sum of two of bf16.
struct Parts {
    bf16 *high, *low;
};

DEVICE void store_parts(const Parts& to, int at, float x, float y) {
    store_pair(to.high + at, x, y);
    store_pair(to.low + at, x - rounded(x), y - rounded(y));
}

// sums += A · B for a warp's 16 rows of A from `row` on, or of its transpose when `Turned`; `b` as in `multiply`, [k][column].
template <bool Turned, int COUNT>
DEVICE void multiply_parts(float (&sums)[COUNT][4], const Parts& a, int row, const bf16* b, int pitch_b) {
    constexpr int PITCH = Tile<CHUNK, CHUNK>::PITCH;
    const int at = Turned ? row : row * PITCH;
    multiply<CHUNK, Turned, true>(sums, a.low + at, PITCH, b, pitch_b);
    multiply<CHUNK, Turned, true>(sums, a.high + at, PITCH, b, pitch_b);
}

DEVICE float dot_of_eight(const uint4& a, const uint4& b) {
    const u32 of_a[4] = {a.x, a.y, a.z, a.w}, of_b[4] = {b.x, b.y, b.z, b.w};
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        dot += __uint_as_float(of_a[i] << 16) * __uint_as_float(of_b[i] << 16) +
               __uint_as_float(of_a[i] & 0xffff0000u) * __uint_as_float(of_b[i] & 0xffff0000u);
    return dot;
}

template <int D>
DEVICE void gradients(const bf16* qkv, const float* beta, const float* gate_sums, const float* norms, const bf16* states,
                      const bf16* d_states, const bf16* writes, const bf16* d_out, const u32* chunk_table, bf16* d_qkv, float* d_g,
                      float* d_beta, const DeltaRuleSizes& sizes) {
    constexpr int SLICE = D < 32 ? D : 32;  // columns of a state in shared memory at a time
    typedef Tile<CHUNK, D> Rows;
    typedef Tile<CHUNK, CHUNK> Square;
    typedef Tile<D, SLICE> State;
    constexpr int LINE = SLICE / 8;
    constexpr int ROWS_OR_SQUARE = Rows::SIZE > Square::SIZE ? Rows::SIZE : Square::SIZE;
    constexpr int STATE_OR_SQUARE = State::SIZE > Square::SIZE ? State::SIZE : Square::SIZE;
    DYNAMIC_SHARED(bf16, k, Rows::SIZE, 0);
    DYNAMIC_SHARED(bf16, d_o, Rows::SIZE, k_end);           // then q
    DYNAMIC_SHARED(bf16, d_v, ROWS_OR_SQUARE, d_o_end);       // then the low part of G
    DYNAMIC_SHARED(bf16, x, ROWS_OR_SQUARE, d_v_end);         // then that of H
    DYNAMIC_SHARED(bf16, state, STATE_OR_SQUARE, x_end);    // a slice of S, then G
    DYNAMIC_SHARED(bf16, d_state, STATE_OR_SQUARE, state_end);  // a slice of dS', then H
    SHARED(float, entry_k, CHUNK);
    SHARED(float, entry_q, CHUNK);
    SHARED(float, exit_k, CHUNK);
    SHARED(float, sums_of_g, CHUNK);
    SHARED(float, norm_q, CHUNK);
    SHARED(float, norm_k, CHUNK);
    SHARED(float, passing, Rows::GROUPS * CHUNK);  // the terms of dg_l's sum over i ≥ l
    SHARED(float, leaving, Rows::GROUPS * CHUNK);  // and of its sum over j < l
    SHARED(float, from_here, CHUNK);

    const u32 key_head = blockIdx.y, group = sizes.value_heads / sizes.key_heads;
    const ChunkOfTokens tokens = chunk_at(chunk_table, blockIdx.x);
    const u64 width = qkv_width(sizes, D), out_width = u64(sizes.value_heads) * D;
    const int thread = int(threadIdx.x), lane = lane_index();
    const bf16* const qs = qkv + tokens.first * width + key_head * D;
    const bf16* const ks = qs + sizes.key_heads * D;
    bf16* const q = &d_o[0];
    const Parts g{&state[0], &d_v[0]}, h{&d_state[0], &x[0]};

    typename Rows::Sums d_q, d_k;
    clear(d_q);
    clear(d_k);
    copy_tile<Rows>(&k[0], ks, width, tokens.count);
    for (u32 member = 0; member < group; ++member) {
        const u32 head = key_head * group + member;
        const u64 state_at = (u64(blockIdx.x) * sizes.value_heads + head) * (D * D), rows_at = tokens.first * out_width + head * D;
        copy_tile<Rows>(&d_o[0], d_out + rows_at, out_width, tokens.count);
        copy_tile<Rows>(&d_v[0], d_qkv + tokens.first * width + (2 * sizes.key_heads + head) * D, width, tokens.count);
        copy_tile<Rows>(&x[0], writes + rows_at, out_width, tokens.count);
        copy_tile<State>(&state[0], states + state_at, D, D);
        cp_async_commit();
        copy_tile<State>(&d_state[0], d_states + state_at, D, D);
        cp_async_commit();
        if (thread < CHUNK) {
            const RowFactors factors = row_factors<D>(gate_sums, norms, sizes, head, tokens, thread);
            const bool exists = thread < tokens.count;
            const u64 token = tokens.first + thread;
            const float* const norm = norms + 2 * (token * sizes.key_heads + key_head);
            entry_k[thread] = factors.entry_k;
            entry_q[thread] = factors.entry_q;
            exit_k[thread] = factors.exit_k;
            // Behind the end as at the end: a difference to a token of the chunk is never positive.
            sums_of_g[thread] = gate_sums[(tokens.first + min(thread, tokens.count - 1)) * sizes.value_heads + head];
            norm_q[thread] = exists ? norm[0] * rsqrtf(float(D)) : 0.0f;
            norm_k[thread] = exists ? norm[1] : 0.0f;
        }

        // dO Sᵀ, dZ Sᵀ, X dS'ᵀ and <S, dS'>, while the next slice of the one is copied behind the other.
        typename Rows::Sums of_q, of_k, out_k;
        clear(of_q);
        clear(of_k);
        clear(out_k);
        float through = 0.0f;
#pragma unroll 1
        for (int slice = 0; slice < D; slice += SLICE) {
            const bool more = slice + SLICE < D;
            cp_async_wait<1>();
            __syncthreads();
            if (Rows::mine()) {
                const int rows = Rows::row() * Rows::PITCH + slice;
                multiply<SLICE, false, false>(of_q, &d_o[rows], Rows::PITCH, &state[Rows::column() * State::PITCH], State::PITCH);
                multiply<SLICE, false, false>(of_k, &d_v[rows], Rows::PITCH, &state[Rows::column() * State::PITCH], State::PITCH);
            }
            __syncthreads();
            if (more) copy_tile<State>(&state[0], states + state_at + slice + SLICE, D, D);
            cp_async_commit();
            cp_async_wait<1>();
            __syncthreads();
            if (Rows::mine())
                multiply<SLICE, false, false>(out_k, &x[Rows::row() * Rows::PITCH + slice], Rows::PITCH,
                                              &d_state[Rows::column() * State::PITCH], State::PITCH);
            // S once more from where it came from, for its tile may be gone by now.
            for (int i = thread; i < D * LINE; i += DELTA_THREADS) {
                const int row = i / LINE, column = i % LINE * 8;
                through += dot_of_eight(*reinterpret_cast<const uint4*>(states + state_at + row * D + slice + column),
                                        load_shared<uint4>(&d_state[row * State::PITCH + column]));
            }
            __syncthreads();
            if (more) copy_tile<State>(&d_state[0], d_states + state_at + slice + SLICE, D, D);
            cp_async_commit();
        }

        // What comes from the states is complete; of it only dO Sᵀ waits for q.
        float enters[2] = {}, leaves[2] = {};
        if (Rows::mine()) {
            scale_rows(out_k, exit_k[Rows::row_of(0)], exit_k[Rows::row_of(1)]);
            scale_rows(of_k, -entry_k[Rows::row_of(0)], -entry_k[Rows::row_of(1)]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                leaves[half] = row_dot<Rows>(out_k, &k[0], half);
                enters[half] = row_dot<Rows>(of_k, &k[0], half);
            }
            add(d_k, out_k);
            add(d_k, of_k);
        }

        // G and H with the norms of their rows and columns, and the gradient of beta off the diagonal of dZ Xᵀ.
        {
            Square::Sums of_attention, of_coupling;
            clear(of_attention);
            clear(of_coupling);
            const int rows = Square::row() * Rows::PITCH, columns = Square::column() * Rows::PITCH;
            multiply<D, false, false>(of_attention, &d_o[rows], Rows::PITCH, &x[columns], Rows::PITCH);
            multiply<D, false, false>(of_coupling, &d_v[rows], Rows::PITCH, &x[columns], Rows::PITCH);
            __syncthreads();
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = Square::row_of(half);
                const float sum = sums_of_g[i], by_q = norm_q[i], by_k = -norm_k[i];
#pragma unroll
                for (int n = 0; n < Square::COUNT; ++n) {
                    float of_g[2], of_h[2];
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        const int j = Square::column_of(n) + side;
                        const float decay = __expf(j <= i ? sum - sums_of_g[j] : 0.0f) * norm_k[j];
                        of_g[side] = j <= i ? by_q * decay * of_attention[n][2 * half + side] : 0.0f;
                        of_h[side] = j < i ? by_k * decay * of_coupling[n][2 * half + side] : 0.0f;
                        if (j == i && i < tokens.count) {
                            const u64 at = (tokens.first + i) * sizes.value_heads + head;
                            const float strength = beta[at], inverse = 1.0f / strength;
                            const bool writing = strength > 1e-18f || strength < -1e-18f;
                            d_beta[at] = writing ? of_coupling[n][2 * half + side] * inverse * inverse : 0.0f;
                        }
                    }
                    const int at = i * Square::PITCH + Square::column_of(n);
                    store_parts(g, at, of_g[0], of_g[1]);
                    store_parts(h, at, of_h[0], of_h[1]);
                }
            }
        }
        __syncthreads();
        copy_tile<Rows>(q, qs, width, tokens.count);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        if (Rows::mine()) {
            const bf16* const q_rows = q + Rows::column();
            const bf16* const k_rows = &k[Rows::column()];
            scale_rows(of_q, entry_q[Rows::row_of(0)], entry_q[Rows::row_of(1)]);
            multiply_parts<false>(of_q, g, Rows::row(), k_rows, Rows::PITCH);
#pragma unroll
            for (int half = 0; half < 2; ++half) enters[half] += row_dot<Rows>(of_q, q, half);
            add(d_q, of_q);
            clear(of_k);
            multiply_parts<false>(of_k, h, Rows::row(), k_rows, Rows::PITCH);
#pragma unroll
            for (int half = 0; half < 2; ++half) enters[half] += row_dot<Rows>(of_k, &k[0], half);
            add(d_k, of_k);
            clear(of_k);
            multiply_parts<true>(of_k, g, Rows::row(), q_rows, Rows::PITCH);
            multiply_parts<true>(of_k, h, Rows::row(), k_rows, Rows::PITCH);
#pragma unroll
            for (int half = 0; half < 2; ++half) enters[half] -= row_dot<Rows>(of_k, &k[0], half);
            add(d_k, of_k);
            if (lane % 4 == 0) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    passing[Rows::group() * CHUNK + Rows::row_of(half)] = enters[half];
                    leaving[Rows::group() * CHUNK + Rows::row_of(half)] = leaves[half];
                }
            }
        }
        through = block_sum(through, 0.0f).x;  // and a barrier
        if (warp_index() == 0) {
            const auto total = [&](bool of_leaving, int i) {
                float sum = 0.0f;
#pragma unroll
                for (int part = 0; part < Rows::GROUPS; ++part) {
                    const int at = part * CHUNK + i;
                    sum += of_leaving ? float(leaving[at]) : float(passing[at]);
                }
                return sum;
            };
            const int i = 2 * lane;
            const float2 ends = running_sums(make_float2(total(false, 63 - i), total(false, 62 - i)));
            from_here[63 - i] = ends.x;
            from_here[62 - i] = ends.y;
            const float2 starts = running_sums(make_float2(i > 0 ? total(true, i - 1) : 0.0f, total(true, i)));
            __syncwarp();
            const float whole = __expf(sums_of_g[tokens.count - 1]);
            float* const to = d_g + (tokens.first + i) * sizes.value_heads + head;
            if (i < tokens.count) to[0] = whole * through + from_here[i] + starts.x;
            if (i + 1 < tokens.count) to[sizes.value_heads] = whole * through + from_here[i + 1] + starts.y;
        }
        __syncthreads();
    }

    if (Rows::mine()) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float with_q = row_dot<Rows>(d_q, q, half), with_k = row_dot<Rows>(d_k, &k[0], half);
            if (lane % 4 != 0) continue;
            passing[Rows::group() * CHUNK + Rows::row_of(half)] = with_q;
            leaving[Rows::group() * CHUNK + Rows::row_of(half)] = with_k;
        }
    }
    __syncthreads();
    if (!Rows::mine()) return;
    bf16* const to_q = d_qkv + tokens.first * width + key_head * D;
    bf16* const to_k = to_q + sizes.key_heads * D;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = Rows::row_of(half);
        if (i >= tokens.count) continue;
        float along_q = 0.0f, along_k = 0.0f;
#pragma unroll
        for (int part = 0; part < Rows::GROUPS; ++part) {
            along_q += passing[part * CHUNK + i];
            along_k += leaving[part * CHUNK + i];
        }
        const float* const norm = norms + 2 * ((tokens.first + i) * sizes.key_heads + key_head);
        along_q *= norm[0] * norm[0];
        along_k *= norm[1] * norm[1];
#pragma unroll
        for (int n = 0; n < Rows::COUNT; ++n) {
            const int j = Rows::column_of(n);
            const float2 of_q = load_pair(q + i * Rows::PITCH + j), of_k = load_pair(&k[i * Rows::PITCH + j]);
            write_pair(to_q + i * width + j, d_q[n][2 * half] - along_q * of_q.x, d_q[n][2 * half + 1] - along_q * of_q.y);
            write_pair(to_k + i * width + j, d_k[n][2 * half] - along_k * of_k.x, d_k[n][2 * half + 1] - along_k * of_k.y);
        }
    }
}

KERNEL(256, 1) delta_rule_gradients(const bf16* __restrict__ qkv, const float* __restrict__ beta, const float* __restrict__ gate_sums,
                                    const float* __restrict__ norms, const bf16* __restrict__ states,
                                    const bf16* __restrict__ d_states, const bf16* __restrict__ writes,
                                    const bf16* __restrict__ d_out, const u32* __restrict__ chunk_table, bf16* d_qkv,
                                    float* __restrict__ d_g, float* __restrict__ d_beta, const DeltaRuleSizes sizes) {
    gradients<HEAD_DIM>(qkv, beta, gate_sums, norms, states, d_states, writes, d_out, chunk_table, d_qkv, d_g, d_beta, sizes);
}
