// The first, the last and a ragged block of the largest grids of training, on sparse memory: 2B and 27B, packs of 5,376, 8,192 and 32,768
// tokens, and of 131,072, the vocabulary of 248,320. The other tests have small sizes, at which a place that needs more than 32 bits fits
// into them.
//
// Inputs are zero but where the chosen blocks have to read; results are held against double there, and no page may exist elsewhere.
#include "../device/bf16.cuh"
#include "../device/f16.cuh"
#include "../device/async_copy.cuh"
#include "../device/reduce.cuh"
#include "../device/shared.cuh"
#include "../device/tensor_core.cuh"
// Before the sources of products: its names are also theirs.
namespace attention {
#include "../packed_attention/backward.cuh"
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
#include "../adamw/adamw.cuh"
#include "../causal_conv1d_silu/causal_conv1d_silu.cuh"
#include "../embedding/embedding.cuh"
#include "../linear/linear.cuh"
#include "../linear_cross_entropy/linear_cross_entropy.cuh"
#include "../norm_rope/norm_rope.cuh"
#include "../rms_norm/rms_norm.cuh"
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
