// The emulated NCCL: sums over processes of one machine, in memory that they share, of which each may end at any time.
//
// As in a real one, every call returns at once, work is done when its turn comes on the stream, and a rank that ends is an error of all
// others. Sums of two ranks are a + b. Those of more begin with another rank for each part, as a ring does, so they are not in the order
// of ranks, and the same on all.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum Code : int { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

struct UniqueId {
    char bytes[128];
};

static constexpr int MOST = 8;
static constexpr size_t PART = 1 << 18;  // numbers at a time

struct OfRank {
    std::atomic<int> process, left;
    std::atomic<uint64_t> host, written, read;
    float numbers[PART];
};

struct Shared {
    std::atomic<int> arrived;
    OfRank ranks[MOST];
};

struct Comm {
    std::string name;
    int rank, ranks;
    Shared* shared = nullptr;
    std::atomic<int> state{IN_PROGRESS};
    std::atomic<bool> aborted{false}, connected{false};
    int launching = 0;       // a launch goes on in the background
    uint64_t round = 0;      // parts that are done
    unsigned looks = 0;

    OfRank& own() { return shared->ranks[rank]; }
    ~Comm() {
        if (!shared) return;
        own().left = 1;
        shm_unlink(name.c_str());
        munmap(shared, sizeof(Shared));
    }
};

static std::mutex& lock() {
    static auto* mutex = new std::mutex;
    return *mutex;
}
static std::set<std::shared_ptr<Comm>>& comms() {
    static auto* all = new std::set<std::shared_ptr<Comm>>;
    return *all;
}
static thread_local std::string last_error;

static void trace(const std::string& line) {
    static std::FILE* const file = [] {
        const char* path = std::getenv("EMULATED_NCCL_TRACE");
        return path ? std::fopen(path, "a") : nullptr;
    }();
    if (!file) return;
    std::fprintf(file, "%s\n", line.c_str());
    std::fflush(file);
}

static std::shared_ptr<Comm> find(void* handle) {
    std::lock_guard<std::mutex> one_at_a_time(lock());
    for (const auto& comm : comms())
        if (comm.get() == handle) return comm;
    return nullptr;
}

static bool has_ended(int process) {
    if (process == 0) return false;
    std::FILE* file = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "r");
    if (!file) return true;
    char text[512] = {};
    const size_t read = std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
    const char* after = read ? std::strrchr(text, ')') : nullptr;
    return !after || after[1] == 0 || after[2] == 'Z' || after[2] == 'X';
}

// Whether another rank is gone, which is looked at now and then.
static bool is_alone(Comm& comm) {
    for (int rank = 0; rank < comm.ranks; ++rank) {
        if (rank == comm.rank) continue;
        const OfRank& other = comm.shared->ranks[rank];
        if (other.left) return true;
        if (comm.looks % 64 == unsigned(rank) && has_ended(other.process)) return true;
    }
    ++comm.looks;
    return false;
}

struct Sum {
    std::shared_ptr<Comm> comm;
    const float* from;
    float* to;
    size_t count, at = 0;
    bool written = false;
};

// Goes on with a sum. True when nothing is left to do.
static int go_on(void* with) {
    auto* sum = static_cast<Sum*>(with);
    Comm& comm = *sum->comm;
    const auto end = [&](int code) {
        if (code != SUCCESS) comm.state = code;
        delete sum;
        return 1;
    };
    for (;;) {
        if (comm.aborted || comm.state > SUCCESS) return end(SUCCESS);
        if (sum->at == sum->count) return end(SUCCESS);
        const size_t part = std::min(PART, sum->count - sum->at);
        const auto all = [&](auto counter, uint64_t least) {
            for (int rank = 0; rank < comm.ranks; ++rank)
                if (comm.shared->ranks[rank].*counter < least) return false;
            return true;
        };
        if (!sum->written) {
            if (!all(&OfRank::read, comm.round)) return is_alone(comm) ? end(REMOTE_ERROR) : 0;
            std::memcpy(comm.own().numbers, sum->from + sum->at, part * sizeof(float));
            comm.own().written = comm.round + 1;
            sum->written = true;
        }
        if (!all(&OfRank::written, comm.round + 1)) return is_alone(comm) ? end(REMOTE_ERROR) : 0;
        const int first = comm.ranks == 2 ? 0 : int(comm.round % uint64_t(comm.ranks));
        for (size_t i = 0; i < part; ++i) {
            float total = comm.shared->ranks[first].numbers[i];
            for (int next = 1; next < comm.ranks; ++next) total += comm.shared->ranks[(first + next) % comm.ranks].numbers[i];
            sum->to[sum->at + i] = total;
        }
        comm.own().read = ++comm.round;
        sum->at += part;
        sum->written = false;
    }
}

API Code ncclGetVersion(int* version) {
    const char* told = std::getenv("EMULATED_NCCL_VERSION");
    *version = told ? std::atoi(told) : 22809;
    return SUCCESS;
}

API const char* ncclGetErrorString(int code) {
    switch (code) {
        case SUCCESS: return "no error";
        case CUDA_ERROR: return "unhandled cuda error";
        case SYSTEM_ERROR: return "unhandled system error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        case IN_PROGRESS: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

API const char* ncclGetLastError(void*) { return last_error.c_str(); }

API Code ncclGetUniqueId(UniqueId* id) {
    std::memset(id, 0, sizeof *id);
    unsigned char random[16];
    const int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, random, sizeof random) != sizeof random) return SYSTEM_ERROR;
    close(file);
    char* at = id->bytes + std::sprintf(id->bytes, "/emulated-nccl-");
    for (const unsigned char byte : random) at += std::sprintf(at, "%02x", byte);
    return SUCCESS;
}

static Code join(void** handle, const std::string& name, int rank, int ranks) {
    if (ranks < 1 || ranks > MOST || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    auto comm = std::make_shared<Comm>();
    comm->name = name;
    comm->rank = rank;
    comm->ranks = ranks;
    const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared))) return SYSTEM_ERROR;
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return SYSTEM_ERROR;
    comm->shared = static_cast<Shared*>(memory);
    // The length of the text and its bytes: a hash that differs where the texts of a test do.
    uint64_t host = 1469598103934665603u;
    for (const char* at = std::getenv("NCCL_HOSTID"); at && *at; ++at) host = (host ^ uint64_t(*at)) * 1099511628211u;
    comm->own().host = host;
    comm->own().process = int(getpid());
    ++comm->shared->arrived;
    *handle = comm.get();
    std::lock_guard<std::mutex> one_at_a_time(lock());
    comms().insert(std::move(comm));
    return IN_PROGRESS;
}

API Code ncclCommInitRankConfig(void** handle, int ranks, UniqueId id, int rank, const void* config) {
    unsigned magic = 0;
    std::memcpy(&magic, static_cast<const char*>(config) + sizeof(size_t), sizeof magic);
    id.bytes[sizeof id.bytes - 1] = 0;
    if (magic != 0xcafebeef || std::strncmp(id.bytes, "/emulated-nccl-", 15)) return INVALID_ARGUMENT;
    trace("join " + std::to_string(rank) + " of " + std::to_string(ranks));
    return join(handle, id.bytes, rank, ranks);
}

API Code ncclCommGetAsyncError(void* handle, int* state) {
    const auto comm = find(handle);
    if (!comm) return INVALID_ARGUMENT;
    if (!comm->connected && comm->state == IN_PROGRESS && comm->shared->arrived >= comm->ranks) {
        comm->connected = true;
        shm_unlink(comm->name.c_str());
        for (int one = 0; one < comm->ranks; ++one)
            for (int other = 0; other < one; ++other)
                if (comm->shared->ranks[one].host == comm->shared->ranks[other].host) {
                    last_error = "Duplicate GPU detected";
                    comm->state = INVALID_USAGE;
                }
        if (comm->state == IN_PROGRESS) comm->state = SUCCESS;
    }
    *state = comm->state;
    if (*state == SUCCESS && comm->launching > 0) {
        --comm->launching;
        *state = IN_PROGRESS;
    }
    return SUCCESS;
}

API Code ncclGroupStart() { return SUCCESS; }
API Code ncclGroupEnd() { return IN_PROGRESS; }

API Code ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* handle, void* stream) {
    const auto comm = find(handle);
    if (!comm || !comm->connected || type != 7 || operation != 0) return INVALID_ARGUMENT;
    if (comm->state > SUCCESS && comm->state != IN_PROGRESS) return Code(comm->state.load());
    static const auto enqueue = reinterpret_cast<int (*)(void*, int (*)(void*), void*)>([] {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        return driver ? dlsym(driver, "emulatedEnqueue") : nullptr;
    }());
    if (!enqueue) {
        last_error = "the emulated NCCL works with the emulated device only";
        return CUDA_ERROR;
    }
    auto* sum = new Sum{comm, static_cast<const float*>(from), static_cast<float*>(to), count};
    trace("sum " + std::to_string(count));
    comm->launching = 1;
    return enqueue(stream, go_on, sum) ? CUDA_ERROR : IN_PROGRESS;
}

API Code ncclCommFinalize(void* handle) { return find(handle) ? SUCCESS : INVALID_ARGUMENT; }

static Code release(void* handle) {
    const auto comm = find(handle);
    if (!comm) return INVALID_ARGUMENT;
    comm->aborted = true;
    comm->own().left = 1;
    std::lock_guard<std::mutex> one_at_a_time(lock());
    comms().erase(comm);
    return SUCCESS;
}

API Code ncclCommDestroy(void* handle) {
    trace("destroy");
    return release(handle);
}

API Code ncclCommAbort(void* handle) {
    trace("abort");
    return release(handle);
}
