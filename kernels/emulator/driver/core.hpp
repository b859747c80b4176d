// The emulator in the driver: one for all modules.
#pragma once
#include "module.hpp"

namespace core {

// `emulator::Start`.
bool start(const emulator::Launch& launch, void (*thread)(void*), void* with);

// Ends the launch that is running, from a handler of signals too. Does not return.
[[noreturn]] void fault(const char* message);

}  // namespace core
