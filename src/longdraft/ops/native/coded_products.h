// The products of one chunk of keys and values that are codes: each becomes a float in a register, where it is used.
#pragma once
#include "coded_keys.h"
#include "linear.h"
#include "vector_products.h"

// Slots of codes as vectors of floats, as those of weights.h.
template <int BITS, int D>
struct CodedSlots {
    static constexpr int STEP = D < CODED ? D : CODED;
    const CodedBlock<BITS>* first;
    vec at(int64_t slot, int64_t number, int step) const {
        const CodedBlock<BITS>& block = first[slot * coded_blocks(D) + (number + step) / CODED];
        return coded_at(block, static_cast<int>(number + step) % CODED);
    }
};

template <int BITS, int ND>
class CodedVectors {
    static constexpr int D = 16 * ND;
    static constexpr int64_t SIXTEEN = 16 * coded_bytes(D, BITS);
    const float* q;
    int64_t R;
    CodedBlock<BITS>* last;  // sixteen keys, where a chunk has fewer left

   public:
    static constexpr int64_t KEY = coded_blocks(D);  // blocks of a key
    static int64_t floats(int64_t) { return SIXTEEN / static_cast<int64_t>(sizeof(float)); }  // that an object needs
    static int64_t steps(int64_t) { return CHUNK / 16 * 2; }                                  // of a Prefetch, in a whole chunk
    CodedVectors(const Queries& x, float* memory) : q(x.q), R(x.R), last(reinterpret_cast<CodedBlock<BITS>*>(memory)) {}

    // As in Vectors.
    void scores(const CodedBlock<BITS>* k, int64_t n, float* scores, Prefetch& prefetch) {
        for (int64_t j = 0; j < n; j += 16) {
            const CodedBlock<BITS>* keys = k + j * KEY;
            if (j + 16 > n) {
                std::memset(static_cast<void*>(last), 0, SIXTEEN);
                std::memcpy(static_cast<void*>(last), keys, SIXTEEN / 16 * (n - j));
                keys = last;
            }
            prefetch.step();
            in_blocks(R, [&](auto rows, int64_t first) {
                constexpr int RB = decltype(rows)::value;
                vec all[RB * 16] = {};
                add_sixteen<RB>(q + first * D, D, CodedSlots<BITS, D>{keys}, 0, D, all);
                for (int r = 0; r < RB; r++)
                    for (int i = 0; i < 16; i += V) store(scores + (first + r) * CHUNK + j + i, sums(all + r * 16 + i));
            });
        }
    }

    void values(const float* weights, const float* keep, const CodedBlock<BITS>* v, int64_t n, float* out, Prefetch& prefetch) {
        Prefetch none;
        in_blocks(R, [&](auto rows, int64_t r) {
            constexpr int RB = decltype(rows)::value;
            const CodedSlots<BITS, D> slots = {v};
            value_block<D, RB>(weights + r * CHUNK, keep + r, slots, n, out + r * D, r ? none : prefetch);
        });
    }
};
