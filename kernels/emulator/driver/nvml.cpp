// The emulated NVML: by it programs see that there is a device before they use CUDA. What is not here, a program is told is missing,
// as sensors of a real device may be.
#include "driver.hpp"
#include <cstdio>

enum NvmlResult : int { NVML_SUCCESS = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3 };

static int the_device;

API NvmlResult nvmlInit_v2() { return NVML_SUCCESS; }
API NvmlResult nvmlInitWithFlags(unsigned) { return NVML_SUCCESS; }
API NvmlResult nvmlShutdown() { return NVML_SUCCESS; }
API const char* nvmlErrorString(NvmlResult) { return "an error of the emulated NVML"; }

API NvmlResult nvmlSystemGetDriverVersion(char* version, unsigned size) {
    std::snprintf(version, size, "580.0");
    return NVML_SUCCESS;
}

API NvmlResult nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = driver::newest_cuda().major * 1000 + driver::newest_cuda().minor * 10;
    return NVML_SUCCESS;
}

API NvmlResult nvmlDeviceGetCount_v2(unsigned* count) {
    *count = 1;
    return NVML_SUCCESS;
}

API NvmlResult nvmlDeviceGetHandleByIndex_v2(unsigned index, int** device) {
    *device = &the_device;
    return index == 0 ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

API NvmlResult nvmlDeviceGetName(int*, char* name, unsigned size) {
    std::snprintf(name, size, "%s", driver::NAME);
    return NVML_SUCCESS;
}

API NvmlResult nvmlDeviceGetCudaComputeCapability(int*, int* major, int* minor) {
    const driver::Capability has = driver::capability();
    *major = has.major;
    *minor = has.minor;
    return NVML_SUCCESS;
}

struct Memory {
    unsigned long long total, free, used;
};

// nvmlMemory_v2_t, in the order of nvml.h
struct Memory2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

// As a GB10, a device that was given no memory of its own has the machine's.
API NvmlResult nvmlDeviceGetMemoryInfo(int*, Memory* memory) {
    if (!driver::has_own_memory()) return NVML_NOT_SUPPORTED;
    *memory = {driver::total_memory(), driver::total_memory(), 0};
    return NVML_SUCCESS;
}

API NvmlResult nvmlDeviceGetMemoryInfo_v2(int*, Memory2* memory) {
    if (!driver::has_own_memory()) return NVML_NOT_SUPPORTED;
    *memory = {memory->version, driver::total_memory(), 0, driver::total_memory(), 0};
    return NVML_SUCCESS;
}
