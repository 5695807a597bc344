// What tokens do to a block of a state along the paths of a tree, and what they read of it: S becomes decay S + k delta, and an
// output is q S. A column of a block is its own sum over the keys, in their order, so neither the division of the columns among
// threads, nor of the tokens among calls, nor branches or the absence of outputs change a bit.
#pragma once
#include <algorithm>

#include "blocks.h"
#include "interface.h"

constexpr int64_t TILE_STEPS = 128;                          // steps whose tokens are prepared together
constexpr int64_t LARGE = 1 << 17;                           // numbers of all heads' states
constexpr int VECTORS = V == 4 ? 4 : 2, COLUMNS = VECTORS * V;  // of a block, which stays in the first-level cache

constexpr int32_t COMMITTED = -2, ON = -1;  // the state before a step: see interface.h
struct Step {
    int32_t token, before, save;
};
static inline Step step_of(const Scan& s, int64_t i) { return {s.order[3 * i], s.order[3 * i + 1], s.order[3 * i + 2]}; }

// What the tokens of some steps have that a block of any head reads: k and q as they are multiplied, decays as factors.
struct Prepared {
    float *k, *q;  // [steps,key_heads,keys]
    float* decay;  // [steps,heads], or [steps,heads,keys]
};

// out [n] = x scaled, and divided by its length if it is to be.
ONE_COPY static void scaled(const float* x, int64_t n, bool normalized, float scale, float* out) {
    if (normalized) {
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

// The states of one head, in blocks of columns; memory is read and written in its order, which is several times faster than
// block by block. Columns beyond a narrow block's are zeros. apart: whether blocks share the memory of slots that are not kept.
class States {
    const Scan& s;
    const int64_t blocks = (s.values + COLUMNS - 1) / COLUMNS, size = s.keys * COLUMNS;  // numbers of a block
    const bool apart;
    float* const memory;  // [1+kept,blocks,size], then [slots-kept,size], for each block if apart

   public:
    States(const Scan& s, bool apart, float* memory) : s(s), apart(apart), memory(memory) {}
    int64_t numbers() const { return ((1 + s.kept) * blocks + (s.slots - s.kept) * (apart ? blocks : 1)) * size; }
    float* now(int64_t block) const { return memory + block * size; }
    float* slot(int64_t i, int64_t block) const {
        if (i < s.kept) return memory + ((1 + i) * blocks + block) * size;
        return memory + ((1 + s.kept) * blocks + (i - s.kept) * (apart ? blocks : 1) + (apart ? block : 0)) * size;
    }
    // The committed state of blocks [first, end) becomes the present one.
    void load(int64_t head, int64_t first, int64_t end) const {
        if (!s.before || s.values % COLUMNS) std::memset(now(first), 0, sizeof(float) * (end - first) * size);
        if (!s.before) return;
        rows(head, first, end, s.before,
             [&](const float* x, int64_t block, int64_t n) { part(x, now(block) + n * COLUMNS, block); });
    }
    // Kept states to where they are wanted. Large ones go past the caches, which the weights of the next layers fill anyway.
    void store(int64_t head, int64_t first, int64_t end) const {
        const int64_t numbers = s.heads * s.keys * s.values, last = step_of(s, s.steps - 1).save;
        const bool past = numbers >= LARGE && s.values % COLUMNS == 0 && reinterpret_cast<uintptr_t>(s.after) % sizeof(vec) == 0;
        for (int64_t i = 0; i < s.kept; i++)
            rows(head, first, end, s.after + i * numbers, [&](float* x, int64_t block, int64_t n) {
                const float* const y = (i == last ? now(block) : slot(i, block)) + n * COLUMNS;
                if (!past) return part(y, x, block);
                each<VECTORS>([&](int v) { stream(x + v * V, ::load(y + v * V)); });
            });
        if (past) streamed();
    }

   private:
    template <typename Float, typename F>
    void rows(int64_t head, int64_t first, int64_t end, Float* x, F f) const {
        for (int64_t n = 0; n < s.keys; n++)
            for (int64_t block = first; block < end; block++) f(x + (head * s.keys + n) * s.values + block * COLUMNS, block, n);
    }
    void part(const float* from, float* to, int64_t block) const {
        const int64_t columns = s.values - block * COLUMNS;
        if (columns >= COLUMNS)
            each<VECTORS>([&](int i) { ::store(to + i * V, ::load(from + i * V)); });
        else
            std::memcpy(to, from, sizeof(float) * columns);
    }
};

// Of one head: steps [from, from + count), and `columns` columns from those of `block` on.
template <bool DELTA, bool PER_KEY>
class Block {
    const Scan& s;
    const Prepared& p;
    const States& states;
    const int64_t from, count, head, block, column, columns;
    float* const own;
    const int64_t N = s.keys, key_head = head / (s.heads / s.key_heads);
    const float* k(int64_t i) const { return p.k + (i * s.key_heads + key_head) * N; }
    const float* q(int64_t i) const { return p.q + (i * s.key_heads + key_head) * N; }
    const float* decay(int64_t i) const { return p.decay + (i * s.heads + head) * (PER_KEY ? N : 1); }
    int64_t values(int64_t token) const { return (token * s.heads + head) * s.values + column; }

   public:
    Block(const Scan& s, const Prepared& p, const States& states, int64_t from, int64_t count, int64_t head, int64_t block)
        : s(s), p(p), states(states), from(from), count(count), head(head), block(block), column(block * COLUMNS),
          columns(std::min<int64_t>(COLUMNS, s.values - column)), own(states.now(block)) {}

    void run() {
        vec read[VECTORS], delta[VECTORS];
        for (int64_t i = 0; i < count; i++) {
            const Step step = step_of(s, from + i);
            if (step.before != ON) fetch(from + i, step.before);
            if (DELTA && (step.before != ON || !i)) recall(i, read);
            change(i, step.token, read, delta);
            const bool out = s.out && step.token >= s.first;
            const bool more = DELTA && i + 1 < count && step_of(s, from + i + 1).before == ON;
            if (out)
                more ? update<true, true>(i, step.token, delta, read) : update<true, false>(i, step.token, delta, read);
            else
                more ? update<false, true>(i, step.token, delta, read) : update<false, false>(i, step.token, delta, read);
            if (step.save >= 0) put(from + i, step.save);
        }
    }

   private:
    // The state before a step. That before the first one is in place.
    void fetch(int64_t step, int32_t before) const {
        if (before == COMMITTED && step) states.load(head, block, block + 1);
        if (before >= 0) std::memcpy(own, states.slot(before, block), sizeof(float) * N * COLUMNS);
    }
    // The last step's state stays in place.
    void put(int64_t step, int32_t save) const {
        if (step + 1 < s.steps) std::memcpy(states.slot(save, block), own, sizeof(float) * N * COLUMNS);
    }

    // How the numbers of key n at step i enter what is read for it before its own change.
    static vec weight(const float* k, const float* decay, int64_t n) { return PER_KEY ? splat(k[n]) * splat(decay[n]) : splat(k[n]); }

    // read = k S, before any update.
    void recall(int64_t step, vec* read) const {
        vec total[VECTORS] = {};
        const float *const key = k(step), *const keep = decay(step), *row = own;
        for (int64_t n = 0, all = N; n < all; n++, row += COLUMNS) {
            const vec w = weight(key, keep, n);
            each<VECTORS>([&](int i) { total[i] = fused(w, load(row + i * V), total[i]); });
        }
        each<VECTORS>([&](int i) { read[i] = total[i]; });
    }

    // delta = beta (v - decay read), or v.
    void change(int64_t step, int64_t token, const vec* read, vec* delta) const {
        alignas(64) float v[COLUMNS] = {};
        std::memcpy(v, s.v + values(token), sizeof(float) * columns);
        each<VECTORS>([&](int i) {
            delta[i] = load(v + i * V);
            if constexpr (!DELTA) return;
            delta[i] = fused(PER_KEY ? splat(-1) : splat(-*decay(step)), read[i], delta[i]) * splat(s.beta[token * s.heads + head]);
        });
    }

    // S of a step, its output, and what the next step reads.
    template <bool OUT, bool MORE>
    void update(int64_t step, int64_t token, const vec* given, vec* read) const {
        vec out[VECTORS] = {}, next[VECTORS] = {}, delta[VECTORS];
        each<VECTORS>([&](int i) { delta[i] = given[i]; });
        const float *const key = k(step), *const query = q(step), *const keep = decay(step);
        const float *const next_key = k(step + MORE), *const next_keep = decay(step + MORE);
        float* row = own;
        for (int64_t n = 0, all = N; n < all; n++, row += COLUMNS) {
            const vec a = splat(key[n]), d = splat(keep[PER_KEY ? n : 0]);
            const vec b = OUT ? splat(query[n]) : a, c = MORE ? weight(next_key, next_keep, n) : a;
            each<VECTORS>([&](int i) {
                const vec x = fused(a, delta[i], load(row + i * V) * d);
                store(row + i * V, x);
                if constexpr (OUT) out[i] = fused(b, x, out[i]);
                if constexpr (MORE) next[i] = fused(c, x, next[i]);
            });
        }
        each<VECTORS>([&](int i) { read[i] = next[i]; });
        if constexpr (!OUT) return;
        alignas(64) float y[COLUMNS];
        each<VECTORS>([&](int i) { store(y + i * V, out[i]); });
        std::memcpy(s.out + values(token - s.first), y, sizeof(float) * columns);
    }
};
