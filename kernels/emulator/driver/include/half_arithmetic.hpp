// What `__half` and `__nv_bfloat16` have in common: arithmetic in fp32, rounded to the type after each operation, and pairs.
#pragma once
#include <cmath>
#include <type_traits>

namespace emulator {

// A type is one of the two when it says so here.
template <class T>
struct IsHalf : std::false_type {};
// The type a pair consists of, for the pair types.
template <class T>
struct HalfOf;

template <class T>
using OnlyHalf = std::enable_if_t<IsHalf<T>::value, T>;
template <class T>
using OnlyPair = std::enable_if_t<IsHalf<typename HalfOf<T>::type>::value, T>;

}  // namespace emulator

#define EMULATED_OPERATOR(op)                                                                          \
    template <class T>                                                                                 \
    emulator::OnlyHalf<T> operator op(T a, T b) { return T(float(a) op float(b)); }                    \
    template <class T>                                                                                 \
    emulator::OnlyPair<T> operator op(T a, T b) { return T{a.x op b.x, a.y op b.y}; }
EMULATED_OPERATOR(+)
EMULATED_OPERATOR(-)
EMULATED_OPERATOR(*)
EMULATED_OPERATOR(/)
#undef EMULATED_OPERATOR

template <class T>
emulator::OnlyHalf<T> operator-(T a) { return T(-float(a)); }
template <class T>
emulator::OnlyPair<T> operator-(T a) { return T{-a.x, -a.y}; }

// `one(x)` for a number, `two(x)` for a pair.
#define EMULATED_FUNCTION(one, two, value)                                     \
    template <class T>                                                         \
    emulator::OnlyHalf<T> one(T number) {                                      \
        const float x = number;                                                \
        return T(value);                                                       \
    }                                                                          \
    template <class T>                                                         \
    emulator::OnlyPair<T> two(T pair) { return T{one(pair.x), one(pair.y)}; }
EMULATED_FUNCTION(hexp, h2exp, std::exp(x))
EMULATED_FUNCTION(hlog, h2log, std::log(x))
EMULATED_FUNCTION(hsin, h2sin, std::sin(x))
EMULATED_FUNCTION(hcos, h2cos, std::cos(x))
EMULATED_FUNCTION(htanh, h2tanh, std::tanh(x))
EMULATED_FUNCTION(hsqrt, h2sqrt, std::sqrt(x))
EMULATED_FUNCTION(hrsqrt, h2rsqrt, 1.0f / std::sqrt(x))
EMULATED_FUNCTION(hceil, h2ceil, std::ceil(x))
EMULATED_FUNCTION(hfloor, h2floor, std::floor(x))
EMULATED_FUNCTION(htrunc, h2trunc, std::trunc(x))
EMULATED_FUNCTION(hrint, h2rint, std::rint(x))
EMULATED_FUNCTION(__habs, __habs2, std::fabs(x))
#undef EMULATED_FUNCTION

#define EMULATED_CHOICE(one, two, value)                                       \
    template <class T>                                                         \
    emulator::OnlyHalf<T> one(T first, T second) {                             \
        const float a = first, b = second;                                     \
        return T(value);                                                       \
    }                                                                          \
    template <class T>                                                         \
    emulator::OnlyPair<T> two(T a, T b) { return T{one(a.x, b.x), one(a.y, b.y)}; }
EMULATED_CHOICE(__hmin, __hmin2, std::fmin(a, b))
EMULATED_CHOICE(__hmax, __hmax2, std::fmax(a, b))
EMULATED_CHOICE(__hmin_nan, __hmin2_nan, a != a || b != b ? a + b : std::fmin(a, b))
EMULATED_CHOICE(__hmax_nan, __hmax2_nan, a != a || b != b ? a + b : std::fmax(a, b))
#undef EMULATED_CHOICE

template <class T>
emulator::OnlyHalf<T> __hfma(T a, T b, T c) { return T(float(double(float(a)) * double(float(b)) + double(float(c)))); }
template <class T>
emulator::OnlyPair<T> __hfma2(T a, T b, T c) { return T{__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }

template <class T, class = emulator::OnlyHalf<T>>
bool __hisnan(T x) { return float(x) != float(x); }
template <class T, class = emulator::OnlyHalf<T>>
bool __hisinf(T x) { return std::fabs(float(x)) == INFINITY; }
