// A forward pass of a Llama-like model in one parallel region: nodes of a tree in, logits out.
//
// The model: RMSNorm, rotary attention with grouped heads (optionally with biases and per-head norms of q and k), SwiGLU.
// Weights and cache are float or bf16; all else is float. The order of each row's sums does not depend on the number of rows,
// nodes or threads; except in drafts, which may be approximate.
#pragma once
#include "coded_keys.h"
#include "head_attention.h"
#include "kept_scores.h"
#include "linear.h"
#include "products.h"
#include "team.h"

// Rotates the first 2 n numbers of a head. rotation: D/2 cosines, then D/2 sines.
static void rotate(float* x, const float* rotation, int64_t D, int64_t n, bool interleaved) {
    const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : n;
    for (int64_t i = 0; i < n; i++) {
        float &first = x[i * step], &second = x[i * step + apart];
        const float a = first, b = second, c = rotation[i], s = rotation[D / 2 + i];
        first = a * c - b * s;
        second = b * c + a * s;
    }
}

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
    t.projected.reserve(T * std::max({(m.gated ? 2 : 1) * H * D + 2 * K * D, 2 * m.mlp, m.width}));
    t.queries.reserve(T * H * D), t.rotation.reserve((1 + m.more_rotations) * T * D), t.lse.reserve(T * H);
    const int64_t partials = pairs * widest * R;
    t.block_max.reserve(partials), t.block_sum.reserve(partials), t.block_out.reserve(partials * D);
    reserve_scores(p, t, pairs, G);
    t.own_bytes = attention.bytes(R, G, scratch);
    int64_t mixed = 0;
    for (int64_t layer = 0; layer < m.layers; layer++) mixed = std::max(mixed, m.layer[layer].o.inputs);
    for (const int64_t in : {m.width, H * D, m.mlp, mixed, beside, m.fuse.inputs})
        t.own_bytes = std::max(t.own_bytes, product_bytes(T, in, p.approximate));
    t.own.reserve(threads * t.own_bytes);
    t.some_logits.reserve(m.head_tokens ? T * m.head.outputs : 0);
    return {0, pairs, widest};
}

// The stages of a pass. Every thread of a parallel region calls run. Loops over nodes are divided among threads in the same
// way in every stage, so that between two of them no barrier is needed.
template <typename E>
class Forward {
    const Model& m;
    const Pass& p;
    Work& t;
    const HeadAttention attention = head_attention<E>(m.head_dim);
    const Wave first;
    const int64_t T = p.rows * p.nodes, W = p.nodes, D = m.head_dim, H = m.heads, K = m.key_heads, G = m.groups;
    const int64_t width = m.width, HEAD = m.gated ? 2 * D : D;  // HEAD: numbers of a head in q
    float *const residual = t.residual.data(), *const normed = t.normed.data();
    float *const q = t.projected.data(), *const k = q + T * H * HEAD, *const v = k + T * K * D;
    float *const gate = t.projected.data(), *const up = gate + T * m.mlp;

   public:
    Forward(const Model& m, const Pass& p, Work& t, int64_t threads)
        : m(m), p(p), t(t), first(reserve(m, p, t, attention, threads)) {}

    void run() {
        if (p.resume)
            after_mixer(m.layer[p.resume - 1]);
        else
            begin();
        for (int64_t layer = p.resume; layer < m.layers; layer++) {
            const LayerPass x = {m, p, layer};
            const Layer& f = m.layer[layer];
            keep_states(layer, residual);
            if (layer || m.start != BESIDE) norm(f.input_norm);
            if (f.kind == RECURRENT) return before_mixer(f);
            project(f);
            if (m.joint_norms) norm_heads(f);
            rotate_all(x, f);
            if (f.kind == KEYS) continue;
            attend(x);
            if (m.gated) gate_heads();
            add(f.o, normed, f.mixer_output_norm, t.projected.data());
            if (f.down.weight) mlp(f);
        }
        keep_states(m.layers, residual);
        norm(m.norm);
        keep_states(m.layers + 1, normed);
        if (p.logits) head();
    }

   private:
    void multiply(const Linear& f, const float* x, int64_t rows, float* y, bool add) {
        ::multiply<E>(f, x, rows, y, add, p.approximate, t.mine());
    }

    // The beginning of the residual stream, and the rotations of the nodes' positions.
    void begin() {
        if (p.sources) {
            multiply(m.fuse, p.sources, T, residual, false);
            t.barrier.wait();
        }
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            if (m.start == EMBEDDING)
                embed(i, residual + i * width);
            else if (m.start != GIVEN)
                put_side_by_side(i);
            else if (!p.sources)
                std::memcpy(residual + i * width, p.features + i * width, sizeof(float) * width);
            for (int64_t r = 0; m.layers && r <= m.more_rotations; r++) put_rotation(i, r);
        }
        if (m.start == FUSED) {
            t.barrier.wait();
            multiply(m.fuse, normed, T, residual, false);
        }
        if (m.start == FUSED || m.start == BESIDE) t.barrier.wait();
    }

    void put_rotation(int64_t i, int64_t row) {
        float* const to = &t.rotation[(row * T + i) * D];
        for (int64_t j = 0; j < m.frequencies; j++) {
            const float angle = static_cast<float>(p.position[i]) * m.inv_freq[row * m.frequencies + j];
            to[j] = std::cos(angle) * m.rope_scale;
            to[D / 2 + j] = std::sin(angle) * m.rope_scale;
        }
    }

    // One head of q or k of node i: its norm, then its rotation.
    void turn(const Layer& f, const float* norm, int64_t i, float* x) {
        if (norm && !m.joint_norms) rms_norm(x, norm, D, m.eps, x);
        if (f.rotation >= 0) rotate(x, &t.rotation[(f.rotation * T + i) * D], D, m.frequencies, m.interleaved);
    }

    void embed(int64_t i, float* to) {
        const E* from = static_cast<const E*>(m.embed) + p.tokens[i] * width;
        const float scale = m.embedding_scale ? m.embedding_scale : 1.0f;
        for (int64_t j = 0; j < width; j += V) store(to + j, load(from + j) * scale);
    }

    // Puts a node's embedding and its feature side by side in `normed`, each after its norm.
    void put_side_by_side(int64_t i) {
        float *const pair = normed + i * 2 * width, *const token = pair + m.feature_first * width;
        float *const feature = pair + (1 - m.feature_first) * width, *const stream = residual + i * width;
        embed(i, token);
        if (m.token_norm) rms_norm(token, m.token_norm, width, m.eps, token);
        std::memcpy(feature, p.sources ? stream : p.features + i * width, sizeof(float) * width);
        if (m.start == BESIDE && !m.normed_residual) std::memcpy(stream, feature, sizeof(float) * width);
        if (m.feature_norm) rms_norm(feature, m.feature_norm, width, m.eps, feature);
        if (m.start == BESIDE && m.normed_residual) std::memcpy(stream, feature, sizeof(float) * width);
    }

    // Copies x [T,width] out where it is kept after `layer` layers.
    void keep_states(int64_t layer, const float* x) {
        for (int64_t i = 0; i < p.state_count; i++)
            if (p.state_layers[i] == layer) {
                t.barrier.wait();
                if (omp_get_thread_num() == 0) std::memcpy(p.states + i * T * width, x, sizeof(float) * T * width);
            }
    }

    void norm(const float* weight) {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            if (weight)
                rms_norm(residual + i * width, weight, width, m.eps, normed + i * width);
            else
                std::memcpy(normed + i * width, residual + i * width, sizeof(float) * width);
        }
        t.barrier.wait();
    }

    void project(const Layer& f) {
        if (f.kind != KEYS) multiply(f.q, normed, T, q, false);
        if (f.kind != CROSS) {
            multiply(f.k, normed, T, k, false);
            multiply(f.v, normed, T, v, false);
        }
        t.barrier.wait();
    }

    // Norms of q and k over all heads of a node.
    void norm_heads(const Layer& f) {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            float *const queries = q + i * H * D, *const keys = k + i * K * D;
            if (f.q_norm) rms_norm(queries, f.q_norm, H * D, m.eps, queries);
            if (f.k_norm) rms_norm(keys, f.k_norm, K * D, m.eps, keys);
        }
        t.barrier.wait();
    }

    // What the mixer of a layer reads.
    void before_mixer(const Layer& f) {
        float* to = p.mixer_inputs;
        for (const Linear* const linear : {&f.q, &f.k, &f.v}) {
            multiply(*linear, normed, T, to, false);
            to += T * linear->outputs;
        }
    }

    void after_mixer(const Layer& f) {
        add(f.o, p.mixed, f.mixer_output_norm, t.projected.data());
        mlp(f);
    }

    // Adds a product with x to the stream, after its norm and scale. spare [T,width]: memory that may be overwritten.
    void add(const Linear& f, const float* x, const float* output_norm, float* spare) {
        const bool changed = output_norm || m.residual_scale;
        multiply(f, x, T, changed ? spare : residual, !changed);
        t.barrier.wait();
        if (!changed) return;
        const float scale = m.residual_scale ? m.residual_scale : 1.0f;
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            float *const more = spare + i * width, *const stream = residual + i * width;
            if (output_norm) rms_norm(more, output_norm, width, m.eps, more);
            for (int64_t j = 0; j < width; j += V) store(stream + j, load(stream + j) + load(more + j) * scale);
        }
        t.barrier.wait();
    }

    // Outputs of attention times the sigmoid of their gates.
    void gate_heads() {
#pragma omp for schedule(static) nowait
        for (int64_t unit = 0; unit < T * H; unit++) {
            const float* const gates = q + unit * HEAD + D;
            float* const out = normed + unit * D;
            for (int64_t j = 0; j < D; j += V) store(out + j, load(out + j) / (vexp(-load(gates + j)) + 1.0f));
        }
        t.barrier.wait();
    }

    // Puts queries in the order of attention, and keys and values into the cache.
    void rotate_all(const LayerPass& x, const Layer& f) {
#pragma omp for schedule(static) nowait
        for (int64_t unit = 0; unit < T * (H + K); unit++) {
            const int64_t i = unit / (H + K), h = unit % (H + K);
            if (h < H) {
                if (f.kind != KEYS) query(f, i, h);
            } else if (f.kind != CROSS)
                key_and_value(x, f, i, h - H);
        }
        t.barrier.wait();
    }

    void query(const Layer& f, int64_t i, int64_t h) {
        const int64_t b = i / W, w = i % W;
        float *from = q + (i * H + h) * HEAD, *to = &t.queries[((b * K + h / G) * G * W + h % G * W + w) * D];
        turn(f, f.q_norm, i, from);
        for (int64_t j = 0; j < D; j += V) store(to + j, load(from + j) * m.scale);
    }

    void key_and_value(const LayerPass& x, const Layer& f, int64_t i, int64_t h) {
        const int64_t b = i / W, slot = x.committed(b) + x.scratch - W + i % W;
        const LayerCache& cache = p.cache[x.layer];
        const int64_t row = (b * K + h) * cache.slots + slot, to = row * D, bytes = row * coded_bytes(D, cache.bits);
        float *key = k + (i * K + h) * D, *value = v + (i * K + h) * D;
        turn(f, f.k_norm, i, key);
        if (cache.bits) {
            encode_key<8>(key, cache.key_offset ? cache.key_offset + h * D : nullptr, D, static_cast<char*>(cache.k) + bytes);
            return encode_value<8>(value, D, static_cast<char*>(cache.v) + bytes);
        }
        for (int64_t j = 0; j < D; j += V) {
            store(static_cast<E*>(cache.k) + to + j, load(key + j));
            store(static_cast<E*>(cache.v) + to + j, load(value + j));
        }
    }

    void attend(const LayerPass& x) {
        const int64_t pairs = p.rows * K;
        for (Wave wave = first; wave.first < pairs; wave.first += wave.count) {
            wave.count = std::min(first.count, pairs - wave.first);
            attention.run(x, t, wave);
            t.barrier.wait();
            merge_wave(x, t, wave, normed);
            t.barrier.wait();
            if (!x.scored) continue;
            average_scores(x, t, wave);
            if (first.count < pairs) t.barrier.wait();  // the next wave overwrites what this one reads
        }
    }

    void head() {
        const int64_t n = p.logit_nodes ? p.logit_nodes : W, some = m.head.outputs;
        float* const out = m.head_tokens ? t.some_logits.data() : p.logits;
        if (n == W)
            multiply(m.head, normed, T, out, false);
        else
            for (int64_t b = 0; b < p.rows; b++)
                multiply(m.head, normed + ((b + 1) * W - n) * width, n, out + b * n * some, false);
        if (m.logit_divisor || m.logit_cap) {
            t.barrier.wait();
            bound(out, p.rows * n * some);
        }
        if (!m.head_tokens) return;
        t.barrier.wait();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < p.rows * n; i++) {
            float* const row = p.logits + i * m.vocab;
            std::fill(row, row + m.vocab, -INFINITY);
            for (int64_t j = 0; j < some; j++) row[m.head_tokens[j]] = out[i * some + j];
        }
    }

    // Divides and caps `count` logits.
    void bound(float* x, int64_t count) {
        const float divisor = m.logit_divisor ? m.logit_divisor : 1.0f, cap = m.logit_cap;
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < count; i++) {
            const float logit = x[i] / divisor;
            x[i] = cap ? cap * std::tanh(logit / cap) : logit;
        }
    }

    vec activated(vec x) const {
        if (m.activation == SILU) return x / (vexp(-x) + 1.0f);
        if (m.activation == RELU2) return vmax(x, splat(0)) * vmax(x, splat(0));
        // x (1 + tanh(u)) / 2 is x / (1 + exp(-2 u)), where 2 u is
        const vec twice = x * 1.5957691216f * (x * x * 0.044715f + 1.0f);
        return x / (vexp(-twice) + 1.0f);
    }

    void mlp(const Layer& f) {
        norm(f.mlp_norm);
        multiply(f.gate.weight ? f.gate : f.up, normed, T, gate, false);
        if (f.gate.weight) multiply(f.up, normed, T, up, false);
#pragma omp for schedule(static) nowait  // divided as in `outputs`: each thread goes on with what it has computed
        for (int64_t unit = 0; unit < (m.mlp + OUTPUTS - 1) / OUTPUTS; unit++)
            for (int64_t row = 0; row < T * m.mlp; row += m.mlp)
                for (int64_t i = unit * OUTPUTS; i < std::min((unit + 1) * OUTPUTS, m.mlp); i += V) {
                    const vec a = activated(load(gate + row + i));
                    store(gate + row + i, f.gate.weight ? a * load(up + row + i) : a);
                }
        t.barrier.wait();
        add(f.down, gate, f.mlp_output_norm, normed);
    }
};

template <typename E>
static Code forward(const Model& m, const Pass& p, Work& t) {
    if (!has_heads(m.head_dim, HeadDims())) return BAD_MODEL;
    const int threads = team_size();
    Forward<E> pass(m, p, t, threads);
    const int64_t begin = nanoseconds();
#pragma omp parallel num_threads(threads)
    {
        pass.run();
        t.barrier.wait();  // so that no thread waits in OpenMP's, which does not sleep
    }
    team_passed(threads, nanoseconds() - begin, t.barrier.take_missing());
    return DONE;
}
