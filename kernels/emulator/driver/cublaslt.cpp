// The emulated cuBLASLt: products of matrices on the CPU, when their turn on the stream comes. In a folder of its own, so that a
// program finds it only if it is to.
//
// `EMULATED_CUBLASLT_TRACE` is a file that gets a line when the library is opened and for each product. `EMULATED_CUBLASLT_VERSION` is
// the version (130002). Each number is a sum in eight parts, so that its bits are not those of our kernels. Beside two algorithms that may
// be used, the search always finds three that may not: one that leaves out half of k, which makes it the fastest, one whose bits differ
// each time, and one that splits k although it was told not to. One of the two good ones computes only products whose sizes are even
// together, and its workspace grows with the columns, so that whoever uses it for another size has to ask.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum Status : int { SUCCESS = 0, INVALID_VALUE = 7, ARCH_MISMATCH = 8, NOT_SUPPORTED = 15 };
enum : int { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68 };

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t pitch;
};
struct Product {
    int transposed[2];
};
struct Preference {
    uint64_t workspace;
    uint32_t schemes;
};
// cublasLtMatmulAlgo_t; a name, so that no other bytes are taken for one of ours.
struct Algorithm {
    uint64_t name, kind, splits, scheme, more[4];
};
struct Suggestion {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Algorithm) == 64 && sizeof(Suggestion) == 96, "as in cublasLt.h");

static constexpr uint64_t NAME = 0x6c743a656d756c61;

// What an algorithm does beside the first: adds in another order and has conditions, splits k, differs each time, leaves out half of k.
enum Kind : uint64_t { PLAIN = 0, PARTICULAR = 1, SPLIT = 2, UNSTEADY = 3, WRONG = 4 };

static void trace(const char* line) {
    const char* path = std::getenv("EMULATED_CUBLASLT_TRACE");
    if (std::FILE* file = path ? std::fopen(path, "a") : nullptr) {
        std::fprintf(file, "%s\n", line);
        std::fclose(file);
    }
}

static float of_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}

static uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (std::isnan(x)) return 0x7fff;
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A product whose turn comes later.
struct Queued {
    Product product;
    Layout a, b, d;
    const uint16_t *from_a, *from_b;
    const char* c;
    char *to, *workspace;
    float alpha, beta;
    uint64_t kind;
};

static uint64_t depth(const Product* product, const Layout* a) { return product->transposed[0] ? a->rows : a->columns; }
static bool fits(uint64_t kind, const Product* product, const Layout* a, const Layout* d) {
    return kind != PARTICULAR || (d->columns + depth(product, a)) % 2 == 0;
}
static size_t workspace_of(uint64_t kind, const Layout* d) { return kind == PARTICULAR ? 64 * d->columns : 0; }

static void multiply(void* with) {
    const auto* it = static_cast<Queued*>(with);
    static unsigned turn = 0;
    ++turn;
    const uint64_t m = it->d.rows, n = it->d.columns, k = depth(&it->product, &it->a);
    // What lies there belongs to the product.
    if (it->workspace) std::memset(it->workspace, 0x7f, workspace_of(it->kind, &it->d));
    const uint64_t summed = it->kind == WRONG ? k / 2 : k;
    // Operands as [m, k] and [n, k], so that the innermost loop is over neighbours.
    std::vector<float> a(m * k), b(n * k);
    for (uint64_t i = 0; i < m; ++i)
        for (uint64_t l = 0; l < k; ++l)
            a[i * k + l] = of_bf16(it->from_a[it->product.transposed[0] ? i * it->a.pitch + l : l * it->a.pitch + i]);
    for (uint64_t j = 0; j < n; ++j)
        for (uint64_t l = 0; l < k; ++l)
            b[j * k + l] = of_bf16(it->from_b[it->product.transposed[1] ? l * it->b.pitch + j : j * it->b.pitch + l]);
    for (uint64_t j = 0; j < n; ++j)
        for (uint64_t i = 0; i < m; ++i) {
            float parts[8] = {};
            const float *x = &a[i * k], *y = &b[j * k];
            uint64_t l = 0;
            for (; l + 8 <= summed; l += 8)
                for (int part = 0; part < 8; ++part) parts[part] += x[l + part] * y[l + part];
            for (; l < summed; ++l) parts[l % 8] += x[l] * y[l];
            float sum = 0;
            for (int part = 0; part < 8; ++part) sum += parts[it->kind == PARTICULAR ? 7 - part : part];
            sum *= it->alpha;
            // Another factor each time, also if other threads multiply between two launches.
            if (it->kind == UNSTEADY) sum *= 1.0f + float(turn % 8191) / 64.0f;
            const uint64_t at = j * it->d.pitch + i;
            if (it->d.type == R_32F) {
                auto* out = reinterpret_cast<float*>(it->to) + at;
                *out = it->beta == 0.0f ? sum : sum + it->beta * reinterpret_cast<const float*>(it->c)[at];
            } else {
                auto* out = reinterpret_cast<uint16_t*>(it->to) + at;
                *out = to_bf16(it->beta == 0.0f ? sum : sum + it->beta * of_bf16(reinterpret_cast<const uint16_t*>(it->c)[at]));
            }
        }
    delete it;
}

API size_t cublasLtGetVersion() {
    const char* version = std::getenv("EMULATED_CUBLASLT_VERSION");
    return version ? size_t(std::strtoul(version, nullptr, 10)) : 130002;
}

API Status cublasLtCreate(void** handle) {
    static int the_handle;
    *handle = &the_handle;
    trace("open");
    return SUCCESS;
}

API Status cublasLtMatmulDescCreate(Product** product, int compute, int scale) {
    if (compute != COMPUTE_32F || scale != R_32F) return NOT_SUPPORTED;
    *product = new Product{};
    return SUCCESS;
}
API Status cublasLtMatmulDescSetAttribute(Product* product, int attribute, const void* value, size_t bytes) {
    if ((attribute != 3 && attribute != 4) || bytes != sizeof(int)) return NOT_SUPPORTED;
    std::memcpy(&product->transposed[attribute - 3], value, bytes);
    return SUCCESS;
}
API Status cublasLtMatmulDescDestroy(Product* product) {
    delete product;
    return SUCCESS;
}

API Status cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
    if ((type != R_32F && type != R_16BF) || pitch < int64_t(rows)) return INVALID_VALUE;
    *layout = new Layout{type, rows, columns, pitch};
    return SUCCESS;
}
API Status cublasLtMatrixLayoutDestroy(Layout* layout) {
    delete layout;
    return SUCCESS;
}

API Status cublasLtMatmulPreferenceCreate(Preference** preference) {
    *preference = new Preference{0, 7};
    return SUCCESS;
}
API Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
    if (attribute == 1 && bytes == 8) std::memcpy(&preference->workspace, value, bytes);
    else if (attribute == 3 && bytes == 4) std::memcpy(&preference->schemes, value, bytes);
    else if (attribute < 5 || attribute > 8 || bytes != 4) return NOT_SUPPORTED;
    return SUCCESS;
}
API Status cublasLtMatmulPreferenceDestroy(Preference* preference) {
    delete preference;
    return SUCCESS;
}

// Whether the matrices fit together.
static bool is_product(const Product* product, const Layout* a, const Layout* b, const Layout* c, const Layout* d) {
    const bool ta = product->transposed[0], tb = product->transposed[1];
    return a->type == R_16BF && b->type == R_16BF && c->type == d->type && c->rows == d->rows && c->columns == d->columns &&
           (ta ? a->columns : a->rows) == d->rows && (tb ? b->rows : b->columns) == d->columns &&
           (ta ? a->rows : a->columns) == (tb ? b->columns : b->rows);
}

API Status cublasLtMatmulAlgoGetHeuristic(void*, const Product* product, const Layout* a, const Layout* b, const Layout* c, const Layout* d,
                                          const Preference* preference, int wanted, Suggestion* found, int* count) {
    *count = 0;
    if (!is_product(product, a, b, c, d)) return INVALID_VALUE;
    const Algorithm algorithms[] = {
        {NAME, WRONG, 1, 0, {}}, {NAME, UNSTEADY, 1, 0, {}}, {NAME, PLAIN, 1, 0, {}}, {NAME, PARTICULAR, 0, 0, {}}, {NAME, SPLIT, 4, 1, {}}};
    for (const Algorithm& algorithm : algorithms) {
        const size_t workspace = workspace_of(algorithm.kind, d);
        if (*count == wanted || workspace > preference->workspace || !fits(algorithm.kind, product, a, d)) continue;
        found[(*count)++] = Suggestion{algorithm, workspace, SUCCESS, 1.0f, {}};
    }
    return SUCCESS;
}

API Status cublasLtMatmulAlgoCheck(void*, const Product* product, const Layout* a, const Layout* b, const Layout* c, const Layout* d,
                                   const Algorithm* algorithm, Suggestion* found) {
    if (algorithm->name != NAME || !is_product(product, a, b, c, d)) return INVALID_VALUE;
    if (!fits(algorithm->kind, product, a, d)) return NOT_SUPPORTED;
    *found = Suggestion{*algorithm, workspace_of(algorithm->kind, d), SUCCESS, 1.0f, {}};
    return SUCCESS;
}

API Status cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value, size_t bytes, size_t* written) {
    if (algorithm->name != NAME || bytes != 4 || (attribute != 2 && attribute != 3)) return INVALID_VALUE;
    const uint32_t number = uint32_t(attribute == 2 ? algorithm->splits : algorithm->scheme);
    std::memcpy(value, &number, 4);
    *written = 4;
    return SUCCESS;
}

API Status cublasLtMatmul(void*, const Product* product, const float* alpha, const uint16_t* from_a, const Layout* a, const uint16_t* from_b,
                          const Layout* b, const float* beta, const char* c, const Layout* of_c, char* to, const Layout* d,
                          const Algorithm* algorithm, char* workspace, size_t bytes, void* stream) {
    using Call = int (*)(void*, void (*)(void*), void*);
    static const auto queue = Call(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc"));
    if (!queue || algorithm->name != NAME) return ARCH_MISMATCH;
    const size_t needed = workspace_of(algorithm->kind, d);
    if (!is_product(product, a, b, of_c, d) || bytes < needed || (needed && !workspace)) return INVALID_VALUE;
    if (!fits(algorithm->kind, product, a, d)) return NOT_SUPPORTED;
    trace("product");
    auto* queued = new Queued{*product, *a, *b, *d, from_a, from_b, c, to, needed ? workspace : nullptr, *alpha, *beta, algorithm->kind};
    return queue(stream, multiply, queued) == 0 ? SUCCESS : INVALID_VALUE;
}
