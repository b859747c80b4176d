// The gates of the delta rule on the emulator against SPEC.md 2.4 in double.
#include "delta_gates.cuh"
#include "../emulator/check.hpp"
#include "../sum_rows/sum_rows.cuh"

using namespace check;

static double softplus_of(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

static Numbers decays(const Numbers& a, const Numbers& a_log, const Numbers& dt_bias) {
    const size_t heads = a_log.size();
    Numbers g(a.size());
    for (size_t i = 0; i < a.size(); ++i) g[i] = -std::exp(a_log[i % heads]) * softplus_of(a[i] + dt_bias[i % heads]);
    return g;
}

static Numbers strengths(const Numbers& b) {
    Numbers beta;
    for (double x : b) beta.push_back(sigmoid(x));
    return beta;
}

static void run(unsigned rows, unsigned heads, unsigned blocks, double size) {
    const size_t count = size_t(rows) * heads;
    const DeltaGatesSizes sizes{rows, heads};
    const SumRowsSizes sum{blocks, 2 * heads};
    Case c("delta_gates", std::to_string(rows) + " x " + std::to_string(heads));
    auto& a = c.random<bf16>("a", count, 1, size);
    auto& b = c.random<bf16>("b", count, 5, size);
    auto& a_log = c.random<float>("a_log", heads, 2, 2.0);
    auto& dt_bias = c.random<float>("dt_bias", heads, 3, 4.0);
    auto& d_g = c.random<float>("d_g", count, 4);
    auto& d_beta = c.random<float>("d_beta", count, 6);
    auto& g = c.result<float>("g", count);
    auto& beta = c.result<float>("beta", count);
    auto& d_a = c.result<bf16>("d_a", count);
    auto& d_b = c.result<bf16>("d_b", count);
    auto& d_a_beside = c.result<bf16>("d_a beside the parameters", count);
    auto& d_b_beside = c.result<bf16>("d_b beside the parameters", count);
    auto& partial = c.result<float>("partial", size_t(blocks) * 2 * heads);
    auto& d_parameters = c.result<float>("d_parameters", 2 * heads);
    c.run([&] {
        LAUNCH(delta_gates_forward, unsigned(count + 255) / 256, 256, a.data(), b.data(), a_log.data(), dt_bias.data(), g.data(),
               beta.data(), sizes);
        LAUNCH(delta_gates_backward, blocks, 256, a.data(), b.data(), a_log.data(), dt_bias.data(), d_g.data(), d_beta.data(),
               d_a.data(), d_b.data(), sizes);
        LAUNCH(delta_gates_backward_parameters, blocks, 256, a.data(), b.data(), a_log.data(), dt_bias.data(), d_g.data(),
               d_beta.data(), d_a_beside.data(), d_b_beside.data(), partial.data(), sizes);
        LAUNCH(sum_rows, (2 * heads + 31) / 32, 256, partial.data(), d_parameters.data(), sum);
    });

    const Numbers as = numbers(a), bs = numbers(b), dbeta = numbers(d_beta), log = numbers(a_log), bias = numbers(dt_bias), dg = numbers(d_g);
    const Numbers want = decays(as, log, bias), strength = strengths(bs);
    Numbers da(count), db(count), of_log(heads), of_bias(heads);
    for (size_t i = 0; i < count; ++i) {
        const size_t head = i % heads;
        da[i] = -dg[i] * std::exp(log[head]) * sigmoid(as[i] + bias[head]);
        db[i] = dbeta[i] * strength[i] * (1.0 - strength[i]);
        of_log[head] += dg[i] * want[i];
        of_bias[head] += da[i];
    }
    slope_agrees("delta_gates", [&](const Numbers& x) { return decays(x, log, bias); }, as, dg, da);
    slope_agrees("delta_gates", [&](const Numbers& x) { return decays(as, x, bias); }, log, dg, of_log);
    slope_agrees("delta_gates", [&](const Numbers& x) { return decays(as, log, x); }, bias, dg, of_bias);
    slope_agrees("delta_gates", strengths, bs, dbeta, db);
    c.expect("g", g, want);
    c.expect("beta", beta, strength);
    c.expect("d_a", d_a, da);
    c.expect("d_a", d_a_beside, da);
    c.expect("d_b", d_b, db);
    c.expect("d_b", d_b_beside, db);
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
