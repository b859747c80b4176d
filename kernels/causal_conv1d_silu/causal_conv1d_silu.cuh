// Causal depthwise convolution over time with four taps, then silu; the window stops at the border of a packed example
// (SPEC.md 2.4 step 2 and 2.6). `u, y [T, C]`, `weight [C, 4]`, tap 3 is the current token; `position_ids [T]` counts
// from 0 in each example. bf16 in and out, fp32 between.
//
// A thread owns eight channels of `run` tokens and carries the window in registers, so each number is read once, but for
// the three tokens before a run (in backward also the three behind it).
// Launch: 128 threads, blocks (ceil(C / 1024), ceil(T / run)). Backward with the weight's gradient leaves one row per run in
// `d_weight_partial [runs, 4 · C]` for `sum_rows`.
//
// The steps of decoding continue up to EXAMPLES examples, whose tokens lie one after the other in `u`: `before_e [3, C]` are the three
// tokens in front of those of example e, the oldest first, zero where there were none, and `after_e [1 or its tokens, 3, C]` the last
// three behind its last token, or with `each` behind each of its tokens. Blocks (ceil(C / 1024), ceil(most tokens / run), examples).
#pragma once
#include "../device/bf16.cuh"
#include "../device/examples.cuh"
#include "../device/silu.cuh"

struct ConvSizes {
    u32 tokens, channels, run, reserved;
};

struct ConvStepsSizes {
    u32 channels, run, each;
    ExampleRows tokens;
};

constexpr int TAPS = 4;
constexpr int PAST = TAPS - 1;

// The taps of eight channels by lag: `[0]` multiplies the token itself.
struct Taps {
    Eight lag[TAPS];
};

DEVICE Taps load_taps(const bf16* weight, int channel, int count) {
    Taps taps;
#pragma unroll
    for (int part = 0; part < TAPS; ++part) {
        const Eight two = load8(weight + channel * TAPS + part * 8, count * TAPS - part * 8);
#pragma unroll
        for (int i = 0; i < 8; ++i) taps.lag[PAST - i % TAPS].at[part * 2 + i / TAPS] = two.at[i];
    }
    return taps;
}

// `past[0]` is the token before. Tokens of another example, or before the row, are zero.
DEVICE void load_past(Eight (&past)[PAST], const bf16* u, const u32* position_ids, u32 token, int count, u32 channels) {
#pragma unroll
    for (int lag = 1; lag <= PAST; ++lag) {
        const bool seen = token >= u32(lag) && position_ids[token] >= u32(lag);
        past[lag - 1] = seen ? load8(u + u64(token - lag) * channels, count) : zeros();
    }
}

DEVICE void forget(Eight (&past)[PAST]) {
#pragma unroll
    for (int lag = 0; lag < PAST; ++lag) past[lag] = zeros();
}

DEVICE void step(Eight (&past)[PAST], const Eight& now) {
    past[2] = past[1];
    past[1] = past[0];
    past[0] = now;
}

DEVICE Eight window_sum(const Taps& taps, const Eight& now, const Eight (&past)[PAST]) {
    Eight sum;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        sum.at[i] = taps.lag[0].at[i] * now.at[i];
#pragma unroll
        for (int lag = 1; lag <= PAST; ++lag) sum.at[i] += taps.lag[lag].at[i] * past[lag - 1].at[i];
    }
    return sum;
}

DEVICE Eight convolved(const Taps& taps, const Eight& now, const Eight (&past)[PAST]) {
    Eight out = window_sum(taps, now, past);
#pragma unroll
    for (int i = 0; i < 8; ++i) out.at[i] = silu(out.at[i]);
    return out;
}

KERNEL(128) causal_conv1d_silu_forward(const bf16* __restrict__ u, const bf16* __restrict__ weight,
                                       const u32* __restrict__ position_ids, bf16* __restrict__ y,
                                       const ConvSizes sizes) {
    const int channel = int(blockIdx.x * blockDim.x + threadIdx.x) * 8, count = int(sizes.channels) - channel;
    if (count <= 0) return;
    const u32 begin = blockIdx.y * sizes.run, end = min(begin + sizes.run, sizes.tokens);
    const Taps taps = load_taps(weight, channel, count);
    Eight past[PAST];
    load_past(past, u + channel, position_ids, begin, count, sizes.channels);
    for (u32 token = begin; token < end; ++token) {
        const u64 at = u64(token) * sizes.channels + channel;
        if (position_ids[token] == 0) forget(past);
        const Eight now = load8(u + at, count);
        store8(y + at, convolved(taps, now, past), count);
        step(past, now);
    }
}

// With `ds = dy ⊙ silu'(s)`: `du_t = Σ_lag w[lag] ⊙ ds_{t+lag}` inside the example, `dw[lag] = Σ_t ds_t ⊙ u_{t-lag}`.
// Goes forward in time; a token's gradient is complete, and written, three tokens later.
template <bool Weight>
DEVICE void conv_gradients(const bf16* u, const bf16* weight, const u32* position_ids, const bf16* d_y, bf16* d_u,
                           float* d_weight_partial, const ConvSizes& sizes) {
    const int channel = int(blockIdx.x * blockDim.x + threadIdx.x) * 8, count = int(sizes.channels) - channel;
    if (count <= 0) return;
    const u32 begin = blockIdx.y * sizes.run, end = min(begin + sizes.run, sizes.tokens);
    const Taps taps = load_taps(weight, channel, count);
    Taps d_taps = {};
    Eight past[PAST], pending[PAST];
    forget(pending);
    load_past(past, u + channel, position_ids, begin, count, sizes.channels);
    // Three tokens behind the run still see its last ones.
    const u32 last = min(end + PAST, sizes.tokens);
    for (u32 token = begin; token < last; ++token) {
        const u32 position = position_ids[token];
        const u64 at = u64(token) * sizes.channels + channel;
        if (position == 0) forget(past);
        const Eight now = load8(u + at, count);
        Eight ds = window_sum(taps, now, past), done;
        const Eight dy = load8(d_y + at, count);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            ds.at[i] = dy.at[i] * silu_derivative(ds.at[i]);
#pragma unroll
            for (int lag = 1; lag <= PAST; ++lag)
                if (position >= u32(lag)) pending[lag - 1].at[i] += taps.lag[lag].at[i] * ds.at[i];
            if (Weight && token < end) {
                d_taps.lag[0].at[i] += ds.at[i] * now.at[i];
#pragma unroll
                for (int lag = 1; lag <= PAST; ++lag) d_taps.lag[lag].at[i] += ds.at[i] * past[lag - 1].at[i];
            }
        }
        if (token >= begin + PAST) store8(d_u + at - u64(PAST) * sizes.channels, pending[PAST - 1], count);
#pragma unroll
        for (int i = 0; i < 8; ++i) done.at[i] = taps.lag[0].at[i] * ds.at[i];
        step(pending, done);
        step(past, now);
    }
    // At the end of the pack nobody comes to finish the last tokens.
#pragma unroll
    for (int lag = 1; lag <= PAST; ++lag)
        if (last >= begin + u32(lag) && last - lag < end)
            store8(d_u + u64(last - lag) * sizes.channels + channel, pending[lag - 1], count);
    if (!Weight) return;
    float* partial = d_weight_partial + (u64(blockIdx.y) * sizes.channels + channel) * TAPS;
#pragma unroll
    for (int part = 0; part < TAPS; ++part) {
        Eight two;
#pragma unroll
        for (int i = 0; i < 8; ++i) two.at[i] = d_taps.lag[PAST - i % TAPS].at[part * 2 + i / TAPS];
        store8(partial + part * 8, two, count * TAPS - part * 8);
    }
}

KERNEL(128) causal_conv1d_silu_backward(const bf16* __restrict__ u, const bf16* __restrict__ weight,
                                        const u32* __restrict__ position_ids, const bf16* __restrict__ d_y,
                                        bf16* __restrict__ d_u, const ConvSizes sizes) {
    conv_gradients<false>(u, weight, position_ids, d_y, d_u, nullptr, sizes);
}

KERNEL(128) causal_conv1d_silu_backward_weight(const bf16* __restrict__ u, const bf16* __restrict__ weight,
                                               const u32* __restrict__ position_ids, const bf16* __restrict__ d_y,
                                               bf16* __restrict__ d_u, float* __restrict__ d_weight_partial,
                                               const ConvSizes sizes) {
    conv_gradients<true>(u, weight, position_ids, d_y, d_u, d_weight_partial, sizes);
}

KERNEL(128) causal_conv1d_silu_steps(const bf16* __restrict__ u, const bf16* __restrict__ weight, OF_EACH_EXAMPLE(const bf16*, before),
                                     bf16* __restrict__ y, OF_EACH_EXAMPLE(bf16*, after), const ConvStepsSizes sizes) {
    const int channel = int(blockIdx.x * blockDim.x + threadIdx.x) * 8, count = int(sizes.channels) - channel;
    const u32 first = of_example(sizes.tokens.first, blockIdx.z), last = of_example(sizes.tokens.first, blockIdx.z + 1);
    const u32 begin = first + blockIdx.y * sizes.run, end = min(begin + sizes.run, last);
    if (count <= 0 || begin >= last) return;
    const bf16* const befores[EXAMPLES] = ALL_OF(before);
    bf16* const afters[EXAMPLES] = ALL_OF(after);
    const bf16* const before = of_example(befores, blockIdx.z);
    bf16* after = of_example(afters, blockIdx.z) + (sizes.each ? u64(begin - first) * PAST * sizes.channels : 0) + channel;
    const Taps taps = load_taps(weight, channel, count);
    Eight past[PAST];
#pragma unroll
    for (int lag = 1; lag <= PAST; ++lag) {
        const bool fresh = begin - first >= u32(lag);
        const u64 row = fresh ? begin - u32(lag) : begin - first + u32(PAST - lag);
        past[lag - 1] = load8((fresh ? u : before) + row * sizes.channels + channel, count);
    }
    for (u32 token = begin; token < end; ++token) {
        const u64 at = u64(token) * sizes.channels + channel;
        const Eight now = load8(u + at, count);
        store8(y + at, convolved(taps, now, past), count);
        step(past, now);
        if (!sizes.each && token + 1 < last) continue;
#pragma unroll
        for (int lag = 1; lag <= PAST; ++lag) store8(after + u64(PAST - lag) * sizes.channels, past[lag - 1], count);
        after += u64(PAST) * sizes.channels;
    }
}
