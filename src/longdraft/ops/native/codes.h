// What functions that do something return: 0, or what was wrong (WRONG in __init__.py).
#pragma once
#include <cstdint>

enum Code { DONE, MEMORY, MODEL, NODES, TOKEN, SLOTS, VIEW, SCORES, HIDDEN, DRAWS, COPIES };

constexpr int64_t MANY = int64_t{1} << 31;  // more of anything than there can be: products of two stay numbers

static bool from_to(int64_t x, int64_t low, int64_t high) { return low <= x && x <= high; }

// Runs what returns a code; nothing that is thrown leaves the library.
template <typename Call>
static int guarded(Call call) noexcept {
    try {
        return call();
    } catch (...) {  // nothing here throws but for want of memory
        return MEMORY;
    }
}
