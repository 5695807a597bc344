// Ranges that arguments must lie in, and the one place where exceptions end.
#pragma once
#include "interface.h"

constexpr int64_t MANY = int64_t{1} << 31;  // no count may be larger: a product of two still fits int64_t

static bool in_range(int64_t x, int64_t low, int64_t high) { return low <= x && x <= high; }

// Runs what returns a Code; no exception leaves the library.
template <typename Call>
static Code guarded(Call call) noexcept {
    try {
        return call();
    } catch (...) {  // nothing here throws except for lack of memory
        return NO_MEMORY;
    }
}
