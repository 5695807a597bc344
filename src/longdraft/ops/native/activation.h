// What the numbers inside an MLP go through.
#pragma once
#include "interface.h"
#include "simd.h"

// x / (1 + exp(-slope x)).
static inline vec gated_by_itself(vec x, float slope) { return x / (vexp(x * splat(-slope)) + 1.0f); }

static inline vec activated(Activation activation, vec x) {
    if (activation == SILU) return x / (vexp(-x) + 1.0f);
    if (activation == RELU2) return vmax(x, splat(0)) * vmax(x, splat(0));
    // x (1 + tanh(u)) / 2 is x / (1 + exp(-2 u)), where 2 u is
    const vec twice = x * 1.5957691216f * (x * x * 0.044715f + 1.0f);
    return x / (vexp(-twice) + 1.0f);
}

// An MLP's gate and what it multiplies.
static inline vec gated(const Model& m, vec gate, vec up) {
    if (m.activation != CLAMPED) return activated(m.activation, gate) * up;
    const vec limit = splat(m.mlp_limit), low = vmin(gate, limit);
    return gated_by_itself(low, m.mlp_slope) * (vmax(vmin(up, limit), -limit) + 1.0f);
}
