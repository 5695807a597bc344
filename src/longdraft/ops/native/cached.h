// Attention of all rows of a pass over their caches: units of one block each, merged in order; and what is kept of scores.
#pragma once
#include <algorithm>
#include <type_traits>

#include "attention.h"
#include "paths.h"
#include "room.h"
#include "team.h"
#include "tiles.h"
#include "types.h"

// How a chunk's products are computed.
#ifdef __AMX_BF16__
template <typename E, int ND>
using Products = std::conditional_t<sizeof(E) == 2 && ND % 2 == 0, Tiles<ND>, Vectors<E, ND>>;
#else
template <typename E, int ND>
using Products = Vectors<E, ND>;
#endif

constexpr int64_t GRAIN = 8;  // units a thread takes at once: what it asks for ahead of time, it should be the one to read

// Bytes of partial results and scores that are held at a time (or one key head's of one row, where that is more), and bytes
// of all kinds that are kept from call to call: a wider call gives its memory back.
constexpr int64_t HELD = int64_t{64} << 20, KEPT = int64_t{128} << 20;

struct Work {
    Buffer<float> x, y, z, q, cs, m, l, o, lse, tap, top;
    Buffer<bf16> share;
    Buffer<int64_t> place;                   // [B,W]: which of the kept nodes a node is
    Buffer<char> own;                        // of each thread
    Buffer<int64_t> token, depth, position;  // of a chain
    Buffer<uint8_t> mask, seen;
    int64_t each = 0;  // bytes of `own` for one thread
    Team team;

    char* mine() const { return own.data() + omp_get_thread_num() * each; }
    int64_t bytes() const {
        int64_t total = 0;
        all(*this, [&](const auto& buffer) { total += buffer.bytes(); });
        return total;
    }
    void clear() {
        all(*this, [](auto& buffer) { buffer.clear(); });
    }

   private:
    template <typename W, typename Each>
    static void all(W& w, Each each) {
        each(w.x), each(w.y), each(w.z), each(w.q), each(w.cs), each(w.m), each(w.l), each(w.o), each(w.lse), each(w.tap), each(w.top);
        each(w.share), each(w.place), each(w.own), each(w.token), each(w.depth), each(w.position), each(w.mask), each(w.seen);
    }
};

// Pairs of a row and a key head, from `first` on, whose partial results are held together. widest: blocks of the longest row.
struct Wave {
    int64_t first, count, widest;
};

// Committed slots of a row, and scratch nodes behind them, as this layer sees them: a ring counts as scratch.
static int64_t committed(const Model& m, const Pass& p, int64_t layer, int64_t b) { return m.layer[layer].kind == OWN ? 0 : p.length[b]; }
static int64_t scratch(const Model& m, const Pass& p, int64_t layer) {
    const int64_t kind = m.layer[layer].kind;
    return kind == CROSS ? 0 : (kind == OWN ? p.ring : 0) + p.start + p.nodes;
}

static bool tapped(const Model& m, const Pass& p, int64_t layer) {
    return p.kept && !m.layer[layer].window && (p.only < 0 || p.only == layer);
}

// How many blocks a row's keys make: the picked ones, then the slots from `since` in blocks of absolute slots.
// Layers with a window ignore views.
static void blocks(const Model& m, const Pass& p, int64_t layer, int64_t b, int64_t& picked, int64_t& first, int64_t& slots) {
    const bool viewed = p.picks && !m.layer[layer].window && m.layer[layer].kind != OWN;
    const int64_t end = committed(m, p, layer, b) + scratch(m, p, layer), since = viewed ? p.since[b] : 0;
    picked = viewed ? (p.picks[layer * p.rows + b].n + BLOCK - 1) / BLOCK : 0;
    first = since / BLOCK;
    slots = std::max<int64_t>(0, (end + BLOCK - 1) / BLOCK - first);
}

// Chunks of a tapped row: PER to a block.
constexpr int64_t PER = BLOCK / CHUNK;
static int64_t chunks(const Pass& p) { return (p.most + p.start + p.nodes + BLOCK - 1) / BLOCK * PER; }
// A mean over all heads is taken every round, so what it is made of is kept small; one for each key head is taken once.
static bool shares(const Pass& p) { return p.weights && p.pooled && !p.split; }
static int64_t stride(const Pass& p) { return chunks(p) * CHUNK + 16; }  // a row's places: its blocks, each from its begin

// Where the scores of a wave's row go, from this slot on; slots are counted from `lo`, where the unit begins. row: of the
// wave's pairs, each with G query heads of p.kept nodes.
static Tap tap_of(const Pass& p, Work& t, int64_t row, int64_t lo, int64_t slot) {
    const int64_t at = row * stride(p) + lo / BLOCK * BLOCK + slot - lo;
    if (!shares(p)) return {&t.tap[at], nullptr, nullptr};
    return {nullptr, &t.share[at], &t.top[row * chunks(p) + lo / BLOCK * PER + (slot - lo) / CHUNK]};
}

// Bytes that a thread needs for attention.
template <typename E, int ND>
static int64_t attention_room(int64_t R, int64_t G, int64_t size) {
    Cut taps, keys, tail;
    taps.take<Tap>(R);
    KeysRoom<Products<E, ND>> of_keys(keys, R);
    TailRoom<E, ND, Products<E, ND>> of_tail(tail, R, G, size);
    return taps.bytes() + std::max(keys.bytes(), tail.bytes());
}

template <typename E, int ND>
static void attend(const Model& m, const Pass& p, int64_t layer, Work& t, const Wave& wave) {
    using How = Products<E, ND>;
    const int64_t D = m.dim, G = m.groups, K = m.keys, W = p.nodes, R = G * W, size = scratch(m, p, layer), kind = m.layer[layer].kind;
    const int64_t widest = wave.widest;
    const bool tap = tapped(m, p, layer);
    const typename How::Setup setup(R);
    const int64_t units = wave.count * widest, grain = std::max<int64_t>(1, std::min<int64_t>(GRAIN, units / 16));
    Cut cut(t.mine());
    Tap* taps = cut.take<Tap>(R);  // then the keys' room or the tail's: one is done before the other begins
#pragma omp for schedule(dynamic, grain) nowait
    for (int64_t unit = 0; unit < units; unit++) {
        const int64_t pair = unit / widest, b = (wave.first + pair) / K, h = (wave.first + pair) % K, i = unit % widest;
        int64_t picked, base, slots;
        blocks(m, p, layer, b, picked, base, slots);
        if (i >= picked + slots) continue;
        const int64_t at = unit * R;
        const Part part = {&t.m[at], &t.l[at], &t.o[at * D]};
        const int64_t length = committed(m, p, layer, b);
        const uint8_t* mask = kind == OWN ? p.seen : p.mask;
        const Queries x = {&t.q[(b * K + h) * R * D], R, W, p.position + b * W, p.depth + b * size, mask + b * W * size,
                           size, length, m.layer[layer].window};
        nothing(part, R, D);
        Cut rest = cut;
        const KeysRoom<How> room(rest, R);
        if (i < picked) {
            const Picked& from = p.picks[layer * p.rows + b];
            const int64_t lo = i * BLOCK, n = std::min(BLOCK, from.n - lo), skip = (h * from.pitch + lo) * D;
            attend_keys<E, ND, How>(x, static_cast<const E*>(from.k) + skip, static_cast<const E*>(from.v) + skip, n, -1, part, nullptr, room);
            continue;
        }
        const int64_t since = p.picks && !x.window && kind != OWN ? p.since[b] : 0, end = length + size;
        const int64_t hi = std::min((base + i - picked + 1) * BLOCK, end);
        int64_t lo = std::max((base + i - picked) * BLOCK, since);
        if (x.window) lo = std::min(hi, std::max(lo, (length - x.window + 1) / CHUNK * CHUNK));
        const E *k = static_cast<const E*>(p.k[layer]) + (b * K + h) * p.slots[layer] * D, *v = static_cast<const E*>(p.v[layer]) + (b * K + h) * p.slots[layer] * D;
        std::fill(taps, taps + (tap ? R : 0), Tap{});
        const auto tapping = [&](int64_t slot) {
            if (tap)
                for (int64_t g = 0; g < G; g++)
                    for (int64_t r = 0; r < p.kept; r++) {
                        const int64_t node = p.keep[p.kept * b + r];
                        taps[g * W + node] = tap_of(p, t, (pair * G + g) * p.kept + t.place[b * W + node], lo, slot);
                    }
            return tap ? taps : nullptr;
        };
        // A draft's numbers may be what they are; those of a verified tree are plain decoding's to the bit.
        const bool paths = kind == WHOLE && !p.picks && hi > length && any_apart(x);
        const int64_t split = paths ? lo + std::max<int64_t>(0, length - lo) / CHUNK * CHUNK : hi;
        attend_keys<E, ND, How>(x, k + lo * D, v + lo * D, split - lo, lo, part, tapping(lo), room);
        if (!paths) continue;
        Tail<E, ND, How>(x, k, v, part, tapping(split), split, hi, cut);
    }
    t.team.wait();
}

// Merge the blocks of a wave's query rows, each row's in order: y [T,H*D].
static void gather(const Model& m, const Pass& p, int64_t layer, Work& t, const Wave& wave, float* y) {
    const int64_t D = m.dim, G = m.groups, K = m.keys, W = p.nodes, R = G * W;
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < wave.count * R; unit++) {
        const int64_t pair = unit / R, b = (wave.first + pair) / K, h = (wave.first + pair) % K, r = unit % R, g = r / W, w = r % W;
        int64_t picked, base, slots;
        blocks(m, p, layer, b, picked, base, slots);
        const int64_t at = pair * wave.widest * R + r, n = picked + slots;
        float top = NONE, total = 0;
        for (int64_t i = 0; i < n; i++) top = std::fmax(top, t.m[at + i * R]);
        float* out = y + (b * W + w) * m.heads * D + (h * G + g) * D;
        std::memset(out, 0, sizeof(float) * D);
        for (int64_t i = 0; i < n; i++) {
            const float share = std::exp(t.m[at + i * R] - top);
            total += t.l[at + i * R] * share;
            const float* o = &t.o[(at + i * R) * D];
            for (int64_t d = 0; d < D; d += 16) store(out + d, load(out + d) + load(o + d) * share);
        }
        if (!n) continue;  // nothing to see yet
        for (int64_t d = 0; d < D; d += 16) store(out + d, load(out + d) / total);
        t.lse[(b * m.heads + h * G + g) * W + w] = top + std::log(total);
    }
    t.team.wait();
}

// Means over heads (all, or those of a key head), and rows if pooled, of the kept nodes' scores on slots 0..root: a chunk
// at a time, as attend_keys went through them. A mean over heads of several waves goes on where the wave before has left it.
static void reduce(const Model& m, const Pass& p, int64_t layer, Work& t, const Wave& wave) {
    const int64_t all = chunks(p), rows = p.pooled ? 1 : p.kept, each = p.kept / rows, K = m.keys;
    const int64_t columns = p.split ? K : 1, keys = K / columns, end = wave.first + wave.count;
    const int64_t b0 = wave.first / K, b1 = (end + K - 1) / K;
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < (b1 - b0) * rows * columns * all; unit++) {
        const int64_t chunk = unit % all, c = unit / all % columns, r = unit / all / columns % rows;
        const int64_t b = b0 + unit / all / columns / rows, since = p.picks ? p.since[b] : 0;
        const int64_t block = std::max(chunk / PER * BLOCK, since), lo = block + chunk % PER * CHUNK;
        const int64_t hi = std::min({lo + CHUNK, (chunk / PER + 1) * BLOCK, p.length[b] + 1});
        const int64_t from_key = std::max(c * keys, wave.first - b * K), to_key = std::min((c + 1) * keys, end - b * K);
        if (lo >= hi || from_key >= to_key) continue;
        float* out = p.scores + (((layer * p.rows + b) * rows + r) * columns + c) * p.most;
        v16 total[CHUNK / 16] = {};
        const auto lanes = [&](int64_t s) { return sizeof(float) * std::min<int64_t>(16, hi - lo - s); };
        for (int64_t s = 0; from_key > c * keys && s < hi - lo; s += 16) std::memcpy(&total[s / 16], out + lo + s, lanes(s));
        for (int64_t h = from_key * m.groups; h < to_key * m.groups; h++)
            for (int64_t i = r * each; i < (r + 1) * each; i++) {
                const int64_t node = p.keep[p.kept * b + i];
                const int64_t row = ((b * K - wave.first) * m.groups + h) * p.kept + t.place[b * p.nodes + node];
                const int64_t from = row * stride(p) + chunk * CHUNK;
                const float lse = t.lse[(b * m.heads + h) * p.nodes + node], share = shares(p) ? std::exp(t.top[row * all + chunk] - lse) : 1.0f;
                for (int64_t s = 0; s < hi - lo; s += 16) {
                    if (shares(p))
                        total[s / 16] += load(&t.share[from + s]) * share;
                    else
                        total[s / 16] += p.weights ? vexp(load(&t.tap[from + s]) - lse) : load(&t.tap[from + s]);
                }
            }
        for (int64_t s = 0; s < hi - lo; s += 16) {
            const v16 mean = to_key == (c + 1) * keys ? total[s / 16] / splat(keys * m.groups * each) : total[s / 16];
            std::memcpy(out + lo + s, &mean, lanes(s));
        }
    }
}
