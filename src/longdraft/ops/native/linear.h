// Products of a few rows with a weight matrix, and RMSNorm. The order of each row's sums does not depend on the other rows.
#pragma once
#include <algorithm>

#include "interface.h"
#include "memory.h"
#include "simd.h"
#include "tiles.h"

static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    v16 total = splat(0);
    for (int64_t i = 0; i < n; i += 16) total += load(x + i) * load(x + i);
    const float scale = 1.0f / std::sqrt(sum(total) / n + eps);
    for (int64_t i = 0; i < n; i += 16) store(out + i, load(x + i) * scale * load(weight + i));
}

// Sixteen outputs, or twice sixteen, of every row: x [T,in] times weights [16,in], in float. sink(t, half, sums) takes the
// sixteen outputs of row t; `half` is 1 for those of the second sixteen, whose weights lie `apart` after the first (0: none).
template <typename E>
struct VectorLinear {
    const float* x;
    int64_t T, in;
    float* floats;  // [16,in]: the weights as floats, where several rows use them
    VectorLinear(const float* x, int64_t T, int64_t in, Arena arena) : x(x), T(T), in(in), floats(memory(arena, T, in)) {}
    static float* memory(Arena& arena, int64_t T, int64_t in) {
        return T > 1 && sizeof(E) == 2 ? arena.array<float>(16 * in) : nullptr;
    }

    template <typename Sink>
    void outputs(const E* weights, int64_t apart, Sink sink) {
        for (int64_t half = 0; half <= (apart > 0); half++)
            sixteen(weights + half * apart, [&](int64_t t, v16 sums) { sink(t, half, sums); });
    }

   private:
    template <typename Sink>
    void sixteen(const E* weights, Sink sink) {
        if (!floats) return rows(weights, sink);
        for (int64_t i = 0; i < 16 * in; i += 16) store(floats + i, load(weights + i));
        rows(floats, sink);
    }
    template <typename W, typename Sink>
    void rows(const W* weights, Sink sink) {
        for (int64_t t = 0; t < T; t++) {
            v16 acc[16];
            for (int j = 0; j < 16; j++) acc[j] = splat(0);
            for (int64_t i = 0; i < in; i += 16) {
                const v16 a = load(x + t * in + i);
                for (int j = 0; j < 16; j++) acc[j] += a * load(weights + j * in + i);
            }
            sink(t, sums(acc));
        }
    }
};

#ifdef __AMX_BF16__
// The same with matrix tiles: x is rounded to bf16.
struct TileLinear {
    int64_t T, in;
    float *packed, *sums;
    Shapes shapes;
    TileLinear(const float* x, int64_t T, int64_t in, Arena arena)
        : T(T), in(in), packed(memory(arena, T, in)), sums(arena.array<float>(TILE * TILE)), shapes(T) {
        pack(x, T, in, packed);
    }
    static float* memory(Arena& arena, int64_t T, int64_t in) {
        return arena.array<float>((T + TILE - 1) / TILE * TILE * in / 2);
    }
    // Two products at a time: each step of one depends on its step before, but not on the other product.
    template <typename Sink>
    void outputs(const bf16* weights, int64_t apart, Sink sink) {
        for (int64_t t = 0; t < T; t += TILE) {
            if (apart)
                products(weights, weights + apart, packed + t * in / 2, in);
            else
                product(weights, packed + t * in / 2, in);
            _tile_stored(2, sums, T == 1 ? 4 : 64);
            spread(t, [&](int64_t r, v16 x) { sink(r, 0, x); });
            if (!apart) continue;
            _tile_stored(4, sums, T == 1 ? 4 : 64);
            spread(t, [&](int64_t r, v16 x) { sink(r, 1, x); });
        }
    }

   private:
    template <typename Sink>
    void spread(int64_t t, Sink sink) {
        if (T == 1) return sink(0, load(sums));
        alignas(64) float rows[8 * TILE];
        for (int64_t r = t; r < T && r < t + TILE; r += 8) {
            const int64_t n = std::min<int64_t>(8, T - r);
            turn8(sums + r - t, n, rows, TILE);
            for (int64_t i = 0; i < n; i++) sink(r + i, load(rows + i * TILE));
        }
    }
};
#endif

constexpr int64_t OUTPUTS = 32;  // of one unit of work

// y [T,outputs] = x W^T + bias; or is added to y. Called by every thread of a parallel region; no barrier follows.
template <typename E, typename Products>
static void outputs(const Linear& f, Products products, float* y, bool add) {
    const int64_t in = f.inputs, out = f.outputs;
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < (out + OUTPUTS - 1) / OUTPUTS; unit++) {
        // The last sixteen outputs may overlap those before them.
        const int64_t begin[2] = {std::min(unit * OUTPUTS, out - 16), std::min(unit * OUTPUTS + 16, out - 16)};
        const E* weights = static_cast<const E*>(f.weight) + begin[0] * in;
        products.outputs(weights, (begin[1] - begin[0]) * in, [&](int64_t t, int64_t half, v16 sums) {
            const int64_t first = begin[half], written = unit * OUTPUTS + half * 16 - first;  // by the sixteen before
            if (f.bias) sums += load(f.bias + first);
            float* to = y + t * out + first;
            if (add) {
                for (int64_t j = written; j < 16; j++) to[j] += sums[j];
            } else {
                store(to, sums);
            }
        });
    }
}

// Bytes that a thread needs for products of T rows of `in` numbers.
template <typename E>
static int64_t linear_bytes(int64_t T, int64_t in) {
    Arena arena;
    VectorLinear<E>::memory(arena, T, in);
#ifdef __AMX_BF16__
    TileLinear::memory(arena, T, in);
    arena.array<float>(TILE * TILE);
#endif
    return arena.bytes();
}

// As `outputs`. own: memory of this thread, linear_bytes bytes.
template <typename E>
static void linear(const Linear& f, const float* x, int64_t T, float* y, bool add, void* own) {
#ifdef __AMX_BF16__
    if constexpr (sizeof(E) == 2)
        if (f.inputs % 32 == 0) return outputs<E>(f, TileLinear(x, T, f.inputs, Arena(own)), y, add);
#endif
    outputs<E>(f, VectorLinear<E>(x, T, f.inputs, Arena(own)), y, add);
}
