// Rounding to 16 bits on the emulator, bit by bit against the rule in plain loops. Blocks are small, so that tensors begin and end inside them.
#define BLOCK 300u
#include "quantise.cuh"
#include "../emulator/check.hpp"
#include <cmath>

using namespace check;

// Lent tensors of these sizes, of which the numbers from `first` on are rounded, as one of so many ranks.
static void run(const std::vector<u32>& counts, u64 first, u32 ranks, const std::vector<float>& numbers) {
    std::string sizes = std::to_string(first) + " of " + std::to_string(ranks);
    for (u32 count : counts) sizes += " " + std::to_string(count);
    Case c("quantise", sizes);
    const u64 count = numbers.size() - first;
    const u32 blocks = u32((count + BLOCK - 1) / BLOCK), tensors = u32(counts.size()), most = 32767 / ranks;
    std::vector<u64> rows;
    std::vector<Buffer<float>*> results;
    u64 position = 0;
    for (u32 size : counts) {
        auto& given = c.given<float>("tensor", {numbers.begin() + long(position), numbers.begin() + long(position + size)});
        rows.insert(rows.end(), {position, u64(uintptr_t(given.data()))});
        results.push_back(&c.result<float>("sums of a tensor", size));
        position += size;
    }
    rows.insert(rows.end(), {position, 0});
    std::vector<u64> rows_of_results = rows;
    for (u32 i = 0; i < tensors; ++i) rows_of_results[2 * i + 1] = uintptr_t(results[i]->data());
    auto& table = c.given<u64>("table", rows);
    auto& to = c.given<u64>("table of results", rows_of_results);
    auto& magnitudes = c.result<float>("magnitudes", blocks);
    auto& integers = c.result<short>("integers", count);
    // Sums of blocks lie as they came: here from the last to the first, with something else before each.
    const u64 stride = BLOCK + 7;
    auto& sums = c.result<short>("sums", blocks * stride);
    std::vector<u64> addresses;
    for (u32 block = 0; block < blocks; ++block) addresses.push_back(uintptr_t(sums.data() + (blocks - 1 - block) * stride + 7));
    auto& places = c.given<u64>("places", addresses);
    const QuantiseSizes at{first, count, u64(uintptr_t(integers.data())), tensors, most};
    c.run([&] {
        // What is not rounded stays as it is: here, what it was filled with.
        for (auto* result : results) std::memset(result->data(), 0x11, result->size() * sizeof(float));
        LAUNCH(magnitudes_of_blocks, blocks, 224, table.data(), magnitudes.data(), at);
        LAUNCH(integers_of_blocks, blocks, 224, table.data(), magnitudes.data(), at);
        for (u64 i = 0; i < count; ++i) reinterpret_cast<short*>(addresses[i / BLOCK])[i % BLOCK] = integers[i];
        LAUNCH(numbers_of_blocks, blocks, 224, to.data(), magnitudes.data(), places.data(), at);
    });
    std::vector<float> want(numbers.size());
    std::memset(want.data(), 0x11, want.size() * sizeof(float));
    for (u64 block = 0; block < blocks; ++block) {
        const u64 from = first + block * BLOCK, end = std::min<u64>(from + BLOCK, numbers.size());
        float magnitude = 0.0f;
        for (u64 i = from; i < end; ++i)
            magnitude = std::isfinite(numbers[i]) && std::isfinite(magnitude) ? std::max(magnitude, std::fabs(numbers[i])) : NAN;
        if (__float_as_uint(magnitude) != __float_as_uint(magnitudes[block])) return failed("quantise", sizes + ": a magnitude is another one");
        for (u64 i = from; i < end; ++i) {
            double scaled = std::isfinite(magnitude) && magnitude > 0 ? double(numbers[i]) * (most / double(magnitude)) : 0.0;
            const short integer = short(std::nearbyint(std::min(std::max(scaled, -double(most)), double(most))));
            if (integers[i - first] != integer) return failed("quantise", sizes + ": an integer is another one");
            want[i] = std::isfinite(magnitude) ? float(integer * (double(magnitude) / most)) : __uint_as_float(NOT_A_NUMBER);
        }
    }
    position = 0;
    for (u32 i = 0; i < tensors; position += counts[i++])
        if (std::memcmp(results[i]->data(), &want[position], counts[i] * sizeof(float))) return failed("quantise", sizes + ": a number is another one");
}

static std::vector<float> random_numbers(size_t count) {
    Random random(count);
    std::vector<float> numbers;
    for (size_t i = 0; i < count; ++i) numbers.push_back(float(random.next() * std::exp(random.next() * 9.0)));
    return numbers;
}

int main() {
    for (u32 count : {1u, 299u, 300u, 301u, 1000u})
        for (u32 ranks : {1u, 2u, 16u}) run({count}, 0, ranks, random_numbers(count));
    // Many tensors in a block, one over several, and one that begins in the middle of them.
    const std::vector<u32> counts{1, 2, 3, 1, 290, 7, 900, 1, 64, 500};
    for (u64 first : {u64(0), u64(300), u64(600), u64(1500)}) run(counts, first, 3, random_numbers(1769));
    auto some = random_numbers(1200);
    some[10] = NAN;
    some[310] = -INFINITY;
    std::fill(some.begin() + 600, some.begin() + 900, 0.0f);
    some[700] = -0.0f;
    for (size_t i = 900; i < 1200; ++i) some[i] = __uint_as_float(u32(i % 3));
    run({700, 500}, 0, 2, some);
    return finish();
}
