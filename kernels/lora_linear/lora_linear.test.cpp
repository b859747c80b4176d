// Linear layers with adapters that share their input, forward and backward on the emulator against double.
#include "lora_linear.cuh"
#include "../emulator/check.hpp"
#include "../linear/linear.cuh"
#include "../linear/linear_sums.cuh"
#include "../silu_mul/silu_mul.cuh"

using namespace check;

struct Layer {
    unsigned outputs, rank;
};

template <class Tile>
static unsigned tiles(unsigned m, unsigned n) {
    return (m + Tile::m - 1) / Tile::m * ((n + Tile::n - 1) / Tile::n);
}

// [rows, inner] · [columns, inner]ᵀ, or with `second` as [inner, columns].
enum Turned { ROWS_OF_B, COLUMNS_OF_B };
static Numbers times(const Numbers& a, const Numbers& b, size_t rows, size_t inner, size_t columns, Turned turned) {
    Numbers c(rows * columns);
    for (size_t i = 0; i < rows; ++i)
        for (size_t at = 0; at < inner; ++at)
            for (size_t j = 0; j < columns; ++j)
                c[i * columns + j] += a[i * inner + at] * (turned == ROWS_OF_B ? b[j * inner + at] : b[at * columns + j]);
    return c;
}

static Numbers transposed(const Numbers& a, size_t rows, size_t columns) {
    Numbers t(a.size());
    for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
    return t;
}

static Numbers columns_of(const Numbers& a, size_t width, size_t first, size_t count) {
    Numbers c;
    for (size_t row = 0; row < a.size() / width; ++row)
        c.insert(c.end(), &a[row * width + first], &a[row * width + first] + count);
    return c;
}

static void add(Numbers& to, const Numbers& x, double scale = 1.0) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += scale * x[i];
}

template <class Tile>
static void run(unsigned m, unsigned k, const std::vector<Layer>& layers, bool accumulate) {
    const float scale = 0.75f;
    const unsigned k_of_split = 48, splits = (m + k_of_split - 1) / k_of_split;
    unsigned ranks = 0;
    std::string sizes = std::to_string(m) + " x " + std::to_string(k) + " ->";
    for (const Layer& layer : layers) {
        ranks += layer.rank;
        sizes += " " + std::to_string(layer.outputs) + " r " + std::to_string(layer.rank);
    }
    Case c("lora_linear", sizes);
    auto& x = c.random<bf16>("x", size_t(m) * k, 1);
    auto& a = c.random<bf16>("A", size_t(ranks) * k, 2);
    auto& u = c.result<bf16>("u", size_t(m) * ranks);
    auto& d_u = c.result<bf16>("d_u", size_t(m) * ranks);
    auto& d_a_partial = c.result<float>("d_A partial", size_t(splits) * ranks * k);
    const auto before = Case::some<bf16>(size_t(m) * k, 3, 4.0);
    auto& d_x = accumulate ? c.state<bf16>("d_x", before) : c.result<bf16>("d_x", before.size());
    auto& nothing = c.random<bf16>("nothing", 8, 4);
    struct Buffers {
        Buffer<bf16>&weight, &b, &d_y, &y;
        Buffer<float>&d_a, &d_b, &d_b_partial;
        unsigned pitch, first;
    };
    std::vector<Buffers> of;
    for (const Layer& layer : layers) {
        // The second layer reads and writes columns of wider buffers.
        const unsigned wide = of.size() == 1, pitch = (layer.outputs + 7) / 8 * 8 + 16 * wide;
        const unsigned seed = 10 * unsigned(of.size() + 1);
        of.push_back({c.random<bf16>("W", size_t(layer.outputs) * k, seed),
                      c.random<bf16>("B", size_t(layer.outputs) * layer.rank, seed + 1),
                      c.random<bf16>("d_y", size_t(m) * pitch, seed + 3),
                      c.state<bf16>("y", Case::some<bf16>(size_t(m) * pitch, seed + 4)),
                      c.result<float>("d_A", size_t(layer.rank) * k),
                      c.result<float>("d_B", size_t(layer.outputs) * layer.rank),
                      c.result<float>("d_B partial", size_t(splits) * layer.outputs * layer.rank), pitch, 8 * wide});
    }

    c.run([&] {
        const LinearSizes of_u{m, ranks, k, k, k, ranks, 0, 0, 0, 8, k, 0, scale};
        LAUNCH((linear_tile<Tile, K_INNER, K_INNER>), tiles<Tile>(m, ranks), Tile::threads, x.data(), a.data(),
               u.data(), of_u);
        LoraInputSizes input{m, k, ranks, 8, accumulate, {}, {}, {}};
        const bf16 *d_ys[LORA_LAYERS], *weights[LORA_LAYERS];
        for (unsigned i = 0; i < LORA_LAYERS; ++i) d_ys[i] = weights[i] = nothing.data();
        for (unsigned i = 0, first = 0; i < layers.size(); first += layers[i++].rank) {
            const auto [n, rank] = layers[i];
            const LoraForwardSizes forward{m, n, k, rank, ranks, first, of[i].pitch, of[i].first, 8};
            LAUNCH(lora_forward_tile<Tile>, tiles<Tile>(m, n), Tile::threads, x.data(), of[i].weight.data(), u.data(),
                   of[i].b.data(), of[i].y.data(), forward);
            const LinearSizes of_d_u{m, rank, n, of[i].pitch, rank, ranks, of[i].first, 0, first, 8, n, 0, scale};
            LAUNCH((linear_tile<Tile, K_INNER, K_OUTER>), tiles<Tile>(m, rank), Tile::threads, of[i].d_y.data(),
                   of[i].b.data(), d_u.data(), of_d_u);
            const LinearSizes of_d_b{n, rank, m, of[i].pitch, ranks, rank, of[i].first, first, 0, 8, k_of_split, 0, 1.0f};
            LAUNCH((linear_tile<Tile, K_OUTER, K_OUTER>), dim3(tiles<Tile>(n, rank), 1, splits), Tile::threads,
                   of[i].d_y.data(), u.data(), of[i].d_b_partial.data(), of_d_b);
            const SumSplitsSizes sum{splits, 0, {n * rank}};
            float* const d_b = of[i].d_b.data();
            LAUNCH(sum_splits, (n * rank + 1023) / 1024, 256, of[i].d_b_partial.data(), d_b, d_b, d_b, d_b, sum);
            // The first place stays empty when there is room.
            const unsigned at = layers.size() < LORA_LAYERS ? i + 1 : i;
            d_ys[at] = of[i].d_y.data();
            weights[at] = of[i].weight.data();
            input.outputs[at] = n;
            input.d_y_pitch[at] = of[i].pitch;
            input.d_y_first[at] = of[i].first;
        }
        LAUNCH(lora_input_tile<Tile>, tiles<Tile>(m, k), Tile::threads, d_ys, weights, d_u.data(), a.data(), d_x.data(),
               input);
        const LinearSizes of_d_a{ranks, k, m, ranks, k, k, 0, 0, 0, 8, k_of_split, 0, 1.0f};
        LAUNCH((linear_tile<Tile, K_OUTER, K_OUTER>), dim3(tiles<Tile>(ranks, k), 1, splits), Tile::threads,
               d_u.data(), x.data(), d_a_partial.data(), of_d_a);
        SumSplitsSizes sum{splits, 0, {}};
        float* d_as[LORA_LAYERS];
        unsigned largest = 0;
        for (unsigned i = 0; i < LORA_LAYERS; ++i) {
            d_as[i] = of[i < layers.size() ? i : 0].d_a.data();
            sum.counts[i] = i < layers.size() ? layers[i].rank * k : 0;
            largest = sum.counts[i] > largest ? sum.counts[i] : largest;
        }
        LAUNCH(sum_splits, dim3((largest + 1023) / 1024, unsigned(layers.size())), 256, d_a_partial.data(), d_as[0], d_as[1],
               d_as[2], d_as[3], sum);
    });

    // What follows u and d_u from what was stored of them: they are rounded.
    const Numbers xs = numbers(x), as = numbers(a), us = numbers(u), d_us = numbers(d_u);
    Numbers want_u(us.size()), want_d_u, want_d_x(before.size());
    add(want_u, times(xs, as, m, k, ranks, ROWS_OF_B), scale);
    c.expect("u", u, want_u);
    want_d_u.resize(us.size());
    if (accumulate)
        for (size_t i = 0; i < before.size(); ++i) want_d_x[i] = value(before[i]);
    for (unsigned i = 0, first = 0; i < layers.size(); first += layers[i++].rank) {
        const auto [n, rank] = layers[i];
        const Numbers w = numbers(of[i].weight), b = numbers(of[i].b),
                      d_y = columns_of(numbers(of[i].d_y), of[i].pitch, of[i].first, n);
        Numbers y = times(xs, w, m, k, n, ROWS_OF_B);
        add(y, times(columns_of(us, ranks, first, rank), b, m, rank, n, ROWS_OF_B));
        Numbers wide;
        for (const bf16 old : Case::some<bf16>(size_t(m) * of[i].pitch, 10 * (i + 1) + 4)) wide.push_back(value(old));
        for (size_t row = 0; row < m; ++row)
            for (size_t j = 0; j < n; ++j) wide[row * of[i].pitch + of[i].first + j] = y[row * n + j];
        c.expect("y", of[i].y, wide);
        Numbers part(size_t(m) * rank);
        add(part, times(d_y, b, m, n, rank, COLUMNS_OF_B), scale);
        for (size_t row = 0; row < m; ++row)
            for (size_t j = 0; j < rank; ++j) want_d_u[row * ranks + first + j] = part[row * rank + j];
        add(want_d_x, times(d_y, w, m, n, k, COLUMNS_OF_B));
        c.expect("d_B", of[i].d_b,
                 times(transposed(d_y, m, n), columns_of(us, ranks, first, rank), n, m, rank, COLUMNS_OF_B));
        c.expect("d_A", of[i].d_a,
                 times(transposed(columns_of(d_us, ranks, first, rank), m, rank), xs, rank, m, k, COLUMNS_OF_B));
    }
    c.expect("d_u", d_u, want_d_u);
    add(want_d_x, times(d_us, as, m, ranks, k, COLUMNS_OF_B));
    c.expect("d_x", d_x, want_d_x);
}

// The kernels by their names: three layers, then one without an adapter.
static void named() {
    const unsigned m = 65, k = 72, n = 40, rank = 24, t = LoraTile::threads;
    Case c("lora_linear named", "65 x 72 -> 40 r 24");
    auto& x = c.random<bf16>("x", m * k, 1);
    auto& weight = c.random<bf16>("W", n * k, 2);
    auto& u = c.random<bf16>("u", m * rank, 3);
    auto& b = c.random<bf16>("B", n * rank, 4);
    auto& d_y = c.random<bf16>("d_y", m * n, 6);
    auto& a = c.random<bf16>("A", rank * k, 7);
    auto& y = c.result<bf16>("y", m * n);
    auto& d_x = c.result<bf16>("d_x", m * k);
    auto& d_x_alone = c.result<bf16>("d_x without adapter", m * k);
    const LoraForwardSizes forward{m, n, k, rank, rank, 0, n, 0, 8};
    const LoraInputSizes three{m, k, rank, 8, 0, {n, 0, n, n}, {n, n, n, n}, {0, 0, 0, 0}};
    const LoraInputSizes alone{m, k, 0, 8, 0, {n, 0, 0, 0}, {n, 0, 0, 0}, {0, 0, 0, 0}};
    c.run([&] {
        LAUNCH(lora_linear_forward, 1, t, x.data(), weight.data(), u.data(), b.data(), y.data(), forward);
        LAUNCH(lora_linears_backward_input, 1, t, d_y.data(), weight.data(), d_y.data(), weight.data(), d_y.data(),
               weight.data(), d_y.data(), weight.data(), u.data(), a.data(), d_x.data(), three);
        LAUNCH(lora_linears_backward_input, 1, t, d_y.data(), weight.data(), d_y.data(), weight.data(), d_y.data(),
               weight.data(), d_y.data(), weight.data(), u.data(), a.data(), d_x_alone.data(), alone);
    });
    Numbers ys = times(numbers(x), numbers(weight), m, k, n, ROWS_OF_B);
    add(ys, times(numbers(u), numbers(b), m, rank, n, ROWS_OF_B));
    c.expect("y", y, ys);
    const Numbers one = times(numbers(d_y), numbers(weight), m, n, k, COLUMNS_OF_B);
    c.expect("d_x", d_x_alone, one);
    Numbers all(one.size());
    add(all, one, 3.0);
    add(all, times(numbers(u), numbers(a), m, rank, k, COLUMNS_OF_B));
    c.expect("d_x", d_x, all);
}

template <class Tile>
static void forward_in_tile(const bf16* x, const bf16* weight, const bf16* u, const bf16* b, bf16* y,
                            const LoraForwardSizes& sizes) {
    LAUNCH(lora_forward_tile<Tile>, tiles<Tile>(sizes.m, sizes.n), Tile::threads, x, weight, u, b, y, sizes);
}

template <class Tile>
static void input_in_tile(const bf16* const (&d_y)[LORA_LAYERS], const bf16* const (&weight)[LORA_LAYERS], const bf16* d_u,
                          const bf16* a, bf16* d_x, const LoraInputSizes& sizes) {
    LAUNCH(lora_input_tile<Tile>, tiles<Tile>(sizes.m, sizes.n), Tile::threads, d_y, weight, d_u, a, d_x, sizes);
}

// Which tile a product is computed in changes no bit of it, of however many terms it is the sum.
template <class First, class... Others>
static void same_in_all_tiles(unsigned m, unsigned k, const std::vector<Layer>& layers, bool accumulate) {
    std::string sizes = std::to_string(m) + " x " + std::to_string(k) + " ->";
    unsigned ranks = 0;
    for (const Layer& layer : layers) {
        ranks += layer.rank;
        sizes += " " + std::to_string(layer.outputs) + " r " + std::to_string(layer.rank);
    }
    Case c("lora_linear", sizes);
    const auto [n, rank] = layers[0];
    auto& x = c.given("x", mirrored(m, k, false, 1, -1));
    auto& weight = c.given("W", mirrored(n, k, false, 2, 1));
    auto& u = c.given("u", mirrored(m, rank, false, 3, -1));
    auto& b = c.given("B", mirrored(n, rank, false, 4, 1));
    auto& d_u = c.given("d_u", mirrored(m, ranks, false, 5, -1));
    auto& a = c.given("A", mirrored(ranks, k, true, 6, 1));
    LoraInputSizes input{m, k, ranks, 2, accumulate, {}, {}, {}};
    const bf16 *d_ys[LORA_LAYERS], *weights[LORA_LAYERS];
    for (unsigned i = 0; i < LORA_LAYERS; ++i) {
        d_ys[i] = weights[i] = x.data();
        if (i >= layers.size()) continue;
        input.outputs[i] = input.d_y_pitch[i] = layers[i].outputs;
        d_ys[i] = c.given("d_y", mirrored(m, layers[i].outputs, false, 10 + i, -1)).data();
        weights[i] = c.given("W of d_x", mirrored(layers[i].outputs, k, true, 20 + i, 1)).data();
    }
    const LoraForwardSizes forward{m, n, k, rank, rank, 0, n, 0, 2};
    const auto before = Case::some<bf16>(size_t(m) * k, 7, 1e-6);
    std::vector<Buffer<bf16>*> ys, d_xs;
    for (size_t i = 0; i <= sizeof...(Others); ++i) {
        ys.push_back(&c.result<bf16>("y", size_t(m) * n));
        d_xs.push_back(&c.state<bf16>("d_x", before));
    }
    const auto in_tile = [&](auto tile, size_t i) {
        using Tile = decltype(tile);
        forward_in_tile<Tile>(x.data(), weight.data(), u.data(), b.data(), ys[i]->data(), forward);
        input_in_tile<Tile>(d_ys, weights, d_u.data(), a.data(), d_xs[i]->data(), input);
    };
    c.run([&] {
        size_t i = 0;
        in_tile(First{}, i);
        (in_tile(Others{}, ++i), ...);
    });
    for (size_t i = 1; i <= sizeof...(Others); ++i) {
        same_bits("lora in all tiles: y", sizes, *ys[i], *ys[0]);
        same_bits("lora in all tiles: d_x", sizes, *d_xs[i], *d_xs[0]);
    }
}

// Up and silu(gate) ⊙ up in one launch, in each of these tiles, against the bits of two launches. The columns of u lie behind others.
template <class... Tiles>
static void gated_forward(unsigned m, unsigned n, unsigned k, unsigned rank) {
    const std::string sizes = std::to_string(m) + " x " + std::to_string(n) + " <- " + std::to_string(k) + " r " + std::to_string(rank);
    const unsigned first = 8, pitch = first + std::max(rank, 8u);
    Case c("gated_linear_forward", sizes);
    auto& x = c.random<bf16>("x", size_t(m) * k, 1);
    auto& weight = c.random<bf16>("W", size_t(n) * k, 2);
    auto& u = c.random<bf16>("u", size_t(m) * pitch, 3);
    auto& b = c.random<bf16>("B", size_t(n) * std::max(rank, 8u), 4);
    auto& gate = c.random<bf16>("gate", size_t(m) * n, 5, 3.0);
    auto& up = c.result<bf16>("up", size_t(m) * n);
    auto& product = c.result<bf16>("product", size_t(m) * n);
    std::vector<Buffer<bf16>*> ups, products;
    for (size_t i = 0; i < sizeof...(Tiles); ++i) {
        ups.push_back(&c.result<bf16>("up in one launch", size_t(m) * n));
        products.push_back(&c.result<bf16>("product in one launch", size_t(m) * n));
    }
    const auto in_tile = [&](auto tile, size_t i) {
        using Tile = decltype(tile);
        LAUNCH(gated_forward_tile<Tile>, tiles<Tile>(m, n), Tile::threads, x.data(), weight.data(), u.data(), b.data(), gate.data(),
               ups[i]->data(), products[i]->data(), {m, n, k, rank, pitch, first, 2});
    };
    c.run([&] {
        forward_in_tile<GemmTile<64, 64, 64, 2, 2, 3>>(x.data(), weight.data(), u.data(), b.data(), up.data(),
                                                        {m, n, k, rank, pitch, first, n, 0, 2});
        LAUNCH(silu_mul_forward, (m * n + 2047) / 2048, 256, gate.data(), up.data(), product.data(), {u64(m) * n});
        size_t i = 0;
        (in_tile(Tiles{}, i++), ...);
    });
    for (size_t i = 0; i < sizeof...(Tiles); ++i) {
        same_bits("gated_linear_forward: up", sizes, *ups[i], up);
        same_bits("gated_linear_forward: product", sizes, *products[i], product);
    }
}

// The gradients of gate and up in one launch, in each of these tiles, against the bits of two launches.
template <class... Tiles>
static void gated(unsigned m, unsigned n, unsigned k, unsigned rank) {
    const std::string sizes = std::to_string(m) + " x " + std::to_string(n) + " <- " + std::to_string(k) + " r " + std::to_string(rank);
    const unsigned pitch = (k + 7) / 8 * 8;
    Case c("gated_linear", sizes);
    auto all_d_y = Case::some<bf16>(size_t(m) * pitch, 1, 1.0);
    for (size_t i = 0; i < all_d_y.size(); ++i)
        if (i % pitch >= k) all_d_y[i] = bf16{0};
    auto& d_y = c.given("d_y", all_d_y);
    auto& weight = c.random<bf16>("W", size_t(k) * n, 2);
    auto& d_u = c.random<bf16>("d_u", size_t(m) * std::max(rank, 8u), 3);
    auto& a = c.random<bf16>("A", size_t(std::max(rank, 8u)) * n, 4);
    auto& gate = c.random<bf16>("gate", size_t(m) * n, 5, 3.0);
    auto& up = c.random<bf16>("up", size_t(m) * n, 6, 2.0);
    auto& d_h = c.result<bf16>("d_h", size_t(m) * n);
    auto& d_gate = c.result<bf16>("d_gate", size_t(m) * n);
    auto& d_up = c.result<bf16>("d_up", size_t(m) * n);
    std::vector<Buffer<bf16>*> d_gates, d_ups;
    for (size_t i = 0; i < sizeof...(Tiles); ++i) {
        d_gates.push_back(&c.result<bf16>("d_gate in one launch", size_t(m) * n));
        d_ups.push_back(&c.result<bf16>("d_up in one launch", size_t(m) * n));
    }
    const auto in_tile = [&](auto tile, size_t i) {
        using Tile = decltype(tile);
        LAUNCH(gated_input_tile<Tile>, tiles<Tile>(m, n), Tile::threads, d_y.data(), weight.data(), d_u.data(), a.data(), gate.data(), up.data(),
               d_gates[i]->data(), d_ups[i]->data(), {m, n, k, rank, pitch, 2});
    };
    c.run([&] {
        const LoraInputSizes sizes{m, n, rank, 2, 0, {k}, {pitch}, {0}};
        const bf16 *d_ys[LORA_LAYERS], *weights[LORA_LAYERS];
        for (int i = 0; i < LORA_LAYERS; ++i) d_ys[i] = d_y.data(), weights[i] = weight.data();
        input_in_tile<GemmTile<64, 64, 64, 2, 2, 3>>(d_ys, weights, d_u.data(), a.data(), d_h.data(), sizes);
        LAUNCH(silu_mul_backward, (m * n + 2047) / 2048, 256, gate.data(), up.data(), d_h.data(), d_gate.data(), d_up.data(), {u64(m) * n});
        size_t i = 0;
        (in_tile(Tiles{}, i++), ...);
    });
    for (size_t i = 0; i < sizeof...(Tiles); ++i) {
        same_bits("gated_linear: d_gate", sizes, *d_gates[i], d_gate);
        same_bits("gated_linear: d_up", sizes, *d_ups[i], d_up);
    }
}

int main() {
    using Wide = GemmTile<128, 128, 32, 2, 2, 3>;
    using Wider = GemmTile<128, 256, 32, 2, 4, 4>;
    using Square = GemmTile<64, 64, 64, 2, 2, 3>;
    using Shallow = GemmTile<128, 128, 32, 2, 2, 2>;
    named();
    run<Wide>(130, 72, {{136, 8}, {8, 16}, {72, 40}}, true);
    run<Wider>(65, 136, {{264, 128}}, false);
    run<Square>(1, 200, {{8, 8}}, false);
    run<Square>(63, 72, {{40, 64}, {72, 8}}, true);
    run<Square>(130, 136, {{72, 8}, {8, 24}, {136, 16}, {16, 8}}, false);
    run<Square>(65, 72, {{40, 8}, {12, 8}, {4, 16}, {4, 8}}, false);
    same_in_all_tiles<Wide, Wider, Square>(1, 8, {{8, 8}}, false);
    same_in_all_tiles<Wide, Wider, Square, Shallow>(67, 72, {{136, 40}, {8, 16}, {200, 72}}, true);
    same_in_all_tiles<Wide, Wider, Square>(130, 264, {{72, 8}, {8, 24}, {136, 16}, {16, 8}}, false);
    gated_forward<Wide, Wider, Square>(1, 8, 8, 8);
    gated_forward<Wide, Wider, Square, Shallow>(67, 136, 72, 24);
    gated_forward<Wide, Square>(130, 12, 200, 0);
    gated<Wide, Wider, Square>(1, 8, 8, 8);
    gated<Wide, Wider, Square, Shallow>(67, 136, 72, 24);
    gated<Wide, Square>(130, 200, 12, 0);
    if (emulator::bank_conflicts) failed("lora_linear", "a bank of shared memory is met twice");
    return finish();
}
