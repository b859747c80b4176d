// Picked rows bit by bit; the embedding gradient on the emulator against the scatter it stands for, added to a table that already
// holds something.
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

static void rows_are_picked(unsigned rows, unsigned width, unsigned of) {
    Random random(rows);
    std::vector<u32> ids;
    for (unsigned i = 0; i < rows; ++i) ids.push_back(i % 5 == 4 ? of - 1 : u32(random.bits() % of));
    Case c("embedding", std::to_string(rows) + " rows of " + std::to_string(width));
    auto& x = c.random<bf16>("x", size_t(of) * width, 3);
    auto& ids_on_device = c.given<u32>("ids", ids);
    auto& y = c.result<bf16>("y", size_t(rows) * width);
    c.run([&] { LAUNCH(gather_rows, dim3(rows, (width + 2047) / 2048), 256, x.data(), ids_on_device.data(), y.data(), {rows, width}); });
    Numbers want;
    for (u32 id : ids)
        for (size_t i = 0; i < width; ++i) want.push_back(value(x[id * width + i]));
    c.expect("rows", y, want);
    for (size_t i = 0; i < want.size(); ++i)
        if (value(y[i]) != want[i]) return failed("embedding: rows", "a picked row is not the row, bit by bit");
}

int main() {
    for (unsigned tokens : {1, 63, 64, 65, 130})
        for (unsigned width : {7, 70, 192}) run(tokens, width, 50, 9);
    run(65, 2056, 12, 3);
    run(64, 64, 4, 1);
    for (unsigned rows : {1, 65}) rows_are_picked(rows, 70, 11);
    rows_are_picked(3, 4104, 7);
    return finish();
}
