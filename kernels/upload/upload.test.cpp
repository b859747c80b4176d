// Reading in place on the emulator: every word arrives, and nothing behind the last is written.
#include "upload.cuh"
#include "../emulator/check.hpp"

using namespace check;

int main() {
    for (u32 count : {4, 1020, 1024, 1028, 5000}) {
        const std::string sizes = std::to_string(count) + " words";
        Case c("read_in_place", sizes);
        std::vector<u32> words;
        for (u32 i = 0; i < count; ++i) words.push_back(i * 2654435761u);
        auto& from = c.given<u32>("from", words);
        auto& to = c.result<u32>("to", count);
        c.run([&] { LAUNCH(read_in_place, (count + 1023) / 1024, 256, to.data(), UploadSizes{u64(uintptr_t(from.data())), count}); });
        same_bits("read_in_place", sizes, to, from);
    }
    return finish();
}
