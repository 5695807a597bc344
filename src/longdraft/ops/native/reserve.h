// The memory of a pass.
#pragma once
#include "experts.h"
#include "head_attention.h"
#include "kept_scores.h"
#include "products.h"

// Requests all memory of a pass -> the first wave of every layer.
static Wave reserve(const Model& m, const Pass& p, Work& t, const HeadAttention& attention, int64_t threads) {
    const int64_t T = p.rows * p.nodes, D = m.head_dim, H = m.heads, G = m.groups, K = m.key_heads, R = G * p.nodes;
    int64_t widest = 0, scratch = 0;
    for (int64_t layer = 0; layer < m.layers; layer++) {
        const LayerPass x = {m, p, layer};
        scratch = std::max(scratch, x.scratch);
        for (int64_t b = 0; b < p.rows; b++) widest = std::max(widest, x.blocks(b));
    }
    const int64_t bytes = widest * R * (D + 2) * sizeof(float) + score_bytes(p, G);
    const int64_t pairs = std::min(p.rows * K, std::max<int64_t>(1, HELD / std::max<int64_t>(1, bytes)));
    const int64_t beside = m.start == FUSED || m.start == BESIDE ? 2 * m.width : 0;
    t.residual.reserve(T * m.width), t.normed.reserve(T * std::max({m.width, H * D, beside}));
    t.kept_input.reserve(m.parallel ? T * m.width : 0);
    int64_t gates = 0;
    for (int64_t layer = 0; layer < m.layers; layer++) gates = std::max(gates, m.layer[layer].gates.outputs);
    const int64_t query = m.rank ? m.plain + D - m.rank : (m.gated ? 2 : 1) * D;
    t.projected.reserve(T * std::max({H * query + 2 * K * D + gates, 2 * m.mlp, m.width}));
    int64_t narrow = 0;
    for (int64_t layer = 0; layer < m.layers; layer++) narrow = std::max(narrow, m.layer[layer].q_down.outputs);
    t.by_head.reserve(T * H * std::max(m.plain, m.rank)), t.latent.reserve(T * std::max(H * std::max(m.rank, m.value), narrow));
    t.queries.reserve(T * H * D), t.rotation.reserve((1 + m.more_rotations) * T * D), t.lse.reserve(T * H);
    const int64_t partials = pairs * widest * R;
    t.block_max.reserve(partials), t.block_sum.reserve(partials), t.block_out.reserve(partials * D);
    reserve_scores(p, t, pairs, G);
    t.own_bytes = attention.bytes(R, G, scratch);
    int64_t mixed = 0;
    for (int64_t layer = 0; layer < m.layers; layer++) mixed = std::max(mixed, m.layer[layer].o.inputs);
    int64_t inner = m.mlp;
    for (int64_t layer = 0; layer < m.layers; layer++)
        if (const Experts* const f = m.layer[layer].experts) inner = std::max(inner, f->up[0].outputs);
    reserve_experts(m, T, t);
    for (const int64_t in : {m.width, H * D, inner, mixed, beside, m.fuse.inputs, narrow, m.plain, m.rank})
        t.own_bytes = std::max(t.own_bytes, product_bytes(T, in, p.approximate));
    t.own.reserve(threads * t.own_bytes);
    t.some_logits.reserve(m.head_tokens ? T * m.head.outputs : 0);
    return {0, pairs, widest};
}
