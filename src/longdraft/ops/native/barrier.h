// Where the threads of a parallel region wait for each other. OpenMP's own barrier makes a system call each time, which takes
// as long as the work of a small layer, or waits for milliseconds without giving up its processor.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef __linux__
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "openmp.h"

static inline int64_t nanoseconds() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// For how many nanoseconds this thread has been ready to run, but another one had its processor; -1 where that is not known.
static inline int64_t kept_waiting() {
#ifdef __linux__
    char text[80] = {};
    const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    const ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    long long ran = 0, waited = 0;
    if (size > 0 && std::sscanf(text, "%lld %lld", &ran, &waited) == 2) return waited;
#endif
    return -1;
}

class Barrier {
    static constexpr int SPINS = 2000;          // at most a tenth of a millisecond; after that, a thread sleeps
    static constexpr int64_t LONG = 300 * 1000;  // nanoseconds; a time slice is longer
    alignas(64) std::atomic<int> arrived{0};
    std::atomic<int64_t> latest{0};  // when a thread arrived last
    int64_t missing = 0;             // nanoseconds; written by the thread that arrives last
    alignas(64) std::atomic<uint32_t> generation{0};
    std::atomic<int> sleepers{0};

   public:
    // Returns once all threads of the region have called it; each then sees what the others have written.
    void wait() {
        const int threads = omp_get_num_threads();
        if (threads == 1) return;
        const uint32_t now = generation.load(std::memory_order_relaxed);
        const int64_t time = nanoseconds(), before = latest.exchange(time, std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            if (time - before > LONG) missing += of_others(time - before);
            arrived.store(0, std::memory_order_relaxed);
            generation.store(now + 1, std::memory_order_seq_cst);
            if (sleepers.load(std::memory_order_seq_cst)) wake();
            return;
        }
        for (int spins = 0; spins < SPINS; spins++) {
            if (generation.load(std::memory_order_acquire) != now) return;
#ifdef __x86_64__
            _mm_pause();
#endif
        }
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        while (generation.load(std::memory_order_seq_cst) == now) sleep(now);
        sleepers.fetch_sub(1, std::memory_order_relaxed);
    }

    // For how many nanoseconds all waited for one thread that could not run, since the last call; only LONG waits count.
    int64_t take_missing() {
        const int64_t found = missing;
        missing = 0;
        return found;
    }

   private:
    // How much of its delay the calling thread had to wait for a processor; it may also have had more to do than the others.
    static int64_t of_others(int64_t delay) {
        static thread_local int64_t known = 0;
        const int64_t waited = kept_waiting(), more = waited - known;
        if (waited < 0) return delay;
        known = waited;
        return std::min(delay, more);
    }

#ifdef __linux__
    void sleep(uint32_t now) { syscall(SYS_futex, &generation, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0); }
    void wake() { syscall(SYS_futex, &generation, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }
#else
    void sleep(uint32_t) { std::this_thread::yield(); }
    void wake() {}
#endif
};
