// The products of one chunk of keys and values with vector instructions, in float whatever the type of the keys, in blocks of
// rows whose sums stay in registers. The order of each row's sums does not depend on the number of rows.
#pragma once
#include <algorithm>

#include "attention.h"
#include "blocks.h"

// D numbers of each of V keys -> by_number [D,stride]: number d of every key.
static inline void by_number(const float* const* keys, int64_t D, float* to, int64_t stride) {
    for (int64_t d = 0; d < D; d += V) {
        vec t[V];
        for (int i = 0; i < V; i++) t[i] = load(keys[i] + d);
        transpose(t);
        for (int i = 0; i < V; i++) store(to + (d + i) * stride, t[i]);
    }
}

// D bf16 of each of V keys in pairs, which halves the work: sink(i, pairs) takes the i-th pair of every key, whose first number is
// the lower half.
template <typename Sink>
static inline void by_pair(const bf16* const* keys, int64_t D, Sink sink) {
    for (int64_t d = 0; d < D; d += 2 * V) {
        const int64_t pairs = std::min<int64_t>(V, (D - d) / 2);
        uvec t[V] = {};
        for (int i = 0; i < V; i++) {
            if (pairs == V)
                std::memcpy(&t[i], keys[i] + d, sizeof t[i]);
            else
                std::memcpy(&t[i], keys[i] + d, sizeof t[i] / 2);
        }
        transpose(t);
        for (int i = 0; i < pairs; i++) sink(d / 2 + i, t[i]);
    }
}

static inline void by_number(const bf16* const* keys, int64_t D, float* to, int64_t stride) {
    by_pair(keys, D, [&](int64_t i, uvec pairs) {
        store(to + 2 * i * stride, as<vec>(pairs << 16));
        store(to + (2 * i + 1) * stride, as<vec>(pairs & 0xffff0000u));
    });
}

// scores [RB,CHUNK] = q [RB,NUMBERS] times the first n keys of a panel [NUMBERS,PANEL] by number, and perhaps more of them. A
// number is a float or a pair. A score adds the products in the order of the numbers.
template <int NUMBERS, int PANEL, int RB, typename Number>
ONE_COPY static void score_block(const Number* q, const Number* panel, int64_t n, float* scores) {
    constexpr int N = vectors_beside(RB, PANEL / V, 8);
    for (int j = 0; j < n; j += N * V) {
        vec sum[RB][N] = {};
        for (int d = 0; d < NUMBERS; d++)
            add_products(
                sum, [&](int r) { return splat(q[r * NUMBERS + d]); },
                [&](int i) { return load(panel + d * PANEL + j + i * V); });
        each<RB>([&](int r) { each<N>([&](int i) { store(scores + r * CHUNK + j + i * V, sum[r][i]); }); });
    }
}

// n slots as vectors of floats, as those of weights.h.
template <typename E, int D>
struct Slots {
    using Number = float;                // what a weight is
    using Converted = Slots<float, D>;
    static constexpr int TOGETHER = 1;   // slots that a weight stands for
    static constexpr int BESIDE = SUMS;  // vectors of sums that fit into registers beside what `at` needs
    const E* first;
    vec at(int64_t slot, int64_t number, int step) const { return load(first + slot * D + number + step); }
};

// out [RB,D] = out * keep + weights [RB,CHUNK] v [n,D]. A sum adds the values in their order, those together at once.
template <int D, int RB, typename Values>
ONE_COPY static void value_block(const typename Values::Number* weights, const float* keep, const Values& v, int64_t n, float* out,
                                 Prefetch& prefetch) {
    constexpr int N = vectors_beside(RB, D / V, 8, Values::BESIDE), TOGETHER = Values::TOGETHER;
    for (int d = 0; d < D; d += N * V) {
        vec sum[RB][N];
        each<RB>([&](int r) { each<N>([&](int i) { sum[r][i] = load(out + r * D + d + i * V) * keep[r]; }); });
        for (int64_t j = 0; j < n; j += TOGETHER) {
            if (d == 0 && j % 16 == 0) prefetch.step();
            add_products(
                sum, [&](int r) { return splat(weights[(r * CHUNK + j) / TOGETHER]); },
                [&](int i) { return v.at(j, d, i * V); });
        }
        each<RB>([&](int r) { each<N>([&](int i) { store(out + r * D + d + i * V, sum[r][i]); }); });
    }
}

// The same for R rows, in blocks.
template <int D, typename Values>
static void value_blocks(int64_t R, const typename Values::Number* weights, const float* keep, const Values& v, int64_t n,
                         float* out, Prefetch& prefetch) {
    Prefetch none;
    in_blocks(R, [&](auto rows, int64_t r) {
        value_block<D, decltype(rows)::value>(weights + r * CHUNK / Values::TOGETHER, keep + r, v, n, out + r * D,
                                              r ? none : prefetch);
    });
}

// The same; of many rows, values are converted once for all of them, in `memory`.
constexpr int64_t MADE = 32;  // values that are converted at once
constexpr int64_t value_floats(int64_t D, int64_t R) { return MADE * D + R; }
template <int D, typename Values>
static void add_values(int64_t R, const typename Values::Number* weights, const float* keep, const Values& v, int64_t n, float* out,
                       float* memory, Prefetch& prefetch) {
    using Converted = typename Values::Converted;
    if (std::is_same_v<Values, Converted> || R <= 2 * TALLEST || !n)
        return value_blocks<D>(R, weights, keep, v, n, out, prefetch);
    auto* made = reinterpret_cast<typename Values::Number*>(memory);
    float* ones = memory + MADE * D;
    std::fill(ones, ones + R, 1.0f);
    for (int64_t j = 0; j < n; j += MADE) {
        const int64_t some = std::min(MADE, n - j);
        for (int64_t i = 0; i < some; i += Values::TOGETHER)
            for (int d = 0; d < D; d += V) store(made + i / Values::TOGETHER * D + d, v.at(j + i, 0, d));
        value_blocks<D>(R, weights + j / Values::TOGETHER, j ? ones : keep, Converted{made}, some, out, prefetch);
    }
}

template <typename E, int ND>
class Vectors {
    static constexpr int D = 16 * ND, PANEL = 64;  // keys of a panel
    const float* q;
    int64_t R;
    float* memory;  // of a panel, or of values

   public:
    static constexpr int64_t KEY = D;  // elements of a key
    struct Setup {  // what a thread must do before and after: nothing
        explicit Setup(int64_t) {}
        ~Setup() {}
    };
    static int64_t floats(int64_t R) { return std::max<int64_t>(D * PANEL, value_floats(D, R)); }  // that an object needs
    static int64_t steps(int64_t) { return CHUNK / 16 * 2; }  // of a Prefetch, in a whole chunk
    Vectors(const Queries& x, float* memory) : q(x.q), R(x.R), memory(memory) {}

    // scores [R,CHUNK] = q k^T for n keys; columns up to the end of a panel are written too.
    ONE_COPY void scores(const E* k, int64_t n, float* scores, Prefetch& prefetch) {
        for (int64_t j = 0; j < n; j += PANEL) {
            const int64_t some = std::min<int64_t>(PANEL, n - j);
            for (int64_t i = 0; i < some; i += V) {
                const E* keys[V];
                for (int e = 0; e < V; e++) keys[e] = k + std::min(j + i + e, n - 1) * D;
                if (i % 16 == 0) prefetch.step();
                by_number(keys, D, memory + i, PANEL);
            }
            in_blocks(R, [&](auto rows, int64_t r) {
                score_block<D, PANEL, decltype(rows)::value>(q + r * D, memory, some, scores + r * CHUNK + j);
            });
        }
    }

    // out [R,D] = out * keep + weights v for n values; weights [R,CHUNK].
    void values(const float* weights, const float* keep, const E* v, int64_t n, float* out, Prefetch& prefetch) {
        add_values<D>(R, weights, keep, Slots<E, D>{v}, n, out, memory, prefetch);
    }
};
