// Products of a few rows with a weight matrix, and the norm before them: each row's sums run in one order.
#pragma once
#include <algorithm>
#include <type_traits>

#include "attention.h"
#include "room.h"
#include "tiles.h"
#include "types.h"

static void rms(const float* x, const float* w, int64_t n, float eps, float* out) {
    v16 total = splat(0);
    for (int64_t i = 0; i < n; i += 16) total += load(x + i) * load(x + i);
    const float s = 1.0f / std::sqrt(sum(total) / n + eps);
    for (int64_t i = 0; i < n; i += 16) store(out + i, load(x + i) * s * load(w + i));
}

// Sixteen outputs of every row: x [T,in] times w [16,in], in float; sink(t, sums) takes each row's.
template <typename E>
struct VectorLinear {
    const float* x;
    int64_t T, in;
    float* wide;  // [16,in]: the weights as floats, if that pays
    VectorLinear(const float* x, int64_t T, int64_t in, Cut cut) : x(x), T(T), in(in), wide(room(cut, T, in)) {}
    static float* room(Cut& cut, int64_t T, int64_t in) { return T > 1 && sizeof(E) == 2 ? cut.take<float>(16 * in) : nullptr; }

    template <typename W, typename Sink>
    void rows(const W* w, Sink sink) {
        for (int64_t t = 0; t < T; t++) {
            v16 acc[16];
            for (int j = 0; j < 16; j++) acc[j] = splat(0);
            for (int64_t i = 0; i < in; i += 16) {
                const v16 a = load(x + t * in + i);
                for (int j = 0; j < 16; j++) acc[j] += a * load(w + j * in + i);
            }
            sink(t, sums(acc));
        }
    }
    template <typename Sink>
    void outputs(const E* w, int64_t apart, Sink sink) {
        for (int64_t half = 0; half <= (apart > 0); half++) block(w + half * apart, [&](int64_t t, v16 r) { sink(t, half, r); });
    }
    template <typename Sink>
    void block(const E* w, Sink sink) {
        if (!wide) return rows(w, sink);
        for (int64_t i = 0; i < 16 * in; i += 16) store(wide + i, load(w + i));
        rows(wide, sink);
    }
};

#ifdef __AMX_BF16__
// The same with tiles: x is rounded to bf16.
struct TileLinear {
    int64_t T, in;
    float *packed, *sums;
    Shapes shapes;
    TileLinear(const float* x, int64_t T, int64_t in, Cut cut) : T(T), in(in), packed(room(cut, T, in)), sums(cut.take<float>(TILE * TILE)), shapes(T) {
        pack(x, T, in, packed);
    }
    static float* room(Cut& cut, int64_t T, int64_t in) { return cut.take<float>((T + TILE - 1) / TILE * TILE * in / 2); }
    // Two blocks at a time: each product of tiles waits for the one before it, but not for another block's.
    template <typename Sink>
    void outputs(const bf16* w, int64_t apart, Sink sink) {
        for (int64_t t = 0; t < T; t += TILE) {
            if (apart)
                products(w, w + apart, packed + t * in / 2, in);
            else
                product(w, packed + t * in / 2, in);
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

// y [T,out] (+)= x [T,in] W^T + b, OUTPUTS at a time; called inside the parallel region, without a barrier after.
constexpr int64_t OUTPUTS = 32;

template <typename E, typename How>
static void outputs(const Linear& f, How how, int64_t in, int64_t out, float* y, bool add) {
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < (out + OUTPUTS - 1) / OUTPUTS; unit++) {
        const int64_t at[2] = {std::min(unit * OUTPUTS, out - 16), std::min(unit * OUTPUTS + 16, out - 16)};
        how.outputs(static_cast<const E*>(f.w) + at[0] * in, (at[1] - at[0]) * in, [&](int64_t t, int64_t half, v16 r) {
            const int64_t first = at[half], done = unit * OUTPUTS + half * 16 - first;  // outputs that the block before has written
            if (f.b) r += load(f.b + first);
            float* to = y + t * out + first;
            if (add) {
                for (int64_t j = done; j < 16; j++) to[j] += r[j];
            } else {
                store(to, r);
            }
        });
    }
}

// Bytes that a thread needs for products of T rows of `in` numbers.
template <typename E>
static int64_t linear_room(int64_t T, int64_t in) {
    Cut cut;
    VectorLinear<E>::room(cut, T, in);
#ifdef __AMX_BF16__
    TileLinear::room(cut, T, in);
    cut.take<float>(TILE * TILE);
#endif
    return cut.bytes();
}

// own: memory of this thread, linear_room bytes.
template <typename E>
static void linear(const Linear& f, const float* x, int64_t T, int64_t in, int64_t out, float* y, bool add, void* own) {
#ifdef __AMX_BF16__
    if constexpr (sizeof(E) == 2)
        if (in % 32 == 0) return outputs<E>(f, TileLinear(x, T, in, Cut(own)), in, out, y, add);
#endif
    outputs<E>(f, VectorLinear<E>(x, T, in, Cut(own)), in, out, y, add);
}
