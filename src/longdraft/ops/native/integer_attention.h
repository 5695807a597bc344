// The products of one chunk of keys and values of 4 or 8 bits, in integers: at most half the bytes of bf16, and twice as many
// products in an instruction. Queries are rounded to 8 bits for each block of a key. Weights are multiplied with the scales of the values, one for
// each, and rounded to 8 bits for each GROUP of slots, against the largest of them. Sums of integers are exact, those of blocks and
// groups are floats that are added in order, so a row's result does not depend on the rows beside it.
#pragma once
#include "integer_operands.h"

// scores [RB,CHUNK] of rows first..first+RB for n keys of a panel; columns up to a multiple of 4 V may be written too.
template <int D, int RB, int BITS>
ONE_COPY static void score_integers(const RoundedQueries<D>& q, int64_t first, const KeyPanel<D>& keys, int64_t n, float* scores) {
    constexpr int64_t KEY = coded_blocks(D), KEYS = KeyPanel<D>::KEYS;
    constexpr int N = vectors_beside(RB, KEYS / V, 4);
    for (int64_t j = 0; j < n; j += N * V) {
        vec total[RB][N];
        each<RB>([&](int r) { each<N>([&](int i) { total[r][i] = splat(q.of_offset[first + r]); }); });
        for (int64_t b = 0; b < KEY; b++) {
            ivec sum[RB][N];
            each<RB>([&](int r) { each<N>([&](int i) { sum[r][i] = ivec{} + (BITS == 8 ? q.begin[(first + r) * KEY + b] : 0); }); });
            for (int64_t f = b * FOURS * PARTS; f < (b + 1) * FOURS * PARTS; f++) {
                ivec column[N];
                each<N>([&](int i) { column[i] = load(keys.fours + f * KEYS + j + i * V); });
                each<RB>([&](int r) {
                    const int32_t word = q.words[(first + r) * RoundedQueries<D>::WORDS + f];
                    each<N>([&](int i) { sum[r][i] = add_key_products(sum[r][i], column[i], word); });
                });
            }
            each<RB>([&](int r) {
                const vec scale = splat(q.scale[(first + r) * KEY + b]);
                each<N>([&](int i) {
                    total[r][i] = fused(to_floats(sum[r][i]), load(keys.scale + b * KEYS + j + i * V) * scale, total[r][i]);
                    if (BITS == 8) return;
                    total[r][i] = fused(load(keys.offset + b * KEYS + j + i * V), splat(q.sums[(first + r) * KEY + b]), total[r][i]);
                });
            });
        }
        each<RB>([&](int r) { each<N>([&](int i) { store(scores + r * CHUNK + j + i * V, total[r][i]); }); });
    }
}

// out [RB,D] += weights times values of n slots.
template <int D, int RB>
ONE_COPY static void add_integer_values(const RoundedWeights& weights, const ValuePanel<D>& values, int64_t n, float* out) {
    using Panel = ValuePanel<D>;
    constexpr int64_t SIZE = Panel::SIZE;
    constexpr int N = SIZE / V;
    for (int64_t b = 0; b < Panel::KEY; b++)
        for (int64_t g = 0; g * GROUP < n; g++) {
            ivec sum[RB][N] = {};
            for (int64_t f = g * GROUP / 4; f < (g + 1) * GROUP / 4; f++)
                each<PARTS>([&](int p) {
                    ivec column[N];
                    each<N>([&](int i) { column[i] = load(values.fours + b * Panel::BLOCK_WORDS + (f * PARTS + p) * SIZE + i * V); });
                    each<RB>([&](int r) {
                        int32_t word;
                        std::memcpy(&word, weights.codes + r * CHUNK + f * 4 + p * 2, sizeof word);
                        each<N>([&](int i) { sum[r][i] = add_value_products(sum[r][i], column[i], word); });
                    });
                });
            each<RB>([&](int r) {
                const vec scale = splat(weights.factor[r * RoundedWeights::ALL + g]);
                each<N>([&](int i) {
                    float* const at = out + r * D + b * CODED + i * V;
                    store(at, fused(to_floats(sum[r][i]), scale, load(at)));
                });
            });
        }
}

// So few rows that neither turning keys nor weaving values pays. The sums are the same integers, so every bit is the same:
// those of values are computed in floats, which are exact below 2^24.
constexpr int64_t FEW_QUERIES = 1;

template <int D, int RB>
ONE_COPY static void score_few(const RoundedQueries<D>& q, const CodedBlock<8>* k, int64_t n, float* scores, Prefetch& prefetch) {
    constexpr int64_t KEY = coded_blocks(D);
    for (int64_t j = 0; j < n; j += V) {
        if (j % 16 == 0) prefetch.step();
        vec total[RB];
        for (int r = 0; r < RB; r++) total[r] = splat(q.of_offset[r]);
        for (int64_t b = 0; b < KEY; b++) {
            ivec products[RB][V];
            alignas(64) float scale[V];
            for (int64_t i = 0; i < V; i++) {
                const CodedBlock<8>& block = k[std::min(j + i, n - 1) * KEY + b];
                const BlockCodes codes(block);
                scale[i] = number(block.scale);
                for (int r = 0; r < RB; r++) products[r][i] = codes.dot(q.codes + (r * KEY + b) * CODED);
            }
            for (int r = 0; r < RB; r++)
                total[r] = fused(to_floats(sums(products[r])), load(scale) * splat(q.scale[r * KEY + b]), total[r]);
        }
        for (int r = 0; r < RB; r++) store(scores + r * CHUNK + j, total[r]);
    }
}

// As add_integer_values.
template <int D, int RB>
ONE_COPY static void add_few_values(const RoundedWeights& weights, const CodedBlock<8>* v, int64_t n, float* out, Prefetch& prefetch) {
    constexpr int64_t SIZE = ValuePanel<D>::SIZE, KEY = coded_blocks(D);
    constexpr int N = SIZE / V;
    for (int64_t g = 0; g * GROUP < n; g++) {
        const int64_t some = std::min(GROUP, n - g * GROUP);
        float own[RB][GROUP];
        for (int r = 0; r < RB; r++)
            for (int64_t i = 0; i < GROUP; i++) own[r][i] = weights.codes[r * CHUNK + g * GROUP + i];
        for (int64_t b = 0; b < KEY; b++) {
            vec sum[RB][N] = {};
            for (int64_t i = 0; i < some; i++) {
                if (b == 0 && i % 16 == 0) prefetch.step();
                const uint8_t* const codes = v[(g * GROUP + i) * KEY + b].codes;
                each<N>([&](int e) {
                    const vec x = signed_bytes(codes + e * V);
                    each<RB>([&](int r) { sum[r][e] = fused(x, splat(own[r][i]), sum[r][e]); });
                });
            }
            each<RB>([&](int r) {
                const vec scale = splat(weights.factor[r * RoundedWeights::ALL + g]);
                each<N>([&](int e) {
                    float* const at = out + r * D + b * CODED + e * V;
                    store(at, fused(sum[r][e], scale, load(at)));
                });
            });
        }
    }
}

// Of codes of 4 bits, which drafts read, a few rows are computed like many.
template <int ND, int BITS>
class IntegerVectors {
    static constexpr int D = 16 * ND;
    static constexpr int MOST = SUMS / (ValuePanel<D>::SIZE / V);  // rows whose sums stay in registers
    const RoundedQueries<D> q;
    const int64_t R;
    float* const memory;  // of a panel of keys, or one of values and the weights of MOST rows

   public:
    static constexpr int64_t KEY = coded_blocks(D);           // blocks of a key
    static int64_t steps(int64_t) { return CHUNK / 16 * 2; }  // of a Prefetch, in a whole chunk
    static int64_t floats(int64_t R) {                        // that an object needs
        constexpr int64_t VALUES = ValuePanel<D>::FLOATS + MOST * RoundedWeights::FLOATS;
        return RoundedQueries<D>::floats(R) + std::max(KeyPanel<D>::FLOATS, VALUES);
    }
    IntegerVectors(const Queries& x, float* memory)
        : q(x, memory), R(x.R), memory(memory + RoundedQueries<D>::floats(x.R)) {}

    bool few() const { return BITS == 8 && R <= FEW_QUERIES; }

    // As in Vectors.
    void scores(const CodedBlock<BITS>* k, int64_t n, float* scores, Prefetch& prefetch) {
        if constexpr (BITS == 8)
            if (few())
                return in_blocks(R, [&](auto rows, int64_t) {
                    if constexpr (decltype(rows)::value <= FEW_QUERIES) score_few<D, decltype(rows)::value>(q, k, n, scores, prefetch);
                });
        KeyPanel<D> panel(memory);
        for (int64_t j = 0; j < n; j += panel.KEYS) {
            const int64_t some = std::min(panel.KEYS, n - j);
            panel.fill(k + j * KEY, some, prefetch);
            in_blocks(R, [&](auto rows, int64_t r) {
                score_integers<D, decltype(rows)::value, BITS>(q, r, panel, some, scores + r * CHUNK + j);
            });
        }
    }

    void values(const float* weights, const float* keep, const CodedBlock<BITS>* v, int64_t n, float* out, Prefetch& prefetch) {
        ValuePanel<D> panel(memory);
        const RoundedWeights rounded(memory + ValuePanel<D>::FLOATS, MOST);
        if (few())
            panel.fill_scales(v, n);
        else
            panel.fill(v, n, prefetch);
        in_blocks<MOST>(R, [&](auto rows, int64_t first) {
            constexpr int RB = decltype(rows)::value;
            for (int64_t r = 0; r < RB; r++) {
                const float* const own = weights + (first + r) * CHUNK;
                rounded.round(r, own, panel.scale, n);
                float* const y = out + (first + r) * D;
                const float more = BITS == 8 ? 0.0f : panel.of_offsets(own, n);
                for (int64_t d = 0; d < D; d += V) store(y + d, load(y + d) * keep[first + r] + more);
            }
            if constexpr (BITS == 8 && RB <= FEW_QUERIES)
                if (few()) return add_few_values<D, RB>(rounded, v, n, out, prefetch);
            add_integer_values<D, RB>(rounded, panel, n, out + first * D);
        });
    }
};
