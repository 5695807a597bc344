// Recurrences of layers with a state, and causal convolutions, along chains of tokens, for calls from Python.
#include "recurrence.h"

#include "guard.h"
#include "linear.h"
#include "memory.h"
#include "openmp.h"
#include "team.h"

static bool fits(const Scan& s) {
    for (const int64_t n : {s.tokens, s.heads, s.key_heads, s.keys, s.values})
        if (!in_range(n, 1, MANY)) return false;
    if (s.heads % s.key_heads || s.heads * s.keys >= MANY || s.heads * s.values >= MANY) return false;
    return s.after && s.decay && s.k && s.v && (!s.q == !s.out);
}

// The decays, keys and queries of tokens [from, from + count). Called by every thread of a parallel region.
static void prepare(const Scan& s, int64_t from, int64_t count, const Prepared& to) {
    const int64_t N = s.keys, K = s.key_heads, H = s.heads * (s.per_key ? N : 1);
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count * K; i++) {
        const int64_t at = (from * K + i) * N;
        scaled(s.k + at, N, s.normalised, 1, to.k + i * N);
        if (s.q) scaled(s.q + at, N, s.normalised, s.scale, to.q + i * N);
    }
#pragma omp for schedule(static) nowait
    for (int64_t t = 0; t < count; t++) exponentials(s.decay + (from + t) * H, H, to.decay + t * H);
}

// What a call needs: a tile's tokens, and a block of a state for each thread.
struct ScanMemory {
    Prepared prepared;
    float* own;  // [threads,keys,COLUMNS]
    int64_t bytes;
    ScanMemory(const Scan& s, int64_t tile, int64_t threads, Arena arena) {
        prepared.k = arena.array<float>(tile * s.key_heads * s.keys);
        prepared.q = arena.array<float>(s.q ? tile * s.key_heads * s.keys : 0);
        prepared.decay = arena.array<float>(tile * s.heads * (s.per_key ? s.keys : 1));
        own = arena.array<float>(threads * s.keys * COLUMNS);
        bytes = arena.bytes();
    }
};

// A head's state to where it will be changed, which reads memory in its order: the blocks do not.
static void copy_state(const Scan& s, int64_t head) {
    const int64_t size = s.keys * s.values;
    std::memcpy(s.after + head * size, s.before + head * size, sizeof(float) * size);
}

template <bool DELTA, bool PER_KEY>
static Code scan(const Scan& s) {
    const int threads = s.tokens * s.heads * s.keys * s.values < (1 << 15) ? 1 : team_size();
    const int64_t tile = std::min(s.tokens, TILE_TOKENS), blocks = (s.values + COLUMNS - 1) / COLUMNS;
    const int64_t shares = s.heads < threads ? blocks : 1;  // of a head
    Buffer<char> memory;
    memory.reserve(ScanMemory(s, tile, threads, Arena()).bytes);
    const ScanMemory t(s, tile, threads, Arena(memory.data()));
#pragma omp parallel num_threads(threads)
    for (int64_t from = 0; from < s.tokens; from += tile) {
        const int64_t count = std::min(tile, s.tokens - from);
        prepare(s, from, count, t.prepared);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < s.heads * shares; unit++) {
            const int64_t head = unit / shares, share = unit % shares;
            const bool copied = !from && s.before && shares == 1;
            if (copied) copy_state(s, head);
            for (int64_t block = blocks * share / shares; block < blocks * (share + 1) / shares; block++)
                Block<DELTA, PER_KEY>(s, t.prepared, from, count, head, block, from || copied)
                    .run(t.own + omp_get_thread_num() * s.keys * COLUMNS);
        }
    }
    return DONE;
}

// Additive recurrences of heads with one value, as Mamba has them: its keys are side by side in a vector.
static Code narrow(const Scan& s) {
    constexpr int64_t BESIDE = 64;  // heads
    const int64_t N = s.keys, H = s.heads, groups = (H + BESIDE - 1) / BESIDE;
    const int threads = s.tokens * H * N < (1 << 15) ? 1 : team_size();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t group = 0; group < groups; group++)
        for (int64_t t = 0; t < s.tokens; t++)
            for (int64_t h = group * BESIDE; h < std::min(H, (group + 1) * BESIDE); h++) {
                const int64_t key_head = (t * s.key_heads + h / (H / s.key_heads)) * N, head = t * H + h;
                const float* const before = t ? s.after : s.before;
                const vec v = splat(s.v[head]);
                vec out = splat(0);
                for (int64_t n = 0; n < N; n += V) {
                    const vec d = vexp(s.per_key ? load(s.decay + head * N + n) : splat(s.decay[head]));
                    const vec x = fused(load(s.k + key_head + n), v, before ? load(before + h * N + n) * d : splat(0));
                    store(s.after + h * N + n, x);
                    if (s.q) out = fused(load(s.q + key_head + n), x, out);
                }
                if (s.out) s.out[head] = sum(out);
            }
    return DONE;
}

Code longdraft_scan(const Scan* s) {
    if (!fits(*s)) return BAD_SCAN;
    return guarded([&] {
        if (!s->beta && !s->normalised && s->scale == 1 && s->values == 1 && s->keys % V == 0) return narrow(*s);
        if (s->beta) return s->per_key ? scan<true, true>(*s) : scan<true, false>(*s);
        return s->per_key ? scan<false, true>(*s) : scan<false, false>(*s);
    });
}

// Calls f(i) for all i < count, the threads' shares in order.
template <typename F>
static void for_all(int64_t count, int64_t work, F f) {
    const int threads = count * work < (1 << 15) ? 1 : team_size();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; i++) f(i);
}

static vec silu(vec x) { return x / (vexp(-x) + 1.0f); }

Code longdraft_silu(float* x, int64_t count) {
    constexpr int64_t PART = 1024;
    if (!x || !in_range(count, 0, int64_t{1} << 40)) return BAD_SCAN;
    for_all((count + PART - 1) / PART, 2 * PART, [&](int64_t part) {
        const int64_t end = std::min(count, (part + 1) * PART);
        for (int64_t i = part * PART; i < end; i += V) {
            alignas(64) float some[V] = {};
            const int64_t n = std::min<int64_t>(V, end - i);
            std::memcpy(some, x + i, sizeof(float) * n);
            store(some, silu(load(some)));
            std::memcpy(x + i, some, sizeof(float) * n);
        }
    });
    return DONE;
}

Code longdraft_delta_gates(const float* gates, int64_t tokens, int64_t heads, int64_t stride, const float* rate, const float* bias,
                           float* beta, float* decay) {
    if (!in_range(tokens, 0, MANY) || !in_range(heads, 1, MANY) || !in_range(stride, 2 * heads, MANY)) return BAD_SCAN;
    for_all(tokens, heads * 40, [&](int64_t t) {
        for (int64_t h = 0; h < heads; h++) {
            const float b = gates[t * stride + h], a = gates[t * stride + heads + h] + bias[h];
            beta[t * heads + h] = 1 / (1 + std::exp(-b));
            decay[t * heads + h] = rate[h] * (a > 20 ? a : std::log1p(std::exp(a)));
        }
    });
    return DONE;
}

Code longdraft_gated_norm(const float* x, const float* z, const float* weight, int64_t rows, int64_t size, float eps, float* out) {
    if (!in_range(rows, 0, MANY) || !in_range(size, V, MANY) || size % V) return BAD_SCAN;
    for_all(rows, size * 4, [&](int64_t row) {
        float* const to = out + row * size;
        rms_norm(x + row * size, weight, size, eps, to);
        for (int64_t i = 0; i < size; i += V) store(to + i, load(to + i) * silu(load(z + row * size + i)));
    });
    return DONE;
}
