// Packed causal attention on the emulator against softmax attention and its gradients in double (SPEC.md 2.3, 2.6).
#include "append.cuh"
#include "backward.cuh"
#include "cached.cuh"
#include "forward.cuh"
#include "../emulator/check.hpp"

using namespace check;

// Weights and their gradients are rounded to bf16 before the second product. A sum of numbers of either sign may be much smaller
// than its terms, so a single number may be off by more of its own size than the whole is.
constexpr Limit OUTPUT{4e-3, 1e-2}, GRADIENT{6e-3, 5e-2};

struct Shape {
    std::vector<unsigned> documents;
    unsigned q_heads, kv_heads;
    unsigned window = 0xffffffffu;
    bool across = false;  // blocks begin anywhere

    unsigned tokens() const {
        unsigned all = 0;
        for (unsigned length : documents) all += length;
        return all;
    }
};

// What the host prepares.
static std::vector<u32> borders_of(const Shape& shape) {
    std::vector<u32> first, end;
    for (unsigned length : shape.documents) {
        const u32 start = u32(first.size());
        first.insert(first.end(), length, start);
        end.insert(end.end(), length, start + length);
    }
    first.insert(first.end(), end.begin(), end.end());
    return first;
}

// Items of at most `held` tokens. As the host cuts them, an item has a part of one example or several whole ones.
static void add_work(std::vector<u32>& work, u32 what, const Shape& shape, u32 held) {
    u32 first = 0, room = 0;
    for (u32 length : shape.across ? std::vector<unsigned>{shape.tokens()} : shape.documents) {
        if (length <= room) {
            work.back() += length;
            room -= length;
        } else {
            for (u32 done = 0; done < length; done += held) work.insert(work.end(), {what, first + done, std::min(held, length - done)});
            room = held - work.back();
        }
        first += length;
    }
}

// Probabilities, one row of `tokens` per token and query head, and the logarithm of each row's denominator.
static Numbers softmax(const Numbers& q, const Numbers& k, const Shape& s, size_t dim, double scale, Numbers& lse) {
    const size_t tokens = s.tokens(), group = s.q_heads / s.kv_heads;
    const std::vector<u32> borders = borders_of(s);
    Numbers p(tokens * s.q_heads * tokens);
    lse.assign(tokens * s.q_heads, 0);
    for (size_t row = 0; row < tokens * s.q_heads; ++row) {
        const size_t i = row / s.q_heads, kv_head = row % s.q_heads / group;
        double sum = 0;
        for (size_t j = borders[i]; j <= i; ++j) {
            if (i - j >= s.window) continue;
            double score = 0;
            for (size_t d = 0; d < dim; ++d) score += q[row * dim + d] * k[(j * s.kv_heads + kv_head) * dim + d];
            sum += p[row * tokens + j] = std::exp(scale * score);
        }
        for (size_t j = 0; j <= i; ++j) p[row * tokens + j] /= sum;
        lse[row] = std::log(sum);
    }
    return p;
}

static Numbers mixed(const Numbers& p, const Numbers& v, const Shape& s, size_t dim) {
    const size_t tokens = s.tokens(), group = s.q_heads / s.kv_heads;
    Numbers o(tokens * s.q_heads * dim);
    for (size_t row = 0; row < tokens * s.q_heads; ++row)
        for (size_t j = 0; j <= row / s.q_heads; ++j)
            for (size_t d = 0; d < dim; ++d)
                o[row * dim + d] += p[row * tokens + j] * v[(j * s.kv_heads + row % s.q_heads / group) * dim + d];
    return o;
}

struct Gradients {
    Numbers q, k, v;
};

static Gradients gradients(const Numbers& p, const Numbers& q, const Numbers& k, const Numbers& v, const Numbers& o,
                           const Numbers& d_o, const Shape& s, size_t dim, double scale) {
    const size_t tokens = s.tokens(), group = s.q_heads / s.kv_heads;
    Gradients d{Numbers(q.size()), Numbers(k.size()), Numbers(v.size())};
    for (size_t row = 0; row < tokens * s.q_heads; ++row) {
        double delta = 0;
        for (size_t x = 0; x < dim; ++x) delta += d_o[row * dim + x] * o[row * dim + x];
        for (size_t j = 0; j <= row / s.q_heads; ++j) {
            const double weight = p[row * tokens + j];
            if (weight == 0) continue;
            const size_t key = (j * s.kv_heads + row % s.q_heads / group) * dim;
            double dp = 0;
            for (size_t x = 0; x < dim; ++x) dp += d_o[row * dim + x] * v[key + x];
            const double ds = scale * weight * (dp - delta);
            for (size_t x = 0; x < dim; ++x) {
                d.q[row * dim + x] += ds * k[key + x];
                d.k[key + x] += ds * q[row * dim + x];
                d.v[key + x] += weight * d_o[row * dim + x];
            }
        }
    }
    return d;
}

template <int D>
static void run(const Shape& shape) {
    const u32 tokens = shape.tokens(), group = shape.q_heads / shape.kv_heads;
    const size_t q_count = size_t(tokens) * shape.q_heads * D, kv_count = size_t(tokens) * shape.kv_heads * D;
    const double scale = 1.0 / std::sqrt(double(D));
    const PackedAttentionSizes sizes{tokens, shape.q_heads, shape.kv_heads, 0, shape.window, float(scale)};
    std::vector<u32> of_queries, of_all;
    add_work(of_queries, 0, shape, 128 / group);
    add_work(of_all, 1, shape, 128);
    if (D > 128) add_work(of_all, 2, shape, 128);
    of_all.insert(of_all.end(), of_queries.begin(), of_queries.end());

    const std::string name = "packed_attention " + std::to_string(D);
    Case c(name, std::to_string(shape.documents.size()) + " documents, " + std::to_string(tokens) + " tokens, heads " +
                     std::to_string(shape.q_heads) + ":" + std::to_string(shape.kv_heads) + ", window " +
                     std::to_string(int(shape.window)));
    auto& q = c.random<bf16>("q", q_count, 1, 3.0);
    auto& k = c.random<bf16>("k", kv_count, 2, 3.0);
    auto& v = c.random<bf16>("v", kv_count, 3);
    auto& borders = c.given<u32>("borders", borders_of(shape));
    auto& work_of_queries = c.given<u32>("work of queries", of_queries);
    auto& o = c.result<bf16>("o", q_count);
    auto& lse = c.result<float>("lse", size_t(tokens) * shape.q_heads);
    auto& d_o = c.random<bf16>("d_o", q_count, 4);
    auto& work = c.given<u32>("work", of_all);
    auto& delta = c.result<float>("delta", size_t(tokens) * shape.q_heads);
    auto& d_q = c.result<bf16>("d_q", q_count);
    auto& d_k = c.result<bf16>("d_k", kv_count);
    auto& d_v = c.result<bf16>("d_v", kv_count);
    c.run([&] {
        const auto forward = attention_forward<D, forward_keys(D)>;
        LAUNCH(forward, u32(of_queries.size()) / 3 * shape.kv_heads, ATTENTION_THREADS, q.data(), k.data(), v.data(), borders.data(),
               work_of_queries.data(), o.data(), lse.data(), sizes);
        LAUNCH(attention_delta<D>, 2, ATTENTION_THREADS, d_o.data(), o.data(), delta.data(), sizes);
        const auto backward = attention_backward<D, backward_rows(D)>;
        LAUNCH(backward, u32(of_all.size()) / 3 * shape.kv_heads, ATTENTION_THREADS, q.data(), k.data(), v.data(), d_o.data(),
               lse.data(), delta.data(), borders.data(), work.data(), d_q.data(), d_k.data(), d_v.data(), sizes);
    });

    Numbers lse_want;
    const Numbers qs = numbers(q), ks = numbers(k), vs = numbers(v), ds = numbers(d_o);
    const Numbers p = softmax(qs, ks, shape, D, scale, lse_want), o_want = mixed(p, vs, shape, D);
    const Gradients d = gradients(p, qs, ks, vs, o_want, ds, shape, D, scale);
    const auto output = [&](const Numbers& q, const Numbers& k) {
        Numbers unused;
        return mixed(softmax(q, k, shape, D, scale, unused), vs, shape, D);
    };
    if (tokens * D < 4000) {
        slope_agrees(name, [&](const Numbers& q) { return output(q, ks); }, qs, ds, d.q);
        slope_agrees(name, [&](const Numbers& k) { return output(qs, k); }, ks, ds, d.k);
        slope_agrees(name, [&](const Numbers& v) { return mixed(p, v, shape, D); }, vs, ds, d.v);
    }
    const bool sees_one = tokens == shape.documents.size() || shape.window == 1;
    c.expect("o", o, o_want, OUTPUT);
    c.expect("lse", lse, lse_want);
    // Where every query sees one key, nothing goes through the scores, and there is no size to measure against.
    if (sees_one) {
        for (size_t i = 0; i < q_count; ++i)
            if (!(std::fabs(value(d_q[i])) < 1e-5)) failed(name, "d_q of a query that sees one key");
        for (size_t i = 0; i < kv_count; ++i)
            if (!(std::fabs(value(d_k[i])) < 1e-5)) failed(name, "d_k of a key that is all its queries see");
    } else {
        c.expect("d_q", d_q, d.q, GRADIENT);
        c.expect("d_k", d_k, d.k, GRADIENT);
    }
    c.expect("d_v", d_v, d.v, GRADIENT);
}

// The last `fresh` queries of one example over the keys of all of it, as in decoding.
template <int D>
static void run_cached(u32 tokens, u32 fresh, u32 q_heads, u32 kv_heads, u32 window) {
    const Shape shape{{tokens}, q_heads, kv_heads, window};
    const double scale = 1.0 / std::sqrt(double(D));
    const PackedAttentionSizes sizes{fresh, q_heads, kv_heads, tokens - fresh, window, float(scale)};
    std::vector<u32> items;
    add_work(items, 0, {{fresh}, q_heads, kv_heads}, 128 / (q_heads / kv_heads));
    Case c("packed_attention " + std::to_string(D) + " cached", std::to_string(fresh) + " of " + std::to_string(tokens));
    auto& q = c.random<bf16>("q", size_t(fresh) * q_heads * D, 1, 3.0);
    auto& k = c.random<bf16>("k", size_t(tokens) * kv_heads * D, 2, 3.0);
    auto& v = c.random<bf16>("v", size_t(tokens) * kv_heads * D, 3);
    auto& borders = c.given<u32>("borders", std::vector<u32>(fresh, 0));
    auto& work = c.given<u32>("work", items);
    auto& o = c.result<bf16>("o", q.size());
    auto& lse = c.result<float>("lse", size_t(fresh) * q_heads);
    c.run([&] {
        const auto forward = attention_forward<D, forward_keys(D)>;
        LAUNCH(forward, u32(items.size()) / 3 * kv_heads, ATTENTION_THREADS, q.data(), k.data(), v.data(), borders.data(),
               work.data(), o.data(), lse.data(), sizes);
    });
    const size_t earlier = size_t(tokens - fresh) * q_heads;
    Numbers all_q(earlier * D), all_lse;
    const Numbers last_q = numbers(q);
    all_q.insert(all_q.end(), last_q.begin(), last_q.end());
    const Numbers all = mixed(softmax(all_q, numbers(k), shape, D, scale, all_lse), numbers(v), shape, D);
    c.expect("o", o, Numbers(all.begin() + long(earlier * D), all.end()), OUTPUT);
    c.expect("lse", lse, Numbers(all_lse.begin() + long(earlier), all_lse.end()));
}

// The rows of examples between these borders.
static ExampleRows rows_of(const std::vector<u32>& borders) {
    ExampleRows rows;
    for (size_t i = 0; i <= EXAMPLES; ++i) rows.first[i] = borders[std::min(i, borders.size() - 1)];
    return rows;
}

// The newest `fresh` of `tokens`, out of a cache that was appended to and has room, against attention of the whole row; and each query
// against itself alone, in front of the ones behind it, and all of them as examples of one launch.
template <int D>
static void run_splits(u32 tokens, u32 fresh, u32 q_heads, u32 kv_heads, u32 window) {
    const Shape shape{{tokens}, q_heads, kv_heads, window};
    const u32 past = tokens - fresh, width = kv_heads * D;
    const std::string name = "D " + std::to_string(D) + ", heads " + std::to_string(q_heads) + "/" + std::to_string(kv_heads) + ", " +
                             std::to_string(past) + " and " + std::to_string(fresh) + " tokens, window " + std::to_string(window);
    Case c("cached_attention", name);
    const size_t rows = size_t(fresh) * q_heads;
    auto& q = c.random<bf16>("q", rows * D, 5, 2.0);
    auto& new_k = c.random<bf16>("new k", size_t(tokens) * width, 6, 2.0);
    auto& new_v = c.random<bf16>("new v", new_k.size(), 7);
    auto& k = c.result<bf16>("k", new_k.size() + width);
    auto& v = c.result<bf16>("v", k.size());
    const auto first_split_of = [&](u32 keys, u32 queries) {
        const u32 first = keys - queries + 1 > window ? keys - queries + 1 - window : 0;
        return first / SPLIT;
    };
    const u32 first_split = first_split_of(tokens, fresh), splits = (tokens + SPLIT - 1) / SPLIT - first_split;
    // Examples of one query each may see one split more.
    const size_t most_parts = (splits + 1) * rows;
    auto& parts = c.result<float>("parts", most_parts * D);
    auto& ends = c.result<float>("ends", 2 * most_parts);
    auto& o = c.result<bf16>("o", rows * D);
    auto& alone = c.result<bf16>("alone", rows * D);
    auto& as_examples = c.result<bf16>("as examples", rows * D);
    const float scale = 1.0f / std::sqrt(float(D));
    // Examples with so many queries and keys, all of the same caches.
    const auto attend = [&](const bf16* q, const std::vector<std::pair<u32, u32>>& examples, bf16* o) {
        std::vector<u32> borders{0};
        CachedAttentionSizes sizes{q_heads, kv_heads, window, 1, scale, {}, {}, {}, {}, {}};
        u32 part = 0, most = 0;
        for (size_t i = 0; i < examples.size(); ++i) {
            const auto [queries, keys] = examples[i];
            sizes.keys[i] = keys;
            sizes.first_split[i] = first_split_of(keys, queries);
            sizes.splits[i] = (keys + SPLIT - 1) / SPLIT - sizes.first_split[i];
            sizes.first_part[i] = part;
            part += sizes.splits[i] * queries * q_heads;
            most = std::max(most, sizes.splits[i]);
            sizes.held = std::max(sizes.held, (queries * q_heads / kv_heads + HELD - 1) / HELD);
            borders.push_back(borders.back() + queries);
        }
        sizes.queries = rows_of(borders);
        const bf16 *ks[EXAMPLES], *vs[EXAMPLES];
        for (int i = 0; i < EXAMPLES; ++i) ks[i] = k.data(), vs[i] = v.data();
        LAUNCH(attend_to_split<D>, dim3(most, kv_heads, sizes.held * u32(examples.size())), 256, q, ks, vs, parts.data(), ends.data(), sizes);
        LAUNCH(merge_splits<D>, (borders.back() * q_heads * D + 255) / 256, 256, parts.data(), ends.data(), o, sizes);
    };
    const auto append = [&](const bf16* rows, bf16* cache, u64 first, u64 count) {
        LAUNCH(append_to_cache, unsigned((count + 2047) / 2048), 256, rows + first, cache, {first, count});
    };
    c.run([&] {
        const u64 before = u64(past) * width, added = u64(fresh) * width;
        for (const auto& [rows, cache] : {std::pair{new_k.data(), k.data()}, {new_v.data(), v.data()}}) {
            if (past) append(rows, cache, 0, before);
            append(rows, cache, before, added);
            // What lies in the room behind must not matter.
            std::memset(static_cast<void*>(cache + before + added), 0x7f, width * sizeof(bf16));
        }
        std::vector<std::pair<u32, u32>> each;
        for (u32 i = 0; i < fresh; ++i) {
            each.push_back({1, past + i + 1});
            attend(q.data() + size_t(i) * q_heads * D, {each.back()}, alone.data() + size_t(i) * q_heads * D);
        }
        attend(q.data(), {{fresh, tokens}}, o.data());
        attend(q.data(), each, as_examples.data());
    });
    Numbers all_q(size_t(tokens) * q_heads * D), lse;
    const Numbers of_q = numbers(q);
    std::copy(of_q.begin(), of_q.end(), all_q.begin() + size_t(past) * q_heads * D);
    const Numbers of_v = numbers(new_v), whole = mixed(softmax(all_q, numbers(new_k), shape, D, scale, lse), of_v, shape, D);
    c.expect("o", o, Numbers(whole.begin() + size_t(past) * q_heads * D, whole.end()));
    same_bits("cached_attention: alone", name, alone, o);
    same_bits("cached_attention: as examples", name, as_examples, o);
}

// Rows of three examples behind those in caches of their own, and nothing else.
static void run_append(u32 width, const std::vector<u32>& rows, const std::vector<u32>& past) {
    Case c("append_to_caches", std::to_string(rows.size()) + " x " + std::to_string(width));
    std::vector<u32> borders{0};
    for (u32 count : rows) borders.push_back(borders.back() + count);
    auto& k = c.random<bf16>("k", size_t(borders.back()) * width, 1);
    auto& v = c.random<bf16>("v", k.size(), 2);
    AppendAllSizes sizes{width, rows_of(borders), {}};
    u32 most = 0;
    for (size_t i = 0; i < rows.size(); ++i) sizes.past[i] = past[i], most = std::max(most, rows[i]);
    std::vector<Buffer<bf16>*> of_k, of_v;
    for (size_t i = 0; i < rows.size(); ++i) {
        const size_t room = (past[i] + rows[i] + 1) * width;
        of_k.push_back(&c.result<bf16>("k cache", room));
        of_v.push_back(&c.result<bf16>("v cache", room));
    }
    const auto k_of = [&](size_t i) { return of_k[i < of_k.size() ? i : 0]->data(); };
    const auto v_of = [&](size_t i) { return of_v[i < of_v.size() ? i : 0]->data(); };
    c.run([&] {
        for (const auto* caches : {&of_k, &of_v})
            for (Buffer<bf16>* cache : *caches)
                for (size_t i = 0; i < cache->size(); ++i) (*cache)[i] = bf16{0x3f80};
        LAUNCH(append_to_caches, dim3((most * width + 2047) / 2048, 2, unsigned(rows.size())), 256, k.data(), v.data(), k_of(0), k_of(1), k_of(2),
               k_of(3), k_of(4), k_of(5), k_of(6), k_of(7), v_of(0), v_of(1), v_of(2), v_of(3), v_of(4), v_of(5), v_of(6), v_of(7), sizes);
    });
    for (size_t i = 0; i < rows.size(); ++i)
        for (const auto& [cache, from] : {std::pair{of_k[i], &k}, {of_v[i], &v}})
            for (size_t j = 0; j < cache->size(); ++j) {
                const bool is_new = j >= size_t(past[i]) * width && j < size_t(past[i] + rows[i]) * width;
                const unsigned want = is_new ? bf16((*from)[size_t(borders[i]) * width + j - size_t(past[i]) * width]).bits : 0x3f80;
                if (bf16((*cache)[j]).bits != want) return failed("append_to_caches", "number " + std::to_string(j) + " of a cache is wrong");
            }
    ++row_of("append_to_caches").cases;
}

int main() {
    run_splits<256>(1, 1, 4, 1, 0xffffffffu);
    run_splits<256>(300, 4, 4, 2, 0xffffffffu);
    run_splits<128>(129, 2, 6, 2, 0xffffffffu);
    run_splits<64>(260, 3, 3, 3, 130);
    run_splits<32>(140, 5, 2, 1, 1);
    run_splits<16>(400, 1, 14, 2, 0xffffffffu);
    run_append(16, {1, 3, 200}, {5, 0, 130});
    run_append(520, {2, 1, 1, 1, 1, 1, 1, 9}, {1, 2, 3, 4, 5, 6, 7, 8});
    // Several examples in a block and several blocks of an example; groups that divide the 128 rows and that do not; windows
    // shorter and longer than a tile.
    for (unsigned tokens : {1, 63, 64, 65}) run<64>({{tokens}, 2, 1});
    for (unsigned tokens : {1, 63, 64}) run<256>({{tokens}, 2, 1});
    run<256>({{1, 63, 1, 65}, 4, 1});
    run<256>({{65}, 1, 1, 20});
    run<128>({{60, 70}, 4, 2});
    run<128>({{64}, 2, 2, 7});
    run<64>({{130}, 4, 1});
    run<64>({{1, 1, 40, 2, 20, 66}, 3, 1, 33, true});
    run<32>({{65, 65}, 6, 1});
    run<32>({{100, 70, 10}, 2, 1, 0xffffffffu, true});
    run<32>({{130}, 1, 1, 1});
    run<16>({{130, 1, 1, 130}, 2, 1, 100});
    run<16>({{63, 1}, 14, 2});
    run_cached<64>(70, 1, 4, 2, 0xffffffffu);
    run_cached<16>(150, 40, 4, 1, 60);
    return finish();
}
