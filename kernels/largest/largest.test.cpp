// The largest logits on the emulator against a stable sort, key by key. Blocks sort fewer keys than in the trainer, so that few
// logits need a third level.
#define SORTED 512u
#define KEPT 64u
#include "largest.cuh"
#include "../emulator/check.hpp"
#include <algorithm>
#include <cmath>
#include <numeric>

using namespace check;

// Returns the token of a key and checks that the logit is its own.
static bool is_key(u64 key, u32 token, float logit) {
    const u32 ordered = u32(key >> 32), bits = ordered >> 31 ? ordered & 0x7fffffffu : ~ordered;
    return u32(key) == ~token && __uint_as_float(bits) == logit;
}

static void run(unsigned rows, unsigned count, const std::vector<float>& logits) {
    Case c("largest", std::to_string(rows) + " x " + std::to_string(count));
    auto& on_device = c.given<float>("logits", logits);
    unsigned groups = (count + SORTED - 1) / SORTED;
    Buffer<u64>* keys = &c.result<u64>("keys", size_t(rows) * groups * KEPT);
    std::vector<std::pair<Buffer<u64>*, unsigned>> levels;
    for (unsigned left = groups; left > 1;) {
        const unsigned from = left * KEPT;
        left = (from + SORTED - 1) / SORTED;
        levels.push_back({&c.result<u64>("keys of keys", size_t(rows) * left * KEPT), from});
    }
    c.run([&] {
        LAUNCH(largest_of_logits, dim3(groups, rows), 512, on_device.data(), keys->data(), {count});
        Buffer<u64>* newest = keys;
        for (auto& [to, from] : levels) {
            LAUNCH(largest_of_keys, dim3((from + SORTED - 1) / SORTED, rows), 512, newest->data(), to->data(), {from});
            newest = to;
        }
    });
    const Buffer<u64>& found = levels.empty() ? *keys : *levels.back().first;
    for (unsigned row = 0; row < rows; ++row) {
        const float* of_row = logits.data() + size_t(row) * count;
        std::vector<u32> tokens;
        for (u32 token = 0; token < count; ++token)
            if (!std::isnan(of_row[token])) tokens.push_back(token);
        std::stable_sort(tokens.begin(), tokens.end(), [&](u32 a, u32 b) { return of_row[a] > of_row[b]; });
        for (unsigned i = 0; i < KEPT; ++i) {
            const u64 key = found[size_t(row) * KEPT + i];
            const bool is_right = i < tokens.size() ? is_key(key, tokens[i], of_row[tokens[i]]) : key == 0;
            if (!is_right) return failed("largest", "a key is not that of the logit which a stable sort has in its place");
        }
    }
}

static std::vector<float> random_logits(size_t count, u32 distinct) {
    Random random(count);
    std::vector<float> logits;
    for (size_t i = 0; i < count; ++i) {
        const double x = random.next();
        logits.push_back(float(distinct ? std::round(x * distinct) : x * 20.0));
    }
    return logits;
}

int main() {
    for (unsigned count : {1u, 63u, 64u, 511u, 512u, 513u, 1200u}) run(2, count, random_logits(2 * size_t(count), 0));
    // Many equal ones, zeros of both signs among them.
    run(3, 1000, random_logits(3000, 2));
    // Two levels, and the fewest logits that need three.
    for (unsigned count : {8 * SORTED, 8 * SORTED + 1}) run(2, count, random_logits(2 * size_t(count), 1000));
    auto some = random_logits(700, 0);
    some[7] = NAN;
    some[8] = -NAN;
    some[699] = INFINITY;
    some[3] = -INFINITY;
    run(1, 700, some);
    run(1, 5, {NAN, -INFINITY, 0.0f, -0.0f, 1e-45f});
    run(1, 2, {NAN, NAN});
    return finish();
}
