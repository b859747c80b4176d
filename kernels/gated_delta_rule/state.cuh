// The delta rule's state in a block that walks over the chunks of a segment: SLICE columns of it in fp32 in registers, and a bf16 copy
// in shared memory, the operand of the next chunk's products.
#pragma once
#include "gated_delta_rule.cuh"

template <int D>
struct StateShape {
    static constexpr int SLICE = D < 64 ? D : 64;
    typedef Tile<CHUNK, D> Keys;
    typedef Tile<CHUNK, SLICE> Values;
    typedef Tile<CHUNK, CHUNK> Square;
    typedef Tile<D, SLICE> State;
};

// Writes the bf16 copy of a state to its place in `states`.
template <int D>
DEVICE void write_state(bf16* to, const bf16* state) {
    typedef typename StateShape<D>::State State;
    constexpr int LINE = StateShape<D>::SLICE / 8;
    for (int i = int(threadIdx.x); i < D * LINE; i += DELTA_THREADS)
        *reinterpret_cast<uint4*>(to + i / LINE * D + i % LINE * 8) = load_shared<uint4>(state + i / LINE * State::PITCH + i % LINE * 8);
}

// The bf16 copy of the state that the warps hold.
template <class State>
DEVICE void copy_state(bf16* to, const typename State::Sums& state) {
    if (!State::mine()) return;
#pragma unroll
    for (int n = 0; n < State::COUNT; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            store_pair(to + State::row_of(half) * State::PITCH + State::column_of(n), state[n][2 * half], state[n][2 * half + 1]);
}
