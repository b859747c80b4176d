// Shared memory that knows what was done to it.
//
// `Shared<T, N>` is what `SHARED` declares. Every access by index, and every one that the tensor-core operations make
// by address, is held against a shadow of the array, two bytes a cell:
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
#include <set>

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
    std::vector<Cell> cells;
};

struct Access {
    const void* place;  // in the code
    int thread;
    uintptr_t address;
    int width;
};

inline std::vector<SharedArray*> shared_arrays;
inline std::vector<Access> accesses;
inline long bank_conflicts, shared_wavefronts;  // since `reset_counts`

inline void reset_counts() { bank_conflicts = shared_wavefronts = 0; }

// Passes over the banks that lanes accessing `width` bytes each need; 16-byte accesses go by eight lanes, 8-byte by sixteen.
inline void count_wavefronts(const std::vector<Access>& together) {
    const int width = together[0].width, lanes_at_once = width > 8 ? 8 : width > 4 ? 16 : 32;
    for (int first = 0; first < LANES; first += lanes_at_once) {
        std::map<int, std::set<uintptr_t>> words_of_bank;
        std::set<uintptr_t> words;
        for (const Access& access : together) {
            if (access.thread % LANES / lanes_at_once * lanes_at_once != first) continue;
            for (uintptr_t word = access.address / 4; word <= (access.address + access.width - 1) / 4; ++word) {
                words_of_bank[int(word % BANKS)].insert(word);
                words.insert(word);
            }
        }
        if (words.empty()) continue;
        size_t passes = 0;
        for (const auto& [bank, in_bank] : words_of_bank) passes = std::max(passes, in_bank.size());
        shared_wavefronts += long(passes);
        bank_conflicts += long(passes - (words.size() + BANKS - 1) / BANKS);
    }
}

inline void count_bank_conflicts() {
    std::map<std::pair<const void*, int>, int> executions;                             // (place, thread) → so far
    std::map<std::tuple<const void*, int, int>, std::vector<Access>> groups;           // (place, warp, execution)
    for (const Access& access : accesses) {
        const int execution = executions[{access.place, access.thread}]++;
        groups[{access.place, access.thread / LANES, execution}].push_back(access);
    }
    for (const auto& [key, together] : groups) count_wavefronts(together);
    accesses.clear();
}

inline void forget_shared() {
    for (SharedArray* array : shared_arrays) {
        std::memset(array->bytes, 0xff, array->size);  // not a number in every float format
        std::fill(array->cells.begin(), array->cells.end(), Cell{});
        array->used_by = nullptr;
    }
}

inline SharedArray& array_at(const void* address, size_t width, const char* what) {
    const auto* at = static_cast<const unsigned char*>(address);
    for (SharedArray* array : shared_arrays)
        if (at >= array->bytes && at + width <= array->bytes + array->size) return *array;
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
    accesses.push_back({place, current(), uintptr_t(address), int(width)});
}

template <class T>
class Shared {
    SharedArray array;

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
        Element& operator+=(const T& value) { return *this = T(*this) + value; }
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
        size_t total = 0;
        for (const SharedArray* other : shared_arrays) total += other->used_by == kernel_name ? other->size : 0;
        if (total > SHARED_LIMIT) fault("%zu bytes of shared memory: a block may have %zu", total, SHARED_LIMIT);
    }

    Element operator[](long index) {
        if (index < 0 || size_t(index) >= array.size / sizeof(T))
            fault("%s[%ld] is outside the array of %zu", array.name, index, array.size / sizeof(T));
        return Element(this, reinterpret_cast<T*>(array.bytes) + index);
    }
};

// Installs the hooks; part of every program that includes this.
inline const bool watching = [] {
    on_block_start.push_back(forget_shared);
    on_barrier.push_back(count_bank_conflicts);
    return true;
}();

}  // namespace emulator
