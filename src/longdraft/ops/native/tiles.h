// The processor's matrix tiles (AMX): products of bf16 matrices, in which sixteen rows take little longer than one.
#pragma once
#ifdef __AMX_BF16__
#include <immintrin.h>

#include <cstring>

#include "simd.h"

constexpr int64_t TILE = 16;  // rows of a tile; a row holds 32 bf16 or 16 floats

struct alignas(64) Palette {
    uint8_t kind, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

// While this object exists, the thread's tiles have the shapes for R query rows: tiles 0 and 1 hold keys or values, 2 to 4 a
// column for each query, 5 to 7 a row for each query. It restores the shapes that were set before, because torch uses tiles too.
class Shapes {
    Palette before;

    // For the compiler these instructions access eight bytes; it must not keep the others in registers.
    static void in_memory(Palette* p) { __asm__ volatile("" : : "r"(p) : "memory"); }
    static void set(Palette* p) {
        in_memory(p);
        _tile_loadconfig(p);
    }

   public:
    explicit Shapes(int64_t R) {
        _tile_storeconfig(&before);
        in_memory(&before);
        Palette p = {};
        p.kind = 1;
        const int64_t n = R < TILE ? R : TILE;
        for (int i = 0; i < 8; i++) p.rows[i] = i < 5 ? TILE : n, p.bytes[i] = i < 2 || i > 4 ? 64 : 4 * n;
        set(&p);
    }
    ~Shapes() {
        if (before.kind)
            set(&before);
        else
            _tile_release();
    }
};

static inline __m512bh halves(const float* low, const float* high) {
    return _mm512_cvtne2ps_pbh(_mm512_loadu_ps(high), _mm512_loadu_ps(low));
}

// x [R,n] -> to [groups,n/2,16] pairs: for each group of sixteen rows, tiles whose row i holds elements 2i and 2i+1 of every row.
static void pack(const float* x, int64_t R, int64_t n, float* to) {
    std::memset(to, 0, sizeof(float) * ((R + TILE - 1) / TILE) * TILE * n / 2);
    for (int64_t r = 0; r < R; r++)
        for (int64_t d = 0; d < n; d += 32) {
            alignas(64) uint32_t pairs[16];
            _mm512_store_si512(pairs, (__m512i)halves(x + r * n + d, x + r * n + d + 16));
            uint32_t* column = reinterpret_cast<uint32_t*>(to) + (r / TILE * n / 2 + d / 2) * TILE + r % TILE;
            for (int i = 0; i < 16; i++) column[i * TILE] = pairs[i];
        }
}

// Sixteen rows of w [16,n] times a packed group: tile 2 [16, columns].
static inline void product(const bf16* w, const float* packed, int64_t n) {
    _tile_zero(2);
    for (int64_t i = 0; i < n / 32; i++) {
        _tile_loadd(0, w + 32 * i, n * sizeof(bf16));
        _tile_loadd(3, packed + i * TILE * TILE, 64);
        _tile_dpbf16ps(2, 0, 3);
    }
}

// The same for twice sixteen rows: tiles 2 and 4. The rows that follow them are prefetched.
static inline void products(const bf16* w, const bf16* other, const float* packed, int64_t n) {
    _tile_zero(2);
    _tile_zero(4);
    const bf16* next = w + 2 * TILE * n;
    for (int64_t i = 0; i < n / 32; i++) {
        for (int64_t r = 0; r < 2 * TILE; r++) __builtin_prefetch(next + r * n + 32 * i, 0, 2);
        _tile_loadd(3, packed + i * TILE * TILE, 64);
        _tile_loadd(0, w + 32 * i, n * sizeof(bf16));
        _tile_dpbf16ps(2, 0, 3);
        _tile_loadd(1, other + 32 * i, n * sizeof(bf16));
        _tile_dpbf16ps(4, 1, 3);
    }
}

// Columns of a tile [16,16]: eight from `from` on, of which the first `rows` are stored, `pitch` apart.
static inline void turn8(const float* from, int64_t rows, float* to, int64_t pitch) {
    __m512 a[8], b[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(from + i * TILE)),
                                  _mm256_loadu_ps(from + (i + 8) * TILE), 1);
    for (int i = 0; i < 8; i += 2) b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {  // keys i..i+3, and eight on, of queries 2j and 2j+1 and of those four on
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b[i + j]), _mm512_castps_pd(b[i + j + 2])));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b[i + j]), _mm512_castps_pd(b[i + j + 2])));
        }
    const __m512i low = _mm512_set_epi32(27, 26, 25, 24, 11, 10, 9, 8, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    for (int64_t r = 0; r < rows; r++)
        _mm512_storeu_ps(to + r * pitch, _mm512_permutex2var_ps(a[r % 4], r < 4 ? low : high, a[r % 4 + 4]));
}

#endif
