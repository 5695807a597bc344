// Rows of a weight matrix as vectors of floats, whatever form they have in memory.
//
// at(row, input, step): the V weights of a row from input + step on. Inputs are multiples of STEP, and step < STEP is known
// when this is compiled.
#pragma once
#include <limits>

#include "codes.h"
#include "interface.h"

// Weights are read once, from memory, and computing with a few rows takes about as long: prefetched, both happen at once.
constexpr int64_t AHEAD = 8192;  // bytes: what memory delivers in a few times its latency
static inline void prefetch_after(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + AHEAD, 0, 2); }

template <typename E>
struct Numbers;

// Weights that are multiplied with inputs of float.
struct WithFloats {
    using Input = float;
    using Converted = Numbers<float>;
    static constexpr int WIDE = V;                  // inputs of a vector
    static constexpr int64_t FEW = 3 * (SUMS / 2);  // more rows than these use weights that are converted once for all
    static vec input(const float* x) { return load(x); }
    static void put(float* to, const float* x) { store(to, load(x)); }  // an input's form, from floats
};

template <typename E>
struct Numbers : WithFloats {
    static constexpr int STEP = V, LINE = 64 / sizeof(E);  // inputs of a cache line
    static constexpr bool UNPACKED = false;
    const E* rows;
    int64_t stride;
    Numbers(const E* rows, int64_t stride) : rows(rows), stride(stride) {}
    Numbers(const Linear& f, int64_t first, float*) : Numbers(static_cast<const E*>(f.weight) + first * f.inputs, f.inputs) {}
    static int64_t unpacked(int64_t) { return 0; }
    vec at(int64_t row, int64_t input, int step) const { return load(rows + row * stride + input + step); }
    // Called for every line of a row that is read.
    void prefetch(int64_t row, int64_t input) const { prefetch_after(rows + row * stride + input); }
};

// Codes of BITS bits in groups of STEP inputs, each code * scale + offset.
template <int BITS, int GROUP>
struct Codes : WithFloats {
    static constexpr int STEP = GROUP, LINE = 512 / BITS;
    static constexpr bool UNPACKED = true;
    const uint8_t* codes;
    const float *scale, *offset;
    int64_t groups;
    // Sixteen rows from `first` on. unpacked: memory for their scales and offsets as floats.
    Codes(const Linear& f, int64_t first, float* unpacked)
        : codes(static_cast<const uint8_t*>(f.weight) + first * f.inputs * BITS / 8), groups(f.inputs / GROUP) {
        scale = floats(f.scale, f.halves, first * groups, unpacked);
        offset = floats(f.offset, f.halves, first * groups, unpacked + 16 * groups);
    }
    static int64_t unpacked(int64_t in) { return 2 * 16 * in / GROUP; }  // numbers

    vec at(int64_t row, int64_t input, int step) const {
        const int64_t group = row * groups + input / GROUP;
        const uint8_t* from = codes + group * (GROUP * BITS / 8);
        return fused(codes_at<BITS>(from, step), splat(scale[group]), splat(offset[group]));
    }
    void prefetch(int64_t row, int64_t input) const {
        const int64_t group = row * groups + input / GROUP;
        prefetch_after(codes + group * (GROUP * BITS / 8));
    }

   private:
    const float* floats(const void* from, int64_t halves, int64_t first, float* to) const {
        if (!halves) return static_cast<const float*>(from) + first;
        const half* numbers = static_cast<const half*>(from) + first;
        for (int64_t i = 0; i < 16 * groups; i += V) {
            if (i % 32 == 0) __builtin_prefetch(numbers + i + 16 * groups, 0, 2);
            store(to + i, load(numbers + i));
        }
        return to;
    }
};

#ifdef BF16_PAIRS
struct Pairs;

// Weights that are multiplied with inputs of bf16 in pairs: element e of a vector adds the products of two inputs.
struct WithPairs {
    using Input = bf16;
    using Converted = Pairs;
    static constexpr int STEP = 32, WIDE = 32;
    static constexpr int64_t FEW = WithFloats::FEW;
    static pairs input(const bf16* x) { return as<pairs>(_mm512_loadu_si512(x)); }
    static void put(bf16* to, const float* x) { store(to, rounded(load(x), load(x + V))); }
};

// Weights that are bf16.
struct Pairs : WithPairs {
    static constexpr int LINE = 32;
    static constexpr int64_t FEW = std::numeric_limits<int64_t>::max();  // there is nothing to convert
    static constexpr bool UNPACKED = false;
    const bf16* rows;
    int64_t stride;
    Pairs(const bf16* rows, int64_t stride) : rows(rows), stride(stride) {}
    Pairs(const Linear& f, int64_t first, float*) : Pairs(static_cast<const bf16*>(f.weight) + first * f.inputs, f.inputs) {}
    static int64_t unpacked(int64_t) { return 0; }
    pairs at(int64_t row, int64_t input, int) const { return WithPairs::input(rows + row * stride + input); }
    void prefetch(int64_t row, int64_t input) const { prefetch_after(rows + row * stride + input); }
};

// Codes that become bf16. A group of 4 bits has 16 weights, from which each code takes its own.
template <int BITS, int GROUP>
struct PairCodes : WithPairs {
    static constexpr int LINE = 512 / BITS;
    static constexpr bool UNPACKED = true;
    const Codes<BITS, GROUP> floats;
    PairCodes(const Linear& f, int64_t first, float* unpacked) : floats(f, first, unpacked) {}
    static int64_t unpacked(int64_t in) { return Codes<BITS, GROUP>::unpacked(in); }
    void prefetch(int64_t row, int64_t input) const { floats.prefetch(row, input); }

    pairs at(int64_t row, int64_t input, int) const {
        if constexpr (BITS == 8) {
            constexpr int again = GROUP == 16 ? 16 : 0;  // where the second half of the vector is another group
            return rounded(floats.at(row, input, 0), floats.at(row, input + again, 16 - again));
        }
        const int64_t group = row * floats.groups + input / GROUP;
        const __m512 all = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const vec weights = fused((vec)all, splat(floats.scale[group]), splat(floats.offset[group]));
        const __m512i table = _mm512_castsi256_si512((__m256i)_mm512_cvtneps_pbh((__m512)weights));
        const __m256i two = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(floats.codes + group * (GROUP * BITS / 8))));
        const __m256i low = _mm256_and_si256(two, _mm256_set1_epi16(15)), high = _mm256_srli_epi16(two, 4);
        const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        return as<pairs>(_mm512_permutexvar_epi16(codes, table));
    }
};
#endif
