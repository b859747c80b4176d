// What comes before the text of a kernel when the emulated NVRTC has it compiled: the emulator, CUDA's words for the host
// compiler, and how the driver calls a kernel.
#pragma once
#include "dynamic_memory.hpp"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "module.hpp"
#include "ptx.hpp"
#include <tuple>
#include <utility>

// In the flattened device sources `KERNEL` is the emulator's; CUDA C++ from elsewhere says it in these words.
#undef KERNEL
#define KERNEL(...) static void
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ static

namespace emulator {

template <class... Arguments, size_t... Place>
bool run(const Launch& launch, Start start, void (*kernel)(Arguments...), std::index_sequence<Place...>) {
    struct With {
        void (*kernel)(Arguments...);
        std::tuple<std::remove_const_t<Arguments>...> values;
    } with{kernel, {}};
    (std::memcpy(&std::get<Place>(with.values), launch.arguments[Place], sizeof(std::get<Place>(with.values))), ...);
    const auto thread = [](void* all) {
        const With& with = *static_cast<const With*>(all);
        with.kernel(std::get<Place>(with.values)...);
    };
    return start(launch, thread, &with);
}

template <auto kernel>
struct Call;

template <class... Arguments, void (*kernel)(Arguments...)>
struct Call<kernel> {
    static constexpr size_t bytes[] = {sizeof(std::remove_const_t<Arguments>)..., 0};
    static bool run(const Launch& launch, Start start) {
        return emulator::run(launch, start, kernel, std::index_sequence_for<Arguments...>{});
    }
};

}  // namespace emulator

// `EMULATED_MODULE(EMULATED_KERNEL(name, threads)...)` ends the text of a module.
#define EMULATED_KERNEL(name, threads) {#name, threads, emulator::Call<name>::bytes, emulator::Call<name>::run},
#define EMULATED_MODULE(...)                                                                               \
    static const emulator::Kernel emulated_kernels[] = {__VA_ARGS__};                                      \
    extern "C" __attribute__((visibility("default"))) const emulator::Module emulated_module = {           \
        emulated_kernels, sizeof emulated_kernels / sizeof *emulated_kernels, &emulator::most_dynamic_shared};
