// The warp-wide matrix operations: `ldmatrix` and `mma.sync.m16n8k16`, fragments laid out as the PTX manual says.
#pragma once
#include "async_copy.hpp"
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
inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}}, ~0u, "mma");
    const int lane = current_lane();
    const auto half = [](uint32_t word, int index) { return bf16_value(uint16_t(word >> 16 * (index & 1))); };
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; ++k) {
            const int pair = k % 8 / 2;
            sum += double(half(received<Fragments>(row % 8 * 4 + pair).a[row / 8 + 2 * (k / 8)], k)) *
                   half(received<Fragments>(column * 4 + pair).b[k / 8], k);
        }
        c[i] = float(sum);
    }
}

}  // namespace emulator
