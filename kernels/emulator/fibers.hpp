// The threads of a block as fibers, and everything they wait for: barriers of the block, of a named group, of a warp, and
// exchanges between lanes.
//
// A fiber runs until it waits or ends; the scheduler lets waiting ones go when all they wait for are there. When nobody can
// go on, it tells who waits for what. One block runs at a time, so a launch means the same every time; `backwards`
// turns the order of blocks and threads round, and a kernel whose result depends on that has a race.
//
// Stricter than CUDA on purpose: a thread that has ended never counts as arrived.
#pragma once
#include "fault.hpp"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <ucontext.h>
#include <vector>

namespace emulator {

constexpr int LANES = 32;
constexpr size_t STACK_BYTES = 64 << 10;
constexpr int NAMED_BARRIERS = 16;

enum class Wait { nothing, block, named, warp, exchange, condition, ended };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
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

inline std::vector<Fiber> fibers;
inline std::vector<Deposit> deposited, published;  // per thread
inline std::vector<unsigned> warp_epoch;           // per warp: warp barriers passed
inline unsigned block_epoch;                       // block barriers passed
inline ucontext_t scheduler;
inline std::function<void()> body;
inline bool backwards = false;

// Filled by the parts that watch memory: called when a block starts, and when a barrier opens or a block ends.
inline std::vector<std::function<void()>> on_block_start, on_barrier;

inline int current() { return int(threadIdx.x); }
inline int current_lane() { return current() % LANES; }

inline void wait_for(Wait wait) {
    Fiber& self = fibers[current()];
    self.wait = wait;
    swapcontext(&self.context, &scheduler);
}

inline void enter() {
    body();
    wait_for(Wait::ended);
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

inline void run_block() {
    const int threads = int(fibers.size()), warps = (threads + LANES - 1) / LANES;
    warp_epoch.assign(warps, 0);
    block_epoch = 0;
    for (Fiber& fiber : fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        fiber.wait = Wait::nothing;
        fiber.at = "";
        makecontext(&fiber.context, enter, 0);
    }
    for (auto& call : on_block_start) call();
    for (;;) {
        bool ended = true;
        for (int i = 0; i < threads; ++i) {
            const int thread = backwards ? threads - 1 - i : i;
            if (fibers[thread].wait == Wait::nothing) {
                threadIdx = {unsigned(thread), 0, 0};
                in_kernel = true;
                swapcontext(&scheduler, &fibers[thread].context);
                in_kernel = false;
            }
            ended &= fibers[thread].wait == Wait::ended;
        }
        if (ended) break;
        bool released = false, barrier = false;
        for (int warp = 0; warp < warps; ++warp) released |= release_warp(warp);
        for (int named = 0; named < NAMED_BARRIERS; ++named) barrier |= release_named(named);
        barrier |= release_block();
        barrier |= release_conditions();
        if (!released && !barrier) deadlock();
        if (!barrier) continue;
        ++block_epoch;
        for (auto& call : on_barrier) call();
    }
    for (auto& call : on_barrier) call();
}

// Runs `call` as every thread of every block, one block after the other.
inline void launch(const char* name, dim3 blocks, unsigned threads, std::function<void()> call) {
    kernel_name = name;
    if (threads == 0 || threads > 1024) fault("a block of %u threads: 1 to 1024 are possible", threads);
    body = std::move(call);
    gridDim = blocks;
    blockDim = dim3(threads);
    fibers.resize(threads);
    for (Fiber& fiber : fibers) fiber.stack.resize(STACK_BYTES);
    deposited.resize((threads + LANES - 1) / LANES * LANES);
    published.resize(deposited.size());
    const unsigned count = blocks.x * blocks.y * blocks.z;
    for (unsigned i = 0; i < count; ++i) {
        const unsigned index = backwards ? count - 1 - i : i;
        blockIdx = {index % blocks.x, index / blocks.x % blocks.y, index / blocks.x / blocks.y};
        run_block();
    }
    kernel_name = "";
}

}  // namespace emulator
