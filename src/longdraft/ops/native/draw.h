// Tokens drawn with Gumbel noise, which is a pure function of (seed, position, token) as ops/noise.py defines it.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "guard.h"
#include "simd.h"

static inline uint64_t mix(uint64_t x) {  // splitmix64's finalizer
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

// The largest of x[0, n), and -infinity if none is a number.
static inline float greatest(const float* x, int64_t n) {
    vec top[4];
    for (vec& t : top) t = splat(-INFINITY);
    int64_t i = 0;
    for (; i + 4 * V <= n; i += 4 * V)
        for (int j = 0; j < 4; j++) top[j] = vmax(load(x + i + j * V), top[j]);
    float most = greatest(vmax(vmax(top[0], top[1]), vmax(top[2], top[3])));
    for (; i < n; i++) most = std::max(most, x[i]);
    return most;
}

// The first index of the largest value; 0 if none is a number. Only one block is searched for the index: the values of a
// vocabulary are then read once, as fast as a core reads.
static inline int64_t argmax(const float* x, int64_t n) {
    constexpr int64_t BLOCK = 1024;
    int64_t begin = 0;
    float most = -INFINITY;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const float other = greatest(x + i, std::min(n - i, BLOCK));
        if (other > most) most = other, begin = i;
    }
    for (int64_t i = begin; i < std::min(n, begin + BLOCK); i++)
        if (x[i] == most) return i;
    return 0;
}

// A token that top-k, top-p and min-p may keep.
struct Kept {
    float logit;
    int32_t token;
    bool operator<(const Kept& other) const { return logit != other.logit ? logit > other.logit : token < other.token; }
};

static inline bool fits(const Warpers& w) {
    const bool temperature = w.temperature >= 0 && w.temperature < 1e300;
    return temperature && in_range(w.top_k, 0, MANY) && w.top_p > 0 && w.top_p <= 1 && w.min_p >= 0 && w.min_p <= 1;
}

// Whether some tokens cannot be drawn.
static inline bool truncates(const Warpers& w) { return w.temperature > 0 && (w.top_k || w.top_p < 1 || w.min_p > 0); }

// The tokens whose logit is `floor` or more, in order -> how many.
static inline int64_t above(const float* logits, int64_t n, float floor, Kept* found) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t end = std::min(n, i + 16);
        int any = 0;
        for (int64_t j = i; j < end; j++) any |= logits[j] >= floor;
        for (int64_t j = i; any && j < end; j++)
            if (logits[j] >= floor) found[count++] = {logits[j], static_cast<int32_t>(j)};
    }
    return count;
}

// The sum of exp((logit - most) / temperature).
static inline double mass(const float* logits, int64_t n, float most, double temperature) {
    const float scale = static_cast<float>(1 / temperature);
    vec sums{};
    int64_t i = 0;
    for (; i + V <= n; i += V) sums += vexp((load(logits + i) - most) * scale);
    double sum = 0;
    for (int j = 0; j < V; j++) sum += sums[j];
    for (; i < n; i++) sum += std::exp((logits[i] - most) / temperature);
    return sum;
}

// The first of these tokens, sorted, that top-k and top-p keep -> how many; 0 if more than these may be kept. `all`: these
// are all tokens. mass: of all tokens, which top-p reads where top-k is off. Tokens as likely as top-k's last are kept.
static inline int64_t nucleus(const Kept* sorted, int64_t count, bool all, const Warpers& w, double mass) {
    if (w.top_k) {
        if (count <= w.top_k && !all) return 0;
        int64_t most = std::min(count, w.top_k);
        while (most < count && sorted[most].logit == sorted[most - 1].logit) most++;
        if (most == count && !all) return 0;
        count = most;
    }
    if (w.top_p == 1) return count;
    const auto weight = [&](int64_t i) { return std::exp((sorted[i].logit - sorted[0].logit) / w.temperature); };
    if (w.top_k) {
        mass = 0;
        for (int64_t i = 0; i < count; i++) mass += weight(i);
    }
    double sum = 0;
    int64_t kept = 0;
    while (kept < count && sum < w.top_p * mass) sum += weight(kept++);
    return kept < count || all || w.top_k ? kept : 0;
}

// The tokens that can be drawn -> how many. The likeliest ones are looked at first, and more only where these do not suffice.
static inline int64_t keep(const float* logits, int64_t n, const Warpers& w, float most, Kept* found) {
    const float least = w.min_p > 0 ? static_cast<float>(most + std::log(w.min_p) * w.temperature) : -FLT_MAX;
    if (!w.top_k && w.top_p == 1) return above(logits, n, least, found);
    const double whole = w.top_k || w.top_p == 1 ? 0 : mass(logits, n, most, w.temperature);
    int64_t kept = 0;
    for (double nats = 3; !kept; nats *= 1.5) {
        const float floor = nats > 30 ? -FLT_MAX : static_cast<float>(most - nats * w.temperature);
        const int64_t count = above(logits, n, floor, found);
        const bool all = floor == -FLT_MAX || count == n;
        std::sort(found, found + count);
        kept = nucleus(found, count, all, w, whole);
        if (all) break;
    }
    while (kept > 1 && found[kept - 1].logit < least) kept--;
    return kept;
}

// argmax of logits / temperature + noise over all tokens. To avoid two logarithms for every token, tokens that cannot win are
// left out: the noise of a token exceeds d only if 1 - uniform < e^-d, where d is how far its logit lies below the score of
// the token with the largest logit.
static inline int64_t draw_from_all(const float* logits, int64_t n, double temperature, uint64_t key, int64_t first) {
    int64_t best = first;
    const double scale = 1 / temperature;
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

// argmax of logits / temperature + noise over the tokens that the warpers keep; temperature 0: the argmax of the logits.
// room [n]: used where they truncate.
static inline int64_t draw(const float* logits, int64_t n, const Warpers& w, uint64_t key, Kept* room) {
    const int64_t most = argmax(logits, n);
    if (w.temperature == 0) return most;
    if (!truncates(w)) return draw_from_all(logits, n, w.temperature, key, most);
    const int64_t count = keep(logits, n, w, logits[most], room);
    int64_t best = most;
    double score = logits[most] / w.temperature + gumbel(key, most);
    for (int64_t i = 0; i < count; i++) {
        const double other = room[i].logit / w.temperature + gumbel(key, room[i].token);
        if (other > score || (other == score && room[i].token < best)) score = other, best = room[i].token;
    }
    return best;
}
