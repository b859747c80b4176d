// What a compiled kernel source and the emulated driver know of each other. The driver has the emulator; a module has the kernels and
// the table of them, by the name `emulated_module`.
#pragma once
#include <cstddef>

namespace emulator {

struct Launch {
    const char* name;
    unsigned blocks[3], threads[3];
    size_t dynamic_shared;  // bytes
    void** arguments;       // one address each, as `cuLaunchKernel` gets them
};

// Runs `thread(with)` as every thread of the launch; false after a mistake, which has been reported.
using Start = bool (*)(const Launch&, void (*thread)(void*), void* with);

struct Kernel {
    const char* name;
    unsigned most_threads;  // of `__launch_bounds__`; 0 where it says nothing
    bool (*run)(const Launch&, Start);
};

struct Module {
    const Kernel* kernels;
    size_t count;
};

constexpr char MODULE_SYMBOL[] = "emulated_module";

// What stands for PTX: this line, and the path of the module's library after it.
constexpr char IMAGE_HEAD[] = "// emulated CUDA module: ";

}  // namespace emulator
