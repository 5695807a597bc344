// The products of one chunk of bf16 keys and values with matrix tiles. Queries and weights are rounded to bf16, sums are float.
// The order of each row's sums does not depend on the number of rows.
#pragma once
#ifdef __AMX_BF16__
#include <algorithm>

#include "attention.h"
#include "tiles.h"

template <int ND>
struct Tiles {
    static constexpr int64_t D = 16 * ND, KEY = D, PAIRS = CHUNK / 2;
    using Setup = Shapes;
    static int64_t groups(int64_t R) { return (R + TILE - 1) / TILE; }
    // That an object needs: queries, weights, scores by key, values by pairs, the last keys of a block.
    static int64_t floats(int64_t R) { return groups(R) * TILE * (D / 2 + CHUNK / 2) + CHUNK * TILE + PAIRS * D + TILE * D / 2; }
    static int64_t steps(int64_t R) { return CHUNK / 16 * (groups(R) + 1); }
    int64_t R, G;
    float *q, *by_key, *packed, *pairs, *last;

    Tiles(const Queries& x, float* memory) : R(x.R), G(groups(x.R)) {
        q = memory, by_key = q + G * TILE * D / 2, packed = by_key + CHUNK * TILE;
        pairs = packed + G * TILE * CHUNK / 2, last = pairs + PAIRS * D;
        pack(x.q, R, D, q);
        std::memset(packed, 0, sizeof(float) * G * TILE * CHUNK / 2);
    }

    // As in Vectors. Tiles are computed with a row for each key; each query then collects its column.
    ONE_COPY void scores(const bf16* k, int64_t n, float* scores, Prefetch& prefetch) {
        const int64_t stride = R == 1 ? 1 : TILE;
        for (int64_t g = 0; g < G; g++) {
            for (int64_t j = 0; j < n; j += TILE) {
                const bf16* keys = k + j * D;
                if (j + TILE > n) {
                    std::memset(last, 0, sizeof(bf16) * TILE * D);
                    std::memcpy(last, keys, sizeof(bf16) * (n - j) * D);
                    keys = reinterpret_cast<bf16*>(last);
                }
                prefetch.step();
                product(keys, q + g * TILE * D / 2, D);
                _tile_stored(2, by_key + j * stride, stride * sizeof(float));
            }
            if (R == 1) {
                std::memcpy(scores, by_key, sizeof(float) * ((n + TILE - 1) / TILE * TILE));
                return;
            }
            for (int64_t r = g * TILE; r < R && r < (g + 1) * TILE; r += 8)
                for (int64_t j = 0; j < n; j += TILE)
                    turn8(by_key + j * TILE + r % TILE, std::min<int64_t>(8, R - r), scores + r * CHUNK + j, CHUNK);
        }
    }

    // As in Vectors, thirty-two values at a time.
    ONE_COPY void values(const float* weights, const float* keep, const bf16* v, int64_t n, float* out, Prefetch& prefetch) {
        const int64_t padded = (n + 31) / 32 * 32;
        interleave(v, n, padded, prefetch);
        round(weights, n, padded);
        alignas(64) float sum[2][TILE * TILE];
        for (int64_t g = 0; g < G; g++)
            for (int64_t d = 0; d < ND; d += 2) {
                for (int64_t r = g * TILE; r < R && r < (g + 1) * TILE; r++)
                    for (int64_t e = 0; e < 2; e++) store(sum[e] + r % TILE * TILE, load(out + r * D + (d + e) * 16) * keep[r]);
                _tile_loadd(6, sum[0], 64);
                _tile_loadd(7, sum[1], 64);
                for (int64_t j = 0; j < padded; j += 32) {
                    const float* tile = pairs + j / 2 * D + d * 16;
                    _tile_loadd(5, packed + (g * TILE * CHUNK + j) / 2, CHUNK * sizeof(bf16));
                    _tile_loadd(0, tile, D * 4);
                    _tile_dpbf16ps(6, 5, 0);
                    _tile_loadd(1, tile + 16, D * 4);
                    _tile_dpbf16ps(7, 5, 1);
                }
                _tile_stored(6, sum[0], 64);
                _tile_stored(7, sum[1], 64);
                for (int64_t r = g * TILE; r < R && r < (g + 1) * TILE; r++)
                    for (int64_t e = 0; e < 2; e++) store(out + r * D + (d + e) * 16, load(sum[e] + r % TILE * TILE));
            }
    }

   private:
    // weights [R,CHUNK] -> packed, as bf16; the weights of values that are missing are 0.
    void round(const float* weights, int64_t n, int64_t padded) {
        for (int64_t r = 0; r < R; r++)
            for (int64_t j = 0; j < padded; j += 32) {
                const float* from = weights + r * CHUNK + j;
                const __m512 low = _mm512_loadu_ps(from), high = j + 16 >= n ? _mm512_setzero_ps() : _mm512_loadu_ps(from + 16);
                _mm512_storeu_si512(packed + (r * CHUNK + j) / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
            }
    }

    // v [n,D] -> pairs [PAIRS,D], as tiles need them: element d of value 2i in the low half, of value 2i+1 in the high half;
    // missing values are 0.
    void interleave(const bf16* v, int64_t n, int64_t padded, Prefetch& prefetch) {
        alignas(64) uint16_t low[32], high[32];
        for (int i = 0; i < 32; i++) low[i] = (i & 1) * 32 + i / 2, high[i] = low[i] + 16;
        const __m512i lows = _mm512_load_si512(low), highs = _mm512_load_si512(high);
        for (int64_t j = 0; j < padded; j += 2) {
            if (j % 16 == 0) prefetch.step();
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
