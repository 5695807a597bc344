// An MLP of experts: which of them each node goes through, and the products of all nodes that share one.
#pragma once
#include <cfloat>

#include "activation.h"
#include "linear.h"
#include "products.h"
#include "work.h"

// Chooses experts for one node by its row of the router's products. Of equal scores the lowest expert is chosen; a node's experts do
// not depend on other nodes.
class Chooser {
    const Experts& f;
    float* const share;   // [count]: the router's products, then shares
    float* const choice;  // [count]: by which experts are chosen; OUT: no longer
    static constexpr float OUT = -INFINITY;

   public:
    Chooser(const Experts& f, float* scores, float* choice) : f(f), share(scores), choice(choice) {}

    // The numbers of its experts, ascending, and what each one's output is multiplied by: [chosen].
    void choose(int64_t* expert, float* factor) const {
        score();
        if (f.groups > 1) leave_best_groups();
        for (int64_t j = 0; j < f.chosen; j++) expert[j] = take();
        std::sort(expert, expert + f.chosen);
        float total = f.normalized ? 0.0f : 1.0f;
        for (int64_t j = 0; f.normalized && j < f.chosen; j++) total += share[expert[j]];
        for (int64_t j = 0; j < f.chosen; j++) factor[j] = share[expert[j]] / std::max(total, 1e-20f) * f.scale;
    }

   private:
    void score() const {
        const float top = *std::max_element(share, share + f.count);
        float total = 0;
        for (int64_t e = 0; e < f.count; e++) {
            choice[e] = share[e];
            share[e] = f.scoring == SOFTMAX ? std::exp(share[e] - top) : 1 / (1 + std::exp(-share[e]));
            total += share[e];
        }
        for (int64_t e = 0; e < f.count; e++) {
            if (f.scoring == SOFTMAX) share[e] /= total;
            // shares are in the order of products, which differ where shares have been rounded to one number
            if (f.correction) choice[e] = (f.corrects_scores ? choice[e] : share[e]) + f.correction[e];
            else if (f.groups > 1) choice[e] = share[e];
            if (!(choice[e] >= -FLT_MAX)) choice[e] = -FLT_MAX;
        }
    }

    // Only experts of the groups whose best have the largest sums may be chosen.
    void leave_best_groups() const {
        const int64_t size = f.count / f.groups;
        float* const sum = choice + f.count;  // [groups]
        for (int64_t g = 0; g < f.groups; g++) {
            float best = OUT, second = OUT;
            for (int64_t e = g * size; e < (g + 1) * size; e++) {
                if (choice[e] > best) second = best, best = choice[e];
                else if (choice[e] > second) second = choice[e];
            }
            sum[g] = f.group_bests == 1 ? best : best + second;
        }
        for (int64_t left = f.groups; left > f.chosen_groups; left--) {
            int64_t worst = -1;  // of equal ones the last
            for (int64_t g = 0; g < f.groups; g++)
                if (sum[g] != INFINITY && (worst < 0 || !(sum[g] > sum[worst]))) worst = g;
            sum[worst] = INFINITY;
            std::fill(choice + worst * size, choice + (worst + 1) * size, OUT);
        }
    }

    int64_t take() const {
        int64_t best = -1;
        for (int64_t e = 0; e < f.count; e++)
            if (choice[e] != OUT && (best < 0 || choice[e] > choice[best])) best = e;
        choice[best] = OUT;
        return best;
    }
};

// Numbers that a Chooser needs beside the router's.
static int64_t choice_size(const Experts& f) { return f.count + f.groups; }

// The experts of one layer in a pass. Nodes are grouped by expert, so that each expert that is needed is read once. A node's result
// is the sum over its experts in the order of their numbers.
template <typename E>
class ExpertsPass {
    const Model& m;
    const Experts& f;
    Work& t;
    const bool approximate;
    const int64_t T, width = m.width, inner = f.up[0].outputs, all = T * f.chosen;

   public:
    ExpertsPass(const Model& m, const Experts& f, const Pass& p, Work& t)
        : m(m), f(f), t(t), approximate(p.approximate), T(p.rows * p.nodes) {}

    // x [T,width] -> out [T,width]. Called by every thread of a parallel region.
    void run(const float* x, float* out) {
        ::multiply<float>(f.router, x, T, t.router.data(), false, false, t.mine());
        t.barrier.wait();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++)
            Chooser(f, &t.router[i * f.router.outputs], &t.choice[i * choice_size(f)]).choose(&t.expert[i * f.chosen], &t.share[i * f.chosen]);
        t.barrier.wait();
        if (omp_get_thread_num() == 0) group();
        t.barrier.wait();
#pragma omp for schedule(static) nowait
        for (int64_t k = 0; k < all; k++)
            std::memcpy(&t.routed[t.place[k] * width], x + k / f.chosen * width, sizeof(float) * width);
        t.barrier.wait();
        for_each([&](int64_t e, int64_t first, int64_t count) { fill_inner(e, first, count); });
        t.barrier.wait();
        for_each([&](int64_t e, int64_t first, int64_t count) {
            multiply(f.down[e], &t.inner[first * inner], count, &t.routed[first * width]);
        });
        t.barrier.wait();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < T; i++) add_up(i, out + i * width);
        t.barrier.wait();
    }

   private:
    void multiply(const Linear& linear, const float* x, int64_t rows, float* y) {
        ::multiply<E>(linear, x, rows, y, false, approximate, t.mine());
    }

    // Where the nodes of each expert begin, and the place of each node and expert among them.
    void group() const {
        int64_t* const begin = t.begin.data();  // [count + 1]
        std::fill(begin, begin + f.count + 1, 0);
        for (int64_t k = 0; k < all; k++) begin[t.expert[k] + 1]++;
        for (int64_t e = 0; e < f.count; e++) begin[e + 1] += begin[e];
        for (int64_t k = 0; k < all; k++) t.place[k] = begin[t.expert[k]]++;
        for (int64_t e = f.count; e > 0; e--) begin[e] = begin[e - 1];
        begin[0] = 0;
    }

    template <typename Call>
    void for_each(Call call) const {
        for (int64_t e = 0; e < f.count; e++)
            if (const int64_t count = t.begin[e + 1] - t.begin[e]) call(e, t.begin[e], count);
    }

    void fill_inner(int64_t e, int64_t first, int64_t count) {
        const float* const x = &t.routed[first * width];
        float *const gate = &t.inner[first * inner], *const up = &t.inner[(all + first) * inner];
        multiply(f.gate ? f.gate[e] : f.up[e], x, count, gate);
        if (f.gate) multiply(f.up[e], x, count, up);
#pragma omp for schedule(static) nowait  // divided as in `outputs`: each thread goes on with what it has computed
        for (int64_t unit = 0; unit < (inner + OUTPUTS - 1) / OUTPUTS; unit++)
            for (int64_t row = 0; row < count * inner; row += inner)
                for (int64_t i = row + unit * OUTPUTS; i < row + std::min((unit + 1) * OUTPUTS, inner); i += V) {
                    const vec x = load(gate + i);
                    store(gate + i, f.gate ? gated(m, nullptr, x, load(up + i)) : activated(m.activation, nullptr, x));
                }
    }

    void add_up(int64_t i, float* out) const {
        std::memset(out, 0, sizeof(float) * width);
        for (int64_t k = i * f.chosen; k < (i + 1) * f.chosen; k++) {
            const vec share = splat(t.share[k]);
            const float* const from = &t.routed[t.place[k] * width];
            for (int64_t j = 0; j < width; j += V) store(out + j, fused(load(from + j), share, load(out + j)));
        }
    }
};

// Requests the memory of a pass over T nodes.
static inline void reserve_experts(const Model& m, int64_t T, Work& t) {
    for (int64_t layer = 0; layer < m.layers; layer++) {
        const Experts* const f = m.layer[layer].experts;
        if (!f) continue;
        const int64_t all = T * f->chosen;
        t.router.reserve(T * f->router.outputs), t.choice.reserve(T * choice_size(*f));
        t.expert.reserve(all), t.place.reserve(all), t.share.reserve(all), t.begin.reserve(f->count + 1);
        t.routed.reserve(all * m.width), t.inner.reserve(2 * all * f->up[0].outputs);
        t.beside.reserve(T * m.width), t.shared_gate.reserve(T);
    }
}
