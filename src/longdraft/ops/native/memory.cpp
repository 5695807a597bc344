// How tests make requests for memory fail.
#include "memory.h"

#include <atomic>

#include "interface.h"

static std::atomic<int64_t> countdown{0};

bool request_must_fail() { return countdown.load(std::memory_order_relaxed) > 0 && countdown.fetch_sub(1) == 1; }

void longdraft_fail(int64_t n) { countdown = n; }

#ifdef LONGDRAFT_PLANTED
// Reads past the end of x [n]: the test run under AddressSanitizer must report it.
extern "C" int64_t longdraft_planted(const int64_t* x, int64_t n) { return x[n]; }
#endif
