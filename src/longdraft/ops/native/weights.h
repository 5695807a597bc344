// Rows of a weight matrix as vectors of floats, whatever form they have in memory.
//
// at(row, input, step): the V weights of a row from input + step on. Inputs are multiples of STEP, and step < STEP is known
// when this is compiled.
#pragma once
#include "codes.h"
#include "interface.h"

// Weights are read once, from memory, and computing with a few rows takes about as long: prefetched, both happen at once.
constexpr int64_t AHEAD = 8192;  // bytes: what memory delivers in a few times its latency
static inline void prefetch_after(const void* p) { __builtin_prefetch(static_cast<const char*>(p) + AHEAD, 0, 3); }

// Weights that are multiplied with inputs of float.
struct WithFloats {
    using Input = float;
    static constexpr int WIDE = V;  // inputs of a vector
    static vec input(const float* x) { return load(x); }
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

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)  // with AMX there are tiles
#define PAIRS
// Numbers of bf16, multiplied with inputs of bf16 in pairs: element e of a vector adds the products of two inputs.
struct pairs {
    __m512bh numbers;
};
static inline vec fused(pairs a, pairs b, vec c) { return (vec)_mm512_dpbf16_ps((__m512)c, a.numbers, b.numbers); }

struct Pairs {
    static constexpr int STEP = 32, LINE = 32, WIDE = 32;
    static constexpr bool UNPACKED = false;
    using Input = bf16;
    const bf16* rows;
    int64_t stride;
    Pairs(const Linear& f, int64_t first) : rows(static_cast<const bf16*>(f.weight) + first * f.inputs), stride(f.inputs) {}
    static pairs input(const bf16* x) { return as<pairs>(_mm512_loadu_si512(x)); }
    pairs at(int64_t row, int64_t input, int) const { return Pairs::input(rows + row * stride + input); }
    void prefetch(int64_t row, int64_t input) const { prefetch_after(rows + row * stride + input); }
};
#endif

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
