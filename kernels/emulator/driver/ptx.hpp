// The PTX instructions that generated kernels contain, as functions: `ptx_` and the instruction's name, the operands in the
// order of the instruction. An instruction that is missing here does not compile, and the compiler's message names it.
#pragma once
#include "device_functions.hpp"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"

// `atom`: what was there before, the address, the operand. Halves come as their bits.
template <class As, class Register, class Address, class Choose>
void ptx_atom(Register& before, Address* address, Register operand, Choose choose) {
    static_assert(sizeof(As) == sizeof(Register));
    As number, with, result;
    std::memcpy(&before, address, sizeof before);
    std::memcpy(&number, &before, sizeof number);
    std::memcpy(&with, &operand, sizeof with);
    result = choose(number, with);
    // An address that PTX alone writes through may have been declared as of constants.
    std::memcpy(const_cast<std::remove_const_t<Address>*>(address), &result, sizeof result);
}
#define EMULATED_ATOM(name, as, value)                                                   \
    template <class R, class A>                                                          \
    void ptx_atom_relaxed_##name(R& before, A* address, R operand) {                     \
        ptx_atom<as>(before, address, operand, [](as a, as b) -> as { return value; });  \
    }
EMULATED_ATOM(add_f32, float, a + b)
EMULATED_ATOM(add_f64, double, a + b)
EMULATED_ATOM(add_u32, unsigned, a + b)
EMULATED_ATOM(add_u64, unsigned long, a + b)
EMULATED_ATOM(add_noftz_f16, __half, a + b)
EMULATED_ATOM(add_noftz_bf16, __nv_bfloat16, a + b)
EMULATED_ATOM(add_noftz_f16x2, __half2, a + b)
EMULATED_ATOM(add_noftz_bf16x2, __nv_bfloat162, a + b)
EMULATED_ATOM(min_f32, float, min(a, b))
EMULATED_ATOM(min_u32, unsigned, min(a, b))
EMULATED_ATOM(min_u64, unsigned long, min(a, b))
EMULATED_ATOM(min_s32, int, min(a, b))
EMULATED_ATOM(min_s64, long, min(a, b))
EMULATED_ATOM(max_f32, float, max(a, b))
EMULATED_ATOM(max_u32, unsigned, max(a, b))
EMULATED_ATOM(max_u64, unsigned long, max(a, b))
EMULATED_ATOM(max_s32, int, max(a, b))
EMULATED_ATOM(max_s64, long, max(a, b))
#undef EMULATED_ATOM

inline void ptx_add_sat_s32(int& sum, int a, int b) {
    if (__builtin_add_overflow(a, b, &sum)) sum = a < 0 ? -2147483647 - 1 : 2147483647;
}
inline void ptx_sub_sat_s32(int& difference, int a, int b) {
    if (__builtin_sub_overflow(a, b, &difference)) difference = a < 0 ? -2147483647 - 1 : 2147483647;
}
