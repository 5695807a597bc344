// The products of one chunk of bf16 keys and values with instructions that multiply pairs of bf16: half as many as in float.
// Queries and weights are rounded to bf16, sums are float. The order of each row's sums does not depend on the number of rows.
#pragma once
#include "vector_products.h"

#ifdef BF16_PAIRS
// Two slots side by side, already interleaved.
template <int D>
struct Slots<bf16_pair, D> {
    using Number = bf16_pair;
    using Converted = Slots<bf16_pair, D>;
    static constexpr int TOGETHER = 2, BESIDE = SUMS;
    const bf16_pair* first;
    pairs at(int64_t slot, int64_t number, int step) const { return load(first + slot / 2 * D + number + step); }
};

// n slots of bf16, two of which are interleaved where they are used. A missing one is 0.
template <int D>
struct PairSlots {
    using Number = bf16_pair;
    using Converted = Slots<bf16_pair, D>;
    static constexpr int TOGETHER = 2, BESIDE = SUMS;
    const bf16* first;
    int64_t n;
    pairs at(int64_t slot, int64_t number, int step) const {
        const auto half = [&](int64_t s) { return _mm256_loadu_si256((const __m256i*)(first + s * D + number + step)); };
        const __m256i low = half(slot), high = slot + 1 < n ? half(slot + 1) : _mm256_setzero_si256();
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
                                               4, 19, 3, 18, 2, 17, 1, 16, 0);
        return as<pairs>(_mm512_permutexvar_epi16(order, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)));
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
        return R * (D + CHUNK) / 2 + std::max<int64_t>(D / 2 * PANEL, value_floats(D, R));
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
            for (int64_t i = 0; i < some; i += V) {
                const bf16* keys[V];
                for (int e = 0; e < V; e++) keys[e] = k + std::min(j + i + e, n - 1) * D;
                prefetch.step();
                by_pair(keys, D, [&](int64_t p, uvec pair) { store(panel + p * PANEL + i, as<pairs>(pair)); });
            }
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
