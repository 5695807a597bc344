// The end of the text and the scratch of a tree, each node's path put as plain decoding has it: side by side after the
// committed slots. So its sums run in plain decoding's order, whatever lies between its ancestors in scratch.
#pragma once
#include "attention.h"

// Whether a node that sees these scratch nodes has others between them. Padding, which does not see the root, is let be.
static inline bool apart(const uint8_t* sees, int64_t size) {
    const void* gap = sees[0] ? std::memchr(sees, 0, size) : nullptr;
    return gap && std::memchr(gap, 1, size - (static_cast<const uint8_t*>(gap) - sees));
}

static inline bool any_apart(const Queries& x) {
    for (int64_t w = 0; w < x.W; w++)
        if (apart(x.mask + w * x.size, x.size)) return true;
    return false;
}

// Slots [from, to) as each node sees them: committed ones, then its path. k, v: slot 0 of the head. One product gives every
// row's scores, wherever a key lies; values of the committed slots are mixed for all rows at once, those of a path for its
// node's. taps as in attend_keys.
template <typename E, int ND, typename Products>
class Tail {
    static constexpr int64_t D = 16 * ND, EACH = 32;  // values that are mixed in one go: attend_keys' order, cut at these
    const Queries& x;
    const E *k, *v;
    const int64_t G;
    std::vector<float> room, scratch, weights, mixed, own, keep;
    std::vector<E> values;
    std::vector<int64_t> path;
    float* s;
    Feed none;

   public:
    Tail(const Queries& x, const E* k, const E* v, Part out, const Tap* taps, int64_t from, int64_t to)
        : x(x), k(k), v(v), G(x.R / x.W), room(x.R * CHUNK + Products::room(x.R) + 16), scratch(x.R * x.size), weights(G * CHUNK),
          mixed(G * D), own(Products::room(G) + 16), keep(x.R), values((EACH + x.size) * D), s(aligned(room.data())) {
        Products products(x, s + x.R * CHUNK);
        for (int64_t c = 0; c < x.size; c += CHUNK) {
            const int64_t n = std::min(CHUNK, x.size - c);
            products.scores(k + (x.length + c) * D, n, s, none);
            for (int64_t r = 0; r < x.R; r++) std::memcpy(&scratch[r * x.size + c], s + r * CHUNK, sizeof(float) * n);
        }
        for (int64_t c = from; c < to; c += CHUNK) {
            const int64_t there = std::max<int64_t>(0, std::min(CHUNK, x.length - c)), shared = there / EACH * EACH;
            if (there) products.scores(k + c * D, there, s, none);
            for (int64_t w = 0; w < x.W; w++) soften_path(w, c, (c - from) / CHUNK, there, out, taps);
            products.values(s, keep.data(), v + c * D, shared, out.o, none);
            std::memcpy(values.data(), v + (c + shared) * D, sizeof(E) * (there - shared) * D);
            for (int64_t w = 0; w < x.W; w++) mix_path(w, c, there, shared, out);
        }
    }

   private:
    // Its nodes that lie in the chunk at slot c, behind its committed slots, go to `path` -> how many slots it sees there.
    int64_t find(int64_t w, int64_t c, int64_t there) {
        const uint8_t* sees = x.mask + w * x.size;
        int64_t before = c + there - x.length;  // nodes of the path in chunks before
        path.clear();
        for (int64_t i = 0; i < x.size && there + static_cast<int64_t>(path.size()) < CHUNK; i++)
            if (sees[i] && before-- <= 0) path.push_back(i);
        return there + path.size();
    }

    // The rows of node w: scores to weights, in the order of its path.
    void soften_path(int64_t w, int64_t c, int64_t chunk, int64_t there, Part out, const Tap* taps) {
        const int64_t n = find(w, c, there), padded = (n + 15) / 16 * 16;
        const Queries visible = {nullptr, 1, 1, x.position + w, nullptr, nullptr, 0, c + n, x.window};
        for (int64_t r = w; r < x.R; r += x.W) {
            keep[r] = 1;
            if (!n) continue;
            float* row = s + r * CHUNK;
            for (size_t e = 0; e < path.size(); e++) row[there + e] = scratch[r * x.size + path[e]];
            for (int64_t j = n; j < padded; j++) row[j] = NONE;
            if (x.window) hide(row, visible, 0, c, n);
            keep[r] = soften_tapped(row, n, chunk, taps ? taps[r] : Tap{}, out.m[r], out.l[r], none);
        }
    }

    // Values of the slots that no other node has in the same place.
    void mix_path(int64_t w, int64_t c, int64_t there, int64_t shared, Part out) {
        const int64_t n = find(w, c, there) - shared, wide = std::min((n + EACH - 1) / EACH * EACH, CHUNK - shared);
        if (!n) return;
        for (size_t e = 0; e < path.size(); e++)
            std::memcpy(&values[(there - shared + e) * D], v + (x.length + path[e]) * D, sizeof(E) * D);
        for (int64_t g = 0; g < G; g++) {
            const int64_t r = g * x.W + w;
            std::memcpy(&weights[g * CHUNK], s + r * CHUNK + shared, sizeof(float) * wide);
            std::memcpy(&mixed[g * D], out.o + r * D, sizeof(float) * D);
        }
        const Queries node = {x.q, G, 1, nullptr, nullptr, nullptr, 0, 0, 0};
        const std::vector<float> ones(G, 1.0f);
        Products(node, aligned(own.data())).values(weights.data(), ones.data(), values.data(), n, mixed.data(), none);
        for (int64_t g = 0; g < G; g++) std::memcpy(out.o + (g * x.W + w) * D, &mixed[g * D], sizeof(float) * D);
    }
};
