// The pass of the delta rule's backward over the chunks of a segment, last to first: the gradients of v and of the state behind
// each chunk. Formulas and buffers: gated_delta_rule.cuh.
//
// Launch: (Nv · D / SLICE, segments) blocks of 256 threads, SLICE = min(D, 64), as forward. Needs chunk_matrices, but neither
// states nor writes. Writes the part of v in `d_qkv`, and `d_states`.
#pragma once
#include "state.cuh"

template <int D>
DEVICE void walk_backward(const bf16* qkv, const f16* inverses, const f16* attentions, const float* gate_sums, const float* norms,
                          const bf16* d_out, const u32* chunk_table, const u32* segment_table, bf16* d_qkv, bf16* d_states,
                          const DeltaRuleSizes& sizes) {
    typedef typename StateShape<D>::Keys Keys;
    typedef typename StateShape<D>::Values Values;
    typedef typename StateShape<D>::Square Square;
    typedef typename StateShape<D>::State State;
    constexpr int SLICE = StateShape<D>::SLICE;
    DYNAMIC_SHARED(bf16, q, Keys::SIZE, 0);
    DYNAMIC_SHARED(bf16, k, Keys::SIZE, q_end);
    DYNAMIC_SHARED(bf16, d_o, Values::SIZE, k_end);  // then E dO
    DYNAMIC_SHARED(f16, inverse, Square::SIZE, d_o_end);
    DYNAMIC_SHARED(f16, attention, Square::SIZE, inverse_end);
    DYNAMIC_SHARED(bf16, state_copy, State::SIZE, attention_end);
    DYNAMIC_SHARED(bf16, d_writes, Values::SIZE, state_copy_end);  // Pᵀ dO + F K dS', high part
    DYNAMIC_SHARED(bf16, d_errors, Values::SIZE, d_writes_end);  // its low part, then -E dZ
    SHARED(float, entry_k, CHUNK);
    SHARED(float, entry_q, CHUNK);
    SHARED(float, exit_k, CHUNK);

    const u32 head = blockIdx.x / (D / SLICE), key_head = head / (sizes.value_heads / sizes.key_heads);
    const u32 slice = blockIdx.x % (D / SLICE) * SLICE;
    const u32 first_chunk = segment_table[2 * blockIdx.y], end_chunk = first_chunk + segment_table[2 * blockIdx.y + 1];
    const u64 width = qkv_width(sizes, D), out_width = u64(sizes.value_heads) * D;
    const bf16* const qs = qkv + key_head * D;
    const bf16* const ks = qs + sizes.key_heads * D;
    const auto matrix = [&](u32 chunk) { return (u64(chunk) * sizes.value_heads + head) * (CHUNK * CHUNK); };
    const auto copy_attention = [&](u32 chunk) {
        copy_tile<Square>(&attention[0], attentions + matrix(chunk), CHUNK, CHUNK);
        cp_async_commit();
    };
    const auto copy_inverse = [&](u32 chunk) {
        copy_tile<Square>(&inverse[0], inverses + matrix(chunk), CHUNK, CHUNK);
        cp_async_commit();
    };
    const auto copy_rows = [&](u32 chunk) {
        const ChunkOfTokens at = chunk_at(chunk_table, chunk);
        copy_tile<Keys>(&k[0], ks + at.first * width, width, at.count);
        copy_tile<Values>(&d_o[0], d_out + at.first * out_width + head * D + slice, out_width, at.count);
        copy_tile<Keys>(&q[0], qs + at.first * width, width, at.count);
        cp_async_commit();
    };

    // The gradient of the state behind the chunk.
    typename State::Sums state;
    clear(state);
    copy_state<State>(&state_copy[0], state);
    copy_attention(end_chunk - 1);
    copy_inverse(end_chunk - 1);
    copy_rows(end_chunk - 1);
    for (u32 chunk = end_chunk - 1;; --chunk) {
        const ChunkOfTokens tokens = chunk_at(chunk_table, chunk);
        const bool more = chunk > first_chunk;
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

        write_state<D>(d_states + (u64(chunk) * sizes.value_heads + head) * (D * D) + slice, &state_copy[0]);
        if (Values::mine()) {
            typename Values::Sums sums;
            clear(sums);
            multiply<D, false, true>(sums, &k[Values::row() * Keys::PITCH], Keys::PITCH, &state_copy[Values::column()], State::PITCH);
            scale_rows(sums, exit_k[Values::row_of(0)], exit_k[Values::row_of(1)]);
            multiply<CHUNK, true, true>(sums, &attention[Values::row()], Square::PITCH, &d_o[Values::column()], Values::PITCH);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int n = 0; n < Values::COUNT; ++n) {
                    const int at = Values::row_of(half) * Values::PITCH + Values::column_of(n);
                    const float x = sums[n][2 * half], y = sums[n][2 * half + 1];
                    store_pair(&d_writes[at], x, y);
                    store_pair(&d_errors[at], x - rounded(x), y - rounded(y));
                }
        }
        __syncthreads();
        if (more) copy_attention(chunk - 1);

        typename Values::Sums errors;
        clear(errors);
        if (Values::mine()) {
            multiply<CHUNK, true, true>(errors, &inverse[Values::row()], Square::PITCH, &d_errors[Values::column()], Values::PITCH);
            multiply<CHUNK, true, true>(errors, &inverse[Values::row()], Square::PITCH, &d_writes[Values::column()], Values::PITCH);
        }
        __syncthreads();
        if (more) copy_inverse(chunk - 1);
        if (Values::mine()) {
            bf16* const to = d_qkv + tokens.first * width + (2 * sizes.key_heads + head) * D + slice;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = Values::row_of(half);
                const float of_error = -entry_k[i], of_out = entry_q[i];
#pragma unroll
                for (int n = 0; n < Values::COUNT; ++n) {
                    const int j = Values::column_of(n), at = i * Values::PITCH + j;
                    const float x = errors[n][2 * half], y = errors[n][2 * half + 1];
                    if (i < tokens.count) write_pair(to + i * width + j, x, y);
                    store_pair(&d_errors[at], of_error * x, of_error * y);
                    const float2 out = load_pair(&d_o[at]);
                    store_pair(&d_o[at], of_out * out.x, of_out * out.y);
                }
            }
        }
        if (!more) break;
        __syncthreads();

        if (State::mine()) {
            scale_rows(state, whole, whole);
            multiply<CHUNK, true, true>(state, &q[State::row()], Keys::PITCH, &d_o[State::column()], Values::PITCH);
            multiply<CHUNK, true, true>(state, &k[State::row()], Keys::PITCH, &d_errors[State::column()], Values::PITCH);
        }
        copy_state<State>(&state_copy[0], state);
        __syncthreads();
        copy_rows(chunk - 1);
    }
}

KERNEL(256, 1) delta_rule_backward(const bf16* __restrict__ qkv, const f16* __restrict__ inverses, const f16* __restrict__ attentions,
                                   const float* __restrict__ gate_sums, const float* __restrict__ norms,
                                   const bf16* __restrict__ d_out, const u32* __restrict__ chunk_table,
                                   const u32* __restrict__ segment_table, bf16* __restrict__ d_qkv, bf16* __restrict__ d_states,
                                   const DeltaRuleSizes sizes) {
    walk_backward<HEAD_DIM>(qkv, inverses, attentions, gate_sums, norms, d_out, chunk_table, segment_table, d_qkv, d_states, sizes);
}
