// The examples of a step of decoding: up to EXAMPLES in a launch, each with some rows of it and with buffers of its own.
#pragma once
#include "cuda.cuh"

constexpr int EXAMPLES = 8;

// Example `e` has the rows first[e]..first[e + 1]; of those that are not there it has none.
struct ExampleRows {
    u32 first[EXAMPLES + 1];
};

// A kernel's parameters for a buffer of each example. Any buffer will do for an example that is not there.
#define OF_EACH_EXAMPLE(type, name) \
    type __restrict__ name##_0, type __restrict__ name##_1, type __restrict__ name##_2, type __restrict__ name##_3, \
        type __restrict__ name##_4, type __restrict__ name##_5, type __restrict__ name##_6, type __restrict__ name##_7
#define ALL_OF(name) {name##_0, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7}

// One of the examples' numbers or buffers. Without an index, so that they stay where parameters are.
template <class T, int N>
DEVICE T of_example(const T (&all)[N], u32 example) {
    T found = all[0];
#pragma unroll
    for (int i = 1; i < N; ++i)
        if (u32(i) == example) found = all[i];
    return found;
}
