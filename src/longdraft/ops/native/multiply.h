// The products of a linear layer, whatever form its weights have.
#pragma once
#include "linear.h"
#include "interleaved.h"

// Bytes that a thread needs for products of T rows of `in` numbers, in whatever form the weights are.
static int64_t linear_bytes(int64_t T, int64_t in) {
    // Of each size of groups, those that have offsets need the most.
    int64_t most = std::max(VectorLinear<Codes<BITS_4>>::bytes(T, in), VectorLinear<Codes<BITS_8_OF_16>>::bytes(T, in));
#ifdef __AMX_BF16__
    Arena tiles;
    TileLinear::memory(tiles, T, in);
    tiles.array<float>(TILE * TILE);
    most = std::max(most, tiles.bytes());
#endif
#ifdef __AVX2__
    most = std::max(most, interleaved_bytes(T, in));
#endif
    return most;
}

// The products of packed weights: take(products).
template <template <Format> class Weights, typename Take>
static void with_packed(const Linear& f, const float* x, int64_t T, const Arena& arena, Take take) {
    switch (f.format) {
        case BITS_4: return take(VectorLinear<Weights<BITS_4>>(x, T, f.inputs, arena));
        case BITS_5: return take(VectorLinear<Weights<BITS_5>>(x, T, f.inputs, arena));
        case BITS_6: return take(VectorLinear<Weights<BITS_6>>(x, T, f.inputs, arena));
        case BITS_8: return take(VectorLinear<Weights<BITS_8>>(x, T, f.inputs, arena));
        case FP4: return take(VectorLinear<Weights<FP4>>(x, T, f.inputs, arena));
        case IQ4: return take(VectorLinear<Weights<IQ4>>(x, T, f.inputs, arena));
        default: return take(VectorLinear<Weights<BITS_8_OF_16>>(x, T, f.inputs, arena));
    }
}

// The products of weights in their form, for a model whose numbers are E: take(products).
template <typename E, typename Take>
static void with_products(const Linear& f, const float* x, int64_t T, const Arena& arena, Take take) {
#ifdef __AVX2__
    if (f.interleaved) return with_interleaved(f, x, T, arena, take);
#endif
#ifdef BF16_PAIRS
    if constexpr (sizeof(E) == 2)
        if (f.inputs % 32 == 0) {
            if (f.format) return with_packed<PairCodes>(f, x, T, arena, take);
#ifdef __AMX_BF16__
            return take(TileLinear(x, T, f.inputs, arena));
#else
            return take(VectorLinear<Pairs>(x, T, f.inputs, arena));
#endif
        }
#endif
    if (f.format) return with_packed<Codes>(f, x, T, arena, take);
    take(VectorLinear<Numbers<E>>(x, T, f.inputs, arena));
}

// As `outputs`. own: memory of this thread, linear_bytes bytes.
template <typename E>
static void linear(const Linear& f, const float* x, int64_t T, float* y, bool add, void* own) {
    with_products<E>(f, x, T, Arena(own), [&](auto&& products) { outputs(f, products, y, add); });
}
