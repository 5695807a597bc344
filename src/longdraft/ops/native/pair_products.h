// The products of one chunk of bf16 keys and values with instructions that multiply pairs of bf16: half as many as in float.
// Queries and weights are rounded to bf16, sums are float. The order of each row's sums does not depend on the number of rows.
#pragma once
#include "vector_products.h"

#ifdef BF16_PAIRS
// n slots of bf16, two of which are interleaved where they are used. A missing one is 0. With WIDE 2, the even fours of numbers
// come before the odd ones.
template <int D>
struct PairSlots {
    using Number = bf16_pair;
    using Column = pairs;
    static constexpr int TOGETHER = 2, BESIDE = SUMS, WIDE = D % (2 * V) ? 1 : 2;
    static constexpr bool QUICK = true;
    const bf16* first;
    int64_t n;
    void at(int64_t slot, int64_t number, pairs* to) const {
        const bf16 *one = first + slot * D + number, *next = one + D;
        const bool both = slot + 1 < n;
        if constexpr (WIDE == 2) {
            const __m512i low = _mm512_loadu_si512(one), high = both ? _mm512_loadu_si512(next) : _mm512_setzero_si512();
            to[0] = as<pairs>(_mm512_unpacklo_epi16(low, high)), to[1] = as<pairs>(_mm512_unpackhi_epi16(low, high));
        } else {
            const __m256i low = _mm256_loadu_si256((const __m256i*)one);
            const __m256i high = both ? _mm256_loadu_si256((const __m256i*)next) : _mm256_setzero_si256();
            const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                                   20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            to[0] = as<pairs>(_mm512_permutexvar_epi16(order, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)));
        }
    }
    static void sums(const float* from, vec* to) {
        if constexpr (WIDE == 2) {
            const vec a = load(from), b = load(from + V);
            to[0] = shuffled<Fours<0>>(a, b), to[1] = shuffled<Fours<1>>(a, b);
        } else {
            to[0] = load(from);
        }
    }
    static void put(const vec* sums, float* to) {
        if constexpr (WIDE == 2)
            store(to, shuffled<MixedFours<0>>(sums[0], sums[1])), store(to + V, shuffled<MixedFours<1>>(sums[0], sums[1]));
        else
            store(to, sums[0]);
    }
};

template <int ND>
class PairVectors {
    static constexpr int D = 16 * ND, PANEL = 64;  // keys of a panel
    const int64_t R;
    bf16_pair *q, *weights, *panel;  // [R,D/2], [R,CHUNK/2], and one panel or values

   public:
    static constexpr int64_t KEY = D;  // elements of a key
    struct Setup {
        explicit Setup(int64_t) {}
        ~Setup() {}
    };
    static int64_t floats(int64_t R) {  // that an object needs
        return R * (D + CHUNK) / 2 + std::max<int64_t>(D / 2 * PANEL, value_floats(R));
    }
    static int64_t steps(int64_t) { return CHUNK / 16 * 2; }  // of a Prefetch, in a whole chunk
    PairVectors(const Queries& x, float* memory)
        : R(x.R), q(reinterpret_cast<bf16_pair*>(memory)), weights(q + R * D / 2), panel(weights + R * CHUNK / 2) {
        round(x.q, R * D, q);
    }

    // As in Vectors.
    ONE_COPY void scores(const bf16* k, int64_t n, float* scores, Prefetch& prefetch) {
        for (int64_t j = 0; j < n; j += PANEL) {
            const int64_t some = std::min<int64_t>(PANEL, n - j);
            keys_together<D>(k + j * D, some, [&](const bf16* keys, int64_t i) {
                if (i % 16 == 0) prefetch.step();
                turn_pairs<D>(keys, [&](int64_t p, turned pairs) { std::memcpy(panel + p * PANEL + i, &pairs, sizeof pairs); });
            });
            in_blocks(R, [&](auto rows, int64_t r) {
                score_block<D / 2, PANEL, decltype(rows)::value>(q + r * D / 2, panel, some, scores + r * CHUNK + j);
            });
        }
    }

    // As in Vectors.
    void values(const float* from, const float* keep, const bf16* v, int64_t n, float* out, Prefetch& prefetch) {
        for (int64_t r = 0; r < R; r++) round(from + r * CHUNK, n, weights + r * CHUNK / 2);
        add_values<D>(R, weights, keep, PairSlots<D>{v, n}, n, out, reinterpret_cast<float*>(panel), prefetch);
    }

   private:
    static void round(const float* from, int64_t n, bf16_pair* to) {
        for (int64_t i = 0; i < n; i += V) store(reinterpret_cast<bf16*>(to) + i, load(from + i));
    }
};
#endif
