#define EMULATOR_CORE
#include "dynamic_memory.hpp"
#include "core.hpp"
#include "driver.hpp"

namespace core {

static void* launched[5];  // where an abandoned launch goes on

// The fibers of the launch are forgotten where they are.
[[noreturn]] static void abandon(const char* message) {
    driver::fail(message);
    emulator::in_kernel = false;
    emulator::kernel_name = nullptr;
    __builtin_longjmp(launched, 1);
}

__attribute__((noinline)) bool start(const emulator::Launch& launch, void (*thread)(void*), void* with) {
    static size_t dynamic_bytes;
    static const bool prepared = [] {
        emulator::on_fault = abandon;
        emulator::ignore_conflicts = true;
        emulator::on_block_start.push_back([] { std::memset(emulator::dynamic_memory, 0xff, dynamic_bytes); });
        return true;
    }();
    (void)prepared;
    dynamic_bytes = launch.dynamic_shared;
    emulator::allowed_static = launch.static_shared;
    emulator::allowed_shared = emulator::SHARED_LIMIT - launch.dynamic_shared;
    emulator::asked_dynamic = launch.dynamic_shared;
    if (__builtin_setjmp(launched)) return false;
    emulator::launch(launch.name, dim3(launch.blocks[0], launch.blocks[1], launch.blocks[2]),
                     dim3(launch.threads[0], launch.threads[1], launch.threads[2]), [=] { thread(with); });
    return true;
}

void fault(const char* message) { emulator::fault("%s", message); }

}  // namespace core
