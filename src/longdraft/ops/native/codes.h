// Vectors of codes as floats: what weights and keys of 4 or 8 bits have in common.
#pragma once
#include "simd.h"

// V signed bytes.
static inline vec signed_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    typedef int8_t bytes __attribute__((vector_size(V)));
    bytes b;
    std::memcpy(&b, p, sizeof b);
    return __builtin_convertvector(__builtin_convertvector(b, ivec), vec);
#endif
}

// The low or high halves of V bytes.
static inline vec nibbles(const uint8_t* p, bool low) {
#if defined(__AVX512F__)
    const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
    return (vec)_mm512_cvtepi32_ps(low ? _mm512_and_si512(b, _mm512_set1_epi32(15)) : _mm512_srli_epi32(b, 4));
#elif defined(__AVX2__)
    const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
    return (vec)_mm256_cvtepi32_ps(low ? _mm256_and_si256(b, _mm256_set1_epi32(15)) : _mm256_srli_epi32(b, 4));
#else
    typedef uint8_t bytes __attribute__((vector_size(V)));
    bytes b;
    std::memcpy(&b, p, sizeof b);
    const ivec w = __builtin_convertvector(b, ivec);
    return __builtin_convertvector(low ? w & 15 : w >> 4, vec);
#endif
}

// The levels that the low or high halves of V bytes select from sixteen.
static inline vec levels_of(const uint8_t* p, bool low, const int8_t* levels) {
    alignas(16) uint8_t made[V];
#if defined(__AVX2__)
    const __m128i b = V == 16 ? _mm_loadu_si128((const __m128i*)p) : _mm_loadl_epi64((const __m128i*)p);
    const __m128i halves = _mm_and_si128(low ? b : _mm_srli_epi16(b, 4), _mm_set1_epi8(15));
    const __m128i all = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)levels), halves);
    std::memcpy(made, &all, sizeof made);
#else
    for (int i = 0; i < V; i++) made[i] = static_cast<uint8_t>(levels[low ? p[i] & 15 : p[i] >> 4]);
#endif
    return signed_bytes(made);
}

// V bytes as integers.
static inline ivec unsigned_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
    return (ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    typedef uint8_t bytes __attribute__((vector_size(V)));
    bytes b;
    std::memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, ivec);
#endif
}

static inline vec to_floats(ivec x) { return __builtin_convertvector(x, vec); }

// 0, 1, ..., V - 1.
static inline uvec lanes() {
    uvec x{};
    for (int i = 0; i < V; i++) x[i] = i;
    return x;
}

#ifdef __AVX512F__
// The codes of a block of 64 weights of 6 bits (ops/packed.py) as signed bytes.
static inline __m512i six_bit_codes(const uint8_t* low, const uint8_t* high) {
    const __m512i four = _mm512_srlv_epi64(_mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)low)),
                                           _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0));
    const __m512i two = _mm512_rolv_epi64(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)high)),
                                          _mm512_set_epi64(62, 62, 0, 0, 2, 2, 4, 4));
    const __m512i both = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), four, two, 0xca);  // where 15 has a bit: four
    return _mm512_sub_epi8(_mm512_and_si512(both, _mm512_set1_epi8(63)), _mm512_set1_epi8(32));
}
#endif
