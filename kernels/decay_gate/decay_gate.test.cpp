// The decay gate on the emulator against QWEN35_SPEC 2.4 step 6 in double.
#include "decay_gate.cuh"
#include "../emulator/check.hpp"
#include "../sum_rows/sum_rows.cuh"

using namespace check;

static double softplus_of(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

static Numbers gates(const Numbers& a, const Numbers& a_log, const Numbers& dt_bias) {
    const size_t heads = a_log.size();
    Numbers g(a.size());
    for (size_t i = 0; i < a.size(); ++i) g[i] = -std::exp(a_log[i % heads]) * softplus_of(a[i] + dt_bias[i % heads]);
    return g;
}

static void run(unsigned rows, unsigned heads, unsigned blocks, double size) {
    const size_t count = size_t(rows) * heads;
    const DecayGateSizes sizes{rows, heads};
    const SumRowsSizes sum{blocks, 2 * heads};
    Case c("decay_gate", std::to_string(rows) + " x " + std::to_string(heads));
    auto& a = c.random<bf16>("a", count, 1, size);
    auto& a_log = c.random<float>("a_log", heads, 2, 2.0);
    auto& dt_bias = c.random<float>("dt_bias", heads, 3, 4.0);
    auto& d_g = c.random<float>("d_g", count, 4);
    auto& g = c.result<float>("g", count);
    auto& d_a = c.result<bf16>("d_a", count);
    auto& d_a_beside = c.result<bf16>("d_a beside the parameters", count);
    auto& partial = c.result<float>("partial", size_t(blocks) * 2 * heads);
    auto& d_parameters = c.result<float>("d_parameters", 2 * heads);
    c.run([&] {
        LAUNCH(decay_gate_forward, unsigned(count + 255) / 256, 256, a.data(), a_log.data(), dt_bias.data(), g.data(), sizes);
        LAUNCH(decay_gate_backward, blocks, 256, a.data(), a_log.data(), dt_bias.data(), d_g.data(), d_a.data(), sizes);
        LAUNCH(decay_gate_backward_parameters, blocks, 256, a.data(), a_log.data(), dt_bias.data(), d_g.data(), d_a_beside.data(),
               partial.data(), sizes);
        LAUNCH(sum_rows, (2 * heads + 31) / 32, 256, partial.data(), d_parameters.data(), sum);
    });

    const Numbers as = numbers(a), log = numbers(a_log), bias = numbers(dt_bias), dg = numbers(d_g);
    const Numbers want = gates(as, log, bias);
    Numbers da(count), of_log(heads), of_bias(heads);
    for (size_t i = 0; i < count; ++i) {
        const size_t head = i % heads;
        da[i] = -dg[i] * std::exp(log[head]) * sigmoid(as[i] + bias[head]);
        of_log[head] += dg[i] * want[i];
        of_bias[head] += da[i];
    }
    slope_agrees("decay_gate", [&](const Numbers& x) { return gates(x, log, bias); }, as, dg, da);
    slope_agrees("decay_gate", [&](const Numbers& x) { return gates(as, x, bias); }, log, dg, of_log);
    slope_agrees("decay_gate", [&](const Numbers& x) { return gates(as, log, x); }, bias, dg, of_bias);
    c.expect("g", g, want);
    c.expect("d_a", d_a, da);
    c.expect("d_a", d_a_beside, da);
    Numbers both = of_log;
    both.insert(both.end(), of_bias.begin(), of_bias.end());
    c.expect("d_parameters", d_parameters, both);
}

int main() {
    for (unsigned rows : {1, 63, 64, 65, 130}) run(rows, 16, std::min(rows, 3u), 3.0);
    run(40, 48, 2, 3.0);   // five rows at a time, sixteen threads idle
    run(9, 3, 7, 3.0);     // blocks without a row
    run(5, 256, 2, 3.0);
    run(33, 32, 1, 100.0);  // where eˣ overflows or vanishes
    return finish();
}
