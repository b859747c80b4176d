// Memory of the host that a kernel reads where it lies: pages of a mapped file become a tensor without a copy on the host.
//
// A device may do that whose driver says so (CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS): a GB10 reads the page tables of the host.
//
// Launch: 256 threads, ceil(count / 1024) blocks. `from` is 16-byte aligned; `count` is a multiple of 4.
#pragma once
#include "../device/cuda.cuh"

struct UploadSizes {
    u64 from;   // an address of the host
    u64 count;  // words of 32 bits
};

KERNEL(256) read_in_place(u32* __restrict__ to, const UploadSizes sizes) {
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
    if (at >= sizes.count) return;
    const u32* const from = reinterpret_cast<const u32*>(sizes.from);
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
}
