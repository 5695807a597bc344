// Products of a few rows with packed weights as integers, for drafts: inputs are rounded to 8 bits in groups of 32, as the weights
// are. Up to twice as fast as unpacking the weights to floats, and less exact, which drafts may be.
#pragma once
#include "coded_keys.h"
#include "multiply.h"

#ifdef __AVX2__
#define INTEGER_PRODUCTS
typedef float eight __attribute__((vector_size(32)));
typedef int32_t eight_integers __attribute__((vector_size(32)));
static inline eight all_of(float x) { return (eight)_mm256_set1_ps(x); }

// Four neighboring products of unsigned and signed bytes in each of eight sums. Without VNNI no unsigned byte is above 128.
static inline eight dot(__m256i unsigned_bytes, __m256i signed_bytes) {
#ifdef __AVX512VNNI__
    const __m256i all = _mm256_dpbusd_epi32(_mm256_setzero_si256(), unsigned_bytes, signed_bytes);
#elif defined(__AVXVNNI__)
    const __m256i all = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), unsigned_bytes, signed_bytes);
#else
    const __m256i all = _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned_bytes, signed_bytes), _mm256_set1_epi16(1));
#endif
    return __builtin_convertvector((eight_integers)all, eight);
}

// Thirty-two weights, half a block from `half` on, multiplied with as many inputs.
template <int BITS>
struct UnsignedCodes {
    __m256i codes;
    UnsignedCodes(const uint8_t* low, const uint8_t* high, int half) {
        const __m256i both = _mm256_loadu_si256((const __m256i*)low);
        codes = _mm256_and_si256(half ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
        if (BITS == 5) {  // each bit in its own byte
            const __m128i bytes = _mm_set_epi64x(0x0303030303030303, 0x0202020202020202);
            const __m256i which = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set_epi64x(0x0101010101010101, 0)), bytes, 1);
            uint32_t word;
            std::memcpy(&word, high + 4 * half, sizeof word);
            const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
            const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word), which);
            const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
            codes = _mm256_or_si256(codes, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
        }
    }
    eight times(__m256i input) const { return dot(codes, input); }
};
template <int BITS>
struct SignedCodes {
    __m256i codes, sizes;
    SignedCodes(const uint8_t* low, const uint8_t* high, int half) {
        if (BITS == 8) {
            codes = _mm256_loadu_si256((const __m256i*)(low + 32 * half));
        } else {
            const __m256i both = _mm256_loadu_si256((const __m256i*)low);
            const __m256i four = _mm256_and_si256(half ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
            const __m128i bits = _mm_loadu_si128((const __m128i*)high);
            const __m128i first = half ? bits : _mm_slli_epi16(bits, 4), second = half ? _mm_srli_epi16(bits, 2) : _mm_slli_epi16(bits, 2);
            const __m256i two = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
            codes = _mm256_sub_epi8(_mm256_or_si256(four, _mm256_and_si256(two, _mm256_set1_epi8(48))), _mm256_set1_epi8(32));
        }
        sizes = _mm256_abs_epi8(codes);
    }
    eight times(__m256i input) const { return dot(sizes, _mm256_sign_epi8(input, codes)); }
};

// Rows of inputs in 8 bits: an input is code * scale.
struct RoundedInputs {
    int64_t groups, wide;  // wide: groups, and zeros up to a whole vector
    int8_t* codes;         // [T,32 groups], zeros beyond the inputs
    float *scale, *total;  // [T,groups]; and [T,wide]: sums of a group's inputs
    RoundedInputs(int64_t T, int64_t in, Arena& arena)
        : groups(whole_blocks(in) / 32), wide((groups + 7) / 8 * 8), codes(arena.array<int8_t>(T * groups * 32)),
          scale(arena.array<float>(T * groups)), total(arena.array<float>(T * wide)) {}
    void round(const float* x, int64_t T, int64_t in) {
        std::fill(total, total + T * wide, 0.0f);
        std::fill(codes, codes + T * groups * 32, int8_t{0});
        for (int64_t t = 0; t < T; t++)
            for (int64_t g = 0; g < groups; g++) {
                scale[t * groups + g] = 0;
                if (g * 32 >= in) continue;
                const float* const from = x + t * in + g * 32;
                vec top = splat(0), all = splat(0);
                for (int i = 0; i < 32; i += V) top = vmax(top, vmax(load(from + i), -load(from + i))), all += load(from + i);
                const float size = std::max(greatest(top), 1e-30f) / 127;
                scale[t * groups + g] = size, total[t * wide + g] = sum(all);
                for (int i = 0; i < 32; i += V) {
                    uint8_t* const to = reinterpret_cast<uint8_t*>(codes + (t * groups + g) * 32 + i);
                    store_bytes(to, nearest_integers(load(from + i), 1 / size, -127, 127));
                }
            }
    }
};

// As VectorLinear, for at most FEW rows.
template <Format F>
struct IntegerLinear : Form<F> {
    using Form<F>::BITS;
    using Form<F>::GROUP;
    using Form<F>::LOW;
    using Form<F>::HIGH;
    using Form<F>::OFFSET;
    using Half = std::conditional_t<(BITS == 4 || BITS == 5), UnsignedCodes<BITS>, SignedCodes<BITS>>;
    static constexpr int64_t FEW = 4, PER = 32 / GROUP;  // groups of 32 inputs
    const int64_t T, in, blocks = whole_blocks(in) / BLOCK_INPUTS, groups = blocks * BLOCK_INPUTS / GROUP;
    const int64_t room = (groups + 15) / 16 * 16;
    RoundedInputs x;
    float *scale, *offset;  // of four rows of weights [4,room]
    IntegerLinear(const float* from, int64_t T, int64_t in, Arena arena) : IntegerLinear(T, in, arena) {
        x.round(from, T, in);
        if (OFFSET) std::fill(offset, offset + 4 * room, 0.0f);  // those after the last group are multiplied with 0
    }
    static int64_t bytes(int64_t T, int64_t in) {
        Arena arena;
        IntegerLinear(T, in, arena);
        return arena.bytes();
    }

    template <typename Sink>
    void outputs(const Linear& f, int64_t first, Sink sink) {
        alignas(64) float y[FEW][16];
        for (int o = 0; o < 16; o += 4) {
            for (int64_t i = 0; i < 4; i++)
                unpack_scales<Form<F>>(f, (first + o + i) * groups, groups, scale + i * room, offset + i * room);
            for (int64_t t = 0; t < T; t++) add_four(f, first + o, t, y[t] + o);
        }
        for (int64_t t = 0; t < T; t++) sink(t, y[t]);
    }

   private:
    IntegerLinear(int64_t T, int64_t in, Arena& arena)
        : T(T), in(in), x(T, in, arena), scale(arena.array<float>(4 * room)), offset(arena.array<float>(OFFSET ? 4 * room : 0)) {}

    // Outputs [row, row + 4) of row t of the inputs.
    ONE_COPY void add_four(const Linear& f, int64_t row, int64_t t, float* y) const {
        const uint8_t* const low = static_cast<const uint8_t*>(f.weight) + row * blocks * LOW;
        const uint8_t* const high = static_cast<const uint8_t*>(f.high) + row * blocks * HIGH;
        eight sum[4];
        each<4>([&](int i) {
            sum[i] = eight{};
            if constexpr (OFFSET && PER == 1)
                for (int64_t g = 0; g < groups; g += 8) {
                    eight a, b;
                    std::memcpy(&a, offset + i * room + g, sizeof a);
                    std::memcpy(&b, x.total + t * x.wide + g, sizeof b);
                    sum[i] += a * b;
                }
            for (int64_t line = 0; t == 0 && line < blocks * LOW; line += 64) prefetch_after(low + i * blocks * LOW + line);
            for (int64_t line = 0; t == 0 && line < blocks * HIGH; line += 64) prefetch_after(high + i * blocks * HIGH + line);
        });
        for (int64_t b = 0; b < blocks; b++)
            each<2>([&](int half) {
                const int64_t g = 2 * b + half;
                const __m256i input = _mm256_loadu_si256((const __m256i*)(x.codes + (t * x.groups + g) * 32));
                const eight size = all_of(x.scale[t * x.groups + g]);
                each<4>([&](int i) {
                    const Half codes(low + (i * blocks + b) * LOW, high + (i * blocks + b) * HIGH, half);
                    sum[i] += codes.times(input) * (scales_of(scale + i * room + g * PER) * size);
                });
            });
        _mm_storeu_ps(y, four(sum));
    }

    // The scale of each sum of four products.
    static eight scales_of(const float* scale) {
        if (PER == 1) return all_of(*scale);
        return (eight)_mm256_set_m128(_mm_set1_ps(scale[1]), _mm_set1_ps(scale[0]));
    }

    // The sums of four vectors.
    static __m128 four(const eight* sum) {
        const auto both = [](eight a, eight b) { return (eight)_mm256_hadd_ps((__m256)a, (__m256)b); };
        const __m256 all = (__m256)both(both(sum[0], sum[1]), both(sum[2], sum[3]));
        return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    }
};

// Whether the products of this many rows with these weights can be computed so.
static inline bool in_integers(const Linear& f, int64_t rows) {
    return f.format >= BITS_4 && f.format <= BITS_8 && !f.interleaved && rows <= IntegerLinear<BITS_4>::FEW;
}

template <typename Take>
static void with_integers(const Linear& f, const float* x, int64_t T, const Arena& arena, Take take) {
    switch (f.format) {
        case BITS_4: return take(IntegerLinear<BITS_4>(x, T, f.inputs, arena));
        case BITS_5: return take(IntegerLinear<BITS_5>(x, T, f.inputs, arena));
        case BITS_6: return take(IntegerLinear<BITS_6>(x, T, f.inputs, arena));
        default: return take(IntegerLinear<BITS_8>(x, T, f.inputs, arena));
    }
}
static int64_t integer_bytes(int64_t T, int64_t in) {
    return std::max(IntegerLinear<BITS_4>::bytes(T, in), IntegerLinear<BITS_6>::bytes(T, in));
}
#endif
