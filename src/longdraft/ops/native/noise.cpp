// Noise, and tokens drawn with it, for calls from Python.
#include "draw.h"
#include "guard.h"
#include "memory.h"
#include "openmp.h"
#include "team.h"

Code longdraft_uniform(const int64_t* seed, const int64_t* position, int64_t rows, int64_t nodes, int64_t vocab, double* out) {
    if (!in_range(rows, 0, MANY) || !in_range(nodes, 0, MANY) || !in_range(vocab, 0, MANY)) return BAD_DRAW;
#pragma omp parallel for schedule(static) num_threads(team_size()) if (rows * nodes > 2)
    for (int64_t i = 0; i < rows * nodes; i++) {
        const uint64_t key = key_of(seed[i / nodes], position[i]);
        for (int64_t v = 0; v < vocab; v++) out[i * vocab + v] = uniform(key, v);
    }
    return DONE;
}

Code longdraft_draw(const float* logits, const Warpers* warpers, const int64_t* seed, const int64_t* position, int64_t rows,
                    int64_t nodes, int64_t vocab, int64_t* out) {
    if (!in_range(rows, 0, MANY) || !in_range(nodes, 0, MANY) || !in_range(vocab, 1, MANY)) return BAD_DRAW;
    if (!warpers || !fits(*warpers)) return BAD_DRAW;
    const int threads = rows * nodes > 1 ? team_size() : 1;
    return guarded([&] {
        Buffer<Kept> kept;
        kept.reserve(truncates(*warpers) ? threads * vocab : 0);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < rows * nodes; i++) {
            Kept* const room = kept.data() + (kept.data() ? omp_get_thread_num() * vocab : 0);
            out[i] = draw(logits + i * vocab, vocab, *warpers, key_of(seed[i / nodes], position[i]), room);
        }
        return DONE;
    });
}
