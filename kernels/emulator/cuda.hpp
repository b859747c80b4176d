// The CUDA C++ that device sources use, in terms of the emulator: include it through `device/cuda.cuh`.
//
// Vector types keep their alignment, so that `-fsanitize=alignment` sees every misaligned vector access.
#pragma once
#include "tensor_core.hpp"
#include <cmath>

#define KERNEL(...) inline void
#define DEVICE inline
#define SHARED(type, name, count)                         \
    static emulator::Shared<type> name(#name, count);     \
    name.declare()
#define DYNAMIC_SHARED(type, name, count, start)                                           \
    constexpr u32 name##_end = end_of_shared(start, u32(sizeof(type)) * u32(count));       \
    static emulator::Shared<type> name(#name, count);                                      \
    name.declare_dynamic(emulator::DynamicShared<name##_end>::bytes)

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class T>
inline T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
    return a < b ? b : a;
}

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
// Rounds to the nearest integer, and halves to the even one.
inline int __double2int_rn(double x) { return int(std::nearbyint(x)); }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

template <class T>
inline T __ldg(const T* address) {
    return *address;
}

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::warp_barrier(mask); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
    emulator::exchange(value, mask, "__shfl_sync");
    source = source % emulator::LANES;
    if (!(mask >> source & 1)) emulator::fault("__shfl_sync: lane %d is read and not in the mask %#x", source, mask);
    return emulator::received<T>(source);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip) {
    emulator::exchange(value, mask, "__shfl_xor_sync");
    const int source = emulator::current_lane() ^ flip;
    if (!(mask >> source & 1)) emulator::fault("__shfl_xor_sync: lane %d is read and not in the mask %#x", source, mask);
    return emulator::received<T>(source);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, int distance) {
    emulator::exchange(value, mask, "__shfl_down_sync");
    const int source = emulator::current_lane() + distance;
    return source < emulator::LANES && (mask >> source & 1) ? emulator::received<T>(source) : value;
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    emulator::exchange(predicate != 0, mask, "__ballot_sync");
    unsigned votes = 0;
    for (int lane = 0; lane < emulator::LANES; ++lane)
        if (mask >> lane & 1) votes |= unsigned(emulator::received<bool>(lane)) << lane;
    return votes;
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// `LAUNCH(kernel, blocks, threads, arguments...)` runs a kernel as the host would.
#define LAUNCH(kernel, blocks, threads, ...) emulator::launch(#kernel, blocks, dim3(threads), [&] { kernel(__VA_ARGS__); })
