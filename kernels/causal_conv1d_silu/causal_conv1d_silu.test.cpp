// The short convolution on the emulator against SPEC.md 2.4 step 2 and 2.6 in double, several documents to a pack, and
// the bits of a packed document against those of the document alone.
#include "causal_conv1d_silu.cuh"
#include "../emulator/check.hpp"
#include "../sum_rows/sum_rows.cuh"

using namespace check;

static std::vector<u32> positions(const std::vector<unsigned>& documents) {
    std::vector<u32> all;
    for (unsigned length : documents)
        for (u32 position = 0; position < length; ++position) all.push_back(position);
    return all;
}

static Numbers sums(const Numbers& u, const Numbers& w, const std::vector<u32>& position_ids, size_t channels) {
    Numbers s(u.size());
    for (size_t t = 0; t < position_ids.size(); ++t)
        for (size_t c = 0; c < channels; ++c)
            for (size_t lag = 0; lag < 4 && lag <= position_ids[t]; ++lag)
                s[t * channels + c] += w[c * 4 + 3 - lag] * u[(t - lag) * channels + c];
    return s;
}

static Numbers forward(const Numbers& u, const Numbers& w, const std::vector<u32>& position_ids, size_t channels) {
    Numbers y = sums(u, w, position_ids, channels);
    for (double& x : y) x *= sigmoid(x);
    return y;
}

static dim3 grid(unsigned tokens, unsigned channels, unsigned run) { return dim3((channels + 1023) / 1024, (tokens + run - 1) / run); }

static void run(const std::vector<unsigned>& documents, unsigned channels, unsigned run_length) {
    const std::vector<u32> ids = positions(documents);
    const unsigned tokens = unsigned(ids.size()), runs = (tokens + run_length - 1) / run_length;
    const size_t count = size_t(tokens) * channels;
    const ConvSizes sizes{tokens, channels, run_length, 0};
    Case c("causal_conv1d_silu", std::to_string(tokens) + " x " + std::to_string(channels) + " in runs of " + std::to_string(run_length));
    auto& u = c.random<bf16>("u", count, 1, 2.0);
    auto& weight = c.random<bf16>("weight", size_t(channels) * 4, 2);
    auto& d_y = c.random<bf16>("d_y", count, 3);
    auto& position_ids = c.given<u32>("position_ids", ids);
    auto& y = c.result<bf16>("y", count);
    auto& d_u = c.result<bf16>("d_u", count);
    auto& d_u_too = c.result<bf16>("d_u beside d_weight", count);
    auto& partial = c.result<float>("partial", size_t(runs) * channels * 4);
    auto& d_weight = c.result<float>("d_weight", size_t(channels) * 4);
    c.run([&] {
        const dim3 blocks = grid(tokens, channels, run_length);
        LAUNCH(causal_conv1d_silu_forward, blocks, 128, u.data(), weight.data(), position_ids.data(), y.data(), sizes);
        LAUNCH(causal_conv1d_silu_backward, blocks, 128, u.data(), weight.data(), position_ids.data(), d_y.data(), d_u.data(), sizes);
        LAUNCH(causal_conv1d_silu_backward_weight, blocks, 128, u.data(), weight.data(), position_ids.data(), d_y.data(),
               d_u_too.data(), partial.data(), sizes);
        LAUNCH(sum_rows, (channels * 4 + 31) / 32, 256, partial.data(), d_weight.data(), {runs, channels * 4});
    });

    const Numbers us = numbers(u), w = numbers(weight), dy = numbers(d_y), s = sums(us, w, ids, channels);
    Numbers du(count), dw(channels * 4);
    for (size_t t = 0; t < tokens; ++t)
        for (size_t channel = 0; channel < channels; ++channel) {
            const double x = s[t * channels + channel], ds = dy[t * channels + channel] * (sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x)));
            for (size_t lag = 0; lag < 4 && lag <= ids[t]; ++lag) {
                du[(t - lag) * channels + channel] += w[channel * 4 + 3 - lag] * ds;
                dw[channel * 4 + 3 - lag] += us[(t - lag) * channels + channel] * ds;
            }
        }
    slope_agrees("causal_conv1d_silu", [&](const Numbers& u) { return forward(u, w, ids, channels); }, us, dy, du);
    slope_agrees("causal_conv1d_silu", [&](const Numbers& w) { return forward(us, w, ids, channels); }, w, dy, dw);
    c.expect("y", y, forward(us, w, ids, channels));
    c.expect("d_u", d_u, du);
    c.expect("d_u", d_u_too, du);
    c.expect("d_weight", d_weight, dw);
}

// Documents of a pack, each also run alone: the same bits, forward and backward.
static void packed_equals_alone(const std::vector<unsigned>& documents, unsigned channels, unsigned run_length) {
    const std::vector<u32> ids = positions(documents);
    const size_t count = ids.size() * channels;
    Case whole("packed", "");
    auto& u = whole.random<bf16>("u", count, 1, 2.0);
    auto& weight = whole.random<bf16>("weight", channels * 4, 2);
    auto& d_y = whole.random<bf16>("d_y", count, 3);
    auto& position_ids = whole.given<u32>("position_ids", ids);
    auto& y = whole.result<bf16>("y", count);
    auto& d_u = whole.result<bf16>("d_u", count);
    const auto both = [&](unsigned tokens, const bf16* u, const bf16* d_y, const u32* ids, bf16* y, bf16* d_u) {
        const ConvSizes sizes{tokens, channels, run_length, 0};
        const dim3 blocks = grid(tokens, channels, run_length);
        LAUNCH(causal_conv1d_silu_forward, blocks, 128, u, weight.data(), ids, y, sizes);
        LAUNCH(causal_conv1d_silu_backward, blocks, 128, u, weight.data(), ids, d_y, d_u, sizes);
    };
    both(unsigned(ids.size()), u.data(), d_y.data(), position_ids.data(), y.data(), d_u.data());
    size_t first = 0;
    for (unsigned length : documents) {
        const size_t at = first * channels, size = size_t(length) * channels;
        Buffer<bf16> u_alone("u alone", size), d_y_alone("d_y alone", size), y_alone("y alone", size), d_u_alone("d_u alone", size);
        Buffer<u32> ids_alone("position_ids alone", length);
        std::memcpy(u_alone.data(), u.data() + at, size * 2);
        std::memcpy(d_y_alone.data(), d_y.data() + at, size * 2);
        std::memcpy(ids_alone.data(), position_ids.data() + first, length * 4);
        both(length, u_alone.data(), d_y_alone.data(), ids_alone.data(), y_alone.data(), d_u_alone.data());
        if (std::memcmp(y_alone.data(), y.data() + at, size * 2) || std::memcmp(d_u_alone.data(), d_u.data() + at, size * 2))
            failed("causal_conv1d_silu: packed equals alone", "document of " + std::to_string(length) + " tokens at " + std::to_string(first));
        first += length;
    }
}

// The rows of examples between these borders.
static ExampleRows rows_of(const std::vector<u32>& borders) {
    ExampleRows rows;
    for (size_t i = 0; i <= EXAMPLES; ++i) rows.first[i] = borders[std::min(i, borders.size() - 1)];
    return rows;
}

// The tokens behind the first `first` ones, continued from the window that those leave, against the bits of all at once; and both parts
// as two examples of one launch.
static void run_steps(unsigned first, unsigned second, unsigned channels) {
    const unsigned tokens = first + second;
    const std::string name = std::to_string(first) + " and " + std::to_string(second) + " x " + std::to_string(channels);
    Case c("causal_conv1d_silu_steps", name);
    auto& u = c.random<bf16>("u", size_t(tokens) * channels, 1, 2.0);
    auto& weight = c.random<bf16>("weight", size_t(channels) * 4, 2);
    auto& ids = c.given<u32>("position_ids", positions({tokens}));
    auto& nothing = c.given<bf16>("nothing", std::vector<bf16>(3 * channels));
    auto& between = c.result<bf16>("between", 3 * channels);
    auto& after = c.result<bf16>("after", 3 * channels);
    auto& y = c.result<bf16>("y", u.size());
    auto& whole = c.result<bf16>("whole", u.size());
    auto& of_both = c.result<bf16>("of both", u.size());
    auto& each_of_first = c.result<bf16>("each of first", size_t(first) * 3 * channels);
    auto& each_of_second = c.result<bf16>("each of second", size_t(second) * 3 * channels);
    // Up to two examples; any buffer will do for the others.
    const auto steps = [&](u32 longest, const std::vector<u32>& borders, const bf16* u, bf16* y, u32 each, std::vector<const bf16*> befores,
                           std::vector<bf16*> afters) {
        befores.resize(EXAMPLES, befores[0]), afters.resize(EXAMPLES, afters[0]);
        const auto& b = befores;
        const auto& a = afters;
        const dim3 one = grid(longest, channels, 7), blocks(one.x, one.y, unsigned(borders.size() - 1));
        LAUNCH(causal_conv1d_silu_steps, blocks, 128, u, weight.data(), b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], y, a[0], a[1], a[2],
               a[3], a[4], a[5], a[6], a[7], {channels, 7, each, rows_of(borders)});
    };
    c.run([&] {
        LAUNCH(causal_conv1d_silu_forward, grid(tokens, channels, 7), 128, u.data(), weight.data(), ids.data(), whole.data(),
               {tokens, channels, 7, 0});
        steps(first, {0, first}, u.data(), y.data(), 0, {nothing.data()}, {between.data()});
        steps(second, {0, second}, u.data() + size_t(first) * channels, y.data() + size_t(first) * channels, 0, {between.data()},
              {after.data()});
        steps(std::max(first, second), {0, first, tokens}, u.data(), of_both.data(), 1, {nothing.data(), between.data()},
              {each_of_first.data(), each_of_second.data()});
    });
    same_bits("causal_conv1d_silu_steps: y", name, y, whole);
    same_bits("causal_conv1d_silu_steps: two examples", name, of_both, whole);
    // The three tokens up to `token`, behind zeros where there are fewer.
    const auto window = [&](size_t token, size_t i) {
        const size_t row = token + 1 + i / channels;
        return row < 3 ? bf16{0} : bf16(u[(row - 3) * channels + i % channels]);
    };
    Buffer<bf16> last("last", after.size());
    for (size_t i = 0; i < last.size(); ++i) last[i] = window(tokens - 1, i);
    same_bits("causal_conv1d_silu_steps: after", name, after, last);
    Buffer<bf16> of_first("of first", each_of_first.size()), of_second("of second", each_of_second.size());
    for (size_t i = 0; i < of_first.size(); ++i) of_first[i] = window(i / after.size(), i % after.size());
    for (size_t i = 0; i < of_second.size(); ++i) of_second[i] = window(first + i / after.size(), i % after.size());
    same_bits("causal_conv1d_silu_steps: after each", name, each_of_first, of_first);
    same_bits("causal_conv1d_silu_steps: after each", name, each_of_second, of_second);
}

int main() {
    run_steps(1, 1, 24);
    run_steps(2, 3, 10);
    run_steps(20, 1, 1032);
    run_steps(5, 16, 16);
    for (const auto& documents : {std::vector<unsigned>{1}, {2}, {63}, {64}, {65}, {130}, {1, 1, 2, 3, 5, 8, 100}, {63, 64, 65}})
        for (unsigned run_length : {1, 2, 16, 64}) run(documents, 24, run_length);
    run({9, 4}, 7, 4);
    run({30, 35}, 70, 32);
    run({5, 6}, 1032, 8);
    packed_equals_alone({1, 2, 3, 4, 5, 60, 13}, 24, 16);
    return finish();
}
