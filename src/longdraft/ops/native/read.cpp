// How fast this machine reads memory: every line of a buffer once, with as little arithmetic as possible.
#include "interface.h"

typedef int64_t line __attribute__((vector_size(64)));

int64_t longdraft_read(const void* memory, int64_t lines) {
    const line* p = static_cast<const line*>(memory);
    int64_t all = 0;
#pragma omp parallel reduction(^ : all)
    {
        line a = {}, b = {}, c = {}, d = {};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < lines / 4; i++) a ^= p[4 * i], b ^= p[4 * i + 1], c ^= p[4 * i + 2], d ^= p[4 * i + 3];
        a ^= b ^ c ^ d;
        for (int i = 0; i < 8; i++) all ^= a[i];
    }
    return all;
}
