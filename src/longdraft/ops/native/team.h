// How many threads compute a pass.
//
// The work of a pass is divided evenly, and threads wait for each other many times. If another process computes on the processor
// of one thread, all others wait while that one does not run: a pass takes twice as long or more. One thread fewer, on whichever
// processors are free, is then faster. The numbers that are computed do not depend on the number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

class Team {
    static constexpr int64_t MS = 1000 * 1000;
    static constexpr int64_t WINDOW = 20 * MS;  // of passes, on which a decision rests: several time slices
    static constexpr int64_t FIRST = 100 * MS, MOST = 1600 * MS;  // how long one thread fewer computes before all try again
    static constexpr int64_t SHARE = 3;  // one thread fewer if a thread is missing for a SHARE-th of the time
    std::mutex lock;
    std::atomic<int64_t> until{0};  // the time to try with all threads again; 0: all compute
    int64_t spent = 0, missed = 0, pause = FIRST;

   public:
    // How many of `all` threads compute the next pass. changed(threads, all) is called where that changes.
    template <typename Changed>
    int size(int all, int64_t now, Changed changed) {
        const int64_t end = until.load(std::memory_order_relaxed);
        if (!end || all < 2) return all;
        if (now < end) return all - 1;
        std::lock_guard<std::mutex> held(lock);
        if (until.exchange(0)) changed(all, all);
        return all;
    }

    // Takes note of a pass by `threads` of `all` threads in which one was missing for `missing` of `took` nanoseconds.
    template <typename Changed>
    void passed(int threads, int all, int64_t now, int64_t took, int64_t missing, Changed changed) {
        if (threads < all || all < 2) return;
        std::lock_guard<std::mutex> held(lock);
        spent += took, missed += missing;
        if (spent < WINDOW) return;
        const bool contended = missed * SHARE > spent;
        spent = missed = 0;
        if (!contended) {
            pause = FIRST;
            return;
        }
        until = now + pause;
        pause = pause * 2 < MOST ? pause * 2 : MOST;
        changed(all - 1, all);
    }
};

// The team of this process (pin.cpp): how many threads the next pass should have, and what a pass was like.
int team_size();
void team_passed(int threads, int64_t took, int64_t missing);
