// The first, the last and a ragged block of the largest grids of training, on sparse memory: 2B and 27B, packs of 5,376, 8,192 and 32,768
// tokens, and of 131,072, the vocabulary of 248,320. The other tests have small sizes, at which a place that needs more than 32 bits fits
// into them.
//
// Inputs are zero but where the chosen blocks have to read; results are held against double there, and no page may exist elsewhere.
#include "../device/bf16.cuh"
#include "../device/f16.cuh"
#include "../device/async_copy.cuh"
#include "../device/examples.cuh"
#include "../device/gemm.cuh"
#include "../device/silu.cuh"
#include "../device/reduce.cuh"
#include "../device/shared.cuh"
#include "../device/tensor_core.cuh"
// Before the sources of products: its names are also theirs.
namespace attention {
#include "../packed_attention/append.cuh"
#include "../packed_attention/backward.cuh"
#include "../packed_attention/cached.cuh"
#include "../packed_attention/forward.cuh"
}  // namespace attention
// The heads of attention have 256 numbers, those of DeltaNets 128.
#undef HEAD_DIM
#define HEAD_DIM 128
namespace delta_rule {
#include "../gated_delta_rule/chunk_matrices.cuh"
#include "../gated_delta_rule/forward.cuh"
#include "../gated_delta_rule/backward.cuh"
#include "../gated_delta_rule/gradients.cuh"
}  // namespace delta_rule
namespace gelu {
#include "../gelu_mul/gelu_mul.cuh"
}  // namespace gelu
namespace masks {
#include "../dropout/dropout.cuh"
}  // namespace masks
namespace lora {
#include "../lora_linear/lora_linear.cuh"
}  // namespace lora
namespace e4m3 {
#include "../fp8/fp8.cuh"
#include "../fp8/quantize.cuh"
}  // namespace e4m3
namespace few_rows {
#include "../linear/by_row.cuh"
#undef ROWS
}  // namespace few_rows
namespace scaling {
#include "../scale/scale.cuh"
}  // namespace scaling
#include "../adamw/adamw.cuh"
#include "../cast/cast.cuh"
#include "../causal_conv1d_silu/causal_conv1d_silu.cuh"
#include "../delta_gates/delta_gates.cuh"
#include "../embedding/embedding.cuh"
#include "../gated_rms_norm/gated_rms_norm.cuh"
#include "../linear/linear.cuh"
#include "../linear_cross_entropy/linear_cross_entropy.cuh"
#include "../linear_cross_entropy/rows.cuh"
#include "../norm_rope/norm_rope.cuh"
#include "../rms_norm/rms_norm.cuh"
#include "../rope/rope.cuh"
#include "../sigmoid_gate/sigmoid_gate.cuh"
#include "../silu_mul/silu_mul.cuh"
#include "../emulator/check.hpp"
#include "../emulator/sparse.hpp"

using namespace check;
using emulator::Sparse;
using Ranges = std::vector<std::pair<size_t, size_t>>;

constexpr u64 VOCABULARY = 248320;
struct Size {
    const char* name;
    u32 hidden, intermediate;
} constexpr TWO{"2B", 2048, 6144}, LARGE{"27B", 5120, 17408};

// A number that depends on its place.
static float number(u64 place, u64 seed) { return float(Random(place * 31 + seed).next()); }

template <class T>
static void fill(Sparse<T>& buffer, u64 first, u64 count, u64 seed) {
    for (u64 i = first; i < first + count; ++i) assign(buffer[i], number(i, seed));
}

static void near(const std::string& what, double got, double want, double size, double limit) {
    Row& row = row_of(what);
    row.limit = {limit, limit};
    const double error = std::fabs(got - want) / size;
    if (!(error <= row.each)) row.each = row.relative_l2 = error;
    if (!(error <= limit)) failed(what, std::to_string(got) + " instead of " + std::to_string(want));
}

template <class T>
static void nothing_else(const std::string& what, const Sparse<T>& buffer, const Ranges& expected) {
    ++row_of(what).cases;
    if (buffer.touched_outside(expected)) failed(what, "a page was touched that belongs to no chosen block");
}

// Runs these blocks alone.
template <class Launch>
static void only(std::vector<uint64_t> blocks, Launch launch) {
    emulator::only_blocks = std::move(blocks);
    launch();
    emulator::only_blocks.clear();
}

// Elementwise: count numbers, 2048 a block, the last one ragged.
static void silu_mul(const Size& size, u64 tokens) {
    const std::string what = "silu_mul";
    const u64 count = tokens * size.intermediate - 5, blocks = (count + 2047) / 2048;
    Sparse<bf16> gate("gate", count), up("up", count), out("out", count);
    const Ranges ranges{{0, 2048}, {(blocks - 1) * 2048, count}};
    for (const auto& [first, last] : ranges) fill(gate, first, last - first, 1), fill(up, first, last - first, 2);
    only({0, blocks - 1}, [&] { LAUNCH(silu_mul_forward, unsigned(blocks), 256, gate.data(), up.data(), out.data(), {count}); });
    for (const auto& [first, last] : ranges)
        for (u64 i = first; i < last; ++i) {
            const double g = value(gate[i]), want = g * sigmoid(g) * value(up[i]);
            near(what, value(out[i]), want, std::fabs(want) + 0.1, 8e-3);
        }
    nothing_else(what, out, ranges);
    nothing_else(what, gate, ranges);
}

// The head's matrix is the largest parameter: 1.27 G numbers of the 27B.
static void adamw(const Size& size) {
    const std::string what = "adamw";
    const u64 count = VOCABULARY * size.hidden, blocks = (count + 2047) / 2048;
    Sparse<float> gradient("gradient", count), clip("clip", 2), master("master", count), first("first", count), second("second", count);
    Sparse<bf16> narrow("narrow", count);
    clip[1] = 1.0f;
    const Ranges ranges{{0, 2048}, {(blocks - 1) * 2048, count}};
    for (const auto& [begin, end] : ranges) fill(gradient, begin, end - begin, 1), fill(master, begin, end - begin, 2);
    Numbers before;
    for (const auto& [begin, end] : ranges)
        for (u64 i = begin; i < end; ++i) before.push_back(master[i]);
    const AdamWUpdateSizes sizes{count, 0.9f, 0.95f, 0.1f, 0.05f, 1e-8f, 0.01f, 1.0f, 1.0f};
    only({0, blocks - 1}, [&] {
        LAUNCH(adamw_update, unsigned(blocks), 256, gradient.data(), clip.data(), master.data(), first.data(), second.data(), narrow.data(), sizes);
    });
    size_t at = 0;
    for (const auto& [begin, end] : ranges)
        for (u64 i = begin; i < end; ++i) {
            const double g = gradient[i], m = 0.1 * g, v = 0.05 * g * g;
            near(what, master[i], before[at++] - 0.01 * m / (std::sqrt(v) + 1e-8), 1.0, 1e-5);
        }
    nothing_else(what, master, ranges);
    nothing_else(what, narrow, ranges);
}

static void norm(const Size& size, u32 tokens) {
    const std::string what = "rms_norm";
    const u64 width = size.hidden, last = u64(tokens - 1) * width;
    Sparse<bf16> x("x", tokens * width), y("y", tokens * width);
    Sparse<float> weight("weight", width);
    fill(weight, 0, width, 1), fill(x, 0, width, 2), fill(x, last, width, 3);
    only({0, tokens - 1}, [&] { LAUNCH(rms_norm_forward, tokens, 256, x.data(), weight.data(), y.data(), {tokens, size.hidden, 1e-6f, 1.0f}); });
    for (const u64 row : {u64(0), last}) {
        double square = 0;
        for (u64 i = 0; i < width; ++i) square += value(x[row + i]) * value(x[row + i]);
        for (u64 i = 0; i < width; ++i)
            near(what, value(y[row + i]), value(x[row + i]) / std::sqrt(square / double(width) + 1e-6) * (weight[i] + 1.0), 1.0, 3e-2);
    }
    nothing_else(what, y, {{0, width}, {last, last + width}});
    nothing_else(what, x, {{0, width}, {last, last + width}});
}

// The last row of the table, and its gradient.
static void embedding(const Size& size) {
    const std::string what = "embedding";
    const u64 width = size.hidden, row = (VOCABULARY - 1) * width;
    const unsigned columns = unsigned((width + 2047) / 2048);
    Sparse<bf16> table("table", VOCABULARY * width), y("y", width);
    Sparse<u32> ids("ids", 1), starts("starts", 2);
    Sparse<float> d_table("d_table", VOCABULARY * width);
    ids[0] = u32(VOCABULARY - 1);
    starts[1] = 1;
    Sparse<u32> token("token", 1);
    fill(table, row, width, 1);
    LAUNCH(gather_rows, dim3(1, columns), 256, table.data(), ids.data(), y.data(), {1, size.hidden});
    LAUNCH(embedding_backward, dim3(1, columns), 256, y.data(), token.data(), starts.data(), ids.data(), d_table.data(), {1, size.hidden});
    for (u64 i = 0; i < width; ++i) {
        near(what, value(y[i]), value(table[row + i]), 1.0, 0);
        near(what, d_table[row + i], value(table[row + i]), 1.0, 0);
    }
    nothing_else(what, table, {{row, row + width}});
    nothing_else(what, d_table, {{row, row + width}});
}

// The last run of tokens and the last channels.
static void convolution(u32 tokens, u32 channels) {
    const std::string what = "causal_conv1d_silu";
    constexpr u32 RUN = 64;
    const u32 runs = (tokens + RUN - 1) / RUN, columns = (channels + 1023) / 1024, token = (runs - 1) * RUN;
    Sparse<bf16> u("u", u64(tokens) * channels), weight("weight", u64(channels) * 4), y("y", u64(tokens) * channels);
    Sparse<u32> positions("positions", tokens);
    for (u32 t = token - 8; t < tokens; ++t) positions[t] = 100 + t;
    fill(weight, 0, u64(channels) * 4, 1);
    const u32 first = (columns - 1) * 1024;
    for (u32 t = token - 3; t < tokens; ++t) fill(u, u64(t) * channels + first, channels - first, 2);
    only({u64(runs) * columns - 1}, [&] {
        LAUNCH(causal_conv1d_silu_forward, dim3(columns, runs), 128, u.data(), weight.data(), positions.data(), y.data(), {tokens, channels, RUN, 0});
    });
    Ranges written;
    for (u32 t = token; t < tokens; ++t) {
        const u64 row = u64(t) * channels;
        written.push_back({row + first, row + channels});
        for (u32 channel = first; channel < channels; channel += 97) {
            double sum = 0;
            for (u32 lag = 0; lag < 4; ++lag) sum += value(weight[u64(channel) * 4 + 3 - lag]) * value(u[row - u64(lag) * channels + channel]);
            near(what, value(y[row + channel]), sum * sigmoid(sum), 1.0, 2e-2);
        }
    }
    nothing_else(what, y, written);
}

// The last block of the product of all tokens with a wide matrix: the ragged corner of C.
using Tile = GemmTile<128, 128, 32, 2, 2, 3>;

static void product(const std::string& what, u32 m, u32 n, u32 k) {
    const u32 columns = (n + 127) / 128, rows = (m + 127) / 128, first_row = (rows - 1) * 128, first_column = (columns - 1) * 128;
    Sparse<bf16> a("a", u64(m) * k), b("b", u64(n) * k), c("c", u64(m) * n);
    // Few rows and columns are not zero, along all of k.
    const u32 row = m - 1, column = n - 1;
    fill(a, u64(row) * k, k, 1), fill(b, u64(column) * k, k, 2);
    const LinearSizes sizes{m, n, k, k, k, n, 0, 0, 0, 8, k, 0, 1.0f};
    only({u64(rows) * columns - 1}, [&] { LAUNCH((linear_tile<Tile, K_INNER, K_INNER>), rows * columns, Tile::threads, a.data(), b.data(), c.data(), sizes); });
    double want = 0;
    for (u32 i = 0; i < k; ++i) want += double(value(a[u64(row) * k + i])) * value(b[u64(column) * k + i]);
    near(what, value(c[u64(row) * n + column]), want, std::fabs(want) + std::sqrt(double(k)) / 3, 8e-3);
    Ranges written, of_a{{u64(first_row) * k, u64(m) * k}}, of_b{{u64(first_column) * k, u64(n) * k}};
    for (u32 r = first_row; r < m; ++r) written.push_back({u64(r) * n + first_column, u64(r) * n + n});
    nothing_else(what, c, written);
    nothing_else(what, a, of_a);
    nothing_else(what, b, of_b);
}

// The gradient of the head's matrix: C has a row for each word of the vocabulary.
static void weight_gradient(const std::string& what, u32 m, u32 n, u32 tokens) {
    const u32 columns = (n + 127) / 128, rows = (m + 127) / 128, first_row = (rows - 1) * 128, first_column = (columns - 1) * 128;
    Sparse<bf16> d_y("d_y", u64(tokens) * m), x("x", u64(tokens) * n);
    Sparse<float> c("c", u64(m) * n);
    double want = 0;
    for (u64 t = 0; t < tokens; ++t) {
        assign(d_y[t * m + m - 1], number(t, 1)), assign(x[t * n + n - 1], number(t, 2));
        want += double(value(d_y[t * m + m - 1])) * value(x[t * n + n - 1]);
    }
    const LinearSizes sizes{m, n, tokens, m, n, n, 0, 0, 0, 8, tokens, 0, 1.0f};
    only({u64(rows) * columns - 1}, [&] { LAUNCH((linear_tile<Tile, K_OUTER, K_OUTER>), rows * columns, Tile::threads, d_y.data(), x.data(), c.data(), sizes); });
    near(what, c[u64(m) * n - 1], want, std::fabs(want) + 1.0, 1e-5);
    Ranges written;
    for (u32 r = first_row; r < m; ++r) written.push_back({u64(r) * n + first_column, u64(r) * n + n});
    nothing_else(what, c, written);
}

// The last tile of a slab of logits: the last words of the vocabulary, the last rows of the chunk.
static void logits(const Size& size, u32 rows, u32 width) {
    const std::string what = "cross_entropy_logits";
    const u32 hidden = size.hidden, first_column = u32(VOCABULARY) - width, strips = (width + Tile::warp_n - 1) / Tile::warp_n;
    const u32 tile_rows = (rows + 127) / 128, tile_columns = (width + 127) / 128, first_row = (tile_rows - 1) * 128, first_of_tile = (tile_columns - 1) * 128;
    Sparse<bf16> x("x", u64(rows) * hidden), weight("weight", VOCABULARY * hidden), e("e", u64(rows) * width);
    Sparse<u32> tokens("tokens", rows);
    Sparse<float> state("state", 5 * u64(rows));
    Sparse<float2> statistics("statistics", u64(strips) * rows);
    const u64 row = rows - 1, column = VOCABULARY - 1;
    for (u64 i = 0; i < hidden; ++i) assign(x[row * hidden + i], number(i, 1) / 16), assign(weight[column * hidden + i], number(i, 2));
    double logit = 0;
    for (u64 i = 0; i < hidden; ++i) logit += double(value(x[row * hidden + i])) * value(weight[column * hidden + i]);
    const CrossEntropyLogitsSizes sizes{rows, hidden, 0, first_column, width, 16};
    only({u64(tile_rows) * tile_columns - 1}, [&] {
        LAUNCH(cross_entropy_logits, tile_rows * tile_columns, HeadTile::threads, x.data(), weight.data(), tokens.data(), state.data(), e.data(),
               statistics.data(), sizes);
    });
    // The reference is 0, and so is every other logit of the tile.
    near(what, value(e[row * width + width - 1]), std::exp(logit), std::exp(logit), 8e-3);
    near(what + " beside it", value(e[row * width + width - 2]), 1.0, 1.0, 0);
    Ranges written;
    for (u64 r = first_row; r < rows; ++r) written.push_back({r * width + first_of_tile, r * width + width});
    nothing_else(what, e, written);
    nothing_else(what, weight, {{(first_column + u64(first_of_tile)) * hidden, VOCABULARY * hidden}});
}

// The last queries of a pack whose last example is short, so that they see few keys; every head. The keys' gradient of the same example.
static void packed_attention(u32 tokens, u32 q_heads, u32 kv_heads) {
    const std::string what = "packed_attention";
    constexpr int D = 256;
    constexpr u32 LENGTH = 40;
    const u32 group = q_heads / kv_heads, held = 128 / group, start = tokens - LENGTH, first = tokens - held;
    const u64 q_width = u64(q_heads) * D, kv_width = u64(kv_heads) * D;
    Sparse<bf16> q("q", tokens * q_width), k("k", tokens * kv_width), v("v", tokens * kv_width), o("o", tokens * q_width), d_o("d_o", tokens * q_width);
    Sparse<bf16> d_q("d_q", tokens * q_width), d_k("d_k", tokens * kv_width), d_v("d_v", tokens * kv_width);
    Sparse<float> lse("lse", u64(tokens) * q_heads), delta("delta", u64(tokens) * q_heads);
    Sparse<u32> borders("borders", 2 * u64(tokens)), work("work", 3);
    for (u32 t = start; t < tokens; ++t) borders[t] = start, borders[tokens + t] = tokens;
    fill(q, start * q_width, LENGTH * q_width, 1), fill(k, start * kv_width, LENGTH * kv_width, 2);
    fill(v, start * kv_width, LENGTH * kv_width, 3), fill(d_o, start * q_width, LENGTH * q_width, 4);
    work[1] = first, work[2] = held;
    const attention::PackedAttentionSizes sizes{tokens, q_heads, kv_heads, 0, 0xffffffffu, 1.0f / 16};
    const auto forward = attention::attention_forward<D, attention::forward_keys(D)>;
    LAUNCH(forward, kv_heads, attention::ATTENTION_THREADS, q.data(), k.data(), v.data(), borders.data(), work.data(), o.data(), lse.data(), sizes);
    Ranges of_queries{{first * q_width, tokens * q_width}};
    nothing_else(what, o, of_queries);
    nothing_else(what, q, {{start * q_width, tokens * q_width}});
    for (u64 row = u64(first) * q_heads; row < u64(tokens) * q_heads; row += 7) {
        const u64 t = row / q_heads, kv = row % q_heads / group;
        Numbers weights;
        double sum = 0;
        for (u64 j = start; j <= t; ++j) {
            double score = 0;
            for (u64 d = 0; d < D; ++d) score += value(q[row * D + d]) * value(k[j * kv_width + kv * D + d]);
            weights.push_back(std::exp(score / 16));
            sum += weights.back();
        }
        near(what, lse[row], std::log(sum), 1.0, 1e-4);
        for (u64 d = 0; d < D; d += 61) {
            double want = 0;
            for (u64 j = start; j <= t; ++j) want += weights[j - start] / sum * value(v[j * kv_width + kv * D + d]);
            near(what + ": o", value(o[row * D + d]), want, 1.0, 1e-2);
        }
    }
    // Queries whose gradients are zero but for the last block's: d_v is what their weights take of d_o, where it is not zero.
    work[0] = 1, work[1] = tokens - 1, work[2] = 1;
    const auto backward = attention::attention_backward<D, attention::backward_rows(D)>;
    LAUNCH(backward, kv_heads, attention::ATTENTION_THREADS, q.data(), k.data(), v.data(), d_o.data(), lse.data(), delta.data(), borders.data(),
           work.data(), d_q.data(), d_k.data(), d_v.data(), sizes);
    const Ranges last{{(tokens - 1) * kv_width, tokens * kv_width}};
    for (const Sparse<bf16>* gradient : {&d_q, &d_k, &d_v}) nothing_else(what + " backward", *gradient, last);
}

// The last example of a pack, which is one short chunk, after one that fills the rest; the 2B's heads.
static void delta(u32 tokens) {
    const std::string what = "delta_rule";
    constexpr int D = 128;
    constexpr u32 HEADS = 16, LENGTH = 40;
    const u32 start = tokens - LENGTH, chunks = (start + 63) / 64 + 1;
    const u64 width = 3 * HEADS * D, row = u64(HEADS) * D, squares = u64(chunks) * HEADS * 64 * 64, all_states = u64(chunks) * HEADS * D * D;
    Sparse<bf16> qkv("qkv", tokens * width), out("out", tokens * row), writes("writes", tokens * row), d_out("d_out", tokens * row);
    Sparse<bf16> d_qkv("d_qkv", tokens * width), states("states", all_states), d_states("d_states", all_states);
    Sparse<f16> inverses("inverses", squares), attentions("attentions", squares);
    Sparse<float> g("g", u64(tokens) * HEADS), beta("beta", u64(tokens) * HEADS), sums("gate_sums", u64(tokens) * HEADS);
    Sparse<float> norms("norms", u64(tokens) * HEADS * 2), d_g("d_g", u64(tokens) * HEADS), d_beta("d_beta", u64(tokens) * HEADS);
    Sparse<u32> chunk_table("chunk_table", 2 * u64(chunks)), segments("segments", 2);
    chunk_table[2 * u64(chunks - 1)] = start, chunk_table[2 * u64(chunks) - 1] = LENGTH;
    segments[0] = chunks - 1, segments[1] = 1;
    fill(qkv, start * width, LENGTH * width, 1), fill(d_out, start * row, LENGTH * row, 2);
    for (u64 i = u64(start) * HEADS; i < u64(tokens) * HEADS; ++i) g[i] = -0.05f * float(i % 7), beta[i] = 0.25f + 0.1f * float(i % 5);
    std::vector<uint64_t> last;
    for (u64 head = 0; head < HEADS; ++head) last.push_back(head * chunks + chunks - 1);
    const dim3 everywhere(chunks, HEADS), slices(HEADS * (D / delta_rule::StateShape<D>::SLICE), 1);
    const delta_rule::DeltaRuleSizes sizes{HEADS, HEADS};
    only(last, [&] {
        LAUNCH(delta_rule::chunk_matrices<D>, everywhere, 256, qkv.data(), g.data(), beta.data(), chunk_table.data(), inverses.data(),
               attentions.data(), sums.data(), norms.data(), sizes);
    });
    LAUNCH((delta_rule::walk_forward<D, false>), slices, 256, qkv.data(), inverses.data(), attentions.data(), sums.data(), norms.data(),
           chunk_table.data(), segments.data(), out.data(), nullptr, sizes);
    LAUNCH((delta_rule::walk_forward<D, true>), slices, 256, qkv.data(), inverses.data(), nullptr, sums.data(), norms.data(),
           chunk_table.data(), segments.data(), writes.data(), states.data(), sizes);
    LAUNCH(delta_rule::walk_backward<D>, slices, 256, qkv.data(), inverses.data(), attentions.data(), sums.data(), norms.data(), d_out.data(),
           chunk_table.data(), segments.data(), d_qkv.data(), d_states.data(), sizes);
    only(last, [&] {
        LAUNCH(delta_rule::gradients<D>, everywhere, 256, qkv.data(), beta.data(), sums.data(), norms.data(), states.data(), d_states.data(),
               writes.data(), d_out.data(), chunk_table.data(), d_qkv.data(), d_g.data(), d_beta.data(), sizes);
    });
    for (const u64 head : {u64(0), u64(HEADS - 1)}) {
        // The recurrence, token by token; `q` and `k` have unit length.
        Numbers state(D * D), q(D), k(D), error(D);
        for (u64 t = start; t < tokens; ++t) {
            const auto unit = [&](Numbers& into, u64 at, double scale) {
                double square = 1e-6;
                for (int i = 0; i < D; ++i) square += value(qkv[at + i]) * value(qkv[at + i]);
                for (int i = 0; i < D; ++i) into[i] = value(qkv[at + i]) / std::sqrt(square) * scale;
            };
            unit(q, t * width + head * D, 1 / std::sqrt(double(D)));
            unit(k, t * width + row + head * D, 1);
            for (double& x : state) x *= std::exp(g[t * HEADS + head]);
            for (int c = 0; c < D; ++c) {
                error[c] = value(qkv[t * width + 2 * row + head * D + c]);
                for (int r = 0; r < D; ++r) error[c] -= k[r] * state[r * D + c];
                for (int r = 0; r < D; ++r) state[r * D + c] += k[r] * beta[t * HEADS + head] * error[c];
            }
        }
        double q_k = 0;
        for (int r = 0; r < D; ++r) q_k += q[r] * k[r];
        const u64 of_last = (tokens - 1) * row + head * D;
        // What the last token writes is read by its own query alone.
        Numbers of_out(D), of_v(D);
        double out_size = 0, v_size = 0;
        for (int c = 0; c < D; ++c) {
            for (int r = 0; r < D; ++r) of_out[c] += q[r] * state[r * D + c];
            of_v[c] = beta[(tokens - 1) * HEADS + head] * q_k * value(d_out[of_last + c]);
            out_size += of_out[c] * of_out[c] / D, v_size += of_v[c] * of_v[c] / D;
        }
        for (int c = 0; c < D; ++c) {
            near(what, value(out[of_last + c]), of_out[c], std::sqrt(out_size), 3e-2);
            near(what + ": d_v", value(d_qkv[(tokens - 1) * width + 2 * row + head * D + c]), of_v[c], std::sqrt(v_size), 3e-2);
        }
    }
    const Ranges rows{{start * row, tokens * row}}, gates{{u64(start) * HEADS, u64(tokens) * HEADS}};
    for (const Sparse<bf16>* result : {&out, &writes}) nothing_else(what, *result, rows);
    for (const Sparse<float>* result : {&sums, &d_g, &d_beta}) nothing_else(what, *result, gates);
    for (const Sparse<f16>* result : {&inverses, &attentions}) nothing_else(what, *result, {{u64(chunks - 1) * HEADS * 64 * 64, squares}});
    for (const Sparse<bf16>* result : {&states, &d_states}) nothing_else(what, *result, {{u64(chunks - 1) * HEADS * D * D, all_states}});
    nothing_else(what, d_qkv, {{start * width, tokens * width}});
}

// The last query head of the last token, whose projection also has gates. As many blocks as the op launches would go round several times;
// here each has its own heads.
static void norm_rope(u32 tokens, u32 heads) {
    const std::string what = "norm_rope";
    constexpr u32 D = 256, ROTARY = 64, LANES = 32, STRIDE = 2 * D;
    const u64 vectors = u64(tokens) * heads, first = vectors - 8, angle = u64(tokens - 1) * ROTARY / 2;
    Sparse<bf16> x("x", vectors * STRIDE), y("y", vectors * D);
    Sparse<float> weight("weight", D), cosines("cosines", u64(tokens) * ROTARY / 2), sines("sines", u64(tokens) * ROTARY / 2);
    fill(weight, 0, D, 1), fill(x, first * STRIDE, 8 * STRIDE, 2);
    for (u64 i = 0; i < ROTARY / 2; ++i) cosines[angle + i] = float(std::cos(double(i))), sines[angle + i] = float(std::sin(double(i)));
    const u32 blocks = u32(vectors / 8);
    only({blocks - 1}, [&] {
        LAUNCH(norm_rope_forward, blocks, 256, x.data(), weight.data(), cosines.data(), sines.data(), y.data(),
               {tokens, heads, D, STRIDE, ROTARY, LANES, 1e-6f, 1.0f});
    });
    const u64 from = (vectors - 1) * STRIDE;
    double square = 0;
    for (u64 i = 0; i < D; ++i) square += value(x[from + i]) * value(x[from + i]);
    const auto normed = [&](u64 i) { return value(x[from + i]) / std::sqrt(square / D + 1e-6) * (weight[i] + 1.0); };
    for (u64 i = 0; i < D; ++i) {
        double want = normed(i);
        if (i < ROTARY / 2) want = want * cosines[angle + i] - normed(i + ROTARY / 2) * sines[angle + i];
        else if (i < ROTARY) want = want * cosines[angle + i - ROTARY / 2] + normed(i - ROTARY / 2) * sines[angle + i - ROTARY / 2];
        near(what, value(y[(vectors - 1) * D + i]), want, 1.0, 3e-2);
    }
    nothing_else(what, y, {{first * D, vectors * D}});
    nothing_else(what, x, {{first * STRIDE, vectors * STRIDE}});
}

// Numbers of e4m3, by their bytes.
static double value(unsigned char byte) { return byte; }
static void assign(unsigned char& to, double from) { to = static_cast<unsigned char>(from); }

// A matrix of a pack's rows, of which the last few hold numbers, and the same few rows alone. Whatever a kernel makes of a row has to be
// the same in both, bit for bit, and nothing may be touched in front of them.
template <class T>
struct Both {
    u64 width, before;  // numbers of a row, rows in front of the last few
    Sparse<T> pack, alone;

    // Without a seed it is a result.
    Both(u64 tokens, u64 few, u64 width, u64 seed = 0)
        : width(width), before(tokens - few), pack("a pack", tokens * width), alone("rows alone", few * width) {
        for (u64 i = 0; seed && i < few * width; ++i) {
            assign(alone[i], number(i, seed));
            pack[before * width + i] = alone[i];
        }
    }

    T* of(bool is_pack) { return is_pack ? pack.data() : alone.data(); }

    // `first` is the number from which on the launched blocks write.
    void expect(const std::string& what, u64 first) {
        ++row_of(what).cases;
        bool is_empty = true;
        for (u64 i = 0; i < alone.size(); ++i) {
            const T got = pack[before * width + i], want = alone[i];
            is_empty &= value(want) == 0;
            if (value(got) != value(want)) return failed(what, "number " + std::to_string(i) + " of the last rows is wrong");
        }
        if (is_empty) failed(what, "all results are zero");
        nothing_else(what, pack, {{first, pack.size()}});
    }
    void expect(const std::string& what) { expect(what, before * width); }
};

constexpr u32 FEW = 3;

// The blocks from the one of number `first` of a matrix on, each of which has `numbers`; with a second launch of the rows alone.
template <class Launch>
static void in_both(u64 tokens, u64 width, u64 numbers, Launch launch) {
    const u64 blocks = (tokens * width + numbers - 1) / numbers;
    std::vector<uint64_t> last;
    for (u64 block = (tokens - FEW) * width / numbers; block < blocks; ++block) last.push_back(block);
    only(last, [&] { launch(true, u32(tokens), unsigned(blocks)); });
    launch(false, FEW, unsigned((FEW * width + numbers - 1) / numbers));
}

// Number by number: the MLP's activations and their gradients, dropout that drops nothing, casts.
static void elementwise(u64 tokens, u64 width) {
    const u64 from = (tokens - FEW) * width / 2048 * 2048;
    Both<bf16> gate(tokens, FEW, width, 1), up(tokens, FEW, width, 2), d(tokens, FEW, width, 3);
    Both<bf16> d_gate(tokens, FEW, width), d_up(tokens, FEW, width), gelu_d_gate(tokens, FEW, width), gelu_d_up(tokens, FEW, width);
    Both<bf16> out(tokens, FEW, width), masked(tokens, FEW, width), total(tokens, FEW, width, 4);
    Both<bf16> scaled(tokens, FEW, width, 4);
    Both<float> wide(tokens, FEW, width), wide_scaled(tokens, FEW, width, 5);
    Sparse<float> factor("factor", 1);
    factor[0] = 0.3f;
    in_both(tokens, width, 2048, [&](bool pack, u32 rows, unsigned blocks) {
        const u64 count = rows * width;
        LAUNCH(silu_mul_backward, blocks, 256, gate.of(pack), up.of(pack), d.of(pack), d_gate.of(pack), d_up.of(pack), {count});
        LAUNCH(gelu::gelu_mul_forward, blocks, 256, gate.of(pack), up.of(pack), out.of(pack), {count});
        LAUNCH(gelu::gelu_mul_backward, blocks, 256, gate.of(pack), up.of(pack), d.of(pack), gelu_d_gate.of(pack), gelu_d_up.of(pack), {count});
        const masks::DropoutSizes dropped{count, {1, 2, 3, 4}, 2, 0, 1.5f};
        LAUNCH(masks::dropout, blocks, 256, gate.of(pack), masked.of(pack), dropped);
        LAUNCH(masks::dropout_add, blocks, 256, gate.of(pack), up.of(pack), up.of(pack), up.of(pack), total.of(pack), dropped);
        LAUNCH(cast_to_fp32, blocks, 256, gate.of(pack), wide.of(pack), {count});
        LAUNCH(scaling::scale_bf16, blocks, 256, factor.data(), scaled.of(pack), {count});
        LAUNCH(scaling::scale_f32, blocks, 256, factor.data(), wide_scaled.of(pack), {count});
    });
    d_gate.expect("silu_mul_backward", from), d_up.expect("silu_mul_backward", from);
    out.expect("gelu_mul", from), gelu_d_gate.expect("gelu_mul", from), gelu_d_up.expect("gelu_mul", from);
    masked.expect("dropout", from), total.expect("dropout", from), wide.expect("cast", from);
    scaled.expect("scale", from), wide_scaled.expect("scale", from);
}

// Norms of rows with the residual's sum, and their gradients: a block for each row.
static void norms(u32 tokens, u32 width) {
    Both<bf16> x(tokens, FEW, width, 1), residual(tokens, FEW, width, 2), d_y(tokens, FEW, width, 3), d_h(tokens, FEW, width, 4);
    Both<bf16> h(tokens, FEW, width), y(tokens, FEW, width), d_sum(tokens, FEW, width), d_x(tokens, FEW, width);
    // With the weight's gradient: as many blocks as rows, so that each leaves its part.
    Both<bf16> trained_d_sum(tokens, FEW, width), trained_d_x(tokens, FEW, width);
    Both<float> sum_parts(tokens, FEW, width), parts(tokens, FEW, width);
    Sparse<float> weight("weight", width);
    fill(weight, 0, width, 5);
    in_both(tokens, width, width, [&](bool pack, u32 rows, unsigned blocks) {
        const RmsNormSizes sizes{rows, width, 1e-6f, 1.0f};
        LAUNCH(add_rms_norm_forward, blocks, 256, x.of(pack), residual.of(pack), weight.data(), h.of(pack), y.of(pack), sizes);
        LAUNCH(add_rms_norm_backward, blocks, 256, h.of(pack), weight.data(), d_y.of(pack), d_h.of(pack), d_sum.of(pack), sizes);
        LAUNCH(rms_norm_backward, blocks, 256, x.of(pack), weight.data(), d_y.of(pack), d_x.of(pack), sizes);
        LAUNCH(add_rms_norm_backward_weight, blocks, 256, h.of(pack), weight.data(), d_y.of(pack), d_h.of(pack), trained_d_sum.of(pack),
               sum_parts.of(pack), sizes);
        LAUNCH(rms_norm_backward_weight, blocks, 256, x.of(pack), weight.data(), d_y.of(pack), trained_d_x.of(pack), parts.of(pack), sizes);
    });
    for (Both<bf16>* result : {&h, &y, &d_sum, &trained_d_sum}) result->expect("add_rms_norm");
    for (Both<bf16>* result : {&d_x, &trained_d_x}) result->expect("rms_norm_backward");
    sum_parts.expect("add_rms_norm"), parts.expect("rms_norm_backward");
}

// The heads of DeltaNets: their norm and gates, and the convolution's gradient.
static void delta_net(u32 tokens, u32 heads) {
    constexpr u32 D = 128, LANES = 16, GROUPS = 256 / LANES;
    const u64 width = u64(heads) * D;
    Both<bf16> x(tokens, FEW, width, 1), z(tokens, FEW, width, 2), d_y(tokens, FEW, width, 3), y(tokens, FEW, width), d_x(tokens, FEW, width),
        d_z(tokens, FEW, width), trained_d_x(tokens, FEW, width), trained_d_z(tokens, FEW, width);
    Both<float> parts(tokens, FEW, width / GROUPS);
    Sparse<float> weight("weight", D);
    fill(weight, 0, D, 4);
    in_both(tokens, width, GROUPS * D, [&](bool pack, u32 rows, unsigned blocks) {
        const GatedRmsNormSizes sizes{rows * heads, D, LANES, 1e-6f};
        LAUNCH(gated_rms_norm_forward, blocks, 256, x.of(pack), z.of(pack), weight.data(), y.of(pack), sizes);
        LAUNCH(gated_rms_norm_backward, blocks, 256, x.of(pack), z.of(pack), weight.data(), d_y.of(pack), d_x.of(pack), d_z.of(pack), sizes);
        LAUNCH(gated_rms_norm_backward_weight, blocks, 256, x.of(pack), z.of(pack), weight.data(), d_y.of(pack), trained_d_x.of(pack),
               trained_d_z.of(pack), parts.of(pack), sizes);
    });
    const u64 from = u64(tokens - FEW) * width / (GROUPS * D) * (GROUPS * D);
    for (Both<bf16>* result : {&y, &d_x, &d_z, &trained_d_x, &trained_d_z}) result->expect("gated_rms_norm", from);
    parts.expect("gated_rms_norm", from / GROUPS);

    Both<bf16> a(tokens, FEW, heads, 5), b(tokens, FEW, heads, 6), d_a(tokens, FEW, heads), d_b(tokens, FEW, heads),
        trained_d_a(tokens, FEW, heads), trained_d_b(tokens, FEW, heads);
    Both<float> d_g(tokens, FEW, heads, 7), d_beta(tokens, FEW, heads, 8), g(tokens, FEW, heads), beta(tokens, FEW, heads);
    Sparse<float> a_log("a_log", heads), bias("bias", heads);
    fill(a_log, 0, heads, 9), fill(bias, 0, heads, 10);
    in_both(tokens, heads, 256, [&](bool pack, u32 rows, unsigned blocks) {
        LAUNCH(delta_gates_forward, blocks, 256, a.of(pack), b.of(pack), a_log.data(), bias.data(), g.of(pack), beta.of(pack), {rows, heads});
    });
    const u32 together = 256 / heads * heads;
    Sparse<float> of_parameters("parts of a_log and bias", (u64(tokens) * heads + together - 1) / together * 2 * heads);
    in_both(tokens, heads, together, [&](bool pack, u32 rows, unsigned blocks) {
        LAUNCH(delta_gates_backward, blocks, 256, a.of(pack), b.of(pack), a_log.data(), bias.data(), d_g.of(pack), d_beta.of(pack), d_a.of(pack),
               d_b.of(pack), {rows, heads});
        LAUNCH(delta_gates_backward_parameters, blocks, 256, a.of(pack), b.of(pack), a_log.data(), bias.data(), d_g.of(pack), d_beta.of(pack),
               trained_d_a.of(pack), trained_d_b.of(pack), of_parameters.data(), {rows, heads});
    });
    const u64 of_gates = u64(tokens - FEW) * heads;
    g.expect("delta_gates", of_gates / 256 * 256), beta.expect("delta_gates", of_gates / 256 * 256);
    for (Both<bf16>* result : {&d_a, &d_b, &trained_d_a, &trained_d_b}) result->expect("delta_gates", of_gates / together * together);

    // The last rows are an example of their own, and the only run of their blocks.
    const u32 channels = 3 * heads * D, columns = (channels + 1023) / 1024;
    Both<bf16> u(tokens, FEW, channels, 11), d_v(tokens, FEW, channels, 12), d_u(tokens, FEW, channels), trained_d_u(tokens, FEW, channels);
    Both<float> of_taps(tokens / FEW, 1, channels * 4);
    Sparse<u32> positions("positions", tokens), of_alone("positions of the rows alone", FEW);
    Sparse<bf16> taps("taps", u64(channels) * 4);
    fill(taps, 0, u64(channels) * 4, 13);
    for (u32 t = 0; t < FEW; ++t) of_alone[t] = positions[tokens - FEW + t] = t;
    const auto gradients = [&](bool pack, u32 rows) {
        LAUNCH(causal_conv1d_silu_backward, dim3(columns, (rows + FEW - 1) / FEW), 128, u.of(pack), taps.data(), pack ? positions.data() : of_alone.data(),
               d_v.of(pack), d_u.of(pack), {rows, channels, FEW, 0});
    };
    const auto trained_gradients = [&](bool pack, u32 rows) {
        LAUNCH(causal_conv1d_silu_backward_weight, dim3(columns, (rows + FEW - 1) / FEW), 128, u.of(pack), taps.data(),
               pack ? positions.data() : of_alone.data(), d_v.of(pack), trained_d_u.of(pack), of_taps.of(pack), {rows, channels, FEW, 0});
    };
    std::vector<uint64_t> last_run;
    for (u64 column = 0; column < columns; ++column) last_run.push_back(u64((tokens + FEW - 1) / FEW - 1) * columns + column);
    if (tokens % FEW) return failed("causal_conv1d_silu_backward", "the last run is not whole");
    only(last_run, [&] { gradients(true, tokens); });
    only(last_run, [&] { trained_gradients(true, tokens); });
    gradients(false, FEW), trained_gradients(false, FEW);
    d_u.expect("causal_conv1d_silu_backward"), trained_d_u.expect("causal_conv1d_silu_backward"), of_taps.expect("causal_conv1d_silu_backward");
}

// The heads of attention: rotation, the norm's gradient, the output gate.
static void attention_heads(u32 tokens, u32 heads) {
    constexpr u32 D = 256, ROTARY = 64, LANES = 32;
    const u64 width = u64(heads) * D;
    Both<bf16> joint(tokens, FEW, 2 * width, 1), d_y(tokens, FEW, width, 2), d_joint(tokens, FEW, 2 * width), o(tokens, FEW, width, 3),
        y(tokens, FEW, width), gated(tokens, FEW, width), d_o(tokens, FEW, width), d_gates(tokens, FEW, 2 * width), trained_d_joint(tokens, FEW, 2 * width);
    Both<float> delta(tokens, FEW, heads), parts(tokens, FEW, width / 8);
    Both<float> cosines(tokens, FEW, ROTARY / 2, 4), sines(tokens, FEW, ROTARY / 2, 5);
    Sparse<float> weight("weight", D);
    fill(weight, 0, D, 6);
    in_both(tokens, width, 8 * D, [&](bool pack, u32 rows, unsigned blocks) {
        LAUNCH(norm_rope_backward, blocks, 256, joint.of(pack), weight.data(), cosines.of(pack), sines.of(pack), d_y.of(pack), d_joint.of(pack),
               {rows, heads, D, 2 * D, ROTARY, LANES, 1e-6f, 1.0f});
        LAUNCH(norm_rope_backward_weight, blocks, 256, joint.of(pack), weight.data(), cosines.of(pack), sines.of(pack), d_y.of(pack),
               trained_d_joint.of(pack), parts.of(pack), {rows, heads, D, 2 * D, ROTARY, LANES, 1e-6f, 1.0f});
        LAUNCH(attention::attention_delta<D>, blocks, attention::ATTENTION_THREADS, d_y.of(pack), o.of(pack), delta.of(pack),
               {rows, heads, heads, 0, 0xffffffffu, 1.0f});
        LAUNCH(sigmoid_gate_forward, blocks, 256, o.of(pack), joint.of(pack), gated.of(pack), {rows * heads, D});
        LAUNCH(sigmoid_gate_backward, blocks, 256, o.of(pack), joint.of(pack), d_y.of(pack), d_o.of(pack), d_gates.of(pack), {rows * heads, D});
    });
    const u64 from = u64(tokens - FEW) * width / (8 * D) * (8 * D);
    d_joint.expect("norm_rope_backward", 2 * from), trained_d_joint.expect("norm_rope_backward", 2 * from), parts.expect("norm_rope_backward", from / 8);
    delta.expect("attention_delta", from / D);
    gated.expect("sigmoid_gate", from), d_o.expect("sigmoid_gate", from), d_gates.expect("sigmoid_gate", 2 * from);
    // A thread has eight pairs, or eight numbers: 28 of them a head.
    constexpr u32 PARTS = ROTARY / 16 + (D - ROTARY) / 8;
    in_both(tokens, u64(heads) * PARTS, 256, [&](bool pack, u32 rows, unsigned blocks) {
        LAUNCH(rope, blocks, 256, o.of(pack), cosines.of(pack), sines.of(pack), y.of(pack), {rows, heads, D, ROTARY, 1.0f});
    });
    y.expect("rope", u64(tokens - FEW) * heads * PARTS / 256 * 256 / PARTS * D);
}

// The last tile of rows of the products of a layer with an adapter, and of the input's gradient.
static void adapted(u32 tokens, u32 n, u32 k, u32 rank) {
    using namespace lora;
    Both<bf16> x(tokens, FEW, k, 1), u(tokens, FEW, rank, 2), y(tokens, FEW, n), d_y(tokens, FEW, n, 3), d_u(tokens, FEW, rank, 4), d_x(tokens, FEW, k),
        plain_d_x(tokens, FEW, k);
    Sparse<bf16> weight("weight", u64(n) * k), b("b", u64(n) * rank), a("a", u64(rank) * k);
    fill(weight, 0, u64(n) * k, 5), fill(b, 0, u64(n) * rank, 6), fill(a, 0, u64(rank) * k, 7);
    const auto launch = [&](bool pack, u32 rows) {
        const u32 tiles = (rows + 127) / 128;
        const auto last = [&](u32 columns, auto launched) {
            std::vector<uint64_t> blocks;
            // With groups of one, tiles go along a row of C.
            for (u64 column = 0; column < columns; ++column) blocks.push_back(u64(tiles - 1) * columns + column);
            only(blocks, launched);
        };
        last((n + 127) / 128, [&] {
            LAUNCH(lora_forward_tile<Tile>, tiles * ((n + 127) / 128), Tile::threads, x.of(pack), weight.data(), u.of(pack), b.data(), y.of(pack),
                   {rows, n, k, rank, rank, 0, n, 0, 1});
        });
        const bf16 *const d_ys[LORA_LAYERS] = {d_y.of(pack), d_y.of(pack), d_y.of(pack), d_y.of(pack)};
        const bf16 *const weights[LORA_LAYERS] = {weight.data(), weight.data(), weight.data(), weight.data()};
        last((k + 127) / 128, [&] {
            LAUNCH(lora_input_tile<Tile>, tiles * ((k + 127) / 128), Tile::threads, d_ys, weights, d_u.of(pack), a.data(), d_x.of(pack),
                   {rows, k, rank, 1, 0, {n}, {n}, {0}});
        });
        last((k + 127) / 128, [&] {
            LAUNCH((linear_tile<Tile, K_INNER, K_OUTER>), tiles * ((k + 127) / 128), Tile::threads, d_y.of(pack), weight.data(), plain_d_x.of(pack),
                   {rows, k, n, n, k, k, 0, 0, 0, 1, n, 0, 1.0f});
        });
    };
    launch(true, tokens);
    launch(false, FEW);
    const u64 first_row = (tokens - 1) / 128 * 128;
    y.expect("lora_linear", first_row * n), d_x.expect("lora_linear", first_row * k), plain_d_x.expect("linear_backward_input", first_row * k);
}

// The products of an MLP that end with silu(gate) ⊙ up, and with the gradients of gate and up: the last rows, all columns.
static void gated(u32 tokens, u32 n, u32 k, u32 rank) {
    using namespace lora;
    Both<bf16> x(tokens, FEW, k, 1), u(tokens, FEW, rank, 2), gate(tokens, FEW, n, 3), up(tokens, FEW, n), product(tokens, FEW, n);
    Both<bf16> d_gate(tokens, FEW, n), d_up(tokens, FEW, n);
    Sparse<bf16> weight("weight", u64(n) * k), b("b", u64(n) * rank);
    fill(weight, 0, u64(n) * k, 4), fill(b, 0, u64(n) * rank, 5);
    const u32 columns = (n + 127) / 128;
    const auto launch = [&](bool pack, u32 rows) {
        const u32 tiles = (rows + 127) / 128;
        std::vector<uint64_t> last;
        for (u64 column = 0; column < columns; ++column) last.push_back(u64(tiles - 1) * columns + column);
        only(last, [&] {
            LAUNCH(gated_forward_tile<Tile>, tiles * columns, Tile::threads, x.of(pack), weight.data(), u.of(pack), b.data(), gate.of(pack),
                   up.of(pack), product.of(pack), {rows, n, k, rank, rank, 0, 1});
        });
        // W [k, n] and A [rank, n] are the same numbers in another order.
        only(last, [&] {
            LAUNCH(gated_input_tile<Tile>, tiles * columns, Tile::threads, x.of(pack), weight.data(), u.of(pack), b.data(), gate.of(pack),
                   up.of(pack), d_gate.of(pack), d_up.of(pack), {rows, n, k, rank, k, 1});
        });
    };
    launch(true, tokens);
    launch(false, FEW);
    const u64 first = u64(tokens - 1) / 128 * 128 * n;
    up.expect("gated_linear", first), product.expect("gated_linear", first);
    d_gate.expect("gated_linear", first), d_up.expect("gated_linear", first);
}

// Rows rounded to e4m3, and both products of them: the last rows, all columns.
static void rounded_to_e4m3(u32 tokens, u32 n, u32 k, u32 rank) {
    using namespace e4m3;
    Both<bf16> x(tokens, FEW, k, 1), u(tokens, FEW, rank, 2), y(tokens, FEW, n), d_x(tokens, FEW, n);
    Both<unsigned char> x8(tokens, FEW, k);
    Both<float> of_rows(tokens, FEW, 1);
    Sparse<bf16> weight("weight", u64(n) * k), b("b", u64(n) * rank);
    Sparse<unsigned char> weight8("weight in e4m3", u64(n) * k);
    Sparse<float> of_columns("scales of weight", n);
    fill(weight, 0, u64(n) * k, 3), fill(b, 0, u64(n) * rank, 4);
    LAUNCH(quantize_rows, (n + 7) / 8, 256, weight.data(), weight.data(), weight.data(), weight.data(), weight8.data(), of_columns.data(), {n, {k}});
    const u32 columns = (n + 127) / 128;
    const auto launch = [&](bool pack, u32 rows) {
        const u32 tiles = (rows + 127) / 128, eights = (rows + 7) / 8;
        only({eights - 1}, [&] {
            LAUNCH(quantize_rows, eights, 256, x.of(pack), x.of(pack), x.of(pack), x.of(pack), x8.of(pack), of_rows.of(pack), {rows, {k}});
        });
        std::vector<uint64_t> last;
        for (u64 column = 0; column < columns; ++column) last.push_back(u64(tiles - 1) * columns + column);
        only(last, [&] {
            LAUNCH(fp8_forward_tile<Tile>, tiles * columns, Tile::threads, x8.of(pack), of_rows.of(pack), weight8.data(), of_columns.data(),
                   u.of(pack), b.data(), y.of(pack), {rows, n, k, rank, rank, 0, 1});
        });
        const bf16 *const none[FP8_LAYERS] = {x.of(pack), x.of(pack), x.of(pack), x.of(pack)};
        // A [rank, n] is the same numbers as B in another order.
        only(last, [&] {
            LAUNCH(fp8_input_tile<Tile>, tiles * columns, Tile::threads, x8.of(pack), of_rows.of(pack), weight8.data(), of_columns.data(), none, none,
                   u.of(pack), b.data(), d_x.of(pack), {rows, n, k, rank, {}, {}, 1});
        });
    };
    launch(true, tokens);
    launch(false, FEW);
    // The products read all rows of a tile.
    const u64 first_row = u64(tokens - 1) / 128 * 128;
    x8.expect("quantize_rows", first_row * k), of_rows.expect("quantize_rows", first_row);
    y.expect("fp8_linear", first_row * n), d_x.expect("fp8_linear", first_row * n);
}

// A decoded token behind so many others, in caches of two examples; and the last words of the vocabulary.
static void decoding(u32 keys, u32 q_heads, u32 kv_heads, const Size& size) {
    const std::string what = "cached_attention";
    constexpr int D = 256;
    const u64 width = u64(kv_heads) * D, row = u64(keys - 1) * width;
    Sparse<bf16> k("k", keys * width), v("v", keys * width), new_k("new k", width), new_v("new v", width), q("q", u64(q_heads) * D),
        o("o", u64(q_heads) * D);
    fill(new_k, 0, width, 1), fill(new_v, 0, width, 2), fill(q, 0, u64(q_heads) * D, 3);
    ExampleRows rows;
    for (u32& border : rows.first) border = 1;
    rows.first[0] = 0;
    LAUNCH(attention::append_to_caches, dim3(unsigned((width + 2047) / 2048), 2, 1), 256, new_k.data(), new_v.data(), k.data(), k.data(), k.data(),
           k.data(), k.data(), k.data(), k.data(), k.data(), v.data(), v.data(), v.data(), v.data(), v.data(), v.data(), v.data(), v.data(),
           {u32(width), rows, {keys - 1}});
    nothing_else("append_to_caches", k, {{row, row + width}});
    nothing_else("append_to_caches", v, {{row, row + width}});
    const u32 splits = (keys + attention::SPLIT - 1) / attention::SPLIT;
    Sparse<float> mixed("mixed", u64(splits) * q_heads * D), ends("ends", u64(splits) * q_heads * 2);
    const attention::CachedAttentionSizes sizes{q_heads, kv_heads, 0xffffffffu, (q_heads / kv_heads + attention::HELD - 1) / attention::HELD, 1.0f / 16,
                                                rows, {keys}, {}, {splits}, {}};
    const bf16 *const ks[EXAMPLES] = {k.data()}, *const vs[EXAMPLES] = {v.data()};
    std::vector<uint64_t> last;
    for (u64 head = 0; head < u64(kv_heads) * sizes.held; ++head) last.push_back(head * splits + splits - 1);
    only(last, [&] {
        LAUNCH(attention::attend_to_split<D>, dim3(splits, kv_heads, sizes.held), 256, q.data(), ks, vs, mixed.data(), ends.data(), sizes);
    });
    // All other keys and values are zero, but their weights count: 1 each, beside the newest token's.
    for (u32 split = 0; split + 1 < splits; ++split)
        for (u32 head = 0; head < q_heads; ++head) ends[2 * (u64(split) * q_heads + head)] = 0, ends[2 * (u64(split) * q_heads + head) + 1] = attention::SPLIT;
    LAUNCH(attention::merge_splits<D>, (q_heads * D + 255) / 256, 256, mixed.data(), ends.data(), o.data(), sizes);
    for (u32 head = 0; head < q_heads; ++head) {
        double score = 0;
        const u64 of_kv = u64(head / (q_heads / kv_heads)) * D;
        for (u64 d = 0; d < D; ++d) score += value(q[head * D + d]) * value(new_k[of_kv + d]);
        const double share = std::exp(score / 16) / (std::exp(score / 16) + keys - 1);
        for (u64 d = 0; d < D; d += 31) near(what, value(o[head * D + d]), share * value(new_v[of_kv + d]), share, 2e-2);
    }
    nothing_else(what, k, {{u64(splits - 1) * attention::SPLIT * width, keys * width}});

    // The logits of a token: the last words of the table.
    const std::string logits = "linear_by_row_wide";
    const u64 hidden = size.hidden, word = (VOCABULARY - 1) * hidden;
    Sparse<bf16> table("table", VOCABULARY * hidden), x("x", hidden);
    Sparse<float> y("y", VOCABULARY);
    fill(table, word, hidden, 4), fill(x, 0, hidden, 5);
    only({VOCABULARY / 32 - 1}, [&] {
        LAUNCH((few_rows::linear_rows<1, float>), unsigned(VOCABULARY / 32), 256, x.data(), table.data(), nullptr, nullptr, y.data(),
               {1, size.hidden, u32(VOCABULARY), 0, 0.0f});
    });
    double want = 0;
    for (u64 i = 0; i < hidden; ++i) want += value(x[i]) * value(table[word + i]);
    near(logits, y[VOCABULARY - 1], want, std::fabs(want) + 1, 1e-4);
    nothing_else(logits, table, {{(VOCABULARY - 32) * hidden, VOCABULARY * hidden}});
}

// The rows of the head's chunk at the end of a pack: gathered, and their gradients written.
static void head_rows(u32 tokens, const Size& size) {
    const std::string what = "cross_entropy rows";
    const u64 width = size.hidden, row = u64(tokens - 1) * width, word = (VOCABULARY - 1) * width;
    Sparse<bf16> hidden("hidden", tokens * width), table("table", VOCABULARY * width), x("x", width), d_hidden("d_hidden", tokens * width);
    Sparse<u32> rows("rows", tokens), words("words", tokens);
    Sparse<float> state("state", 5), losses("losses", tokens), d_x("d_x", width);
    rows[tokens - 1] = tokens - 1, words[tokens - 1] = u32(VOCABULARY - 1);
    fill(hidden, row, width, 1), fill(table, word, width, 2), fill(d_x, 0, width, 3);
    LAUNCH(cross_entropy_start, 1, 256, hidden.data(), table.data(), rows.data(), words.data(), x.data(), state.data(), {1, size.hidden, tokens - 1});
    for (u64 i = 0; i < width; ++i) near(what, value(x[i]), value(hidden[row + i]), 1, 0);
    losses[tokens - 1] = 2.0f;
    LAUNCH(cross_entropy_finish, dim3(1, unsigned((width + 2047) / 2048)), 256, d_x.data(), table.data(), rows.data(), words.data(), state.data(),
           losses.data(), d_hidden.data(), {1, size.hidden, tokens - 1, 1, tokens - 1, 1.0f});
    for (u64 i = 0; i < width; i += 17)
        near(what, value(d_hidden[row + i]), std::exp(-2.0) * d_x[i] + std::expm1(-2.0) * value(table[word + i]), 1, 1e-2);
    nothing_else(what, d_hidden, {{row, row + width}});
    nothing_else(what, hidden, {{row, row + width}});
}

int main() {
    for (const u64 tokens : {5376, 8192, 32768, 131072}) {
        silu_mul(TWO, tokens);
        silu_mul(LARGE, tokens);
        norm(LARGE, u32(tokens));
        // 16 and 16 heads of 128 beside 16; 16 and 48 of the 27B.
        convolution(u32(tokens), 6144);
        convolution(u32(tokens), 10240);
    }
    packed_attention(8192, 8, 2);
    packed_attention(32768, 24, 4);
    packed_attention(131072, 8, 2);
    delta(131072);
    elementwise(131072, LARGE.intermediate);
    norms(131072, LARGE.hidden);
    delta_net(131070, 48);
    attention_heads(131072, 24);
    adapted(131072 - 3, TWO.intermediate, 64, 128);
    gated(131072 - 3, TWO.intermediate, 64, 16);
    rounded_to_e4m3(131072 - 3, 2 * TWO.intermediate, 64, 16);
    decoding(131072, 8, 2, LARGE);
    decoding(262144, 24, 4, TWO);
    head_rows(131072, LARGE);
    norm_rope(131072, 8);
    adamw(TWO);
    adamw(LARGE);
    embedding(LARGE);
    product("linear_forward", 5376, TWO.intermediate, TWO.hidden);
    product("linear_forward", 32768 - 3, LARGE.intermediate, LARGE.hidden);
    // All logits of a pack at once would be 8.1 G numbers.
    product("linear_forward", 32768, u32(VOCABULARY), TWO.hidden);
    product("linear_forward", 131072 - 3, 2 * TWO.intermediate, TWO.hidden);
    weight_gradient("linear_backward_weight", u32(VOCABULARY), LARGE.hidden, 896);
    logits(TWO, 5376, 35584);
    logits(LARGE, 32768, u32(VOCABULARY));
    return finish();
}
