// The products of one chunk of keys and values that are codes. Scores are dot products of integers: the codes, and the query in
// 16 bits. Values become floats in registers, where they are used.
#pragma once
#include "coded_keys.h"
#include "vector_products.h"

// A block's codes as 16-bit integers, for `dot`.
struct BlockCodes {
#if defined(__AVX512F__)
    __m512i codes;
    explicit BlockCodes(const CodedBlock<8>& b) : codes(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)b.codes))) {}
    explicit BlockCodes(const CodedBlock<4>& b) {
        const __m256i two = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)b.codes));
        const __m256i low = _mm256_and_si256(two, _mm256_set1_epi16(15)), high = _mm256_srli_epi16(two, 4);
        codes = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    ivec dot(const int16_t* q) const { return (ivec)_mm512_madd_epi16(codes, _mm512_loadu_si512(q)); }
#elif defined(__AVX2__)
    __m256i low, high;
    explicit BlockCodes(const CodedBlock<8>& b)
        : low(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)b.codes))),
          high(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(b.codes + 16)))) {}
    explicit BlockCodes(const CodedBlock<4>& b) {
        const __m256i two = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)b.codes));
        low = _mm256_and_si256(two, _mm256_set1_epi16(15)), high = _mm256_srli_epi16(two, 4);
    }
    ivec dot(const int16_t* q) const {
        const __m256i a = _mm256_madd_epi16(low, _mm256_loadu_si256((const __m256i*)q));
        return (ivec)_mm256_add_epi32(a, _mm256_madd_epi16(high, _mm256_loadu_si256((const __m256i*)(q + 16))));
    }
#else
    typedef int16_t words __attribute__((vector_size(2 * V)));
    ivec codes[CODED / V];
    template <int BITS>
    explicit BlockCodes(const CodedBlock<BITS>& b) {
        for (int i = 0; i < CODED / V; i++) codes[i] = __builtin_convertvector(codes_at<BITS>(b.codes, i * V), ivec);
    }
    ivec dot(const int16_t* q) const {
        ivec sum = {};
        for (int i = 0; i < CODED / V; i++) {
            words w;
            std::memcpy(&w, q + i * V, sizeof w);
            sum += codes[i] * __builtin_convertvector(w, ivec);
        }
        return sum;
    }
#endif
};

// Query rows in 16 bits: a number of row r is words[r][i] * scale[r]. sums: V sums of a block's words.
template <int D>
struct CodedQueries {
    static constexpr int64_t KEY = coded_blocks(D), WORDS = KEY * CODED;
    float *scale, *sums;
    int16_t* words;
    static int64_t floats(int64_t R) { return R * (1 + KEY * V + WORDS / 2); }
    CodedQueries(const float* q, int64_t R, float* memory)
        : scale(memory), sums(scale + R), words(reinterpret_cast<int16_t*>(sums + R * KEY * V)) {
        typedef int16_t few __attribute__((vector_size(2 * V)));
        std::memset(words, 0, sizeof(int16_t) * R * WORDS);
        for (int64_t r = 0; r < R; r++) {
            vec top = splat(0);
            for (int d = 0; d < D; d += V) top = vmax(top, vmax(load(q + r * D + d), -load(q + r * D + d)));
            scale[r] = std::max(greatest(top), 1e-30f) / 32767;
            ivec sum[KEY] = {};
            for (int d = 0; d < D; d += V) {
                const ivec word = nearest_integers(load(q + r * D + d), 1 / scale[r], -32767, 32767) << 16 >> 16;
                const few w = __builtin_convertvector(word, few);
                std::memcpy(words + r * WORDS + d, &w, sizeof w);
                sum[d / CODED] += word;
            }
            for (int64_t b = 0; b < KEY; b++) store(sums + (r * KEY + b) * V, __builtin_convertvector(sum[b], vec));
        }
    }
};

// scores [RB,CHUNK] of rows first..first+RB for n keys; columns up to the next multiple of V are written too.
template <int BITS, int D, int RB>
ONE_COPY static void score_codes(const CodedQueries<D>& q, int64_t first, const CodedBlock<BITS>* k, int64_t n, float* scores,
                                 Prefetch& prefetch) {
    constexpr int64_t KEY = coded_blocks(D);
    for (int64_t j = 0; j < n; j += V) {
        if (j % 16 == 0) prefetch.step();
        vec all[RB][V];
        for (int64_t i = 0; i < V; i++) {
            const CodedBlock<BITS>* key = k + std::min(j + i, n - 1) * KEY;
            vec sum[RB] = {};
            for (int64_t b = 0; b < KEY; b++) {
                const BlockCodes codes(key[b]);
                const vec scale = scale_in(key[b]), offset = offset_in(key[b]);
                for (int r = 0; r < RB; r++) {
                    const int64_t at = (first + r) * KEY + b;
                    sum[r] = fused(__builtin_convertvector(codes.dot(q.words + at * CODED), vec), scale, sum[r]);
                    if (BITS == 4) sum[r] = fused(offset, load(q.sums + at * V), sum[r]);
                }
            }
            for (int r = 0; r < RB; r++) all[r][i] = sum[r];
        }
        for (int r = 0; r < RB; r++) store(scores + r * CHUNK + j, sums(all[r]) * q.scale[first + r]);
    }
}

// Slots of codes as vectors of floats.
template <int BITS, int D>
struct CodedSlots : Slots<float, D> {
    static constexpr int BESIDE = SUMS * 2 / 3;
    static constexpr bool QUICK = false;
    const CodedBlock<BITS>* codes;
    explicit CodedSlots(const CodedBlock<BITS>* codes) : Slots<float, D>{}, codes(codes) {}
    void at(int64_t slot, int64_t number, vec* to) const {
        const CodedBlock<BITS>& block = codes[slot * coded_blocks(D) + number / CODED];
        const int inside = static_cast<int>(number) % static_cast<int>(CODED);
        to[0] = fused(codes_at<BITS>(block.codes, inside), scale_in(block), offset_in(block));
    }
};

template <int BITS, int ND>
class CodedVectors {
    static constexpr int D = 16 * ND;
    const CodedQueries<D> q;
    const int64_t R;
    float* decoded;

   public:
    static constexpr int64_t KEY = coded_blocks(D);           // blocks of a key
    static int64_t steps(int64_t) { return CHUNK / 16 * 2; }  // of a Prefetch, in a whole chunk
    static int64_t floats(int64_t R) { return CodedQueries<D>::floats(R) + value_floats(R); }  // that an object needs
    CodedVectors(const Queries& x, float* memory)
        : q(x.q, x.R, memory), R(x.R), decoded(memory + CodedQueries<D>::floats(R)) {}

    // As in Vectors.
    void scores(const CodedBlock<BITS>* k, int64_t n, float* scores, Prefetch& prefetch) {
        Prefetch none;
        in_blocks(R, [&](auto rows, int64_t r) {
            score_codes<BITS, D, decltype(rows)::value>(q, r, k, n, scores + r * CHUNK, r ? none : prefetch);
        });
    }

    void values(const float* weights, const float* keep, const CodedBlock<BITS>* v, int64_t n, float* out, Prefetch& prefetch) {
        add_values<D>(R, weights, keep, CodedSlots<BITS, D>(v), n, out, decoded, prefetch);
    }
};
