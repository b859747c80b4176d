// The gated norm on the emulator against SPEC.md 2.4 step 8 in double.
#include "gated_rms_norm.cuh"
#include "../emulator/check.hpp"
#include "../sum_rows/sum_rows.cuh"

using namespace check;

static double silu_of(double z) { return z * sigmoid(z); }

static Numbers norm(const Numbers& x, const Numbers& z, const Numbers& w, double eps) {
    const size_t width = w.size();
    Numbers y(x.size());
    for (size_t row = 0; row < x.size(); row += width) {
        double square = 0;
        for (size_t i = row; i < row + width; ++i) square += x[i] * x[i];
        const double root = std::sqrt(square / double(width) + eps);
        for (size_t i = row; i < row + width; ++i) y[i] = x[i] / root * w[i - row] * silu_of(z[i]);
    }
    return y;
}

static void run(unsigned tokens, unsigned heads, unsigned width, unsigned lanes) {
    const unsigned vectors = tokens * heads, per_block = 256 / lanes;
    const unsigned all = (vectors + per_block - 1) / per_block, partials = std::min(all, 3u);
    const size_t count = size_t(vectors) * width;
    const float eps = 1e-6f;
    const GatedRmsNormSizes sizes{vectors, width, lanes, eps};
    Case c("gated_rms_norm", std::to_string(tokens) + " x " + std::to_string(heads) + " x " + std::to_string(width));
    auto& x = c.random<bf16>("x", count, 1);
    auto& z = c.random<bf16>("z", count, 2, 4.0);
    auto& weight = c.random<float>("weight", width, 3, 2.0);
    auto& d_y = c.random<bf16>("d_y", count, 4);
    auto& y = c.result<bf16>("y", count);
    auto& d_x = c.result<bf16>("d_x", count);
    auto& d_z = c.result<bf16>("d_z", count);
    auto& d_x_with_weight = c.result<bf16>("d_x beside d_weight", count);
    auto& d_z_with_weight = c.result<bf16>("d_z beside d_weight", count);
    auto& partial = c.result<float>("partial", size_t(partials) * width);
    auto& d_weight = c.result<float>("d_weight", width);
    c.run([&] {
        LAUNCH(gated_rms_norm_forward, all, 256, x.data(), z.data(), weight.data(), y.data(), sizes);
        LAUNCH(gated_rms_norm_backward, all, 256, x.data(), z.data(), weight.data(), d_y.data(), d_x.data(), d_z.data(), sizes);
        LAUNCH(gated_rms_norm_backward_weight, partials, 256, x.data(), z.data(), weight.data(), d_y.data(),
               d_x_with_weight.data(), d_z_with_weight.data(), partial.data(), sizes);
        LAUNCH(sum_rows, (width + 31) / 32, 256, partial.data(), d_weight.data(), {partials, width});
    });

    const Numbers xs = numbers(x), zs = numbers(z), w = numbers(weight), dy = numbers(d_y);
    Numbers dx(count), dz(count), dw(width);
    for (size_t row = 0; row < count; row += width) {
        double square = 0, product = 0;
        for (size_t i = row; i < row + width; ++i) {
            square += xs[i] * xs[i];
            product += dy[i] * silu_of(zs[i]) * w[i - row] * xs[i];
        }
        const double root = std::sqrt(square / width + eps);
        for (size_t i = row; i < row + width; ++i) {
            const double s = sigmoid(zs[i]), n = xs[i] / root;
            dx[i] = dy[i] * silu_of(zs[i]) * w[i - row] / root - xs[i] * product / (width * root * root * root);
            dz[i] = dy[i] * n * w[i - row] * (s + zs[i] * s * (1 - s));
            dw[i - row] += dy[i] * silu_of(zs[i]) * n;
        }
    }
    slope_agrees("gated_rms_norm", [&](const Numbers& x) { return norm(x, zs, w, eps); }, xs, dy, dx);
    slope_agrees("gated_rms_norm", [&](const Numbers& z) { return norm(xs, z, w, eps); }, zs, dy, dz);
    slope_agrees("gated_rms_norm", [&](const Numbers& w) { return norm(xs, zs, w, eps); }, w, dy, dw);
    c.expect("y", y, norm(xs, zs, w, eps));
    c.expect("d_x", d_x, dx);
    c.expect("d_z", d_z, dz);
    c.expect("d_x", d_x_with_weight, dx);
    c.expect("d_z", d_z_with_weight, dz);
    c.expect("d_weight", d_weight, dw);
}

int main() {
    for (unsigned tokens : {1, 63, 64, 65, 130}) {
        run(tokens, 3, 128, 16);
        run(tokens, 2, 32, 4);
    }
    run(65, 2, 70, 16);
    run(33, 1, 256, 32);
    run(17, 5, 8, 1);
    return finish();
}
