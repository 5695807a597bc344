// A forward pass of a Llama-like model in one parallel region: nodes of a tree in, logits out.
//
// The model: norms, rotary attention with grouped heads, an MLP or experts; with what interface.h names in Layer and Model.
// Weights and cache are float or bf16; all else is float. The order of each row's sums does not depend on the number of rows,
// nodes or threads; except in drafts, which may be approximate.
#pragma once
#include "coded_keys.h"
#include "experts.h"
#include "latents.h"
#include "linear.h"
#include "reserve.h"
#include "team.h"

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
    const int64_t width = m.width, HEAD = m.rank ? m.plain + D - m.rank : m.gated ? 2 * D : D;  // HEAD: numbers of a head in q
    float *const residual = t.residual.data(), *const normed = t.normed.data();
    float *const q = t.projected.data(), *const k = q + T * H * HEAD, *const v = k + T * K * D, *const gates = v + T * K * D;

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
            if (f.kind == ALONE) {
                second_half(f);
                continue;
            }
            if (layer || m.start != BESIDE) norm(f.input_norm, f.input_norm_bias);
            if (m.parallel) keep_input(f);
            if (f.kind == RECURRENT) return before_mixer(f);
            LatentHeads<E> latents(x, f, t, q, k);
            if (m.rank) {
                latents.before_attention(normed, [&](int64_t i) { return score_scale(i); });
            } else {
                project(f);
                if (m.joint_norms) norm_heads(f);
                rotate_all(x, f);
            }
            if (f.kind == KEYS) continue;
            attend(x);
            if (m.rank) latents.after_attention(normed);
            if (m.gated) gate_heads();
            if (f.gates.weight) gate_outputs(f);
            add(f.o, normed, f.mixer_output_norm, t.projected.data());
            second_half(f);
        }
        keep_states(m.layers, residual);
        norm(m.norm, m.norm_bias);
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

    // One head of q or k of node i: its norm and its rotation.
    void turn(const Layer& f, const float* norm, const float* bias, int64_t i, float* x) {
        const bool own = norm && !m.joint_norms;
        limit(x);
        if (own && !m.late_norms) normalize(x, norm, bias, D, x);
        const int64_t n = f.frequencies ? f.frequencies : m.frequencies;
        if (f.rotation >= 0) rotate(x, m.interleaved, &t.rotation[(f.rotation * T + i) * D], D, n, x, m.interleaved);
        if (own && m.late_norms) normalize(x, norm, bias, D, x);
    }

    // One head of q, k or v.
    void limit(float* x) const {
        for (int64_t j = 0; m.limit && j < D; j += V) store(x + j, vmax(vmin(load(x + j), splat(m.limit)), splat(-m.limit)));
    }

    // By what the scores of a node are multiplied.
    float score_scale(int64_t i) const {
        if (!m.growth) return m.scale;
        return m.scale * (1 + m.growth * std::log(1 + std::floor(static_cast<float>(p.position[i]) / m.span)));
    }

    void embed(int64_t i, float* to) {
        const E* from = static_cast<const E*>(m.embed) + p.tokens[i] * width;
        const float scale = m.embedding_scale ? m.embedding_scale : 1.0f;
        for (int64_t j = 0; j < width; j += V) store(to + j, load(from + j) * scale);
        if (m.positions) {
            const E* at = static_cast<const E*>(m.positions) + (p.position[i] + m.first_position) * width;
            for (int64_t j = 0; j < width; j += V) store(to + j, load(to + j) + load(at + j));
        }
        if (m.embedding_norm) normalize(to, m.embedding_norm, nullptr, width, to);
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

    void normalize(const float* x, const float* weight, const float* bias, int64_t n, float* out) const {
        if (m.layer_norms)
            layer_norm(x, weight, bias, n, m.eps, out);
        else
            rms_norm(x, weight, n, m.eps, out);
    }

    // What the MLP of a layer reads that lies beside its attention.
    void keep_input(const Layer& f) {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            float* const to = &t.kept_input[i * width];
            if (f.mlp_norm)
                normalize(residual + i * width, f.mlp_norm, f.mlp_norm_bias, width, to);
            else
                std::memcpy(to, normed + i * width, sizeof(float) * width);
        }
    }

    void norm(const float* weight, const float* bias) {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            if (weight)
                normalize(residual + i * width, weight, bias, width, normed + i * width);
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
        if (f.gates.weight) multiply(f.gates, normed, T, gates, false);
        t.barrier.wait();
    }

    // Norms of q and k over all heads of a node.
    void norm_heads(const Layer& f) {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            float *const queries = q + i * H * D, *const keys = k + i * K * D;
            if (f.q_norm) normalize(queries, f.q_norm, f.q_norm_bias, H * D, queries);
            if (f.k_norm) normalize(keys, f.k_norm, f.k_norm_bias, K * D, keys);
        }
        t.barrier.wait();
    }

    // What the mixer of a layer reads.
    void before_mixer(const Layer& f) {
        float* to = p.mixer_inputs;
        for (const Linear* const linear : {&f.q, &f.k, &f.v}) {
            if (!linear->weight) continue;
            multiply(*linear, normed, T, to, false);
            to += T * linear->outputs;
        }
    }

    void after_mixer(const Layer& f) {
        add(f.o, p.mixed, f.mixer_output_norm, t.projected.data());
        second_half(f);
    }

    // Adds a product with x to the stream, after its norm and scale. spare [T,width]: memory that may be overwritten.
    void add(const Linear& f, const float* x, const float* output_norm, float* spare) {
        const bool changed = output_norm || m.residual_scale;
        multiply(f, x, T, changed ? spare : residual, !changed);
        t.barrier.wait();
        if (changed) add_to_stream(spare, output_norm);
    }

    // all [T,width]: what is added, and is overwritten.
    void add_to_stream(float* all, const float* output_norm) {
        const float scale = m.residual_scale ? m.residual_scale : 1.0f;
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            float *const more = all + i * width, *const stream = residual + i * width;
            if (output_norm) normalize(more, output_norm, nullptr, width, more);
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

    // The same with gates that have a projection of their own.
    void gate_outputs(const Layer& f) {
#pragma omp for schedule(static) nowait
        for (int64_t unit = 0; unit < T * H; unit++) {
            const float* const from = gates + unit / H * f.gates.outputs + unit % H * (m.gates_heads ? 1 : D);
            float* const out = normed + unit * D;
            for (int64_t j = 0; j < D; j++) out[j] *= opened(from[m.gates_heads ? 0 : j]);
        }
        t.barrier.wait();
    }

    float opened(float gate) const {
        if (m.gate_function == SIGMOID_GATE) return 1 / (1 + std::exp(-gate));
        return gate > 20 ? gate : std::log1p(std::exp(gate));  // as in torch
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
        turn(f, f.q_norm, f.q_norm_bias, i, from);
        const float scale = score_scale(i);
        for (int64_t j = 0; j < D; j += V) store(to + j, load(from + j) * scale);
    }

    void key_and_value(const LayerPass& x, const Layer& f, int64_t i, int64_t h) {
        const int64_t b = i / W, slot = x.committed(b) + x.scratch - W + i % W;
        const LayerCache& cache = p.cache[x.layer];
        const int64_t row = (b * K + h) * cache.slots + slot, to = row * D, bytes = row * coded_bytes(D, cache.bits);
        float *key = k + (i * K + h) * D, *value = v + (i * K + h) * D;
        turn(f, f.k_norm, f.k_norm_bias, i, key);
        limit(value);
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

    void second_half(const Layer& f) {
        if (f.experts)
            experts(f);
        else if (f.down.weight)
            mlp(f);
    }

    // What the MLP reads.
    void before_mlp(const Layer& f) {
        if (!m.parallel) return norm(f.mlp_norm, f.mlp_norm_bias);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) std::memcpy(normed + i * width, &t.kept_input[i * width], sizeof(float) * width);
        t.barrier.wait();
    }

    void mlp(const Layer& f) {
        before_mlp(f);
        fill_inner(f);
        add(f.down, t.projected.data(), f.mlp_output_norm, normed);
    }

    // What `down` of an MLP reads.
    void fill_inner(const Layer& f) {
        const int64_t inner = f.up.outputs;
        float *const gate = t.projected.data(), *const up = gate + T * inner;
        multiply(f.gate.weight ? f.gate : f.up, normed, T, gate, false);
        if (f.gate.weight) multiply(f.up, normed, T, up, false);
#pragma omp for schedule(static) nowait  // divided as in `outputs`: each thread goes on with what it has computed
        for (int64_t unit = 0; unit < (inner + OUTPUTS - 1) / OUTPUTS; unit++)
            for (int64_t row = 0; row < T * inner; row += inner)
                for (int64_t i = row + unit * OUTPUTS; i < row + std::min((unit + 1) * OUTPUTS, inner); i += V) {
                    const vec x = load(gate + i);
                    store(gate + i, f.gate.weight ? gated(m, f.slopes, x, load(up + i)) : activated(m.activation, f.slopes, x));
                }
        t.barrier.wait();
    }

    // Experts, and beside them an MLP that all nodes go through.
    void experts(const Layer& f) {
        before_mlp(f);
        float* const sum = t.beside.data();
        ExpertsPass<E>(m, *f.experts, p, t).run(normed, sum);
        if (f.down.weight) {
            gate_shared(*f.experts);
            fill_inner(f);
            multiply(f.down, t.projected.data(), T, normed, false);
            t.barrier.wait();
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < T * width; i += V) {
                const vec share = splat(t.shared_gate[i / width]);
                store(sum + i, fused(load(normed + i), share, load(sum + i)));
            }
            t.barrier.wait();
        }
        add_to_stream(sum, f.mlp_output_norm);
    }

    // By how much a node's shared MLP counts.
    void gate_shared(const Experts& f) {
        const float* const weight = f.shared_gate;
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            vec product = splat(0);
            for (int64_t j = 0; weight && j < width; j += V) product = fused(load(normed + i * width + j), load(weight + j), product);
            t.shared_gate[i] = (weight ? 1 / (1 + std::exp(-sum(product))) : 1.0f) * f.shared_scale;
        }
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
