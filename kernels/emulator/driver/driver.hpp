// What the parts of the emulated driver share: results, the one lock, the device, and the fault after which nothing works.
//
// One call runs at a time, on the thread that calls; what it put on a stream is done by a later one (`stream.cpp`). After a
// mistake in a kernel every later call that reaches the device gives the same error, as with a real one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    FILE_NOT_FOUND = 301,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
};

using Address = unsigned long long;  // CUdeviceptr

namespace driver {

constexpr size_t SHARED_PER_BLOCK = 49152, SHARED_PER_BLOCK_OPTED_IN = 101376;

struct Capability {
    int major, minor;
};

constexpr char NAME[] = "sparktune emulated device";

// `EMULATED_CUDA_CAPABILITY`, "12.1" without it.
inline Capability capability() {
    Capability found{12, 1};
    if (const char* wanted = std::getenv("EMULATED_CUDA_CAPABILITY")) std::sscanf(wanted, "%d.%d", &found.major, &found.minor);
    return found;
}

// The newest CUDA that the driver supports: `EMULATED_CUDA_DRIVER`, "13.0" without it.
inline Capability newest_cuda() {
    Capability found{13, 0};
    if (const char* wanted = std::getenv("EMULATED_CUDA_DRIVER")) std::sscanf(wanted, "%d.%d", &found.major, &found.minor);
    return found;
}

inline bool has_own_memory() { return std::getenv("EMULATED_CUDA_MEMORY") != nullptr; }

// `EMULATED_CUDA_MEMORY` in bytes, 4 GiB without it.
inline size_t total_memory() {
    return has_own_memory() ? size_t(std::strtoull(std::getenv("EMULATED_CUDA_MEMORY"), nullptr, 10)) : size_t(4) << 30;
}
size_t used_memory();

std::recursive_mutex& lock();

// LAUNCH_FAILED once a kernel has made a mistake.
Result state();
void fail(const std::string& message);

// Whether all bytes lie in memory of the device, or all outside of it.
bool on_device(Address at, size_t bytes);

}  // namespace driver

// Starts a call that reaches the device.
#define ON_DEVICE                                                      \
    std::lock_guard<std::recursive_mutex> one_at_a_time(driver::lock()); \
    if (const Result broken = driver::state()) return broken
