// Matrix products of a warp, bf16 or f16 with fp32 sums: `ldmatrix` and `mma.sync.m16n8k16`; and of e4m3, `m16n8k32`. Available
// on sm_121a and sm_90a.
//
// In `mma` lane `l` holds, with g = l / 4 and t = l % 4: a[0..4] rows g, g + 8, g, g + 8, numbers 2t and 2t + 1 of columns
// 0..8 (first two) and 8..16; b0, b1 column g, rows 2t, 2t + 1 and the same + 8; c[0..2] row g, c[2..4] row g + 8,
// columns 2t and 2t + 1. A word of e4m3 holds four numbers where one of bf16 holds two; in bytes all lies the same.
#pragma once
#include "async_copy.cuh"

// Four 8×8 matrices; lane `8m + i` gives the address of row `i` of matrix `m`, 16-byte aligned.
DEVICE void ldmatrix_x4(u32 (&registers)[4], const void* row) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    emulator::ldmatrix_x4(registers, row, false);
#endif
}

// The same, each matrix transposed.
DEVICE void ldmatrix_x4_transposed(u32 (&registers)[4], const void* row) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    emulator::ldmatrix_x4(registers, row, true);
#endif
}

DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emulator::mma_m16n8k16<emulator::bf16_value>(c, a, b0, b1);
#endif
}

// The same of f16.
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emulator::mma_m16n8k16<emulator::f16_value>(c, a, b0, b1);
#endif
}

// The same of e4m3, 32 along k. Spelled without `.kind::f8f6f4`, which sm_90a refuses: there it becomes f16 products, on sm_121a
// those of its own unit.
DEVICE void mma_e4m3(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emulator::mma_m16n8k32<emulator::e4m3_value>(c, a, b0, b1);
#endif
}
