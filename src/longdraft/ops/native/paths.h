// Attention over the last committed slots and the scratch nodes of a tree, in the order that plain decoding would have: the
// nodes of a path side by side after the committed slots. So a node's sums are plain decoding's to the bit, whatever nodes lie
// between its ancestors in scratch.
#pragma once
#include "attention.h"

// Whether a node that sees these scratch nodes has others between them. Not for padding, which does not see the root.
static inline bool has_gaps(const uint8_t* sees, int64_t scratch) {
    const void* gap = sees[0] ? std::memchr(sees, 0, scratch) : nullptr;
    return gap && std::memchr(gap, 1, scratch - (static_cast<const uint8_t*>(gap) - sees));
}

static inline bool any_has_gaps(const Queries& x) {
    for (int64_t w = 0; w < x.W; w++)
        if (has_gaps(x.mask + w * x.scratch, x.scratch)) return true;
    return false;
}

// What a thread needs for PathAttention of R rows, G of each node, over this many scratch nodes. E: an element of a key, of which
// a key has `KeyProducts::KEY`.
template <typename E, int ND, typename KeyProducts>
struct PathsMemory {
    static constexpr int64_t D = 16 * ND, KEY = KeyProducts::KEY;
    static constexpr int64_t EACH = 32;  // values that are added at once; attend_keys' order divides by it
    float *scores, *products, *scratch_scores, *node_weights, *node_out, *node_products, *keep, *ones;
    E* values;
    int64_t* path;
    PathsMemory(Arena& arena, int64_t R, int64_t G, int64_t scratch)
        : scores(arena.array<float>(R * CHUNK)), products(arena.array<float>(KeyProducts::floats(R))),
          scratch_scores(arena.array<float>(R * scratch)), node_weights(arena.array<float>(G * CHUNK)),
          node_out(arena.array<float>(G * D)), node_products(arena.array<float>(KeyProducts::floats(G))),
          keep(arena.array<float>(R)), ones(arena.array<float>(G)), values(arena.array<E>((EACH + scratch) * KEY)),
          path(arena.array<int64_t>(CHUNK)) {}
};

// Adds slots [from, to), as each node sees them, to a partial result. k, v: slot 0 of the head. One product gives the scores
// of all rows, wherever a key lies. Values of committed slots are added for all rows at once, those of a path for its node.
template <typename E, int ND, typename KeyProducts>
class PathAttention {
    using Memory = PathsMemory<E, ND, KeyProducts>;
    static constexpr int64_t D = Memory::D, KEY = Memory::KEY, EACH = Memory::EACH;
    const Queries& x;
    const E *k, *v;
    const Partial partial;
    const ScoreSink* sinks;  // as in attend_keys
    const int64_t G;
    const Memory t;
    int64_t found = 0;  // nodes in t.path
    Prefetch none;

   public:
    PathAttention(const Queries& x, const E* k, const E* v, Partial partial, const ScoreSink* sinks, Arena arena)
        : x(x), k(k), v(v), partial(partial), sinks(sinks), G(x.R / x.W), t(arena, x.R, G, x.scratch) {}

    void add(int64_t from, int64_t to) {
        std::fill(t.ones, t.ones + G, 1.0f);
        KeyProducts products(x, t.products);
        score_scratch(products);
        for (int64_t c = from; c < to; c += CHUNK) {
            const int64_t committed = std::max<int64_t>(0, std::min(CHUNK, x.length - c)), shared = committed / EACH * EACH;
            if (committed) products.scores(k + c * KEY, committed, t.scores, none);
            for (int64_t w = 0; w < x.W; w++) softmax_path(w, c, (c - from) / CHUNK, committed);
            products.values(t.scores, t.keep, v + c * KEY, shared, partial.out, none);
            std::memcpy(t.values, v + (c + shared) * KEY, sizeof(E) * (committed - shared) * KEY);
            for (int64_t w = 0; w < x.W; w++) add_path(w, c, committed, shared);
        }
    }

   private:
    // Scores of all scratch nodes for all rows, from which each path takes its own.
    void score_scratch(KeyProducts& products) {
        for (int64_t c = 0; c < x.scratch; c += CHUNK) {
            const int64_t n = std::min(CHUNK, x.scratch - c);
            products.scores(k + (x.length + c) * KEY, n, t.scores, none);
            for (int64_t r = 0; r < x.R; r++)
                std::memcpy(&t.scratch_scores[r * x.scratch + c], t.scores + r * CHUNK, sizeof(float) * n);
        }
    }

    // Puts the nodes of w's path that come after the committed slots of the chunk at slot c into t.path -> how many slots of
    // the chunk it sees.
    int64_t find(int64_t w, int64_t c, int64_t committed) {
        const uint8_t* sees = x.mask + w * x.scratch;
        int64_t before = c + committed - x.length;  // nodes of the path that lie in earlier chunks
        found = 0;
        for (int64_t i = 0; i < x.scratch && committed + found < CHUNK; i++)
            if (sees[i] && before-- <= 0) t.path[found++] = i;
        return committed + found;
    }

    // The rows of node w: their scores become weights, in the order of its path.
    void softmax_path(int64_t w, int64_t c, int64_t chunk, int64_t committed) {
        const int64_t n = find(w, c, committed), padded = (n + 15) / 16 * 16;
        const Queries visible = {nullptr, 1, 1, x.position + w, nullptr, nullptr, 0, c + n, x.window};
        for (int64_t r = w; r < x.R; r += x.W) {
            t.keep[r] = 1;
            if (!n) continue;
            float* row = t.scores + r * CHUNK;
            for (int64_t e = 0; e < found; e++) row[committed + e] = t.scratch_scores[r * x.scratch + t.path[e]];
            if (x.cap) cap_scores(row, padded, x.cap);
            for (int64_t j = n; j < padded; j++) row[j] = NONE;
            if (x.window) hide(row, visible, 0, c, n);
            const ScoreSink sink = sinks ? sinks[r] : ScoreSink{};
            t.keep[r] = softmax_kept(row, n, chunk, sink, partial.max[r], partial.sum[r], none);
        }
    }

    // Adds the values after the `shared` ones, which differ from node to node, to the rows of node w.
    void add_path(int64_t w, int64_t c, int64_t committed, int64_t shared) {
        const int64_t n = find(w, c, committed) - shared, wide = std::min((n + EACH - 1) / EACH * EACH, CHUNK - shared);
        if (!n) return;
        for (int64_t e = 0; e < found; e++)
            std::memcpy(&t.values[(committed - shared + e) * KEY], v + (x.length + t.path[e]) * KEY, sizeof(E) * KEY);
        for (int64_t g = 0; g < G; g++) {
            const int64_t r = g * x.W + w;
            std::memcpy(&t.node_weights[g * CHUNK], t.scores + r * CHUNK + shared, sizeof(float) * wide);
            std::memcpy(&t.node_out[g * D], partial.out + r * D, sizeof(float) * D);
        }
        const Queries node = {x.q, G, 1, nullptr, nullptr, nullptr, 0, 0, 0};
        KeyProducts(node, t.node_products).values(t.node_weights, t.ones, t.values, n, t.node_out, none);
        for (int64_t g = 0; g < G; g++)
            std::memcpy(partial.out + (g * x.W + w) * D, &t.node_out[g * D], sizeof(float) * D);
    }
};
