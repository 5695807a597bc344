// Blocks of rows and vectors whose sums stay in registers.
#pragma once
#include <type_traits>

#include "simd.h"

constexpr int64_t TALLEST = SUMS / 2;  // rows of a block, which has at least two vectors of each

// Calls block(std::integral_constant<int, rows>, first row) for blocks of about equal height that cover R rows.
template <int N, typename Block>
static inline void with_height(int64_t height, int64_t first, Block block) {
    if (height == N) return block(std::integral_constant<int, N>(), first);
    if constexpr (N > 1) with_height<N - 1>(height, first, block);
}
template <int MOST = TALLEST, typename Block>
static inline void in_blocks(int64_t R, Block block) {
    const int64_t count = (R + MOST - 1) / MOST;
    for (int64_t i = 0; i < count; i++) {
        const int64_t first = R * i / count;
        with_height<MOST>(R * (i + 1) / count - first, first, block);
    }
}

// The largest power of two of vectors of which this many rows fit into `sums`, that divides n and is at most `most`.
constexpr int vectors_beside(int rows, int n, int most, int sums = SUMS) {
    int fit = 1;
    while (fit * 2 <= most && fit * 2 * rows <= sums && n % (fit * 2) == 0) fit *= 2;
    return fit;
}

// Calls f(i) for 0 <= i < N, each i a constant: unrolled by the language, so that the compiler keeps arrays in registers.
template <typename F, int... I>
static inline void each(F f, std::integer_sequence<int, I...>) {
    (f(I), ...);
}
template <int N, typename F>
static inline void each(F f) {
    each(f, std::make_integer_sequence<int, N>());
}

// sum[r][n] += row(r) column(n). Of rows and columns, the fewer are held in registers.
template <int RB, int N, typename Row, typename Column>
static inline void add_products(vec (&sum)[RB][N], Row row, Column column) {
    if constexpr (RB <= N) {
        decltype(row(0)) rows[RB];
        each<RB>([&](int r) { rows[r] = row(r); });
        each<N>([&](int n) {
            const auto x = column(n);
            each<RB>([&](int r) { sum[r][n] = fused(rows[r], x, sum[r][n]); });
        });
    } else {
        decltype(column(0)) columns[N];
        each<N>([&](int n) { columns[n] = column(n); });
        each<RB>([&](int r) {
            const auto x = row(r);
            each<N>([&](int n) { sum[r][n] = fused(x, columns[n], sum[r][n]); });
        });
    }
}
