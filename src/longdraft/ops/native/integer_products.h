// Products of a few rows with packed weights as integers, for drafts: inputs are rounded to 8 bits in groups of 32, as the weights
// are. Up to twice as fast as unpacking the weights to floats, and less exact, which drafts may be.
#pragma once
#include "coded_keys.h"
#include "linear.h"

#ifdef __AVX2__
#define INTEGER_PRODUCTS
typedef float eight __attribute__((vector_size(32)));
typedef int32_t eight_integers __attribute__((vector_size(32)));
static inline eight all_of(float x) { return (eight)_mm256_set1_ps(x); }

// Four neighbouring products of unsigned and signed bytes in each of eight sums. Without VNNI no unsigned byte is above 128.
static inline eight dot(__m256i unsigned_bytes, __m256i signed_bytes) {
#ifdef __AVX512VNNI__
    const __m256i all = _mm256_dpbusd_epi32(_mm256_setzero_si256(), unsigned_bytes, signed_bytes);
#else
    const __m256i all = _mm256_madd_epi16(_mm256_maddubs_epi16(unsigned_bytes, signed_bytes), _mm256_set1_epi16(1));
#endif
    return __builtin_convertvector((eight_integers)all, eight);
}

// A group of 32 weights, multiplied with as many inputs.
template <int BITS>
struct GroupCodes;
template <>
struct GroupCodes<4> {
    __m256i codes;
    explicit GroupCodes(const uint8_t* from) {
        const __m128i both = _mm_loadu_si128((const __m128i*)from);
        const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1);
        codes = _mm256_and_si256(all, _mm256_set1_epi8(15));
    }
    eight times(__m256i input) const { return dot(codes, input); }
};
template <>
struct GroupCodes<8> {
    __m256i codes, sizes;
    explicit GroupCodes(const uint8_t* from)
        : codes(_mm256_loadu_si256((const __m256i*)from)), sizes(_mm256_abs_epi8(codes)) {}
    eight times(__m256i input) const { return dot(sizes, _mm256_sign_epi8(input, codes)); }
};

// Rows of inputs in 8 bits: an input is code * scale.
struct RoundedInputs {
    int64_t groups, wide;  // wide: groups, and zeros up to a whole vector
    int8_t* codes;         // [T,in]
    float *scale, *total;  // [T,16,groups], the same sixteen times; and [T,wide]: sums of a group's inputs
    RoundedInputs(int64_t T, int64_t in, Arena& arena)
        : groups(in / 32), wide((groups + 7) / 8 * 8), codes(arena.array<int8_t>(T * in)), scale(arena.array<float>(T * 16 * groups)),
          total(arena.array<float>(T * wide)) {}
    void round(const float* x, int64_t T) {
        std::fill(total, total + T * wide, 0.0f);
        for (int64_t t = 0; t < T; t++) {
            for (int64_t g = 0; g < groups; g++, x += 32) {
                vec top = splat(0), all = splat(0);
                for (int i = 0; i < 32; i += V) top = vmax(top, vmax(load(x + i), -load(x + i))), all += load(x + i);
                const float size = std::max(greatest(top), 1e-30f) / 127;
                scale[t * 16 * groups + g] = size, total[t * wide + g] = sum(all);
                for (int i = 0; i < 32; i += V) {
                    uint8_t* const to = reinterpret_cast<uint8_t*>(codes + (t * groups + g) * 32 + i);
                    store_bytes(to, nearest_integers(load(x + i), 1 / size, -127, 127));
                }
            }
            float* const all = scale + t * 16 * groups;
            for (int64_t r = 1; r < 16; r++) std::copy(all, all + groups, all + r * groups);
        }
    }
};

// As VectorLinear, for at most FEW rows.
template <int BITS>
struct IntegerLinear {
    static constexpr int64_t FEW = 4;
    const int64_t T, in, groups = in / 32;
    RoundedInputs x;
    float *scale, *offset;  // of sixteen rows of weights [16,groups]; scale is multiplied with that of a row of inputs
    IntegerLinear(const float* from, int64_t T, int64_t in, Arena arena) : IntegerLinear(T, in, arena) {
        x.round(from, T);
        std::fill(offset + 16 * groups, offset + 16 * groups + 8, 0.0f);  // read after the last row, and multiplied with 0
    }
    static int64_t bytes(int64_t T, int64_t in) {
        Arena arena;
        IntegerLinear(T, in, arena);
        return arena.bytes();
    }

    template <typename Sink>
    void outputs(const Linear& f, int64_t first, Sink sink) {
        const uint8_t* const codes = static_cast<const uint8_t*>(f.weight) + first * in * BITS / 8;
        unpack(f.offset, f.halves, first * groups, nullptr, offset);
        for (int64_t t = 0; t < T; t++) {
            alignas(64) float y[16];
            unpack(f.scale, f.halves, first * groups, x.scale + t * 16 * groups, scale);
            for (int o = 0; o < 16; o += 4) add_four(codes, o, t, y + o);
            sink(t, y);
        }
    }

   private:
    IntegerLinear(int64_t T, int64_t in, Arena& arena)
        : T(T), in(in), x(T, in, arena), scale(arena.array<float>(16 * groups)), offset(arena.array<float>(16 * groups + 8)) {}

    // Numbers of sixteen rows as floats, multiplied with `times` if there are any.
    void unpack(const void* from, int64_t halves, int64_t first, const float* times, float* to) const {
        for (int64_t i = 0; i < 16 * groups; i += V) {
            if (halves && i % 32 == 0) __builtin_prefetch(static_cast<const half*>(from) + first + i + 16 * groups, 0, 2);
            const vec numbers = halves ? load(static_cast<const half*>(from) + first + i) : load(static_cast<const float*>(from) + first + i);
            store(to + i, times ? numbers * load(times + i) : numbers);
        }
    }

    // Four outputs of row t.
    ONE_COPY void add_four(const uint8_t* codes, int o, int64_t t, float* y) const {
        eight sum[4];
        const int8_t* const inputs = x.codes + t * in;
        each<4>([&](int i) {
            sum[i] = eight{};
            for (int64_t g = 0; g < groups; g += 8) {
                eight a, b;
                std::memcpy(&a, offset + (o + i) * groups + g, sizeof a);
                std::memcpy(&b, x.total + t * x.wide + g, sizeof b);
                sum[i] += a * b;
            }
            for (int64_t line = 0; line < in * BITS / 8; line += 64) prefetch_after(codes + (o + i) * (in * BITS / 8) + line);
        });
        for (int64_t g = 0; g < groups; g++) {
            const __m256i input = _mm256_loadu_si256((const __m256i*)(inputs + g * 32));
            each<4>([&](int i) {
                const int64_t at = (o + i) * groups + g;
                sum[i] += GroupCodes<BITS>(codes + at * (4 * BITS)).times(input) * all_of(scale[at]);
            });
        }
        _mm_storeu_ps(y, four(sum));
    }

    // The sums of four vectors.
    static __m128 four(const eight* sum) {
        const auto both = [](eight a, eight b) { return (eight)_mm256_hadd_ps((__m256)a, (__m256)b); };
        const __m256 all = (__m256)both(both(sum[0], sum[1]), both(sum[2], sum[3]));
        return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    }
};

// Whether the products of so many rows with these weights can be computed so.
static inline bool in_integers(const Linear& f, int64_t rows) { return f.bits && f.group == 32 && rows <= IntegerLinear<4>::FEW; }

template <typename Take>
static void with_integers(const Linear& f, const float* x, int64_t T, const Arena& arena, Take take) {
    if (f.bits == 4) return take(IntegerLinear<4>(x, T, f.inputs, arena));
    take(IntegerLinear<8>(x, T, f.inputs, arena));
}
#endif
