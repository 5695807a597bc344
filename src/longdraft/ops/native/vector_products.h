// The products of one chunk of keys and values with vector instructions, in float whatever the type of the keys, in blocks of
// rows whose sums stay in registers. The order of each row's sums does not depend on the number of rows.
#pragma once
#include <algorithm>

#include "attention.h"
#include "blocks.h"

// Keys that lie side by side, TURNED of them, become columns of a panel [NUMBERS,stride] of floats or pairs: a number of every key
// in a vector, so that a score is a sum within one element.
template <int D>
static inline void turn_keys(const float* keys, float* panel, int64_t stride) {
    for (int64_t d = 0; d < D; d += 4) {
        turned column[4];
        four_columns(reinterpret_cast<const char*>(keys + d), D * sizeof(float), column);
        for (int64_t i = 0; i < 4; i++) std::memcpy(panel + (d + i) * stride, &column[i], sizeof column[i]);
    }
}

// bf16 are turned in pairs, which halves the work: sink(i, pairs) takes the i-th pair of every key, whose first number is the
// lower half.
template <int D, typename Sink>
static inline void turn_pairs(const bf16* keys, Sink sink) {
    for (int64_t d = 0; d < D; d += 8) {
        turned column[4];
        four_columns(reinterpret_cast<const char*>(keys + d), D * sizeof(bf16), column);
        for (int64_t i = 0; i < 4; i++) sink(d / 2 + i, column[i]);
    }
}
template <int D>
static inline void turn_keys(const bf16* keys, float* panel, int64_t stride) {
    turn_pairs<D>(keys, [&](int64_t i, turned pairs) {
        const turned first = pairs << 16, second = pairs & 0xffff0000u;
        std::memcpy(panel + 2 * i * stride, &first, sizeof first);
        std::memcpy(panel + (2 * i + 1) * stride, &second, sizeof second);
    });
}

// Calls each(keys, j) for TURNED of n keys [n,D] at a time, from key j on. Of the last ones some may be missing: then it gets a
// copy, with zeros for those.
template <int D, typename E, typename Each>
static inline void keys_together(const E* k, int64_t n, Each each) {
    const int64_t whole = n / TURNED * TURNED;
    for (int64_t j = 0; j < whole; j += TURNED) each(k + j * D, j);
    if (whole == n) return;
    alignas(64) E last[TURNED * D] = {};
    std::memcpy(last, k + whole * D, sizeof(E) * (n - whole) * D);
    each(last, whole);
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

// Values of slots as vectors of floats. `at` gives WIDE vectors; it may give the numbers in another order than memory has them,
// one that is quick to make: `sums` reads and `put` writes floats in that order.
template <typename E, int D>
struct Slots {
    using Number = float;                // what a weight is
    using Column = vec;                  // what `at` gives
    static constexpr int TOGETHER = 1;   // slots that a weight stands for
    static constexpr int BESIDE = SUMS;  // vectors of sums that fit into registers beside what `at` needs
    static constexpr int WIDE = 1;
    static constexpr bool QUICK = std::is_same_v<E, float>;  // converting values once for many rows would take longer
    const E* first;
    void at(int64_t slot, int64_t number, vec* to) const { to[0] = load(first + slot * D + number); }
    static void sums(const float* from, vec* to) { to[0] = load(from); }
    static void put(const vec* sums, float* to) { store(to, sums[0]); }
};

// bf16, of which one instruction converts every second.
template <int D>
struct EvenAndOdd : Slots<bf16, D> {
    static constexpr int WIDE = 2;
    static constexpr bool QUICK = true;
    void at(int64_t slot, int64_t number, vec* to) const {
        uvec two;
        std::memcpy(&two, this->first + slot * D + number, sizeof two);
        to[0] = as<vec>(two << 16), to[1] = as<vec>(two & 0xffff0000u);
    }
    static void sums(const float* from, vec* to) {
        const vec a = load(from), b = load(from + V);
        to[0] = shuffled<Every<0>>(a, b), to[1] = shuffled<Every<1>>(a, b);
    }
    static void put(const vec* sums, float* to) {
        store(to, shuffled<Woven<0>>(sums[0], sums[1])), store(to + V, shuffled<Woven<1>>(sums[0], sums[1]));
    }
};
// With sixteen registers there is no room for both vectors.
template <typename E, int D>
using SlotsOf = std::conditional_t<sizeof(E) == 2 && V == 16 && D % (2 * V) == 0, EvenAndOdd<D>, Slots<E, D>>;

// Values that were converted before: N vectors of each.
template <int N>
struct Converted : Slots<float, N * V> {};

// out = out * keep + weights [RB,CHUNK] v for N vectors of numbers from d on of n slots; out [RB,D] begins at the first of them.
// A sum adds the values in their order, those together at once.
template <int D, int RB, int N, typename Values>
static inline void value_columns(const typename Values::Number* weights, const float* keep, const Values& v, int64_t n, int64_t d,
                                 float* out, Prefetch& prefetch) {
    constexpr int TOGETHER = Values::TOGETHER, WIDE = Values::WIDE;
    vec sum[RB][N];
    each<RB>([&](int r) {
        each<N / WIDE>([&](int i) { Values::sums(out + r * D + i * WIDE * V, sum[r] + i * WIDE); });
        each<N>([&](int i) { sum[r][i] *= keep[r]; });
    });
    for (int64_t j = 0; j < n; j += TOGETHER, weights++) {
        if (d == 0 && j % 16 == 0) prefetch.step();
        const auto weight = [&](int r) { return splat(weights[r * (CHUNK / TOGETHER)]); };
        typename Values::Column column[N];
        if constexpr (WIDE == 1) {
            add_products(sum, weight, [&](int i) {
                v.at(j, d + i * V, column + i);
                return column[i];
            });
        } else {
            each<N / WIDE>([&](int i) { v.at(j, d + i * WIDE * V, column + i * WIDE); });
            add_products(sum, weight, [&](int i) { return column[i]; });
        }
    }
    each<RB>([&](int r) { each<N / WIDE>([&](int i) { Values::put(sum[r] + i * WIDE, out + r * D + i * WIDE * V); }); });
}

// out [RB,D] = out * keep + weights [RB,CHUNK] v [n,D].
template <int D, int RB, typename Values>
ONE_COPY static void value_block(const typename Values::Number* weights, const float* keep, const Values& v, int64_t n, float* out,
                                 Prefetch& prefetch) {
    constexpr int N = vectors_beside(RB, D / V, 8, Values::BESIDE);
    for (int64_t d = 0; d < D; d += N * V) value_columns<D, RB, N>(weights, keep, v, n, d, out + d, prefetch);
}
template <int D, int RB, int N>
ONE_COPY static void converted_block(const float* weights, const float* keep, const Converted<N>& v, int64_t n, float* out) {
    Prefetch none;
    value_columns<D, RB, N>(weights, keep, v, n, 0, out, none);
}

// The same for many rows: as many values as fit into the first-level cache are converted once for all of them, in `memory`; N
// vectors of each, so that the sums of a block stay in registers.
constexpr int64_t CONVERTED = 4096;
constexpr int64_t value_floats(int64_t R) { return CONVERTED + R; }
template <int D, typename Values>
static void add_converted(int64_t R, const float* weights, const float* keep, const Values& v, int64_t n, float* out, float* memory,
                          Prefetch& prefetch) {
    constexpr int N = vectors_beside(TALLEST, D / V, 8);
    constexpr int64_t SLOTS = CONVERTED / (N * V);
    float* ones = memory + CONVERTED;
    std::fill(ones, ones + R, 1.0f);
    for (int64_t d = 0; d < D; d += N * V)
        for (int64_t j = 0; j < n; j += SLOTS) {
            const int64_t some = std::min(SLOTS, n - j);
            for (int64_t i = 0; i < some; i++) {
                if (d == 0 && i % 16 == 0) prefetch.step();
                for (int e = 0; e < N; e++) {
                    vec column;
                    v.at(j + i, d + e * V, &column);
                    store(memory + (i * N + e) * V, column);
                }
            }
            in_blocks(R, [&](auto rows, int64_t r) {
                converted_block<D, decltype(rows)::value, N>(weights + r * CHUNK + j, (j ? ones : keep) + r, Converted<N>{{memory}},
                                                             some, out + r * D + d);
            });
        }
}

// The same for R rows, in blocks.
template <int D, typename Values>
static void add_values(int64_t R, const typename Values::Number* weights, const float* keep, const Values& v, int64_t n, float* out,
                       float* memory, Prefetch& prefetch) {
    if constexpr (!Values::QUICK)
        if (R > 2 * TALLEST && n) return add_converted<D>(R, weights, keep, v, n, out, memory, prefetch);
    Prefetch none;
    in_blocks(R, [&](auto rows, int64_t r) {
        value_block<D, decltype(rows)::value>(weights + r * CHUNK / Values::TOGETHER, keep + r, v, n, out + r * D,
                                              r ? none : prefetch);
    });
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
    static int64_t floats(int64_t R) { return std::max<int64_t>(D * PANEL, value_floats(R)); }  // that an object needs
    static int64_t steps(int64_t) { return CHUNK / 16 * 2; }  // of a Prefetch, in a whole chunk
    Vectors(const Queries& x, float* memory) : q(x.q), R(x.R), memory(memory) {}

    // scores [R,CHUNK] = q k^T for n keys; columns up to the end of a panel are written too.
    ONE_COPY void scores(const E* k, int64_t n, float* scores, Prefetch& prefetch) {
        for (int64_t j = 0; j < n; j += PANEL) {
            const int64_t some = std::min<int64_t>(PANEL, n - j);
            keys_together<D>(k + j * D, some, [&](const E* keys, int64_t i) {
                if (i % 16 == 0) prefetch.step();
                turn_keys<D>(keys, memory + i, PANEL);
            });
            in_blocks(R, [&](auto rows, int64_t r) {
                score_block<D, PANEL, decltype(rows)::value>(q + r * D, memory, some, scores + r * CHUNK + j);
            });
        }
    }

    // out [R,D] = out * keep + weights v for n values; weights [R,CHUNK].
    void values(const float* weights, const float* keep, const E* v, int64_t n, float* out, Prefetch& prefetch) {
        add_values<D>(R, weights, keep, SlotsOf<E, D>{v}, n, out, memory, prefetch);
    }
};
