// Residual add and RMSNorm on the emulator against SPEC.md 2.1 in double.
#include "rms_norm.cuh"
#include "../emulator/check.hpp"
#include "../sum_rows/sum_rows.cuh"

using namespace check;

struct Gradients {
    Numbers x, weight;
};

static Numbers norm(const Numbers& x, const Numbers& w, double offset, double eps) {
    const size_t width = w.size();
    Numbers y(x.size());
    for (size_t row = 0; row < x.size(); row += width) {
        double square = 0;
        for (size_t i = 0; i < width; ++i) square += x[row + i] * x[row + i];
        for (size_t i = 0; i < width; ++i)
            y[row + i] = x[row + i] / std::sqrt(square / double(width) + eps) * (w[i] + offset);
    }
    return y;
}

static Gradients gradients(const Numbers& x, const Numbers& w, const Numbers& dy, double offset, double eps) {
    const size_t width = w.size();
    Gradients d{Numbers(x.size()), Numbers(width)};
    for (size_t row = 0; row < x.size(); row += width) {
        double square = 0, product = 0;
        for (size_t i = 0; i < width; ++i) {
            square += x[row + i] * x[row + i];
            product += dy[row + i] * (w[i] + offset) * x[row + i];
        }
        const double root = std::sqrt(square / double(width) + eps);
        for (size_t i = 0; i < width; ++i) {
            d.x[row + i] = dy[row + i] * (w[i] + offset) / root - x[row + i] * product / (double(width) * root * root * root);
            d.weight[i] += dy[row + i] * x[row + i] / root;
        }
    }
    return d;
}

static void run(unsigned rows, unsigned width, float offset) {
    const size_t count = size_t(rows) * width;
    const unsigned threads = std::min(256u, ((width + 7) / 8 + 31) / 32 * 32), partials = std::min(rows, 7u);
    const float eps = 1e-6f;
    const RmsNormSizes sizes{rows, width, eps, offset};
    const SumRowsSizes sum{partials, width};
    Case c("rms_norm", std::to_string(rows) + " x " + std::to_string(width));
    auto& x = c.random<bf16>("x", count, 1);
    auto& residual = c.random<bf16>("residual", count, 2, 3.0);
    auto& weight = c.random<float>("weight", width, 3, 0.5);
    auto& d_y = c.random<bf16>("d_y", count, 4);
    auto& d_h = c.random<bf16>("d_h", count, 5);
    auto& y = c.result<bf16>("y", count);
    auto& y_alone = c.result<bf16>("y alone", count);
    auto& h = c.result<bf16>("h", count);
    auto& d_x = c.result<bf16>("d_x", count);
    auto& d_x_with_weight = c.result<bf16>("d_x beside d_weight", count);
    auto& d_x_alone = c.result<bf16>("d_x alone", count);
    auto& d_x_alone_with_weight = c.result<bf16>("d_x alone beside d_weight", count);
    auto& partial = c.result<float>("partial", size_t(partials) * width);
    auto& partial_alone = c.result<float>("partial alone", size_t(partials) * width);
    auto& d_weight = c.result<float>("d_weight", width);
    auto& d_weight_alone = c.result<float>("d_weight alone", width);
    c.run([&] {
        LAUNCH(add_rms_norm_forward, rows, threads, x.data(), residual.data(), weight.data(), h.data(), y.data(), sizes);
        LAUNCH(rms_norm_forward, rows, threads, x.data(), weight.data(), y_alone.data(), sizes);
        LAUNCH(add_rms_norm_backward, rows, threads, h.data(), weight.data(), d_y.data(), d_h.data(), d_x.data(), sizes);
        LAUNCH(add_rms_norm_backward_weight, partials, threads, h.data(), weight.data(), d_y.data(), d_h.data(),
               d_x_with_weight.data(), partial.data(), sizes);
        LAUNCH(rms_norm_backward, rows, threads, x.data(), weight.data(), d_y.data(), d_x_alone.data(), sizes);
        LAUNCH(rms_norm_backward_weight, partials, threads, x.data(), weight.data(), d_y.data(), d_x_alone_with_weight.data(),
               partial_alone.data(), sizes);
        LAUNCH(sum_rows, (width + 31) / 32, 256, partial.data(), d_weight.data(), sum);
        LAUNCH(sum_rows, (width + 31) / 32, 256, partial_alone.data(), d_weight_alone.data(), sum);
    });

    Numbers sums, normed = numbers(h);
    const Numbers xs = numbers(x), residuals = numbers(residual), w = numbers(weight), dy = numbers(d_y), dh = numbers(d_h);
    for (size_t i = 0; i < count; ++i) sums.push_back(xs[i] + residuals[i]);
    c.expect("h", h, sums);
    // From here on from the h that was stored.
    c.expect("y", y, norm(normed, w, offset, eps));
    c.expect("y without add", y_alone, norm(xs, w, offset, eps));
    Gradients d = gradients(normed, w, dy, offset, eps);
    slope_agrees("rms_norm", [&](const Numbers& x) { return norm(x, w, offset, eps); }, normed, dy, d.x);
    slope_agrees("rms_norm", [&](const Numbers& w) { return norm(normed, w, offset, eps); }, w, dy, d.weight);
    for (size_t i = 0; i < count; ++i) d.x[i] += dh[i];
    c.expect("d_x", d_x, d.x);
    c.expect("d_x", d_x_with_weight, d.x);
    c.expect("d_weight", d_weight, d.weight);
    const Gradients alone = gradients(xs, w, dy, offset, eps);
    c.expect("d_x without add", d_x_alone, alone.x);
    c.expect("d_x without add", d_x_alone_with_weight, alone.x);
    c.expect("d_weight without add", d_weight_alone, alone.weight);
}

int main() {
    for (unsigned rows : {1, 63, 64, 65, 130})
        for (unsigned width : {7, 70, 192}) run(rows, width, 1.0f);
    // More rows than blocks, and several warps: one row's sums must not meet the next one's.
    run(16, 520, 1.0f);
    run(9, 2048, 1.0f);
    run(3, 5120, 0.0f);
    run(2, 8192, 1.0f);
    return finish();
}
