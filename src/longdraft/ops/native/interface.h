// The C interface of the kernels: every structure and every function that Python uses.
//
// This file is the only description of it. interface.py reads it when longdraft is imported, makes the ctypes classes from
// it, and compares them with what the compiler made of it (layout.cpp). It reads a small part of C++: structures,
// enumerations and functions as below, one pointer to a declaration; anything else is an error there.
//
// Sizes: B rows, W new nodes of each, H heads, K key heads, D numbers of a head. Pointers are to contiguous arrays, sizes
// in brackets; E is float, or bf16 where `half` is set.
#pragma once
#include <cstdint>

// What functions return: DONE, or what was wrong. Python raises for every value but DONE.
enum Code : int {
    DONE,
    NO_MEMORY,
    BAD_MODEL,
    BAD_NODES,
    BAD_TOKEN,
    BAD_SLOTS,
    BAD_VIEW,
    BAD_SCORES,
    BAD_STATES,
    BAD_DRAW,
    BAD_COPY,
    BAD_SCAN
};

// DECODER: attention and an MLP. RING: self-attention over a ring of slots. CROSS: has no keys of its own and reads
// those of the committed slots. RING and CROSS together are GLIDE's block (LongSpec sec. 3.1). RECURRENT: has a mixer
// in place of attention, which the caller computes (Pass.resume): q, k and v are projections of its inputs, in their own sizes.
// A layer without `down` and experts has no MLP. KEYS: only puts keys and values of the stream, which it leaves unchanged, into the cache.
// ALONE: an MLP or experts without anything before them.
enum LayerKind : int64_t { DECODER, RING, CROSS, RECURRENT, KEYS, ALONE };

// What the residual stream begins with. EMBEDDING: that of the node's token. GIVEN: Pass.features, or `fuse` of Pass.sources. FUSED: `fuse` of the token's
// embedding and the node's feature, side by side (EAGLE, MTP). BESIDE: the feature, and the first layer's attention reads the
// embedding and the feature side by side (EAGLE-3).
enum Start : int64_t { EMBEDDING, GIVEN, FUSED, BESIDE };

// What the gate of an MLP goes through, or without gates its inner numbers. GELU_TANH: the approximation by tanh. RELU2: the
// square of what is positive. CLAMPED: gate and up are limited, the gate goes through x sigmoid(slope x), and up is increased by 1.
// XIELU: with Layer.slopes (p, n, s), p x^2 + s x of what is positive, n (exp(x) - 1 - x) + s x of the rest.
enum Activation : int64_t { SILU, GELU_TANH, RELU2, CLAMPED, GELU, RELU, XIELU };

// What gates of attention's outputs go through. SOFTPLUS: log(1 + exp(x)).
enum GateFunction : int64_t { SIGMOID_GATE, SOFTPLUS };

// What makes shares of a router's products. SOFTMAX: over all experts. SIGMOID: of each.
enum Scoring : int64_t { SOFTMAX, SIGMOID };

// How the weights of a linear layer lie in memory: as numbers E, or as codes of this many bits in groups of 32 or 16 inputs
// (ops/packed.py). FP4 and IQ4 have 4 bits that select from sixteen levels.
enum Format : int64_t { NUMBERS, BITS_4, BITS_5, BITS_6, BITS_8, BITS_8_OF_16, FP4, IQ4 };

// How the scales of groups, and their offsets, lie in memory (ops/scales.py).
enum ScaleForm : int64_t { FLOATS, HALVES, SIX_BITS, EIGHT_BITS };

// Groups of inputs are counted in rows of whole blocks of 64 inputs.
struct Linear {
    const void* weight;  // E [outputs,inputs], or the low bits of codes; null where the layer has none
    const float* bias;   // [outputs], or null
    int64_t outputs, inputs;
    Format format;
    ScaleForm scales;
    const void* high;    // the other bits of codes of 5 or 6 bits
    const void* scale;   // [outputs,groups] floats or IEEE halves; or codes
    const void* offset;  // [outputs,groups] as scale; null where the format has none, and of codes
    const void* unit;    // IEEE halves by which codes of scales are multiplied; else null
    int64_t interleaved;    // 1: codes and scales of sixteen outputs lie together (ops/interleaved.py), and inputs are rounded to 8 bits
};

// MLPs of which a node goes through `chosen`; what each of them adds is multiplied by the node's share of it.
struct Experts {
    int64_t count, chosen;
    Linear router;      // float numbers; at least `count` outputs, others are not read
    const Linear* gate;  // [count]; null: they have no gates
    const Linear* up;    // [count]
    const Linear* down;  // [count]
    Scoring scoring;
    int64_t normalized;  // 1: the shares of the chosen experts are divided by their sum
    float scale;         // of shares
    const float* correction;        // [count]: added to shares where experts are chosen, and nowhere else; or null
    int64_t corrects_scores;        // 1: it is added to the router's products instead
    int64_t groups, chosen_groups;  // experts are chosen from this many of these groups, those with the largest sums of shares
    int64_t group_bests;            // 1: of a group's best expert; 2: of its two best
    const float* shared_gate;       // [width]: what the layer's own MLP adds is multiplied by the sigmoid of a node's product; or null
    float shared_scale;             // and by this
};

struct Layer {
    Linear q, k, v, o, gate, up, down;  // an MLP may lack `gate`; RECURRENT layers k and v; layers with latents v
    Linear gates;             // of attention's outputs: of each number, or the first `heads` outputs are those of heads; or none
    Linear q_down;            // q reads what this makes of the input, normalized by q_down_norm [q_down.outputs]; or none
    const float* q_down_norm;
    const Linear* to_latent;    // [H]: of the first numbers of a query, one of latents [rank]; null without latents
    const Linear* from_latent;  // [H]: of a mean of latents, a head's output [value]
    const float* slopes;      // [3]: XIELU
    const Experts* experts;  // beside the MLP, or in its place if there is no `down`; or null
    const float* input_norm;  // [width]; or null: none, if there is mixer_output_norm or the stream begins with a feature
    const float* input_norm_bias;  // [width], or null
    const float* mlp_norm;    // [width]; null without an MLP, or if there is mlp_output_norm, or if an MLP beside attention reads what that reads
    const float* mlp_norm_bias;  // [width], or null
    const float* q_norm;      // [D], or [H*D] with joint_norms; or null
    const float* k_norm;      // [D], or [K*D] with joint_norms, or [rank] of latents; or null
    const float* q_norm_bias;  // as q_norm, or null
    const float* k_norm_bias;
    const float* mixer_output_norm;  // [width] of what the mixer and the MLP add to the stream, or null
    const float* mlp_output_norm;
    const float* sinks;  // [H]: a further score of each head's softmax, which has no value; or null
    int64_t window;    // how many positions a node sees; 0: all
    float cap;         // of the scores: cap tanh(x / cap); 0: none
    int64_t rotation;  // the row of inv_freq by which positions turn; -1: they do not
    int64_t frequencies;  // how many numbers of that row are used; 0: all
    LayerKind kind;
};

struct Model {
    int64_t layers, width, heads, key_heads, groups, head_dim, vocab;  // groups: query heads of a key head
    int64_t mlp;          // the most numbers inside an MLP that is not an expert
    int64_t frequencies;  // numbers in inv_freq: half of those that are rotated, the first of a head
    int64_t more_rotations;  // rows of inv_freq beside the first
    int64_t interleaved;  // 1: numbers that are rotated together lie side by side; 0: `frequencies` apart
    // Latents (DeepSeek V2, sec. 2.1): one key head, whose first `rank` numbers are the values too; the rest of it is rotated. A query
    // has `plain` numbers, which become `rank`, and its rotated ones; a head's output has `value`.
    int64_t rank, plain, value;  // 0: there are no latents
    int64_t put_apart;           // 1: numbers of latents that are rotated together lie side by side before, `frequencies` apart behind
    float latent_eps;            // of q_down_norm and a latent's norm
    int64_t joint_norms;  // 1: q_norm and k_norm are over all heads of a node; 0: over each head
    int64_t late_norms;   // 1: q_norm and k_norm come after the rotation; 0: before it
    int64_t gated;        // 1: q has the numbers of a head, then its output's gates
    int64_t gates_heads;  // 1: Layer.gates has a gate of each head; 0: of each number
    GateFunction gate_function;  // of Layer.gates
    float limit;                 // of queries, keys and values before the rotation: [-limit, limit]; 0: none
    float growth, span;          // scores of a node at position p are multiplied by 1 + growth log(1 + floor(p / span)); 0: they are not
    Activation activation;
    float mlp_limit, mlp_slope;  // CLAMPED
    float eps, scale, rope_scale;
    float embedding_scale, residual_scale;  // of embeddings, and of what is added to the stream; 0: they are not scaled
    float logit_divisor, logit_cap;         // logits are divided, then capped: cap tanh(x / cap); 0: they are not
    const float* inv_freq;  // [1 + more_rotations,frequencies]
    const void* embed;  // E [vocab,width]
    const float* embedding_norm;  // [width] of embeddings, or null
    const void* positions;  // E [position_count,width]: that of a node's position is added to its embedding; or null
    int64_t position_count, first_position;  // first_position: the row of position 0
    Linear head;
    const int64_t* head_tokens;  // [head.outputs]: the token of each of its rows, all others have -inf; null: it has all tokens;
                                 // or, where the stream does not begin with an embedding, logits are those of its rows
    const float* norm;           // [width], or null: none before the head
    const float* norm_bias;      // [width], or null
    int64_t layer_norms;         // 1: norms subtract the mean (LayerNorm); 0: they do not (RMSNorm)
    int64_t parallel;            // 1: MLPs lie beside attention and read the stream before it, through mlp_norm or as attention does; 0: behind it
    const Layer* layer;          // [layers]
    Start start;
    Linear fuse;                // FUSED: of [embedding, feature]; BESIDE and GIVEN: of Pass.sources, or none
    const float* token_norm;    // [width] of the embedding and of the feature that are side by side, or null
    const float* feature_norm;
    int64_t feature_first;      // 1: the feature comes before the embedding
    int64_t normed_residual;    // 1: BESIDE, the stream begins with the feature after its norm
    int64_t continues;          // a chain's next feature is what is kept after this many layers (Pass.state_layers)
};

// Where the keys and values of a layer lie.
struct LayerCache {
    void* k;  // E [B,K,slots,D]; or codes of the D numbers (coded_keys.h)
    void* v;  // of latents k
    int64_t slots;
    int64_t bits;             // of a code, 8; 0: the numbers are E
    const float* key_offset;  // [K,D], which the keys lack whose codes these are; or null
};

// Keys and values that a view has copied together for a row of a layer.
struct Selected {
    const void* k;  // E [K,count,D], with `stride` slots from one head to the next; or codes of the D numbers (coded_keys.h)
    const void* v;
    int64_t count, stride;
    int64_t bits;  // of a code, 4 or 8; 0: the numbers are E
};

// One forward pass over W nodes of a tree in every row. Its scratch nodes are the `start` nodes that earlier passes have
// computed, then these W; scratch follows the committed slots of the cache.
struct Pass {
    int64_t rows, nodes, start;
    const int64_t* tokens;    // [B,W]
    const int64_t* depth;     // [B,start+W]: of the scratch nodes
    const int64_t* length;    // [B]: committed slots
    const int64_t* position;  // [B,W]
    const uint8_t* mask;      // [B,W,start+W]: which scratch nodes a node sees
    const LayerCache* cache;  // [layers]

    const int64_t* tail_start;  // [B]: all slots from here on are seen; null: every slot is
    const Selected* selected;   // [layers,B], seen besides those; null: none

    const int64_t* score_nodes;  // [B,scored]: the nodes whose scores are kept
    int64_t scored;              // how many; 0: none
    int64_t as_weights;          // 1: softmax weights; 0: logits
    int64_t per_key_head;        // 1: a mean for each key head; 0: over all heads
    int64_t mean_of_nodes;       // 1: one mean over the nodes; 0: a score for each
    int64_t score_slots;         // slots in a row of scores
    float* scores;               // [layers,B,mean_of_nodes ? 1 : scored,per_key_head ? K : 1,score_slots]

    const int64_t* state_layers;  // [state_count]: states are kept after that many layers; layers + 1: what the head reads
    int64_t state_count;
    float* states;        // [state_count,B,W,width]: the residual stream
    float* logits;        // [B,W,vocab]; or [B,logit_nodes,vocab]; null: not computed, where states are kept
    int64_t logit_nodes;  // only this many last nodes of each row have logits; 0: all
    int64_t score_layer;  // the one layer whose scores are kept; -1: all

    int64_t approximate;  // 1: packed weights may be multiplied with inputs of 8 bits, for drafts; 0: never

    int64_t ring;              // slots before the scratch nodes of a RING layer
    const uint8_t* ring_mask;  // [B,W,ring+start+W]: which of its slots a node sees

    // A pass stops at each RECURRENT layer, having written what its mixer reads, and goes on with what that has computed.
    int64_t resume;       // the layer whose mixer was computed, from 1; 0: the pass begins
    const float* mixed;   // [B,W,o.inputs]: by that mixer
    float* mixer_inputs;  // [B,W,q.outputs], [B,W,k.outputs] and [B,W,v.outputs] of the layer where it stops

    const float* features;  // [B,W,width], unless the stream begins with an embedding
    const float* sources;   // [B,W,fuse.inputs]: BESIDE and GIVEN, what features are computed from; null: they are given
};

// What shapes a distribution before a token is drawn from it, in this order (Transformers' logits warpers).
struct Warpers {
    double temperature;  // 0: the most likely token, whatever the others say
    int64_t top_k;       // 0: off
    double top_p;        // 1: off
    double min_p;        // 0: off
};

// A chain that is drafted in one call: each token is drawn from the logits of the node before.
struct Chain {
    int64_t count;  // nodes to run, and tokens to draw
    const Warpers* warpers;   // [B]
    const double* penalty;    // [B]: of the tokens among the last `window` before a draw, once each; 1: off
    const int64_t* window;    // [B]
    const int64_t* recent;    // [B,recent_count], the first node's token last; -1: none; null where all penalties are off
    int64_t recent_count;
    const int64_t* seed;      // [B]
    const int64_t* position;  // [B]: of the first token that is drawn
    int64_t reach;            // positions that the model knows
    int64_t* drawn;           // [B,count]
};

// A tree that is grown below the roots by a model whose stream begins with a feature.
struct Growth {
    int64_t topk;    // children of a node, and nodes of a level that are run
    int64_t depth;   // levels
    int64_t nodes;   // of the tree, with its root
    int64_t narrow;  // 1: the tree has the nodes that were run and the best of the last level; 0: the best of all candidates
    const Warpers* warpers;   // [B]
    const int64_t* seed;      // [B]
    const int64_t* position;  // [B]: of the first token below the root
    int64_t* count;           // [1], written: nodes below the root, the same in every row
    int64_t* tokens;          // [B,count], written; has room for [B,nodes-1]
    int64_t* parent;          // [B,count], written: 0 is the root, i the i-th node below it
};

// A compact copy of some slots of one row's keys and values, which is to hold others instead. Slots that it holds already
// and that stay are not copied again.
struct Copy {
    const void* k;  // [heads,size,slot_bytes], with `stride` bytes from one head to the next
    const void* v;  // or null: there are keys alone
    int64_t heads, size, stride, slot_bytes;
    int64_t bits;  // 4 or 8: a slot is a multiple of 16 numbers, and the copy has codes of them (coded_keys.h); 0: unchanged
    int64_t half;  // 1: those numbers are bf16; 0: float. Not read where bits is 0
    int64_t dim;   // 0: k and v have the numbers; or they have codes of 8 bits of this many, which are copied as codes of `bits`
    const float* key_offset;  // [heads,dim]: of the coded keys, or null
    const int64_t* wanted;  // [count] slots
    int64_t count;
    const int64_t* held;     // [held_count]: the slots that the copy holds now
    const int64_t* held_at;  // [held_count]: the place of each
    int64_t held_count;
    void* out_k;  // [heads,room,slot_bytes, or bytes of its codes], with `out_stride` bytes from one head to the next
    void* out_v;
    int64_t room, out_stride;
    int64_t* place;  // [count], written: the place of each wanted slot
};

// A recurrence along the paths of a tree, each head's with a state S [keys,values]: S becomes decay S + k d, where d is
// beta (v - k decay S), or v where beta is null; the output is q S. One head of k and q is that of heads / key_heads heads.
struct Scan {
    int64_t tokens, heads, key_heads, keys, values;
    int64_t first;         // tokens [first, tokens) have queries and outputs
    int64_t per_key;       // 1: a decay for each key; 0: for each head
    int64_t normalized;    // 1: keys and queries are divided by their length
    float scale;           // of queries
    int64_t steps, slots;  // of the order; how many slots it uses for states
    const int* order;      // [steps,3]: a token, the state before it (-2: `before`, -1: that of the step before, or a slot's), and
                           // the slot that its own goes to, or -1
    const float* before;   // [heads,keys,values], or null: zeros
    int64_t kept;          // the first slots, whose states are written to `after`
    float* after;          // [kept,heads,keys,values], or null if none are kept
    const float* decay;    // [tokens,heads], or [tokens,heads,keys]: what e is raised to
    const float* k;        // [tokens,key_heads,keys]
    const float* v;        // [tokens,heads,values]
    const float* beta;     // [tokens,heads], or null
    const float* q;        // [tokens-first,key_heads,keys], or null: no outputs
    float* out;            // [tokens-first,heads,values], or null; a token's without a step is not written
};

// The memory that passes use, kept from one to the next. One pass at a time may use it.
struct Work;

// A row of layout.cpp's table. This structure must not change: it is read before anything is known of a build.
struct Entry {
    const char* name;  // of a structure, "Structure.field", an enumerator or a function
    int64_t number;    // its size, its offset or its value; 0 for a function
    int64_t kind;      // its type, or a function's result and arguments: see layout.cpp
};

extern "C" {
const Entry* longdraft_interface();  // the table; the last entry has no name

Work* longdraft_new();  // null where there is no memory
void longdraft_free(Work* work);
int64_t longdraft_bytes(const Work* work);

int longdraft_has_heads(int64_t head_dim);  // 1: heads of this many numbers are computed; 0: they are a BAD_MODEL

Code longdraft_step(const Model* model, const Pass* pass, Work* work, int half);
// `count` passes, one for each node of a chain. tokens [B] are those of its first node, which is node `start`. depth,
// position and mask are not read; logits has room for [B,vocab]; ring_mask is [B,count,ring+count]. Where the stream begins with
// a feature, the first token has been run already: features [B,width] are its output, from which the first draw is made. The passes
// are over the drawn tokens, each with the output of the token before as its feature. position [B] is that of the first drawn token;
// ring_mask is [B,count-1,ring+count-1].
Code longdraft_chain(const Model* model, const Pass* pass, Work* work, int half, const Chain* chain);
// EAGLE-2's dynamic tree; given as for longdraft_chain, but without a ring, and logits are not used.
Code longdraft_grow(const Model* model, const Pass* pass, Work* work, int half, const Growth* growth);

// The `count` best of each row of n scores, ascending: chosen [rows,count]. Before, each position passes `share` of its
// score on to each of the next `reach` positions. Of equal scores the earlier are chosen.
Code longdraft_choose(const float* const* scores, int64_t rows, int64_t n, int64_t reach, float share, int64_t count,
                      int64_t* chosen);
// x [heads,size,slot_bytes], `stride` bytes from one head to the next, at slots [count], or [heads,count] where `per_head`
// is 1 -> out [heads,count,slot_bytes].
Code longdraft_take(const void* x, int64_t heads, int64_t size, int64_t stride, int64_t slot_bytes, const int64_t* slots,
                    int64_t count, int64_t per_head, void* out);
Code longdraft_retake(const Copy* copies, int64_t count);
// The numbers of 8-bit codes [heads,size,..], `stride` bytes from one head to the next: keys with this offset [heads,dim] or null
// where `keys` is 1, else values. dim: a multiple of 16. -> out [heads,size,dim], bf16 where `half` is 1, else float.
Code longdraft_decode(const void* codes, int64_t heads, int64_t size, int64_t stride, int64_t dim, int64_t keys,
                      const float* offset, int64_t half, void* out);

// Noise in (0, 1) for the tokens 0..vocab-1: seed [rows], position [rows,nodes] -> out [rows,nodes,vocab].
Code longdraft_uniform(const int64_t* seed, const int64_t* position, int64_t rows, int64_t nodes, int64_t vocab,
                       double* out);
// A token for each row of logits [rows,nodes,vocab] -> out [rows,nodes].
Code longdraft_draw(const float* logits, const Warpers* warpers, const int64_t* seed, const int64_t* position, int64_t rows,
                    int64_t nodes, int64_t vocab, int64_t* out);

// The result does not depend on how paths are divided into calls, nor on threads or outputs.
Code longdraft_scan(const Scan* scan);

// What surrounds the recurrence of a gated delta net; each number is computed alike wherever it stands.
Code longdraft_silu(float* x, int64_t count);
// gates [tokens,stride]: b, then a of each head. beta [tokens,heads] = sigmoid(b); decay [tokens,heads] = rate softplus(a + bias).
Code longdraft_delta_gates(const float* gates, int64_t tokens, int64_t heads, int64_t stride, const float* rate, const float* bias,
                           float* beta, float* decay);
// x [rows,size], normalized, times weight [size] and silu(z) -> out.
Code longdraft_gated_norm(const float* x, const float* z, const float* weight, int64_t rows, int64_t size, float eps, float* out);
// What surrounds that of Mamba-2. dt [tokens,heads] -> out: softplus(dt + bias), limited to [low, high].
Code longdraft_time_steps(const float* dt, int64_t tokens, int64_t heads, const float* bias, float low, float high, float* out);
// x, z [rows,groups,size] -> out: x silu(z), each group normalized, times weight [groups,size].
Code longdraft_norm_of_gated(const float* x, const float* z, const float* weight, int64_t rows, int64_t groups, int64_t size, float eps,
                             float* out);

// Thread i of OpenMP's pool may run on processor cpus[i] alone -> 1; 0 where this cannot be done. No threads: forgets them.
int longdraft_pin(int64_t threads, const int64_t* cpus);
// Reads `lines` lines of 64 bytes, for measuring how fast memory is; the result has no meaning.
int64_t longdraft_read(const void* memory, int64_t lines);
// For tests: the n-th request for memory from now on fails; 0: none does.
void longdraft_fail(int64_t n);
}
