// Where the threads of a parallel region wait for each other. OpenMP's own barrier calls the system each time, which costs as
// much as a small layer's work does.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>
#include <thread>
#ifdef __x86_64__
#include <immintrin.h>
#endif

class Team {
    static constexpr int PATIENCE = 2000;  // looks before the processor is offered to others: a tenth of a millisecond
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<uint32_t> round{0};

   public:
    // Nobody goes on before all threads of the region are here; what each wrote, all see.
    void wait() {
        const int threads = omp_get_num_threads();
        if (threads == 1) return;
        const uint32_t now = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            round.store(now + 1, std::memory_order_release);
            return;
        }
        for (int looks = 0; round.load(std::memory_order_acquire) == now; looks++) {
            if (looks >= PATIENCE) std::this_thread::yield();
#ifdef __x86_64__
            _mm_pause();
#endif
        }
    }
};
