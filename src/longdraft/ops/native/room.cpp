// What a test does to the memory of this library.
#include "room.h"

#include <atomic>

static std::atomic<int64_t> countdown{0};

bool must_fail() { return countdown.load(std::memory_order_relaxed) > 0 && countdown.fetch_sub(1) == 1; }

extern "C" {
// The n-th request for memory from now on fails (0: none does).
void longdraft_fail(int64_t n) { countdown = n; }
#ifdef LONGDRAFT_PLANTED
// Reads past the end of x [n]: the run of the tests under AddressSanitizer must notice it.
int64_t longdraft_planted(const int64_t* x, int64_t n) { return x[n]; }
#endif
}
