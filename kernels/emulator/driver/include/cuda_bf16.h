// `__nv_bfloat16` and its pair, as generated kernels use them.
#pragma once
#include "../../tensor_core.hpp"
#include "half_arithmetic.hpp"

struct __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
    __nv_bfloat16(T value) : bits(emulator::bf16_bits(float(value))) {}
    operator float() const { return emulator::bf16_value(bits); }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

template <>
struct emulator::IsHalf<__nv_bfloat16> : std::true_type {};
template <>
struct emulator::HalfOf<__nv_bfloat162> {
    using type = __nv_bfloat16;
};
