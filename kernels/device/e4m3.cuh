// e4m3 as an operand of the tensor cores: one byte, three digits behind the leading one, sizes from 2^-9 to 448, no infinity.
//
// A row of numbers is divided by its scale, the least power of two that brings the largest of them to 448 or below: dividing
// by it, and multiplying sums by it, rounds nothing. Rounding to e4m3 is to nearest, ties to even, on the device and in the emulator.
// The scale of a row that is not finite is not a number, and so is every sum that is multiplied by it.
#pragma once
#include "bf16.cuh"

// Four numbers in one word, the first in the lowest byte. More than 448 becomes 448.
DEVICE u32 pack_e4m3(float x, float y, float z, float w) {
#ifdef __CUDACC__
    unsigned short low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y), "f"(x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(w), "f"(z));
    return u32(low) | u32(high) << 16;
#else
    return u32(emulator::e4m3_bits(x)) | u32(emulator::e4m3_bits(y)) << 8 | u32(emulator::e4m3_bits(z)) << 16 |
           u32(emulator::e4m3_bits(w)) << 24;
#endif
}

// The bits of |x|: larger for a larger |x|, at least 0x7f80 where it is not finite.
DEVICE u32 size_bits(bf16 x) { return x.bits & 0x7fff; }

// The scale of a row by the bits of the largest size in it; at least 2^-126.
DEVICE float e4m3_scale(u32 largest) {
    if (largest >= 0x7f80) return __uint_as_float(0x7fffffff);
    // 448 is 1.75 · 2^8: what lies above 1.75 at its exponent needs twice the scale.
    const int exponent = int(largest >> 7) - 8 + ((largest & 0x7f) > 0x60 ? 1 : 0);
    return __uint_as_float(u32(max(exponent, 1)) << 23);
}
