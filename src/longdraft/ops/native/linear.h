// Products of a few rows with a weight matrix, and RMSNorm. The order of each row's sums does not depend on the other rows.
#pragma once
#include <algorithm>

#include "blocks.h"
#include "interface.h"
#include "memory.h"
#include "tiles.h"

static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    vec total = splat(0);
    for (int64_t i = 0; i < n; i += V) total = fused(load(x + i), load(x + i), total);
    const float scale = 1.0f / std::sqrt(sum(total) / n + eps);
    for (int64_t i = 0; i < n; i += V) store(out + i, load(x + i) * scale * load(weight + i));
}

// total [RB,16] += products of RB rows x with sixteen rows of weights, over n inputs; rows lie x_stride and w_stride apart.
// Element e of a vector adds the products of inputs e, e + V, ...
template <typename E, int RB>
ONE_COPY static void add_sixteen(const float* x, int64_t x_stride, const E* w, int64_t w_stride, int64_t n, vec* total) {
    constexpr int N = vectors_beside(RB, 16, 8);
    for (int o = 0; o < 16; o += N) {
        vec sum[RB][N];
        for (int r = 0; r < RB; r++)
            for (int i = 0; i < N; i++) sum[r][i] = total[r * 16 + o + i];
        for (int64_t in = 0; in < n; in += V)
            add_products(
                sum, [&](int r) { return load(x + r * x_stride + in); },
                [&](int i) { return load(w + (o + i) * w_stride + in); });
        for (int r = 0; r < RB; r++)
            for (int i = 0; i < N; i++) total[r * 16 + o + i] = sum[r][i];
    }
}

// Sixteen outputs, or twice sixteen, of every row: x [T,in] times weights [16,in], in float. sink(t, half, y) takes the sixteen
// outputs of row t; `half` is 1 for those of the second sixteen, whose weights lie `apart` after the first (0: none).
template <typename E>
struct VectorLinear {
    static constexpr int64_t INPUTS = 256;  // whose weights stay in the first-level cache while all of many rows use them
    const float* x;
    int64_t T, in;
    float* floats;  // [16,INPUTS]: weights as floats, where there are many rows
    vec* total;     // [T,16], where there are many rows
    VectorLinear(const float* x, int64_t T, int64_t in, Arena arena) : x(x), T(T), in(in) { memory(arena); }

    // Bytes that an object needs.
    static int64_t bytes(int64_t T, int64_t in) {
        Arena arena;
        VectorLinear(nullptr, T, in, arena).memory(arena);
        return arena.bytes();
    }

    template <typename Sink>
    void outputs(const E* weights, int64_t apart, Sink sink) {
        for (int64_t half = 0; half <= (apart > 0); half++) {
            const E* from = weights + half * apart;
            const auto to = [&](int64_t t, const float* y) { sink(t, half, y); };
            if (T > 2 * TALLEST)
                many_rows(from, to);
            else
                few_rows(from, to);
        }
    }

   private:
    void memory(Arena& arena) {
        const bool many = T > 2 * TALLEST;
        floats = arena.array<float>(many ? 16 * INPUTS : 0);
        total = arena.array<vec>(many ? T * 16 : 0);
    }

    template <typename Sink>
    void few_rows(const E* weights, Sink sink) {
        in_blocks(T, [&](auto rows, int64_t t) {
            constexpr int RB = decltype(rows)::value;
            vec all[RB * 16] = {};
            add_sixteen<E, RB>(x + t * in, in, weights, in, in, all);
            for (int r = 0; r < RB; r++) finish(all + r * 16, t + r, sink);
        });
    }

    template <typename Sink>
    void many_rows(const E* weights, Sink sink) {
        std::fill(total, total + T * 16, splat(0));
        for (int64_t i = 0; i < in; i += INPUTS) {
            const int64_t n = std::min(INPUTS, in - i);
            for (int64_t o = 0; o < 16; o++)
                for (int64_t e = 0; e < n; e += V) store(floats + o * INPUTS + e, load(weights + o * in + i + e));
            in_blocks(T, [&](auto rows, int64_t t) {
                add_sixteen<float, decltype(rows)::value>(x + t * in + i, in, floats, INPUTS, n, total + t * 16);
            });
        }
        for (int64_t t = 0; t < T; t++) finish(total + t * 16, t, sink);
    }

    template <typename Sink>
    static void finish(const vec* all, int64_t t, Sink sink) {
        alignas(64) float y[16];
        for (int o = 0; o < 16; o += V) store(y + o, sums(all + o));
        sink(t, y);
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
            spread(t, [&](int64_t r, const float* y) { sink(r, 0, y); });
            if (!apart) continue;
            _tile_stored(4, sums, T == 1 ? 4 : 64);
            spread(t, [&](int64_t r, const float* y) { sink(r, 1, y); });
        }
    }

   private:
    template <typename Sink>
    void spread(int64_t t, Sink sink) {
        if (T == 1) return sink(0, sums);
        alignas(64) float rows[8 * TILE];
        for (int64_t r = t; r < T && r < t + TILE; r += 8) {
            const int64_t n = std::min<int64_t>(8, T - r);
            turn8(sums + r - t, n, rows, TILE);
            for (int64_t i = 0; i < n; i++) sink(r + i, rows + i * TILE);
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
        products.outputs(weights, (begin[1] - begin[0]) * in, [&](int64_t t, int64_t half, const float* sums) {
            const int64_t first = begin[half], written = unit * OUTPUTS + half * 16 - first;  // by the sixteen before
            float* to = y + t * out + first;
            for (int64_t j = written; j < 16; j++) {
                const float sum = f.bias ? sums[j] + f.bias[first + j] : sums[j];
                to[j] = add ? to[j] + sum : sum;
            }
        });
    }
}

// Bytes that a thread needs for products of T rows of `in` numbers.
template <typename E>
static int64_t linear_bytes(int64_t T, int64_t in) {
    Arena arena;
#ifdef __AMX_BF16__
    TileLinear::memory(arena, T, in);
    arena.array<float>(TILE * TILE);
#endif
    return std::max(arena.bytes(), VectorLinear<E>::bytes(T, in));
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
