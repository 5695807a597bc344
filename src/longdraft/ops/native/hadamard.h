// The Walsh-Hadamard transform, which spreads a number that is far larger than the others of its key over all of them, so that
// none is rounded coarsely because of it. Applied to a query and to a key, it leaves their product as it is.
#pragma once
#include "simd.h"

// One step within a vector: of the elements `Apart` places from each other, the sum, then the difference.
template <int Apart, int... I>
static inline vec sums_and_differences(vec x, std::integer_sequence<int, I...>) {
    const vec sign = {(I & Apart ? -1.0f : 1.0f)...};
    return fused(x, sign, shuffled<Swap<Apart>>(x, x));
}

template <int Apart = 1>
static inline vec hadamard_inside(vec x) {
    if constexpr (Apart < V)
        return hadamard_inside<2 * Apart>(sums_and_differences<Apart>(x, std::make_integer_sequence<int, V>()));
    else
        return x;
}

// x [D], D a multiple of 16 -> its transform in place, of as many numbers at a time as the largest power of 2 that divides D.
// The bits are those of ops/coded.py, whatever V is: every step adds two numbers.
static inline void hadamard(float* x, int64_t D) {
    const int64_t size = D & -D;
    const vec factor = splat(static_cast<float>(1 / std::sqrt(static_cast<double>(size))));
    for (int64_t d = 0; d < D; d += V) store(x + d, hadamard_inside(load(x + d)));
    for (int64_t apart = V; apart < size; apart *= 2)
        for (int64_t d = 0; d < D; d += 2 * apart)
            for (int64_t i = d; i < d + apart; i += V) {
                const vec a = load(x + i), b = load(x + i + apart);
                store(x + i, a + b), store(x + i + apart, a - b);
            }
    for (int64_t d = 0; d < D; d += V) store(x + d, load(x + d) * factor);
}
