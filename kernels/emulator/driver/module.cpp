// Modules, kernels and launches. A mistake in a kernel is told on stderr and ends the launch; signals it raises count as mistakes.
#include "builds.hpp"
#include "module.hpp"
#include "core.hpp"
#include "stream.hpp"
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <vector>

using emulator::Launch;

struct Function {
    const emulator::Kernel* kernel;
    size_t static_shared, dynamic_shared;  // bytes it may declare, and bytes a launch may ask for
};

struct Module {
    const emulator::Module* content;
    size_t static_shared;  // bytes that its compiler allows a kernel to declare
    std::map<std::string, std::unique_ptr<Function>> functions;
};

static thread_local bool running = false;  // a launch, on this thread
static struct sigaction before[NSIG];

static void on_signal(int signal, siginfo_t* info, void* context) {
    if (running) {
        char message[160];
        if (signal == SIGILL)
            std::snprintf(message, sizeof message, "misaligned: a load or store at an address that is no multiple of its size");
        else if (signal == SIGFPE)
            std::snprintf(message, sizeof message, "an integer is divided by zero");
        else
            std::snprintf(message, sizeof message, "out of bounds: %p is in no memory of the device, or a thread has used up its stack",
                          info->si_addr);
        core::fault(message);
    }
    const struct sigaction& other = before[signal];
    if (other.sa_flags & SA_SIGINFO) other.sa_sigaction(signal, info, context);
    else if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN) other.sa_handler(signal);
    else {
        sigaction(signal, &other, nullptr);  // the instruction runs again and does what it would have done
    }
}

static void watch_signals() {
    static const bool done = [] {
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler may not return
        for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(signal, &action, &before[signal]);
        return true;
    }();
    (void)done;
}

// A stack for the handler of signals, where this thread has none: a fiber's may be what is used up.
static void have_signal_stack() {
    static thread_local std::unique_ptr<char[]> memory;
    stack_t has{};
    if (memory || sigaltstack(nullptr, &has) || !(has.ss_flags & SS_DISABLE)) return;
    constexpr size_t BYTES = 64 << 10;
    memory = std::make_unique<char[]>(BYTES);
    stack_t stack{};
    stack.ss_sp = memory.get();
    stack.ss_size = BYTES;
    sigaltstack(&stack, nullptr);
}

// Whether a module for `sm_<number>`, with an `a` for that GPU alone, runs here, as the driver's own compiler would say.
static Result is_for_this_device(int architecture, bool is_alone, driver::Capability nvrtc) {
    const driver::Capability has = driver::capability(), cuda = driver::newest_cuda();
    if (std::pair(nvrtc.major, nvrtc.minor) > std::pair(cuda.major, cuda.minor)) return UNSUPPORTED_PTX_VERSION;
    const int here = has.major * 10 + has.minor;
    return is_alone ? (architecture == here ? SUCCESS : NO_BINARY_FOR_GPU) : architecture <= here ? SUCCESS : NO_BINARY_FOR_GPU;
}

static Result load(Module** module, const std::string& image) {
    const size_t head = std::strlen(emulator::IMAGE_HEAD);
    if (image.compare(0, head, emulator::IMAGE_HEAD)) {
        std::fprintf(stderr, "emulated driver: this is no module of the emulated NVRTC; real PTX cannot be run\n");
        return INVALID_IMAGE;
    }
    const std::string path = image.substr(head, image.find('\n') - head);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto* content = library ? static_cast<const emulator::Module*>(dlsym(library, emulator::MODULE_SYMBOL)) : nullptr;
    if (!content) {
        std::fprintf(stderr, "emulated driver: cannot load a module: %s\n", dlerror());
        return INVALID_IMAGE;
    }
    int architecture = 0;
    char suffix = 0;
    driver::Capability nvrtc{};
    const char* target = std::strstr(image.c_str(), emulator::IMAGE_TARGET);
    if (!target || std::sscanf(target + std::strlen(emulator::IMAGE_TARGET), "sm_%d%cNVRTC %d.%d", &architecture, &suffix, &nvrtc.major, &nvrtc.minor) != 4)
        return INVALID_IMAGE;
    if (const Result refused = is_for_this_device(architecture, suffix == 'a', nvrtc)) {
        std::fprintf(stderr, "emulated driver: a module for %.*s does not run on this device\n", int(std::strcspn(target, "\n")), target);
        return refused;
    }
    // By the rule of ptxas: more than 48 KB for the architectures that name one GPU, from CUDA 13.0 on.
    const bool is_large = suffix == 'a' && nvrtc.major >= 13;
    *module = new Module{content, is_large ? driver::SHARED_PER_BLOCK_OPTED_IN : driver::SHARED_PER_BLOCK, {}};
    builds::note("load");
    return SUCCESS;
}

API Result cuModuleLoadData(Module** module, const void* image) {
    ON_DEVICE;
    return load(module, static_cast<const char*>(image));
}
API Result cuModuleLoadDataEx(Module** module, const void* image, unsigned, int*, void**) { return cuModuleLoadData(module, image); }

API Result cuModuleUnload(Module* module) {
    ON_DEVICE;
    delete module;  // its library stays: the emulator knows its shared arrays
    return SUCCESS;
}

API Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
    ON_DEVICE;
    for (size_t i = 0; i < module->content->count; ++i) {
        const emulator::Kernel& kernel = module->content->kernels[i];
        if (std::strcmp(kernel.name, name)) continue;
        auto& found = module->functions[name];
        if (!found) found = std::make_unique<Function>(Function{&kernel, module->static_shared, driver::SHARED_PER_BLOCK});
        *function = found.get();
        return SUCCESS;
    }
    std::fprintf(stderr, "emulated driver: the module has no kernel %s\n", name);
    return NOT_FOUND;
}

// The numbers are those of CUfunction_attribute.
static constexpr int MOST_THREADS = 0, SHARED_BYTES = 1, REGISTERS = 4, PTX_VERSION = 5, BINARY_VERSION = 6, MOST_DYNAMIC_SHARED = 8;

API Result cuFuncGetAttribute(int* value, int attribute, Function* function) {
    ON_DEVICE;
    const driver::Capability has = driver::capability();
    switch (attribute) {
        case MOST_THREADS: *value = function->kernel->most_threads ? int(function->kernel->most_threads) : 1024; break;
        case REGISTERS: *value = 32; break;
        case PTX_VERSION: case BINARY_VERSION: *value = has.major * 10 + has.minor; break;
        case MOST_DYNAMIC_SHARED: *value = int(function->dynamic_shared); break;
        case SHARED_BYTES: default: *value = 0;
    }
    return SUCCESS;
}

API Result cuFuncSetAttribute(Function* function, int attribute, int value) {
    ON_DEVICE;
    if (attribute != MOST_DYNAMIC_SHARED) return SUCCESS;
    if (value < 0 || size_t(value) > driver::SHARED_PER_BLOCK_OPTED_IN) return INVALID_VALUE;
    function->dynamic_shared = size_t(value);
    return SUCCESS;
}
API Result cuFuncSetCacheConfig(Function*, int) { return SUCCESS; }

API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int threads, size_t) {
    *blocks = threads > 0 ? 1536 / threads : 0;
    return SUCCESS;
}

// Why a launch of this shape is refused; nothing when it is not.
static std::string refusal(const Function& function, const Launch& launch) {
    const unsigned long long threads = 1ull * launch.threads[0] * launch.threads[1] * launch.threads[2];
    const unsigned most = function.kernel->most_threads ? function.kernel->most_threads : 1024;
    if (threads == 0 || threads > most) return std::to_string(threads) + " threads a block, 1 to " + std::to_string(most) + " are possible";
    if (!launch.blocks[0] || !launch.blocks[1] || !launch.blocks[2]) return "no blocks";
    if (launch.blocks[0] > 2147483647u || launch.blocks[1] > 65535 || launch.blocks[2] > 65535) return "too many blocks";
    if (launch.dynamic_shared > function.dynamic_shared)
        return std::to_string(launch.dynamic_shared) + " bytes of shared memory, " + std::to_string(function.dynamic_shared) + " are allowed";
    return "";
}

// A line for each launch in the file `EMULATED_CUDA_TRACE`: what, its blocks, its threads, its dynamic shared memory, microseconds.
static void trace(const Launch& launch, double microseconds) {
    static std::FILE* const file = [] {
        const char* path = std::getenv("EMULATED_CUDA_TRACE");
        return path ? std::fopen(path, "a") : nullptr;
    }();
    if (!file) return;
    std::fprintf(file, "%s %u,%u,%u %u,%u,%u %zu %.0f\n", launch.name, launch.blocks[0], launch.blocks[1], launch.blocks[2], launch.threads[0],
                 launch.threads[1], launch.threads[2], launch.dynamic_shared, microseconds);
    std::fflush(file);
}

// With `EMULATED_CUDA_UNDONE` launches are checked and written down, and no kernel runs: so a step may be larger than what the emulator
// could compute. Memory of which nothing is written takes none of the host's.
static bool is_undone() { return std::getenv("EMULATED_CUDA_UNDONE") != nullptr; }

// A launch with the values of its arguments, which a program may change when the call returns.
struct Kept {
    Function* function;
    Launch launch;
    std::vector<std::vector<unsigned char>> values;

    Kept(Function* function, const Launch& launch) : function(function), launch(launch) {
        for (size_t i = 0; function->kernel->bytes[i]; ++i) {
            const auto* value = static_cast<const unsigned char*>(launch.arguments[i]);
            values.emplace_back(value, value + function->kernel->bytes[i]);
        }
    }

    Result run() {
        if (is_undone()) {
            trace(launch, 0);
            return SUCCESS;
        }
        watch_signals();
        have_signal_stack();
        std::vector<void*> addresses;
        for (auto& value : values) addresses.push_back(value.data());
        launch.arguments = addresses.data();
        const auto start = std::chrono::steady_clock::now();
        running = true;
        const bool good = function->kernel->run(launch, core::start);
        running = false;
        trace(launch, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
        return good ? SUCCESS : LAUNCH_FAILED;
    }
};

API Result cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                          unsigned block_z, unsigned shared, void* stream, void** arguments, void** extra) {
    ON_DEVICE;
    if (!function) return INVALID_HANDLE;
    if (extra) return NOT_SUPPORTED;
    const Launch launch{function->kernel->name, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, function->static_shared, arguments};
    const std::string why = refusal(*function, launch);
    if (!why.empty()) {
        std::fprintf(stderr, "emulated driver: %s cannot be launched: %s\n", function->kernel->name, why.c_str());
        return INVALID_VALUE;
    }
    auto kept = std::make_shared<Kept>(function, launch);
    return driver::enqueue(stream, [kept] { return kept->run(); });
}

API Result cuLaunchCooperativeKernel(Function*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**) {
    return NOT_SUPPORTED;
}

// Copies by descriptor are not emulated.
API Result cuTensorMapEncodeTiled() { return NOT_SUPPORTED; }
API Result cuTensorMapEncodeIm2col() { return NOT_SUPPORTED; }
API Result cuTensorMapEncodeIm2colWide() { return NOT_SUPPORTED; }
