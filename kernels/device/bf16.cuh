// bfloat16 in memory, fp32 in registers: eight numbers at a time, 16 bytes of bf16, the widest load there is.
//
// Rounding is to nearest, ties to even, on the device and in the emulator. A group of eight at the end of a row may hold
// fewer: `count` says how many exist; the missing ones read as zero and are not written. Rows whose start is not
// aligned (a width that is no multiple of eight) take the slow path, number by number.
#pragma once
#include "cuda.cuh"

struct bf16 {
    unsigned short bits;
};

struct Eight {
    float at[8];
};

DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// Two numbers in one word, the first in the low half.
DEVICE u32 pack_bf16(float low, float high) {
#ifdef __CUDACC__
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return u32(emulator::bf16_bits(low)) | u32(emulator::bf16_bits(high)) << 16;
#endif
}

DEVICE bf16 to_bf16(float x) { return bf16{(unsigned short)(pack_bf16(x, 0.0f) & 0xffff)}; }

DEVICE float rounded(float x) { return to_float(to_bf16(x)); }

DEVICE bool whole(const void* address, int count) { return count >= 8 && u64(address) % 16 == 0; }

DEVICE Eight zeros() { return Eight{}; }

DEVICE Eight load8(const bf16* from, int count) {
    Eight x;
    if (whole(from, count)) {
        const uint4 words = *reinterpret_cast<const uint4*>(from);
        const u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x.at[2 * i] = __uint_as_float(pairs[i] << 16);
            x.at[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x.at[i] = i < count ? to_float(from[i]) : 0.0f;
    }
    return x;
}

DEVICE void store8(bf16* to, const Eight& x, int count) {
    if (whole(to, count)) {
        *reinterpret_cast<uint4*>(to) = make_uint4(pack_bf16(x.at[0], x.at[1]), pack_bf16(x.at[2], x.at[3]),
                                                   pack_bf16(x.at[4], x.at[5]), pack_bf16(x.at[6], x.at[7]));
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (i < count) to[i] = to_bf16(x.at[i]);
    }
}

DEVICE Eight load8(const float* from, int count) {
    Eight x;
    if (whole(from, count)) {
        const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
        x = Eight{{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x.at[i] = i < count ? from[i] : 0.0f;
    }
    return x;
}

DEVICE void store8(float* to, const Eight& x, int count) {
    if (whole(to, count)) {
        reinterpret_cast<float4*>(to)[0] = make_float4(x.at[0], x.at[1], x.at[2], x.at[3]);
        reinterpret_cast<float4*>(to)[1] = make_float4(x.at[4], x.at[5], x.at[6], x.at[7]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (i < count) to[i] = x.at[i];
    }
}
