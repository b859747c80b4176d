// Rounding to e4m3 by rows and by columns, and the products of what was rounded, on the emulator: bytes and scales against their
// definition, products against double sums of the rounded numbers.
#include "fp8.cuh"
#include "quantize.cuh"
#include "../emulator/check.hpp"

using namespace check;
using Bytes = std::vector<unsigned char>;

template <class Tile>
static unsigned tiles(unsigned m, unsigned n) {
    return (m + Tile::m - 1) / Tile::m * ((n + Tile::n - 1) / Tile::n);
}

static unsigned parts(unsigned outputs) { return (outputs + 255) / 256; }

// The least power of two by which all of them are at most 448; not a number where one is not finite.
static double scale_of(const Numbers& numbers) {
    double largest = 0;
    for (double x : numbers) {
        if (!std::isfinite(x)) return NAN;
        largest = std::max(largest, std::fabs(x));
    }
    double scale = 0x1p-126;
    while (largest > 448 * scale) scale *= 2;
    return scale;
}

// Rows that share a scale: the matrices side by side, rounded, and what they stand for.
struct Rounded {
    Bytes bytes;
    Numbers scales, values;
};

static Rounded rounded(const std::vector<Numbers>& matrices, size_t rows) {
    Rounded all;
    for (size_t row = 0; row < rows; ++row) {
        Numbers line;
        for (const Numbers& matrix : matrices) {
            const size_t width = matrix.size() / rows;
            line.insert(line.end(), matrix.begin() + row * width, matrix.begin() + (row + 1) * width);
        }
        const double scale = scale_of(line);
        all.scales.push_back(scale);
        for (double x : line) {
            all.bytes.push_back(emulator::e4m3_bits(float(x / scale)));
            all.values.push_back(scale * emulator::e4m3_value(all.bytes.back()));
        }
    }
    return all;
}

static Numbers transposed(const Numbers& a, size_t rows) {
    const size_t columns = a.size() / rows;
    Numbers t(a.size());
    for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
    return t;
}

// [rows, inner] · [columns, inner]ᵀ
static Numbers times(const Numbers& a, const Numbers& b, size_t rows, size_t columns) {
    const size_t inner = a.size() / rows;
    Numbers c(rows * columns);
    for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j)
            for (size_t at = 0; at < inner; ++at) c[i * columns + j] += a[i * inner + at] * b[j * inner + at];
    return c;
}

static void add(Numbers& to, const Numbers& x) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += x[i];
}

static bool same(const Buffer<unsigned char>& bytes, const Buffer<float>& scales, const Rounded& want) {
    bool same = bytes.size() == want.bytes.size() && scales.size() == want.scales.size();
    for (size_t i = 0; same && i < bytes.size(); ++i) same &= bytes[i] == want.bytes[i];
    for (size_t i = 0; same && i < scales.size(); ++i)
        same &= double(scales[i]) == want.scales[i] || (std::isnan(scales[i]) && std::isnan(want.scales[i]));
    return same;
}

// Numbers whose rows, or columns, are of very different sizes: huge, tiny, too small for a scale, zeros; all numbers of a row too.
static std::vector<bf16> uneven(size_t rows, size_t columns, uint64_t seed, bool by_column) {
    const double sizes[] = {1, 1e30, 0x1p-40, 0, 3e-4, 0x1p-130, 1e-30, 448, 7e4};
    auto x = Case::some<bf16>(rows * columns, seed);
    for (size_t row = 0; row < rows; ++row)
        for (size_t column = 0; column < columns; ++column) {
            const double size = sizes[(by_column ? column : row) % 9], down = std::ldexp(1.0, -int(row + column) % 20);
            bf16& at = x[row * columns + column];
            assign(at, size * down * value(at));
        }
    return x;
}

// One number that is not finite in every seventh row or column.
static void spoil(std::vector<bf16>& x, size_t rows, size_t columns, bool by_column) {
    const bf16 wrong[] = {bf16{0x7f80}, bf16{0xff80}, bf16{0x7fc0}};
    for (size_t i = 0; i < (by_column ? columns : rows); i += 7) {
        const size_t other = 5 * i % (by_column ? rows : columns);
        x[by_column ? other * columns + i : i * columns + other] = wrong[i / 7 % 3];
    }
}

static void rows_are_rounded(unsigned rows, const std::vector<unsigned>& widths) {
    Case c("quantize_rows", std::to_string(rows) + " rows of " + std::to_string(widths.size()));
    std::vector<Buffer<bf16>*> x;
    QuantizeRowsSizes sizes{rows, {0, 0, 0, 0}};
    unsigned all = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
        auto numbers = uneven(rows, widths[i], 10 + i, false);
        if (i == 0) spoil(numbers, rows, widths[i], false);
        x.push_back(&c.given<bf16>("x", numbers));
        all += sizes.width[i] = widths[i];
    }
    auto& q = c.result<unsigned char>("q", size_t(rows) * all);
    auto& scale = c.result<float>("scale", rows);
    const auto at = [&](size_t i) { return x[std::min(i, x.size() - 1)]->data(); };
    c.run([&] {
        LAUNCH(quantize_rows, (rows + 7) / 8, 256, at(0), at(1), at(2), at(3), q.data(), scale.data(), sizes);
    });
    std::vector<Numbers> matrices;
    for (const Buffer<bf16>* matrix : x) matrices.push_back(numbers(*matrix));
    if (!same(q, scale, rounded(matrices, rows))) failed("quantize_rows", std::to_string(rows) + ": other bytes or scales");
    ++row_of("quantize_rows").cases;
}

static void columns_are_rounded(unsigned width, const std::vector<unsigned>& outputs) {
    Case c("quantize_columns", std::to_string(width) + " columns of " + std::to_string(outputs.size()));
    std::vector<Buffer<bf16>*> weights;
    unsigned depth = 0, all_parts = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
        auto numbers = uneven(outputs[i], width, 20 + i, true);
        if (i == 0) spoil(numbers, outputs[i], width, true);
        weights.push_back(&c.given<bf16>("W", numbers));
        depth += outputs[i];
        all_parts += parts(outputs[i]);
    }
    auto& maxima = c.result<u32>("maxima", size_t(all_parts) * width);
    auto& scale = c.result<float>("scale", width);
    auto& q = c.result<unsigned char>("q", size_t(width) * depth);
    c.run([&] {
        for (unsigned i = 0, part = 0; i < outputs.size(); part += parts(outputs[i++])) {
            const ColumnMaximaSizes sizes{outputs[i], width, part};
            LAUNCH(column_maxima, dim3((width + 255) / 256, parts(outputs[i])), 256, weights[i]->data(), maxima.data(), sizes);
        }
        const ColumnScalesSizes of_scales{all_parts, width};
        LAUNCH(column_scales, (width + 255) / 256, 256, maxima.data(), scale.data(), of_scales);
        for (unsigned i = 0, first = 0; i < outputs.size(); first += outputs[i++]) {
            const QuantizeColumnsSizes sizes{outputs[i], width, depth, first};
            LAUNCH(quantize_columns, dim3((width + 63) / 64, (outputs[i] + 127) / 128), 256, weights[i]->data(), scale.data(),
                   q.data(), sizes);
        }
    });
    std::vector<Numbers> turned;
    for (size_t i = 0; i < weights.size(); ++i) turned.push_back(transposed(numbers(*weights[i]), outputs[i]));
    if (!same(q, scale, rounded(turned, width))) failed("quantize_columns", std::to_string(width) + ": other bytes or scales");
    ++row_of("quantize_columns").cases;
}

// What the host has rounded already, as the products take it.
struct Operand {
    Buffer<unsigned char>& bytes;
    Buffer<float>& scales;
    Operand(Case& c, const Rounded& rounded)
        : bytes(c.given<unsigned char>("e4m3", rounded.bytes)),
          scales(c.given<float>("scales", std::vector<float>(rounded.scales.begin(), rounded.scales.end()))) {}
};

// Numbers of a bf16 buffer, each row of another size.
static Numbers some(size_t rows, size_t columns, uint64_t seed) {
    Numbers x;
    const auto numbers = Case::some<bf16>(rows * columns, seed);
    for (size_t i = 0; i < numbers.size(); ++i) x.push_back(std::ldexp(value(numbers[i]), int(i / columns % 3)));
    return x;
}

template <class Tile>
static void forward(unsigned m, unsigned k, unsigned n, unsigned rank) {
    Case c("fp8", std::to_string(m) + " x " + std::to_string(k) + " -> " + std::to_string(n) + " r " + std::to_string(rank));
    const unsigned u_pitch = rank + 16, u_first = 8;
    const Rounded x = rounded({some(m, k, 1)}, m), weight = rounded({some(n, k, 2)}, n);
    const Operand x8(c, x), weight8(c, weight);
    auto& u = c.random<bf16>("u", size_t(m) * u_pitch, 3);
    auto& b = c.random<bf16>("B", size_t(n) * std::max(rank, 1u), 4);
    auto& y = c.result<bf16>("y", size_t(m) * n);
    const Fp8ForwardSizes sizes{m, n, k, rank, u_pitch, u_first, 8};
    c.run([&] {
        LAUNCH(fp8_forward_tile<Tile>, tiles<Tile>(m, n), Tile::threads, x8.bytes.data(), x8.scales.data(),
               weight8.bytes.data(), weight8.scales.data(), u.data(), b.data(), y.data(), sizes);
    });
    Numbers want = times(x.values, weight.values, m, n), of_u;
    for (size_t row = 0; row < m; ++row)
        for (size_t j = 0; j < rank; ++j) of_u.push_back(value(u[row * u_pitch + u_first + j]));
    if (rank) add(want, times(of_u, numbers(b), m, n));
    c.expect("y", y, want);
}

// Layers in e4m3 and layers in bf16.
template <class Tile>
static void backward(unsigned m, unsigned n, const std::vector<unsigned>& in_e4m3, const std::vector<unsigned>& in_bf16,
                     unsigned rank) {
    std::string words = std::to_string(m) + " x " + std::to_string(n) + " <-";
    for (unsigned outputs : in_e4m3) words += " " + std::to_string(outputs);
    words += " and";
    for (unsigned outputs : in_bf16) words += " " + std::to_string(outputs);
    Case c("fp8", words + " r " + std::to_string(rank));
    std::vector<Numbers> d_ys, turned;
    unsigned depth = 0;
    for (unsigned outputs : in_e4m3) {
        depth += outputs;
        d_ys.push_back(some(m, outputs, depth));
        turned.push_back(some(n, outputs, depth + 1));
    }
    const Rounded d_y = rounded(d_ys, m), weight = rounded(turned, n);
    const Operand d_y8(c, d_y), weight8(c, weight);
    auto& d_u = c.random<bf16>("d_u", size_t(m) * std::max(rank, 1u), 5);
    auto& a = c.random<bf16>("A", size_t(std::max(rank, 1u)) * n, 6);
    auto& d_x = c.result<bf16>("d_x", size_t(m) * n);
    Numbers want = times(d_y.values, weight.values, m, n);
    if (rank) add(want, times(numbers(d_u), transposed(numbers(a), rank), m, n));
    Fp8InputSizes sizes{m, n, depth, rank, {0, 0, 0, 0}, {0, 0, 0, 0}, 8};
    const bf16* d_y16[FP8_LAYERS] = {d_u.data(), d_u.data(), d_u.data(), d_u.data()};
    const bf16* weight16[FP8_LAYERS] = {a.data(), a.data(), a.data(), a.data()};
    for (unsigned i = 0; i < in_bf16.size(); ++i) {
        // Zeros behind the outputs up to eight.
        const unsigned pitch = (in_bf16[i] + 7) / 8 * 8;
        auto padded = Case::some<bf16>(size_t(m) * pitch, 30 + i);
        for (size_t at = 0; at < padded.size(); ++at)
            if (at % pitch >= in_bf16[i]) padded[at] = bf16{0};
        auto& of_layer = c.given<bf16>("d_y", padded);
        auto& layer = c.random<bf16>("W", size_t(in_bf16[i]) * n, 40 + i);
        // The first place stays empty.
        d_y16[i + 1] = of_layer.data();
        weight16[i + 1] = layer.data();
        sizes.outputs[i + 1] = in_bf16[i];
        sizes.d_y_pitch[i + 1] = pitch;
        Numbers d_y_of_layer;
        for (size_t at = 0; at < of_layer.size(); ++at)
            if (at % pitch < in_bf16[i]) d_y_of_layer.push_back(value(of_layer[at]));
        add(want, times(d_y_of_layer, transposed(numbers(layer), in_bf16[i]), m, n));
    }
    c.run([&] {
        LAUNCH(fp8_input_tile<Tile>, tiles<Tile>(m, n), Tile::threads, d_y8.bytes.data(), d_y8.scales.data(),
               weight8.bytes.data(), weight8.scales.data(), d_y16, weight16, d_u.data(), a.data(), d_x.data(), sizes);
    });
    c.expect("d_x", d_x, want);
}

// From bf16 to the result by the kernels' names, with rows and columns far apart in size; where a row of x, or of W, is not
// finite the result is not a number, and nowhere else.
static void named() {
    const unsigned m = 65, k = 80, n = 144, t = Fp8Tile::threads;
    Case c("fp8 named", "65 x 80 -> 144");
    std::vector<bf16> of_x = Case::some<bf16>(m * k, 1), of_weight = Case::some<bf16>(n * k, 2);
    const double far[] = {1, 1e20, 1e-10, 0}, far_of_weight[] = {1, 1e15, 1e-20};
    for (unsigned i = 0; i < of_x.size(); ++i) assign(of_x[i], far[i / k % 4] * value(of_x[i]));
    for (unsigned i = 0; i < of_weight.size(); ++i) assign(of_weight[i], far_of_weight[i / k % 3] * value(of_weight[i]));
    of_x[7 * k + 3] = bf16{0x7fc0};
    of_weight[9 * k] = bf16{0xff80};
    auto& x = c.given<bf16>("x", of_x);
    auto& weight = c.given<bf16>("W", of_weight);
    auto& x8 = c.result<unsigned char>("x e4m3", m * k);
    auto& of_rows = c.result<float>("scales of x", m);
    auto& weight8 = c.result<unsigned char>("W e4m3", n * k);
    auto& of_columns = c.result<float>("scales of W", n);
    auto& y = c.result<bf16>("y", m * n);
    auto& d_x = c.result<bf16>("d_x", m * n);
    const QuantizeRowsSizes sizes_x{m, {k, 0, 0, 0}}, sizes_w{n, {k, 0, 0, 0}};
    const Fp8ForwardSizes forward{m, n, k, 0, 0, 0, 8};
    const Fp8InputSizes input{m, n, k, 0, {0, 0, 0, 0}, {0, 0, 0, 0}, 8};
    c.run([&] {
        LAUNCH(quantize_rows, (m + 7) / 8, 256, x.data(), x.data(), x.data(), x.data(), x8.data(), of_rows.data(), sizes_x);
        LAUNCH(quantize_rows, (n + 7) / 8, 256, weight.data(), weight.data(), weight.data(), weight.data(), weight8.data(),
               of_columns.data(), sizes_w);
        LAUNCH(fp8_linear_forward, tiles<Fp8Tile>(m, n), t, x8.data(), of_rows.data(), weight8.data(), of_columns.data(),
               x.data(), x.data(), y.data(), forward);
        // The same product by the other kernel's name.
        LAUNCH(fp8_linears_backward_input, tiles<Fp8Tile>(m, n), t, x8.data(), of_rows.data(), weight8.data(),
               of_columns.data(), x.data(), x.data(), x.data(), x.data(), x.data(), x.data(), x.data(), x.data(), x.data(),
               x.data(), d_x.data(), input);
    });
    const Numbers want = times(rounded({numbers(x)}, m).values, rounded({numbers(weight)}, n).values, m, n);
    // By sizes: each row and column against its own.
    double error = 0, square = 0;
    bool spoiled = true;
    for (unsigned i = 0; i < m * n; ++i) {
        const bool finite = i / n != 7 && i % n != 9;
        spoiled &= finite == std::isfinite(value(y[i])) && y[i].bits == d_x[i].bits;
        if (!finite) continue;
        const double size = (far[i / n % 4] ? far[i / n % 4] : 1) * far_of_weight[i % n % 3];
        error += std::pow((value(y[i]) - want[i]) / size, 2);
        square += std::pow(want[i] / size, 2);
    }
    if (!spoiled) failed("fp8 named", "what is not finite stays so, and nothing else becomes so");
    if (!(std::sqrt(error / square) <= BF16.relative_l2)) failed("fp8 named", "far sizes: " + std::to_string(error / square));
    ++row_of("fp8 named").cases;
}

int main() {
    using Wide = GemmTile<128, 128, 32, 2, 4, 3>;
    using Square = GemmTile<64, 64, 64, 2, 2, 3>;
    rows_are_rounded(1, {16});
    rows_are_rounded(65, {528, 16, 0, 272});
    rows_are_rounded(130, {64});
    columns_are_rounded(16, {16});
    columns_are_rounded(272, {64, 144});
    columns_are_rounded(80, {528, 16, 128, 64});
    forward<Wide>(130, 80, 144, 24);
    forward<Wide>(1, 16, 64, 0);
    forward<Wide>(64, 528, 80, 8);
    forward<Wide>(65, 272, 272, 16);
    forward<Square>(63, 144, 64, 0);
    forward<Square>(130, 208, 136, 40);
    backward<Wide>(130, 80, {64, 144}, {16, 8}, 24);
    backward<Wide>(63, 144, {528}, {}, 0);
    backward<Wide>(65, 272, {64, 64, 80}, {12}, 16);
    backward<Square>(1, 64, {64}, {8, 4, 12}, 0);
    backward<Square>(130, 208, {272, 64, 64, 64}, {}, 8);
    if (emulator::bank_conflicts) failed("fp8", "a bank of shared memory is met twice");
    named();
    return finish();
}
