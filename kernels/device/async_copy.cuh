// Copies from global to shared memory that run beside the arithmetic: `cp.async` in groups, bulk copies counted by an
// mbarrier, and barriers for part of a block.
//
// Destinations are given as `&array[i]` of a `SHARED` array.
#pragma once
#include "cuda.cuh"

#ifdef __CUDACC__
DEVICE u32 shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }
#endif

// 16 bytes; both addresses 16-byte aligned. Zeros arrive instead when `exists` is false, and `from` is not read. With `Ahead` of 128, L2
// fetches the 128 bytes that they lie in.
template <int Ahead = 0>
DEVICE void cp_async16(void* to, const void* from, bool exists = true) {
    static_assert(Ahead == 0 || Ahead == 128, "what L2 may fetch");
#ifdef __CUDACC__
    if (Ahead == 128)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0)
                     : "memory");
    else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0) : "memory");
#else
    emulator::cp_async(to, from, 16, exists ? 16 : 0);
#endif
}

DEVICE void cp_async_commit() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulator::cp_async_commit();
#endif
}

// Waits until at most `Left` of this thread's groups are under way. Other threads' copies need a barrier on top.
template <int Left>
DEVICE void cp_async_wait() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#else
    emulator::cp_async_wait(Left);
#endif
}

// One thread initialises; a `__syncthreads` follows before anyone uses it.
DEVICE void mbarrier_init(u64* barrier, u32 arrivals) {
#ifdef __CUDACC__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    emulator::mbarrier_init(barrier, arrivals);
#endif
}

// Arrives, and announces `bytes` that bulk copies of this phase will bring.
DEVICE void mbarrier_arrive(u64* barrier, u32 bytes = 0) {
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
#else
    emulator::mbarrier_arrive(barrier, bytes);
#endif
}

// Waits for the end of the phase of this parity; the first phase is 0.
DEVICE void mbarrier_wait(u64* barrier, u32 parity) {
#ifdef __CUDACC__
    asm volatile(
        "{\n\t.reg .pred over;\n\tAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n\t@!over bra AGAIN;\n\t}" ::"r"(
            shared_address(barrier)),
        "r"(parity)
        : "memory");
#else
    emulator::mbarrier_wait(barrier, parity);
#endif
}

// By one thread; addresses 16-byte aligned, `bytes` a multiple of 16.
DEVICE void bulk_copy(void* to, const void* from, u32 bytes, u64* barrier) {
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
#else
    emulator::bulk_copy(to, from, bytes, barrier);
#endif
}

// A barrier for `threads` threads (whole warps). Numbers 1 to 15; 0 is that of `__syncthreads`.
DEVICE void named_barrier(int number, int threads) {
#ifdef __CUDACC__
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
#else
    emulator::named_barrier(number, threads);
#endif
}
