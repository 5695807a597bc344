// What the numbers inside an MLP go through.
#pragma once
#include "interface.h"
#include "simd.h"

// x / (1 + exp(-slope x)).
static inline vec gated_by_itself(vec x, float slope) { return x / (vexp(x * splat(-slope)) + 1.0f); }

// x times the probability that a normal number is less than x. erf: Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
static inline vec gelu(vec x) {
    const vec size = vmax(x, -x), t = splat(1.0f) / (size * (0.3275911f * 0.70710678f) + 1.0f);
    const vec sum = ((((t * 1.061405429f - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const vec beyond = sum * vexp(x * x * -0.5f) * 0.5f;  // the probability of more than `size`
    return x * (x > 0 ? splat(1.0f) - beyond : beyond);
}

static inline vec xielu(const float* slopes, vec x) {
    const vec low = vmin(x, splat(0));
    return (x > 0 ? x * x * splat(slopes[0]) : (vexp(low) - 1.0f - x) * splat(slopes[1])) + x * splat(slopes[2]);
}

static inline vec activated(Activation activation, const float* slopes, vec x) {
    if (activation == SILU) return x / (vexp(-x) + 1.0f);
    if (activation == RELU2) return vmax(x, splat(0)) * vmax(x, splat(0));
    if (activation == RELU) return vmax(x, splat(0));
    if (activation == GELU) return gelu(x);
    if (activation == XIELU) return xielu(slopes, x);
    // x (1 + tanh(u)) / 2 is x / (1 + exp(-2 u)), where 2 u is
    const vec twice = x * 1.5957691216f * (x * x * 0.044715f + 1.0f);
    return x / (vexp(-twice) + 1.0f);
}

// An MLP's gate and what it multiplies.
static inline vec gated(const Model& m, const float* slopes, vec gate, vec up) {
    if (m.activation != CLAMPED) return activated(m.activation, slopes, gate) * up;
    const vec limit = splat(m.mlp_limit), low = vmin(gate, limit);
    return gated_by_itself(low, m.mlp_slope) * (vmax(vmin(up, limit), -limit) + 1.0f);
}
