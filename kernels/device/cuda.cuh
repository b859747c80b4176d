// What every device source starts from: CUDA's own names under NVRTC and nvcc, the warp emulator's under a host compiler.
//
// Owns the few spellings that differ between the two. Everything else in a `.cuh` is plain CUDA C++ that needs no header
// of the toolkit, so that a kernel is one string: its file with the files it includes in quotes written in their places.
#pragma once

#ifdef __CUDACC__
// A kernel for blocks of at most `threads`, optionally with the least number of blocks a multiprocessor should hold.
// Host code finds it by its plain name.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
// What the trainer writes for the kernels of a source that it does not compile now: each compilation has one entry. Nothing
// calls these functions, so the compiler drops them before it optimises.
#define OTHER_KERNEL(...) static __device__ void
#define DEVICE __device__ __forceinline__
// An array in shared memory. Index it, or take `&name[i]`; the emulator watches every access.
#define SHARED(type, name, count) __shared__ __align__(128) type name[count]
// An array of a kernel that may take more than the 48 KB which `SHARED` arrays have together. It lies in the bytes that a launch
// asks for, from `start` on: 0, or `other_end` for an array behind `other`. The line in the PTX says how many bytes that are,
// which is where the launch has the number from (kernels/stand-ins/cubecl-cuda).
#define DYNAMIC_SHARED(type, name, count, start)                                        \
    constexpr u32 name##_end = end_of_shared(start, u32(sizeof(type)) * u32(count));    \
    type* const name = reinterpret_cast<type*>(dynamic_shared + (start));               \
    asm volatile("// dynamic shared memory: %0" ::"n"(name##_end))
extern __shared__ __align__(128) unsigned char dynamic_shared[];
#else
#include "../emulator/cuda.hpp"
#endif

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Rows times width exceeds 32 bits for long packs.
typedef unsigned long long u64;
typedef unsigned int u32;

// The next place in shared memory behind `bytes` at `start`, of those that may begin an array.
DEVICE constexpr u32 end_of_shared(u32 start, u32 bytes) { return start + (bytes + 127) / 128 * 128; }

DEVICE int lane_index() { return int(threadIdx.x) % WARP; }
DEVICE int warp_index() { return int(threadIdx.x) / WARP; }
