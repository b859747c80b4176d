// `__half` and its pair, as generated kernels use them.
#pragma once
#include "half_arithmetic.hpp"

struct __half {
    _Float16 number;

    __half() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
    __half(T value) : number(_Float16(value)) {}
    operator float() const { return float(number); }
};

struct alignas(4) __half2 {
    __half x, y;
};

template <>
struct emulator::IsHalf<__half> : std::true_type {};
template <>
struct emulator::HalfOf<__half2> {
    using type = __half;
};
