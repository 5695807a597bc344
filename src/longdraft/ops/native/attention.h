// Attention of a few query rows over a long run of keys, in blocks of fixed slots, as (max, sum, output) to be merged.
#pragma once
#include <algorithm>
#include <limits>

#include "room.h"
#include "simd.h"

constexpr int64_t BLOCK = 1024;  // slots of one unit of work: a multiple of it starts every block, whoever computes it
constexpr int64_t CHUNK = 256;   // keys whose scores are held at once
constexpr int64_t ROW = 4;       // steps of a feed that softening a row is worth
constexpr float NONE = -std::numeric_limits<float>::infinity();

// What a block must know of its query rows: R rows of q [R,D] (scaled already), W nodes a head.
struct Queries {
    const float* q;
    int64_t R, W;
    const int64_t* position;  // [W] of the nodes
    const int64_t* depth;     // [size] of the scratch nodes
    const uint8_t* mask;      // [W,size]: which scratch nodes a node sees
    int64_t size, length;     // scratch nodes; committed slots
    int64_t window;           // 0: none
};

// A partial result of R rows: max and sum [R], output [R,D] not yet divided by the sum.
struct Part {
    float *m, *l, *o;
};

// Where a row's scores of a block go, if wanted: logits; or weights as soften makes them, with the maximum of each chunk that
// they are relative to. Weights are kept as bf16: what is written here and read again is a good part of what keys are.
struct Tap {
    float* logits;
    bf16* weights;
    float* top;
};

// Set the scores of keys that a row may not see to -inf. Slots first..first+n; row r is node r % W.
static inline void hide(float* s, const Queries& x, int64_t r, int64_t first, int64_t n) {
    const int64_t w = r % x.W, low = x.window ? x.position[w] - x.window + 1 : 0;
    for (int64_t j = 0; j < n; j++) {
        const int64_t slot = first + j;
        if (slot < x.length) {
            if (slot < low) s[j] = NONE;
        } else {
            const int64_t node = slot - x.length;
            if (!x.mask[w * x.size + node] || (x.window && x.length + x.depth[node] < low)) s[j] = NONE;
        }
    }
}

// Asks for the keys and values of the next chunk, some with each step of the work on this one, so that reading and
// computing go on side by side. Into the second cache: the first would hold neither them nor as many requests at once.
class Feed {
    const char *at = nullptr, *end = nullptr, *then = nullptr;
    int64_t bytes = 0, lines = 0;

   public:
    Feed() = default;
    Feed(const void* k, const void* v, int64_t bytes, int64_t steps)
        : at(static_cast<const char*>(k)), end(at + bytes), then(static_cast<const char*>(v)), bytes(bytes), lines((bytes / 32 + steps - 1) / steps) {}
    void step() {
        for (int64_t i = 0; i < lines; i++, at += 64) {
            if (at >= end) {
                if (!then) return;
                at = then, end = then + bytes, then = nullptr;
            }
            __builtin_prefetch(at, 0, 2);
        }
    }
};

// Scores of sixteen keys kf [16,D] for one query row.
template <int ND>
static inline v16 score16(const float* q, const float* kf) {
    v16 qs[ND], acc[16];
    for (int i = 0; i < ND; i++) qs[i] = load(q + 16 * i);
    for (int j = 0; j < 16; j++) {
        v16 a = qs[0] * load(kf + j * 16 * ND);
        for (int i = 1; i < ND; i++) a += qs[i] * load(kf + j * 16 * ND + 16 * i);
        acc[j] = a;
    }
    return sums(acc);
}

// o[r] = o[r] * keep[r] + sum_j p[r,j] v[j] for RB rows at once.
template <typename E, int ND, int RB>
ONE_COPY static void mix(const float* p, const float* keep, const E* v, int64_t n, float* o, Feed& feed) {
    v16 acc[RB][ND];
    for (int r = 0; r < RB; r++)
        for (int i = 0; i < ND; i++) acc[r][i] = load(o + (r * ND + i) * 16) * keep[r];
    for (int64_t j = 0; j < n; j++) {
        v16 x[ND];
        if (j % 16 == 0) feed.step();
        for (int i = 0; i < ND; i++) x[i] = load(v + (j * ND + i) * 16);
        for (int r = 0; r < RB; r++) {
            const float w = p[r * CHUNK + j];
            for (int i = 0; i < ND; i++) acc[r][i] += x[i] * w;
        }
    }
    for (int r = 0; r < RB; r++)
        for (int i = 0; i < ND; i++) store(o + (r * ND + i) * 16, acc[r][i]);
}

// The products of one chunk with vector instructions, in float whatever the keys are.
template <typename E, int ND>
struct Vectors {
    static constexpr int D = 16 * ND, RB = ND <= 4 ? 4 : ND <= 8 ? 2 : 1;
    struct Setup {  // what a thread must do before and after
        explicit Setup(int64_t) {}
        ~Setup() {}
    };
    static int64_t room(int64_t) { return 16 * D; }
    static int64_t steps(int64_t R) { return CHUNK / 16 * (1 + R / RB + R % RB); }  // of a feed, in a whole chunk
    const float* q;
    int64_t R;
    float* kf;
    Vectors(const Queries& x, float* work) : q(x.q), R(x.R), kf(work) {}

    // s [R,CHUNK] = q k^T for n keys; columns up to the next multiple of sixteen are written too.
    ONE_COPY void scores(const E* k, int64_t n, float* s, Feed& feed) {
        for (int64_t j = 0; j < n; j += 16) {
            feed.step();
            for (int64_t i = 0; i < 16; i++) {
                const E* key = k + (j + i < n ? j + i : n - 1) * D;
                for (int d = 0; d < ND; d++) store(kf + i * D + 16 * d, load(key + 16 * d));
            }
            for (int64_t r = 0; r < R; r++) store(s + r * CHUNK + j, score16<ND>(q + r * D, kf));
        }
    }

    // o [R,D] = o * keep + p v for n values; p [R,CHUNK].
    void values(const float* p, const float* keep, const E* v, int64_t n, float* o, Feed& feed) {
        int64_t r = 0;
        for (; r + RB <= R; r += RB) mix<E, ND, RB>(p + r * CHUNK, keep + r, v, n, o + r * D, feed);
        for (; r < R; r++) mix<E, ND, 1>(p + r * CHUNK, keep + r, v, n, o + r * D, feed);
    }
};

// One row's scores of a chunk -> its weights, relative to the row's new maximum; -> what the old output is worth.
ONE_COPY static float soften(float* row, int64_t padded, float& max, float& total, Feed& feed) {
    v16 top = load(row);
    for (int64_t j = 16; j < padded; j += 16) top = vmax(top, load(row + j));
    const float m = std::fmax(max, most(top));
    if (m == NONE) {
        std::memset(row, 0, sizeof(float) * padded);
        return 1;
    }
    v16 add = splat(0);
    for (int64_t j = 0; j < padded; j += 16) {
        if (j % (CHUNK / ROW) == 0) feed.step();
        const v16 p = vexp(load(row + j) - m);
        add += p;
        store(row + j, p);
    }
    const float keep = max == m ? 1 : std::exp(max - m);
    total = total * keep + sum(add);
    max = m;
    return keep;
}

// The same for n scores of the chunk-th chunk, -inf up to the next multiple of sixteen; what the tap wants is kept.
static inline float soften_tapped(float* row, int64_t n, int64_t chunk, const Tap& tap, float& max, float& total, Feed& feed) {
    const int64_t padded = (n + 15) / 16 * 16;
    if (tap.logits) std::memcpy(tap.logits + chunk * CHUNK, row, sizeof(float) * n);
    const float keep = soften(row, padded, max, total, feed);
    if (tap.weights) {
        for (int64_t j = 0; j < padded; j += 16) store(tap.weights + chunk * CHUNK + j, load(row + j));
        tap.top[chunk] = max;
    }
    return keep;
}

// Nothing seen yet.
static inline void nothing(Part out, int64_t R, int64_t D) {
    for (int64_t r = 0; r < R; r++) out.m[r] = NONE, out.l[r] = 0;
    std::memset(out.o, 0, sizeof(float) * R * D);
}

// What a thread needs for attend_keys of R rows.
template <typename Products>
struct KeysRoom {
    float *s, *keep, *products;
    KeysRoom(Cut& cut, int64_t R) : s(cut.take<float>(R * CHUNK)), keep(cut.take<float>(R)), products(cut.take<float>(Products::room(R))) {}
};

// Go on with n keys k, v [n,D] at slots first and on, a multiple of CHUNK after those before (first < 0: picked keys, which
// every row sees). taps, if given, has one of each row, for these keys.
template <typename E, int ND, typename Products>
static void attend_keys(const Queries& x, const E* k, const E* v, int64_t n, int64_t first, Part out, const Tap* taps,
                        const KeysRoom<Products>& room) {
    constexpr int D = 16 * ND;
    const int64_t R = x.R;
    float *s = room.s, *keep = room.keep;
    Products products(x, room.products);
    for (int64_t c = 0; c < n; c += CHUNK) {
        const int64_t len = n - c < CHUNK ? n - c : CHUNK, padded = (len + 15) / 16 * 16;
        const bool masked = first >= 0 && (x.window || first + c + len > x.length);
        Feed feed(k + (c + CHUNK) * D, v + (c + CHUNK) * D, CHUNK * D * sizeof(E), Products::steps(R) + R * ROW);
        products.scores(k + c * D, len, s, feed);
        for (int64_t r = 0; r < R; r++) {
            float* row = s + r * CHUNK;
            for (int64_t j = len; j < padded; j++) row[j] = NONE;
            if (masked) hide(row, x, r, first + c, len);
            keep[r] = soften_tapped(row, len, c / CHUNK, taps ? taps[r] : Tap{}, out.m[r], out.l[r], feed);
        }
        products.values(s, keep, v + c * D, len, out.o, feed);
    }
}
