// What forward and backward of packed causal attention share: who sees whom, and the two products of a warp with a tile.
//
// T tokens of several examples in one row; N query heads, G key/value heads, R = N / G; query head n reads key/value head
// n / R; D a head's width, 16, 32, 64, 128 or 256. bf16 `q, o, d_o, d_q [T, N·D]`, `k, v, d_k, d_v [T, G·D]`; fp32
// `lse, delta [T, N]`. With a cache of `past` earlier tokens, forward only: `k, v [past + T, G·D]`.
//
// A block works for one key/value head. It holds up to 128 rows of one side, 16 a warp, and streams the rows of the
// other side past them, two tiles in shared memory by turns. A row is a key, or a pair (token, query head of the group),
// a token's R heads one after the other: so all heads of a group share what is read of keys and values, and a tile of
// queries spans few tokens, which keeps the work above the diagonal small.
//
// `borders [2, T]` u32: the first token of each token's example, then one past its last (forward reads the first half only). A
// held row sees one span of streamed rows; spans of later rows neither begin nor end earlier. A warp skips tiles outside
// its spans and masks only where one begins or ends, so a block's rows may belong to any number of examples.
//
// `work [items, 3]` u32: what the block does (0 in forward; see `backward.cuh`), the first token it holds, and how many
// of them: at most 128 / R for queries, 128 for keys. Block i takes item i / G and key/value head i % G, so the longest
// items should come first. An item may have tokens of any number of examples; it is best a part of one or several whole
// ones, for its block streams what any of its rows sees. Limits: R at most 128, T · R² below 2³¹.
#pragma once
#include "../device/bf16.cuh"
#include "../device/shared.cuh"
#include "../device/tensor_core.cuh"

struct PackedAttentionSizes {
    u32 tokens, q_heads, kv_heads;
    u32 past;     // keys in front of the first query's own; 0 but in forward with a cache of one example
    u32 window;   // a query sees at most so many keys, at least its own; 0xffffffff: no limit
    float scale;  // on the scores, above 0
};

constexpr int ATTENTION_THREADS = 256;
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }

// 2ˣ to two units of the last place; 0 for -∞ and below 2⁻¹²⁶.
DEVICE float power_of_two(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// Where the rows of one side lie, for the block's key/value head.
template <int D, bool Queries>
struct Rows {
    u32 group;    // rows of a token
    u32 inverse;  // 2³¹ / group, rounded up: divides rows exactly while T · group² is below 2³¹
    u32 gap;      // numbers between a token's last row and the next token's first
    u32 head;     // the number of a token its first row starts at

    DEVICE Rows(u32 kv_head, const PackedAttentionSizes& s) {
        group = Queries ? s.q_heads / s.kv_heads : 1;
        inverse = (0x7fffffffu + group) / group;
        gap = ((Queries ? s.q_heads : s.kv_heads) - group) * D;
        head = kv_head * group * D;
    }
    DEVICE u32 token(u32 row) const { return Queries ? u32(u64(row) * inverse >> 31) : row; }
    DEVICE u64 offset(u32 row) const { return u64(token(row)) * gap + u64(row) * D + head; }
    // In a buffer of one number per token and head.
    DEVICE u64 statistic(u32 row) const { return u64(token(row)) * (gap / D) + row + head / D; }
};

struct Span {
    u32 begin, end;
};

// The streamed rows that a held token sees, `group` rows being a token on the side of the queries.
template <bool Queries>
DEVICE Span visible(u32 token, u32 group, const u32* borders, const PackedAttentionSizes& s) {
    if (Queries) {
        const u32 end = s.past + token + 1;
        return Span{max(borders[token], end - min(s.window, end)), end};
    }
    return Span{token * group, min(borders[s.tokens + token], token + min(s.window, s.tokens)) * group};
}

// The same number, of which the compiler does not know it: what follows from it is computed where it is used instead of being
// kept in registers through the loop.
DEVICE u32 anew(u32 x) {
#ifdef __CUDACC__
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// The rows a block holds, and what they see. What a warp's rows see lies in shared memory, four words a warp: in registers it
// would be there through the whole loop.
template <int D, bool Queries>
struct Held {
    u32 first, end;  // rows of the block
    Span all;        // streamed rows seen by any of them

    template <class Spans>
    DEVICE Held(const Rows<D, Queries>& rows, u32 group, u32 first_token, u32 tokens, const u32* borders, Spans& spans,
                const PackedAttentionSizes& s) {
        first = first_token * rows.group;
        end = first + tokens * rows.group;
        all.begin = visible<Queries>(first_token, group, borders, s).begin;
        all.end = visible<Queries>(first_token + tokens - 1, group, borders, s).end;
        const u32 warp_row = first + threadIdx.x / WARP * 16;
        const Span low = visible<Queries>(rows.token(min(warp_row, end - 1)), group, borders, s);
        const Span high = visible<Queries>(rows.token(min(warp_row + 15, end - 1)), group, borders, s);
        if (threadIdx.x % WARP == 0) {
            const u32 at = threadIdx.x / WARP * 4;
            // Seen by any row of the warp, which may have none; and by each.
            spans[at] = low.begin;
            spans[at + 1] = warp_row < end ? high.end : 0;
            spans[at + 2] = high.begin;
            spans[at + 3] = low.end;
        }
    }
    // This lane's first row; the second is 8 further.
    DEVICE u32 row() const {
        const u32 thread = anew(threadIdx.x);
        return first + thread / WARP * 16 + thread % WARP / 4;
    }
};

// Whether this warp sees some of the tile's rows, and all of them.
struct Sight {
    bool some, all;
};

template <class Spans>
DEVICE Sight sight(Spans& spans, u32 from, u32 count) {
    const uint4 seen = load_shared<uint4>(&spans[threadIdx.x / WARP * 4]);
    return Sight{from < seen.y && from + count > seen.x, from >= seen.z && from + count <= seen.w};
}

// Where a tile of rows of D numbers keeps column `column`, a multiple of 8, of a row: eight rows of a column, and eight
// columns of a row, lie in eight different groups of banks. For a multiple `k` of 16
//     place(row, column + k) = (place(row, column) ^ k % 64) + k / 64 * 64    when column < 16.
template <int D>
DEVICE u32 place(u32 row, u32 column) {
    constexpr u32 PIECES = D / 8, LINE = PIECES < 8 ? PIECES : 8;
    return row * D + (column / 8 ^ row / (8 / LINE) % LINE) * 8;
}

// Calls `copy(where, number, exists)` for this thread's 16-byte pieces of `Count` rows from `first`: the place in a tile, the
// number in a buffer, and whether the row is before `end`.
template <int D, int Count, bool Queries, class Copy>
DEVICE void each_piece(const Rows<D, Queries>& rows, u32 first, u32 end, const Copy& copy) {
    constexpr u32 PIECES = D / 8;
    const u32 thread = anew(threadIdx.x);
#pragma unroll
    for (u32 base = 0; base < Count * PIECES; base += ATTENTION_THREADS) {
        const u32 i = base + thread, row = i / PIECES, column = i % PIECES * 8;
        if (Count * PIECES % ATTENTION_THREADS && i >= Count * PIECES) continue;
        const bool exists = first + row < end;
        copy(place<D>(row, column), rows.offset(exists ? first + row : 0) + column, exists);
    }
}

// This warp's 16 held rows as the left operand of `mma`, from global memory; rows from `end` on are zeros.
template <int D, bool Queries>
DEVICE void load_left(u32 (&left)[D / 16][4], const bf16* from, const Rows<D, Queries>& rows, u32 row, u32 end) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const bool exists = row + 8 * half < end;
        const u32* words = reinterpret_cast<const u32*>(from + rows.offset(exists ? row + 8 * half : 0));
        words += anew(threadIdx.x) % 4;
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            left[k][half] = exists ? words[k * 8] : 0;
            left[k][half + 2] = exists ? words[k * 8 + 4] : 0;
        }
    }
}

// c [16, Count] += left [16, D] · tileᵀ; `left(k)` gives the operand for the numbers k..k + 16.
template <int D, int Count, class Tiles, class Left>
DEVICE void add_times_transposed(float (&c)[Count / 8][4], const Left& left, Tiles& tiles, u32 at) {
    const u32 lane = anew(threadIdx.x) % WARP, base = at + place<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        u32 a[4];
        left(k, a);
#pragma unroll
        for (int n = 0; n < Count; n += 16) {
            u32 b[4];
            ldmatrix_x4(b, &tiles[(base ^ k % 64) + k / 64 * 64 + n * D]);
            mma(c[n / 8], a, b[0], b[1]);
            mma(c[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

// c [16, D] += weights [16, Count] · tile, the weights rounded to bf16.
template <int D, int Count, class Tiles>
DEVICE void add_times(float (&c)[D / 8][4], const float (&weights)[Count / 8][4], Tiles& tiles, u32 at) {
    const u32 lane = anew(threadIdx.x) % WARP, base = at + place<D>(lane % 16, lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < Count; k += 16) {
        const float(&low)[4] = weights[k / 8], (&high)[4] = weights[k / 8 + 1];
        const u32 a[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                          pack_bf16(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < D; n += 16) {
            u32 b[4];
            ldmatrix_x4_transposed(b, &tiles[(base ^ n % 64) + n / 64 * 64 + k * D]);
            mma(c[n / 8], a, b[0], b[1]);
            mma(c[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

// Writes this warp's 16 rows times a factor for each of the lane's two.
template <int D, bool Queries>
DEVICE void store_rows(bf16* to, const float (&c)[D / 8][4], const float (&factor)[2], const Rows<D, Queries>& rows, u32 row,
                       u32 end) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= end) continue;
        u32* words = reinterpret_cast<u32*>(to + rows.offset(row + 8 * half)) + anew(threadIdx.x) % 4;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            words[n * 4] = pack_bf16(c[n][2 * half] * factor[half], c[n][2 * half + 1] * factor[half]);
    }
}

#ifndef HEAD_DIM
#define HEAD_DIM 256
#endif
