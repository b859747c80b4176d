// What a compiled kernel source and the emulated driver know of each other. The driver has the emulator; a module has the kernels and
// the table of them, by the name `emulated_module`.
#pragma once
#include <cstddef>

namespace emulator {

struct Launch {
    const char* name;
    unsigned blocks[3], threads[3];
    size_t dynamic_shared;  // bytes
    size_t static_shared;   // the most bytes that the compiler of this module allows a kernel to declare
    void** arguments;       // one address each, as `cuLaunchKernel` gets them
};

// Runs `thread(with)` as every thread of the launch; false after a mistake, which has been reported.
using Start = bool (*)(const Launch&, void (*thread)(void*), void* with);

struct Kernel {
    const char* name;
    unsigned most_threads;  // of `__launch_bounds__`; 0 where it says nothing
    const size_t* bytes;    // of each argument, and a 0 after the last
    bool (*run)(const Launch&, Start);
};

struct Module {
    const Kernel* kernels;
    size_t count;
    const size_t* dynamic_shared;  // bytes that `DYNAMIC_SHARED` arrays of its kernels take
};

constexpr char MODULE_SYMBOL[] = "emulated_module";

// What stands for PTX: this line with the path of the module's library, then the architecture and the version of NVRTC.
constexpr char IMAGE_HEAD[] = "// emulated CUDA module: ", IMAGE_TARGET[] = "// for: ",
               IMAGE_SHARED[] = "// dynamic shared memory: ";

}  // namespace emulator
