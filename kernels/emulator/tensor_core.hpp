// The warp-wide matrix operations: `ldmatrix`, `mma.sync.m16n8k16` and `m16n8k32`, fragments laid out as the PTX manual says; and
// the two 16-bit formats and the one of a byte that they take.
#pragma once
#include "async_copy.hpp"
#include <cmath>
#include <cstdint>

namespace emulator {

inline float bf16_value(uint16_t bits) {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// To nearest, ties to even; any NaN becomes 0x7fff, as `cvt.rn.bf16` does it.
inline uint16_t bf16_bits(float value) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

inline float f16_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                       : exponent == 0 ? std::ldexp(float(fraction), -24)
                                       : std::ldexp(float(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

// To nearest, ties to even; what rounds past 65504 becomes infinite and any NaN 0x7fff, as `cvt.rn.f16` does it.
inline uint16_t f16_bits(float value) {
    if (std::isnan(value)) return 0x7fff;
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (size >= 65520.0f) return sign | 0x7c00;
    const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
    const auto units = uint16_t(std::nearbyint(std::ldexp(size, 10 - exponent)));
    // From 1024 units on the leading one is part of the exponent; rounding up to 2048 carries into it.
    return sign | uint16_t(units < 1024 ? units : (exponent + 15) * 1024 + units - 1024);
}

// Without infinity: what would be the largest number, 480, is not one.
inline float e4m3_value(uint8_t bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const float size = exponent == 15 && fraction == 7 ? NAN
                       : exponent == 0                 ? std::ldexp(float(fraction), -9)
                                                       : std::ldexp(float(8 + fraction), exponent - 10);
    return bits & 0x80 ? -size : size;
}

// To nearest, ties to even; what rounds past 448 becomes 448 and any NaN 0x7f, as `cvt.rn.satfinite.e4m3x2` does it.
inline uint8_t e4m3_bits(float value) {
    if (std::isnan(value)) return 0x7f;
    const uint8_t sign = std::signbit(value) ? 0x80 : 0;
    const float size = std::fabs(value);
    if (size >= 464.0f) return sign | 0x7e;
    const int exponent = size < 0x1p-6f ? -6 : std::ilogb(size);
    const auto units = uint8_t(std::nearbyint(std::ldexp(size, 3 - exponent)));
    // As for f16: rounding up to 16 carries into the exponent.
    return sign | uint8_t(units < 8 ? units : (exponent + 7) * 8 + units - 8);
}

// `x4`: lane `8m + i` gives the address of row `i` of matrix `m`, eight bf16 a row. Register `m` of lane `l` receives numbers
// `2(l % 4)` and the next of row `l / 4`; transposed, of column `l / 4`.
inline void ldmatrix_x4(uint32_t (&registers)[4], const void* row, bool transposed) {
    aligned_or_fault(row, 16, "ldmatrix");
    note_access(__builtin_return_address(0), row, 16);
    check_read(array_at(row, 16, "ldmatrix"), row, 16);
    const char* name = transposed ? "ldmatrix.trans" : "ldmatrix";
    exchange(row, ~0u, name);
    const int lane = current_lane();
    for (int matrix = 0; matrix < 4; ++matrix) {
        const auto number = [&](int i, int j) { return uint32_t(received<const uint16_t*>(matrix * 8 + i)[j]); };
        const int major = lane / 4, minor = lane % 4 * 2;
        registers[matrix] = transposed ? number(minor, major) | number(minor + 1, major) << 16
                                       : number(major, minor) | number(major, minor + 1) << 16;
    }
    // Nobody overwrites a row before all have read it.
    exchange(row, ~0u, name);
}

struct Fragments {
    uint32_t a[4], b[2];
};

// c [16, 8] += a [16, 8 words] · b [8 words, 8], summed in double and rounded once; hardware rounds in an order it does not tell.
template <class Bits, float (*VALUE)(Bits)>
void mma_of_words(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}}, ~0u, "mma");
    constexpr int in_word = 4 / sizeof(Bits), depth = 8 * in_word;
    const int lane = current_lane();
    const Deposit* lanes = &published[size_t(current() - lane)];
    // Two rows of a, two columns of b, eight words each: all of a lane's four results.
    double row[2][depth], column[2][depth];
    const auto unpack = [](uint32_t word, double* to) {
        for (int i = 0; i < in_word; ++i) to[i] = VALUE(Bits(word >> i * 32 / in_word));
    };
    for (int word = 0; word < 4; ++word) {
        Fragments there;
        std::memcpy(&there, lanes[lane / 4 * 4 + word].bytes, sizeof there);
        for (int i = 0; i < 4; ++i) unpack(there.a[i], &row[i % 2][(i / 2 * 4 + word) * in_word]);
        for (int j = 0; j < 2; ++j) {
            std::memcpy(&there, lanes[(lane % 4 * 2 + j) * 4 + word].bytes, sizeof there);
            for (int i = 0; i < 2; ++i) unpack(there.b[i], &column[j][(i * 4 + word) * in_word]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        double sum = c[i];
        for (int k = 0; k < depth; ++k) sum += row[i / 2][k] * column[i % 2][k];
        c[i] = float(sum);
    }
}

template <float (*VALUE)(uint16_t)>
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_of_words<uint16_t, VALUE>(c, a, b0, b1);
}

template <float (*VALUE)(uint8_t)>
void mma_m16n8k32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_of_words<uint8_t, VALUE>(c, a, b0, b1);
}

}  // namespace emulator
