// The emulated CUDA device's own test: by the driver's and NVRTC's interface alone, kernels of both kinds are compiled and launched,
// and each mistake that is to be told must be told, with the error a program would get from a real device.
//
// It builds the libraries with `driver.sh` in a folder of its own. A mistake runs in a child process, for nothing works after it;
// streams do too, for their order is chosen once in a process.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

using Address = unsigned long long;
constexpr int SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, UNSUPPORTED_PTX_VERSION = 222, NOT_FOUND = 500, LAUNCH_FAILED = 719, INVALID_OPTION = 5, COMPILATION = 6;

static int tests = 0, wrong = 0;
static void* libraries[2];

static void holds(const char* what, bool good) {
    ++tests;
    if (good) return;
    ++wrong;
    std::fprintf(stderr, "FAILED %s\n", what);
}

// Calls a function of the libraries by name.
template <class... Arguments>
static int call(const char* name, Arguments... arguments) {
    void* found = dlsym(libraries[std::strncmp(name, "nvrtc", 5) ? 0 : 1], name);
    if (!found) {
        std::fprintf(stderr, "no symbol %s\n", name);
        std::exit(1);
    }
    return reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
}

struct Compiled {
    int result;
    std::string log, image;
};

static Compiled compile(const std::string& source, const char* architecture = "sm_121a", const char* other_option = "-lineinfo") {
    void* program = nullptr;
    call("nvrtcCreateProgram", &program, source.c_str(), (const char*)nullptr, 0, (char**)nullptr, (char**)nullptr);
    const std::string chosen = std::string("--gpu-architecture=") + architecture;
    const char* options[] = {chosen.c_str(), other_option};
    Compiled made{call("nvrtcCompileProgram", program, 2, options), "", ""};
    size_t size = 0;
    call("nvrtcGetProgramLogSize", program, &size);
    made.log.resize(size);
    call("nvrtcGetProgramLog", program, made.log.data());
    if (made.result == SUCCESS) {
        call("nvrtcGetPTXSize", program, &size);
        made.image.resize(size);
        call("nvrtcGetPTX", program, made.image.data());
    }
    call("nvrtcDestroyProgram", &program);
    return made;
}

static void* kernel(const std::string& source, const char* name) {
    const Compiled made = compile(source);
    if (made.result) std::fprintf(stderr, "%s\n", made.log.c_str());
    void *module = nullptr, *function = nullptr;
    call("cuModuleLoadData", &module, made.image.c_str());
    call("cuModuleGetFunction", &function, module, name);
    return function;
}

template <class... Arguments>
static int launch(void* function, unsigned blocks, unsigned threads, unsigned shared, Arguments... arguments) {
    void* addresses[] = {&arguments..., nullptr};
    return call("cuLaunchKernel", function, blocks, 1u, 1u, threads, 1u, 1u, shared, (void*)nullptr, (void**)addresses, (void**)nullptr);
}

template <class T>
struct OnDevice {
    Address at = 0;
    size_t count;
    explicit OnDevice(size_t count) : count(count) { call("cuMemAlloc_v2", &at, count * sizeof(T)); }
    explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
        call("cuMemcpyHtoD_v2", at, (const void*)values.data(), count * sizeof(T));
    }
    ~OnDevice() { call("cuMemFree_v2", at); }
    std::vector<T> values() const {
        std::vector<T> read(count);
        call("cuMemcpyDtoH_v2", (void*)read.data(), at, count * sizeof(T));
        return read;
    }
};

// A device source as the trainer hands it over: each quoted include of a `.cuh` replaced by its text, once; others stay.
static std::string flattened(const std::string& path, std::set<std::string>& seen) {
    if (char* real = realpath(path.c_str(), nullptr)) {
        const bool known = !seen.insert(real).second;
        std::free(real);
        if (known) return "";
    }
    std::ifstream file(path);
    std::string text;
    for (std::string line; std::getline(file, line);) {
        const size_t quote = line.find("#include \"");
        if (quote != std::string::npos && line.find(".cuh\"") != std::string::npos)
            text += flattened(path.substr(0, path.rfind('/') + 1) + line.substr(quote + 10, line.rfind('"') - quote - 10), seen);
        else if (line != "#pragma once")
            text += line + "\n";
    }
    return text;
}

static uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float from_bf16(uint16_t x) {
    const uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static void device_source(const std::string& kernels) {
    std::set<std::string> seen;
    void* function = kernel(flattened(kernels + "/silu_mul/silu_mul.cuh", seen), "silu_mul_forward");
    constexpr size_t COUNT = 2051;
    std::vector<uint16_t> gate, up;
    for (size_t i = 0; i < COUNT; ++i) {
        gate.push_back(to_bf16(std::sin(float(i))));
        up.push_back(to_bf16(std::cos(float(i) * 0.3f)));
    }
    OnDevice<uint16_t> g(gate), u(up), out(COUNT);
    holds("a device source is launched", launch(function, 2, 256, 0, g.at, u.at, out.at, uint64_t(COUNT)) == SUCCESS);
    const auto y = out.values();
    bool right = true;
    for (size_t i = 0; i < COUNT; ++i) {
        const double x = from_bf16(gate[i]), expected = x / (1 + std::exp(-x)) * from_bf16(up[i]);
        right &= std::fabs(from_bf16(y[i]) - expected) <= 4e-3 * (1e-3 + std::fabs(expected));
    }
    holds("silu_mul_forward gives the right numbers", right);
    holds("more threads than __launch_bounds__ are refused", launch(function, 1, 512, 0, g.at, u.at, out.at, uint64_t(COUNT)) == INVALID_VALUE);
}

// As a generator writes it: its own integer types, vectors, a struct by value, dynamic shared memory, lanes that ask who is active.
static const char* const GENERATED = R"(
#include <cuda_bf16.h>
typedef unsigned int uint32_t;
typedef unsigned long long int uint64_t;
template <typename T, size_t N>
struct array { T data[N]; __device__ T& operator[](size_t i) { return data[i]; } };
struct alignas(8) __nv_bfloat16_4 { __nv_bfloat16 i_0; __nv_bfloat16 i_1; __nv_bfloat16 i_2; __nv_bfloat16 i_3; };
struct info_st { uint64_t scalars_u64[1]; uint32_t static_meta[2]; };
extern "C" __global__ void __launch_bounds__(64) sum_of_rows(__nv_bfloat16_4 const* const __restrict__ in, float* const __restrict__ out, __grid_constant__ info_st const info) {
extern __shared__ __align__(16) char dynamic_shared_mem[];
float* const partial = reinterpret_cast<float*>(&dynamic_shared_mem[0]);
uint32_t const lane = threadIdx.x;
uint32_t const row = blockIdx.x;
if (threadIdx.y * 32 + lane >= info.static_meta[0]) { return; }
__nv_bfloat16_4 const v = in[row * info.static_meta[0] + threadIdx.y * 32 + lane];
__nv_bfloat16 const pair = v.i_0 + v.i_1;
float sum = float(pair) + float(v.i_2) + float(v.i_3);
for (int flip = 16; flip > 0; flip /= 2) {
sum += __shfl_xor_sync(__activemask(), sum, flip);
}
if (lane == 0) { partial[threadIdx.y] = sum; }
__syncthreads();
if (lane == 0 && threadIdx.y == 0) {
float const before = [&]() { float result;
asm volatile("atom.relaxed.add.f32 %0, [%1], %2;" : "=f"(result) : "l"(&out[row]), "f"(partial[0] + partial[1]) );
return result; }();
out[row] = before + out[row] + float(info.scalars_u64[0]);
}
})";

static void generated_source() {
    void* function = kernel(GENERATED, "sum_of_rows");
    constexpr unsigned ROWS = 3, FOURS = 64;
    std::vector<uint16_t> in;
    for (unsigned i = 0; i < ROWS * FOURS * 4; ++i) in.push_back(to_bf16(float(i % 7)));
    OnDevice<uint16_t> x(in);
    OnDevice<float> out(std::vector<float>(ROWS, 0.0f));
    struct {
        uint64_t scalar;
        uint32_t meta[2];
    } info{100, {FOURS, 0}};
    void* addresses[] = {&x.at, &out.at, &info};
    const int result = call("cuLaunchKernel", function, ROWS, 1u, 1u, 32u, 2u, 1u, 64u, (void*)nullptr, (void**)addresses, (void**)nullptr);
    holds("a generated source is launched", result == SUCCESS);
    const auto sums = out.values();
    bool right = true;
    for (unsigned row = 0; row < ROWS; ++row) {
        float sum = 0;
        for (unsigned i = 0; i < FOURS * 4; ++i) sum += from_bf16(in[row * FOURS * 4 + i]);
        right &= sums[row] == sum + 100;
    }
    holds("sum_of_rows gives the right numbers", right);
    // A multiprocessor has 48 KB for a kernel that has not asked for more.
    const int large = call("cuLaunchKernel", function, ROWS, 1u, 1u, 32u, 2u, 1u, 65536u, (void*)nullptr, (void**)addresses, (void**)nullptr);
    holds("more shared memory than asked for is refused", large == INVALID_VALUE);
    holds("more shared memory is granted", call("cuFuncSetAttribute", function, 8, 65536) == SUCCESS);
    holds("more shared memory than there is is refused", call("cuFuncSetAttribute", function, 8, 101377) == INVALID_VALUE);
}

static void matrix_product() {
    void* function = kernel(R"(
#include <mma.h>
#include <cuda_bf16.h>
extern "C" __global__ void __launch_bounds__(32) product(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __nv_bfloat16, nvcuda::wmma::row_major> x;
nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __nv_bfloat16, nvcuda::wmma::col_major> y;
nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> z;
nvcuda::wmma::fill_fragment(z, 1.0f);
nvcuda::wmma::load_matrix_sync(x, a, 16);
nvcuda::wmma::load_matrix_sync(y, b, 16);
nvcuda::wmma::mma_sync(z, x, y, z);
nvcuda::wmma::store_matrix_sync(c, z, 20, nvcuda::wmma::mem_row_major);
})", "product");
    std::vector<uint16_t> a, b;
    for (int i = 0; i < 256; ++i) {
        a.push_back(to_bf16(float(i % 13)));
        b.push_back(to_bf16(float(i % 5) - 2));
    }
    OnDevice<uint16_t> x(a), y(b);
    OnDevice<float> z(320);
    holds("wmma is launched", launch(function, 1, 32, 0, x.at, y.at, z.at) == SUCCESS);
    const auto c = z.values();
    bool right = true;
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            float sum = 1;
            for (int k = 0; k < 16; ++k) sum += from_bf16(a[i * 16 + k]) * from_bf16(b[j * 16 + k]);
            right &= c[i * 20 + j] == sum;
        }
    holds("wmma gives the right numbers", right);
    holds("memory that nothing was written to is not a number", std::isnan(c[16]));
}

static void memory() {
    Address large = 0, small = 0;
    size_t free = 0, total = 0;
    call("cuMemGetInfo_v2", &free, &total);
    holds("the device has the memory it was given", total == 64 << 20 && free == total);
    holds("more than all memory is refused", call("cuMemAlloc_v2", &large, size_t(65) << 20) == OUT_OF_MEMORY);
    holds("most of the memory is given", call("cuMemAlloc_v2", &large, size_t(63) << 20) == SUCCESS);
    holds("what is left is not enough", call("cuMemAllocAsync", &small, size_t(2) << 20, (void*)nullptr) == OUT_OF_MEMORY);
    const char bytes[16] = "0123456789abcde";
    char read[16];
    holds("a copy inside memory", call("cuMemcpyHtoD_v2", large + (63 << 20) - 16, (const void*)bytes, size_t(16)) == SUCCESS);
    holds("a copy past the end is refused", call("cuMemcpyHtoD_v2", large + (63 << 20) - 15, (const void*)bytes, size_t(16)) == INVALID_VALUE);
    call("cuMemcpyDtoH_v2", (void*)read, large + (63 << 20) - 16, size_t(16));
    holds("what was copied comes back", !std::memcmp(bytes, read, 16));
    holds("memory goes back", call("cuMemFree_v2", large) == SUCCESS && call("cuMemAlloc_v2", &small, size_t(2) << 20) == SUCCESS);
    call("cuMemFree_v2", small);
    holds("memory goes back once", call("cuMemFree_v2", small) == INVALID_VALUE);
}

static void other_refusals() {
    const Compiled bad = compile("KERNEL(32) broken() { no_such_function(); }");
    holds("a source that does not compile says why", bad.result == COMPILATION && bad.log.find("no_such_function") != std::string::npos);
    const Compiled unknown = compile(R"(extern "C" __global__ void f(float* x) { asm("nanosleep.u32 %0;" :: "r"(3)); })");
    holds("an instruction that is not emulated is named", unknown.result == COMPILATION && unknown.log.find("ptx_nanosleep_u32") != std::string::npos);
    void *module = nullptr, *function = nullptr;
    holds("real PTX is refused", call("cuModuleLoadData", &module, ".version 8.7\n.target sm_121a\n") == INVALID_IMAGE);
    const Compiled good = compile("KERNEL(32) one() {}\nKERNEL(64) other() {}");
    call("cuModuleLoadData", &module, good.image.c_str());
    holds("a kernel that is not there is not found", call("cuModuleGetFunction", &function, module, "third") == NOT_FOUND);
    int most = 0;
    call("cuModuleGetFunction", &function, module, "other");
    call("cuFuncGetAttribute", &most, 0, function);
    holds("a kernel tells its __launch_bounds__", most == 64);
}

// What a child process that does `what` writes to stderr, and how it ended.
static std::pair<std::string, int> report_of_child(const std::function<void()>& what) {
    int pipe_ends[2];
    if (pipe(pipe_ends)) std::abort();
    std::fflush(stderr);
    const pid_t child = fork();
    if (child == 0) {
        dup2(pipe_ends[1], STDERR_FILENO);
        what();
        _exit(1);
    }
    close(pipe_ends[1]);
    std::string report;
    char part[512];
    for (ssize_t got; (got = read(pipe_ends[0], part, sizeof part)) > 0;) report.append(part, size_t(got));
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return {report, status};
}

// Launches `source`'s kernel `wrong` in a child, which must be told `words` and get LAUNCH_FAILED from then on.
static void told(const char* what, const char* words, const std::string& source, unsigned threads) {
    ++tests;
    void* function = kernel(source, "wrong");
    const auto [report, status] = report_of_child([&] {
        OnDevice<float> out(64);
        int result = 0;
        // On a thread of its own, as a program would: every stack and signal is then that thread's.
        std::thread([&] { result = launch(function, 1, threads, 0, out.at); }).join();
        const int later = call("cuCtxSynchronize");
        _exit(result == LAUNCH_FAILED && later == LAUNCH_FAILED ? 0 : 1);
    });
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && report.find(words) != std::string::npos && report.find("in wrong") != std::string::npos) return;
    ++wrong;
    std::fprintf(stderr, "FAILED %s: status %d, report: %s\n", what, status, report.c_str());
}

// A program may end while another of its threads runs a kernel, which goes on as if nothing had happened.
static void end_during_a_kernel() {
    void* function = kernel("KERNEL(32) slow(float* out) { SHARED(float, line, 8192); for (int i = 0; i < 100000; ++i) { line[threadIdx.x] = 1.0f; out[0] = 1.0f; } }", "slow");
    const auto [report, status] = report_of_child([&] {
        OnDevice<float> out(std::vector<float>(1, 0.0f));
        std::thread([&] { launch(function, 1, 32, 0, out.at); }).detach();
        while (*reinterpret_cast<volatile float*>(out.at) != 1.0f) usleep(1000);
        std::exit(0);
    });
    holds("a program ends while a kernel runs", WIFEXITED(status) && WEXITSTATUS(status) == 0 && report.empty());
}

static void mistakes() {
    told("a race", "race: line", "KERNEL(64) wrong(float* out) { SHARED(float, line, 64); line[threadIdx.x] = 1.0f; __syncthreads(); line[63 - threadIdx.x] = 2.0f; out[threadIdx.x] = line[threadIdx.x]; }", 64);
    told("a deadlock", "deadlock", "KERNEL(64) wrong(float* out) { if (threadIdx.x < 32) __syncthreads(); out[threadIdx.x] = 0.0f; }", 64);
    told("outside of a shared array", "outside the array", "KERNEL(64) wrong(float* out) { SHARED(float, line, 63); line[threadIdx.x] = 1.0f; out[0] = 0.0f; }", 64);
    told("misalignment", "misaligned", "KERNEL(32) wrong(float* out) { *reinterpret_cast<float4*>(out + 1) = float4{1, 2, 3, 4}; }", 32);
    told("a write past the end of memory", "out of bounds", "KERNEL(32) wrong(float* out) { out[threadIdx.x + 128] = 1.0f; }", 32);
    told("too deep a recursion", "out of bounds", "float deep(float* x, int n) { volatile float line[64]; line[n % 64] = x[n % 2]; return n ? deep(x, n - 1) + line[n % 64] : 0; }\nKERNEL(32) wrong(float* out) { out[0] = deep(out, 100000); }", 1);
    told("division by zero", "divided by zero", "KERNEL(32) wrong(int* out) { out[1] = 3 / (out[0] + 1 == 0 ? out[0] + 1 : 0); }", 1);
}

// The result of `what` in a child process with these variables. 1 is what it returns where something else failed.
static int in_child(const std::vector<std::pair<const char*, std::string>>& variables, const std::function<int()>& what) {
    std::fflush(stderr);
    const pid_t child = fork();
    if (child == 0) {
        for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
        freopen("/dev/null", "w", stderr);
        _exit(what());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void architectures() {
    const std::string small = "KERNEL(32) small(float* out) { SHARED(float, line, 32); line[threadIdx.x] = 1.0f; __syncwarp(); out[threadIdx.x] = line[threadIdx.x ^ 1]; }";
    const std::string large = "KERNEL(32) large(float* out) { SHARED(float, line, 16384); line[threadIdx.x] = 1.0f; __syncwarp(); out[threadIdx.x] = line[threadIdx.x ^ 1]; }";
    holds("an unknown option is refused", compile(small, "sm_121a", "--use_fast_math").result == INVALID_OPTION);
    for (const char* unknown : {"sm_122a", "sm_89a", "compute_90", "sm_121b"}) holds("an unknown architecture is refused", compile(small, unknown).result == INVALID_OPTION);
    const auto loads = [](const Compiled& made) {
        void* module = nullptr;
        return call("cuModuleLoadData", &module, made.image.c_str());
    };
    holds("a module for another GPU alone does not load", loads(compile(small, "sm_90a")) == NO_BINARY_FOR_GPU);
    holds("a module for any newer GPU loads", loads(compile(small, "sm_90")) == SUCCESS);
    const auto versions = [&](const char* nvrtc, const char* driver) {
        return in_child({{"EMULATED_NVRTC_VERSION", nvrtc}, {"EMULATED_CUDA_DRIVER", driver}}, [&] { return loads(compile(small)); });
    };
    holds("code from a newer CUDA than the driver's does not load", versions("13.1", "13.0") == UNSUPPORTED_PTX_VERSION);
    holds("code from an older one does", versions("12.9", "13.0") == SUCCESS);
    // Dynamic arrays are in the PTX, and a launch has to ask for them.
    const std::string dynamic =
        "DEVICE constexpr u32 end_of_shared(u32 start, u32 bytes) { return start + (bytes + 127) / 128 * 128; }\n"
        "KERNEL(32) dynamic(float* out) { DYNAMIC_SHARED(float, first, 33, 0); DYNAMIC_SHARED(float, second, 16384, first_end);"
        " first[threadIdx.x] = second[threadIdx.x] = 1.0f; __syncwarp(); out[threadIdx.x] = first[threadIdx.x ^ 1] + second[threadIdx.x ^ 2]; }";
    const Compiled with_dynamic = compile("typedef unsigned int u32;\n" + dynamic);
    holds("PTX says how much dynamic memory the arrays of a kernel take", with_dynamic.image.find("// dynamic shared memory: 65792\n") != std::string::npos);
    holds("PTX without such arrays says nothing of it", compile(small).image.find("dynamic shared") == std::string::npos);
    const auto asks_for = [&](int allowed, unsigned asked) {
        return in_child({}, [&] {
            void *module = nullptr, *function = nullptr;
            if (call("cuModuleLoadData", &module, with_dynamic.image.c_str())) return 1;
            call("cuModuleGetFunction", &function, module, "dynamic");
            if (allowed && call("cuFuncSetAttribute", function, 8, allowed)) return 3;
            OnDevice<float> out(32);
            if (const int refused = launch(function, 1, 32, asked, out.at)) return refused == LAUNCH_FAILED ? 2 : 4;
            return out.values()[5] == 2.0f ? 0 : 5;
        });
    };
    holds("more than 48 KB of dynamic memory are there when they are allowed and asked for", asks_for(65792, 65792) == 0);
    holds("they are not there when they are only asked for", asks_for(0, 65792) == 4);
    holds("a launch that asks for less than the arrays take is a mistake", asks_for(65792, 65664) == 2);
    holds("more than a block may have cannot be allowed", asks_for(101377, 101377) == 3);
    // 64 KB are more than a kernel has without asking.
    const auto runs = [&](const std::string& source, const char* name, const char* capability, const char* architecture, const char* nvrtc) {
        return in_child({{"EMULATED_CUDA_CAPABILITY", capability}, {"EMULATED_NVRTC_VERSION", nvrtc}}, [&] {
            void *module = nullptr, *function = nullptr;
            if (call("cuModuleLoadData", &module, compile(source, architecture).image.c_str())) return 1;
            call("cuModuleGetFunction", &function, module, name);
            OnDevice<float> out(32);
            return launch(function, 1, 32, 0, out.at) == LAUNCH_FAILED ? 2 : 0;
        });
    };
    holds("64 KB are allowed for sm_121a and sm_90a", runs(large, "large", "12.1", "sm_121a", "13.0") == 0 && runs(large, "large", "9.0", "sm_90a", "13.0") == 0);
    holds("64 KB are refused by NVRTC 12.9", runs(large, "large", "12.1", "sm_121a", "12.9") == 2 && runs(small, "small", "12.1", "sm_121a", "12.9") == 0);
    holds("64 KB are refused for sm_89", runs(large, "large", "8.9", "sm_89", "13.0") == 2 && runs(small, "small", "8.9", "sm_89", "13.0") == 0);
    holds("static and dynamic memory together are refused beyond the limit", in_child({}, [&] {
        void *module = nullptr, *function = nullptr;
        call("cuModuleLoadData", &module, compile(large).image.c_str());
        call("cuModuleGetFunction", &function, module, "large");
        OnDevice<float> out(32);
        if (launch(function, 1, 32, 101376 - 65536, out.at) != SUCCESS) return 1;
        return launch(function, 1, 32, 101376 - 65536 + 16, out.at) == LAUNCH_FAILED ? 0 : 2;
    }) == 0);
    holds("a launch that is not to be done is checked and changes nothing", in_child({{"EMULATED_CUDA_UNDONE", "1"}}, [&] {
        void *module = nullptr, *function = nullptr;
        call("cuModuleLoadData", &module, compile(small).image.c_str());
        call("cuModuleGetFunction", &function, module, "small");
        OnDevice<float> out(std::vector<float>(32, 3.0f));
        if (launch(function, 1, 64, 0, out.at) == SUCCESS || launch(function, 1, 32, 0, out.at)) return 1;
        return out.values() == std::vector<float>(32, 3.0f) ? 0 : 2;
    }) == 0);
    const std::string builds = "/tmp/emulated-cuda-builds-" + std::to_string(getpid());
    in_child({{"EMULATED_CUDA_BUILDS", builds}}, [&] {
        loads(compile(small));
        return loads(compile(small));
    });
    std::ifstream lines(builds);
    std::string all;
    for (std::string line; std::getline(lines, line);) all += line + " ";
    unlink(builds.c_str());
    holds("compilations and modules are counted", all == "compile load compile load ");
}

// How many of twelve orders give `good`.
static int orders(const std::function<bool()>& good) {
    int right = 0;
    for (int seed = 1; seed <= 12; ++seed) right += in_child({{"EMULATED_CUDA_SEED", std::to_string(seed)}}, [&] { return good() ? 0 : 1; }) == 0;
    return right;
}

static void streams() {
    void *add = nullptr, *a = nullptr, *b = nullptr, *event = nullptr;
    add = kernel("KERNEL(32) add(float* to, const float* from, float more) { to[threadIdx.x] = from[threadIdx.x] + more; }", "add");
    constexpr unsigned INDEPENDENT = 1;
    const auto two_streams = [&] {
        call("cuStreamCreate", &a, INDEPENDENT);
        call("cuStreamCreate", &b, INDEPENDENT);
        call("cuEventCreate", &event, 0u);
    };
    const auto on = [&](void* stream, Address to, Address from, float more) {
        void* addresses[] = {&to, &from, &more};
        return call("cuLaunchKernel", add, 1u, 1u, 1u, 32u, 1u, 1u, 0u, stream, (void**)addresses, (void**)nullptr);
    };
    const std::vector<float> zeros(32, 0.0f);
    const auto chain = [&](bool with_event) {
        return orders([&] {
            two_streams();
            OnDevice<float> x(zeros), y(zeros);
            for (int i = 0; i < 4; ++i) on(a, x.at, x.at, 1);
            call("cuEventRecord", event, a);
            if (with_event) call("cuStreamWaitEvent", b, event, 0u);
            on(b, y.at, x.at, 1);
            call("cuStreamSynchronize", b);
            return y.values()[0] == 5;
        });
    };
    holds("an event orders two streams", chain(true) == 12);
    holds("without it some order is wrong", chain(false) < 12);
    const auto read_back = [&](bool waits) {
        return orders([&] {
            two_streams();
            OnDevice<float> x(zeros);
            on(a, x.at, x.at, 3);
            if (waits) call("cuStreamSynchronize", a);
            return x.values()[31] == 3;
        });
    };
    holds("a copy without a stream waits for no independent one", read_back(true) == 12 && read_back(false) < 12);
    const auto freed = [&](bool on_same) {
        return orders([&] {
            two_streams();
            Address x = 0;
            call("cuMemAllocAsync", &x, size_t(128), a);
            on(a, x, x, 1);
            on(a, x, x, 1);
            call("cuMemFreeAsync", x, on_same ? a : b);
            return call("cuCtxSynchronize") == SUCCESS;
        });
    };
    holds("memory is freed in the order of its stream", freed(true) == 12);
    holds("memory freed on another stream is out of bounds in some order", freed(false) < 12);
    const auto overwritten = [&](bool waits) {
        return orders([&] {
            two_streams();
            OnDevice<float> x(zeros);
            float* source = nullptr;
            call("cuMemHostAlloc", (void**)&source, size_t(128), 0u);
            for (int i = 0; i < 32; ++i) source[i] = 7;
            call("cuMemcpyHtoDAsync_v2", x.at, (const void*)source, size_t(128), a);
            if (waits) call("cuStreamSynchronize", a);
            for (int i = 0; i < 32; ++i) source[i] = 8;
            call("cuStreamSynchronize", a);
            return x.values()[0] == 7;
        });
    };
    holds("pinned memory that is overwritten too early shows", overwritten(true) == 12 && overwritten(false) < 12);
    const auto registered = [&](bool waits) {
        return orders([&] {
            two_streams();
            OnDevice<float> x(zeros);
            std::vector<float> source(32, 7.0f);
            if (call("cuMemHostRegister_v2", (void*)source.data(), size_t(128), 0u)) return false;
            if (call("cuMemHostRegister_v2", (void*)source.data(), size_t(64), 0u) == SUCCESS) return false;
            uint64_t at = 0;
            if (call("cuMemHostGetDevicePointer_v2", &at, (void*)source.data(), 0u) || at != uintptr_t(source.data())) return false;
            if (call("cuMemHostGetDevicePointer_v2", &at, (void*)&at, 0u) == SUCCESS) return false;
            call("cuMemcpyHtoDAsync_v2", x.at, (const void*)source.data(), size_t(128), a);
            if (waits) call("cuStreamSynchronize", a);
            source.assign(32, 8.0f);
            call("cuStreamSynchronize", a);
            const bool right = x.values()[0] == 7;
            return call("cuMemHostUnregister", (void*)source.data()) == SUCCESS && right;
        });
    };
    holds("registered memory is pinned where it lies", registered(true) == 12 && registered(false) < 12);
    holds("other memory is read when the call returns", orders([&] {
        two_streams();
        OnDevice<float> x(zeros);
        std::vector<float> source(32, 7.0f);
        call("cuMemcpyHtoDAsync_v2", x.at, (const void*)source.data(), size_t(128), a);
        source.assign(32, 8.0f);
        call("cuStreamSynchronize", a);
        return x.values()[0] == 7;
    }) == 12);
}

int main(int, char** arguments) {
    const std::string self = __FILE__, folder = self.substr(0, self.rfind('/') + 1);
    char made[] = "/tmp/emulated-cuda-XXXXXX";
    const char* given = std::getenv("EMULATED_CUDA_LIBRARIES");
    const std::string out = given ? given : mkdtemp(made);
    (void)arguments;
    setenv("EMULATED_CUDA_MEMORY", std::to_string(64 << 20).c_str(), 1);
    if (std::system(("bash '" + folder + "../driver.sh' '" + out + "'").c_str())) return 1;
    const char* names[] = {"/libcuda.so.1", "/libnvrtc.so.13"};
    for (int i = 0; i < 2; ++i)
        if (!(libraries[i] = dlopen((out + names[i]).c_str(), RTLD_NOW | RTLD_LOCAL))) {
            std::fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    memory();
    device_source(folder + "../..");
    generated_source();
    matrix_product();
    other_refusals();
    architectures();
    streams();
    mistakes();
    end_during_a_kernel();
    if (!given) std::system(("rm -rf '" + out + "'").c_str());
    std::printf("emulated CUDA device: kernels, memory, mistakes        %d tests, %d of them failed\n", tests, wrong);
    return wrong != 0;
}
