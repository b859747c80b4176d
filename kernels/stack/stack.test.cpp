// Matrices below each other on the emulator: bit for bit.
#include "stack.cuh"
#include "../emulator/check.hpp"

using namespace check;

static void run(const std::vector<unsigned>& counts) {
    StackSizes sizes{};
    unsigned largest = 0, total = 0;
    std::string name;
    for (size_t i = 0; i < counts.size(); ++i) {
        sizes.counts[i] = counts[i];
        largest = std::max(largest, counts[i]);
        total += counts[i];
        name += (i ? " + " : "") + std::to_string(counts[i]);
    }
    Case c("stack", name);
    const char* const names[4] = {"a", "b", "c", "d"};
    const bf16* buffers[4];
    Numbers expected;
    for (size_t i = 0; i < 4; ++i) {
        const size_t from = std::min(i, counts.size() - 1);
        if (i != from) {
            buffers[i] = buffers[from];
            continue;
        }
        auto& matrix = c.random<bf16>(names[i], counts[i], int(i) + 1);
        buffers[i] = matrix.data();
        for (unsigned at = 0; at < counts[i]; ++at) expected.push_back(value(matrix[at]));
    }
    auto& all = c.result<bf16>("all", total);
    c.run([&] {
        LAUNCH(stack, dim3((largest + 2047) / 2048, unsigned(counts.size())), 256, buffers[0], buffers[1], buffers[2],
               buffers[3], all.data(), sizes);
    });
    for (unsigned i = 0; i < total; ++i)
        if (value(all[i]) != expected[i]) failed("stack", "a number is not the one that was given");
    c.expect("all", all, expected);
}

int main() {
    run({8});
    run({2048, 4096});
    run({2056, 8, 5000});
    run({64, 64, 8, 2048});
    return finish();
}
