// Randomness as ops/noise.py defines it, bit for bit: uniform numbers of (seed, position, token).
#include <cstdint>

static inline uint64_t mix(uint64_t x) {  // splitmix64's finaliser
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

extern "C" {
// out [rows,nodes,vocab] in (0, 1), of seed [rows], position [rows,nodes] and tokens 0..vocab-1.
void longdraft_uniform(const int64_t* seed, const int64_t* position, int64_t rows, int64_t nodes, int64_t vocab, double* out) {
#pragma omp parallel for schedule(static) if (rows * nodes > 2)
    for (int64_t i = 0; i < rows * nodes; i++) {
        const uint64_t key = mix(mix(static_cast<uint64_t>(seed[i / nodes]) * 0x9E3779B97F4A7C15ull + 1) +
                                 mix(static_cast<uint64_t>(position[i]) * 0x9E3779B9ull + 7));
        double* to = out + i * vocab;
        for (int64_t v = 0; v < vocab; v++) {
            const uint64_t x = mix(key + static_cast<uint64_t>(v) * 0xD1B54A32D192ED03ull);
            to[v] = (static_cast<double>(static_cast<int64_t>(x >> 12)) + 0.5) * 0x1p-52;
        }
    }
}
}
