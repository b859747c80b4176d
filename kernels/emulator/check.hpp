// What the tests of the device sources share: buffers of a case, running it in two orders, and holding results against a
// reference computed in double precision.
//
// A kernel passes a case when, with blocks and threads run forwards and backwards, the bits agree, and when each result
//   - is within `relative_l2` of the reference over the whole buffer: 4e-3 for bf16 (rounding alone gives up to 2e-3; NOTES.md,
//     "Tolerances", asks for 1e-2 forward, 2e-2 for gradients) and 1e-5 for fp32;
//   - and number by number within `each` of its own size plus the buffer's root mean square, so that one wrong number in
//     a large buffer cannot hide.
// Results are poisoned before each run, so a number that was not written is not a number. Bank conflicts are told, not refused.
#pragma once
#include "../device/bf16.cuh"
#include "memory.hpp"
#include <cstdio>
#include <memory>

namespace check {

using emulator::Buffer;
using Numbers = std::vector<double>;

struct Limit {
    double relative_l2, each;
};
constexpr Limit BF16{4e-3, 4e-3}, FP32{1e-5, 5e-5};

template <class T>
struct LimitOf;
template <>
struct LimitOf<bf16> {
    static constexpr Limit value = BF16;
};
template <>
struct LimitOf<float> {
    static constexpr Limit value = FP32;
};

// A fixed sequence of numbers between -1 and 1 (splitmix64).
class Random {
    uint64_t state;

  public:
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u) {}
    uint64_t bits() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    double next() { return double(bits() >> 11) * 0x1p-52 - 1.0; }
};

inline double value(bf16 x) { return to_float(x); }
inline double value(float x) { return x; }
inline void assign(bf16& to, double x) { to = to_bf16(float(x)); }
inline void assign(float& to, double x) { to = float(x); }

template <class T>
Numbers numbers(const Buffer<T>& buffer) {
    Numbers all;
    for (size_t i = 0; i < buffer.size(); ++i) all.push_back(value(buffer[i]));
    return all;
}

struct Row {
    std::string what;
    int cases = 0, failed = 0;
    double relative_l2 = 0, each = 0;
    Limit limit{};
};
inline std::vector<Row> rows;

inline Row& row_of(const std::string& what) {
    for (Row& row : rows)
        if (row.what == what) return row;
    rows.push_back({what});
    return rows.back();
}

inline void failed(const std::string& what, const std::string& why) {
    ++row_of(what).failed;
    std::fprintf(stderr, "FAILED %s: %s\n", what.c_str(), why.c_str());
}

template <class T>
void agrees(const std::string& what, const std::string& sizes, const Buffer<T>& got, const Numbers& want,
            Limit limit = LimitOf<T>::value) {
    Row& row = row_of(what);
    row.limit = limit;
    ++row.cases;
    if (got.size() != want.size()) return failed(what, "the reference has another size");
    double error = 0, square = 0, worst = 0;
    for (double x : want) square += x * x;
    const double root = std::sqrt(square / double(want.size()));
    size_t where = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const double distance = std::fabs(value(got[i]) - want[i]);
        error += distance * distance;
        const double own = distance / (std::fabs(want[i]) + root);
        // Not a number is worse than anything.
        if (!(own <= worst) && worst == worst) worst = own, where = i;
    }
    const double relative = std::sqrt(error / square);
    if (!(relative <= row.relative_l2)) row.relative_l2 = relative;
    if (!(worst <= row.each)) row.each = worst;
    if (relative <= row.limit.relative_l2 && worst <= row.limit.each) return;
    char text[256];
    std::snprintf(text, sizeof text, "%s: relative L2 %.2e; number %zu is %g instead of %g", sizes.c_str(), relative, where,
                  value(got[where]), want[where]);
    failed(what, text);
}

// The buffers of one case.
// The same bits, of two ways to compute the same.
template <class T>
void same_bits(const std::string& what, const std::string& sizes, const Buffer<T>& got, const Buffer<T>& want) {
    ++row_of(what).cases;
    if (got.size() != want.size() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T))) failed(what, sizes);
}

// Matrix [rows, columns] for a product along its columns, or along its rows if `outer`: what the second half of the sum adds is what
// the first half added, times `again`. Where one operand says -1 and the other 1, the sums are nothing but rounding, and in
// another order another one.
inline std::vector<bf16> mirrored(size_t rows, size_t columns, bool outer, uint64_t seed, double again) {
    std::vector<bf16> contents(rows * columns);
    const size_t along = outer ? rows : columns, across = outer ? columns : rows;
    for (size_t i = 0; i < across; ++i) {
        Random random(seed + i * 7919);
        for (size_t k = 0; k < (along + 1) / 2; ++k) {
            const double x = random.next();
            const size_t mirror = along - 1 - k;
            assign(contents[outer ? mirror * columns + i : i * columns + mirror], again * x);
            assign(contents[outer ? k * columns + i : i * columns + k], x);
        }
    }
    return contents;
}

class Case {
    struct Held {
        std::function<void()> reset;
        std::function<std::string()> bytes;
        bool result;
    };
    std::string kernels, sizes;
    std::vector<std::shared_ptr<void>> kept;
    std::vector<Held> held;

    template <class T>
    Buffer<T>& keep(const char* name, size_t count, bool result, std::vector<T> initial) {
        auto buffer = std::make_shared<Buffer<T>>(name, count);
        kept.push_back(buffer);
        Buffer<T>* at = buffer.get();
        auto reset = [at, initial] {
            if (initial.empty()) std::memset(static_cast<void*>(at->data()), 0xff, at->size() * sizeof(T));
            else std::memcpy(static_cast<void*>(at->data()), initial.data(), at->size() * sizeof(T));
        };
        reset();
        held.push_back({reset, [at] {
                            at->check();
                            return std::string(reinterpret_cast<const char*>(at->data()), at->size() * sizeof(T));
                        },
                        result});
        return *at;
    }

  public:
    Case(std::string kernels, std::string sizes) : kernels(std::move(kernels)), sizes(std::move(sizes)) {}

    template <class T>
    Buffer<T>& given(const char* name, std::vector<T> contents) {
        return keep<T>(name, contents.size(), false, contents);
    }
    // Random numbers of the given size.
    template <class T>
    Buffer<T>& random(const char* name, size_t count, uint64_t seed, double scale = 1.0) {
        return keep<T>(name, count, false, some<T>(count, seed, scale));
    }
    template <class T>
    Buffer<T>& result(const char* name, size_t count) {
        return keep<T>(name, count, true, {});
    }
    // Read and written.
    template <class T>
    Buffer<T>& state(const char* name, std::vector<T> initial) {
        return keep<T>(name, initial.size(), true, initial);
    }
    template <class T>
    static std::vector<T> some(size_t count, uint64_t seed, double scale = 1.0) {
        std::vector<T> contents(count);
        Random random(seed);
        for (T& x : contents) assign(x, scale * random.next());
        return contents;
    }

    void run(const std::function<void()>& launches) {
        std::vector<std::string> forwards;
        for (bool backwards : {false, true}) {
            emulator::backwards = backwards;
            for (Held& buffer : held) buffer.reset();
            std::vector<std::string> before, after;
            for (Held& buffer : held) before.push_back(buffer.bytes());
            launches();
            for (Held& buffer : held) after.push_back(buffer.bytes());
            for (size_t i = 0; i < held.size(); ++i)
                if (!held[i].result && before[i] != after[i]) failed(kernels, sizes + ": an input was written");
            if (backwards && after != forwards) failed(kernels, sizes + ": the bits depend on the order of the threads");
            forwards = after;
        }
    }

    // Another limit is for fp32 sums of what was rounded to bf16 on the way.
    template <class T>
    void expect(const char* name, const Buffer<T>& got, const Numbers& want, Limit limit = LimitOf<T>::value) {
        agrees(kernels + ": " + name, sizes, got, want, limit);
    }
};

// Holds a hand-derived gradient against the function itself: the slope of `Σ weight · f` along a random direction, by central
// differences in double.
inline void slope_agrees(const std::string& what, const std::function<Numbers(const Numbers&)>& f, const Numbers& x,
                         const Numbers& weight, const Numbers& gradient) {
    Random random(99);
    Numbers ahead = x, behind = x;
    double expected = 0, size = 1e-12;
    const double step = 1e-5;
    for (size_t i = 0; i < x.size(); ++i) {
        const double direction = random.next();
        ahead[i] += step * direction;
        behind[i] -= step * direction;
        expected += gradient[i] * direction;
        size += gradient[i] * gradient[i];
    }
    const Numbers up = f(ahead), down = f(behind);
    double slope = 0;
    for (size_t i = 0; i < up.size(); ++i) slope += weight[i] * (up[i] - down[i]) / (2 * step);
    if (!(std::fabs(slope - expected) <= 1e-6 * std::sqrt(size)))
        failed(what, "the reference's gradient is not the slope: " + std::to_string(expected) + " against " + std::to_string(slope));
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Prints the table; the exit code of the test.
inline int finish() {
    int bad = 0;
    for (const Row& row : rows) {
        bad += row.failed;
        std::printf("%-52s %3d cases  %.1e (limit %.0e)  each %.1e (limit %.0e)  %s\n", row.what.c_str(), row.cases, row.relative_l2,
                    row.limit.relative_l2, row.each, row.limit.each, row.failed ? "FAILED" : "ok");
    }
    if (emulator::bank_conflicts)
        std::printf("  %ld passes over the banks of shared memory more than needed\n", emulator::bank_conflicts);
    return bad ? 1 : 0;
}

}  // namespace check
