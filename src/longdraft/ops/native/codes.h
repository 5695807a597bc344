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

// Number step..step+V of a group of 32 codes.
template <int BITS>
static inline vec codes_at(const uint8_t* group, int step) {
    return BITS == 8 ? signed_bytes(group + step) : nibbles(group + step % 16, step < 16);
}
