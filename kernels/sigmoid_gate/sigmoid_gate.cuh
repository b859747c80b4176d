// Qwen3.5's output gate (SPEC.md 2.3 step 7): `y = o ⊙ sigmoid(gate)`, `o, y [T, N·D]`; the gate is read out of the joint
// projection `joint [T, N·2D]`, of each head's 2·D numbers the last D. bf16 in and out, fp32 between.
//
// Backward: `d_o = d_y ⊙ sigmoid(gate)`, and `d_joint`, the gradient of all of `joint`: zeros where the queries are, whose
// gradient comes from elsewhere, and `d_y ⊙ o ⊙ s (1 - s)` where the gates are.
//
// `heads` is T · N; a thread does eight numbers of a head; D may be any number.
// Launch: 256 threads, ceil(heads · ceil(D / 8) / 256) blocks.
#pragma once
#include "../device/bf16.cuh"
#include "../device/silu.cuh"

struct SigmoidGateSizes {
    u32 heads, head_dim;
};

// The eight numbers of a thread: `count` of them exist.
struct Part {
    u64 single, joint;  // where they begin in o; where the head's queries beside them begin in the joint projection
    int count;
};

DEVICE Part part_of_thread(const SigmoidGateSizes& s) {
    const u32 parts = (s.head_dim + 7) / 8, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 head = index / parts, first = index % parts * 8;
    return Part{u64(head) * s.head_dim + first, u64(head) * 2 * s.head_dim + first,
                head < s.heads ? min(int(s.head_dim - first), 8) : 0};
}

KERNEL(256) sigmoid_gate_forward(const bf16* __restrict__ o, const bf16* __restrict__ joint, bf16* __restrict__ y,
                                 const SigmoidGateSizes sizes) {
    const Part part = part_of_thread(sizes);
    if (part.count == 0) return;
    Eight v = load8(o + part.single, part.count);
    const Eight gate = load8(joint + part.joint + sizes.head_dim, part.count);
#pragma unroll
    for (int i = 0; i < 8; ++i) v.at[i] *= sigmoid(gate.at[i]);
    store8(y + part.single, v, part.count);
}

KERNEL(256) sigmoid_gate_backward(const bf16* __restrict__ o, const bf16* __restrict__ joint, const bf16* __restrict__ d_y,
                                  bf16* __restrict__ d_o, bf16* __restrict__ d_joint, const SigmoidGateSizes sizes) {
    const Part part = part_of_thread(sizes);
    if (part.count == 0) return;
    const Eight v = load8(o + part.single, part.count), gate = load8(joint + part.joint + sizes.head_dim, part.count);
    const Eight dy = load8(d_y + part.single, part.count);
    Eight dv, d_gate;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float open = sigmoid(gate.at[i]);
        dv.at[i] = dy.at[i] * open;
        d_gate.at[i] = dv.at[i] * v.at[i] * (1.0f - open);
    }
    store8(d_o + part.single, dv, part.count);
    store8(d_joint + part.joint, zeros(), part.count);
    store8(d_joint + part.joint + sizes.head_dim, d_gate, part.count);
}
