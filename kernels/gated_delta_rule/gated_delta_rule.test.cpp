// The chunked gated delta rule on the emulator against the recurrence of SPEC.md 2.4, token by token in double, and against
// that recurrence run in reverse for the gradients; and its steps from a state to a state.
#include "chunk_matrices.cuh"
#include "forward.cuh"
#include "backward.cuh"
#include "gradients.cuh"
#include "steps.cuh"
#include "../emulator/check.hpp"

using namespace check;

// Operands of the tensor cores are bf16 or f16, so the distance is that of several roundings, not of one. The gradients of the gates are
// sums that cancel.
constexpr Limit ROWS{6e-3, 3e-2}, GATES{2e-2, 6e-2};

struct Shape {
    size_t key_heads, value_heads, dim, tokens = 0;
    std::vector<unsigned> lengths;

    size_t key_head(size_t head) const { return head / (value_heads / key_heads); }
    size_t width() const { return (2 * key_heads + value_heads) * dim; }
    size_t q(size_t t, size_t head) const { return t * width() + key_head(head) * dim; }
    size_t k(size_t t, size_t head) const { return q(t, head) + key_heads * dim; }
    size_t v(size_t t, size_t head) const { return t * width() + (2 * key_heads + head) * dim; }
    size_t gate(size_t t, size_t head) const { return t * value_heads + head; }
    size_t out(size_t t, size_t head) const { return gate(t, head) * dim; }
};

static double inverse_norm_of(const Numbers& x, size_t at, size_t dim) {
    double square = 0;
    for (size_t i = 0; i < dim; ++i) square += x[at + i] * x[at + i];
    return 1.0 / std::sqrt(square + 1e-6);
}

// One head of one segment: unit keys and queries, and the states after each token.
struct Recurrence {
    const Shape& shape;
    size_t head, first, length;
    std::vector<Numbers> q, k, errors, states;  // states[t] is the one before token t
    Numbers norm_q, norm_k;

    Recurrence(const Shape& s, size_t head, size_t first, size_t length, const Numbers& qkv, const Numbers& g, const Numbers& beta,
               Numbers& out)
        : shape(s), head(head), first(first), length(length) {
        const size_t d = s.dim;
        Numbers state(d * d);
        for (size_t i = 0; i < length; ++i) {
            const size_t t = first + i;
            states.push_back(state);
            norm_q.push_back(inverse_norm_of(qkv, s.q(t, head), d));
            norm_k.push_back(inverse_norm_of(qkv, s.k(t, head), d));
            q.emplace_back(d), k.emplace_back(d), errors.emplace_back(d);
            for (size_t c = 0; c < d; ++c) {
                q[i][c] = qkv[s.q(t, head) + c] * norm_q[i] / std::sqrt(double(d));
                k[i][c] = qkv[s.k(t, head) + c] * norm_k[i];
            }
            for (double& x : state) x *= std::exp(g[s.gate(t, head)]);
            Numbers& error = errors[i];
            for (size_t c = 0; c < d; ++c) error[c] = qkv[s.v(t, head) + c];
            for (size_t row = 0; row < d; ++row)
                for (size_t c = 0; c < d; ++c) error[c] -= k[i][row] * state[row * d + c];
            for (size_t row = 0; row < d; ++row)
                for (size_t c = 0; c < d; ++c) {
                    state[row * d + c] += k[i][row] * beta[s.gate(t, head)] * error[c];
                    out[s.out(t, head) + c] += q[i][row] * state[row * d + c];
                }
        }
        states.push_back(state);
    }

    struct Gradients {
        Numbers qkv, g, beta;
    };

    // The recurrence in reverse. Adds the gradients of q and k, sets the others.
    void backward(const Numbers& g, const Numbers& beta, const Numbers& d_out, Gradients& d) const {
        const size_t n = shape.dim;
        Numbers d_state(n * n);
        for (size_t i = length; i-- > 0;) {
            const size_t t = first + i, gate = shape.gate(t, head), o = shape.out(t, head);
            const Numbers &after = states[i + 1], &before = states[i];
            const double decay = std::exp(g[gate]);
            Numbers d_q(n), d_k(n), d_error(n);
            for (size_t row = 0; row < n; ++row)
                for (size_t c = 0; c < n; ++c) {
                    d_q[row] += after[row * n + c] * d_out[o + c];
                    d_state[row * n + c] += q[i][row] * d_out[o + c];
                    d_error[c] += d_state[row * n + c] * k[i][row];
                    d_k[row] += d_state[row * n + c] * beta[gate] * errors[i][c];
                }
            for (size_t c = 0; c < n; ++c) {
                d.beta[gate] += d_error[c] * errors[i][c];
                d_error[c] *= beta[gate];
                d.qkv[shape.v(t, head) + c] = d_error[c];
            }
            for (size_t row = 0; row < n; ++row)
                for (size_t c = 0; c < n; ++c) {
                    const double decayed = decay * before[row * n + c];
                    d_k[row] -= decayed * d_error[c];
                    d_state[row * n + c] -= k[i][row] * d_error[c];
                    d.g[gate] += d_state[row * n + c] * decayed;
                    d_state[row * n + c] *= decay;
                }
            // Through x / sqrt(Σ x² + eps).
            double along_q = 0, along_k = 0;
            for (size_t c = 0; c < n; ++c) {
                along_q += d_q[c] * q[i][c] * double(n);
                along_k += d_k[c] * k[i][c];
            }
            for (size_t c = 0; c < n; ++c) {
                d.qkv[shape.q(t, head) + c] += norm_q[i] * (d_q[c] - q[i][c] * along_q) / std::sqrt(double(n));
                d.qkv[shape.k(t, head) + c] += norm_k[i] * (d_k[c] - k[i][c] * along_k);
            }
        }
    }
};

// The outputs and, given `d_out`, the gradients.
static Numbers outputs(const Shape& s, const Numbers& qkv, const Numbers& g, const Numbers& beta, const Numbers* d_out = nullptr,
                       Recurrence::Gradients* d = nullptr) {
    Numbers out(s.tokens * s.value_heads * s.dim);
    for (size_t head = 0; head < s.value_heads; ++head) {
        size_t first = 0;
        for (size_t length : s.lengths) {
            const Recurrence one(s, head, first, length, qkv, g, beta, out);
            if (d) one.backward(g, beta, *d_out, *d);
            first += length;
        }
    }
    return out;
}

// Holds the columns from `first` on, `count` of them, against those of the reference.
static void expect_columns(Case& c, const char* name, const Buffer<bf16>& got, const Numbers& want, size_t width, size_t first,
                           size_t count) {
    Buffer<bf16> part(name, want.size() / width * count);
    Numbers reference(part.size());
    for (size_t i = 0; i < part.size(); ++i) {
        const size_t at = i / count * width + first + i % count;
        part[i] = got[at];
        reference[i] = want[at];
    }
    c.expect(name, part, reference, ROWS);
}

// What the tokens are like: the strongest log decay, how much of q and k is the same in all of them, and whether there are gates at
// the ends of their range among them.
struct Tokens {
    double strongest = 2.0, alike = 0.0;
    bool extreme_gates = false;
};

template <int D>
static void run(unsigned key_heads, unsigned group, std::vector<unsigned> lengths, Tokens tokens = {}) {
    static uint64_t seed = 0;
    seed += 10;
    Shape s{key_heads, key_heads * group, D, 0, lengths};
    std::vector<u32> chunk_table, segment_table;
    std::string name = "D " + std::to_string(D) + ", heads " + std::to_string(s.key_heads) + "/" + std::to_string(s.value_heads);
    name += ", lengths";
    for (unsigned length : lengths) {
        name += " " + std::to_string(length);
        // In another order than the tokens'.
        segment_table.insert(segment_table.begin(), {unsigned(chunk_table.size() / 2), (length + 63) / 64});
        for (unsigned at = 0; at < length; at += 64) {
            chunk_table.push_back(unsigned(s.tokens) + at);
            chunk_table.push_back(std::min(64u, length - at));
        }
        s.tokens += length;
    }
    const unsigned chunks = unsigned(chunk_table.size() / 2), segments = unsigned(lengths.size());
    const size_t gates = s.tokens * s.value_heads, square = size_t(chunks) * s.value_heads * 64 * 64;
    const DeltaRuleSizes sizes{key_heads, unsigned(s.value_heads)};
    Case c("delta_rule", name);
    std::vector<bf16> contents = Case::some<bf16>(s.tokens * s.width(), seed);
    for (size_t i = 0; i < contents.size(); ++i)
        if (i % s.width() < 2 * key_heads * D) contents[i] = to_bf16(float(to_float(contents[i]) + tokens.alike));
    auto& qkv = c.given<bf16>("qkv", contents);
    std::vector<float> decays(gates), strengths(gates);
    Random random(seed + 1);
    for (size_t i = 0; i < gates; ++i) {
        const double x = random.next();
        decays[i] = float(-tokens.strongest * x * x * x * x);  // mostly weak
        strengths[i] = float(sigmoid(3.0 * random.next()));
        if (!tokens.extreme_gates) continue;
        const float decay_ends[] = {-INFINITY, -150.0f, -50.0f, 0.0f}, strength_ends[] = {0.0f, 1e-6f, 1.0f, 1.0f};
        if (random.bits() % 4 == 0) decays[i] = decay_ends[random.bits() % 4];
        if (random.bits() % 4 == 0) strengths[i] = strength_ends[random.bits() % 4];
    }
    auto& g = c.given<float>("g", decays);
    auto& beta = c.given<float>("beta", strengths);
    auto& chunk_list = c.given<u32>("chunk_table", chunk_table);
    auto& segment_list = c.given<u32>("segment_table", segment_table);
    auto& inverses = c.result<f16>("inverses", square);
    auto& attentions = c.result<f16>("attentions", square);
    auto& gate_sums = c.result<float>("gate_sums", gates);
    auto& norms = c.result<float>("norms", s.tokens * key_heads * 2);
    auto& d_out = c.random<bf16>("d_out", gates * D, seed + 2);
    auto& out = c.result<bf16>("out", gates * D);
    auto& writes = c.result<bf16>("writes", gates * D);
    auto& states = c.result<bf16>("states", size_t(chunks) * s.value_heads * D * D);
    auto& d_states = c.result<bf16>("d_states", states.size());
    auto& d_qkv = c.result<bf16>("d_qkv", s.tokens * s.width());
    auto& d_g = c.result<float>("d_g", gates);
    auto& d_beta = c.result<float>("d_beta", gates);
    const dim3 everywhere(chunks, key_heads), slices(unsigned(s.value_heads) * (D / StateShape<D>::SLICE), segments);
    c.run([&] {
        LAUNCH(chunk_matrices<D>, everywhere, 256, qkv.data(), g.data(), beta.data(), chunk_list.data(), inverses.data(), attentions.data(),
               gate_sums.data(), norms.data(), sizes);
        LAUNCH((walk_forward<D, false>), slices, 256, qkv.data(), inverses.data(), attentions.data(), gate_sums.data(), norms.data(),
               chunk_list.data(), segment_list.data(), out.data(), nullptr, sizes);
        LAUNCH((walk_forward<D, true>), slices, 256, qkv.data(), inverses.data(), nullptr, gate_sums.data(), norms.data(),
               chunk_list.data(), segment_list.data(), writes.data(), states.data(), sizes);
        LAUNCH(walk_backward<D>, slices, 256, qkv.data(), inverses.data(), attentions.data(), gate_sums.data(), norms.data(), d_out.data(),
               chunk_list.data(), segment_list.data(), d_qkv.data(), d_states.data(), sizes);
        LAUNCH(gradients<D>, everywhere, 256, qkv.data(), beta.data(), gate_sums.data(), norms.data(), states.data(), d_states.data(),
               writes.data(), d_out.data(), chunk_list.data(), d_qkv.data(), d_g.data(), d_beta.data(), sizes);
    });

    const Numbers of_qkv = numbers(qkv), of_g = numbers(g), of_beta = numbers(beta), of_out = numbers(d_out);
    Recurrence::Gradients d{Numbers(of_qkv.size()), Numbers(gates), Numbers(gates)};
    c.expect("out", out, outputs(s, of_qkv, of_g, of_beta, &of_out, &d), ROWS);
    if (D == 16 && s.tokens < 100 && !tokens.extreme_gates) {
        slope_agrees("delta_rule", [&](const Numbers& x) { return outputs(s, x, of_g, of_beta); }, of_qkv, of_out, d.qkv);
        slope_agrees("delta_rule", [&](const Numbers& x) { return outputs(s, of_qkv, x, of_beta); }, of_g, of_out, d.g);
        slope_agrees("delta_rule", [&](const Numbers& x) { return outputs(s, of_qkv, of_g, x); }, of_beta, of_out, d.beta);
    }
    for (size_t i = 0; i < gates; ++i)
        // Where next to nothing is written the gradient of the strength is not exact; it has to be a number.
        if (of_beta[i] < 1e-3 && std::isfinite(d_beta[i])) d.beta[i] = d_beta[i] = 0;
    const size_t keys = key_heads * D, values = s.value_heads * D;
    expect_columns(c, "d_q", d_qkv, d.qkv, s.width(), 0, keys);
    expect_columns(c, "d_k", d_qkv, d.qkv, s.width(), keys, keys);
    expect_columns(c, "d_v", d_qkv, d.qkv, s.width(), 2 * keys, values);
    // A token alone has no state to decay.
    if (s.tokens > 1) c.expect("d_g", d_g, d.g, GATES);
    else if (!(std::fabs(d_g[0]) < 1e-6)) failed("delta_rule: d_g", "a token alone has a gradient");
    c.expect("d_beta", d_beta, d.beta, GATES);
}

// The rows of examples between these borders.
static ExampleRows rows_of(const std::vector<u32>& borders) {
    ExampleRows rows;
    for (size_t i = 0; i <= EXAMPLES; ++i) rows.first[i] = borders[std::min(i, borders.size() - 1)];
    return rows;
}

// Two runs of tokens, the second from the state behind the first, against the recurrence over both, and the second run token by token
// against itself in one launch, and both as two examples of one launch.
template <int D>
static void run_steps(unsigned key_heads, unsigned group, unsigned first, unsigned second) {
    const Shape s{key_heads, key_heads * group, D, first + second, {first + second}};
    const std::string name = "D " + std::to_string(D) + ", heads " + std::to_string(s.key_heads) + "/" + std::to_string(s.value_heads) +
                             ", tokens " + std::to_string(first) + " and " + std::to_string(second);
    Case c("delta_rule_steps", name);
    const size_t gates = s.tokens * s.value_heads, numbers_of_state = s.value_heads * D * D;
    auto& qkv = c.random<bf16>("qkv", s.tokens * s.width(), D + first);
    std::vector<float> decays(gates), strengths(gates);
    Random random(D + second);
    for (size_t i = 0; i < gates; ++i) {
        const double x = random.next();
        decays[i] = i % 29 == 28 ? -INFINITY : float(-2 * x * x * x * x);
        strengths[i] = float(sigmoid(3.0 * random.next()));
    }
    auto& g = c.given<float>("g", decays);
    auto& beta = c.given<float>("beta", strengths);
    auto& nothing = c.given<float>("nothing", std::vector<float>(numbers_of_state));
    auto& between = c.result<float>("between", numbers_of_state);
    auto& after = c.result<float>("after", numbers_of_state);
    auto& out = c.result<bf16>("out", gates * D);
    auto& one_by_one = c.result<bf16>("one by one", second * s.value_heads * D);
    auto& state = c.result<float>("state", numbers_of_state);
    auto& next = c.result<float>("next", numbers_of_state);
    auto& one_by_one_states = c.result<float>("states one by one", second * numbers_of_state);
    auto& each_of_first = c.result<float>("each of first", first * numbers_of_state);
    auto& each_of_second = c.result<float>("each of second", second * numbers_of_state);
    auto& of_both = c.result<bf16>("of both", gates * D);
    const dim3 blocks(unsigned(s.value_heads), D / StepsShape<D>::COLUMNS);
    const auto steps = [&](size_t from, unsigned count, const float* before, bf16* out, float* after) {
        const float* const befores[EXAMPLES] = {before};
        float* const afters[EXAMPLES] = {after};
        LAUNCH(delta_steps<D>, blocks, StepsShape<D>::THREADS, qkv.data() + from * s.width(), g.data() + from * s.value_heads,
               beta.data() + from * s.value_heads, befores, out, afters, {key_heads, unsigned(s.value_heads), 0, rows_of({0, count})});
    };
    c.run([&] {
        steps(0, first, nothing.data(), out.data(), between.data());
        steps(first, second, between.data(), out.data() + first * s.value_heads * D, after.data());
        std::memcpy(state.data(), between.data(), numbers_of_state * sizeof(float));
        for (size_t i = 0; i < second; ++i) {
            steps(first + i, 1, state.data(), one_by_one.data() + i * s.value_heads * D, next.data());
            std::memcpy(state.data(), next.data(), numbers_of_state * sizeof(float));
            std::memcpy(one_by_one_states.data() + i * numbers_of_state, next.data(), numbers_of_state * sizeof(float));
        }
        const float* const befores[EXAMPLES] = {nothing.data(), between.data()};
        float* const afters[EXAMPLES] = {each_of_first.data(), each_of_second.data()};
        LAUNCH(delta_steps<D>, dim3(blocks.x, blocks.y, 2), StepsShape<D>::THREADS, qkv.data(), g.data(), beta.data(), befores, of_both.data(),
               afters, {key_heads, unsigned(s.value_heads), 1, rows_of({0, first, first + second})});
    });
    const Numbers of_qkv = numbers(qkv), of_g = numbers(g), of_beta = numbers(beta);
    c.expect("out", out, outputs(s, of_qkv, of_g, of_beta));
    Numbers states, ignored(gates * D);
    for (size_t head = 0; head < s.value_heads; ++head) {
        const Recurrence one(s, head, 0, s.tokens, of_qkv, of_g, of_beta, ignored);
        states.insert(states.end(), one.states.back().begin(), one.states.back().end());
    }
    c.expect("state", after, states);
    Buffer<bf16> together("together", one_by_one.size());
    std::memcpy(together.data(), out.data() + first * s.value_heads * D, one_by_one.size() * sizeof(bf16));
    same_bits("delta_rule_steps: one by one", name, one_by_one, together);
    same_bits("delta_rule_steps: their state", name, state, after);
    same_bits("delta_rule_steps: two examples", name, of_both, out);
    same_bits("delta_rule_steps: their states", name, each_of_second, one_by_one_states);
    Buffer<float> last("last", numbers_of_state);
    std::memcpy(last.data(), each_of_first.data() + (first - 1) * numbers_of_state, numbers_of_state * sizeof(float));
    same_bits("delta_rule_steps: their last states", name, last, between);
}

int main() {
    run_steps<16>(1, 1, 1, 1);
    run_steps<16>(2, 2, 40, 3);
    run_steps<32>(1, 3, 70, 8);
    run_steps<64>(2, 1, 9, 2);
    run_steps<128>(1, 2, 30, 5);
    for (unsigned length : {1, 63, 64, 65, 130}) run<16>(1, 1, {length});
    run<16>(2, 2, {5, 1, 70, 128});
    run<16>(1, 3, {130, 63});
    run<16>(1, 1, {400}, {0.02});
    run<32>(1, 2, {65, 3, 66});
    run<32>(1, 1, {130}, {2.0, 0.0, true});
    run<32>(2, 1, {63, 65}, {0.1, 0.3});
    run<32>(1, 1, {130}, {0.01, 3.0});
    run<64>(1, 2, {70, 5}, {0.2});
    run<64>(1, 1, {193}, {0.02, 1.0});
    run<128>(1, 1, {65});
    run<128>(1, 2, {64, 3});
    run<128>(1, 3, {20}, {0.5, 0.3, true});
    return finish();
}
