// Where the threads of a parallel region wait for each other. OpenMP's own barrier makes a system call each time, which takes
// as long as the work of a small layer.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "openmp.h"

class Barrier {
    static constexpr int SPINS = 2000;  // a tenth of a millisecond; after that, other threads get the processor
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<uint32_t> generation{0};

   public:
    // Returns once all threads of the region have called it; each then sees what the others have written.
    void wait() {
        const int threads = omp_get_num_threads();
        if (threads == 1) return;
        const uint32_t now = generation.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            generation.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; generation.load(std::memory_order_acquire) == now; spins++) {
            if (spins >= SPINS) std::this_thread::yield();
#ifdef __x86_64__
            _mm_pause();
#endif
        }
    }
};
