// Values read and written in a shared array of another type: two bf16 as one word, eight as 16 bytes.
//
// The address is `&array[i]` and a multiple of the value's size. Through a plain pointer the emulator would not see it.
#pragma once
#include "cuda.cuh"

template <class T>
DEVICE T load_shared(const void* at) {
#ifdef __CUDACC__
    return *static_cast<const T*>(at);
#else
    return emulator::load_shared<T>(at);
#endif
}

template <class T>
DEVICE void store_shared(void* at, T value) {
#ifdef __CUDACC__
    *static_cast<T*>(at) = value;
#else
    emulator::store_shared(at, value);
#endif
}
