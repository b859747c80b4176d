// The emulator's own test: each mistake it promises to catch is made on purpose and must be seen, and what is right must
// compute the right numbers without a word.
//
// A planted mistake runs in a child process; it counts as caught when the child ends with the emulator's (or the alignment
// sanitizer's) report and the report says the expected words.
#include "check.hpp"
#include "right_answers.cuh"
#include <sys/wait.h>

using namespace check;

static int tests = 0, wrong = 0;

static void holds(const char* what, bool good) {
    ++tests;
    if (good) return;
    ++wrong;
    std::fprintf(stderr, "FAILED %s\n", what);
}

static void caught(const char* what, const char* words, const std::function<void()>& plant) {
    ++tests;
    int pipe_ends[2];
    if (pipe(pipe_ends)) std::abort();
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(pipe_ends[1], STDERR_FILENO);
        plant();
        _exit(0);
    }
    close(pipe_ends[1]);
    std::string report;
    char part[512];
    for (ssize_t got; (got = read(pipe_ends[0], part, sizeof part)) > 0;) report.append(part, size_t(got));
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const bool ended = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (ended && report.find(words) != std::string::npos) return;
    ++wrong;
    std::fprintf(stderr, "FAILED %s: not caught; status %d, report: %s\n", what, status, report.c_str());
}

// --- mistakes -------------------------------------------------------------------------------------------------------

KERNEL(64) barrier_of_half_a_block() {
    if (threadIdx.x < 32) __syncthreads();
}

KERNEL(64) barriers_of_two_kinds() {
    if (threadIdx.x < 32) __syncthreads();
    else named_barrier(1, 64);
}

KERNEL(32) shuffle_without_a_lane(float* out) {
    if (threadIdx.x != 5) out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 1.0f, 1);
}

KERNEL(32) shuffle_from_outside_the_mask(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 16);
}

KERNEL(64) missing_barrier(float* out) {
    SHARED(float, line, 64);
    line[threadIdx.x] = float(threadIdx.x);
    out[threadIdx.x] = line[63 - threadIdx.x];
}

// Within one warp the fibers would happen to give the right numbers.
KERNEL(32) missing_warp_barrier(float* out) {
    SHARED(float, line, 32);
    line[threadIdx.x] = float(threadIdx.x);
    out[threadIdx.x] = line[threadIdx.x / 2];
}

KERNEL(64) overwritten_before_all_have_read(float* out) {
    SHARED(float, line, 64);
    for (int round = 0; round < 2; ++round) {
        line[threadIdx.x] = float(round);
        __syncthreads();
        out[threadIdx.x] = line[63 - threadIdx.x];
    }
}

KERNEL(64) two_writers() {
    SHARED(float, line, 1);
    line[0] = 1.0f;
}

KERNEL(32) read_before_written(float* out) {
    SHARED(float, line, 32);
    if (threadIdx.x < 31) line[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = line[threadIdx.x];
}

KERNEL(32) outside_the_shared_array() {
    SHARED(float, line, 31);
    line[threadIdx.x] = 1.0f;
}

KERNEL(32) too_much_shared_memory() {
    SHARED(float, large, 25345);
    large[threadIdx.x] = 1.0f;
}

template <bool Wait, bool Barrier>
DEVICE void copy_and_read(const float* in, float* out) {
    SHARED(float, line, 128);
    cp_async16(&line[threadIdx.x * 4], in + threadIdx.x * 4);
    cp_async_commit();
    if (Wait) cp_async_wait<0>();
    if (Barrier) __syncthreads();
    out[threadIdx.x] = line[127 - threadIdx.x];
}

KERNEL(32) misaligned_cp_async(const float* in) {
    SHARED(float, line, 132);
    cp_async16(&line[threadIdx.x * 4 + 1], in + threadIdx.x * 4);
}

KERNEL(32) misaligned_vector(const float* in, float* out) {
    const float4 x = *reinterpret_cast<const float4*>(in + 1);
    out[threadIdx.x] = x.x;
}

KERNEL(32) misaligned_ldmatrix(float* out) {
    SHARED(bf16, tile, 32 * 12);
    for (int i = 0; i < 12; ++i) tile[int(threadIdx.x) * 12 + i] = bf16{0};
    __syncthreads();
    u32 registers[4];
    ldmatrix_x4(registers, &tile[int(threadIdx.x) * 12]);
    out[threadIdx.x] = float(registers[0]);
}

KERNEL(32) misaligned_shared_load(u32* out) {
    SHARED(bf16, line, 66);
    for (int i = int(threadIdx.x); i < 66; i += 32) line[i] = bf16{0};
    __syncthreads();
    out[threadIdx.x] = load_shared<u32>(&line[int(threadIdx.x) * 2 + 1]);
}

KERNEL(32) outside_by_address(u32* out) {
    SHARED(bf16, line, 64);
    store_shared(&line[int(threadIdx.x) * 2], 0u);
    __syncthreads();
    out[threadIdx.x] = load_shared<u32>(static_cast<u32*>(static_cast<void*>(&line[int(threadIdx.x) * 2])) + 1);
}

KERNEL(32) read_past_the_end(const float* in, float* out, int count) { out[threadIdx.x] = in[int(threadIdx.x) + count - 31]; }

KERNEL(32) write_past_the_end(bf16* out, int count) { out[int(threadIdx.x) + count - 31] = bf16{0}; }

KERNEL(32) mbarrier_that_waits_for_more(const float* in) {
    SHARED(u64, ready, 1);
    SHARED(float, line, 128);
    if (threadIdx.x == 0) mbarrier_init(&ready[0], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive(&ready[0], 512 + 16);
        bulk_copy(&line[0], in, 512, &ready[0]);
    }
    mbarrier_wait(&ready[0], 0);
}

static void mistakes() {
    const auto in_out = [](const std::function<void(float*, float*)>& launch) {
        return [launch] {
            Case c("", "");
            launch(c.random<float>("in", 128, 1).data(), c.result<float>("out", 64).data());
        };
    };
    caught("a barrier half the block never reaches", "deadlock", [] { LAUNCH(barrier_of_half_a_block, 1, 64); });
    caught("two kinds of barrier at once", "deadlock", [] { LAUNCH(barriers_of_two_kinds, 1, 64); });
    caught("a shuffle one lane does not take part in", "deadlock", in_out([](float*, float* out) { LAUNCH(shuffle_without_a_lane, 1, 32, out); }));
    caught("a shuffle from a lane outside the mask", "not in the mask", in_out([](float*, float* out) { LAUNCH(shuffle_from_outside_the_mask, 1, 32, out); }));
    for (bool backwards : {false, true}) {
        emulator::backwards = backwards;
        caught("a missing barrier", "before it was written", in_out([](float*, float* out) { LAUNCH(missing_barrier, 1, 64, out); }));
        caught("a missing warp barrier", backwards ? "before it was written" : "race", in_out([](float*, float* out) { LAUNCH(missing_warp_barrier, 1, 32, out); }));
        caught("shared memory overwritten too early", "race", in_out([](float*, float* out) { LAUNCH(overwritten_before_all_have_read, 1, 64, out); }));
        caught("two threads write one number", "race", [] { LAUNCH(two_writers, 1, 64); });
    }
    emulator::backwards = false;
    caught("shared memory read before it is written", "before it was written", in_out([](float*, float* out) { LAUNCH(read_before_written, 1, 32, out); }));
    caught("a shared index past the end", "line[31] is outside", [] { LAUNCH(outside_the_shared_array, 1, 32); });
    caught("more shared memory than there is", "a block may have", [] { LAUNCH(too_much_shared_memory, 1, 32); });
    caught("a missing cp.async wait", "cp.async was waited for", in_out([](float* in, float* out) { LAUNCH((copy_and_read<false, true>), 1, 32, in, out); }));
    caught("a missing barrier after cp.async", "line: byte", in_out([](float* in, float* out) { LAUNCH((copy_and_read<true, false>), 1, 32, in, out); }));
    caught("a misaligned cp.async", "misaligned", in_out([](float* in, float*) { LAUNCH(misaligned_cp_async, 1, 32, in); }));
    caught("a misaligned vector load", "misaligned", in_out([](float* in, float* out) { LAUNCH(misaligned_vector, 1, 32, in, out); }));
    caught("a misaligned ldmatrix", "misaligned", in_out([](float*, float* out) { LAUNCH(misaligned_ldmatrix, 1, 32, out); }));
    caught("a misaligned load from shared memory", "misaligned", [] {
        Buffer<u32> out("out", 32);
        LAUNCH(misaligned_shared_load, 1, 32, out.data());
    });
    caught("an address outside every shared array", "outside every shared array", [] {
        Buffer<u32> out("out", 32);
        LAUNCH(outside_by_address, 1, 32, out.data());
    });
    caught("reading past the end of a buffer", "out of bounds: byte 512 of buffer in", in_out([](float* in, float* out) { LAUNCH(read_past_the_end, 1, 32, in, out, 128); }));
    caught("writing past an end that is not aligned", "of buffer odd", [] {
        Buffer<bf16> odd("odd", 101);
        LAUNCH(write_past_the_end, 1, 32, odd.data(), 101);
    });
    caught("writing before the start of a buffer", "was written", [] {
        Buffer<float> buffer("buffer", 4);
        buffer.data()[-1] = 0.0f;
    });
    caught("an mbarrier that never completes", "deadlock", in_out([](float* in, float*) { LAUNCH(mbarrier_that_waits_for_more, 1, 32, in); }));
}

// --- what is right --------------------------------------------------------------------------------------------------

static long product_is_right(const char* what, void (*kernel)(const bf16*, const bf16*, float*, int)) {
    const int k = 96;
    Case c(what, "64 x 64 x 96");
    auto& a = c.random<bf16>("a", 64 * k, 1);
    auto& b = c.random<bf16>("b", 64 * k, 2);
    auto& out = c.result<float>("c", 64 * 64);
    emulator::bank_conflicts = 0;
    c.run([&] { LAUNCH(kernel, 1, 128, a.data(), b.data(), out.data(), k); });
    Numbers want(64 * 64);
    for (int i = 0; i < 64; ++i)
        for (int j = 0; j < 64; ++j)
            for (int at = 0; at < k; ++at) want[i * 64 + j] += value(a[i * k + at]) * value(b[j * k + at]);
    c.expect("product", out, want);
    return emulator::bank_conflicts;
}

static void product_of_halves_is_right() {
    // Eighths are exact in f16 and not all of them in bf16.
    std::vector<float> of_a, of_b;
    for (int i = 0; i < 256; ++i) of_a.push_back(float(i * 7 % 256 + 1024) / 8);
    for (int i = 0; i < 128; ++i) of_b.push_back(float(i * 5 % 128) / 8 - 7);
    Case c("emulator", "16 x 8 x 16");
    auto& a = c.given<float>("a", of_a);
    auto& b = c.given<float>("b", of_b);
    auto& out = c.result<float>("c", 128);
    c.run([&] { LAUNCH(product_of_halves, 1, 32, a.data(), b.data(), out.data()); });
    Numbers want(128);
    for (int i = 0; i < 128; ++i)
        for (int at = 0; at < 16; ++at) want[i] += double(a[i / 8 * 16 + at]) * b[i % 8 * 16 + at];
    c.expect("product of halves", out, want);
}

static void product_of_bytes_is_right() {
    // Every finite number of e4m3, in both operands.
    std::vector<float> of_a, of_b;
    for (int i = 0; i < 512; ++i) of_a.push_back(emulator::e4m3_value(uint8_t(i * 37 % 127 | (i % 2 ? 0x80 : 0))));
    for (int i = 0; i < 256; ++i) of_b.push_back(emulator::e4m3_value(uint8_t(i * 29 % 127 | (i % 3 ? 0x80 : 0))));
    Case c("emulator", "16 x 8 x 32");
    auto& a = c.given<float>("a", of_a);
    auto& b = c.given<float>("b", of_b);
    auto& out = c.result<float>("c", 128);
    c.run([&] { LAUNCH(product_of_bytes, 1, 32, a.data(), b.data(), out.data()); });
    Numbers want(128);
    for (int i = 0; i < 128; ++i)
        for (int at = 0; at < 32; ++at) want[i] += double(a[i / 8 * 32 + at]) * b[i % 8 * 32 + at];
    c.expect("product of bytes", out, want);
}

template <int STRIDE, class T>
DEVICE void strided() {
    SHARED(T, line, 32 * STRIDE);
    line[int(threadIdx.x) * STRIDE] = T{};
}

template <int STRIDE, class T>
static long conflicts() {
    emulator::bank_conflicts = 0;
    LAUNCH((strided<STRIDE, T>), 1, 32);
    return emulator::bank_conflicts;
}

static void right() {
    emulator::backwards = false;
    Case c("emulator", "");
    auto& in = c.random<float>("in", 192, 1);
    auto& out = c.result<float>("out", 1024);
    bool good = true;
    LAUNCH(bulk_copy_in_phases, 1, 64, in.data(), out.data());
    for (int i = 0; i < 192; ++i) good &= out[i] == 2.0f * in[i / 64 * 64 + 63 - i % 64];
    holds("bulk copies arrive phase by phase", good);

    LAUNCH(halves_of_a_block, 1, 128, out.data());
    for (int i = 0; i < 128; ++i) good &= out[i] == float(i / 64 * 64 + 63 - i % 64);
    holds("named barriers order half a block each", good);

    LAUNCH(lanes, 1, 32, in.data(), out.data());
    for (int i = 0; i < 32; ++i) {
        good &= out[i] == float(i / 8 * 64 + 28);
        good &= out[32 + i] == float(i < 28 ? i + 4 : i);
        good &= out[64 + i] == float(0x49249249u >> 16);
        good &= out[96 + i] == (i < 16 ? 3.0f : 1.0f);
        good &= out[128 + i] == in[std::max(i, 16)];
    }
    holds("shuffles and votes", good);

    LAUNCH(sums_of_a_block, 1, 1024, out.data());
    for (int i = 0; i < 1024; ++i) good &= out[i] == 1023 * 512 + 1024;
    holds("the sum of a block reaches every thread", good);

    auto& words = c.result<u32>("words", 128);
    LAUNCH(transpose, 1, 32, words.data());
    for (u32 i = 0; i < 128; ++i) {
        const u32 matrix = i / 32, lane = i % 32, low = matrix * 64 + lane % 4 * 2 * 8 + lane / 4;
        good &= words[i] == (low | (low + 8) << 16);
    }
    holds("ldmatrix transposes", good);

    LAUNCH(words_of_two_widths, 1, 32, words.data());
    for (u32 i = 0; i < 32; ++i) good &= words[i] == (2 * i | (2 * i + 1) << 16);
    holds("shared memory is read in another width", good);

    // Both orders count. Rows of 80 bytes: ldmatrix is free of conflicts, each of the 192 copies of eight lanes needs a second
    // pass, for its two rows overlap in four banks. Rows of 64 bytes: the copies are free, each of the 480 matrices needs three.
    holds("bank conflicts of padded rows", product_is_right("emulator, padded", product_padded) == 2 * 192);
    holds("bank conflicts of rows that are not padded", product_is_right("emulator, not padded", product_not_padded) == 2 * 3 * 480);
    product_of_halves_is_right();
    product_of_bytes_is_right();
    holds("stride 1 has no conflict", conflicts<1, float>() == 0);
    holds("stride 2 needs one pass more", conflicts<2, float>() == 1);
    holds("stride 32 needs 31 passes more", conflicts<32, float>() == 31);
    holds("stride 33 has no conflict", conflicts<33, float>() == 0);
    holds("two-byte neighbours share a word", conflicts<1, bf16>() == 0);
    holds("16-byte neighbours go by eight lanes", conflicts<1, float4>() == 0);
    holds("16-byte numbers 32 bytes apart collide in pairs", conflicts<2, float4>() == 4);
}

// Every bf16 number stays; halfway between two the even one wins, a hair beside it the nearer.
static void rounding() {
    bool same = true, even = true, nearer = true;
    for (u32 bits = 0; bits < 0x7f80; ++bits)
        for (u32 sign : {0u, 0x8000u}) {
            const u32 word = (bits | sign) << 16;
            same &= emulator::bf16_bits(__uint_as_float(word)) == (bits | sign);
            even &= emulator::bf16_bits(__uint_as_float(word + 0x8000)) == ((bits + (bits & 1)) | sign);
            nearer &= emulator::bf16_bits(__uint_as_float(word + 0x7fff)) == (bits | sign);
            nearer &= emulator::bf16_bits(__uint_as_float(word + 0x8001)) == ((bits + 1) | sign);
        }
    bool halves = true;
    for (u32 bits = 0; bits < 0x7c00; ++bits)
        for (u32 sign : {0u, 0x8000u}) {
            const float here = emulator::f16_value(bits | sign), next = bits == 0x7bff ? 65536.0f : emulator::f16_value(bits + 1);
            const float middle = (std::fabs(here) + next) / 2, way = sign ? -1.0f : 1.0f;
            halves &= emulator::f16_bits(here) == (bits | sign);
            halves &= emulator::f16_bits(way * middle) == ((bits + (bits & 1)) | sign);
            halves &= emulator::f16_bits(way * std::nextafter(middle, 0.0f)) == (bits | sign);
            halves &= emulator::f16_bits(way * std::nextafter(middle, 1e9f)) == ((bits + 1) | sign);
        }
    holds("f16 numbers stay and others go to the nearest, ties to even", halves);
    holds("a bf16 number stays what it is", same);
    holds("a tie goes to the even number", even);
    holds("all else goes to the nearer number", nearer);
    holds("infinity stays", emulator::bf16_bits(INFINITY) == 0x7f80 && emulator::bf16_bits(-INFINITY) == 0xff80);
    holds("not a number stays one", emulator::bf16_bits(__uint_as_float(0xff800001)) == 0x7fff);
}

// e4m3: the values by the format's definition in the OCP report, every code and every middle between two; and the scales.
static void bytes() {
    const float smallest[9] = {0, 0x1p-9f, 0x1p-8f, 0x1.8p-8f, 0x1p-7f, 0x1.4p-7f, 0x1.8p-7f, 0x1.cp-7f, 0x1p-6f};
    bool known = emulator::e4m3_value(0x38) == 1.0f && emulator::e4m3_value(0x7e) == 448.0f && emulator::e4m3_value(0xc4) == -3.0f;
    for (int i = 0; i < 9; ++i) known &= emulator::e4m3_value(uint8_t(i)) == smallest[i];
    known &= std::isnan(emulator::e4m3_value(0x7f)) && std::isnan(emulator::e4m3_value(0xff)) && std::signbit(emulator::e4m3_value(0x80));
    holds("numbers of a byte are what the format says", known);
    bool same = true, nearest = true;
    for (u32 bits = 0; bits < 0x7f; ++bits)
        for (u32 sign : {0u, 0x80u}) {
            const float here = emulator::e4m3_value(uint8_t(bits)), next = bits == 0x7e ? 480.0f : emulator::e4m3_value(uint8_t(bits + 1));
            const float middle = (here + next) / 2, way = sign ? -1.0f : 1.0f;
            const u32 up = bits == 0x7e ? bits : bits + 1;
            same &= emulator::e4m3_bits(way * here) == (bits | sign);
            nearest &= emulator::e4m3_bits(way * middle) == ((bits & 1 ? up : bits) | sign);
            nearest &= emulator::e4m3_bits(way * std::nextafter(middle, 0.0f)) == (bits | sign);
            nearest &= emulator::e4m3_bits(way * std::nextafter(middle, 1e9f)) == (up | sign);
        }
    holds("a number of a byte stays what it is", same);
    holds("others go to the nearest, ties to even", nearest);
    holds("what is too large becomes the largest", emulator::e4m3_bits(1e30f) == 0x7e && emulator::e4m3_bits(-INFINITY) == 0xfe);
    holds("not a number stays one in a byte", emulator::e4m3_bits(-NAN) == 0x7f);

    // Each bf16 size: the largest is between 224 and 448 scales, but where the scale is the smallest there is.
    Buffer<bf16> sizes("sizes", 32);
    Buffer<float> scales("scales", 32);
    bool fits = true, power = true;
    for (u32 first = 0; first < 0x8000; first += 32) {
        for (u32 i = 0; i < 32; ++i) sizes[i] = bf16{(unsigned short)((first + i) | (i % 2 ? 0x8000u : 0u))};
        LAUNCH(scales_of_bytes, 1, 32, sizes.data(), scales.data());
        for (u32 i = 0; i < 32; ++i) {
            const double size = std::fabs(value(sizes[i])), scale = scales[i];
            if (!std::isfinite(size)) {
                fits &= std::isnan(scale);
                continue;
            }
            int exponent;
            power &= std::frexp(scale, &exponent) == 0.5;
            fits &= size <= 448 * scale && (size > 224 * scale || scale == 0x1p-126);
        }
    }
    holds("a scale is a power of two", power);
    holds("a scale is the least that fits, not a number where the size is not finite", fits);
}

int main() {
    mistakes();
    bytes();
    right();
    rounding();
    emulator::bank_conflicts = 0;  // those made on purpose
    std::printf("%-52s %3d tests, %d of them failed\n", "emulator: planted mistakes and right answers", tests, wrong);
    return finish() || wrong ? 1 : 0;
}
