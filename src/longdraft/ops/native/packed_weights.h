// Rows of packed weights as vectors (ops/packed.py has the specification). As in weights.h, with two differences: rows are those
// of a window, whose scales have been unpacked; and a layer's rows have whole blocks of inputs, of which STEP is one.
#pragma once
#include "codes.h"
#include "scales.h"
#include "weights.h"

constexpr int64_t FEW_ROWS = 4;  // of weights that are read at once: memory is read in few streams

// Codes that become floats.
template <Format F>
struct Codes : WithFloats, Form<F> {
    using Form<F>::BITS;
    using Form<F>::GROUP;
    using Form<F>::LOW;
    using Form<F>::HIGH;
    using Form<F>::OFFSET;
    using Form<F>::LEVELED;
    static constexpr int STEP = BLOCK_INPUTS;
    static constexpr bool UNPACKED = true;
    const Linear& f;
    const int64_t first, blocks, groups = blocks * (STEP / GROUP);
    float *const scale, *const offset;
    const uint8_t *low = nullptr, *high = nullptr;  // of the window's first row and input
    int64_t ahead = 0;                              // blocks that are prefetched ahead

    // Sixteen rows from `first` on. memory: unpacked(inputs) numbers.
    Codes(const Linear& f, int64_t first, float* memory)
        : f(f), first(first), blocks(whole_blocks(f.inputs) / STEP), scale(memory), offset(memory + unpacked(f.inputs) / (OFFSET ? 2 : 1)) {}
    static int64_t unpacked(int64_t in) {
        const int64_t groups = whole_blocks(in) / GROUP;
        return (together(groups) * groups + 15) / 16 * 16 * (OFFSET ? 2 : 1);
    }
    // Rows of a window: as many as have scales that stay in the first-level cache.
    static int64_t together(int64_t groups) { return groups <= 64 ? 16 : FEW_ROWS; }
    int64_t together() const { return together(groups); }

    // From now on, `at` is of the window's rows from `row` on.
    void open(int64_t row) {
        const int64_t block = (first + row) * blocks;
        low = static_cast<const uint8_t*>(f.weight) + block * LOW, high = static_cast<const uint8_t*>(f.high) + block * HIGH;
        ahead = FEW_ROWS * blocks;
        while (ahead * LOW < AHEAD) ahead += FEW_ROWS * blocks;
        unpack_scales<Form<F>>(f, (first + row) * groups, together() * groups, scale, offset);
    }

    vec at(int64_t row, int64_t input, int step) const {
        const int64_t block = row * blocks + input / STEP, group = row * groups + input / GROUP + step / GROUP;
        const uint8_t* const codes = low + block * LOW;
        const vec size = splat(scale[group]);
        if constexpr (LEVELED) {
            return levels_of(codes + step % 32, step < 32, Form<F>::LEVELS) * size;
        } else if constexpr (BITS == 8) {
            const vec code = signed_bytes(codes + step);
            if constexpr (OFFSET) return fused(code, size, splat(offset[group]));
            return code * size;
        } else if constexpr (BITS == 6) {
            return sixth(codes, high + block * HIGH, step) * size;
        } else {
#ifdef __AVX512F__
            if constexpr (BITS == 4) {
                const __m512i sixteen = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
                const vec weights = fused((vec)_mm512_cvtepi32_ps(sixteen), size, splat(offset[group]));
                const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(codes + step % 32)));
                return (vec)_mm512_permutexvar_ps(step < 32 ? bytes : _mm512_srli_epi32(bytes, 4), (__m512)weights);
            }
#endif
            const vec code = BITS == 4 ? nibbles(codes + step % 32, step < 32) : fifth(codes, high + block * HIGH, step);
            return fused(code, size, splat(offset[group]));
        }
    }

    // Called for every block of a row that is read. Inlined at once: gcc takes a function that only prefetches, or a lambda that
    // calls one, for a function without effects, and removes its calls.
    [[gnu::always_inline]] void prefetch(int64_t row, int64_t input) const {
        const int64_t block = row * blocks + input / STEP;
        if (LOW == 64 || block % 2 == 0) __builtin_prefetch(low + (block + ahead) * LOW, 0, 2);
        if (HIGH && block % (64 / (HIGH ? HIGH : 64)) == 0) __builtin_prefetch(high + (block + ahead) * HIGH, 0, 2);
    }

   private:
    static ivec low_bits(const uint8_t* codes, int step) {
        const ivec bytes = unsigned_bytes(codes + step % 32);
        return step < 32 ? bytes & 15 : bytes >> 4;
    }
    static vec fifth(const uint8_t* codes, const uint8_t* high, int step) {
#ifdef __AVX512F__
        uint16_t mask;
        std::memcpy(&mask, high + step / 8, sizeof mask);
        const __m512i four = (__m512i)low_bits(codes, step);
        return (vec)_mm512_cvtepi32_ps(_mm512_mask_add_epi32(four, mask, four, _mm512_set1_epi32(16)));
#else
        uint32_t mask;
        std::memcpy(&mask, high + step / 32 * 4, sizeof mask);
        const uvec bits = (lanes() + static_cast<uint32_t>(step % 32 )), all = uvec{} + mask;
        return to_floats(low_bits(codes, step) | (ivec)((all >> bits & 1) << 4));
#endif
    }
    static vec sixth(const uint8_t* codes, const uint8_t* high, int step) {
#ifdef __AVX512F__
        const __m128i all = _mm512_extracti32x4_epi32(six_bit_codes(codes, high), step / 16);
        return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(all));
#else
        const ivec bytes = unsigned_bytes(high + step % 16);
        const int k = step / 16;
        const ivec two = k == 0 ? bytes << 4 : k == 1 ? bytes << 2 : k == 2 ? bytes : bytes >> 2;
        return to_floats((low_bits(codes, step) | (two & 48)) - 32);
#endif
    }
};

#ifdef BF16_PAIRS
// Codes that become bf16. A group of 4 or 5 bits has 16 or 32 weights, from which each code takes its own.
template <Format F>
struct PairCodes : WithPairs {
    static constexpr int STEP = BLOCK_INPUTS;
    static constexpr bool UNPACKED = true;
    Codes<F> floats;
    PairCodes(const Linear& f, int64_t first, float* memory) : floats(f, first, memory) {}
    static int64_t unpacked(int64_t in) { return Codes<F>::unpacked(in); }
    int64_t together() const { return floats.together(); }
    void open(int64_t row) { floats.open(row); }
    [[gnu::always_inline]] void prefetch(int64_t row, int64_t input) const { floats.prefetch(row, input); }

    pairs at(int64_t row, int64_t input, int step) const {
        if constexpr (F != BITS_4 && F != BITS_5) return rounded(floats.at(row, input, step), floats.at(row, input, step + 16));
        const int64_t block = row * floats.blocks + input / STEP, group = row * floats.groups + input / 32;
        const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)(floats.low + block * floats.LOW)));
        if constexpr (F == BITS_4) {  // one table of two groups: first the second's weights
            const __m512i table = as<__m512i>(rounded(weights(group + 1, 0), weights(group, 0)));
            const __m512i fifteen = _mm512_set1_epi16(15), sixteen = _mm512_set1_epi16(16);
            return as<pairs>(_mm512_permutexvar_epi16(
                step ? _mm512_srli_epi16(bytes, 4) : _mm512_ternarylogic_epi32(bytes, fifteen, sixteen, 0xea), table));
        }
        const __m512i table = as<__m512i>(rounded(weights(group + step / 32, 0), weights(group + step / 32, 16)));
        const __m512i four = step ? _mm512_srli_epi16(bytes, 4) : _mm512_and_si512(bytes, _mm512_set1_epi16(15));
        uint32_t mask;
        std::memcpy(&mask, floats.high + block * 8 + step / 8, sizeof mask);
        return as<pairs>(_mm512_permutexvar_epi16(_mm512_mask_add_epi16(four, mask, four, _mm512_set1_epi16(16)), table));
    }

   private:
    // The weights of codes [from, from + 16) of a group.
    vec weights(int64_t group, float from) const {
        const __m512 all = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        return fused((vec)all + from, splat(floats.scale[group]), splat(floats.offset[group]));
    }
};
#endif
