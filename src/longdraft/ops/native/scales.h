// The scales and offsets of packed weights as floats, whatever form they have in memory (ops/scales.py has the specification).
#pragma once
#include <algorithm>

#include "interface.h"
#include "simd.h"

#ifdef __AVX2__
constexpr bool INTERLEAVED = true;  // whether this build can multiply weights of which sixteen rows lie together
#else
constexpr bool INTERLEAVED = false;
#endif
constexpr int64_t BLOCK_INPUTS = 64;  // whose codes lie together; a row has whole blocks
static inline int64_t whole_blocks(int64_t inputs) { return (inputs + BLOCK_INPUTS - 1) / BLOCK_INPUTS * BLOCK_INPUTS; }

// What a format has in memory. OFFSET: its groups have offsets, of which those that are not stored say that a code is signed.
// LEVELED: a code selects one of LEVELS. RANGE: bits of the integers that are multiplied, codes or levels.
template <Format F>
struct Form;
struct NoLevels {
    static constexpr bool LEVELED = false;
};
template <>
struct Form<BITS_4> : NoLevels {
    static constexpr int BITS = 4, RANGE = 4, GROUP = 32, LOW = 32, HIGH = 0;  // LOW and HIGH: bytes of a block
    static constexpr bool OFFSET = true;
};
template <>
struct Form<BITS_5> : NoLevels {
    static constexpr int BITS = 5, RANGE = 5, GROUP = 32, LOW = 32, HIGH = 8;
    static constexpr bool OFFSET = true;
};
template <>
struct Form<BITS_6> : NoLevels {
    static constexpr int BITS = 6, RANGE = 6, GROUP = 16, LOW = 32, HIGH = 16;
    static constexpr bool OFFSET = false;
};
template <>
struct Form<BITS_8> : NoLevels {
    static constexpr int BITS = 8, RANGE = 8, GROUP = 32, LOW = 64, HIGH = 0;
    static constexpr bool OFFSET = false;
};
template <>
struct Form<BITS_8_OF_16> : NoLevels {
    static constexpr int BITS = 8, RANGE = 8, GROUP = 16, LOW = 64, HIGH = 0;
    static constexpr bool OFFSET = true;
};
template <>
struct Form<FP4> {
    static constexpr int BITS = 4, RANGE = 5, GROUP = 32, LOW = 32, HIGH = 0;
    static constexpr bool OFFSET = false, LEVELED = true;
    static constexpr int8_t LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};
template <>
struct Form<IQ4> {
    static constexpr int BITS = 4, RANGE = 8, GROUP = 32, LOW = 32, HIGH = 0;
    static constexpr bool OFFSET = false, LEVELED = true;
    static constexpr int8_t LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
};

// Calls take(Form<F>()) for a layer of packed weights.
template <typename Take>
static inline auto with_form(const Linear& f, Take take) {
    switch (f.format) {
        case BITS_4: return take(Form<BITS_4>());
        case BITS_5: return take(Form<BITS_5>());
        case BITS_6: return take(Form<BITS_6>());
        case BITS_8: return take(Form<BITS_8>());
        case FP4: return take(Form<FP4>());
        case IQ4: return take(Form<IQ4>());
        default: return take(Form<BITS_8_OF_16>());
    }
}

// Whether the fields of a layer of packed weights can belong together.
static inline bool packed_fits(const Linear& f) {
    if (f.interleaved && (!INTERLEAVED || f.outputs % 16)) return false;
    if (f.format < BITS_4 || f.format > IQ4 || f.scales < FLOATS || f.scales > EIGHT_BITS || !f.scale) return false;
    if (f.scales >= SIX_BITS && (!f.unit || f.inputs % 256)) return false;
    return with_form(f, [&](auto form) {
        const bool has_offset = f.offset || f.scales == SIX_BITS;
        if ((form.HIGH != 0) != (f.high != nullptr) || f.inputs % form.GROUP) return false;
        if (f.scales == SIX_BITS && form.GROUP != 32) return false;
        return form.OFFSET ? form.BITS < 8 || has_offset : !has_offset;
    });
}

static inline vec numbers_at(const float* p, int64_t n) {
    if (n >= V) return load(p);
    float some[V] = {};
    std::memcpy(some, p, n * sizeof(float));
    return load(some);
}
static inline vec numbers_at(const half* p, int64_t n) {
    if (n >= V) return load(p);
    half some[V] = {};
    std::memcpy(some, p, n * sizeof(half));
    return load(some);
}
static inline float number(half x) {
#ifdef __AVX512F__
    return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_castsi128_si256(_mm_cvtsi32_si128(x.bits))));
#else
    const float size = as<float>(static_cast<uint32_t>(x.bits & 0x7fff) << 13) * 0x1p112f;
    return as<float>(as<uint32_t>(size) | static_cast<uint32_t>(x.bits & 0x8000) << 16);
#endif
}

// Scales of later rows are prefetched with those of a row: they lie apart from the codes, and whoever waits for them waits for
// memory once in every few rows.
constexpr int64_t SCALES_AHEAD = 2048;  // bytes
[[gnu::always_inline]] static inline void prefetch_scales(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i + SCALES_AHEAD, 0, 2);
}

// n numbers that follow each other.
template <typename E>
static inline void to_floats(const void* from, int64_t first, int64_t n, float* to) {
    prefetch_scales(static_cast<const E*>(from) + first, n * sizeof(E));
    for (int64_t i = 0; i < n; i += V) store(to + i, numbers_at(static_cast<const E*>(from) + first + i, n - i));
}

typedef float eight_floats __attribute__((vector_size(32)));
typedef int32_t eight_ints __attribute__((vector_size(32)));
static inline eight_floats eight_signed(const void* bytes) {
#ifdef __AVX2__
    return (eight_floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)bytes)));
#else
    typedef int8_t eight_bytes __attribute__((vector_size(8)));
    eight_bytes b;
    std::memcpy(&b, bytes, sizeof b);
    return __builtin_convertvector(__builtin_convertvector(b, eight_ints), eight_floats);
#endif
}
static inline void put_times(float* to, eight_floats x, float by) {
    x = x * by;
    std::memcpy(to, &x, sizeof x);
}

// Twelve bytes: eight scales, then eight minima, of six bits each.
static inline void six_bits(const uint8_t* from, uint8_t* to) {
    uint32_t w[3];
    std::memcpy(w, from, sizeof w);
    const uint32_t low = 0x3f3f3f3f, quarter = 0x0f0f0f0f, two = 0x30303030;
    const uint32_t all[4] = {w[0] & low, (w[2] & quarter) | (w[0] >> 2 & two), w[1] & low, (w[2] >> 4 & quarter) | (w[1] >> 2 & two)};
    std::memcpy(to, all, sizeof all);
}

// n groups from `begin` on, of rows that follow each other -> scale [n], offset [n] if the form has offsets; up to a whole vector
// beyond n is written. Of scales that are codes, `begin` and n are whole units.
template <typename Form>
static inline void unpack_scales(const Linear& f, int64_t begin, int64_t n, float* scale, float* offset) {
    constexpr int64_t SHARE = 256 / Form::GROUP;  // groups that share a unit of EIGHT_BITS
    const half* const unit = static_cast<const half*>(f.unit);
    switch (f.scales) {
        case FLOATS:
            to_floats<float>(f.scale, begin, n, scale);
            if (Form::OFFSET && f.offset) to_floats<float>(f.offset, begin, n, offset);
            break;
        case HALVES:
            to_floats<half>(f.scale, begin, n, scale);
            if (Form::OFFSET && f.offset) to_floats<half>(f.offset, begin, n, offset);
            break;
        case SIX_BITS:
            prefetch_scales(static_cast<const uint8_t*>(f.scale) + begin / 8 * 12, n / 8 * 12);
            prefetch_scales(unit + begin / 4, n / 4 * sizeof(half));
            for (int64_t i = 0; i < n; i += 8) {
                const int64_t block = (begin + i) / 8;
                uint8_t codes[16];
                six_bits(static_cast<const uint8_t*>(f.scale) + 12 * block, codes);
                put_times(scale + i, eight_signed(codes), number(unit[2 * block]));
                put_times(offset + i, eight_signed(codes + 8), -number(unit[2 * block + 1]));
            }
            return;
        case EIGHT_BITS:
            prefetch_scales(static_cast<const int8_t*>(f.scale) + begin, n);
            prefetch_scales(unit + begin / SHARE, n / SHARE * sizeof(half));
            for (int64_t i = 0; i < n; i += 8)
                put_times(scale + i, eight_signed(static_cast<const int8_t*>(f.scale) + begin + i), number(unit[(begin + i) / SHARE]));
            break;
    }
    if (Form::OFFSET && !f.offset)  // exact: a power of two
        for (int64_t i = 0; i < n; i += V) store(offset + i, load(scale + i) * static_cast<float>(-(1 << (Form::BITS - 1))));
}
