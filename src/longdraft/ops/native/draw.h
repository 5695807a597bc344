// Tokens drawn with Gumbel noise, which is a pure function of (seed, position, token) as ops/noise.py defines it.
#pragma once
#include <cmath>
#include <cstdint>

#include "simd.h"

static inline uint64_t mix(uint64_t x) {  // splitmix64's finaliser
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static inline uint64_t key_of(int64_t seed, int64_t position) {
    return mix(mix(static_cast<uint64_t>(seed) * 0x9E3779B97F4A7C15ull + 1) + mix(static_cast<uint64_t>(position) * 0x9E3779B9ull + 7));
}

// In (0, 1).
static inline double uniform(uint64_t key, uint64_t token) {
    const uint64_t x = mix(key + token * 0xD1B54A32D192ED03ull);
    return (static_cast<double>(static_cast<int64_t>(x >> 12)) + 0.5) * 0x1p-52;
}

static inline double gumbel(uint64_t key, uint64_t token) { return -std::log(-std::log(uniform(key, token))); }

// The first index of the largest value.
static inline int64_t argmax(const float* x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

// argmax of logits / temperature + noise. To avoid two logarithms for every token, tokens that cannot win are left out: the
// noise of a token exceeds d only if 1 - uniform < e^-d, where d is how far its logit lies below the score of the token with
// the largest logit.
static inline int64_t draw(const float* logits, int64_t n, double temperature, uint64_t key) {
    int64_t best = argmax(logits, n);
    if (temperature == 0) return best;
    const double scale = 1 / temperature;
    const int64_t first = best;
    double score = logits[best] * scale + gumbel(key, best);
    const auto consider = [&](int64_t i) {
        const double other = logits[i] * scale + gumbel(key, i);
        if (i != first && (other > score || (other == score && i < best))) score = other, best = i;
    };
    const float bar = static_cast<float>(score), wide = static_cast<float>(scale);
    const float slack = 1.001f + std::fabs(bar) * 1e-6f;  // covers the rounding of floats
    int64_t i = 0;
    for (; i + V <= n; i += V) {
        const vec enough = vexp(load(logits + i) * wide - bar) * slack;
        float above[V];
        for (int j = 0; j < V; j++) above[j] = static_cast<float>(1 - uniform(key, i + j));
        int any = 0;
        for (int j = 0; j < V; j++) any |= above[j] < enough[j];
        if (any)
            for (int j = 0; j < V; j++)
                if (above[j] < enough[j]) consider(i + j);
    }
    for (; i < n; i++) consider(i);
    return best;
}
