// A whole decode step of a Llama-like model in one parallel region: nodes of a tree in, logits out.
//
// The model: RMSNorm, rotary attention with grouped heads (optional biases and per-head norms of q and k), SwiGLU.
// Weights and cache are float or bf16; everything between is float. Each row's sums run in an order that does not depend
// on the number of rows, nodes or threads.
#include <algorithm>
#include <type_traits>

#include "attention.h"
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

struct Work {
    std::vector<float> x, y, z, q, cs, m, l, o, lse, tap, top;
    std::vector<bf16> share;
};

static void rms(const float* x, const float* w, int64_t n, float eps, float* out) {
    v16 total = splat(0);
    for (int64_t i = 0; i < n; i += 16) total += load(x + i) * load(x + i);
    const float s = 1.0f / std::sqrt(sum(total) / n + eps);
    for (int64_t i = 0; i < n; i += 16) store(out + i, load(x + i) * s * load(w + i));
}

// Sixteen outputs of every row: x [T,in] times w [16,in], in float; sink(t, sums) takes each row's.
template <typename E>
struct VectorLinear {
    const float* x;
    int64_t T, in;
    std::vector<float> wide;
    VectorLinear(const float* x, int64_t T, int64_t in) : x(x), T(T), in(in), wide(T > 1 && sizeof(E) == 2 ? 16 * in : 0) {}

    template <typename W, typename Sink>
    void rows(const W* w, Sink sink) {
        for (int64_t t = 0; t < T; t++) {
            v16 acc[16];
            for (int j = 0; j < 16; j++) acc[j] = splat(0);
            for (int64_t i = 0; i < in; i += 16) {
                const v16 a = load(x + t * in + i);
                for (int j = 0; j < 16; j++) acc[j] += a * load(w + j * in + i);
            }
            sink(t, sums(acc));
        }
    }
    template <typename Sink>
    void block(const E* w, Sink sink) {
        for (size_t i = 0; i < wide.size(); i += 16) store(wide.data() + i, load(w + i));
        if (wide.size())
            rows(wide.data(), sink);
        else
            rows(w, sink);
    }
};

#ifdef __AMX_BF16__
// The same with tiles: x is rounded to bf16.
struct TileLinear {
    int64_t T, in;
    std::vector<float> room;
    float *packed, *sums;
    Shapes shapes;
    TileLinear(const float* x, int64_t T, int64_t in) : T(T), in(in), room((T + TILE - 1) / TILE * TILE * in / 2 + TILE * TILE + 16), shapes(T) {
        sums = aligned(room.data()), packed = sums + TILE * TILE;
        pack(x, T, in, packed);
    }
    template <typename Sink>
    void block(const bf16* w, Sink sink) {
        ahead(w + 16 * in, 16 * in * sizeof(bf16));
        for (int64_t t = 0; t < T; t += TILE) {
            product(w, packed + t * in / 2, in);
            _tile_stored(2, sums, T == 1 ? 4 : 64);
            if (T == 1)
                sink(0, load(sums));
            else
                for (int64_t r = t; r < T && r < t + TILE; r++) sink(r, strided(sums + r - t));
        }
    }
};
#endif

// y [T,out] (+)= x [T,in] W^T + b, sixteen outputs at a time; called inside the parallel region, without a barrier after.
template <typename E, typename How>
static void outputs(const Linear& f, How how, int64_t in, int64_t out, float* y, bool add) {
#pragma omp for schedule(static) nowait
    for (int64_t block = 0; block < (out + 15) / 16; block++) {
        const int64_t at = std::min(block * 16, out - 16);
        const int64_t done = block * 16 - at;  // outputs of the last block that the one before has written
        how.block(static_cast<const E*>(f.w) + at * in, [&](int64_t t, v16 r) {
            if (f.b) r += load(f.b + at);
            float* to = y + t * out + at;
            if (add) {
                for (int64_t j = done; j < 16; j++) to[j] += r[j];
            } else {
                store(to, r);
            }
        });
    }
}

template <typename E>
static void linear(const Linear& f, const float* x, int64_t T, int64_t in, int64_t out, float* y, bool add) {
#ifdef __AMX_BF16__
    if constexpr (sizeof(E) == 2)
        if (in % 32 == 0) return outputs<E>(f, TileLinear(x, T, in), in, out, y, add);
#endif
    outputs<E>(f, VectorLinear<E>(x, T, in), in, out, y, add);
}

// One head of q or k: norm, then rotation. cs: cos [D/2] then sin [D/2].
static void turn(float* x, const float* norm, const float* cs, int64_t D, float eps) {
    if (norm) rms(x, norm, D, eps, x);
    for (int64_t i = 0; i < D / 2; i++) {
        const float a = x[i], b = x[i + D / 2], c = cs[i], s = cs[D / 2 + i];
        x[i] = a * c - b * s;
        x[i + D / 2] = b * c + a * s;
    }
}

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
    slots = (end + BLOCK - 1) / BLOCK - first;
}

// Chunks of a tapped row: PER to a block.
constexpr int64_t PER = BLOCK / CHUNK;
static int64_t chunks(const Pass& p) { return (p.most + p.start + p.nodes + BLOCK - 1) / BLOCK * PER; }
static bool shares(const Pass& p) { return p.weights && p.pooled; }  // many rows for one: kept small
static int64_t stride(const Pass& p) { return chunks(p) * CHUNK + 16; }  // a row's places: its blocks, each from its begin

template <typename E, int ND>
static void attend(const Model& m, const Pass& p, int64_t layer, Work& t, int64_t widest) {
    const int64_t D = m.dim, G = m.groups, K = m.heads / G, W = p.nodes, R = G * W, size = scratch(m, p, layer), kind = m.layer[layer].kind;
    const bool tap = tapped(m, p, layer);
    const typename Products<E, ND>::Setup setup(R);
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < p.rows * K * widest; unit++) {
        static thread_local std::vector<float> work;
        const int64_t b = unit / (K * widest), h = unit / widest % K, i = unit % widest;
        int64_t picked, base, slots;
        blocks(m, p, layer, b, picked, base, slots);
        if (i >= picked + slots) continue;
        const int64_t at = ((b * K + h) * widest + i) * R;
        const Part part = {&t.m[at], &t.l[at], &t.o[at * D]};
        const int64_t length = committed(m, p, layer, b);
        const uint8_t* mask = kind == OWN ? p.seen : p.mask;
        const Queries x = {&t.q[(b * K + h) * R * D], R, W, p.position + b * W, p.depth + b * size, mask + b * W * size,
                           size, length, m.layer[layer].window};
        if (i < picked) {
            const Picked& from = p.picks[layer * p.rows + b];
            const int64_t lo = i * BLOCK, n = std::min(BLOCK, from.n - lo), skip = (h * from.n + lo) * D;
            attend_block<E, ND, Products<E, ND>>(x, static_cast<const E*>(from.k) + skip, static_cast<const E*>(from.v) + skip, n, -1, part, nullptr, work);
            continue;
        }
        const int64_t since = p.picks && !x.window && kind != OWN ? p.since[b] : 0, end = length + size;
        int64_t lo = std::max((base + i - picked) * BLOCK, since), hi = std::min((base + i - picked + 1) * BLOCK, end);
        if (x.window) lo = std::min(hi, std::max(lo, (length - x.window + 1) / CHUNK * CHUNK));
        std::vector<Tap> taps(tap ? R : 0);
        if (tap)
            for (int64_t g = 0; g < G; g++)
                for (int64_t r = 0; r < p.kept; r++) {
                    const int64_t node = p.keep[p.kept * b + r], row = (b * m.heads + h * G + g) * W + node;
                    Tap& tap = taps[g * W + node];
                    if (shares(p)) {
                        tap.weights = t.share.data() + row * stride(p) + lo / BLOCK * BLOCK;
                        tap.top = &t.top[row * chunks(p) + lo / BLOCK * PER];
                    } else {
                        tap.logits = &t.tap[row * stride(p) + lo / BLOCK * BLOCK];
                    }
                }
        const int64_t skip = ((b * K + h) * p.slots[layer] + lo) * D;
        attend_block<E, ND, Products<E, ND>>(x, static_cast<const E*>(p.k[layer]) + skip, static_cast<const E*>(p.v[layer]) + skip, hi - lo, lo, part,
                            tap ? taps.data() : nullptr, work);
    }
}

// Merge the blocks of every query row in order: y [T,H*D].
static void gather(const Model& m, const Pass& p, int64_t layer, Work& t, int64_t widest, float* y) {
    const int64_t D = m.dim, G = m.groups, K = m.heads / G, W = p.nodes, R = G * W;
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < p.rows * K * R; unit++) {
        const int64_t b = unit / (K * R), h = unit / R % K, r = unit % R, g = r / W, w = r % W;
        int64_t picked, base, slots;
        blocks(m, p, layer, b, picked, base, slots);
        const int64_t at = (b * K + h) * widest * R + r, n = picked + slots;
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
}

// Means over heads (all, or those of a key head), and rows if pooled, of the kept nodes' scores on slots 0..root: a chunk
// at a time, as attend_block went through them.
static void reduce(const Model& m, const Pass& p, int64_t layer, Work& t) {
    const int64_t all = chunks(p), rows = p.pooled ? 1 : p.kept, each = p.kept / rows;
    const int64_t columns = p.split ? m.heads / m.groups : 1, heads = m.heads / columns;
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < p.rows * rows * columns * all; unit++) {
        const int64_t chunk = unit % all, c = unit / all % columns, r = unit / all / columns % rows;
        const int64_t b = unit / all / columns / rows, since = p.picks ? p.since[b] : 0;
        const int64_t block = std::max(chunk / PER * BLOCK, since), lo = block + chunk % PER * CHUNK;
        const int64_t hi = std::min({lo + CHUNK, (chunk / PER + 1) * BLOCK, p.length[b] + 1});
        if (lo >= hi) continue;
        float* out = p.scores + (((layer * p.rows + b) * rows + r) * columns + c) * p.most;
        v16 total[CHUNK / 16] = {};
        for (int64_t h = c * heads; h < (c + 1) * heads; h++)
            for (int64_t i = r * each; i < (r + 1) * each; i++) {
                const int64_t row = (b * m.heads + h) * p.nodes + p.keep[p.kept * b + i];
                const int64_t from = row * stride(p) + chunk * CHUNK;
                const float lse = t.lse[row], share = shares(p) ? std::exp(t.top[row * all + chunk] - lse) : 1.0f;
                for (int64_t s = 0; s < hi - lo; s += 16) {
                    if (shares(p))
                        total[s / 16] += load(&t.share[from + s]) * share;
                    else
                        total[s / 16] += p.weights ? vexp(load(&t.tap[from + s]) - lse) : load(&t.tap[from + s]);
                }
            }
        for (int64_t s = 0; s < hi - lo; s += 16) {
            const v16 mean = total[s / 16] / splat(heads * each);
            std::memcpy(out + lo + s, &mean, sizeof(float) * std::min<int64_t>(16, hi - lo - s));
        }
    }
}

// Copy the residual stream x [T,d] out where it is asked for after `layer` layers.
static void show(const Pass& p, int64_t layer, const float* x, int64_t size) {
    for (int64_t i = 0; i < p.hiddens; i++)
        if (p.hidden[i] == layer) {
#pragma omp single
            std::memcpy(p.states + i * size, x, sizeof(float) * size);
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
#pragma omp for schedule(static)
        for (int64_t i = 0; i < T; i++) {
            for (int64_t j = 0; j < d; j += 16) store(x + i * d + j, load(static_cast<const E*>(m.embed) + p.tokens[i] * d + j));
            for (int64_t j = 0; j < D / 2; j++) {
                const float angle = static_cast<float>(p.position[i]) * m.inv_freq[j];
                t.cs[i * D + j] = std::cos(angle) * m.rope_scale, t.cs[i * D + D / 2 + j] = std::sin(angle) * m.rope_scale;
            }
        }
        for (int64_t layer = 0; layer < m.layers; layer++) {
            const Layer& f = m.layer[layer];
            show(p, layer, x, T * d);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < T; i++) rms(x + i * d, f.norm1, d, m.eps, z + i * d);
            linear<E>(f.q, z, T, d, H * D, q, false);
            if (f.kind != CROSS) {
                linear<E>(f.k, z, T, d, kv, k, false);
                linear<E>(f.v, z, T, d, kv, v, false);
            }
#pragma omp barrier
#pragma omp for schedule(static)
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
            attend<E, ND>(m, p, layer, t, widest);
            gather(m, p, layer, t, widest, z);
            if (tapped(m, p, layer)) reduce(m, p, layer, t);
            linear<E>(f.o, z, T, H * D, d, x, true);
#pragma omp barrier
            if (f.kind == OWN) continue;
#pragma omp for schedule(static)
            for (int64_t i = 0; i < T; i++) rms(x + i * d, f.norm2, d, m.eps, z + i * d);
            linear<E>(f.gate, z, T, d, m.mlp, q, false);
            linear<E>(f.up, z, T, d, m.mlp, up, false);
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t i = 0; i < T * m.mlp; i += 16) {
                const v16 a = load(q + i);
                store(q + i, a / (vexp(-a) + 1.0f) * load(up + i));
            }
            linear<E>(f.down, q, T, m.mlp, d, x, true);
#pragma omp barrier
        }
        show(p, m.layers, x, T * d);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < T; i++) {
            if (m.norm)
                rms(x + i * d, m.norm, d, m.eps, z + i * d);
            else
                std::memcpy(z + i * d, x + i * d, sizeof(float) * d);
        }
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
int64_t longdraft_layout() { return sizeof(Model) * 1000000 + sizeof(Layer) * 1000 + sizeof(Pass); }
Work* longdraft_new() { return new Work; }
void longdraft_free(Work* t) { delete t; }
// half: weights and cache are bf16. Returns 0, or 1 where the head dimension is not one of 16, 32, 64, 96, 128, 256.
int longdraft_step(const Model* m, const Pass* p, Work* t, int half) {
    return half ? pick<bf16>(*m, *p, *t) : pick<float>(*m, *p, *t);
}
}
