// One block's tile of a bf16 matrix product with fp32 sums, C [M, N] = Σ_k A(m, k) · B(k, n), and what comes after it.
//
// Owns: the pipeline from global memory through shared memory into `mma`, the order in which blocks walk over C, and the
// walk over a thread's sums. Knows nothing of what the numbers mean and writes nothing by itself: a kernel calls
// `tile_of_block`, `gemm_sums` and then `for_each_pair` or `for_each_four` with a function that does the rest.
//
// Each operand lies in one of two orders: `K_INNER` (A as [M, K], B as [N, K]) or `K_OUTER` (A as [K, M], B as [K, N]); so
// y = x Wᵀ is <K_INNER, K_INNER>, d_x = d_y W <K_INNER, K_OUTER>, d_W = d_yᵀ x <K_OUTER, K_OUTER>. Rows start 16-byte
// aligned: pitches, K of K_INNER operands and M, N of K_OUTER ones are multiples of 8. Other sizes are free; what lies
// outside counts as zero.
//
// Operands of e4m3 are both K_INNER and given as if they were bf16 of half the width: a piece of 16 × 16 bf16 is one of
// 16 × 32 e4m3 byte for byte, and only `mma` reads it otherwise.
//
// Shared memory holds rows of 16-byte chunks in the order of global memory. Chunk `c` of row `r` lies at `c ^ f(r)`, `f`
// such that the same chunk of eight neighbouring rows lies in all 32 banks: neither `cp.async` nor `ldmatrix`, transposed
// or not, meets a bank twice.
#pragma once
#include "bf16.cuh"
#include "tensor_core.cuh"

enum Order { K_INNER, K_OUTER };
enum Format { FORMAT_BF16, FORMAT_E4M3 };

// A tile of M × N numbers, K deep at a time, by WarpsM × WarpsN warps, with at least two stages of shared memory. Ahead as in
// `cp_async16`.
template <int M, int N, int K, int WarpsM, int WarpsN, int Stages, int Ahead = 0>
struct GemmTile {
    static constexpr int m = M, n = N, k = K, stages = Stages, ahead = Ahead, warps_n = WarpsN, threads = WarpsM * WarpsN * WARP;
    static constexpr int warp_m = M / WarpsM, warp_n = N / WarpsN;
    static constexpr int pieces_m = warp_m / 16, pieces_n = warp_n / 8;  // of `mma`
    static constexpr int numbers = (M + N) * K;                          // in a stage
    static_assert(warp_m % 16 == 0 && warp_n % 16 == 0 && K % 32 == 0, "pieces are 16 × 16 × 16, two along k at a time");
    static_assert((warp_m & (warp_m - 1)) == 0 && (warp_n & (warp_n - 1)) == 0 && M * K % N == 0,
                  "places of pieces differ by an exclusive or");

    // Row `i / 2` of a thread's pair `i` of four sums; see `mma`.
    float sums[pieces_m][pieces_n][4];
};

// One term of a product: C = Σ_terms A · B. Pitches count numbers from a row to the next.
struct GemmTerm {
    const bf16 *a, *b;
    u32 a_pitch, b_pitch, k;
};

// The part of an operand that a stage holds: EXTENT rows or columns of C, DEPTH of k. An object is this thread's share of
// the copies and walks along k.
template <Order ORDER, int EXTENT, int DEPTH, int THREADS, int AHEAD>
struct OperandTile {
    static constexpr int WIDTH = ORDER == K_INNER ? DEPTH : EXTENT, ROWS = ORDER == K_INNER ? EXTENT : DEPTH;
    static constexpr int CHUNKS = WIDTH / 8, PASS = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && CHUNKS >= 2 && (CHUNKS & (CHUNKS - 1)) == 0,
                  "a pass of the threads is whole rows");
    static_assert(PASS % 8 == 0 || PASS >= ROWS, "all passes of a thread have the same swizzle");

    const bf16* at;
    u32 pitch, to;
    int rows_left, numbers_left;  // from this thread's first chunk to the end of the matrix

    DEVICE static u32 place(u32 row, u32 chunk) {
        constexpr u32 rows_of_a_line = CHUNKS < 8 ? 8 / CHUNKS : 1;
        return row * WIDTH + (chunk ^ (row % 8 / rows_of_a_line)) * 8;
    }

    // `first` of `limit` rows or columns of C; `k` from 0.
    DEVICE void start(const bf16* matrix, u32 matrix_pitch, u32 first, u32 limit, u32 k) {
        const u32 row = threadIdx.x / CHUNKS + (ORDER == K_INNER ? first : 0);
        const u32 number = threadIdx.x % CHUNKS * 8 + (ORDER == K_INNER ? 0 : first);
        at = matrix + u64(row) * matrix_pitch + number;
        pitch = matrix_pitch;
        to = place(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
        rows_left = int(ORDER == K_INNER ? limit : k) - int(row);
        numbers_left = int(ORDER == K_INNER ? k : limit) - int(number);
    }

    // Starts the copies of a stage and goes on to the next one.
    DEVICE void load(bf16* tile) {
#pragma unroll
        for (int pass = 0; pass < (ROWS + PASS - 1) / PASS; ++pass) {
            if (ROWS % PASS != 0 && int(threadIdx.x / CHUNKS) + pass * PASS >= ROWS) break;
            // What does not exist is not read, so its address may lie anywhere.
            cp_async16<AHEAD>(tile + to + pass * PASS * WIDTH, at + u64(pass * PASS) * pitch,
                       rows_left > pass * PASS && numbers_left > 0);
        }
        at += ORDER == K_INNER ? u64(DEPTH) : u64(DEPTH) * pitch;
        (ORDER == K_INNER ? numbers_left : rows_left) -= DEPTH;
    }

    // Where this thread's row of the first 16 × 16 piece of its warp begins, for `ldmatrix`. As the first operand of `mma`
    // a piece is four matrices top to bottom, then along k; as the second one along k, then left to right.
    DEVICE static u32 piece_of_warp(u32 corner, bool second) {
        const u32 lane = threadIdx.x % WARP;
        const bool down_first = second == (ORDER == K_OUTER);
        const u32 row = down_first ? lane % 16 : lane % 8 + lane / 16 * 8, chunk = down_first ? lane / 16 : lane / 8 % 2;
        return ORDER == K_INNER ? place(corner + row, chunk) : place(row, corner / 8 + chunk);
    }

    // Piece `i` of the warp, `step` along k. Going on by 16 numbers of a row changes a place's bits by an exclusive or.
    DEVICE static void read(u32 (&piece)[4], const bf16* tile, u32 piece_of_warp, int i, int step) {
        if (ORDER == K_INNER) ldmatrix_x4(piece, tile + (piece_of_warp ^ u32(16 * step)) + 16 * i * WIDTH);
        else ldmatrix_x4_transposed(piece, tile + (piece_of_warp ^ u32(16 * i)) + 16 * step * WIDTH);
    }
};

// Rows and columns of C at which a block's tile starts.
struct GemmPlace {
    u32 row, column;
};

// Blocks go down `group` tiles of a column of C before they go to the next column, so that the blocks that run at the same
// time read few rows of A and few columns of B, out of L2.
template <class Tile>
DEVICE GemmPlace tile_of_block(u32 block, u32 m, u32 n, u32 group) {
    const u32 tiles_m = (m + Tile::m - 1) / Tile::m, tiles_n = (n + Tile::n - 1) / Tile::n;
    const u32 first = block / (group * tiles_n) * group, height = min(group, tiles_m - first);
    const u32 within = block % (group * tiles_n);
    return GemmPlace{(first + within % height) * Tile::m, within / height * Tile::n};
}

// The stages of a block, the same for all its products.
template <class Tile>
DEVICE bf16* gemm_stages() {
    DYNAMIC_SHARED(bf16, stages, Tile::stages * Tile::numbers, 0);
    return &stages[0];
}

// Adds the products of all terms to the sums of the tile at `place` of C [m, n]. Every thread of the block calls it, once or
// several times; calls one after the other need no barrier between them, shared memory included.
template <class Tile, Order A, Order B, Format FORMAT, int Terms>
DEVICE void add_gemm_sums(Tile& c, const GemmTerm (&terms)[Terms], u32 m, u32 n, GemmPlace place) {
    static_assert(FORMAT == FORMAT_BF16 || (A == K_INNER && B == K_INNER), "there is no transposed read of bytes");
    using TileA = OperandTile<A, Tile::m, Tile::k, Tile::threads, Tile::ahead>;
    using TileB = OperandTile<B, Tile::n, Tile::k, Tile::threads, Tile::ahead>;
    constexpr int steps = Tile::k / 16;
    bf16* const shared = gemm_stages<Tile>();

    // What is loaded next. Terms may be empty.
    TileA next_a;
    TileB next_b;
    int term = -1, depths_of_term = 0, depths = 0;
    const auto start_term = [&] {
        ++term;
        GemmTerm now = terms[0];
#pragma unroll
        for (int i = 1; i < Terms; ++i)
            if (i == term) now = terms[i];
        next_a.start(now.a, now.a_pitch, place.row, m, now.k);
        next_b.start(now.b, now.b_pitch, place.column, n, now.k);
        depths_of_term = int((now.k + Tile::k - 1) / Tile::k);
    };
    // Behind the last term nothing exists, and zeros arrive.
    const auto go_to_term = [&] {
        while (Terms > 1 && depths_of_term == 0 && term + 1 < Terms) start_term();
    };
    const auto load = [&](int stage) {
        next_a.load(shared + stage * Tile::numbers);
        next_b.load(shared + stage * Tile::numbers + Tile::m * Tile::k);
        --depths_of_term;
    };
    start_term();
    go_to_term();
#pragma unroll
    for (int i = 0; i < Terms; ++i) depths += int((terms[i].k + Tile::k - 1) / Tile::k);

    // Pieces of two steps of 16 along k: one is multiplied while the next one is read.
    u32 a[2][Tile::pieces_m][4], b[2][Tile::pieces_n / 2][4];
    const u32 warp = threadIdx.x / WARP;
    const u32 piece_a = TileA::piece_of_warp(warp / Tile::warps_n * Tile::warp_m, false);
    const u32 piece_b = TileB::piece_of_warp(warp % Tile::warps_n * Tile::warp_n, true) + Tile::m * Tile::k;
    const auto read = [&](int stage, int step) {
        const bf16* const tile = shared + stage * Tile::numbers;
#pragma unroll
        for (int i = 0; i < Tile::pieces_m; ++i) TileA::read(a[step % 2][i], tile, piece_a, i, step);
#pragma unroll
        for (int j = 0; j < Tile::pieces_n / 2; ++j) TileB::read(b[step % 2][j], tile, piece_b, j, step);
    };

    __syncthreads();  // The call before has read its stages.
#pragma unroll
    for (int stage = 0; stage < Tile::stages - 1; ++stage) {
        load(stage);
        go_to_term();
        cp_async_commit();
    }
    cp_async_wait<Tile::stages - 2>();
    __syncthreads();
    read(0, 0);
    int stage = 0, free = Tile::stages - 1;
    for (int depth = 0; depth < depths; ++depth) {
        const int next_stage = stage + 1 == Tile::stages ? 0 : stage + 1;
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            if (step + 1 < steps) {
                read(stage, step + 1);
            } else {
                cp_async_wait<Tile::stages - 2>();
                // The next stage has arrived for all, and this one is free.
                __syncthreads();
                read(next_stage, 0);
            }
            if (step == 0) {
                load(free);
                cp_async_commit();
            }
#pragma unroll
            for (int i = 0; i < Tile::pieces_m; ++i)
#pragma unroll
                for (int j = 0; j < Tile::pieces_n; ++j) {
                    const u32 b0 = b[step % 2][j / 2][j % 2 * 2], b1 = b[step % 2][j / 2][j % 2 * 2 + 1];
                    if (FORMAT == FORMAT_E4M3) mma_e4m3(c.sums[i][j], a[step % 2][i], b0, b1);
                    else mma(c.sums[i][j], a[step % 2][i], b0, b1);
                }
        }
        free = stage;
        stage = next_stage;
        go_to_term();
    }
    cp_async_wait<0>();
}

template <class Tile>
DEVICE void begin_sums(Tile& c) {
#pragma unroll
    for (int i = 0; i < Tile::pieces_m; ++i)
#pragma unroll
        for (int j = 0; j < Tile::pieces_n; ++j)
#pragma unroll
            for (int x = 0; x < 4; ++x) c.sums[i][j][x] = 0.0f;
}

// The sums of the tile, of bf16 terms and nothing else.
template <class Tile, Order A, Order B, int Terms>
DEVICE void gemm_sums(Tile& c, const GemmTerm (&terms)[Terms], u32 m, u32 n, GemmPlace place) {
    begin_sums(c);
    add_gemm_sums<Tile, A, B, FORMAT_BF16>(c, terms, m, n, place);
}

// Calls `take(row, column, x, y)` with C's numbers at `column` and `column + 1`, by reference, for every pair this thread
// holds, inside C or not. A row's pairs are with four neighbouring lanes (`lane / 4` is the row modulo 8), in each of the
// warps of that row.
template <class Tile, class Take>
DEVICE void for_each_pair(Tile& c, GemmPlace place, Take take) {
    const u32 row = place.row + u32(warp_index() / Tile::warps_n * Tile::warp_m + lane_index() / 4);
    const u32 column = place.column + u32(warp_index() % Tile::warps_n * Tile::warp_n + lane_index() % 4 * 2);
#pragma unroll
    for (int i = 0; i < Tile::pieces_m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < Tile::pieces_n; ++j)
                take(row + u32(16 * i + 8 * half), column + u32(8 * j), c.sums[i][j][2 * half], c.sums[i][j][2 * half + 1]);
}

// Calls `take(row, column, four)` with C's numbers at `column..column + 4`, inside C or not. Neighbouring lanes swap pairs
// for it, so that four lanes write 16 numbers of a row at once; all lanes call it.
template <class Tile, class Take>
DEVICE void for_each_four(const Tile& c, GemmPlace place, Take take) {
    const int odd = lane_index() % 2;
    const u32 row = place.row + u32(warp_index() / Tile::warps_n * Tile::warp_m + lane_index() / 4);
    const u32 column = place.column + u32(warp_index() % Tile::warps_n * Tile::warp_n + 8 * odd + lane_index() % 4 / 2 * 4);
#pragma unroll
    for (int i = 0; i < Tile::pieces_m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < Tile::pieces_n; j += 2) {
                // An even lane keeps its pair of the left piece and gets its neighbour's; an odd one, of the right piece.
                const float *const left = &c.sums[i][j][2 * half], *const right = &c.sums[i][j + 1][2 * half];
                const float x = __shfl_xor_sync(ALL_LANES, odd ? left[0] : right[0], 1);
                const float y = __shfl_xor_sync(ALL_LANES, odd ? left[1] : right[1], 1);
                take(row + u32(16 * i + 8 * half), column + u32(8 * j),
                     odd ? make_float4(x, y, right[0], right[1]) : make_float4(left[0], left[1], x, y));
            }
}

// Four numbers of a row, 8-byte aligned in bf16 and 16-byte aligned in fp32.
DEVICE float4 load4(const bf16* from) {
    const u64 words = *reinterpret_cast<const u64*>(from);
    return make_float4(__uint_as_float(u32(words) << 16), __uint_as_float(u32(words) & 0xffff0000u),
                       __uint_as_float(u32(words >> 32) << 16), __uint_as_float(u32(words >> 32) & 0xffff0000u));
}

DEVICE float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

DEVICE float4 add4(float4 x, float4 y) { return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w); }

DEVICE void store4(bf16* to, float4 x, bool accumulate) {
    if (accumulate) x = add4(load4(to), x);
    *reinterpret_cast<u64*>(to) = u64(pack_bf16(x.x, x.y)) | u64(pack_bf16(x.z, x.w)) << 32;
}

DEVICE void store4(float* to, float4 x, bool accumulate) {
    if (accumulate) x = add4(load4(to), x);
    *reinterpret_cast<float4*>(to) = x;
}
