// Recurrences of layers with a state along the paths of a tree, and what surrounds them, for calls from Python.
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
    if (!in_range(s.first, 0, s.tokens) || !in_range(s.steps, 1, MANY)) return false;
    if (!in_range(s.slots, 0, MANY) || !in_range(s.kept, 0, s.slots)) return false;
    if (!s.order || !s.decay || !s.k || !s.v || !s.q != !s.out || (s.kept && !s.after)) return false;
    for (int64_t i = 0; i < s.steps; i++) {
        const Step step = step_of(s, i);
        if (!in_range(step.token, 0, s.tokens - 1) || !in_range(step.save, -1, s.slots - 1)) return false;
        if (!in_range(step.before, COMMITTED, i ? s.slots - 1 : COMMITTED)) return false;
    }
    return true;
}

// The decays, keys and queries of steps [from, from + count). Called by every thread of a parallel region.
static void prepare(const Scan& s, int64_t from, int64_t count, const Prepared& to) {
    const int64_t N = s.keys, K = s.key_heads, H = s.heads * (s.per_key ? N : 1);
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count * K; i++) {
        const int64_t token = step_of(s, from + i / K).token, head = i % K;
        scaled(s.k + (token * K + head) * N, N, s.normalized, 1, to.k + i * N);
        if (s.q && token >= s.first)
            scaled(s.q + ((token - s.first) * K + head) * N, N, s.normalized, s.scale, to.q + i * N);
    }
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count; i++) exponentials(s.decay + step_of(s, from + i).token * H, H, to.decay + i * H);
}

// What a call needs: a tile's tokens, and for each thread, or where there are several tiles for each head, its states.
struct ScanMemory {
    Prepared prepared;
    int64_t each;  // numbers of a head's states
    float* states;
    int64_t bytes;
    ScanMemory(const Scan& s, int64_t tile, int64_t owners, Arena arena) : each(States(s, tile < s.steps, nullptr).numbers()) {
        prepared.k = arena.array<float>(tile * s.key_heads * s.keys);
        prepared.q = arena.array<float>(s.q ? tile * s.key_heads * s.keys : 0);
        prepared.decay = arena.array<float>(tile * s.heads * (s.per_key ? s.keys : 1));
        states = arena.array<float>(owners * each);
        bytes = arena.bytes();
    }
};

template <bool DELTA, bool PER_KEY>
static Code scan(const Scan& s) {
    const int threads = s.steps * s.heads * s.keys * s.values < (1 << 15) ? 1 : team_size();
    const int64_t tile = std::min(s.steps, TILE_STEPS), blocks = (s.values + COLUMNS - 1) / COLUMNS;
    const int64_t shares = s.heads < threads ? blocks : 1;  // of a head
    const bool several = tile < s.steps;
    Buffer<char> memory;
    memory.reserve(ScanMemory(s, tile, several ? s.heads : threads, Arena()).bytes);
    const ScanMemory t(s, tile, several ? s.heads : threads, Arena(memory.data()));
#pragma omp parallel num_threads(threads)
    for (int64_t from = 0; from < s.steps; from += tile) {
        const int64_t count = std::min(tile, s.steps - from);
        prepare(s, from, count, t.prepared);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < s.heads * shares; unit++) {
            const int64_t head = unit / shares, share = unit % shares, end = blocks * (share + 1) / shares;
            const States states(s, several, t.states + (several ? head : omp_get_thread_num()) * t.each);
            if (!from) states.load(head, blocks * share / shares, end);
            for (int64_t block = blocks * share / shares; block < end; block++)
                Block<DELTA, PER_KEY>(s, t.prepared, states, from, count, head, block).run();
            if (from + count == s.steps) states.store(head, blocks * share / shares, end);
        }
    }
    return DONE;
}

// Additive recurrences of heads with one value, as Mamba has them: its keys are side by side in a vector.
static Code narrow(const Scan& s) {
    constexpr int64_t BESIDE = 64;  // heads
    const int64_t N = s.keys, H = s.heads, groups = (H + BESIDE - 1) / BESIDE, block = BESIDE * N;
    const int threads = s.steps * H * N < (1 << 15) ? 1 : team_size();
    Buffer<float> memory;
    memory.reserve(threads * (1 + s.slots - s.kept) * block);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t group = 0; group < groups; group++) {
        const int64_t begin = group * BESIDE, end = std::min(H, begin + BESIDE), size = sizeof(float) * (end - begin) * N;
        float* const own = memory.data() + omp_get_thread_num() * (1 + s.slots - s.kept) * block;
        const auto slot = [&](int64_t i) { return i < s.kept ? s.after + (i * H + begin) * N : own + (1 + i - s.kept) * block; };
        for (int64_t i = 0; i < s.steps; i++) {
            const auto [t, before, save] = step_of(s, i);
            const bool empty = before == COMMITTED && !s.before, out = s.out && t >= s.first;
            if (empty) std::memset(own, 0, size);
            if (before != ON && !empty) std::memcpy(own, before == COMMITTED ? s.before + begin * N : slot(before), size);
            for (int64_t h = begin; h < end; h++) {
                const int64_t key_head = h / (H / s.key_heads), head = t * H + h;
                const float *const k = s.k + (t * s.key_heads + key_head) * N;
                const float *const q = out ? s.q + ((t - s.first) * s.key_heads + key_head) * N : k;
                float* const state = own + (h - begin) * N;
                const vec v = splat(s.v[head]);
                vec y = splat(0);
                for (int64_t n = 0; n < N; n += V) {
                    const vec d = vexp(s.per_key ? load(s.decay + head * N + n) : splat(s.decay[head]));
                    const vec x = fused(load(k + n), v, load(state + n) * d);
                    store(state + n, x);
                    if (out) y = fused(load(q + n), x, y);
                }
                if (out) s.out[head - s.first * H] = sum(y);
            }
            if (save >= 0) std::memcpy(slot(save), own, size);
        }
    }
    return DONE;
}

Code longdraft_scan(const Scan* s) {
    if (!fits(*s)) return BAD_SCAN;
    return guarded([&] {
        if (!s->beta && !s->normalized && s->scale == 1 && s->values == 1 && s->keys % V == 0) return narrow(*s);
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

static float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }  // as in torch

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
            decay[t * heads + h] = rate[h] * softplus(a);
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

Code longdraft_time_steps(const float* dt, int64_t tokens, int64_t heads, const float* bias, float low, float high, float* out) {
    if (!in_range(tokens, 0, MANY) || !in_range(heads, 1, MANY)) return BAD_SCAN;
    for_all(tokens, heads * 20, [&](int64_t t) {
        for (int64_t h = 0; h < heads; h++)
            out[t * heads + h] = std::min(std::max(softplus(dt[t * heads + h] + bias[h]), low), high);
    });
    return DONE;
}

Code longdraft_norm_of_gated(const float* x, const float* z, const float* weight, int64_t rows, int64_t groups, int64_t size, float eps,
                             float* out) {
    if (!in_range(rows, 0, MANY) || !in_range(groups, 1, MANY) || !in_range(size, V, MANY) || size % V) return BAD_SCAN;
    for_all(rows * groups, size * 4, [&](int64_t row) {
        const int64_t at = row * size;
        for (int64_t i = 0; i < size; i += V) store(out + at + i, load(x + at + i) * silu(load(z + at + i)));
        rms_norm(out + at, weight + row % groups * size, size, eps, out + at);
    });
    return DONE;
}
