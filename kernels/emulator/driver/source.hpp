// A CUDA C++ source as a C++ source that the host compiler takes after `kernel.hpp`.
#pragma once
#include <string>

namespace nvrtc {

// What the host cannot read as it stands is said in other words, and the table of the kernels is put behind.
std::string host_source(const std::string& cuda_source);

}  // namespace nvrtc
