// The probe on the emulator: every number comes back from the other end.
#include "probe.cuh"
#include "../emulator/check.hpp"

using namespace check;

int main() {
    Case c("probe", "99 KB of shared memory");
    auto& reversed = c.result<float>("reversed", PROBE_WORDS);
    c.run([&] { LAUNCH(probe, 1, 256, reversed.data(), {7.0f}); });
    Numbers expected;
    for (u32 i = 0; i < PROBE_WORDS; ++i) expected.push_back(7.0 + PROBE_WORDS - 1 - i);
    c.expect("reversed", reversed, expected);
    return finish();
}
