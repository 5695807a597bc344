// What integers are multiplied in attention over keys and values of 4 or 8 bits: queries and weights, rounded, and keys and values
// in the order that the instructions need.
#pragma once
#include "block_codes.h"
#include "vector_products.h"

constexpr int64_t GROUP = 32;         // slots whose weights are rounded together; PathAttention divides by it
constexpr int64_t FOURS = CODED / 4;  // of the numbers of a block

// Four bytes of each element lie in PARTS vectors, and four that they are multiplied with in a Word. A key's bytes are signed; those
// of weights are not.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int PARTS = 1;
// The instruction multiplies unsigned bytes with signed ones: a key's get 128 more, and sums begin with what that adds.
constexpr int64_t KEY_OFFSET = 128;
template <typename X>
static inline void key_parts(X bytes, X* to) {
    to[0] = bytes ^ 0x80808080u;
}
template <typename X>
static inline void unsigned_key_parts(X bytes, X* to) {
    to[0] = bytes;
}
static inline ivec add_key_products(ivec sum, ivec keys, int32_t word) {
    return with_byte_products(sum, keys, ivec{} + word);
}
static inline ivec add_value_products(ivec sum, ivec values, int32_t word) {
    return with_byte_products(sum, ivec{} + word, values);
}
static inline void key_words(const int8_t* four, int32_t* to) { std::memcpy(to, four, 4); }
typedef uint8_t weight_code;
#else
constexpr int PARTS = 2;  // pairs of 16 bits
constexpr int64_t KEY_OFFSET = 0;
template <typename X>
static inline void key_parts(X bytes, X* to) {
    typedef int16_t words __attribute__((vector_size(sizeof(X))));
    to[0] = as<X>(as<words>(bytes << 8) >> 8), to[1] = as<X>(as<words>(bytes) >> 8);
}
template <typename X>
static inline void unsigned_key_parts(X bytes, X* to) {  // below 128, where it is the same
    key_parts(bytes, to);
}
static inline ivec add_products(ivec sum, ivec a, int32_t word) {
#if defined(__AVX512F__)
    return sum + (ivec)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi32(word));
#elif defined(__AVX2__)
    return sum + (ivec)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi32(word));
#else
    return sum + (a << 16 >> 16) * (word << 16 >> 16) + (a >> 16) * (word >> 16);
#endif
}
static inline ivec add_key_products(ivec sum, ivec keys, int32_t word) { return add_products(sum, keys, word); }
static inline ivec add_value_products(ivec sum, ivec values, int32_t word) { return add_products(sum, values, word); }
static inline int32_t pair(int16_t low, int16_t high) { return (low & 0xffff) | static_cast<uint32_t>(high) << 16; }
static inline void key_words(const int8_t* four, int32_t* to) { to[0] = pair(four[0], four[2]), to[1] = pair(four[1], four[3]); }
typedef int16_t weight_code;
#endif

static inline ivec load(const int32_t* p) {
    ivec x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
static inline void store(int32_t* p, ivec x) { std::memcpy(p, &x, sizeof x); }

// The scales of a block of n keys, `stride` blocks apart.
template <int BITS>
static inline void scales_of_keys(const CodedBlock<BITS>* block, int64_t stride, int64_t n, float* to) {
    for (int64_t i = 0; i < n; i++) to[i] = number(block[i * stride].scale);
}
static inline void offsets_of_keys(const CodedBlock<8>*, int64_t, int64_t, float*) {}
static inline void offsets_of_keys(const CodedBlock<4>* block, int64_t stride, int64_t n, float* to) {
    for (int64_t i = 0; i < n; i++) to[i] = number(block[i * stride].offset);
}

// The transforms of query rows in 8 bits: number d of row r is a code * scale[r][d / CODED]. A row's scores begin with its product
// with what the keys lack. sums: of the numbers of a block.
template <int D>
struct RoundedQueries {
    static constexpr int64_t KEY = coded_blocks(D), WORDS = KEY * FOURS * PARTS;
    int32_t *words, *begin;  // [R,WORDS]; [R,KEY]: what a block's sums begin with
    float *scale, *sums, *of_offset;  // [R,KEY] each; [R]
    int16_t* codes;                   // [R,KEY,CODED]
    static constexpr int64_t floats(int64_t R) {  // a multiple of a line of the cache, for what follows
        return (R * (WORDS + KEY * (3 + CODED / 2) + 1) + 15) / 16 * 16;
    }
    RoundedQueries(const Queries& x, float* memory)
        : words(reinterpret_cast<int32_t*>(memory)), begin(words + x.R * WORDS), scale(memory + x.R * (WORDS + KEY)),
          sums(scale + x.R * KEY), of_offset(sums + x.R * KEY), codes(reinterpret_cast<int16_t*>(of_offset + x.R)) {
        for (int64_t r = 0; r < x.R; r++) add(x, r);
    }

   private:
    ONE_COPY void add(const Queries& x, int64_t r) const {
        alignas(64) float q[D];
        std::memcpy(q, x.q + r * D, sizeof q);
        vec product = splat(0);
        for (int d = 0; x.key_offset && d < D; d += V) product = fused(load(q + d), load(x.key_offset + d), product);
        of_offset[r] = sum(product);
        hadamard(q, D);
        for (int64_t b = 0; b < KEY; b++) round(q + b * CODED, r * KEY + b);
    }

    void round(const float* from, int64_t at) const {
        constexpr int SIZE = D < CODED ? D : CODED;
        alignas(64) int8_t own[CODED] = {};
        vec top = splat(0);
        for (int i = 0; i < SIZE; i += V) top = vmax(top, vmax(load(from + i), -load(from + i)));
        scale[at] = std::max(greatest(top), 1e-30f) / 127;
        for (int i = 0; i < SIZE; i += V)
            store_bytes(reinterpret_cast<uint8_t*>(own + i), nearest_integers(load(from + i), 1 / scale[at], -127, 127));
        int32_t sum = 0;
        for (int8_t code : own) sum += code;
        std::copy(own, own + CODED, codes + at * CODED);
        begin[at] = -KEY_OFFSET * sum;
        sums[at] = scale[at] * static_cast<float>(sum);
        for (int64_t i = 0; i < FOURS; i++) key_words(own + 4 * i, words + (at * FOURS + i) * PARTS);
    }
};

// Keys side by side: four numbers of each in PARTS elements [KEY * FOURS,PARTS,KEYS], and their scales and offsets [KEY,KEYS].
template <int D>
struct KeyPanel {
    static constexpr int64_t KEYS = 64, KEY = coded_blocks(D);
    static constexpr int64_t FLOATS = KEY * (FOURS * PARTS + 2) * KEYS;
    int32_t* fours;
    float *scale, *offset;
    explicit KeyPanel(float* memory)
        : fours(reinterpret_cast<int32_t*>(memory)), scale(memory + KEY * FOURS * PARTS * KEYS), offset(scale + KEY * KEYS) {}

    template <int BITS>
    void fill(const CodedBlock<BITS>* k, int64_t n, Prefetch& prefetch) {
        keys_together<KEY>(k, n, [&](const CodedBlock<BITS>* keys, int64_t j) {
            if (j % 16 == 0) prefetch.step();
            for (int64_t b = 0; b < KEY; b++) {
                turn(keys + b, b, j);
                scales_of_keys(keys + b, KEY, TURNED, scale + b * KEYS + j);
                offsets_of_keys(keys + b, KEY, TURNED, offset + b * KEYS + j);
            }
        });
    }

   private:
    void turn(const CodedBlock<8>* block, int64_t b, int64_t j) {
        for (int64_t half = 0; half < 2; half++) {
            turned column[4], parts[PARTS];
            four_columns(reinterpret_cast<const char*>(block->codes + half * 16), KEY * sizeof *block, column);
            for (int64_t i = 0; i < 4; i++) {
                key_parts(column[i], parts);
                put(parts, b * FOURS + half * 4 + i, j);
            }
        }
    }

    void turn(const CodedBlock<4>* block, int64_t b, int64_t j) {
        turned column[4], parts[PARTS];
        four_columns(reinterpret_cast<const char*>(block->codes), KEY * sizeof *block, column);
        for (int64_t half = 0; half < 2; half++)
            for (int64_t i = 0; i < 4; i++) {
                unsigned_key_parts(column[i] >> (4 * half) & 0x0f0f0f0fu, parts);
                put(parts, b * FOURS + half * 4 + i, j);
            }
    }

    void put(const turned* parts, int64_t four, int64_t j) const {
        for (int p = 0; p < PARTS; p++) std::memcpy(fours + (four * PARTS + p) * KEYS + j, &parts[p], sizeof parts[p]);
    }
};

// A value's codes as those of 8 bits.
static inline const CodedBlock<8>* as_bytes(const CodedBlock<8>* v, int64_t, CodedBlock<8>*) { return v; }
static inline const CodedBlock<8>* as_bytes(const CodedBlock<4>* v, int64_t count, CodedBlock<8>* to) {
    typedef uint8_t bytes __attribute__((vector_size(16)));
    for (int64_t i = 0; i < count; i++) {
        bytes both;
        std::memcpy(&both, v[i].codes, sizeof both);
        const bytes low = both & 15, high = both >> 4;
        std::memcpy(to[i].codes, &low, sizeof low), std::memcpy(to[i].codes + 16, &high, sizeof high);
    }
    return to;
}

// The values of a chunk: four slots of each number in PARTS elements [KEY,CHUNK / 4,PARTS,SIZE], and their scales and offsets [CHUNK].
template <int D>
struct ValuePanel {
    static constexpr int64_t SIZE = D < CODED ? D : CODED, KEY = coded_blocks(D), BLOCK_WORDS = CHUNK / 4 * PARTS * SIZE;
    static constexpr int64_t FLOATS = KEY * BLOCK_WORDS + 2 * CHUNK;
    int32_t* fours;
    float *scale, *offset;
    explicit ValuePanel(float* memory)
        : fours(reinterpret_cast<int32_t*>(memory)), scale(memory + KEY * BLOCK_WORDS), offset(scale + CHUNK) {}

    // Of n slots; missing ones up to a whole group are 0.
    template <int BITS>
    void fill(const CodedBlock<BITS>* v, int64_t n, Prefetch& prefetch) {
        const int64_t fours_of_slots = n / 4 * 4, whole = (n + GROUP - 1) / GROUP * GROUP;
        fill_scales(v, n);
        for (int64_t j = 0; j < fours_of_slots; j += 4) {
            if (j % 16 == 0) prefetch.step();
            weave_slots(v + j * KEY, j);
        }
        for (int64_t j = fours_of_slots; j < whole; j += 4) {
            CodedBlock<BITS> last[4 * KEY] = {};
            if (j < n) std::memcpy(last, v + j * KEY, sizeof *v * (n - j) * KEY);
            weave_slots(last, j);
        }
    }

    template <int BITS>
    void fill_scales(const CodedBlock<BITS>* v, int64_t n) {
        scales_of_keys(v, KEY, n, scale);
        offsets_of_keys(v, KEY, n, offset);
        std::fill(scale + n, scale + (n + GROUP - 1) / GROUP * GROUP, 0.0f);
    }

    // What the offsets of n values of 4 bits add to every number, with these weights.
    float of_offsets(const float* weights, int64_t n) const {
        vec total = splat(0);
        int64_t j = 0;
        for (; j + V <= n; j += V) total = fused(load(weights + j), load(offset + j), total);
        float rest = 0;
        for (; j < n; j++) rest += weights[j] * offset[j];
        return sum(total) + rest;
    }

   private:
    template <int BITS>
    void weave_slots(const CodedBlock<BITS>* slots, int64_t j) {
        CodedBlock<8> own[4 * KEY];
        const CodedBlock<8>* const four = as_bytes(slots, 4 * KEY, own);
        for (int64_t b = 0; b < KEY; b++) {
            int32_t* const to = fours + b * BLOCK_WORDS + j / 4 * PARTS * SIZE;
            for (int64_t d = 0; d < SIZE; d += STEP) weave(four + b, d, to + d);
        }
    }

    // STEP numbers of four slots.
#if defined(__AVX2__)
    static constexpr int64_t STEP = 16;
    static void weave(const CodedBlock<8>* four, int64_t d, int32_t* to) {
        const auto bytes = [&](int64_t i) { return _mm_loadu_si128((const __m128i*)(four[i * KEY].codes + d)); };
        const __m128i a = bytes(0), b = bytes(1), c = bytes(2), e = bytes(3);
        const __m128i first[2] = {_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)};
        const __m128i second[2] = {_mm_unpacklo_epi8(c, e), _mm_unpackhi_epi8(c, e)};
        for (int i = 0; i < 2; i++)
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
        {
            _mm_storeu_si128((__m128i*)(to + 8 * i), _mm_unpacklo_epi16(first[i], second[i]));
            _mm_storeu_si128((__m128i*)(to + 8 * i + 4), _mm_unpackhi_epi16(first[i], second[i]));
        }
#else
        {
            _mm256_storeu_si256((__m256i*)(to + 8 * i), _mm256_cvtepi8_epi16(first[i]));
            _mm256_storeu_si256((__m256i*)(to + SIZE + 8 * i), _mm256_cvtepi8_epi16(second[i]));
        }
#endif
    }
#else
    static constexpr int64_t STEP = V;
    static void weave(const CodedBlock<8>* four, int64_t d, int32_t* to) {
        const auto words = [&](int64_t i) { return unsigned_bytes(four[i * KEY].codes + d) << 24 >> 24; };
        store(to, (words(0) & 0xffff) | words(1) << 16), store(to + SIZE, (words(2) & 0xffff) | words(3) << 16);
    }
#endif
};

// The weights of a few rows times the scales of the values, in 8 bits: codes [rows,CHUNK], and what they are multiplied with,
// factor [rows,CHUNK / GROUP].
struct RoundedWeights {
    static constexpr int64_t GROUPS = CHUNK / GROUP, ALL = (GROUPS + V - 1) / V * V;
    static constexpr int64_t FLOATS = ALL + CHUNK * sizeof(weight_code) / sizeof(float);  // of a row
    float* factor;
    weight_code* codes;
    RoundedWeights(float* memory, int64_t rows) : factor(memory), codes(reinterpret_cast<weight_code*>(memory + rows * ALL)) {}

    // weights [CHUNK], of which those from n on count as 0.
    ONE_COPY void round(int64_t row, const float* weights, const float* scale, int64_t n) const {
        alignas(64) float own[CHUNK], inverse[ALL];
        vec top[ALL];
        const int64_t groups = (n + GROUP - 1) / GROUP;
        float* const factors = factor + row * ALL;
        weight_code* const to = codes + row * CHUNK;
        if (n < groups * GROUP) {
            std::memcpy(own, weights, sizeof(float) * n);
            std::fill(own + n, own + groups * GROUP, 0.0f);
            weights = own;
        }
        for (int64_t g = 0; g < groups; g++) top[g] = most(weights + g * GROUP, scale + g * GROUP);
        for (int64_t g = groups; g < ALL; g++) top[g] = splat(0);
        for (int64_t i = 0; i < ALL; i += V) {
            const vec size = vmax(greatest_of_each(top + i), splat(1e-30f));
            store(factors + i, size * (1.0f / 255)), store(inverse + i, splat(255) / size);
        }
        for (int64_t g = 0; g < groups; g++) put(weights + g * GROUP, scale + g * GROUP, inverse[g], to + g * GROUP);
    }

   private:
    static vec most(const float* weights, const float* scale) {
        vec x = load(weights) * load(scale);
        for (int i = V; i < GROUP; i += V) x = vmax(x, load(weights + i) * load(scale + i));
        return x;
    }
    // The codes of a group: the last bits of numbers that have no bits behind the point.
    static void put(const float* weights, const float* scale, float inverse, weight_code* to) {
        typedef weight_code few __attribute__((vector_size(sizeof(weight_code) * V)));
        for (int i = 0; i < GROUP; i += V) {
            const vec x = fused(load(weights + i) * load(scale + i), splat(inverse), splat(12582912.0f));
            const few narrow = __builtin_convertvector(as<ivec>(x) & 255, few);
            std::memcpy(to + i, &narrow, sizeof narrow);
        }
    }
};
