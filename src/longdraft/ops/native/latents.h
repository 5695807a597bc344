// Attention whose cache holds one latent and one rotated part for all heads (DeepSeek V2, sec. 2.1). A head's queries are multiplied
// into the latents' space and its outputs out of it, so that no key or value is expanded.
#pragma once
#include "linear.h"
#include "products.h"
#include "work.h"

// Rotates 2 n numbers of a head, x -> to. rotation: D/2 cosines, then D/2 sines. Those that are rotated together lie side by side if
// they are `woven`, else n apart.
static void rotate(const float* x, bool woven, const float* rotation, int64_t D, int64_t n, float* to, bool woven_there) {
    const int64_t step = woven ? 2 : 1, apart = woven ? 1 : n, step_there = woven_there ? 2 : 1, apart_there = woven_there ? 1 : n;
    for (int64_t i = 0; i < n; i++) {
        const float a = x[i * step], b = x[i * step + apart], c = rotation[i], s = rotation[D / 2 + i];
        to[i * step_there] = a * c - b * s;
        to[i * step_there + apart_there] = b * c + a * s;
    }
}

// The stages of one layer's attention around `attend`. Every thread of a parallel region calls them.
template <typename E>
class LatentHeads {
    const LayerPass& x;
    const Layer& f;
    const Model& m;
    const Pass& p;
    Work& t;
    const int64_t T, W, D, H, rank, plain, rotated;
    float *const q, *const k;  // [T,H,plain+rotated], [T,D]

   public:
    LatentHeads(const LayerPass& x, const Layer& f, Work& t, float* q, float* k)
        : x(x), f(f), m(x.m), p(x.p), t(t), T(p.rows * p.nodes), W(p.nodes), D(m.head_dim), H(m.heads), rank(m.rank),
          plain(m.plain), rotated(D - rank), q(q), k(k) {}

    // Fills the queries of attention and the new slots of the cache. scale(i): of the scores of node i.
    template <typename Scale>
    void before_attention(const float* normed, Scale scale) {
        project(normed);
#pragma omp for schedule(static) nowait
        for (int64_t unit = 0; unit < T * (H + 1); unit++) {
            const int64_t i = unit / (H + 1), h = unit % (H + 1);
            if (h < H)
                divide_query(i, h, scale(i));
            else
                cache(i);
        }
        t.barrier.wait();
        for (int64_t h = 0; h < H; h++) multiply(f.to_latent[h], &t.by_head[h * T * plain], &t.latent[h * T * rank]);
        t.barrier.wait();
#pragma omp for schedule(static) nowait
        for (int64_t unit = 0; unit < T * H; unit++) {
            const int64_t i = unit / H, h = unit % H;
            const float *const from = &t.latent[(h * T + i) * rank], by = scale(i);
            float* const to = query(i, h);
            for (int64_t j = 0; j < rank; j += V) store(to + j, load(from + j) * by);
        }
        t.barrier.wait();
    }

    // Means of slots [T,H,D] -> outputs of heads [T,H,value], in the same memory.
    void after_attention(float* normed) {
        const int64_t value = m.value;
#pragma omp for schedule(static) nowait
        for (int64_t unit = 0; unit < T * H; unit++)
            std::memcpy(&t.by_head[(unit % H * T + unit / H) * rank], normed + unit * D, sizeof(float) * rank);
        t.barrier.wait();
        for (int64_t h = 0; h < H; h++) multiply(f.from_latent[h], &t.by_head[h * T * rank], &t.latent[h * T * value]);
        t.barrier.wait();
#pragma omp for schedule(static) nowait
        for (int64_t unit = 0; unit < T * H; unit++)
            std::memcpy(normed + unit * value, &t.latent[(unit % H * T + unit / H) * value], sizeof(float) * value);
        t.barrier.wait();
    }

   private:
    void multiply(const Linear& linear, const float* from, float* to) {
        ::multiply<E>(linear, from, T, to, false, p.approximate, t.mine());
    }

    void project(const float* normed) {
        multiply(f.k, normed, k);
        if (!f.q_down.weight) {
            multiply(f.q, normed, q);
            return t.barrier.wait();
        }
        const int64_t narrow = f.q_down.outputs;
        float* const all = t.latent.data();
        multiply(f.q_down, normed, all);
        t.barrier.wait();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) rms_norm(all + i * narrow, f.q_down_norm, narrow, m.latent_eps, all + i * narrow);
        t.barrier.wait();
        multiply(f.q, all, q);
        t.barrier.wait();
    }

    float* query(int64_t i, int64_t h) const { return &t.queries[((i / W * H + h) * W + i % W) * D]; }

    // A query's plain numbers go to its head's products, the rotated ones to where attention reads them.
    void divide_query(int64_t i, int64_t h, float scale) {
        const float* const from = q + (i * H + h) * (plain + rotated);
        std::memcpy(&t.by_head[(h * T + i) * plain], from, sizeof(float) * plain);
        float* const to = query(i, h) + rank;
        turn(from + plain, i, to);
        for (int64_t j = 0; j < rotated; j += V) store(to + j, load(to + j) * scale);
    }

    void cache(int64_t i) {
        const int64_t b = i / W, slot = x.committed(b) + x.scratch - W + i % W;
        const LayerCache& cache = p.cache[x.layer];
        E* const to = static_cast<E*>(cache.k) + (b * cache.slots + slot) * D;
        float* const key = k + i * D;
        alignas(64) float turned[MOST_ROTATED];
        rms_norm(key, f.k_norm, rank, m.latent_eps, key);
        turn(key + rank, i, turned);
        for (int64_t j = 0; j < rank; j += V) store(to + j, load(key + j));
        for (int64_t j = 0; j < rotated; j += V) store(to + rank + j, load(turned + j));
    }

    void turn(const float* from, int64_t i, float* to) const {
        if (f.rotation < 0)
            std::memcpy(to, from, sizeof(float) * rotated);
        else
            rotate(from, m.interleaved, &t.rotation[(f.rotation * T + i) * D], D, rotated / 2, to, m.interleaved && !m.put_apart);
    }
};
