// The memory behind `extern __shared__`: as large as a block may have, not a number in every float format when a block starts.
#pragma once
#include "device_functions.hpp"

namespace emulator {

alignas(1024) EMULATOR_STATE unsigned char dynamic_memory[SHARED_LIMIT];

}  // namespace emulator
