// Three AdamW steps with global-norm clipping over two parameters on the emulator against QWEN35_SPEC 3 in double.
#include "adamw.cuh"
#include "../emulator/check.hpp"
#include <limits>

using namespace check;

static unsigned blocks_of(size_t count, size_t each) { return unsigned((count + each - 1) / each); }

struct Parameter {
    size_t count;
    Numbers p, m, v;
};

static void run(size_t first, size_t second, float clip) {
    const double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    const float gradient_scale = 1.0f / 37;
    const unsigned partials[2] = {blocks_of(first, SQUARES_PER_BLOCK), blocks_of(second, SQUARES_PER_BLOCK)};
    Case c("adamw", std::to_string(first) + " and " + std::to_string(second) + " numbers");
    Buffer<float>*gradient[2], *master[2], *m[2], *v[2];
    Buffer<bf16>* weight[2];
    Parameter reference[2];
    for (int i = 0; i < 2; ++i) {
        const size_t count = i ? second : first;
        gradient[i] = &c.state<float>("gradient", Case::some<float>(count, 10 + i, 3.0));
        master[i] = &c.state<float>("master", Case::some<float>(count, 20 + i));
        m[i] = &c.state<float>("m", std::vector<float>(count, 0.0f));
        v[i] = &c.state<float>("v", std::vector<float>(count, 0.0f));
        weight[i] = &c.result<bf16>("weight", count);
        reference[i] = {count, numbers(*master[i]), Numbers(count), Numbers(count)};
    }
    auto& partial = c.result<float>("partial", partials[0] + partials[1]);
    auto& result = c.result<float>("norm and factor", 2);
    const auto new_gradients = [&](int step) {
        for (int i = 0; i < 2; ++i) {
            const auto fresh = Case::some<float>(gradient[i]->size(), 100 * step + i, 3.0 * step);
            std::memcpy(gradient[i]->data(), fresh.data(), fresh.size() * sizeof(float));
        }
    };
    c.run([&] {
        for (int step = 1; step <= 3; ++step) {
            new_gradients(step);
            for (u64 i = 0; i < 2; ++i)
                LAUNCH(adamw_squares, partials[i], 256, gradient[i]->data(), partial.data(), {gradient[i]->size(), i ? partials[0] : 0});
            LAUNCH(adamw_clip, 1, 256, partial.data(), result.data(), {partials[0] + partials[1], gradient_scale, clip, 0});
            for (int i = 0; i < 2; ++i) {
                const float decay = float(1 - lr * (i ? 0 : weight_decay));
                const AdamWUpdateSizes sizes{gradient[i]->size(), float(beta1), float(beta2), float(eps),
                                             float(lr / (1 - std::pow(beta1, step))), float(1 / std::sqrt(1 - std::pow(beta2, step))), decay};
                LAUNCH(adamw_update, blocks_of(gradient[i]->size(), 2048), 256, gradient[i]->data(), result.data(), master[i]->data(),
                       m[i]->data(), v[i]->data(), weight[i]->data(), sizes);
            }
        }
    });

    double norm = 0, factor = 0;
    for (int step = 1; step <= 3; ++step) {
        new_gradients(step);
        double square = 0;
        for (int i = 0; i < 2; ++i)
            for (double g : numbers(*gradient[i])) square += g * g;
        norm = std::sqrt(square) * gradient_scale;
        factor = gradient_scale * std::min(1.0, clip / (norm + 1e-6));
        for (int i = 0; i < 2; ++i)
            for (size_t at = 0; at < reference[i].count; ++at) {
                double &p = reference[i].p[at], &m = reference[i].m[at], &v = reference[i].v[at];
                const double g = value((*gradient[i])[at]) * factor;
                p *= 1 - lr * (i ? 0 : weight_decay);
                m = beta1 * m + (1 - beta1) * g;
                v = beta2 * v + (1 - beta2) * g * g;
                p -= lr * (m / (1 - std::pow(beta1, step))) / (std::sqrt(v / (1 - std::pow(beta2, step))) + eps);
            }
    }
    c.expect("norm and factor", result, {norm, factor});
    for (int i = 0; i < 2; ++i) {
        c.expect("master", *master[i], reference[i].p);
        c.expect("m", *m[i], reference[i].m);
        c.expect("v", *v[i], reference[i].v);
        c.expect("weight", *weight[i], reference[i].p);
        for (size_t at = 0; at < reference[i].count; ++at)
            if ((*weight[i])[at].bits != emulator::bf16_bits((*master[i])[at]))
                return failed("adamw: weight", "is not the master weight rounded to nearest even");
    }
}

// A gradient with an infinity must not pass for a step.
static void a_norm_that_is_not_finite_is_seen() {
    Case c("adamw", "infinite gradient");
    auto& partial = c.given<float>("partial", {1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f});
    auto& result = c.result<float>("result", 2);
    LAUNCH(adamw_clip, 1, 256, partial.data(), result.data(), {3u, 1.0f, 1.0f, 0u});
    if (std::isfinite(result[0]) || std::isfinite(result[1])) failed("adamw: not finite", "norm or factor looks finite");
}

int main() {
    const float none = std::numeric_limits<float>::infinity();
    for (size_t count : {1, 7, 8, 63, 65, 2049}) run(count, 130, 1.0f);
    run(40000, 16385, 0.5f);
    run(65, 64, none);
    a_norm_that_is_not_finite_is_seen();
    return finish();
}
