// Attention by the width of a head. Each type of weights has a file of its own that compiles it, because that takes a minute.
#pragma once
#include <utility>

#include "work.h"

// Widths of a head that attention is compiled for; the last two are those of latents (MiniCPM3; DeepSeek, Kimi, GLM).
using HeadDims = std::integer_sequence<int, 16, 32, 64, 96, 128, 256, 288, 576>;

template <int... D>
static bool has_heads(int64_t dim, std::integer_sequence<int, D...>) {
    return ((dim == D) || ...);
}

// What LayerAttention has for one width.
struct HeadAttention {
    int64_t (*bytes)(int64_t R, int64_t G, int64_t scratch);
    void (*run)(const LayerPass& x, Work& t, const Wave& wave);
};

// That of heads of `dim` numbers, which has_heads.
template <typename E>
HeadAttention head_attention(int64_t dim);

// Merges the blocks of a query row in order: y [D], and its lse. at: the row in the first of its n blocks. sink: a score without a
// value, or NONE.
static void merge_blocks(const Work& t, int64_t at, int64_t n, int64_t R, int64_t D, float sink, float* y, float& lse) {
    float top = sink;
    for (int64_t i = 0; i < n; i++) top = std::fmax(top, t.block_max[at + i * R]);
    float total = sink == NONE ? 0 : std::exp(sink - top);
    std::memset(y, 0, sizeof(float) * D);
    for (int64_t i = 0; i < n; i++) {
        const float share = std::exp(t.block_max[at + i * R] - top);
        total += t.block_sum[at + i * R] * share;
        const float* out = &t.block_out[(at + i * R) * D];
        for (int64_t d = 0; d < D; d += V) store(y + d, load(y + d) + load(out + d) * share);
    }
    if (!n) return;  // the row sees nothing yet
    for (int64_t d = 0; d < D; d += V) store(y + d, load(y + d) / total);
    lse = top + std::log(total);
}

// Merges the blocks of all rows of a wave: y [T,H,D]. Called by every thread of a parallel region.
static inline void merge_wave(const LayerPass& x, Work& t, const Wave& wave, float* y) {
    const int64_t D = x.m.head_dim, H = x.m.heads, G = x.m.groups, K = x.m.key_heads, W = x.p.nodes, R = G * W;
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < wave.count * R; unit++) {
        const int64_t pair = unit / R, b = (wave.first + pair) / K, r = unit % R, w = r % W;
        const int64_t head = (wave.first + pair) % K * G + r / W, at = pair * wave.widest * R + r;
        const float* const sinks = x.m.layer[x.layer].sinks;
        merge_blocks(t, at, x.blocks(b), R, D, sinks ? sinks[head] : NONE, y + ((b * W + w) * H + head) * D, t.lse[(b * H + head) * W + w]);
    }
}
