// Device memory of the size that training has, of which little is used: a mapped file without content, whose pages exist once they
// are touched.
//
// A kernel that computes a place in 32 bits where it needs more lands in another page: what it reads there is zero, and what it
// writes shows as a page that should not exist.
#pragma once
#include "memory.hpp"
#include <sys/stat.h>

namespace emulator {

template <class T>
class Sparse {
    std::string label;
    int file;
    size_t count, mapped;
    unsigned char *mapping, *bytes;

  public:
    Sparse(std::string name, size_t count) : label(std::move(name)), count(count) {
        catch_segfaults();
        const size_t page = size_t(sysconf(_SC_PAGESIZE)), size = (count * sizeof(T) + page - 1) / page * page;
        file = memfd_create("sparse device memory", MFD_CLOEXEC);
        mapped = size + 2 * page;
        mapping = static_cast<unsigned char*>(mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (file < 0 || ftruncate(file, off_t(size)) || mapping == MAP_FAILED ||
            mmap(mapping + page, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
            fault("no room for buffer %s of %zu bytes", label.c_str(), size);
        // It ends where the next page may not be touched; in front of it lie at most a page's bytes.
        bytes = mapping + page + (size - count * sizeof(T)) / 16 * 16;
        ranges.push_back({uintptr_t(mapping), uintptr_t(mapping) + mapped, label.c_str(), count * sizeof(T), uintptr_t(bytes)});
    }

    Sparse(const Sparse&) = delete;
    Sparse& operator=(const Sparse&) = delete;

    ~Sparse() {
        for (size_t i = 0; i < ranges.size(); ++i)
            if (ranges[i].begin == uintptr_t(mapping)) ranges.erase(ranges.begin() + long(i));
        munmap(mapping, mapped);
        close(file);
    }

    // Whether any page exists that holds none of the numbers in one of these ranges [first, last).
    bool touched_outside(const std::vector<std::pair<size_t, size_t>>& expected) const {
        const off_t page = sysconf(_SC_PAGESIZE), gap = off_t(bytes - mapping) - page;
        for (off_t at = 0; (at = lseek(file, at, SEEK_DATA)) >= 0;) {
            const off_t end = lseek(file, at, SEEK_HOLE);
            for (; at < end; at += page) {
                bool is_expected = false;
                for (const auto& [first, last] : expected)
                    is_expected |= at < gap + off_t(last * sizeof(T)) && at + page > gap + off_t(first * sizeof(T));
                if (!is_expected) return true;
            }
        }
        return false;
    }

    T* data() { return reinterpret_cast<T*>(bytes); }
    size_t size() const { return count; }
    T& operator[](size_t i) { return data()[i]; }
};

}  // namespace emulator
