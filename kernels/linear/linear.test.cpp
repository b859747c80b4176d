// The products of a linear layer and splits on the emulator against double.
#include "linear.cuh"
#include "linear_sums.cuh"
#include "by_row.cuh"
#include "../emulator/check.hpp"

using namespace check;

template <class Tile>
static unsigned tiles(unsigned m, unsigned n) {
    return (m + Tile::m - 1) / Tile::m * ((n + Tile::n - 1) / Tile::n);
}

// How a matrix lies in its buffer: as it is, or as some columns of a wider one.
struct Within {
    unsigned pitch, first;
    Within(unsigned width, bool wider) : pitch(width + (wider ? 24 : 0)), first(wider ? 8 : 0) {}
    size_t at(unsigned row, unsigned column) const { return first + size_t(row) * pitch + column; }
};

// C = scale · A · B, laid out as the layer's three products do.
template <class Tile, Order A, Order B, class T>
static void product(const char* name, unsigned m, unsigned n, unsigned k, bool wider = false, bool accumulate = false) {
    Case c("linear", std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k));
    const Within in_a(A == K_INNER ? k : m, wider), in_b(B == K_INNER ? k : n, wider), in_c(n, wider);
    auto& a = c.random<bf16>("a", in_a.pitch * size_t(A == K_INNER ? m : k), 1);
    auto& b = c.random<bf16>("b", in_b.pitch * size_t(B == K_INNER ? n : k), 2);
    const auto before = Case::some<T>(in_c.pitch * size_t(m), 3, 4.0);
    // What lies beside C stays.
    auto& out = accumulate || wider ? c.state<T>("c", before) : c.result<T>("c", before.size());
    const float scale = wider ? 0.5f : 1.0f;
    const LinearSizes sizes{m,          n,          k, in_a.pitch, in_b.pitch, in_c.pitch, in_a.first,
                            in_b.first, in_c.first, 2, k,          accumulate, scale};
    emulator::bank_conflicts = 0;
    c.run([&] {
        LAUNCH((linear_tile<Tile, A, B>), tiles<Tile>(m, n), Tile::threads, a.data(), b.data(), out.data(),
               sizes);
    });
    if (emulator::bank_conflicts) failed("linear", "a bank of shared memory is met twice");

    const Numbers as = numbers(a), bs = numbers(b);
    Numbers want;
    for (const T& x : before) want.push_back(value(x));
    for (unsigned i = 0; i < m; ++i)
        for (unsigned j = 0; j < n; ++j) {
            double sum = 0;
            for (unsigned at = 0; at < k; ++at)
                sum +=
                    as[A == K_INNER ? in_a.at(i, at) : in_a.at(at, i)] * bs[B == K_INNER ? in_b.at(j, at) : in_b.at(at, j)];
            double& to = want[in_c.at(i, j)];
            to = scale * sum + (accumulate ? to : 0.0);
        }
    c.expect(name, out, want);
}

template <class Tile>
static void products(unsigned m, unsigned n, unsigned k, bool wider = false) {
    product<Tile, K_INNER, K_INNER, bf16>("y", m, n, (k + 7) / 8 * 8, wider);
    product<Tile, K_INNER, K_OUTER, bf16>("d_x", m, n, (k + 7) / 8 * 8, wider, wider);
    product<Tile, K_OUTER, K_OUTER, float>("d_weight", (m + 7) / 8 * 8, n, k, wider, wider);
}

// A block that computes one tile of a row after the other, as who folds the columns of C does, and takes the sums by pairs.
template <class Tile>
static void row_of_tiles(const bf16* a, const bf16* b, float* out, unsigned m, unsigned n, unsigned k) {
    for (unsigned column = 0; column < n; column += Tile::n) {
        const GemmPlace place{blockIdx.x * Tile::m, column};
        const GemmTerm terms[1] = {{a, b, k, k, k}};
        Tile tile;
        gemm_sums<Tile, K_INNER, K_INNER>(tile, terms, m, n, place);
        for_each_pair(tile, place, [&](unsigned row, unsigned column, float x, float y) {
            if (row >= m || column >= n) return;
            out[size_t(row) * n + column] = x;
            out[size_t(row) * n + column + 1] = y;
        });
    }
}

template <class Tile>
static void rows_of_tiles(unsigned m, unsigned n, unsigned k) {
    Case c("gemm_sums", std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k));
    auto& a = c.random<bf16>("a", size_t(m) * k, 1);
    auto& b = c.random<bf16>("b", size_t(n) * k, 2);
    auto& out = c.result<float>("c", size_t(m) * n);
    c.run([&] {
        LAUNCH(row_of_tiles<Tile>, (m + Tile::m - 1) / Tile::m, Tile::threads, a.data(), b.data(), out.data(), m, n, k);
    });
    const Numbers as = numbers(a), bs = numbers(b);
    Numbers want(out.size());
    for (size_t i = 0; i < want.size(); ++i)
        for (unsigned at = 0; at < k; ++at) want[i] += as[i / n * k + at] * bs[i % n * k + at];
    c.expect("row of tiles", out, want);
}

// The kernels that are launched, with the tokens split.
static void layer(unsigned rows, unsigned inputs, unsigned outputs, unsigned k_of_split) {
    Case c("linear layer", std::to_string(rows) + " x " + std::to_string(inputs) + " -> " + std::to_string(outputs));
    auto& x = c.random<bf16>("x", size_t(rows) * inputs, 1);
    auto& weight = c.random<bf16>("weight", size_t(outputs) * inputs, 2);
    auto& d_y = c.random<bf16>("d_y", size_t(rows) * outputs, 4);
    auto& y = c.result<bf16>("y", size_t(rows) * outputs);
    auto& d_x = c.result<bf16>("d_x", size_t(rows) * inputs);
    const unsigned splits = (rows + k_of_split - 1) / k_of_split, count = outputs * inputs,
                   t = LinearTile::threads;
    auto& partial = c.result<float>("partial", size_t(splits) * count);
    auto& d_weight = c.result<float>("d_weight", count);
    const auto gradient = Case::some<float>(count, 5);
    auto& accumulated = c.state<float>("gradient", gradient);
    const LinearSizes forward{rows, outputs, inputs, inputs, inputs, outputs, 0, 0, 0, 8, inputs, 0, 1.0f};
    const LinearSizes input{rows, inputs, outputs, outputs, inputs, inputs, 0, 0, 0, 8, outputs, 0, 1.0f};
    const LinearSizes of_weight{outputs, inputs, rows, outputs, inputs, inputs, 0, 0, 0, 8, k_of_split, 0, 1.0f};
    c.run([&] {
        LAUNCH(linear_forward, tiles<LinearTile>(rows, outputs), t, x.data(), weight.data(), y.data(), forward);
        LAUNCH(linear_backward_input, tiles<LinearTile>(rows, inputs), t, d_y.data(), weight.data(), d_x.data(), input);
        LAUNCH(linear_backward_weight, dim3(tiles<LinearTile>(outputs, inputs), 1, splits), t, d_y.data(), x.data(),
               partial.data(), of_weight);
        const SumSplitsSizes sum{splits, 0, {count}}, add{splits, 1, {count}};
        float *const whole = d_weight.data(), *const total = accumulated.data();
        LAUNCH(sum_splits, (count + 1023) / 1024, 256, partial.data(), whole, whole, whole, whole, sum);
        LAUNCH(sum_splits, (count + 1023) / 1024, 256, partial.data(), total, total, total, total, add);
    });
    const Numbers xs = numbers(x), ws = numbers(weight), dys = numbers(d_y);
    Numbers ys(y.size()), dx(d_x.size()), dw(count), added;
    for (unsigned row = 0; row < rows; ++row)
        for (unsigned j = 0; j < outputs; ++j) {
            const double dy = dys[row * outputs + j];
            for (unsigned i = 0; i < inputs; ++i) {
                ys[row * outputs + j] += xs[row * inputs + i] * ws[j * inputs + i];
                dx[row * inputs + i] += dy * ws[j * inputs + i];
                dw[j * inputs + i] += dy * xs[row * inputs + i];
            }
        }
    for (size_t i = 0; i < count; ++i) added.push_back(dw[i] + gradient[i]);
    c.expect("y", y, ys);
    c.expect("d_x", d_x, dx);
    c.expect("d_weight of splits", d_weight, dw);
    c.expect("d_weight accumulated", accumulated, added);
}

template <class Tile, Order A, Order B, class T>
static void in_tile(const bf16* a, const bf16* b, T* c, LinearSizes sizes) {
    const unsigned splits = (sizes.k + sizes.k_of_split - 1) / sizes.k_of_split;
    LAUNCH((linear_tile<Tile, A, B>), dim3(tiles<Tile>(sizes.m, sizes.n), 1, splits), Tile::threads, a, b, c, sizes);
}

// Which tile a product is computed in changes no bit of it: C, or its parts where k is split.
template <Order A, Order B, class T, class First, class... Others>
static void same_in_all_tiles(const char* name, unsigned m, unsigned n, unsigned k, unsigned k_of_split, bool accumulate) {
    const std::string sizes = std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k);
    Case c("linear", sizes);
    auto& a = A == K_INNER ? c.given("a", mirrored(m, k, false, 1, -1)) : c.given("a", mirrored(k, m, true, 1, -1));
    auto& b = B == K_INNER ? c.given("b", mirrored(n, k, false, 2, 1)) : c.given("b", mirrored(k, n, true, 2, 1));
    const unsigned splits = (k + k_of_split - 1) / k_of_split;
    const auto before = Case::some<T>(size_t(splits) * m * n, 3, 1e-6);
    auto& first = c.state<T>("c", before);
    std::vector<Buffer<T>*> others;
    for (size_t i = 0; i < sizeof...(Others); ++i) others.push_back(&c.state<T>("c of another tile", before));
    const LinearSizes of{m, n, k, A == K_INNER ? k : m, B == K_INNER ? k : n, n, 0, 0, 0, 2, k_of_split, accumulate, 0.5f};
    c.run([&] {
        in_tile<First, A, B>(a.data(), b.data(), first.data(), of);
        size_t i = 0;
        (in_tile<Others, A, B>(a.data(), b.data(), others[i++]->data(), of), ...);
    });
    for (const auto* other : others) same_bits(std::string("in all tiles: ") + name, sizes, *other, first);
}

template <class... Tiles>
static void same_in_all_tiles(unsigned m, unsigned n, unsigned k, bool accumulate) {
    const unsigned even = (k + 7) / 8 * 8, even_m = (m + 7) / 8 * 8;
    same_in_all_tiles<K_INNER, K_INNER, bf16, Tiles...>("y", m, n, even, even, accumulate);
    same_in_all_tiles<K_INNER, K_OUTER, bf16, Tiles...>("d_x", m, n, even, even, accumulate);
    same_in_all_tiles<K_OUTER, K_OUTER, float, Tiles...>("d_weight", even_m, n, k, k, accumulate);
    same_in_all_tiles<K_OUTER, K_OUTER, float, Tiles...>("parts of d_weight", even_m, n, k, 64, false);
}

// A few rows, with and without an adapter, against the product in double, and each row against itself alone.
template <int N>
static void by_row(unsigned rows, unsigned inputs, unsigned outputs, unsigned rank) {
    const std::string name = std::to_string(rows) + " x " + std::to_string(inputs) + " x " + std::to_string(outputs) + ", rank " +
                             std::to_string(rank) + ", " + std::to_string(N) + " at a time";
    Case c("linear_by_row", name);
    auto& x = c.random<bf16>("x", size_t(rows) * inputs, 1);
    auto& weight = c.random<bf16>("weight", size_t(outputs) * inputs, 2);
    auto& u = c.random<float>("u", size_t(rows) * rank, 3);
    auto& b = c.random<bf16>("b", size_t(outputs) * rank, 4);
    auto& y = c.result<bf16>("y", size_t(rows) * outputs);
    auto& wide = c.result<float>("wide", y.size());
    auto& alone = c.result<bf16>("alone", y.size());
    const unsigned blocks = (outputs + 31) / 32;
    c.run([&] {
        LAUNCH((linear_rows<N, bf16>), dim3(blocks, (rows + N - 1) / N), 256, x.data(), weight.data(), u.data(), b.data(), y.data(),
               {rows, inputs, outputs, rank, 0.5f});
        LAUNCH((linear_rows<N, float>), dim3(blocks, (rows + N - 1) / N), 256, x.data(), weight.data(), nullptr, nullptr, wide.data(),
               {rows, inputs, outputs, 0, 0.0f});
        for (size_t row = 0; row < rows; ++row)
            LAUNCH((linear_rows<1, bf16>), dim3(blocks), 256, x.data() + row * inputs, weight.data(), u.data() + row * rank, b.data(),
                   alone.data() + row * outputs, {1, inputs, outputs, rank, 0.5f});
    });
    const Numbers xs = numbers(x), w = numbers(weight), us = numbers(u), bs = numbers(b);
    Numbers of_base(y.size()), of_both(y.size());
    for (size_t row = 0; row < rows; ++row)
        for (size_t o = 0; o < outputs; ++o) {
            double sum = 0, added = 0;
            for (size_t i = 0; i < inputs; ++i) sum += xs[row * inputs + i] * w[o * inputs + i];
            for (size_t i = 0; i < rank; ++i) added += us[row * rank + i] * bs[o * rank + i];
            of_base[row * outputs + o] = sum;
            of_both[row * outputs + o] = sum + 0.5 * added;
        }
    c.expect("y", y, of_both);
    c.expect("wide", wide, of_base);
    same_bits("linear_by_row: alone", name, alone, y);
}

int main() {
    by_row<1>(1, 256, 32, 0);
    by_row<1>(1, 70, 7, 5);
    by_row<2>(2, 520, 66, 8);
    by_row<4>(3, 264, 40, 40);
    by_row<8>(8, 300, 33, 16);
    by_row<8>(19, 72, 136, 3);
    using Wide = GemmTile<128, 128, 32, 2, 2, 3>;
    using Wider = GemmTile<128, 256, 32, 2, 4, 4>;
    using Square = GemmTile<64, 64, 64, 2, 2, 3>;
    using Shallow = GemmTile<128, 128, 32, 2, 2, 2>;
    using Narrow = GemmTile<64, 16, 64, 4, 1, 4>;
    using Flat = GemmTile<16, 64, 64, 1, 4, 4>;
    // Fewer depths than stages, one more and several; odd edges; several columns and rows of tiles.
    products<Wide>(1, 8, 1);
    products<Wide>(130, 136, 63);
    products<Wide>(64, 72, 193, true);
    products<Wide>(300, 136, 40);
    products<Wider>(130, 264, 130, true);
    products<Square>(63, 8, 64);
    products<Square>(130, 136, 65, true);
    products<Square>(65, 72, 321);
    products<Narrow>(130, 16, 130);
    products<Narrow>(65, 24, 321, true);
    products<Flat>(1, 136, 130);
    products<Flat>(17, 72, 321, true);
    // Less than a tile, odd edges, a depth of neither tile; more than the widest tile.
    same_in_all_tiles<Wide, Wider, Square, Narrow, Flat>(1, 8, 1, false);
    same_in_all_tiles<Wide, Wider, Square, Narrow, Flat>(67, 72, 193, true);
    same_in_all_tiles<Wide, Wider, Flat, Shallow>(130, 264, 70, false);
    // As many depths as stages: the next tile starts in the stage that was read last.
    rows_of_tiles<Wide>(65, 264, 72);
    rows_of_tiles<Square>(130, 200, 264);
    // Few heads: half a chunk of columns is written, and no more.
    product<Narrow, K_INNER, K_INNER, bf16>("y", 65, 4, 72);
    product<Square, K_INNER, K_INNER, bf16>("y", 65, 12, 72);
    for (unsigned rows : {1, 63, 130}) layer(rows, 72, 136, 40);
    layer(65, 8, 264, 65);
    return finish();
}
