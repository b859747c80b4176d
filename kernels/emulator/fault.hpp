// How the emulator tells of a mistake in a kernel: what, in which kernel, block and thread, then the end of the process.
//
// A fault is not an exception: the kernel runs on a fiber, and nothing after the mistake is worth looking at. Where the process
// is not the emulator's own (the emulated driver, `driver/`), `on_fault` takes the message and abandons the launch.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <string>
#include <unistd.h>

// What the emulator remembers is one for the whole process. The emulated driver (`driver/`) defines it in its core, and the kernels
// it loads use that.
#if defined(EMULATOR_CORE)
#define EMULATOR_STATE __attribute__((visibility("default")))
#elif defined(EMULATOR_MODULE)
#define EMULATOR_STATE extern __attribute__((visibility("default")))
#else
#define EMULATOR_STATE inline
#endif

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// CUDA's own variables, set for the thread that is running.
EMULATOR_STATE uint3 threadIdx, blockIdx;
EMULATOR_STATE dim3 blockDim, gridDim;

namespace emulator {

constexpr int FAULT_EXIT_CODE = 86;

EMULATOR_STATE const char* kernel_name;  // null between launches
EMULATOR_STATE bool in_kernel;
EMULATOR_STATE unsigned thread_index;  // of the running thread in its block, x fastest
EMULATOR_STATE void (*on_fault)(const char* message);

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fault(const char* format, ...) {
    char what[2048], where[512] = "";
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (kernel_name) {
        const int told = std::snprintf(where, sizeof where, "\n  in %s, block (%u, %u, %u)%s", kernel_name, blockIdx.x, blockIdx.y,
                                       blockIdx.z, in_kernel ? "" : ", seen by the scheduler");
        if (in_kernel && size_t(told) < sizeof where) std::snprintf(where + told, sizeof where - size_t(told), ", thread %u", thread_index);
    }
    const std::string message = std::string("emulator: ") + what + where + "\n";
    if (on_fault) on_fault(message.c_str());
    std::fflush(stdout);
    std::fputs(message.c_str(), stderr);
    _exit(FAULT_EXIT_CODE);
}

}  // namespace emulator
