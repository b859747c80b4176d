// How the emulator tells of a mistake in a kernel: what, in which kernel, block and thread, then the end of the process.
//
// A fault is not an exception: the kernel runs on a fiber, and nothing after the mistake is worth looking at.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <unistd.h>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// CUDA's own variables, set for the thread that is running.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace emulator {

constexpr int FAULT_EXIT_CODE = 86;

inline const char* kernel_name = "";
inline bool in_kernel = false;

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fault(const char* format, ...) {
    std::fflush(stdout);
    std::fprintf(stderr, "emulator: ");
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (kernel_name[0])
        std::fprintf(stderr, "\n  in %s, block (%u, %u, %u)%s", kernel_name, blockIdx.x, blockIdx.y, blockIdx.z,
                     in_kernel ? "" : ", seen by the scheduler");
    if (in_kernel) std::fprintf(stderr, ", thread %u", threadIdx.x);
    std::fputc('\n', stderr);
    _exit(FAULT_EXIT_CODE);
}

}  // namespace emulator
