// The threads of a block as fibers, and everything they wait for: barriers of the block, of a named group, of a warp, and
// exchanges between lanes.
//
// A fiber runs until it waits; the scheduler lets waiting ones go when all they wait for are there. A fiber whose thread has
// ended goes on with the next thread that has not begun, so a kernel that never waits is a plain loop. When nobody can go on,
// the scheduler tells who waits for what. One block runs at a time, so a launch means the same every time; `backwards` turns
// the order of blocks and threads round, and a kernel whose result depends on that has a race.
//
// Stricter than CUDA on purpose: a thread that has ended never counts as arrived.
#pragma once
#include "stacks.hpp"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace emulator {

constexpr int LANES = 32;
constexpr int NAMED_BARRIERS = 16;

enum class Wait : unsigned char { nothing, block, named, warp, exchange, active, condition, ended, unbegun };

struct Fiber {
    Stack stack;  // where the thread waits
    Wait wait;
    const char* at;       // the call that waits
    unsigned mask;        // warp, exchange: lanes that take part
    int barrier, expected;  // named: which, and how many threads
    std::function<bool()> condition;
};

// What a lane hands to the others of its warp.
struct Deposit {
    alignas(16) unsigned char bytes[32];
};

EMULATOR_STATE std::vector<Fiber> fibers;
EMULATOR_STATE std::vector<Deposit> deposited, published;  // per thread
EMULATOR_STATE std::vector<unsigned> warp_epoch;           // per warp: warp barriers passed
EMULATOR_STATE unsigned block_epoch;                       // block barriers passed
EMULATOR_STATE Stack scheduler;
EMULATOR_STATE std::function<void()> body;
EMULATOR_STATE bool backwards;
EMULATOR_STATE int begun;                  // threads of this block that have begun
EMULATOR_STATE int free_stack;             // the first that no thread of this block has had

// Filled by the parts that watch memory: called when a block starts, and when a barrier opens or a block ends.
EMULATOR_STATE std::vector<std::function<void()>> on_block_start, on_barrier;

inline int current() { return int(thread_index); }
inline int current_lane() { return current() % LANES; }

inline void run_as(int thread) {
    thread_index = unsigned(thread);
    if (unsigned(thread) < blockDim.x) threadIdx = {unsigned(thread), 0, 0};
    else threadIdx = {thread_index % blockDim.x, thread_index / blockDim.x % blockDim.y, thread_index / (blockDim.x * blockDim.y)};
}

inline void wait_for(Wait wait) {
    Fiber& self = fibers[current()];
    self.wait = wait;
    switch_stack(self.stack, scheduler);
}

// The order in which threads begin.
inline int thread_at(int place) { return backwards ? int(fibers.size()) - 1 - place : place; }

// What a fiber does: one thread after the other, for as long as none of them waits.
inline void run_threads() {
    for (;;) {
        body();
        Fiber& self = fibers[current()];
        self.wait = Wait::ended;
        if (begun == int(fibers.size())) {
            switch_stack(self.stack, scheduler);  // not to come back
            continue;
        }
        const int next = thread_at(begun++);
        fibers[next].wait = Wait::nothing;
        run_as(next);
    }
}

inline void block_barrier() {
    fibers[current()].at = "__syncthreads";
    wait_for(Wait::block);
}

inline void named_barrier(int barrier, int threads) {
    Fiber& self = fibers[current()];
    if (barrier < 0 || barrier >= NAMED_BARRIERS) fault("named barrier %d: there are 16", barrier);
    if (threads % LANES) fault("named barrier %d for %d threads: not whole warps", barrier, threads);
    self.at = "named barrier";
    self.barrier = barrier;
    self.expected = threads;
    wait_for(Wait::named);
}

inline void meet(Wait wait, unsigned mask, const char* at) {
    Fiber& self = fibers[current()];
    if (!(mask >> current_lane() & 1)) fault("%s: lane %d is not in its own mask %#x", at, current_lane(), mask);
    self.mask = mask;
    self.at = at;
    wait_for(wait);
}

inline void warp_barrier(unsigned mask) { meet(Wait::warp, mask, "__syncwarp"); }

// The lanes of the warp that come to the same place of the program (`line`) before the warp can do nothing else.
inline unsigned active_mask(int line) {
    Fiber& self = fibers[current()];
    self.at = "__activemask";
    self.barrier = line;
    wait_for(Wait::active);
    return self.mask;
}

// Goes on when `condition` holds. Waiting is all it does, so a condition that never comes true is a deadlock.
inline void wait_until(std::function<bool()> condition, const char* at) {
    Fiber& self = fibers[current()];
    if (condition()) return;
    self.condition = std::move(condition);
    self.at = at;
    wait_for(Wait::condition);
}

// Hands `mine` to the lanes of `mask` once all of them have come to a call of the same name.
template <class T>
void exchange(const T& mine, unsigned mask, const char* at) {
    static_assert(sizeof(T) <= sizeof(Deposit));
    std::memcpy(deposited[current()].bytes, &mine, sizeof(T));
    meet(Wait::exchange, mask, at);
}

// What a lane of this warp handed over in the exchange just made.
template <class T>
T received(int lane) {
    T theirs;
    std::memcpy(&theirs, published[current() / LANES * LANES + lane].bytes, sizeof(T));
    return theirs;
}

// Lets the lanes of one warp go that have all come to the same place. True when some could.
inline bool release_warp(int warp) {
    const int first = warp * LANES, last = std::min<int>(first + LANES, int(fibers.size()));
    bool released = false;
    for (int leader = first; leader < last; ++leader) {
        const Fiber& one = fibers[leader];
        const Wait wait = one.wait;
        const unsigned mask = one.mask;
        if (wait != Wait::warp && wait != Wait::exchange) continue;
        bool complete = true;
        for (int lane = 0; lane < LANES; ++lane) {
            if (!(mask >> lane & 1)) continue;
            const bool exists = first + lane < last;
            const Fiber& other = fibers[exists ? first + lane : first];
            complete &= exists && other.wait == wait && other.mask == mask && other.at == one.at;
        }
        if (!complete) continue;
        if (wait == Wait::warp && mask == ~0u) ++warp_epoch[warp];
        for (int lane = 0; lane < LANES; ++lane)
            if (mask >> lane & 1) {
                published[first + lane] = deposited[first + lane];
                fibers[first + lane].wait = Wait::nothing;
            }
        released = true;
    }
    return released;
}

// Tells the lanes of a warp that ask who is active, once no lane of it can do anything else.
inline bool release_active(int warp) {
    const int first = warp * LANES, last = std::min<int>(first + LANES, int(fibers.size()));
    for (int leader = first; leader < last; ++leader) {
        if (fibers[leader].wait != Wait::active) continue;
        unsigned mask = 0;
        for (int other = first; other < last; ++other)
            if (fibers[other].wait == Wait::active && fibers[other].barrier == fibers[leader].barrier) mask |= 1u << (other - first);
        for (int other = first; other < last; ++other)
            if (mask >> (other - first) & 1) {
                fibers[other].mask = mask;
                fibers[other].wait = Wait::nothing;
            }
        return true;
    }
    return false;
}

inline bool release_block() {
    for (const Fiber& fiber : fibers)
        if (fiber.wait != Wait::block) return false;
    for (Fiber& fiber : fibers) fiber.wait = Wait::nothing;
    return true;
}

inline bool release_named(int barrier) {
    int arrived = 0, expected = 0;
    for (const Fiber& fiber : fibers)
        if (fiber.wait == Wait::named && fiber.barrier == barrier) {
            if (expected && fiber.expected != expected)
                fault("named barrier %d: some wait for %d threads, some for %d", barrier, expected, fiber.expected);
            ++arrived;
            expected = fiber.expected;
        }
    if (arrived == 0 || arrived < expected) return false;
    for (Fiber& fiber : fibers)
        if (fiber.wait == Wait::named && fiber.barrier == barrier) fiber.wait = Wait::nothing;
    return true;
}

inline bool release_conditions() {
    bool released = false;
    for (Fiber& fiber : fibers)
        if (fiber.wait == Wait::condition && fiber.condition()) {
            fiber.wait = Wait::nothing;
            released = true;
        }
    return released;
}

[[noreturn]] inline void deadlock() {
    std::string who;
    int told = 0;
    for (size_t first = 0; first < fibers.size() && told < 6; ++told) {
        size_t last = first;
        auto same = [&](const Fiber& a, const Fiber& b) { return a.wait == b.wait && (a.wait == Wait::ended || a.at == b.at); };
        while (last + 1 < fibers.size() && same(fibers[first], fibers[last + 1])) ++last;
        const bool over = fibers[first].wait == Wait::ended;
        who += "\n    threads " + std::to_string(first) + ".." + std::to_string(last) + ": " +
               (over ? "ended" : std::string("wait at ") + fibers[first].at);
        first = last + 1;
    }
    fault("deadlock:%s", who.c_str());
}

// Lets go who may. True when somebody can; `opened` when a barrier did. `waits` has a bit for each kind somebody waits for.
inline bool release(unsigned waits, bool& opened) {
    const auto waited = [waits](Wait wait) { return (waits >> int(wait) & 1) != 0; };
    const int warps = (int(fibers.size()) + LANES - 1) / LANES;
    bool released = false;
    for (int warp = 0; warp < warps; ++warp) {
        bool here = (waited(Wait::warp) || waited(Wait::exchange)) && release_warp(warp);
        if (!here && waited(Wait::active)) here = release_active(warp);
        released |= here;
    }
    for (int named = 0; waited(Wait::named) && named < NAMED_BARRIERS; ++named) opened |= release_named(named);
    if (waited(Wait::block)) opened |= release_block();
    if (waited(Wait::condition)) opened |= release_conditions();
    return released || opened;
}

inline void run_block() {
    const int threads = int(fibers.size());
    warp_epoch.assign((threads + LANES - 1) / LANES, 0);
    block_epoch = 0;
    begun = free_stack = 0;
    for (Fiber& fiber : fibers) {
        fiber.wait = Wait::unbegun;
        fiber.at = "";
    }
    for (auto& call : on_block_start) call();
    in_kernel = true;
    while (begun < threads) {
        const int thread = thread_at(begun++);
        fibers[thread].wait = Wait::nothing;
        run_as(thread);
        switch_stack(scheduler, new_stack(free_stack++, run_threads));
    }
    in_kernel = false;
    for (;;) {
        unsigned waits = 0;
        for (const Fiber& fiber : fibers) waits |= 1u << int(fiber.wait);
        if (waits == 1u << int(Wait::ended)) break;
        bool opened = false;
        if (!release(waits, opened)) deadlock();
        if (opened) {
            ++block_epoch;
            for (auto& call : on_barrier) call();
        }
        in_kernel = true;
        for (int place = 0; place < threads; ++place) {
            const int thread = thread_at(place);
            if (fibers[thread].wait != Wait::nothing) continue;
            run_as(thread);
            switch_stack(scheduler, fibers[thread].stack);
        }
        in_kernel = false;
    }
    for (auto& call : on_barrier) call();
}

// The blocks that a launch runs, counted with x fastest; all if there are none.
EMULATOR_STATE std::vector<uint64_t> only_blocks;

// Runs `call` as every thread of every block, one block after the other.
inline void launch(const char* name, dim3 blocks, dim3 threads, std::function<void()> call) {
    kernel_name = name;
    const unsigned threads_of_block = threads.x * threads.y * threads.z;
    if (threads_of_block == 0 || threads_of_block > MOST_THREADS)
        fault("a block of %u threads: 1 to %u are possible", threads_of_block, MOST_THREADS);
    body = std::move(call);
    gridDim = blocks;
    blockDim = threads;
    fibers.resize(threads_of_block);
    deposited.resize((threads_of_block + LANES - 1) / LANES * LANES);
    published.resize(deposited.size());
    const uint64_t all = uint64_t(blocks.x) * blocks.y * blocks.z, count = only_blocks.empty() ? all : only_blocks.size();
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t place = backwards ? count - 1 - i : i, index = only_blocks.empty() ? place : only_blocks[place];
        if (index >= all) fault("there is no block %llu of %llu", (unsigned long long)index, (unsigned long long)all);
        blockIdx = {unsigned(index % blocks.x), unsigned(index / blocks.x % blocks.y), unsigned(index / blocks.x / blocks.y)};
        run_block();
    }
    kernel_name = nullptr;
}

}  // namespace emulator
