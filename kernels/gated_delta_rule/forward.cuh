// The passes of the delta rule over the chunks of a segment, first to last: the outputs, or, for backward, the states before
// each chunk and what each token writes. Formulas and buffers: gated_delta_rule.cuh.
//
// Launch: (Nv · D / SLICE, segments) blocks of 256 threads, SLICE = min(D, 64): a block takes one head of one segment and SLICE
// columns of dv. Run after delta_rule_chunk_matrices.
//
// The state stays in registers in fp32, in shared memory lies its bf16 copy for the next chunk. Each tile has one buffer: it
// is filled for the next chunk as soon as this one is through with it, at the latest behind the state's update.
#pragma once
#include "state.cuh"

// `ForBackward`: `out` takes X, and `states` is written; else `out` takes O and `states` is not touched.
template <int D, bool ForBackward>
DEVICE void walk_forward(const bf16* qkv, const f16* inverses, const f16* attentions, const float* gate_sums, const float* norms,
                         const u32* chunk_table, const u32* segment_table, bf16* out, bf16* states, const DeltaRuleSizes& sizes) {
    typedef typename StateShape<D>::Keys Keys;
    typedef typename StateShape<D>::Values Values;
    typedef typename StateShape<D>::Square Square;
    typedef typename StateShape<D>::State State;
    constexpr int SLICE = StateShape<D>::SLICE;
    DYNAMIC_SHARED(bf16, q, ForBackward ? 8 : Keys::SIZE, 0);
    DYNAMIC_SHARED(bf16, k, Keys::SIZE, q_end);
    DYNAMIC_SHARED(bf16, v, Values::SIZE, k_end);
    DYNAMIC_SHARED(f16, inverse, Square::SIZE, v_end);
    DYNAMIC_SHARED(f16, attention, ForBackward ? 8 : Square::SIZE, inverse_end);
    DYNAMIC_SHARED(bf16, state_copy, State::SIZE, attention_end);
    DYNAMIC_SHARED(f16, writes, ForBackward ? 8 : Values::SIZE, state_copy_end);
    DYNAMIC_SHARED(bf16, leaving, Values::SIZE, writes_end);  // F X
    SHARED(float, entry_k, CHUNK);
    SHARED(float, entry_q, CHUNK);
    SHARED(float, exit_k, CHUNK);

    f16* const unpredicted = reinterpret_cast<f16*>(&v[0]);  // V - E K S takes the place of V

    const u32 head = blockIdx.x / (D / SLICE), key_head = head / (sizes.value_heads / sizes.key_heads);
    const u32 slice = blockIdx.x % (D / SLICE) * SLICE;
    const u32 first_chunk = segment_table[2 * blockIdx.y], end_chunk = first_chunk + segment_table[2 * blockIdx.y + 1];
    const u64 width = qkv_width(sizes, D), out_width = u64(sizes.value_heads) * D;
    const bf16* const qs = qkv + key_head * D;
    const bf16* const ks = qs + sizes.key_heads * D;
    const bf16* const vs = qkv + (2 * sizes.key_heads + head) * D + slice;
    const auto matrix = [&](u32 chunk) { return (u64(chunk) * sizes.value_heads + head) * (CHUNK * CHUNK); };
    const auto copy_queries = [&](u32 chunk) {
        const ChunkOfTokens at = chunk_at(chunk_table, chunk);
        if (!ForBackward) copy_tile<Keys>(&q[0], qs + at.first * width, width, at.count);
        cp_async_commit();
    };
    const auto copy_values = [&](u32 chunk) {
        const ChunkOfTokens at = chunk_at(chunk_table, chunk);
        copy_tile<Values>(&v[0], vs + at.first * width, width, at.count);
        copy_tile<Square>(&inverse[0], inverses + matrix(chunk), CHUNK, CHUNK);
        cp_async_commit();
    };
    const auto copy_keys = [&](u32 chunk) {
        const ChunkOfTokens at = chunk_at(chunk_table, chunk);
        copy_tile<Keys>(&k[0], ks + at.first * width, width, at.count);
        if (!ForBackward) copy_tile<Square>(&attention[0], attentions + matrix(chunk), CHUNK, CHUNK);
        cp_async_commit();
    };

    typename State::Sums state;
    clear(state);
    copy_state<State>(&state_copy[0], state);
    copy_queries(first_chunk);
    copy_values(first_chunk);
    copy_keys(first_chunk);
    for (u32 chunk = first_chunk; chunk < end_chunk; ++chunk) {
        const ChunkOfTokens tokens = chunk_at(chunk_table, chunk);
        const bool more = chunk + 1 < end_chunk;
        if (threadIdx.x < CHUNK) {
            const int i = int(threadIdx.x);
            const RowFactors factors = row_factors<D>(gate_sums, norms, sizes, head, tokens, i);
            entry_k[i] = factors.entry_k;
            entry_q[i] = factors.entry_q;
            exit_k[i] = factors.exit_k;
        }
        const float whole = __expf(gate_sums[(tokens.first + tokens.count - 1) * sizes.value_heads + head]);
        cp_async_wait<0>();
        __syncthreads();

        // V - E K S, and Q S, after which the copy of the state and Q are free.
        typename Values::Sums read;
        clear(read);
        if (Values::mine()) {
            typename Values::Sums predicted;
            clear(predicted);
            multiply<D, false, true>(predicted, &k[Values::row() * Keys::PITCH], Keys::PITCH, &state_copy[Values::column()], State::PITCH);
            if (!ForBackward)
                multiply<D, false, true>(read, &q[Values::row() * Keys::PITCH], Keys::PITCH, &state_copy[Values::column()], State::PITCH);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = Values::row_of(half);
                const float entry = entry_k[i];
#pragma unroll
                for (int n = 0; n < Values::COUNT; ++n) {
                    const int at = i * Values::PITCH + Values::column_of(n);
                    const float2 value = load_pair(&v[at]);
                    store_pair(unpredicted + at, value.x - entry * predicted[n][2 * half], value.y - entry * predicted[n][2 * half + 1]);
                }
            }
        }
        if (ForBackward) write_state<D>(states + (u64(chunk) * sizes.value_heads + head) * (D * D) + slice, &state_copy[0]);
        __syncthreads();
        if (more) copy_queries(chunk + 1);

        bf16* const to = out + tokens.first * out_width + head * D + slice;
        if (Values::mine()) {
            typename Values::Sums written;
            clear(written);
            multiply<CHUNK, false, true>(written, &inverse[Values::row() * Square::PITCH], Square::PITCH,
                                         unpredicted + Values::column(), Values::PITCH);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = Values::row_of(half);
                const float exit = exit_k[i];
#pragma unroll
                for (int n = 0; n < Values::COUNT; ++n) {
                    const int j = Values::column_of(n), at = i * Values::PITCH + j;
                    const float x = written[n][2 * half], y = written[n][2 * half + 1];
                    store_pair(&leaving[at], exit * x, exit * y);
                    if (!ForBackward) store_pair(&writes[at], x, y);
                    else if (i < tokens.count) write_pair(to + i * out_width + j, x, y);
                }
            }
        }
        __syncthreads();
        if (more) copy_values(chunk + 1);

        if (!ForBackward && Values::mine()) {
            scale_rows(read, entry_q[Values::row_of(0)], entry_q[Values::row_of(1)]);
            multiply<CHUNK, false, true>(read, &attention[Values::row() * Square::PITCH], Square::PITCH,
                                         &writes[Values::column()], Values::PITCH);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = Values::row_of(half);
                if (i >= tokens.count) continue;
#pragma unroll
                for (int n = 0; n < Values::COUNT; ++n)
                    write_pair(to + i * out_width + Values::column_of(n), read[n][2 * half], read[n][2 * half + 1]);
            }
        }
        if (!more) break;
        if (State::mine()) {
            scale_rows(state, whole, whole);
            multiply<CHUNK, true, true>(state, &k[State::row()], Keys::PITCH, &leaving[State::column()], Values::PITCH);
        }
        copy_state<State>(&state_copy[0], state);
        __syncthreads();
        copy_keys(chunk + 1);
    }
}

KERNEL(256, 1) delta_rule_forward(const bf16* __restrict__ qkv, const f16* __restrict__ inverses, const f16* __restrict__ attentions,
                                  const float* __restrict__ gate_sums, const float* __restrict__ norms,
                                  const u32* __restrict__ chunk_table, const u32* __restrict__ segment_table, bf16* __restrict__ out,
                                  const DeltaRuleSizes sizes) {
    walk_forward<HEAD_DIM, false>(qkv, inverses, attentions, gate_sums, norms, chunk_table, segment_table, out, nullptr, sizes);
}

KERNEL(256, 1) delta_rule_states(const bf16* __restrict__ qkv, const f16* __restrict__ inverses, const float* __restrict__ gate_sums,
                                 const float* __restrict__ norms, const u32* __restrict__ chunk_table,
                                 const u32* __restrict__ segment_table, bf16* __restrict__ writes, bf16* __restrict__ states,
                                 const DeltaRuleSizes sizes) {
    walk_forward<HEAD_DIM, true>(qkv, inverses, nullptr, gate_sums, norms, chunk_table, segment_table, writes, states, sizes);
}
