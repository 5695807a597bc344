// The products of one chunk of bf16 keys and values with the processor's matrix tiles (AMX): many rows cost little more
// than one. Queries and weights are rounded to bf16, sums are float; each row's sums run in one order, however many rows.
#pragma once
#ifdef __AMX_BF16__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attention.h"

constexpr int64_t TILE = 16;  // rows of a tile; a row holds 32 bf16 or 16 floats

// Whether the system lets this process use tiles.
static inline bool tiles_granted() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

struct alignas(64) Palette {
    uint8_t kind, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

// While it lives, this thread's tiles have the shapes for R query rows: 0, 1 keys or values; 2..4 one column a query;
// 5..7 one row a query. Others' shapes come back after it: torch uses tiles too.
class Shapes {
    Palette before;

    // The compiler believes that these instructions touch eight bytes; it must not keep the others in registers.
    static void whole(Palette* p) { __asm__ volatile("" : : "r"(p) : "memory"); }
    static void set(Palette* p) {
        whole(p);
        _tile_loadconfig(p);
    }

   public:
    explicit Shapes(int64_t R) {
        _tile_storeconfig(&before);
        whole(&before);
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

// x [R,n] -> by groups of sixteen rows, tiles whose row i holds elements 2i and 2i+1 of every row: to [groups,n/2,16] pairs.
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

// Sixteen rows of w [16,n] against a packed group: tile 2 [16, columns].
static inline void product(const bf16* w, const float* packed, int64_t n) {
    _tile_zero(2);
    for (int64_t i = 0; i < n / 32; i++) {
        _tile_loadd(0, w + 32 * i, n * sizeof(bf16));
        _tile_loadd(3, packed + i * TILE * TILE, 64);
        _tile_dpbf16ps(2, 0, 3);
    }
}

// The same for two times sixteen rows: tiles 2 and 4. Those that follow them are asked for on the way.
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
        a[i] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(from + i * TILE)), _mm256_loadu_ps(from + (i + 8) * TILE), 1);
    for (int i = 0; i < 8; i += 2) b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {  // keys i..i+3, and eight on, of queries 2j and 2j+1 and of those four on
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(b[i + j]), _mm512_castps_pd(b[i + j + 2])));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(b[i + j]), _mm512_castps_pd(b[i + j + 2])));
        }
    const __m512i low = _mm512_set_epi32(27, 26, 25, 24, 11, 10, 9, 8, 19, 18, 17, 16, 3, 2, 1, 0), high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    for (int64_t r = 0; r < rows; r++) _mm512_storeu_ps(to + r * pitch, _mm512_permutex2var_ps(a[r % 4], r < 4 ? low : high, a[r % 4 + 4]));
}

template <int ND>
struct Tiles {
    static constexpr int64_t D = 16 * ND, PAIRS = CHUNK / 2;
    using Setup = Shapes;
    // in floats: queries, scores by key, weights, values by pairs, the last keys of a block
    static int64_t groups(int64_t R) { return (R + TILE - 1) / TILE; }
    static int64_t room(int64_t R) { return groups(R) * TILE * (D / 2 + CHUNK / 2) + CHUNK * TILE + PAIRS * D + TILE * D / 2; }
    static int64_t steps(int64_t R) { return CHUNK / 16 * (groups(R) + 1); }
    int64_t R, G;
    float *q, *by_key, *p, *pairs, *last;

    Tiles(const Queries& x, float* work) : R(x.R), G(groups(x.R)) {
        q = work, by_key = q + G * TILE * D / 2, p = by_key + CHUNK * TILE, pairs = p + G * TILE * CHUNK / 2, last = pairs + PAIRS * D;
        pack(x.q, R, D, q);
        std::memset(p, 0, sizeof(float) * G * TILE * CHUNK / 2);
    }

    // As in Vectors. Tiles are computed by key; each query then collects its column.
    ONE_COPY void scores(const bf16* k, int64_t n, float* s, Feed& feed) {
        const int64_t stride = R == 1 ? 1 : TILE;
        for (int64_t g = 0; g < G; g++) {
            for (int64_t j = 0; j < n; j += TILE) {
                const bf16* keys = k + j * D;
                if (j + TILE > n) {
                    std::memset(last, 0, sizeof(bf16) * TILE * D);
                    std::memcpy(last, keys, sizeof(bf16) * (n - j) * D);
                    keys = reinterpret_cast<bf16*>(last);
                }
                feed.step();
                product(keys, q + g * TILE * D / 2, D);
                _tile_stored(2, by_key + j * stride, stride * sizeof(float));
            }
            if (R == 1) {
                std::memcpy(s, by_key, sizeof(float) * ((n + TILE - 1) / TILE * TILE));
                return;
            }
            for (int64_t r = g * TILE; r < R && r < (g + 1) * TILE; r += 8)
                for (int64_t j = 0; j < n; j += TILE) turn8(by_key + j * TILE + r % TILE, std::min<int64_t>(8, R - r), s + r * CHUNK + j, CHUNK);
        }
    }

    // As in Vectors, thirty-two values in one go. Two that follow each other are interleaved first: what the tiles want.
    ONE_COPY void values(const float* weights, const float* keep, const bf16* v, int64_t n, float* o, Feed& feed) {
        const int64_t padded = (n + 31) / 32 * 32;
        interleave(v, n, padded, feed);
        for (int64_t r = 0; r < R; r++)
            for (int64_t j = 0; j < padded; j += 32) {
                const bool half = j + 16 >= n;
                const __m512 low = _mm512_loadu_ps(weights + r * CHUNK + j), high = half ? _mm512_setzero_ps() : _mm512_loadu_ps(weights + r * CHUNK + j + 16);
                _mm512_storeu_si512(p + (r * CHUNK + j) / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
            }
        alignas(64) float sum[2][TILE * TILE];
        for (int64_t g = 0; g < G; g++)
            for (int64_t d = 0; d < ND; d += 2) {
                for (int64_t r = g * TILE; r < R && r < (g + 1) * TILE; r++)
                    for (int64_t e = 0; e < 2; e++) store(sum[e] + r % TILE * TILE, load(o + r * D + (d + e) * 16) * keep[r]);
                _tile_loadd(6, sum[0], 64);
                _tile_loadd(7, sum[1], 64);
                for (int64_t j = 0; j < padded; j += 32) {
                    const float* tile = pairs + j / 2 * D + d * 16;
                    _tile_loadd(5, p + (g * TILE * CHUNK + j) / 2, CHUNK * sizeof(bf16));
                    _tile_loadd(0, tile, D * 4);
                    _tile_dpbf16ps(6, 5, 0);
                    _tile_loadd(1, tile + 16, D * 4);
                    _tile_dpbf16ps(7, 5, 1);
                }
                _tile_stored(6, sum[0], 64);
                _tile_stored(7, sum[1], 64);
                for (int64_t r = g * TILE; r < R && r < (g + 1) * TILE; r++)
                    for (int64_t e = 0; e < 2; e++) store(o + r * D + (d + e) * 16, load(sum[e] + r % TILE * TILE));
            }
    }

    // pairs [PAIRS,D]: element d of value 2i in the low half, of value 2i+1 in the high half; missing values are 0.
    void interleave(const bf16* v, int64_t n, int64_t padded, Feed& feed) {
        alignas(64) uint16_t low[32], high[32];
        for (int i = 0; i < 32; i++) low[i] = (i & 1) * 32 + i / 2, high[i] = low[i] + 16;
        const __m512i lows = _mm512_load_si512(low), highs = _mm512_load_si512(high);
        for (int64_t j = 0; j < padded; j += 2) {
            if (j % 16 == 0) feed.step();
            for (int64_t d = 0; d < D; d += 32) {
                __m512i a = _mm512_setzero_si512(), b = a;
                if (j < n) a = _mm512_loadu_si512(v + j * D + d);
                if (j + 1 < n) b = _mm512_loadu_si512(v + (j + 1) * D + d);
                float* to = pairs + j / 2 * D + d;
                _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, lows, b));
                _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(a, highs, b));
            }
        }
    }
};
#endif
