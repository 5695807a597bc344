// Products of 8-bit inputs with packed weights, sixteen rows of which are interleaved (ops/interleaved.py has the specification).
// The arithmetic is the same for any number of rows of inputs: products of a group are summed exactly, in integers, and groups are
// added as floats in their order.
#pragma once
#include "coded_keys.h"
#include "linear.h"

#ifdef __AVX2__
typedef int16_t svec __attribute__((vector_size(4 * V)));
static inline svec pairs_of(uvec bytes, int32_t four) {  // sums of two products each
#ifdef __AVX512F__
    return (svec)_mm512_maddubs_epi16((__m512i)bytes, _mm512_set1_epi32(four));
#else
    return (svec)_mm256_maddubs_epi16((__m256i)bytes, _mm256_set1_epi32(four));
#endif
}
static inline ivec added_pairs(svec pairs) {
#ifdef __AVX512F__
    return (ivec)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1));
#else
    return (ivec)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1));
#endif
}

// With VNNI one instruction adds four products of bytes to an integer. Without it, pairs of products are summed in 16 bits as long
// as the sums fit (fitting_pairs); codes of 8 bits are multiplied in two halves.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
static inline ivec with_four(ivec sum, uvec bytes, int32_t four) { return with_byte_products(sum, (ivec)bytes, ivec{} + four); }
#else
static inline ivec with_four(ivec sum, uvec bytes, int32_t four) { return sum + added_pairs(pairs_of(bytes, four)); }
#endif
constexpr int fitting_pairs(int bits) { return VNNI ? 8 : bits == 6 ? 2 : bits == 5 ? 4 : 8; }

// The sum stays in a register and is added to in the order of the program. The compiler would rather make all products first and
// add them as a tree, for which there are too few registers.
static inline void keep_in_register(svec& sum) {
#ifdef __AVX512F__
    __asm__("" : "+v"(sum));
#else
    __asm__("" : "+x"(sum));
#endif
}
// Inputs are read from memory for each vector of weights. The compiler would rather keep copies of all of them, outside registers.
static inline void read_again() { __asm__ volatile("" ::: "memory"); }

static inline uvec bits_at(const void* p) {
    uvec x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// The levels of a form as unsigned codes, in each 16 bytes; a constant, or it would be made for every product.
template <typename Form>
struct RaisedLevels {
    struct Table {
        alignas(64) uint8_t bytes[sizeof(uvec)];
    };
    static constexpr Table made() {
        Table all = {};
        for (size_t i = 0; i < sizeof(uvec); i++) all.bytes[i] = static_cast<uint8_t>(Form::LEVELS[i % 16] + (1 << (Form::RANGE - 1)));
        return all;
    }
    static constexpr Table TABLE = made();
};

// Each byte, from 0 to 15, becomes the byte of this number in its 16 of the table.
static inline uvec selected(uvec bytes, uvec table) {
#ifdef __AVX512F__
    return (uvec)_mm512_shuffle_epi8((__m512i)table, (__m512i)bytes);
#else
    return (uvec)_mm256_shuffle_epi8((__m256i)table, (__m256i)bytes);
#endif
}

// The number to subtract from every unsigned code; 0 where stored offsets take its place.
template <typename Form>
static int bias_of(const Linear& f) {
    return Form::RANGE == 8 ? 128 : f.offset || f.scales == SIX_BITS ? 0 : 1 << (Form::RANGE - 1);
}

// Rows of inputs in 8 bits: an input is code * scale, and 32 inputs share a scale. GROUP: inputs whose weights share a scale. All
// arrays are ordered by blocks of rows, then groups, then rows.
template <int GROUP>
struct EightBitInputs {
    static constexpr int PER = 32 / GROUP;
    int64_t T, in, groups;  // in: whole blocks; groups of 32
    int8_t* codes;          // within a group: four of a row, then four of the block's next row
    float *scale, *sum;     // the scale of each 32 inputs; the sum of the codes of each GROUP
    int32_t* begin;         // -bias times that sum
    EightBitInputs(int64_t T, int64_t inputs, Arena& arena)
        : T(T), in(whole_blocks(inputs)), groups(in / 32), codes(arena.array<int8_t>(T * in)), scale(arena.array<float>(T * groups)),
          sum(arena.array<float>(PER * T * groups)), begin(arena.array<int32_t>(PER * T * groups)) {}

    // Rounds RB rows from row t on of x [T,inputs].
    template <int RB>
    void round(const float* x, int64_t inputs, int64_t t, int bias) const {
        for (int64_t g = 0; g < groups; g++)
            each<RB>([&](int r) {
                vec from[32 / V] = {};
                for (int i = 0; i < 32 / V && g * 32 + i * V < inputs; i++) from[i] = load(x + (t + r) * inputs + g * 32 + i * V);
                alignas(32) int8_t made[32];
                scale[t * groups + g * RB + r] = group(from, made);
                each<PER>([&](int p) {
                    const int32_t all = added(made + p * GROUP);
                    const int64_t at = (t * groups + g * RB) * PER + p * RB + r;
                    sum[at] = all, begin[at] = -bias * all;
                });
                for (int j = 0; j < 8; j++) std::memcpy(codes + t * in + ((g * 8 + j) * RB + r) * 4, made + 4 * j, 4);
            });
    }

   private:
    // -> the scale.
    static float group(const vec* x, int8_t* codes) {
        vec top = splat(0);
        for (int i = 0; i < 32 / V; i++) top = vmax(top, vmax(x[i], -x[i]));
        const float size = std::max(greatest(top), 1e-30f) / 127;
        for (int i = 0; i < 32 / V; i++)
            store_bytes(reinterpret_cast<uint8_t*>(codes + i * V), nearest_integers(x[i], 1 / size, -127, 127));
        return size;
    }
    static int32_t added(const int8_t* codes) {
        const __m128i ones = _mm_set1_epi8(1), all = _mm_set1_epi16(1);
        const auto four = [&](const int8_t* p) { return _mm_madd_epi16(_mm_maddubs_epi16(ones, _mm_loadu_si128((const __m128i*)p)), all); };
        __m128i x = four(codes);
        if (GROUP == 32) x = _mm_add_epi32(x, four(codes + 16));
        x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
    }
};

// The scales and offsets of n groups from group g on of sixteen rows -> [n,16] each. Of scales that are codes, whole units.
template <typename Form>
static inline void interleaved_scales(const Linear& f, int64_t sixteen, int64_t groups, int64_t g, int64_t n, float* scale, float* offset) {
    const int64_t first = (sixteen * groups + g) * 16;
    const auto numbers = [&](auto* from, float* to) {
        for (int64_t i = 0; i < n * 16; i += V) store(to + i, load(from + first + i));
    };
    const half* const unit = static_cast<const half*>(f.unit);
    switch (f.scales) {
        case FLOATS:
            numbers(static_cast<const float*>(f.scale), scale);
            if (Form::OFFSET && f.offset) numbers(static_cast<const float*>(f.offset), offset);
            return;
        case HALVES:
            numbers(static_cast<const half*>(f.scale), scale);
            if (Form::OFFSET && f.offset) numbers(static_cast<const half*>(f.offset), offset);
            return;
        case SIX_BITS:
            for (int64_t b = 0; b < n / 8; b++)
                for (int e = 0; e < 16; e += V) {
                    const char* const words = static_cast<const char*>(f.scale) + first / 8 * 12 + b * 192 + 4 * e;
                    const uvec w0 = bits_at(words), w1 = bits_at(words + 64), w2 = bits_at(words + 128);
                    const uvec all[4] = {w0 & 0x3f3f3f3f, (w2 & 0x0f0f0f0f) | (w0 >> 2 & 0x30303030), w1 & 0x3f3f3f3f,
                                         (w2 >> 4 & 0x0f0f0f0f) | (w1 >> 2 & 0x30303030)};
                    const half* const units = unit + first / 4 + b * 32 + e;
                    const vec up = load(units), down = -load(units + 16);
                    each<8>([&](int i) {
                        const int shift = i % 4 * 8;
                        store(scale + (8 * b + i) * 16 + e, to_floats((ivec)(all[i / 4] >> shift & 255)) * up);
                        store(offset + (8 * b + i) * 16 + e, to_floats((ivec)(all[2 + i / 4] >> shift & 255)) * down);
                    });
                }
            return;
        case EIGHT_BITS:
            for (int64_t i = 0; i < n; i++)
                for (int e = 0; e < 16; e += V) {
                    const vec codes = signed_bytes(static_cast<const uint8_t*>(f.scale) + first + i * 16 + e);
                    store(scale + i * 16 + e, codes * load(unit + (first / 16 + i) / (256 / Form::GROUP) * 16 + e));
                }
    }
}

// Sixteen outputs of every row, as VectorLinear.
template <Format F>
struct InterleavedLinear : Form<F> {
    using Form<F>::BITS;
    using Form<F>::RANGE;
    using Form<F>::GROUP;
    using Form<F>::LOW;
    using Form<F>::HIGH;
    using Form<F>::OFFSET;
    using Form<F>::LEVELED;
    static constexpr int MOST = VNNI && V == 16 ? 12 : VNNI ? 8 : V / 2;  // rows whose sums stay in registers
    static constexpr int SIDE = VNNI || RANGE == 8 ? 1 : 16 / V;  // vectors of weights that are multiplied with an input side by side
    static constexpr int64_t UNIT = 256 / GROUP, PER = 32 / GROUP;  // groups whose scales are unpacked together
    const int64_t T;
    EightBitInputs<GROUP> x;
    float *scale, *offset;  // [UNIT,16]
    InterleavedLinear(const Linear& f, const float* from, int64_t T, Arena arena) : InterleavedLinear(T, f.inputs, arena) {
        const int bias = bias_of<Form<F>>(f);
        in_blocks<MOST>(T, [&](auto rows, int64_t t) { x.template round<decltype(rows)::value>(from, f.inputs, t, bias); });
    }
    static int64_t bytes(int64_t T, int64_t in) {
        Arena arena;
        InterleavedLinear(T, in, arena);
        return arena.bytes();
    }

    template <typename Sink>
    void outputs(const Linear& f, int64_t first, Sink sink) const {
        in_blocks<MOST>(T, [&](auto rows, int64_t t) {
            constexpr int RB = decltype(rows)::value;
            alignas(64) float y[RB][16];
            add<RB>(f, first / 16, t, y);
            for (int r = 0; r < RB; r++) sink(t + r, y[r]);
        });
    }

   private:
    InterleavedLinear(int64_t T, int64_t in, Arena& arena)
        : T(T), x(T, in, arena), scale(arena.array<float>(UNIT * 16)), offset(arena.array<float>(UNIT * 16)) {}

    template <int RB>
    ONE_COPY void add(const Linear& f, int64_t sixteen, int64_t t, float (*y)[16]) const {
        const int64_t groups = x.in / GROUP, blocks = x.in / BLOCK_INPUTS;
        const uint8_t* const low = static_cast<const uint8_t*>(f.weight) + sixteen * blocks * LOW * 16;
        const uint8_t* const high = static_cast<const uint8_t*>(f.high) + sixteen * blocks * HIGH * 16;
        const bool offsets = OFFSET && (f.offset || f.scales == SIX_BITS);
        vec total[16 / V][RB];
        each<16 / V>([&](int e) { each<RB>([&](int r) { total[e][r] = splat(0); }); });
        for (int64_t g = 0; g < groups; g += UNIT) {
            const int64_t n = std::min(UNIT, groups - g);
            interleaved_scales<Form<F>>(f, sixteen, groups, g, n, scale, offset);
            for (int64_t i = 0; i < n / PER; i++) {
                const int64_t all = g / PER + i;  // groups of 32 before
                if (t == 0) prefetch_group(low, high, all);
                for (int e = 0; e < 16 / V; e += SIDE) {
                    add_group<RB>(low, high, all, i, t, e * V, offsets, total + e);
                    if (SIDE < 16 / V) read_again();
                }
            }
        }
        each<16 / V>([&](int e) { each<RB>([&](int r) { store(y[r] + e * V, total[e][r]); }); });
    }

    // What lies AHEAD of the g-th group of 32 inputs: inputs of many rows leave little of the caches to what the processor itself
    // reads ahead, and it stops at every page.
    static void prefetch_group(const uint8_t* low, const uint8_t* high, int64_t g) {
        constexpr int64_t LOWS = LOW * 16 * 32 / BLOCK_INPUTS, HIGHS = HIGH * 16 * 32 / BLOCK_INPUTS;  // bytes of a group
        for (int64_t line = 0; line < LOWS; line += 64) prefetch_after(low + g * LOWS + line);
        for (int64_t line = 0; line < HIGHS; line += 64) prefetch_after(high + g * HIGHS + line);
    }

    // Adds the products of a group of 32 inputs, the g-th, whose scales are the i-th, with SIDE * V rows of weights from e on.
    template <int RB>
    [[gnu::always_inline]] void add_group(const uint8_t* low, const uint8_t* high, int64_t g, int64_t i, int64_t t, int e, bool offsets,
                                          vec (*total)[RB]) const {
        const int8_t* const codes = x.codes + t * x.in + g * 32 * RB;
        const float* const size = x.scale + t * x.groups + g * RB;
        const float* const sum = x.sum + PER * (t * x.groups + g * RB);
        const int32_t* const begin = x.begin + PER * (t * x.groups + g * RB);
        vec all[SIDE][RB];
        each<PER>([&](int p) INLINED {
            ivec exact[SIDE][RB];
            each<RB>([&](int r) { each<SIDE>([&](int s) { exact[s][r] = ivec{} + begin[p * RB + r]; }); });
            constexpr int DEPTH = std::min<int>(8 / PER, fitting_pairs(RANGE));
            each<8 / PER / DEPTH>([&](int part) INLINED {
                svec low_pairs[SIDE][RB] = {}, high_pairs[SIDE][RB] = {};
                each<DEPTH>([&](int k) INLINED {
                    const int j = p * (8 / PER) + part * DEPTH + k;
                    uvec bytes[SIDE];
                    each<SIDE>([&](int s) INLINED { bytes[s] = unsigned_codes(low, high, g, j, e + s * V); });
                    each<RB>([&](int r) INLINED {
                        int32_t four;
                        std::memcpy(&four, codes + (j * RB + r) * 4, 4);
                        each<SIDE>([&](int s) INLINED {
                            if constexpr (VNNI) {
                                exact[s][r] = with_four(exact[s][r], bytes[s], four);
                            } else if constexpr (RANGE == 8) {
                                low_pairs[s][r] += pairs_of(bytes[s] & 0x0f0f0f0f, four);
                                keep_in_register(low_pairs[s][r]);
                                high_pairs[s][r] += pairs_of(bytes[s] >> 4 & 0x0f0f0f0f, four);
                                keep_in_register(high_pairs[s][r]);
                            } else {
                                low_pairs[s][r] += pairs_of(bytes[s], four);
                                keep_in_register(low_pairs[s][r]);
                            }
                        });
                    });
                });
                if constexpr (!VNNI)
                    each<RB>([&](int r) {
                        each<SIDE>([&](int s) {
                            exact[s][r] += added_pairs(low_pairs[s][r]);
                            if constexpr (RANGE == 8) exact[s][r] += added_pairs(high_pairs[s][r]) << 4;
                        });
                    });
            });
            each<SIDE>([&](int s) INLINED {
                const int64_t at = (i * PER + p) * 16 + e + s * V;
                const vec by = load(scale + at);
                each<RB>([&](int r) { all[s][r] = p ? fused(to_floats(exact[s][r]), by, all[s][r]) : to_floats(exact[s][r]) * by; });
                if (offsets) {
                    const vec more = load(offset + at);
                    each<RB>([&](int r) { all[s][r] = fused(more, splat(sum[p * RB + r]), all[s][r]); });
                }
            });
        });
        each<RB>([&](int r) { each<SIDE>([&](int s) { total[s][r] = fused(all[s][r], splat(size[r]), total[s][r]); }); });
    }

    // The codes of inputs 4 j and on of group g, of V rows from e on.
    static uvec unsigned_codes(const uint8_t* low, const uint8_t* high, int64_t g, int j, int e) {
        if constexpr (BITS == 8) return bits_at(low + g * 512 + j * 64 + 4 * e) ^ 0x80808080;
        const uvec both = bits_at(low + g / 2 * 512 + j * 64 + 4 * e), four = both >> static_cast<uint32_t>(g % 2 * 4) & 0x0f0f0f0f;
        if constexpr (BITS == 5) {
            const uvec bits = bits_at(high + g * 64 + 4 * e);
            return four | ((j < 4 ? bits << (4 - j) : bits >> (j - 4)) & 0x10101010);
        }
        if constexpr (BITS == 6) {
            const uvec bits = bits_at(high + g * 128 + j / 4 * 64 + 4 * e);
            const int k = j % 4;
            return four | ((k < 2 ? bits << (4 - 2 * k) : bits >> (2 * k - 4)) & 0x30303030);
        }
        if constexpr (LEVELED) return selected(four, bits_at(RaisedLevels<Form<F>>::TABLE.bytes));
        return four;
    }
};

template <typename Take>
static void with_interleaved(const Linear& f, const float* x, int64_t T, const Arena& arena, Take take) {
    switch (f.format) {
        case BITS_4: return take(InterleavedLinear<BITS_4>(f, x, T, arena));
        case BITS_5: return take(InterleavedLinear<BITS_5>(f, x, T, arena));
        case BITS_6: return take(InterleavedLinear<BITS_6>(f, x, T, arena));
        case BITS_8: return take(InterleavedLinear<BITS_8>(f, x, T, arena));
        case FP4: return take(InterleavedLinear<FP4>(f, x, T, arena));
        case IQ4: return take(InterleavedLinear<IQ4>(f, x, T, arena));
        default: return take(InterleavedLinear<BITS_8_OF_16>(f, x, T, arena));
    }
}
static int64_t interleaved_bytes(int64_t T, int64_t in) { return InterleavedLinear<BITS_6>::bytes(T, in); }
#endif
