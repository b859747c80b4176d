// The device and its context: one device, one context, what it says about itself.
#include "driver.hpp"
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace driver {

static Result broken = SUCCESS;

std::recursive_mutex& lock() {
    // Never destroyed, and taken for good when the process begins to end: threads may call while what they need is destroyed.
    static auto* mutex = [] {
        std::atexit([] { lock().lock(); });
        return new std::recursive_mutex;
    }();
    return *mutex;
}

Result state() { return broken; }

void fail(const std::string& message) {
    std::fputs(message.c_str(), stderr);
    broken = LAUNCH_FAILED;
}

}  // namespace driver

struct Context {
    int references;
};
static Context context;
static thread_local Context* current = nullptr;

struct ErrorText {
    Result result;
    const char *name, *text;
};
static constexpr ErrorText ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static const ErrorText* error(Result result) {
    for (const ErrorText& one : ERRORS)
        if (one.result == result) return &one;
    return nullptr;
}

API Result cuGetErrorName(Result result, const char** name) {
    const ErrorText* found = error(result);
    *name = found ? found->name : nullptr;
    return found ? SUCCESS : INVALID_VALUE;
}

API Result cuGetErrorString(Result result, const char** text) {
    const ErrorText* found = error(result);
    *text = found ? found->text : nullptr;
    return found ? SUCCESS : INVALID_VALUE;
}

API Result cuInit(unsigned) { return SUCCESS; }

API Result cuDriverGetVersion(int* version) {
    *version = driver::newest_cuda().major * 1000 + driver::newest_cuda().minor * 10;
    return SUCCESS;
}

API Result cuDeviceGetCount(int* count) {
    *count = 1;
    return SUCCESS;
}

API Result cuDeviceGet(int* device, int ordinal) {
    if (ordinal != 0) return INVALID_DEVICE;
    *device = 0;
    return SUCCESS;
}

API Result cuDeviceGetName(char* name, int size, int) {
    std::snprintf(name, size_t(size), "%s", driver::NAME);
    return SUCCESS;
}

API Result cuDeviceGetUuid_v2(char* uuid, int) {
    std::memcpy(uuid, "sparktune-emulat", 16);
    return SUCCESS;
}
API Result cuDeviceGetUuid(char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

// No PCI bus has it.
API Result cuDeviceGetPCIBusId(char*, int, int) { return NOT_SUPPORTED; }

API Result cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = driver::total_memory();
    return SUCCESS;
}

// The numbers are those of CUdevice_attribute; the values those of a GB10 where a program could go by them.
API Result cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 1: *value = 1024; break;                                      // threads a block
        case 2: case 3: *value = 1024; break;                              // block dimensions
        case 4: *value = 64; break;
        case 5: *value = 2147483647; break;                                // grid dimensions
        case 6: case 7: *value = 65535; break;
        case 8: *value = int(driver::SHARED_PER_BLOCK); break;
        case 9: *value = 65536; break;                                     // constant memory
        case 10: *value = 32; break;                                       // warp
        case 11: *value = 2147483647; break;                               // pitch
        case 12: case 82: *value = 65536; break;                           // registers
        case 13: *value = 1000000; break;                                  // clock, kHz
        case 14: *value = 512; break;                                      // texture alignment
        case 15: case 31: case 41: *value = 1; break;                      // overlap, concurrent kernels, unified addressing
        case 16: *value = 2; break;                                        // multiprocessors
        case 18: *value = 1; break;                                        // integrated
        case 36: *value = 1000000; break;                                  // memory clock, kHz
        case 37: *value = 256; break;                                      // memory bus, bits
        case 38: *value = 24 << 20; break;                                 // L2
        case 39: *value = 1536; break;                                     // threads a multiprocessor
        case 75: *value = driver::capability().major; break;
        case 76: *value = driver::capability().minor; break;
        case 78: *value = 1; break;                                        // stream priorities
        case 81: *value = 102400; break;                                   // shared memory a multiprocessor
        case 88: case 100: *value = 1; break;                              // memory of the host is read where it lies
        case 97: *value = int(driver::SHARED_PER_BLOCK_OPTED_IN); break;
        case 106: *value = 24; break;                                      // blocks a multiprocessor
        case 111: *value = 1024; break;                                    // shared memory reserved a block
        case 115: *value = 1; break;                                       // memory pools
        default: *value = 0;
    }
    return SUCCESS;
}

API Result cuDevicePrimaryCtxRetain(Context** retained, int device) {
    if (device != 0) return INVALID_DEVICE;
    ++context.references;
    *retained = &context;
    return SUCCESS;
}

API Result cuDevicePrimaryCtxRelease_v2(int) {
    --context.references;
    return SUCCESS;
}

API Result cuCtxSetCurrent(Context* wanted) {
    current = wanted;
    return driver::state();
}

API Result cuCtxGetCurrent(Context** found) {
    *found = current;
    return SUCCESS;
}

API Result cuCtxSetFlags(unsigned) { return SUCCESS; }

API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = *greatest = 0;
    return SUCCESS;
}
