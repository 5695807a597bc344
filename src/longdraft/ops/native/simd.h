// Vectors of V floats, as many as a register of this build holds: 16 with AVX-512, 8 with AVX2, 4 with NEON. V divides 16.
//
// Everything here adds in a fixed order, so a row's result does not depend on the rows computed beside it.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// V: floats in a vector. SUMS: vectors of sums that fit into registers beside the operands.
#if defined(__AVX512F__)
constexpr int V = 16, SUMS = 24;
#elif defined(__AVX2__)
constexpr int V = 8, SUMS = 12;
#else
constexpr int V = 4, SUMS = 24;
#endif

typedef float vec __attribute__((vector_size(4 * V)));
typedef int32_t ivec __attribute__((vector_size(4 * V)));
typedef uint32_t uvec __attribute__((vector_size(4 * V)));
typedef uint16_t hvec __attribute__((vector_size(2 * V)));

// For functions that are compiled once: inlined in two places, one may round differently in each, because the compiler chooses
// where to fuse a multiplication and an addition.
#ifdef __clang__
#define ONE_COPY __attribute__((noinline, flatten))
#else
#define ONE_COPY __attribute__((noinline, noclone, flatten))
#endif

// After the parameters of a lambda that must not become a call: its sums would go through memory, four times as slowly.
#define INLINED __attribute__((always_inline))

struct bf16 {
    uint16_t bits;
};
struct half {
    uint16_t bits;
};

template <typename To, typename From>
static inline To as(From x) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

static inline vec splat(float x) {
#if defined(__AVX512F__)
    return (vec)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (vec)_mm256_set1_ps(x);
#else
    return x - vec{};
#endif
}

// a b + c, rounded once.
static inline vec fused(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return as<vec>(vfmaq_f32(as<float32x4_t>(c), as<float32x4_t>(a), as<float32x4_t>(b)));
#else
    return a * b + c;
#endif
}

// Of VNNI: four products of unsigned and signed bytes are added to each integer.
#if defined(__AVX512VNNI__)
constexpr bool VNNI = true;
static inline ivec with_byte_products(ivec sum, ivec unsigned_bytes, ivec signed_bytes) {
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
}
#elif defined(__AVXVNNI__)
constexpr bool VNNI = true;
static inline ivec with_byte_products(ivec sum, ivec unsigned_bytes, ivec signed_bytes) {
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)unsigned_bytes, (__m256i)signed_bytes);
}
#else
constexpr bool VNNI = false;
#endif

static inline vec load(const float* p) {
    vec r;
    std::memcpy(&r, p, sizeof r);
    return r;
}

static inline vec load(const bf16* p) {
#if defined(__AVX512F__)
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    hvec h;
    std::memcpy(&h, p, sizeof h);
    return as<vec>(__builtin_convertvector(h, uvec) << 16);
#endif
}

// IEEE halves, which must be finite.
static inline vec load(const half* p) {
#ifdef __AVX512F__
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    hvec h;
    std::memcpy(&h, p, sizeof h);
    const uvec w = __builtin_convertvector(h, uvec);
    const vec size = as<vec>((w & 0x7fff) << 13) * 0x1p112f;  // whose exponent is smaller by 112 than a float's
    return as<vec>(as<uvec>(size) | (w & 0x8000) << 16);
#endif
}

static inline void store(float* p, vec x) { std::memcpy(p, &x, sizeof x); }

static inline void store(bf16* p, vec x) {  // to nearest, ties to even
#ifdef __AVX512BF16__
    const __m256bh h = _mm512_cvtneps_pbh((__m512)x);
#else
    uvec w = as<uvec>(x);
    w += 0x7fff + ((w >> 16) & 1);
    const hvec h = __builtin_convertvector(w >> 16, hvec);
#endif
    std::memcpy(p, &h, sizeof h);
}

// To p, which is aligned like a vector, past the caches; other threads may read it once `streamed` has returned.
static inline void stream(float* p, vec x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, (__m256)x);
#else
    store(p, x);
#endif
}
static inline void streamed() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

#ifdef __AVX512BF16__
#define BF16_PAIRS
// Two numbers that one instruction multiplies with two others: the sum of both products is added to a float.
struct bf16_pair {
    bf16 first, second;
};
struct pairs {
    __m512bh numbers;
};

static inline pairs splat(bf16_pair x) { return as<pairs>(_mm512_set1_epi32(as<int>(x))); }
static inline pairs load(const bf16_pair* p) { return as<pairs>(_mm512_loadu_si512(p)); }
static inline void store(bf16_pair* p, pairs x) { std::memcpy(p, &x, sizeof x); }
static inline void store(bf16* p, pairs x) { std::memcpy(p, &x, sizeof x); }
static inline pairs rounded(vec first, vec second) {  // the numbers of `first` before those of `second`, two in a pair
    return {_mm512_cvtne2ps_pbh((__m512)second, (__m512)first)};
}
static inline vec fused(pairs a, pairs b, vec c) { return (vec)_mm512_dpbf16_ps((__m512)c, a.numbers, b.numbers); }
#endif

static inline vec vmax(vec a, vec b) { return a > b ? a : b; }
static inline vec vmin(vec a, vec b) { return a < b ? a : b; }

// Shuffles of the elements of two vectors, a's before b's. `At` gives the index of each element of the result.
template <typename At, typename T, int... I>
static inline T shuffled(T a, T b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, At::of(I)...);
}
template <typename At, typename T>
static inline T shuffled(T a, T b) {
    return shuffled<At>(a, b, std::make_integer_sequence<int, V>());
}

// Within each four elements: the first or last two of a and b, alternating.
template <int Second>
struct Zip {
    static constexpr int of(int i) { return i / 4 * 4 + 2 * Second + i % 4 / 2 + i % 2 * V; }
};
// Within each four elements: the first or last two of a, then those of b.
template <int Second>
struct Halves {
    static constexpr int of(int i) { return i / 4 * 4 + 2 * Second + i % 2 + i % 4 / 2 * V; }
};
// The even or odd fours of a, then those of b.
template <int Odd>
struct Fours {
    static constexpr int of(int i) { return (i % (V / 2) / 4 * 2 + Odd) * 4 + i % 4 + i / (V / 2) * V; }
};
// The fours of a and b alternating: those of their first or second halves.
template <int Second>
struct MixedFours {
    static constexpr int of(int i) { return (Second * V / 8 + i / 8) * 4 + i % 4 + i / 4 % 2 * V; }
};
// Every second element of a, then of b.
template <int Odd>
struct Every {
    static constexpr int of(int i) { return 2 * i + Odd; }
};
// The elements of a and b alternating: those of their first or second halves.
template <int Second>
struct Woven {
    static constexpr int of(int i) { return Second * V / 2 + i / 2 + i % 2 * V; }
};
// Element i of a is element i ^ Apart of the result.
template <int Apart>
struct Swap {
    static constexpr int of(int i) { return i ^ Apart; }
};

// A square of TURNED rows and four columns becomes four vectors. Eight rows also where V is 16: loading half a register from two
// places and storing it takes less time than doing so from four.
#ifdef __AVX2__
constexpr int TURNED = 8;
#else
constexpr int TURNED = 4;
#endif
typedef uint32_t turned __attribute__((vector_size(4 * TURNED)));

// Four elements of four bytes of each row, `stride` bytes apart -> column[j]: the j-th of every row.
static inline void four_columns(const char* rows, int64_t stride, turned (&column)[4]) {
#ifdef __AVX2__
    const auto part = [&](int i) { return _mm_loadu_si128((const __m128i*)(rows + i * stride)); };
    const auto both = [&](int i) { return _mm256_inserti128_si256(_mm256_castsi128_si256(part(i)), part(i + 4), 1); };
    const __m256i a = both(0), b = both(1), c = both(2), d = both(3);
    const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    const __m256i after_ab = _mm256_unpackhi_epi32(a, b), after_cd = _mm256_unpackhi_epi32(c, d);
    column[0] = (turned)_mm256_unpacklo_epi64(ab, cd), column[1] = (turned)_mm256_unpackhi_epi64(ab, cd);
    column[2] = (turned)_mm256_unpacklo_epi64(after_ab, after_cd), column[3] = (turned)_mm256_unpackhi_epi64(after_ab, after_cd);
#else
    turned r[4];
    for (int i = 0; i < 4; i++) std::memcpy(&r[i], rows + i * stride, sizeof r[i]);
    const turned ab = shuffled<Zip<0>>(r[0], r[1]), cd = shuffled<Zip<0>>(r[2], r[3]);
    const turned after_ab = shuffled<Zip<1>>(r[0], r[1]), after_cd = shuffled<Zip<1>>(r[2], r[3]);
    column[0] = shuffled<Halves<0>>(ab, cd), column[1] = shuffled<Halves<1>>(ab, cd);
    column[2] = shuffled<Halves<0>>(after_ab, after_cd), column[3] = shuffled<Halves<1>>(after_ab, after_cd);
#endif
}

// V vectors into one: element i of the result is all of a[i]'s elements, two at a time.
template <typename T, typename Both>
static inline T folded_each(const T* a, Both both) {
    T b[V / 4];
    for (int i = 0; i < V; i += 4) {
        const T x = both(shuffled<Zip<0>>(a[i], a[i + 1]), shuffled<Zip<1>>(a[i], a[i + 1]));
        const T y = both(shuffled<Zip<0>>(a[i + 2], a[i + 3]), shuffled<Zip<1>>(a[i + 2], a[i + 3]));
        b[i / 4] = both(shuffled<Halves<0>>(x, y), shuffled<Halves<1>>(x, y));
    }
    if constexpr (V > 4)
        for (int n = V / 4; n > 1; n /= 2)
            for (int i = 0; i < n / 2; i++)
                b[i] = both(shuffled<Fours<0>>(b[2 * i], b[2 * i + 1]), shuffled<Fours<1>>(b[2 * i], b[2 * i + 1]));
    return b[0];
}
template <typename T>
static inline T sums(const T* a) {
    return folded_each(a, [](T x, T y) { return x + y; });
}
static inline vec greatest_of_each(const vec* a) { return folded_each(a, vmax); }

template <int Apart = V / 2, typename Both>
static inline vec folded(vec x, Both both) {
    x = both(x, shuffled<Swap<Apart>>(x, x));
    if constexpr (Apart > 1) return folded<Apart / 2>(x, both);
    return x;
}

static inline float sum(vec x) {
    return folded(x, [](vec a, vec b) { return a + b; })[0];
}

static inline float greatest(vec x) { return folded(x, vmax)[0]; }

// e^x to about 2 ulp for |x| < 87; exactly 0 below, so that a masked key has a weight of 0.
static inline vec vexp(vec x) {
#ifdef __AVX512F__
    const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-87.0f), _CMP_GE_OQ);
    const vec n = (vec)_mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vec small = splat(-87.0f), big = splat(88.0f);
    const ivec some = x >= small;
    x = x < small ? small : x;
    x = x > big ? big : x;
    const vec n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // the nearest integer
#endif
    const vec f = fused(n, splat(2.12194440e-4f), fused(n, splat(-0.693359375f), x));
    vec y = splat(1.9875691500e-4f);
    y = fused(y, f, splat(1.3981999507e-3f));
    y = fused(y, f, splat(8.3334519073e-3f));
    y = fused(y, f, splat(4.1665795894e-2f));
    y = fused(y, f, splat(1.6666665459e-1f));
    y = fused(y, f, splat(5.0000001201e-1f));
    y = fused(y, f * f, f + 1.0f);
#ifdef __AVX512F__
    return (vec)_mm512_maskz_scalef_ps(some, (__m512)y, (__m512)n);
#else
    const ivec e = (__builtin_convertvector(n, ivec) + 127) << 23;
    return as<vec>(as<ivec>(y * as<vec>(e)) & some);
#endif
}

// e^x to 4e-7 of it for x <= 0, in two thirds of the instructions of vexp; exactly 1 for 0, and 0 below -87 as there.
static inline vec vexp_of_negative(vec x) {
    const vec shifted = fused(x, splat(1.44269504088896341f), splat(12582912.0f));  // the lowest bits: the nearest integer
    const vec f = fused(shifted - 12582912.0f, splat(-0.693147180559945f), x);
    vec y = splat(8.3123984561e-3f);
    y = fused(y, f, splat(4.1891281893e-2f));
    y = fused(y, f, splat(1.6667119421e-1f));
    y = fused(y, f, splat(4.9999223844e-1f));
    y = fused(y, f, splat(1));
    y = fused(y, f, splat(1));
    const ivec power = as<ivec>(y) + (as<ivec>(shifted) << 23);
#ifdef __AVX512F__
    return (vec)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, (__m512)splat(-87.0f), _CMP_GE_OQ), (__m512)as<vec>(power));
#else
    const ivec some = x >= splat(-87.0f);
    return as<vec>(power & some);
#endif
}
