// EAGLE-2's dynamic tree (sec. 4), grown level by level: every level adds the best children of the best nodes of the one above.
#pragma once
#include <numeric>
#include <vector>

#include "draw.h"
#include "forward.h"

// A node of a tree that is being grown; value: the sum of the log-probabilities on its path.
struct Candidate {
    int64_t parent, token, depth;
    float value;
};

// A child of a node: how likely it is, in proportion to its siblings, and which of the head's outputs it is.
struct Child {
    float share;
    int32_t output;
    bool operator<(const Child& other) const { return share != other.share ? share > other.share : output < other.output; }
};

// What the noise of a position multiplies the probability of each of the head's n outputs by: e to the Gumbel noise of its token.
static void noise_of(uint64_t key, const int64_t* tokens, int64_t n, float* factor) {
#pragma omp parallel for schedule(static) num_threads(team_size())
    for (int64_t i = 0; i < n; i++) factor[i] = static_cast<float>(-1 / std::log(uniform(key, tokens ? tokens[i] : i)));
}

// The `count` outputs that are likeliest to be drawn given the noise, best first -> the logarithm of the sum of all shares.
// factor [n]: null where there is no noise. room [n], kept [n].
static float likeliest(float* logits, int64_t n, const Warpers& w, const float* factor, int64_t count, Kept* kept, Child* best) {
    const float most = logits[argmax(logits, n)], scale = factor ? static_cast<float>(1 / w.temperature) : 1;
    int64_t found = 0;
    float least = 0;
    const auto consider = [&](float share, int32_t output) {
        if (found == count && !(share > least)) return;
        int64_t at = found < count ? found++ : count - 1;
        for (; at && best[at - 1].share < share; at--) best[at] = best[at - 1];
        best[at] = {share, output};
        least = best[found - 1].share;
    };
    double total = 0;
    if (factor && truncates(w)) {
        const int64_t some = keep(logits, n, w, most, kept);
        for (int64_t i = 0; i < some; i++) {
            const float share = std::exp((kept[i].logit - most) * scale) * factor[kept[i].token];
            total += share, consider(share, kept[i].token);
        }
    } else {
        vec sums = splat(0);
        int64_t i = 0;
        for (; i + V <= n; i += V) {
            vec share = vexp((load(logits + i) - most) * scale);
            if (factor) share = share * load(factor + i);
            sums += share;
            store(logits + i, share);
        }
        for (; i < n; i++) total += logits[i] = std::exp((logits[i] - most) * scale) * (factor ? factor[i] : 1);
        total += sum(sums);
        for (i = 0; i < n; i += 16) {
            const int64_t end = std::min(n, i + 16);
            int any = found < count;
            for (int64_t j = i; j < end; j++) any |= logits[j] > least;
            for (int64_t j = i; any && j < end; j++) consider(logits[j], static_cast<int32_t>(j));
        }
    }
    while (found < count) best[found++] = {0, 0};
    return static_cast<float>(std::log(total));
}

// The logits of a node whose output, what `continues` names, is given.features [B,width].
template <typename E>
static Code read_head(const Model& m, const Pass& given, Work& t) {
    Model head = m;
    head.layers = 0, head.start = GIVEN;
    if (m.continues > m.layers) head.norm = nullptr;
    Pass p = given;
    p.start = 0;
    return forward<E>(head, p, t);
}

// The tree of one row.
struct Growing {
    std::vector<Candidate> all;
    std::vector<int64_t> run, here, above;  // nodes whose layers have run; those of the newest level, and of the one before, to run

    explicit Growing(int64_t root) : all{{-1, root, 0, 0}}, here{0} {}

    bool sees(int64_t node, int64_t other) const {
        while (node > other) node = all[node].parent;
        return node == other;
    }

    // Adds the children of `here`, `topk` each, and takes the best of them as the next nodes to run -> the best one's value.
    float add(const Child* best, const float* log_total, const int64_t* tokens, int64_t topk) {
        const int64_t first = all.size();
        for (size_t w = 0; w < here.size(); w++)
            for (int64_t i = 0; i < topk; i++) {
                const Child& child = best[w * topk + i];
                const int64_t token = tokens ? tokens[child.output] : child.output;
                const float value = all[here[w]].value + std::log(child.share) - log_total[w];
                all.push_back({here[w], token, all[here[w]].depth + 1, value});
            }
        std::vector<int64_t> order(all.size() - first);
        std::iota(order.begin(), order.end(), first);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return all[a].value > all[b].value; });
        const float top = all[order[0]].value;
        order.resize(std::min<int64_t>(topk, order.size()));
        std::sort(order.begin(), order.end());
        above = std::move(here), here = std::move(order);
        return top;
    }

    // All but the root, in descending order of their value; a parent stands before a child of equal value.
    std::vector<int64_t> ranked() const {
        std::vector<int64_t> order(all.size() - 1);
        std::iota(order.begin(), order.end(), 1);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return all[a].value > all[b].value; });
        return order;
    }

    // Whether no child of a value below `newest` can be among the `count` best.
    bool complete(int64_t count, float newest) const {
        if (static_cast<int64_t>(all.size()) <= count + 1) return false;
        return newest < all[ranked()[count - 1]].value;
    }

    // The nodes of the tree besides the root, ascending.
    std::vector<int64_t> chosen(const Growth& g) const {
        std::vector<int64_t> nodes = run;
        if (g.narrow)
            nodes.insert(nodes.end(), here.begin(), here.end());
        else
            nodes = ranked();
        nodes.resize(std::min<int64_t>(nodes.size(), g.nodes - 1));
        std::sort(nodes.begin(), nodes.end());
        return nodes;
    }
};

// Runs the nodes `here` of every row. outputs, logits: what the pass writes, of these nodes.
template <typename E>
static Code run_level(const Model& m, const Pass& given, Work& t, std::vector<Growing>& rows, const float* before, float* outputs, float* logits) {
    const int64_t B = given.rows, W = rows[0].here.size(), start = rows[0].run.size(), scratch = start + W;
    for (int64_t b = 0; b < B; b++) {
        Growing& row = rows[b];
        row.run.insert(row.run.end(), row.here.begin(), row.here.end());
        for (int64_t j = 0; j < scratch; j++) t.depth[b * scratch + j] = row.all[row.run[j]].depth - 1;
        for (int64_t w = 0; w < W; w++) {
            const Candidate& node = row.all[row.here[w]];
            const int64_t at = b * W + w;
            const auto parent = std::find(row.above.begin(), row.above.end(), node.parent) - row.above.begin();
            const float* const feature = before + (b * static_cast<int64_t>(row.above.size()) + parent) * m.width;
            std::copy(feature, feature + m.width, t.feature.data() + at * m.width);
            t.token[at] = node.token, t.position[at] = given.position[b] + node.depth - 1;
            for (int64_t j = 0; j < scratch; j++) t.mask[at * scratch + j] = row.sees(row.here[w], row.run[j]);
        }
    }
    Pass p = given;
    p.nodes = W, p.start = start;
    p.tokens = t.token.data(), p.depth = t.depth.data(), p.position = t.position.data(), p.mask = t.mask.data();
    p.features = t.feature.data(), p.states = outputs, p.state_layers = &m.continues, p.state_count = 1, p.logits = logits;
    return forward<E>(m, p, t);
}

template <typename E>
static Code grow(const Model& whole, const Pass& given, Work& t, const Growth& g) {
    Model m = whole;
    m.head_tokens = nullptr;  // logits of the head's outputs suffice
    const int64_t B = given.rows, n = m.head.outputs, most = B * g.topk, scratch = std::max<int64_t>(1, g.depth - 1) * g.topk;
    t.token.reserve(most), t.position.reserve(most), t.depth.reserve(B * scratch), t.mask.reserve(most * scratch);
    t.feature.reserve(most * m.width);
    float* const outputs = t.output.reserve(2 * most * m.width);
    float* const logits = t.level_logits.reserve(most * n);
    float* const factors = t.factor.reserve(B * n);
    Kept* const kept = t.kept.reserve(most * n);
    std::vector<Growing> rows;
    for (int64_t b = 0; b < B; b++) rows.emplace_back(given.tokens[b]);
    std::vector<Child> best(most * g.topk);
    std::vector<float> log_total(most);
    std::copy(given.features, given.features + B * m.width, outputs);
    for (int64_t level = 0; level < g.depth; level++) {
        const int64_t W = rows[0].here.size();
        float *const before = outputs + (level + 1) % 2 * most * m.width, *const now = outputs + level % 2 * most * m.width;
        Pass head = given;
        head.logits = logits;
        if (const Code code = level ? run_level<E>(m, given, t, rows, before, now, logits) : read_head<E>(m, head, t)) return code;
        for (int64_t b = 0; b < B; b++)
            if (g.warpers[b].temperature > 0)
                noise_of(key_of(g.seed[b], g.position[b] + level), whole.head_tokens, n, factors + b * n);
#pragma omp parallel for schedule(static) num_threads(team_size())
        for (int64_t i = 0; i < B * W; i++) {
            const Warpers& w = g.warpers[i / W];
            const float* const factor = w.temperature > 0 ? factors + i / W * n : nullptr;
            log_total[i] = likeliest(logits + i * n, n, w, factor, g.topk, kept + i * n, &best[i * g.topk]);
        }
        bool complete = !g.narrow;
        for (int64_t b = 0; b < B; b++) {
            const float top = rows[b].add(&best[b * W * g.topk], &log_total[b * W], whole.head_tokens, g.topk);
            complete = complete && rows[b].complete(g.nodes - 1, top);
        }
        if (complete) break;
    }
    for (int64_t b = 0; b < B; b++) {
        const std::vector<int64_t> nodes = rows[b].chosen(g);
        const int64_t N = nodes.size();
        *g.count = N;
        for (int64_t i = 0; i < N; i++) {
            const Candidate& node = rows[b].all[nodes[i]];
            const auto parent = std::lower_bound(nodes.begin(), nodes.end(), node.parent) - nodes.begin();
            g.tokens[b * N + i] = node.token, g.parent[b * N + i] = node.parent ? parent + 1 : 0;
        }
    }
    return DONE;
}
