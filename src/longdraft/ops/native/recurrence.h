// What tokens that follow each other do to a block of a state, and what they read of it: S becomes decay S + k delta, and an
// output is q S. A column of a block is its own sum over the keys, in their order, so neither the division of the columns among
// threads, nor of the tokens among calls, nor the absence of outputs changes a bit.
#pragma once
#include <algorithm>

#include "blocks.h"
#include "interface.h"

constexpr int64_t TILE_TOKENS = 64;                          // tokens that are prepared together
constexpr int VECTORS = V == 4 ? 4 : 2, COLUMNS = VECTORS * V;  // of a block, which stays in the first-level cache

// What some tokens have that a block of any head reads: k and q as they are multiplied, decays as factors.
struct Prepared {
    float *k, *q;  // [tokens,key_heads,keys]
    float* decay;  // [tokens,heads], or [tokens,heads,keys]
};

// out [n] = x scaled, and divided by its length if it is to be.
ONE_COPY static void scaled(const float* x, int64_t n, bool normalised, float scale, float* out) {
    if (normalised) {
        vec total = splat(0);
        int64_t i = 0;
        for (; i + V <= n; i += V) total = fused(load(x + i), load(x + i), total);
        float rest = sum(total);
        for (; i < n; i++) rest = std::fma(x[i], x[i], rest);
        scale = scale / std::sqrt(rest + 1e-6f);
    }
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * scale;
}

// e^x of n numbers; the same for a number wherever it stands.
ONE_COPY static void exponentials(const float* x, int64_t n, float* out) {
    alignas(64) float last[V] = {};
    int64_t i = 0;
    for (; i + V <= n; i += V) store(out + i, vexp(load(x + i)));
    if (i == n) return;
    std::memcpy(last, x + i, sizeof(float) * (n - i));
    store(last, vexp(load(last)));
    std::memcpy(out + i, last, sizeof(float) * (n - i));
}

// A block of a state: COLUMNS columns of all keys.
struct Place {
    float* first;
    int64_t stride;
    float* row(int64_t key) const { return first + key * stride; }
};

// Of one head: the tokens of a tile, and `columns` columns from `column` on. Columns beyond a narrow block's are zeros. begun: the
// state before the tile lies where that after it will.
template <bool DELTA, bool PER_KEY>
class Block {
    const Scan& s;
    const Prepared& p;
    const int64_t from, count, head, column, columns;  // tokens [from, from + count)
    const bool begun;
    const int64_t N = s.keys, key_head = head / (s.heads / s.key_heads);
    const float* k(int64_t t) const { return p.k + (t * s.key_heads + key_head) * N; }
    const float* q(int64_t t) const { return p.q + (t * s.key_heads + key_head) * N; }
    const float* decay(int64_t t) const { return p.decay + (t * s.heads + head) * (PER_KEY ? N : 1); }
    int64_t values(int64_t t) const { return ((from + t) * s.heads + head) * s.values + column; }

   public:
    Block(const Scan& s, const Prepared& p, int64_t from, int64_t count, int64_t head, int64_t block, bool begun)
        : s(s), p(p), from(from), count(count), head(head), column(block * COLUMNS),
          columns(std::min<int64_t>(COLUMNS, s.values - column)), begun(begun) {}

    // own [keys,COLUMNS]: memory of the thread.
    void run(float* own) {
        const bool whole = columns == COLUMNS;
        const Place inside = {own, COLUMNS}, after = {s.after + head * N * s.values + column, s.values};
        const Place before = begun || !s.before ? after : Place{const_cast<float*>(s.before) + (after.first - s.after), s.values};
        Place source = whole && (begun || s.before) ? before : inside;
        if (source.first == own) fill(own, begun || s.before ? before.first : nullptr);
        vec read[VECTORS] = {};
        if (DELTA) recall(source, 0, read);
        for (int64_t t = 0; t < count; t++) {
            const Place to = whole && t + 1 == count ? after : inside;
            vec delta[VECTORS];
            change(t, read, delta);
            s.out ? update<true>(source, to, t, delta, read) : update<false>(source, to, t, delta, read);
            source = to;
        }
        if (!whole)
            for (int64_t n = 0; n < N; n++) std::memcpy(after.row(n), inside.row(n), sizeof(float) * columns);
    }

   private:
    void fill(float* own, const float* before) const {
        std::memset(own, 0, sizeof(float) * N * COLUMNS);
        for (int64_t n = 0; before && n < N; n++) std::memcpy(own + n * COLUMNS, before + n * s.values, sizeof(float) * columns);
    }

    // How the numbers of key n at token t enter what is read for it before its own change.
    vec weight(int64_t t, int64_t n) const { return PER_KEY ? splat(k(t)[n]) * splat(decay(t)[n]) : splat(k(t)[n]); }

    // read = k S, before any update.
    void recall(Place source, int64_t t, vec* read) const {
        for (int64_t n = 0; n < N; n++) {
            const vec w = weight(t, n);
            each<VECTORS>([&](int i) { read[i] = fused(w, load(source.row(n) + i * V), read[i]); });
        }
    }

    // delta = beta (v - decay read), or v.
    void change(int64_t t, const vec* read, vec* delta) const {
        alignas(64) float v[COLUMNS] = {};
        std::memcpy(v, s.v + values(t), sizeof(float) * columns);
        each<VECTORS>([&](int i) {
            delta[i] = load(v + i * V);
            if constexpr (!DELTA) return;
            delta[i] = fused(PER_KEY ? splat(-1) : splat(-*decay(t)), read[i], delta[i]) * splat(s.beta[(from + t) * s.heads + head]);
        });
    }

    // S of token t, its output, and what the next token reads.
    template <bool OUT>
    void update(Place source, Place to, int64_t t, const vec* delta, vec* read) const {
        const bool more = DELTA && t + 1 < count;
        more ? update<OUT, true>(source, to, t, delta, read) : update<OUT, false>(source, to, t, delta, read);
    }
    template <bool OUT, bool MORE>
    void update(Place source, Place to, int64_t t, const vec* given, vec* read) const {
        vec out[VECTORS] = {}, next[VECTORS] = {}, delta[VECTORS];
        each<VECTORS>([&](int i) { delta[i] = given[i]; });
        const float *const key = k(t), *const query = q(t), *const keep = decay(t);
        for (int64_t n = 0; n < N; n++) {
            const vec a = splat(key[n]), d = splat(keep[PER_KEY ? n : 0]);
            const vec b = OUT ? splat(query[n]) : a, c = MORE ? weight(t + 1, n) : a;
            each<VECTORS>([&](int i) {
                const vec x = fused(a, delta[i], load(source.row(n) + i * V) * d);
                store(to.row(n) + i * V, x);
                if constexpr (OUT) out[i] = fused(b, x, out[i]);
                if constexpr (MORE) next[i] = fused(c, x, next[i]);
            });
        }
        each<VECTORS>([&](int i) { read[i] = next[i]; });
        if constexpr (!OUT) return;
        alignas(64) float y[COLUMNS];
        each<VECTORS>([&](int i) { store(y + i * V, out[i]); });
        std::memcpy(s.out + values(t), y, sizeof(float) * columns);
    }
};
