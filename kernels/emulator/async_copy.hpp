// Copies that arrive later: `cp.async` with its groups, and bulk copies that an mbarrier counts.
//
// They arrive as late as they may: a `cp.async` when its group is waited for, a bulk copy when somebody waits for the phase
// and all arrivals are in. Until then the destination may not be read, so a forgotten wait is seen every time.
#pragma once
#include "shared.hpp"
#include <deque>

namespace emulator {

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    size_t wanted, given;  // bytes of the destination, and of them from the source; the rest become zero
};

inline void begin_copy(const Copy& copy, const char* what) {
    check_write(array_at(copy.to, copy.wanted, what), copy.to, copy.wanted, Cell::pending);
}

inline void deliver(const Copy& copy, int writer) {
    std::memset(copy.to, 0, copy.wanted);
    std::memcpy(copy.to, copy.from, copy.given);
    SharedArray& array = array_at(copy.to, copy.wanted, "copy");
    for (size_t cell = (copy.to - array.bytes) / CELL_BYTES, end = cell + copy.wanted / CELL_BYTES; cell < end; ++cell) {
        array.cells[cell].state = Cell::written;
        array.cells[cell].writer = writer;
        array.cells[cell].write_block_epoch = block_epoch;
        array.cells[cell].write_warp_epoch = warp_epoch[current() / LANES];
    }
}

struct CopyQueue {
    std::vector<Copy> open;                // since the last commit
    std::deque<std::vector<Copy>> groups;  // oldest first
};

struct Mbarrier {
    unsigned expected, arrivals;  // still to come in this phase
    long bytes;                   // announced and not delivered
    unsigned phase;
    std::vector<Copy> copies;
};

EMULATOR_STATE std::map<int, CopyQueue> copy_queues;          // by thread
EMULATOR_STATE std::map<const void*, Mbarrier> mbarriers;     // by address
#ifndef EMULATOR_MODULE
inline const bool copies_forgotten_between_blocks = [] {
    on_block_start.push_back([] {
        copy_queues.clear();
        mbarriers.clear();
    });
    return true;
}();
#endif

inline void cp_async(void* to, const void* from, size_t wanted, size_t given) {
    aligned_or_fault(to, wanted, "cp.async to");
    aligned_or_fault(from, wanted, "cp.async from");
    const Copy copy{static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), wanted, given};
    note_access(__builtin_return_address(0), to, wanted);
    begin_copy(copy, "cp.async");
    copy_queues[current()].open.push_back(copy);
}

inline void cp_async_commit() {
    CopyQueue& queue = copy_queues[current()];
    queue.groups.push_back(std::move(queue.open));
    queue.open.clear();
}

inline void cp_async_wait(size_t left) {
    CopyQueue& queue = copy_queues[current()];
    for (; queue.groups.size() > left; queue.groups.pop_front())
        for (const Copy& copy : queue.groups.front()) deliver(copy, current());
}

inline Mbarrier& mbarrier_at(const void* address) {
    const auto found = mbarriers.find(address);
    if (found == mbarriers.end()) fault("mbarrier at %p was not initialised", address);
    return found->second;
}

inline void mbarrier_init(void* address, unsigned expected) {
    aligned_or_fault(address, 8, "mbarrier");
    array_at(address, 8, "mbarrier");
    mbarriers[address] = Mbarrier{expected, expected, 0, 0, {}};
}

inline void mbarrier_arrive(const void* address, long bytes) {
    Mbarrier& barrier = mbarrier_at(address);
    if (barrier.arrivals == 0) fault("mbarrier: more than %u arrivals in one phase", barrier.expected);
    barrier.bytes += bytes;
    --barrier.arrivals;
}

inline void bulk_copy(void* to, const void* from, size_t bytes, const void* mbarrier) {
    aligned_or_fault(to, 16, "bulk copy to");
    aligned_or_fault(from, 16, "bulk copy from");
    if (bytes % 16) fault("bulk copy of %zu bytes: must be a multiple of 16", bytes);
    const Copy copy{static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, bytes};
    begin_copy(copy, "bulk copy");
    mbarrier_at(mbarrier).copies.push_back(copy);
}

// Ends the phase when nothing is missing.
inline void advance(Mbarrier& barrier) {
    if (barrier.arrivals) return;
    for (const Copy& copy : barrier.copies) {
        deliver(copy, NOBODY);
        barrier.bytes -= long(copy.wanted);
    }
    barrier.copies.clear();
    if (barrier.bytes) return;
    barrier.arrivals = barrier.expected;
    ++barrier.phase;
}

// Waits until the phase of this parity is over.
inline void mbarrier_wait(const void* address, unsigned parity) {
    Mbarrier& barrier = mbarrier_at(address);
    auto over = [&barrier, parity] {
        if ((barrier.phase & 1) == parity) advance(barrier);
        return (barrier.phase & 1) != parity;
    };
    wait_until(over, "mbarrier");
}

}  // namespace emulator
