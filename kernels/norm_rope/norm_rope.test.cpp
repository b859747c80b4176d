// Head norm with partial rotary embedding on the emulator against SPEC.md 2.3 in double.
#include "norm_rope.cuh"
#include "../emulator/check.hpp"
#include "../sum_rows/sum_rows.cuh"

using namespace check;

// One kind of head: `joint [tokens, heads · stride]` → `[tokens, heads · dim]`.
struct Shape {
    size_t tokens, heads, dim, stride, rotary;
    double eps;
};

static Numbers rotated_heads(Numbers x, const Shape& s, const Numbers& cosines, const Numbers& sines, double direction) {
    const size_t half = s.rotary / 2;
    for (size_t head = 0; head < s.tokens * s.heads; ++head)
        for (size_t j = 0; j < half; ++j) {
            const double c = cosines[head / s.heads * half + j], t = direction * sines[head / s.heads * half + j];
            double &low = x[head * s.dim + j], &high = x[head * s.dim + j + half];
            const double a = low, b = high;
            low = a * c - b * t;
            high = b * c + a * t;
        }
    return x;
}

static double root_of(const Numbers& joint, size_t head, const Shape& s) {
    double square = 0;
    for (size_t i = 0; i < s.dim; ++i) square += joint[head * s.stride + i] * joint[head * s.stride + i];
    return std::sqrt(square / double(s.dim) + s.eps);
}

static Numbers forward(const Numbers& joint, const Numbers& w, const Shape& s, const Numbers& cosines, const Numbers& sines) {
    Numbers n(s.tokens * s.heads * s.dim);
    for (size_t head = 0; head < s.tokens * s.heads; ++head)
        for (size_t i = 0; i < s.dim; ++i)
            n[head * s.dim + i] = joint[head * s.stride + i] / root_of(joint, head, s) * (1 + w[i]);
    return rotated_heads(n, s, cosines, sines, 1);
}

static void backward(const Numbers& joint, const Numbers& w, const Shape& s, const Numbers& cosines, const Numbers& sines,
                     const Numbers& dy, Numbers& d_joint, Numbers& d_w) {
    const Numbers dn = rotated_heads(dy, s, cosines, sines, -1);
    d_joint.assign(joint.size(), 0);
    d_w.assign(s.dim, 0);
    for (size_t head = 0; head < s.tokens * s.heads; ++head) {
        const double root = root_of(joint, head, s);
        const double *x = &joint[head * s.stride], *d = &dn[head * s.dim];
        double product = 0;
        for (size_t i = 0; i < s.dim; ++i) product += d[i] * (1 + w[i]) * x[i];
        for (size_t i = 0; i < s.dim; ++i) {
            d_joint[head * s.stride + i] = d[i] * (1 + w[i]) / root - x[i] * product / (double(s.dim) * root * root * root);
            d_w[i] += d[i] * x[i] / root;
        }
    }
}

static void run(const std::vector<unsigned>& documents, unsigned heads, unsigned dim, unsigned rotary, unsigned lanes, bool gated) {
    std::vector<float> cosines_f32, sines_f32;
    unsigned tokens = 0;
    for (unsigned length : documents)
        for (unsigned position = 0; position < length; ++position, ++tokens)
            for (unsigned j = 0; j < rotary / 2; ++j) {
                const double angle = position * std::pow(1e7, -2.0 * j / rotary);
                cosines_f32.push_back(float(std::cos(angle)));
                sines_f32.push_back(float(std::sin(angle)));
            }
    const unsigned stride = gated ? 2 * dim : dim, per_block = 256 / lanes;
    const unsigned all = (tokens * heads + per_block - 1) / per_block, partials = std::min(all, 3u);
    const NormRopeSizes sizes{tokens, heads, dim, stride, rotary, lanes, 1e-6f, 1.0f};
    const size_t count = size_t(tokens) * heads * dim;
    Case c("norm_rope", std::to_string(tokens) + " x " + std::to_string(heads) + " x " + std::to_string(dim));
    auto& x = c.random<bf16>("x", size_t(tokens) * heads * stride, 1);
    auto& weight = c.random<float>("weight", dim, 3, 0.5);
    auto& cosines = c.given<float>("cosines", cosines_f32);
    auto& sines = c.given<float>("sines", sines_f32);
    auto& d_y = c.random<bf16>("d_y", count, 5);
    auto& y = c.result<bf16>("y", count);
    auto& d_x = c.result<bf16>("d_x", x.size());
    auto& d_x_too = c.result<bf16>("d_x beside d_weight", x.size());
    auto& partial = c.result<float>("partial", size_t(partials) * dim);
    auto& d_weight = c.result<float>("d_weight", dim);
    c.run([&] {
        LAUNCH(norm_rope_forward, all, 256, x.data(), weight.data(), cosines.data(), sines.data(), y.data(), sizes);
        LAUNCH(norm_rope_backward, all, 256, x.data(), weight.data(), cosines.data(), sines.data(), d_y.data(), d_x.data(), sizes);
        LAUNCH(norm_rope_backward_weight, partials, 256, x.data(), weight.data(), cosines.data(), sines.data(), d_y.data(),
               d_x_too.data(), partial.data(), sizes);
        LAUNCH(sum_rows, (dim + 31) / 32, 256, partial.data(), d_weight.data(), {partials, dim});
    });

    const Shape shape{tokens, heads, dim, stride, rotary, 1e-6};
    const Numbers cs = numbers(cosines), ss = numbers(sines), xs = numbers(x), w = numbers(weight), dy = numbers(d_y);
    c.expect("y", y, forward(xs, w, shape, cs, ss));
    Numbers dx, dw;
    backward(xs, w, shape, cs, ss, dy, dx, dw);
    slope_agrees("norm_rope", [&](const Numbers& x) { return forward(x, w, shape, cs, ss); }, xs, dy, dx);
    slope_agrees("norm_rope", [&](const Numbers& w) { return forward(xs, w, shape, cs, ss); }, w, dy, dw);
    c.expect("d_x", d_x, dx);
    c.expect("d_x", d_x_too, dx);
    c.expect("d_weight", d_weight, dw);
}

int main() {
    for (const auto& documents : {std::vector<unsigned>{1}, {63}, {64}, {65}, {1, 1, 60, 3, 65}}) {
        run(documents, 8, 256, 64, 32, true);
        run(documents, 2, 256, 64, 32, false);
        run(documents, 3, 64, 16, 8, true);
    }
    run({40, 25}, 2, 72, 48, 16, false);
    run({17}, 1, 32, 32, 4, true);
    run({5, 8}, 2, 70, 16, 16, true);
    return finish();
}
