// Memory of the device: mappings with a page behind that nobody may touch, filled with 0xff, or the byte that `EMULATED_CUDA_FILL` says,
// until something is written. A result that depends on the byte comes from memory that was read before it was written.
//
// The fill is a mapped file, so that large allocations of which little is used cost little.
#include "stream.hpp"
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

namespace driver {

struct Allocation {
    size_t bytes;
    char* mapping;
    size_t mapped;
};

static std::map<Address, Allocation> allocations;
static size_t used = 0;
static constexpr size_t FILL_BYTES = 4 << 20, ALIGNMENT = 512;

size_t used_memory() { return used; }

// A file of 0xff bytes, to be mapped privately.
static int fill() {
    static const int file = [] {
        const int made = memfd_create("unwritten device memory", MFD_CLOEXEC);
        if (made < 0 || ftruncate(made, FILL_BYTES)) return -1;
        void* bytes = mmap(nullptr, FILL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (bytes == MAP_FAILED) return -1;
        const char* byte = std::getenv("EMULATED_CUDA_FILL");
        std::memset(bytes, byte ? std::atoi(byte) : 0xff, FILL_BYTES);
        munmap(bytes, FILL_BYTES);
        return made;
    }();
    return file;
}

static Result allocate(Address* address, size_t bytes) {
    if (!address || bytes == 0) return INVALID_VALUE;
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (room > total_memory() - used || fill() < 0) return OUT_OF_MEMORY;
    const size_t pages = (room + page - 1) / page * page;
    auto* mapping = static_cast<char*>(mmap(nullptr, pages + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (mapping == MAP_FAILED) return OUT_OF_MEMORY;
    for (size_t at = 0; at < pages; at += FILL_BYTES) {
        const size_t part = pages - at < FILL_BYTES ? pages - at : FILL_BYTES;
        if (mmap(mapping + page + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fill(), 0) == MAP_FAILED) {
            munmap(mapping, pages + 2 * page);
            return OUT_OF_MEMORY;
        }
    }
    *address = Address(uintptr_t(mapping + page + pages - room));
    allocations[*address] = {room, mapping, pages + 2 * page};
    used += room;
    return SUCCESS;
}

static Result release(Address address) {
    if (address == 0) return SUCCESS;
    const auto found = allocations.find(address);
    if (found == allocations.end()) return INVALID_VALUE;
    munmap(found->second.mapping, found->second.mapped);
    used -= found->second.bytes;
    allocations.erase(found);
    return SUCCESS;
}

bool on_device(Address at, size_t bytes) {
    auto after = allocations.upper_bound(at);
    if (after == allocations.begin()) return false;
    --after;
    return at + bytes <= after->first + after->second.bytes;
}

}  // namespace driver

static void* host(Address address) { return reinterpret_cast<void*>(uintptr_t(address)); }

static bool is_inside(Address at, size_t bytes, const char* what) {
    if (driver::on_device(at, bytes)) return true;
    std::fprintf(stderr, "emulated driver: a copy of %zu bytes %s %#llx is not inside one allocation\n", bytes, what, at);
    return false;
}

// A copy of which one end or both lie on the device, when its turn comes.
static Result copy_now(Address to, bool to_device, Address from, bool from_device, size_t bytes) {
    if ((to_device && !is_inside(to, bytes, "to")) || (from_device && !is_inside(from, bytes, "from"))) return INVALID_VALUE;
    std::memmove(host(to), host(from), bytes);
    return SUCCESS;
}

using Stream = void*;
static bool is_pinned(const void* at);

// A line for each copy from the host in the file `EMULATED_CUDA_COPIES`: whether the memory is pinned, and the bytes. What is not pinned is
// copied on the host first, as a real driver does.
static void note_upload(bool pinned_memory, size_t bytes) {
    static std::FILE* const file = [] {
        const char* path = std::getenv("EMULATED_CUDA_COPIES");
        return path ? std::fopen(path, "a") : nullptr;
    }();
    if (!file) return;
    std::fprintf(file, "%s %zu\n", pinned_memory ? "pinned" : "pageable", bytes);
    std::fflush(file);
}

// The same on a stream.
static Result copy(Address to, bool to_device, Address from, bool from_device, size_t bytes, Stream stream) {
    ON_DEVICE;
    if (bytes == 0) return SUCCESS;
    if ((to_device && !is_inside(to, bytes, "to")) || (from_device && !is_inside(from, bytes, "from"))) return INVALID_VALUE;
    if (!to_device && !is_pinned(host(to))) {
        const Result broken = driver::drain(stream);
        return broken ? broken : copy_now(to, to_device, from, from_device, bytes);
    }
    if (!from_device) note_upload(is_pinned(host(from)), bytes);
    if (!from_device && !is_pinned(host(from))) {
        const auto* start = static_cast<const char*>(host(from));
        auto kept = std::make_shared<std::vector<char>>(start, start + bytes);
        return driver::enqueue(stream, [=] { return copy_now(to, true, uintptr_t(kept->data()), false, bytes); });
    }
    return driver::enqueue(stream, [=] { return copy_now(to, to_device, from, from_device, bytes); });
}

template <class T>
static Result fill_with(Address to, T value, size_t count, Stream stream) {
    ON_DEVICE;
    if (count == 0) return SUCCESS;
    if (!driver::on_device(to, count * sizeof(T))) return INVALID_VALUE;
    return driver::enqueue(stream, [=] {
        if (!driver::on_device(to, count * sizeof(T))) return INVALID_VALUE;
        auto* at = static_cast<T*>(host(to));
        for (size_t i = 0; i < count; ++i) at[i] = value;
        return SUCCESS;
    });
}

API Result cuMemAlloc_v2(Address* address, size_t bytes) {
    ON_DEVICE;
    const Result result = driver::allocate(address, bytes);
    if (result != OUT_OF_MEMORY) return result;
    // Memory may be on its way back.
    if (const Result broken = driver::drain_all()) return broken;
    return driver::allocate(address, bytes);
}
API Result cuMemAllocAsync(Address* address, size_t bytes, Stream) { return cuMemAlloc_v2(address, bytes); }
API Result cuMemAllocFromPoolAsync(Address* address, size_t bytes, void*, Stream) { return cuMemAlloc_v2(address, bytes); }
API Result cuMemAllocManaged(Address* address, size_t bytes, unsigned) { return cuMemAlloc_v2(address, bytes); }
API Result cuMemFree_v2(Address address) {
    ON_DEVICE;
    const Result broken = driver::drain_all();
    return broken ? broken : driver::release(address);
}
API Result cuMemFreeAsync(Address address, Stream stream) {
    ON_DEVICE;
    return driver::enqueue(stream, [=] { return driver::release(address); });
}

API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
    ON_DEVICE;
    *total = driver::total_memory();
    *free = *total - driver::used_memory();
    return SUCCESS;
}

// Memory of the host that a copy uses when its turn comes; other memory has been read, or written, when the call returns.
static std::map<uintptr_t, size_t> pinned;

static bool is_pinned(const void* at) {
    auto after = pinned.upper_bound(uintptr_t(at));
    return after != pinned.begin() && uintptr_t(at) < std::prev(after)->first + std::prev(after)->second;
}

API Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    std::lock_guard<std::recursive_mutex> one_at_a_time(driver::lock());
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory) pinned[uintptr_t(*memory)] = bytes;
    return *memory || bytes == 0 ? SUCCESS : OUT_OF_MEMORY;
}
API Result cuMemAllocHost_v2(void** memory, size_t bytes) { return cuMemHostAlloc(memory, bytes, 0); }
API Result cuMemFreeHost(void* memory) {
    std::lock_guard<std::recursive_mutex> one_at_a_time(driver::lock());
    driver::drain_all();
    pinned.erase(uintptr_t(memory));
    std::free(memory);
    return SUCCESS;
}

// Memory that the program has is pinned where it lies. Parts of it must not be pinned already.
API Result cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
    ON_DEVICE;
    if (!memory || bytes == 0) return INVALID_VALUE;
    const auto after = pinned.lower_bound(uintptr_t(memory));
    if (is_pinned(memory) || (after != pinned.end() && after->first < uintptr_t(memory) + bytes)) return ALREADY_REGISTERED;
    pinned[uintptr_t(memory)] = bytes;
    return SUCCESS;
}
API Result cuMemHostUnregister(void* memory) {
    ON_DEVICE;
    const Result broken = driver::drain_all();
    if (broken) return broken;
    return pinned.erase(uintptr_t(memory)) ? SUCCESS : NOT_REGISTERED;
}

// On the emulated device, pinned memory has the same address as on the host.
API Result cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned flags) {
    ON_DEVICE;
    if (flags || !is_pinned(memory)) return INVALID_VALUE;
    *address = uintptr_t(memory);
    return SUCCESS;
}

API Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream stream) {
    return copy(to, true, uintptr_t(from), false, bytes, stream);
}
API Result cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) { return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr); }
API Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream stream) {
    return copy(uintptr_t(to), false, from, true, bytes, stream);
}
API Result cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) { return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr); }
API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream stream) { return copy(to, true, from, true, bytes, stream); }
API Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }
API Result cuMemcpyPeerAsync(Address to, void*, Address from, void*, size_t bytes, Stream stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
API Result cuMemcpyAsync(Address to, Address from, size_t bytes, Stream stream) {
    return copy(to, driver::on_device(to, bytes), from, driver::on_device(from, bytes), bytes, stream);
}
API Result cuMemcpy(Address to, Address from, size_t bytes) { return cuMemcpyAsync(to, from, bytes, nullptr); }

// CUDA_MEMCPY2D
struct Copy2D {
    size_t from_x, from_y;
    unsigned from_type;
    const void* from_host;
    Address from_device;
    void* from_array;
    size_t from_pitch, to_x, to_y;
    unsigned to_type;
    void* to_host;
    Address to_device;
    void* to_array;
    size_t to_pitch, width, height;
};

API Result cuMemcpy2DAsync_v2(const Copy2D* what, Stream stream) {
    constexpr unsigned HOST = 1, DEVICE = 2;
    for (const unsigned type : {what->from_type, what->to_type})
        if (type != HOST && type != DEVICE) return NOT_SUPPORTED;
    const Address from = what->from_type == HOST ? uintptr_t(what->from_host) : what->from_device;
    const Address to = what->to_type == HOST ? uintptr_t(what->to_host) : what->to_device;
    for (size_t row = 0; row < what->height; ++row) {
        const Result result = copy(to + (what->to_y + row) * what->to_pitch + what->to_x, what->to_type == DEVICE,
                                   from + (what->from_y + row) * what->from_pitch + what->from_x, what->from_type == DEVICE, what->width,
                                   stream);
        if (result) return result;
    }
    return SUCCESS;
}
API Result cuMemcpy2D_v2(const Copy2D* what) { return cuMemcpy2DAsync_v2(what, nullptr); }

API Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) { return fill_with(to, value, count, nullptr); }
API Result cuMemsetD8Async(Address to, unsigned char value, size_t count, Stream stream) { return fill_with(to, value, count, stream); }
API Result cuMemsetD16_v2(Address to, unsigned short value, size_t count) { return fill_with(to, value, count, nullptr); }
API Result cuMemsetD16Async(Address to, unsigned short value, size_t count, Stream stream) { return fill_with(to, value, count, stream); }
API Result cuMemsetD32_v2(Address to, unsigned value, size_t count) { return fill_with(to, value, count, nullptr); }
API Result cuMemsetD32Async(Address to, unsigned value, size_t count, Stream stream) { return fill_with(to, value, count, stream); }

// One pool, which is the device.
static int the_pool;
API Result cuDeviceGetDefaultMemPool(void** pool, int) {
    *pool = &the_pool;
    return SUCCESS;
}
API Result cuDeviceGetMemPool(void** pool, int) { return cuDeviceGetDefaultMemPool(pool, 0); }
API Result cuMemPoolTrimTo(void*, size_t) { return SUCCESS; }
API Result cuMemPoolSetAttribute(void*, int, void*) { return SUCCESS; }
