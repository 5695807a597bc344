// What the Python side hands over: plain structures of sizes and pointers, mirrored in __init__.py.
#pragma once
#include <cstdint>

struct Linear {
    const void* w;   // [out,in], or null: there is none
    const float* b;  // [out] or null
    int64_t out, in;
};

struct Layer {
    Linear q, k, v, o, gate, up, down;
    const float *norm1, *norm2, *qnorm, *knorm;  // the last two may be null
    int64_t window;                              // 0: sees everything
    int64_t kind;
};

// What a layer is: WHOLE is a decoder's; OWN is self-attention over a ring of keys, without an MLP; CROSS has no keys of
// its own and reads those of committed slots, then has an MLP. The last two make GLIDE's block (LongSpec sec. 3.1).
enum { WHOLE, OWN, CROSS };

struct Model {
    int64_t layers, d, heads, keys, groups, dim, mlp, vocab;  // keys: key heads; groups: query heads per key head
    int64_t turns;                                            // how many numbers inv_freq has: dim/2
    float eps, scale, rope_scale;
    const float* inv_freq;
    const void* embed;      // [vocab,d]
    Linear head;
    const float* norm;  // null: none before the head
    const Layer* layer;
};

struct Picked {
    const void *k, *v;  // [K,n,D], `pitch` slots between heads
    int64_t n, pitch;
};

struct Pass {
    int64_t rows, nodes, start;             // B; W new nodes; scratch nodes before them
    const int64_t *tokens, *depth, *length; // [B,W], [B,start+W], [B]
    const int64_t* position;                // [B,W]
    const uint8_t* mask;                    // [B,W,start+W]
    void* const* k;                         // per layer: [B,K,slots,D]
    void* const* v;
    const int64_t* slots;                   // [layers]
    const int64_t* since;                   // [B], or null: everything is seen
    const Picked* picks;                    // [layers,B], or null
    const int64_t* keep;                    // [B,kept]: query nodes whose scores are wanted
    int64_t kept, weights, split, pooled;   // how many (0: none); weights, not logits; one score a key head; a mean of rows
    int64_t most;                           // slots of a row of scores
    float* scores;                          // [layers,B,pooled ? 1 : kept,split ? K : 1,most]: means over the heads
    const int64_t* hidden;                  // [hiddens] layers: the residual stream after so many of them
    int64_t hiddens;
    float* states;                          // [hiddens,B,W,d]
    float* logits;                          // [B,W,vocab]
    int64_t only;                           // the layer whose scores are kept; -1: all
    int64_t ring;                           // slots before the scratch of an OWN layer
    const uint8_t* seen;                    // [B,W,ring+start+W]: what each node sees of it
};

// A chain drafted in one call: every node's token is drawn from the node before.
struct Chain {
    int64_t count;            // nodes to run; as many tokens are drawn
    double temperature;
    const int64_t *seed, *at; // [B]: of the noise; position of the first draw's
    int64_t reach;            // positions that the model knows
    int64_t* drawn;           // [B,count]
};

// A compact copy of `had` slots that is to hold n others. k, v [heads, size, bytes], pitch bytes between heads; out_k, out_v
// [heads, room, bytes] with out_pitch between heads. slots [n] are wanted; those of the copy are held [had], at
// places held_at -> place [n] of each wanted slot.
struct Copy {
    const char *k, *v;
    int64_t heads, size, pitch, bytes;
    const int64_t* slots;
    int64_t n;
    const int64_t *held, *held_at;
    int64_t had;
    char *out_k, *out_v;
    int64_t room, out_pitch;
    int64_t* place;
};
