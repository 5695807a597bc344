// What a pass is checked for before it touches memory.
#pragma once
#include <algorithm>
#include <cmath>

#include "codes.h"
#include "types.h"

static bool fits(const Linear& f, int64_t out, int64_t in) { return f.w && f.out == out && f.in == in; }

static bool fits(const Layer& f, const Model& m) {
    const int64_t q = m.heads * m.dim, kv = m.keys * m.dim;
    const bool own_keys = f.kind == CROSS || (fits(f.k, kv, m.d) && fits(f.v, kv, m.d));
    const bool mlp = f.kind == OWN || (f.norm2 && fits(f.gate, m.mlp, m.d) && fits(f.up, m.mlp, m.d) && fits(f.down, m.d, m.mlp));
    return from_to(f.kind, WHOLE, CROSS) && f.window >= 0 && f.norm1 && fits(f.q, q, m.d) && fits(f.o, m.d, q) && own_keys && mlp;
}

static bool fits(const Model& m) {
    for (const int64_t n : {m.layers, m.d, m.heads, m.keys, m.groups, m.dim, m.mlp, m.vocab})
        if (!from_to(n, 1, MANY)) return false;
    if (m.heads != m.keys * m.groups || m.turns * 2 != m.dim || m.d % 16 || m.mlp % 16 || m.vocab < 16) return false;
    if (!m.inv_freq || !m.embed || !m.layer || !fits(m.head, m.vocab, m.d)) return false;
    return std::all_of(m.layer, m.layer + m.layers, [&](const Layer& f) { return fits(f, m); });
}

// Slots that a layer of this kind reads or writes in a row of so many committed ones. nodes: all those of scratch.
static int64_t slots_of(const Pass& p, int64_t kind, int64_t length, int64_t nodes) {
    return kind == OWN ? p.ring + nodes : kind == CROSS ? length : length + nodes;
}

// Where the keys of every row lie. nodes: how many there will be in scratch.
static Code places(const Model& m, const Pass& p, int64_t nodes) {
    for (int64_t layer = 0; layer < m.layers; layer++) {
        const int64_t kind = m.layer[layer].kind, slots = p.slots[layer];
        if (!p.k[layer] || !p.v[layer] || !from_to(slots, 0, MANY) || (kind == OWN && !p.seen)) return SLOTS;
        for (int64_t b = 0; b < p.rows; b++) {
            if (slots_of(p, kind, p.length[b], nodes) > slots) return SLOTS;
            if (!p.picks) continue;
            const Picked& from = p.picks[layer * p.rows + b];
            if (!from_to(from.n, 0, MANY) || (from.n && (!from.k || !from.v || !from_to(from.pitch, from.n, MANY)))) return VIEW;
        }
    }
    for (int64_t b = 0; p.picks && b < p.rows; b++)
        if (!p.since || !from_to(p.since[b], 0, MANY)) return VIEW;
    return DONE;
}

// The scores and states that are to be kept.
static Code kept(const Model& m, const Pass& p) {
    if (p.kept) {
        if (!from_to(p.kept, 1, MANY) || !p.keep || !p.scores || !from_to(p.only, -1, m.layers - 1)) return SCORES;
        for (int64_t i = 0; i < p.rows * p.kept; i++)
            if (!from_to(p.keep[i], 0, p.nodes - 1)) return SCORES;
        if (!from_to(p.most, 1 + *std::max_element(p.length, p.length + p.rows), MANY)) return SCORES;
    }
    for (int64_t i = 0; i < p.hiddens; i++)
        if (!p.states || !from_to(p.hidden[i], 0, m.layers)) return HIDDEN;
    return DONE;
}

static Code tokens(const Model& m, const Pass& p) {
    for (int64_t i = 0; i < p.rows * p.nodes; i++)
        if (!from_to(p.tokens[i], 0, m.vocab - 1)) return TOKEN;
    return DONE;
}

static bool counts(const Pass& p) {
    if (!from_to(p.rows, 1, MANY) || !from_to(p.nodes, 1, MANY) || !from_to(p.start, 0, MANY) || !from_to(p.ring, 0, MANY)) return false;
    return p.tokens && p.length && p.rows * p.nodes < MANY && std::all_of(p.length, p.length + p.rows, [](int64_t n) { return from_to(n, 0, MANY); });
}

static Code check(const Model& m, const Pass& p) {
    if (!fits(m)) return MODEL;
    if (!counts(p) || !p.logits || !p.position || !p.depth) return NODES;
    if (!p.mask && std::any_of(m.layer, m.layer + m.layers, [](const Layer& f) { return f.kind == WHOLE; })) return NODES;
    for (int64_t i = 0; i < p.rows * p.nodes; i++)
        if (!from_to(p.position[i], 0, int64_t{1} << 40)) return NODES;
    for (int64_t i = 0; i < p.rows * (p.start + p.nodes); i++)
        if (!from_to(p.depth[i], -MANY, MANY)) return NODES;
    for (const Code code : {tokens(m, p), places(m, p, p.start + p.nodes), kept(m, p)})
        if (code) return code;
    return DONE;
}

// A chain from node `start` on: the pass's own nodes, depth, position and mask are not read.
static Code check(const Model& m, const Pass& p, const Chain& c) {
    if (!fits(m)) return MODEL;
    if (!counts(p) || p.nodes != 1 || p.kept || p.hiddens || !p.logits) return NODES;
    if (!from_to(c.count, 0, MANY) || !from_to(c.reach, 1, int64_t{1} << 40) || !(c.temperature >= 0 && std::isfinite(c.temperature))) return DRAWS;
    if (c.count && (!c.seed || !c.at || !c.drawn)) return DRAWS;
    const Code code = tokens(m, p);
    return code ? code : places(m, p, p.start + c.count);
}
