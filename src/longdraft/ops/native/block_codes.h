// A block of codes of 8 bits as an operand of products.
#pragma once
#include "coded_keys.h"

// A block's codes as 16-bit integers, for `dot`.
struct BlockCodes {
#if defined(__AVX512F__)
    __m512i codes;
    explicit BlockCodes(const CodedBlock<8>& b) : codes(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)b.codes))) {}
    ivec dot(const int16_t* q) const { return (ivec)_mm512_madd_epi16(codes, _mm512_loadu_si512(q)); }
#elif defined(__AVX2__)
    __m256i low, high;
    explicit BlockCodes(const CodedBlock<8>& b)
        : low(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)b.codes))),
          high(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(b.codes + 16)))) {}
    ivec dot(const int16_t* q) const {
        const __m256i a = _mm256_madd_epi16(low, _mm256_loadu_si256((const __m256i*)q));
        return (ivec)_mm256_add_epi32(a, _mm256_madd_epi16(high, _mm256_loadu_si256((const __m256i*)(q + 16))));
    }
#else
    typedef int16_t words __attribute__((vector_size(2 * V)));
    ivec codes[CODED / V];
    explicit BlockCodes(const CodedBlock<8>& b) {
        for (int i = 0; i < CODED / V; i++) codes[i] = __builtin_convertvector(signed_bytes(b.codes + i * V), ivec);
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
