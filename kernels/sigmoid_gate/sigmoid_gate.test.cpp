// The output gate on the emulator against `o · sigmoid(gate)` in double.
#include "sigmoid_gate.cuh"
#include "../emulator/check.hpp"

using namespace check;

static void run(unsigned tokens, unsigned heads_of_token, unsigned dim) {
    const unsigned heads = tokens * heads_of_token, blocks = (heads * ((dim + 7) / 8) + 255) / 256;
    const size_t count = size_t(heads) * dim;
    const SigmoidGateSizes sizes{heads, dim};
    Case c("sigmoid_gate", std::to_string(tokens) + " x " + std::to_string(heads_of_token) + " x " + std::to_string(dim));
    auto& o = c.random<bf16>("o", count, 1);
    auto& joint = c.random<bf16>("joint", 2 * count, 2, 6.0);
    auto& d_y = c.random<bf16>("d_y", count, 3);
    auto& y = c.result<bf16>("y", count);
    auto& d_o = c.result<bf16>("d_o", count);
    auto& d_joint = c.result<bf16>("d_joint", 2 * count);
    c.run([&] {
        LAUNCH(sigmoid_gate_forward, blocks, 256, o.data(), joint.data(), y.data(), sizes);
        LAUNCH(sigmoid_gate_backward, blocks, 256, o.data(), joint.data(), d_y.data(), d_o.data(), d_joint.data(), sizes);
    });

    const Numbers os = numbers(o), js = numbers(joint), dy = numbers(d_y);
    const auto gate_at = [&](size_t i) { return i / dim * 2 * dim + dim + i % dim; };
    const auto value = [&](const Numbers& os, const Numbers& js) {
        Numbers y;
        for (size_t i = 0; i < count; ++i) y.push_back(os[i] * sigmoid(js[gate_at(i)]));
        return y;
    };
    Numbers d_os(count), d_js(2 * count);
    for (size_t i = 0; i < count; ++i) {
        const double s = sigmoid(js[gate_at(i)]);
        d_os[i] = dy[i] * s;
        d_js[gate_at(i)] = dy[i] * os[i] * s * (1 - s);
    }
    slope_agrees("sigmoid_gate", [&](const Numbers& os) { return value(os, js); }, os, dy, d_os);
    slope_agrees("sigmoid_gate", [&](const Numbers& js) { return value(os, js); }, js, dy, d_js);
    c.expect("y", y, value(os, js));
    c.expect("d_o", d_o, d_os);
    c.expect("d_joint", d_joint, d_js);
}

int main() {
    for (unsigned tokens : {1, 63, 64, 65, 130})
        for (unsigned dim : {2, 7, 16, 70, 128}) run(tokens, 3, dim);
    run(5, 8, 256);
    return finish();
}
