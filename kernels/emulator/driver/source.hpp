// A CUDA C++ source as a C++ source that the host compiler takes after `kernel.hpp`.
#pragma once
#include <string>

namespace nvrtc {

// The text with the kernels that it leaves out, which is the same for all kernels of a source.
std::string with_all_kernels(std::string text);

// What the host cannot read as it stands is said in other words, and the table of the kernels is put behind.
std::string host_source(const std::string& cuda_source);

}  // namespace nvrtc
