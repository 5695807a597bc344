// The interface as the compiler laid it out. interface.py compares this table with interface.h before it uses a build, so
// that a build of other sources is refused. What is missing here is refused too.
#include <cstddef>
#include <type_traits>

#include "interface.h"

// One octal digit for a type: interface.py has the same.
template <typename T>
constexpr int64_t kind() {
    if constexpr (std::is_void_v<T>)
        return 0;
    else if constexpr (std::is_pointer_v<T>)
        return 1;
    else if constexpr (std::is_class_v<T>)
        return 2;
    else
        return (std::is_floating_point_v<T> ? 5 : 3) + (sizeof(T) == 8);
}

// A 1, the result and the arguments, a digit each.
template <typename Result, typename... Arguments>
constexpr int64_t kinds(Result (*)(Arguments...)) {
    int64_t digits = 8 + kind<Result>();
    ((digits = digits * 8 + kind<Arguments>()), ...);
    return digits;
}

#define STRUCT(S) {#S, sizeof(S), 2}
#define FIELD(S, F) {#S "." #F, offsetof(S, F), kind<decltype(S::F)>()}
#define VALUE(V) {#V, V, kind<decltype(V)>()}
#define FUNCTION(F) {"longdraft_" #F, 0, kinds(static_cast<decltype(longdraft_##F)*>(nullptr))}

static constexpr Entry table[] = {
    VALUE(DONE), VALUE(NO_MEMORY), VALUE(BAD_MODEL), VALUE(BAD_NODES), VALUE(BAD_TOKEN), VALUE(BAD_SLOTS),
    VALUE(BAD_VIEW), VALUE(BAD_SCORES), VALUE(BAD_STATES), VALUE(BAD_DRAW), VALUE(BAD_COPY), VALUE(BAD_SCAN),
    VALUE(DECODER), VALUE(RING), VALUE(CROSS), VALUE(RECURRENT), VALUE(KEYS),
    VALUE(EMBEDDING), VALUE(GIVEN), VALUE(FUSED), VALUE(BESIDE),
    VALUE(NUMBERS), VALUE(BITS_4), VALUE(BITS_5), VALUE(BITS_6), VALUE(BITS_8), VALUE(BITS_8_OF_16),
    VALUE(FLOATS), VALUE(HALVES), VALUE(SIX_BITS), VALUE(EIGHT_BITS),

    STRUCT(Linear), FIELD(Linear, weight), FIELD(Linear, bias), FIELD(Linear, outputs), FIELD(Linear, inputs),
    FIELD(Linear, format), FIELD(Linear, scales), FIELD(Linear, high), FIELD(Linear, scale), FIELD(Linear, offset),
    FIELD(Linear, unit), FIELD(Linear, interleaved),

    STRUCT(Layer), FIELD(Layer, q), FIELD(Layer, k), FIELD(Layer, v), FIELD(Layer, o), FIELD(Layer, gate),
    FIELD(Layer, up), FIELD(Layer, down), FIELD(Layer, input_norm), FIELD(Layer, mlp_norm), FIELD(Layer, q_norm),
    FIELD(Layer, k_norm), FIELD(Layer, window), FIELD(Layer, kind),

    STRUCT(Model), FIELD(Model, layers), FIELD(Model, width), FIELD(Model, heads), FIELD(Model, key_heads),
    FIELD(Model, groups), FIELD(Model, head_dim), FIELD(Model, mlp), FIELD(Model, vocab), FIELD(Model, frequencies), FIELD(Model, gated),
    FIELD(Model, eps), FIELD(Model, scale), FIELD(Model, rope_scale), FIELD(Model, inv_freq), FIELD(Model, embed),
    FIELD(Model, head), FIELD(Model, head_tokens), FIELD(Model, norm), FIELD(Model, layer), FIELD(Model, start),
    FIELD(Model, fuse), FIELD(Model, token_norm), FIELD(Model, feature_norm), FIELD(Model, feature_first),
    FIELD(Model, normed_residual), FIELD(Model, continues),

    STRUCT(LayerCache), FIELD(LayerCache, k), FIELD(LayerCache, v), FIELD(LayerCache, slots), FIELD(LayerCache, bits),

    STRUCT(Selected), FIELD(Selected, k), FIELD(Selected, v), FIELD(Selected, count), FIELD(Selected, stride),
    FIELD(Selected, bits),

    STRUCT(Pass), FIELD(Pass, rows), FIELD(Pass, nodes), FIELD(Pass, start), FIELD(Pass, tokens), FIELD(Pass, depth),
    FIELD(Pass, length), FIELD(Pass, position), FIELD(Pass, mask), FIELD(Pass, cache), FIELD(Pass, tail_start),
    FIELD(Pass, selected), FIELD(Pass, score_nodes), FIELD(Pass, scored), FIELD(Pass, as_weights),
    FIELD(Pass, per_key_head), FIELD(Pass, mean_of_nodes), FIELD(Pass, score_slots), FIELD(Pass, scores),
    FIELD(Pass, state_layers), FIELD(Pass, state_count), FIELD(Pass, states), FIELD(Pass, logits), FIELD(Pass, logit_nodes),
    FIELD(Pass, score_layer), FIELD(Pass, approximate), FIELD(Pass, ring), FIELD(Pass, ring_mask),
    FIELD(Pass, resume), FIELD(Pass, mixed), FIELD(Pass, mixer_inputs),
    FIELD(Pass, features), FIELD(Pass, sources),

    STRUCT(Warpers), FIELD(Warpers, temperature), FIELD(Warpers, top_k), FIELD(Warpers, top_p), FIELD(Warpers, min_p),

    STRUCT(Chain), FIELD(Chain, count), FIELD(Chain, warpers), FIELD(Chain, penalty), FIELD(Chain, window),
    FIELD(Chain, recent), FIELD(Chain, recent_count), FIELD(Chain, seed), FIELD(Chain, position), FIELD(Chain, reach),
    FIELD(Chain, drawn),

    STRUCT(Growth), FIELD(Growth, topk), FIELD(Growth, depth), FIELD(Growth, nodes), FIELD(Growth, narrow), FIELD(Growth, warpers),
    FIELD(Growth, seed), FIELD(Growth, position), FIELD(Growth, count), FIELD(Growth, tokens), FIELD(Growth, parent),

    STRUCT(Copy), FIELD(Copy, k), FIELD(Copy, v), FIELD(Copy, heads), FIELD(Copy, size), FIELD(Copy, stride),
    FIELD(Copy, slot_bytes), FIELD(Copy, bits), FIELD(Copy, half), FIELD(Copy, wanted), FIELD(Copy, count),
    FIELD(Copy, held), FIELD(Copy, held_at), FIELD(Copy, held_count), FIELD(Copy, out_k), FIELD(Copy, out_v),
    FIELD(Copy, room), FIELD(Copy, out_stride), FIELD(Copy, place),

    STRUCT(Scan), FIELD(Scan, tokens), FIELD(Scan, heads), FIELD(Scan, key_heads), FIELD(Scan, keys), FIELD(Scan, values),
    FIELD(Scan, first), FIELD(Scan, per_key), FIELD(Scan, normalized), FIELD(Scan, scale), FIELD(Scan, steps), FIELD(Scan, slots),
    FIELD(Scan, order), FIELD(Scan, before), FIELD(Scan, kept), FIELD(Scan, after),
    FIELD(Scan, decay), FIELD(Scan, k), FIELD(Scan, v), FIELD(Scan, beta), FIELD(Scan, q), FIELD(Scan, out),

    STRUCT(Entry), FIELD(Entry, name), FIELD(Entry, number), FIELD(Entry, kind),

    FUNCTION(interface), FUNCTION(new), FUNCTION(free), FUNCTION(bytes), FUNCTION(has_heads), FUNCTION(step), FUNCTION(chain), FUNCTION(grow),
    FUNCTION(choose), FUNCTION(take), FUNCTION(retake), FUNCTION(uniform), FUNCTION(draw), FUNCTION(scan), FUNCTION(silu), FUNCTION(delta_gates),
    FUNCTION(gated_norm), FUNCTION(pin),
    FUNCTION(read), FUNCTION(fail),
    {nullptr, 0, 0},
};

const Entry* longdraft_interface() { return table; }
