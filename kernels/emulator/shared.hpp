// Shared memory that knows what was done to it.
//
// `Shared<T>` is what `SHARED` declares. Every access by index, and every one that the operations of `device/` make by
// address, is held against a shadow of the array, two bytes a cell:
//   - an index outside the array, an address outside every array;
//   - reading what no thread of this block has written, or what `cp.async` has not yet delivered;
//   - a race: two threads touch a cell, one of them writing, with no barrier between. `__syncthreads` orders the block,
//     `__syncwarp` a warp; a barrier of part of the block and an mbarrier are taken as if they ordered the whole block, so
//     races around those can be missed, never invented;
//   - more than a block may have.
// Bank conflicts are counted, not refused: accesses of the lanes of a warp from the same place in the code are laid side by
// side (the n-th execution by each lane between two barriers) and the extra passes over the 32 banks are added up.
#pragma once
#include "fibers.hpp"
#include <algorithm>
#include <map>
#include <tuple>

namespace emulator {

constexpr size_t SHARED_LIMIT = 101376;  // bytes a block may have on GB10
constexpr int BANKS = 32, CELL_BYTES = 2, NOBODY = -1, SEVERAL = -2;

struct Cell {
    enum State : unsigned char { unwritten, pending, written } state = unwritten;
    int writer = NOBODY, reader = NOBODY, reading_warp = NOBODY;
    unsigned write_block_epoch = 0, write_warp_epoch = 0, read_block_epoch = 0, read_warp_epoch = 0;
};

struct SharedArray {
    const char* name;
    unsigned char* bytes;
    size_t size;
    const char* used_by = nullptr;  // the kernel that declared it last
    bool is_dynamic = false;
    std::vector<Cell> cells;
};

struct Access {
    const void* place;  // in the code
    int thread;
    uintptr_t address;
    int width, execution;  // the n-th of this thread at this place since the last barrier
};

EMULATOR_STATE std::vector<SharedArray*> shared_arrays;
EMULATOR_STATE std::vector<Access> accesses;
EMULATOR_STATE long bank_conflicts;  // passes over the banks more than needed; the reader sets it to 0
EMULATOR_STATE bool ignore_conflicts;
// Bytes that the arrays of a kernel may take: by its compiler, on the device beside dynamic memory, and of dynamic memory, which its
// launch has asked for. 0 where no driver has launched it: as many as a block may have.
EMULATOR_STATE size_t allowed_static, allowed_shared, asked_dynamic;

// Adds the passes that lanes accessing `width` bytes each need beyond the fewest possible; 16-byte accesses go by eight lanes, 8-byte by sixteen.
inline void count_passes(const Access* begin, const Access* end) {
    const int width = begin->width, lanes_at_once = width > 8 ? 8 : width > 4 ? 16 : 32;
    static std::vector<uintptr_t> words;
    for (int first = 0; first < LANES; first += lanes_at_once) {
        words.clear();
        for (const Access* access = begin; access != end; ++access) {
            if (access->thread % LANES / lanes_at_once * lanes_at_once != first) continue;
            for (uintptr_t word = access->address / 4; word <= (access->address + access->width - 1) / 4; ++word) words.push_back(word);
        }
        if (words.empty()) continue;
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        int in_bank[BANKS] = {};
        for (const uintptr_t word : words) ++in_bank[word % BANKS];
        bank_conflicts += *std::max_element(in_bank, in_bank + BANKS) - long((words.size() + BANKS - 1) / BANKS);
    }
}

inline void count_bank_conflicts() {
    const auto sorted = [](auto key) {
        std::stable_sort(accesses.begin(), accesses.end(), [key](const Access& a, const Access& b) { return key(a) < key(b); });
    };
    sorted([](const Access& access) { return std::tuple(access.place, access.thread); });
    for (size_t i = 1; i < accesses.size(); ++i)
        if (accesses[i].place == accesses[i - 1].place && accesses[i].thread == accesses[i - 1].thread)
            accesses[i].execution = accesses[i - 1].execution + 1;
    const auto together = [](const Access& access) { return std::tuple(access.place, access.thread / LANES, access.execution); };
    sorted(together);
    for (size_t first = 0, last; first < accesses.size(); first = last) {
        for (last = first; last < accesses.size() && together(accesses[last]) == together(accesses[first]);) ++last;
        count_passes(&accesses[first], accesses.data() + last);
    }
    accesses.clear();
}

inline void forget_shared() {
    for (SharedArray* array : shared_arrays) {
        if (!array->used_by) continue;
        std::memset(array->bytes, 0xff, array->size);  // not a number in every float format
        std::fill(array->cells.begin(), array->cells.end(), Cell{});
        array->used_by = nullptr;
    }
}

inline void aligned_or_fault(const void* address, size_t bytes, const char* what) {
    if (uintptr_t(address) % bytes) fault("misaligned: %s of %zu bytes at %p", what, bytes, address);
}

inline SharedArray& array_at(const void* address, size_t width, const char* what) {
    const auto* at = static_cast<const unsigned char*>(address);
    for (SharedArray* array : shared_arrays)
        if (array->used_by && at >= array->bytes && at + width <= array->bytes + array->size) return *array;
    fault("%s: %zu bytes outside every shared array", what, width);
}

inline bool ordered(int other, unsigned other_block_epoch, unsigned other_warp_epoch) {
    if (other == NOBODY || other == current() || other_block_epoch != block_epoch) return true;
    const int warp = current() / LANES;
    return other / LANES == warp && other_warp_epoch != warp_epoch[warp];
}

inline void check_read(SharedArray& array, const void* address, size_t width) {
    const size_t first = static_cast<const unsigned char*>(address) - array.bytes;
    const int warp = current() / LANES;
    for (size_t cell = first / CELL_BYTES; cell * CELL_BYTES < first + width; ++cell) {
        Cell& c = array.cells[cell];
        if (c.state == Cell::pending) fault("%s: byte %zu read before its cp.async was waited for", array.name, cell * CELL_BYTES);
        if (c.state == Cell::unwritten) fault("%s: byte %zu read before it was written", array.name, cell * CELL_BYTES);
        if (!ordered(c.writer, c.write_block_epoch, c.write_warp_epoch))
            fault("race: %s: byte %zu written by thread %d and read with no barrier between", array.name, cell * CELL_BYTES, c.writer);
        const bool first_reader = c.reader == NOBODY || c.read_block_epoch != block_epoch;
        c.reading_warp = first_reader || c.reading_warp == warp ? warp : SEVERAL;
        c.reader = first_reader || c.reader == current() || (c.reading_warp == warp && c.read_warp_epoch != warp_epoch[warp])
                       ? current() : SEVERAL;
        c.read_block_epoch = block_epoch;
        c.read_warp_epoch = warp_epoch[warp];
    }
}

inline bool reads_ordered(const Cell& c) {
    if (c.reader == NOBODY || c.reader == current() || c.read_block_epoch != block_epoch) return true;
    const int warp = current() / LANES;
    return c.reading_warp == warp && c.read_warp_epoch != warp_epoch[warp];
}

inline void check_write(SharedArray& array, const void* address, size_t width, Cell::State state = Cell::written) {
    const size_t first = static_cast<const unsigned char*>(address) - array.bytes;
    for (size_t cell = first / CELL_BYTES; cell * CELL_BYTES < first + width; ++cell) {
        Cell& c = array.cells[cell];
        if (!ordered(c.writer, c.write_block_epoch, c.write_warp_epoch))
            fault("race: %s: byte %zu written by thread %d and again with no barrier between", array.name, cell * CELL_BYTES, c.writer);
        if (!reads_ordered(c))
            fault("race: %s: byte %zu read by another thread and written with no barrier between", array.name, cell * CELL_BYTES);
        c.state = state;
        c.writer = current();
        c.write_block_epoch = block_epoch;
        c.write_warp_epoch = warp_epoch[current() / LANES];
    }
}

inline void note_access(const void* place, const void* address, size_t width) {
    if (!ignore_conflicts) accesses.push_back({place, current(), uintptr_t(address), int(width), 0});
}

// A value at an address inside an array of another type.
template <class T>
__attribute__((noinline)) T load_shared(const void* at) {
    aligned_or_fault(at, sizeof(T), "load from shared memory");
    note_access(__builtin_return_address(0), at, sizeof(T));
    check_read(array_at(at, sizeof(T), "load from shared memory"), at, sizeof(T));
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
}

template <class T>
__attribute__((noinline)) void store_shared(void* at, const T& value) {
    aligned_or_fault(at, sizeof(T), "store to shared memory");
    note_access(__builtin_return_address(0), at, sizeof(T));
    check_write(array_at(at, sizeof(T), "store to shared memory"), at, sizeof(T));
    std::memcpy(at, &value, sizeof(T));
}

// Notes, when a program or module is loaded, how much dynamic shared memory its kernels use: the emulated NVRTC tells it.
inline size_t most_dynamic_shared;
template <size_t BYTES>
struct DynamicShared {
    static const size_t bytes;
};
template <size_t BYTES>
const size_t DynamicShared<BYTES>::bytes = (most_dynamic_shared = BYTES > most_dynamic_shared ? BYTES : most_dynamic_shared, BYTES);

template <class T>
class Shared {
    // Never destroyed: when a process ends, another thread may still run a kernel.
    SharedArray& array = *new SharedArray{};

  public:
    // One element on its way: reading converts, assigning writes.
    class Element {
        Shared* owner;
        T* at;

      public:
        Element(Shared* owner, T* at) : owner(owner), at(at) {}
        __attribute__((noinline)) operator T() const {
            note_access(__builtin_return_address(0), at, sizeof(T));
            check_read(owner->array, at, sizeof(T));
            return *at;
        }
        __attribute__((noinline)) Element& operator=(const T& value) {
            note_access(__builtin_return_address(0), at, sizeof(T));
            check_write(owner->array, at, sizeof(T));
            *at = value;
            return *this;
        }
        Element& operator=(const Element& other) { return *this = T(other); }
        T* operator&() const { return at; }
    };

    Shared(const char* name, size_t count) {
        const size_t size = (count * sizeof(T) + CELL_BYTES - 1) / CELL_BYTES * CELL_BYTES;
        array.name = name;
        array.size = size;
        array.bytes = static_cast<unsigned char*>(std::aligned_alloc(128, (size + 127) / 128 * 128));
        array.cells.resize(size / CELL_BYTES);
        std::memset(array.bytes, 0xff, size);
        shared_arrays.push_back(&array);
    }

    void declare() {
        if (array.used_by == kernel_name) return;
        array.used_by = kernel_name;
        size_t total = 0, fixed = 0;
        for (const SharedArray* other : shared_arrays) {
            if (other->used_by != kernel_name) continue;
            total += other->size;
            if (!other->is_dynamic) fixed += other->size;
        }
        // What a driver launches has asked for its dynamic memory already.
        const size_t taken = allowed_shared ? fixed : total, all = allowed_shared ? allowed_shared : SHARED_LIMIT;
        if (taken > all) fault("%zu bytes of shared memory: a block may have %zu", taken, all);
        if (allowed_static && fixed > allowed_static)
            fault("NVRTC refuses it: uses too much shared data (%#zx bytes, %#zx max)", fixed, allowed_static);
    }

    // An array in the memory that the launch asks for, which it ends at byte `end` of.
    void declare_dynamic(size_t end) {
        array.is_dynamic = true;
        if (allowed_shared && end > asked_dynamic)
            fault("%s ends at byte %zu of dynamic shared memory: the launch has asked for %zu", array.name, end, asked_dynamic);
        declare();
    }

    Element operator[](long index) {
        if (index < 0 || size_t(index) >= array.size / sizeof(T))
            fault("%s[%ld] is outside the array of %zu", array.name, index, array.size / sizeof(T));
        return Element(this, reinterpret_cast<T*>(array.bytes) + index);
    }
};

// Installs the hooks; part of every program that includes this.
#ifndef EMULATOR_MODULE
inline const bool watching = [] {
    on_block_start.push_back(forget_shared);
    on_barrier.push_back(count_bank_conflicts);
    return true;
}();
#endif

}  // namespace emulator
