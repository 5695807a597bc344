// Sixteen floats at a time, for any processor that GCC or Clang supports: the compiler maps them to its registers.
//
// Everything here adds in a fixed order, so a row's result does not depend on the rows computed beside it.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16x __attribute__((vector_size(64)));
typedef uint32_t u16x __attribute__((vector_size(64)));
typedef uint16_t h16 __attribute__((vector_size(32)));

// For functions that are compiled once: inlined in two places, one may round differently in each, because the compiler chooses
// where to fuse a multiplication and an addition.
#ifdef __clang__
#define ONE_COPY __attribute__((noinline))
#else
#define ONE_COPY __attribute__((noinline, noclone))
#endif

struct bf16 {
    uint16_t bits;
};

static inline v16 splat(float x) { return v16{} + x; }

static inline v16 load(const float* p) {
    v16 r;
    std::memcpy(&r, p, sizeof r);
    return r;
}

static inline v16 load(const bf16* p) {
    h16 h;
    std::memcpy(&h, p, sizeof h);
    u16x w = __builtin_convertvector(h, u16x) << 16;
    v16 r;
    std::memcpy(&r, &w, sizeof r);
    return r;
}

static inline void store(float* p, v16 x) { std::memcpy(p, &x, sizeof x); }

static inline void store(bf16* p, v16 x) {  // to nearest, ties to even
#ifdef __AVX512BF16__
    const __m256bh h = _mm512_cvtneps_pbh((__m512)x);
#else
    u16x w;
    std::memcpy(&w, &x, sizeof w);
    w += 0x7fff + ((w >> 16) & 1);
    const h16 h = __builtin_convertvector(w >> 16, h16);
#endif
    std::memcpy(p, &h, sizeof h);
}

static inline v16 vmax(v16 a, v16 b) { return a > b ? a : b; }

// Sums of sixteen vectors: lane i of the result is the sum over a[i]'s lanes. Fifteen paired adds.
static inline v16 sums(const v16* a) {
    v16 b[8], c[4], d[2];
    const i16x lo8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const i16x lo4 = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
    const i16x lo2 = {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29};
    const i16x lo1 = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    for (int i = 0; i < 8; i++) b[i] = __builtin_shuffle(a[2 * i], a[2 * i + 1], lo8) + __builtin_shuffle(a[2 * i], a[2 * i + 1], lo8 + 8);
    for (int i = 0; i < 4; i++) c[i] = __builtin_shuffle(b[2 * i], b[2 * i + 1], lo4) + __builtin_shuffle(b[2 * i], b[2 * i + 1], lo4 + 4);
    for (int i = 0; i < 2; i++) d[i] = __builtin_shuffle(c[2 * i], c[2 * i + 1], lo2) + __builtin_shuffle(c[2 * i], c[2 * i + 1], lo2 + 2);
    return __builtin_shuffle(d[0], d[1], lo1) + __builtin_shuffle(d[0], d[1], lo1 + 1);
}

// Lane i of the result is lane i ^ apart.
static inline v16 swapped(v16 x, int apart) {
    const i16x at = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return __builtin_shuffle(x, at ^ apart);
}

static inline float sum(v16 x) {
    for (int apart = 8; apart; apart /= 2) x += swapped(x, apart);
    return x[0];
}

static inline float greatest(v16 x) {
    for (int apart = 8; apart; apart /= 2) x = vmax(x, swapped(x, apart));
    return x[0];
}

// e^x to about 2 ulp for |x| < 87; exactly 0 below, so that a masked key has a weight of 0.
static inline v16 vexp(v16 x) {
#ifdef __AVX512F__
    const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-87.0f), _CMP_GE_OQ);
    const v16 n = (v16)_mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const v16 small = splat(-87.0f), big = splat(88.0f);
    const v16 none = x < small ? splat(0.0f) : splat(1.0f);
    x = x < small ? small : x;
    x = x > big ? big : x;
    const v16 n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // the nearest integer
#endif
    const v16 f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    v16 y = splat(1.9875691500e-4f);
    y = y * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * (f * f) + (f + 1.0f);
#ifdef __AVX512F__
    return (v16)_mm512_maskz_scalef_ps(some, (__m512)y, (__m512)n);
#else
    const i16x e = (__builtin_convertvector(n, i16x) + 127) << 23;
    v16 p;
    std::memcpy(&p, &e, sizeof p);
    return y * p * none;
#endif
}
