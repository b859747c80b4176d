// The functions of CUDA's device library that generated kernels call and the device sources do not.
//
// Threads of a block run one at a time, so an atomic operation is an ordinary one.
#pragma once
#include "../cuda.hpp"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

constexpr int warpSize = 32;
#define __activemask() emulator::active_mask(__LINE__)

template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
    emulator::exchange(value, mask, "__shfl_up_sync");
    const int source = emulator::current_lane() - distance;
    return source >= 0 && (mask >> source & 1) ? emulator::received<T>(source) : value;
}

inline void __threadfence() {}
inline void __threadfence_block() {}

// A number and NaN give the number.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
inline double rhypot(double x, double y) { return 1.0 / hypot(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __logf(float x) { return logf(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long reversed = 0;
    for (int bit = 0; bit < 64; ++bit) reversed |= (x >> bit & 1) << (63 - bit);
    return reversed;
}
inline unsigned __brev(unsigned x) { return unsigned(__brevll(x) >> 32); }

inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

inline int __float_as_int(float x) {
    int bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(unsigned(bits)); }

template <class T>
T atomicExch(T* at, T value) {
    const T before = *at;
    *at = value;
    return before;
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
    const T before = *at;
    if (before == expected) *at = value;
    return before;
}
template <class T>
T atomicAdd(T* at, T value) { return atomicExch(at, T(*at + value)); }
template <class T>
T atomicMin(T* at, T value) { return atomicExch(at, min(*at, value)); }
template <class T>
T atomicMax(T* at, T value) { return atomicExch(at, max(*at, value)); }
template <class T>
T atomicAnd(T* at, T value) { return atomicExch(at, T(*at & value)); }
template <class T>
T atomicOr(T* at, T value) { return atomicExch(at, T(*at | value)); }
template <class T>
T atomicXor(T* at, T value) { return atomicExch(at, T(*at ^ value)); }
