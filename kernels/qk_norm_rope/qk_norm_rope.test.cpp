// Query and key norm with partial rotary embedding on the emulator against QWEN35_SPEC 2.3 in double.
#include "qk_norm_rope.cuh"
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

static void run(const std::vector<unsigned>& documents, unsigned q_heads, unsigned k_heads, unsigned dim, unsigned rotary,
                unsigned lanes, bool gated) {
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
    const unsigned all = (tokens * (q_heads + k_heads) + per_block - 1) / per_block, partials = std::min(all, 3u);
    const QkNormRopeSizes sizes{tokens, q_heads, k_heads, dim, stride, rotary, lanes, 1e-6f};
    const size_t q_count = size_t(tokens) * q_heads * dim, k_count = size_t(tokens) * k_heads * dim;
    Case c("qk_norm_rope", std::to_string(tokens) + " x " + std::to_string(q_heads) + "+" + std::to_string(k_heads) + " x " + std::to_string(dim));
    auto& q_joint = c.random<bf16>("q_joint", size_t(tokens) * q_heads * stride, 1);
    auto& k_joint = c.random<bf16>("k_joint", k_count, 2);
    auto& q_weight = c.random<bf16>("q_weight", dim, 3, 0.5);
    auto& k_weight = c.random<bf16>("k_weight", dim, 4, 0.5);
    auto& cosines = c.given<float>("cosines", cosines_f32);
    auto& sines = c.given<float>("sines", sines_f32);
    auto& d_q = c.random<bf16>("d_q", q_count, 5);
    auto& d_k = c.random<bf16>("d_k", k_count, 6);
    auto& d_gate = c.random<bf16>("d_gate", gated ? q_count : 8, 7);
    auto& q = c.result<bf16>("q", q_count);
    auto& k = c.result<bf16>("k", k_count);
    auto& d_q_joint = c.result<bf16>("d_q_joint", q_joint.size());
    auto& d_k_joint = c.result<bf16>("d_k_joint", k_count);
    auto& d_q_joint_too = c.result<bf16>("d_q_joint beside weights", q_joint.size());
    auto& d_k_joint_too = c.result<bf16>("d_k_joint beside weights", k_count);
    auto& partial = c.result<float>("partial", size_t(partials) * 2 * dim);
    auto& d_weight = c.result<float>("d_weight", 2 * dim);
    c.run([&] {
        LAUNCH(qk_norm_rope_forward, all, 256, q_joint.data(), k_joint.data(), q_weight.data(), k_weight.data(), cosines.data(),
               sines.data(), q.data(), k.data(), sizes);
        LAUNCH(qk_norm_rope_backward, all, 256, q_joint.data(), k_joint.data(), q_weight.data(), k_weight.data(), cosines.data(),
               sines.data(), d_q.data(), d_k.data(), d_gate.data(), d_q_joint.data(), d_k_joint.data(), sizes);
        LAUNCH(qk_norm_rope_backward_weight, partials, 256, q_joint.data(), k_joint.data(), q_weight.data(), k_weight.data(),
               cosines.data(), sines.data(), d_q.data(), d_k.data(), d_gate.data(), d_q_joint_too.data(), d_k_joint_too.data(),
               partial.data(), sizes);
        LAUNCH(sum_rows, (2 * dim + 31) / 32, 256, partial.data(), d_weight.data(), {partials, 2 * dim});
    });

    const Shape of_q{tokens, q_heads, dim, stride, rotary, 1e-6}, of_k{tokens, k_heads, dim, dim, rotary, 1e-6};
    const Numbers cs = numbers(cosines), ss = numbers(sines), qj = numbers(q_joint), kj = numbers(k_joint);
    const Numbers qw = numbers(q_weight), kw = numbers(k_weight), dq = numbers(d_q), dk = numbers(d_k), dg = numbers(d_gate);
    c.expect("q", q, forward(qj, qw, of_q, cs, ss));
    c.expect("k", k, forward(kj, kw, of_k, cs, ss));
    Numbers dqj, dkj, dqw, dkw;
    backward(qj, qw, of_q, cs, ss, dq, dqj, dqw);
    backward(kj, kw, of_k, cs, ss, dk, dkj, dkw);
    slope_agrees("qk_norm_rope", [&](const Numbers& x) { return forward(x, qw, of_q, cs, ss); }, qj, dq, dqj);
    slope_agrees("qk_norm_rope", [&](const Numbers& w) { return forward(kj, w, of_k, cs, ss); }, kw, dk, dkw);
    if (gated)
        for (size_t head = 0; head < size_t(tokens) * q_heads; ++head)
            for (size_t i = 0; i < dim; ++i) dqj[head * stride + dim + i] = dg[head * dim + i];
    dqw.insert(dqw.end(), dkw.begin(), dkw.end());
    c.expect("d_q_joint", d_q_joint, dqj);
    c.expect("d_k_joint", d_k_joint, dkj);
    c.expect("d_q_joint", d_q_joint_too, dqj);
    c.expect("d_k_joint", d_k_joint_too, dkj);
    c.expect("d_weight", d_weight, dqw);
}

int main() {
    for (const auto& documents : {std::vector<unsigned>{1}, {63}, {64}, {65}, {1, 1, 60, 3, 65}}) {
        run(documents, 8, 2, 256, 64, 32, true);
        run(documents, 3, 1, 64, 16, 8, true);
    }
    run({40, 25}, 2, 2, 72, 48, 16, false);
    run({17}, 1, 1, 32, 32, 4, true);
    run({5, 8}, 2, 1, 70, 16, 16, true);
    return finish();
}
