// Counts what takes the time before the first step on a real device.
#pragma once
#include <cstdio>
#include <cstdlib>

namespace builds {

// Writes a line into the file `EMULATED_CUDA_BUILDS`, if that is set: `compile` for each compilation, `load` for each module.
inline void note(const char* what) {
    const char* path = std::getenv("EMULATED_CUDA_BUILDS");
    if (std::FILE* file = path ? std::fopen(path, "a") : nullptr) {
        std::fprintf(file, "%s\n", what);
        std::fclose(file);
    }
}

}  // namespace builds
