// Scaling in place on the emulator: by one not a bit changes.
#include "scale.cuh"
#include "../emulator/check.hpp"

using namespace check;

static void run(unsigned count, float by) {
    const ScaleSizes sizes{count};
    const unsigned blocks = (count + 2047) / 2048;
    Case c("scale", std::to_string(count));
    auto& factor = c.given<float>("factor", {by});
    const auto narrow_before = Case::some<bf16>(count, 1);
    const auto wide_before = Case::some<float>(count, 2);
    auto& narrow = c.state<bf16>("bf16", narrow_before);
    auto& wide = c.state<float>("f32", wide_before);
    c.run([&] {
        LAUNCH(scale_bf16, blocks, 256, factor.data(), narrow.data(), sizes);
        LAUNCH(scale_f32, blocks, 256, factor.data(), wide.data(), sizes);
    });
    Numbers narrow_scaled, wide_scaled;
    for (unsigned i = 0; i < count; ++i) {
        narrow_scaled.push_back(by * value(narrow_before[i]));
        wide_scaled.push_back(by * value(wide_before[i]));
        if (by == 1.0f && (narrow[i].bits != narrow_before[i].bits || wide[i] != wide_before[i])) failed("scale", "by one changed a number");
    }
    c.expect("bf16", narrow, narrow_scaled);
    c.expect("f32", wide, wide_scaled);
}

int main() {
    for (unsigned count : {1, 7, 8, 2047, 2049, 5000})
        for (float by : {1.0f, 0.37f, -3.0f}) run(count, by);
    return finish();
}
