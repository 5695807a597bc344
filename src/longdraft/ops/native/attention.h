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
    float cap;                // of scores: cap tanh(x / cap); 0: none
    const float* key_offset = nullptr;  // [D], which keys of 8 bits lack; or null
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

// Caps n scores.
static inline void cap_scores(float* s, int64_t n, float cap) {
    for (int64_t j = 0; j < n; j += V) {
        // cap tanh(y) is cap (1 - 2 / (exp(2 y) + 1))
        const vec power = vexp(load(s + j) * (2 / cap));
        store(s + j, splat(cap) - splat(2 * cap) / (power + 1.0f));
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

// One row's scores of a chunk become weights relative to the row's new maximum -> the factor for the row's output so far.
ONE_COPY static float softmax_chunk(float* row, int64_t padded, float& max, float& total, Prefetch& prefetch) {
    constexpr int64_t SIXTEEN = 16 / V;  // vectors whose maxima do not wait for each other
    vec top[SIXTEEN];
    for (int64_t i = 0; i < SIXTEEN; i++) top[i] = load(row + i * V);
    for (int64_t j = 16; j < padded; j += 16)
        for (int64_t i = 0; i < SIXTEEN; i++) top[i] = vmax(top[i], load(row + j + i * V));
    for (int64_t i = 1; i < SIXTEEN; i++) top[0] = vmax(top[0], top[i]);
    const float here = greatest(top[0]), m = here > max ? here : max;
    if (m == NONE) {
        std::memset(row, 0, sizeof(float) * padded);
        return 1;
    }
    vec add = splat(0);
    for (int64_t j = 0; j < padded; j += V) {
        if (j % (CHUNK / ROW) == 0) prefetch.step();
        const vec p = vexp_of_negative(load(row + j) - m);
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
        for (int64_t j = 0; j < padded; j += V) store(sink.weights + chunk * CHUNK + j, load(row + j));
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
template <typename KeyProducts>
struct KeysMemory {
    float *scores, *keep, *products;
    KeysMemory(Arena& arena, int64_t R)
        : scores(arena.array<float>(R * CHUNK)), keep(arena.array<float>(R)), products(arena.array<float>(KeyProducts::floats(R))) {}
};

// Adds n keys k, v to a partial result, each `KeyProducts::KEY` elements wide. They lie at slots first and on, a multiple of CHUNK
// after those before; first < 0: selected keys, which every row sees. sinks, if given, has one for each row, for these keys.
template <typename KeyProducts, typename E>
static void attend_keys(const Queries& x, const E* k, const E* v, int64_t n, int64_t first, Partial partial,
                        const ScoreSink* sinks, const KeysMemory<KeyProducts>& memory) {
    constexpr int64_t KEY = KeyProducts::KEY;
    const int64_t R = x.R;
    float *scores = memory.scores, *keep = memory.keep;
    KeyProducts products(x, memory.products);
    for (int64_t c = 0; c < n; c += CHUNK) {
        const int64_t len = n - c < CHUNK ? n - c : CHUNK, padded = (len + 15) / 16 * 16;
        const bool masked = first >= 0 && (x.window || first + c + len > x.length);
        const int64_t next = (c + CHUNK) * KEY;
        Prefetch prefetch(k + next, v + next, CHUNK * KEY * sizeof(E), KeyProducts::steps(R) + R * ROW);
        products.scores(k + c * KEY, len, scores, prefetch);
        for (int64_t r = 0; r < R; r++) {
            float* row = scores + r * CHUNK;
            if (x.cap) cap_scores(row, padded, x.cap);
            for (int64_t j = len; j < padded; j++) row[j] = NONE;
            if (masked) hide(row, x, r, first + c, len);
            const ScoreSink sink = sinks ? sinks[r] : ScoreSink{};
            keep[r] = softmax_kept(row, len, c / CHUNK, sink, partial.max[r], partial.sum[r], prefetch);
        }
        products.values(scores, keep, v + c * KEY, len, partial.out, prefetch);
    }
}
