// Head and cross-entropy on the emulator against the formulas in double: chunks, slabs and splits, ragged tiles, tied targets, logits
// far apart.
#include "linear_cross_entropy.cuh"
#include "rows.cuh"
#include "../emulator/check.hpp"

using namespace check;

struct Shape {
    unsigned tokens, hidden, vocabulary, targets;
    unsigned chunk, slab, splits = 1;  // rows, columns, parts of a slab
    bool d_weight = false, accumulate = false;
    double size = 1.0;  // of the hidden states
    // Changes the random numbers: (hidden [T, H], weight [V, H], tokens [n]).
    std::function<void(std::vector<bf16>&, std::vector<bf16>&, std::vector<u32>&)> special = nullptr;
};

static unsigned parts(unsigned whole, unsigned part) { return (whole + part - 1) / part; }

// Of sums whose operands were rounded to bf16; a token that many rows ask for has a row in d_weight far above the root mean square.
constexpr Limit ROUNDED_OPERANDS{4e-3, 1e-2}, ROUNDED_OPERANDS_OFTEN{4e-3, 5e-2};

struct Expected {
    Numbers losses, d_hidden, d_weight;
};

static Expected expected(const Shape& shape, const Numbers& hidden, const Numbers& weight, const std::vector<u32>& rows,
                         const std::vector<u32>& tokens, double scale) {
    const size_t h = shape.hidden, v = shape.vocabulary;
    Expected want{Numbers(rows.size()), Numbers(shape.tokens * h), Numbers(v * h)};
    for (size_t i = 0; i < rows.size(); ++i) {
        const double* x = &hidden[rows[i] * h];
        Numbers logits(v);
        for (size_t c = 0; c < v; ++c)
            for (size_t k = 0; k < h; ++k) logits[c] += x[k] * weight[c * h + k];
        const double target = logits[tokens[i]];
        // All but the target, so that a small loss is not the difference of two large numbers; a long double, for exp(1600).
        long double others = 0;
        for (size_t c = 0; c < v; ++c)
            if (c != tokens[i]) others += std::exp((long double)(logits[c] - target));
        want.losses[i] = double(std::log1p(others));
        for (size_t c = 0; c < v; ++c) {
            const long double part = c == tokens[i] ? -others : std::exp((long double)(logits[c] - target));
            const double d = scale * double(part / (1 + others));
            for (size_t k = 0; k < h; ++k) {
                want.d_hidden[rows[i] * h + k] += d * weight[c * h + k];
                want.d_weight[c * h + k] += d * x[k];
            }
        }
    }
    return want;
}

// Small for the emulator's sake; the tile of the kernels for one case.
using Small = GemmTile<32, 64, 32, 1, 2, 2>;

// Returns whether a reference had to be moved.
template <class Tile>
static bool run(const Shape& shape) {
    const unsigned h = shape.hidden, v = shape.vocabulary, n = shape.targets;
    const float scale = 0.37f;
    Random random(shape.tokens * 1000 + v);
    std::vector<u32> rows, tokens;
    for (unsigned i = 0; i < n; ++i) {
        rows.push_back(u32(u64(i) * shape.tokens / n + (shape.tokens > 2 * n ? random.bits() % 2 : 0)));
        // The last columns, which lie in a ragged tile, the first, some, and one token again and again.
        tokens.push_back(i % 4 == 0 ? v - 1 - i % 3 : i % 7 == 1 ? 0 : i % 5 == 2 ? v / 2 : u32(random.bits() % v));
    }
    auto given_hidden = Case::some<bf16>(size_t(shape.tokens) * h, 1, shape.size);
    auto given_weight = Case::some<bf16>(size_t(v) * h, 2, 0.8);
    if (shape.special) shape.special(given_hidden, given_weight, tokens);

    const std::string sizes = std::to_string(n) + " of " + std::to_string(shape.tokens) + " rows, H " + std::to_string(h) + ", V " +
                              std::to_string(v) + ", chunks of " + std::to_string(shape.chunk) + ", slabs of " + std::to_string(shape.slab);
    Case c("linear_cross_entropy", sizes);
    auto& hidden = c.given<bf16>("hidden", given_hidden);
    auto& weight = c.given<bf16>("weight", given_weight);
    auto& rows_on_device = c.given<u32>("rows", rows);
    auto& tokens_on_device = c.given<u32>("tokens", tokens);
    const size_t most = std::min(shape.chunk, n), strips = parts(shape.slab, Tile::warp_n);
    auto& x = c.result<bf16>("x", most * h);
    auto& state = c.result<float>("state", 5 * most);
    auto& flags = c.result<u32>("flags", parts(unsigned(most), ROWS_OF_FLAG));
    auto& e = c.result<bf16>("e", most * shape.slab);
    auto& statistics = c.result<float2>("statistics", strips * most);
    auto& d_x = c.result<float>("d_x", shape.splits * most * h);
    auto& losses = c.result<float>("losses", n);
    auto& loss = c.result<float>("loss", 2);
    auto& evaluated = c.result<float>("losses alone", n);
    auto& evaluated_loss = c.result<float>("loss alone", 2);
    auto& d_hidden = c.result<bf16>("d_hidden", size_t(shape.tokens) * h);
    auto& d_weight = c.state<float>("d_weight", Case::some<float>(shape.d_weight ? size_t(v) * h : 1, 3, 0.1));
    const Numbers d_weight_before = numbers(d_weight);
    bool moved = false;
    const auto tiles = [](unsigned m, unsigned n) { return parts(m, Tile::m) * parts(n, Tile::n); };
    const unsigned threads = Tile::threads, row_threads = std::min(256u, parts(h, 8 * WARP) * WARP);
    c.run([&] {
        for (unsigned first = 0; first < n; first += shape.chunk) {
            const unsigned r = std::min(shape.chunk, n - first);
            LAUNCH(cross_entropy_start, r, row_threads, hidden.data(), weight.data(), rows_on_device.data(), tokens_on_device.data(), x.data(),
                   state.data(), {r, h, first});
            for (unsigned column = 0; column < v; column += shape.slab) {
                const unsigned width = std::min(shape.slab, v - column);
                const CrossEntropyLogitsSizes slab{r, h, first, column, width, 2};
                LAUNCH(statistics_alone<Tile>, tiles(r, width), threads, x.data(), weight.data(), tokens_on_device.data(),
                       statistics.data(), slab);
                LAUNCH(cross_entropy_rows, parts(r, 32), 256, statistics.data(), state.data(), flags.data(), evaluated.data(),
                       {r, parts(width, Tile::warp_n), first});
            }
            LAUNCH(cross_entropy_start, r, row_threads, hidden.data(), weight.data(), rows_on_device.data(), tokens_on_device.data(), x.data(),
                   state.data(), {r, h, first});
            for (unsigned column = 0; column < v; column += shape.slab) {
                const unsigned width = std::min(shape.slab, v - column);
                const CrossEntropyLogitsSizes slab{r, h, first, column, width, 2};
                LAUNCH(logits<Tile>, tiles(r, width), threads, x.data(), weight.data(), tokens_on_device.data(), state.data(),
                       e.data(), statistics.data(), slab);
                LAUNCH(cross_entropy_rows, parts(r, 32), 256, statistics.data(), state.data(), flags.data(), losses.data(),
                       {r, parts(width, Tile::warp_n), first});
                for (unsigned i = 0; i < parts(r, 32); ++i) moved |= flags[i] != 0;
                LAUNCH(logits_again<Tile>, 3, threads, x.data(), weight.data(), tokens_on_device.data(), state.data(),
                       flags.data(), e.data(), slab);
                LAUNCH(backward_input<Tile>, dim3(tiles(r, h), shape.splits), threads, e.data(), weight.data(), state.data(),
                       d_x.data(), {r, h, column, width, 2, parts(width / 8, shape.splits) * 8, column > 0});
            }
            const unsigned begin = first ? rows[first] : 0, end = first + r < n ? rows[first + r] : shape.tokens;
            LAUNCH(cross_entropy_finish, dim3(end - begin, parts(h, 8 * row_threads)), row_threads, d_x.data(), weight.data(), rows_on_device.data(),
                   tokens_on_device.data(), state.data(), losses.data(), d_hidden.data(), {r, h, first, shape.splits, begin, scale});
            if (!shape.d_weight) continue;
            LAUNCH(cross_entropy_weight_operands, r, row_threads, tokens_on_device.data(), state.data(), losses.data(), e.data(), x.data(),
                   {r, h, v, first, scale});
            LAUNCH(backward_weight<Tile>, tiles(v, h), threads, e.data(), x.data(), d_weight.data(),
                   {r, h, v, 2, first > 0 || shape.accumulate});
        }
        LAUNCH(cross_entropy_sum, 1, 256, losses.data(), loss.data(), {n, scale});
        LAUNCH(cross_entropy_sum, 1, 256, evaluated.data(), evaluated_loss.data(), {n, scale});
    });

    Expected want = expected(shape, numbers(hidden), numbers(weight), rows, tokens, scale);
    double total = 0;
    for (double x : want.losses) total += x;
    // A small loss among large ones as well as they.
    for (unsigned i = 0; i < n; ++i) {
        const double error = std::fabs(value(losses[i]) - want.losses[i]) / want.losses[i];
        if (!(error <= 1e-5)) failed("linear_cross_entropy: losses", sizes + ": row " + std::to_string(i) + " is off by " + std::to_string(error));
    }
    c.expect("losses", losses, want.losses);
    c.expect("losses alone", evaluated, want.losses);
    for (const auto* sum : {&loss, &evaluated_loss}) {
        const double error = std::fabs(value((*sum)[0]) + value((*sum)[1]) - scale * total);
        if (!(error <= 1e-5 * scale * total)) failed("linear_cross_entropy: loss", sizes + ": off by " + std::to_string(error));
    }
    c.expect("d_hidden", d_hidden, want.d_hidden, ROUNDED_OPERANDS);
    if (shape.d_weight) {
        if (shape.accumulate)
            for (size_t i = 0; i < want.d_weight.size(); ++i) want.d_weight[i] += d_weight_before[i];
        c.expect("d_weight", d_weight, want.d_weight, ROUNDED_OPERANDS_OFTEN);
    }
    return moved;
}

// Logits of about `low` and `high`, the sign of a column as its index is odd; rows sure of their target, rows as far from it as can be, and a
// row of zeros, whose logits are all equal.
static auto far_apart(double size) {
    return [size](std::vector<bf16>& hidden, std::vector<bf16>& weight, std::vector<u32>& tokens) {
        const size_t n = tokens.size(), h = hidden.size() / n, v = weight.size() / h;
        Random random(5);
        for (size_t c = 0; c < v; ++c)
            for (size_t k = 0; k < h; ++k) assign(weight[c * h + k], (c % 2 ? 1 : -1) * (1 + 0.03 * random.next()));
        for (size_t i = 0; i < n; ++i)
            for (size_t k = 0; k < h; ++k) assign(hidden[i * h + k], i == n / 2 ? 0.0 : (i % 3 ? 1 : 0.1) * size / double(h));
        for (size_t i = 0; i < n; ++i) tokens[i] = i % 2 ? tokens[i] | 1 : tokens[i] & ~1u;
    };
}

// Each third of the vocabulary lies 80 above the one before; the targets are in the first.
static void staircase(std::vector<bf16>& hidden, std::vector<bf16>& weight, std::vector<u32>& tokens) {
    const size_t n = tokens.size(), h = hidden.size() / n, v = weight.size() / h;
    Random random(6);
    for (size_t c = 0; c < v; ++c)
        for (size_t k = 0; k < h; ++k) assign(weight[c * h + k], double(c * 3 / v) - 0.5 + 0.1 * random.next());
    // Every other row in the second tile stays where it is.
    for (size_t i = 0; i < n; ++i)
        for (size_t k = 0; k < h; ++k) assign(hidden[i * h + k], (i < 128 || i % 2 ? 80.0 : 1.0) / double(h) * (1 + 0.1 * random.next()));
    for (u32& token : tokens) token %= u32(v / 3);
}

// One row of many asks for another reference.
static void one_row_far_off(std::vector<bf16>& hidden, std::vector<bf16>& weight, std::vector<u32>& tokens) {
    const size_t i = tokens.size() - 1, h = hidden.size() / tokens.size();
    for (size_t k = 0; k < h; ++k) assign(hidden[i * h + k], -200.0 * value(weight[tokens[i] * h + k]));
}

template <class Tile = Small>
static void expect_moved(bool want, const Shape& shape) {
    if (run<Tile>(shape) != want) failed("linear_cross_entropy: references", want ? "none was moved" : "one was moved without need");
}

int main() {
    for (unsigned targets : {1, 63, 64, 65, 130})
        expect_moved(false, {.tokens = targets, .hidden = 24, .vocabulary = 200, .targets = targets, .chunk = 130, .slab = 200,
                             .d_weight = targets == 65});
    expect_moved<HeadTile>(false, {.tokens = 131, .hidden = 40, .vocabulary = 264, .targets = 130, .chunk = 130, .slab = 264,
                                   .d_weight = true});
    // Rows without a target, before, between and after; chunks, slabs and splits with rests.
    expect_moved(false, {.tokens = 290, .hidden = 40, .vocabulary = 328, .targets = 130, .chunk = 60, .slab = 136, .splits = 2});
    expect_moved(false, {.tokens = 70, .hidden = 72, .vocabulary = 1536, .targets = 35, .chunk = 64, .slab = 512, .splits = 3});
    expect_moved(false, {.tokens = 131, .hidden = 136, .vocabulary = 512, .targets = 65, .chunk = 33, .slab = 512, .d_weight = true});
    expect_moved(false, {.tokens = 66, .hidden = 24, .vocabulary = 200, .targets = 65, .chunk = 32, .slab = 200, .d_weight = true,
                         .accumulate = true});
    // Rows wider than a block.
    expect_moved(false, {.tokens = 5, .hidden = 2056, .vocabulary = 8, .targets = 2, .chunk = 2, .slab = 8, .size = 0.1});
    // Losses up to 30: far, and still within reach of the first reference.
    expect_moved(false, {.tokens = 40, .hidden = 24, .vocabulary = 200, .targets = 40, .chunk = 40, .slab = 104, .special = far_apart(14)});
    for (double size : {50.0, 400.0})
        expect_moved(true, {.tokens = 65, .hidden = 24, .vocabulary = 200, .targets = 65, .chunk = 65, .slab = 200, .d_weight = true,
                            .special = far_apart(size)});
    expect_moved(true, {.tokens = 150, .hidden = 24, .vocabulary = 312, .targets = 150, .chunk = 150, .slab = 104, .special = staircase});
    expect_moved(true, {.tokens = 130, .hidden = 24, .vocabulary = 200, .targets = 130, .chunk = 130, .slab = 104,
                        .special = one_row_far_off});
    return finish();
}
