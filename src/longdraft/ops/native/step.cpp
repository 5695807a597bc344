// A whole decode step of a Llama-like model in one parallel region: nodes of a tree in, logits out.
//
// The model: RMSNorm, rotary attention with grouped heads (optional biases and per-head norms of q and k), SwiGLU.
// Weights and cache are float or bf16; everything between is float. Each row's sums run in an order that does not depend
// on the number of rows, nodes or threads.
#include "cached.h"
#include "draw.h"
#include "linear.h"

// One head of q or k: norm, then rotation. cs: cos [D/2] then sin [D/2].
static void turn(float* x, const float* norm, const float* cs, int64_t D, float eps) {
    if (norm) rms(x, norm, D, eps, x);
    for (int64_t i = 0; i < D / 2; i++) {
        const float a = x[i], b = x[i + D / 2], c = cs[i], s = cs[D / 2 + i];
        x[i] = a * c - b * s;
        x[i + D / 2] = b * c + a * s;
    }
}

// Copy the residual stream x [T,d] out where it is asked for after `layer` layers.
static void show(const Pass& p, Team& team, int64_t layer, const float* x, int64_t size) {
    for (int64_t i = 0; i < p.hiddens; i++)
        if (p.hidden[i] == layer) {
            team.wait();
            if (omp_get_thread_num() == 0) std::memcpy(p.states + i * size, x, sizeof(float) * size);
        }
}

template <typename E, int ND>
static void run(const Model& m, const Pass& p, Work& t) {
    const int64_t T = p.rows * p.nodes, W = p.nodes, D = m.dim, H = m.heads, G = m.groups, K = H / G, d = m.d, kv = K * D;
    int64_t widest = 0, picked, base, slots;
    for (int64_t layer = 0; layer < m.layers; layer++)
        for (int64_t b = 0; b < p.rows; b++) {
            blocks(m, p, layer, b, picked, base, slots);
            widest = std::max(widest, picked + slots);
        }
    const int64_t parts = p.rows * K * widest * G * W;
    t.x.resize(T * d), t.y.resize(T * std::max({H * D + 2 * kv, 2 * m.mlp, d})), t.z.resize(T * std::max(d, H * D));
    t.q.resize(T * H * D), t.cs.resize(T * D), t.lse.resize(T * H);
    t.m.resize(parts), t.l.resize(parts), t.o.resize(parts * D);
    if (p.kept) t.top.resize(p.rows * H * W * chunks(p));
    if (p.kept && shares(p)) t.share.resize(p.rows * H * W * stride(p));
    if (p.kept && !shares(p)) t.tap.resize(p.rows * H * W * stride(p));
    float *x = t.x.data(), *z = t.z.data(), *q = t.y.data(), *k = q + T * H * D, *v = k + T * kv, *up = q + T * m.mlp;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            for (int64_t j = 0; j < d; j += 16) store(x + i * d + j, load(static_cast<const E*>(m.embed) + p.tokens[i] * d + j));
            for (int64_t j = 0; j < D / 2; j++) {
                const float angle = static_cast<float>(p.position[i]) * m.inv_freq[j];
                t.cs[i * D + j] = std::cos(angle) * m.rope_scale, t.cs[i * D + D / 2 + j] = std::sin(angle) * m.rope_scale;
            }
        }
        for (int64_t layer = 0; layer < m.layers; layer++) {
            const Layer& f = m.layer[layer];
            show(p, t.team, layer, x, T * d);
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < T; i++) rms(x + i * d, f.norm1, d, m.eps, z + i * d);
            t.team.wait();
            linear<E>(f.q, z, T, d, H * D, q, false);
            if (f.kind != CROSS) {
                linear<E>(f.k, z, T, d, kv, k, false);
                linear<E>(f.v, z, T, d, kv, v, false);
            }
            t.team.wait();
#pragma omp for schedule(static) nowait
            for (int64_t unit = 0; unit < T * (H + K); unit++) {
                const int64_t i = unit / (H + K), h = unit % (H + K), b = i / W, w = i % W;
                if (h < H) {
                    float *from = q + (i * H + h) * D, *to = &t.q[((b * K + h / G) * G * W + h % G * W + w) * D];
                    turn(from, f.qnorm, &t.cs[i * D], D, m.eps);
                    for (int64_t j = 0; j < D; j += 16) store(to + j, load(from + j) * m.scale);
                } else if (f.kind != CROSS) {
                    const int64_t begin = committed(m, p, layer, b) + scratch(m, p, layer) - W;
                    const int64_t g = h - H, at = ((b * K + g) * p.slots[layer] + begin + w) * D;
                    float *key = k + (i * K + g) * D, *value = v + (i * K + g) * D;
                    turn(key, f.knorm, &t.cs[i * D], D, m.eps);
                    for (int64_t j = 0; j < D; j += 16) {
                        store(static_cast<E*>(p.k[layer]) + at + j, load(key + j));
                        store(static_cast<E*>(p.v[layer]) + at + j, load(value + j));
                    }
                }
            }
            t.team.wait();
            attend<E, ND>(m, p, layer, t, widest);
            gather(m, p, layer, t, widest, z);
            if (tapped(m, p, layer)) reduce(m, p, layer, t);
            linear<E>(f.o, z, T, H * D, d, x, true);
            t.team.wait();
            if (f.kind == OWN) continue;
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < T; i++) rms(x + i * d, f.norm2, d, m.eps, z + i * d);
            t.team.wait();
            linear<E>(f.gate, z, T, d, m.mlp, q, false);
            linear<E>(f.up, z, T, d, m.mlp, up, false);
#pragma omp for schedule(static) nowait  // each thread goes on with what it has computed
            for (int64_t unit = 0; unit < (m.mlp + OUTPUTS - 1) / OUTPUTS; unit++)
                for (int64_t row = 0; row < T * m.mlp; row += m.mlp)
                    for (int64_t i = unit * OUTPUTS; i < std::min((unit + 1) * OUTPUTS, m.mlp); i += 16) {
                        const v16 a = load(q + row + i);
                        store(q + row + i, a / (vexp(-a) + 1.0f) * load(up + row + i));
                    }
            t.team.wait();
            linear<E>(f.down, q, T, m.mlp, d, x, true);
            t.team.wait();
        }
        show(p, t.team, m.layers, x, T * d);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) {
            if (m.norm)
                rms(x + i * d, m.norm, d, m.eps, z + i * d);
            else
                std::memcpy(z + i * d, x + i * d, sizeof(float) * d);
        }
        t.team.wait();
        linear<E>(m.head, z, T, d, m.vocab, p.logits, false);
    }
}

template <typename E>
static int pick(const Model& m, const Pass& p, Work& t) {
    switch (m.dim / 16) {
        case 1: run<E, 1>(m, p, t); return 0;
        case 2: run<E, 2>(m, p, t); return 0;
        case 4: run<E, 4>(m, p, t); return 0;
        case 6: run<E, 6>(m, p, t); return 0;
        case 8: run<E, 8>(m, p, t); return 0;
        case 16: run<E, 16>(m, p, t); return 0;
    }
    return 1;
}

// Node start + i of a chain, whose token each row's `token` is.
template <typename E>
static int link(const Model& m, const Pass& given, Work& t, const Chain& c, int64_t i, const std::vector<int64_t>& token) {
    const int64_t B = given.rows, size = given.start + i + 1, whole = given.ring + c.count;
    std::vector<int64_t> depth(B * size), position(B);
    const std::vector<uint8_t> mask(B * size, 1);
    std::vector<uint8_t> seen(given.seen ? B * (given.ring + size) : 0);
    for (int64_t b = 0; b < B; b++) {
        for (int64_t j = 0; j < size; j++) depth[b * size + j] = j;
        position[b] = std::min(given.length[b] + size, c.reach) - 1;
        if (given.seen) std::memcpy(&seen[b * (given.ring + size)], given.seen + (b * c.count + i) * whole, given.ring + size);
    }
    Pass p = given;
    p.nodes = 1, p.start = size - 1;
    p.tokens = token.data(), p.depth = depth.data(), p.position = position.data(), p.mask = mask.data(), p.seen = seen.data();
    return pick<E>(m, p, t);
}

template <typename E>
static int chain(const Model& m, const Pass& given, Work& t, const Chain& c) {
    std::vector<int64_t> token(given.tokens, given.tokens + given.rows);
    for (int64_t i = 0; i < c.count; i++) {
        if (link<E>(m, given, t, c, i, token)) return 1;
#pragma omp parallel for schedule(static) if (given.rows > 1)
        for (int64_t b = 0; b < given.rows; b++)
            token[b] = c.drawn[b * c.count + i] = draw(given.logits + b * m.vocab, m.vocab, c.temperature, key_of(c.seed[b], c.at[b] + i));
    }
    return 0;
}

extern "C" {
// 0 where this build cannot run in this process.
int longdraft_usable() {
#ifdef __AMX_BF16__
    return tiles_granted();
#else
    return 1;
#endif
}
// A build of another version lays its structures out differently: the caller compares before it uses them.
int64_t longdraft_layout() { return sizeof(Model) + sizeof(Layer) * 1000 + sizeof(Pass) * 1000000 + sizeof(Chain) * 1000000000; }
Work* longdraft_new() { return new Work; }
void longdraft_free(Work* t) { delete t; }
// half: weights and cache are bf16. Returns 0, or 1 where the head dimension is not one of 16, 32, 64, 96, 128, 256.
int longdraft_step(const Model* m, const Pass* p, Work* t, int half) {
    return half ? pick<bf16>(*m, *p, *t) : pick<float>(*m, *p, *t);
}
// The same for the nodes of a chain one after the other. p: tokens [B] of the first of them, node `start`; depth, position,
// mask and nodes are not read; logits has room for [B,V]; seen, where there is a ring, is [B,count,ring+count].
int longdraft_chain(const Model* m, const Pass* p, Work* t, int half, const Chain* c) {
    return half ? chain<bf16>(*m, *p, *t, *c) : chain<float>(*m, *p, *t, *c);
}
}
