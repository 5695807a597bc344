// Rows of a weight matrix as vectors of floats, whatever form they have in memory.
//
// at(row, input, step): the V weights of a row from input + step on. Inputs are multiples of STEP, and step < STEP is known
// when this is compiled.
#pragma once
#include "codes.h"
#include "interface.h"

template <typename E>
struct Numbers {
    static constexpr int STEP = V;
    const E* rows;
    int64_t stride;
    Numbers(const E* rows, int64_t stride) : rows(rows), stride(stride) {}
    Numbers(const Linear& f, int64_t first) : Numbers(static_cast<const E*>(f.weight) + first * f.inputs, f.inputs) {}
    vec at(int64_t row, int64_t input, int step) const { return load(rows + row * stride + input + step); }
};

// Codes of BITS bits in groups of STEP inputs, each code * scale + offset.
template <int BITS, int GROUP>
struct Codes {
    static constexpr int STEP = GROUP;
    const uint8_t* codes;
    const float *scale, *offset;
    int64_t groups;
    Codes(const Linear& f, int64_t first)
        : codes(static_cast<const uint8_t*>(f.weight) + first * f.inputs * BITS / 8),
          scale(f.scale + first * f.inputs / GROUP), offset(f.offset + first * f.inputs / GROUP), groups(f.inputs / GROUP) {}

    vec at(int64_t row, int64_t input, int step) const {
        const int64_t group = row * groups + input / GROUP;
        const uint8_t* from = codes + group * (GROUP * BITS / 8);
        return fused(codes_at<BITS>(from, step), splat(scale[group]), splat(offset[group]));
    }
};
