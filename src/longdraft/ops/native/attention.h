// Attention of a few query rows over many keys, as (max, sum, output) that can be merged with those of other keys.
#pragma once
#include <algorithm>
#include <limits>

#include "memory.h"
#include "simd.h"

constexpr int64_t BLOCK = 1024;  // slots of one unit of work; every block begins at a multiple of it, whichever thread has it
constexpr int64_t CHUNK = 256;   // keys whose scores are held at once
constexpr int64_t ROW = 4;       // steps of a Prefetch that the softmax of one row counts for
constexpr float NONE = -std::numeric_limits<float>::infinity();

// The query rows of one key head. R rows of q [R,D], scaled already; row r is node r % W.
struct Queries {
    const float* q;
    int64_t R, W;
    const int64_t* position;  // [W]
    const int64_t* depth;     // [scratch]
    const uint8_t* mask;      // [W,scratch]: which scratch nodes a node sees
    int64_t scratch;          // scratch nodes
    int64_t length;           // committed slots before them
    int64_t window;           // 0: none
};

// A partial result of R rows: max and sum [R]; output [R,D], not yet divided by the sum.
struct Partial {
    float *max, *sum, *out;
};

// Where the scores of a row are kept, if they are: as logits; or as weights relative to the maximum of all chunks so far,
// which is kept for each chunk. Weights are kept as bf16, because writing and reading them takes a good part of the time
// that reading the keys takes.
struct ScoreSink {
    float* logits;
    bf16* weights;
    float* chunk_max;
};

// Set the scores s [n] of the keys at slots first..first+n that row r may not see to -inf.
static inline void hide(float* s, const Queries& x, int64_t r, int64_t first, int64_t n) {
    const int64_t w = r % x.W, low = x.window ? x.position[w] - x.window + 1 : 0;
    for (int64_t j = 0; j < n; j++) {
        const int64_t slot = first + j;
        if (slot < x.length) {
            if (slot < low) s[j] = NONE;
        } else {
            const int64_t node = slot - x.length;
            if (!x.mask[w * x.scratch + node] || (x.window && x.length + x.depth[node] < low)) s[j] = NONE;
        }
    }
}

// Prefetches the keys and values of the next chunk, a few lines with each step of the work on this one, so that memory is read
// while the processor computes. Into the second-level cache: the first holds neither them nor as many requests at once.
class Prefetch {
    const char *next = nullptr, *end = nullptr, *values = nullptr;
    int64_t bytes = 0, lines = 0;  // of keys, and as many of values; lines a step

   public:
    Prefetch() = default;
    Prefetch(const void* k, const void* v, int64_t bytes, int64_t steps)
        : next(static_cast<const char*>(k)), end(next + bytes), values(static_cast<const char*>(v)), bytes(bytes),
          lines((bytes / 32 + steps - 1) / steps) {}
    void step() {
        for (int64_t i = 0; i < lines; i++, next += 64) {
            if (next >= end) {
                if (!values) return;
                next = values, end = values + bytes, values = nullptr;
            }
            __builtin_prefetch(next, 0, 2);
        }
    }
};

// Scores of sixteen keys [16,D] for one query row.
template <int ND>
static inline v16 score16(const float* q, const float* keys) {
    v16 qs[ND], acc[16];
    for (int i = 0; i < ND; i++) qs[i] = load(q + 16 * i);
    for (int j = 0; j < 16; j++) {
        v16 a = qs[0] * load(keys + j * 16 * ND);
        for (int i = 1; i < ND; i++) a += qs[i] * load(keys + j * 16 * ND + 16 * i);
        acc[j] = a;
    }
    return sums(acc);
}

// out[r] = out[r] * keep[r] + sum_j weights[r,j] v[j] for RB rows at once.
template <typename E, int ND, int RB>
ONE_COPY static void mix(const float* weights, const float* keep, const E* v, int64_t n, float* out, Prefetch& prefetch) {
    v16 acc[RB][ND];
    for (int r = 0; r < RB; r++)
        for (int i = 0; i < ND; i++) acc[r][i] = load(out + (r * ND + i) * 16) * keep[r];
    for (int64_t j = 0; j < n; j++) {
        v16 x[ND];
        if (j % 16 == 0) prefetch.step();
        for (int i = 0; i < ND; i++) x[i] = load(v + (j * ND + i) * 16);
        for (int r = 0; r < RB; r++) {
            const float weight = weights[r * CHUNK + j];
            for (int i = 0; i < ND; i++) acc[r][i] += x[i] * weight;
        }
    }
    for (int r = 0; r < RB; r++)
        for (int i = 0; i < ND; i++) store(out + (r * ND + i) * 16, acc[r][i]);
}

// The products of one chunk with vector instructions, in float whatever the type of the keys.
template <typename E, int ND>
struct Vectors {
    static constexpr int D = 16 * ND, RB = ND <= 4 ? 4 : ND <= 8 ? 2 : 1;
    struct Setup {  // what a thread must do before and after: nothing
        explicit Setup(int64_t) {}
        ~Setup() {}
    };
    static int64_t floats(int64_t) { return 16 * D; }  // that an object needs
    static int64_t steps(int64_t R) { return CHUNK / 16 * (1 + R / RB + R % RB); }  // of a Prefetch, in a whole chunk
    const float* q;
    int64_t R;
    float* keys;  // [16,D], as floats
    Vectors(const Queries& x, float* memory) : q(x.q), R(x.R), keys(memory) {}

    // scores [R,CHUNK] = q k^T for n keys; columns up to the next multiple of sixteen are written too.
    ONE_COPY void scores(const E* k, int64_t n, float* scores, Prefetch& prefetch) {
        for (int64_t j = 0; j < n; j += 16) {
            prefetch.step();
            for (int64_t i = 0; i < 16; i++) {
                const E* key = k + (j + i < n ? j + i : n - 1) * D;
                for (int d = 0; d < ND; d++) store(keys + i * D + 16 * d, load(key + 16 * d));
            }
            for (int64_t r = 0; r < R; r++) store(scores + r * CHUNK + j, score16<ND>(q + r * D, keys));
        }
    }

    // out [R,D] = out * keep + weights v for n values; weights [R,CHUNK].
    void values(const float* weights, const float* keep, const E* v, int64_t n, float* out, Prefetch& prefetch) {
        int64_t r = 0;
        for (; r + RB <= R; r += RB) mix<E, ND, RB>(weights + r * CHUNK, keep + r, v, n, out + r * D, prefetch);
        for (; r < R; r++) mix<E, ND, 1>(weights + r * CHUNK, keep + r, v, n, out + r * D, prefetch);
    }
};

// One row's scores of a chunk become weights relative to the row's new maximum -> the factor for the row's output so far.
ONE_COPY static float softmax_chunk(float* row, int64_t padded, float& max, float& total, Prefetch& prefetch) {
    v16 top = load(row);
    for (int64_t j = 16; j < padded; j += 16) top = vmax(top, load(row + j));
    const float m = std::fmax(max, greatest(top));
    if (m == NONE) {
        std::memset(row, 0, sizeof(float) * padded);
        return 1;
    }
    v16 add = splat(0);
    for (int64_t j = 0; j < padded; j += 16) {
        if (j % (CHUNK / ROW) == 0) prefetch.step();
        const v16 p = vexp(load(row + j) - m);
        add += p;
        store(row + j, p);
    }
    const float keep = max == m ? 1 : std::exp(max - m);
    total = total * keep + sum(add);
    max = m;
    return keep;
}

// The same for n scores of the chunk-th chunk, after which -inf stands up to the next multiple of sixteen. They go to the sink.
static inline float softmax_kept(float* row, int64_t n, int64_t chunk, const ScoreSink& sink, float& max, float& total,
                                 Prefetch& prefetch) {
    const int64_t padded = (n + 15) / 16 * 16;
    if (sink.logits) std::memcpy(sink.logits + chunk * CHUNK, row, sizeof(float) * n);
    const float keep = softmax_chunk(row, padded, max, total, prefetch);
    if (sink.weights) {
        for (int64_t j = 0; j < padded; j += 16) store(sink.weights + chunk * CHUNK + j, load(row + j));
        sink.chunk_max[chunk] = max;
    }
    return keep;
}

// The result of no keys.
static inline void clear(Partial partial, int64_t R, int64_t D) {
    for (int64_t r = 0; r < R; r++) partial.max[r] = NONE, partial.sum[r] = 0;
    std::memset(partial.out, 0, sizeof(float) * R * D);
}

// What a thread needs for attend_keys of R rows.
template <typename Products>
struct KeysMemory {
    float *scores, *keep, *products;
    KeysMemory(Arena& arena, int64_t R)
        : scores(arena.array<float>(R * CHUNK)), keep(arena.array<float>(R)), products(arena.array<float>(Products::floats(R))) {}
};

// Adds n keys k, v [n,D] to a partial result. They lie at slots first and on, a multiple of CHUNK after those before; first < 0:
// selected keys, which every row sees. sinks, if given, has one for each row, for these keys.
template <typename E, int ND, typename Products>
static void attend_keys(const Queries& x, const E* k, const E* v, int64_t n, int64_t first, Partial partial,
                        const ScoreSink* sinks, const KeysMemory<Products>& memory) {
    constexpr int D = 16 * ND;
    const int64_t R = x.R;
    float *scores = memory.scores, *keep = memory.keep;
    Products products(x, memory.products);
    for (int64_t c = 0; c < n; c += CHUNK) {
        const int64_t len = n - c < CHUNK ? n - c : CHUNK, padded = (len + 15) / 16 * 16;
        const bool masked = first >= 0 && (x.window || first + c + len > x.length);
        Prefetch prefetch(k + (c + CHUNK) * D, v + (c + CHUNK) * D, CHUNK * D * sizeof(E), Products::steps(R) + R * ROW);
        products.scores(k + c * D, len, scores, prefetch);
        for (int64_t r = 0; r < R; r++) {
            float* row = scores + r * CHUNK;
            for (int64_t j = len; j < padded; j++) row[j] = NONE;
            if (masked) hide(row, x, r, first + c, len);
            const ScoreSink sink = sinks ? sinks[r] : ScoreSink{};
            keep[r] = softmax_kept(row, len, c / CHUNK, sink, partial.max[r], partial.sum[r], prefetch);
        }
        products.values(scores, keep, v + c * D, len, partial.out, prefetch);
    }
}
