// Dropout on the emulator against a SplitMix64 sequence written out one number after the other.
#include "dropout.cuh"
#include "../emulator/check.hpp"

using namespace check;

static Numbers factors(u64 state, size_t count, double rate) {
    Numbers all;
    for (size_t i = 0; i < count; ++i) {
        u64 z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        const double random = double((z ^ (z >> 31)) >> 32) * 0x1p-32;
        all.push_back(random < rate ? 0.0 : 1.0 / (1.0 - rate));
    }
    return all;
}

static void run(unsigned rows, unsigned width, double rate, u32 masks) {
    const size_t count = size_t(rows) * width;
    const unsigned blocks = unsigned((count + 2047) / 2048);
    Case c("dropout", std::to_string(rows) + " x " + std::to_string(width) + ", " + std::to_string(masks) + " masks");
    Buffer<bf16>* x[4];
    for (u32 i = 0; i < 4; ++i) x[i] = i < masks ? &c.random<bf16>("x", count, 1 + i) : x[0];
    auto& out = c.result<bf16>("out", count);
    auto& total = c.state<bf16>("total", Case::some<bf16>(count, 9));
    const Numbers before = numbers(total);
    const DropoutSizes sizes{count, {7, 1ull << 63, 0x9e3779b97f4a7c15u, 12345}, masks, u32(rate * 0x1p32), float(1.0 / (1.0 - rate))};
    c.run([&] {
        LAUNCH(dropout, blocks, 256, x[0]->data(), out.data(), sizes);
        LAUNCH(dropout_add, blocks, 256, x[0]->data(), x[1]->data(), x[2]->data(), x[3]->data(), total.data(), sizes);
    });

    Numbers dropped, sum = before;
    for (u32 mask = 0; mask < masks; ++mask) {
        const Numbers f = factors(sizes.key[mask], count, rate), from = numbers(*x[mask]);
        for (size_t i = 0; i < count; ++i) sum[i] += from[i] * f[i];
        if (mask == 0)
            for (size_t i = 0; i < count; ++i) dropped.push_back(from[i] * f[i]);
    }
    c.expect("out", out, dropped);
    c.expect("total", total, sum);
}

int main() {
    for (unsigned rows : {1, 63, 130})
        for (unsigned width : {7, 64, 70, 192})
            for (double rate : {0.05, 0.5}) run(rows, width, rate, 1 + (rows + width) % 4);
    return finish();
}
