// `nvcuda::wmma`: matrix products of a warp by fragments whose layout is the implementation's own. Here lane `l` of a fragment with
// `N` numbers a lane holds numbers `N·l .. N·(l + 1)` of the matrix, row by row.
//
// Products are summed in double, or in 32-bit integers, and rounded once; hardware rounds in an order it does not tell.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include <cstdint>

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

namespace precision {
struct tf32 {};
}  // namespace precision

template <class T>
struct Stored {
    using type = T;
};
template <>
struct Stored<precision::tf32> {
    using type = float;
};

template <class Use, int m, int n, int k>
struct Shape;
template <int m, int n, int k>
struct Shape<matrix_a, m, n, k> {
    static constexpr int rows = m, columns = k;
};
template <int m, int n, int k>
struct Shape<matrix_b, m, n, k> {
    static constexpr int rows = k, columns = n;
};
template <int m, int n, int k>
struct Shape<accumulator, m, n, k> {
    static constexpr int rows = m, columns = n;
};

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment : Shape<Use, m, n, k> {
    using element_type = typename Stored<T>::type;
    static constexpr int num_elements = Shape<Use, m, n, k>::rows * Shape<Use, m, n, k>::columns / emulator::LANES;
    element_type x[num_elements];

    static int row(int i) { return (emulator::current_lane() * num_elements + i) / Shape<Use, m, n, k>::columns; }
    static int column(int i) { return (emulator::current_lane() * num_elements + i) % Shape<Use, m, n, k>::columns; }
};

// 10 bits of fraction, to nearest, ties away from zero.
inline float __float_to_tf32(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = (bits + 0x1000) & ~0x1fffu;
    std::memcpy(&value, &bits, 4);
    return value;
}

template <class Fragment, class T>
void fill_fragment(Fragment& to, T value) {
    for (auto& x : to.x) x = typename Fragment::element_type(value);
}

template <class Fragment, class T>
void load(Fragment& to, const T* from, unsigned pitch, bool by_rows) {
    for (int i = 0; i < Fragment::num_elements; ++i)
        to.x[i] = by_rows ? from[size_t(to.row(i)) * pitch + to.column(i)] : from[size_t(to.column(i)) * pitch + to.row(i)];
}

template <class Use, int m, int n, int k, class E, class Layout, class T>
void load_matrix_sync(fragment<Use, m, n, k, E, Layout>& to, const T* from, unsigned pitch) {
    load(to, from, pitch, std::is_same<Layout, row_major>::value);
}

template <int m, int n, int k, class E, class T>
void load_matrix_sync(fragment<accumulator, m, n, k, E>& to, const T* from, unsigned pitch, layout_t layout) {
    load(to, from, pitch, layout == mem_row_major);
}

template <int m, int n, int k, class E, class T>
void store_matrix_sync(T* to, const fragment<accumulator, m, n, k, E>& from, unsigned pitch, layout_t layout) {
    for (int i = 0; i < from.num_elements; ++i)
        to[layout == mem_row_major ? size_t(from.row(i)) * pitch + from.column(i) : size_t(from.column(i)) * pitch + from.row(i)] = from.x[i];
}

// The operands of a warp's product as whole matrices, at most 32 × 16 numbers each.
template <class Number>
struct Operands {
    Number a[512], b[512];
};
template <class Number>
inline Operands<Number> operands_of_warp[emulator::MOST_THREADS / emulator::LANES];

template <int m, int n, int k, class D, class A, class LayoutA, class B, class LayoutB, class C>
void mma_sync(fragment<accumulator, m, n, k, D>& d, const fragment<matrix_a, m, n, k, A, LayoutA>& a,
              const fragment<matrix_b, m, n, k, B, LayoutB>& b, const fragment<accumulator, m, n, k, C>& c) {
    using Number = std::conditional_t<std::is_integral<D>::value, int, double>;
    static_assert(m * k <= 512 && k * n <= 512);
    Operands<Number>& whole = operands_of_warp<Number>[emulator::current() / emulator::LANES];
    const int lane = emulator::current_lane();
    const auto number = [](auto x) {
        if constexpr (std::is_integral<D>::value) return int(x);
        else return double(float(x));
    };
    for (int i = 0; i < a.num_elements; ++i) whole.a[lane * a.num_elements + i] = number(a.x[i]);
    for (int i = 0; i < b.num_elements; ++i) whole.b[lane * b.num_elements + i] = number(b.x[i]);
    emulator::warp_barrier(~0u);
    for (int i = 0; i < d.num_elements; ++i) {
        Number sum = number(c.x[i]);
        for (int j = 0; j < k; ++j) sum += whole.a[c.row(i) * k + j] * whole.b[j * n + c.column(i)];
        if constexpr (std::is_integral<D>::value) d.x[i] = sum;
        else d.x[i] = D(float(sum));
    }
    emulator::warp_barrier(~0u);
}

}  // namespace nvcuda::wmma
