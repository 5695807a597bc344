// Products of a few rows with a weight matrix, and norms. The order of each row's sums does not depend on the other rows.
#pragma once
#include <algorithm>

#include "blocks.h"
#include "interface.h"
#include "memory.h"
#include "packed_weights.h"
#include "tiles.h"

static inline void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    vec total = splat(0);
    for (int64_t i = 0; i < n; i += V) total = fused(load(x + i), load(x + i), total);
    const float scale = 1.0f / std::sqrt(sum(total) / n + eps);
    for (int64_t i = 0; i < n; i += V) store(out + i, load(x + i) * scale * load(weight + i));
}

// The same of numbers without their mean, plus a bias if there is one.
static inline void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out) {
    vec total = splat(0), squares = splat(0);
    for (int64_t i = 0; i < n; i += V) total += load(x + i);
    const vec mean = splat(sum(total) / n);
    for (int64_t i = 0; i < n; i += V) {
        const vec apart = load(x + i) - mean;
        squares = fused(apart, apart, squares);
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / n + eps);
    for (int64_t i = 0; i < n; i += V) {
        const vec y = (load(x + i) - mean) * scale * load(weight + i);
        store(out + i, bias ? y + load(bias + i) : y);
    }
}

// total [RB,16] += products of RB rows of x with sixteen rows of weights, over inputs [begin, begin + n). x: those inputs of all
// rows, in vectors, the rows' side by side, so that one pointer reaches them. Element e of a vector adds the products of inputs
// e, e + V, ...
template <int RB, typename Weights>
ONE_COPY static void add_sixteen(const typename Weights::Input* x, const Weights& weights, int64_t begin, int64_t n, vec* total) {
    constexpr int N = vectors_beside(RB, 16, 4);  // more than four rows of weights at once are read more slowly
    for (int o = 0; o < 16; o += N) {
        vec sum[RB][N];
        each<RB>([&](int r) { each<N>([&](int i) { sum[r][i] = total[r * 16 + o + i]; }); });
        for (int64_t in = 0; in < n; in += Weights::STEP) {
            if (in % Weights::LINE == 0)
                for (int i = 0; i < N; i++) weights.prefetch(o + i, begin + in);
            add_products(
                sum, [&](int r) { return Weights::input(x + in * RB + r * Weights::WIDE); },
                [&](int i) { return weights.at(o + i, begin + in, 0); });
        }
        each<RB>([&](int r) { each<N>([&](int i) { total[r * 16 + o + i] = sum[r][i]; }); });
    }
}

// total [RB,16] = products of RB rows of x [n] with FEW_ROWS rows, from `row` on, of a window of packed weights, in columns
// [o, o + FEW_ROWS); added in the order of add_sixteen. A code is unpacked once for all rows of x, in registers.
template <int RB, typename Weights>
ONE_COPY static void add_window(const typename Weights::Input* x, const Weights& weights, int64_t row, int64_t n, int64_t o, vec* total) {
    constexpr int N = vectors_beside(RB, FEW_ROWS, FEW_ROWS, SUMS * 2 / 3);  // the other registers are for unpacking
    for (int64_t i = 0; i < FEW_ROWS; i += N, row += N, o += N) {
        vec sum[RB][N] = {};
        for (int64_t in = 0; in < n; in += Weights::STEP) {
            for (int j = 0; j < N; j++) weights.prefetch(row + j, in);
            each<Weights::STEP / Weights::WIDE>([&](int s) {
                constexpr int WIDE = Weights::WIDE;
                add_products(
                    sum, [&](int r) { return Weights::input(x + (in + s * WIDE) * RB + r * WIDE); },
                    [&](int j) { return weights.at(row + j, in, s * WIDE); });
            });
        }
        each<RB>([&](int r) { each<N>([&](int j) { total[r * 16 + o + j] = sum[r][j]; }); });
    }
}

// sink(t, y) takes the sixteen outputs of row t, whose vectors are added up.
template <typename Sink>
static void finish(const vec* all, int64_t t, Sink sink) {
    alignas(64) float y[16];
    for (int o = 0; o < 16; o += V) store(y + o, sums(all + o));
    sink(t, y);
}

// Sixteen outputs of every row: x [T,in] times sixteen rows of weights. sink(t, y) takes those of row t.
template <typename Weights>
struct VectorLinear {
    using Input = typename Weights::Input;
    using Converted = typename Weights::Converted;
    static constexpr int64_t INPUTS = 1024 / sizeof(Input);
    int64_t T, in;    // in: of packed weights, whole blocks
    Input* x;         // [T,in], in the blocks of rows that are computed together: see add_sixteen
    float* unpacked;  // what Weights needs
    Input* panel;     // [16,in]: converted weights, where there are many rows
    VectorLinear(const float* from, int64_t T, int64_t inputs, Arena arena) : VectorLinear(T, inputs) {
        memory(arena, inputs);
        blocks([&](auto rows, int64_t t) {
            constexpr int64_t RB = decltype(rows)::value, WIDE = Weights::WIDE;
            for (int64_t i = 0; i < in; i += WIDE)
                for (int64_t r = 0; r < RB; r++) {
                    Input* const to = x + t * in + i * RB + r * WIDE;
                    if (i < inputs)
                        Weights::put(to, from + (t + r) * inputs + i);
                    else
                        std::fill(to, to + WIDE, Input());
                }
        });
    }

    // Bytes that an object needs.
    static int64_t bytes(int64_t T, int64_t inputs) {
        Arena arena;
        VectorLinear(T, inputs).memory(arena, inputs);
        return arena.bytes();
    }

    template <typename Sink>
    void outputs(const Linear& f, int64_t first, Sink sink) {
        Weights from(f, first, unpacked);
        if (many())
            many_blocks(from, sink);
        else if constexpr (Weights::UNPACKED)
            one_block(from, sink);
        else
            few_rows(from, sink);
    }

   private:
    VectorLinear(int64_t T, int64_t inputs) : T(T), in(Weights::UNPACKED ? whole_blocks(inputs) : inputs) {}
    bool many() const { return T > (Weights::UNPACKED ? TALLEST : Weights::FEW); }

    void memory(Arena& arena, int64_t inputs) {
        x = arena.array<Input>(T * in);
        unpacked = arena.array<float>(Weights::unpacked(inputs));
        panel = arena.array<Input>(many() ? 16 * in : 0);
    }

    template <typename Block>
    void blocks(Block block) const {
        in_blocks(T, block);
    }

    // Numbers of weights are read anew for every block of rows.
    template <typename Sink>
    void few_rows(const Weights& from, Sink sink) {
        blocks([&](auto rows, int64_t t) {
            constexpr int RB = decltype(rows)::value;
            vec all[RB * 16] = {};
            add_sixteen<RB>(x + t * in, from, 0, in, all);
            for (int r = 0; r < RB; r++) finish(all + r * 16, t + r, sink);
        });
    }

    // A few rows of weights at a time, so that memory is read in few streams.
    template <typename Sink>
    void one_block(Weights& from, Sink sink) {
        blocks([&](auto rows, int64_t) {
            constexpr int RB = decltype(rows)::value;
            vec all[RB * 16];
            for (int64_t o = 0; o < 16; o += FEW_ROWS) {
                if (o % from.together() == 0) from.open(o);
                add_window<RB>(x, from, o % from.together(), in, o, all);
            }
            for (int r = 0; r < RB; r++) finish(all + r * 16, r, sink);
        });
    }

    // Weights are converted once for all blocks. Those of INPUTS inputs stay in the first-level cache with a block of rows.
    template <typename Sink>
    void many_blocks(Weights& from, Sink sink) {
        for (int64_t o = 0; o < 16; o += FEW_ROWS) convert(from, o);
        blocks([&](auto rows, int64_t t) {
            constexpr int RB = decltype(rows)::value;
            vec all[RB * 16] = {};
            for (int64_t i = 0; i < in; i += INPUTS)
                add_sixteen<RB>(x + t * in + i * RB, Converted(panel + i, in), 0, std::min(INPUTS, in - i), all);
            for (int r = 0; r < RB; r++) finish(all + r * 16, t + r, sink);
        });
    }

    // Rows [o, o + FEW_ROWS) of sixteen rows of weights -> the panel's.
    ONE_COPY void convert(Weights& from, int64_t o) const {
        int64_t first = o;
        if constexpr (Weights::UNPACKED) {
            if (o % from.together() == 0) from.open(o);
            first = o % from.together();
        }
        for (int64_t e = 0; e < in; e += Weights::STEP)
            for (int64_t i = 0; i < FEW_ROWS; i++) {
                from.prefetch(first + i, e);
                each<Weights::STEP / Weights::WIDE>([&](int s) {
                    store(panel + (o + i) * in + e + s * Weights::WIDE, from.at(first + i, e, s * Weights::WIDE));
                });
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
    template <typename Sink>
    void outputs(const Linear& f, int64_t first, Sink sink) {
        for (int64_t t = 0; t < T; t += TILE) {
            product(weights_of(f, first), packed + t * in / 2, in);
            _tile_stored(2, sums, T == 1 ? 4 : 64);
            spread(t, sink);
        }
    }
    // Those from `second` on too, which other takes. Two products at a time: each step of one depends on its step before, but
    // not on the other product.
    template <typename Sink, typename Other>
    void outputs(const Linear& f, int64_t first, Sink sink, int64_t second, Other other) {
        for (int64_t t = 0; t < T; t += TILE) {
            products(weights_of(f, first), weights_of(f, second), packed + t * in / 2, in);
            _tile_stored(2, sums, T == 1 ? 4 : 64);
            spread(t, sink);
            _tile_stored(4, sums, T == 1 ? 4 : 64);
            spread(t, other);
        }
    }

   private:
    const bf16* weights_of(const Linear& f, int64_t first) { return static_cast<const bf16*>(f.weight) + first * in; }
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

// Sixteen outputs from `begin` on, and sixteen from `second` on if there are any: see outputs.
template <typename WeightProducts, typename Sink, typename Other>
static void two(WeightProducts& products, const Linear& f, int64_t begin, Sink sink, int64_t second, Other other) {
    const int64_t first = std::min(begin, f.outputs - 16);
    products.outputs(f, first, sink);
    if (second < f.outputs) products.outputs(f, std::min(second, f.outputs - 16), other);
}
#ifdef __AMX_BF16__
template <typename Sink, typename Other>
static void two(TileLinear& products, const Linear& f, int64_t begin, Sink sink, int64_t second, Other other) {
    const int64_t first = std::min(begin, f.outputs - 16);
    if (second < f.outputs)
        products.outputs(f, first, sink, std::min(second, f.outputs - 16), other);
    else
        products.outputs(f, first, sink);
}
#endif

// y [T,outputs] = x W^T + bias; or is added to y. Called by every thread of a parallel region; no barrier follows.
template <typename WeightProducts>
static void outputs(const Linear& f, WeightProducts& products, float* y, bool add) {
    const int64_t out = f.outputs;
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < (out + OUTPUTS - 1) / OUTPUTS; unit++) {
        // Takes the sixteen outputs from `begin` on of a row. The last sixteen may overlap those before them.
        const auto from = [&](int64_t begin) {
            const int64_t first = std::min(begin, out - 16);
            return [=, &f](int64_t t, const float* sums) {
                float* const to = y + t * out + first;
                if (begin == first)
                    for (int j = 0; j < 16; j += V) {
                        const vec sum = f.bias ? load(sums + j) + load(f.bias + first + j) : load(sums + j);
                        store(to + j, add ? load(to + j) + sum : sum);
                    }
                else
                    for (int64_t j = begin - first; j < 16; j++) {
                        const float sum = f.bias ? sums[j] + f.bias[first + j] : sums[j];
                        to[j] = add ? to[j] + sum : sum;
                    }
            };
        };
        const int64_t begin = unit * OUTPUTS, second = begin + 16;
        two(products, f, begin, from(begin), second, from(second));
    }
}
