// Three AdamW steps with global-norm clipping over two parameters on the emulator against SPEC.md 3 in double.
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
                const AdamWUpdateSizes sizes{gradient[i]->size(), float(beta1), float(beta2), float(1 - beta1), float(1 - beta2), float(eps),
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

// A gradient that is not finite must not pass for a step, with or without clipping.
static void a_norm_that_is_not_finite_changes_nothing(float bad, float clip) {
    Case c("adamw", "gradient that is not finite");
    auto given = Case::some<float>(70, 1);
    given[33] = bad;
    auto& gradient = c.given<float>("gradient", given);
    auto& partial = c.result<float>("partial", 1);
    auto& result = c.result<float>("result", 2);
    auto& master = c.state<float>("master", Case::some<float>(70, 2));
    auto& m = c.state<float>("m", Case::some<float>(70, 3));
    auto& v = c.state<float>("v", Case::some<float>(70, 4));
    auto& weight = c.state<bf16>("weight", Case::some<bf16>(70, 5));
    const Numbers before[4] = {numbers(master), numbers(m), numbers(v), numbers(weight)};
    c.run([&] {
        LAUNCH(adamw_squares, 1, 256, gradient.data(), partial.data(), {70, 0});
        LAUNCH(adamw_clip, 1, 256, partial.data(), result.data(), {1u, 0.5f, clip, 0u});
        LAUNCH(adamw_update, 1, 256, gradient.data(), result.data(), master.data(), m.data(), v.data(), weight.data(),
               {70, 0.9f, 0.95f, 0.1f, 0.05f, 1e-8f, 1e-2f, 1.0f, 0.99f});
    });
    if (std::isfinite(result[0])) failed("adamw: not finite", "the norm looks finite");
    if (numbers(master) != before[0] || numbers(m) != before[1] || numbers(v) != before[2] || numbers(weight) != before[3])
        failed("adamw: not finite", "a lost step was taken");
}

template <class Number>
static void gradients_add_up(void (*kernel)(const Number*, float*, AccumulateSizes), size_t count) {
    Case c("adamw", std::to_string(count) + " numbers");
    auto& addend = c.random<Number>("addend", count, 1);
    auto& total = c.state<float>("total", Case::some<float>(count, 2, 3.0));
    Numbers want = numbers(total);
    c.run([&] { LAUNCH(kernel, blocks_of(count, 2048), 256, addend.data(), total.data(), {count}); });
    for (size_t i = 0; i < count; ++i) want[i] += value(addend[i]);
    c.expect("accumulate", total, want);
}

int main() {
    const float none = std::numeric_limits<float>::infinity();
    for (size_t count : {1, 7, 8, 63, 65, 2049}) run(count, 130, 1.0f);
    run(40000, 16385, 0.5f);
    run(65, 64, none);
    for (float clip : {1.0f, none})
        for (float bad : {none, -none, std::numeric_limits<float>::quiet_NaN()}) a_norm_that_is_not_finite_changes_nothing(bad, clip);
    for (size_t count : {1, 7, 2051}) {
        gradients_add_up(accumulate, count);
        gradients_add_up(accumulate_bf16, count);
    }
    return finish();
}
