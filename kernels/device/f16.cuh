// float16 as an operand of the tensor cores: eight times finer than bf16, but only from 6e-5 to 65504 (below, in steps of
// 6e-8). For numbers whose size is known, such as weights that are at most 1.
//
// Rounding is to nearest, ties to even, on the device and in the emulator.
#pragma once
#include "cuda.cuh"

struct f16 {
    unsigned short bits;
};

// Two numbers in one word, the first in the low half.
DEVICE u32 pack_f16(float low, float high) {
#ifdef __CUDACC__
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return u32(emulator::f16_bits(low)) | u32(emulator::f16_bits(high)) << 16;
#endif
}

DEVICE float2 unpack_f16(u32 word) {
#ifdef __CUDACC__
    float low, high;
    asm("{\n\t.reg .f16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
        : "=f"(low), "=f"(high)
        : "r"(word));
    return make_float2(low, high);
#else
    return make_float2(emulator::f16_value(word & 0xffff), emulator::f16_value(word >> 16));
#endif
}
