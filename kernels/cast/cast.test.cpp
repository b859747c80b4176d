// Casts bit by bit, ties and the ends of the range among the numbers.
#include "cast.cuh"
#include "../emulator/check.hpp"

using namespace check;

static void run(size_t count) {
    // A tie below an even and below an odd number, the largest fp32 (which becomes infinite), the smallest normal, -0.
    const std::vector<u32> corners = {0x3f808000, 0x3f818000, 0x3f818001, 0x7f7fffff, 0x00800000, 0x80000000, 0xff800000};
    auto contents = Case::some<float>(count, 1, 1e3);
    for (size_t i = 0; i < std::min(count, corners.size()); ++i) contents[i] = __uint_as_float(corners[i]);
    Case c("cast", std::to_string(count) + " numbers");
    auto& from = c.given<float>("from", contents);
    auto& to = c.result<bf16>("to", count);
    auto& back = c.result<float>("back", count);
    const unsigned blocks = unsigned((count + 2047) / 2048);
    c.run([&] {
        LAUNCH(cast_to_bf16, blocks, 256, from.data(), to.data(), {count});
        LAUNCH(cast_to_fp32, blocks, 256, to.data(), back.data(), {count});
    });
    ++row_of("cast").cases;
    for (size_t i = 0; i < count; ++i) {
        u32 bits;
        std::memcpy(&bits, &contents[i], 4);
        const u32 want = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        u32 widened;
        std::memcpy(&widened, &back[i], 4);
        if (to[i].bits != want || widened != want << 16) return failed("cast", "number " + std::to_string(i) + " has other bits");
    }
}

int main() {
    for (size_t count : {1, 7, 8, 65, 2049}) run(count);
    return finish();
}
