// What is checked before a pass touches memory.
#pragma once
#include <algorithm>
#include <cmath>

#include "draw.h"
#include "guard.h"
#include "scales.h"
#include "work.h"

static bool fits(const Linear& f, int64_t outputs, int64_t inputs) {
    if (!f.weight || f.outputs != outputs || f.inputs != inputs) return false;
    return f.format == NUMBERS ? !f.interleaved : packed_fits(f);
}

static bool mlp_fits(const Layer& f, const Model& m) {
    const int64_t inner = f.up.outputs;
    if (!in_range(inner, 16, m.mlp) || inner % 16) return false;
    if (m.activation == CLAMPED && !f.gate.weight) return false;
    if (m.activation == XIELU && !f.slopes) return false;
    return (!f.gate.weight || fits(f.gate, inner, m.width)) && fits(f.up, inner, m.width) && fits(f.down, m.width, inner);
}

static bool fits(const Experts& f, const Model& m) {
    if (!in_range(f.count, 1, MANY) || !in_range(f.chosen, 1, f.count) || !in_range(f.scoring, SOFTMAX, SIGMOID)) return false;
    if (f.router.format != NUMBERS || !in_range(f.router.outputs, std::max<int64_t>(f.count, 16), MANY) || !fits(f.router, f.router.outputs, m.width)) return false;
    if (!f.up || !f.down || !std::isfinite(f.scale) || !std::isfinite(f.shared_scale)) return false;
    if (m.activation == XIELU || (m.activation == CLAMPED && !f.gate)) return false;
    if (!in_range(f.groups, 1, f.count) || f.count % f.groups || !in_range(f.chosen_groups, 1, f.groups)) return false;
    if (!in_range(f.group_bests, 1, 2)) return false;
    if (f.chosen > f.count / f.groups * f.chosen_groups) return false;
    const int64_t inner = f.up[0].outputs;
    if (!in_range(inner, 16, MANY) || inner % 16) return false;
    for (int64_t e = 0; e < f.count; e++)
        if ((f.gate && !fits(f.gate[e], inner, m.width)) || !fits(f.up[e], inner, m.width) || !fits(f.down[e], m.width, inner)) return false;
    return true;
}

// An MLP, experts, or both.
static bool second_half_fits(const Layer& f, const Model& m) {
    if (f.experts && !fits(*f.experts, m)) return false;
    return (f.experts && !f.down.weight) || mlp_fits(f, m);
}

static bool has_no_mlp(const Layer& f) { return !f.down.weight && !f.experts; }

// A layer whose mixer the caller computes.
static bool mixer_fits(const Layer& f, const Model& m) {
    for (const Linear* const linear : {&f.q, &f.k, &f.v}) {
        const bool left_out = linear != &f.q && !linear->weight && !linear->outputs;
        if (!left_out && (!in_range(linear->outputs, 16, MANY) || !fits(*linear, linear->outputs, m.width))) return false;
    }
    if (!in_range(f.o.inputs, 16, MANY) || f.o.inputs % 16 || !fits(f.o, m.width, f.o.inputs)) return false;
    return has_no_mlp(f) || (f.mlp_norm && !m.parallel && second_half_fits(f, m));
}

// Gates of attention's outputs, which have a projection of their own.
static bool gates_fit(const Linear& f, const Model& m) {
    const int64_t count = m.gates_heads ? m.heads : m.heads * m.head_dim;
    return !m.gated && in_range(f.outputs, std::max<int64_t>(count, 16), MANY) && fits(f, f.outputs, m.width);
}

// Attention to latents.
static bool latents_fit(const Layer& f, const Model& m) {
    const int64_t rotated = m.head_dim - m.rank, narrow = f.q_down.weight ? f.q_down.outputs : m.width;
    if (f.kind != DECODER || f.v.weight || f.gates.weight || !f.k_norm || !f.to_latent || !f.from_latent || f.sinks) return false;
    if (f.q_norm || f.q_norm_bias || f.k_norm_bias) return false;
    if (f.rotation >= 0 && 2 * (f.frequencies ? f.frequencies : m.frequencies) != rotated) return false;
    if (f.q_down.weight) {
        if (!in_range(narrow, 16, MANY) || narrow % 16 || !f.q_down_norm || !fits(f.q_down, narrow, m.width)) return false;
    }
    if (!fits(f.q, m.heads * (m.plain + rotated), narrow) || !fits(f.k, m.head_dim, m.width)) return false;
    if (!fits(f.o, m.width, m.heads * m.value)) return false;
    for (int64_t h = 0; h < m.heads; h++)
        if (!fits(f.to_latent[h], m.rank, m.plain) || !fits(f.from_latent[h], m.value, m.rank)) return false;
    return true;
}

static bool heads_fit(const Layer& f, const Model& m, int64_t width) {
    if (m.rank) return latents_fit(f, m);
    const int64_t q = m.heads * m.head_dim, kv = m.key_heads * m.head_dim;
    if (f.q_down.weight || f.to_latent || f.from_latent) return false;
    if (f.kind != KEYS && (!fits(f.q, m.gated ? 2 * q : q, width) || !fits(f.o, m.width, q))) return false;
    return f.kind == CROSS || (fits(f.k, kv, width) && fits(f.v, kv, width));
}

// The sizes of latents.
static bool latents_fit(const Model& m) {
    if (!m.rank) return !m.plain && !m.value && !m.put_apart;
    if (m.key_heads != 1 || m.gated || m.joint_norms || m.late_norms || m.limit || m.layer_norms || m.start != EMBEDDING) return false;
    for (const int64_t n : {m.rank, m.plain, m.value, m.head_dim - m.rank})
        if (!in_range(n, 16, MANY) || n % 16) return false;
    if (m.head_dim - m.rank > MOST_ROTATED || m.value > m.head_dim || 2 * m.frequencies > m.head_dim - m.rank) return false;
    return in_range(m.put_apart, 0, 1) && std::isfinite(m.latent_eps);
}

static bool has_features(const Model& m) { return m.start == FUSED || m.start == BESIDE; }

static bool fits(const Layer& f, const Model& m) {
    const bool first = &f == m.layer, beside = first && m.start == BESIDE;
    const int64_t width = beside ? 2 * m.width : m.width;
    if (!in_range(f.rotation, -1, m.more_rotations) || !in_range(f.frequencies, 0, m.frequencies)) return false;
    if (f.gates.weight && (f.kind != DECODER || !gates_fit(f.gates, m))) return false;
    const bool begins = first && has_features(m);
    if (f.kind == ALONE) return m.start == EMBEDDING && f.mlp_norm && !m.parallel && second_half_fits(f, m);
    if (!in_range(f.kind, DECODER, KEYS) || f.window < 0 || !(f.cap >= 0 && std::isfinite(f.cap))) return false;
    if (!f.input_norm && !f.mixer_output_norm && !begins) return false;
    if (f.kind == RECURRENT) return mixer_fits(f, m) && m.start == EMBEDDING;
    if (!heads_fit(f, m, width)) return false;
    if (has_no_mlp(f) || f.kind == KEYS) return true;
    return (f.mlp_norm || f.mlp_output_norm || m.parallel) && second_half_fits(f, m);
}

static bool start_fits(const Model& m) {
    if (!in_range(m.start, EMBEDDING, BESIDE) || !in_range(m.feature_first, 0, 1)) return false;
    if (!in_range(m.continues, 0, m.layers + 1)) return false;
    if (m.start == FUSED) return fits(m.fuse, m.width, 2 * m.width);
    return m.start == EMBEDDING || !m.fuse.weight || (in_range(m.fuse.inputs, 16, MANY) && fits(m.fuse, m.width, m.fuse.inputs));
}

static bool head_fits(const Model& m) {
    const int64_t n = m.head.outputs;
    if (!in_range(n, 1, m.vocab) || !fits(m.head, n, m.width)) return false;
    if (!m.head_tokens) return n == m.vocab || m.start != EMBEDDING;
    return std::all_of(m.head_tokens, m.head_tokens + n, [&](int64_t token) { return in_range(token, 0, m.vocab - 1); });
}

static bool fits(const Model& m) {
    if (!in_range(m.layers, m.start == GIVEN ? 0 : 1, MANY) || !start_fits(m)) return false;
    for (const int64_t n : {m.width, m.heads, m.key_heads, m.groups, m.head_dim, m.vocab})
        if (!in_range(n, 1, MANY)) return false;
    if (!in_range(m.mlp, 0, MANY)) return false;
    if (!in_range(m.more_rotations, 0, MANY) || !in_range(m.activation, SILU, XIELU)) return false;
    for (const float x : {m.embedding_scale, m.residual_scale, m.logit_divisor, m.logit_cap, m.growth})
        if (!std::isfinite(x)) return false;
    if (!in_range(m.gates_heads, 0, 1) || !in_range(m.gate_function, SIGMOID_GATE, SOFTPLUS)) return false;
    if (!(m.limit >= 0 && std::isfinite(m.limit)) || (m.growth && !(m.span > 0 && std::isfinite(m.span)))) return false;
    if (m.heads != m.key_heads * m.groups || !in_range(m.frequencies, 1, m.head_dim / 2)) return false;
    if (!latents_fit(m)) return false;
    if (m.positions && (!in_range(m.first_position, 0, MANY) || !in_range(m.position_count, m.first_position + 1, MANY))) return false;
    if (!std::isfinite(m.mlp_limit) || !std::isfinite(m.mlp_slope)) return false;
    if (m.width % 16 || m.vocab < 16) return false;
    if (!m.inv_freq || !m.embed || !m.layer || !head_fits(m)) return false;
    return std::all_of(m.layer, m.layer + m.layers, [&](const Layer& f) { return fits(f, m); });
}

// Slots that a layer reads or writes in a row with this many committed slots and scratch nodes.
static int64_t slots_needed(const Pass& p, LayerKind kind, int64_t length, int64_t scratch) {
    return kind == RING ? p.ring + scratch : kind == CROSS ? length : length + scratch;
}

static bool fits(const Selected& from) {
    if (from.bits && from.bits != 4 && from.bits != 8) return false;
    return in_range(from.count, 0, MANY) && (!from.count || (from.k && from.v && in_range(from.stride, from.count, MANY)));
}

// Whether keys and values can be codes: those of latents are one.
static bool has_codes(const Model& m) { return !m.rank && m.head_dim <= WIDEST_CODED; }

// The cache and the view, for this many scratch nodes.
static Code check_keys(const Model& m, const Pass& p, int64_t scratch) {
    if (!p.cache && m.layers) return BAD_SLOTS;
    for (int64_t layer = 0; layer < m.layers; layer++) {
        const LayerKind kind = m.layer[layer].kind;
        if (kind == RECURRENT || kind == ALONE) continue;
        const LayerCache& cache = p.cache[layer];
        if (!cache.k || !cache.v || !in_range(cache.slots, 0, MANY) || (cache.bits && cache.bits != 8)) return BAD_SLOTS;
        if (cache.bits && !has_codes(m)) return BAD_SLOTS;
        if (kind == RING && ((!p.ring_mask && scratch) || cache.bits)) return BAD_SLOTS;
        for (int64_t b = 0; b < p.rows; b++) {
            if (slots_needed(p, kind, p.length[b], scratch) > cache.slots) return BAD_SLOTS;
            if (p.selected && !fits(p.selected[layer * p.rows + b])) return BAD_VIEW;
            if (p.selected && p.selected[layer * p.rows + b].bits && !has_codes(m)) return BAD_VIEW;
        }
    }
    for (int64_t b = 0; p.selected && b < p.rows; b++)
        if (!p.tail_start || !in_range(p.tail_start[b], 0, MANY)) return BAD_VIEW;
    return DONE;
}

// The scores and states to be kept.
static Code check_kept(const Model& m, const Pass& p) {
    if (p.scored) {
        if (!in_range(p.scored, 1, MANY) || !p.score_nodes || !p.scores) return BAD_SCORES;
        if (!in_range(p.score_layer, -1, m.layers - 1)) return BAD_SCORES;
        for (int64_t i = 0; i < p.rows * p.scored; i++)
            if (!in_range(p.score_nodes[i], 0, p.nodes - 1)) return BAD_SCORES;
        const int64_t longest = *std::max_element(p.length, p.length + p.rows);
        if (!in_range(p.score_slots, longest + 1, MANY)) return BAD_SCORES;
    }
    for (int64_t i = 0; i < p.state_count; i++)
        if (!p.states || !in_range(p.state_layers[i], 0, m.layers + 1)) return BAD_STATES;
    return DONE;
}

static Code check_tokens(const Model& m, const Pass& p) {
    for (int64_t i = 0; i < p.rows * p.nodes; i++)
        if (!in_range(p.tokens[i], 0, m.vocab - 1)) return BAD_TOKEN;
    return DONE;
}

static bool counts_fit(const Pass& p) {
    if (!in_range(p.rows, 1, MANY) || !in_range(p.nodes, 1, MANY) || p.rows * p.nodes >= MANY) return false;
    if (!in_range(p.start, 0, MANY) || !in_range(p.ring, 0, MANY) || !p.tokens || !p.length) return false;
    return std::all_of(p.length, p.length + p.rows, [](int64_t n) { return in_range(n, 0, MANY); });
}

static int64_t last_position(const Model& m) {
    return m.positions ? m.position_count - m.first_position - 1 : int64_t{1} << 40;
}

static bool nodes_fit(const Model& m, const Pass& p) {
    if (!counts_fit(p) || (!p.logits && !p.state_count) || !in_range(p.logit_nodes, 0, p.nodes)) return false;
    if (p.sources && (!m.fuse.weight || (m.start != BESIDE && m.start != GIVEN))) return false;
    if (m.start != EMBEDDING && !p.features && !p.sources) return false;
    if (!p.position || !p.depth) return false;
    if (!p.mask && std::any_of(m.layer, m.layer + m.layers, [](const Layer& f) { return f.kind == DECODER; })) return false;
    const int64_t nodes = p.rows * p.nodes, scratch = p.rows * (p.start + p.nodes), most = last_position(m);
    return std::all_of(p.position, p.position + nodes, [&](int64_t n) { return in_range(n, 0, most); }) &&
           std::all_of(p.depth, p.depth + scratch, [](int64_t n) { return in_range(n, -MANY, MANY); });
}

// The first RECURRENT layer of the rest of a pass; m.layers: it has none, and ends.
static int64_t stop(const Model& m, const Pass& p) {
    int64_t layer = p.resume;
    while (layer < m.layers && m.layer[layer].kind != RECURRENT) layer++;
    return layer;
}

static bool resumes(const Model& m, const Pass& p) {
    if (!in_range(p.resume, 0, m.layers) || (stop(m, p) < m.layers && !p.mixer_inputs)) return false;
    return !p.resume || (m.layer[p.resume - 1].kind == RECURRENT && p.mixed);
}

static Code check(const Model& m, const Pass& p) {
    if (!fits(m) || !resumes(m, p)) return BAD_MODEL;
    if (!nodes_fit(m, p)) return BAD_NODES;
    for (const Code code : {check_tokens(m, p), check_keys(m, p, p.start + p.nodes), check_kept(m, p)})
        if (code) return code;
    return DONE;
}

static bool penalties_fit(const Model& m, const Pass& p, const Chain& c) {
    for (int64_t b = 0; b < p.rows; b++) {
        if (!(c.penalty[b] > 0 && std::isfinite(c.penalty[b])) || !in_range(c.window[b], 1, MANY)) return false;
        if (c.penalty[b] != 1 && !c.recent) return false;
    }
    if (!c.recent) return true;
    if (!in_range(c.recent_count, 0, MANY)) return false;
    return std::all_of(c.recent, c.recent + p.rows * c.recent_count, [&](int64_t t) { return in_range(t, -1, m.vocab - 1); });
}

static Code check(const Model& m, const Pass& p, const Chain& c) {
    if (!fits(m) || p.resume || stop(m, p) < m.layers) return BAD_MODEL;
    if (!counts_fit(p) || p.nodes != 1 || p.scored || p.state_count || !p.logits || p.logit_nodes) return BAD_NODES;
    if (m.start == GIVEN || p.sources) return BAD_NODES;
    if (has_features(m) && (!p.features || !p.position || p.start)) return BAD_NODES;
    if (!in_range(c.count, 0, MANY) || !in_range(c.reach, 1, last_position(m) + !!m.positions)) return BAD_DRAW;
    if (!c.warpers || !c.penalty || !c.window || !c.seed || !c.position || (c.count && !c.drawn)) return BAD_DRAW;
    if (!std::all_of(c.warpers, c.warpers + p.rows, [](const Warpers& w) { return fits(w); })) return BAD_DRAW;
    if (!penalties_fit(m, p, c)) return BAD_DRAW;
    const Code code = check_tokens(m, p);
    return code ? code : check_keys(m, p, p.start + std::max<int64_t>(0, c.count - has_features(m)));
}

static Code check(const Model& m, const Pass& p, const Growth& g) {
    if (!fits(m) || !has_features(m) || std::any_of(m.layer, m.layer + m.layers, [](const Layer& f) { return f.kind != DECODER; }))
        return BAD_MODEL;
    if (!counts_fit(p) || p.nodes != 1 || p.start || p.scored || p.state_count || p.logit_nodes || p.sources) return BAD_NODES;
    if (!p.features || !p.position) return BAD_NODES;
    if (!in_range(g.topk, 1, std::min<int64_t>(m.head.outputs, 1024)) || !in_range(g.depth, 1, 1024) || !in_range(g.nodes, 2, MANY)) return BAD_DRAW;
    if (!g.warpers || !g.seed || !g.position || !g.count || !g.tokens || !g.parent) return BAD_DRAW;
    if (!std::all_of(g.warpers, g.warpers + p.rows, [](const Warpers& w) { return fits(w); })) return BAD_DRAW;
    const Code code = check_tokens(m, p);
    return code ? code : check_keys(m, p, (g.depth - 1) * g.topk);
}
