// The embedding gradient on the emulator against the scatter it stands for, added to a table that already holds something.
#include "embedding.cuh"
#include "../emulator/check.hpp"
#include <algorithm>

using namespace check;

static void run(unsigned tokens, unsigned width, unsigned vocabulary, unsigned used) {
    Random random(tokens);
    std::vector<u32> ids, order, starts, distinct;
    for (unsigned i = 0; i < tokens; ++i) ids.push_back(u32(random.bits() % used) * (vocabulary - 1) / std::max(1u, used - 1));
    for (u32 i = 0; i < tokens; ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return ids[a] < ids[b]; });
    for (u32 i = 0; i < tokens; ++i)
        if (i == 0 || ids[order[i]] != distinct.back()) {
            distinct.push_back(ids[order[i]]);
            starts.push_back(i);
        }
    starts.push_back(tokens);
    Case c("embedding", std::to_string(tokens) + " x " + std::to_string(width));
    auto& d_y = c.random<bf16>("d_y", size_t(tokens) * width, 1);
    auto& order_on_device = c.given<u32>("tokens", order);
    auto& starts_on_device = c.given<u32>("starts", starts);
    auto& distinct_on_device = c.given<u32>("distinct_ids", distinct);
    auto& d_weight = c.state<float>("d_weight", Case::some<float>(size_t(vocabulary) * width, 2));
    Numbers want = numbers(d_weight);
    c.run([&] {
        LAUNCH(embedding_backward, dim3(unsigned(distinct.size()), (width + 2047) / 2048), 256, d_y.data(), order_on_device.data(),
               starts_on_device.data(), distinct_on_device.data(), d_weight.data(), {unsigned(distinct.size()), width});
    });
    for (size_t t = 0; t < tokens; ++t)
        for (size_t i = 0; i < width; ++i) want[ids[t] * width + i] += value(d_y[t * width + i]);
    c.expect("d_weight", d_weight, want);
}

int main() {
    for (unsigned tokens : {1, 63, 64, 65, 130})
        for (unsigned width : {7, 70, 192}) run(tokens, width, 50, 9);
    run(65, 2056, 12, 3);
    run(64, 64, 4, 1);
    return finish();
}
