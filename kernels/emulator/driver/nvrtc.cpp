// The emulated NVRTC: `libnvrtc.so` whose compiler is g++ and whose PTX names a library that the emulated driver loads.
//
// Libraries are kept in `$EMULATED_CUDA_CACHE` (without it in `cache` beside this library) under a name made from the source,
// and found again by later processes. Options are those that cubecl passes; others, and architectures that this version does not
// know, are refused in NVRTC's words. `EMULATED_NVRTC_VERSION` is the version (13.0).
#include "builds.hpp"
#include "module.hpp"
#include "source.hpp"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <new>
#include <spawn.h>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum Result { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6, INTERNAL_ERROR = 11 };

struct Version {
    int major, minor;
};

static Version version() {
    Version found{13, 0};
    if (const char* wanted = std::getenv("EMULATED_NVRTC_VERSION")) std::sscanf(wanted, "%d.%d", &found.major, &found.minor);
    return found;
}

struct Program {
    std::string source, log, image;
};

static std::string folder_of_this_library() {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&folder_of_this_library), &info);
    const std::string path = info.dli_fname ? info.dli_fname : "./libnvrtc.so";
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
    char* full = realpath(folder.c_str(), nullptr);
    const std::string found = full ? full : folder;
    std::free(full);
    return found;
}

static uint64_t hash(const std::string& text, uint64_t seed) {
    for (const unsigned char byte : text) seed = (seed ^ byte) * 0x100000001b3u;
    return seed ^ seed >> 29;
}

static std::string content(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// Runs g++ with what it says going to `log`; whether it succeeded.
static bool run_compiler(std::vector<std::string> arguments, const std::string& log) {
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    pid_t compiler;
    const int failed = posix_spawnp(&compiler, words[0], &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        std::ofstream(log) << "the emulated NVRTC needs g++: " << std::strerror(failed) << "\n";
        return false;
    }
    int status = 0;
    while (waitpid(compiler, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The line that PTX has for `DYNAMIC_SHARED` arrays; nothing where the library has none. A real compiler tells each kernel's bytes,
// this one those of the largest kernel of a source.
static std::string dynamic_shared_of(const std::string& library) {
    void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto* module = loaded ? static_cast<const emulator::Module*>(dlsym(loaded, emulator::MODULE_SYMBOL)) : nullptr;
    return module && *module->dynamic_shared ? emulator::IMAGE_SHARED + std::to_string(*module->dynamic_shared) + "\n" : "";
}

// A lock of all processes, until its end. Its file is removed: who comes later finds what was made under it.
struct FileLock {
    explicit FileLock(const std::string& path) : path(path), file(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
        if (file >= 0) flock(file, LOCK_EX);
    }
    ~FileLock() {
        unlink(path.c_str());
        if (file >= 0) close(file);
    }
    const std::string path;
    const int file;
};

static Result compiled_to(Program& program, const std::string& library) {
    program.image = emulator::IMAGE_HEAD + library + "\n" + dynamic_shared_of(library);
    builds::note("compile");
    return SUCCESS;
}

static Result compile(Program& program) {
    static const std::string home = folder_of_this_library();
    const char* chosen = std::getenv("EMULATED_CUDA_CACHE");
    const std::string cache = chosen ? chosen : home + "/cache";
    mkdir(cache.c_str(), 0755);
    // Two hashes of 64 bits: EMULATOR_VERSION is that of the emulator's own sources.
    char name[40];
    std::snprintf(name, sizeof name, "%016llx%016llx", (unsigned long long)hash(EMULATOR_VERSION + program.source, 0xcbf29ce484222325u),
                  (unsigned long long)hash(program.source, 0x9e3779b97f4a7c15u));
    const std::string library = cache + "/" + name + ".so";
    if (access(library.c_str(), R_OK)) {
        // Another process may be compiling the same, which takes seconds: then this one waits for it.
        const FileLock lock(cache + "/" + name + ".lock");
        if (!access(library.c_str(), R_OK)) return compiled_to(program, library);
        static int compiled = 0;
        const std::string mine = cache + "/" + name + "." + std::to_string(getpid()) + "." + std::to_string(__sync_fetch_and_add(&compiled, 1));
        std::ofstream(mine + ".cpp") << nvrtc::host_source(program.source);
        std::vector<std::string> command{"g++"};
        std::istringstream flags(EMULATOR_FLAGS);
        for (std::string flag; flags >> flag;) command.push_back(flag);
        for (const std::string& argument : {std::string("-shared"), "-iquote" + home + "/emulator", "-I" + home + "/emulator/driver/include", std::string("-include"),
                                            home + "/emulator/driver/kernel.hpp", mine + ".cpp", home + "/libcuda.so.1", std::string("-o"), mine + ".so"})
            command.push_back(argument);
        const bool good = run_compiler(command, mine + ".log");
        program.log = content(mine + ".log");
        unlink((mine + ".log").c_str());
        if (!std::getenv("EMULATED_CUDA_KEEP")) unlink((mine + ".cpp").c_str());
        if (!good) return COMPILATION;
        if (std::rename((mine + ".so").c_str(), library.c_str())) {
            program.log += "cannot write " + library + ": " + std::strerror(errno) + "\n";
            return COMPILATION;
        }
    }
    return compiled_to(program, library);
}

static Result copy_out(const std::string& text, char* to) {
    if (!to) return INVALID_INPUT;
    std::memcpy(to, text.c_str(), text.size() + 1);
    return SUCCESS;
}

API const char* nvrtcGetErrorString(Result result) {
    switch (result) {
        case SUCCESS: return "NVRTC_SUCCESS";
        case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case COMPILATION: return "NVRTC_ERROR_COMPILATION";
        default: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}

API Result nvrtcVersion(int* major, int* minor) {
    *major = version().major;
    *minor = version().minor;
    return SUCCESS;
}

static constexpr int ARCHITECTURES[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

API Result nvrtcGetNumSupportedArchs(int* count) {
    *count = int(sizeof ARCHITECTURES / sizeof *ARCHITECTURES);
    return SUCCESS;
}

API Result nvrtcGetSupportedArchs(int* architectures) {
    std::memcpy(architectures, ARCHITECTURES, sizeof ARCHITECTURES);
    return SUCCESS;
}

API Result nvrtcCreateProgram(Program** program, const char* source, const char* /*name*/, int headers, const char* const* /*headers*/,
                              const char* const* /*include names*/) {
    if (!program || !source || headers) return INVALID_INPUT;
    *program = new Program{nvrtc::with_all_kernels(source), "", ""};
    return SUCCESS;
}

API Result nvrtcDestroyProgram(Program** program) {
    if (!program || !*program) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

// Reads the options that cubecl passes. `target` becomes the architecture as the driver is told it: `sm_121a`, `sm_89 ` where no
// letter follows.
static Result read_options(Program& program, int count, const char* const* options, std::string& target) {
    const std::string architecture = "--gpu-architecture=", include = "--include-path=";
    for (int i = 0; i < count; ++i) {
        const std::string option = options[i];
        if (!option.compare(0, include.size(), include) || option == "-lineinfo") continue;
        if (option.compare(0, architecture.size(), architecture)) {
            program.log += "nvrtc: error: unrecognized option " + option + " found\n";
            return INVALID_OPTION;
        }
        int number = 0, read = 0;
        target = option.substr(architecture.size());
        bool is_known = std::sscanf(target.c_str(), "sm_%d%n", &number, &read) == 1;
        bool is_listed = false;
        for (const int known : ARCHITECTURES) is_listed |= known == number;
        const std::string suffix = target.substr(size_t(read));
        // Compute 11.0 and 8.8 are new in 13.0; a letter is possible from 9.0 on.
        is_known &= is_listed && (version().major >= 13 || (number != 110 && number != 88)) && (suffix.empty() || (suffix == "a" && number >= 90));
        if (!is_known) {
            program.log += "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
            return INVALID_OPTION;
        }
        if (suffix.empty()) target += " ";
    }
    return target.empty() ? INVALID_OPTION : SUCCESS;
}

API Result nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (!program) return INVALID_PROGRAM;
    try {
        std::string target;
        if (const Result refused = read_options(*program, count, options, target)) return refused;
        if (const Result failed = compile(*program)) return failed;
        program->image += emulator::IMAGE_TARGET + target + "NVRTC " + std::to_string(version().major) + "." + std::to_string(version().minor) + "\n";
        return SUCCESS;
    } catch (const std::exception& error) {
        program->log += error.what();
        return INTERNAL_ERROR;
    }
}

API Result nvrtcGetProgramLogSize(Program* program, size_t* size) {
    *size = program->log.size() + 1;
    return SUCCESS;
}
API Result nvrtcGetProgramLog(Program* program, char* log) { return copy_out(program->log, log); }

API Result nvrtcGetPTXSize(Program* program, size_t* size) {
    *size = program->image.size() + 1;
    return program->image.empty() ? INVALID_PROGRAM : SUCCESS;
}
API Result nvrtcGetPTX(Program* program, char* ptx) { return copy_out(program->image, ptx); }
API Result nvrtcGetCUBINSize(Program* program, size_t* size) { return nvrtcGetPTXSize(program, size); }
API Result nvrtcGetCUBIN(Program* program, char* cubin) { return nvrtcGetPTX(program, cubin); }
