// A whole decode step of a Llama-like model in one parallel region: nodes of a tree in, logits out.
//
// The model: RMSNorm, rotary attention with grouped heads (optional biases and per-head norms of q and k), SwiGLU.
// Weights and cache are float or bf16; everything between is float. Each row's sums run in an order that does not depend
// on the number of rows, nodes or threads.
#include "cached.h"
#include "check.h"
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

// Asks for all the memory of a pass -> the first wave of every layer.
template <typename E, int ND>
static Wave prepare(const Model& m, const Pass& p, Work& t, int64_t threads) {
    const int64_t T = p.rows * p.nodes, W = p.nodes, D = m.dim, H = m.heads, G = m.groups, K = m.keys, d = m.d, R = G * W;
    int64_t widest = 0, size = 0, picked, base, slots;
    for (int64_t layer = 0; layer < m.layers; layer++) {
        size = std::max(size, scratch(m, p, layer));
        for (int64_t b = 0; b < p.rows; b++) {
            blocks(m, p, layer, b, picked, base, slots);
            widest = std::max(widest, picked + slots);
        }
    }
    const int64_t score = shares(p) ? sizeof(bf16) : sizeof(float);
    const int64_t pair = widest * R * (D + 2) * sizeof(float) + G * p.kept * (stride(p) * score + chunks(p) * sizeof(float));
    const int64_t count = std::min(p.rows * K, std::max<int64_t>(1, HELD / std::max<int64_t>(1, pair)));
    t.x.room(T * d), t.y.room(T * std::max({H * D + 2 * K * D, 2 * m.mlp, d})), t.z.room(T * std::max(d, H * D));
    t.q.room(T * H * D), t.cs.room(T * D), t.lse.room(T * H);
    t.m.room(count * widest * R), t.l.room(count * widest * R), t.o.room(count * widest * R * D);
    if (p.kept) {
        t.place.room(T);
        for (int64_t i = 0; i < p.rows * p.kept; i++) t.place[i / p.kept * W + p.keep[i]] = i % p.kept;
        if (shares(p))
            t.share.room(count * G * p.kept * stride(p)), t.top.room(count * G * p.kept * chunks(p));
        else
            t.tap.room(count * G * p.kept * stride(p));
    }
    t.each = std::max({attention_room<E, ND>(R, G, size), linear_room<E>(T, d), linear_room<E>(T, H * D), linear_room<E>(T, m.mlp)});
    t.own.room(threads * t.each);
    return {0, count, widest};
}

template <typename E, int ND>
static void run(const Model& m, const Pass& p, Work& t) {
    const int64_t T = p.rows * p.nodes, W = p.nodes, D = m.dim, H = m.heads, G = m.groups, K = m.keys, d = m.d, kv = K * D;
    const int threads = omp_get_max_threads();
    const Wave first = prepare<E, ND>(m, p, t, threads);
    float *x = t.x.data(), *z = t.z.data(), *q = t.y.data(), *k = q + T * H * D, *v = k + T * kv, *up = q + T * m.mlp;
#pragma omp parallel num_threads(threads)
    {
        char* own = t.mine();
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
            linear<E>(f.q, z, T, d, H * D, q, false, own);
            if (f.kind != CROSS) {
                linear<E>(f.k, z, T, d, kv, k, false, own);
                linear<E>(f.v, z, T, d, kv, v, false, own);
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
            for (Wave wave = first; wave.first < p.rows * K; wave.first += wave.count) {
                wave.count = std::min(first.count, p.rows * K - wave.first);
                attend<E, ND>(m, p, layer, t, wave);
                gather(m, p, layer, t, wave, z);
                if (!tapped(m, p, layer)) continue;
                reduce(m, p, layer, t, wave);
                if (first.count < p.rows * K) t.team.wait();  // the next wave writes where this one is read
            }
            linear<E>(f.o, z, T, H * D, d, x, true, own);
            t.team.wait();
            if (f.kind == OWN) continue;
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < T; i++) rms(x + i * d, f.norm2, d, m.eps, z + i * d);
            t.team.wait();
            linear<E>(f.gate, z, T, d, m.mlp, q, false, own);
            linear<E>(f.up, z, T, d, m.mlp, up, false, own);
#pragma omp for schedule(static) nowait  // each thread goes on with what it has computed
            for (int64_t unit = 0; unit < (m.mlp + OUTPUTS - 1) / OUTPUTS; unit++)
                for (int64_t row = 0; row < T * m.mlp; row += m.mlp)
                    for (int64_t i = unit * OUTPUTS; i < std::min((unit + 1) * OUTPUTS, m.mlp); i += 16) {
                        const v16 a = load(q + row + i);
                        store(q + row + i, a / (vexp(-a) + 1.0f) * load(up + row + i));
                    }
            t.team.wait();
            linear<E>(f.down, q, T, m.mlp, d, x, true, own);
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
        linear<E>(m.head, z, T, d, m.vocab, p.logits, false, own);
    }
}

template <typename E>
static Code pick(const Model& m, const Pass& p, Work& t) {
    switch (m.dim / 16) {
        case 1: run<E, 1>(m, p, t); return DONE;
        case 2: run<E, 2>(m, p, t); return DONE;
        case 4: run<E, 4>(m, p, t); return DONE;
        case 6: run<E, 6>(m, p, t); return DONE;
        case 8: run<E, 8>(m, p, t); return DONE;
        case 16: run<E, 16>(m, p, t); return DONE;
    }
    return MODEL;
}

// Node start + i of a chain, whose token each row's t.token is.
template <typename E>
static Code link(const Model& m, const Pass& given, Work& t, const Chain& c, int64_t i) {
    const int64_t B = given.rows, size = given.start + i + 1, whole = given.ring + c.count;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t j = 0; j < size; j++) t.depth[b * size + j] = j;
        t.position[b] = std::min(given.length[b] + size, c.reach) - 1;
        if (given.seen) std::memcpy(&t.seen[b * (given.ring + size)], given.seen + (b * c.count + i) * whole, given.ring + size);
    }
    Pass p = given;
    p.nodes = 1, p.start = size - 1;
    p.tokens = t.token.data(), p.depth = t.depth.data(), p.position = t.position.data(), p.mask = t.mask.data(), p.seen = t.seen.data();
    return pick<E>(m, p, t);
}

template <typename E>
static Code chain(const Model& m, const Pass& given, Work& t, const Chain& c) {
    const int64_t B = given.rows, size = given.start + c.count;
    t.token.room(B), t.position.room(B), t.depth.room(B * size), t.mask.room(B * size), t.seen.room(given.seen ? B * (given.ring + size) : 0);
    std::copy(given.tokens, given.tokens + B, t.token.data());
    std::fill(t.mask.data(), t.mask.data() + B * size, 1);
    for (int64_t i = 0; i < c.count; i++) {
        if (const Code code = link<E>(m, given, t, c, i)) return code;
#pragma omp parallel for schedule(static) if (B > 1)
        for (int64_t b = 0; b < B; b++)
            t.token[b] = c.drawn[b * c.count + i] = draw(given.logits + b * m.vocab, m.vocab, c.temperature, key_of(c.seed[b], c.at[b] + i));
    }
    return DONE;
}

// A checked call; afterwards no more memory is kept than KEPT.
template <typename Call>
static int call(Work& t, Code wrong, Call run) noexcept {
    if (wrong) return wrong;
    const int code = guarded(run);
    if (code == MEMORY || t.bytes() > KEPT) t.clear();
    return code;
}

extern "C" {
// A build of another version lays its structures out differently: the caller compares before it uses them.
uint64_t longdraft_layout() {
    uint64_t all = 0;
    for (const size_t n : {sizeof(Linear), sizeof(Layer), sizeof(Model), sizeof(Picked), sizeof(Pass), sizeof(Copy), sizeof(Chain)}) all = all * 1000003 + n;
    return all;
}
Work* longdraft_new() { return new (std::nothrow) Work; }
void longdraft_free(Work* t) { delete t; }
int64_t longdraft_bytes(const Work* t) { return t->bytes(); }
// half: weights and cache are bf16. All functions that do something return a Code: 0, or what was wrong.
int longdraft_step(const Model* m, const Pass* p, Work* t, int half) {
    return call(*t, check(*m, *p), [&] { return half ? pick<bf16>(*m, *p, *t) : pick<float>(*m, *p, *t); });
}
// The same for the nodes of a chain one after the other. p: tokens [B] of the first of them, node `start`; depth, position,
// mask and nodes are not read; logits has room for [B,V]; seen, where there is a ring, is [B,count,ring+count].
int longdraft_chain(const Model* m, const Pass* p, Work* t, int half, const Chain* c) {
    return call(*t, check(*m, *p, *c), [&] { return half ? chain<bf16>(*m, *p, *t, *c) : chain<float>(*m, *p, *t, *c); });
}
}
