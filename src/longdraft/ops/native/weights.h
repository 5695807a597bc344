// Rows of a weight matrix of numbers as vectors. Those of codes are in packed_weights.h.
//
// at(row, input, step): the WIDE weights of a row from input + step on. Inputs are multiples of STEP, and step < STEP is known
// when this is compiled.
#pragma once
#include <limits>

#include "simd.h"
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
    static void put(float* to, const float* x) { store(to, load(x)); }  // the inputs of a vector, from floats
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

#endif
