// Scores of attention that are kept for a view: where the blocks of a layer write them, and their means over heads and nodes.
#pragma once
#include "simd.h"
#include "work.h"

// A row of kept scores has whole blocks, each written from its beginning.
constexpr int64_t CHUNKS = BLOCK / CHUNK;  // of a block
static int64_t score_chunks(const Pass& p) { return (p.score_slots + p.start + p.nodes + BLOCK - 1) / BLOCK * CHUNKS; }
static int64_t score_row_size(const Pass& p) { return score_chunks(p) * CHUNK + 16; }

// Whether weights are kept as such, in half the memory: for a mean over all heads and nodes, which is taken in every step. A
// mean for each key head is taken once in a prompt, from logits.
static bool keeps_weights(const Pass& p) { return p.as_weights && p.mean_of_nodes && !p.per_key_head; }

// Where the scores of a wave's row go from this slot on, in a block of which the slots from `begin` on are seen.
static inline ScoreSink sink_of(const Pass& p, Work& t, int64_t row, int64_t begin, int64_t slot) {
    const int64_t at = row * score_row_size(p) + begin / BLOCK * BLOCK + slot - begin;
    if (!keeps_weights(p)) return {&t.kept_scores[at], nullptr, nullptr};
    const int64_t chunk = begin / BLOCK * CHUNKS + (slot - begin) / CHUNK;
    return {nullptr, &t.kept_weights[at], &t.chunk_max[row * score_chunks(p) + chunk]};
}

// Requests the memory for the kept scores of this many pairs, and fills score_row.
static inline void reserve_scores(const Pass& p, Work& t, int64_t pairs, int64_t groups) {
    if (!p.scored) return;
    t.score_row.reserve(p.rows * p.nodes);
    for (int64_t i = 0; i < p.rows * p.scored; i++) t.score_row[i / p.scored * p.nodes + p.score_nodes[i]] = i % p.scored;
    const int64_t rows = pairs * groups * p.scored;
    if (keeps_weights(p))
        t.kept_weights.reserve(rows * score_row_size(p)), t.chunk_max.reserve(rows * score_chunks(p));
    else
        t.kept_scores.reserve(rows * score_row_size(p));
}

// Bytes of the kept scores of a pair.
static inline int64_t score_bytes(const Pass& p, int64_t groups) {
    const int64_t each = keeps_weights(p) ? sizeof(bf16) : sizeof(float);
    return groups * p.scored * (score_row_size(p) * each + score_chunks(p) * sizeof(float));
}

// One mean of scores: of nodes [first_node, last_node) of a row of the pass, over key heads [first_key, last_key) or, in a wave
// that has only some of them, those from from_key to to_key.
struct Mean {
    int64_t row, first_node, last_node, first_key, last_key, from_key, to_key;
    float* out;  // [score_slots]
};

// Slots [begin, end) of a mean, which are a chunk as attend_keys went through them. The sum over heads of several waves goes
// on from what the wave before has left in `out`.
static void average_chunk(const LayerPass& x, const Work& t, const Wave& wave, const Mean& mean, int64_t chunk, int64_t begin,
                          int64_t end) {
    const Pass& p = x.p;
    const int64_t K = x.m.key_heads, G = x.m.groups, n = end - begin;
    const bool weights = keeps_weights(p);
    vec total[CHUNK / V] = {};
    const auto bytes = [&](int64_t s) { return sizeof(float) * std::min<int64_t>(V, n - s); };
    if (mean.from_key > mean.first_key)
        for (int64_t s = 0; s < n; s += V) std::memcpy(&total[s / V], mean.out + begin + s, bytes(s));
    for (int64_t h = mean.from_key * G; h < mean.to_key * G; h++)
        for (int64_t i = mean.first_node; i < mean.last_node; i++) {
            const int64_t node = p.score_nodes[p.scored * mean.row + i];
            const int64_t row = ((mean.row * K - wave.first) * G + h) * p.scored + t.score_row[mean.row * p.nodes + node];
            const int64_t from = row * score_row_size(p) + chunk * CHUNK;
            const float lse = t.lse[(mean.row * x.m.heads + h) * p.nodes + node];
            const float share = weights ? std::exp(t.chunk_max[row * score_chunks(p) + chunk] - lse) : 1.0f;
            for (int64_t s = 0; s < n; s += V) {
                if (weights)
                    total[s / V] += load(&t.kept_weights[from + s]) * share;
                else
                    total[s / V] += p.as_weights ? vexp(load(&t.kept_scores[from + s]) - lse) : load(&t.kept_scores[from + s]);
            }
        }
    const float count = (mean.last_key - mean.first_key) * G * (mean.last_node - mean.first_node);
    for (int64_t s = 0; s < n; s += V) {
        const vec out = mean.to_key == mean.last_key ? total[s / V] / splat(count) : total[s / V];
        std::memcpy(mean.out + begin + s, &out, bytes(s));
    }
}

// The means of a wave's scores on slots 0..length, over the heads (all, or those of a key head), and over the nodes if wanted.
// Called by every thread of a parallel region.
static inline void average_scores(const LayerPass& x, Work& t, const Wave& wave) {
    const Pass& p = x.p;
    const int64_t K = x.m.key_heads, chunks = score_chunks(p), rows = p.mean_of_nodes ? 1 : p.scored, nodes = p.scored / rows;
    const int64_t columns = p.per_key_head ? K : 1, keys = K / columns, end = wave.first + wave.count;
    const int64_t first_row = wave.first / K, last_row = (end + K - 1) / K;
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < (last_row - first_row) * rows * columns * chunks; unit++) {
        const int64_t chunk = unit % chunks, c = unit / chunks % columns, r = unit / chunks / columns % rows;
        const int64_t b = first_row + unit / chunks / columns / rows;
        const int64_t from_key = std::max(c * keys, wave.first - b * K), to_key = std::min((c + 1) * keys, end - b * K);
        const int64_t block = std::max(chunk / CHUNKS * BLOCK, x.tail_start(b)), from = block + chunk % CHUNKS * CHUNK;
        const int64_t to = std::min({from + CHUNK, (chunk / CHUNKS + 1) * BLOCK, p.length[b] + 1});
        if (from >= to || from_key >= to_key) continue;
        float* out = p.scores + (((x.layer * p.rows + b) * rows + r) * columns + c) * p.score_slots;
        const Mean mean = {b, r * nodes, (r + 1) * nodes, c * keys, (c + 1) * keys, from_key, to_key, out};
        average_chunk(x, t, wave, mean, chunk, from, to);
    }
}
