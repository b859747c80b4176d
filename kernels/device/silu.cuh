// silu and its derivative in fp32.
#pragma once
#include "cuda.cuh"

// The fast exponential is good to a few units of the last fp32 place, far inside what bf16 keeps. Where it overflows
// the quotient is the right limit, 0.
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

DEVICE float silu(float x) { return x * sigmoid(x); }

DEVICE float silu_derivative(float x) {
    const float s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}
