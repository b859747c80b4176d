// Rotary embedding on the emulator against SPEC.md 2.3 step 4 in double.
#include "rope.cuh"
#include "../emulator/check.hpp"

using namespace check;

static void run(const std::vector<unsigned>& documents, unsigned heads, unsigned dim, unsigned rotary) {
    std::vector<float> cosines_f32, sines_f32;
    unsigned tokens = 0;
    for (unsigned length : documents)
        for (unsigned position = 0; position < length; ++position, ++tokens)
            for (unsigned j = 0; j < rotary / 2; ++j) {
                const double angle = position * std::pow(1e4, -2.0 * j / rotary);
                cosines_f32.push_back(float(std::cos(angle)));
                sines_f32.push_back(float(std::sin(angle)));
            }
    const unsigned parts = (rotary + 15) / 16 + (dim - rotary + 7) / 8, blocks = (tokens * heads * parts + 255) / 256;
    const size_t count = size_t(tokens) * heads * dim;
    Case c("rope", std::to_string(tokens) + " x " + std::to_string(heads) + " x " + std::to_string(dim) + ", " + std::to_string(rotary));
    auto& x = c.random<bf16>("x", count, 1);
    auto& d_y = c.random<bf16>("d_y", count, 2);
    auto& cosines = c.given<float>("cosines", cosines_f32);
    auto& sines = c.given<float>("sines", sines_f32);
    auto& y = c.result<bf16>("y", count);
    auto& d_x = c.result<bf16>("d_x", count);
    c.run([&] {
        LAUNCH(rope, blocks, 256, x.data(), cosines.data(), sines.data(), y.data(), {tokens, heads, dim, rotary, 1.0f});
        LAUNCH(rope, blocks, 256, d_y.data(), cosines.data(), sines.data(), d_x.data(), {tokens, heads, dim, rotary, -1.0f});
    });

    const Numbers cs = numbers(cosines), ss = numbers(sines);
    const auto rotated = [&](Numbers v, double direction) {
        const size_t half = rotary / 2;
        for (size_t head = 0; head < size_t(tokens) * heads; ++head)
            for (size_t j = 0; j < half; ++j) {
                const double cosine = cs[head / heads * half + j], sine = direction * ss[head / heads * half + j];
                double &low = v[head * dim + j], &high = v[head * dim + j + half];
                const double a = low, b = high;
                low = a * cosine - b * sine;
                high = b * cosine + a * sine;
            }
        return v;
    };
    const Numbers xs = numbers(x), dy = numbers(d_y), d = rotated(dy, -1);
    slope_agrees("rope", [&](const Numbers& x) { return rotated(x, 1); }, xs, dy, d);
    c.expect("y", y, rotated(xs, 1));
    c.expect("d_x", d_x, d);
}

int main() {
    for (const auto& documents : {std::vector<unsigned>{1}, {63}, {64}, {65}, {1, 1, 60, 3, 65}}) {
        run(documents, 2, 64, 64);
        run(documents, 3, 20, 10);
    }
    run({40, 25}, 4, 128, 128);
    run({17}, 1, 80, 32);
    run({9}, 2, 6, 2);
    run({5, 8}, 3, 7, 6);
    return finish();
}
