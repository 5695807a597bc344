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

// What a thread needs for a Tail of R rows, G of each node, over `size` scratch nodes.
template <typename E, int ND, typename Products>
struct TailRoom {
    static constexpr int64_t D = 16 * ND, EACH = 32;  // values that are mixed in one go: attend_keys' order, cut at these
    float *s, *products, *scratch, *weights, *mixed, *own, *keep, *ones;
    E* values;
    int64_t* path;
    TailRoom(Cut& cut, int64_t R, int64_t G, int64_t size)
        : s(cut.take<float>(R * CHUNK)), products(cut.take<float>(Products::room(R))), scratch(cut.take<float>(R * size)),
          weights(cut.take<float>(G * CHUNK)), mixed(cut.take<float>(G * D)), own(cut.take<float>(Products::room(G))), keep(cut.take<float>(R)),
          ones(cut.take<float>(G)), values(cut.take<E>((EACH + size) * D)), path(cut.take<int64_t>(CHUNK)) {}
};

// Slots [from, to) as each node sees them: committed ones, then its path. k, v: slot 0 of the head. One product gives every
// row's scores, wherever a key lies; values of the committed slots are mixed for all rows at once, those of a path for its
// node's. taps as in attend_keys.
template <typename E, int ND, typename Products>
class Tail {
    using Room = TailRoom<E, ND, Products>;
    static constexpr int64_t D = Room::D, EACH = Room::EACH;
    const Queries& x;
    const E *k, *v;
    const int64_t G;
    const Room t;
    int64_t found = 0;  // nodes in t.path
    Feed none;

   public:
    Tail(const Queries& x, const E* k, const E* v, Part out, const Tap* taps, int64_t from, int64_t to, Cut cut)
        : x(x), k(k), v(v), G(x.R / x.W), t(cut, x.R, G, x.size) {
        std::fill(t.ones, t.ones + G, 1.0f);
        Products products(x, t.products);
        for (int64_t c = 0; c < x.size; c += CHUNK) {
            const int64_t n = std::min(CHUNK, x.size - c);
            products.scores(k + (x.length + c) * D, n, t.s, none);
            for (int64_t r = 0; r < x.R; r++) std::memcpy(&t.scratch[r * x.size + c], t.s + r * CHUNK, sizeof(float) * n);
        }
        for (int64_t c = from; c < to; c += CHUNK) {
            const int64_t there = std::max<int64_t>(0, std::min(CHUNK, x.length - c)), shared = there / EACH * EACH;
            if (there) products.scores(k + c * D, there, t.s, none);
            for (int64_t w = 0; w < x.W; w++) soften_path(w, c, (c - from) / CHUNK, there, out, taps);
            products.values(t.s, t.keep, v + c * D, shared, out.o, none);
            std::memcpy(t.values, v + (c + shared) * D, sizeof(E) * (there - shared) * D);
            for (int64_t w = 0; w < x.W; w++) mix_path(w, c, there, shared, out);
        }
    }

   private:
    // Its nodes that lie in the chunk at slot c, behind its committed slots, go to `path` -> how many slots it sees there.
    int64_t find(int64_t w, int64_t c, int64_t there) {
        const uint8_t* sees = x.mask + w * x.size;
        int64_t before = c + there - x.length;  // nodes of the path in chunks before
        found = 0;
        for (int64_t i = 0; i < x.size && there + found < CHUNK; i++)
            if (sees[i] && before-- <= 0) t.path[found++] = i;
        return there + found;
    }

    // The rows of node w: scores to weights, in the order of its path.
    void soften_path(int64_t w, int64_t c, int64_t chunk, int64_t there, Part out, const Tap* taps) {
        const int64_t n = find(w, c, there), padded = (n + 15) / 16 * 16;
        const Queries visible = {nullptr, 1, 1, x.position + w, nullptr, nullptr, 0, c + n, x.window};
        for (int64_t r = w; r < x.R; r += x.W) {
            t.keep[r] = 1;
            if (!n) continue;
            float* row = t.s + r * CHUNK;
            for (int64_t e = 0; e < found; e++) row[there + e] = t.scratch[r * x.size + t.path[e]];
            for (int64_t j = n; j < padded; j++) row[j] = NONE;
            if (x.window) hide(row, visible, 0, c, n);
            t.keep[r] = soften_tapped(row, n, chunk, taps ? taps[r] : Tap{}, out.m[r], out.l[r], none);
        }
    }

    // Values of the slots that no other node has in the same place.
    void mix_path(int64_t w, int64_t c, int64_t there, int64_t shared, Part out) {
        const int64_t n = find(w, c, there) - shared, wide = std::min((n + EACH - 1) / EACH * EACH, CHUNK - shared);
        if (!n) return;
        for (int64_t e = 0; e < found; e++)
            std::memcpy(&t.values[(there - shared + e) * D], v + (x.length + t.path[e]) * D, sizeof(E) * D);
        for (int64_t g = 0; g < G; g++) {
            const int64_t r = g * x.W + w;
            std::memcpy(&t.weights[g * CHUNK], t.s + r * CHUNK + shared, sizeof(float) * wide);
            std::memcpy(&t.mixed[g * D], out.o + r * D, sizeof(float) * D);
        }
        const Queries node = {x.q, G, 1, nullptr, nullptr, nullptr, 0, 0, 0};
        Products(node, t.own).values(t.weights, t.ones, t.values, n, t.mixed, none);
        for (int64_t g = 0; g < G; g++) std::memcpy(out.o + (g * x.W + w) * D, &t.mixed[g * D], sizeof(float) * D);
    }
};
