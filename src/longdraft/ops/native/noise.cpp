// Noise, and draws by it, for the Python side.
#include "codes.h"
#include "draw.h"

extern "C" {
// out [rows,nodes,vocab] in (0, 1), of seed [rows], position [rows,nodes] and tokens 0..vocab-1.
int longdraft_uniform(const int64_t* seed, const int64_t* position, int64_t rows, int64_t nodes, int64_t vocab, double* out) {
    if (!from_to(rows, 0, MANY) || !from_to(nodes, 0, MANY) || !from_to(vocab, 0, MANY)) return DRAWS;
#pragma omp parallel for schedule(static) if (rows * nodes > 2)
    for (int64_t i = 0; i < rows * nodes; i++) {
        const uint64_t key = key_of(seed[i / nodes], position[i]);
        for (int64_t v = 0; v < vocab; v++) out[i * vocab + v] = uniform(key, v);
    }
    return DONE;
}

// out [rows,nodes]: a token of each row of logits [rows,nodes,vocab].
int longdraft_draw(const float* logits, double temperature, const int64_t* seed, const int64_t* position, int64_t rows, int64_t nodes,
                    int64_t vocab, int64_t* out) {
    if (!from_to(rows, 0, MANY) || !from_to(nodes, 0, MANY) || !from_to(vocab, 1, MANY) || !(temperature >= 0)) return DRAWS;
#pragma omp parallel for schedule(static) if (rows * nodes > 1)
    for (int64_t i = 0; i < rows * nodes; i++) out[i] = draw(logits + i * vocab, vocab, temperature, key_of(seed[i / nodes], position[i]));
    return DONE;
}
}
