// Attention of all rows of a pass in one layer: units of one block of keys each.
#pragma once
#include <type_traits>

#include "attention.h"
#include "head_attention.h"
#include "integer_attention.h"
#include "kept_scores.h"
#include "pair_products.h"
#include "paths.h"
#include "tile_products.h"
#include "vector_products.h"
#include "work.h"

#ifdef __AMX_BF16__
template <typename E, int ND>
using CacheProducts = std::conditional_t<sizeof(E) == 2 && ND % 2 == 0, Tiles<ND>, Vectors<E, ND>>;
#elif defined(BF16_PAIRS)
template <typename E, int ND>
using CacheProducts = std::conditional_t<sizeof(E) == 2, PairVectors<ND>, Vectors<E, ND>>;
#else
template <typename E, int ND>
using CacheProducts = Vectors<E, ND>;
#endif

static_assert(PathsMemory<CodedBlock<8>, 4, IntegerVectors<4, 8>>::EACH % GROUP == 0, "a path divides no group");

constexpr int64_t GRAIN = 8;  // units that a thread takes at once, so that it reads the keys that it has prefetched

// The blocks of a wave, as one thread of a parallel region computes them.
template <typename E, int ND>
class LayerAttention {
    using P = CacheProducts<E, ND>;
    using Coded = IntegerVectors<ND, 8>;  // of a cache of codes
    using Few = IntegerVectors<ND, 4>;    // of a draft's copy of them
    static constexpr bool CODED = 16 * ND <= WIDEST_CODED;  // wider slots are not coded
    const LayerPass& x;
    const Pass& p;
    Work& t;
    const Wave& wave;
    const int64_t D = x.m.head_dim, G = x.m.groups, K = x.m.key_heads, W = p.nodes, R = G * W;
    Arena arena;
    ScoreSink* sinks;  // [R], of the slots that are being read

    // A block of the keys of a pair of row and key head.
    struct Unit {
        int64_t pair, row, head, block;
        Partial partial;
    };

   public:
    // Bytes that a thread needs.
    static int64_t bytes(int64_t R, int64_t G, int64_t scratch) {
        Arena sinks, keys, paths, coded, coded_paths;
        sinks.array<ScoreSink>(R);
        KeysMemory<P> of_keys(keys, R);
        PathsMemory<E, ND, P> of_paths(paths, R, G, scratch);
        if constexpr (CODED) {
            KeysMemory<Coded> of_codes(coded, R);  // of 4 bits they need as much
            PathsMemory<CodedBlock<8>, ND, Coded> of_coded_paths(coded_paths, R, G, scratch);
        }
        const int64_t most = std::max({keys.bytes(), paths.bytes(), coded.bytes(), coded_paths.bytes()});
        return sinks.bytes() + most;  // one of them is used at a time
    }

    // Called by every thread of a parallel region.
    static void run(const LayerPass& x, Work& t, const Wave& wave) { LayerAttention(x, t, wave).run(); }

   private:
    LayerAttention(const LayerPass& x, Work& t, const Wave& wave)
        : x(x), p(x.p), t(t), wave(wave), arena(t.mine()), sinks(arena.array<ScoreSink>(R)) {}

    void run() {
        const typename P::Setup setup(R);
        const int64_t widest = wave.widest, units = wave.count * widest;
        const int64_t grain = std::max<int64_t>(1, std::min<int64_t>(GRAIN, units / 16));
#pragma omp for schedule(dynamic, grain) nowait
        for (int64_t i = 0; i < units; i++) {
            const int64_t pair = i / widest, row = (wave.first + pair) / K, block = i % widest, at = i * R;
            if (block >= x.blocks(row)) continue;
            const Partial partial = {&t.block_max[at], &t.block_sum[at], &t.block_out[at * D]};
            const Unit unit = {pair, row, (wave.first + pair) % K, block, partial};
            clear(partial, R, D);
            if (block < x.selected_blocks(row))
                selected(unit);
            else
                cached(unit);
        }
    }

    Queries queries(const Unit& unit) const {
        const int64_t b = unit.row, scratch = x.scratch;
        const uint8_t* mask = (x.kind == RING ? p.ring_mask : p.mask) + b * W * scratch;
        const float* q = &t.queries[(b * K + unit.head) * R * D];
        const float* offset = p.cache[x.layer].key_offset;
        if (offset) offset += unit.head * D;
        return {q, R, W, p.position + b * W, p.depth + b * scratch, mask, scratch, x.committed(b), x.window, x.cap, offset};
    }

    void selected(const Unit& unit) {
        const Selected& from = x.selected(unit.row);
        if constexpr (CODED) {
            if (from.bits == 8) return selected<Coded, CodedBlock<8>>(unit, from);
            if (from.bits) return selected<Few, CodedBlock<4>>(unit, from);
        }
        selected<P, E>(unit, from);
    }

    void cached(const Unit& unit) {
        if constexpr (CODED)
            if (p.cache[x.layer].bits) return cached<Coded, CodedBlock<8>>(unit);
        cached<P, E>(unit);
    }

    // Of products Q; S is an element of a key.
    template <typename Q, typename S>
    void selected(const Unit& unit, const Selected& from) {
        const int64_t begin = unit.block * BLOCK, skip = (unit.head * from.stride + begin) * Q::KEY;
        const S *k = static_cast<const S*>(from.k) + skip, *v = static_cast<const S*>(from.v) + skip;
        add<Q>(queries(unit), k, v, std::min(BLOCK, from.count - begin), -1, unit.partial, nullptr);
    }

    // A block of the cache's slots, from where the view or the window begins. In a verify pass, the part that holds scratch nodes
    // is computed along each path if that makes a difference; a draft need not equal plain decoding to the bit.
    template <typename Q, typename S>
    void cached(const Unit& unit) {
        const int64_t b = unit.row, length = x.committed(b), block = x.first_block(b) + unit.block - x.selected_blocks(b);
        const int64_t end = std::min((block + 1) * BLOCK, length + x.scratch);
        int64_t begin = std::max(block * BLOCK, x.tail_start(b));
        if (x.window) begin = std::min(end, std::max(begin, (length - x.window + 1) / CHUNK * CHUNK));
        const LayerCache& cache = p.cache[x.layer];
        const int64_t skip = (b * K + unit.head) * cache.slots * Q::KEY;
        const S *k = static_cast<const S*>(cache.k) + skip, *v = static_cast<const S*>(cache.v) + skip;
        const Queries q = queries(unit);
        const bool paths = x.kind == DECODER && !p.selected && !p.approximate && end > length && any_has_gaps(q);
        const int64_t split = paths ? begin + std::max<int64_t>(0, length - begin) / CHUNK * CHUNK : end;
        std::fill(sinks, sinks + (x.scored ? R : 0), ScoreSink{});
        add<Q>(q, k + begin * Q::KEY, v + begin * Q::KEY, split - begin, begin, unit.partial, sinks_at(unit, begin, begin));
        if (paths) PathAttention<S, ND, Q>(q, k, v, unit.partial, sinks_at(unit, begin, split), arena).add(split, end);
    }

    template <typename Q, typename S>
    void add(const Queries& q, const S* k, const S* v, int64_t n, int64_t first, Partial partial, const ScoreSink* sinks) {
        Arena rest = arena;
        attend_keys<Q>(q, k, v, n, first, partial, sinks, KeysMemory<Q>(rest, R));
    }

    // Points the rows whose scores are kept to their places from this slot on; null where no scores are kept.
    const ScoreSink* sinks_at(const Unit& unit, int64_t begin, int64_t slot) {
        if (!x.scored) return nullptr;
        for (int64_t g = 0; g < G; g++)
            for (int64_t i = 0; i < p.scored; i++) {
                const int64_t node = p.score_nodes[p.scored * unit.row + i];
                const int64_t row = (unit.pair * G + g) * p.scored + t.score_row[unit.row * W + node];
                sinks[g * W + node] = sink_of(p, t, row, begin, slot);
            }
        return sinks;
    }
};

template <typename E, int... D>
static HeadAttention head_attention(int64_t dim, std::integer_sequence<int, D...>) {
    HeadAttention found = {};
    ((dim == D && (found = {LayerAttention<E, D / 16>::bytes, LayerAttention<E, D / 16>::run}, true)) || ...);
    return found;
}

template <typename E>
HeadAttention head_attention(int64_t dim) {
    return head_attention<E>(dim, HeadDims());
}
