// A pass over nodes of a tree, and a chain of passes that are each of the token drawn before, for calls from Python.
#include "check.h"
#include "draw.h"
#include "grow.h"

// Node start + i of a chain of `count` nodes, the first of them at `first` [B]. The token of each row is in t.token.
template <typename E>
static Code chain_node(const Model& m, const Pass& given, Work& t, const int64_t* first, int64_t reach, int64_t count, int64_t i) {
    const int64_t B = given.rows, scratch = given.start + i + 1, ring = given.ring;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t j = 0; j < scratch; j++) t.depth[b * scratch + j] = j;
        t.position[b] = std::min(first[b] + scratch, reach) - 1;
        if (!given.ring_mask) continue;
        const uint8_t* sees = given.ring_mask + (b * count + i) * (ring + count);
        std::memcpy(&t.ring_mask[b * (ring + scratch)], sees, ring + scratch);
    }
    Pass p = given;
    p.nodes = 1, p.start = scratch - 1;
    p.tokens = t.token.data(), p.depth = t.depth.data(), p.position = t.position.data();
    p.mask = t.mask.data(), p.ring_mask = t.ring_mask.data();
    if (m.start != EMBEDDING) p.features = p.states = t.feature.data(), p.state_layers = &m.continues, p.state_count = 1;
    return forward<E>(m, p, t);
}

// Penalizes the tokens among the last `window` before row b's draw from node i. at [vocab]: where it last did, from 1.
static void penalize(float* logits, const Chain& c, int64_t b, int64_t i, int64_t* at) {
    const float penalty = static_cast<float>(c.penalty[b]);
    const int64_t* const recent = c.recent + b * c.recent_count;
    const int64_t* const drawn = c.drawn + b * c.count;
    const int64_t end = c.recent_count + i;
    for (int64_t j = std::max<int64_t>(0, end - c.window[b]); j < end; j++) {
        const int64_t token = j < c.recent_count ? recent[j] : drawn[j - c.recent_count];
        if (token < 0 || at[token] == i + 1) continue;
        at[token] = i + 1;
        logits[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
    }
}

template <typename E>
static Code chain(const Model& m, const Pass& given, Work& t, const Chain& c) {
    const int64_t B = given.rows, scratch = given.start + c.count;
    t.token.reserve(B), t.position.reserve(B), t.depth.reserve(B * scratch), t.mask.reserve(B * scratch);
    t.ring_mask.reserve(given.ring_mask ? B * (given.ring + scratch) : 0);
    t.kept.reserve(B * m.vocab);
    const bool begun = m.start != EMBEDDING;  // the head reads the output of the first token's node, which is given
    if (begun) std::copy(given.features, given.features + B * m.width, t.feature.reserve(B * m.width));
    const int64_t* const first = begun ? given.position : given.length;
    if (c.recent) std::fill_n(t.penalized_at.reserve(B * m.vocab), B * m.vocab, 0);
    std::copy(given.tokens, given.tokens + B, t.token.data());
    std::fill(t.mask.data(), t.mask.data() + B * scratch, 1);
    for (int64_t i = 0; i < c.count; i++) {
        const Code code = begun && !i ? read_head<E>(m, given, t) : chain_node<E>(m, given, t, first, c.reach, c.count - begun, i - begun);
        if (code) return code;
#pragma omp parallel for schedule(static) num_threads(team_size()) if (B > 1)
        for (int64_t b = 0; b < B; b++) {
            float* const logits = given.logits + b * m.vocab;
            if (c.penalty[b] != 1) penalize(logits, c, b, i, &t.penalized_at[b * m.vocab]);
            const uint64_t key = key_of(c.seed[b], c.position[b] + i);
            t.token[b] = c.drawn[b * c.count + i] = draw(logits, m.vocab, c.warpers[b], key, t.kept.data() + b * m.vocab);
        }
    }
    return DONE;
}

// Runs a call whose arguments have been checked. Afterward no more memory is kept than KEPT, unless the pass will go on.
template <typename Call>
static Code checked(Work& t, Code wrong, bool stops, Call call) noexcept {
    if (wrong) return wrong;
    const Code code = guarded(call);
    if (code == NO_MEMORY || (t.bytes() > KEPT && !stops)) t.clear();
    return code;
}

int longdraft_has_heads(int64_t head_dim) { return has_heads(head_dim, HeadDims()); }

Work* longdraft_new() { return new (std::nothrow) Work; }

void longdraft_free(Work* work) { delete work; }

int64_t longdraft_bytes(const Work* work) { return work->bytes(); }

Code longdraft_step(const Model* m, const Pass* p, Work* t, int half) {
    const Code wrong = check(*m, *p);
    return checked(*t, wrong, !wrong && stop(*m, *p) < m->layers, [&] { return half ? forward<bf16>(*m, *p, *t) : forward<float>(*m, *p, *t); });
}

Code longdraft_chain(const Model* m, const Pass* p, Work* t, int half, const Chain* c) {
    return checked(*t, check(*m, *p, *c), false, [&] { return half ? chain<bf16>(*m, *p, *t, *c) : chain<float>(*m, *p, *t, *c); });
}

Code longdraft_grow(const Model* m, const Pass* p, Work* t, int half, const Growth* g) {
    return checked(*t, check(*m, *p, *g), false, [&] { return half ? grow<bf16>(*m, *p, *t, *g) : grow<float>(*m, *p, *t, *g); });
}
