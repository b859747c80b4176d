// The warp-wide matrix operations: `ldmatrix` and `mma.sync.m16n8k16`, fragments laid out as the PTX manual says; and the two 16-bit
// formats they take.
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

// c [16, 8] += a [16, 16] · b [16, 8], summed in double and rounded once; hardware rounds in an order it does not tell.
template <float (*VALUE)(uint16_t)>
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}}, ~0u, "mma");
    const int lane = current_lane();
    const Deposit* lanes = &published[size_t(current() - lane)];
    // Two rows of a, two columns of b, 16 numbers each: all of a lane's four results.
    double row[2][16], column[2][16];
    const auto unpack = [](uint32_t word, double* to) {
        to[0] = VALUE(uint16_t(word));
        to[1] = VALUE(uint16_t(word >> 16));
    };
    for (int pair = 0; pair < 4; ++pair) {
        Fragments there;
        std::memcpy(&there, lanes[lane / 4 * 4 + pair].bytes, sizeof there);
        for (int i = 0; i < 4; ++i) unpack(there.a[i], &row[i % 2][i / 2 * 8 + pair * 2]);
        for (int j = 0; j < 2; ++j) {
            std::memcpy(&there, lanes[(lane % 4 * 2 + j) * 4 + pair].bytes, sizeof there);
            for (int i = 0; i < 2; ++i) unpack(there.b[i], &column[j][i * 8 + pair * 2]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        double sum = c[i];
        for (int k = 0; k < 16; ++k) sum += row[i / 2][k] * column[i % 2][k];
        c[i] = float(sum);
    }
}

}  // namespace emulator
