// Device memory that ends where it ends: `Buffer<T>` lies against a page that nobody may touch.
//
// Reading or writing past the end, or before the start by more than the gap, is caught at once; writing into the gap is
// caught by `check`. A fresh buffer holds 0xff in every byte, not a number in every float format, so what a kernel
// fails to write, or reads without having been given, shows in the result.
#pragma once
#include "fault.hpp"
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace emulator {

struct Range {
    uintptr_t begin, end;  // of the mapping, guard pages included
    const char* name;
    size_t size;
    uintptr_t data;
};

inline std::vector<Range> ranges;

// A fault handler's own stack: a fiber's may be what overflowed.
inline void on_segfault(int, siginfo_t* info, void*) {
    const auto address = uintptr_t(info->si_addr);
    for (const Range& range : ranges)
        if (address >= range.begin && address < range.end)
            fault("out of bounds: byte %ld of buffer %s, which has %zu", long(address) - long(range.data), range.name, range.size);
    fault("segmentation fault at %p, in no buffer", info->si_addr);
}

inline void catch_segfaults() {
    static bool done = false;
    if (done) return;
    done = true;
    stack_t stack{};
    stack.ss_size = 64 << 10;
    stack.ss_sp = std::malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
    struct sigaction action {};
    action.sa_sigaction = on_segfault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
}

template <class T>
class Buffer {
    static constexpr unsigned char POISON = 0xff;
    std::string label;
    unsigned char* mapping;
    size_t mapped, count, gap;
    unsigned char* bytes;

  public:
    Buffer(std::string name, size_t count) : label(std::move(name)), count(count) {
        catch_segfaults();
        const size_t page = size_t(sysconf(_SC_PAGESIZE)), size = count * sizeof(T);
        const size_t room = (size + 15) / 16 * 16, pages = (room + page - 1) / page * page;
        mapped = pages + 2 * page;
        mapping = static_cast<unsigned char*>(mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (mapping == MAP_FAILED || (pages && mprotect(mapping + page, pages, PROT_READ | PROT_WRITE)))
            fault("no memory for buffer %s of %zu bytes", label.c_str(), size);
        gap = pages - room;
        bytes = mapping + page + gap;  // 16-byte aligned; at most 15 bytes lie between the end and the guard page
        std::memset(mapping + page, POISON, pages);
        ranges.push_back({uintptr_t(mapping), uintptr_t(mapping) + mapped, label.c_str(), size, uintptr_t(bytes)});
    }

    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    ~Buffer() {
        check();
        for (size_t i = 0; i < ranges.size(); ++i)
            if (ranges[i].begin == uintptr_t(mapping)) ranges.erase(ranges.begin() + long(i));
        munmap(mapping, mapped);
    }

    // Whether anything was written beside the buffer.
    void check() const {
        const size_t size = count * sizeof(T);
        for (const unsigned char* at = bytes - gap; at < bytes; ++at)
            if (*at != POISON) fault("out of bounds: byte %ld of buffer %s was written", long(at - bytes), label.c_str());
        for (size_t at = size; at < (size + 15) / 16 * 16; ++at)
            if (bytes[at] != POISON) fault("out of bounds: byte %zu of buffer %s, which has %zu, was written", at, label.c_str(), size);
    }

    T* data() { return reinterpret_cast<T*>(bytes); }
    const T* data() const { return reinterpret_cast<const T*>(bytes); }
    size_t size() const { return count; }
    T& operator[](size_t i) { return data()[i]; }
    const T& operator[](size_t i) const { return data()[i]; }
};

}  // namespace emulator
