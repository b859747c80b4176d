// gelu·mul on the emulator against `gelu(gate) · up` in double, in the form with a hyperbolic tangent.
#include "gelu_mul.cuh"
#include "../emulator/check.hpp"

#include <cmath>

using namespace check;

static const double root = std::sqrt(2.0 / M_PI);

static double half_of_one_plus_tanh(double x) { return 0.5 * (1 + std::tanh(root * (x + 0.044715 * x * x * x))); }

static void run(unsigned rows, unsigned width) {
    const size_t count = size_t(rows) * width;
    const unsigned blocks = unsigned((count + 2047) / 2048);
    Case c("gelu_mul", std::to_string(rows) + " x " + std::to_string(width));
    auto& gate = c.random<bf16>("gate", count, 1, 8.0);
    auto& up = c.random<bf16>("up", count, 2);
    auto& d_out = c.random<bf16>("d_out", count, 3);
    auto& out = c.result<bf16>("out", count);
    auto& d_gate = c.result<bf16>("d_gate", count);
    auto& d_up = c.result<bf16>("d_up", count);
    c.run([&] {
        LAUNCH(gelu_mul_forward, blocks, 256, gate.data(), up.data(), out.data(), {count});
        LAUNCH(gelu_mul_backward, blocks, 256, gate.data(), up.data(), d_out.data(), d_gate.data(), d_up.data(), {count});
    });

    const Numbers g = numbers(gate), u = numbers(up), dy = numbers(d_out);
    const auto value = [&](const Numbers& g, const Numbers& u) {
        Numbers y;
        for (size_t i = 0; i < count; ++i) y.push_back(g[i] * half_of_one_plus_tanh(g[i]) * u[i]);
        return y;
    };
    Numbers dg, du;
    for (size_t i = 0; i < count; ++i) {
        const double x = g[i], t = std::tanh(root * (x + 0.044715 * x * x * x));
        const double slope = root * (1 + 3 * 0.044715 * x * x);
        dg.push_back(dy[i] * u[i] * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope));
        du.push_back(dy[i] * x * 0.5 * (1 + t));
    }
    slope_agrees("gelu_mul", [&](const Numbers& g) { return value(g, u); }, g, dy, dg);
    slope_agrees("gelu_mul", [&](const Numbers& u) { return value(g, u); }, u, dy, du);
    c.expect("out", out, value(g, u));
    c.expect("d_gate", d_gate, dg);
    c.expect("d_up", d_up, du);
}

int main() {
    for (unsigned rows : {1, 63, 64, 65, 130})
        for (unsigned width : {1, 7, 70, 192}) run(rows, width);
    return finish();
}
