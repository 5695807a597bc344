// The memory of a pass, and which keys each row of it has.
#pragma once
#include <algorithm>

#include "attention.h"
#include "barrier.h"
#include "draw.h"
#include "interface.h"
#include "memory.h"
#include "openmp.h"

// Bytes of partial results and scores that are held at a time (or those of one key head of one row, where that is more), and
// bytes that are kept from call to call: a call that needed more gives its memory back.
constexpr int64_t HELD = int64_t{64} << 20, KEPT = int64_t{128} << 20;

constexpr int64_t MOST_ROTATED = 256;  // numbers of a slot behind its latent
constexpr int64_t WIDEST_CODED = 256;  // numbers of a head whose keys and values may be codes

// T = B W rows of a pass. A wave's pairs are counted from its first; each has `widest` blocks of G W query rows.
struct Work {
    Buffer<float> residual;                         // [T,width]
    Buffer<float> projected;                        // q, k and v, or gate and up: each [T,outputs]
    Buffer<float> normed;                           // [T,width]; after attention its outputs [T,H,D]
    Buffer<float> kept_input;                       // [T,width]: what the MLP reads that lies beside attention
    Buffer<float> queries;                          // [B,K,G,W,D], scaled
    Buffer<float> rotation;                         // [T,D]: cosines, then sines
    Buffer<float> by_head, latent;                  // of latents: [H,T,numbers] that a head's products read, and what they make
    Buffer<float> block_max, block_sum, block_out;  // partial results [pairs,widest,G W], the outputs of D numbers each
    Buffer<float> lse;                              // [B,H,W]: log of the sum of exp(score)
    Buffer<float> kept_scores, chunk_max;           // what a ScoreSink points to: logits, or maxima
    Buffer<bf16> kept_weights;                      // and weights
    Buffer<float> some_logits;                      // [B,W,head.outputs]: of a head that does not have all tokens
    Buffer<float> router, choice, share;            // of experts: [T,router.outputs]; see Chooser; [T,chosen]
    Buffer<float> routed, inner;                    // [T chosen,width]: nodes by expert; [2,T chosen,outputs of gate]
    Buffer<float> beside, shared_gate;              // [T,width]: the sum of a node's experts; [T]
    Buffer<int64_t> expert, place, begin;           // [T,chosen], and in `routed`; [count + 1]: where an expert's nodes begin there
    Buffer<int64_t> score_row;                      // [B,W]: its index among the nodes whose scores are kept
    Buffer<char> own;                               // own_bytes for each thread
    Buffer<int64_t> token, depth, position;         // of a chain
    Buffer<Kept> kept;                              // [B,vocab]: of its draws
    Buffer<int64_t> penalized_at;                   // [B,vocab]: the last of its nodes at which a token was penalized, from 1
    Buffer<uint8_t> mask, ring_mask;                // of a chain
    Buffer<float> feature;                          // [B,width]: of a chain's next node; or of a level's nodes
    Buffer<float> output, level_logits, factor;     // of a tree's level: what its nodes continue with, and their logits; noise
    int64_t own_bytes = 0;
    Barrier barrier;

    char* mine() const { return own.data() + omp_get_thread_num() * own_bytes; }
    int64_t bytes() const {
        int64_t total = 0;
        each(*this, [&](const auto& buffer) { total += buffer.bytes(); });
        return total;
    }
    void clear() {
        each(*this, [](auto& buffer) { buffer.clear(); });
    }

   private:
    template <typename W, typename Call>
    static void each(W& w, Call call) {
        call(w.residual), call(w.kept_input), call(w.projected), call(w.normed), call(w.queries), call(w.rotation), call(w.by_head), call(w.latent);
        call(w.block_max), call(w.block_sum), call(w.block_out), call(w.lse), call(w.kept_scores), call(w.chunk_max);
        call(w.kept_weights), call(w.some_logits), call(w.score_row), call(w.own), call(w.token), call(w.depth), call(w.position);
        call(w.router), call(w.choice), call(w.share), call(w.routed), call(w.inner), call(w.beside), call(w.shared_gate);
        call(w.expert), call(w.place), call(w.begin);
        call(w.mask), call(w.ring_mask), call(w.feature), call(w.output), call(w.level_logits), call(w.factor), call(w.kept), call(w.penalized_at);
    }
};

// Pairs of a row and a key head, `count` of them from `first` on, whose partial results are held together. widest: how many
// blocks the longest row has.
struct Wave {
    int64_t first, count, widest;
};

// A layer in a pass: what it sees of each row.
struct LayerPass {
    const Model& m;
    const Pass& p;
    const int64_t layer;
    const int64_t kind = m.layer[layer].kind, window = m.layer[layer].window;
    const float cap = m.layer[layer].cap;
    // The nodes after the committed slots. The slots of a ring count as scratch.
    const int64_t scratch = kind == CROSS ? 0 : (kind == RING ? p.ring : 0) + p.start + p.nodes;
    const bool viewed = p.selected && !window && kind != RING;  // layers with a window ignore views
    const bool scored = p.scored && !window && (p.score_layer < 0 || p.score_layer == layer);

    int64_t committed(int64_t row) const { return kind == RING ? 0 : p.length[row]; }
    int64_t tail_start(int64_t row) const { return viewed ? p.tail_start[row] : 0; }
    const Selected& selected(int64_t row) const { return p.selected[layer * p.rows + row]; }

    // A row's blocks: first those of the selected keys, then those of its slots, from the first_block-th of all slots on.
    int64_t selected_blocks(int64_t row) const { return viewed ? (selected(row).count + BLOCK - 1) / BLOCK : 0; }
    int64_t first_block(int64_t row) const { return tail_start(row) / BLOCK; }
    int64_t blocks(int64_t row) const {
        const int64_t end = (committed(row) + scratch + BLOCK - 1) / BLOCK;
        return selected_blocks(row) + std::max<int64_t>(0, end - first_block(row));
    }
};
