// Stacks for fibers, and going from one to another: a page that nobody may touch lies below each.
//
// On x86-64 a switch is a dozen instructions; `swapcontext`, which the others use, asks the kernel about signals each time.
#pragma once
#include "fault.hpp"
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulator {

constexpr unsigned MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 64 << 10, GUARD_BYTES = 4 << 10;

// The memory of `MOST_THREADS` stacks; pages cost nothing until they are used.
inline char* allocate_stacks() {
    void* memory = mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fault("no memory for the stacks of %u threads", MOST_THREADS);
    // A page larger than the guard cannot be protected in part; then there is no guard.
    for (unsigned i = 0; i < MOST_THREADS; ++i) mprotect(static_cast<char*>(memory) + i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
    return static_cast<char*>(memory);
}

EMULATOR_STATE char* stack_memory;

inline char* stack_at(int index) {
    if (!stack_memory) stack_memory = allocate_stacks();
    return stack_memory + size_t(index) * STACK_BYTES;
}

#ifdef __x86_64__

// Where a stack that waits has its registers.
using Stack = void*;

// Leaves the running stack as `from` and goes on where `to` waits.
__attribute__((naked, noinline)) inline void switch_stack(Stack& /*from*/, Stack /*to*/) {
    asm("pushq %rbp\n\t"
        "pushq %rbx\n\t"
        "pushq %r12\n\t"
        "pushq %r13\n\t"
        "pushq %r14\n\t"
        "pushq %r15\n\t"
        "movq %rsp, (%rdi)\n\t"
        "movq %rsi, %rsp\n\t"
        "popq %r15\n\t"
        "popq %r14\n\t"
        "popq %r13\n\t"
        "popq %r12\n\t"
        "popq %rbx\n\t"
        "popq %rbp\n\t"
        "ret");
}

// A stack that waits at the start of `run`, which must not return.
inline Stack new_stack(int index, void (*run)()) {
    auto** top = reinterpret_cast<void**>(stack_at(index) + STACK_BYTES);
    *--top = nullptr;  // so that `run` starts aligned as after a call
    *--top = nullptr;
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(run);
    for (int registers = 0; registers < 6; ++registers) *--top = nullptr;
    return top;
}

#else

struct Stack {
    ucontext_t context;
};

inline void switch_stack(Stack& from, Stack& to) { swapcontext(&from.context, &to.context); }

inline Stack& new_stack(int index, void (*run)()) {
    static Stack stack;
    getcontext(&stack.context);
    stack.context.uc_stack.ss_sp = stack_at(index) + GUARD_BYTES;
    stack.context.uc_stack.ss_size = STACK_BYTES - GUARD_BYTES;
    stack.context.uc_link = nullptr;
    makecontext(&stack.context, run, 0);
    return stack;
}

#endif

}  // namespace emulator
