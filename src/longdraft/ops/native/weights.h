// Rows of a weight matrix as vectors of floats, whatever form they have in memory.
//
// at(row, input, step): the V weights of a row from input + step on. Inputs are multiples of STEP, and step < STEP is known
// when this is compiled.
#pragma once
#include "interface.h"
#include "simd.h"

// Weights are read once, from memory, and computing with a few rows takes about as long: prefetched, both happen at once.
constexpr int64_t AHEAD = 8192;  // bytes: what memory delivers in a few times its latency
static inline void prefetch_after(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + AHEAD, 0, 2); }

template <typename E>
struct Numbers {
    static constexpr int STEP = V, LINE = 64 / sizeof(E);  // inputs of a cache line
    static constexpr bool UNPACKED = false;
    const E* rows;
    int64_t stride;
    Numbers(const E* rows, int64_t stride) : rows(rows), stride(stride) {}
    Numbers(const Linear& f, int64_t first) : Numbers(static_cast<const E*>(f.weight) + first * f.inputs, f.inputs) {}
    vec at(int64_t row, int64_t input, int step) const { return load(rows + row * stride + input + step); }
    // Called for every line of a row that is read.
    void prefetch(int64_t row, int64_t input) const { prefetch_after(rows + row * stride + input); }
};

// Codes of BITS bits in groups of STEP inputs, each code * scale + offset.
template <int BITS, int GROUP>
struct Codes {
    static constexpr int STEP = GROUP, LINE = 512 / BITS;
    static constexpr bool UNPACKED = true;
    const uint8_t* codes;
    const float *scale, *offset;
    int64_t groups;
    Codes(const Linear& f, int64_t first)
        : codes(static_cast<const uint8_t*>(f.weight) + first * f.inputs * BITS / 8),
          scale(f.scale + first * f.inputs / GROUP), offset(f.offset + first * f.inputs / GROUP), groups(f.inputs / GROUP) {}

    vec at(int64_t row, int64_t input, int step) const {
        const int64_t group = row * groups + input / GROUP;
        const uint8_t* from = codes + group * (GROUP * BITS / 8);
        const vec code = BITS == 8 ? signed_bytes(from + step) : nibbles(from + step % 16, step < 16);
        return fused(code, splat(scale[group]), splat(offset[group]));
    }
    void prefetch(int64_t row, int64_t input) const {
        const int64_t group = row * groups + input / GROUP;
        prefetch_after(codes + group * (GROUP * BITS / 8));
    }

   private:
    static vec signed_bytes(const uint8_t* p) {
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
    static vec nibbles(const uint8_t* p, bool low) {
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
};
